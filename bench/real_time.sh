#!/bin/sh
# Emulated devices in real time beside the simulator: for each workload the seconds that `trace play` takes through a mount
# over emulated devices, and those that `simulate` predicts for the same requests, for a layout on disks (policy never) and
# for an extent cache (policy always), with the bytes that each side served.
#
#   bench/real_time.sh [HALOCLINE] [DIR]
#
# Wants a quiet machine, and a DIR in memory: what the machine adds is real. Requests are at random: where several
# processes follow each other in a file, their order at a disk differs by fractions of a millisecond, and so do its seeks.
set -eu
program=$(readlink -f "${1:-target/release/halocline}")
scratch=$(mktemp -d "${2:-/dev/shm}/halocline-real-time-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

server() {
    printf '[[server]]\nname = "%s"\nprofile = "%s"\ncapacity = "1T"\n' "$1" "$2"
}
# So slow an SSD that what the machine adds to a request is little beside it.
cat > config.toml <<'EOF'
[profile.flash]
kind = "ssd"
read_startup_us = 1000
write_startup_us = 1000
read_mb_per_s = 40
write_mb_per_s = 40
channels = 2
EOF
{ server d0 hdd; server d1 hdd; server s0 flash; cat config.toml; } > servers.toml

# Runs a command on the origin, over emulated devices.
emulated() {
    admission=$1
    shift
    "$program" run -q --origin origin --cache cache --config config.toml --size 128M --direct --emulate 2xhdd+flash \
        --policy "$admission" "$@" 2> run.log || { cat run.log >&2; exit 1; }
}

printf '%-34s %-7s %10s %10s %7s %10s %10s\n' workload policy simulated real ratio 'sim. hits' 'real hits'
measure() {
    name=$1
    shift
    "$program" trace make "$@" -o t.hct > /dev/null
    for policy in never always; do
        mkdir origin cache
        emulated never -- "$program" trace play t.hct origin --prepare > /dev/null
        # What the cache's tables and records take of 128 MiB is known afterwards; when a flush begins depends on the rest.
        emulated "$policy" --report report.json -- sh -c \
            '"$0" trace play t.hct origin --json > played.json && "$0" status --json origin > status.json' "$program"
        limit=$(python3 -c 'import json; print(json.load(open("status.json"))["limit_bytes"])')
        "$program" simulate t.hct --servers servers.toml --cache-size "$limit" --policy "$policy" --json > simulated.json
        python3 - "$name" "$policy" <<'EOF'
import json, sys
simulated = json.load(open("simulated.json"))
simulated = simulated["policies"][0] if "policies" in simulated else simulated
played, report = json.load(open("played.json")), json.load(open("report.json"))
hits = simulated["cache_read_bytes"] + simulated["cache_written_bytes"]
real_hits = report["read"]["cache_bytes"] + report["write"]["cache_bytes"]
seconds, real = simulated["foreground_seconds"], played["seconds"]
mib = lambda bytes: f"{bytes / 2**20:.1f} MiB"
print(f"{sys.argv[1]:34} {sys.argv[2]:7} {seconds:9.3f}s {real:9.3f}s {real / seconds:7.3f} {mib(hits):>10} {mib(real_hits):>10}")
EOF
        rm -rf origin cache
    done
}
measure 'random writes, 1 process, 64K' ior -p 1 -b 32M -t 64K -z 1
measure 'random writes, 4 processes, 64K' ior -p 4 -b 8M -t 64K -z 2
measure 'random writes, 8 processes, 256K' ior -p 8 -b 4M -t 256K -z 3
# More than the cache holds: flushes beside the programs.
measure 'random writes, 8 processes, flush' ior -p 8 -b 24M -t 256K -z 3
measure 'random reads, 4 processes, 64K' ior -p 4 -b 8M -t 64K -z 4 -r --no-write
measure 'random both, 4 processes, 16K' ior -p 4 -b 4M -t 16K -z 5 -r
