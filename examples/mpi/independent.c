/* Independent requests of many processes to one shared file, as IOR issues them.
 *
 *   independent FILE [--size BYTES] [--request BYTES] [--segmented] [--random] [--seed N]
 *               [--no-write] [--no-read] [--hint KEY=VALUE]...
 *
 * Rank r owns the requests r, r+P, r+2P, ... of the file, or with --segmented the r-th of P parts
 * of it: in that order, or shuffled. The ranks may call the file differently. After the
 * writes each rank reads what its neighbour wrote, so that the bytes crossed between processes,
 * and checks every byte. Rank 0 prints one JSON line a phase. Exit status 1 on a wrong byte.
 */
#include "pattern.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *file;
    uint64_t size;
    uint64_t request;
    uint64_t seed;
    int random, segmented, write, read;
    MPI_Info hints;
};

static int rank, ranks;

static void fail(const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;

    MPI_Error_string(code, text, &length);
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void usage(void)
{
    if (rank == 0)
        fprintf(stderr, "usage: independent FILE [--size BYTES] [--request BYTES] [--segmented] "
                        "[--random] [--seed N] [--no-write] [--no-read] [--hint KEY=VALUE]...\n");
    MPI_Finalize();
    exit(2);
}

static void add_hint(struct options *options, char *hint)
{
    char *equals = strchr(hint, '=');

    if (!equals)
        usage();
    if (options->hints == MPI_INFO_NULL)
        MPI_Info_create(&options->hints);
    *equals = '\0';
    MPI_Info_set(options->hints, hint, equals + 1);
}

static struct options parse(int argc, char **argv)
{
    struct options options = {NULL, 64 << 20, 8 << 10, 1, 0, 0, 1, 1, MPI_INFO_NULL};

    for (int i = 1; i < argc; i++) {
        int more = i + 1 < argc;

        if (!strcmp(argv[i], "--random"))
            options.random = 1;
        else if (!strcmp(argv[i], "--segmented"))
            options.segmented = 1;
        else if (!strcmp(argv[i], "--no-write"))
            options.write = 0;
        else if (!strcmp(argv[i], "--no-read"))
            options.read = 0;
        else if (!strcmp(argv[i], "--size") && more)
            options.size = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--request") && more)
            options.request = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--seed") && more)
            options.seed = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--hint") && more)
            add_hint(&options, argv[++i]);
        else if (argv[i][0] != '-' && !options.file)
            options.file = argv[i];
        else
            usage();
    }
    if (!options.file || options.request == 0 || options.size < options.request)
        usage();
    return options;
}

/* The order in which `owner`'s requests are issued: indices into the whole file. */
static uint64_t *order_of(const struct options *options, int owner, uint64_t *count)
{
    uint64_t total = options->size / options->request;
    uint64_t *order = malloc((total / (uint64_t)ranks + 1) * sizeof *order);

    *count = 0;
    if (options->segmented) {
        uint64_t end = total * ((uint64_t)owner + 1) / (uint64_t)ranks;

        for (uint64_t i = total * (uint64_t)owner / (uint64_t)ranks; i < end; i++)
            order[(*count)++] = i;
    } else {
        for (uint64_t i = (uint64_t)owner; i < total; i += (uint64_t)ranks)
            order[(*count)++] = i;
    }
    for (uint64_t left = *count; options->random && left > 1; left--) {
        uint64_t other = pattern_word(options->seed + (uint64_t)owner, left) % left;
        uint64_t kept = order[left - 1];

        order[left - 1] = order[other];
        order[other] = kept;
    }
    return order;
}

static void report(const char *phase, const struct options *options, double seconds)
{
    uint64_t bytes = options->size / options->request * options->request;
    double longest = 0;

    MPI_Reduce(&seconds, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"phase\":\"%s\",\"processes\":%d,\"request\":%llu,\"bytes\":%llu,"
               "\"seconds\":%.6f,\"mb_per_s\":%.3f}\n",
               phase, ranks, (unsigned long long)options->request, (unsigned long long)bytes,
               longest, (double)bytes / longest / 1e6);
}

static void write_all(const struct options *options, MPI_File file, unsigned char *buffer)
{
    uint64_t count, *order = order_of(options, rank, &count);
    double start;

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    for (uint64_t i = 0; i < count; i++) {
        uint64_t offset = order[i] * options->request;
        int code;

        pattern_fill(options->seed, offset, buffer, options->request);
        code = MPI_File_write_at(file, (MPI_Offset)offset, buffer, (int)options->request, MPI_BYTE,
                                 MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS)
            fail("write", code);
    }
    report("write", options, MPI_Wtime() - start);
    free(order);
}

static int read_all(const struct options *options, MPI_File file, unsigned char *buffer)
{
    uint64_t count, *order = order_of(options, (rank + 1) % ranks, &count);
    double start;
    int wrong = 0, got = 0;

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    for (uint64_t i = 0; i < count && !wrong; i++) {
        uint64_t offset = order[i] * options->request;
        MPI_Status status;
        size_t at;
        int code = MPI_File_read_at(file, (MPI_Offset)offset, buffer, (int)options->request,
                                    MPI_BYTE, &status);

        if (code != MPI_SUCCESS)
            fail("read", code);
        MPI_Get_count(&status, MPI_BYTE, &got);
        at = pattern_check(options->seed, offset, buffer, (size_t)got);
        if ((uint64_t)at < options->request) {
            fprintf(stderr, "rank %d: wrong byte at %llu (%d bytes read)\n", rank,
                    (unsigned long long)(offset + at), got);
            wrong = 1;
        }
    }
    report("read", options, MPI_Wtime() - start);
    free(order);
    return wrong;
}

int main(int argc, char **argv)
{
    struct options options;
    unsigned char *buffer;
    MPI_File file;
    int code, wrong = 0, any = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    options = parse(argc, argv);
    buffer = malloc(options.request);

    code = MPI_File_open(MPI_COMM_WORLD, options.file,
                         options.write ? MPI_MODE_CREATE | MPI_MODE_RDWR : MPI_MODE_RDONLY,
                         options.hints, &file);
    if (code != MPI_SUCCESS)
        fail(options.file, code);
    if (options.write)
        write_all(&options, file, buffer);
    if (options.read)
        wrong = read_all(&options, file, buffer);
    MPI_File_close(&file);

    MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    free(buffer);
    MPI_Finalize();
    return any;
}
