// The kernel helpers, with ranks as threads that each have their own window and context.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "comm_kernel.h"
#include "tensor.h"

namespace {

// How often a thread of this program gave its core away.
std::atomic<uint64_t> yields{0};

}  // namespace

// Stands before that of the C library.
extern "C" int sched_yield() noexcept {
    ++yields;
    return static_cast<int>(syscall(SYS_sched_yield));
}

namespace {

#define REQUIRE(condition)                                                      \
    do {                                                                        \
        if (!(condition)) {                                                     \
            std::fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
            std::exit(1);                                                       \
        }                                                                       \
    } while (false)

struct Window {
    CommPhaseBarrier barrier;
    alignas(64) uint32_t round;
    alignas(64) int32_t arrived;
    alignas(64) int64_t inbox[64];
};

// A context as a backend places it.
struct Placed {
    CommContext context;
    CommContextTail tail;
};
static_assert(offsetof(Placed, tail) == sizeof(CommContext), "the tail follows the context");

struct Group {
    std::vector<Window> windows;
    std::vector<Placed> contexts;
    uint32_t abort = 0;
    uint32_t generation = 0;

    explicit Group(uint32_t nranks) : windows(nranks), contexts(nranks) {
        std::memset(static_cast<void *>(windows.data()), 0, sizeof(Window) * nranks);
        for (uint32_t rank = 0; rank < nranks; ++rank) {
            CommContext &ctx = contexts[rank].context;
            ctx = CommContext{};
            contexts[rank].tail = CommContextTail{COMM_CONTEXT_TAIL_MAGIC, reinterpret_cast<uintptr_t>(&abort),
                                                  reinterpret_cast<uintptr_t>(&generation), 0, 0};
            ctx.rankId = rank;
            ctx.rankNum = nranks;
            ctx.winSize = sizeof(Window);
            for (uint32_t peer = 0; peer < nranks; ++peer) {
                ctx.windowsIn[peer] = ctx.windowsOut[peer] = reinterpret_cast<uintptr_t>(&windows[peer]);
            }
        }
    }

    Window &local(uint32_t rank) { return windows[rank]; }

    template <typename Body>
    void run(Body body) {
        std::vector<std::thread> threads;
        for (uint32_t rank = 0; rank < contexts.size(); ++rank) {
            threads.emplace_back([this, rank, &body] { body(&contexts[rank].context, local(rank)); });
        }
        for (auto &thread : threads) {
            thread.join();
        }
    }
};

// Every rank sends a number to every other, then a signal; the receiver checks all after one wait.
void notify_then_wait_carries_the_data(uint32_t nranks, int rounds) {
    Group group(nranks);
    group.run([&](const CommContext *ctx, Window &mine) {
        for (int round = 1; round <= rounds; ++round) {
            for (uint32_t peer = 0; peer < nranks; ++peer) {
                Window *theirs = CommRemotePtr(ctx, &mine, static_cast<int>(peer));
                theirs->inbox[ctx->rankId] = round * 1000 + ctx->rankId;
                comm_notify(ctx, &theirs->arrived, 1);
            }
            REQUIRE(comm_wait(ctx, &mine.arrived, round * static_cast<int32_t>(nranks)));
            for (uint32_t peer = 0; peer < nranks; ++peer) {
                REQUIRE(mine.inbox[peer] == round * 1000 + peer);
            }
            REQUIRE(comm_phase_barrier(ctx, &mine.barrier));
        }
    });
}

// A rank that passed early would see a peer in an older round; one that ran ahead, in a newer one.
void barrier_blocks_until_all_arrive(uint32_t nranks, uint32_t rounds, uint32_t first_epoch) {
    Group group(nranks);
    for (auto &window : group.windows) {
        for (auto &slot : window.barrier.slot) {
            slot.word = first_epoch;
        }
    }
    group.run([&](const CommContext *ctx, Window &mine) {
        for (uint32_t round = 1; round <= rounds; ++round) {
            __atomic_store_n(&mine.round, round, __ATOMIC_RELAXED);
            REQUIRE(comm_phase_barrier(ctx, &mine.barrier));
            for (uint32_t peer = 0; peer < nranks; ++peer) {
                const Window *theirs = CommRemotePtr(ctx, &mine, static_cast<int>(peer));
                const uint32_t seen = __atomic_load_n(&theirs->round, __ATOMIC_RELAXED);
                REQUIRE(seen == round || seen == round + 1);
            }
        }
    });
}

void abort_ends_every_wait() {
    Group group(3);
    group.run([&](const CommContext *ctx, Window &mine) {
        if (ctx->rankId == 2) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            __atomic_store_n(&group.abort, 1u, __ATOMIC_RELEASE);
        } else if (ctx->rankId == 1) {
            REQUIRE(!comm_wait(ctx, &mine.arrived, 1));
        } else {
            REQUIRE(!comm_phase_barrier(ctx, &mine.barrier));
        }
    });
    // A condition that holds wins over the abort.
    REQUIRE(comm_wait(&group.contexts[0].context, &group.windows[0].arrived, 0));
}

void a_context_without_the_magic_number_has_no_words() {
    Group group(1);
    Placed placed = group.contexts[0];
    group.abort = 1;
    group.generation = 7;
    REQUIRE(comm_aborted(&placed.context) && comm_generation(&placed.context) == 7);
    placed.tail = CommContextTail{};
    REQUIRE(!comm_aborted(&placed.context) && comm_generation(&placed.context) == 0);
    placed.tail = group.contexts[0].tail;
    placed.tail.magic ^= 1;
    REQUIRE(!comm_aborted(&placed.context) && comm_generation(&placed.context) == 0);
}

// F71: where the backend counted fewer cores than ranks, CPU quotas included, a wait yields at once.
void ranks_without_a_core_each_yield_instead_of_spinning() {
    Group group(2);
    const auto looks_before_a_yield = [&](uint64_t cores) {
        group.contexts[0].tail.cores = cores;
        const uint64_t before = yields;
        uint64_t looks = 0;
        const auto satisfied = [&] {
            looks += yields == before ? 1 : 0;
            return yields != before;
        };
        REQUIRE(comm_detail::wait_until(&group.contexts[0].context, satisfied, [](bool) {}));
        return looks;
    };
    REQUIRE(looks_before_a_yield(1) == 1);
    REQUIRE(looks_before_a_yield(2) > 100);
    // Not counted: as many as this process may run on.
    REQUIRE((looks_before_a_yield(0) > 100) == (std::thread::hardware_concurrency() >= 2));
}

// F52: an aborted run leaves rank 0 one barrier ahead, in the words of every rank.
void barrier_starts_again_with_each_generation() {
    constexpr uint32_t kRanks = 3;
    Group group(kRanks);
    for (uint32_t generation : {0u, 1u, 2u, UINT32_MAX, 0u}) {
        group.generation = generation;
        group.run([&](const CommContext *ctx, Window &mine) {
            REQUIRE(comm_phase(ctx, &mine.barrier) == 0);
            for (uint32_t round = 1; round <= 5; ++round) {
                __atomic_store_n(&mine.round, round, __ATOMIC_RELAXED);
                REQUIRE(comm_phase_barrier(ctx, &mine.barrier));
                REQUIRE(comm_phase(ctx, &mine.barrier) == round);
                for (uint32_t peer = 0; peer < kRanks; ++peer) {
                    const Window *theirs = CommRemotePtr(ctx, &mine, static_cast<int>(peer));
                    const uint32_t seen = __atomic_load_n(&theirs->round, __ATOMIC_RELAXED);
                    REQUIRE(seen == round || seen == round + 1);
                }
            }
        });
        group.abort = 1;
        REQUIRE(!comm_phase_barrier(&group.contexts[0].context, &group.windows[0].barrier));
        group.abort = 0;
    }
}

// F60: a signal that has been notified 2^31 times, and one that wraps, are compared by their difference.
template <typename Word>
void signals_are_compared_by_their_difference(uint32_t first) {
    constexpr uint32_t kRounds = 200;
    alignas(64) Word signals[2] = {static_cast<Word>(first), static_cast<Word>(first)};
    uint32_t data[2] = {0, 0};
    Group group(2);
    group.run([&](const CommContext *ctx, Window &) {
        const uint32_t me = ctx->rankId, peer = 1 - me;
        for (uint32_t round = 1; round <= kRounds; ++round) {
            __atomic_store_n(&data[me], round, __ATOMIC_RELAXED);
            comm_notify(ctx, &signals[peer], Word{1});
            // A wait that is satisfied too early sees the peer in an earlier round.
            REQUIRE(comm_wait(ctx, &signals[me], static_cast<Word>(first + round)));
            const uint32_t seen = __atomic_load_n(&data[peer], __ATOMIC_RELAXED);
            REQUIRE(seen == round || seen == round + 1);
        }
    });
    // What is 2^31 - 1 behind is still behind.
    group.abort = 1;
    const auto *ctx = &group.contexts[0].context;
    REQUIRE(comm_wait(ctx, &signals[0], static_cast<Word>(first + kRounds - INT32_MAX)));
    REQUIRE(!comm_wait(ctx, &signals[0], static_cast<Word>(first + kRounds + INT32_MAX)));
}

void spans_are_copied_and_added() {
    std::vector<float> a(1000), b(1000);
    for (size_t i = 0; i < a.size(); ++i) {
        a[i] = static_cast<float>(i);
    }
    comm_copy(b.data(), a.data(), a.size());
    comm_add(b.data(), a.data(), a.size());
    comm_add(b.data(), a.data(), 0);
    REQUIRE(b[0] == 0.0f && b[999] == 1998.0f);
    TensorDesc desc{};
    desc.addr = reinterpret_cast<uintptr_t>(b.data());
    desc.start_offset = 10;
    REQUIRE(*tensor_data<float>(&desc) == 20.0f);
    int8_t small[2] = {100, 1};
    const int8_t more[2] = {27, 2};
    comm_add(small, more, 2);
    REQUIRE(small[0] == 127 && small[1] == 3);
}

}  // namespace

int main() {
    notify_then_wait_carries_the_data(2, 2000);
    notify_then_wait_carries_the_data(5, 500);
    barrier_blocks_until_all_arrive(1, 10, 0);
    barrier_blocks_until_all_arrive(2, 10000, 0);
    barrier_blocks_until_all_arrive(4, 2000, 0);
    barrier_blocks_until_all_arrive(3, 100, UINT32_MAX - 50);
    abort_ends_every_wait();
    a_context_without_the_magic_number_has_no_words();
    ranks_without_a_core_each_yield_instead_of_spinning();
    barrier_starts_again_with_each_generation();
    for (uint32_t first : {0u, 0x80000000u - 100, 0u - 100}) {
        signals_are_compared_by_their_difference<int32_t>(first);
        signals_are_compared_by_their_difference<uint32_t>(first);
    }
    spans_are_copied_and_added();
    std::puts("ok");
    return 0;
}
