#!/usr/bin/env bash
# Lists every crate of the build, with the folder of its source.
#
# `cargo metadata` is the best source, but refuses if a locked package was never downloaded. A build fetches
# only the needed packages. The list then comes from Cargo.lock and the folder where cargo unpacks.
. "$(dirname "$0")/common.sh"
: "${PROJECT:?the folder of the project to audit}"

command -v cargo >/dev/null || die "cargo is not on the PATH; the audit asks it for the list of crates"
[ -d "$PROJECT" ] || die "there is no folder $PROJECT (a relative one starts at the workflow file's folder)"
manifest=$(cd "$PROJECT" && cargo locate-project --workspace --message-format plain 2>/dev/null) ||
    die "cargo finds no Cargo.toml in $PROJECT or above it"
root=$(dirname "$manifest")
[ -f "$root/Cargo.lock" ] || die "$root has no Cargo.lock; build the project once, then audit it"

table=$OUT/crates.tsv
lock=$OUT/lock.tsv
absent=$OUT/absent.tsv
json=$OUT/metadata.json

packages() {
    grep -oE '"([^"\\]|\\.)*"|[][{}:,]|[^][{}:,"[:space:]]+' "$1" | awk -f "$HERE/packages.awk" | sort -u
}

metadata() {
    (cd "$root" && cargo metadata --offline --locked --format-version 1 "$@")
}

# The folder of a published crate, or nothing.
unpacked() {
    local home=${CARGO_HOME:-$HOME/.cargo} dir
    for dir in "$home"/registry/src/*/"$1-$2" "$root/vendor/$1-$2" "$root/vendor/$1"; do
        if [ -f "$dir/Cargo.toml" ]; then
            printf '%s\n' "$dir"
            return
        fi
    done
}

unsorted_from_lock() {
    metadata --no-deps >"$json"
    packages "$json"
    local name version source dir
    while IFS=$'\t' read -r name version source _; do
        dir=
        case $source in
        registry* | sparse*) dir=$(unpacked "$name" "$version") ;;
        esac
        [ -n "$dir" ] || continue
        printf '%s\t%s\tregistry\t%s\t' "$name" "$version" "$dir"
        awk -v dir="$dir" -f "$HERE/manifest.awk" "$dir/Cargo.toml"
    done <"$lock"
}

from_lock() { unsorted_from_lock | sort -u; }

locked() { awk -f "$HERE/lock.awk" "$root/Cargo.lock" | sort; }
save "$lock" locked
host=$(rustc -vV 2>/dev/null | sed -n 's/^host: //p')
if metadata ${host:+--filter-platform "$host"} >"$json" 2>"$OUT/metadata.log"; then
    how="cargo metadata"
    save "$table" packages "$json"
else
    how="Cargo.lock and the crates unpacked on this machine"
    printf 'cargo metadata refused:\n' >&2
    sed 's/^/    /' "$OUT/metadata.log" >&2
    printf 'The list is taken from %s.\n' "$how" >&2
    save "$table" from_lock
fi

count=$(wc -l <"$table" | tr -d ' ')
[ "$count" -gt 0 ] || die "the project has no crates on this machine; build it once, then audit it"
save "$absent" awk -F '\t' 'NR == FNR { here[$1, $2]; next } !(($1, $2) in here) { print $1 "\t" $2 }' "$table" "$lock"
missing=$(wc -l <"$absent" | tr -d ' ')
own=$(awk -F '\t' '$3 == "local"' "$table" | wc -l | tr -d ' ')

output_file table crates.tsv
output_file lock lock.tsv
output count "$count"
output root "$root"
markdown() {
    cat <<MARKDOWN
## Crates

$count crates are audited: $own of the project itself and $((count - own)) that it depends on, as listed by $how.
$missing more stand in Cargo.lock without a source here; they are for other platforms, or were not needed so far.
MARKDOWN
}
section crates markdown
printf '%s crates, %s more without a source here\n' "$count" "$missing"
