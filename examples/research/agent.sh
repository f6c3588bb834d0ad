#!/usr/bin/env bash
# An offline agent. The first line of the prompt has the number of sentences and the question. The answer is
# the most relevant sentences of the rest, in their order. A sentence is relevant if its words occur in the
# question, or often in the text.
set -euo pipefail
awk '
function words(text, into,    count, i, list, n) {
    n = split(tolower(text), list, /[^a-z0-9_]+/)
    count = 0
    for (i = 1; i <= n; i++) if (length(list[i]) > 3) into[++count] = list[i]
    return count
}
function quoted(text) {
    gsub(/\\/, "\\\\", text); gsub(/"/, "\\\"", text); gsub(/\t/, " ", text); gsub(/[\001-\037]/, " ", text)
    return "\"" text "\""
}
NR == 1 {
    wanted = 3
    if (match($0, /in [0-9]+ sentences/)) wanted = substr($0, RSTART + 3, RLENGTH - 13) + 0
    question = $0
    sub(/^[^:]*: */, "", question)
    n = words(question, list)
    for (i = 1; i <= n; i++) asked[list[i]] = 1
    next
}
{ text = text $0 " " }
END {
    count = 0
    while (match(text, /[.!?][")]* +/)) {
        sentence = substr(text, 1, RSTART)
        text = substr(text, RSTART + RLENGTH)
        if (length(sentence) > 30) sentences[++count] = sentence
    }
    if (text ~ /[^ ]/) sentences[++count] = text
    for (s = 1; s <= count; s++) {
        n = words(sentences[s], list)
        read += n
        for (i = 1; i <= n; i++) frequency[list[i]]++
    }
    for (s = 1; s <= count; s++) {
        n = words(sentences[s], list)
        score[s] = 0
        for (i = 1; i <= n; i++) score[s] += log(1 + frequency[list[i]]) + (list[i] in asked ? 5 : 0)
        if (n > 0) score[s] /= sqrt(n)
    }
    for (taken = 0; taken < wanted && taken < count; taken++) {
        best = 0
        for (s = 1; s <= count; s++) if (!(s in chosen) && (best == 0 || score[s] > score[best])) best = s
        chosen[best] = 1
    }
    answer = ""
    for (s = 1; s <= count; s++) if (s in chosen) {
        sentence = sentences[s]
        gsub(/^ +| +$/, "", sentence)
        answer = answer (answer == "" ? "" : " ") sentence
    }
    written = words(answer, list)
    printf "{\"result\": %s, \"usage\": {\"input_tokens\": %d, \"output_tokens\": %d}, \"total_cost_usd\": 0, \"model\": \"extract-1\"}\n", \
        quoted(answer), read, written
}'
