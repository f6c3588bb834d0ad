# Functions for every step of the audit. Sourced, never run.
#
# An interrupted step runs again from its top. So each script writes temporary files and renames the
# complete ones. A script reads only declared outputs of earlier steps. The folder of a run is named after
# the run, so two audits never mix.
set -euo pipefail
export LC_ALL=C # The same order and the same byte counts on every machine.

: "${WAYPOST_OUTPUT:=/dev/null}" "${WAYPOST_SUMMARY:=/dev/null}"
AUDIT_OUT=${AUDIT_OUT:-out/${WAYPOST_RUN_ID:?waypost sets it; without waypost, give AUDIT_OUT}}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
JOBS=${AUDIT_JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)}
TAB=$(printf '\t')
mkdir -p "$AUDIT_OUT"
OUT=$(cd "$AUDIT_OUT" && pwd) # Steps change folders; outputs keep the relative name.
export HERE OUT TAB

# Ends the step with a message for a person.
die() {
    printf 'audit: %s\n' "$*" >&2
    exit 1
}

# Flushes FILE to the disk: the files of a finished step must be as durable as its record.
flush() {
    sync "$1" 2>/dev/null || sync
}

# Writes the output of the command after FILE to FILE, atomically: FILE is unchanged or complete. If the
# command fails, the step ends and FILE is unchanged. A pipeline into `save` could not guarantee this.
save() {
    local save_to=$1 # The command sees these locals, so their names are unusual.
    shift
    "$@" >"$save_to.part"
    flush "$save_to.part"
    mv -f "$save_to.part" "$save_to"
}

# Sets the output NAME to VALUE (one line).
output() {
    printf '%s=%s\n' "$1" "$2" >>"$WAYPOST_OUTPUT"
}

# Sets the output $1 to the file $2 in the folder of this run.
output_file() {
    [ -e "$OUT/$2" ] || die "the step did not make $2"
    output "$1" "$AUDIT_OUT/$2"
}

# Saves the output of the function $2 as the Markdown section $1 of the report, adds the section to the
# report of the run, and sets the output `section` to its path.
section() {
    save "$OUT/$1.md" "$2"
    cat "$OUT/$1.md" >>"$WAYPOST_SUMMARY"
    output_file section "$1.md"
}

# Prints the SHA-256 of the files in the arguments, or of stdin, as lines of `HASH  NAME`.
if command -v sha256sum >/dev/null; then
    sha256() { sha256sum "$@"; }
else
    sha256() { shasum -a 256 "$@"; }
fi
export -f sha256

# Calls the function $1 with (name, version, folder) for each crate of the table $2, $JOBS at a time. Prints
# the sorted output: the same bytes for any number of jobs. Each call writes to a file of its own, since lines
# from several processes in one pipe can mix. Stops at the first failed call: exit code 255 makes xargs start
# no more calls.
each_crate() {
    export -f "${1?}"
    local parts=$OUT/$1.parts
    local each='trap "[ \$? -eq 0 ] || exit 255" EXIT; "$2" "${@:3}" >"$1"'
    rm -rf "$parts"
    mkdir "$parts"
    cut -f 1,2,4 "$2" | awk -v dir="$parts" -v call="$1" -v OFS='\t' '{ print dir "/" NR, call, $0 }' |
        tr '\t\n' '\0\0' | xargs -0 -n 5 -P "$JOBS" bash -euo pipefail -c "$each" each_crate || exit 1
    find "$parts" -type f -exec cat {} + | sort -t "$TAB" "${@:3}"
    rm -rf "$parts"
}

# Prints NUMBER with separated thousands.
thousands() {
    printf '%s\n' "$1" | sed -e ':again' -e 's/^\([0-9][0-9]*\)\([0-9]\{3\}\)/\1,\2/' -e 't again'
}
