#!/usr/bin/env bash
# Creates missing tables. A second call changes nothing.
set -euo pipefail
command -v sqlite3 >/dev/null || { echo "sqlite3 is not on the PATH" >&2; exit 1; }
mkdir -p "$(dirname "$DB")" out/clean
sqlite3 -bail "$DB" <<'SQL'
CREATE TABLE IF NOT EXISTS sales (
    day TEXT NOT NULL, file TEXT NOT NULL, shop TEXT NOT NULL, product TEXT NOT NULL,
    pieces INTEGER NOT NULL CHECK (pieces > 0), cents INTEGER NOT NULL CHECK (cents >= 0)
);
CREATE INDEX IF NOT EXISTS sales_by_file ON sales (day, file);
CREATE TABLE IF NOT EXISTS totals (
    day TEXT NOT NULL, shop TEXT NOT NULL, pieces INTEGER NOT NULL, cents INTEGER NOT NULL, PRIMARY KEY (day, shop)
);
SQL
