/*
 * Adds: the third tensor is the sum of the first two.
 *
 * Tensors: floats to read, floats to read, floats to write.
 */
#include "comm_kernel.h"

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) {
    const auto a = comm_tensor<float>(args[0]);
    const auto b = comm_tensor<float>(args[1]);
    const auto to = comm_tensor<float>(args[2]);
    for (size_t i = 0; i < to.count; ++i) {
        to.data[i] = a.data[i] + b.data[i];
    }
    comm_flush(to.data, to.count);
}
