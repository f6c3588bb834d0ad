#!/usr/bin/env bash
# Finds content that a reader of the source would not see: machine code, packed data in text, and characters
# that reorder the displayed code.
#
# Text is split into pieces, and each piece is compressed separately. So a small payload in a large file is
# found. Source packs to a third or less. Packed or encrypted data packs to three quarters as base64, and to
# more than half as bare hexadecimal. Bytes written as `0x1f, 0x8b` pack like source and are not found.
. "$(dirname "$0")/common.sh"
: "${CRATES:?the table of crates}"
table=$OUT/payloads.tsv
PIECE_BYTES=16384      # Large enough for gzip to learn the text, small enough for a payload to fill a piece.
PIECE_BYTES_MIN=8192   # A shorter rest has little repetition, compresses badly, and hides little.
DENSE_PERCENT_MIN=50   # Between the densest known source (48) and hexadecimal (57).
work=$OUT/payloads.work
rm -rf "$work" # From an interrupted attempt.
mkdir "$work"
export work PIECE_BYTES PIECE_BYTES_MIN DENSE_PERCENT_MIN

# Prints the format of a binary file, from its first bytes.
format() {
    case $(od -An -tx1 -N8 "$1" | tr -d ' \n') in
    7f454c46*) echo "machine code (ELF)" ;;
    4d5a*) echo "machine code (Windows)" ;;
    cffaedfe* | cefaedfe* | cafebabe*) echo "machine code (Mach-O)" ;;
    0061736d*) echo "machine code (WebAssembly)" ;;
    213c617263683e*) echo "library archive" ;;
    1f8b* | 504b0304* | fd377a58* | 28b52ffd* | 425a68*) echo "packed archive" ;;
    89504e47* | ffd8ff* | 47494638* | 52494646*) echo picture ;;
    *) echo "other binary" ;;
    esac
}
export -f format

# Prints the worst compression ratio of a piece of the text file $1, in percent; 0 without a full piece.
densest() {
    split -a 4 -b "$PIECE_BYTES" "$1" "$2/piece."
    find "$2" -name 'piece.*' -size -"$((PIECE_BYTES_MIN + 1))"c -exec rm {} +
    local percent=0 bytes packed piece
    for piece in "$2"/piece.*; do
        [ -f "$piece" ] || continue
        bytes=$(wc -c <"$piece")
        packed=$(gzip -9 <"$piece" | wc -c)
        [ $((100 * packed / bytes)) -le "$percent" ] || percent=$((100 * packed / bytes))
    done
    rm -f "$2"/piece.*
    echo "$percent"
}
export -f densest

# Prints a line for each suspicious file: name, version, finding, compressed percent (or `-`), path.
payloads() {
    local scratch=$work/$1-$2 path percent
    mkdir "$scratch"
    cd "$3"
    find . \( -name target -o -name .git -o -name .waypost \) -prune -o -type f ! -name .cargo-ok -size +0 -print0 >"$scratch/files"
    xargs -0 grep -IL '' /dev/null <"$scratch/files" | while IFS= read -r path; do
        [ "$path" = /dev/null ] || printf '%s\t%s\t%s\t-\t%s\n' "$1" "$2" "$(format "$path")" "${path#./}"
    done
    xargs -0 grep -lIE $'\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]' /dev/null <"$scratch/files" | while IFS= read -r path; do
        printf '%s\t%s\treordering characters\t-\t%s\n' "$1" "$2" "${path#./}"
    done || true
    xargs -0 grep -lI '' /dev/null <"$scratch/files" | while IFS= read -r path; do
        [ "$(wc -c <"$path")" -ge "$PIECE_BYTES_MIN" ] || continue
        percent=$(densest "$path" "$scratch")
        [ "$percent" -lt "$DENSE_PERCENT_MIN" ] || printf '%s\t%s\tdense text\t%s\t%s\n' "$1" "$2" "$percent" "${path#./}"
    done
}

save "$table" each_crate payloads "$CRATES"
rm -rf "$work"
count() { cut -f 3 "$table" | grep -cE "^($1)" || true; }
machine=$(count 'machine code|library archive')
dense=$(count 'dense text')
reordering=$(count 'reordering')

output_file table payloads.tsv
output machine "$machine"
markdown() {
    printf '## Hidden content\n\n%s files hold machine code, %s text files are in part as dense as packed data, %s files hold characters that reorder what is shown.\n' \
        "$machine" "$dense" "$reordering"
    if [ -s "$table" ]; then
        printf '\n| crate | finding | packs to | file |\n|---|---|---|---|\n'
        sed -n 1,40p "$table" | awk -F '\t' '{ print "| " $1 " " $2 " | " $3 " | " ($4 == "-" ? "" : $4 " %") " | " $5 " |" }'
    fi
}
section payloads markdown
printf '%s with machine code, %s dense, %s reordering\n' "$machine" "$dense" "$reordering"
