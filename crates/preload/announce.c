/* One line to the mount, one line back: finding the socket, building the line, waiting shortly. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* How long a program's open may wait for the mount's answer. */
#define ANSWER_MS_MAX 200
/* The mount's root answers to this attribute with the path of its control socket. */
#define SOCKET_ATTRIBUTE "user.halocline.socket"
/* A path as an array of bytes takes at most four characters a byte; the rest of a line is short. */
#define LINE_MAX_BYTES (4 * PATH_MAX + 512)

static long now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* "ufs:", "nfs:" and the like before a name choose ROMIO's driver and are no part of the path. */
static const char *without_driver(const char *filename)
{
    const char *colon = strchr(filename, ':');
    const char *slash = strchr(filename, '/');

    return colon && colon - filename > 1 && (!slash || colon < slash) ? colon + 1 : filename;
}

/* Splits `filename` into the real path of its directory and the absolute path of the file, which
 * need not exist yet. */
static int resolve(const char *filename, char directory[PATH_MAX], char path[PATH_MAX])
{
    char copy[PATH_MAX];
    const char *base;
    char *slash;

    if (realpath(filename, path)) {
        strcpy(directory, path);
        slash = strrchr(directory, '/');
        slash[slash == directory] = '\0';
        return 0;
    }
    if (strlen(filename) >= sizeof copy)
        return -1;
    strcpy(copy, filename);
    slash = strrchr(copy, '/');
    base = slash ? filename + (slash - copy) + 1 : filename;
    if (!slash)
        strcpy(copy, ".");
    else
        slash[slash == copy] = '\0';
    if (!realpath(copy, directory))
        return -1;
    return snprintf(path, PATH_MAX, "%s/%s", strcmp(directory, "/") ? directory : "", base) <
                   PATH_MAX
               ? 0
               : -1;
}

/* The mount's root: the topmost directory on the file system of `directory`. */
static int find_root(const char *directory, char root[PATH_MAX])
{
    struct stat here, above;
    char *slash;

    strcpy(root, directory);
    if (stat(root, &here))
        return -1;
    while ((slash = strrchr(root, '/')) && root[1]) {
        char kept = slash == root ? slash[1] : '/';
        char *cut = slash + (slash == root);

        *cut = '\0';
        if (stat(root, &above))
            return -1;
        if (above.st_dev != here.st_dev) {
            *cut = kept;
            return 0;
        }
    }
    return 0;
}

/* Finds the mount's root and its socket: named by the environment for files below that root, told
 * by the root itself elsewhere. */
static int find_mount(const char *directory, char root[PATH_MAX], char socket_path[PATH_MAX])
{
    const char *named_socket = getenv("HALOCLINE_SOCKET"), *named_root = getenv("HALOCLINE_MOUNT");
    struct statfs file_system;
    ssize_t length;

    if (named_socket && named_root && realpath(named_root, root)) {
        size_t size = strlen(root);

        if (!strncmp(directory, root, size) && (directory[size] == '/' || !directory[size]) &&
            strlen(named_socket) < PATH_MAX) {
            strcpy(socket_path, named_socket);
            return 0;
        }
    }
    if (statfs(directory, &file_system) || file_system.f_type != FUSE_SUPER_MAGIC)
        return -1;
    if (find_root(directory, root))
        return -1;
    length = getxattr(root, SOCKET_ATTRIBUTE, socket_path, PATH_MAX - 1);
    if (length <= 0)
        return -1;
    socket_path[length] = '\0';
    return 0;
}

/* Fills `address` with a name of the socket; a path too long for it goes by its directory, whose
 * descriptor is returned in `directory_fd` and must stay open. */
static int name_socket(char *socket_path, struct sockaddr_un *address, int *directory_fd)
{
    char *slash = strrchr(socket_path, '/');

    address->sun_family = AF_UNIX;
    if (strlen(socket_path) < sizeof address->sun_path) {
        strcpy(address->sun_path, socket_path);
        return 0;
    }
    if (!slash || strlen(slash) > 64)
        return -1;
    *slash = '\0';
    *directory_fd = open(socket_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    *slash = '/';
    if (*directory_fd < 0)
        return -1;
    snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d%s", *directory_fd,
             slash);
    return 0;
}

/* Whether `text` can stand between quotes in JSON as it is. */
static int is_plain(const char *text)
{
    for (; *text; text++)
        if (*text < 0x20 || *text > 0x7e || *text == '"' || *text == '\\')
            return 0;
    return 1;
}

/* A path is a string, or an array of its bytes where it is not plain: the mount takes both. */
static int put_path(char *line, size_t size, const char *path)
{
    size_t used = 0;

    if (is_plain(path))
        return snprintf(line, size, "\"%s\"", path);
    for (; *path; path++)
        used += (size_t)snprintf(line + used, size - used, "%c%d", used ? ',' : '[',
                                 (unsigned char)*path);
    return (int)used + snprintf(line + used, size - used, "]");
}

/* The line of the control interface (crates/api/src/control.rs, `Request::Hint`). `line` has
 * room for four digits and a comma a byte of the longest path. */
static int build_line(char line[LINE_MAX_BYTES], const char *path, int rank, int ranks,
                      const struct hints *hints)
{
    static const char *const words[] = {"null", "false", "true"};
    int has_policy = hints->policy[0] && is_plain(hints->policy);
    const char *quote = has_policy ? "\"" : "";
    int used;

    used = snprintf(line, LINE_MAX_BYTES,
                    "{\"hint\":{\"pid\":%ld,\"rank\":%d,\"size\":%d,\"cache\":%s,"
                    "\"policy\":%s%s%s,\"direct\":%s,\"path\":",
                    (long)getpid(), rank, ranks, words[hints->cache + 1], quote,
                    has_policy ? hints->policy : "null", quote, words[hints->direct + 1]);
    used += put_path(line + used, LINE_MAX_BYTES - (size_t)used, path);
    used += snprintf(line + used, LINE_MAX_BYTES - (size_t)used, "}}\n");
    return used;
}

static int wait_for(int fd, short events, long deadline)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};
    long left;
    int ready;

    do {
        left = deadline - now_ms();
        if (left <= 0)
            return -1;
        ready = poll(&poll_fd, 1, (int)left);
    } while (ready < 0 && errno == EINTR);
    return ready > 0 ? 0 : -1;
}

static int connect_until(int fd, const struct sockaddr_un *address, long deadline)
{
    /* A full backlog answers EAGAIN at once: all ranks may come at the same moment. */
    const struct timespec pause = {0, 1000000};

    while (connect(fd, (const struct sockaddr *)address, sizeof *address)) {
        if ((errno != EAGAIN && errno != EINTR) || now_ms() >= deadline)
            return -1;
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* Whether this user or root serves the socket: who else does could have named any socket as the mount's. */
static int is_trusted(int fd)
{
    struct ucred peer;
    socklen_t length = sizeof peer;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) || length != sizeof peer)
        return 0;
    if (peer.uid == 0 || peer.uid == geteuid())
        return 1;
    errno = EPERM;
    return 0;
}

static int exchange(int fd, const char *line, size_t length, long deadline)
{
    char answer[512];
    ssize_t done;

    while (length > 0) {
        done = send(fd, line, length, MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0 && (errno != EAGAIN || wait_for(fd, POLLOUT, deadline)))
            return -1;
        if (done > 0) {
            line += done;
            length -= (size_t)done;
        }
    }
    for (;;) {
        if (wait_for(fd, POLLIN, deadline))
            return -1;
        done = recv(fd, answer, sizeof answer, 0);
        if (done == 0 || (done < 0 && errno != EAGAIN && errno != EINTR))
            return -1;
        if (done > 0 && memchr(answer, '\n', (size_t)done)) {
            debug("answer: %.*s", (int)((char *)memchr(answer, '\n', (size_t)done) - answer),
                  answer);
            return 0;
        }
    }
}

static void send_line(char *socket_path, const char *line, size_t length, long deadline)
{
    struct sockaddr_un address;
    int fd, directory_fd = -1;

    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return;
    debug("to %s: %.*s", socket_path, (int)length - 1, line);
    if (name_socket(socket_path, &address, &directory_fd) ||
        connect_until(fd, &address, deadline) || !is_trusted(fd) || exchange(fd, line, length, deadline))
        debug("%s: no answer: %s", socket_path, strerror(errno));
    close(fd);
    if (directory_fd >= 0)
        close(directory_fd);
}

void announce(const char *filename, int rank, int size, const struct hints *hints)
{
    struct {
        char directory[PATH_MAX], path[PATH_MAX], root[PATH_MAX], socket[PATH_MAX];
        char line[LINE_MAX_BYTES];
    } *space = malloc(sizeof *space);
    const char *inside;
    int length;

    if (!space)
        return;
    if (resolve(without_driver(filename), space->directory, space->path) ||
        find_mount(space->directory, space->root, space->socket)) {
        debug("%s: not on a halocline mount", filename);
    } else {
        inside = space->path + strlen(space->root);
        inside += *inside == '/';
        length = build_line(space->line, inside, rank, size, hints);
        send_line(space->socket, space->line, (size_t)length, now_ms() + ANSWER_MS_MAX);
    }
    free(space);
}
