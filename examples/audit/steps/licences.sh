#!/usr/bin/env bash
# Classifies every crate by its licence, and looks for the text of the licence in the source folder.
. "$(dirname "$0")/common.sh"
: "${CRATES:?the table of crates}"
table=$OUT/licences.tsv

# Prints the crate and the licence texts in its folder, or in the folder that its manifest names.
texts() {
    local found
    cd "$3"
    found=$(find . -maxdepth 2 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'unlicense*' \
        -o -iname 'notice*' -o -ipath '*/licenses/*' \) | sed 's|^\./||' | sort | tr '\n' ' ' | sed 's/ $//')
    printf '%s\t%s\t%s\n' "$1" "$2" "${found:--}"
}

save "$OUT/licence-texts.tsv" each_crate texts "$CRATES"
classes() {
    awk -F '\t' -v OFS='\t' 'NR == FNR { texts[$1, $2] = $3; next } { print $1, $2, $3, $5, texts[$1, $2] }' \
        "$OUT/licence-texts.tsv" "$CRATES" | awk -f "$HERE/licences.awk"
}
save "$table" classes

count() { awk -F '\t' -v class="$1" '$4 == class' "$table" | wc -l | tr -d ' '; }
permissive=$(count permissive)
reciprocal=$(count reciprocal)
unknown=$(count unknown)
textless=$(awk -F '\t' '$3 == "registry" && $6 == "-"' "$table" | wc -l | tr -d ' ')

output_file table licences.tsv
output reciprocal "$reciprocal"
output unknown "$unknown"
markdown() {
    printf '## Licences\n\n'
    printf '%s crates may be used under permissive terms, %s only under reciprocal ones (copyleft), %s under terms this audit does not know. %s published crates carry no licence text.\n\n' \
        "$permissive" "$reciprocal" "$unknown" "$textless"
    printf '| licence | crates | terms |\n|---|---:|---|\n'
    awk -F '\t' '{ count[$5 "\t" $4]++ } END { for (k in count) print count[k] "\t" k }' "$table" | sort -t "$TAB" -k 1,1nr -k 2 |
        awk -F '\t' '{ gsub(/\|/, "\\|", $2); print "| " $2 " | " $1 " | " $3 " |" }'
    if [ $((reciprocal + unknown + textless)) -gt 0 ]; then
        printf '\n| to look at | why |\n|---|---|\n'
        awk -F '\t' '$4 != "permissive" { print "| " $1 " " $2 " | " $4 ": " $5 " |" }
            $3 == "registry" && $6 == "-" { print "| " $1 " " $2 " | no licence text |" }' "$table"
    fi
}
section licences markdown
printf '%s permissive, %s reciprocal, %s unknown, %s without a text\n' "$permissive" "$reciprocal" "$unknown" "$textless"
