#!/usr/bin/env bash
# Puts the pack into the registry, whole or not at all; a version is never replaced by another content.
set -euo pipefail
place=registry/$2
mkdir -p "$place"
target=$place/${1##*/}
if [ -e "$target" ] && [ "$(sha256sum "$target" | cut -d ' ' -f 1)" != "$3" ]; then
    echo "$target is there with other content" >&2
    exit 1
fi
cp "$1" "$target.new"
mv "$target.new" "$target"
echo "published $VERSION" >>registry/log
