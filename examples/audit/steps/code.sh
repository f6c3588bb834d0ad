#!/usr/bin/env bash
# Strips comments and literals from all Rust sources, for the steps that search code for words.
. "$(dirname "$0")/common.sh"
: "${CRATES:?the table of crates}"
table=$OUT/code.tsv
code=$OUT/code
unfinished=$code.part
export unfinished
rm -rf "$unfinished"
mkdir "$unfinished"

# Stores the stripped code of the crate, packed. Prints the line counts: code, comments, blank.
strip() {
    cd "$3"
    find . \( -name target -o -name .git -o -name .waypost \) -prune -o -type f -name '*.rs' -print |
        sort | tr '\n' '\0' | xargs -0 awk -v counts="$unfinished/$1-$2.counts" -f "$HERE/code.awk" /dev/null |
        gzip -1 >"$unfinished/$1-$2.gz"
    awk -v name="$1" -v version="$2" -v OFS='\t' '{ c += $1; d += $2; b += $3 }
        END { print name, version, c + 0, d + 0, b + 0 }' "$unfinished/$1-$2.counts"
    rm "$unfinished/$1-$2.counts"
}

save "$table" each_crate strip "$CRATES"
sync
rm -rf "$code"
mv "$unfinished" "$code"
read -r lines comments <<<"$(awk -F '\t' '{ c += $3; d += $4 } END { print c + 0, d + 0 }' "$table")"

output_file table code.tsv
output_file code code
output lines "$lines"
markdown() {
    cat <<MARKDOWN
## Code

$(thousands "$lines") lines of Rust code and $(thousands "$comments") of comments, tests and examples of the crates included.
MARKDOWN
}
section code markdown
printf '%s lines of code, %s of comments\n' "$(thousands "$lines")" "$(thousands "$comments")"
