/*
 * Rank d gets chunk d of the sum of all ranks' inputs.
 *
 * Tensors: input, output of its length divided by rankNum. Scalars: the window's data (two halves of the
 * input's length, which alternate as in allreduce.cpp), the window's signals (a CommPhaseBarrier), the
 * CommContext.
 */
#include "sum_ranks.h"

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
    sum_ranks(ctx, output.data, half + ctx->rankId * output.count, output.count);
}
