#!/usr/bin/env python3
"""What Halocline costs where it emulates nothing: fio on a mount against mergerfs and the bare directory.

    bench/overhead.py [--halocline PATH] [--dir DIR] [--rounds 3] [--seconds 2] [--json FILE]

Every round runs every system on every case, in turn, so that a slow minute of the machine hits all
of them; the table shows medians of the rounds' ratios to mergerfs. Systems:

    bare       the directory itself, with the page cache
    mergerfs   cache.files=off over the directory
    never      halocline --direct --policy never over the directory: every request goes to the origin
    hits       halocline --direct, the whole file on the cache: every request is a hit
    relay      with --relay: the least mount that the FUSE library can be (crates/fuse/examples/bare_relay.rs)
    cached     halocline with the page cache on (re-reads, against bare)
    warm       the same with --warm-passthrough: the kernel reads files that memory holds by itself
    pages      mergerfs with the page cache on, cache.files=full (the same): what a FUSE mount can reach
    other      with --against: never and hits by another build (--against PATH), or with other options of the mount
               (--against-options=--busy-poll=false), beside those above, so that two of ours compare in one run

Requests come to Halocline as they do by default: through io_uring where the kernel offers it, else, and with
--device, through /dev/fuse. The last line says which.

--merge FILE... measures nothing and prints the table of several runs' --json files.
"""

import argparse
import json
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SIZE = 256 << 20
PATTERNS = [
    ("random read 4 KiB", "randread", "4k"),
    ("random write 4 KiB", "randwrite", "4k"),
    ("sequential read 1 MiB", "read", "1m"),
    ("sequential write 1 MiB", "write", "1m"),
]
DIRECT = ["mergerfs", "never", "hits", "other never", "other hits"]


def run(*command, **kwargs):
    """Runs a command; its error text is ours."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **kwargs)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def touch(file):
    """Reads a file once, so that its bytes are in memory, wherever they lie: the kernel may have dropped
    them while the other systems had their turns."""
    with open(file, "rb", buffering=0) as source:
        while source.read(1 << 20):
            pass


def fio(file, pattern, block, jobs, seconds):
    """Bytes per second of one fio run on an existing file."""
    touch(file)
    out = run(
        "fio", "--name=case", f"--filename={file}", f"--rw={pattern}", f"--bs={block}",
        f"--numjobs={jobs}", f"--size={SIZE}", f"--runtime={seconds}", "--time_based=1",
        "--ioengine=psync", "--randrepeat=1", "--norandommap=1", "--group_reporting=1",
        "--output-format=json", "--thread=1", "--overwrite=1", "--invalidate=0",
        "--fadvise_hint=0",
    )
    job = json.loads(out[out.index("{"):])["jobs"][0]
    return job["read" if "read" in pattern else "write"]["bw_bytes"]


class Mounts:
    """The systems under test, mounted over directories of one scratch directory."""

    def __init__(self, halocline, scratch, options):
        self.halocline, self.scratch, self.options = halocline, scratch, options
        self.mounted, self.where = [], {}

    def directory(self, name):
        path = self.scratch / name
        path.mkdir()
        return path

    def origin(self, name):
        """A directory with the file in it, written the same way for every system: the page cache serves small
        writes to a file that was written in large ones more slowly."""
        path = self.directory(name)
        fill(path / "file")
        return path

    def bare(self, name="bare"):
        self.where[name] = self.origin(name)

    def mergerfs(self, name, cache):
        origin, mount = self.origin(f"{name}.origin"), self.directory(name)
        run("mergerfs", "-o", f"cache.files={cache},category.create=ff", origin, mount)
        self.where[name] = mount
        self.mounted.append(lambda: run("umount", mount))

    def halo(self, name, *options, halocline=None):
        halocline = halocline or self.halocline
        origin, mount = self.origin(f"{name}.origin"), self.directory(name)
        cache = self.directory(f"{name}.cache")
        run(halocline, "mount", origin, mount, "--cache", cache, *self.options, *options)
        self.where[name] = mount
        self.mounted.append(lambda: run(halocline, "umount", mount))

    def direct(self, prefix, halocline, *options):
        """A mount all of whose requests go to the origin, and one all of whose requests are hits."""
        self.halo(f"{prefix}never", "--direct", "--policy", "never", *options, halocline=halocline)
        hits = f"{prefix}hits"
        self.halo(hits, "--direct", "--policy", "always", "--size", "2G", *options, halocline=halocline)
        run(halocline, "warm", self.where[hits] / "file")

    def relay(self, name, binary):
        origin, mount = self.origin(f"{name}.origin"), self.directory(name)
        # The priority of the other mounts' threads.
        subprocess.Popen(["nice", "-n", "-10", binary, origin, mount])
        while not mount.is_mount():
            time.sleep(0.01)
        self.where[name] = mount
        self.mounted.append(lambda: run("umount", mount))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while self.mounted:
            try:
                self.mounted.pop()()
            except SystemExit as failed:
                print(failed, file=sys.stderr)


def fill(file):
    """A file of SIZE bytes that are not zeros."""
    block = bytes(range(256)) * 4096
    with open(file, "wb") as out:
        for _ in range(SIZE // len(block)):
            out.write(block)


def progress(line):
    """For a person who waits; nothing where the error text goes to a file."""
    if sys.stderr.isatty():
        print(f"\r{line}\r", end="", file=sys.stderr, flush=True)


def measure(mounts, cases, rounds, seconds):
    """{case: {system: [bytes per second, one a round]}}"""
    seen = {}
    for at in range(rounds):
        for (name, pattern, block), jobs in cases:
            systems = ["bare", *DIRECT, "relay"] + (["cached", "warm", "pages"] if "read" in pattern else [])
            systems = [system for system in systems if system in mounts.where]
            case = seen.setdefault(f"{name}, {jobs} job{'s' if jobs > 1 else ''}", {})
            # Who comes later finds a warmer machine: by a tenth, as two orders of the same two builds showed.
            for system in reversed(systems) if at % 2 else systems:
                progress(f"round {at + 1}/{rounds}: {name} x{jobs}: {system:<11}")
                file = mounts.where[system] / "file"
                case.setdefault(system, []).append(fio(file, pattern, block, jobs, seconds))
    progress(" " * 60)
    return seen


def merged(runs):
    """Several runs' measurements as those of one."""
    seen = {}
    for run in runs:
        for name, case in run.items():
            for system, figures in case.items():
                seen.setdefault(name, {}).setdefault(system, []).extend(figures)
    return seen


def ratio(case, system, against):
    """Median over the rounds of the ratio within each round."""
    return statistics.median(a / b for a, b in zip(case[system], case[against]))


def table(seen):
    yield ("| case | mergerfs | never / mergerfs | hits / mergerfs | relay / mergerfs | page cache on / bare "
           "| with --warm-passthrough | mergerfs's / bare |")
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for name, case in seen.items():
        absolute = statistics.median(case["mergerfs"]) / 1e6
        pairs = [(each, "mergerfs") for each in ("never", "hits", "relay")]
        pairs += [(each, "bare") for each in ("cached", "warm", "pages")]
        ratios = [f"{ratio(case, a, b):.2f}" if a in case else "" for a, b in pairs]
        yield f"| {name} | {absolute:.0f} MB/s | {' | '.join(ratios)} |"


def other_table(seen):
    """Two of ours, each round's ratio for itself: the median, and the least and greatest."""
    yield "| case | never / other | of rounds | hits / other | of rounds |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, case in seen.items():
        cells = []
        for system in ("never", "hits"):
            each = [a / b for a, b in zip(case[system], case[f"other {system}"])]
            cells += [f"{statistics.median(each):.2f}", f"{min(each):.2f} to {max(each):.2f}"]
        yield f"| {name} | {' | '.join(cells)} |"


def measured(args, against, cases, ours_first, rounds):
    """What `measure` returns for new mounts, and the transport of ours."""
    with tempfile.TemporaryDirectory(prefix="halocline-overhead-", dir=args.dir) as scratch:
        options = ["--io-uring=false"] if args.device else []
        with Mounts(args.halocline.resolve(), pathlib.Path(scratch), options) as mounts:
            mounts.bare()
            mounts.mergerfs("mergerfs", "off")
            if args.relay:
                mounts.relay("relay", args.relay.resolve())
            if not args.direct_only:
                mounts.mergerfs("pages", "full")
                mounts.halo("cached", "--policy", "never")
                mounts.halo("warm", "--policy", "never", "--warm-passthrough=true")
            ours = ("", mounts.halocline)
            builds = [ours]
            if against:
                other = (args.against or args.halocline).resolve()
                builds.append(("other ", other, *args.against_options.split()))
            for build in builds if ours_first else reversed(builds):
                mounts.direct(*build)
            status = json.loads(run(mounts.halocline, "status", mounts.where["hits"], "--json"))
            return measure(mounts, cases, rounds, args.seconds), status["transport"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--halocline", default="target/release/halocline", type=pathlib.Path)
    parser.add_argument("--dir", default=None, help="where the scratch directory goes")
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--seconds", default=2, type=int)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--relay", type=pathlib.Path, help="bare_relay, built in release")
    parser.add_argument("--device", action="store_true", help="no io_uring")
    parser.add_argument("--direct-only", action="store_true", help="leave the page cache's systems out")
    parser.add_argument("--jobs", default="1,4", help="numbers of fio's jobs")
    parser.add_argument("--against", type=pathlib.Path, metavar="PATH", help="another halocline")
    parser.add_argument("--against-options", default="", metavar="OPTIONS", help="other options of the mount")
    parser.add_argument("--merge", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    cases = [(pattern, int(jobs)) for pattern in PATTERNS for jobs in args.jobs.split(",")]
    against = args.against or args.against_options
    if args.merge:
        seen = merged(json.loads(file.read_text()) for file in args.merge)
        print("\n".join(table(seen)))
        if all("other never" in case for case in seen.values()):
            print("\n".join(other_table(seen)))
        return
    for tool in ("fio", "mergerfs"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is missing: apt-get install {tool}")
    # So that all is unmounted and removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if against:
        # Whose files are made first lie in other memory: a build against itself was at 0.82 (sequential, /dev/shm).
        halves = [(True, args.rounds - args.rounds // 2), (False, args.rounds // 2)]
    else:
        halves = [(True, args.rounds)]
    runs = [measured(args, against, cases, *half) for half in halves if half[1]]
    seen, transport = merged(seen for seen, _ in runs), runs[0][1]
    print("\n".join(table(seen)))
    if against:
        print("\n".join(other_table(seen)))
    print(f"requests through {transport}")
    if args.json:
        args.json.write_text(json.dumps(seen, indent=1))


if __name__ == "__main__":
    main()
