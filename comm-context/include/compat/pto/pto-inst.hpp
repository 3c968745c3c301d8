/* pto/pto-inst.hpp: the qualifiers and barriers of a kernel, as the simulation has them. No tile instructions. */
#ifndef CHIPCOMM_COMPAT_PTO_PTO_INST_HPP
#define CHIPCOMM_COMPAT_PTO_PTO_INST_HPP

#include <cstdint>

/* Sources define some of these for the device's compiler before they include this. */
#undef __gm__
#undef __aicore__
#undef AICORE
#define __gm__
#define __aicore__
#define AICORE
#ifndef __CPU_SIM
#define __CPU_SIM
#endif

enum pipe_t { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_ALL, PIPE_FIX };
enum dsb_t { DSB_ALL, DSB_DDR, DSB_UB, DSB_SEQ };

/* A core of the simulation runs its instructions in order and its cache is coherent: what is left is the order of
 * memory accesses. */
inline void pipe_barrier(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void dsb(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

enum class cache_line_t { SINGLE_CACHE_LINE, ENTIRE_DATA_CACHE };
enum class dcci_dst_t { CACHELINE_ALL, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };
template <typename... Kind>
inline void dcci(const volatile void *, Kind...) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

namespace pto {}

#endif
