# Converts the Cargo.toml of a published crate (cargo normalises these) to licence, licence file, build
# script, proc-macro, links, separated by tabs. Absent values are `-`. Needs `-v dir=FOLDER`.
function value(line) {
    sub(/^[^=]*= */, "", line)
    gsub(/^"|"$/, "", line)
    return line
}
BEGIN { OFS = "\t"; licence = file = build = links = "-"; macro = "no" }
/^\[/ { table = $0 }
table == "[package]" && /^license *=/ { licence = value($0) }
table == "[package]" && /^license-file *=/ { file = value($0) }
table == "[package]" && /^links *=/ { links = value($0) }
table == "[package]" && /^build *=/ { build = value($0) == "false" ? "-" : dir "/" value($0) }
table == "[lib]" && /^proc-macro *= *true/ { macro = "yes" }
END { print licence, file, build, macro, links }
