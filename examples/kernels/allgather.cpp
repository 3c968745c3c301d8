/*
 * Every rank gets all ranks' inputs, one after the other in rank order.
 *
 * Tensors: input, output of rankNum times its length. Scalars: the window's data (two halves of the input's
 * length, which alternate as in allreduce.cpp), the window's signals (a CommPhaseBarrier), the CommContext.
 */
#include "comm_kernel.h"

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) {
    const auto input = comm_tensor<const float>(args[0]);
    const auto output = comm_tensor<float>(args[1]);
    auto *data = comm_pointer<float>(args[2]);
    auto *signals = comm_pointer<CommPhaseBarrier>(args[3]);
    const auto *ctx = comm_pointer<const CommContext>(args[4]);

    auto *half = data + comm_phase(ctx, signals) % 2 * input.count;
    comm_copy(half, input.data, input.count);
    if (!comm_phase_barrier(ctx, signals)) {
        return;
    }
    for (uint32_t rank = 0; rank < ctx->rankNum; ++rank) {
        const auto *theirs = CommRemotePtr(ctx, half, static_cast<int>(rank));
        comm_copy(output.data + rank * input.count, theirs, input.count);
    }
}
