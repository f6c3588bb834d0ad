#!/usr/bin/env bash
# Prints the running text of a document, without tables, code and Markdown marks.
set -euo pipefail
awk '
/^[ ]*```/ { code = !code; next }
code || /^[ ]*\|/ || /^ {4,}/ || /^#+ / || /^[ ]*$/ { next }
{ gsub(/\]\([^)]*\)/, ""); gsub(/[][*`]/, ""); sub(/^[ ]*([-+>]|[0-9]+\.) +/, ""); print }' "$1" | head -c 200000
