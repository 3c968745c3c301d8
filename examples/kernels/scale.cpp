/*
 * output = factor * input: a kernel that needs no other chip.
 *
 * Tensors: input, output, of one length. Scalar: the factor, a whole number.
 */
#include "comm_kernel.h"

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) {
    const auto input = comm_tensor<const float>(args[0]);
    const auto output = comm_tensor<float>(args[1]);
    const auto factor = static_cast<float>(args[2]);
    for (size_t i = 0; i < output.count; ++i) {
        output.data[i] = factor * input.data[i];
    }
    comm_flush(output.data, output.count);
}
