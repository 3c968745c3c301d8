/*
 * orchestration_abi.h: what an orchestration and the runtime that calls it exchange, as plain structs. C11 and C++17.
 *
 * The layouts are those of version ORCH_VERSION. Nothing in a compiled object says for which version it was made,
 * so whoever loads it names the version. Sizes and offsets are pinned below and by the Rust crate comm-context; a
 * test of that crate compares the two. C++ sources include orchestration.h, which has types with functions.
 *
 * An orchestration object exports
 *     void aicpu_orchestration_entry(const OrchEntryArgs *args)   (or another name, which the loader gets)
 *     int aicpu_orchestration_config(const OrchEntryArgs *args)   (optional: how many arguments the entry expects)
 *     void framework_bind_runtime(OrchRuntime *runtime)
 * and is called in the order config, bind(runtime), entry, bind(NULL), inside a scope of the runtime's.
 */
#ifndef CHIPCOMM_ORCHESTRATION_ABI_H
#define CHIPCOMM_ORCHESTRATION_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor.h"

#define ORCH_VERSION "pto2-2026-08"

enum {
    ORCH_TASK_TENSORS = 32,   /* the most tensors of a task */
    ORCH_TASK_SCALARS = 16,   /* the most scalars of a task */
    ORCH_ENTRY_TENSORS = 256, /* the most tensors of an entry */
    ORCH_ENTRY_SCALARS = 128, /* the most scalars of an entry */
    ORCH_OPS = 18,            /* the functions of OrchOps */
    ORCH_PREBUILT_OPS = 23,   /* the functions of OrchPrebuiltOps */
    ORCH_EXTENSION_OPS = 7    /* the functions of OrchExtension */
};

/* What a dependency is for; may be both. */
enum OrchDependency {
    ORCH_DEPENDENCY_WAIT = 1,  /* the task starts when the other has completed */
    ORCH_DEPENDENCY_RETAIN = 2 /* the tensors that the other made stay until the task has completed */
};

/* How a task uses a tensor. */
enum OrchTag {
    ORCH_INPUT = 0,
    ORCH_OUTPUT = 1, /* the runtime makes the tensor: the address is that of an OrchCreateInfo */
    ORCH_INOUT = 2,
    ORCH_OUTPUT_EXISTING = 3,
    ORCH_NO_DEP = 4 /* no order follows from the use */
};

/* How the element of a predicate is compared. */
enum OrchComparison {
    ORCH_NONE = 0,
    ORCH_EQ = 1,
    ORCH_NE = 2,
    ORCH_GT = 3,
    ORCH_LT = 4,
    ORCH_GE = 5,
    ORCH_LE = 6
};

/* Whether a task runs: an element of a tensor, compared when the task is ready. */
typedef struct OrchPredicate {
    uint64_t tensor; /* address of a TensorDesc */
    uint32_t ndims;
    uint32_t indices[TENSOR_MAX_DIMS];
    uint8_t op; /* an OrchComparison */
    uint8_t reserved[7];
    int64_t target;
} OrchPredicate;

/* What argument lists have after their tensors and scalars. */
typedef struct OrchLaunch {
    int32_t tensor_count;
    int32_t scalar_count;
    uint8_t has_error; /* not 0: the list could not be made */
    uint8_t reserved0[7];
    uint64_t error_text; /* address of a text that says why */
    int16_t block_num;   /* at least 1 */
    uint8_t sync_start;  /* not 0: all blocks start at once */
    uint8_t reserved1;
    uint8_t early; /* a hint: dependent tasks may be prepared early */
    uint8_t reserved2[3];
    OrchPredicate predicate;
    int32_t timing; /* a hint for tracing */
    uint32_t reserved3;
} OrchLaunch;

/* The argument list of a task. */
typedef struct OrchTaskArgs {
    int32_t tags[ORCH_TASK_TENSORS];     /* OrchTag */
    uint64_t tensors[ORCH_TASK_TENSORS]; /* addresses of TensorDesc, or of OrchCreateInfo */
    uint64_t scalars[ORCH_TASK_SCALARS];
    OrchLaunch launch;
    uint8_t dump[160];
    uint64_t dependencies;     /* address of the ids of tasks that come first */
    uint64_t dependency_kinds; /* address of a byte for each, of OrchDependency; null: all are waited for */
    uint32_t dependency_count;
    uint32_t reserved;
} OrchTaskArgs;

/* The same in a graph that is built before it starts. */
typedef struct OrchPrebuiltTaskArgs {
    int32_t tags[ORCH_TASK_TENSORS];
    uint64_t tensors[ORCH_TASK_TENSORS];
    uint64_t scalars[ORCH_TASK_SCALARS];
    OrchLaunch launch;
    uint8_t dump[304];
    uint64_t dependencies;
    uint32_t dependency_count;
    uint32_t reserved;
} OrchPrebuiltTaskArgs;

/* The arguments of an entry. */
typedef struct OrchEntryArgs {
    int32_t tags[ORCH_ENTRY_TENSORS];
    uint64_t tensors[ORCH_ENTRY_TENSORS];
    uint64_t scalars[ORCH_ENTRY_SCALARS];
    OrchLaunch launch;
    uint8_t dump[160];
    uint64_t dependencies;
    uint64_t dependency_kinds;
    uint32_t dependency_count;
    uint32_t reserved;
} OrchEntryArgs;

/* A tensor that the runtime is to make. */
typedef struct OrchCreateInfo {
    uint64_t initial; /* the bits of the value that every element starts with */
    uint8_t has_initial;
    uint8_t reserved0[23];
    int32_t version;
    uint32_t ndims;
    uint8_t dtype; /* a TensorDType */
    uint8_t manual_dep;
    uint8_t is_contiguous;
    uint8_t reserved1;
    uint32_t shapes[TENSOR_MAX_DIMS];
} OrchCreateInfo;

/* What submitting a task returns. */
typedef struct OrchTaskOutputs {
    uint64_t task_id; /* ring << 32 | number in the ring; all ones: none */
    uint32_t count;   /* how many tensors were made */
    uint32_t reserved;
    uint64_t tensors[ORCH_TASK_TENSORS]; /* addresses of TensorDesc, valid until the scope ends */
} OrchTaskOutputs;

/* The kernels of a task; -1 for none. */
typedef struct OrchKernelIds {
    int32_t aic;
    int32_t aiv0;
    int32_t aiv1;
} OrchKernelIds;

/* A word that a task waits for before it starts. It is reached when word - value, as a signed number, is not
 * negative. */
typedef struct OrchWait {
    uint64_t offset;   /* of the word in this rank's window, in bytes */
    uint32_t domain;   /* 0: the window of the base communicator */
    uint32_t value;
    int32_t signaller; /* the rank of the domain whose tasks signal it; -1: a kernel, the host, or not known */
    uint32_t reserved;
} OrchWait;

/* A word that is raised when a task has completed. */
typedef struct OrchSignal {
    uint64_t offset; /* of the word in the rank's window, in bytes */
    uint32_t domain;
    uint32_t rank; /* in the domain */
    uint32_t value;
    uint32_t set; /* 0: value is added, 1: it is stored */
} OrchSignal;

typedef struct OrchRuntime OrchRuntime;

/* The functions of a runtime. */
typedef struct OrchOps {
    OrchTaskOutputs (*submit_task)(OrchRuntime *runtime, const OrchKernelIds *kernels, const void *args);
    void (*scope_begin)(OrchRuntime *runtime);
    void (*scope_end)(OrchRuntime *runtime);
    void (*orchestration_done)(OrchRuntime *runtime);
    bool (*is_fatal)(OrchRuntime *runtime);
    void (*report_fatal)(OrchRuntime *runtime, int32_t code, const char *function, const char *format, ...);
    void (*log_error)(const char *function, const char *format, ...);
    void (*log_warn)(const char *function, const char *format, ...);
    void (*log_timing)(const char *function, const char *format, ...);
    void (*log_info)(const char *function, const char *format, ...);
    void (*log_debug)(const char *function, const char *format, ...);
    uint64_t (*get_tensor_data)(OrchRuntime *runtime, const TensorDesc *tensor, uint32_t ndims, const uint32_t *indices);
    void (*set_tensor_data)(OrchRuntime *runtime, const TensorDesc *tensor, uint32_t ndims, const uint32_t *indices,
                            uint64_t value);
    OrchTaskOutputs (*alloc_tensors)(OrchRuntime *runtime, const void *args);
    OrchTaskOutputs (*submit_dummy_task)(OrchRuntime *runtime, const void *args);
    int32_t (*available_cluster_count)(OrchRuntime *runtime);
    int32_t (*available_aiv_count)(OrchRuntime *runtime);
    void (*scope_set_site)(const char *file, int32_t line); /* may be null */
} OrchOps;

/* The same for a graph that is built before it starts. `args` are OrchPrebuiltTaskArgs. */
typedef struct OrchPrebuiltOps {
    OrchTaskOutputs (*submit_task)(OrchRuntime *runtime, const OrchKernelIds *kernels, const void *args);
    void (*scope_begin)(OrchRuntime *runtime);
    void (*scope_end)(OrchRuntime *runtime);
    void (*orchestration_done)(OrchRuntime *runtime);
    bool (*is_fatal)(OrchRuntime *runtime);
    void (*report_fatal)(OrchRuntime *runtime, int32_t code, const char *function, const char *format, ...);
    void (*log_error)(const char *function, const char *format, ...);
    void (*log_warn)(const char *function, const char *format, ...);
    void (*log_timing)(const char *function, const char *format, ...);
    void (*log_info)(const char *function, const char *format, ...);
    void (*log_debug)(const char *function, const char *format, ...);
    uint64_t (*get_tensor_data)(OrchRuntime *runtime, const TensorDesc *tensor, uint32_t ndims, const uint32_t *indices);
    void (*set_tensor_data)(OrchRuntime *runtime, const TensorDesc *tensor, uint32_t ndims, const uint32_t *indices,
                            uint64_t value);
    OrchTaskOutputs (*alloc_tensors)(OrchRuntime *runtime, const void *args);
    OrchTaskOutputs (*submit_dummy_task)(OrchRuntime *runtime, const void *args);
    int32_t (*available_cluster_count)(OrchRuntime *runtime);
    int32_t (*available_aiv_count)(OrchRuntime *runtime);
    void *graph_ops[5]; /* null */
    void (*scope_set_site)(const char *file, int32_t line);
} OrchPrebuiltOps;

/* The functions of this workspace's runtime beyond those. */
typedef struct OrchExtension {
    uint32_t size;     /* of this struct, in bytes: later ones are longer */
    uint32_t prebuilt; /* 1: the runtime's ops are OrchPrebuiltOps */
    void (*wait)(OrchRuntime *runtime, const OrchWait *wait);         /* of the next task that is submitted */
    void (*signal)(OrchRuntime *runtime, const OrchSignal *signal);   /* of the next task that is submitted */
    void (*publish_task)(OrchRuntime *runtime, uint64_t task_id);     /* before its scope ends */
    void (*set_site)(OrchRuntime *runtime, const char *file, int32_t line); /* of what is submitted next */
    void (*add_dependency)(OrchRuntime *runtime, uint64_t after, uint64_t before); /* `after` is not published */
    uint32_t (*domain_of)(OrchRuntime *runtime, const void *context); /* for OrchWait and OrchSignal; not followed */
    int32_t (*failure_code)(OrchRuntime *runtime); /* 0: nothing went wrong */
} OrchExtension;

/* A runtime as an orchestration sees it. The last two fields are ours alone. */
struct OrchRuntime {
    const OrchOps *ops;         /* or OrchPrebuiltOps */
    uint8_t pending_scope_mode; /* of the next scope: 0 dependencies are inferred, 1 they are not */
    uint8_t reserved[7];
    uint64_t magic; /* ORCH_EXTENSION_MAGIC */
    const OrchExtension *extension;
};

/* "chiprun1" in ASCII, first character in the lowest byte. */
#define ORCH_EXTENSION_MAGIC UINT64_C(0x316e757270696863)

COMM_STATIC_ASSERT(sizeof(OrchPredicate) == 48, "OrchPredicate: size");
COMM_STATIC_ASSERT(sizeof(OrchLaunch) == 88, "OrchLaunch: size");
COMM_STATIC_ASSERT(sizeof(OrchTaskArgs) == 784, "OrchTaskArgs: size");
COMM_STATIC_ASSERT(offsetof(OrchTaskArgs, launch) == 512, "OrchTaskArgs: launch");
COMM_STATIC_ASSERT(offsetof(OrchTaskArgs, dependencies) == 760, "OrchTaskArgs: dependencies");
COMM_STATIC_ASSERT(sizeof(OrchPrebuiltTaskArgs) == 920, "OrchPrebuiltTaskArgs: size");
COMM_STATIC_ASSERT(offsetof(OrchPrebuiltTaskArgs, dependencies) == 904, "OrchPrebuiltTaskArgs: dependencies");
COMM_STATIC_ASSERT(sizeof(OrchEntryArgs) == 4368, "OrchEntryArgs: size");
COMM_STATIC_ASSERT(offsetof(OrchEntryArgs, launch) == 4096, "OrchEntryArgs: launch");
COMM_STATIC_ASSERT(sizeof(OrchCreateInfo) == 64, "OrchCreateInfo: size");
COMM_STATIC_ASSERT(sizeof(OrchTaskOutputs) == 272, "OrchTaskOutputs: size");
COMM_STATIC_ASSERT(sizeof(OrchKernelIds) == 12, "OrchKernelIds: size");
COMM_STATIC_ASSERT(sizeof(OrchWait) == 24, "OrchWait: size");
COMM_STATIC_ASSERT(sizeof(OrchSignal) == 24, "OrchSignal: size");
COMM_STATIC_ASSERT(sizeof(OrchOps) == 8 * ORCH_OPS, "OrchOps: size");
COMM_STATIC_ASSERT(offsetof(OrchOps, scope_set_site) == 8 * 17, "OrchOps: scope_set_site");
COMM_STATIC_ASSERT(sizeof(OrchExtension) == 8 + 8 * ORCH_EXTENSION_OPS, "OrchExtension: size");
COMM_STATIC_ASSERT(sizeof(OrchPrebuiltOps) == 8 * ORCH_PREBUILT_OPS, "OrchPrebuiltOps: size");
COMM_STATIC_ASSERT(offsetof(OrchPrebuiltOps, scope_set_site) == 8 * 22, "OrchPrebuiltOps: scope_set_site");
COMM_STATIC_ASSERT(sizeof(OrchRuntime) == 32, "OrchRuntime: size");

#endif
