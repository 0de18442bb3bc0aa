! Each rank writes its own block of a shared file and reads its neighbour's, with hints.
!
!   fortran FILE [KEY=VALUE]...
!
! Built with -DF08 it uses the module mpi_f08, whose calls take another way through MPI libraries
! than those of the module mpi. Exit status 1 on a wrong byte.
program blocks
#ifdef F08
  use mpi_f08
#else
  use mpi
#endif
  implicit none
  integer, parameter :: words = 1024
  integer :: rank, ranks, ierror, argument, equals
  integer(kind=MPI_OFFSET_KIND) :: block_bytes, first
  integer :: written(words), found(words)
  character(len=4096) :: name, hint
#ifdef F08
  type(MPI_File) :: file
  type(MPI_Info) :: hints
#else
  integer :: file, hints
#endif

  call MPI_Init(ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierror)
  call get_command_argument(1, name)
  call MPI_Info_create(hints, ierror)
  do argument = 2, command_argument_count()
    call get_command_argument(argument, hint)
    equals = index(hint, '=')
    call MPI_Info_set(hints, hint(:equals - 1), trim(hint(equals + 1:)), ierror)
  end do

  call MPI_File_open(MPI_COMM_WORLD, trim(name), MPI_MODE_CREATE + MPI_MODE_RDWR, hints, file, &
                     ierror)
  if (ierror /= MPI_SUCCESS) call MPI_Abort(MPI_COMM_WORLD, 1, ierror)
  block_bytes = words * 4
  written = rank + 1
  call MPI_File_write_at_all(file, rank * block_bytes, written, words, MPI_INTEGER, &
                             MPI_STATUS_IGNORE, ierror)
  call MPI_File_sync(file, ierror)
  call MPI_Barrier(MPI_COMM_WORLD, ierror)
  first = mod(rank + 1, ranks) * block_bytes
  call MPI_File_read_at(file, first, found, words, MPI_INTEGER, MPI_STATUS_IGNORE, ierror)
  call MPI_File_close(file, ierror)
  if (any(found /= mod(rank + 1, ranks) + 1)) call MPI_Abort(MPI_COMM_WORLD, 1, ierror)
  call MPI_Info_free(hints, ierror)
  call MPI_Finalize(ierror)
end program blocks
