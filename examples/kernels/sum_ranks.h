/* The sum of all ranks' copies of a span of the window, shared by the kernels that reduce. */
#ifndef CHIPCOMM_EXAMPLES_SUM_RANKS_H
#define CHIPCOMM_EXAMPLES_SUM_RANKS_H

#include "comm_kernel.h"

/* out[i] = the sum of mine[i] over all ranks, in rank order, so that all ranks round in the same way. */
COMM_DEVICE inline void sum_ranks(COMM_GM const CommContext *ctx, COMM_GM float *out, COMM_GM float *mine,
                                  size_t count) {
    /* A block of the output stays in the first-level cache while the ranks are added to it. */
    constexpr size_t kBlock = 4096;
    for (size_t start = 0; start < count; start += kBlock) {
        const size_t length = count - start < kBlock ? count - start : kBlock;
        comm_copy(out + start, CommRemotePtr(ctx, mine, 0) + start, length);
        for (uint32_t rank = 1; rank < ctx->rankNum; ++rank) {
            comm_add(out + start, CommRemotePtr(ctx, mine, static_cast<int>(rank)) + start, length);
        }
    }
}

#endif
