/* One MPI implementation's view of the shim; compiled once for each with its own mpi.h.
 *
 * No symbol of MPI is referenced directly, not even the object behind Open MPI's MPI_INFO_NULL:
 * the library must load into processes without MPI.
 */
#include "shim.h"

#include <errno.h>
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
    int rank;
    int size;
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

static void remember(MPI_File fh, const char *filename, int rank, int size)
{
    struct open_file *file = malloc(sizeof *file);

    if (!file)
        return;
    *file = (struct open_file){fh, strdup(filename), rank, size, NULL};
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

/* Hints that came after the open: announced only when there are any. */
static void announce_later(MPI_File fh, MPI_Info info)
{
    struct hints hints;
    struct open_file *file;
    char *filename = NULL;
    int rank = 0, size = 0;
    int saved = errno;

    if (!running())
        return;
    read_hints(info, &hints);
    if (hints.given) {
        pthread_mutex_lock(&open_files_lock);
        for (file = open_files; file && file->fh != fh; file = file->next)
            ;
        if (file) {
            filename = strdup(file->filename);
            rank = file->rank;
            size = file->size;
        }
        pthread_mutex_unlock(&open_files_lock);
        if (filename)
            announce(filename, rank, size, &hints);
        free(filename);
    }
    errno = saved;
}

static int file_open(uintptr_t raw_comm, const char *filename, uintptr_t amode, uintptr_t raw_info,
                     void *raw_fh)
{
    MPI_Comm comm = (MPI_Comm)raw_comm;
    MPI_Info info = (MPI_Info)raw_info;
    MPI_File *fh = raw_fh;
    struct hints hints;
    int rank = 0, size = 0, known = 0, result, saved = errno;

    /* A wrong argument is for MPI_File_open itself to refuse, in its own way. */
    if (filename && comm != NULL_COMM && running()) {
        known = CALL(MPI_Comm_rank, comm, &rank) == MPI_SUCCESS &&
                CALL(MPI_Comm_size, comm, &size) == MPI_SUCCESS;
        if (known) {
            read_hints(info, &hints);
            announce(filename, rank, size, &hints);
        }
    }
    errno = saved;
    result = CALL(MPI_File_open, comm, (char *)filename, (int)amode, info, fh);
    if (result == MPI_SUCCESS && known) {
        saved = errno;
        remember(*fh, filename, rank, size);
        errno = saved;
    }
    return result;
}

static int file_set_view(uintptr_t raw_fh, uintptr_t disp, uintptr_t etype, uintptr_t filetype,
                         const char *datarep, uintptr_t info)
{
    announce_later((MPI_File)raw_fh, (MPI_Info)info);
    return CALL(MPI_File_set_view, (MPI_File)raw_fh, (MPI_Offset)disp, (MPI_Datatype)etype,
                (MPI_Datatype)filetype, (char *)datarep, (MPI_Info)info);
}

static int file_set_info(uintptr_t raw_fh, uintptr_t info)
{
    announce_later((MPI_File)raw_fh, (MPI_Info)info);
    return CALL(MPI_File_set_info, (MPI_File)raw_fh, (MPI_Info)info);
}

static int file_close(void *fh)
{
    if (fh)
        forget(*(MPI_File *)fh);
    return CALL(MPI_File_close, fh);
}

const struct flavour NAMED(flavour_, FLAVOUR) = {file_open, file_set_view, file_set_info,
                                                 file_close};
