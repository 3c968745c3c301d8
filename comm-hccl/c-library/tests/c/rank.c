/*
 * One rank in C11: program RANK NRANKS PATH. It uses comm.h, comm_context.h and the vendor's functions, and owns the
 * device and the stream; the library owns the communicator.
 */
#include "comm.h"
#include "comm_context.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int aclError;
typedef void *aclrtStream;
typedef enum {
    ACL_MEMCPY_HOST_TO_DEVICE = 1,
    ACL_MEMCPY_DEVICE_TO_HOST = 2,
    ACL_MEMCPY_DEVICE_TO_DEVICE = 3
} aclrtMemcpyKind;
aclError aclInit(const char *config);
aclError aclFinalize(void);
aclError aclrtSetDevice(int32_t device);
aclError aclrtResetDevice(int32_t device);
aclError aclrtCreateStream(aclrtStream *stream);
aclError aclrtDestroyStream(aclrtStream stream);
aclError aclrtSynchronizeStream(aclrtStream stream);
aclError aclrtMemcpy(void *dst, size_t max, const void *src, size_t count, aclrtMemcpyKind kind);

#define CHECK(what)                                                                            \
    do {                                                                                       \
        if (!(what)) {                                                                         \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #what, comm_last_error()); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

static void *device(uint64_t addr) { return (void *)(uintptr_t)addr; }

int main(int argc, char **argv) {
    CHECK(argc == 4);
    int rank = atoi(argv[1]), nranks = atoi(argv[2]);
    const char *path = argv[3];
    /* Refused before anything is touched, the vendor's library included. */
    CHECK(comm_init(rank, nranks, NULL, NULL) == NULL && strstr(comm_last_error(), "rootinfo_path"));
    CHECK(comm_init(nranks, nranks, NULL, path) == NULL);

    aclrtStream stream = NULL;
    CHECK(aclInit(NULL) == 0 && comm_init(rank, nranks, NULL, path) == NULL);
    CHECK(strstr(comm_last_error(), rank == 0 ? "init on rank 0: the device cannot be used" : "init on rank 1: the device cannot be used"));
    CHECK(aclrtSetDevice(rank) == 0 && aclrtCreateStream(&stream) == 0);
    CommHandle comm = comm_init(rank, nranks, stream, path);
    CHECK(comm != NULL);
    uint64_t at = 0, base = 0;
    size_t size = 0;
    CHECK(comm_get_local_window_base(comm, &base) != 0);
    CHECK(comm_alloc_windows(comm, 5000, &at) == 0 && at != 0);
    CHECK(comm_get_local_window_base(comm, &base) == 0 && comm_get_window_size(comm, &size) == 0);
    CHECK(size >= 5000);

    CommContext context;
    CHECK(aclrtMemcpy(&context, sizeof context, device(at), sizeof context, ACL_MEMCPY_DEVICE_TO_HOST) == 0);
    CHECK(context.rankId == (uint32_t)rank && context.rankNum == (uint32_t)nranks);
    CHECK(context.winSize == size && context.windowsIn[rank] == base);
    /* The host cannot reach a peer's window; the device can. */
    uint64_t value = 100 * (uint64_t)rank + 1;
    void *mine = device(base + 1024);
    CHECK(aclrtMemcpy(mine, 8, &value, 8, ACL_MEMCPY_HOST_TO_DEVICE) == 0);
    for (int peer = 0; peer < nranks; peer++) {
        void *to = device(context.windowsIn[peer] + 8 * (uint64_t)rank);
        CHECK(context.windowsIn[peer] != 0);
        CHECK(aclrtMemcpy(to, 8, mine, 8, ACL_MEMCPY_DEVICE_TO_DEVICE) == 0);
    }
    CHECK(comm_barrier(comm) == 0);
    /* 507018 if the barrier had left this thread's context switched. */
    CHECK(aclrtSynchronizeStream(stream) == 0);
    for (int peer = 0; peer < nranks; peer++) {
        uint64_t value = 0;
        CHECK(aclrtMemcpy(&value, 8, device(base + 8 * (uint64_t)peer), 8, ACL_MEMCPY_DEVICE_TO_HOST) == 0);
        CHECK(value == 100 * (uint64_t)peer + 1);
    }
    uint32_t alone = (uint32_t)rank;
    uint64_t view = 0, domain = 0, domain_base = 0;
    CHECK(comm_derive_context(comm, &alone, 1, 0, 64, 64, &view) == 0 && view != 0);
    CHECK(comm_alloc_domain_windows(comm, 7, &alone, 1, 0, 4096, &domain, &domain_base) == 0);
    CHECK(comm_release_domain_windows(comm, 7, 1, 0) == 0);
    CHECK(comm_barrier(comm) == 0);
    CHECK(comm_destroy(comm) == 0);
    CHECK(comm_destroy(comm) != 0);

    CHECK(aclrtDestroyStream(stream) == 0 && aclrtResetDevice(rank) == 0 && aclFinalize() == 0);
    printf("rank %d of %d: ok\n", rank, nranks);
    return 0;
}
