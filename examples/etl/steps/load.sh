#!/usr/bin/env bash
# Replaces the rows of a file, all or none.
set -euo pipefail
sqlite3 -bail -cmd '.timeout 10000' "$DB" <<SQL
.mode tabs
CREATE TEMP TABLE fresh (day, file, shop, product, pieces, cents);
.import '$CLEAN' fresh
BEGIN IMMEDIATE;
DELETE FROM sales WHERE day = '$DAY' AND file = '$FILE';
INSERT INTO sales SELECT * FROM fresh;
COMMIT;
SQL
