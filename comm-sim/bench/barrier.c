/*
 * Barriers through libcomm_sim.so, from ranks that a plain fork starts: program RANKS ROUNDS PATH.
 * Nothing is pinned, and nothing warms up but the first tenth of the rounds, as in any program.
 * Rank 0 prints nanoseconds: the median of the averages of batches, and the 99th percentile of single rounds.
 */
#define _POSIX_C_SOURCE 200809L
#include "comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 20 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

static int compare(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static int play(int rank, int nranks, size_t rounds, const char *path) {
    CommHandle comm = comm_init(rank, nranks, NULL, path);
    double *times = malloc(rounds * sizeof *times);
    if (comm == NULL || times == NULL) {
        return 1;
    }
    double averages[BATCHES] = {0};
    const size_t each = rounds / BATCHES + 1;
    for (size_t round = 0; round < rounds / 10; ++round) {
        if (comm_barrier(comm) != 0) {
            return 1;
        }
    }
    for (int batch = 0; batch < BATCHES; ++batch) {
        const double before = now();
        for (size_t round = 0; round < each; ++round) {
            if (comm_barrier(comm) != 0) {
                return 1;
            }
        }
        averages[batch] = (now() - before) / (double)each;
    }
    for (size_t round = 0; round < rounds; ++round) {
        const double before = now();
        if (comm_barrier(comm) != 0) {
            return 1;
        }
        times[round] = now() - before;
    }
    if (rank == 0) {
        qsort(times, rounds, sizeof *times, compare);
        qsort(averages, BATCHES, sizeof *averages, compare);
        printf("%.0f %.0f\n", averages[BATCHES / 2], times[rounds * 99 / 100]);
        fflush(stdout);
    }
    free(times);
    return comm_destroy(comm);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: barrier RANKS ROUNDS PATH\n");
        return 2;
    }
    const int nranks = atoi(argv[1]);
    const size_t rounds = strtoul(argv[2], NULL, 10);
    if (nranks < 1 || rounds < 1) {
        return 2;
    }
    for (int rank = 0; rank < nranks; ++rank) {
        const pid_t pid = fork();
        if (pid == 0) {
            _exit(play(rank, nranks, rounds, argv[3]));
        }
        if (pid < 0) {
            perror("fork");
            return 1;
        }
    }
    int failed = 0;
    for (int rank = 0; rank < nranks; ++rank) {
        int status = 0;
        failed |= wait(&status) < 0 || status != 0;
    }
    return failed;
}
