#!/usr/bin/env bash
# Counts the unsafe code of each crate, without tests and examples.
. "$(dirname "$0")/common.sh"
: "${CRATES:?the table of crates}" "${CODE:?the folder of stripped code}"
table=$OUT/unsafe.tsv
export CODE

# Prints a line for each crate: blocks, functions, impls and traits, foreign blocks, transmutes, mutable statics,
# assembly, and whether the crate forbids unsafe code.
count_unsafe() {
    gzip -dc "$CODE/$1-$2.gz" | awk -v name="$1" -v version="$2" -v OFS='\t' '
        /^\/\/FILE / { beside = $2 ~ /^\.\/(tests|benches|examples|fuzz)\//; next }
        beside { next }
        /forbid *\([^)]*unsafe_code/ { forbids = "yes" }
        /unsafe/ {
            blocks += gsub(/(^|[^A-Za-z0-9_])unsafe *(\{|$)/, "&")
            functions += gsub(/(^|[^A-Za-z0-9_])unsafe +((extern|async) +("" *)?)*fn[^A-Za-z0-9_]/, "&")
            impls += gsub(/(^|[^A-Za-z0-9_])unsafe +(auto +)?(impl|trait)[^A-Za-z0-9_]/, "&")
        }
        /extern/ { foreign += gsub(/(^|[^A-Za-z0-9_])extern *("")? *\{/, "&") }
        /transmute/ { transmutes += gsub(/(^|[^A-Za-z0-9_])transmute(_copy)? *(::|\()/, "&") }
        /static +mut / { statics++ }
        /(^|[^A-Za-z0-9_])(global_|naked_)?asm! *[({]/ { assembly++ }
        END { print name, version, blocks + 0, functions + 0, impls + 0, foreign + 0, transmutes + 0, \
            statics + 0, assembly + 0, forbids == "" ? "no" : forbids }'
}

save "$table" each_crate count_unsafe "$CRATES"
read -r total without forbidding <<<"$(awk -F '\t' '{ n = $3 + $4 + $5; t += n; w += n == 0; f += $10 == "yes" }
    END { print t + 0, w + 0, f + 0 }' "$table")"

output_file table unsafe.tsv
output total "$total"
markdown() {
    printf '## Unsafe code\n\n'
    printf '%s uses of `unsafe` in shipped code. %s crates have none, %s forbid it. The most:\n\n' \
        "$(thousands "$total")" "$without" "$forbidding"
    printf '| crate | blocks | functions | impls, traits | foreign | transmute | static mut | asm |\n|---|---:|---:|---:|---:|---:|---:|---:|\n'
    awk -F '\t' -v OFS='\t' '{ print $3 + $4 + $5, $0 }' "$table" | sort -t "$TAB" -k 1,1nr -k 2 | sed -n 1,20p |
        awk -F '\t' '$1 > 0 { print "| " $2 " " $3 " | " $4 " | " $5 " | " $6 " | " $7 " | " $8 " | " $9 " | " $10 " |" }'
}
section unsafe markdown
printf '%s uses of unsafe; %s of %s crates have none\n' "$(thousands "$total")" "$without" "$(wc -l <"$table" | tr -d ' ')"
