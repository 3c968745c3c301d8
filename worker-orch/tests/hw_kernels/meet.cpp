/*
 * Signals the next rank, and waits for the one before it: ends only when the kernels of all ranks run at once.
 *
 * Tensor: a float in the window, zero at first. Scalar: the CommContext.
 */
#include "comm_kernel.h"

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) {
    auto *mine = comm_tensor<float>(args[0]).data;
    const auto *ctx = comm_pointer<const CommContext>(args[1]);
    auto *next = CommRemotePtr(ctx, mine, static_cast<int>((ctx->rankId + 1) % ctx->rankNum));
    *next = 1.0f;
    comm_flush(next, 1);
    const auto *seen = static_cast<COMM_GM const volatile float *>(mine);
    while (*seen == 0.0f) {
        comm_flush(mine, 1);
    }
}
