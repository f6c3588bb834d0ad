#!/usr/bin/env bash
# Computes the totals of each shop.
set -euo pipefail
sqlite3 -bail "$DB" <<SQL
BEGIN IMMEDIATE;
DELETE FROM totals WHERE day = '$DAY';
INSERT INTO totals SELECT day, shop, sum(pieces), sum(pieces * cents) FROM sales WHERE day = '$DAY' GROUP BY shop;
COMMIT;
SQL
revenue=$(sqlite3 "$DB" "SELECT printf('%.2f', sum(cents) / 100.0) FROM totals WHERE day = '$DAY'")
echo "revenue=$revenue" >>"$WAYPOST_OUTPUT"
