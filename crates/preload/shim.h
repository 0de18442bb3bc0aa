/* What the parts of the MPI shim share.
 *
 * The shim tells a Halocline mount, before an MPI program opens a file, how many processes share
 * the file, which rank asks and which hints the program gave. What must hold:
 *   - it never fails, never prints (unless HALOCLINE_MPI_DEBUG is set) and never changes errno or
 *     a result: without a mount, a socket or an answer the program runs as if it were not there;
 *   - it needs no MPI library to be loaded: every MPI function is looked up when it is needed.
 */
#ifndef HALOCLINE_SHIM_H
#define HALOCLINE_SHIM_H

#include <stdint.h>

/* What the program's MPI_Info says about one file. */
struct hints {
    int cache;        /* 1 enable, 0 disable, -1 nothing said */
    int direct;       /* 1 unless halocline_direct=disable */
    char policy[64];  /* "" when nothing said */
    int given;        /* whether any halocline_ key was there */
};

/* Sends one line to the mount that holds `filename` and waits shortly for its answer. */
void announce(const char *filename, int rank, int size, const struct hints *hints);

/* The address of a function or object of the program's MPI library, or NULL; not of a function that
 * is taken over. */
void *mpi_symbol(const char *name);

/* Writes a line to standard error when HALOCLINE_MPI_DEBUG is set. */
void debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A process among those that open a file together; size 0 where that is not known. */
struct member {
    int rank, size;
};

/* One MPI implementation: compiled against its mpi.h, told with register-sized arguments what the
 * program asks for. What one does not know it leaves alone. */
struct flavour {
    struct member (*opening)(uintptr_t comm, const char *filename, uintptr_t info);
    void (*opened)(const void *fh, const char *filename, struct member member);
    void (*hinted)(uintptr_t fh, uintptr_t info);
    void (*closing)(const void *fh);
};

extern const struct flavour flavour_mpich;
extern const struct flavour flavour_openmpi;

#endif
