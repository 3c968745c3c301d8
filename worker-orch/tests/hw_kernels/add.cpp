/* Tensors: input, output, floats of one length. Scalar: a whole number, which is added. */
#include "comm_kernel.h"

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) {
    const auto input = comm_tensor<const float>(args[0]);
    const auto output = comm_tensor<float>(args[1]);
    for (size_t i = 0; i < output.count; ++i) {
        output.data[i] = input.data[i] + static_cast<float>(args[2]);
    }
    comm_flush(output.data, output.count);
}
