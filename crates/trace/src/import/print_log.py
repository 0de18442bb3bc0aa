"""Prints what darshan-dxt-parser prints of a log, with times of nanoseconds, by the package `darshan` of PyPI.

Status 87: the package is not there.
"""

import sys

# Not what lies in the current directory under this name.
sys.path[:] = [place for place in sys.path if place]

try:
    import darshan.backend.cffi_backend as backend
except ImportError as error:
    print(f"no package darshan: {error}", file=sys.stderr)
    sys.exit(87)



class Watched:
    """The library, and its last answer when it was asked for a record: the package takes an error for the end."""

    def __init__(self, library):
        self.library, self.answer = library, 0

    def __getattr__(self, name):
        return getattr(self.library, name)

    def darshan_log_get_record(self, *arguments):
        self.answer = self.library.darshan_log_get_record(*arguments)
        return self.answer


library = backend.libdutil = Watched(backend.libdutil)
log = backend.log_open(sys.argv[1])
if not log["handle"]:
    sys.exit("it is not a log of Darshan, or not a whole one")
modules = backend.log_get_modules(log)
names = backend.log_get_name_records(log)
for module, label in (("DXT_POSIX", "X_POSIX"), ("DXT_MPIIO", "X_MPIIO")):
    if module not in modules:
        continue
    if modules[module]["partial_flag"]:
        print(f"# *WARNING*: The {module} module contains incomplete data!")
    while (record := backend.log_get_dxt_record(log, module)) is not None:
        name = names.get(record["id"], "(null)")
        print(f"\n# DXT, file_id: {record['id']}, file_name: {name}")
        print(f"# DXT, rank: {record['rank']}, hostname: {record['hostname']}")
        print(f"# DXT, write_count: {record['write_count']}, read_count: {record['read_count']}")
        for op in ("write", "read"):
            for index, segment in enumerate(record[f"{op}_segments"]):
                print(
                    f" {label} {record['rank']} {op} {index} {segment['offset']} {segment['length']}"
                    f" {segment['start_time']:.9f} {segment['end_time']:.9f}"
                )
    if library.answer < 0:
        print(f"# *WARNING*: The {module} module contains incomplete data!")
print("# end of the log")
