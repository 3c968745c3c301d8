/*
 * Every rank gets the sum of all ranks' inputs. Tensors: input, output, of one length.
 *
 * Scalars: the memory of a group (comm_collectives.h) in the window, signals that this kernel does not use, the
 * CommContext.
 */
#include "comm_collectives.h"

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) {
    const auto input = comm_tensor<const float>(args[0]);
    const auto output = comm_tensor<float>(args[1]);
    const auto *ctx = comm_pointer<const CommContext>(args[4]);
    CommGroup group(args, ctx, comm_pointer<void>(args[2]), comm_group_bytes(ctx->rankNum));
    /* False when the run is aborted: the task has failed then, and there is nothing left to do. */
    (void)!comm_all_reduce(group, input.data, output.data, output.count, CommOp::Sum);
}
