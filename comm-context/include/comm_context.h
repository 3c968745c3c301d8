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
    uint64_t workSpace;     /* 0; reserved for a workspace of the vendor's */
    uint64_t workSpaceSize; /* 0 */
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

/*
 * What follows a CommContext that a backend has placed: the addresses of two words that kernels read, and of a
 * record that they write; and how much of the machine the ranks have.
 *
 * A context without the magic number has none of them: its waits cannot be aborted, and its generation is 0. A
 * context is placed in memory of at least sizeof(CommContext) + sizeof(CommContextTail) bytes, so the tail can
 * be read.
 */
typedef struct CommContextTail {
    uint64_t magic;      /* COMM_CONTEXT_TAIL_MAGIC */
    uint64_t abort;      /* address of a uint32_t. Not 0 there: the run is aborted and every wait returns false */
    uint64_t generation; /* address of a uint32_t. Changes between runs, after one that was aborted */
    uint64_t wait;       /* address of this rank's CommWait; 0 where there is none */
    uint64_t cores;      /* so many cores all ranks may use at once, CPU quotas included; 0: not known */
} CommContextTail;

/* "chipcomm" in ASCII, first character in the lowest byte. */
#define COMM_CONTEXT_TAIL_MAGIC UINT64_C(0x6d6d6f6370696863)

COMM_STATIC_ASSERT(sizeof(CommContextTail) == 40, "CommContextTail: size");
COMM_STATIC_ASSERT(offsetof(CommContextTail, magic) == 0, "CommContextTail: magic");
COMM_STATIC_ASSERT(offsetof(CommContextTail, abort) == 8, "CommContextTail: abort");
COMM_STATIC_ASSERT(offsetof(CommContextTail, generation) == 16, "CommContextTail: generation");
COMM_STATIC_ASSERT(offsetof(CommContextTail, wait) == 24, "CommContextTail: wait");
COMM_STATIC_ASSERT(offsetof(CommContextTail, cores) == 32, "CommContextTail: cores");

/*
 * What a rank's kernel waits for, once a wait has become slow. Written by that kernel alone; whoever reports why a
 * run takes so long reads it. Each field is written and read on its own: a reader may see two waits mixed.
 */
typedef struct CommWait {
    uint64_t word;   /* address of the awaited word; 0: no wait is slow. Written last */
    uint64_t wanted; /* the value that ends the wait */
    uint64_t seen;   /* the value that was found last */
    uint64_t writer; /* the window of the rank that writes the word; 0: any rank may */
} CommWait;

COMM_STATIC_ASSERT(sizeof(CommWait) == 32, "CommWait: size");
COMM_STATIC_ASSERT(offsetof(CommWait, word) == 0, "CommWait: word");
COMM_STATIC_ASSERT(offsetof(CommWait, wanted) == 8, "CommWait: wanted");
COMM_STATIC_ASSERT(offsetof(CommWait, seen) == 16, "CommWait: seen");
COMM_STATIC_ASSERT(offsetof(CommWait, writer) == 24, "CommWait: writer");

#endif
