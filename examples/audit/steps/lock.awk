# Converts Cargo.lock to a line for each package: name, version, source (or `-`), checksum (or `-`), and the
# dependencies as NAME or NAME VERSION, separated by `;`.
function value(line) {
    sub(/^[^=]*= *"/, "", line)
    sub(/" *$/, "", line)
    return line
}
function emit() {
    if (name != "") print name, version, source, checksum, needs == "" ? "-" : needs
    name = ""; version = "-"; source = "-"; checksum = "-"; needs = ""
}
BEGIN { OFS = "\t" }
/^\[/ { emit(); inside = ($0 == "[[package]]"); listing = 0; next }
!inside { next }
/^name = / { name = value($0) }
/^version = / { version = value($0) }
/^source = / { source = value($0) }
/^checksum = / { checksum = value($0) }
/^dependencies = \[/ { listing = 1; next }
/^\]/ { listing = 0 }
listing {
    line = $0
    gsub(/^ *"|",? *$/, "", line)
    split(line, word, " ")
    needs = needs (needs == "" ? "" : ";") word[1] (word[2] == "" ? "" : " " word[2])
}
END { emit() }
