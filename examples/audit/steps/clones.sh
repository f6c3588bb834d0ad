#!/usr/bin/env bash
# Finds code that two crates share: vendored or copied, so a fix in one crate does not reach the other.
. "$(dirname "$0")/common.sh"
: "${CRATES:?the table of crates}" "${CODE:?the folder of stripped code}"
table=$OUT/clones.tsv
SHARED_MIN=10 # Fewer shared windows are idioms and derived boilerplate.

pairs_of_crates() {
    cut -f 1,2 "$CRATES" | while IFS=$'\t' read -r name version; do
        printf '//CRATE %s %s\n' "$name" "$version"
        gzip -dc "$CODE/$name-$version.gz"
    done | sed 's|^//CRATE \([^ ]*\) |//CRATE \1@|' | awk -f "$HERE/clones.awk" |
        awk -F '\t' -v min="$SHARED_MIN" '$3 >= min' | sort -t "$TAB" -k 3,3nr -k 1,2
}
save "$table" pairs_of_crates
pairs=$(wc -l <"$table" | tr -d ' ')

output_file table clones.tsv
output pairs "$pairs"
markdown() {
    printf '## Copied code\n\n%s pairs of crates share passages of code.\n' "$pairs"
    if [ "$pairs" -gt 0 ]; then
        printf '\n| crate | other crate | shared passages | where | where in the other |\n|---|---|---:|---|---|\n'
        sed -n 1,15p "$table" | awk -F '\t' '{ print "| " $1 " | " $2 " | " $3 " | " $4 " | " $5 " |" }'
    fi
}
section clones markdown
printf '%s pairs of crates share code\n' "$pairs"
