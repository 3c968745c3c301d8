// An orchestration and its kernels with upstream's paths and names, compiled with the compatible headers alone.
#include <cstdint>

#include <pto/pto-inst.hpp>

#include "intrinsic.h"
#include "orchestration_api.h"
#include "pto/comm/comm_types.hpp"
#include "pto/comm/pto_comm_inst.hpp"
#include "pto_async_kernel_api.h"
#include "tensor.h"

extern "C" {

__attribute__((visibility("default"))) OrchestrationConfig aicpu_orchestration_config(const ChipTaskArgs &) {
    return OrchestrationConfig{5};
}

// out = (a + b) * factor, then flags = 1: two kernels that signal each other, and one that completes later.
__attribute__((visibility("default"))) void aicpu_orchestration_entry(const ChipTaskArgs &orch_args) {
    const simpler::tmr::Tensor &a = orch_args.tensor(0).ref();
    const simpler::tmr::Tensor &b = orch_args.tensor(1).ref();
    const simpler::tmr::Tensor &out = orch_args.tensor(2).ref();
    const simpler::tmr::Tensor &flags = orch_args.tensor(3).ref();
    uint32_t shape[1] = {a.shapes[0]};
    TensorCreateInfo info(shape, 1, DataType::FLOAT32);
    TaskId last;
    SIMPLER_SCOPE() {
        CoreTaskArgs add;
        add.add_input(a, b);
        add.add_output(info);
        add.launch_spec.set_block_num(2);
        TaskOutputTensors sum = rt_submit_aiv_task(0, add);

        CoreTaskArgsWithDeps<1> scale;
        scale.add_input(sum.get_ref(0));
        scale.add_output(out);
        scale.add_scalar(orch_args.scalar<float>(0));
        scale.add_dep(sum.task_id());
        last = rt_submit_aic_task(1, scale).task_id();
    }
    uint32_t words[1] = {2};
    TensorCreateInfo signals(words, 1, DataType::INT32);
    signals.set_initial_value(0);
    TaskOutputTensors made = alloc_tensors(signals);
    if (rt_is_fatal()) return;
    MixedKernels pair;
    pair.aiv0_kernel_id = 2;
    pair.aiv1_kernel_id = 2;
    CoreTaskArgs exchange;
    exchange.add_no_dep(made.get_ref(0));
    exchange.add_inout(flags);
    exchange.set_dependencies(&last, 1);
    rt_submit_task(pair, exchange);
    LOG_INFO("%d clusters", rt_available_cluster_count());
}

void add(__gm__ int64_t *args) {
    auto *a = reinterpret_cast<__gm__ Tensor *>(args[0]), *b = reinterpret_cast<__gm__ Tensor *>(args[1]);
    auto *out = reinterpret_cast<__gm__ Tensor *>(args[2]);
    auto *to = reinterpret_cast<__gm__ float *>(out->buffer.addr) + out->start_offset;
    for (int32_t i = get_block_idx(args); i < static_cast<int32_t>(out->shapes[0]); i += get_block_num(args)) {
        to[i] = a->data_as<float>()[i] + b->data_as<float>()[i];
    }
}

void scale(__gm__ int64_t *args) {
    auto *in = reinterpret_cast<__gm__ Tensor *>(args[0]), *out = reinterpret_cast<__gm__ Tensor *>(args[1]);
    float factor;
    __builtin_memcpy(&factor, &args[2], sizeof(factor));
    for (uint32_t i = 0; i < in->shapes[0]; ++i) out->data_as<float>()[i] = in->data_as<float>()[i] * factor;
}

// Runs on both vector cores of a cluster: each raises the other's word, waits for its own, and then completes when the
// other's has been raised a second time.
void exchange(__gm__ int64_t *args) {
    auto *words = reinterpret_cast<__gm__ Tensor *>(args[0])->data_as<int32_t>();
    auto *flags = reinterpret_cast<__gm__ Tensor *>(args[1])->data_as<float>();
    const int32_t me = get_sub_block_id(args);
    pto::comm::Signal mine(words + me), theirs(words + 1 - me);
    pto::comm::TNOTIFY(theirs, 1, pto::comm::NotifyOp::AtomicAdd);
    if (!pto::comm::TTEST(mine, 0, pto::comm::WaitCmp::GT)) pto::comm::TWAIT(mine, 1, pto::comm::WaitCmp::GE);
    flags[me] = 1;
    if (me == 1) flags[2] = 1;
    AsyncCtx ctx = get_async_ctx(args);
    save_expected_notification_counter(ctx, words + me, 2);
    send_notification(words + 1 - me, 1, pto::comm::NotifyOp::AtomicAdd);
    pipe_barrier(PIPE_ALL);
}

}  // extern "C"
