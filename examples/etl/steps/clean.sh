#!/usr/bin/env bash
# Checks a file line by line, and writes the rows for the load. A bad line fails the whole file.
set -euo pipefail
rows=out/clean/$FILE.tsv
awk -F ',' -v day="$DAY" -v file="$FILE" -v OFS='\t' '
    NR == 1 { if ($0 != "shop,product,pieces,price") { print file ":1: the header is `" $0 "`" > "/dev/stderr"; bad = 1; exit } next }
    NF != 4 { print file ":" NR ": " NF " fields, not 4" > "/dev/stderr"; bad = 1; exit }
    $3 !~ /^[1-9][0-9]*$/ { print file ":" NR ": `" $3 "` is no number of pieces" > "/dev/stderr"; bad = 1; exit }
    $4 !~ /^[0-9]+\.[0-9][0-9]$/ { print file ":" NR ": `" $4 "` is no price" > "/dev/stderr"; bad = 1; exit }
    { split($4, price, "."); print day, file, $1, $2, $3, price[1] * 100 + price[2] }
    END { exit bad }
' "data/$FILE" >"$rows.part"
mv -f "$rows.part" "$rows"
echo "rows=$rows" >>"$WAYPOST_OUTPUT"
