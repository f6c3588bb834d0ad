#!/usr/bin/env bash
# Finds the crates with access to the outside: network, processes, files, environment, foreign code.
. "$(dirname "$0")/common.sh"
: "${CRATES:?the table of crates}" "${CODE:?the folder of stripped code}"
table=$OUT/reach.tsv
export CODE

# Prints a line for each crate: mentions of each kind in shipped code. A mention is not a use, and zero mentions
# prove nothing.
reach() {
    gzip -dc "$CODE/$1-$2.gz" | awk -v name="$1" -v version="$2" -v OFS='\t' '
        /^\/\/FILE / { beside = $2 ~ /^\.\/(tests|benches|examples|fuzz)\//; next }
        beside { next }
        /net::|TcpStream|TcpListener|UdpSocket|UnixStream|socketpair|getaddrinfo/ { network++ }
        /process::(\{.*)?Command|posix_spawn|libc::(v?fork|execv)/ { processes++ }
        /fs::|File::(open|create|options)|OpenOptions|openat/ { files++ }
        /env::(var|set_var|remove_var|vars|current_exe|home_dir)|[^A-Za-z0-9_](option_)?env!/ { environment++ }
        /extern *("")? *\{|dlopen|dlsym|libloading/ { foreign++ }
        /include(_bytes|_str)? *!/ { included++ }
        END { print name, version, network + 0, processes + 0, files + 0, environment + 0, foreign + 0, included + 0 }'
}

save "$table" each_crate reach "$CRATES"
read -r network processes nothing <<<"$(awk -F '\t' '{ n += $3 > 0; p += $4 > 0; z += $3 + $4 + $5 + $6 + $7 + $8 == 0 }
    END { print n + 0, p + 0, z + 0 }' "$table")"

output_file table reach.tsv
markdown() {
    printf '## Reach\n\n'
    printf '%s crates mention the network, %s start processes, %s reach nothing outside of themselves.\n\n' \
        "$network" "$processes" "$nothing"
    printf '| crate | network | processes | files | environment | foreign code | included files |\n|---|---:|---:|---:|---:|---:|---:|\n'
    awk -F '\t' '$3 + $4 > 0 { print "| " $1 " " $2 " | " $3 " | " $4 " | " $5 " | " $6 " | " $7 " | " $8 " |" }' "$table"
}
section reach markdown
printf '%s crates mention the network, %s processes\n' "$network" "$processes"
