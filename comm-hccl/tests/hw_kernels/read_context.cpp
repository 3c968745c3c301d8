/*
 * What a core finds in a CommContext: every byte of it and of its tail, and the fields by their names.
 *
 * Scalars: the context; where its bytes go; where the fields go, as words of 64 bits, in the order of the header.
 */
#include "comm_kernel.h"

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) {
    const auto *ctx = comm_pointer<const CommContext>(args[0]);
    const auto *tail = comm_pointer<const CommContextTail>(args[0] + static_cast<int64_t>(sizeof(CommContext)));
    constexpr size_t kWords = (sizeof(CommContext) + sizeof(CommContextTail)) / sizeof(uint64_t);
    comm_copy(comm_pointer<uint64_t>(args[1]), comm_pointer<const uint64_t>(args[0]), kWords);
    auto *fields = comm_pointer<uint64_t>(args[2]);
    size_t next = 0;
    fields[next++] = sizeof(CommContext);
    fields[next++] = ctx->workSpace;
    fields[next++] = ctx->workSpaceSize;
    fields[next++] = ctx->rankId;
    fields[next++] = ctx->rankNum;
    fields[next++] = ctx->winSize;
    for (size_t rank = 0; rank < COMM_MAX_RANK_NUM; ++rank) {
        fields[next++] = ctx->windowsIn[rank];
    }
    for (size_t rank = 0; rank < COMM_MAX_RANK_NUM; ++rank) {
        fields[next++] = ctx->windowsOut[rank];
    }
    fields[next++] = tail->magic;
    fields[next++] = tail->abort;
    fields[next++] = tail->generation;
    comm_flush(fields, next);
}
