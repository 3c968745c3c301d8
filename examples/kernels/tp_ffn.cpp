/*
 * The parts of a layer that a chip computes alone; allreduce.cpp is the part in between.
 *
 * A matrix is a tensor of two dimensions, row after row without gaps. Sums run over k in order, as the
 * reference in Rust has them.
 */
#include "comm_kernel.h"

/* product[m][n] = a[m][k] * b[k][n]. The innermost loop runs along rows, so it vectorises. */
COMM_DEVICE static void matmul(int64_t a, int64_t b, int64_t product) {
    const auto *shape = comm_pointer<const TensorDesc>(product)->shapes;
    const uint32_t rows = shape[0], columns = shape[1], depth = comm_pointer<const TensorDesc>(a)->shapes[1];
    const auto *left = comm_tensor<const float>(a).data;
    const auto *right = comm_tensor<const float>(b).data;
    auto *out = comm_tensor<float>(product).data;
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
    comm_flush(out, static_cast<size_t>(rows) * columns);
}

/* Tensors: this chip's columns of x, its rows of the weights, and the partial product that results. */
COMM_KERNEL void linear(COMM_GM int64_t *args) { matmul(args[0], args[1], args[2]); }

/* Tensors: the summed y, this chip's columns of the weights, its columns of max(0, y * weights). */
COMM_KERNEL void ffn(COMM_GM int64_t *args) {
    matmul(args[0], args[1], args[2]);
    const auto output = comm_tensor<float>(args[2]);
    for (size_t i = 0; i < output.count; ++i) {
        output.data[i] = output.data[i] > 0.0f ? output.data[i] : 0.0f;
    }
    comm_flush(output.data, output.count);
}
