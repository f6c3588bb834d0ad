# Finds passages that two crates share. In: stripped code, a line `//CRATE NAME` before each crate.
# Out: crate, other crate, shared windows, first place in each; `sort` orders the lines later.
#
# Every line gets a number, and a window is WIDTH consecutive numbers. Lines of punctuation only do not
# count: any two programs share them. One window in SAMPLE is kept. The content of the window decides, so
# both crates keep the same windows, wherever the passage is. A line of code takes about 75 bytes of memory.

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
