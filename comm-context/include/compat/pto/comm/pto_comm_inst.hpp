/* pto/comm/pto_comm_inst.hpp: TNOTIFY, TTEST and TWAIT on signals, under upstream's names. */
#ifndef CHIPCOMM_COMPAT_PTO_COMM_PTO_COMM_INST_HPP
#define CHIPCOMM_COMPAT_PTO_COMM_PTO_COMM_INST_HPP

#include <sched.h>

#include "../../../comm_kernel.h"
#include "comm_types.hpp"

namespace pto {
namespace comm {

/* Adds to a signal or stores it. Whoever waits for the result sees what this rank wrote before. */
inline void TNOTIFY(const Signal &signal, int32_t value, NotifyOp op) {
    if (op == NotifyOp::Set) {
        /* Release: publishes the data; pairs with the acquire in TTEST. */
        __atomic_store_n(signal.data(), value, __ATOMIC_RELEASE);
    } else {
        comm_notify(nullptr, signal.data(), value);
    }
}

/* Whether a signal compares so now. Greater and less go by the difference, so a signal may wrap. */
inline bool TTEST(const Signal &signal, int32_t value, WaitCmp compare) {
    /* Acquire: pairs with the release in TNOTIFY. */
    const auto seen = static_cast<uint32_t>(__atomic_load_n(signal.data(), __ATOMIC_ACQUIRE));
    const auto difference = static_cast<int32_t>(seen - static_cast<uint32_t>(value));
    switch (compare) {
        case WaitCmp::EQ: return difference == 0;
        case WaitCmp::NE: return difference != 0;
        case WaitCmp::GT: return difference > 0;
        case WaitCmp::GE: return difference >= 0;
        case WaitCmp::LT: return difference < 0;
        case WaitCmp::LE: return difference <= 0;
    }
    return false;
}

/* Returns when a signal compares so. It knows of no abort: prefer comm_wait, which does. */
inline void TWAIT(const Signal &signal, int32_t value, WaitCmp compare) {
    for (int left = comm_detail::allowed_cores() > 1 ? comm_detail::kSpins : 0; !TTEST(signal, value, compare); --left) {
        if (left > 0) {
            comm_detail::pause();
        } else {
            left = 0;
            sched_yield();
        }
    }
}

}  // namespace comm
}  // namespace pto

#endif
