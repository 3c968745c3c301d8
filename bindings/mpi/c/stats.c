/* stats.c: which calls were taken, which were passed on and why, and how long they took. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"

bool stats_on;
static bool must_take;

static struct {
    uint64_t taken[KINDS], taken_ns[KINDS];
    uint64_t passed[KINDS], passed_ns[KINDS];
    uint64_t why[WHYS];
} counts;

static const char *const kinds[KINDS] = {
    "Barrier", "Bcast", "Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Gather", "Gatherv",
    "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv", "Alltoallw",
};

static const char *const reasons[WHYS] = {
    [BY_INTER] = "an intercommunicator",
    [BY_ONE] = "one rank",
    [BY_MANY] = "more than 64 ranks on a host",
    [BY_HOSTS] = "no two ranks on one host",
    [BY_KIND] = "several hosts, and a call that is not done in two levels",
    [BY_TYPE] = "a type of which the reduction is MPI's",
    [BY_OP] = "an operation that is MPI's",
    [BY_SETUP] = "the ranks could not make a group",
    [BY_YOUTH] = "the first calls of a communicator",
    [BY_ROOM] = "too many communicators with groups",
    [BY_OFF] = "CHIPCOMM_MPI_OFF",
    [BY_ARGUMENT] = "an argument that MPI refuses",
};

static bool is_set(const char *name) {
    const char *value = getenv(name);
    return value && *value && strcmp(value, "0") != 0;
}

void stats_start(void) {
    stats_on = is_set("CHIPCOMM_MPI_STATS");
    must_take = is_set("CHIPCOMM_MPI_REQUIRE");
}

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Relaxed: counts alone, read when no call is under way. */
static void add(uint64_t *to, uint64_t value) { __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }

void count_taken(enum kind kind, uint64_t since) {
    add(&counts.taken[kind], 1);
    if (since) add(&counts.taken_ns[kind], now_ns() - since);
}

void count_passed(enum kind kind, uint64_t since) {
    add(&counts.passed[kind], 1);
    add(&counts.why[passing], 1);
    if (since) add(&counts.passed_ns[kind], now_ns() - since);
}

static void print(int ranks) {
    uint64_t taken = 0, passed = 0;
    for (int kind = 0; kind < KINDS; kind++) taken += counts.taken[kind], passed += counts.passed[kind];
    fprintf(stderr, "chipcomm_mpi: %llu calls taken, %llu passed on, on %d ranks\n", (unsigned long long)taken,
            (unsigned long long)passed, ranks);
    fprintf(stderr, "  %-22s %10s %12s %10s %12s\n", "call", "taken", "ms", "passed on", "ms");
    for (int kind = 0; kind < KINDS; kind++) {
        if (counts.taken[kind] + counts.passed[kind] == 0) continue;
        fprintf(stderr, "  %-22s %10llu %12.3f %10llu %12.3f\n", kinds[kind],
                (unsigned long long)counts.taken[kind], (double)counts.taken_ns[kind] / 1e6,
                (unsigned long long)counts.passed[kind], (double)counts.passed_ns[kind] / 1e6);
    }
    for (int why = 0; why < WHYS; why++) {
        if (counts.why[why] == 0) continue;
        fprintf(stderr, "  %10llu passed on: %s\n", (unsigned long long)counts.why[why],
                reasons[why] ? reasons[why] : "?");
    }
}

void stats_end(void) {
    if (!stats_on && !must_take) return;
    int rank, ranks, words = (int)(sizeof counts / sizeof(uint64_t));
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
    PMPI_Allreduce(MPI_IN_PLACE, &counts, words, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (stats_on && rank == 0) print(ranks);
    uint64_t taken = 0;
    for (int kind = 0; kind < KINDS; kind++) taken += counts.taken[kind];
    if (must_take && taken == 0) {
        if (rank == 0) {
            fprintf(stderr,
                    "chipcomm_mpi: CHIPCOMM_MPI_REQUIRE is set and no call was taken; CHIPCOMM_MPI_STATS=1 says why\n");
            fflush(stderr);
            /* A launcher that learns of the end first may drop what it has not read yet. */
            usleep(500 * 1000);
            PMPI_Abort(MPI_COMM_WORLD, 3);
        }
        /* Rank 0 ends all; nobody leaves with success before. */
        PMPI_Barrier(MPI_COMM_WORLD);
    }
}
