/* Independent, noncontiguous writes of interleaved pieces: data sieving.
 *
 *   sieved ROUNDS FILE...
 *
 * Rank r reaches the one file under the name FILE number r modulo their number: on different mounts of it, for example.
 * Of ROUNDS x PIECES x P pieces of 1000 bytes rank r writes every P-th one, through a file view, all of a round with one
 * MPI_File_write. ROMIO then locks a stretch of the file with fcntl, reads it, puts the pieces in and writes all of it
 * back: what another rank writes between reading and writing is lost unless its lock is heeded. Then all ranks read
 * the whole file and check every byte. Exit status 1 on a wrong byte.
 */
#include "pattern.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define PIECE 1000
#define PIECES 50
#define SEED 7

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

static void write_round(MPI_File file, int round, unsigned char *bytes)
{
    MPI_Offset start = (MPI_Offset)round * PIECES * ranks * PIECE;
    MPI_Datatype mine;

    for (int i = 0; i < PIECES; i++)
        pattern_fill(SEED, (uint64_t)start + (uint64_t)(i * ranks + rank) * PIECE,
                     bytes + (size_t)i * PIECE, PIECE);
    must(MPI_Type_vector(PIECES, PIECE, ranks * PIECE, MPI_BYTE, &mine), "type_vector");
    must(MPI_Type_commit(&mine), "type_commit");
    must(MPI_File_set_view(file, start + (MPI_Offset)rank * PIECE, MPI_BYTE, mine, "native",
                           MPI_INFO_NULL),
         "set_view");
    must(MPI_File_write(file, bytes, PIECES * PIECE, MPI_BYTE, MPI_STATUS_IGNORE), "write");
    must(MPI_Type_free(&mine), "type_free");
}

int main(int argc, char **argv)
{
    MPI_File file;
    MPI_Info info;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 3) {
        fprintf(stderr, "usage: sieved ROUNDS FILE...\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const int rounds = atoi(argv[1]);
    const char *name = argv[2 + rank % (argc - 2)];
    const size_t size = (size_t)rounds * PIECES * (size_t)ranks * PIECE;
    unsigned char *bytes = malloc(size);

    must(MPI_Info_create(&info), "info_create");
    must(MPI_Info_set(info, "romio_ds_write", "enable"), "info_set");
    must(MPI_Info_set(info, "romio_no_indep_rw", "false"), "info_set");
    must(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file), "open");
    for (int round = 0; round < rounds; round++)
        write_round(file, round, bytes);
    must(MPI_File_sync(file), "sync");
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_File_sync(file), "sync");
    must(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), "set_view");
    must(MPI_File_read_at(file, 0, bytes, (int)size, MPI_BYTE, MPI_STATUS_IGNORE), "read");
    const size_t at = pattern_check(SEED, 0, bytes, size);
    int wrong = at < size, any = 0;

    if (wrong)
        fprintf(stderr, "rank %d: wrong byte at %zu\n", rank, at);
    MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_LOR, MPI_COMM_WORLD);
    must(MPI_File_close(&file), "close");
    free(bytes);
    MPI_Info_free(&info);
    MPI_Finalize();
    return any;
}
