#!/usr/bin/env bash
# Packs a folder reproducibly, and writes the name and the SHA-256 of the pack to `out`.
set -euo pipefail
mkdir -p out
pack=out/release-$VERSION.tar.gz
files=$(cd "$1" && find . -type f ! -path './out/*' ! -path './registry/*' ! -path './.waypost/*' | LC_ALL=C sort)
printf 'version %s\n%s\n' "$VERSION" "$files" >out/CONTENTS
tar -C "$1" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - -T <(printf '%s\n' "$files") | gzip -n >"$pack.new"
mv "$pack.new" "$pack"
printf '%s' "$pack" >out/file
sha256sum "$pack" | cut -d ' ' -f 1 | tr -d '\n' >out/sha256
