/*
 * The work of coll_perf with MPI: program KIND TYPE OP MODE FROM TO FACTOR WARMUP ITERATIONS COLD_BYTES.
 * Rank 0 prints a line for each size: bytes, in or out of place, microseconds a call (slowest rank, median of
 * batches), median and 99th percentile of single calls, and how many elements were wrong on all ranks.
 */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../comm-sim/bench/times.h"

enum { BATCHES = 5, GUESSES = 5, MOST_SINGLES = 500 };

static const char *kind, *mode;
static MPI_Datatype type;
static MPI_Op op;
static char family; /* f, i or u */
static size_t size;
static int rank, ranks;

static int is(const char *name) { return strcmp(kind, name) == 0; }

static void put(char *at, size_t index, long value) {
    at += index * size;
    if (family == 'f' && size == 4) { float x = (float)value; memcpy(at, &x, 4); }
    else if (family == 'f') { double x = (double)value; memcpy(at, &x, 8); }
    else { int64_t x = value; memcpy(at, &x, size); }
}

static int differs(const char *at, size_t index, long value) {
    char expected[8];
    put(expected, 0, value);
    return memcmp(at + index * size, expected, size) != 0;
}

/* What rank `of` gives at `index`; the same numbers as in data.rs. */
static long given(int of, size_t index) {
    if (op == MPI_PROD) { return index % (size_t)ranks == (size_t)of ? 2 : 1; }
    return (long)((7 * index + 3 * (size_t)of) % 5 + 1);
}

static long combined(size_t index) {
    long result = given(0, index);
    for (int of = 1; of < ranks; ++of) {
        const long next = given(of, index);
        if (op == MPI_SUM) { result += next; }
        else if (op == MPI_PROD) { result *= next; }
        else if (op == MPI_MAX) { result = next > result ? next : result; }
        else { result = next < result ? next : result; }
    }
    return result;
}

static int is_blocked(void) { return is("all_gather") || is("reduce_scatter") || is("all_to_all") || is("gather") || is("scatter"); }

static void call(char *in, char *out, int in_place, int count) {
    const void *from = in_place ? MPI_IN_PLACE : in;
    char *to = in_place ? in : out;
    if (is("barrier")) { MPI_Barrier(MPI_COMM_WORLD); }
    else if (is("all_reduce")) { MPI_Allreduce(from, to, count, type, op, MPI_COMM_WORLD); }
    else if (is("reduce")) {
        MPI_Reduce(rank == 0 ? from : in, rank == 0 ? to : NULL, count, type, op, 0, MPI_COMM_WORLD);
    }
    else if (is("broadcast")) { MPI_Bcast(in, count, type, 0, MPI_COMM_WORLD); }
    else if (is("all_gather")) { MPI_Allgather(from, count, type, to, count, type, MPI_COMM_WORLD); }
    else if (is("reduce_scatter")) { MPI_Reduce_scatter_block(in, out, count, type, op, MPI_COMM_WORLD); }
    else if (is("all_to_all")) { MPI_Alltoall(in, count, type, out, count, type, MPI_COMM_WORLD); }
    else if (is("gather")) { MPI_Gather(in, count, type, out, count, type, 0, MPI_COMM_WORLD); }
    else { MPI_Scatter(in, count, type, out, count, type, 0, MPI_COMM_WORLD); }
}

static long check(char *in, char *out, int in_place, size_t elements, size_t count) {
    const size_t own = is("all_gather") && in_place ? (size_t)rank * count : 0;
    const size_t inputs = is("all_gather") || is("gather") ? count : elements;
    for (size_t at = 0; at < inputs; ++at) { put(in, own + at, given(rank, at)); }
    call(in, out, in_place, (int)count);
    const char *result = in_place ? in : out;
    long wrong = 0;
    for (size_t at = 0; at < elements; ++at) {
        if (is("all_reduce") || (is("reduce") && rank == 0)) { wrong += differs(result, at, combined(at)); }
        else if (is("broadcast")) { wrong += differs(in, at, given(0, at)); }
        else if (is("all_gather") || (is("gather") && rank == 0)) { wrong += differs(result, at, given((int)(at / count), at % count)); }
        else if (is("all_to_all")) { wrong += differs(result, at, given((int)(at / count), (size_t)rank * count + at % count)); }
        else if (is("reduce_scatter") && at < count) { wrong += differs(result, at, combined((size_t)rank * count + at)); }
        else if (is("scatter") && at < count) { wrong += differs(result, at, given(0, (size_t)rank * count + at)); }
    }
    long sum = 0;
    MPI_Allreduce(&wrong, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return sum;
}

__attribute__((noinline)) static void fill(char *at, size_t bytes, int round) {
    const float value = (float)round;
    float *words = (float *)at;
    for (size_t word = 0; word < bytes / 4; ++word) { words[word] = value; }
    __asm__ volatile("" : : "r"(at) : "memory");
}

__attribute__((noinline)) static void look(const char *at, size_t bytes) {
    float sums[64] = {0};
    const float *words = (const float *)at;
    size_t word = 0;
    for (; word + 64 <= bytes / 4; word += 64) {
        for (int lane = 0; lane < 64; ++lane) { sums[lane] += words[word + (size_t)lane]; }
    }
    for (; word < bytes / 4; ++word) { sums[0] += words[word]; }
    __asm__ volatile("" : : "r"(sums) : "memory");
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 11) { return 2; }
    kind = argv[1];
    mode = argv[4];
    const struct { const char *name; MPI_Datatype type; size_t size; } types[] = {
        {"f32", MPI_FLOAT, 4}, {"f64", MPI_DOUBLE, 8}, {"i8", MPI_INT8_T, 1}, {"i16", MPI_INT16_T, 2},
        {"i32", MPI_INT32_T, 4}, {"i64", MPI_INT64_T, 8}, {"u8", MPI_UINT8_T, 1}, {"u16", MPI_UINT16_T, 2},
        {"u32", MPI_UINT32_T, 4}, {"u64", MPI_UINT64_T, 8}};
    for (size_t at = 0; at < sizeof types / sizeof *types; ++at) {
        if (strcmp(types[at].name, argv[2]) == 0) { type = types[at].type; size = types[at].size; family = argv[2][0]; }
    }
    op = strcmp(argv[3], "prod") == 0 ? MPI_PROD : strcmp(argv[3], "max") == 0 ? MPI_MAX : strcmp(argv[3], "min") == 0 ? MPI_MIN : MPI_SUM;
    if (size == 0) { return 2; }
    const size_t from = strtoul(argv[5], NULL, 10), to = strtoul(argv[6], NULL, 10), factor = strtoul(argv[7], NULL, 10);
    const int warmup = atoi(argv[8]), given_iters = atoi(argv[9]);
    const size_t cold = strtoul(argv[10], NULL, 10);
    const int dirty = strcmp(mode, "dirty") == 0, is_cold = strcmp(mode, "cold") == 0;
    const size_t room = (is_cold ? cold : 0) + to + 4096;
    char *a = NULL, *b = NULL;
    if (posix_memalign((void **)&a, 4096, room) != 0 || posix_memalign((void **)&b, 4096, room) != 0) { return 1; }
    memset(a, 1, room);
    memset(b, 1, room);
    for (size_t bytes = from; bytes <= to; bytes = bytes == 0 ? to + 1 : bytes * factor) {
        const size_t elements = bytes / size, count = is_blocked() ? elements / (size_t)ranks : elements;
        const size_t whole = count * (is_blocked() ? (size_t)ranks : 1);
        const size_t stride = is_cold ? (bytes + 4095) / 4096 * 4096 : 0;
        const size_t places = is_cold && stride > 0 ? cold / stride + 1 : 1;
        for (int in_place = 0; in_place < 2; ++in_place) {
            if (in_place ? !(is("all_reduce") || is("reduce") || is("all_gather") || is("broadcast")) : is("broadcast")) { continue; }
            if (count == 0 && !is("barrier")) { continue; }
            const long wrong = check(a, b, in_place, whole, count);
            size_t turn = 0;
            char *result = in_place ? a : b;
#define AT(base) ((base) + stride * (turn % places))
#define ONE(round)                                                                                                     \
    do {                                                                                                               \
        if (dirty) { fill(a, bytes, (int)(round)); }                                                                   \
        call(AT(a), AT(b), in_place, (int)count);                                                                      \
        if (dirty) { look(result, bytes); }                                                                            \
        ++turn;                                                                                                        \
    } while (0)
            for (int round = 0; round < warmup; ++round) { ONE(round); }
            /* The least of some tries: one that met a change of turns would leave a batch of two calls. */
            double first = 1e18;
            for (int guess = 0; guess < GUESSES && (guess == 0 || first < 2e6); ++guess) {
                double took = now();
                for (int round = 0; round < 2; ++round) { ONE(round); }
                took = (now() - took) / 2;
                MPI_Bcast(&took, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
                first = took < first ? took : first;
            }
            int iters = (int)(2e6 / (first + 1));
            iters = given_iters > 0 ? given_iters : iters < 2 ? 2 : iters > 2000 ? 2000 : iters;
            const int batches = first > 2e7 ? 3 : BATCHES, singles = iters > MOST_SINGLES ? MOST_SINGLES : iters;
            double times[BATCHES], single[MOST_SINGLES], alone = 0;
            for (int batch = 0; batch < batches; ++batch) {
                MPI_Barrier(MPI_COMM_WORLD);
                double before = now();
                for (int round = 0; round < iters; ++round) { ONE(round); }
                double took = now() - before;
                alone = 0;
                if (dirty) {
                    before = now();
                    for (int round = 0; round < iters; ++round) { fill(a, bytes, round); look(result, bytes); }
                    alone = now() - before;
                }
                alone /= iters;
                took = took / iters - alone;
                MPI_Allreduce(&took, &times[batch], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            }
            MPI_Barrier(MPI_COMM_WORLD);
            for (int round = 0; round < singles; ++round) {
                const double before = now();
                ONE(round);
                single[round] = now() - before - alone;
            }
            qsort(times, (size_t)batches, sizeof *times, compare);
            qsort(single, (size_t)singles, sizeof *single, compare);
            if (rank == 0) {
                printf("%zu %s %.4f %.4f %.4f %ld\n", bytes, in_place ? "in" : "out", times[batches / 2] / 1e3,
                       single[singles / 2] / 1e3, single[(singles * 99) / 100] / 1e3, wrong);
                fflush(stdout);
            }
        }
    }
    free(a);
    free(b);
    MPI_Finalize();
    return 0;
}
