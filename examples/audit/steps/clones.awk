# Finds passages that stand in two crates. In: stripped code, before each crate a line `//CRATE NAME`.
# Out: crate, other crate, windows shared, first place in each; most first is left to `sort`.
#
# Every line gets a number, a window is WIDTH numbers in a row. Lines of punctuation only do not count, as any
# two programs share those. Of all windows one in SAMPLE is kept, chosen by its content, so that the choice is
# the same in both crates wherever the passage stands. Takes about 75 bytes of memory for a line of code.

BEGIN { OFS = "\t"; WIDTH = 8; SAMPLE = 2 }

/^\/\/CRATE / { crate = $2; filled = 0; next }
/^\/\/FILE / { file = $2; filled = 0; next }

{
    gsub(/[ \t]+/, " ")
    if ($0 !~ /[A-Za-z_].*[A-Za-z_]/ || length($0) < 8) next
    if (!($0 in number)) number[$0] = ++lines
    at = filled++ % WIDTH
    ring[at] = number[$0]
    if (filled < WIDTH || ring[(at + 1) % WIDTH] % SAMPLE != 0) next
    window = ""
    for (i = 1; i <= WIDTH; i++) window = window "," ring[(at + i) % WIDTH]
    if (!(window in owner)) { owner[window] = crate; place[window] = file; next }
    if (owner[window] == crate) next
    pair = owner[window] OFS crate
    if (shared[pair]++ == 0) first[pair] = place[window] OFS file
}

END { for (pair in shared) print pair, shared[pair], first[pair] }
