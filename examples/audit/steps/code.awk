# Strips Rust source to code: no comments, strings as "", characters as ' '. A search for a word then finds
# only uses in code. Blank lines are dropped, and a line `//FILE NAME` precedes the code of each file.
# Appends the line counts `code comment blank` to the file given by `-v counts=FILE`.
#
# State between lines: depth of nested block comments; closing, the end of the current string, or "";
# raw, true if the string has no escapes.

# Returns a line without comments and literals.
function strip(line,   code, token, before) {
    code = ""
    while (line != "") {
        if (depth > 0) { line = after_comment(line); continue }
        if (closing != "") { line = after_string(line); continue }
        if (!match(line, /\/\/|\/\*|r#*"|"|'/)) return code line
        token = substr(line, RSTART, RLENGTH)
        before = RSTART > 1 ? substr(line, RSTART - 1, 1) : ""
        code = code substr(line, 1, RSTART - 1)
        line = substr(line, RSTART + RLENGTH)
        if (token == "//") { commented = 1; return code }
        if (token == "/*") { commented = depth = 1; continue }
        if (token == "'") { code = code character(line); line = rest; continue }
        # The r of a raw string starts a word or follows b or c; any other r ends an identifier.
        raw = token != "\"" && before !~ /[ad-zA-Z0-9_]/
        closing = raw ? "\"" substr(token, 2, length(token) - 2) : "\""
        code = code "\"\""
    }
    return code
}

function after_comment(line) {
    commented = 1
    while (depth > 0) {
        if (!match(line, /\/\*|\*\//)) return ""
        depth += substr(line, RSTART, 1) == "/" ? 1 : -1
        line = substr(line, RSTART + RLENGTH)
    }
    return line
}

function after_string(line,   at) {
    if (raw) {
        at = index(line, closing)
        if (at == 0) return ""
        line = substr(line, at + length(closing))
        closing = ""
        return line
    }
    while (match(line, /\\.|"/)) {
        if (substr(line, RSTART, 1) == "\"") closing = ""
        line = substr(line, RSTART + RLENGTH)
        if (closing == "") return line
    }
    return ""
}

# After a quote: a character literal becomes ' ', a lifetime keeps its quote. Sets rest to what follows.
function character(line) {
    rest = line
    if (!match(line, /^\\(x[0-9A-Fa-f][0-9A-Fa-f]|u\{[^}]*\}|.)'/) && !match(line, /^[^\\']'/) &&
        !match(line, /^[\200-\377]+'/)) return "'"
    rest = substr(line, RLENGTH + 1)
    return "' '"
}

FNR == 1 { depth = 0; closing = ""; print "//FILE " FILENAME }

{
    sub(/\r$/, "")
    commented = 0
    within = closing != ""
    code = strip($0)
    gsub(/^[ \t]+|[ \t]+$/, "", code)
    if (code != "" || within) code_lines++
    else if (commented) comment_lines++
    else blank_lines++
    if (code != "") print code
}

END { if (counts != "") print code_lines + 0, comment_lines + 0, blank_lines + 0 >> counts }
