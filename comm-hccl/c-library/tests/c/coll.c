/*
 * One rank in C11: program RANK NRANKS PATH. The collectives of comm_coll.h on devices: buffers of the host and of the
 * device, called and started, a split, and what is refused.
 */
#include "comm_coll.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int aclInit(const char *config);
int aclFinalize(void);
int aclrtSetDevice(int32_t device);
int aclrtResetDevice(int32_t device);

#define CHECK(what)                                                                            \
    do {                                                                                       \
        if (!(what)) {                                                                         \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #what, comm_last_error()); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

enum { N = 300, MOST = 4 };

static int rank, nranks;
static CommColl coll;
static float in[MOST * N], out[MOST * N];

/* Element `at` of block `block` of rank `of`: a whole number, so that sums are exact in any order. */
static float value(int of, int block, int at) { return (float)(1 + of + 10 * block + at % 97); }

static float sum(int block, int at) {
    float total = 0;
    for (int of = 0; of < nranks; ++of) {
        total += value(of, block, at);
    }
    return total;
}

static void fill(void) {
    for (int at = 0; at < MOST * N; ++at) {
        in[at] = value(rank, at / N, at % N);
        out[at] = -1;
    }
}

static void family(void) {
    const int f32 = TENSOR_FLOAT32, last = nranks - 1;
    fill();
    CHECK(comm_coll_all_reduce(coll, in, out, N, f32, COMM_COLL_SUM) == 0);
    for (int at = 0; at < N; ++at) {
        CHECK(out[at] == sum(0, at));
    }
    fill();
    CHECK(comm_coll_all_reduce(coll, in, in, N, f32, COMM_COLL_MAX) == 0 && in[5] == value(last, 0, 5));
    fill();
    CHECK(comm_coll_all_gather(coll, in, out, N, f32) == 0 && out[last * N + 3] == value(last, 0, 3));
    fill();
    CHECK(comm_coll_reduce_scatter(coll, in, out, N, f32, COMM_COLL_SUM) == 0 && out[5] == sum(rank, 5));
    fill();
    CHECK(comm_coll_broadcast(coll, rank == last ? in : out, N, f32, last) == 0);
    CHECK(rank == last || out[9] == value(last, 0, 9));
    fill();
    CHECK(comm_coll_reduce(coll, in, rank == 0 ? out : NULL, N, f32, COMM_COLL_SUM, 0) == 0);
    CHECK(out[7] == (rank == 0 ? sum(0, 7) : -1));
    fill();
    CHECK(comm_coll_all_to_all(coll, in, out, N, f32) == 0 && out[last * N + 3] == value(last, rank, 3));
    fill();
    CHECK(comm_coll_gather(coll, in, rank == 0 ? out : NULL, N, f32, 0) == 0);
    CHECK(out[N + 3] == (rank == 0 ? value(1, 0, 3) : -1));
    fill();
    CHECK(comm_coll_scatter(coll, rank == 0 ? in : NULL, out, N, f32, 0) == 0 && out[3] == value(0, rank, 3));
    CHECK(comm_coll_all_reduce(coll, NULL, NULL, 0, f32, COMM_COLL_SUM) == 0);
    fill();
    if (rank == 0) {
        CHECK(comm_coll_send(coll, in, N, f32, 1, 0) == 0);
    } else if (rank == 1) {
        CHECK(comm_coll_recv(coll, out, N, f32, 0, 0) == 0 && out[4] == value(0, 0, 4));
    }
    CHECK(comm_coll_barrier(coll) == 0);
}

static void started(void) {
    CommCollRequest one = 0, two = 0;
    int done = 0;
    fill();
    CHECK(comm_coll_start_all_reduce(coll, in, out, N, TENSOR_FLOAT32, COMM_COLL_SUM, &one) == 0);
    CHECK(comm_coll_start_all_gather(coll, in, out + N, 1, TENSOR_FLOAT32, &two) == 0 && one != two);
    while (!done) {
        CHECK(comm_coll_test(coll, two, &done) == 0);
    }
    CHECK(comm_coll_wait(coll, one) == 0 && out[8] == sum(0, 8) && out[N + 1] == value(1, 0, 0));
    CHECK(comm_coll_wait(coll, one) == COMM_E_INVALID);
}

static void device_memory(void) {
    float *tensor = comm_coll_alloc(coll, N * sizeof(float));
    CHECK(tensor != NULL);
    fill();
    CHECK(comm_coll_all_reduce(coll, in, tensor, N, TENSOR_FLOAT32, COMM_COLL_SUM) == 0);
    CHECK(comm_coll_all_reduce(coll, tensor, tensor, N, TENSOR_FLOAT32, COMM_COLL_MAX) == 0);
    CHECK(comm_coll_all_reduce(coll, tensor, out, N, TENSOR_FLOAT32, COMM_COLL_MIN) == 0);
    CHECK(out[0] == sum(0, 0) && out[N - 1] == sum(0, N - 1));
    CHECK(comm_coll_free(coll, tensor) == 0 && comm_coll_free(coll, tensor) != 0);
}

/* Refused before a device or a peer knows of it: the group goes on. */
static void refused(void) {
    double wide = 1;
    CHECK(comm_coll_all_reduce(coll, in, out, 1, TENSOR_FLOAT32, COMM_COLL_AVG) != 0);
    CHECK(strstr(comm_last_error(), "sum, prod, max and min") != NULL);
    CHECK(comm_coll_all_reduce(coll, &wide, &wide, 1, COMM_COLL_FLOAT64, COMM_COLL_SUM) != 0);
    CHECK(strstr(comm_last_error(), "f64") != NULL);
    CHECK(comm_coll_send(coll, in, 1, TENSOR_FLOAT32, (rank + 1) % nranks, 5) != 0);
    CHECK(strstr(comm_last_error(), "tag 0") != NULL);
    CHECK(comm_coll_all_reduce(coll, in, in + 1, 4, TENSOR_FLOAT32, COMM_COLL_SUM) == COMM_E_INVALID);
    CHECK(comm_coll_all_reduce(coll, in, out, (size_t)-1 / 2, TENSOR_FLOAT32, COMM_COLL_SUM) == COMM_E_INVALID);
    CHECK(comm_coll_broadcast(coll, out, 4, TENSOR_FLOAT32, nranks) == COMM_E_INVALID);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    rank = atoi(argv[1]);
    nranks = atoi(argv[2]);
    CHECK(nranks <= MOST && aclInit(NULL) == 0 && aclrtSetDevice(rank) == 0);
    CommHandle comm = comm_init(rank, nranks, NULL, argv[3]);
    CHECK(comm != NULL);
    coll = comm_coll_create(comm);
    CHECK(coll != NULL);
    int number = -1, size = -1;
    CHECK(comm_coll_rank(coll, &number) == 0 && number == rank);
    CHECK(comm_coll_size(coll, &size) == 0 && size == nranks);
    family();
    refused();
    started();
    device_memory();
    CommColl turned = NULL;
    CHECK(comm_coll_split(coll, 0, -rank, &turned) == 0 && comm_coll_rank(turned, &number) == 0);
    CHECK(number == nranks - 1 - rank && comm_coll_barrier(turned) == 0 && comm_coll_destroy(turned) == 0);
    CHECK(comm_destroy(comm) == COMM_E_INVALID && strstr(comm_last_error(), "comm_coll_destroy") != NULL);
    CHECK(comm_coll_destroy(coll) == 0);
    CHECK(comm_coll_barrier(coll) == COMM_E_INVALID && strstr(comm_last_error(), "not the handle") != NULL);
    CHECK(comm_destroy(comm) == 0);
    CHECK(aclrtResetDevice(rank) == 0 && aclFinalize() == 0);
    printf("rank %d of %d: ok\n", rank, nranks);
    return 0;
}
