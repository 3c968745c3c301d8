/*
 * Barriers through libcomm_sim.so, from ranks that a plain fork starts: program RANKS ROUNDS PATH comm|coll.
 * `comm` is the communicator's barrier, `coll` that of a group for collective calls.
 * Nothing is pinned, and nothing warms up but the first tenth of the rounds, as in any program.
 * Rank 0 prints nanoseconds: the median of the averages of batches, and the 99th percentile of single rounds.
 */
#define _POSIX_C_SOURCE 200809L
#include "comm.h"
#include "comm_coll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static int meet(CommHandle comm, CommColl coll) {
    return coll != NULL ? comm_coll_barrier(coll) : comm_barrier(comm);
}

static int play(int rank, int nranks, size_t rounds, const char *path, int of_group) {
    CommHandle comm = comm_init(rank, nranks, NULL, path);
    CommColl coll = comm != NULL && of_group ? comm_coll_create(comm) : NULL;
    double *times = malloc(rounds * sizeof *times);
    if (comm == NULL || (of_group && coll == NULL) || times == NULL) {
        return 1;
    }
    double averages[BATCHES] = {0};
    const size_t each = rounds / BATCHES + 1;
    for (size_t round = 0; round < rounds / 10; ++round) {
        if (meet(comm, coll) != 0) {
            return 1;
        }
    }
    for (int batch = 0; batch < BATCHES; ++batch) {
        const double before = now();
        for (size_t round = 0; round < each; ++round) {
            if (meet(comm, coll) != 0) {
                return 1;
            }
        }
        averages[batch] = (now() - before) / (double)each;
    }
    for (size_t round = 0; round < rounds; ++round) {
        const double before = now();
        if (meet(comm, coll) != 0) {
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
    if (coll != NULL && comm_coll_destroy(coll) != 0) {
        return 1;
    }
    return comm_destroy(comm);
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: barrier RANKS ROUNDS PATH comm|coll\n");
        return 2;
    }
    const int of_group = strcmp(argv[4], "coll") == 0;
    const int nranks = atoi(argv[1]);
    const size_t rounds = strtoul(argv[2], NULL, 10);
    if (nranks < 1 || rounds < 1) {
        return 2;
    }
    for (int rank = 0; rank < nranks; ++rank) {
        const pid_t pid = fork();
        if (pid == 0) {
            _exit(play(rank, nranks, rounds, argv[3], of_group));
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
