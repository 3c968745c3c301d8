/*
 * comm_kernel.h for a vector core of Atlas A2 and A3, and of A5: the same names as on the simulation, so that
 * a kernel's source does not change. It has the part of comm_kernel.h that the kernels in this folder use.
 *
 * STATE: written from the vendor's public documentation. It was compiled with stubs for the vendor's
 * keywords, never with the vendor's compiler, and it has never run on a device.
 *
 * A core reads and writes memory through a data cache that is not coherent with other cores. Data is written
 * back before a signal is set, and invalidated before a signal or a peer's data is read. All of it is scalar
 * code: it aims at correctness, and a kernel that must be fast replaces comm_copy and comm_add by vector
 * moves.
 *
 * A wait on a chip does not poll the abort word. It ends when it is satisfied; if that never happens, the
 * host's deadline ends the run and the task fails.
 */
#ifndef CHIPCOMM_COMM_KERNEL_H
#define CHIPCOMM_COMM_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "comm_context.h"
#include "tensor.h"

/* An ordinary function: `cargo xtask kernels` makes the __global__ entry around it, which passes on the argument list
 * of its block. */
#define COMM_KERNEL extern "C" __aicore__
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

/* As on the simulation: writes the elements back, and forgets them. */
template <typename T>
COMM_DEVICE inline void comm_flush(COMM_GM const T *data, size_t count) {
    comm_detail::sync_lines(comm_detail::address(data), count * sizeof(T));
}

template <typename T>
COMM_DEVICE inline COMM_GM T *CommRemotePtr(COMM_GM const CommContext *ctx, COMM_GM T *local_ptr, int pe) {
    const uint64_t offset = comm_detail::address(local_ptr) - ctx->windowsIn[ctx->rankId];
    return reinterpret_cast<COMM_GM T *>(ctx->windowsIn[pe] + offset);
}

/* The generation of the run: changes after a run that was aborted. 0 if the context has no tail. */
COMM_DEVICE inline uint32_t comm_generation(COMM_GM const CommContext *ctx) {
    const uint64_t at = comm_detail::address(ctx) + sizeof(CommContext);
    const auto *tail = reinterpret_cast<COMM_GM const CommContextTail *>(at);
    if (tail->magic != COMM_CONTEXT_TAIL_MAGIC) {
        return 0;
    }
    comm_detail::sync_lines(tail->generation, sizeof(uint32_t));
    return *reinterpret_cast<COMM_GM const volatile uint32_t *>(tail->generation);
}

/* As on the simulation: slot r is written by rank r only; the generation in the upper half of the word, a count
 * that only increases in the lower half. */
typedef struct CommPhaseBarrier {
    struct {
        uint64_t word;
        uint32_t reserved[14];
    } slot[COMM_MAX_RANK_NUM];
} CommPhaseBarrier;

static_assert(sizeof(CommPhaseBarrier) == 4096, "CommPhaseBarrier: size");

COMM_DEVICE inline uint32_t comm_phase(COMM_GM const CommContext *ctx, COMM_GM const CommPhaseBarrier *barrier) {
    const auto *word = &barrier->slot[ctx->rankId].word;
    comm_detail::sync_lines(comm_detail::address(word), sizeof(uint64_t));
    const uint64_t seen = *static_cast<COMM_GM const volatile uint64_t *>(word);
    return seen >> 32 == comm_generation(ctx) ? static_cast<uint32_t>(seen) : 0;
}

/* Always true on a chip; see above. comm_copy and comm_add have written their data back already. */
[[nodiscard]] COMM_DEVICE inline bool comm_phase_barrier(COMM_GM const CommContext *ctx,
                                                         COMM_GM CommPhaseBarrier *barrier) {
    const uint32_t me = ctx->rankId;
    const uint32_t generation = comm_generation(ctx);
    const uint32_t epoch = comm_phase(ctx, barrier) + 1;
    for (uint32_t peer = 0; peer < ctx->rankNum; ++peer) {
        auto *word = &CommRemotePtr(ctx, barrier, static_cast<int>(peer))->slot[me].word;
        *static_cast<COMM_GM volatile uint64_t *>(word) = static_cast<uint64_t>(generation) << 32 | epoch;
        comm_detail::sync_lines(comm_detail::address(word), sizeof(uint64_t));
    }
    for (uint32_t peer = 0; peer < ctx->rankNum; ++peer) {
        const auto *word = &barrier->slot[peer].word;
        uint64_t seen = 0;
        do {
            comm_detail::sync_lines(comm_detail::address(word), sizeof(uint64_t));
            seen = *static_cast<COMM_GM const volatile uint64_t *>(word);
        } while (seen >> 32 != generation || static_cast<int32_t>(static_cast<uint32_t>(seen) - epoch) < 0);
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
