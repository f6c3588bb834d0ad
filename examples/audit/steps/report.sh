#!/usr/bin/env bash
# Joins the sections of all steps into a Markdown file, in the folder of the run and as `out/report.md`.
. "$(dirname "$0")/common.sh"
: "${ROOT:?the audited project}" "${SECTIONS:?the section files, in order}"
name=$(basename "$ROOT")

row() { printf '| %s | %s |\n' "$1" "$2"; }
report() {
    printf '# Audit of the dependencies of %s\n\n' "$name"
    printf '| what | found |\n|---|---:|\n'
    row 'crates' "$COUNT"
    row 'bytes of source' "$(thousands "$BYTES")"
    row 'lines of Rust code' "$(thousands "$LINES_OF_CODE")"
    row 'only under reciprocal licences' "$RECIPROCAL"
    row 'under unknown licences' "$UNKNOWN"
    row 'altered after publication' "$ALTERED"
    row 'files of machine code' "$MACHINE"
    row 'uses of `unsafe`' "$(thousands "$UNSAFE")"
    row 'build scripts' "$SCRIPTS"
    row 'in several versions' "$DUPLICATES"
    row 'pairs sharing code' "$CLONES"
    # shellcheck disable=SC2086 # The split of the list is intended.
    for section in $SECTIONS; do
        printf '\n'
        cat "$section"
    done
}
save "$OUT/report.md" report
save "$OUT/../report.md" cat "$OUT/report.md"

output_file report report.md
printf 'The report is %s\n' "$AUDIT_OUT/report.md"
