// A kernel as users have them: a shared object that knows the headers only. Adds every rank's number into every rank's sum.
#include "comm_kernel.h"

struct Board {
    uint32_t arrived;
    uint32_t reserved[15];
    uint32_t number[COMM_MAX_RANK_NUM];
    uint32_t sum;
};

// args: the context and this rank's number, both as scalars.
extern "C" void kernel_entry(int64_t *args) {
    const auto *ctx = reinterpret_cast<const CommContext *>(args[0]);
    auto *board = reinterpret_cast<Board *>(ctx->windowsIn[ctx->rankId]);
    for (uint32_t peer = 0; peer < ctx->rankNum; ++peer) {
        *CommRemotePtr(ctx, &board->number[ctx->rankId], static_cast<int>(peer)) = static_cast<uint32_t>(args[1]);
        comm_notify(ctx, CommRemotePtr(ctx, &board->arrived, static_cast<int>(peer)), 1u);
    }
    if (comm_wait(ctx, &board->arrived, ctx->rankNum)) {
        for (uint32_t peer = 0; peer < ctx->rankNum; ++peer) {
            board->sum += board->number[peer];
        }
    }
}
