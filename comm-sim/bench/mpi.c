/*
 * The work of bench_comm with MPI: program init | barrier ROUNDS | window ROUNDS.
 * Rank 0 prints nanoseconds: the median of the averages of batches of rounds, without reading the clock between
 * them, and the 99th percentile of single rounds.
 */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "times.h"

enum { WINDOW = 65536, BATCHES = 20 };
#define LONGEST_NS 1.5e9

static void make_window(MPI_Win *window) {
    void *base = NULL;
    MPI_Win_allocate_shared(WINDOW, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, window);
    memset(base, 0, WINDOW);
}

/* Rank 0 decides when the time is over: a library that spins takes a time slice for each step when ranks share cores. */
static int over(double started) {
    int is_over = now() - started > LONGEST_NS;
    MPI_Bcast(&is_over, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return is_over;
}

static void one(int barrier) {
    if (barrier) {
        MPI_Barrier(MPI_COMM_WORLD);
    } else {
        MPI_Win window;
        make_window(&window);
        MPI_Win_free(&window);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        return 2;
    }
    const int init = strcmp(argv[1], "init") == 0, barrier = strcmp(argv[1], "barrier") == 0;
    size_t rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    size_t each = rounds / BATCHES + 1, batches = 0;
    double *times = malloc(rounds * sizeof *times);
    double averages[BATCHES] = {0};
    double started = now();
    MPI_Init(&argc, &argv);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (init) {
        MPI_Win window;
        make_window(&window);
        times[0] = now() - started;
        MPI_Win_free(&window);
    } else {
        started = now();
        /* The time of one round decides how many fit into a batch. */
        double first = now();
        one(barrier);
        first = now();
        one(barrier);
        first = now() - first;
        MPI_Bcast(&first, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (first * (double)each > LONGEST_NS / BATCHES) {
            each = 1;
        }
        while (batches < BATCHES && (batches == 0 || !over(started))) {
            const double before = now();
            for (size_t round = 0; round < each; ++round) {
                one(barrier);
            }
            averages[batches++] = (now() - before) / (double)each;
        }
        const size_t wanted = rounds;
        for (rounds = 0; rounds < wanted; ++rounds) {
            /* Asked seldom, so that asking is not measured. */
            if (rounds > 0 && rounds % (each == 1 ? 1 : 500) == 0 && over(started)) {
                break;
            }
            const double before = now();
            one(barrier);
            times[rounds] = now() - before;
        }
    }
    if (rank == 0) {
        qsort(times, rounds, sizeof *times, compare);
        qsort(averages, batches, sizeof *averages, compare);
        printf("%.0f %.0f\n", init ? times[0] : averages[batches / 2], times[rounds * 99 / 100]);
    }
    MPI_Finalize();
    free(times);
    return 0;
}
