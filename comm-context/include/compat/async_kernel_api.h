/* async_kernel_api.h: deferred completion, under upstream's names. */
#ifndef CHIPCOMM_COMPAT_ASYNC_KERNEL_API_H
#define CHIPCOMM_COMPAT_ASYNC_KERNEL_API_H

#include "../kernel_completion.h"
#include "pto/comm/pto_comm_inst.hpp"
#include "pto/pto-inst.hpp"

enum { COMPLETION_ENGINE_SDMA = 0, COMPLETION_TYPE_COUNTER = 0 };

/* A word that the completion of a task waits for. */
struct CompletionToken {
    uint64_t addr;
    uint32_t expected_value;
    uint32_t engine;
    int32_t completion_type;
    uint64_t backend_cookie;
};

/* Where a kernel's task may wait: its local context. */
struct AsyncCtx {
    const LocalContext *local;
};

inline AsyncCtx get_async_ctx(const int64_t *args) { return AsyncCtx{&chip::local_context(args)}; }

inline bool register_completion_condition(AsyncCtx &ctx, const CompletionToken &token) {
    return chip::add_completion(*ctx.local, CompletionEntry{token.addr, token.backend_cookie, token.expected_value,
                                                            token.engine, token.completion_type, 0});
}

/* The task completes when the counter has reached `expected`. */
inline void save_expected_notification_counter(AsyncCtx &ctx, const volatile void *counter, uint32_t expected) {
    const CompletionToken token = {static_cast<uint64_t>(reinterpret_cast<uintptr_t>(counter)), expected,
                                   COMPLETION_ENGINE_SDMA, COMPLETION_TYPE_COUNTER, 0};
    (void)register_completion_condition(ctx, token);
}

inline void send_notification(volatile void *counter, int32_t value, pto::comm::NotifyOp op) {
    pto::comm::TNOTIFY(pto::comm::Signal(static_cast<int32_t *>(const_cast<void *>(counter))), value, op);
}

/* The same, as they were called before. */
inline void pto2_save_expected_notification_counter(const int64_t *args, const volatile void *counter,
                                                    uint32_t expected) {
    AsyncCtx ctx = get_async_ctx(args);
    save_expected_notification_counter(ctx, counter, expected);
}
inline void pto2_send_notification(volatile void *counter, int32_t value, pto::comm::NotifyOp op) {
    send_notification(counter, value, op);
}

namespace pto2 {
namespace detail {
/* What a kernel wrote is visible on the simulation. */
inline void defer_flush(const AsyncCtx &) {}
inline void defer_flush_range(const volatile void *, size_t) {}
}  // namespace detail
}  // namespace pto2

#endif
