#!/usr/bin/env bash
# Writes the answer with its sources to `out/answer.md`.
set -euo pipefail
mkdir -p out
{
    printf '# %s\n\n%s\n\n## Sources\n\n' "$QUESTION" "$ANSWER"
    sed 's/.*/- `&`/' <<<"$READ"
} >out/answer.md.new
mv out/answer.md.new out/answer.md
