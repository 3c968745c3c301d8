// The kernel helpers, with ranks as threads that each have their own window and context.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "comm_kernel.h"
#include "tensor.h"

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

struct Group {
    std::vector<Window> windows;
    std::vector<CommContext> contexts;
    CommWorkspace workspace{};

    explicit Group(uint32_t nranks) : windows(nranks), contexts(nranks) {
        std::memset(static_cast<void *>(windows.data()), 0, sizeof(Window) * nranks);
        for (uint32_t rank = 0; rank < nranks; ++rank) {
            CommContext &ctx = contexts[rank];
            ctx = CommContext{};
            ctx.workSpace = reinterpret_cast<uintptr_t>(&workspace);
            ctx.workSpaceSize = sizeof workspace;
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
            threads.emplace_back([this, rank, &body] { body(&contexts[rank], local(rank)); });
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
            slot.epoch = first_epoch;
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
            __atomic_store_n(&group.workspace.abort, 1u, __ATOMIC_RELEASE);
        } else if (ctx->rankId == 1) {
            REQUIRE(!comm_wait(ctx, &mine.arrived, 1));
        } else {
            REQUIRE(!comm_phase_barrier(ctx, &mine.barrier));
        }
    });
    // A condition that holds wins over the abort.
    REQUIRE(comm_wait(&group.contexts[0], &group.windows[0].arrived, 0));
}

void a_small_or_missing_workspace_has_no_abort_word() {
    Group group(1);
    CommContext ctx = group.contexts[0];
    group.workspace.abort = 1;
    REQUIRE(comm_aborted(&ctx));
    ctx.workSpaceSize = sizeof(CommWorkspace) - 1;
    REQUIRE(!comm_aborted(&ctx));
    ctx.workSpaceSize = sizeof(CommWorkspace);
    ctx.workSpace = 0;
    REQUIRE(!comm_aborted(&ctx));
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
    a_small_or_missing_workspace_has_no_abort_word();
    spans_are_copied_and_added();
    std::puts("ok");
    return 0;
}
