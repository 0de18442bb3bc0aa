/* Collective, noncontiguous I/O through a file view.
 *
 *   collective FILE [ROWS COLUMNS]
 *
 * The file is a matrix of ROWS x COLUMNS blocks of 1000 bytes, row by row; rank r owns the columns
 * r, r+P, ... and sees only them through a vector type. All ranks write with one
 * MPI_File_write_all, then each reads its neighbour's columns with MPI_File_read_all and with
 * single independent reads, and checks every byte. Exit status 1 on a wrong byte.
 */
#include "pattern.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 1000
#define SEED 42

static int rank, ranks;

static void must(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;

    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Where block `index` of `owner`'s columns lies in the file. */
static uint64_t place(uint64_t index, int owner, int columns)
{
    uint64_t mine = (uint64_t)(columns / ranks);
    uint64_t row = index / mine, column = index % mine * (uint64_t)ranks + (uint64_t)owner;

    return (row * (uint64_t)columns + column) * BLOCK;
}

static int check(const unsigned char *bytes, int count, int owner, int columns, const char *how)
{
    for (int i = 0; i < count; i++) {
        uint64_t offset = place((uint64_t)i, owner, columns);
        size_t at = pattern_check(SEED, offset, bytes + (size_t)i * BLOCK, BLOCK);

        if (at < BLOCK) {
            fprintf(stderr, "rank %d: %s: wrong byte at %llu\n", rank, how,
                    (unsigned long long)(offset + at));
            return 1;
        }
    }
    return 0;
}

static int read_alone(MPI_File file, unsigned char *bytes, int count, int owner, int columns)
{
    must(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), "set_view");
    memset(bytes, 0, (size_t)count * BLOCK);
    for (int i = count - 1; i >= 0; i--)
        must(MPI_File_read_at(file, (MPI_Offset)place((uint64_t)i, owner, columns),
                              bytes + (size_t)i * BLOCK, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE),
             "read_at");
    return check(bytes, count, owner, columns, "read_at");
}

int main(int argc, char **argv)
{
    int rows, columns, count, neighbour, wrong = 0, any = 0;
    unsigned char *bytes;
    MPI_Datatype view;
    MPI_File file;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 2 && argc != 4) {
        fprintf(stderr, "usage: collective FILE [ROWS COLUMNS]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    rows = argc == 4 ? atoi(argv[2]) : 64;
    columns = (argc == 4 ? atoi(argv[3]) : 16) / ranks * ranks;
    count = rows * (columns / ranks);
    neighbour = (rank + 1) % ranks;
    bytes = malloc((size_t)count * BLOCK);

    MPI_Type_vector(count, BLOCK, BLOCK * ranks, MPI_BYTE, &view);
    MPI_Type_commit(&view);
    must(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL,
                       &file),
         argv[1]);

    for (int i = 0; i < count; i++)
        pattern_fill(SEED, place((uint64_t)i, rank, columns), bytes + (size_t)i * BLOCK, BLOCK);
    must(MPI_File_set_view(file, (MPI_Offset)rank * BLOCK, MPI_BYTE, view, "native",
                           MPI_INFO_NULL),
         "set_view");
    must(MPI_File_write_all(file, bytes, count * BLOCK, MPI_BYTE, MPI_STATUS_IGNORE), "write_all");
    must(MPI_File_sync(file), "sync");
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_File_sync(file), "sync");

    memset(bytes, 0, (size_t)count * BLOCK);
    must(MPI_File_set_view(file, (MPI_Offset)neighbour * BLOCK, MPI_BYTE, view, "native",
                           MPI_INFO_NULL),
         "set_view");
    must(MPI_File_read_all(file, bytes, count * BLOCK, MPI_BYTE, MPI_STATUS_IGNORE), "read_all");
    wrong = check(bytes, count, neighbour, columns, "read_all");
    wrong |= read_alone(file, bytes, count, neighbour, columns);
    must(MPI_File_close(&file), "close");

    MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0 && !any)
        printf("collective: %d processes, %d x %d blocks verified\n", ranks, rows, columns);
    MPI_Type_free(&view);
    free(bytes);
    MPI_Finalize();
    return any;
}
