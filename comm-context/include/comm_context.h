/*
 * CommContext: what a kernel knows of its group. C11 and C++17.
 *
 * Little endian, natural alignment. Every offset is pinned here and in the Rust crate comm-context, and a
 * test of that crate compares the two.
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

/* The most ranks that a context has room for. */
#ifdef __cplusplus
static constexpr uint32_t COMM_MAX_RANK_NUM = 64;
#else
enum { COMM_MAX_RANK_NUM = 64 };
#endif

typedef struct CommContext {
    uint64_t workSpace;     /* address of a CommWorkspace, or 0 */
    uint64_t workSpaceSize; /* how many bytes lie there */
    uint32_t rankId;        /* this rank */
    uint32_t rankNum;       /* how many ranks there are */
    uint64_t winSize;       /* the size of every window in bytes */
    uint64_t windowsIn[COMM_MAX_RANK_NUM];  /* where rank i's window starts, as this rank reaches it */
    uint64_t windowsOut[COMM_MAX_RANK_NUM]; /* the same shape; on the simulator a copy of windowsIn */
} CommContext;

COMM_STATIC_ASSERT(sizeof(CommContext) == 1056, "CommContext: size");
COMM_STATIC_ASSERT(offsetof(CommContext, workSpace) == 0, "CommContext: workSpace");
COMM_STATIC_ASSERT(offsetof(CommContext, workSpaceSize) == 8, "CommContext: workSpaceSize");
COMM_STATIC_ASSERT(offsetof(CommContext, rankId) == 16, "CommContext: rankId");
COMM_STATIC_ASSERT(offsetof(CommContext, rankNum) == 20, "CommContext: rankNum");
COMM_STATIC_ASSERT(offsetof(CommContext, winSize) == 24, "CommContext: winSize");
COMM_STATIC_ASSERT(offsetof(CommContext, windowsIn) == 32, "CommContext: windowsIn");
COMM_STATIC_ASSERT(offsetof(CommContext, windowsOut) == 544, "CommContext: windowsOut");

/* What workSpace points at, if workSpaceSize is at least its size. */
typedef struct CommWorkspace {
    uint32_t abort;        /* sticky; once it is not 0, every comm_wait ends and returns false */
    uint32_t reserved[15]; /* 0 */
} CommWorkspace;

COMM_STATIC_ASSERT(sizeof(CommWorkspace) == 64, "CommWorkspace: size");
COMM_STATIC_ASSERT(offsetof(CommWorkspace, abort) == 0, "CommWorkspace: abort");
COMM_STATIC_ASSERT(offsetof(CommWorkspace, reserved) == 4, "CommWorkspace: reserved");

#endif
