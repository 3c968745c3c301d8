/*
 * comm_kernel.h for a vector core of Atlas A2 and A3: the same names as on the simulation, so that a kernel's
 * source does not change. It has the part of comm_kernel.h that the kernels in this folder use.
 *
 * STATE: written from the vendor's public documentation. It was compiled with stubs for the vendor's
 * keywords, never with the vendor's compiler, and it has never run on a device.
 *
 * A core reads and writes memory through a data cache that is not coherent with other cores. Data is written
 * back before a signal is set, and invalidated before a signal or a peer's data is read. All of it is scalar
 * code: it aims at correctness, and a kernel that must be fast replaces comm_copy and comm_add by vector
 * moves.
 *
 * There is no abort word on a chip. A wait ends when it is satisfied; if that never happens, the host's
 * deadline ends the run and the task fails.
 */
#ifndef CHIPCOMM_COMM_KERNEL_H
#define CHIPCOMM_COMM_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "comm_context.h"
#include "tensor.h"

#define COMM_KERNEL extern "C" __global__ __aicore__
#define COMM_DEVICE __aicore__
#define COMM_GM __gm__

namespace comm_detail {

constexpr uint64_t kLine = 64;

/* Writes the cache lines of a range back and invalidates them. */
COMM_DEVICE inline void sync_lines(uint64_t start, uint64_t bytes) {
    for (uint64_t line = start / kLine * kLine; line < start + bytes; line += kLine) {
        dcci(reinterpret_cast<COMM_GM uint64_t *>(line), SINGLE_CACHE_LINE);
    }
    dsb(DSB_DDR);
}

template <typename T>
COMM_DEVICE inline uint64_t address(COMM_GM T *pointer) {
    return reinterpret_cast<uint64_t>(pointer);
}

}  // namespace comm_detail

template <typename T>
COMM_DEVICE inline COMM_GM T *comm_pointer(int64_t arg) {
    return reinterpret_cast<COMM_GM T *>(static_cast<uint64_t>(arg));
}

template <typename T>
struct CommSpan {
    COMM_GM T *data;
    size_t count;
};

template <typename T>
COMM_DEVICE inline CommSpan<T> comm_tensor(int64_t arg) {
    const auto *tensor = comm_pointer<const TensorDesc>(arg);
    return CommSpan<T>{reinterpret_cast<COMM_GM T *>(tensor->addr) + tensor->start_offset, tensor->extent};
}

template <typename T>
COMM_DEVICE inline COMM_GM T *CommRemotePtr(COMM_GM const CommContext *ctx, COMM_GM T *local_ptr, int pe) {
    const uint64_t offset = comm_detail::address(local_ptr) - ctx->windowsIn[ctx->rankId];
    return reinterpret_cast<COMM_GM T *>(ctx->windowsIn[pe] + offset);
}

/* As on the simulation: slot r is written by rank r only, and its epoch only increases. */
typedef struct CommPhaseBarrier {
    struct {
        uint32_t epoch;
        uint32_t reserved[15];
    } slot[COMM_MAX_RANK_NUM];
} CommPhaseBarrier;

static_assert(sizeof(CommPhaseBarrier) == 4096, "CommPhaseBarrier: size");

COMM_DEVICE inline uint32_t comm_phase(COMM_GM const CommContext *ctx, COMM_GM const CommPhaseBarrier *barrier) {
    const auto *word = &barrier->slot[ctx->rankId].epoch;
    comm_detail::sync_lines(comm_detail::address(word), sizeof(uint32_t));
    return *static_cast<COMM_GM const volatile uint32_t *>(word);
}

/* Always true on a chip; see above. comm_copy and comm_add have written their data back already. */
[[nodiscard]] COMM_DEVICE inline bool comm_phase_barrier(COMM_GM const CommContext *ctx,
                                                         COMM_GM CommPhaseBarrier *barrier) {
    const uint32_t me = ctx->rankId;
    const uint32_t epoch = comm_phase(ctx, barrier) + 1;
    for (uint32_t peer = 0; peer < ctx->rankNum; ++peer) {
        auto *word = &CommRemotePtr(ctx, barrier, static_cast<int>(peer))->slot[me].epoch;
        *static_cast<COMM_GM volatile uint32_t *>(word) = epoch;
        comm_detail::sync_lines(comm_detail::address(word), sizeof(uint32_t));
    }
    for (uint32_t peer = 0; peer < ctx->rankNum; ++peer) {
        const auto *word = &barrier->slot[peer].epoch;
        uint32_t seen = 0;
        do {
            comm_detail::sync_lines(comm_detail::address(word), sizeof(uint32_t));
            seen = *static_cast<COMM_GM const volatile uint32_t *>(word);
        } while (static_cast<int32_t>(seen - epoch) < 0);
    }
    return true;
}

template <typename T, typename From>
COMM_DEVICE inline void comm_copy(COMM_GM T *dst, COMM_GM From *src, size_t count) {
    comm_detail::sync_lines(comm_detail::address(src), count * sizeof(T));
    for (size_t i = 0; i < count; ++i) {
        dst[i] = src[i];
    }
    comm_detail::sync_lines(comm_detail::address(dst), count * sizeof(T));
}

template <typename T, typename From>
COMM_DEVICE inline void comm_add(COMM_GM T *dst, COMM_GM From *src, size_t count) {
    comm_detail::sync_lines(comm_detail::address(src), count * sizeof(T));
    for (size_t i = 0; i < count; ++i) {
        dst[i] = dst[i] + src[i];
    }
    comm_detail::sync_lines(comm_detail::address(dst), count * sizeof(T));
}

#endif
