/*
 * pingpong.c: messages between two ranks, which the drop-in has no part in. Build it with mpicc -O2, and start it in turns with and without
 * the drop-in in LD_PRELOAD: it is to take the same time.
 *
 * Prints bytes, and the 10th and 50th percentile of nanoseconds of a message: half of there and back.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../../comm-sim/bench/times.h"

#define TURNS 5000

int main(int argc, char **argv) {
    static double times[TURNS];
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int bytes = 8; bytes <= 1 << 16; bytes *= 8192) {
        char *data = calloc((size_t)bytes, 1);
        for (int turn = -1000; turn < TURNS; turn++) {
            double begin = now();
            if (rank == 0) MPI_Send(data, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
            if (rank <= 1) MPI_Recv(data, bytes, MPI_CHAR, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1) MPI_Send(data, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
            if (turn >= 0) times[turn] = (now() - begin) / 2;
        }
        qsort(times, TURNS, sizeof *times, compare);
        if (rank == 0) printf("%8d %9.0f %9.0f\n", bytes, times[TURNS / 10], times[TURNS / 2]);
        free(data);
    }
    MPI_Finalize();
    return 0;
}
