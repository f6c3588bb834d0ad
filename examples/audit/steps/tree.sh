#!/usr/bin/env bash
# Evaluates the dependency graph: crates in several versions, and the weight of each direct dependency.
# The edges are from Cargo.lock, and include dependencies of tests and of other platforms.
. "$(dirname "$0")/common.sh"
: "${CRATES:?the table of crates}" "${LOCK:?the table of Cargo.lock}" "${SIZES:?the table of sizes}"

# Prints the table $1, sorted by the keys after it.
tree() { awk -v want="$1" -f "$HERE/tree.awk" "$CRATES" "$SIZES" "$LOCK" | sort -t "$TAB" "${@:2}"; }
save "$OUT/duplicates.tsv" tree duplicates -k 1,2
save "$OUT/weight.tsv" tree weight -k 5,5nr -k 1,2
names=$(cut -f 1 "$OUT/duplicates.tsv" | uniq | wc -l | tr -d ' ')

output_file duplicates duplicates.tsv
output_file weight weight.tsv
output count "$names"
markdown() {
    printf '## Duplicates\n\n%s crates are here in more than one version.\n\n' "$names"
    if [ "$names" -gt 0 ]; then
        printf '| crate | version | needed by |\n|---|---|---|\n'
        awk -F '\t' '{ print "| " $1 " | " $2 " | " $3 " |" }' "$OUT/duplicates.tsv"
        printf '\n'
    fi
    printf '## Weight\n\nWhat would go if one direct dependency went, by bytes of source:\n\n'
    printf '| dependency | crates it reaches | of which only through it | their bytes |\n|---|---:|---:|---:|\n'
    sed -n 1,15p "$OUT/weight.tsv" | awk -F '\t' '{ print "| " $1 " " $2 " | " $3 " | " $4 " | " $5 " |" }'
}
section tree markdown
printf '%s crates in several versions\n' "$names"
