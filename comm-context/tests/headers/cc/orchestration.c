/* Prints every size, alignment, offset and constant of orchestration_abi.h; compiled as C11 and as C++17. */
#include <stdio.h>

#include "orchestration_abi.h"

#ifdef __cplusplus
#define ALIGN(type) alignof(type)
#else
#define ALIGN(type) _Alignof(type)
#endif
#define TYPE(type) printf("%s %zu %zu\n", #type, sizeof(type), (size_t)ALIGN(type))
#define FIELD(type, field) \
    printf("%s.%s %zu %zu\n", #type, #field, offsetof(type, field), sizeof(((type *)0)->field))
#define VALUE(name) printf("%s %zu 0\n", #name, (size_t)(name))

int main(void) {
    TYPE(OrchPredicate);
    FIELD(OrchPredicate, tensor);
    FIELD(OrchPredicate, ndims);
    FIELD(OrchPredicate, indices);
    FIELD(OrchPredicate, op);
    FIELD(OrchPredicate, reserved);
    FIELD(OrchPredicate, target);
    TYPE(OrchLaunch);
    FIELD(OrchLaunch, tensor_count);
    FIELD(OrchLaunch, scalar_count);
    FIELD(OrchLaunch, has_error);
    FIELD(OrchLaunch, reserved0);
    FIELD(OrchLaunch, error_text);
    FIELD(OrchLaunch, block_num);
    FIELD(OrchLaunch, sync_start);
    FIELD(OrchLaunch, reserved1);
    FIELD(OrchLaunch, early);
    FIELD(OrchLaunch, reserved2);
    FIELD(OrchLaunch, predicate);
    FIELD(OrchLaunch, timing);
    FIELD(OrchLaunch, reserved3);
    TYPE(OrchTaskArgs);
    FIELD(OrchTaskArgs, tags);
    FIELD(OrchTaskArgs, tensors);
    FIELD(OrchTaskArgs, scalars);
    FIELD(OrchTaskArgs, launch);
    FIELD(OrchTaskArgs, dump);
    FIELD(OrchTaskArgs, dependencies);
    FIELD(OrchTaskArgs, dependency_kinds);
    FIELD(OrchTaskArgs, dependency_count);
    FIELD(OrchTaskArgs, reserved);
    TYPE(OrchPrebuiltTaskArgs);
    FIELD(OrchPrebuiltTaskArgs, tags);
    FIELD(OrchPrebuiltTaskArgs, tensors);
    FIELD(OrchPrebuiltTaskArgs, scalars);
    FIELD(OrchPrebuiltTaskArgs, launch);
    FIELD(OrchPrebuiltTaskArgs, dump);
    FIELD(OrchPrebuiltTaskArgs, dependencies);
    FIELD(OrchPrebuiltTaskArgs, dependency_count);
    FIELD(OrchPrebuiltTaskArgs, reserved);
    TYPE(OrchEntryArgs);
    FIELD(OrchEntryArgs, tags);
    FIELD(OrchEntryArgs, tensors);
    FIELD(OrchEntryArgs, scalars);
    FIELD(OrchEntryArgs, launch);
    FIELD(OrchEntryArgs, dump);
    FIELD(OrchEntryArgs, dependencies);
    FIELD(OrchEntryArgs, dependency_kinds);
    FIELD(OrchEntryArgs, dependency_count);
    FIELD(OrchEntryArgs, reserved);
    TYPE(OrchCreateInfo);
    FIELD(OrchCreateInfo, initial);
    FIELD(OrchCreateInfo, has_initial);
    FIELD(OrchCreateInfo, reserved0);
    FIELD(OrchCreateInfo, version);
    FIELD(OrchCreateInfo, ndims);
    FIELD(OrchCreateInfo, dtype);
    FIELD(OrchCreateInfo, manual_dep);
    FIELD(OrchCreateInfo, is_contiguous);
    FIELD(OrchCreateInfo, reserved1);
    FIELD(OrchCreateInfo, shapes);
    TYPE(OrchTaskOutputs);
    FIELD(OrchTaskOutputs, task_id);
    FIELD(OrchTaskOutputs, count);
    FIELD(OrchTaskOutputs, reserved);
    FIELD(OrchTaskOutputs, tensors);
    TYPE(OrchKernelIds);
    FIELD(OrchKernelIds, aic);
    FIELD(OrchKernelIds, aiv0);
    FIELD(OrchKernelIds, aiv1);
    TYPE(OrchWait);
    FIELD(OrchWait, offset);
    FIELD(OrchWait, domain);
    FIELD(OrchWait, value);
    FIELD(OrchWait, signaller);
    FIELD(OrchWait, reserved);
    TYPE(OrchSignal);
    FIELD(OrchSignal, offset);
    FIELD(OrchSignal, domain);
    FIELD(OrchSignal, rank);
    FIELD(OrchSignal, value);
    FIELD(OrchSignal, set);
    TYPE(OrchRuntime);
    FIELD(OrchRuntime, ops);
    FIELD(OrchRuntime, pending_scope_mode);
    FIELD(OrchRuntime, reserved);
    FIELD(OrchRuntime, magic);
    FIELD(OrchRuntime, extension);
    TYPE(OrchOps);
    FIELD(OrchOps, submit_task);
    FIELD(OrchOps, scope_begin);
    FIELD(OrchOps, scope_end);
    FIELD(OrchOps, orchestration_done);
    FIELD(OrchOps, is_fatal);
    FIELD(OrchOps, report_fatal);
    FIELD(OrchOps, log_error);
    FIELD(OrchOps, log_warn);
    FIELD(OrchOps, log_timing);
    FIELD(OrchOps, log_info);
    FIELD(OrchOps, log_debug);
    FIELD(OrchOps, get_tensor_data);
    FIELD(OrchOps, set_tensor_data);
    FIELD(OrchOps, alloc_tensors);
    FIELD(OrchOps, submit_dummy_task);
    FIELD(OrchOps, available_cluster_count);
    FIELD(OrchOps, available_aiv_count);
    FIELD(OrchOps, scope_set_site);
    TYPE(OrchPrebuiltOps);
    FIELD(OrchPrebuiltOps, submit_task);
    FIELD(OrchPrebuiltOps, scope_begin);
    FIELD(OrchPrebuiltOps, scope_end);
    FIELD(OrchPrebuiltOps, orchestration_done);
    FIELD(OrchPrebuiltOps, is_fatal);
    FIELD(OrchPrebuiltOps, report_fatal);
    FIELD(OrchPrebuiltOps, log_error);
    FIELD(OrchPrebuiltOps, log_warn);
    FIELD(OrchPrebuiltOps, log_timing);
    FIELD(OrchPrebuiltOps, log_info);
    FIELD(OrchPrebuiltOps, log_debug);
    FIELD(OrchPrebuiltOps, get_tensor_data);
    FIELD(OrchPrebuiltOps, set_tensor_data);
    FIELD(OrchPrebuiltOps, alloc_tensors);
    FIELD(OrchPrebuiltOps, submit_dummy_task);
    FIELD(OrchPrebuiltOps, available_cluster_count);
    FIELD(OrchPrebuiltOps, available_aiv_count);
    FIELD(OrchPrebuiltOps, graph_ops);
    FIELD(OrchPrebuiltOps, scope_set_site);
    TYPE(OrchExtension);
    FIELD(OrchExtension, size);
    FIELD(OrchExtension, prebuilt);
    FIELD(OrchExtension, wait);
    FIELD(OrchExtension, signal);
    FIELD(OrchExtension, publish_task);
    FIELD(OrchExtension, set_site);
    FIELD(OrchExtension, add_dependency);
    FIELD(OrchExtension, domain_of);
    FIELD(OrchExtension, failure_code);
    VALUE(ORCH_TASK_TENSORS);
    VALUE(ORCH_TASK_SCALARS);
    VALUE(ORCH_ENTRY_TENSORS);
    VALUE(ORCH_ENTRY_SCALARS);
    VALUE(ORCH_OPS);
    VALUE(ORCH_PREBUILT_OPS);
    VALUE(ORCH_EXTENSION_OPS);
    VALUE(ORCH_DEPENDENCY_WAIT);
    VALUE(ORCH_DEPENDENCY_RETAIN);
    VALUE(ORCH_INPUT);
    VALUE(ORCH_OUTPUT);
    VALUE(ORCH_INOUT);
    VALUE(ORCH_OUTPUT_EXISTING);
    VALUE(ORCH_NO_DEP);
    VALUE(ORCH_NONE);
    VALUE(ORCH_EQ);
    VALUE(ORCH_NE);
    VALUE(ORCH_GT);
    VALUE(ORCH_LT);
    VALUE(ORCH_GE);
    VALUE(ORCH_LE);
    VALUE(ORCH_EXTENSION_MAGIC);
    puts(ORCH_VERSION " 0 0");
    return 0;
}
