/* check.h: what the test programs share. The MPI library's own calls, by their other names, say what is right. */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Calls that a communicator has before its group is made. */
#define FIRST_CALLS 16

static int rank, ranks;

#define CHECK(condition, ...) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "rank %d, line %d: ", rank, __LINE__); \
            fprintf(stderr, __VA_ARGS__); \
            fprintf(stderr, "\n"); \
            PMPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)

static inline void begin(int *argc, char ***argv) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
}

static inline int end(void) {
    int first = rank == 0;
    MPI_Finalize();
    if (first) puts("ok");
    return 0;
}

static inline void *memory(size_t bytes) {
    void *at = malloc(bytes + 64);
    CHECK(at, "no memory");
    memset(at, 0x5a, bytes + 64);
    return at;
}

/* The next call on the communicator makes its group. */
static inline void first_calls(MPI_Comm comm) {
    for (int call = 0; call < FIRST_CALLS; call++) MPI_Barrier(comm);
}

#endif
