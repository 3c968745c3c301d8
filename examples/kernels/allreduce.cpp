/*
 * Every rank gets the sum of all ranks' inputs.
 *
 * Tensors: input, output, of one length. Scalars: the window's data (two halves of that length), the window's
 * signals (a CommPhaseBarrier), the CommContext.
 *
 * The halves alternate. A rank that is one round ahead writes into the half that is no longer read, so one
 * barrier per round is enough: to get two rounds ahead it would have to pass a barrier that the slowest
 * reader has not reached.
 */
#include "sum_ranks.h"

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) {
    const auto input = comm_tensor<const float>(args[0]);
    const auto output = comm_tensor<float>(args[1]);
    auto *data = comm_pointer<float>(args[2]);
    auto *signals = comm_pointer<CommPhaseBarrier>(args[3]);
    const auto *ctx = comm_pointer<const CommContext>(args[4]);

    auto *half = data + comm_phase(ctx, signals) % 2 * output.count;
    comm_copy(half, input.data, output.count);
    if (!comm_phase_barrier(ctx, signals)) {
        return;
    }
    sum_ranks(ctx, output.data, half, output.count);
}
