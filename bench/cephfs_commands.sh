#!/usr/bin/env bash
# The commands that `halocline plan --for cephfs` writes, run on a real CephFS: one monitor, manager and metadata server and
# four OSDs in memory on this machine, two of them called disks and two SSDs, each kind with a pool; mounted by ceph-fuse.
#
#   bench/cephfs_commands.sh [HALOCLINE] [DIR]
#
# Not a test of CI. Wants root, /dev/fuse, about 2 GB of memory, free ports 43300 and 43301 of 127.0.0.1, and the
# programs of Ceph: on Debian 12 (Ceph 16.2)
#   apt-get install --no-install-recommends ceph-mon ceph-mgr ceph-osd ceph-mds ceph-fuse ceph-common attr
# Nothing of it is started by systemd, and nothing is left: everything is below DIR (a new directory in /tmp).
set -euo pipefail
program=$(readlink -f "${1:-target/release/halocline}")
scratch=$(mktemp -d "${2:-/tmp}/halocline-cephfs-XXXXXX")
mnt=$scratch/mnt

# One after the other, in the order of their names: the client first, which waits for the others. Each takes its pid file
# away before it ends.
finish() {
    trap '' INT TERM
    local pid pids
    pids=$(cat "$scratch"/run/*.pid 2>/dev/null || true)
    fusermount3 -uz "$mnt" 2>/dev/null || true
    for pid in $pids; do
        kill "$pid" 2>/dev/null || true
        for _ in $(seq 100); do
            if ! kill -0 "$pid" 2>/dev/null; then continue 2; fi
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || true
    done
    rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Before it is mounted again, the mount's process has to end.
mount() {
    timeout 60 ceph-fuse -c ceph.conf "$mnt" >log/fuse 2>&1 || { cat log/fuse >&2; fail "no mount"; }
}
unmount() {
    local pid
    pid=$(cat run/client.admin.*.pid)
    fusermount3 -u "$mnt"
    for _ in $(seq 100); do
        if ! kill -0 "$pid" 2>/dev/null; then break; fi
        sleep 0.1
    done
    rm -f run/client.admin.*.pid
}

fail() {
    echo "FAILED: $*" >&2
    exit 1
}
asked() {
    timeout 60 ceph -c ceph.conf "$@" >/dev/null 2>>log/asked || { tail -3 log/asked >&2; fail "ceph $*"; }
}

cd "$scratch"
mkdir mon mgr mds run log mnt plans
id=$(cat /proc/sys/kernel/random/uuid)
monitor='[v2:127.0.0.1:43300,v1:127.0.0.1:43301]'
cat > ceph.conf <<EOF
[global]
fsid = $id
mon host = $monitor
public addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
run dir = $scratch/run
admin socket = $scratch/run/\$cluster-\$name.\$pid.asok
pid file = $scratch/run/\$name.\$pid.pid
log file = $scratch/log/\$name.log
crash dir = $scratch/log
keyring = $scratch/keyring
mon data = $scratch/mon
mgr data = $scratch/mgr
mds data = $scratch/mds
osd data = $scratch/osd.\$id
osd objectstore = memstore
memstore device bytes = 1073741824
osd class update on start = false
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon data avail crit = 0
EOF
ceph-authtool --create-keyring keyring --gen-key -n mon. --cap mon 'allow *' >/dev/null
monmaptool --create --fsid "$id" --addv a "$monitor" monmap >/dev/null
ceph-mon -c ceph.conf --mkfs -i a --monmap monmap --keyring keyring
ceph-mon -c ceph.conf -i a
ceph-mgr -c ceph.conf -i x
for number in 0 1 2 3; do
    kind=hdd
    if [ $number -gt 1 ]; then kind=ssd; fi
    uuid=$(cat /proc/sys/kernel/random/uuid)
    asked osd new "$uuid"
    mkdir osd.$number
    ceph-osd -c ceph.conf -i $number --mkfs --osd-uuid "$uuid" >/dev/null 2>log/mkfs.$number
    asked osd crush add osd.$number 1.0 root=default host=here
    asked osd crush set-device-class $kind osd.$number
    ceph-osd -c ceph.conf -i $number >/dev/null 2>&1
done
for kind in hdd ssd; do
    asked osd crush rule create-replicated on-$kind default osd $kind
    asked osd pool create $kind 16 16 replicated on-$kind
done
asked osd pool create meta 8 8 replicated on-hdd
ceph-mds -c ceph.conf -i m >/dev/null
asked fs new cephfs meta hdd
asked fs add_data_pool cephfs ssd
for _ in $(seq 60); do
    if timeout 60 ceph -c ceph.conf mds stat 2>/dev/null | grep -q 'up:active'; then break; fi
    sleep 1
done
mount
ceph --version

server() {
    printf '[[server]]\nname = "%s"\nprofile = "%s"\ncapacity = "1T"\n' "$1" "$2"
}
{ server hdd.0 hdd; server hdd.1 hdd; server ssd.0 ssd; server ssd.1 ssd; } > servers.toml
# Random requests of so many bytes to three files, as CSV.
requests() {
    python3 - "$mnt" "$1" <<'EOF'
import random, sys
mount, size = sys.argv[1], int(sys.argv[2])
random.seed(size)
print("time_s,process,file,op,offset,length")
for number in range(3000):
    name, op = random.choice(["a", "it's b", "dir/c"]), random.choice(["read", "write"])
    print(f"{number / 1000:.3f},{number % 8},{mount}/{name},{op},{random.randrange(64) * size},{size}")
EOF
}
files=(a "it's b" dir/c)
head -c 20000000 /dev/urandom > content
# What the script gives to a file, and what the file has.
planned() {
    grep '^setfattr' script | sed "s/^setfattr -n ceph.file.layout -v/printf '%s\\\\t%s\\\\n'/" | sh | awk -F '\t' -v path="$mnt/$1" '$2 == path { print $1 }'
}
layout() {
    getfattr -n ceph.file.layout --only-values "$1" 2>/dev/null
}
makes_none() {
    local status=0
    sh script 2>said || status=$?
    [ $status = 2 ] && grep -q "$1" said || fail "$1: status $status, $(cat said)"
}

for size in 65536 131072 524288 1048576 4194304; do
    requests $size > requests.csv
    "$program" trace import requests.csv -o t.hct >/dev/null
    if ! "$program" plan t.hct --servers servers.toml --for cephfs > script 2>said; then
        grep -q 'CephFS' said || fail "$(cat said)"
        echo "requests of $size bytes: refused: $(grep -o 'it lies on.*' said)"
        continue
    fi
    rm -rf "${mnt:?}"/*
    makes_none 'its directory is not there'
    [ -z "$(ls -A "$mnt")" ] || fail "files were made before the refusal"
    mkdir "$mnt/dir"
    echo bytes > "$mnt/dir/c"
    makes_none 'it is there'
    [ ! -e "$mnt/a" ] && [ "$(cat "$mnt/dir/c")" = bytes ] || fail "it was not left as it was"
    # As the refusal says: renamed, and copied back.
    mv "$mnt/dir/c" "$mnt/dir/c.before"
    sh script || fail "the script"
    for name in "${files[@]}"; do
        [ "$(layout "$mnt/$name")" = "$(planned "$name")" ] || fail "$name has $(layout "$mnt/$name"), not $(planned "$name")"
        cp content "$mnt/$name"
        [ "$(layout "$mnt/$name")" = "$(planned "$name")" ] || fail "$name lost its layout with its content"
    done
    cp "$mnt/dir/c.before" "$mnt/dir/c"
    # What is on the servers, not in this mount's memory.
    unmount
    mount
    for name in a "it's b"; do cmp content "$mnt/$name" || fail "$name has other bytes"; done
    [ "$(cat "$mnt/dir/c")" = bytes ] || fail "dir/c has other bytes"
    makes_none 'it is there'
    echo "requests of $size bytes: $(grep -o "stripe_unit=[^']*" script | sort | uniq -c | tr -s ' ' | paste -sd ';')"
done

# Why stripes above 128 MiB are refused: the layout is taken, and what is written beyond is lost.
touch "$mnt/long"
setfattr -n ceph.file.layout -v 'stripe_unit=268435456 stripe_count=1 object_size=268435456 pool=ssd' "$mnt/long"
if dd if=content of="$mnt/long" bs=1M count=1 seek=200 conv=fsync,notrunc 2>said; then
    fail "objects of 256 MiB are written in whole here"
fi
echo "objects of 256 MiB: $(grep -o 'fsync failed.*' said)"
echo "all is as planned"
