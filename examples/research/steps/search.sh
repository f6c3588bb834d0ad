#!/usr/bin/env bash
# Prints the documents with the most hits, as JSON: `[{"path": …, "hits": …}]`.
set -euo pipefail
cd "$FOLDER"
pattern=$(tr -s ' ' '|' <<<"$WORDS")
find . -type f \( -name '*.md' -o -name '*.txt' \) -size -2048k ! -path '*/.*/*' | sed 's|^\./||' | LC_ALL=C sort |
    while IFS= read -r path; do
        hits=$(grep -oiE "$pattern" "$path" | wc -l | tr -d ' ') || hits=0
        if [ "$hits" -gt 0 ]; then printf '%s\t%s\n' "$hits" "$path"; fi
    done | LC_ALL=C sort -t "$(printf '\t')" -k 1,1nr -k 2 | awk -F '\t' -v most="$MOST" '
        NR > most { next }
        { gsub(/[\\"]/, "\\\\&", $2); printf "%s{\"path\": \"%s\", \"hits\": %d}", (NR == 1 ? "[" : ", "), $2, $1 }
        END { if (NR == 0) printf "["; print "]" }'
