/*
 * orchestration.h: graphs of tasks, as a C++17 source that the runtime loads describes them.
 *
 *     #include "orchestration.h"
 *
 *     extern "C" void aicpu_orchestration_entry(const chip::EntryArgs &args) {
 *         const uint32_t shape[] = {1024};
 *         const chip::CreateInfo sum(shape, 1, chip::DataType::FLOAT32);
 *         chip::TaskArgs add;
 *         add.input(args.tensor(0), args.tensor(1));
 *         add.output(sum);
 *         const chip::Submitted added = chip::submit(chip::Kernels::aiv(0), add);
 *
 *         chip::TaskArgs scale;
 *         scale.input(added.tensor(0));
 *         scale.output(args.tensor(2));
 *         scale.scalar(2.0f);
 *         chip::submit(chip::Kernels::aiv(1), scale);
 *     }
 *
 * Compile it to a shared object (g++ -std=c++17 -fPIC -shared). The functions are called by the entry and by nobody
 * else: not from another thread, and not after it has returned. What goes wrong is kept by the runtime, which then
 * takes no more tasks; the entry may go on or return. An exception that leaves the entry is an error with its text.
 */
#ifndef CHIPCOMM_ORCHESTRATION_H
#define CHIPCOMM_ORCHESTRATION_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "chip_tensor.h"
#include "comm_context.h"
#include "orchestration_abi.h"

/* One for each object, whatever the number of its sources: weak, and not seen by other objects. */
extern "C" {
__attribute__((weak, visibility("hidden"))) OrchRuntime *chipcomm_bound_runtime = nullptr;
__attribute__((weak, visibility("default"))) void framework_bind_runtime(OrchRuntime *runtime) {
    chipcomm_bound_runtime = runtime;
}
}

namespace chip {

/* The runtime of the entry that runs. */
inline OrchRuntime *runtime() {
    if (chipcomm_bound_runtime == nullptr) {
        throw std::logic_error("no runtime: the functions of an orchestration are called by its entry");
    }
    return chipcomm_bound_runtime;
}

namespace detail {

/* The functions beyond those of upstream, or null. */
inline const OrchExtension *extension(const OrchRuntime *runtime) {
    return runtime->magic == ORCH_EXTENSION_MAGIC ? runtime->extension : nullptr;
}

inline const OrchExtension *needed(const OrchRuntime *runtime) {
    const OrchExtension *found = extension(runtime);
    if (found == nullptr) {
        throw std::runtime_error("this runtime has neither WAIT nor SIGNAL nor publish_task");
    }
    return found;
}

/* The functions, which reach up to `end` at least: earlier runtimes have fewer. */
inline const OrchExtension *needed(const OrchRuntime *runtime, size_t end, const char *missing) {
    const OrchExtension *found = needed(runtime);
    if (found->size < end) {
        throw std::runtime_error(missing);
    }
    return found;
}

inline void here(OrchRuntime *runtime, const char *file, int line) {
    if (const OrchExtension *known = extension(runtime)) {
        known->set_site(runtime, file, line);
    }
}

template <typename T>
inline uint64_t bits(T value) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a scalar has at most 8 bytes");
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));
    return word;
}

template <typename T>
inline T value(uint64_t word) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a scalar has at most 8 bytes");
    T out;
    std::memcpy(&out, &word, sizeof(T));
    return out;
}

}  // namespace detail

/* The number of a task. */
struct TaskId {
    uint64_t raw = UINT64_MAX;
    bool is_valid() const { return raw != UINT64_MAX; }
    static TaskId invalid() { return TaskId{}; }
};
static_assert(sizeof(TaskId) == 8, "TaskId: size");

/* The kernels of a task, by the ids under which the caller registered them. */
struct Kernels {
    static constexpr int32_t NONE = -1;
    int32_t aic_kernel_id = NONE;
    int32_t aiv0_kernel_id = NONE;
    int32_t aiv1_kernel_id = NONE;

    static Kernels aic(int32_t id) { return {id, NONE, NONE}; }
    static Kernels aiv(int32_t id) { return {NONE, id, NONE}; }
    /* On the cores of one cluster at once. */
    static Kernels mix(int32_t aic, int32_t aiv0, int32_t aiv1 = NONE) { return {aic, aiv0, aiv1}; }
};
static_assert(sizeof(Kernels) == sizeof(OrchKernelIds), "Kernels: size");

/* A tensor that the runtime is to make. */
struct CreateInfo : OrchCreateInfo {
    CreateInfo(const uint32_t *shape, uint32_t dims, DataType type, bool manual = false, int32_t first_version = 0)
        : OrchCreateInfo{} {
        if (dims > TENSOR_MAX_DIMS) {
            throw std::invalid_argument("a tensor has at most 5 dimensions");
        }
        ndims = dims;
        dtype = static_cast<uint8_t>(type);
        manual_dep = static_cast<uint8_t>(manual);
        is_contiguous = 1;
        version = first_version;
        for (uint32_t dim = 0; dim < dims; ++dim) {
            shapes[dim] = shape[dim];
        }
    }

    /* What every element starts with. */
    template <typename T>
    CreateInfo &set_initial_value(T value) {
        initial = detail::bits(value);
        has_initial = 1;
        return *this;
    }
};
static_assert(sizeof(CreateInfo) == sizeof(OrchCreateInfo), "CreateInfo: size");

/* How many blocks a task has, and how they start. */
struct LaunchSpec {
    int16_t blocks = 1;
    uint8_t sync_start = 0;
    uint8_t reserved = 0;

    void set_block_num(int16_t count) { blocks = count; }
    void set_core_num(int16_t count) { blocks = count; }
    int16_t block_num() const { return blocks; }
    /* All blocks at once. */
    void set_require_sync_start(bool all) { sync_start = static_cast<uint8_t>(all); }
};

/* How an element is compared. */
enum class Compare : uint8_t {
    EQ = ORCH_EQ,
    NE = ORCH_NE,
    GT = ORCH_GT,
    LT = ORCH_LT,
    GE = ORCH_GE,
    LE = ORCH_LE
};

/* The argument list of a task. Tensors are kept by address until the task is submitted, so they must live that
 * long: a temporary is refused by the compiler. */
struct TaskArgs {
    int32_t tags[ORCH_TASK_TENSORS] = {};
    const void *refs[ORCH_TASK_TENSORS] = {};
    uint64_t scalars[ORCH_TASK_SCALARS] = {};
    int32_t tensors_used = 0;
    int32_t scalars_used = 0;
    bool has_error = false;
    const char *error_msg = nullptr;
    LaunchSpec launch_spec;
    uint8_t early = 0;
    OrchPredicate predicate = {};
    int32_t timing = 0;
    uint8_t dump[160] = {};
    const TaskId *dependencies = nullptr;
    const uint8_t *dependency_kinds = nullptr;
    uint32_t dependency_count = 0;

    /* The task reads these. */
    template <typename... T>
    void input(T &&...tensors) {
        static_assert((std::is_lvalue_reference<T>::value && ...), "a tensor must live until its task is submitted");
        (add(ORCH_INPUT, tensors), ...);
    }
    /* The task writes these: a Tensor, or a CreateInfo of one that the runtime makes. */
    template <typename... T>
    void output(T &&...tensors) {
        static_assert((std::is_lvalue_reference<T>::value && ...), "a tensor must live until its task is submitted");
        (add_written(tensors), ...);
    }
    /* The task reads and writes these. */
    template <typename... T>
    void inout(T &&...tensors) {
        static_assert((std::is_lvalue_reference<T>::value && ...), "a tensor must live until its task is submitted");
        (add(ORCH_INOUT, tensors), ...);
    }
    /* The task uses these, and no order follows from that. */
    template <typename... T>
    void no_dependency(T &&...tensors) {
        static_assert((std::is_lvalue_reference<T>::value && ...), "a tensor must live until its task is submitted");
        (add(ORCH_NO_DEP, tensors), ...);
    }
    template <typename T>
    void scalar(T value) {
        if (scalars_used == ORCH_TASK_SCALARS) {
            fail("a task has at most 16 scalars");
            return;
        }
        scalars[scalars_used++] = detail::bits(value);
    }
    /* These tasks come first. The array must live until the task is submitted. */
    void after(const TaskId *tasks, uint32_t count) {
        if (tasks == nullptr && count != 0) {
            fail("dependencies without an array");
            return;
        }
        dependencies = tasks;
        dependency_kinds = nullptr;
        dependency_count = count;
    }
    /* The task runs only if the element compares so when it is ready. Otherwise it completes at once. */
    void only_if(const Tensor &tensor, const uint32_t *indices, uint32_t count, Compare op, int64_t target) {
        if (count > TENSOR_MAX_DIMS) {
            fail("an element has at most 5 indices");
            return;
        }
        predicate.tensor = reinterpret_cast<uintptr_t>(&tensor);
        predicate.ndims = count;
        std::memcpy(predicate.indices, indices, count * sizeof(uint32_t));
        predicate.op = static_cast<uint8_t>(op);
        predicate.target = target;
    }
    void only_if(Tensor &&, const uint32_t *, uint32_t, Compare, int64_t) = delete;

    /* The names that upstream's sources use. */
    template <typename... T>
    void add_input(T &&...tensors) {
        input(std::forward<T>(tensors)...);
    }
    template <typename... T>
    void add_output(T &&...tensors) {
        output(std::forward<T>(tensors)...);
    }
    template <typename... T>
    void add_inout(T &&...tensors) {
        inout(std::forward<T>(tensors)...);
    }
    template <typename... T>
    void add_no_dep(T &&...tensors) {
        no_dependency(std::forward<T>(tensors)...);
    }
    template <typename... T>
    void add_scalar(T... values) {
        (scalar(values), ...);
    }
    /* The same, and what each is for: an OrchDependency. The tensors of a task that is retained and not waited for stay,
     * also after their scope, until this one has completed; nothing follows for the order of the two. */
    void after(const TaskId *tasks, const uint8_t *kinds, uint32_t count) {
        after(tasks, count);
        dependency_kinds = kinds;
    }
    void set_dependencies(const TaskId *tasks, uint32_t count) { after(tasks, count); }
    void set_dependencies_with_kinds(const TaskId *tasks, const uint8_t *kinds, uint32_t count) {
        after(tasks, kinds, count);
    }
    void set_allow_early_resolve(bool allow) { early = static_cast<uint8_t>(allow); }

  private:
    void fail(const char *why) {
        has_error = true;
        error_msg = error_msg != nullptr ? error_msg : why;
    }
    void put(int32_t tag, const void *ref) {
        if (tensors_used == ORCH_TASK_TENSORS) {
            fail("a task has at most 32 tensors");
            return;
        }
        tags[tensors_used] = tag;
        refs[tensors_used++] = ref;
    }
    void add(int32_t tag, const Tensor &tensor) { put(tag, &tensor); }
    void add_written(const Tensor &tensor) { put(ORCH_OUTPUT_EXISTING, &tensor); }
    void add_written(const CreateInfo &info) { put(ORCH_OUTPUT, &info); }
};

static_assert(sizeof(TaskArgs) == sizeof(OrchTaskArgs), "TaskArgs: size");
static_assert(offsetof(TaskArgs, refs) == offsetof(OrchTaskArgs, tensors), "TaskArgs: refs");
static_assert(offsetof(TaskArgs, scalars) == offsetof(OrchTaskArgs, scalars), "TaskArgs: scalars");
static_assert(offsetof(TaskArgs, tensors_used) == 512, "TaskArgs: tensors_used");
static_assert(offsetof(TaskArgs, scalars_used) == 516, "TaskArgs: scalars_used");
static_assert(offsetof(TaskArgs, has_error) == 520, "TaskArgs: has_error");
static_assert(offsetof(TaskArgs, error_msg) == 528, "TaskArgs: error_msg");
static_assert(offsetof(TaskArgs, launch_spec) == 536, "TaskArgs: launch_spec");
static_assert(offsetof(TaskArgs, early) == 540, "TaskArgs: early");
static_assert(offsetof(TaskArgs, predicate) == 544, "TaskArgs: predicate");
static_assert(offsetof(TaskArgs, timing) == 592, "TaskArgs: timing");
static_assert(offsetof(TaskArgs, dependencies) == 760, "TaskArgs: dependencies");
static_assert(offsetof(TaskArgs, dependency_kinds) == 768, "TaskArgs: dependency_kinds");
static_assert(offsetof(TaskArgs, dependency_count) == 776, "TaskArgs: dependency_count");

/* The arguments of an entry, in the order in which the caller gave them. */
struct EntryArgs : OrchEntryArgs {
    int32_t tensor_count() const { return launch.tensor_count; }
    int32_t scalar_count() const { return launch.scalar_count; }

    const Tensor &tensor(int32_t number) const {
        if (number < 0 || number >= launch.tensor_count) {
            throw std::out_of_range("the entry has fewer tensors");
        }
        return *reinterpret_cast<const Tensor *>(static_cast<uintptr_t>(tensors[number]));
    }
    template <typename T = uint64_t>
    T scalar(int32_t number) const {
        if (number < 0 || number >= launch.scalar_count) {
            throw std::out_of_range("the entry has fewer scalars");
        }
        return detail::value<T>(scalars[number]);
    }
};
static_assert(sizeof(EntryArgs) == sizeof(OrchEntryArgs), "EntryArgs: size");

/* A task that was submitted, and the tensors that the runtime made for it. They stay until the scope ends. */
struct Submitted : OrchTaskOutputs {
    Submitted() : OrchTaskOutputs{} { OrchTaskOutputs::task_id = UINT64_MAX; }
    explicit Submitted(const OrchTaskOutputs &raw) : OrchTaskOutputs(raw) {}

    TaskId task_id() const { return TaskId{OrchTaskOutputs::task_id}; }
    uint32_t size() const { return count; }
    const Tensor &tensor(uint32_t number) const {
        if (number >= count) {
            throw std::out_of_range("the task made fewer tensors");
        }
        return *reinterpret_cast<const Tensor *>(static_cast<uintptr_t>(tensors[number]));
    }
    const Tensor &get_ref(uint32_t number) const { return tensor(number); }
};

/* Whether something went wrong: the runtime takes no more tasks. */
inline bool is_fatal() {
    OrchRuntime *rt = runtime();
    return rt->ops->is_fatal(rt);
}

/* What went wrong: 0 nothing, 1 scopes, 2 the heap, 3 slots, 4 edges, 5 arguments and calls, 7 sync_start, 8 data of a
 * tensor, 9 the user's own code (CHIP_FAIL, exceptions, kernels), 100 nothing completes, or not in time, or the system
 * refuses, 101 a WAIT or SIGNAL is refused, 102 one ended with a peer or the time, 103 a deadlock of chips. */
inline int32_t failure_code() {
    OrchRuntime *rt = runtime();
    const OrchExtension *known =
        detail::needed(rt, offsetof(OrchExtension, failure_code) + sizeof(OrchExtension::failure_code),
                       "this runtime has no failure_code: only is_fatal says whether something went wrong");
    return known->failure_code(rt);
}

namespace detail {

/* `args` as the runtime expects them, for the length of the call of `use`. */
template <typename Use>
inline Submitted with(OrchRuntime *rt, const TaskArgs &args, Use use) {
    const OrchExtension *known = extension(rt);
#ifdef CHIPCOMM_PREBUILT
    const bool prebuilt = known == nullptr || known->prebuilt != 0;
#else
    const bool prebuilt = known != nullptr && known->prebuilt != 0;
#endif
    if (!prebuilt) {
        return Submitted(use(static_cast<const void *>(&args)));
    }
    OrchPrebuiltTaskArgs other = {};
    std::memcpy(static_cast<void *>(&other), &args, offsetof(OrchTaskArgs, dump));
    /* Such a graph keeps all tensors to its end, and its list has no kinds: what is only retained is left out. */
    std::vector<TaskId> waited;
    for (uint32_t at = 0; at < args.dependency_count; ++at) {
        if (args.dependency_kinds == nullptr || (args.dependency_kinds[at] & ORCH_DEPENDENCY_WAIT) != 0) {
            waited.push_back(args.dependencies[at]);
        }
    }
    other.dependencies = reinterpret_cast<uintptr_t>(waited.data());
    other.dependency_count = static_cast<uint32_t>(waited.size());
    return Submitted(use(static_cast<const void *>(&other)));
}

}  // namespace detail

/* Submits a task. The last two arguments are the place of the call, which errors name. */
inline Submitted submit(const Kernels &kernels, const TaskArgs &args, const char *file = __builtin_FILE(),
                        int line = __builtin_LINE()) {
    OrchRuntime *rt = runtime();
    detail::here(rt, file, line);
    const OrchKernelIds ids = {kernels.aic_kernel_id, kernels.aiv0_kernel_id, kernels.aiv1_kernel_id};
    return detail::with(rt, args, [&](const void *raw) { return rt->ops->submit_task(rt, &ids, raw); });
}

/* A task without a kernel: it completes when what it depends on has. */
inline Submitted submit_dummy(const TaskArgs &args, const char *file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
    OrchRuntime *rt = runtime();
    detail::here(rt, file, line);
    return detail::with(rt, args, [&](const void *raw) { return rt->ops->submit_dummy_task(rt, raw); });
}

/* Tensors that the runtime makes, without a task: `args` has outputs alone. */
inline Submitted allocate(const TaskArgs &args, const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    OrchRuntime *rt = runtime();
    detail::here(rt, file, line);
    return detail::with(rt, args, [&](const void *raw) { return rt->ops->alloc_tensors(rt, raw); });
}

/* The domain of a context, for `wait_for` and `signal`: ranks and windows are then those of that domain. Every chip
 * numbers its domains for itself, so the number is for this run and not for a peer. */
inline uint32_t domain_of(const CommContext *context, const char *file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
    OrchRuntime *rt = runtime();
    const OrchExtension *known =
        detail::needed(rt, offsetof(OrchExtension, domain_of) + sizeof(OrchExtension::domain_of),
                       "this runtime has no domain_of: only the base window, domain 0, can be named");
    detail::here(rt, file, line);
    return known->domain_of(rt, context);
}

/* WAIT: the task that is submitted next starts when the word at `offset` of this rank's window has reached `value`.
 * `signaller` is the rank of the domain whose tasks signal it; -1: a kernel, the host, or not known. `domain`: 0 is
 * the base window, others are found by `domain_of`. */
inline void wait_for(uint64_t offset, uint32_t value, int32_t signaller = -1, uint32_t domain = 0) {
    OrchRuntime *rt = runtime();
    const OrchWait wait = {offset, domain, value, signaller, 0};
    detail::needed(rt)->wait(rt, &wait);
}

/* SIGNAL: when the task that is submitted next has completed, `add` is added to the word at `offset` of the window of
 * `rank`. */
inline void signal(uint32_t rank, uint64_t offset, uint32_t add, uint32_t domain = 0) {
    OrchRuntime *rt = runtime();
    const OrchSignal signal = {offset, domain, rank, add, 0};
    detail::needed(rt)->signal(rt, &signal);
}

/* The same, and the word becomes `value`. */
inline void signal_set(uint32_t rank, uint64_t offset, uint32_t value, uint32_t domain = 0) {
    OrchRuntime *rt = runtime();
    const OrchSignal signal = {offset, domain, rank, value, 1};
    detail::needed(rt)->signal(rt, &signal);
}

/* Where a word in this rank's window is, in bytes from its start. */
inline uint64_t window_offset(const CommContext *context, const void *word) {
    return reinterpret_cast<uintptr_t>(word) - context->windowsIn[context->rankId];
}

/* The task may start before its scope ends. */
inline void publish(TaskId task) {
    OrchRuntime *rt = runtime();
    detail::needed(rt)->publish_task(rt, task.raw);
}

/* An edge: `after`, which may not be published yet, starts when `before` has completed. */
inline void add_dependency(TaskId after, TaskId before, const char *file = __builtin_FILE(),
                           int line = __builtin_LINE()) {
    OrchRuntime *rt = runtime();
    const OrchExtension *known =
        detail::needed(rt, offsetof(OrchExtension, add_dependency) + sizeof(OrchExtension::add_dependency),
                       "this runtime has no add_dependency: name the tasks with `after` when one is submitted");
    detail::here(rt, file, line);
    known->add_dependency(rt, after.raw, before.raw);
}

/* One element, when its writers have completed. */
template <typename T>
inline T get_element(const Tensor &tensor, uint32_t count, const uint32_t *indices, const char *file = __builtin_FILE(),
                     int line = __builtin_LINE()) {
    OrchRuntime *rt = runtime();
    detail::here(rt, file, line);
    const auto *raw = reinterpret_cast<const TensorDesc *>(&tensor);
    return detail::value<T>(rt->ops->get_tensor_data(rt, raw, count, indices));
}

/* Stores one element, when its readers and writers have completed. */
template <typename T>
inline void set_element(const Tensor &tensor, uint32_t count, const uint32_t *indices, T value,
                        const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    OrchRuntime *rt = runtime();
    detail::here(rt, file, line);
    const auto *raw = reinterpret_cast<const TensorDesc *>(&tensor);
    rt->ops->set_tensor_data(rt, raw, count, indices, detail::bits(value));
}

inline int32_t cluster_count() {
    OrchRuntime *rt = runtime();
    return rt->ops->available_cluster_count(rt);
}
inline int32_t aiv_count() {
    OrchRuntime *rt = runtime();
    return rt->ops->available_aiv_count(rt);
}

/* Whether the runtime infers dependencies from tensors inside a scope. */
enum class ScopeMode : uint8_t { AUTO = 0, MANUAL = 1 };

/* The time between two braces: tensors that tasks make in it are gone after it. */
class Scope {
  public:
    explicit Scope(ScopeMode mode = ScopeMode::AUTO, const char *file = __builtin_FILE(), int line = __builtin_LINE())
        : runtime_(runtime()) {
        detail::here(runtime_, file, line);
        runtime_->pending_scope_mode = static_cast<uint8_t>(mode);
        runtime_->ops->scope_begin(runtime_);
    }
    ~Scope() { runtime_->ops->scope_end(runtime_); }
    Scope(const Scope &) = delete;
    Scope &operator=(const Scope &) = delete;

  private:
    OrchRuntime *runtime_;
};

}  // namespace chip

/* Ends the run with the caller's own code and text. The entry should return. */
#define CHIP_FAIL(code, ...)                                                                          \
    do {                                                                                              \
        OrchRuntime *const chip_runtime_ = ::chip::runtime();                                         \
        ::chip::detail::here(chip_runtime_, __FILE__, __LINE__);                                      \
        chip_runtime_->ops->report_fatal(chip_runtime_, (code), __func__, __VA_ARGS__);               \
    } while (false)

#define CHIP_LOG_ERROR(...) ::chip::runtime()->ops->log_error(__func__, __VA_ARGS__)
#define CHIP_LOG_WARN(...) ::chip::runtime()->ops->log_warn(__func__, __VA_ARGS__)
#define CHIP_LOG_INFO(...) ::chip::runtime()->ops->log_info(__func__, __VA_ARGS__)
#define CHIP_LOG_DEBUG(...) ::chip::runtime()->ops->log_debug(__func__, __VA_ARGS__)

#endif
