/*
 * Multiplies: the second tensor is the first times the scalar. It takes its time, so that a kernel that does not wait for
 * it reads what was there before.
 *
 * Tensors: floats to read, floats to write. Scalar: a whole number.
 */
#include "comm_kernel.h"

#ifndef TURNS
#define TURNS 2000000
#endif

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) {
    const auto from = comm_tensor<float>(args[0]);
    const auto to = comm_tensor<float>(args[1]);
    for (volatile int turn = 0; turn < TURNS; turn = turn + 1) {
    }
    for (size_t i = 0; i < to.count; ++i) {
        to.data[i] = from.data[i] * static_cast<float>(args[2]);
    }
    comm_flush(to.data, to.count);
}
