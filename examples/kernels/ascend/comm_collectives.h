/*
 * comm_collectives.h for a vector core of Atlas A2 and A3, and of A5: the part that the kernels in this folder use,
 * sums of floats, under the same names as on the simulation.
 *
 * A core cannot do what the steps of the simulation ask for: it has no cache that is coherent with other cores. So a
 * group is something simpler here, in the same memory: a CommPhaseBarrier, then two halves, which alternate from
 * piece to piece. A rank that is one piece ahead writes into the half that is no longer read: to get two ahead it
 * would have to pass a barrier that the slowest reader has not reached. Ranks of the host cannot take part.
 *
 * STATE: as comm_kernel.h beside it: never compiled by the vendor's compiler, never run on a device.
 */
#ifndef CHIPCOMM_COMM_COLLECTIVES_H
#define CHIPCOMM_COMM_COLLECTIVES_H

/* First: it is the one beside this file that counts. */
#include "comm_kernel.h"

#include "../sum_ranks.h"

enum class CommOp : uint8_t { Sum = 0 };

/* As much as on the simulation, so that the host need not know. */
COMM_DEVICE constexpr size_t comm_group_bytes(uint32_t ranks, size_t pool = 0) {
    size_t slots = 1;
    while (slots < ranks) {
        slots *= 2;
    }
    const size_t half = ranks <= 16 ? 1 << 20 : 256 << 10;
    const size_t head = (4096 + ranks * 640 + 4095) / 4096 * 4096;
    return (head + 2 * half + ranks * 4 * ((128 << 10) / slots) + 4095) / 4096 * 4096 + (pool + 4095) / 4096 * 4096;
}

class CommGroup {
  public:
    COMM_DEVICE CommGroup(COMM_GM int64_t *, COMM_GM const CommContext *ctx, COMM_GM void *memory, size_t bytes)
        : ctx(ctx), barrier(reinterpret_cast<COMM_GM CommPhaseBarrier *>(memory)),
          floats((bytes - sizeof(CommPhaseBarrier)) / 2 / 128 * 128 / sizeof(float)),
          halves(reinterpret_cast<COMM_GM float *>(comm_detail::address(barrier) + sizeof(CommPhaseBarrier))) {}

    /* The half of the next piece. */
    COMM_DEVICE COMM_GM float *half() const { return halves + comm_phase(ctx, barrier) % 2 * floats; }

    COMM_GM const CommContext *ctx;
    COMM_GM CommPhaseBarrier *barrier;
    size_t floats; /* of each half */
    COMM_GM float *halves;
};

COMM_DEVICE inline size_t comm_piece(size_t count, size_t start, size_t most) {
    return count - start < most ? count - start : most;
}

[[nodiscard]] COMM_DEVICE inline bool comm_reduce(CommGroup &group, COMM_GM const float *in, COMM_GM float *out,
                                                  size_t count, CommOp, uint32_t root) {
    for (size_t start = 0; start < count; start += group.floats) {
        const size_t length = comm_piece(count, start, group.floats);
        auto *half = group.half();
        comm_copy(half, in + start, length);
        if (!comm_phase_barrier(group.ctx, group.barrier)) {
            return false;
        }
        if (root == group.ctx->rankId || root == COMM_MAX_RANK_NUM) {
            sum_ranks(group.ctx, out + start, half, length);
        }
    }
    return true;
}

[[nodiscard]] COMM_DEVICE inline bool comm_all_reduce(CommGroup &group, COMM_GM const float *in, COMM_GM float *out,
                                                      size_t count, CommOp op) {
    return comm_reduce(group, in, out, count, op, COMM_MAX_RANK_NUM);
}

[[nodiscard]] COMM_DEVICE inline bool comm_all_gather(CommGroup &group, COMM_GM const float *in, COMM_GM float *out,
                                                      size_t count) {
    for (size_t start = 0; start < count; start += group.floats) {
        const size_t length = comm_piece(count, start, group.floats);
        auto *half = group.half();
        comm_copy(half, in + start, length);
        if (!comm_phase_barrier(group.ctx, group.barrier)) {
            return false;
        }
        for (uint32_t rank = 0; rank < group.ctx->rankNum; ++rank) {
            const auto *theirs = CommRemotePtr(group.ctx, half, static_cast<int>(rank));
            comm_copy(out + rank * count + start, theirs, length);
        }
    }
    return true;
}

[[nodiscard]] COMM_DEVICE inline bool comm_reduce_scatter(CommGroup &group, COMM_GM const float *in, COMM_GM float *out,
                                                          size_t count, CommOp) {
    const size_t most = group.floats / group.ctx->rankNum;
    for (size_t start = 0; start < count; start += most) {
        const size_t length = comm_piece(count, start, most);
        auto *half = group.half();
        for (uint32_t rank = 0; rank < group.ctx->rankNum; ++rank) {
            comm_copy(half + rank * most, in + rank * count + start, length);
        }
        if (!comm_phase_barrier(group.ctx, group.barrier)) {
            return false;
        }
        sum_ranks(group.ctx, out + start, half + group.ctx->rankId * most, length);
    }
    return true;
}

#endif
