#!/usr/bin/env bash
# Prints the words of the question that are worth looking for, one a line: long ones, each once.
set -euo pipefail
tr -cs 'A-Za-z0-9' '\n' <<<"$QUESTION" | tr 'A-Z' 'a-z' | awk 'length > 4 && !seen[$0]++' | head -n 12 | grep . ||
    { echo "the question has no word of five letters or more" >&2; exit 1; }
