// An orchestration and its kernels, written against the layouts of pto2-2026-08 and nothing else: every offset here is
// a number from the specification, and no header of this workspace is included. -DPREBUILT makes the other flavour.
#include <cstdint>
#include <cstring>

namespace {

template <typename T>
T &at(void *base, size_t offset) {
    return *reinterpret_cast<T *>(static_cast<char *>(base) + offset);
}
template <typename T>
const T &at(const void *base, size_t offset) {
    return *reinterpret_cast<const T *>(static_cast<const char *>(base) + offset);
}

#ifdef PREBUILT
constexpr size_t kArgs = 920, kDependencies = 904, kDependencyCount = 912, kSetSite = 22;
#else
constexpr size_t kArgs = 784, kDependencies = 760, kDependencyCount = 776, kSetSite = 17;
#endif

struct Args {
    alignas(8) unsigned char bytes[kArgs] = {};
    Args() { at<int16_t>(bytes, 536) = 1; }
    void tensor(int32_t tag, const void *ref) {
        int32_t &count = at<int32_t>(bytes, 512);
        at<int32_t>(bytes, 4 * static_cast<size_t>(count)) = tag;
        at<const void *>(bytes, 128 + 8 * static_cast<size_t>(count)) = ref;
        ++count;
    }
    void scalar(uint64_t value) {
        int32_t &count = at<int32_t>(bytes, 516);
        at<uint64_t>(bytes, 384 + 8 * static_cast<size_t>(count)) = value;
        ++count;
    }
    void after(const uint64_t *ids, uint32_t count) {
        at<const uint64_t *>(bytes, kDependencies) = ids;
        at<uint32_t>(bytes, kDependencyCount) = count;
    }
};

enum { INPUT, OUTPUT, INOUT, OUTPUT_EXISTING, NO_DEP };

struct Outputs {
    uint64_t task;
    uint32_t count;
    const void *tensors[32];
};
static_assert(sizeof(Outputs) == 272, "");

struct Kernels {
    int32_t aic, aiv0, aiv1;
};

struct alignas(64) CreateInfo {
    unsigned char bytes[64] = {};
    explicit CreateInfo(uint32_t length) {
        at<uint32_t>(bytes, 36) = 1;
        bytes[42] = 1;
        at<uint32_t>(bytes, 44) = length;
    }
};

struct Runtime {
    void *const *ops;
    uint8_t pending_scope_mode;
};
Runtime *bound;

template <typename Function>
Function op(size_t number) {
    return reinterpret_cast<Function>(bound->ops[number]);
}
Outputs submit(Kernels kernels, const Args &args) {
    return op<Outputs (*)(Runtime *, const Kernels *, const void *)>(0)(bound, &kernels, args.bytes);
}
void scope_begin(uint8_t mode) {
    bound->pending_scope_mode = mode;
    op<void (*)(Runtime *)>(1)(bound);
}
void scope_end() { op<void (*)(Runtime *)>(2)(bound); }

float *data(const void *tensor) { return at<float *>(tensor, 0) + at<uint64_t>(tensor, 24); }

}  // namespace

extern "C" {

void framework_bind_runtime(Runtime *runtime) { bound = runtime; }

// out = (a + b) * factor, with a matrix and two vector kernels, blocks, explicit edges and a predicate. Tensors of the
// entry: a, b, out, flags; scalars: factor, the number of elements.
int aicpu_orchestration_config(const void *) { return 6; }

void aicpu_orchestration_entry(const void *entry) {
    const auto tensor = [&](size_t number) { return at<const void *>(entry, 1024 + 8 * number); };
    const uint64_t factor = at<uint64_t>(entry, 3072), length = at<uint64_t>(entry, 3080);
    if (at<int32_t>(entry, 4096) != 4 || at<int32_t>(entry, 4100) != 2) return;
    op<void (*)(const char *, int)>(kSetSite)("layouts.cpp", 7);
    op<void (*)(const char *, const char *, ...)>(9)("entry", "%d clusters, %s %.1f", 8, "and", 1.5);

    const CreateInfo info(static_cast<uint32_t>(length));
    Args add;
    add.tensor(INPUT, tensor(0));
    add.tensor(INPUT, tensor(1));
    add.tensor(OUTPUT, info.bytes);
    at<int16_t>(add.bytes, 536) = 4;
    const Outputs sum = submit({-1, 0, -1}, add);
    if (sum.count != 1 || sum.task == UINT64_MAX) return;

    scope_begin(1);
    Args scale;
    scale.tensor(INPUT, sum.tensors[0]);
    scale.tensor(OUTPUT_EXISTING, tensor(2));
    scale.scalar(factor);
    scale.after(&sum.task, 1);
    const Outputs scaled = submit({1, -1, -1}, scale);
    // A task that only orders, then three kernels on the cores of one cluster.
    Args order;
    order.after(&scaled.task, 1);
    const Outputs barrier = op<Outputs (*)(Runtime *, const void *)>(14)(bound, order.bytes);
    Args mix;
    mix.tensor(INOUT, tensor(3));
    mix.after(&barrier.task, 1);
    const Outputs mixed = submit({2, 2, 2}, mix);
    // Runs only if flags[0] is 1, which the kernel on the matrix core makes it.
    Args never;
    never.tensor(INOUT, tensor(2));
    never.scalar(0);
    never.after(&mixed.task, 1);
    at<const void *>(never.bytes, 544) = tensor(3);
    at<uint32_t>(never.bytes, 552) = 1;
    never.bytes[576] = 2;  // not equal
    at<int64_t>(never.bytes, 584) = 1;
    submit({-1, 3, -1}, never);
    scope_end();
}

// What a kernel finds at 48: its block.
static int32_t block(int64_t *args, size_t offset) { return at<int32_t>(reinterpret_cast<void *>(args[48]), offset); }

void add(int64_t *args) {
    const auto *a = data(reinterpret_cast<void *>(args[0])), *b = data(reinterpret_cast<void *>(args[1]));
    const auto *out = reinterpret_cast<void *>(args[2]);
    const uint32_t length = at<uint32_t>(out, 44), blocks = static_cast<uint32_t>(block(args, 4));
    for (uint32_t i = static_cast<uint32_t>(block(args, 0)); i < length; i += blocks) data(out)[i] = a[i] + b[i];
}

void scale(int64_t *args) {
    const auto *in = reinterpret_cast<void *>(args[0]);
    auto *out = data(reinterpret_cast<void *>(args[1]));
    float factor;
    std::memcpy(&factor, &args[2], sizeof(factor));
    for (uint32_t i = 0; i < at<uint32_t>(in, 44); ++i) out[i] = data(in)[i] * factor;
}

// Functions that the simulation gives to a kernel object after it is loaded.
static uint32_t (*sub_block_of)();
static void *(*state_of)(uint64_t, size_t);
void pto_sim_register_hooks(void *sub_block, void *state) {
    sub_block_of = reinterpret_cast<uint32_t (*)()>(sub_block);
    state_of = reinterpret_cast<void *(*)(uint64_t, size_t)>(state);
}

// Each of the three kernels of the task adds one to flags[0], flags[1], flags[2]: the first at 1 - 0.5 * 0 and so on.
void mix(int64_t *args) {
    auto *flags = data(reinterpret_cast<void *>(args[0]));
    const uint32_t lane = static_cast<uint32_t>(at<int32_t>(reinterpret_cast<void *>(args[49]), 0));
    auto *shared = static_cast<uint32_t *>(state_of(42, 64));
    __atomic_fetch_add(shared, 1, __ATOMIC_RELAXED);
    if (lane == sub_block_of()) flags[lane] = 1;
    while (__atomic_load_n(shared, __ATOMIC_RELAXED) % 3 != 0) {
    }
    flags[2] = 1;
}

void zero(int64_t *args) {
    const auto *out = reinterpret_cast<void *>(args[0]);
    for (uint32_t i = 0; i < at<uint32_t>(out, 44); ++i) data(out)[i] = 0;
}

}  // extern "C"
