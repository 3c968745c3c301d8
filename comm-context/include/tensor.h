/*
 * tensor.h: TensorDesc, one tensor as a kernel sees it. C11 and C++17.
 *
 * A kernel is a shared object that exports
 *     extern "C" void kernel_entry(int64_t *args)
 * args holds the address of one TensorDesc for each tensor of the task, in order, then one 64-bit value for
 * each scalar, bit for bit.
 *
 * A tensor is a strided view of a buffer. Element [i0, i1, ...] is at element index
 *     start_offset + i0 * strides[0] + i1 * strides[1] + ...
 * of the buffer. Only the first ndims entries of shapes and strides are used.
 */
#ifndef CHIPCOMM_TENSOR_H
#define CHIPCOMM_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#ifndef COMM_STATIC_ASSERT
#ifdef __cplusplus
#define COMM_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define COMM_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif
#endif

#ifdef __cplusplus
#define COMM_ALIGNED(bytes) alignas(bytes)
static constexpr uint32_t TENSOR_MAX_DIMS = 5;
#else
#define COMM_ALIGNED(bytes) _Alignas(bytes)
enum { TENSOR_MAX_DIMS = 5 };
#endif

/* The owner_task_id of a buffer that no task owns. */
#define TENSOR_NO_OWNER UINT64_MAX

/* The values of TensorDesc.dtype. */
enum TensorDType {
    TENSOR_FLOAT32 = 0,
    TENSOR_FLOAT16 = 1,
    TENSOR_INT32 = 2,
    TENSOR_INT16 = 3,
    TENSOR_INT8 = 4,
    TENSOR_UINT8 = 5,
    TENSOR_BFLOAT16 = 6,
    TENSOR_INT64 = 7,
    TENSOR_UINT64 = 8,
    TENSOR_UINT16 = 9,
    TENSOR_UINT32 = 10,
    TENSOR_BOOL = 11,
    TENSOR_FP8E4M3FN = 12,
    TENSOR_FP8E8M0 = 13,
    TENSOR_FP4E2M1 = 14 /* a byte holds two */
};

typedef struct TensorDesc {
    COMM_ALIGNED(64) uint64_t addr; /* the address of the underlying buffer */
    uint64_t size;                  /* the size of the buffer in bytes */
    uint64_t owner_task_id;         /* the task that owns the buffer, or TENSOR_NO_OWNER */
    uint64_t start_offset;          /* the first element of the view, in elements */
    int32_t version;                /* the version of the buffer's contents */
    uint32_t ndims;                 /* the number of dimensions, at most TENSOR_MAX_DIMS */
    uint8_t dtype;                  /* a TensorDType */
    uint8_t manual_dep;             /* 1: dependencies are declared, not derived */
    uint8_t is_contiguous;          /* 1: row-major without gaps */
    uint8_t address_space;          /* 0: memory of the host, 1: of a device */
    uint32_t shapes[TENSOR_MAX_DIMS];
    uint64_t extent;                   /* from the first element to just after the last, in elements */
    uint32_t strides[TENSOR_MAX_DIMS]; /* in elements, always > 0 */
    uint8_t reserved[36];              /* 0 */
} TensorDesc;

COMM_STATIC_ASSERT(sizeof(TensorDesc) == 128, "TensorDesc: size");
COMM_STATIC_ASSERT(offsetof(TensorDesc, addr) == 0, "TensorDesc: addr");
COMM_STATIC_ASSERT(offsetof(TensorDesc, size) == 8, "TensorDesc: size of the buffer");
COMM_STATIC_ASSERT(offsetof(TensorDesc, owner_task_id) == 16, "TensorDesc: owner_task_id");
COMM_STATIC_ASSERT(offsetof(TensorDesc, start_offset) == 24, "TensorDesc: start_offset");
COMM_STATIC_ASSERT(offsetof(TensorDesc, version) == 32, "TensorDesc: version");
COMM_STATIC_ASSERT(offsetof(TensorDesc, ndims) == 36, "TensorDesc: ndims");
COMM_STATIC_ASSERT(offsetof(TensorDesc, dtype) == 40, "TensorDesc: dtype");
COMM_STATIC_ASSERT(offsetof(TensorDesc, manual_dep) == 41, "TensorDesc: manual_dep");
COMM_STATIC_ASSERT(offsetof(TensorDesc, is_contiguous) == 42, "TensorDesc: is_contiguous");
COMM_STATIC_ASSERT(offsetof(TensorDesc, address_space) == 43, "TensorDesc: address_space");
COMM_STATIC_ASSERT(offsetof(TensorDesc, shapes) == 44, "TensorDesc: shapes");
COMM_STATIC_ASSERT(offsetof(TensorDesc, extent) == 64, "TensorDesc: extent");
COMM_STATIC_ASSERT(offsetof(TensorDesc, strides) == 72, "TensorDesc: strides");
COMM_STATIC_ASSERT(offsetof(TensorDesc, reserved) == 92, "TensorDesc: reserved");

#ifdef __cplusplus
/* The address of the first element of the view. Unchecked: T must be the type of dtype. */
template <typename T>
inline T *tensor_data(const TensorDesc *tensor) {
    return reinterpret_cast<T *>(static_cast<uintptr_t>(tensor->addr)) + tensor->start_offset;
}
#endif

#endif
