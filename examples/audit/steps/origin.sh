#!/usr/bin/env bash
# Compares the compiled source with the published crate: the packed crate with the checksum in Cargo.lock,
# and every unpacked file with the packed file. Cargo checks the former at download, and the latter never.
. "$(dirname "$0")/common.sh"
: "${CRATES:?the table of crates}" "${LOCK:?the table of Cargo.lock}"
table=$OUT/origin.tsv
work=$OUT/origin.work
rm -rf "$work" # From an interrupted attempt.
mkdir "$work"
export work

# Prints crate, verdict (same, altered, checksum, unpacked only), and the first difference.
origin() {
    local checksum=${3%%;*} dir=${3#*;} package found difference code
    package=$(dirname "$(dirname "$dir")" | sed 's|/src$|/cache|')/$(basename "$(dirname "$dir")")/$1-$2.crate
    if [ ! -f "$package" ]; then
        printf '%s\t%s\tunpacked only\t-\n' "$1" "$2"
        return
    fi
    found=$(sha256 <"$package" | cut -c 1-64)
    if [ "$found" != "$checksum" ]; then
        printf '%s\t%s\tchecksum\tlocked %s, found %s\n' "$1" "$2" "$checksum" "$found"
        return
    fi
    mkdir "$work/$1-$2.d"
    tar -xzf "$package" -C "$work/$1-$2.d"
    code=0
    diff -rq -x .cargo-ok "$work/$1-$2.d/$1-$2" "$dir" >"$work/$1-$2.diff" || code=$?
    rm -rf "$work/$1-$2.d"
    case $code in
    0) printf '%s\t%s\tsame\t-\n' "$1" "$2" ;;
    1)
        difference=$(sed -n 1p "$work/$1-$2.diff" | tr '\t' ' ')
        difference=${difference//"$work/$1-$2.d/"/published }
        printf '%s\t%s\taltered\t%s\n' "$1" "$2" "${difference//"$(dirname "$dir")/"/}"
        ;;
    *) return "$code" ;;
    esac
}

awk -F '\t' -v OFS='\t' 'NR == FNR { checksum[$1, $2] = $4; next }
    $3 == "registry" && checksum[$1, $2] != "-" { print $1, $2, $3, checksum[$1, $2] ";" $4 }' "$LOCK" "$CRATES" >"$work/crates.tsv"
save "$table" each_crate origin "$work/crates.tsv"
rm -rf "$work"

count() { awk -F '\t' -v verdict="$1" '$3 == verdict' "$table" | wc -l | tr -d ' '; }
same=$(count same)
altered=$(count altered)
checksum=$(count checksum)
unpacked=$(count "unpacked only")

output_file table origin.tsv
output findings "$((altered + checksum))"
markdown() {
    printf '## Origin\n\n'
    printf '%s crates are byte for byte what was published under the checksum in Cargo.lock. %s were altered after unpacking, %s packages do not have the locked checksum, %s could not be compared because the package is gone.\n' \
        "$same" "$altered" "$checksum" "$unpacked"
    if [ $((altered + checksum)) -gt 0 ]; then
        printf '\n| crate | finding | first difference |\n|---|---|---|\n'
        awk -F '\t' '$3 == "altered" || $3 == "checksum" { print "| " $1 " " $2 " | " $3 " | " $4 " |" }' "$table"
    fi
}
section origin markdown
printf '%s as published, %s altered, %s with another checksum, %s without a package\n' "$same" "$altered" "$checksum" "$unpacked"
