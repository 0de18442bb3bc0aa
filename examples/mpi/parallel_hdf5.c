/* A parallel HDF5 program: all processes write one dataset, then read a neighbour's part of it.
 *
 *   parallel_hdf5 FILE [ROWS COLUMNS] [--chunked] [--independent]
 *
 * Rank r writes the rows r, r+P, ... as a strided hyperslab, collectively or independently. The
 * values depend on the position alone, so files of two runs compare equal with h5diff. Exit
 * status 1 on a wrong value.
 */
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static hid_t must(hid_t id, const char *what)
{
    if (id < 0) {
        fprintf(stderr, "rank %d: %s failed\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return id;
}

static double value(hsize_t row, hsize_t column)
{
    return (double)row * 1e4 + (double)column + 0.5;
}

/* Selects the rows owner, owner+P, ... */
static hid_t select_rows(hid_t dataset, int owner, const hsize_t size[2])
{
    hid_t space = must(H5Dget_space(dataset), "H5Dget_space");
    hsize_t start[2] = {(hsize_t)owner, 0}, stride[2] = {(hsize_t)ranks, 1};
    hsize_t count[2] = {size[0] / (hsize_t)ranks, 1}, block[2] = {1, size[1]};

    must(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, stride, count, block), "hyperslab");
    return space;
}

static hid_t create_dataset(hid_t file, const hsize_t size[2], int chunked)
{
    hid_t space = must(H5Screate_simple(2, size, NULL), "H5Screate_simple");
    hid_t creation = must(H5Pcreate(H5P_DATASET_CREATE), "H5Pcreate");
    hsize_t chunk[2] = {size[0] / 4 ? size[0] / 4 : 1, size[1] / 2 ? size[1] / 2 : 1};
    hid_t dataset;

    if (chunked)
        must(H5Pset_chunk(creation, 2, chunk), "H5Pset_chunk");
    dataset = must(H5Dcreate2(file, "matrix", H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, creation,
                              H5P_DEFAULT),
                   "H5Dcreate2");
    H5Pclose(creation);
    H5Sclose(space);
    return dataset;
}

/* Writes the rank's rows, or reads its neighbour's and checks them. */
static int transfer(hid_t dataset, const hsize_t size[2], H5FD_mpio_xfer_t mode, int writing)
{
    int owner = writing ? rank : (rank + 1) % ranks, wrong = 0;
    hsize_t rows = size[0] / (hsize_t)ranks, memory_size[2] = {rows, size[1]};
    hid_t on_file = select_rows(dataset, owner, size);
    hid_t in_memory = must(H5Screate_simple(2, memory_size, NULL), "H5Screate_simple");
    hid_t how = must(H5Pcreate(H5P_DATASET_XFER), "H5Pcreate");
    double *values = calloc(rows * size[1], sizeof *values);

    must(H5Pset_dxpl_mpio(how, mode), "H5Pset_dxpl_mpio");
    if (!writing)
        must(H5Dread(dataset, H5T_NATIVE_DOUBLE, in_memory, on_file, how, values), "H5Dread");
    for (hsize_t i = 0; i < rows * size[1]; i++) {
        hsize_t row = i / size[1] * (hsize_t)ranks + (hsize_t)owner, column = i % size[1];

        if (writing)
            values[i] = value(row, column);
        else if (values[i] != value(row, column))
            wrong = 1;
    }
    if (writing)
        must(H5Dwrite(dataset, H5T_NATIVE_DOUBLE, in_memory, on_file, how, values), "H5Dwrite");
    if (wrong)
        fprintf(stderr, "rank %d: wrong values in the rows of rank %d\n", rank, owner);
    free(values);
    H5Pclose(how);
    H5Sclose(in_memory);
    H5Sclose(on_file);
    return wrong;
}

int main(int argc, char **argv)
{
    hsize_t size[2] = {256, 128};
    H5FD_mpio_xfer_t mode = H5FD_MPIO_COLLECTIVE;
    int chunked = 0, numbers = 0, wrong, any = 0;
    const char *name = NULL;
    hid_t access, file, dataset;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--chunked"))
            chunked = 1;
        else if (!strcmp(argv[i], "--independent"))
            mode = H5FD_MPIO_INDEPENDENT;
        else if (!name)
            name = argv[i];
        else if (numbers < 2)
            size[numbers++] = strtoull(argv[i], NULL, 0);
    }
    if (!name) {
        fprintf(stderr,
                "usage: parallel_hdf5 FILE [ROWS COLUMNS] [--chunked] [--independent]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    size[0] = size[0] / (hsize_t)ranks * (hsize_t)ranks;

    access = must(H5Pcreate(H5P_FILE_ACCESS), "H5Pcreate");
    must(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL), "H5Pset_fapl_mpio");
    file = must(H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, access), name);
    dataset = create_dataset(file, size, chunked);
    transfer(dataset, size, mode, 1);
    must(H5Fflush(file, H5F_SCOPE_GLOBAL), "H5Fflush");
    MPI_Barrier(MPI_COMM_WORLD);
    wrong = transfer(dataset, size, mode, 0);
    H5Dclose(dataset);
    H5Fclose(file);
    H5Pclose(access);

    MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0 && !any)
        printf("parallel_hdf5: %d processes, %llu x %llu values verified\n", ranks,
               (unsigned long long)size[0], (unsigned long long)size[1]);
    MPI_Finalize();
    return any;
}
