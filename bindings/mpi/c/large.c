/* large.c: the same calls with large counts (MPI_Bcast_c), where the library has them. A rank may make either of the two. */
#include <mpi.h>

#if MPI_VERSION >= 4
#define LARGE_COUNTS
#define COUNT MPI_Count
#define PLACE MPI_Aint
#define OURS(name) MPI_##name##_c
#define THEIRS(name) PMPI_##name##_c

#include "reduce.c"

#include "moves.c"
#endif
