#!/usr/bin/env bash
# Prints the search words of the question, a word in each line: long words, without duplicates.
set -euo pipefail
tr -cs 'A-Za-z0-9' '\n' <<<"$QUESTION" | tr 'A-Z' 'a-z' | awk 'length > 4 && !seen[$0]++' | head -n 12 | grep . ||
    { echo "the question has no word of five letters or more" >&2; exit 1; }
