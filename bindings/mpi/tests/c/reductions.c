/* Reductions of every type and operation, beside the MPI library's own. */
#include <complex.h>
#include <stdbool.h>
#include <stdint.h>

#include "check.h"

struct type {
    const char *name;
    MPI_Datatype type;
    size_t size;
    void (*fill)(void *at, size_t count, int seed);
};

/* Small whole numbers: sums and products are exact in any order. */
#define FILL(name, ctype) \
    static void fill_##name(void *at, size_t count, int seed) { \
        ctype *to = at; \
        for (size_t i = 0; i < count; i++) to[i] = (ctype)((i * 7 + (size_t)seed * 3) % 4); \
    }
FILL(i8, int8_t) FILL(i16, int16_t) FILL(i32, int32_t) FILL(i64, int64_t) FILL(f32, float) FILL(f64, double)

/* With both parts: a product is not that of the parts. */
#define FILL_COMPLEX(name, ctype) \
    static void fill_##name(void *at, size_t count, int seed) { \
        ctype *to = at; \
        for (size_t i = 0; i < count; i++) \
            to[i] = (ctype)((i * 7 + (size_t)seed * 3) % 4 + ((i * 5 + (size_t)seed) % 3 + 1) * I); \
    }
FILL_COMPLEX(c64, float complex) FILL_COMPLEX(c128, double complex)

static void fill_bool(void *at, size_t count, int seed) {
    bool *to = at;
    for (size_t i = 0; i < count; i++) to[i] = (i + (size_t)seed) % 3 != 0;
}

/* Pairs have holes; zero everywhere first. */
static void fill_pair(void *at, size_t count, int seed) {
    struct { double value; int at; } *to = at;
    memset(at, 0, count * sizeof *to);
    for (size_t i = 0; i < count; i++) to[i].value = (double)((i + (size_t)seed) % 5), to[i].at = seed;
}

static void mixed(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *count; i++) ((int *)inout)[i] ^= ((int *)in)[i];
}

static const int counts[] = {0, 1, 2, 5, 12, 13, 100, 1000, 20011};

static void same(const void *got, const void *right, size_t bytes, const char *call, const char *type, int op, int count) {
    CHECK(memcmp(got, right, bytes) == 0, "%s of %d %s with operation %d differs", call, count, type, op);
}

static void one(const struct type *type, MPI_Op op, int number, int count, MPI_Comm comm) {
    int rank; /* in this communicator */
    MPI_Comm_rank(comm, &rank);
    /* What is passed on is tried less: MPICH 4.0 crashes in some calls in place with it, with or without us. */
    bool taken = number < 10 && !(number == 1 && (type->fill == fill_c64 || type->fill == fill_c128));
    size_t bytes = (size_t)count * type->size, all = bytes * (size_t)ranks;
    char *in = memory(all), *got = memory(all), *right = memory(all);
    type->fill(in, (size_t)count * (size_t)ranks, rank);
    memset(got, 0, all), memset(right, 0, all);
    MPI_Allreduce(in, got, count, type->type, op, comm);
    PMPI_Allreduce(in, right, count, type->type, op, comm);
    same(got, right, bytes, "Allreduce", type->name, number, count);
    memcpy(got, in, bytes);
    MPI_Allreduce(MPI_IN_PLACE, got, count, type->type, op, comm);
    same(got, right, bytes, "Allreduce in place", type->name, number, count);
    int root = count % ranks;
    memset(got, 0, all), memset(right, 0, all);
    MPI_Reduce(in, got, count, type->type, op, root, comm);
    PMPI_Reduce(in, right, count, type->type, op, root, comm);
    same(got, right, rank == root ? bytes : 0, "Reduce", type->name, number, count);
    if (taken) {
        memcpy(got, in, bytes);
        MPI_Reduce(rank == root ? MPI_IN_PLACE : got, rank == root ? got : NULL, count, type->type, op, root, comm);
        same(got, right, rank == root ? bytes : 0, "Reduce in place", type->name, number, count);
    }
    memset(got, 0, all), memset(right, 0, all);
    MPI_Reduce_scatter_block(in, got, count, type->type, op, comm);
    PMPI_Reduce_scatter_block(in, right, count, type->type, op, comm);
    same(got, right, bytes, "Reduce_scatter_block", type->name, number, count);
    if (taken) {
        memcpy(got, in, all);
        MPI_Reduce_scatter_block(MPI_IN_PLACE, got, count, type->type, op, comm);
        same(got, right, bytes, "Reduce_scatter_block in place", type->name, number, count);
    }
    int list[64];
    for (int i = 0; i < ranks; i++) list[i] = i % 2 ? count : count / 3;
    memset(got, 0, all), memset(right, 0, all);
    MPI_Reduce_scatter(in, got, list, type->type, op, comm);
    PMPI_Reduce_scatter(in, right, list, type->type, op, comm);
    same(got, right, (size_t)list[rank] * type->size, "Reduce_scatter", type->name, number, count);
    if (taken) {
        memcpy(got, in, all);
        MPI_Reduce_scatter(MPI_IN_PLACE, got, list, type->type, op, comm);
        same(got, right, (size_t)list[rank] * type->size, "Reduce_scatter in place", type->name, number, count);
    }
    free(in), free(got), free(right);
}

/* Of so many elements that a call across hosts goes in pieces; thirds are rounded, and all ranks must have the same bits. */
static void pieces(const struct type *type, MPI_Comm comm) {
    const int count = 300007;
    size_t bytes = (size_t)count * type->size;
    char *in = memory(bytes), *got = memory(bytes), *right = memory(bytes);
    type->fill(in, (size_t)count, rank);
    PMPI_Allreduce(in, right, count, type->type, MPI_SUM, comm);
    MPI_Allreduce(in, got, count, type->type, MPI_SUM, comm);
    same(got, right, bytes, "Allreduce", type->name, 0, count);
    MPI_Allreduce(MPI_IN_PLACE, in, count, type->type, MPI_SUM, comm);
    same(in, right, bytes, "Allreduce in place", type->name, 0, count);
    free(in), free(got), free(right);
    for (int elements = 1; elements <= count; elements = elements * 31 + 7) {
        double *thirds = memory((size_t)elements * 8), *first = memory((size_t)elements * 8);
        for (int i = 0; i < elements; i++) thirds[i] = (double)(i % 1001 + 1) / (3 + rank) * (rank % 2 ? -1 : 1e3);
        MPI_Allreduce(MPI_IN_PLACE, thirds, elements, MPI_DOUBLE, MPI_SUM, comm);
        memcpy(first, thirds, (size_t)elements * 8);
        PMPI_Bcast(first, elements, MPI_DOUBLE, 0, comm);
        same(first, thirds, (size_t)elements * 8, "Allreduce on another rank", "MPI_DOUBLE", 0, elements);
        free(thirds), free(first);
    }
}

#define INTEGER(name, ctype, fill) {#name, name, sizeof(ctype), fill}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    const struct type integers[] = {
        INTEGER(MPI_SIGNED_CHAR, char, fill_i8), INTEGER(MPI_SHORT, short, fill_i16), INTEGER(MPI_INT, int, fill_i32),
        INTEGER(MPI_LONG, long, fill_i64), INTEGER(MPI_LONG_LONG, long long, fill_i64),
        INTEGER(MPI_UNSIGNED_CHAR, char, fill_i8), INTEGER(MPI_UNSIGNED_SHORT, short, fill_i16),
        INTEGER(MPI_UNSIGNED, int, fill_i32), INTEGER(MPI_UNSIGNED_LONG, long, fill_i64),
        INTEGER(MPI_INT8_T, int8_t, fill_i8), INTEGER(MPI_UINT16_T, int16_t, fill_i16),
        INTEGER(MPI_INT32_T, int32_t, fill_i32), INTEGER(MPI_UINT64_T, int64_t, fill_i64),
        INTEGER(MPI_AINT, MPI_Aint, fill_i64), INTEGER(MPI_OFFSET, MPI_Offset, fill_i64),
    };
    const struct type floats[] = {INTEGER(MPI_FLOAT, float, fill_f32), INTEGER(MPI_DOUBLE, double, fill_f64)};
    const struct type complexes[] = {INTEGER(MPI_C_FLOAT_COMPLEX, float complex, fill_c64),
                                     INTEGER(MPI_C_DOUBLE_COMPLEX, double complex, fill_c128)};
    const struct type flags = INTEGER(MPI_C_BOOL, bool, fill_bool), bytes = INTEGER(MPI_BYTE, char, fill_i8);
    const struct type pairs = {"MPI_DOUBLE_INT", MPI_DOUBLE_INT, 16, fill_pair};
    const MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MAX, MPI_MIN, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_LAND, MPI_LOR, MPI_LXOR};
    MPI_Comm comm, reversed;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    first_calls(comm);
    /* With more ranks than cores the library's own calls take long: a test names a step. */
    size_t step = argc > 1 ? (size_t)atoi(argv[1]) : 1;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c += step) {
        for (size_t t = 0; t < sizeof integers / sizeof *integers; t++)
            for (int op = 0; op < 10; op++) one(&integers[t], ops[op], op, counts[c], comm);
        for (int t = 0; t < 2; t++) {
            for (int op = 0; op < 4; op++) one(&floats[t], ops[op], op, counts[c], comm);
            one(&complexes[t], MPI_SUM, 0, counts[c], comm);
            one(&complexes[t], MPI_PROD, 1, counts[c], comm);
        }
        for (int op = 4; op < 7; op++) one(&bytes, ops[op], op, counts[c], comm);
        for (int op = 7; op < 10; op++) one(&flags, ops[op], op, counts[c], comm);
        /* What is MPI's own goes there, between calls that are not. */
        one(&pairs, MPI_MINLOC, 11, counts[c], comm);
    }
    pieces(&integers[1], comm), pieces(&floats[0], comm), pieces(&complexes[1], comm);
    MPI_Op user;
    MPI_Op_create(mixed, 1, &user);
    one(&integers[2], user, 12, 100, comm);
    MPI_Op_free(&user);
    long double in = rank + 1, out = 0;
    MPI_Allreduce(&in, &out, 1, MPI_LONG_DOUBLE, MPI_SUM, comm);
    CHECK(out == ranks * (ranks + 1) / 2, "long double");
    MPI_Comm_split(comm, 0, -rank, &reversed);
    first_calls(reversed);
    one(&integers[2], MPI_SUM, 0, 1000, reversed);
    MPI_Comm_free(&reversed);
    MPI_Comm_free(&comm);
    return end();
}
