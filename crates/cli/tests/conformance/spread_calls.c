/* Preloaded into a program, it spreads calls that name a path below one directory over that directory and a second one that shows
 * the same tree: each call goes to either, as a generator with a seed says. Of calls with two paths both go to the same one.
 *
 * HALOCLINE_SPREAD_FIRST and HALOCLINE_SPREAD_SECOND are the directories, HALOCLINE_SPREAD_SEED the seed. HALOCLINE_SPREAD_COUNT
 * names a file that gets the number of calls for each when the program ends. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>
#include <dirent.h>

/* A path with the longer of the two directories before it: what the suite makes is PATH_MAX at most. */
#define ROOM (2 * PATH_MAX)

static const char *first, *second;
static uint64_t state;
static unsigned long calls[2];
static pid_t owner;

__attribute__((constructor)) static void begin(void) {
    const char *seed = getenv("HALOCLINE_SPREAD_SEED");
    first = getenv("HALOCLINE_SPREAD_FIRST");
    second = getenv("HALOCLINE_SPREAD_SECOND");
    state = 0x9E3779B97F4A7C15u ^ (seed ? strtoull(seed, NULL, 10) : 0);
    owner = getpid();
}

__attribute__((destructor)) static void end(void) {
    const char *name = getenv("HALOCLINE_SPREAD_COUNT");
    FILE *file = name && getpid() == owner ? fopen(name, "w") : NULL;
    if (file) {
        fprintf(file, "%lu %lu\n", calls[0], calls[1]);
        fclose(file);
    }
}

/* The number of the second directory's file system is that of the first: as far as the program sees, they are one. */
static dev_t as_first(dev_t dev) {
    static dev_t first_dev, second_dev;
    struct stat found;
    if (!first || !second) return dev;
    if (!first_dev && syscall(SYS_newfstatat, AT_FDCWD, first, &found, 0) == 0) first_dev = found.st_dev;
    if (!second_dev && syscall(SYS_newfstatat, AT_FDCWD, second, &found, 0) == 0) second_dev = found.st_dev;
    return dev == second_dev ? first_dev : dev;
}

/* Whether the next call goes to the second directory (xorshift). */
static int turn(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 32) & 1;
}

/* What is below the first directory in a path; NULL if it is not there. Pointers that lead nowhere are the kernel's to refuse. */
static const char *below(const char *path) {
    if (!first || !second || path == NULL || (uintptr_t)path > UINTPTR_MAX - PATH_MAX) return NULL;
    size_t len = strlen(first);
    if (strncmp(path, first, len) != 0 || (path[len] != '/' && path[len] != 0)) return NULL;
    return path + len;
}

/* The path at the directory whose turn it is. */
static const char *at(const char *path, int to_second, char *room) {
    const char *rest = below(path);
    if (!rest) return path;
    calls[to_second]++;
    /* One that is too long for the kernel stays as it is: the other could be shorter. */
    if (!to_second || strlen(path) >= PATH_MAX) return path;
    snprintf(room, ROOM, "%s%s", second, rest);
    return room;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define ONE(type, name, arguments, path, call) \
    type name arguments { \
        REAL(name); \
        char room[ROOM]; \
        path = at(path, turn(), room); \
        return real call; \
    }

#define LOOK(name, arguments, call) \
    int name arguments { \
        REAL(name); \
        char room[ROOM]; \
        path = at(path, turn(), room); \
        int found = real call; \
        if (found == 0) out->st_dev = as_first(out->st_dev); \
        return found; \
    }

#define TWO(type, name, arguments, from, to, call) \
    type name arguments { \
        REAL(name); \
        char room[ROOM], other[ROOM]; \
        int to_second = turn(); \
        from = at(from, to_second, room); \
        to = at(to, to_second, other); \
        return real call; \
    }

ONE(int, chdir, (const char *path), path, (path))
ONE(int, chmod, (const char *path, mode_t mode), path, (path, mode))
ONE(int, chown, (const char *path, uid_t uid, gid_t gid), path, (path, uid, gid))
ONE(int, lchown, (const char *path, uid_t uid, gid_t gid), path, (path, uid, gid))
ONE(int, fchmodat, (int dir, const char *path, mode_t mode, int flags), path, (dir, path, mode, flags))
ONE(int, fchownat, (int dir, const char *path, uid_t uid, gid_t gid, int flags), path, (dir, path, uid, gid, flags))
LOOK(stat, (const char *path, struct stat *out), (path, out))
LOOK(stat64, (const char *path, struct stat64 *out), (path, out))
LOOK(lstat, (const char *path, struct stat *out), (path, out))
LOOK(lstat64, (const char *path, struct stat64 *out), (path, out))
LOOK(fstatat64, (int dir, const char *path, struct stat64 *out, int flags), (dir, path, out, flags))
ONE(int, statfs64, (const char *path, struct statfs64 *out), path, (path, out))
ONE(int, mkdir, (const char *path, mode_t mode), path, (path, mode))
ONE(int, mkfifo, (const char *path, mode_t mode), path, (path, mode))
ONE(int, mknod, (const char *path, mode_t mode, dev_t dev), path, (path, mode, dev))
ONE(int, rmdir, (const char *path), path, (path))
ONE(int, unlink, (const char *path), path, (path))
ONE(int, unlinkat, (int dir, const char *path, int flags), path, (dir, path, flags))
ONE(int, truncate, (const char *path, off_t size), path, (path, size))
ONE(int, utimensat, (int dir, const char *path, const struct timespec times[2], int flags), path, (dir, path, times, flags))
ONE(long, pathconf, (const char *path, int name), path, (path, name))
ONE(ssize_t, readlink, (const char *path, char *out, size_t len), path, (path, out, len))
ONE(DIR *, opendir, (const char *path), path, (path))
/* Where a link leads is a text. */
ONE(int, symlink, (const char *target, const char *path), path, (target, path))
ONE(int, symlinkat, (const char *target, int dir, const char *path), path, (target, dir, path))
TWO(int, link, (const char *from, const char *to), from, to, (from, to))
TWO(int, linkat, (int one, const char *from, int other_dir, const char *to, int flags), from, to, (one, from, other_dir, to, flags))
TWO(int, rename, (const char *from, const char *to), from, to, (from, to))
TWO(int, renameat, (int one, const char *from, int other_dir, const char *to), from, to, (one, from, other_dir, to))

int fstat(int fd, struct stat *out) {
    REAL(fstat);
    int found = real(fd, out);
    if (found == 0) out->st_dev = as_first(out->st_dev);
    return found;
}

int fstat64(int fd, struct stat64 *out) {
    REAL(fstat64);
    int found = real(fd, out);
    if (found == 0) out->st_dev = as_first(out->st_dev);
    return found;
}

int statx(int dir, const char *path, int flags, unsigned mask, struct statx *out) {
    REAL(statx);
    char room[ROOM];
    int found = real(dir, at(path, turn(), room), flags, mask, out);
    if (found == 0) {
        dev_t dev = as_first(makedev(out->stx_dev_major, out->stx_dev_minor));
        out->stx_dev_major = major(dev);
        out->stx_dev_minor = minor(dev);
    }
    return found;
}

/* With the mode where there is one. */
#define OPEN(name, leading, leading_arguments) \
    int name leading { \
        REAL(name); \
        char room[ROOM]; \
        mode_t mode = 0; \
        if (flags & (O_CREAT | __O_TMPFILE)) { \
            va_list more; \
            va_start(more, flags); \
            mode = va_arg(more, mode_t); \
            va_end(more); \
        } \
        path = at(path, turn(), room); \
        return real leading_arguments; \
    }

OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
OPEN(openat64, (int dir, const char *path, int flags, ...), (dir, path, flags, mode))

int bind(int fd, const struct sockaddr *address, socklen_t len) {
    REAL(bind);
    const struct sockaddr_un *local = (const struct sockaddr_un *)address;
    if (len <= offsetof(struct sockaddr_un, sun_path) || len > sizeof *local || local->sun_family != AF_UNIX)
        return real(fd, address, len);
    struct sockaddr_un moved = {.sun_family = AF_UNIX};
    char path[sizeof moved.sun_path + 1] = {0}, room[ROOM];
    memcpy(path, local->sun_path, len - offsetof(struct sockaddr_un, sun_path));
    const char *to = at(path, turn(), room);
    if (to == path || strlen(to) >= sizeof moved.sun_path) return real(fd, address, len);
    strcpy(moved.sun_path, to);
    return real(fd, (struct sockaddr *)&moved, offsetof(struct sockaddr_un, sun_path) + strlen(to) + 1);
}
