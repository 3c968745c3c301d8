/* Every wrong use of the library, in C11: program PATH. Nothing crashes, and every error has a text. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <string.h>

#include "check.h"
#include "comm_context.h"

/* The call fails with this code and a text that contains this. */
#define REFUSED(call, code, text)                      \
    do {                                               \
        CHECK((call) == (code));                       \
        CHECK(strstr(comm_last_error(), text) != NULL); \
    } while (0)
#define NO_HANDLE(call, text)                          \
    do {                                               \
        CHECK((call) == NULL);                         \
        CHECK(strstr(comm_last_error(), text) != NULL); \
    } while (0)

static CommHandle comm;

/* Uses the communicator from one of many threads; each thread has its own last error. */
static void *use(void *argument) {
    const uint64_t number = (uint64_t)(uintptr_t)argument;
    const uint32_t me = 0;
    uint64_t context = 0, base = 0;
    CHECK(strcmp(comm_last_error(), "") == 0);
    for (uint64_t round = 0; round < 20; ++round) {
        CHECK(comm_alloc_domain_windows(comm, number, &me, 1, 0, 64, &context, &base) == 0);
        CHECK(*(const uint64_t *)(uintptr_t)base == 0);
        *(uint64_t *)(uintptr_t)base = number;
        CHECK(comm_derive_context(comm, &me, 1, 0, 0, 64, &context) == 0);
        CHECK(comm_barrier(comm) == 0);
        REFUSED(comm_release_domain_windows(comm, 1000 + number, 1, 0), COMM_E_INVALID, "comm_release");
        CHECK(*(const uint64_t *)(uintptr_t)base == number);
        CHECK(comm_release_domain_windows(comm, number, 1, 0) == 0);
    }
    return NULL;
}

static void without_communicator(const char *path) {
    CHECK(strcmp(comm_last_error(), "") == 0);
    NO_HANDLE(comm_init(0, 1, NULL, NULL), "NULL");
    NO_HANDLE(comm_init(0, 1, NULL, ""), "empty");
    NO_HANDLE(comm_init(0, 1, NULL, "/"), "names no file");
    NO_HANDLE(comm_init(0, 1, NULL, "/no/such/folder/x"), "folder");
    NO_HANDLE(comm_init(1, 1, NULL, path), "rank is 1 in a group of 1; pass 0 to 0");
    NO_HANDLE(comm_init(-1, 1, NULL, path), "rank is -1");
    NO_HANDLE(comm_init(0, 0, NULL, path), "nranks is 0");
    NO_HANDLE(comm_init(0, -4, NULL, path), "nranks is -4");
    NO_HANDLE(comm_init(0, 65, NULL, path), "nranks is 65; a group has 1 to 64 ranks");
    NO_HANDLE(comm_init(0, 0x7fffffff, NULL, path), "nranks is");
    CommHandle unknown[] = {NULL, (CommHandle)(uintptr_t)1, (CommHandle)(void *)&unknown, (CommHandle)(uintptr_t)-1};
    uint64_t out = 0, other = 0;
    size_t size = 0;
    const uint32_t me = 0;
    for (size_t at = 0; at < sizeof unknown / sizeof *unknown; ++at) {
        CommHandle who = unknown[at];
        const char *text = at == 0 ? "handle is NULL; pass the address of a live object" : "not the handle of a live communicator";
        REFUSED(comm_alloc_windows(who, 64, &out), COMM_E_INVALID, text);
        REFUSED(comm_get_local_window_base(who, &out), COMM_E_INVALID, text);
        REFUSED(comm_get_window_size(who, &size), COMM_E_INVALID, text);
        REFUSED(comm_derive_context(who, &me, 1, 0, 0, 64, &out), COMM_E_INVALID, text);
        REFUSED(comm_alloc_domain_windows(who, 1, &me, 1, 0, 64, &out, &other), COMM_E_INVALID, text);
        REFUSED(comm_release_domain_windows(who, 1, 1, 0), COMM_E_INVALID, text);
        REFUSED(comm_barrier(who), COMM_E_INVALID, text);
        REFUSED(comm_destroy(who), COMM_E_INVALID, text);
    }
    CHECK(out == 0 && other == 0 && size == 0);
}

static void wrong_arguments(void) {
    uint64_t out = 7, other = 7;
    size_t size = 7;
    const uint32_t me = 0, nine = 9, twice[2] = {0, 0};
    REFUSED(comm_get_local_window_base(comm, &out), COMM_E_INVALID, "alloc_windows");
    REFUSED(comm_derive_context(comm, &me, 1, 0, 0, 64, &out), COMM_E_INVALID, "alloc_windows");
    REFUSED(comm_alloc_windows(comm, 64, NULL), COMM_E_INVALID, "device_ctx_out is NULL; pass the address of a live object");
    REFUSED(comm_alloc_windows(comm, 0, &out), COMM_E_INVALID, "0 bytes");
    REFUSED(comm_alloc_windows(comm, (size_t)-1, &out), COMM_E_INVALID, "at most");
    CHECK(out == 7);
    CHECK(comm_alloc_windows(comm, 64, &out) == 0);
    REFUSED(comm_alloc_windows(comm, 64, &out), COMM_E_INVALID, "comm_alloc_windows: ");
    REFUSED(comm_get_local_window_base(comm, NULL), COMM_E_INVALID, "base_out is NULL");
    REFUSED(comm_get_window_size(comm, NULL), COMM_E_INVALID, "size_out is NULL");
    CHECK(comm_get_window_size(comm, &size) == 0 && size >= 64);

    REFUSED(comm_derive_context(comm, NULL, 1, 0, 0, 64, &out), COMM_E_INVALID, "rank_ids is NULL");
    REFUSED(comm_derive_context(comm, &me, 0, 0, 0, 64, &out), COMM_E_INVALID, "empty");
    REFUSED(comm_derive_context(comm, &me, (size_t)-1, 0, 0, 64, &out), COMM_E_INVALID, "ranks");
    REFUSED(comm_derive_context(comm, &nine, 1, 0, 0, 64, &out), COMM_E_INVALID, "rank 9");
    REFUSED(comm_derive_context(comm, &me, 1, 1, 0, 64, &out), COMM_E_INVALID, "domain_rank is 1");
    REFUSED(comm_derive_context(comm, &me, 1, 0, size, 1, &out), COMM_E_INVALID, "slice");
    REFUSED(comm_derive_context(comm, &me, 1, 0, (size_t)-8, 16, &out), COMM_E_INVALID, "slice");
    REFUSED(comm_derive_context(comm, &me, 1, 0, 0, 64, NULL), COMM_E_INVALID, "device_ctx_out is NULL");

    REFUSED(comm_alloc_domain_windows(comm, 1, NULL, 1, 0, 64, &out, &other), COMM_E_INVALID, "rank_ids");
    REFUSED(comm_alloc_domain_windows(comm, 1, &me, 1, 0, 64, NULL, &other), COMM_E_INVALID, "device_ctx_out");
    REFUSED(comm_alloc_domain_windows(comm, 1, &me, 1, 0, 64, &out, NULL), COMM_E_INVALID, "local_window_base_out");
    REFUSED(comm_alloc_domain_windows(comm, 1, &me, 1, 0, 0, &out, &other), COMM_E_INVALID, "0 bytes");
    REFUSED(comm_alloc_domain_windows(comm, 1, twice, 2, 0, 64, &out, &other), COMM_E_INVALID, "ranks");
    CHECK(other == 7);
    REFUSED(comm_release_domain_windows(comm, 5, 1, 0), COMM_E_INVALID, "0x5");
    REFUSED(comm_release_domain_windows(comm, 5, 0, 0), COMM_E_INVALID, "empty");
    REFUSED(comm_release_domain_windows(comm, 5, 2, 0), COMM_E_INVALID, "2 ranks");
    REFUSED(comm_release_domain_windows(comm, 5, 1, 1), COMM_E_INVALID, "domain_rank is 1");
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    without_communicator(argv[1]);
    comm = comm_init(0, 1, NULL, argv[1]);
    CHECK(comm != NULL);
    wrong_arguments();
    pthread_t threads[100];
    for (uintptr_t at = 0; at < 100; ++at) {
        CHECK(pthread_create(&threads[at], NULL, use, (void *)at) == 0);
    }
    for (size_t at = 0; at < 100; ++at) {
        CHECK(pthread_join(threads[at], NULL) == 0);
    }
    /* Handles are not reused: the old one stays invalid beside the new one. */
    CommHandle old = comm;
    CHECK(comm_destroy(comm) == 0);
    comm = comm_init(0, 1, NULL, argv[1]);
    CHECK(comm != NULL && comm != old);
    REFUSED(comm_barrier(old), COMM_E_INVALID, "not the handle of a live communicator");
    REFUSED(comm_destroy(old), COMM_E_INVALID,
            "is not the handle of a live communicator; pass what comm_init returned, before comm_destroy");
    CHECK(comm_barrier(comm) == 0 && comm_destroy(comm) == 0);
    REFUSED(comm_destroy(comm), COMM_E_INVALID, "comm_destroy: ");

    setenv("CHIPCOMM_TIMEOUT_S", "soon", 1);
    NO_HANDLE(comm_init(0, 1, NULL, argv[1]), "CHIPCOMM_TIMEOUT_S is \"soon\"");
    puts("ok");
    return 0;
}
