// Kernels with the headers of this workspace.
#include <stdexcept>

#include "chip_tensor.h"
#include "kernel_completion.h"

extern "C" void add(int64_t *args) {
    const chip::Tensor &a = chip::tensor_of(args[0]), &b = chip::tensor_of(args[1]), &out = chip::tensor_of(args[2]);
    const auto blocks = static_cast<uint64_t>(chip::block_num(args));
    for (auto i = static_cast<uint64_t>(chip::block_idx(args)); i < out.numel(); i += blocks) {
        out.data_as<float>()[i] = a.data_as<float>()[i] + b.data_as<float>()[i];
    }
}

static float scalar(int64_t arg) {
    float value;
    __builtin_memcpy(&value, &arg, sizeof(value));
    return value;
}

extern "C" void scale(int64_t *args) {
    const chip::Tensor &in = chip::tensor_of(args[0]), &out = chip::tensor_of(args[1]);
    for (uint64_t i = 0; i < in.numel(); ++i) {
        out.data_as<float>()[i] = in.data_as<float>()[i] * scalar(args[2]);
    }
}

extern "C" void fill(int64_t *args) {
    const chip::Tensor &out = chip::tensor_of(args[0]);
    for (uint64_t i = 0; i < out.numel(); ++i) {
        out.data_as<float>()[i] = scalar(args[1]);
    }
}

extern "C" void throws(int64_t *) { throw std::overflow_error("too much"); }

extern "C" void fails(int64_t *args) { chip::fail_task(args, 17, "on purpose"); }

extern "C" void counts(int64_t *args) { *chip::tensor_of(args[0]).data_as<float>() += 1; }

// A word that one kernel waits for without staying on its core.
static uint32_t word;
extern "C" void defers(int64_t *args) {
    if (!chip::complete_when(args, &word, static_cast<uint32_t>(args[1]))) {
        chip::fail_task(args, 1);
    }
}
extern "C" void raises(int64_t *) { __atomic_fetch_add(&word, 1, __ATOMIC_RELEASE); }
extern "C" void reads(int64_t *args) {
    *chip::tensor_of(args[0]).data_as<float>() = static_cast<float>(__atomic_load_n(&word, __ATOMIC_ACQUIRE));
}
