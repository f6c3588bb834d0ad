#!/usr/bin/env bash
# Hashes every file of one crate: lines of hash, name, version and path.
. "$(dirname "$0")/common.sh"
: "${NAME:?}" "${VERSION:?}" "${SOURCE:?}" "${FOLDER:?}"

# Cargo's own mark (`.cargo-ok`) is not part of the published crate.
hashes() {
    cd "$FOLDER"
    find . \( -name target -o -name .git -o -name .waypost \) -prune -o -type f ! -name .cargo-ok -print0 |
        xargs -0 bash -c 'sha256 "$@"' sha256 /dev/null |
        sed -n 's|^\(\\\{0,1\}[0-9a-f]\{64\}\)  \./|\1\t'"$NAME\t$VERSION"'\t|p' | sort -t "$TAB" -k 4
}

mkdir -p "$OUT/hash"
save "$OUT/hash/$NAME-$VERSION-$SOURCE.tsv" hashes
