/*
 * comm_context.h: CommContext, the group of ranks as a kernel sees it. C11 and C++17.
 *
 * Little endian, natural alignment. Size and offsets are pinned by the assertions below and by the Rust
 * crate comm-context; a test of that crate compares the two.
 *
 * Every window has the same size and layout, so a rank reaches a peer's copy of a symmetric buffer at
 *     windowsIn[peer] + (local_address - windowsIn[rankId])
 * which is what CommRemotePtr in comm_kernel.h computes.
 */
#ifndef CHIPCOMM_COMM_CONTEXT_H
#define CHIPCOMM_COMM_CONTEXT_H

#include <stddef.h>
#include <stdint.h>

#ifndef COMM_STATIC_ASSERT
#ifdef __cplusplus
#define COMM_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define COMM_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif
#endif

/* The largest number of ranks in a group. */
#ifdef __cplusplus
static constexpr uint32_t COMM_MAX_RANK_NUM = 64;
#else
enum { COMM_MAX_RANK_NUM = 64 };
#endif

typedef struct CommContext {
    uint64_t workSpace;     /* address of a CommWorkspace, or 0 */
    uint64_t workSpaceSize; /* its size in bytes */
    uint32_t rankId;        /* this rank, from 0 */
    uint32_t rankNum;       /* the number of ranks, 1 to COMM_MAX_RANK_NUM */
    uint64_t winSize;       /* the size of every window in bytes */
    uint64_t windowsIn[COMM_MAX_RANK_NUM];  /* the address of each rank's window, valid on this rank */
    uint64_t windowsOut[COMM_MAX_RANK_NUM]; /* the same shape; in the simulation a copy of windowsIn */
} CommContext;

COMM_STATIC_ASSERT(sizeof(CommContext) == 1056, "CommContext: size");
COMM_STATIC_ASSERT(offsetof(CommContext, workSpace) == 0, "CommContext: workSpace");
COMM_STATIC_ASSERT(offsetof(CommContext, workSpaceSize) == 8, "CommContext: workSpaceSize");
COMM_STATIC_ASSERT(offsetof(CommContext, rankId) == 16, "CommContext: rankId");
COMM_STATIC_ASSERT(offsetof(CommContext, rankNum) == 20, "CommContext: rankNum");
COMM_STATIC_ASSERT(offsetof(CommContext, winSize) == 24, "CommContext: winSize");
COMM_STATIC_ASSERT(offsetof(CommContext, windowsIn) == 32, "CommContext: windowsIn");
COMM_STATIC_ASSERT(offsetof(CommContext, windowsOut) == 544, "CommContext: windowsOut");

/* What workSpace points at, if workSpaceSize is at least sizeof(CommWorkspace). */
typedef struct CommWorkspace {
    uint32_t abort;        /* not 0: the run is aborted and every wait returns false; reset between runs */
    uint32_t reserved[15]; /* 0 */
} CommWorkspace;

COMM_STATIC_ASSERT(sizeof(CommWorkspace) == 64, "CommWorkspace: size");
COMM_STATIC_ASSERT(offsetof(CommWorkspace, abort) == 0, "CommWorkspace: abort");
COMM_STATIC_ASSERT(offsetof(CommWorkspace, reserved) == 4, "CommWorkspace: reserved");

#endif
