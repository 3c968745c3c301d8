/* counts.h: the types of counts and displacements, and the names of calls, in reduce.c and moves.c. large.c has others. */
#ifndef LARGE_COUNTS
#define COUNT int
#define PLACE int
#define OURS(name) MPI_##name
#define THEIRS(name) PMPI_##name
#endif
