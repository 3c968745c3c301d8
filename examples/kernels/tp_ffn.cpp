/*
 * The parts of a layer that a chip computes alone; allreduce.cpp is the part in between.
 *
 * A matrix is a tensor of two dimensions, row after row without gaps. Sums run over k in order, as the
 * reference in Rust has them.
 */
#include "comm_kernel.h"

/* product[m][n] = a[m][k] * b[k][n]. The innermost loop runs along rows, so it vectorises. */
COMM_DEVICE static void matmul(COMM_GM const TensorDesc *a, COMM_GM const TensorDesc *b,
                               COMM_GM const TensorDesc *product) {
    const uint32_t rows = product->shapes[0], columns = product->shapes[1], depth = a->shapes[1];
    const auto *left = tensor_data<const float>(a);
    const auto *right = tensor_data<const float>(b);
    auto *out = tensor_data<float>(product);
    for (uint32_t row = 0; row < rows; ++row) {
        auto *sums = out + static_cast<size_t>(row) * columns;
        for (uint32_t column = 0; column < columns; ++column) {
            sums[column] = 0.0f;
        }
        for (uint32_t k = 0; k < depth; ++k) {
            const float factor = left[static_cast<size_t>(row) * depth + k];
            const auto *line = right + static_cast<size_t>(k) * columns;
            for (uint32_t column = 0; column < columns; ++column) {
                sums[column] += factor * line[column];
            }
        }
    }
}

/* Tensors: this chip's columns of x, its rows of the weights, and the partial product that results. */
COMM_KERNEL void linear(COMM_GM int64_t *args) {
    matmul(comm_pointer<const TensorDesc>(args[0]), comm_pointer<const TensorDesc>(args[1]),
           comm_pointer<const TensorDesc>(args[2]));
}

/* Tensors: the summed y, this chip's columns of the weights, its columns of the output max(0, y * weights). */
COMM_KERNEL void ffn(COMM_GM int64_t *args) {
    const auto output = comm_tensor<float>(args[2]);
    matmul(comm_pointer<const TensorDesc>(args[0]), comm_pointer<const TensorDesc>(args[1]),
           comm_pointer<const TensorDesc>(args[2]));
    for (size_t i = 0; i < output.count; ++i) {
        output.data[i] = output.data[i] > 0.0f ? output.data[i] : 0.0f;
    }
}
