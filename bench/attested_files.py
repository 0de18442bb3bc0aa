#!/usr/bin/env python3
"""What the second attribute of a file of a striped origin takes (docs/FORMAT.md): blocks and time.

As root, without arguments: on a new ext4 in a file of 300 MB, with inodes of 256 and of 512 bytes, files are made as a
striped origin makes them at the first write of 4 KiB (a name, its number, its size, an object), without and with the
attribute that attests the number. Printed are bytes of blocks for each file, both ways, and the median of 15 ratios of times,
with the third lowest and third highest: both ways alternate, so that other work on the machine is in both.
"""

import os
import random
import statistics
import subprocess
import tempfile
import time

FILES = 1000
ROUNDS = 15


def used(root):
    os.sync()
    found = os.statvfs(root)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def make(root, is_attested):
    """Makes the files, and removes them. Seconds, and bytes of blocks for each."""
    names, objects = os.path.join(root, "names"), os.path.join(root, "objects")
    os.mkdir(names)
    os.mkdir(objects)
    before = used(root)
    data = os.urandom(4096)
    numbers = [f"{random.getrandbits(128):032x}t".encode() for _ in range(FILES)]
    begun = time.perf_counter()
    for i, number in enumerate(numbers):
        name = os.open(f"{names}/{i}", os.O_CREAT | os.O_RDWR)
        os.setxattr(name, "user.halocline.object", number)
        if is_attested:
            os.setxattr(name, "trusted.halocline.object", number)
        os.ftruncate(name, len(data))
        local = os.open(f"{objects}/{number.decode()}", os.O_CREAT | os.O_WRONLY)
        os.pwrite(local, data, 0)
        os.close(local)
        os.close(name)
    took = time.perf_counter() - begun
    blocks = (used(root) - before) / FILES
    for directory in names, objects:
        for entry in os.listdir(directory):
            os.unlink(os.path.join(directory, entry))
        os.rmdir(directory)
    return took, blocks


def measure(root):
    ratios, blocks = [], ([], [])
    for number in range(ROUNDS):
        took = [0.0, 0.0]
        for is_attested in (False, True) if number % 2 else (True, False):
            took[is_attested], bytes_each = make(root, is_attested)
            blocks[is_attested].append(bytes_each)
        ratios.append(took[True] / took[False])
    ratios.sort()
    without, attested = map(statistics.median, blocks)
    print(f"{without:.0f} and {attested:.0f} bytes a file; time {statistics.median(ratios):.2f} "
          f"({ratios[2]:.2f} to {ratios[-3]:.2f}) of that without")


def main():
    random.seed(12)
    for inode_bytes in 256, 512:
        with tempfile.TemporaryDirectory() as scratch:
            image, root = os.path.join(scratch, "image"), os.path.join(scratch, "root")
            with open(image, "wb") as file:
                file.truncate(300 << 20)
            os.mkdir(root)
            options = ["-q", "-b", "4096", "-I", str(inode_bytes), "-m", "0"]
            subprocess.run(["mkfs.ext4", *options, image], check=True)
            subprocess.run(["mount", "-o", "loop", image, root], check=True)
            try:
                print(f"inodes of {inode_bytes} bytes: ", end="", flush=True)
                measure(root)
            finally:
                subprocess.run(["umount", root], check=True)


if __name__ == "__main__":
    main()
