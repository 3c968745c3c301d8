/* One rank of a group, in C11: program RANK NRANKS PATH. Every function of comm_coll.h, in the order of a real program. */
#include <string.h>

#include "check.h"
#include "comm_coll.h"

enum { N = 1000, MOST = 4 };

static int rank, nranks;
static CommColl coll;
static float in[MOST * N], out[MOST * N];

/* Element `at` of block `block` of what rank `of` has: a whole number, so that sums are exact. */
static float value(int of, int block, int at) { return (float)(1 + of + 10 * block + at % 97); }

/* The sum of all ranks. */
static float sum(int block, int at) {
    float total = 0;
    for (int of = 0; of < nranks; ++of) {
        total += value(of, block, at);
    }
    return total;
}

static void fill(void) {
    for (int block = 0; block < MOST; ++block) {
        for (int at = 0; at < N; ++at) {
            in[block * N + at] = value(rank, block, at);
            out[block * N + at] = -1;
        }
    }
}

static void reductions(void) {
    fill();
    CHECK(comm_coll_all_reduce(coll, in, out, N, TENSOR_FLOAT32, COMM_COLL_SUM) == 0);
    CHECK(comm_coll_all_reduce(coll, in, in, N, TENSOR_FLOAT32, COMM_COLL_MAX) == 0);
    for (int at = 0; at < N; ++at) {
        CHECK(out[at] == sum(0, at) && in[at] == value(nranks - 1, 0, at));
    }
    fill();
    CHECK(comm_coll_reduce_scatter(coll, in, out, N, TENSOR_FLOAT32, COMM_COLL_SUM) == 0);
    CHECK(out[5] == sum(rank, 5) && out[N] == -1);
    /* In place: this rank's block of the whole. */
    fill();
    CHECK(comm_coll_reduce_scatter(coll, in, in + rank * N, N, TENSOR_FLOAT32, COMM_COLL_SUM) == 0);
    for (int block = 0; block < nranks; ++block) {
        CHECK(in[block * N + 5] == (block == rank ? sum(block, 5) : value(rank, block, 5)));
    }
    const int root = nranks - 1;
    fill();
    CHECK(comm_coll_reduce(coll, in, rank == root ? out : NULL, N, TENSOR_FLOAT32, COMM_COLL_MIN, root) == 0);
    CHECK(out[7] == (rank == root ? value(0, 0, 7) : -1));
    double whole = rank, average = 0;
    CHECK(comm_coll_all_reduce(coll, &whole, &average, 1, COMM_COLL_FLOAT64, COMM_COLL_AVG) == 0);
    CHECK(average == (nranks - 1) / 2.0);
    _Bool all = rank != 0;
    CHECK(comm_coll_all_reduce(coll, &all, &all, 1, COMM_COLL_BOOL, COMM_COLL_LOGICAL_AND) == 0 && !all);
}

static void moves(void) {
    fill();
    CHECK(comm_coll_all_gather(coll, in, out, N, TENSOR_FLOAT32) == 0);
    for (int of = 0; of < nranks; ++of) {
        CHECK(out[of * N + 3] == value(of, 0, 3));
    }
    fill();
    CHECK(comm_coll_all_to_all(coll, in, out, N, TENSOR_FLOAT32) == 0);
    for (int of = 0; of < nranks; ++of) {
        CHECK(out[of * N + 3] == value(of, rank, 3));
    }
    fill();
    CHECK(comm_coll_broadcast(coll, rank == 1 ? in : out, N, TENSOR_FLOAT32, 1) == 0);
    CHECK(rank == 1 || out[9] == value(1, 0, 9));
    fill();
    CHECK(comm_coll_gather(coll, in, out, N, TENSOR_FLOAT32, 0) == 0);
    CHECK(out[N + 3] == (rank == 0 ? value(1, 0, 3) : -1));
    fill();
    CHECK(comm_coll_scatter(coll, in, out, N, TENSOR_FLOAT32, 0) == 0 && out[3] == value(0, rank, 3));
    /* In place: this rank's block of the whole. */
    fill();
    CHECK(comm_coll_all_gather(coll, in + rank * N, in, N, TENSOR_FLOAT32) == 0);
    CHECK(in[3] == value(0, 0, 3) && in[(nranks - 1) * N + 3] == value(nranks - 1, nranks - 1, 3));
    CHECK(comm_coll_barrier(coll) == 0);
    /* Zero counts are calls like others. */
    CHECK(comm_coll_all_reduce(coll, NULL, NULL, 0, TENSOR_INT8, COMM_COLL_SUM) == 0);
    CHECK(comm_coll_all_gather(coll, NULL, NULL, 0, TENSOR_INT8) == 0);
}

static void unequal(void) {
    size_t counts[MOST] = {0}, to[MOST] = {0}, from[MOST] = {0};
    size_t before = 0;
    for (int of = 0; of < nranks; ++of) {
        counts[of] = (size_t)of;
        to[of] = (size_t)(rank + of);
        from[of] = (size_t)(rank + of);
        before += of < rank ? (size_t)of : 0;
    }
    fill();
    CHECK(comm_coll_all_gather_v(coll, in, out, counts, TENSOR_FLOAT32) == 0 && out[0] == value(1, 0, 0));
    fill();
    CHECK(comm_coll_reduce_scatter_v(coll, in, out, counts, TENSOR_FLOAT32, COMM_COLL_SUM) == 0);
    CHECK(rank == 0 ? out[0] == -1 : out[0] == sum(0, (int)before));
    fill();
    CHECK(comm_coll_all_to_all_v(coll, in, to, out, from, TENSOR_FLOAT32) == 0);
    CHECK(rank == 0 || out[0] == value(0, 0, (int)before));
}

static void messages(void) {
    const int next = (rank + 1) % nranks, last = (rank + nranks - 1) % nranks;
    CommCollRequest sent = 0;
    fill();
    CHECK(comm_coll_start_send(coll, in, N, TENSOR_FLOAT32, next, 7, &sent) == 0 && sent != 0);
    CHECK(comm_coll_recv(coll, out, N, TENSOR_FLOAT32, last, 7) == 0 && out[4] == value(last, 0, 4));
    CHECK(comm_coll_wait(coll, sent) == 0);
    CommCollRequest received = 0;
    int done = 0;
    CHECK(comm_coll_start_recv(coll, out, 1, TENSOR_FLOAT32, last, 8, &received) == 0);
    CHECK(comm_coll_send(coll, in, 1, TENSOR_FLOAT32, next, 8) == 0);
    while (!done) {
        CHECK(comm_coll_test(coll, received, &done) == 0);
    }
    CHECK(comm_coll_wait(coll, received) == COMM_E_INVALID);
}

static void started(void) {
    CommCollRequest one = 0, two = 0, three = 0;
    size_t counts[MOST] = {2, 2, 2, 2};
    static float gathered[MOST * N];
    fill();
    CHECK(comm_coll_start_all_reduce(coll, in, out, N, TENSOR_FLOAT32, COMM_COLL_SUM, &one) == 0);
    CHECK(comm_coll_start_all_gather_v(coll, in, gathered, counts, TENSOR_FLOAT32, &two) == 0);
    memset(counts, 0xff, sizeof counts); /* they were copied */
    CHECK(comm_coll_start_barrier(coll, &three) == 0);
    CHECK(one != two && two != three);
    CHECK(comm_coll_wait(coll, two) == 0 && gathered[3] == value(1, 0, 1));
    CHECK(comm_coll_wait(coll, one) == 0 && out[8] == sum(0, 8));
    CHECK(comm_coll_wait(coll, three) == 0);
    /* One that nobody waits for is over when the group is destroyed, at the latest, and in nobody's way. */
    static float left[N];
    CHECK(comm_coll_start_all_reduce(coll, in, left, N, TENSOR_FLOAT32, COMM_COLL_SUM, &one) == 0);
    CHECK(comm_coll_barrier(coll) == 0 && left[8] == sum(0, 8));
}

/* Every started twin, once. */
static void all_started(void) {
    CommCollRequest request = 0;
    const size_t counts[MOST] = {1, 1, 1, 1};
    fill();
#define DONE(call) CHECK((call) == 0 && comm_coll_wait(coll, request) == 0)
    DONE(comm_coll_start_all_gather(coll, in, out, 1, TENSOR_FLOAT32, &request));
    DONE(comm_coll_start_reduce_scatter(coll, in, out, 1, TENSOR_FLOAT32, COMM_COLL_SUM, &request));
    DONE(comm_coll_start_reduce_scatter_v(coll, in, out, counts, TENSOR_FLOAT32, COMM_COLL_SUM, &request));
    DONE(comm_coll_start_broadcast(coll, out, 1, TENSOR_FLOAT32, 0, &request));
    DONE(comm_coll_start_reduce(coll, in, out, 1, TENSOR_FLOAT32, COMM_COLL_SUM, 0, &request));
    DONE(comm_coll_start_all_to_all(coll, in, out, 1, TENSOR_FLOAT32, &request));
    DONE(comm_coll_start_all_to_all_v(coll, in, counts, out, counts, TENSOR_FLOAT32, &request));
    DONE(comm_coll_start_gather(coll, in, out, 1, TENSOR_FLOAT32, 0, &request));
    DONE(comm_coll_start_scatter(coll, in, out, 1, TENSOR_FLOAT32, 0, &request));
    CHECK(out[0] == value(0, 0, rank));
}

static void in_window(void) {
    const size_t bytes = 64 * 1024;
    float *tensor = comm_coll_alloc(coll, bytes);
    CHECK(tensor != NULL && (uintptr_t)tensor % 128 == 0);
    for (size_t at = 0; at < bytes / 4; ++at) {
        tensor[at] = value(rank, 0, (int)at);
    }
    CHECK(comm_coll_all_reduce(coll, tensor, tensor, bytes / 4, TENSOR_FLOAT32, COMM_COLL_SUM) == 0);
    CHECK(tensor[0] == sum(0, 0) && tensor[bytes / 4 - 1] == sum(0, (int)(bytes / 4 - 1)));
    CHECK(comm_coll_free(coll, tensor) == 0);
    CHECK(comm_coll_free(coll, tensor) == COMM_E_INVALID && comm_coll_free(coll, NULL) == 0);
}

static void other_groups(CommHandle comm) {
    CommColl part = NULL;
    CHECK(comm_coll_split(coll, rank % 2, -rank, &part) == 0 && part != NULL);
    int number = -1, size = -1, mine = rank;
    CHECK(comm_coll_rank(part, &number) == 0 && comm_coll_size(part, &size) == 0);
    CHECK(size == (nranks + 1 - rank % 2) / 2 && number == (nranks - 1 - rank) / 2);
    CHECK(comm_coll_all_reduce(part, &mine, &mine, 1, TENSOR_INT32, COMM_COLL_MIN) == 0 && mine == rank % 2);
    CHECK(comm_coll_destroy(part) == 0);
    CHECK(comm_coll_split(coll, rank == 0 ? -1 : 3, 0, &part) == 0 && (part == NULL) == (rank == 0));
    CHECK(part == NULL || comm_coll_destroy(part) == 0);

    /* Over some ranks, with options. */
    CommCollOptions options = COMM_COLL_OPTIONS;
    options.flags = COMM_COLL_PROGRESS_THREAD;
    options.pool_bytes = 1 << 16;
    options.timeout_ms = 20000;
    const uint32_t pair[2] = {1, 0};
    if (rank < 2) {
        CommColl both = comm_coll_create_over(comm, pair, 2, &options);
        CHECK(both != NULL && comm_coll_rank(both, &number) == 0 && number == 1 - rank);
        CommCollRequest request = 0;
        mine = rank;
        CHECK(comm_coll_start_all_reduce(both, &mine, &mine, 1, TENSOR_INT32, COMM_COLL_SUM, &request) == 0);
        CHECK(comm_coll_alloc(both, 1 << 20) == NULL && strstr(comm_last_error(), "pool") != NULL);
        CHECK(comm_coll_wait(both, request) == 0 && mine == 1);
        /* Started and left: destroying the group finishes it. */
        CHECK(comm_coll_start_all_reduce(both, &mine, &mine, 1, TENSOR_INT32, COMM_COLL_SUM, &request) == 0);
        CHECK(comm_coll_destroy(both) == 0 && mine == 2);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    rank = atoi(argv[1]);
    nranks = atoi(argv[2]);
    CommHandle comm = comm_init(rank, nranks, NULL, argv[3]);
    CHECK(comm != NULL);
    coll = comm_coll_create(comm);
    CHECK(coll != NULL);
    int number = -1, size = -1;
    CHECK(comm_coll_rank(coll, &number) == 0 && number == rank);
    CHECK(comm_coll_size(coll, &size) == 0 && size == nranks);
    reductions();
    moves();
    unequal();
    messages();
    started();
    all_started();
    in_window();
    other_groups(comm);
    CHECK(comm_destroy(comm) == COMM_E_INVALID && strstr(comm_last_error(), "1 groups") != NULL);
    CHECK(comm_coll_destroy(coll) == 0);
    CHECK(comm_coll_barrier(coll) == COMM_E_INVALID && strstr(comm_last_error(), "not the handle") != NULL);
    CHECK(comm_destroy(comm) == 0);
    puts("ok");
    return 0;
}
