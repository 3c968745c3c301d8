/* Calls that move blocks: counts, displacements, derived types and MPI_IN_PLACE, beside the MPI library's own. */
#include "check.h"

#define SIZES 7
static const int sizes[SIZES] = {0, 1, 3, 17, 1000, 30000, 300000};

static void fill(void *at, size_t bytes, int seed) {
    unsigned char *to = at;
    for (size_t i = 0; i < bytes; i++) to[i] = (unsigned char)(i * 31 + (size_t)seed * 101 + (i >> 8));
}

static void same(const void *got, const void *right, size_t bytes, const char *call, int size, int form) {
    CHECK(memcmp(got, right, bytes) == 0, "%s of %d, form %d, differs", call, size, form);
}

/* The same signature in three ways: as ints, as pairs of ints with a hole, and with the second int first in memory. */
static MPI_Datatype forms[3];
static const int per_element[3] = {1, 2, 2};

static void make_forms(void) {
    MPI_Datatype holes;
    forms[0] = MPI_INT;
    MPI_Type_vector(2, 1, 3, MPI_INT, &holes);
    MPI_Type_create_resized(holes, 0, 5 * sizeof(int), &forms[1]);
    MPI_Type_free(&holes);
    const int lengths[2] = {1, 1}, places[2] = {1, 0};
    MPI_Type_indexed(2, lengths, places, MPI_INT, &forms[2]);
    MPI_Type_commit(&forms[1]);
    MPI_Type_commit(&forms[2]);
}

/* Every rank has a form of its own: what is local must not decide the way of a call. */
static int form_of(int at, int mix) { return mix ? (at + mix) % 3 : 0; }

static void one(int size, int mix, MPI_Comm comm) {
    int form = form_of(rank, mix), other = form_of(rank + 1, mix), ints = size * 2;
    int count = ints / per_element[form], other_count = ints / per_element[other];
    size_t room = (size_t)(ints + 2) * 5 * sizeof(int), all = room * (size_t)ranks;
    char *in = memory(all), *got = memory(all), *right = memory(all);
    int root = size % ranks;
    fill(in, all, rank);
    fill(got, all, rank), fill(right, all, rank);
    MPI_Bcast(got, count, forms[form], root, comm);
    PMPI_Bcast(right, count, forms[form], root, comm);
    same(got, right, all, "Bcast", size, form);

#define BOTH(call, ...) \
    do { \
        fill(got, all, 99), fill(right, all, 99); \
        { void *out = got; (void)out; MPI_##call(__VA_ARGS__); } \
        { void *out = right; (void)out; PMPI_##call(__VA_ARGS__); } \
        same(got, right, all, #call, size, form); \
    } while (0)
    BOTH(Gather, in, count, forms[form], out, other_count, forms[other], root, comm);
    BOTH(Gather, rank == root ? MPI_IN_PLACE : (void *)in, count, forms[form], out, other_count, forms[other], root, comm);
    BOTH(Scatter, in, other_count, forms[other], out, count, forms[form], root, comm);
    BOTH(Scatter, in, other_count, forms[other], rank == root ? MPI_IN_PLACE : out, count, forms[form], root, comm);
    BOTH(Allgather, in, count, forms[form], out, other_count, forms[other], comm);
    BOTH(Allgather, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, other_count, forms[other], comm);
    BOTH(Alltoall, in, count, forms[form], out, other_count, forms[other], comm);
    BOTH(Alltoall, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, other_count, forms[other], comm);

    /* Rank r has r + 1 times as much, up to `size`; blocks in order, in reverse, and with gaps. */
    for (int order = 0; order < 3; order++) {
        int counts[64], places[64], own = 0, at = 0, pairs[64], to[64], from[64], from_places[64];
        for (int i = 0; i < ranks; i++) {
            int part = 2 * ((size * (i + 1)) / ranks);
            counts[i] = part / per_element[form];
            if (i == rank) own = counts[i];
            places[i] = at, at += counts[i] + (order == 2);
        }
        if (order == 1) {
            at = 0;
            for (int i = ranks - 1; i >= 0; i--) places[i] = at, at += counts[i];
        }
        BOTH(Gatherv, in, own, forms[form], out, counts, places, forms[form], root, comm);
        BOTH(Gatherv, rank == root ? MPI_IN_PLACE : (void *)in, own, forms[form], out, counts, places, forms[form], root, comm);
        BOTH(Scatterv, in, counts, places, forms[form], out, own, forms[form], root, comm);
        BOTH(Scatterv, in, counts, places, forms[form], rank == root ? MPI_IN_PLACE : out, own, forms[form], root, comm);
        BOTH(Allgatherv, in, own, forms[form], out, counts, places, forms[form], comm);
        BOTH(Allgatherv, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, counts, places, forms[form], comm);
        /* From i to j: as much as i + 2 j says. */
        int send_at = 0, receive_at = 0;
        for (int i = 0; i < ranks; i++) {
            pairs[i] = 2 * (size * (rank + 2 * i) / (3 * ranks)) / per_element[form];
            from[i] = 2 * (size * (i + 2 * rank) / (3 * ranks)) / per_element[form];
            to[i] = send_at, send_at += pairs[i] + (order == 2);
            from_places[i] = receive_at, receive_at += from[i] + (order == 2);
        }
        BOTH(Alltoallv, in, pairs, to, forms[form], out, from, from_places, forms[form], comm);
        /* In place: symmetric. */
        int symmetric[64], symmetric_at[64];
        for (int i = 0; i < ranks; i++) {
            symmetric[i] = 2 * (size * (i + rank) / (2 * ranks)) / per_element[form];
            symmetric_at[i] = i ? symmetric_at[i - 1] + symmetric[i - 1] : 0;
        }
        BOTH(Alltoallv, MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, out, symmetric, symmetric_at, forms[form], comm);
        MPI_Datatype types[64];
        MPI_Aint lower, extent;
        MPI_Type_get_extent(forms[form], &lower, &extent);
        for (int i = 0; i < ranks; i++)
            types[i] = forms[form], to[i] *= (int)extent, from_places[i] *= (int)extent;
        BOTH(Alltoallw, in, pairs, to, types, out, from, from_places, types, comm);
#if MPI_VERSION >= 4
        MPI_Count large[64], large_from[64], large_to[64];
        MPI_Aint large_places[64], large_to_places[64], large_from_places[64];
        for (int i = 0; i < ranks; i++) {
            large[i] = counts[i], large_to[i] = pairs[i], large_from[i] = from[i], large_places[i] = places[i];
            large_to_places[i] = to[i] / extent, large_from_places[i] = from_places[i] / extent;
        }
        BOTH(Gatherv_c, in, own, forms[form], out, large, large_places, forms[form], root, comm);
        BOTH(Allgatherv_c, in, own, forms[form], out, large, large_places, forms[form], comm);
        BOTH(Scatterv_c, in, large, large_places, forms[form], out, own, forms[form], root, comm);
        BOTH(Alltoallv_c, in, large_to, large_to_places, forms[form], out, large_from, large_from_places, forms[form], comm);
#endif
    }
#if MPI_VERSION >= 4
    BOTH(Gather_c, in, count, forms[form], out, other_count, forms[other], root, comm);
    BOTH(Allgather_c, in, count, forms[form], out, other_count, forms[other], comm);
    BOTH(Bcast_c, out, count, forms[form], root, comm);
    /* One rank with the one kind of counts, the others with the other. */
    fill(got, all, rank), fill(right, all, rank);
    if (rank == root) MPI_Bcast_c(got, count, forms[form], root, comm);
    else MPI_Bcast(got, count, forms[form], root, comm);
    PMPI_Bcast(right, count, forms[form], root, comm);
    same(got, right, all, "Bcast, mixed", size, form);
#endif
    free(in), free(got), free(right);
}

/* Types that hold addresses, from MPI_BOTTOM. */
static void from_bottom(MPI_Comm comm) {
    int in[4] = {rank, rank + 1, rank + 2, rank + 3}, out[64][4], counts[64], places[64];
    MPI_Datatype send[64], receive[64];
    MPI_Aint at;
    for (int i = 0; i < ranks; i++) {
        counts[i] = 1, places[i] = 0;
        MPI_Get_address(in, &at);
        MPI_Type_create_hindexed(1, &(int){4}, &at, MPI_INT, &send[i]);
        MPI_Get_address(out[i], &at);
        MPI_Type_create_hindexed(1, &(int){4}, &at, MPI_INT, &receive[i]);
        MPI_Type_commit(&send[i]);
        MPI_Type_commit(&receive[i]);
    }
    MPI_Alltoallw(MPI_BOTTOM, counts, places, send, MPI_BOTTOM, counts, places, receive, comm);
    for (int i = 0; i < ranks; i++) CHECK(out[i][0] == i && out[i][3] == i + 3, "from rank %d", i);
    for (int i = 0; i < ranks; i++) MPI_Type_free(&send[i]), MPI_Type_free(&receive[i]);
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    make_forms();
    int most = argc > 1 ? atoi(argv[1]) : SIZES - 1;
    for (int size = 0; size < most; size++)
        for (int mix = 0; mix < 3; mix++) one(sizes[size], mix, MPI_COMM_WORLD);
    from_bottom(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Type_free(&forms[1]);
    MPI_Type_free(&forms[2]);
    return end();
}
