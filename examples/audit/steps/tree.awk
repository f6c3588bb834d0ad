# Evaluates the edges in Cargo.lock. In: the table of crates, the table of sizes, the table of Cargo.lock.
# With `-v want=duplicates`: name, version and dependents, for each name with several versions.
# With `-v want=weight`: each direct dependency of the project's own crates, the number of its transitive
# dependencies, the number needed by no other crate, and their bytes.

function resolve(need,   part) {
    if (split(need, part, " ") == 2) return part[1] OFS part[2]
    return part[1] OFS only[part[1]]
}

# Marks the crates reachable from `node` in seen[], as if the project's own crates did not need `without`.
function reach(node, without,   need, n, i, next_one) {
    if (node in seen || !(node in here)) return
    seen[node]
    n = split(needs[node], need, ";")
    for (i = 1; i <= n; i++) {
        next_one = resolve(need[i])
        if (next_one != without || !(node in own)) reach(next_one, without)
    }
}

function reach_all(without,   node) {
    split("", seen)
    for (node in own) reach(node, without)
}

function duplicates(   node, part, user, n, i, need, who) {
    for (node in here) {
        split(node, part, OFS)
        if (versions[part[1]] < 2) continue
        who = ""
        for (user in here) {
            n = split(needs[user], need, ";")
            for (i = 1; i <= n; i++) if (resolve(need[i]) == node) who = who (who == "" ? "" : ", ") label(user)
        }
        print part[1], part[2], who == "" ? "-" : who
    }
}

function label(node,   part) { split(node, part, OFS); return part[1] " " part[2] }

function weight(   node, n, i, need, direct, all, count, alone, bytes) {
    for (node in own) {
        n = split(needs[node], need, ";")
        for (i = 1; i <= n; i++) if (need[i] != "-" && !(resolve(need[i]) in own)) direct[resolve(need[i])]
    }
    reach_all("")
    for (node in seen) all[node]
    for (node in direct) {
        if (!(node in here)) continue
        split("", seen)
        reach(node, "")
        count = 0
        for (i in seen) count++
        reach_all(node)
        alone = bytes = 0
        for (i in all) if (!(i in seen)) { alone++; bytes += size[i] }
        print node, count, alone, bytes
    }
}

BEGIN { FS = OFS = "\t" }
FNR == 1 { file++ }
file == 1 { node = $1 OFS $2; here[node]; versions[$1]++; if ($3 == "local") own[node]; next }
file == 2 { size[$1 OFS $2] = $4; next }
{ only[$1] = $2; needs[$1 OFS $2] = $5 == "-" ? "" : $5 }
END { if (want == "duplicates") duplicates(); else weight() }
