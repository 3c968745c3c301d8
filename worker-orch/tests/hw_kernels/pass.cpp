/*
 * Writes this rank's number, from 1, into the next rank's window.
 *
 * Scalars: the CommContext; where in the window, as this rank has it.
 */
#include "comm_kernel.h"

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) {
    const auto *ctx = comm_pointer<const CommContext>(args[0]);
    auto *mine = comm_pointer<float>(args[1]);
    auto *next = CommRemotePtr(ctx, mine, static_cast<int>((ctx->rankId + 1) % ctx->rankNum));
    *next = static_cast<float>(ctx->rankId + 1);
    comm_flush(next, 1);
}
