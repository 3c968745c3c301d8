/* Ranks that do not agree, in C11: program RANK NRANKS PATH CASE. Every rank gets an error that names both calls. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "comm_coll.h"

static float in[4096], out[4096];

/* The call of this rank, or the next one where it need not wait in this one, fails with this code and these two texts, and
 * later calls repeat it. */
static void fails(CommColl coll, int code, int expected, const char *one, const char *other) {
    code = code == 0 ? comm_coll_barrier(coll) : code;
    CHECK(code == expected);
    CHECK(strstr(comm_last_error(), one) != NULL && strstr(comm_last_error(), other) != NULL);
    CHECK(comm_coll_barrier(coll) == expected && strstr(comm_last_error(), "failed before") != NULL);
    CHECK(comm_coll_destroy(coll) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 5);
    const int rank = atoi(argv[1]), nranks = atoi(argv[2]), first = rank == 0;
    CommHandle comm = comm_init(rank, nranks, NULL, argv[3]);
    CHECK(comm != NULL);
    const char *which = argv[4];
    if (strcmp(which, "pools") == 0) {
        CommCollOptions options = COMM_COLL_OPTIONS;
        options.pool_bytes = first ? 4096 : 8192;
        CHECK(comm_coll_create_over(comm, NULL, 0, &options) == NULL);
        CHECK(strstr(comm_last_error(), "comm_coll_create_over: ") != NULL);
        CHECK(comm_destroy(comm) == 0 || 1);
        puts("ok");
        return 0;
    }
    CommColl coll = comm_coll_create(comm);
    CHECK(coll != NULL);
    CHECK(comm_coll_barrier(coll) == 0);
    const int sum = COMM_COLL_SUM, f32 = TENSOR_FLOAT32;
    if (strcmp(which, "counts") == 0) {
        fails(coll, comm_coll_all_reduce(coll, in, out, first ? 1024 : 1025, f32, sum), COMM_E_MISMATCH,
              "rank 0: all_reduce f32 sum × 1024, call 2", "all_reduce f32 sum × 1025");
    } else if (strcmp(which, "zero") == 0) {
        fails(coll, comm_coll_all_reduce(coll, in, out, first ? 0 : 4, f32, sum), COMM_E_MISMATCH,
              "rank 0: all_reduce f32 sum × 0, call 2", "all_reduce f32 sum × 4");
    } else if (strcmp(which, "lists") == 0) {
        const size_t counts[3] = {3, first ? 4 : 3, 3};
        fails(coll, comm_coll_all_gather_v(coll, in, out, counts, f32), COMM_E_MISMATCH,
              "rank 0: all_gather_v f32 with counts of hash", ": all_gather_v f32 with counts of hash");
    } else if (strcmp(which, "started") == 0) {
        CommCollRequest request = 0;
        int code = comm_coll_start_all_reduce(coll, in, out, first ? 100 : 101, f32, sum, &request);
        code = code == 0 ? comm_coll_wait(coll, request) : code;
        fails(coll, code, COMM_E_MISMATCH, "rank 0: all_reduce f32 sum × 100, call 2", "all_reduce f32 sum × 101");
    } else if (strcmp(which, "types") == 0) {
        fails(coll, comm_coll_all_reduce(coll, in, out, 100, first ? f32 : TENSOR_INT32, sum), COMM_E_MISMATCH,
              "all_reduce f32 sum", "all_reduce i32 sum");
    } else if (strcmp(which, "operations") == 0) {
        fails(coll, comm_coll_all_reduce(coll, in, out, 1, f32, first ? sum : COMM_COLL_MAX), COMM_E_MISMATCH,
              "all_reduce f32 sum", "all_reduce f32 max");
    } else if (strcmp(which, "roots") == 0) {
        fails(coll, comm_coll_broadcast(coll, out, 100, f32, first ? 0 : 1), COMM_E_MISMATCH, "from 0", "from 1");
    } else if (strcmp(which, "order") == 0) {
        const int code = first ? comm_coll_all_reduce(coll, in, out, 100, f32, sum)
                               : comm_coll_broadcast(coll, out, 100, f32, 0);
        fails(coll, code, COMM_E_MISMATCH, "all_reduce f32", "broadcast f32");
    } else if (strcmp(which, "message") == 0) {
        if (rank > 1) {
            CHECK(comm_coll_barrier(coll) != 0 && comm_coll_destroy(coll) == 0);
        } else {
            const int code = first ? comm_coll_send(coll, in, 10, f32, 1, 3) : comm_coll_recv(coll, out, 11, f32, 0, 3);
            fails(coll, code, COMM_E_MISMATCH, "f32 × 10 with tag 3", "f32 × 11 with tag 3");
        }
    } else if (strcmp(which, "death") == 0) {
        if (rank == nranks - 1) {
            puts("ok");
            fflush(stdout);
            _exit(0);
        }
        const int code = comm_coll_all_reduce(coll, in, out, 4096, f32, sum);
        CHECK(code == COMM_E_PEER_DIED || code == COMM_E_PEER_LEFT);
        CHECK(comm_coll_barrier(coll) == code && strstr(comm_last_error(), "failed before") != NULL);
        (void)comm_coll_destroy(coll);
        CHECK(comm_coll_barrier(coll) == COMM_E_INVALID);
        puts("ok");
        return 0;
    } else {
        CHECK(!"a case that is known");
    }
    (void)comm_destroy(comm);
    puts("ok");
    return 0;
}
