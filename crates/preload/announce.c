/* One line to the mount, one line back: finding the socket, building the line, waiting shortly. */
#include "shim.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* How long a program's open may wait for the mount's answer. */
#define ANSWER_MS_MAX 200
/* The mount answers to this attribute with the path of its control socket. */
#define SOCKET_ATTRIBUTE "user.halocline.socket"

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

static int find_socket(const char *directory, struct sockaddr_un *address)
{
    const char *named = getenv("HALOCLINE_SOCKET");
    char value[sizeof address->sun_path];
    ssize_t length;

    address->sun_family = AF_UNIX;
    if (named && *named) {
        if (strlen(named) >= sizeof address->sun_path)
            return -1;
        strcpy(address->sun_path, named);
        return 0;
    }
    length = getxattr(directory, SOCKET_ATTRIBUTE, value, sizeof value - 1);
    if (length <= 0)
        return -1;
    value[length] = '\0';
    strcpy(address->sun_path, value);
    return 0;
}

/* Appends `text` as a JSON string; -1 when it does not fit. */
static int put_string(char *line, size_t size, size_t *used, const char *text)
{
    const unsigned char *byte = (const unsigned char *)text;

    /* Six bytes for an escape, two for the quotes, one for the end. */
    if (*used + 9 >= size)
        return -1;
    line[(*used)++] = '"';
    for (; *byte; byte++) {
        if (*used + 8 >= size)
            return -1;
        if (*byte == '"' || *byte == '\\') {
            line[(*used)++] = '\\';
            line[(*used)++] = (char)*byte;
        } else if (*byte < 0x20) {
            *used += (size_t)sprintf(line + *used, "\\u%04x", *byte);
        } else {
            line[(*used)++] = (char)*byte;
        }
    }
    line[(*used)++] = '"';
    line[*used] = '\0';
    return 0;
}

static int build_line(char *line, size_t size, const char *path, int rank, int ranks,
                      const struct hints *hints)
{
    static const char *const words[] = {"null", "false", "true"};
    size_t used;

    used = (size_t)snprintf(line, size, "{\"hint\":{\"pid\":%ld,\"rank\":%d,\"size\":%d,\"path\":",
                            (long)getpid(), rank, ranks);
    if (put_string(line, size, &used, path))
        return -1;
    if (used + 64 >= size)
        return -1;
    used += (size_t)sprintf(line + used, ",\"cache\":%s,\"policy\":", words[hints->cache + 1]);
    if (hints->policy[0]) {
        if (put_string(line, size, &used, hints->policy))
            return -1;
    } else {
        used += (size_t)sprintf(line + used, "null");
    }
    if (used + 32 >= size)
        return -1;
    used += (size_t)sprintf(line + used, ",\"direct\":%s}}\n", words[hints->direct + 1]);
    return (int)used;
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

void announce(const char *filename, int rank, int size, const struct hints *hints)
{
    struct sockaddr_un address;
    char directory[PATH_MAX], path[PATH_MAX], line[2 * PATH_MAX];
    long deadline = now_ms() + ANSWER_MS_MAX;
    int fd, length;

    if (resolve(without_driver(filename), directory, path)) {
        debug("%s: no such directory", filename);
        return;
    }
    if (find_socket(directory, &address)) {
        debug("%s: not on a halocline mount", path);
        return;
    }
    length = build_line(line, sizeof line, path, rank, size, hints);
    if (length < 0)
        return;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return;
    debug("to %s: %.*s", address.sun_path, length - 1, line);
    if (connect_until(fd, &address, deadline) || exchange(fd, line, (size_t)length, deadline))
        debug("%s: no answer: %s", address.sun_path, strerror(errno));
    close(fd);
}
