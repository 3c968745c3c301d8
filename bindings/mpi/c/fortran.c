/*
 * fortran.c: the same calls from Fortran, with Open MPI. Its Fortran layer calls the C functions by their other names, past us, so its own
 * entries are taken: those of mpif.h and `use mpi` (mpi_bcast_), and those that `use mpi_f08` calls (ompi_bcast_f). MPICH's layer
 * calls the C functions by their names and needs nothing.
 */
#include "shim.h"

#if defined(OPEN_MPI) && !defined(CHIPCOMM_MPI_NO_FORTRAN)

_Static_assert(sizeof(MPI_Fint) == sizeof(int), "INTEGER has not the size of int: compile with -DCHIPCOMM_MPI_NO_FORTRAN");

/* Variables of the program whose addresses are constants of MPI; absent in a program without Fortran. */
extern int mpi_fortran_in_place_ __attribute__((weak, visibility("default")));
extern int mpi_fortran_bottom_ __attribute__((weak, visibility("default")));

static void *buffer(void *at) {
    if (&mpi_fortran_in_place_ && at == &mpi_fortran_in_place_) return MPI_IN_PLACE;
    if (&mpi_fortran_bottom_ && at == &mpi_fortran_bottom_) return MPI_BOTTOM;
    return at;
}

/* Both entries of a call. The C function gets what `call` makes of the arguments, and its result goes to `error`, if there is one. */
#define ENTRIES(name, arguments, call) \
    EXPORT void mpi_##name##_ arguments { \
        int result_ = (call); \
        if (error) *error = result_; \
    } \
    EXPORT void ompi_##name##_f arguments __attribute__((alias("mpi_" #name "_")));

#define T(type) PMPI_Type_f2c(*(type))
#define O(op) PMPI_Op_f2c(*(op))
#define C(comm) PMPI_Comm_f2c(*(comm))

typedef MPI_Fint F;

ENTRIES(barrier, (F *comm, F *error), MPI_Barrier(C(comm)))
ENTRIES(bcast, (char *at, F *count, F *type, F *root, F *comm, F *error),
        MPI_Bcast(buffer(at), *count, T(type), *root, C(comm)))
ENTRIES(reduce, (char *in, char *out, F *count, F *type, F *op, F *root, F *comm, F *error),
        MPI_Reduce(buffer(in), buffer(out), *count, T(type), O(op), *root, C(comm)))
ENTRIES(allreduce, (char *in, char *out, F *count, F *type, F *op, F *comm, F *error),
        MPI_Allreduce(buffer(in), buffer(out), *count, T(type), O(op), C(comm)))
ENTRIES(reduce_scatter, (char *in, char *out, F *counts, F *type, F *op, F *comm, F *error),
        MPI_Reduce_scatter(buffer(in), buffer(out), counts, T(type), O(op), C(comm)))
ENTRIES(reduce_scatter_block, (char *in, char *out, F *count, F *type, F *op, F *comm, F *error),
        MPI_Reduce_scatter_block(buffer(in), buffer(out), *count, T(type), O(op), C(comm)))
ENTRIES(gather, (char *in, F *count, F *type, char *out, F *out_count, F *out_type, F *root, F *comm, F *error),
        MPI_Gather(buffer(in), *count, T(type), buffer(out), *out_count, T(out_type), *root, C(comm)))
ENTRIES(gatherv,
        (char *in, F *count, F *type, char *out, F *counts, F *places, F *out_type, F *root, F *comm, F *error),
        MPI_Gatherv(buffer(in), *count, T(type), buffer(out), counts, places, T(out_type), *root, C(comm)))
ENTRIES(scatter, (char *in, F *count, F *type, char *out, F *out_count, F *out_type, F *root, F *comm, F *error),
        MPI_Scatter(buffer(in), *count, T(type), buffer(out), *out_count, T(out_type), *root, C(comm)))
ENTRIES(scatterv,
        (char *in, F *counts, F *places, F *type, char *out, F *count, F *out_type, F *root, F *comm, F *error),
        MPI_Scatterv(buffer(in), counts, places, T(type), buffer(out), *count, T(out_type), *root, C(comm)))
ENTRIES(allgather, (char *in, F *count, F *type, char *out, F *out_count, F *out_type, F *comm, F *error),
        MPI_Allgather(buffer(in), *count, T(type), buffer(out), *out_count, T(out_type), C(comm)))
ENTRIES(allgatherv, (char *in, F *count, F *type, char *out, F *counts, F *places, F *out_type, F *comm, F *error),
        MPI_Allgatherv(buffer(in), *count, T(type), buffer(out), counts, places, T(out_type), C(comm)))
ENTRIES(alltoall, (char *in, F *count, F *type, char *out, F *out_count, F *out_type, F *comm, F *error),
        MPI_Alltoall(buffer(in), *count, T(type), buffer(out), *out_count, T(out_type), C(comm)))
ENTRIES(alltoallv,
        (char *in, F *counts, F *places, F *type, char *out, F *out_counts, F *out_places, F *out_type, F *comm, F *error),
        MPI_Alltoallv(buffer(in), counts, places, T(type), buffer(out), out_counts, out_places, T(out_type), C(comm)))

/* Lists of types are converted, one for each rank. */
static int alltoallw(char *in, F *counts, F *places, F *types, char *out, F *out_counts, F *out_places, F *out_types,
                     MPI_Comm comm) {
    int size = 0;
    PMPI_Comm_test_inter(comm, &size);
    if (size) PMPI_Comm_remote_size(comm, &size);
    else PMPI_Comm_size(comm, &size);
    MPI_Datatype from[size + 1], to[size + 1];
    for (int rank = 0; rank < size; rank++) {
        from[rank] = buffer(in) == MPI_IN_PLACE ? MPI_DATATYPE_NULL : T(&types[rank]);
        to[rank] = T(&out_types[rank]);
    }
    return MPI_Alltoallw(buffer(in), counts, places, from, buffer(out), out_counts, out_places, to, comm);
}

ENTRIES(alltoallw,
        (char *in, F *counts, F *places, F *types, char *out, F *out_counts, F *out_places, F *out_types, F *comm,
         F *error),
        alltoallw(in, counts, places, types, out, out_counts, out_places, out_types, C(comm)))

/* So that the table is printed and CHIPCOMM_MPI_REQUIRE holds for a program in Fortran that makes none of these calls. */
ENTRIES(init, (F *error), MPI_Init(&(int){0}, &(char **){NULL}))

#endif
