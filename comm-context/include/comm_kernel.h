/*
 * comm_kernel.h: helpers for kernels that communicate through windows. C++17, for the simulation.
 *
 * A build for an Ascend core replaces this header; the other headers are the same on every platform.
 *
 * A signal is a 32-bit word in a window. It starts at 0 and only grows. The sender writes its data, then
 * calls comm_notify; the receiver calls comm_wait, then reads the data. A signal is never reset, so a
 * receiver that waits on it repeatedly adds up what it has waited for. It may wrap: the two are compared by
 * their difference, which must stay below 2^31.
 *
 * Every wait ends when its condition holds or when the run is aborted, and says which. A kernel whose wait
 * returns false must return; its task has failed.
 */
#ifndef CHIPCOMM_COMM_KERNEL_H
#define CHIPCOMM_COMM_KERNEL_H

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "comm_context.h"
#include "tensor.h"

/* Qualifiers of a kernel's entry function, of a function that it calls, and of a pointee in device memory.
 * The compiler for an Ascend core needs them; in the simulation the last two are empty. */
#define COMM_KERNEL extern "C"
#define COMM_DEVICE
#define COMM_GM

/* A kernel argument as a pointer. */
template <typename T>
inline T *comm_pointer(int64_t arg) {
    return reinterpret_cast<T *>(static_cast<uintptr_t>(arg));
}

/* The elements of a contiguous tensor. */
template <typename T>
struct CommSpan {
    T *data;
    size_t count;
};

/* The tensor that a kernel argument describes. Unchecked: it must be contiguous, and T must be the type of
 * its dtype. */
template <typename T>
inline CommSpan<T> comm_tensor(int64_t arg) {
    const auto *tensor = comm_pointer<const TensorDesc>(arg);
    return CommSpan<T>{tensor_data<T>(tensor), static_cast<size_t>(tensor->extent)};
}

/* What this core wrote to the elements is in memory afterwards, and what it reads of them next comes from
 * there. Needed on a chip, after the last plain store of a kernel to its output: the caches of its cores are
 * not coherent. The simulation's are. */
template <typename T>
inline void comm_flush(const T *data, size_t count) {
    (void)data;
    (void)count;
}

/* The address in rank pe's window that corresponds to local_ptr in this rank's. Unchecked: local_ptr must
 * be in this rank's window, and pe < rankNum. */
template <typename T>
inline T *CommRemotePtr(const CommContext *ctx, T *local_ptr, int pe) {
    const uint64_t local = reinterpret_cast<uintptr_t>(local_ptr);
    const uint64_t remote = ctx->windowsIn[pe] + (local - ctx->windowsIn[ctx->rankId]);
    return reinterpret_cast<T *>(static_cast<uintptr_t>(remote));
}

namespace comm_detail {

/* The tail of a context, or null if the context has none. The memory around the context can be read. */
inline const CommContextTail *tail(const CommContext *ctx) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(ctx) + sizeof(CommContext);
    const auto *tail = reinterpret_cast<const CommContextTail *>(at);
    return tail->magic == COMM_CONTEXT_TAIL_MAGIC ? tail : nullptr;
}

/* Acquire: pairs with the release store of the process that writes the word. */
inline uint32_t load(uint64_t word) {
    return __atomic_load_n(reinterpret_cast<const uint32_t *>(static_cast<uintptr_t>(word)), __ATOMIC_ACQUIRE);
}

}  // namespace comm_detail

/* Whether the run is aborted. A kernel that sees this must return; its task has failed. */
inline bool comm_aborted(const CommContext *ctx) {
    const CommContextTail *tail = comm_detail::tail(ctx);
    return tail != nullptr && comm_detail::load(tail->abort) != 0;
}

/*
 * The generation of the run: another number after a run that was aborted, the same on all ranks. Constant
 * while a kernel runs.
 *
 * What such a run left in windows is undefined. A CommPhaseBarrier starts again by itself; signals do not, so a
 * kernel that keeps a count of what it has waited for keeps it for each generation, in signals of their own.
 */
inline uint32_t comm_generation(const CommContext *ctx) {
    const CommContextTail *tail = comm_detail::tail(ctx);
    return tail != nullptr ? comm_detail::load(tail->generation) : 0;
}

namespace comm_detail {

/* A few microseconds of pauses: longer than a transfer between two cores, far below a time slice. */
constexpr int kSpins = 256;

/* The number of cores that this process may run on. */
inline int allowed_cores() {
    static int known = 0;
    /* Relaxed: a thread that finds 0 counts for itself and gets the same number. */
    int count = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (count == 0) {
        cpu_set_t mine;
        count = sched_getaffinity(0, sizeof(mine), &mine) == 0 ? CPU_COUNT(&mine) : 1;
        __atomic_store_n(&known, count, __ATOMIC_RELAXED);
    }
    return count;
}

/* Whether each rank has a core: as the backend counted them, which knows all ranks and their CPU quotas. */
inline bool has_core_per_rank(const CommContext *ctx) {
    const CommContextTail *tail = comm_detail::tail(ctx);
    const uint64_t counted = tail != nullptr ? tail->cores : 0;
    return ctx->rankNum <= (counted != 0 ? counted : static_cast<uint64_t>(allowed_cores()));
}

/* With a core for each rank a wait is short; with fewer, spinning would delay the awaited rank. */
inline int spins(const CommContext *ctx) { return has_core_per_rank(ctx) ? kSpins : 0; }

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

/* So often a wait yields the core before it counts as slow: some microseconds. On a loaded machine, where each yield
 * takes milliseconds, that is still long before anybody asks what a kernel waits for. */
constexpr int kSlow = 16;

/* Records what this rank's kernel waits for, or with a null word that it does not any more. */
inline void record_wait(const CommContext *ctx, const void *word, uint64_t seen, uint64_t wanted, uint64_t writer) {
    const CommContextTail *tail = comm_detail::tail(ctx);
    if (tail == nullptr || tail->wait == 0) {
        return;
    }
    auto *record = reinterpret_cast<CommWait *>(static_cast<uintptr_t>(tail->wait));
    /* Relaxed: for people to read; the release below is the last. */
    __atomic_store_n(&record->wanted, wanted, __ATOMIC_RELAXED);
    __atomic_store_n(&record->seen, seen, __ATOMIC_RELAXED);
    __atomic_store_n(&record->writer, writer, __ATOMIC_RELAXED);
    __atomic_store_n(&record->word, reinterpret_cast<uintptr_t>(word), __ATOMIC_RELEASE);
}

/* Waits for satisfied() or an abort: spins briefly, then yields the core until either holds. record(true) is
 * called at every turn of a slow wait, and record(false) when one is over. */
template <typename Satisfied, typename Record>
inline bool wait_until(const CommContext *ctx, Satisfied satisfied, Record record) {
    if (satisfied()) {
        return true;
    }
    int yields = 0;
    const auto end = [&](bool ended) {
        if (yields == kSlow) {
            record(false);
        }
        return ended;
    };
    for (int left = spins(ctx);; --left) {
        if (comm_aborted(ctx)) {
            return end(false);
        }
        if (left > 0) {
            pause();
        } else {
            left = 0;
            sched_yield();
            if (yields < kSlow) {
                ++yields;
            }
            if (yields == kSlow) {
                record(true);
            }
        }
        if (satisfied()) {
            return end(true);
        }
    }
}

/* Whether a count that may wrap has come to `target`; the two are less than 2^31 apart. */
inline bool reached(uint32_t count, uint32_t target) { return static_cast<int32_t>(count - target) >= 0; }

template <typename Word>
constexpr bool kIsSignal = std::is_same<Word, int32_t>::value || std::is_same<Word, uint32_t>::value;

}  // namespace comm_detail

/* Adds to a signal, local or remote. Ranks that wait for the sum see what this rank wrote before. */
template <typename Word>
inline void comm_notify(const CommContext *ctx, Word *signal, typename std::common_type<Word>::type add) {
    static_assert(comm_detail::kIsSignal<Word>, "a signal is an int32_t or uint32_t");
    (void)ctx;
    /* Release: publishes the data; pairs with the acquire in comm_wait. */
    __atomic_fetch_add(signal, add, __ATOMIC_RELEASE);
}

/* Waits until a signal has reached at_least: their difference, as a signed number, is not negative. False if the run is aborted first; the data is then undefined. */
template <typename Word>
[[nodiscard]] inline bool comm_wait(const CommContext *ctx, const Word *signal,
                                    typename std::common_type<Word>::type at_least) {
    static_assert(comm_detail::kIsSignal<Word>, "a signal is an int32_t or uint32_t");
    const auto wanted = static_cast<uint32_t>(at_least);
    /* Acquire: pairs with the release in comm_notify. */
    const auto seen = [=] { return static_cast<uint32_t>(__atomic_load_n(signal, __ATOMIC_ACQUIRE)); };
    const auto record = [=](bool waits) {
        comm_detail::record_wait(ctx, waits ? signal : nullptr, seen(), wanted, 0);
    };
    return comm_detail::wait_until(ctx, [=] { return comm_detail::reached(seen(), wanted); }, record);
}

/*
 * A barrier of all ranks, at the same offset of every window, a multiple of 8. Starts zeroed; reusable at once.
 *
 * Slot r of every copy is written by rank r only: the generation in the upper half of the word, and in the
 * lower half how many times rank r has arrived in it. The count only grows, so a fast rank in the next round
 * is never mistaken for a slow one in this round. A run that was aborted leaves the ranks at different counts;
 * the generation that follows counts from 0 again. One cache line each: a store disturbs only its reader.
 */
typedef struct CommPhaseBarrier {
    struct {
        uint64_t word;
        uint32_t reserved[14];
    } slot[COMM_MAX_RANK_NUM];
} CommPhaseBarrier;

static_assert(sizeof(CommPhaseBarrier) == 4096, "CommPhaseBarrier: size");

/* How many times this rank has passed the barrier since the last run that was aborted. The same on all ranks
 * between two barriers. */
inline uint32_t comm_phase(const CommContext *ctx, const CommPhaseBarrier *barrier) {
    /* Only this rank writes the word. */
    const uint64_t word = __atomic_load_n(&barrier->slot[ctx->rankId].word, __ATOMIC_ACQUIRE);
    return word >> 32 == comm_generation(ctx) ? static_cast<uint32_t>(word) : 0;
}

/* Waits for every rank. What a rank wrote before, every rank sees after. False if aborted first. */
[[nodiscard]] inline bool comm_phase_barrier(const CommContext *ctx, CommPhaseBarrier *barrier) {
    const uint32_t me = ctx->rankId;
    const uint32_t generation = comm_generation(ctx);
    const uint32_t epoch = comm_phase(ctx, barrier) + 1;
    for (uint32_t step = 1; step <= ctx->rankNum; ++step) {
        const uint32_t peer = (me + step) % ctx->rankNum;
        CommPhaseBarrier *theirs = CommRemotePtr(ctx, barrier, static_cast<int>(peer));
        /* Release: publishes this rank's data; pairs with the acquire below, on the peer. */
        __atomic_store_n(&theirs->slot[me].word, uint64_t{generation} << 32 | epoch, __ATOMIC_RELEASE);
    }
    for (uint32_t peer = 0; peer < ctx->rankNum; ++peer) {
        const uint64_t *word = &barrier->slot[peer].word;
        /* A word of another generation is one that the peer has not written yet in this one. */
        const auto arrived = [=] {
            const uint64_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
            return seen >> 32 == generation && comm_detail::reached(static_cast<uint32_t>(seen), epoch);
        };
        const auto record = [=](bool waits) {
            const uint64_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
            const uint32_t count = seen >> 32 == generation ? static_cast<uint32_t>(seen) : 0;
            comm_detail::record_wait(ctx, waits ? word : nullptr, count, epoch, ctx->windowsIn[peer]);
        };
        if (!comm_detail::wait_until(ctx, arrived, record)) {
            return false;
        }
    }
    return true;
}

/* dst[i] = src[i]. The spans must not overlap. */
template <typename T>
inline void comm_copy(T *dst, const T *src, size_t count) {
    static_assert(std::is_trivially_copyable<T>::value, "only plain data crosses windows");
    if (count != 0) {
        std::memcpy(dst, src, count * sizeof(T));
    }
}

/* dst[i] += src[i]. The spans must not overlap, so that the loop vectorises. */
template <typename T>
inline void comm_add(T *__restrict dst, const T *__restrict src, size_t count) {
    static_assert(std::is_arithmetic<T>::value, "adds numbers");
    for (size_t i = 0; i < count; ++i) {
        dst[i] = static_cast<T>(dst[i] + src[i]);
    }
}

#endif
