! The same through the module of MPI 3.
program calls
    use mpi_f08
    implicit none
    integer :: rank, ranks, value
    call MPI_Init()
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks)
    value = rank + 1
    call MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
    if (value /= ranks * (ranks + 1) / 2) stop 1
    value = rank
    call MPI_Bcast(value, 1, MPI_INTEGER, ranks - 1, MPI_COMM_WORLD)
    if (value /= ranks - 1) stop 2
    call MPI_Finalize()
    if (rank == 0) print '(a)', 'ok'
end program
