#!/usr/bin/env bash
# Checks a property of the pack.
set -euo pipefail
case $1 in
contents) tar -tzf "$2" | grep -c . >/dev/null || { echo "the pack is empty" >&2; exit 1; } ;;
size) [ "$(wc -c <"$2")" -lt 10000000 ] || { echo "the pack has 10 MB or more" >&2; exit 1; } ;;
notes) grep -q "$VERSION" out/CONTENTS || { echo "the notes do not name the version" >&2; exit 1; } ;;
*) echo "there is no check $1" >&2; exit 2 ;;
esac
