# What every step of the audit shares. Sourced, never run.
#
# A step that was cut is run again from its top, so each script builds its files aside and moves them into
# place when they are whole. It reads only what earlier steps declared as outputs; the folder of a run is
# named after the run, so that two audits never mix.
set -euo pipefail
export LC_ALL=C # The same order and the same byte counts on every machine.

: "${WAYPOST_OUTPUT:=/dev/null}" "${WAYPOST_SUMMARY:=/dev/null}"
AUDIT_OUT=${AUDIT_OUT:-out/${WAYPOST_RUN_ID:?waypost sets it; without waypost, give AUDIT_OUT}}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
JOBS=${AUDIT_JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)}
TAB=$(printf '\t')
mkdir -p "$AUDIT_OUT"
OUT=$(cd "$AUDIT_OUT" && pwd) # Steps change folders; what they hand on keeps the relative name.
export HERE OUT TAB

# Ends the step with a message for a person.
die() {
    printf 'audit: %s\n' "$*" >&2
    exit 1
}

# Flushes FILE to the disk: a finished step is recorded durably, so what it made must be as durable.
flush() {
    sync "$1" 2>/dev/null || sync
}

# Writes what the command after FILE prints to FILE, so that FILE is either as before or whole and new. When the
# command fails the step ends and FILE is as before; a pipeline before `save` could not promise that.
save() {
    local save_to=$1 # The command sees our locals, so they have names of their own.
    shift
    "$@" >"$save_to.part"
    flush "$save_to.part"
    mv -f "$save_to.part" "$save_to"
}

# Gives the output NAME with VALUE (one line) to later steps.
output() {
    printf '%s=%s\n' "$1" "$2" >>"$WAYPOST_OUTPUT"
}

# Gives the file $2 of this run's folder as the output $1.
output_file() {
    [ -e "$OUT/$2" ] || die "the step did not make $2"
    output "$1" "$AUDIT_OUT/$2"
}

# Saves what the function $2 prints as the Markdown section $1 of the report, shows it in the run's own report,
# and gives its path as the output `section`.
section() {
    save "$OUT/$1.md" "$2"
    cat "$OUT/$1.md" >>"$WAYPOST_SUMMARY"
    output_file section "$1.md"
}

# SHA-256 of the files named after it, or of stdin, as lines of `HASH  NAME`.
if command -v sha256sum >/dev/null; then
    sha256() { sha256sum "$@"; }
else
    sha256() { shasum -a 256 "$@"; }
fi
export -f sha256

# Calls the function $1 with (name, version, folder) for each crate of the table $2, $JOBS at a time, and prints
# what they print, sorted: the same bytes for any number of jobs. Each call writes to a file of its own, since lines
# that several processes write to one pipe can end up inside each other. Stops at the first call that fails: 255 is
# what tells xargs to start no more.
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

# Prints NUMBER with its thousands apart.
thousands() {
    printf '%s\n' "$1" | sed -e ':again' -e 's/^\([0-9][0-9]*\)\([0-9]\{3\}\)/\1,\2/' -e 't again'
}
