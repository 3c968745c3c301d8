/* Prints every size, alignment, offset and constant of the headers; compiled as C11 and as C++17. */
#include <stdio.h>

#include "comm.h"
#include "comm_context.h"
#include "kernel_context.h"
#include "tensor.h"

#ifdef __cplusplus
#define ALIGN(type) alignof(type)
#else
#define ALIGN(type) _Alignof(type)
#endif
#define TYPE(type) printf("%s %zu %zu\n", #type, sizeof(type), (size_t)ALIGN(type))
#define FIELD(type, field) \
    printf("%s.%s %zu %zu\n", #type, #field, offsetof(type, field), sizeof(((type *)0)->field))
#define VALUE(name) printf("%s %d 0\n", #name, (int)(name))

int main(void) {
    TYPE(CommContext);
    FIELD(CommContext, workSpace);
    FIELD(CommContext, workSpaceSize);
    FIELD(CommContext, rankId);
    FIELD(CommContext, rankNum);
    FIELD(CommContext, winSize);
    FIELD(CommContext, windowsIn);
    FIELD(CommContext, windowsOut);
    TYPE(CommContextTail);
    FIELD(CommContextTail, magic);
    FIELD(CommContextTail, abort);
    FIELD(CommContextTail, generation);
    FIELD(CommContextTail, wait);
    FIELD(CommContextTail, cores);
    TYPE(CommWait);
    FIELD(CommWait, word);
    FIELD(CommWait, wanted);
    FIELD(CommWait, seen);
    FIELD(CommWait, writer);
    printf("COMM_CONTEXT_TAIL_MAGIC %zu 0\n", (size_t)COMM_CONTEXT_TAIL_MAGIC);
    printf("KERNEL_FAILURE_TEXT_MAGIC %zu 0\n", (size_t)KERNEL_FAILURE_TEXT_MAGIC);
    TYPE(CompletionEntry);
    FIELD(CompletionEntry, address);
    FIELD(CompletionEntry, cookie);
    FIELD(CompletionEntry, expected);
    FIELD(CompletionEntry, engine);
    FIELD(CompletionEntry, type);
    FIELD(CompletionEntry, reserved);
    TYPE(CompletionSlab);
    FIELD(CompletionSlab, count);
    FIELD(CompletionSlab, error);
    FIELD(CompletionSlab, entries);
    FIELD(CompletionSlab, reserved);
    TYPE(LocalContext);
    FIELD(LocalContext, block_idx);
    FIELD(LocalContext, block_num);
    FIELD(LocalContext, completion_count);
    FIELD(LocalContext, completion_error);
    FIELD(LocalContext, completion_entries);
    FIELD(LocalContext, completion_capacity);
    FIELD(LocalContext, reserved);
    FIELD(LocalContext, task);
    TYPE(GlobalContext);
    FIELD(GlobalContext, sub_block_id);
    FIELD(GlobalContext, reserved);
    FIELD(GlobalContext, words);
    TYPE(TensorDesc);
    FIELD(TensorDesc, addr);
    FIELD(TensorDesc, size);
    FIELD(TensorDesc, owner_task_id);
    FIELD(TensorDesc, start_offset);
    FIELD(TensorDesc, version);
    FIELD(TensorDesc, ndims);
    FIELD(TensorDesc, dtype);
    FIELD(TensorDesc, manual_dep);
    FIELD(TensorDesc, is_contiguous);
    FIELD(TensorDesc, address_space);
    FIELD(TensorDesc, shapes);
    FIELD(TensorDesc, extent);
    FIELD(TensorDesc, strides);
    FIELD(TensorDesc, reserved);
    VALUE(COMM_MAX_RANK_NUM);
    VALUE(TENSOR_MAX_DIMS);
    VALUE(KERNEL_LOCAL_CONTEXT_ARG);
    VALUE(KERNEL_GLOBAL_CONTEXT_ARG);
    VALUE(KERNEL_ARGS);
    VALUE(KERNEL_ARGS_STRIDE);
    VALUE(KERNEL_COMPLETIONS);
    VALUE(TENSOR_FLOAT32);
    VALUE(TENSOR_FLOAT16);
    VALUE(TENSOR_INT32);
    VALUE(TENSOR_INT16);
    VALUE(TENSOR_INT8);
    VALUE(TENSOR_UINT8);
    VALUE(TENSOR_BFLOAT16);
    VALUE(TENSOR_INT64);
    VALUE(TENSOR_UINT64);
    VALUE(TENSOR_UINT16);
    VALUE(TENSOR_UINT32);
    VALUE(TENSOR_BOOL);
    VALUE(TENSOR_FP8E4M3FN);
    VALUE(TENSOR_FP8E8M0);
    VALUE(TENSOR_FP4E2M1);
    VALUE(COMM_SUCCESS);
    VALUE(COMM_E_INVALID);
    VALUE(COMM_E_TIMED_OUT);
    VALUE(COMM_E_PEER_DIED);
    VALUE(COMM_E_PEER_LEFT);
    VALUE(COMM_E_ABORTED);
    VALUE(COMM_E_OUT_OF_MEMORY);
    VALUE(COMM_E_SYSTEM);
    VALUE(COMM_E_VENDOR);
    VALUE(COMM_E_MISMATCH);
    VALUE(COMM_E_PROTOCOL);
    VALUE(COMM_E_CLOSED);
    VALUE(COMM_E_INTERNAL);
    VALUE(COMM_E_PEER_FAILED);
    return 0;
}
