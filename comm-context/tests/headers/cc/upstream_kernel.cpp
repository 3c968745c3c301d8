// A kernel as upstream's users write it: its paths and names.
#include <cstdint>

#ifndef __gm__
#define __gm__
#endif
#ifndef __aicore__
#define __aicore__ [aicore]
#endif

#include <pto/pto-inst.hpp>

#include "common/comm_utils.h"
#include "intrinsic.h"
#include "platform_comm/comm_context.h"
#include "pto/comm/comm_types.hpp"
#include "pto/comm/pto_comm_inst.hpp"
#include "pto_async_kernel_api.h"
#include "tensor.h"

using namespace pto;

template <typename T>
static AICORE inline __gm__ T *remote(__gm__ CommContext *ctx, __gm__ T *local, int peer) {
    const uint64_t offset = reinterpret_cast<uint64_t>(local) - ctx->windowsIn[ctx->rankId];
    return reinterpret_cast<__gm__ T *>(ctx->windowsIn[peer] + offset);
}

extern "C" __aicore__ void kernel_entry(__gm__ int64_t *args) {
    __gm__ Tensor *tensor = reinterpret_cast<__gm__ Tensor *>(args[0]);
    __gm__ int32_t *counter = reinterpret_cast<__gm__ int32_t *>(args[1]);
    __gm__ CommContext *ctx = reinterpret_cast<__gm__ CommContext *>(args[2]);
    __gm__ float *data = reinterpret_cast<__gm__ float *>(tensor->buffer.addr) + tensor->start_offset;
    data[get_block_idx(args)] = static_cast<float>(get_block_num(args) + get_sub_block_id(args));
    pipe_barrier(PIPE_ALL);
    for (uint32_t peer = 0; peer < ctx->rankNum; ++peer) {
        pto::comm::Signal signal(remote(ctx, counter, static_cast<int>(peer)));
        pto::comm::TNOTIFY(signal, (int32_t)1, pto::comm::NotifyOp::AtomicAdd);
    }
    pto::comm::Signal mine(counter);
    if (!pto::comm::TTEST(mine, 1, pto::comm::WaitCmp::GE)) {
        pto::comm::TWAIT(mine, 1, pto::comm::WaitCmp::GE);
    }
    pto2_send_notification(counter, 1, pto::comm::NotifyOp::AtomicAdd);
    AsyncCtx async = get_async_ctx(args);
    save_expected_notification_counter(async, counter, 2);
    pto2::detail::defer_flush(async);
    dsb(DSB_DDR);
}
