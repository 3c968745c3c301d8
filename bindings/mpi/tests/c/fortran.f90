! Calls from Fortran: the constants of MPI are addresses of variables here.
program calls
    use mpi
    implicit none
    integer :: error, rank, ranks, i, value, total
    integer, allocatable :: all(:), counts(:), places(:)
    double precision :: x, y
    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
    total = ranks * (ranks + 1) / 2
    allocate (all(ranks), counts(ranks), places(ranks))
    call MPI_Allreduce(rank + 1, value, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
    if (value /= total) stop 1
    value = rank + 1
    call MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
    if (value /= total) stop 2
    x = rank
    call MPI_Reduce(x, y, 1, MPI_DOUBLE_PRECISION, MPI_MAX, 0, MPI_COMM_WORLD, error)
    if (rank == 0 .and. y /= ranks - 1) stop 3
    all = 0
    all(rank + 1) = rank
    call MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, 1, MPI_INTEGER, MPI_COMM_WORLD, error)
    if (any(all /= [(i, i=0, ranks - 1)])) stop 4
    counts = 1
    places = [(ranks - i, i=1, ranks)]
    call MPI_Gatherv(rank, 1, MPI_INTEGER, all, counts, places, MPI_INTEGER, 0, MPI_COMM_WORLD, error)
    if (rank == 0 .and. any(all /= [(ranks - i, i=1, ranks)])) stop 5
    call MPI_Bcast(total, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, error)
    call MPI_Barrier(MPI_COMM_WORLD, error)
    call MPI_Finalize(error)
    if (rank == 0) print '(a)', 'ok'
end program
