#!/usr/bin/env bash
# Measures every crate: files, bytes and lines of the published content.
. "$(dirname "$0")/common.sh"
: "${CRATES:?the table of crates}"
table=$OUT/sizes.tsv

# Local crates are measured without the folders of git and cargo.
sizes() {
    find "$3" \( -name target -o -name .git -o -name .waypost \) -prune -o -type f ! -name .cargo-ok -print0 |
        xargs -0 wc -lc /dev/null |
        awk -v name="$1" -v version="$2" -v OFS='\t' \
            '!/^ *[0-9]+ +[0-9]+ (total|\/dev\/null)$/ { files++; lines += $1; bytes += $2 }
             END { print name, version, files + 0, bytes + 0, lines + 0 }'
}

save "$table" each_crate sizes "$CRATES"
read -r files bytes lines <<<"$(awk -F '\t' '{ f += $3; b += $4; l += $5 } END { printf "%d %.0f %.0f\n", f, b, l }' "$table")"

output_file table sizes.tsv
output bytes "$bytes"
markdown() {
    printf '## Size\n\n'
    printf '%s files, %s bytes, %s lines in all. The largest:\n\n' \
        "$(thousands "$files")" "$(thousands "$bytes")" "$(thousands "$lines")"
    printf '| crate | files | bytes | lines |\n|---|---:|---:|---:|\n'
    sort -t "$TAB" -k 4,4nr "$table" | sed -n 1,15p |
        awk -F '\t' '{ print "| " $1 " " $2 " | " $3 " | " $4 " | " $5 " |" }'
}
section sizes markdown
printf '%s files, %s bytes\n' "$(thousands "$files")" "$(thousands "$bytes")"
