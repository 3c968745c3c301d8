/*
 * Sets an error in the slab of its task: the scalar.
 *
 * Tensor: floats, which it does not touch. Scalar: the error.
 */
#include "comm_kernel.h"
#include "kernel_context.h"

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) {
    const auto *local = comm_pointer<COMM_GM const LocalContext>(args[KERNEL_LOCAL_CONTEXT_ARG]);
    auto *error = comm_pointer<COMM_GM int32_t>(static_cast<int64_t>(local->completion_error));
    *error = static_cast<int32_t>(args[1]);
    comm_flush(error, 1);
}
