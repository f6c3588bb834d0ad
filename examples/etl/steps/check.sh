#!/usr/bin/env bash
# Compares the table with the clean files.
set -euo pipefail
loaded=$(sqlite3 "$DB" "SELECT count(*) FROM sales WHERE day = '$DAY'")
files=$(sqlite3 "$DB" "SELECT count(DISTINCT file) FROM sales WHERE day = '$DAY'")
clean=$(find out/clean -name '*.tsv' -exec cat {} + | wc -l | tr -d ' ')
if [ "$loaded" != "$clean" ] || [ "$files" != "$FILES" ]; then
    echo "the table has $loaded rows of $files files, expected $clean of $FILES" >&2
    exit 1
fi
[ "$(sqlite3 "$DB" 'PRAGMA integrity_check')" = ok ]
echo "rows=$loaded" >>"$WAYPOST_OUTPUT"
