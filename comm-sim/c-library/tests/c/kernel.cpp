// A kernel as users write them: a shared object that sees the headers only. Adds every rank's number to every rank's sum.
#include "comm_kernel.h"

struct Exchange {
    uint32_t arrived;
    uint32_t reserved[15];
    uint32_t number[COMM_MAX_RANK_NUM];
    uint32_t sum;
};

// args: the context and this rank's number, both as scalars.
extern "C" void kernel_entry(int64_t *args) {
    const auto *ctx = reinterpret_cast<const CommContext *>(args[0]);
    auto *exchange = reinterpret_cast<Exchange *>(ctx->windowsIn[ctx->rankId]);
    for (uint32_t peer = 0; peer < ctx->rankNum; ++peer) {
        *CommRemotePtr(ctx, &exchange->number[ctx->rankId], static_cast<int>(peer)) = static_cast<uint32_t>(args[1]);
        comm_notify(ctx, CommRemotePtr(ctx, &exchange->arrived, static_cast<int>(peer)), 1u);
    }
    if (comm_wait(ctx, &exchange->arrived, ctx->rankNum)) {
        for (uint32_t peer = 0; peer < ctx->rankNum; ++peer) {
            exchange->sum += exchange->number[peer];
        }
    }
}
