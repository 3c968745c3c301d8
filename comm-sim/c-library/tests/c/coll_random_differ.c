/* Random calls of which some ranks make another one, in C11: program RANK NRANKS PATH. Every rank learns two calls, whatever the
 * kinds, types, operations, roots and counts, called or started, in the window or not; and then the next group is as good as new. */
#include <string.h>

#include "check.h"
#include "comm_coll.h"

enum { ROUNDS = 40, MOST_RANKS = 16, BYTES = 2 << 20 };

/* A call as one rank makes it. */
struct call {
    int kind, dtype, op, root, is_started, is_in_window;
    size_t count, counts[MOST_RANKS];
};

static int rank, nranks;
static CommColl coll;
static uint64_t state;
static double memory[2][BYTES / sizeof(double)];

/* A number below `bound`, the same on all ranks. */
static unsigned below(unsigned bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % bound;
}

static struct call any_call(void) {
    /* The largest takes several pieces. */
    const size_t sizes[] = {0, 1, 12, 13, 1000, BYTES / sizeof(double) / (size_t)nranks};
    static const int types[] = {TENSOR_FLOAT32, TENSOR_INT32, COMM_COLL_FLOAT64};
    struct call call = {.kind = (int)below(12), .dtype = types[below(3)], .op = (int)below(4), .root = (int)below((unsigned)nranks)};
    call.count = sizes[below(6)];
    for (int of = 0; of < nranks; ++of) {
        call.counts[of] = below((unsigned)call.count + 1);
    }
    return call;
}

static int has_operation(int kind) { return kind == 1 || kind == 4 || kind == 5 || kind == 7; }
static int has_root(int kind) { return kind == 6 || kind == 7 || kind == 10 || kind == 11; }
static int has_list(int kind) { return kind == 3 || kind == 5; }

static int are_same(const struct call *a, const struct call *b) {
    if (a->kind != b->kind) return 0;
    if (a->kind == 0) return 1;
    const int counts = has_list(a->kind) ? memcmp(a->counts, b->counts, sizeof a->counts) == 0 : a->count == b->count;
    return counts && a->dtype == b->dtype && (a->op == b->op || !has_operation(a->kind)) &&
           (a->root == b->root || !has_root(a->kind));
}

static int make(const struct call *call, const void *in, void *out) {
    const int dtype = call->dtype, op = call->op, root = call->root;
    const size_t count = call->count, *counts = call->counts;
    size_t equal[MOST_RANKS];
    CommCollRequest request = 0;
    int code = 0;
    for (int of = 0; of < nranks; ++of) {
        equal[of] = count;
    }
#define EITHER(name, ...) \
    code = call->is_started ? comm_coll_start_##name(coll, __VA_ARGS__, &request) : comm_coll_##name(coll, __VA_ARGS__)
    switch (call->kind) {
        case 0: code = call->is_started ? comm_coll_start_barrier(coll, &request) : comm_coll_barrier(coll); break;
        case 1: EITHER(all_reduce, in, out, count, dtype, op); break;
        case 2: EITHER(all_gather, in, out, count, dtype); break;
        case 3: EITHER(all_gather_v, in, out, counts, dtype); break;
        case 4: EITHER(reduce_scatter, in, out, count, dtype, op); break;
        case 5: EITHER(reduce_scatter_v, in, out, counts, dtype, op); break;
        case 6: EITHER(broadcast, out, count, dtype, root); break;
        case 7: EITHER(reduce, in, out, count, dtype, op, root); break;
        case 8: EITHER(all_to_all, in, out, count, dtype); break;
        case 9: EITHER(all_to_all_v, in, equal, out, equal, dtype); break;
        case 10: EITHER(gather, in, out, count, dtype, root); break;
        default: EITHER(scatter, in, out, count, dtype, root); break;
    }
    return code == 0 && call->is_started ? comm_coll_wait(coll, request) : code;
}

static void round_of(CommHandle comm) {
    struct call one = any_call(), other = any_call();
    if (below(2) == 0) { /* in one thing only */
        struct call drawn = other;
        other = one;
        switch (below(4)) {
            case 0: other.dtype = drawn.dtype; break;
            case 1: other.op = drawn.op; break;
            case 2: other.root = drawn.root; break;
            default:
                other.count = drawn.count;
                memcpy(other.counts, drawn.counts, sizeof other.counts);
        }
    }
    const int odd = (int)below((unsigned)nranks), same_before = (int)below(3), is_one = below(2) == 0;
    if (are_same(&one, &other)) return;
    CommCollOptions options = COMM_COLL_OPTIONS;
    options.flags = below(4) == 0 ? COMM_COLL_PROGRESS_THREAD : 0;
    options.pool_bytes = nranks <= 3 ? 5 << 20 : 1 << 20;
    coll = comm_coll_create_over(comm, NULL, 0, &options);
    CHECK(coll != NULL);
    for (int at = 0; at < same_before; ++at) {
        float mine = 1;
        CHECK(comm_coll_all_reduce(coll, &mine, &mine, 1, TENSOR_FLOAT32, COMM_COLL_SUM) == 0 && mine == (float)nranks);
    }
    /* One rank makes another call than the rest, or the ranks before it. */
    struct call call = (is_one ? rank == odd : rank < (odd == 0 ? 1 : odd)) ? other : one;
    state ^= (uint64_t)rank << 20;
    call.is_started = below(3) == 0;
    call.is_in_window = below(3) == 0;
    const size_t bytes = sizeof memory[0][0] * (size_t)nranks * call.count;
    void *in = memory[0], *out = memory[1];
    if (call.is_in_window && 2 * bytes + 1024 < options.pool_bytes) {
        in = comm_coll_alloc(coll, bytes + 1);
        out = comm_coll_alloc(coll, bytes + 1);
        CHECK(in != NULL && out != NULL);
    }
    int code = make(&call, in, out);
    code = code == 0 ? comm_coll_barrier(coll) : code;
    if (code != COMM_E_MISMATCH) {
        fprintf(stderr, "kinds %d and %d: %d, %s\n", one.kind, other.kind, code, comm_last_error());
    }
    CHECK(code == COMM_E_MISMATCH);
    const char *first = strstr(comm_last_error(), "rank ");
    CHECK(first != NULL && strstr(first + 1, "rank ") != NULL);
    CHECK(comm_coll_barrier(coll) == COMM_E_MISMATCH && strstr(comm_last_error(), "failed before") != NULL);
    CHECK(comm_coll_destroy(coll) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    rank = atoi(argv[1]);
    nranks = atoi(argv[2]);
    CommHandle comm = comm_init(rank, nranks, NULL, argv[3]);
    CHECK(comm != NULL);
    for (int round = 0; round < (nranks <= 3 ? ROUNDS : ROUNDS / 3); ++round) {
        state = (uint64_t)(round * 100 + nranks);
        (void)below(2);
        round_of(comm);
    }
    CHECK(comm_destroy(comm) == 0);
    puts("ok");
    return 0;
}
