/*
 * chip_tensor.h: chip::Tensor, a TensorDesc with functions. C++17.
 *
 * The bytes are those of a TensorDesc: a pointer to one may be used as a pointer to the other. A view shares the
 * buffer of the tensor that it was made of, and its task.
 */
#ifndef CHIPCOMM_CHIP_TENSOR_H
#define CHIPCOMM_CHIP_TENSOR_H

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "tensor.h"

namespace chip {

/* The type of an element; the numbers are those of TensorDType. */
enum class DataType : uint8_t {
    FLOAT32 = TENSOR_FLOAT32,
    FLOAT16 = TENSOR_FLOAT16,
    INT32 = TENSOR_INT32,
    INT16 = TENSOR_INT16,
    INT8 = TENSOR_INT8,
    UINT8 = TENSOR_UINT8,
    BFLOAT16 = TENSOR_BFLOAT16,
    INT64 = TENSOR_INT64,
    UINT64 = TENSOR_UINT64,
    UINT16 = TENSOR_UINT16,
    UINT32 = TENSOR_UINT32,
    BOOL = TENSOR_BOOL,
    FP8E4M3FN = TENSOR_FP8E4M3FN,
    FP8E8M0 = TENSOR_FP8E8M0,
    FP4E2M1 = TENSOR_FP4E2M1
};

/* How many bytes an element has; 0 for a number without a type. */
constexpr uint64_t element_size(DataType type) {
    switch (type) {
        case DataType::INT8:
        case DataType::UINT8:
        case DataType::BOOL:
        case DataType::FP8E4M3FN:
        case DataType::FP8E8M0:
        case DataType::FP4E2M1:
            return 1;
        case DataType::FLOAT16:
        case DataType::BFLOAT16:
        case DataType::INT16:
        case DataType::UINT16:
            return 2;
        case DataType::FLOAT32:
        case DataType::INT32:
        case DataType::UINT32:
            return 4;
        case DataType::INT64:
        case DataType::UINT64:
            return 8;
    }
    return 0;
}

/* Where a tensor's bytes are. */
struct Buffer {
    uint64_t addr;
    uint64_t size; /* in bytes */
};

struct alignas(64) Tensor {
    Buffer buffer{0, 0};
    uint64_t owner_task_id = TENSOR_NO_OWNER;
    uint64_t start_offset = 0;
    int32_t version = 0;
    uint32_t ndims = 0;
    DataType dtype = DataType::FLOAT32;
    uint8_t manual_dep = 0;
    uint8_t is_contiguous = 1;
    uint8_t address_space = 0;
    uint32_t shapes[TENSOR_MAX_DIMS] = {};
    uint64_t extent = 0;
    uint32_t strides[TENSOR_MAX_DIMS] = {1, 1, 1, 1, 1};
    uint8_t reserved[36] = {};

    Tensor() = default;

    /* Row-major elements from `addr` on, in a buffer of `bytes`. */
    Tensor(void *addr, uint64_t bytes, const uint32_t *shape, uint32_t dims, DataType type)
        : buffer{reinterpret_cast<uintptr_t>(addr), bytes}, ndims(dims), dtype(type) {
        if (dims > TENSOR_MAX_DIMS) {
            throw std::invalid_argument("a tensor has at most 5 dimensions");
        }
        for (uint32_t dim = 0; dim < dims; ++dim) {
            shapes[dim] = shape[dim];
        }
        pack();
    }

    /* Itself: an argument of an entry is used as arg.ref() in upstream's sources. */
    const Tensor &ref() const { return *this; }

    uint64_t numel() const {
        uint64_t count = 1;
        for (uint32_t dim = 0; dim < ndims; ++dim) {
            count *= shapes[dim];
        }
        return count;
    }
    uint64_t nbytes() const { return numel() * element_size(dtype); }

    /* The address of the first element. Unchecked: T must be the type of dtype. */
    template <typename T>
    T *data_as() const {
        return reinterpret_cast<T *>(static_cast<uintptr_t>(buffer.addr) + start_offset * element_size(dtype));
    }

    /* The part of `shape` elements that starts at the element `from`. */
    Tensor view(const uint32_t *shape, const uint32_t *from, bool manual = false) const {
        Tensor part = *this;
        for (uint32_t dim = 0; dim < ndims; ++dim) {
            if (uint64_t{from[dim]} + shape[dim] > shapes[dim]) {
                throw std::out_of_range("a view reaches beyond its tensor");
            }
            part.shapes[dim] = shape[dim];
            part.start_offset += uint64_t{from[dim]} * strides[dim];
        }
        part.manual_dep = static_cast<uint8_t>(manual || manual_dep != 0);
        part.span();
        return part;
    }

    /* The same elements with another shape. */
    Tensor reshape(const uint32_t *shape, uint32_t dims) const {
        if (is_contiguous == 0 || dims > TENSOR_MAX_DIMS) {
            throw std::invalid_argument("only a contiguous tensor takes another shape, of at most 5 dimensions");
        }
        Tensor other = *this;
        other.ndims = dims;
        for (uint32_t dim = 0; dim < dims; ++dim) {
            other.shapes[dim] = shape[dim];
        }
        if (other.numel() != numel()) {
            throw std::invalid_argument("another shape has as many elements");
        }
        other.pack();
        return other;
    }

    /* The same elements with two dimensions exchanged. */
    Tensor transpose(uint32_t one, uint32_t other) const {
        if (one >= ndims || other >= ndims) {
            throw std::out_of_range("a transposed dimension is one of the tensor's");
        }
        Tensor turned = *this;
        turned.shapes[one] = shapes[other];
        turned.shapes[other] = shapes[one];
        turned.strides[one] = strides[other];
        turned.strides[other] = strides[one];
        turned.span();
        return turned;
    }

  private:
    /* Row-major strides. */
    void pack() {
        uint64_t step = 1;
        for (uint32_t dim = ndims; dim-- > 0;) {
            strides[dim] = static_cast<uint32_t>(step);
            step *= shapes[dim] != 0 ? shapes[dim] : 1;
        }
        span();
    }

    /* Extent and contiguity follow from shape and strides. */
    void span() {
        uint64_t step = 1;
        bool packed = true;
        extent = 1;
        for (uint32_t dim = ndims; dim-- > 0;) {
            packed = packed && (shapes[dim] == 1 || strides[dim] == step);
            step *= shapes[dim];
            extent += shapes[dim] == 0 ? 0 : (uint64_t{shapes[dim]} - 1) * strides[dim];
        }
        if (numel() == 0) {
            extent = 0;
            packed = true;
        }
        is_contiguous = static_cast<uint8_t>(packed);
    }
};

static_assert(sizeof(Tensor) == sizeof(TensorDesc) && alignof(Tensor) == alignof(TensorDesc), "Tensor: size");
static_assert(offsetof(Tensor, buffer) == offsetof(TensorDesc, addr), "Tensor: buffer");
static_assert(offsetof(Tensor, owner_task_id) == offsetof(TensorDesc, owner_task_id), "Tensor: owner_task_id");
static_assert(offsetof(Tensor, start_offset) == offsetof(TensorDesc, start_offset), "Tensor: start_offset");
static_assert(offsetof(Tensor, version) == offsetof(TensorDesc, version), "Tensor: version");
static_assert(offsetof(Tensor, ndims) == offsetof(TensorDesc, ndims), "Tensor: ndims");
static_assert(offsetof(Tensor, dtype) == offsetof(TensorDesc, dtype), "Tensor: dtype");
static_assert(offsetof(Tensor, manual_dep) == offsetof(TensorDesc, manual_dep), "Tensor: manual_dep");
static_assert(offsetof(Tensor, is_contiguous) == offsetof(TensorDesc, is_contiguous), "Tensor: is_contiguous");
static_assert(offsetof(Tensor, address_space) == offsetof(TensorDesc, address_space), "Tensor: address_space");
static_assert(offsetof(Tensor, shapes) == offsetof(TensorDesc, shapes), "Tensor: shapes");
static_assert(offsetof(Tensor, extent) == offsetof(TensorDesc, extent), "Tensor: extent");
static_assert(offsetof(Tensor, strides) == offsetof(TensorDesc, strides), "Tensor: strides");

/* The tensor that a kernel argument describes. */
inline const Tensor &tensor_of(int64_t arg) {
    return *reinterpret_cast<const Tensor *>(static_cast<uintptr_t>(arg));
}

}  // namespace chip

#endif
