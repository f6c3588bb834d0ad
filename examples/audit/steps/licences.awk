# Adds the class of an SPDX expression (permissive, reciprocal, unknown) as the fourth column. In: name,
# version, kind, expression, texts. `A OR B` is a choice, so the milder class counts. `A AND B` binds to both.

function rank(name) {
    if (name ~ /^(MIT|MIT-0|Apache-2\.0|ISC|0BSD|Zlib|BSL-1\.0|Unlicense|CC0-1\.0|BSD-[1-4]-Clause.*|Unicode-3\.0|Unicode-DFS-2016|NCSA|OpenSSL|CDLA-Permissive-2\.0|BlueOak-1\.0\.0|Python-2\.0|PSF-2\.0|WTFPL|libtiff|IJG)$/)
        return 0
    if (name ~ /^(A?GPL|LGPL|MPL|EPL|EUPL|CDDL|OSL|CC-BY-SA)-/) return 1
    return 2
}

# Recursive descent, a function for each level: OR, then AND, then a name or a bracket.
function any_of(   best, next_one) {
    best = all_of()
    while (word[at] == "OR" || word[at] == "/") { at++; next_one = all_of(); if (next_one < best) best = next_one }
    return best
}

function all_of(   worst, next_one) {
    worst = one()
    while (word[at] == "AND") { at++; next_one = one(); if (next_one > worst) worst = next_one }
    return worst
}

function one(   value) {
    if (word[at] == "(") { at++; value = any_of(); at++; return value }
    value = rank(word[at++])
    if (word[at] == "WITH") at += 2 # An exception only ever permits more.
    return value
}

BEGIN { FS = OFS = "\t"; class[0] = "permissive"; class[1] = "reciprocal"; class[2] = "unknown" }

{
    spaced = $4
    gsub(/[()\/]/, " & ", spaced)
    gsub(/^ +| +$/, "", spaced)
    split("", word)
    words = split(spaced, word, / +/)
    at = 1
    terms = any_of()
    if (at <= words) terms = 2 # Words are left over: not a known expression.
    print $1, $2, $3, class[terms], $4, $5
}
