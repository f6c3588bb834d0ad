#!/usr/bin/env bash
# Prints the running text of a document: no tables, no code, no marks of Markdown.
set -euo pipefail
awk '
/^[ ]*```/ { code = !code; next }
code || /^[ ]*\|/ || /^ {4,}/ || /^#+ / || /^[ ]*$/ { next }
{ gsub(/\]\([^)]*\)/, ""); gsub(/[][*`]/, ""); sub(/^[ ]*([-+>]|[0-9]+\.) +/, ""); print }' "$1" | head -c 200000
