/* The MPI functions that are taken over, and which MPI implementation they belong to.
 *
 * Programs in C call MPI_File_open; most of what stands behind Fortran's `use mpi_f08`, and all of
 * it in Open MPI, calls PMPI_File_open. So both names are taken, and each goes on to the next library
 * that has it: another tool may be preloaded, too, and come back to us by the other name.
 *
 * MPI_Comm, MPI_Info and MPI_File are an int in MPICH and a pointer in Open MPI. Each argument of
 * the functions below is of integer class and travels in a register of its own on the 64-bit ABIs
 * of Linux, so a function declared with register-sized integers passes either kind on unchanged;
 * the flavour narrows them to its own types.
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
    ElfW(Addr) own;
    char names[MPI_LIBRARIES_MAX][PATH_MAX];
    int count;
};

static int note_library(struct dl_phdr_info *object, size_t size, void *data)
{
    struct libraries *libraries = data;

    (void)size;
    if (object->dlpi_addr != libraries->own && object->dlpi_name && strstr(object->dlpi_name, "mpi") &&
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
    Dl_info own;

    if (!libraries)
        return NULL;
    libraries->own = dladdr(&mpi_symbol, &own) ? (ElfW(Addr))own.dli_fbase : 0;
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

/* The program comes first: it has its own copy of objects that it names. */
void *mpi_symbol(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);

    return found ? found : private_symbol(name);
}

/* What we stand in front of: the function in the next library that has it, or NULL. */
static void *next_symbol(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);

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

static const struct flavour unknown;

static const struct flavour *flavour(void)
{
    static const struct flavour *known;
    const struct flavour *seen = __atomic_load_n(&known, __ATOMIC_ACQUIRE);

    if (!seen) {
        seen = find_flavour();
        if (!seen)
            seen = &unknown;
        __atomic_store_n(&known, seen, __ATOMIC_RELEASE);
    }
    return seen;
}

/* How deep this thread is in functions that were taken over: what another tool, or a function of
 * Fortran's, calls in turn was told of already. */
static __thread int depth;

/* What is to be told of a call. */
static const struct flavour *told(void)
{
    return depth ? &unknown : flavour();
}

static int file_open(const char *name, uintptr_t comm, const char *filename, uintptr_t amode,
                     uintptr_t info, void *fh)
{
    int (*next)(uintptr_t, const char *, uintptr_t, uintptr_t, void *) =
        (int (*)(uintptr_t, const char *, uintptr_t, uintptr_t, void *))next_symbol(name);
    int result, saved = errno;
    const struct flavour *mpi = told();
    struct member member = {0, 0};

    if (!next)
        return MPI_ERR_OTHER_ANY;
    if (mpi->opening)
        member = mpi->opening(comm, filename, info);
    errno = saved;
    depth++;
    result = next(comm, filename, amode, info, fh);
    depth--;
    saved = errno;
    /* MPI_SUCCESS is 0 in every implementation. */
    if (result == 0 && member.size > 0)
        mpi->opened(fh, filename, member);
    errno = saved;
    return result;
}

static int file_set_view(const char *name, uintptr_t fh, uintptr_t disp, uintptr_t etype,
                         uintptr_t filetype, const char *datarep, uintptr_t info)
{
    int (*next)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, const char *, uintptr_t) =
        (int (*)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, const char *, uintptr_t))next_symbol(
            name);
    int result, saved = errno;

    if (!next)
        return MPI_ERR_OTHER_ANY;
    if (told()->hinted)
        told()->hinted(fh, info);
    errno = saved;
    depth++;
    result = next(fh, disp, etype, filetype, datarep, info);
    depth--;
    return result;
}

static int file_set_info(const char *name, uintptr_t fh, uintptr_t info)
{
    int (*next)(uintptr_t, uintptr_t) = (int (*)(uintptr_t, uintptr_t))next_symbol(name);
    int result, saved = errno;

    if (!next)
        return MPI_ERR_OTHER_ANY;
    if (told()->hinted)
        told()->hinted(fh, info);
    errno = saved;
    depth++;
    result = next(fh, info);
    depth--;
    return result;
}

static int file_close(const char *name, void *fh)
{
    int (*next)(void *) = (int (*)(void *))next_symbol(name);
    int result, saved = errno;

    if (!next)
        return MPI_ERR_OTHER_ANY;
    if (told()->closing)
        told()->closing(fh);
    errno = saved;
    depth++;
    result = next(fh);
    depth--;
    return result;
}

/* Takes a function over under both of its names. */
#define TAKE_OVER(function, with, parameters, ...) \
    EXPORT int function parameters                 \
    {                                              \
        return with(#function, __VA_ARGS__);       \
    }                                              \
    EXPORT int P##function parameters              \
    {                                              \
        return with("P" #function, __VA_ARGS__);   \
    }

TAKE_OVER(MPI_File_open, file_open,
          (uintptr_t comm, const char *filename, uintptr_t amode, uintptr_t info, void *fh), comm,
          filename, amode, info, fh)
TAKE_OVER(MPI_File_set_view, file_set_view,
          (uintptr_t fh, uintptr_t disp, uintptr_t etype, uintptr_t filetype, const char *datarep,
           uintptr_t info),
          fh, disp, etype, filetype, datarep, info)
TAKE_OVER(MPI_File_set_info, file_set_info, (uintptr_t fh, uintptr_t info), fh, info)
TAKE_OVER(MPI_File_close, file_close, (void *fh), fh)
