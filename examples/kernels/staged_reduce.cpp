/*
 * The root gets the sum of all ranks' inputs, which are in their windows when the kernel starts, and it alone reads
 * them: no rank waits for another. 256 floats.
 *
 * Scalars: this rank's input and output, in its window; how many ranks there are; the root; the CommContext.
 */
#include "sum_ranks.h"

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) {
    constexpr size_t kCount = 256;
    auto *input = comm_pointer<COMM_GM float>(args[0]);
    auto *output = comm_pointer<COMM_GM float>(args[1]);
    const auto nranks = static_cast<uint32_t>(args[2]);
    const auto root = static_cast<uint32_t>(args[3]);
    const auto *ctx = comm_pointer<COMM_GM const CommContext>(args[4]);
    if (ctx->rankId != root || ctx->rankNum != nranks) {
        return;
    }
    sum_ranks(ctx, output, input, kCount);
    comm_flush(output, kCount);
}
