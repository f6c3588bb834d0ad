# Converts the tokens of `cargo metadata`, a token in each line, to a line for each package. Columns, by tabs:
# name, version, kind (local, registry, git), folder, licence, licence file, build script, proc-macro, links.
# Absent values are `-`. The path of a value is the keys joined by dots; array members add no key.

function text(token) {
    if (token !~ /^"/) return token == "null" ? "-" : token
    token = substr(token, 2, length(token) - 2)
    gsub(/\\[nrt]/, " ", token)
    gsub(/\\"/, "\"", token)
    gsub(/\\\//, "/", token)
    gsub(/\\\\/, "\\", token)
    return token == "" ? "-" : token
}

function fresh() {
    split("", field)
    script = "-"
    macro = "no"
}

function or_dash(value) { return value == "" ? "-" : value }

function emit(   dir, kind) {
    dir = field["manifest_path"]
    sub(/\/Cargo\.toml$/, "", dir)
    kind = "local"
    if (field["source"] ~ /^(registry|sparse)/) kind = "registry"
    if (field["source"] ~ /^git/) kind = "git"
    print field["name"], field["version"], kind, dir, or_dash(field["license"]), \
        or_dash(field["license_file"]), script, macro, or_dash(field["links"])
}

function value(token) {
    if (path[depth] == "packages.targets.kind" && text(token) == "custom-build") builds = 1
    if (path[depth] == "packages.targets.kind" && text(token) == "proc-macro") macro = "yes"
    if (path[depth] == "packages.targets" && key == "src_path") source = text(token)
    if (path[depth] == "packages") field[key] = text(token)
}

BEGIN { OFS = "\t"; depth = 0; fresh() }

/^[[{]$/ {
    inside = path[depth]
    if (shape[depth] == "{") inside = (inside == "" ? "" : inside ".") key
    depth++
    path[depth] = inside
    shape[depth] = $0
    key_next = ($0 == "{")
    if ($0 == "{" && inside == "packages") fresh()
    if ($0 == "{" && inside == "packages.targets") { builds = 0; source = "-" }
    next
}

/^[]}]$/ {
    if ($0 == "}" && path[depth] == "packages.targets" && builds) script = source
    if ($0 == "}" && path[depth] == "packages") emit()
    depth--
    key_next = 0
    next
}

$0 == ":" { key_next = 0; next }
$0 == "," { key_next = (shape[depth] == "{"); next }
{ if (key_next) key = text($0); else value($0) }

END { if (depth != 0) { print "cargo metadata ended early" > "/dev/stderr"; exit 1 } }
