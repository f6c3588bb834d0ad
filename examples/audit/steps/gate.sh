#!/usr/bin/env bash
# Fails if the audit found a defect that should stop a release.
. "$(dirname "$0")/common.sh"
findings=0
finding() {
    [ "$1" -eq 0 ] || { printf '%s: %s\n' "$2" "$1"; findings=$((findings + 1)); }
}
finding "${RECIPROCAL:?}" 'crates only under reciprocal licences'
finding "${UNKNOWN:?}" 'crates under unknown licences'
finding "${ALTERED:?}" 'crates altered after publication'
finding "${MACHINE:?}" 'files of machine code'
[ "$findings" -eq 0 ] || die "$findings kinds of findings; the report says where"
printf 'nothing found that would stop a release\n'
