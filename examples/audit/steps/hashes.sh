#!/usr/bin/env bash
# Computes a hash for each crate and a root hash over all crates, from the results of `hash`.
#
# A crate's hash is SHA-256 over its sorted lines `HASH  PATH`, the root is SHA-256 over the sorted lines
# `HASH  NAME VERSION`. So `sha256sum` can check a crate or the root.
. "$(dirname "$0")/common.sh"
: "${FAILED:?how many crates could not be read}"
listing=$OUT/files.tsv
table=$OUT/hashes.tsv

found() { find "$OUT/hash" -name '*.tsv' -exec cat {} + | sort -t "$TAB" -k 2,3 -k 4; }
save "$listing" found

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

$(thousands "$files") files were hashed$([ "$FAILED" = 0 ] || echo ", and $FAILED crates could not be read"). Two machines that print the same line below audited the same sources:

    $root
MARKDOWN
}
section hashes markdown
printf '%s files, root %s\n' "$(thousands "$files")" "$root"
