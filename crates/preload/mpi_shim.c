/* The MPI functions that are taken over, and which MPI implementation they belong to.
 *
 * MPI_Comm, MPI_Info and MPI_File are an int in MPICH and a pointer in Open MPI. Each argument of
 * the functions below is of integer class and travels in a register of its own on the 64-bit ABIs
 * of Linux, so an entry point declared with register-sized integers passes either kind on
 * unchanged; the flavour narrows them to its own types.
 */
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(uintptr_t) == 8, "the shim relies on a 64-bit calling convention");

#define EXPORT __attribute__((visibility("default")))
/* Both implementations use a value of at least this class for "other error"; only reached when
 * the program's own MPI library cannot be found, which its call proves impossible. */
#define MPI_ERR_OTHER_ANY 15

void debug(const char *format, ...)
{
    va_list arguments;

    if (!getenv("HALOCLINE_MPI_DEBUG"))
        return;
    va_start(arguments, format);
    fputs("halocline_mpi: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

#define MPI_LIBRARIES_MAX 16

struct libraries {
    char names[MPI_LIBRARIES_MAX][PATH_MAX];
    int count;
};

static int note_library(struct dl_phdr_info *object, size_t size, void *data)
{
    struct libraries *libraries = data;

    (void)size;
    if (object->dlpi_name && strstr(object->dlpi_name, "mpi") &&
        strlen(object->dlpi_name) < PATH_MAX)
        strcpy(libraries->names[libraries->count++], object->dlpi_name);
    return libraries->count == MPI_LIBRARIES_MAX;
}

/* Python loads MPI with its symbols kept private: then only a look into each library finds it.
 * The names are noted first because dlopen must not be called while the list is walked. */
static void *private_symbol(const char *name)
{
    struct libraries *libraries = calloc(1, sizeof *libraries);
    void *found = NULL;

    if (!libraries)
        return NULL;
    dl_iterate_phdr(note_library, libraries);
    for (int i = 0; i < libraries->count && !found; i++) {
        void *handle = dlopen(libraries->names[i], RTLD_LAZY | RTLD_NOLOAD);

        if (handle) {
            found = dlsym(handle, name);
            dlclose(handle);
        }
    }
    free(libraries);
    return found;
}

void *mpi_symbol(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);

    return found ? found : private_symbol(name);
}

static const struct flavour *find_flavour(void)
{
    /* Larger than MPI_MAX_LIBRARY_VERSION_STRING of every implementation. */
    static char version[16384];
    int length = 0;
    int (*get_version)(char *, int *) =
        (int (*)(char *, int *))mpi_symbol("PMPI_Get_library_version");

    if (!get_version || get_version(version, &length) != 0)
        return NULL;
#ifdef WITH_openmpi
    if (strstr(version, "Open MPI"))
        return &flavour_openmpi;
#endif
#ifdef WITH_mpich
    /* The common ABI of MPICH and what is built on it. */
    if (strstr(version, "MPICH") || strstr(version, "MVAPICH") || strstr(version, "Intel(R) MPI"))
        return &flavour_mpich;
#endif
    debug("no shim was built for this MPI: %.60s", version);
    return NULL;
}

static const struct flavour *flavour(void)
{
    static const struct flavour unknown;
    static const struct flavour *known;
    const struct flavour *seen = __atomic_load_n(&known, __ATOMIC_ACQUIRE);

    if (!seen) {
        int saved = errno;
        seen = find_flavour();
        if (!seen)
            seen = &unknown;
        __atomic_store_n(&known, seen, __ATOMIC_RELEASE);
        errno = saved;
    }
    return seen;
}

EXPORT int MPI_File_open(uintptr_t comm, const char *filename, uintptr_t amode, uintptr_t info,
                         void *fh)
{
    int (*next)(uintptr_t, const char *, uintptr_t, uintptr_t, void *);

    if (flavour()->file_open)
        return flavour()->file_open(comm, filename, amode, info, fh);
    next = (int (*)(uintptr_t, const char *, uintptr_t, uintptr_t, void *))mpi_symbol(
        "PMPI_File_open");
    return next ? next(comm, filename, amode, info, fh) : MPI_ERR_OTHER_ANY;
}

EXPORT int MPI_File_set_view(uintptr_t fh, uintptr_t disp, uintptr_t etype, uintptr_t filetype,
                             const char *datarep, uintptr_t info)
{
    int (*next)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, const char *, uintptr_t);

    if (flavour()->file_set_view)
        return flavour()->file_set_view(fh, disp, etype, filetype, datarep, info);
    next = (int (*)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, const char *,
                    uintptr_t))mpi_symbol("PMPI_File_set_view");
    return next ? next(fh, disp, etype, filetype, datarep, info) : MPI_ERR_OTHER_ANY;
}

EXPORT int MPI_File_set_info(uintptr_t fh, uintptr_t info)
{
    int (*next)(uintptr_t, uintptr_t);

    if (flavour()->file_set_info)
        return flavour()->file_set_info(fh, info);
    next = (int (*)(uintptr_t, uintptr_t))mpi_symbol("PMPI_File_set_info");
    return next ? next(fh, info) : MPI_ERR_OTHER_ANY;
}

EXPORT int MPI_File_close(void *fh)
{
    int (*next)(void *);

    if (flavour()->file_close)
        return flavour()->file_close(fh);
    next = (int (*)(void *))mpi_symbol("PMPI_File_close");
    return next ? next(fh) : MPI_ERR_OTHER_ANY;
}
