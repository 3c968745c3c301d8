// An orchestration as upstream's users write it: its paths and names.
#include <stdint.h>

#include "platform_comm/comm_context.h"
#include "pto_arg_with_deps.h"
#include "pto_orchestration_api.h"

#define FUNC_ADD 0
#define FUNC_MIX_AIC 1
#define FUNC_MIX_AIV 2

extern "C" {

__attribute__((visibility("default"))) PTO2OrchestrationConfig aicpu_orchestration_config(const ChipTaskArgs &args) {
    (void)args;
    return PTO2OrchestrationConfig{4};
}

__attribute__((visibility("default"))) void aicpu_orchestration_entry(const ChipTaskArgs &orch_args) {
    const Tensor &in = orch_args.tensor(0).ref();
    const Tensor &out = orch_args.tensor(1).ref();
    const simpler::tmr::Tensor &same = out;
    const uint64_t rounds = orch_args.scalar(0);
    const float factor = orch_args.scalar<float>(1);
    if (rounds == 0) {
        rt_report_fatal(SIMPLER_ERROR_INVALID_ARGS, "rounds=%llu", static_cast<unsigned long long>(rounds));
        return;
    }
    uint32_t shape[1] = {16};
    uint32_t from[1] = {0};
    TensorCreateInfo info(shape, 1, DataType::FLOAT32);
    info.set_initial_value(1.0f);
    SIMPLER_SCOPE() {
        CoreTaskArgs args;
        args.add_input(in);
        args.add_output(info);
        args.add_scalar(factor);
        args.launch_spec.set_block_num(2);
        TaskOutputTensors made = rt_submit_aiv_task(FUNC_ADD, args);
        Tensor part = made.get_ref(0).view(shape, from);

        CoreTaskArgsWithDeps<2> next;
        next.add_inout(part);
        next.add_output(same);
        next.add_dep(made.task_id());
        next.launch_spec.set_require_sync_start(true);
        MixedKernels kernels;
        kernels.aic_kernel_id = FUNC_MIX_AIC;
        kernels.aiv0_kernel_id = FUNC_MIX_AIV;
        kernels.aiv1_kernel_id = INVALID_KERNEL_ID;
        PTO2TaskId last = rt_submit_task(kernels, next).task_id();

        L0TaskArgs barrier;
        barrier.set_dependencies(&last, last.is_valid() ? 1 : 0);
        rt_submit_dummy_task(barrier);
    }
    PTO2_SCOPE(PTO2ScopeMode::MANUAL) {
        TaskOutputTensors buffers = alloc_tensors(info, info);
        LOG_INFO("made %u tensors on %d clusters", buffers.size(), rt_available_cluster_count());
    }
    uint32_t index[1] = {0};
    const float first = get_tensor_data<float>(out, 1, index);
    if (rt_is_fatal()) return;
    set_tensor_data(out, 1, index, first);
}

}  // extern "C"
