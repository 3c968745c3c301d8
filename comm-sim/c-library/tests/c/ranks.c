/* One rank of a group, in C11: program RANK NRANKS PATH. Every function of comm.h, in the order of a real program. */
#include <string.h>

#include "check.h"
#include "comm_context.h"

static const CommContext *context_at(uint64_t address) { return (const CommContext *)(uintptr_t)address; }

static unsigned char *bytes_at(uint64_t address) { return (unsigned char *)(uintptr_t)address; }

/* What holds for every context. */
static void check_context(const CommContext *context, uint32_t rank, uint32_t nranks, size_t size) {
    CHECK(context->rankId == rank && context->rankNum == nranks && context->winSize == size);
    CHECK(context->workSpace == 0 && context->workSpaceSize == 0);
    const CommContextTail *tail = (const CommContextTail *)(context + 1);
    CHECK(tail->magic == COMM_CONTEXT_TAIL_MAGIC && *(const uint32_t *)(uintptr_t)tail->abort == 0);
    CHECK(*(const uint32_t *)(uintptr_t)tail->generation == 0);
    for (uint32_t peer = 0; peer < COMM_MAX_RANK_NUM; ++peer) {
        CHECK((context->windowsIn[peer] != 0) == (peer < nranks));
        CHECK(context->windowsOut[peer] == context->windowsIn[peer]);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    const uint32_t rank = (uint32_t)atoi(argv[1]), nranks = (uint32_t)atoi(argv[2]);
    CommHandle comm = comm_init((int)rank, (int)nranks, NULL, argv[3]);
    CHECK(comm != NULL);

    uint64_t address = 0, base = 0;
    size_t size = 0;
    CHECK(comm_alloc_windows(comm, 5000, &address) == COMM_SUCCESS);
    CHECK(comm_get_local_window_base(comm, &base) == COMM_SUCCESS);
    CHECK(comm_get_window_size(comm, &size) == COMM_SUCCESS && size >= 5000);
    const CommContext *context = context_at(address);
    check_context(context, rank, nranks, size);
    CHECK(context->windowsIn[rank] == base);

    /* A window is zero at first; then every rank writes into every window. */
    for (size_t at = 0; at < size; ++at) {
        CHECK(bytes_at(base)[at] == 0);
    }
    CHECK(comm_barrier(comm) == COMM_SUCCESS);
    for (uint32_t peer = 0; peer < nranks; ++peer) {
        bytes_at(context->windowsIn[peer])[rank] = (unsigned char)(1 + rank * 16 + peer);
    }
    CHECK(comm_barrier(comm) == COMM_SUCCESS);
    for (uint32_t peer = 0; peer < nranks; ++peer) {
        CHECK(bytes_at(base)[peer] == 1 + peer * 16 + rank);
    }

    /* The view of a slice, with the ranks in the opposite order. */
    uint32_t reversed[COMM_MAX_RANK_NUM];
    for (uint32_t at = 0; at < nranks; ++at) {
        reversed[at] = nranks - 1 - at;
    }
    uint64_t view = 0;
    CHECK(comm_derive_context(comm, reversed, nranks, nranks - 1 - rank, 1024, 512, &view) == COMM_SUCCESS);
    check_context(context_at(view), nranks - 1 - rank, nranks, 512);
    CHECK(context_at(view)->windowsIn[0] == context->windowsIn[nranks - 1] + 1024);

    /* Domains: one of all ranks, and one of the pair of neighbours that this rank belongs to. */
    const uint32_t first = rank / 2 * 2;
    const uint32_t pair[2] = {first, first + 1};
    uint64_t domain = 0, own = 0, pair_context = 0, pair_own = 0;
    CHECK(comm_alloc_domain_windows(comm, 1, reversed, nranks, nranks - 1 - rank, 64, &domain, &own) == 0);
    CHECK(comm_alloc_domain_windows(comm, 10 + first, pair, 2, rank - first, 64, &pair_context, &pair_own) == 0);
    check_context(context_at(pair_context), rank - first, 2, context_at(pair_context)->winSize);
    bytes_at(context_at(pair_context)->windowsIn[1 - (rank - first)])[0] = (unsigned char)(100 + rank);
    CHECK(comm_barrier(comm) == COMM_SUCCESS);
    CHECK(bytes_at(pair_own)[0] == 100 + (rank ^ 1) && bytes_at(own)[0] == 0);
    CHECK(comm_release_domain_windows(comm, 10 + first, 1, 0) == COMM_E_INVALID);
    CHECK(strstr(comm_last_error(), "rank_count is 1 and domain_rank 0, the domain was allocated with 2 and ") != NULL);
    CHECK(strstr(comm_last_error(), "; pass the same") != NULL);
    CHECK(comm_release_domain_windows(comm, 10 + first, 2, rank - first) == COMM_SUCCESS);
    CHECK(comm_release_domain_windows(comm, 1, nranks, nranks - 1 - rank) == COMM_SUCCESS);
    CHECK(comm_release_domain_windows(comm, 1, nranks, nranks - 1 - rank) == COMM_E_INVALID);

    CHECK(comm_barrier(comm) == COMM_SUCCESS);
    CHECK(comm_destroy(comm) == COMM_SUCCESS);
    CHECK(comm_destroy(comm) == COMM_E_INVALID && comm_barrier(comm) == COMM_E_INVALID);
    CHECK(strstr(comm_last_error(), "comm_barrier: ") != NULL && strstr(comm_last_error(), "not the handle") != NULL);
    puts("ok");
    return 0;
}
