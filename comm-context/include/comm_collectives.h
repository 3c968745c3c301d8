/*
 * comm_collectives.h: all-reduce and its family inside a kernel. C++17, for the simulation.
 *
 * A group lies in a part of a window, at the same offset on every rank, of comm_group_bytes() bytes or more; what is
 * more becomes its pool. A window that is zero is a group that nobody has used, so that the memory of a new domain
 * needs no other preparation. Every kernel opens the group anew; where it stands is in the window:
 *
 *     CommGroup group(args, ctx, memory, bytes);
 *     if (!comm_all_reduce(group, in, out, count, CommOp::Sum)) {
 *         return;
 *     }
 *
 * Layout, steps, records and algorithms are those of the Rust crate collectives, so that a rank of a group may be
 * either. On one rank a group belongs to kernels or to the host, not to both.
 *
 * Every rank makes the same calls in the same order. A call returns false when the run is aborted, or when ranks make
 * different calls; the task then fails with COMM_E_MISMATCH and a text that names two of the calls, and so does the
 * group until the next run. After a run that was aborted the group starts again by itself.
 *
 * Code and text go to the LocalContext of the kernel's arguments (kernel_completion.h), where a Worker and the chip's
 * runtime read them. A program of its own that passes no arguments learns that a call failed, and no more.
 *
 * in == out is in place for comm_all_reduce and comm_reduce. For comm_gather and comm_all_gather, in may be this
 * rank's block of out; for comm_scatter and comm_reduce_scatter, out may be this rank's block of in. Tensors in the
 * pool of a group (group.pool()) are read, and by comm_all_reduce written, where they stand.
 *
 * A build for an Ascend core replaces this header, as it does comm_kernel.h.
 */
#ifndef CHIPCOMM_COMM_COLLECTIVES_H
#define CHIPCOMM_COMM_COLLECTIVES_H

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "comm_collectives_fault.h"
#include "comm_fold.h"
#include "comm_kernel.h"
#include "kernel_completion.h"

namespace comm_detail {

/* The layout of a rank's part of a group; collectives/src/layout.rs has the same. */
constexpr uint64_t kPage = 4096, kHashAt = 0, kBaseAt = 8, kCoresAt = 16, kProgressAt = 128, kFaultAt = 1536,
                   kStampAt = 1920, kRecordsAt = 2048, kPairsAt = 4096, kPairBytes = 640, kPairSlots = 4, kLines = 8, kLineBytes = 128,
                   kReadUpToAt = kProgressAt + kLines * kLineBytes, kGaveUpAt = kReadUpToAt + 8,
                   kParkedAt = kReadUpToAt + kLineBytes, kRecords = 32, kRecordBytes = 64, kInlineWords = 6;

constexpr uint64_t kTableAt = 1408, kInline = 48, kSliceAlign = 128;
constexpr uint32_t kAny = 0xffffffff;

/* The sizes at which one algorithm gives way to another; collectives/src/table.rs has the same. Where the host made the
 * group its table stands in the window, and all ranks have the same. */
struct Table {
    uint32_t window_min = 16 << 10, by_reference_min = 32 << 10, pieces_from = 1 << 20, piece = 1 << 20,
             rooted_piece = 64 << 10, pair_one_shot = 1 << 20, one_shot_reads = 32 << 10, reduce_reads = 64 << 10,
             notify_first = 2 << 10, prefetch = 16 << 10, take_over = 0, ask_from = 256 << 10,
             ask_ahead = 1 << 10, ask_polling = 256, strings_from = 16 << 10, polls = 1000, yields = 16, spins = 75;
};

/* The table of a group that kernels make. */
inline Table default_table() {
    Table table{};
    if (readers_take_lines()) {
        table.window_min = 32 << 10;
        table.piece = 256 << 10;
        table.pair_one_shot = kAny;
        table.take_over = kAny;
        table.ask_from = 64 << 10;
        table.ask_ahead = 4 << 10;
        table.ask_polling = 0;
    }
    return table;
}
constexpr uint64_t kTableWords = sizeof(Table) / sizeof(uint32_t);

constexpr uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

struct GroupLayout {
    uint64_t ranks, half, slot, halves_at, pool_at;

    explicit constexpr GroupLayout(uint64_t n)
        : ranks(n), half(n <= 16 ? 1 << 20 : 256 << 10), slot((128 << 10) / power_of_two(n)),
          halves_at(round_up(kPairsAt + n * kPairBytes, kPage)),
          pool_at(round_up(halves_at + 2 * half + n * kPairSlots * slot, kPage)) {}

    static constexpr uint64_t power_of_two(uint64_t n) {
        uint64_t power = 1;
        while (power < n) {
            power *= 2;
        }
        return power;
    }

    /* Ranks with another layout, another default table or another pool refuse each other. */
    constexpr uint64_t hash(uint64_t pool) const {
        const uint64_t parts[] = {4,           ranks,    half,        slot,     pool,       kBaseAt,  kCoresAt,
                                  kProgressAt, kTableAt, kFaultAt,    kFaultWords, kStampAt, kRecordsAt, kPairsAt,
                                  kPairBytes,  kPairSlots, kLines,    kRecords, halves_at,  pool_at,  kInline,
                                  kSliceAlign};
        uint64_t hash = 0xcbf29ce484222325;
        for (uint64_t part : parts) {
            for (int byte = 0; byte < 8; ++byte) {
                hash = (hash ^ (part >> 8 * byte & 0xff)) * 0x100000001b3;
            }
        }
        constexpr Table t{};
        const uint64_t table[] = {t.window_min,    t.by_reference_min, t.pieces_from,  t.piece,        t.rooted_piece,
                                  t.pair_one_shot, t.one_shot_reads,   t.reduce_reads, t.notify_first, t.prefetch,
                                  t.take_over,     t.ask_from,         t.ask_ahead,    t.ask_polling,  t.strings_from,
                                  t.polls,         t.yields,           t.spins};
        static_assert(sizeof(table) / sizeof(uint64_t) == kTableWords, "Table: entries");
        for (uint64_t entry : table) {
            for (int byte = 0; byte < 8; ++byte) {
                hash = (hash ^ (entry >> 8 * byte & 0xff)) * 0x100000001b3;
            }
        }
        return hash == 0 ? 1 : hash;
    }
};

/* A hash of a hash and a word. */
constexpr uint64_t mix(uint64_t hash, uint64_t word) {
    const uint64_t x = (hash ^ word) * 0xd6e8feb86659fd93;
    return x ^ x >> 32;
}

enum class Kind : uint8_t {
    Barrier = 1,
    AllReduce = 2,
    AllGather = 3,
    ReduceScatter = 5,
    Broadcast = 7,
    Reduce = 8,
    AllToAll = 9,
    Gather = 11,
    Scatter = 12
};

/* The code of a type. */
template <typename T>
constexpr uint8_t type_code() {
    if (std::is_same<T, float>::value) return TENSOR_FLOAT32;
    if (std::is_same<T, double>::value) return 32;
    if (std::is_same<T, CommHalf>::value) return TENSOR_FLOAT16;
    if (std::is_same<T, CommBrain>::value) return TENSOR_BFLOAT16;
    if (std::is_same<T, int8_t>::value) return TENSOR_INT8;
    if (std::is_same<T, int16_t>::value) return TENSOR_INT16;
    if (std::is_same<T, int32_t>::value) return TENSOR_INT32;
    if (std::is_same<T, int64_t>::value) return TENSOR_INT64;
    if (std::is_same<T, uint8_t>::value) return TENSOR_UINT8;
    if (std::is_same<T, uint16_t>::value) return TENSOR_UINT16;
    if (std::is_same<T, uint32_t>::value) return TENSOR_UINT32;
    if (std::is_same<T, uint64_t>::value) return TENSOR_UINT64;
    return 255;
}

/* The last step in which a line or a half is read, and by whom. */
struct Use {
    uint64_t step, readers;
    uint32_t hash, acknowledged;
};

/*
 * What a rank keeps between kernels, in its own window: in the place of the messages to itself, which nobody sends. Zero
 * is a group that was never opened.
 */
struct GroupState {
    uint64_t opened; /* one more than the generation in which it was opened */
    uint64_t failed; /* the same, in which ranks made different calls */
    uint64_t step, piece, call, least;
    uint64_t chain;
    uint64_t looked, full, stay; /* of CommGroup::leave_full_core */
    Use lines[kLines], halves[2];
};
static_assert(sizeof(GroupState) <= kPairBytes, "GroupState: size");

template <typename T>
class Call;

}  // namespace comm_detail

/* How many bytes a group of so many ranks takes, with a pool of so many bytes. */
constexpr size_t comm_group_bytes(uint32_t ranks, size_t pool = 0) {
    return comm_detail::GroupLayout(ranks).pool_at + comm_detail::round_up(pool, comm_detail::kPage);
}

/* A kernel's end of a group. */
class CommGroup {
  public:
    /* Opens the group at `memory` of this rank's window: collective at the first time. `args` are the kernel's
     * arguments, through which a failure of the task is reported; or null. */
    CommGroup(int64_t *args, const CommContext *ctx, void *memory, size_t bytes)
        : args_(args), ctx_(ctx), layout_(ctx->rankNum), me_(ctx->rankId), base_(static_cast<unsigned char *>(memory)) {
        state_ = reinterpret_cast<comm_detail::GroupState *>(base_ + comm_detail::kPairsAt + me_ * comm_detail::kPairBytes);
        generation_ = comm_generation(ctx);
        open_ = bytes >= layout_.pool_at && is_in_window(bytes) ? open(bytes) : fail(kInvalid);
    }

    uint32_t rank() const { return me_; }
    uint32_t ranks() const { return ctx_->rankNum; }
    /* False if the run is aborted, ranks made different calls, or the memory is too small or not in the window. */
    bool is_open() const { return open_; }
    /* Memory that peers reach where it stands, for tensors at the caller's choice. */
    void *pool() const { return base_ + layout_.pool_at; }
    size_t pool_bytes() const { return pool_; }

  private:
    template <typename T>
    friend class comm_detail::Call;

    static constexpr int32_t kInvalid = 1, kMismatch = 9; /* COMM_E_INVALID, COMM_E_MISMATCH */

    /* Memory elsewhere has no counterpart on the peers. */
    bool is_in_window(uint64_t bytes) const {
        const uint64_t offset = reinterpret_cast<uintptr_t>(base_) - ctx_->windowsIn[me_]; /* large where it lies before */
        return offset <= ctx_->winSize && bytes <= ctx_->winSize - offset;
    }
    unsigned char *window(uint32_t rank) const { return CommRemotePtr(ctx_, base_, static_cast<int>(rank)); }
    uint64_t *word(uint32_t rank, uint64_t at) const { return reinterpret_cast<uint64_t *>(window(rank) + at); }
    uint64_t *line(uint32_t rank, uint64_t step) const {
        return word(rank, comm_detail::kProgressAt + step % comm_detail::kLines * comm_detail::kLineBytes);
    }
    unsigned char *half(uint32_t rank, uint64_t piece) const {
        return window(rank) + layout_.halves_at + (piece & 1) * layout_.half;
    }
    uint64_t others() const { return (~uint64_t{0} >> (64 - ctx_->rankNum)) & ~(uint64_t{1} << me_); }

    /* Acquire: pairs with the release of the word's one writer. */
    static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
    /* Release: publishes what was written before. */
    static void store(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

    /* The step and the call from which a generation counts: beyond all of those before. A group that the host made counts from
     * the generation in which it was made, so that ranks of the host and kernels meet in that one. */
    uint64_t origin() const { return uint64_t{generation_} << 40; }

    bool open(size_t bytes) {
        using namespace comm_detail;
        pool_ = (bytes - layout_.pool_at) / kPage * kPage;
        const uint64_t hash = layout_.hash(pool_);
        if (state_->failed == uint64_t{generation_} + 1) {
            return failed_before();
        }
        if (state_->opened != uint64_t{generation_} + 1) {
            const uint64_t mine = load(word(me_, kHashAt));
            if (mine == 0) {
                store(word(me_, kCoresAt), has_core_per_rank(ctx_) ? 1 : 0);
                store(word(me_, kHashAt), hash);
                wake(word(me_, kHashAt));
            }
            for (uint32_t rank = 0; rank < ranks(); ++rank) {
                const uint64_t *theirs = word(rank, kHashAt);
                const auto record = [=](bool waits) {
                    record_wait(ctx_, waits ? theirs : nullptr, load(theirs), hash, ctx_->windowsIn[rank]);
                };
                if (!wait_until(ctx_, [=] { return load(theirs) != 0; }, record)) {
                    return false;
                }
                if (load(theirs) != hash) {
                    return other_layout(rank, load(theirs), hash);
                }
            }
            *state_ = GroupState{};
            state_->step = state_->call = state_->least = origin();
            state_->chain = hash & 0xffffffff;
            state_->opened = uint64_t{generation_} + 1;
            store(word(me_, kFaultAt), Fault::kNothing);
        }
        core_per_rank_ = load(word(0, kCoresAt)) != 0;
        /* Written before the hash, and never again. */
        const auto *table = reinterpret_cast<const Table *>(window(me_) + kTableAt);
        table_ = table->window_min == 0 ? default_table() : *table;
        for (uint32_t rank = 0; rank < ranks(); ++rank) {
            bounds_[rank] = state_->least;
        }
        return true;
    }

    /* The task fails with this code, and the group with it: the others need not wait for this rank. */
    __attribute__((noinline, cold)) bool fail(int32_t code, const char *text = "") {
        using namespace comm_detail;
        if (args_ != nullptr && args_[KERNEL_LOCAL_CONTEXT_ARG] != 0) {
            chip::fail_task(args_, code, text);
        }
        if (code == kMismatch) {
            state_->failed = uint64_t{generation_} + 1;
            __atomic_store_n(reinterpret_cast<uint32_t *>(window(me_) + kGaveUpAt), generation_ + 1, __ATOMIC_RELEASE);
            for (uint64_t at = 0; at < kLines; ++at) {
                wake(line(me_, at));
            }
            wake(word(me_, kReadUpToAt));
        }
        return open_ = false;
    }

    /* Ranks make different calls, of which `rank` knows, or `rank` has given up: says so to the host, and to the others. */
    __attribute__((noinline, cold)) bool mismatch(uint32_t rank) {
        using namespace comm_detail;
        /* The first call in which the two differ: it may be some calls ago when one of them ran ahead. */
        const uint64_t last = state_->call;
        uint64_t call = last > kRecords / 2 ? last - kRecords / 2 : 1;
        while (call <= last && !differs(rank, call)) {
            ++call;
        }
        Fault fault;
        if (call <= last || !has_given_up(rank)) {
            call = call <= last ? call : last;
            const uint32_t one = me_ < rank ? me_ : rank, other = me_ < rank ? rank : me_;
            fault = Fault::mismatch(one, other, call & ((uint64_t{1} << 40) - 1), words_of(one, call).bytes,
                                    words_of(other, call).bytes);
        } else {
            for (uint64_t at = 0; at < kFaultWords; ++at) {
                /* Relaxed: ordered by the acquire load that says that it has given up. */
                fault.words[at] = __atomic_load_n(word(rank, kFaultAt) + at, __ATOMIC_RELAXED);
            }
        }
        for (uint64_t at = 0; at < kFaultWords; ++at) {
            /* Relaxed: published by the store that says that this rank has given up. */
            __atomic_store_n(word(me_, kFaultAt) + at, fault.words[at], __ATOMIC_RELAXED);
        }
        Text<512> text;
        if (fault.is_known()) {
            fault.tell(text);
        } else {
            text.add("rank %u has given up on this group; see its own error", rank);
        }
        return fail(kMismatch, text.bytes);
    }

    __attribute__((noinline, cold)) bool failed_before() {
        using namespace comm_detail;
        Fault fault;
        /* This rank wrote it. */
        std::memcpy(fault.words, word(me_, kFaultAt), sizeof(fault.words));
        Text<512> text;
        text.add("this group failed before, and fails until the next run");
        if (fault.is_known()) {
            text.add("; the first cause: ");
            fault.tell(text);
        }
        return fail(kMismatch, text.bytes);
    }

    __attribute__((noinline, cold)) bool other_layout(uint32_t rank, uint64_t theirs, uint64_t mine) {
        comm_detail::Text<512> text;
        text.add("rank %u has another layout of the group's memory (%016llx, here %016llx); "
                 "run the same build with the same options on every rank",
                 rank, static_cast<unsigned long long>(theirs), static_cast<unsigned long long>(mine));
        return fail(kMismatch, text.bytes);
    }

    /* A call of `rank`, in words. */
    comm_detail::Text<comm_detail::kFaultText> words_of(uint32_t rank, uint64_t call) const {
        using namespace comm_detail;
        const uint64_t *record = word(rank, kRecordsAt + call % kRecords * kRecordBytes);
        uint64_t words[7];
        const bool found = load(record) == call;
        for (int at = 0; at < 7; ++at) {
            words[at] = __atomic_load_n(record + 1 + at, __ATOMIC_RELAXED);
        }
        if (found && load(record) == call) {
            return call_in_words(words);
        }
        Text<kFaultText> text;
        text.add("nothing yet");
        return text;
    }

    bool has_given_up(uint32_t rank) const {
        const auto *word = reinterpret_cast<const uint32_t *>(window(rank) + comm_detail::kGaveUpAt);
        return __atomic_load_n(word, __ATOMIC_ACQUIRE) == generation_ + 1;
    }

    /* Whether rank `rank` is known to have made another call with this number than this rank. */
    bool differs(uint32_t rank, uint64_t call) const {
        using namespace comm_detail;
        const uint64_t at = kRecordsAt + call % kRecords * kRecordBytes;
        const uint64_t *theirs = word(rank, at), *mine = word(me_, at);
        return load(theirs) == call && load(mine) == call && load(theirs + 1) != load(mine + 1) && load(theirs) == call;
    }

    /* Waits until a word of `rank` has come to `at_least`. False: the run is aborted, or the rank makes another call. */
    bool await(const uint64_t *word, uint64_t at_least, uint32_t rank, bool same_call) {
        for (int left = core_per_rank_ ? 300 : 1; left > 0; --left) {
            if (load(word) >= at_least) {
                return true;
            }
            comm_detail::pause();
        }
        notify();
        leave_full_core();
        uint32_t looks = 0;
        const auto over = [&] {
            return load(word) >= at_least || (++looks % 32 == 0 && (has_given_up(rank) || (same_call && differs(rank, state_->call))));
        };
        const auto record = [=](bool waits) {
            comm_detail::record_wait(ctx_, waits ? word : nullptr, load(word), at_least, ctx_->windowsIn[rank]);
        };
        const bool ended = comm_detail::wait_until(ctx_, over, record);
        return load(word) >= at_least || (ended ? mismatch(rank) : (open_ = false));
    }

    /* One more than the core that this thread runs on, which every step says; 0 where that is not known. */
    static uint64_t here() {
        const int core = sched_getcpu();
        return core >= 0 && core < 0xffff ? static_cast<uint64_t>(core) + 1 : 0;
    }

    /* What a rank said with its last step. A hint: the line may be about to change. */
    uint64_t seen_on(uint32_t rank) const {
        const uint64_t *last = line(rank, 0);
        for (uint64_t at = 1; at < comm_detail::kLines; ++at) {
            last = load(line(rank, at)) > load(last) ? line(rank, at) : last;
        }
        return __atomic_load_n(last + 1, __ATOMIC_RELAXED) & 0xffff;
    }

    /* How many other ranks are on this core, if this one is the last of them; `on` counts all by core. 0 where one was not seen yet. */
    uint32_t here_too(uint8_t (&on)[CPU_SETSIZE]) const {
        const uint64_t here = this->here();
        uint32_t others = 0;
        for (uint32_t rank = ranks(); rank-- > 0;) {
            const uint64_t seen = rank == me_ ? here : seen_on(rank);
            if (seen == 0 || seen > CPU_SETSIZE || (seen == here && rank > me_)) {
                return 0;
            }
            ++on[seen - 1];
            others += seen == here && rank != me_ ? 1 : 0;
        }
        return others;
    }

    /*
     * Ranks that were woken together may be on one core, and the scheduler leaves them there: each has just run. So the last rank on a
     * core moves to one that holds at least two fewer. It is moved, not bound: it may run where it could run before.
     */
    void leave_full_core() {
        /* Where ranks share cores every wait comes here. */
        if (!core_per_rank_ && state_->call - state_->looked < 16) {
            return;
        }
        state_->looked = state_->call;
        uint8_t on[CPU_SETSIZE] = {};
        const uint32_t others = here_too(on);
        if (others == 0) {
            return;
        }
        /* Seen twice: what a rank said before a pause may be over. */
        const uint64_t since = state_->call - state_->full;
        state_->full = since == 0 ? state_->full : state_->call;
        timespec now;
        cpu_set_t allowed, only;
        if (since == 0 || since > 64 || clock_gettime(CLOCK_MONOTONIC_COARSE, &now) != 0) {
            return;
        }
        /* A rank that the scheduler takes back at once must not spend its time with it. */
        const uint64_t ms = static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
        if (ms < state_->stay || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
            return;
        }
        state_->stay = ms + 4;
        int fewest = -1;
        for (int core = 0; core < CPU_SETSIZE; ++core) {
            if (CPU_ISSET(core, &allowed) && (fewest < 0 || on[core] < on[fewest])) {
                fewest = core;
            }
        }
        if (fewest >= 0 && on[fewest] < others) {
            CPU_ZERO(&only);
            CPU_SET(fewest, &only);
            if (sched_setaffinity(0, sizeof(only), &only) == 0) {
                sched_setaffinity(0, sizeof(allowed), &allowed);
            }
        }
    }

    void raise(uint32_t rank, uint64_t step) {
        if (bounds_[rank] < step) {
            bounds_[rank] = step;
        }
    }

    enum class Seen { NotYet, Here, Other };

    /* Looks for `step` of `rank`, which must belong to the call with this hash there. */
    Seen observe(uint32_t rank, uint64_t step, uint32_t hash) {
        const uint64_t *words = line(rank, step), found = load(words);
        if (found < step) {
            return Seen::NotYet;
        }
        /* Relaxed: ordered by the acquire load of the step. */
        const uint64_t label = __atomic_load_n(words + 1, __ATOMIC_RELAXED), lag = label >> 16 & 0xffff;
        if (lag < 0xffff) {
            raise(rank, found - lag);
        }
        return found == step && label >> 32 == hash ? Seen::Here : Seen::Other;
    }

    /* Waits until all readers have finished with something. */
    bool await_free(const comm_detail::Use &used) {
        if (used.step <= state_->least) {
            return true;
        }
        for (uint32_t rank = 0; rank < ranks(); ++rank) {
            if ((used.readers >> rank & 1) == 0 || rank == me_ || bounds_[rank] >= used.step) {
                continue;
            }
            if (used.acknowledged == 0) {
                const uint64_t *read = word(rank, comm_detail::kReadUpToAt);
                if (!await(read, used.step, rank, false)) {
                    return false;
                }
                raise(rank, load(read));
                continue;
            }
            if (!await(line(rank, used.step), used.step, rank, false)) {
                return false;
            }
            /* A later step of the same line says as much, if its bound does. */
            if (observe(rank, used.step, used.hash) == Seen::Other && bounds_[rank] < used.step) {
                return mismatch(rank);
            }
        }
        return true;
    }

    void publish(uint64_t step, uint32_t hash, const uint64_t *payload, int words, const comm_detail::Use &used) {
        uint64_t *line = this->line(me_, step);
        for (int at = 0; at < words; ++at) {
            /* Relaxed: published by the store of the step. */
            __atomic_store_n(line + 2 + at, payload[at], __ATOMIC_RELAXED);
        }
        const uint64_t read = load(word(me_, comm_detail::kReadUpToAt));
        const uint64_t from = read < origin() ? origin() : read, lag = step > from ? step - from : 0;
        __atomic_store_n(line + 1, uint64_t{hash} << 32 | (lag < 0xffff ? lag : 0xffff) << 16 | here(), __ATOMIC_RELAXED);
        store(line, step);
        state_->lines[step % comm_detail::kLines] = used;
        changed_ |= 1u << step % comm_detail::kLines;
    }

    void finish(uint64_t step) {
        store(word(me_, comm_detail::kReadUpToAt), step);
        changed_ |= 1u << comm_detail::kLines;
    }

    static void wake(uint64_t *word) {
        /* The low half, on which waiters park. */
        syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    }

    /* Wakes ranks of the host that are parked on a word that changed. */
    void notify() {
        using namespace comm_detail;
        if (changed_ == 0) {
            return;
        }
        /* Pairs with the fence of a rank that announces its park: one of the two sees the other. */
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        uint32_t parked = 0;
        for (uint32_t rank = 0; rank < ranks(); ++rank) {
            const auto *lanes = reinterpret_cast<const uint32_t *>(window(rank) + kParkedAt);
            for (int lane = 0; rank != me_ && lane < 2; ++lane) {
                const uint32_t at = __atomic_load_n(lanes + lane, __ATOMIC_ACQUIRE) - (1 + me_ * 16);
                parked |= at < 16 ? 1u << at : 0;
            }
        }
        parked &= changed_;
        changed_ = 0;
        for (uint64_t at = 0; parked >> at != 0; ++at) {
            if ((parked >> at & 1) != 0) {
                wake(at == kLines ? word(me_, kReadUpToAt) : line(me_, at));
            }
        }
    }

    /* The offset of `bytes` at `at` in this rank's part plus 1, if they lie in its pool; else 0. */
    uint64_t place(const void *at, uint64_t bytes) const {
        const uint64_t offset = reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(base_);
        return in_pool(offset, bytes) ? offset + 1 : 0;
    }
    bool in_pool(uint64_t offset, uint64_t bytes) const {
        const uint64_t end = layout_.pool_at + pool_;
        return offset >= layout_.pool_at && offset <= end && bytes <= end - offset;
    }

    int64_t *args_;
    const CommContext *ctx_;
    comm_detail::GroupLayout layout_;
    uint32_t me_, generation_ = 0, changed_ = 0;
    unsigned char *base_;
    comm_detail::GroupState *state_;
    uint64_t pool_ = 0;
    /* For each rank, a step up to which it has certainly finished reading. */
    uint64_t bounds_[COMM_MAX_RANK_NUM];
    bool core_per_rank_ = false, open_ = false;
    comm_detail::Table table_;
};

#include "comm_collectives_calls.h"

/* Returns when every rank has come here. What a rank wrote before, every rank sees after. */
[[nodiscard]] inline bool comm_barrier(CommGroup &group) {
    return comm_detail::Call<uint8_t>(group, comm_detail::Kind::Barrier, nullptr, nullptr, 0, 0xff, 0).run();
}

/* Every rank gets the combination of all. */
template <typename T>
[[nodiscard]] inline bool comm_all_reduce(CommGroup &group, const T *in, T *out, size_t count, CommOp op) {
    return comm_detail::Call<T>(group, comm_detail::Kind::AllReduce, in, out, count, static_cast<int>(op), 0).run();
}

/* Every rank gets what all have, in the order of the ranks. */
template <typename T>
[[nodiscard]] inline bool comm_all_gather(CommGroup &group, const T *in, T *out, size_t count_per_rank) {
    return comm_detail::Call<T>(group, comm_detail::Kind::AllGather, in, out, count_per_rank, 0xff, 0).run();
}

/* Rank r gets block r of the combination of all. */
template <typename T>
[[nodiscard]] inline bool comm_reduce_scatter(CommGroup &group, const T *in, T *out, size_t count_per_rank, CommOp op) {
    using comm_detail::Kind;
    return comm_detail::Call<T>(group, Kind::ReduceScatter, in, out, count_per_rank, static_cast<int>(op), 0).run();
}

/* Every rank gets what the root has. */
template <typename T>
[[nodiscard]] inline bool comm_broadcast(CommGroup &group, T *buffer, size_t count, uint32_t root) {
    return comm_detail::Call<T>(group, comm_detail::Kind::Broadcast, buffer, buffer, count, 0xff, root).run();
}

/* The root gets the combination of all; `out` of the others is not used. */
template <typename T>
[[nodiscard]] inline bool comm_reduce(CommGroup &group, const T *in, T *out, size_t count, CommOp op, uint32_t root) {
    return comm_detail::Call<T>(group, comm_detail::Kind::Reduce, in, out, count, static_cast<int>(op), root).run();
}

/* Rank r gets block r of every rank. */
template <typename T>
[[nodiscard]] inline bool comm_all_to_all(CommGroup &group, const T *in, T *out, size_t count_per_pair) {
    return comm_detail::Call<T>(group, comm_detail::Kind::AllToAll, in, out, count_per_pair, 0xff, 0).run();
}

/* The root gets what all have, in the order of the ranks; `out` of the others is not used. */
template <typename T>
[[nodiscard]] inline bool comm_gather(CommGroup &group, const T *in, T *out, size_t count, uint32_t root) {
    return comm_detail::Call<T>(group, comm_detail::Kind::Gather, in, out, count, 0xff, root).run();
}

/* Rank r gets block r of what the root has; `in` of the others is not used. */
template <typename T>
[[nodiscard]] inline bool comm_scatter(CommGroup &group, const T *in, T *out, size_t count, uint32_t root) {
    return comm_detail::Call<T>(group, comm_detail::Kind::Scatter, in, out, count, 0xff, root).run();
}

#endif
