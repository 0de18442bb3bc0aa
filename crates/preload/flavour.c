/* One MPI implementation's view of the shim; compiled once for each with its own mpi.h.
 *
 * No symbol of MPI is referenced directly, not even the object behind Open MPI's MPI_INFO_NULL:
 * the library must load into processes without MPI.
 */
#include "shim.h"

#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PASTE(a, b) a##b
#define NAMED(prefix, name) PASTE(prefix, name)

#define CALL(name, ...) \
    ((__typeof__(&P##name))mpi_symbol("P" #name))(__VA_ARGS__)

#ifdef OPEN_MPI
/* A handle of Open MPI is the address of an object in its library. */
#define NULL_OF(type, object, constant) ((type)mpi_symbol(object))
#else
#define NULL_OF(type, object, constant) (constant)
#endif
#define NULL_COMM NULL_OF(MPI_Comm, "ompi_mpi_comm_null", MPI_COMM_NULL)
#define NULL_INFO NULL_OF(MPI_Info, "ompi_mpi_info_null", MPI_INFO_NULL)

/* Open files, so that hints given later can name the file. */
struct open_file {
    MPI_File fh;
    char *filename;
    struct member member;
    struct open_file *next;
};
static struct open_file *open_files;
static pthread_mutex_t open_files_lock = PTHREAD_MUTEX_INITIALIZER;

static int running(void)
{
    int begun = 0, ended = 0;

    CALL(MPI_Initialized, &begun);
    CALL(MPI_Finalized, &ended);
    return begun && !ended;
}

/* The value of `key`, or "" when it is absent or too long for what the mount understands. */
static int get_hint(MPI_Info info, const char *key, char *value, int size)
{
    char whole[MPI_MAX_INFO_VAL + 1];
    int there = 0;

    value[0] = '\0';
    if (CALL(MPI_Info_get, info, (char *)key, MPI_MAX_INFO_VAL, whole, &there) != MPI_SUCCESS ||
        !there)
        return 0;
    if (strlen(whole) < (size_t)size)
        strcpy(value, whole);
    return 1;
}

static int truth(const char *value, int otherwise)
{
    if (!strcmp(value, "enable") || !strcmp(value, "true"))
        return 1;
    if (!strcmp(value, "disable") || !strcmp(value, "false"))
        return 0;
    return otherwise;
}

static void read_hints(MPI_Info info, struct hints *hints)
{
    char value[64];

    *hints = (struct hints){.cache = -1, .direct = 1};
    if (info == NULL_INFO)
        return;
    hints->given |= get_hint(info, "halocline_cache", value, sizeof value);
    hints->cache = truth(value, -1);
    hints->given |= get_hint(info, "halocline_direct", value, sizeof value);
    hints->direct = truth(value, 1);
    hints->given |= get_hint(info, "halocline_policy", hints->policy, sizeof hints->policy);
}

static void remember(MPI_File fh, const char *filename, struct member member)
{
    struct open_file *file = malloc(sizeof *file);

    if (!file)
        return;
    *file = (struct open_file){fh, strdup(filename), member, NULL};
    if (!file->filename) {
        free(file);
        return;
    }
    pthread_mutex_lock(&open_files_lock);
    file->next = open_files;
    open_files = file;
    pthread_mutex_unlock(&open_files_lock);
}

static void forget(MPI_File fh)
{
    struct open_file **link, *file;

    pthread_mutex_lock(&open_files_lock);
    for (link = &open_files; *link && (*link)->fh != fh; link = &(*link)->next)
        ;
    file = *link;
    if (file)
        *link = file->next;
    pthread_mutex_unlock(&open_files_lock);
    if (file) {
        free(file->filename);
        free(file);
    }
}

static struct member opening(uintptr_t raw_comm, const char *filename, uintptr_t info)
{
    MPI_Comm comm = (MPI_Comm)raw_comm;
    struct member member = {0, 0};
    struct hints hints;

    /* A wrong argument is for MPI_File_open itself to refuse, in its own way. */
    if (!filename || comm == NULL_COMM || !running() ||
        CALL(MPI_Comm_rank, comm, &member.rank) != MPI_SUCCESS ||
        CALL(MPI_Comm_size, comm, &member.size) != MPI_SUCCESS)
        return (struct member){0, 0};
    read_hints((MPI_Info)info, &hints);
    announce(filename, member.rank, member.size, &hints);
    return member;
}

static void opened(const void *fh, const char *filename, struct member member)
{
    remember(*(const MPI_File *)fh, filename, member);
}

/* Hints that came after the open: announced only when there are any. */
static void hinted(uintptr_t raw_fh, uintptr_t info)
{
    MPI_File fh = (MPI_File)raw_fh;
    struct member member = {0, 0};
    struct hints hints;
    struct open_file *file;
    char *filename = NULL;

    if (!running())
        return;
    read_hints((MPI_Info)info, &hints);
    if (!hints.given)
        return;
    pthread_mutex_lock(&open_files_lock);
    for (file = open_files; file && file->fh != fh; file = file->next)
        ;
    if (file) {
        filename = strdup(file->filename);
        member = file->member;
    }
    pthread_mutex_unlock(&open_files_lock);
    if (filename)
        announce(filename, member.rank, member.size, &hints);
    free(filename);
}

static void closing(const void *fh)
{
    if (fh)
        forget(*(const MPI_File *)fh);
}

const struct flavour NAMED(flavour_, FLAVOUR) = {opening, opened, hinted, closing};
