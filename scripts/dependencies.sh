#!/usr/bin/env bash
# Installs what a Debian machine lacks to build, test or show Halocline.
#
#   scripts/dependencies.sh build|demo|demo-cluster|test [--dry-run]
#
# Nothing is touched when everything is there. Otherwise packages come from apt-get (as root) and
# cargo tools, at the versions below, go to $TARGET/tools (default target/tools). Without root the
# command to type is printed and the exit status is 1 if something required is missing.
set -euo pipefail

# group  need      package            a file (or pattern) or command that proves it is there   what it is for
packages='
build    required  gcc                gcc                           linker and the MPI shim
build    required  libc6-dev          /usr/include/stdio.h          headers for C programs
build    required  make               make                          this build
build    required  fuse3              fusermount3                   unprivileged mounts
demo     required  mpich              mpiexec.hydra                 runs MPI programs
demo     required  libmpich-dev       /usr/include/*/mpich/mpi.h    builds MPI programs
cluster  required  redis-server       redis-server                  the shared store of tokens
test     required  openssl            openssl                       certificates of a store over TLS
test     required  glusterfs-server   glusterfsd                    an origin on a network file system
test     required  glusterfs-client   glusterfs                     its clients
test     required  git                git                           clone inside the mount
test     required  python3            python3                       POSIX example programs
test     required  libhdf5-mpich-dev  h5pcc.mpich                   parallel HDF5
test     required  hdf5-tools         h5diff                        compares HDF5 files
test     required  python3-venv       /usr/lib/python3*/ensurepip   the package darshan
test     required  fio                fio                           throughput measurements
test     required  mergerfs           mergerfs                      baseline of the FUSE overhead
test     required  acl                setfacl                       access control lists
test     required  attr               setfattr                      extended attributes
test     required  sqlite3            sqlite3                       a database on the mount
test     required  util-linux         unshare                       ordinary-user runs
test     required  iproute2           ip                            a network that one node is alone in
test     optional  openmpi-bin        mpiexec.openmpi               second MPI implementation
test     optional  libopenmpi-dev     /usr/lib/*/openmpi/include/mpi.h  second MPI implementation
test     optional  chromium-headless-shell  /usr/bin/chromium*      pages of reports, as a browser shows them
'
# The library that reads logs of Darshan, for the tests of `halocline trace import`.
darshan=3.5.0
# group  crate      version  what it is for
tools='
test     pjdfstest  0.2.2    POSIX conformance suite
test     fsx        0.3.2    file system exerciser
'

wanted=${1:-}
case $wanted in
build) groups=' build ' ;;
demo) groups=' build demo ' ;;
demo-cluster) groups=' build demo cluster ' ;;
test) groups=' build demo cluster test ' ;;
*)
    echo "usage: $0 build|demo|demo-cluster|test [--dry-run]" >&2
    exit 2
    ;;
esac
dry_run=${2:-}
tools_dir=${TARGET:-target}/tools

present() { case $1 in /*) compgen -G "$1" >/dev/null ;; *) command -v "$1" >/dev/null ;; esac }

required=() optional=()
while read -r group need package proof _; do
    [[ -n $group && $groups == *" $group "* ]] || continue
    present "$proof" && continue
    if [ "$need" = required ]; then required+=("$package"); else optional+=("$package"); fi
done <<<"$packages"

apt() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" \
        -o Dpkg::Use-Pty=0 </dev/null >/dev/null
}

# The package lists may be absent (fresh image) or stale (404): refresh them once, when needed.
install() {
    apt "$@" 2>/dev/null && return
    apt-get update -qq </dev/null
    apt "$@"
}

missing=("${required[@]}" "${optional[@]}")
if [ ${#missing[@]} -gt 0 ]; then
    echo "missing packages: ${missing[*]}"
    by_hand="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    if [ "$dry_run" = --dry-run ]; then
        echo "would run: $by_hand"
    elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        [ ${#required[@]} -eq 0 ] || install "${required[@]}"
        # One by one: a system that lacks one has the others.
        for package in "${optional[@]}"; do
            install "$package" || echo "not available here, going on without: $package"
        done
    else
        echo "run as root: $by_hand"
        [ ${#required[@]} -eq 0 ] || exit 1
    fi
fi

# Before anything is built for minutes.
if [[ $groups == *" demo "* ]] && ! { [ -r /dev/fuse ] && [ -w /dev/fuse ]; }; then
    echo "/dev/fuse is missing or closed to you; as root: modprobe fuse && chmod 666 /dev/fuse (the usual setting)"
    [ "$dry_run" = --dry-run ] || exit 1
fi

# The kernel offers FUSE requests through io_uring only where root turned that on; without, the
# tests of that way say SKIP.
rings=/sys/module/fuse/parameters/enable_uring
if [[ $groups == *" test "* ]] && [ "$(cat $rings 2>/dev/null)" = N ]; then
    echo "off: FUSE requests through io_uring"
    if [ "$dry_run" = --dry-run ] || ! [ -w $rings ]; then
        echo "would run as root: echo Y > $rings"
    else
        echo Y >$rings
    fi
fi

while read -r group crate version _; do
    [[ -n $group && $groups == *" $group "* ]] || continue
    grep -qs "^\"$crate $version " "$tools_dir/.crates.toml" && continue
    echo "missing tool: $crate $version"
    if [ "$dry_run" = --dry-run ]; then
        echo "would run: cargo install --locked --root $tools_dir $crate@$version"
    else
        cargo install --quiet --locked --root "$tools_dir" "$crate@$version"
    fi
done <<<"$tools"

if [[ $groups == *" test "* ]] && [ "$(cat "$tools_dir/darshan/version" 2>/dev/null)" != $darshan ]; then
    echo "missing Python package: darshan $darshan"
    if [ "$dry_run" = --dry-run ]; then
        echo "would run: python3 -m venv $tools_dir/darshan && $tools_dir/darshan/bin/pip install darshan==$darshan"
    elif python3 -m venv "$tools_dir/darshan" &&
        "$tools_dir/darshan/bin/pip" install --quiet --disable-pip-version-check "darshan==$darshan"; then
        echo $darshan >"$tools_dir/darshan/version"
    else
        echo "not available here, going on without: darshan $darshan"
    fi
fi
