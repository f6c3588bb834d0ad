#!/usr/bin/env bash
# Prints the crates as JSON, an object for each: the items of the `foreach`.
. "$(dirname "$0")/common.sh"
: "${CRATES:?the table of crates}"
awk -F '\t' '
    function quoted(text) {
        gsub(/\\/, "\\\\", text)
        gsub(/"/, "\\\"", text)
        return "\"" text "\""
    }
    BEGIN { printf "[" }
    {
        printf "%s{\"name\":%s,\"version\":%s,\"source\":%s,\"folder\":%s}", (NR > 1 ? ",\n" : ""), \
            quoted($1), quoted($2), quoted($3), quoted($4)
    }
    END { print "]" }
' "$CRATES"
