#!/usr/bin/env bash
# Lists the code that a build executes on this machine: build scripts and procedural macros.
. "$(dirname "$0")/common.sh"
: "${CRATES:?the table of crates}" "${CODE_LINES:?the table of lines of code}"
table=$OUT/build-scripts.tsv

# Prints the actions of the build script at $1, from its code without comments.
abilities() {
    awk -f "$HERE/code.awk" "$1" | awk '
        /Command::new|process::Command/ { says["starts processes"] }
        /cc::Build|cmake::|[^A-Za-z_]Build::new/ { says["compiles native code"] }
        /fs::(write|create|copy|rename|remove)|File::create/ { says["writes files"] }
        /net::|ureq|reqwest|curl/ { says["network"] }
        /env::var/ { says["reads the environment"] }
        END {
            n = split("starts processes,compiles native code,writes files,network,reads the environment", order, ",")
            for (i = 1; i <= n; i++) if (order[i] in says) { printf "%s%s", comma, order[i]; comma = ", " }
            if (comma == "") printf "nothing of note"
        }'
}

rows() {
    while IFS=$'\t' read -r name version kind _ _ _ script macro links; do
        if [ "$script" != - ]; then
            lines=$(wc -l <"$script" | tr -d ' ')
            does=$(abilities "$script")
            printf '%s\t%s\t%s\tbuild script\t%s lines\t%s\t%s\n' "$name" "$version" "$kind" "$lines" "$does" "$links"
        fi
        if [ "$macro" = yes ]; then
            read -r _ _ lines _ <<<"$(awk -F '\t' -v n="$name" -v v="$version" '$1 == n && $2 == v' "$CODE_LINES")"
            printf '%s\t%s\t%s\tprocedural macro\t%s lines of code\t-\t-\n' "$name" "$version" "$kind" "${lines:-?}"
        fi
    done <"$CRATES"
}
save "$table" rows
scripts=$(grep -c 'build script' "$table" || true)
macros=$(grep -c 'procedural macro' "$table" || true)

output_file table build-scripts.tsv
output scripts "$scripts"
markdown() {
    printf '## Code that runs while building\n\n%s build scripts and %s procedural macros run with the rights of who builds.\n\n' "$scripts" "$macros"
    printf '| crate | what | size | does | links |\n|---|---|---|---|---|\n'
    awk -F '\t' '{ print "| " $1 " " $2 " | " $4 " | " $5 " | " $6 " | " $7 " |" }' "$table"
}
section build-scripts markdown
printf '%s build scripts, %s procedural macros\n' "$scripts" "$macros"
