/*
 * Adds to every element: the scalar, times what the contexts of a launch with one block add up to, which is 1.
 *
 * Tensor: floats. Scalar: a whole number.
 */
#include "comm_kernel.h"
#include "kernel_context.h"

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) {
    const auto tensor = comm_tensor<float>(args[0]);
    const auto *local = comm_pointer<const LocalContext>(args[KERNEL_LOCAL_CONTEXT_ARG]);
    const auto *global = comm_pointer<const GlobalContext>(args[KERNEL_GLOBAL_CONTEXT_ARG]);
    const int64_t one = local->block_num + local->block_idx + global->sub_block_id;
    for (size_t i = 0; i < tensor.count; ++i) {
        tensor.data[i] = tensor.data[i] + static_cast<float>(args[1] * one);
    }
    comm_flush(tensor.data, tensor.count);
}
