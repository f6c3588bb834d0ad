#!/usr/bin/env bash
# Writes the report of the day.
set -euo pipefail
{
    echo "# Sales of $DAY"
    echo
    echo "$ROWS rows, revenue $REVENUE. Files that could not be read: $FAILED."
    echo
    echo "| shop | pieces | revenue |"
    echo "|---|---|---|"
    sqlite3 "$DB" "SELECT '| ' || shop || ' | ' || pieces || ' | ' || printf('%.2f', cents / 100.0) || ' |'
                   FROM totals WHERE day = '$DAY' ORDER BY cents DESC"
} >out/report.md.part
mv -f out/report.md.part out/report.md
cat out/report.md >>"$WAYPOST_SUMMARY"
