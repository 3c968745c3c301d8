/*
 * Asks that its task is not complete before a word is 1: the first of the tensor.
 *
 * Tensor: floats.
 */
#include "comm_kernel.h"
#include "kernel_context.h"

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) {
    const auto *local = comm_pointer<COMM_GM const LocalContext>(args[KERNEL_LOCAL_CONTEXT_ARG]);
    auto *count = comm_pointer<COMM_GM uint32_t>(static_cast<int64_t>(local->completion_count));
    auto *entry = comm_pointer<COMM_GM CompletionEntry>(static_cast<int64_t>(local->completion_entries));
    const auto word = reinterpret_cast<uint64_t>(comm_tensor<float>(args[0]).data);
    *entry = CompletionEntry{word, 0, 1, 0, 0, 0};
    *count = 1;
    comm_flush(entry, 1);
    comm_flush(count, 1);
}
