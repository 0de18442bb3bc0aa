#!/usr/bin/env bash
# A real MPI program whose ranks are on three nodes of one cluster, without and with the cache, compared; then one node is
# killed with bytes that only its cache has, and recovered by another.
#
#   bench/demo-cluster.sh [RANKS_PER_NODE] [MIB] [REQUEST_BYTES]
#
# The nodes are mounts on this machine, each with a cache of its own, over one origin; the store of their tokens is a server of
# Redis on a local socket. The devices are emulated in real time over plain files: all nodes share 8 disks of 7200 rpm, and each
# has one flash device. Every byte is verified.
set -euo pipefail
ranks=${1:-2} mib=${2:-48} request=${3:-8192}
target=${TARGET:-target}
halocline=$target/release/halocline
program=$target/examples/independent
nodes=(node-1 node-2 node-3)
scratch=$(mktemp -d)
# The store of this script has no password, unlike the user's own.
unset HALOCLINE_CLUSTER_PASSWORD HALOCLINE_CLUSTER_PASSWORD_FILE
url=redis+unix://$scratch/redis/socket
declare -A process=()

# However it ends, nothing is left: mounts, then the store that they need, then the files.
finish() {
    trap '' INT TERM
    local node
    for node in "${!process[@]}"; do unmount "$node" || true; done
    stop_store
    rm -rf "$scratch"
}

# It removes files of its own while it ends.
stop_store() {
    local pid
    pid=$(cat "$scratch/redis/pid" 2>/dev/null) || return 0
    kill "$pid" 2>/dev/null || return 0
    for _ in $(seq 600); do
        if ! kill -0 "$pid" 2>/dev/null; then return 0; fi
        sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# mount NODE POLICY: in a session of its own, so that Ctrl-C reaches this script alone.
mount() {
    mkdir -p "$scratch/$1" "$scratch/cache-$1"
    setsid "$halocline" mount "$scratch/origin" "$scratch/$1" --cache "$scratch/cache-$1" --cluster "$url" --node "$1" \
        --emulate 8xhdd+1xssd --policy "$2" --direct --foreground 2>"$scratch/$1.log" &
    process[$1]=$!
    for _ in $(seq 1200); do
        if mountpoint -q "$scratch/$1"; then return; fi
        if ! kill -0 "${process[$1]}" 2>/dev/null; then break; fi
        sleep 0.1
    done
    cat "$scratch/$1.log" >&2
    return 1
}

unmount() {
    "$halocline" umount --force "$scratch/$1" >/dev/null 2>&1 || true
    wait "${process[$1]}" 2>/dev/null || true
    unset "process[$1]"
}

# run NAME POLICY: ranks on all nodes write their parts of one file at random offsets, then each reads the next one's.
run() {
    local name=$1 policy=$2 node args=()
    rm -rf "$scratch/origin" "$scratch"/cache-*
    mkdir "$scratch/origin"
    echo "$name: $ranks ranks on each of ${#nodes[@]} nodes, $mib MiB in random requests of $request bytes" >&2
    for node in "${nodes[@]}"; do
        mount "$node" "$policy"
        args+=(: -n "$ranks" "$program" "$scratch/$node/shared" --size $((mib << 20)) --request "$request" --segmented --random)
    done
    mpiexec.hydra "${args[@]:1}" >"$scratch/$name.phases"
}

echo "EMULATED devices (8 disks for all nodes, a flash device each; real files, times as those devices would take):" \
    "no real hardware is measured" >&2
mkdir -m 700 "$scratch/redis"
redis-server --port 0 --unixsocket "$scratch/redis/socket" --unixsocketperm 700 --dir "$scratch/redis" --save '' \
    --daemonize yes --pidfile "$scratch/redis/pid" --logfile "$scratch/redis/log" >/dev/null
run without never
for node in "${nodes[@]}"; do unmount "$node"; done
run with adaptive

# field NAME PHASE: seconds of a phase.
field() { sed -n "s/.*\"phase\":\"$2\".*\"seconds\":\([0-9.]*\).*/\1/p" "$scratch/$1.phases"; }
printf '\nEMULATED devices: no real hardware was measured\n%-8s %14s %14s %8s\n' '' 'origin alone' 'with caches' 'gain'
for phase in write read; do
    awk -v phase="$phase" -v alone="$(field without "$phase")" -v cached="$(field with "$phase")" \
        -v mib="$mib" 'BEGIN {
            printf "%-8s %8.2f MiB/s %8.2f MiB/s %7.1fx\n", phase, mib / alone, mib / cached, alone / cached }'
done

# What only one node has, and that node dies.
printf '\n%s\n' 'node-2 writes 4 MiB and is killed (kill -9) before they are on the origin:' >&2
size=$((4 << 20))
mpiexec.hydra -n 1 "$program" "$scratch/node-2/left" --size $size --request "$request" --random --no-read >/dev/null
# The shell says "Killed" where it hears of it.
{
    kill -9 "${process[node-2]}"
    unmount node-2
} 2>/dev/null
"$halocline" cluster nodes "$scratch/origin" --cluster "$url"
echo 'waiting until the lease of node-2 is over (30 s) ...' >&2
until "$halocline" cluster recover "$scratch/origin" node-2 --cluster "$url" 2>"$scratch/recover"; do
    if ! grep -q 'its lease runs' "$scratch/recover"; then
        cat "$scratch/recover" >&2
        exit 1
    fi
    sleep 1
done
mpiexec.hydra -n 1 "$program" "$scratch/node-1/left" --size $size --request "$request" --random --no-write >/dev/null
echo 'node-1 read them all and found what node-2 had written.'
