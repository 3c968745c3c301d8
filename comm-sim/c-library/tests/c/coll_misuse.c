/* Every wrong use of comm_coll.h by one rank, in C11: program PATH. Nothing crashes, and every error has a text. */
#include <pthread.h>
#include <string.h>

#include "check.h"
#include "comm_coll.h"

#define REFUSED(call, code, text)                      \
    do {                                               \
        CHECK((call) == (code));                       \
        CHECK(strstr(comm_last_error(), text) != NULL); \
    } while (0)

static CommHandle comm;
static CommColl coll;
static float in[64], out[64];
static const size_t counts[1] = {4};

/* Every call on a handle that is none. */
static void every_call(CommColl who, const char *text) {
    int number = 7;
    CommCollRequest request = 7;
    CommColl part = NULL;
    REFUSED(comm_coll_split(who, 0, 0, &part), COMM_E_INVALID, text);
    REFUSED(comm_coll_destroy(who), COMM_E_INVALID, text);
    REFUSED(comm_coll_rank(who, &number), COMM_E_INVALID, text);
    REFUSED(comm_coll_size(who, &number), COMM_E_INVALID, text);
    CHECK(comm_coll_alloc(who, 8) == NULL && strstr(comm_last_error(), text) != NULL);
    REFUSED(comm_coll_free(who, NULL), COMM_E_INVALID, text);
    REFUSED(comm_coll_wait(who, 1), COMM_E_INVALID, text);
    REFUSED(comm_coll_test(who, 1, &number), COMM_E_INVALID, text);
#define BOTH(name, ...)                                                                  \
    REFUSED(comm_coll_##name(who, __VA_ARGS__), COMM_E_INVALID, text);                   \
    REFUSED(comm_coll_start_##name(who, __VA_ARGS__, &request), COMM_E_INVALID, text)
    REFUSED(comm_coll_barrier(who), COMM_E_INVALID, text);
    REFUSED(comm_coll_start_barrier(who, &request), COMM_E_INVALID, text);
    BOTH(all_reduce, in, out, 4, TENSOR_FLOAT32, COMM_COLL_SUM);
    BOTH(all_gather, in, out, 4, TENSOR_FLOAT32);
    BOTH(all_gather_v, in, out, counts, TENSOR_FLOAT32);
    BOTH(reduce_scatter, in, out, 4, TENSOR_FLOAT32, COMM_COLL_SUM);
    BOTH(reduce_scatter_v, in, out, counts, TENSOR_FLOAT32, COMM_COLL_SUM);
    BOTH(broadcast, out, 4, TENSOR_FLOAT32, 0);
    BOTH(reduce, in, out, 4, TENSOR_FLOAT32, COMM_COLL_SUM, 0);
    BOTH(all_to_all, in, out, 4, TENSOR_FLOAT32);
    BOTH(all_to_all_v, in, counts, out, counts, TENSOR_FLOAT32);
    BOTH(gather, in, out, 4, TENSOR_FLOAT32, 0);
    BOTH(scatter, in, out, 4, TENSOR_FLOAT32, 0);
    BOTH(send, in, 4, TENSOR_FLOAT32, 0, 0);
    BOTH(recv, out, 4, TENSOR_FLOAT32, 0, 0);
    CHECK(number == 7 && request == 7 && part == NULL);
}

static void wrong_arguments(void) {
    const size_t huge = (size_t)-1 / 2;
    CommCollRequest request = 7;
    REFUSED(comm_coll_all_reduce(coll, in, out, 4, 11, COMM_COLL_SUM), COMM_E_INVALID, "dtype is 11; pass a TensorDType, COMM_COLL_FLOAT64 or COMM_COLL_BOOL");
    REFUSED(comm_coll_all_reduce(coll, in, out, 4, -1, COMM_COLL_SUM), COMM_E_INVALID, "dtype is -1");
    REFUSED(comm_coll_all_reduce(coll, in, out, 4, 256, COMM_COLL_SUM), COMM_E_INVALID, "dtype is 256");
    REFUSED(comm_coll_all_reduce(coll, in, out, 4, TENSOR_FLOAT32, 11), COMM_E_INVALID, "op is 11; pass a CommCollOp");
    REFUSED(comm_coll_all_reduce(coll, in, out, 4, TENSOR_FLOAT32, -1), COMM_E_INVALID, "op is -1");
    REFUSED(comm_coll_all_reduce(coll, in, out, 4, TENSOR_INT32, COMM_COLL_AVG), COMM_E_INVALID, "avg");
    REFUSED(comm_coll_all_reduce(coll, in, out, 4, TENSOR_FLOAT32, COMM_COLL_BIT_OR), COMM_E_INVALID, "bitwise");
    REFUSED(comm_coll_all_reduce(coll, in, out, huge, TENSOR_FLOAT32, COMM_COLL_SUM), COMM_E_INVALID, "bytes");
    const size_t too_many[1] = {huge};
    REFUSED(comm_coll_all_gather(coll, in, out, huge, TENSOR_FLOAT32), COMM_E_INVALID, "bytes");
    REFUSED(comm_coll_all_gather_v(coll, in, out, too_many, TENSOR_FLOAT32), COMM_E_INVALID, "bytes");
    REFUSED(comm_coll_start_broadcast(coll, out, huge, TENSOR_FLOAT32, 0, &request), COMM_E_INVALID, "bytes");
    REFUSED(comm_coll_all_reduce(coll, NULL, out, 4, TENSOR_FLOAT32, COMM_COLL_SUM), COMM_E_INVALID, "input is null");
    REFUSED(comm_coll_all_reduce(coll, in, NULL, 4, TENSOR_FLOAT32, COMM_COLL_SUM), COMM_E_INVALID, "output is null");
    REFUSED(comm_coll_all_reduce(coll, in, in + 1, 4, TENSOR_FLOAT32, COMM_COLL_SUM), COMM_E_INVALID, "overlap");
    REFUSED(comm_coll_reduce_scatter(coll, in, in + 1, 4, TENSOR_FLOAT32, COMM_COLL_SUM), COMM_E_INVALID, "overlap");
    REFUSED(comm_coll_reduce_scatter_v(coll, in, in + 1, (size_t[]){4}, TENSOR_FLOAT32, COMM_COLL_SUM), COMM_E_INVALID, "overlap");
    REFUSED(comm_coll_all_to_all(coll, in, in, 4, TENSOR_FLOAT32), COMM_E_INVALID, "overlap");
    REFUSED(comm_coll_broadcast(coll, out, 4, TENSOR_FLOAT32, 1), COMM_E_INVALID, "root is 1");
    REFUSED(comm_coll_broadcast(coll, out, 4, TENSOR_FLOAT32, -1), COMM_E_INVALID, "root is -1");
    REFUSED(comm_coll_reduce(coll, in, NULL, 4, TENSOR_FLOAT32, COMM_COLL_SUM, 0), COMM_E_INVALID, "output is null");
    REFUSED(comm_coll_all_gather_v(coll, in, out, NULL, TENSOR_FLOAT32), COMM_E_INVALID, "counts is null");
    REFUSED(comm_coll_all_to_all_v(coll, in, counts, out, NULL, TENSOR_FLOAT32), COMM_E_INVALID, "counts is null");
    REFUSED(comm_coll_send(coll, in, 4, TENSOR_FLOAT32, 0, 1), COMM_E_INVALID, "rank 0");
    REFUSED(comm_coll_recv(coll, out, 4, TENSOR_FLOAT32, 5, 1), COMM_E_INVALID, "from is 5; pass a rank of the group, 0 to 0");
    REFUSED(comm_coll_start_barrier(coll, NULL), COMM_E_INVALID, "request_out is NULL");
    REFUSED(comm_coll_start_send(coll, in, 1, TENSOR_FLOAT32, 0, 1, NULL), COMM_E_INVALID, "request_out is NULL");
    REFUSED(comm_coll_wait(coll, 0), COMM_E_INVALID, "0 is not a call of this group that was started and is not over; pass what a comm_coll_start call gave, once");
    REFUSED(comm_coll_wait(coll, 99), COMM_E_INVALID, "99 is not a call");
    REFUSED(comm_coll_test(coll, 99, NULL), COMM_E_INVALID, "done_out is NULL");
    REFUSED(comm_coll_split(coll, -2, 0, &coll), COMM_E_INVALID, "color is -2; pass 0 or more, or -1 for no group");
    REFUSED(comm_coll_split(coll, 0, 0, NULL), COMM_E_INVALID, "coll_out is NULL");
    REFUSED(comm_coll_rank(coll, NULL), COMM_E_INVALID, "rank_out is NULL");
    REFUSED(comm_coll_size(coll, NULL), COMM_E_INVALID, "size_out is NULL");
    REFUSED(comm_coll_free(coll, in), COMM_E_INVALID, "pool");
    char *memory = comm_coll_alloc(coll, 64);
    CHECK(memory != NULL);
    REFUSED(comm_coll_free(coll, memory + 8), COMM_E_INVALID, "pool");
    CHECK(comm_coll_free(coll, memory) == 0);
    REFUSED(comm_coll_free(coll, memory), COMM_E_INVALID, "pool");
    CHECK(comm_coll_alloc(coll, huge) == NULL && strstr(comm_last_error(), "pool") != NULL);
    CHECK(request == 7);
}

static void wrong_groups(void) {
    const uint32_t me = 0, nine = 9, twice[2] = {0, 0};
    CommCollOptions options = COMM_COLL_OPTIONS;
#define NO_GROUP(call, text) CHECK((call) == NULL && strstr(comm_last_error(), text) != NULL)
    NO_GROUP(comm_coll_create(NULL), "handle is NULL");
    NO_GROUP(comm_coll_create((CommHandle)(void *)coll), "not the handle of a live communicator");
    NO_GROUP(comm_coll_create_over(comm, NULL, 1, NULL), "rank_ids is NULL");
    NO_GROUP(comm_coll_create_over(comm, &me, 0, NULL), "empty");
    NO_GROUP(comm_coll_create_over(comm, &me, 65, NULL), "65");
    NO_GROUP(comm_coll_create_over(comm, &nine, 1, NULL), "[9]");
    NO_GROUP(comm_coll_create_over(comm, twice, 2, NULL), "the list names 2 ranks");
    options.size = 8;
    NO_GROUP(comm_coll_create_over(comm, &me, 1, &options), "options->size is 8; start from COMM_COLL_OPTIONS of the header that belongs to this library");
    options.size = sizeof options;
    options.flags = 6;
    NO_GROUP(comm_coll_create_over(comm, &me, 1, &options), "options->flags is 6");
    options.flags = 0;
    options.pool_bytes = UINT64_MAX;
    NO_GROUP(comm_coll_create_over(comm, &me, 1, &options), "pool");
    options.pool_bytes = 0;
    options.timeout_ms = UINT64_MAX;
    NO_GROUP(comm_coll_create_over(comm, &me, 1, &options), "time limit");
    options.timeout_ms = 1000;
    CommColl small = comm_coll_create_over(comm, NULL, 0, &options);
    CHECK(small != NULL && comm_coll_alloc(small, 1) == NULL && comm_coll_destroy(small) == 0);
}

/* As many as a process can have, with the one that is there. */
static void too_many_groups(void) {
    static CommColl more[1023];
    const uint32_t me = 0;
    CommCollOptions options = COMM_COLL_OPTIONS;
    options.pool_bytes = 64;
    for (size_t at = 0; at < sizeof more / sizeof *more; ++at) {
        more[at] = comm_coll_create_over(comm, &me, 1, &options);
        CHECK(more[at] != NULL);
    }
    NO_GROUP(comm_coll_create_over(comm, &me, 1, &options), "this process has 1024 open groups and can have no more; destroy some");
    for (size_t at = 0; at < sizeof more / sizeof *more; ++at) {
        CHECK(comm_coll_destroy(more[at]) == 0);
    }
}

static CommCollRequest request;

/* Another thread may use the group, but not while calls of this one are not over. */
static void *from_another_thread(void *argument) {
    if (argument == NULL) {
        CHECK(comm_coll_all_reduce(coll, in, out, 4, TENSOR_FLOAT32, COMM_COLL_SUM) == 0);
        return NULL;
    }
    const char *text = "1 calls that another thread started on this group are not over; wait for them there, or make the group with COMM_COLL_PROGRESS_THREAD";
    REFUSED(comm_coll_barrier(coll), COMM_E_INVALID, text);
    REFUSED(comm_coll_wait(coll, request), COMM_E_INVALID, text);
    REFUSED(comm_coll_destroy(coll), COMM_E_INVALID, text);
    return NULL;
}

static void *starts_and_ends(void *argument) {
    (void)argument;
    CHECK(comm_coll_start_all_reduce(coll, in, out, 4, TENSOR_FLOAT32, COMM_COLL_SUM, &request) == 0);
    return NULL;
}

static void in_thread(void *(*body)(void *), void *argument) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, argument) == 0 && pthread_join(thread, NULL) == 0);
}

static volatile int stop;

static void *hammers(void *argument) {
    unsigned long *done = argument;
    while (!stop) {
        const int code = comm_coll_all_reduce(coll, in, out, 4, TENSOR_FLOAT32, COMM_COLL_SUM);
        if (code != 0) {
            const char *inside = strstr(comm_last_error(), "another thread is inside a call on the group 0x");
            CHECK(code == COMM_E_INVALID && inside != NULL);
            CHECK(strstr(inside, "; let one thread at a time use a group") != NULL);
        }
        *done += code == 0;
    }
    return NULL;
}

static void *meets(void *argument) {
    (void)argument;
    while (!stop) {
        CHECK(comm_barrier(comm) == 0);
    }
    return NULL;
}

/* A communicator with a group is not destroyed, so that this can be tried until the other thread is met inside a call. */
static void destroyed_inside_a_call(void) {
    pthread_t thread;
    stop = 0;
    CHECK(pthread_create(&thread, NULL, meets, NULL) == 0);
    do {
        CHECK(comm_destroy(comm) == COMM_E_INVALID);
    } while (strstr(comm_last_error(), " groups of collectives over ") != NULL);
    CHECK(strstr(comm_last_error(), "another thread is inside a call on 0x") != NULL);
    CHECK(strstr(comm_last_error(), "; let it return, then destroy") != NULL);
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CommColl unknown[] = {(CommColl)(uintptr_t)1, (CommColl)(void *)&unknown, (CommColl)(uintptr_t)-1,
                          (CommColl)(uintptr_t)0xc011000000000400, (CommColl)(uintptr_t)0xc011800000000400};
    every_call(NULL, "coll is NULL; pass what comm_coll_create returned");
    for (size_t at = 0; at < sizeof unknown / sizeof *unknown; ++at) {
        every_call(unknown[at], " is not the handle of a live group; pass what comm_coll_create returned, before comm_coll_destroy");
    }
    comm = comm_init(0, 1, NULL, argv[1]);
    CHECK(comm != NULL);
    coll = comm_coll_create(comm);
    CHECK(coll != NULL);
    wrong_arguments();
    wrong_groups();
    too_many_groups();
    /* The group is as it was. */
    in[3] = 2.5f;
    CHECK(comm_coll_all_reduce(coll, in, out, 4, TENSOR_FLOAT32, COMM_COLL_SUM) == 0 && out[3] == 2.5f);

    in_thread(from_another_thread, NULL);
    CHECK(comm_coll_start_all_reduce(coll, in, out, 4, TENSOR_FLOAT32, COMM_COLL_SUM, &request) == 0);
    in_thread(from_another_thread, &request);
    CHECK(comm_coll_wait(coll, request) == 0);
    REFUSED(comm_coll_wait(coll, request), COMM_E_INVALID, " is not a call of this group that was started and is not over; pass what a comm_coll_start call gave, once");
    /* A thread that started a call and ended does not lock the group for ever. */
    in_thread(starts_and_ends, NULL);
    CHECK(comm_coll_wait(coll, request) == 0);

    /* Two threads at once: one of them is refused, and nothing is lost. */
    pthread_t threads[2];
    unsigned long done[2] = {0, 0};
    for (size_t at = 0; at < 2; ++at) {
        CHECK(pthread_create(&threads[at], NULL, hammers, &done[at]) == 0);
    }
    for (int round = 0; round < 2000; ++round) {
        int number = -1;
        const int code = comm_coll_rank(coll, &number);
        CHECK(code == 0 ? number == 0 : code == COMM_E_INVALID && number == -1);
    }
    stop = 1;
    for (size_t at = 0; at < 2; ++at) {
        CHECK(pthread_join(threads[at], NULL) == 0);
    }

    /* Handles are not reused. */
    CommColl old = coll;
    CHECK(comm_coll_destroy(coll) == 0);
    coll = comm_coll_create(comm);
    CHECK(coll != NULL && coll != old);
    every_call(old, " is not the handle of a live group; pass what comm_coll_create returned, before comm_coll_destroy");
    destroyed_inside_a_call();
    REFUSED(comm_destroy(comm), COMM_E_INVALID, "are open; call comm_coll_destroy on each, then destroy");
    CHECK(comm_coll_destroy(coll) == 0 && comm_destroy(comm) == 0);
    puts("ok");
    return 0;
}
