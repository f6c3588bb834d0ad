#!/usr/bin/env bash
# Hashes every file of every crate, and from those one hash a crate and one for all.
#
# A crate's hash is SHA-256 over its sorted lines `HASH  PATH`, the root is SHA-256 over the sorted lines
# `HASH  NAME VERSION`: anyone can check a crate, or the whole, with `sha256sum`.
. "$(dirname "$0")/common.sh"
: "${CRATES:?the table of crates}"
listing=$OUT/files.tsv
table=$OUT/hashes.tsv

# Cargo's own mark (`.cargo-ok`) is not part of what was published.
hashes() {
    cd "$3"
    find . \( -name target -o -name .git -o -name .waypost \) -prune -o -type f ! -name .cargo-ok -print0 |
        xargs -0 bash -c 'sha256 "$@"' sha256 /dev/null |
        sed -n 's|^\(\\\{0,1\}[0-9a-f]\{64\}\)  \./|\1\t'"$1\t$2"'\t|p' | sort -t "$TAB" -k 4
}

save "$listing" each_crate hashes "$CRATES" -k 2,3 -k 4

# One line a crate: name, version, hash.
roots() {
    cut -f 2,3 "$listing" | uniq | while IFS=$'\t' read -r name version; do
        hash=$(awk -F '\t' -v name="$name" -v version="$version" \
            '$2 == name && $3 == version { print $1 "  " $4 }' "$listing" | sha256 | cut -c 1-64)
        printf '%s\t%s\t%s\n' "$name" "$version" "$hash"
    done
}
save "$table" roots
root=$(awk -F '\t' '{ print $3 "  " $1 " " $2 }' "$table" | sort | sha256 | cut -c 1-64)
files=$(wc -l <"$listing" | tr -d ' ')

output_file table hashes.tsv
output_file files files.tsv
output root "$root"
markdown() {
    cat <<MARKDOWN
## Fingerprint

$(thousands "$files") files were hashed. Two machines that print the same line below audited the same sources:

    $root
MARKDOWN
}
section hashes markdown
printf '%s files, root %s\n' "$(thousands "$files")" "$root"
