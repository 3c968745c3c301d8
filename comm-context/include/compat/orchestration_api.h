/* orchestration_api.h: orchestrations, under upstream's names. */
#ifndef CHIPCOMM_COMPAT_ORCHESTRATION_API_H
#define CHIPCOMM_COMPAT_ORCHESTRATION_API_H

#include "../orchestration.h"
#include "tensor.h"

using RuntimeContext = OrchRuntime;
using PTO2Runtime = OrchRuntime;
using CoreTaskArgs = chip::TaskArgs;
using L0TaskArgs = chip::TaskArgs;
using Arg = chip::TaskArgs;
using ChipTaskArgs = chip::EntryArgs;
using L2TaskArgs = chip::EntryArgs;
using MixedKernels = chip::Kernels;
using TensorCreateInfo = chip::CreateInfo;
using TaskOutputTensors = chip::Submitted;
using TaskId = chip::TaskId;
using PTO2TaskId = chip::TaskId;
using ScopeMode = chip::ScopeMode;
using PTO2ScopeMode = chip::ScopeMode;

static constexpr int32_t INVALID_KERNEL_ID = chip::Kernels::NONE;

/* What a config function returns: how many tensors and scalars the entry expects together. */
struct OrchestrationConfig {
    int expected_arg_count;
};
using PTO2OrchestrationConfig = OrchestrationConfig;

/* Codes for rt_report_fatal. */
enum { SIMPLER_ERROR_INVALID_ARGS = 5, PTO2_ERROR_INVALID_ARGS = 5, SIMPLER_ERROR_EXPLICIT = 9 };
/* How a dependency counts. */
enum : uint8_t { DEP_WAIT = ORCH_DEPENDENCY_WAIT, DEP_RETAIN = ORCH_DEPENDENCY_RETAIN };

/* An argument list with room for the ids of its dependencies. */
template <uint32_t Count = 16>
class CoreTaskArgsWithDeps : public chip::TaskArgs {
  public:
    template <typename... Ids>
    void add_dep(Ids... ids) {
        (add_one(ids), ...);
    }
    void add_dep_wait(TaskId id) { add_one(id); }
    CoreTaskArgsWithDeps() = default;
    CoreTaskArgsWithDeps(const CoreTaskArgsWithDeps &) = delete;
    CoreTaskArgsWithDeps &operator=(const CoreTaskArgsWithDeps &) = delete;

  private:
    void add_one(TaskId id) {
        if (used_ == Count) {
            has_error = true;
            error_msg = "more dependencies than CoreTaskArgsWithDeps has room for";
            return;
        }
        ids_[used_++] = id;
        set_dependencies(ids_, used_);
    }
    TaskId ids_[Count];
    uint32_t used_ = 0;
};
template <uint32_t Count = 16>
using L0TaskArgsWithDeps = CoreTaskArgsWithDeps<Count>;

inline Tensor make_tensor_external(void *addr, const uint32_t *shape, uint32_t ndims,
                                   DataType dtype = DataType::FLOAT32, bool manual_dep = false) {
    uint64_t bytes = chip::element_size(dtype);
    for (uint32_t dim = 0; dim < ndims; ++dim) {
        bytes *= shape[dim];
    }
    Tensor tensor(addr, bytes, shape, ndims, dtype);
    tensor.manual_dep = static_cast<uint8_t>(manual_dep);
    return tensor;
}

inline TaskOutputTensors rt_submit_task(const MixedKernels &kernels, const CoreTaskArgs &args,
                                        const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    return chip::submit(kernels, args, file, line);
}
inline TaskOutputTensors rt_submit_aic_task(int32_t kernel, const CoreTaskArgs &args,
                                            const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    return chip::submit(MixedKernels::aic(kernel), args, file, line);
}
inline TaskOutputTensors rt_submit_aiv_task(int32_t kernel, const CoreTaskArgs &args,
                                            const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    return chip::submit(MixedKernels::aiv(kernel), args, file, line);
}
inline TaskOutputTensors rt_submit_dummy_task(const CoreTaskArgs &args, const char *file = __builtin_FILE(),
                                              int line = __builtin_LINE()) {
    return chip::submit_dummy(args, file, line);
}

/* Tensors that the runtime makes, without a task. */
template <typename... Info>
inline TaskOutputTensors alloc_tensors(const Info &...infos) {
    CoreTaskArgs args;
    args.add_output(infos...);
    return chip::allocate(args);
}

inline void rt_scope_begin(ScopeMode mode = ScopeMode::AUTO) {
    OrchRuntime *rt = chip::runtime();
    rt->pending_scope_mode = static_cast<uint8_t>(mode);
    rt->ops->scope_begin(rt);
}
inline void rt_scope_end() {
    OrchRuntime *rt = chip::runtime();
    rt->ops->scope_end(rt);
}
inline void rt_orchestration_done() {
    OrchRuntime *rt = chip::runtime();
    rt->ops->orchestration_done(rt);
}
inline bool rt_is_fatal() { return chip::is_fatal(); }
inline int32_t rt_available_cluster_count() { return chip::cluster_count(); }
inline int32_t rt_available_aiv_count() { return chip::aiv_count(); }

template <typename T>
inline T get_tensor_data(const Tensor &tensor, uint32_t ndims, const uint32_t *indices,
                         const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    return chip::get_element<T>(tensor, ndims, indices, file, line);
}
template <typename T>
inline void set_tensor_data(const Tensor &tensor, uint32_t ndims, const uint32_t *indices, T value,
                            const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    chip::set_element<T>(tensor, ndims, indices, value, file, line);
}

#define CHIPCOMM_JOIN2(a, b) a##b
#define CHIPCOMM_JOIN(a, b) CHIPCOMM_JOIN2(a, b)
/* A scope around the block that follows, and one to the end of the block that it stands in. */
#define SIMPLER_SCOPE(...) if (const ::chip::Scope chipcomm_scope{__VA_ARGS__}; true)
#define SIMPLER_SCOPE_GUARD(...) const ::chip::Scope CHIPCOMM_JOIN(chipcomm_scope_, __LINE__){__VA_ARGS__}
#define PTO2_SCOPE(...) SIMPLER_SCOPE(__VA_ARGS__)
#define PTO2_SCOPE_GUARD(...) SIMPLER_SCOPE_GUARD(__VA_ARGS__)

#define rt_report_fatal(code, ...) CHIP_FAIL(code, __VA_ARGS__)
#define LOG_ERROR(...) CHIP_LOG_ERROR(__VA_ARGS__)
#define LOG_WARN(...) CHIP_LOG_WARN(__VA_ARGS__)
#define LOG_INFO(...) CHIP_LOG_INFO(__VA_ARGS__)
#define LOG_INFO_V0(...) CHIP_LOG_INFO(__VA_ARGS__)
#define LOG_INFO_V5(...) CHIP_LOG_INFO(__VA_ARGS__)
#define LOG_INFO_V9(...) CHIP_LOG_INFO(__VA_ARGS__)
#define LOG_DEBUG(...) CHIP_LOG_DEBUG(__VA_ARGS__)

#endif
