#!/usr/bin/env bash
# A real MPI program over emulated disks, without and with the cache, compared.
#
#   bench/demo.sh [PROCESSES] [MIB] [REQUEST_BYTES]
#
# The devices are emulated in real time over plain files (8 disks of 7200 rpm, 4 flash devices), so
# the numbers mean the same on any machine that is not overloaded. Every byte is verified.
set -euo pipefail
processes=${1:-8} mib=${2:-16} request=${3:-8192}
target=${TARGET:-target}
halocline=$target/release/halocline
program=$target/examples/independent
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# run NAME POLICY: the program writes at random offsets, then reads a neighbour's bytes.
run() {
    local name=$1 policy=$2
    mkdir -p "$scratch/$name/origin" "$scratch/$name/cache"
    echo "$name: $processes processes, $mib MiB in random requests of $request bytes" >&2
    "$halocline" run --origin "$scratch/$name/origin" --cache "$scratch/$name/cache" \
        --emulate 8xhdd+4xssd --policy "$policy" --report "$scratch/$name.json" --quiet -- \
        mpiexec.hydra -n "$processes" "$program" "$scratch/$name/origin/shared" \
        --size $((mib << 20)) --request "$request" --random >"$scratch/$name.phases"
}
echo "EMULATED devices (8 disks, 4 flash devices; real files, times as those devices would take):" \
    "no real hardware is measured" >&2
run without never
run with adaptive

# field FILE PHASE: seconds of a phase.
field() { sed -n "s/.*\"phase\":\"$2\".*\"seconds\":\([0-9.]*\).*/\1/p" "$scratch/$1.phases"; }
number() { sed -n "s/^ *\"$2\": *\([0-9.]*\),\{0,1\}$/\1/p" "$scratch/$1.json" | head -1; }

printf '\nEMULATED devices: no real hardware was measured\n%-8s %14s %14s %8s\n' '' 'origin alone' 'with cache' 'gain'
for phase in write read; do
    awk -v phase="$phase" -v alone="$(field without "$phase")" -v cached="$(field with "$phase")" \
        -v mib="$mib" 'BEGIN {
            printf "%-8s %8.2f MiB/s %8.2f MiB/s %7.1fx\n", phase, mib / alone, mib / cached,
                   alone / cached }'
done
echo
echo "bytes written to SSD: $(number with ssd_bytes_written)," \
    "left dirty after the flush: $(number with dirty_bytes_left)"
