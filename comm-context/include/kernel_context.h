/*
 * kernel_context.h: what every kernel gets beside its own arguments. C11 and C++17.
 *
 * kernel_entry(int64_t *args) gets at least KERNEL_ARGS entries: the addresses of the tensors' descriptors,
 * then the scalars, then 0 up to KERNEL_LOCAL_CONTEXT_ARG, where the address of a LocalContext is, followed by
 * that of a GlobalContext. Tensors and scalars together are at most KERNEL_LOCAL_CONTEXT_ARG.
 *
 * A task of several blocks runs its kernel once for each, with a list and contexts of the block's own; the other
 * entries are the same. On the simulation the blocks run one after the other: a block must not wait for another
 * one of its task. On a chip a launch has one parameter for all blocks, the list of block 0, and the others follow at
 * KERNEL_ARGS_STRIDE: the entry that `cargo xtask kernels` makes picks the list by get_block_idx(). A kernel that is
 * declared __global__ does that itself.
 */
#ifndef CHIPCOMM_KERNEL_CONTEXT_H
#define CHIPCOMM_KERNEL_CONTEXT_H

#include <stddef.h>
#include <stdint.h>

#ifndef COMM_STATIC_ASSERT
#ifdef __cplusplus
#define COMM_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define COMM_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif
#endif

enum {
    KERNEL_LOCAL_CONTEXT_ARG = 48,  /* args[48] is the address of a LocalContext */
    KERNEL_GLOBAL_CONTEXT_ARG = 49, /* args[49] is the address of a GlobalContext */
    KERNEL_ARGS = 50,
    KERNEL_ARGS_STRIDE = 56, /* on a chip, words from the list of a block to that of the next one */
    KERNEL_COMPLETIONS = 64 /* the most words that a task's completion can wait for */
};

/* A word that the completion of a task waits for. */
typedef struct CompletionEntry {
    uint64_t address;  /* of a uint32_t in device memory */
    uint64_t cookie;   /* the kernel's own */
    uint32_t expected; /* the value that the word must reach */
    uint32_t engine;   /* what writes the word */
    int32_t type;      /* 0: a counter that reaches `expected` */
    uint32_t reserved; /* 0 */
} CompletionEntry;

COMM_STATIC_ASSERT(sizeof(CompletionEntry) == 32, "CompletionEntry: size");
COMM_STATIC_ASSERT(offsetof(CompletionEntry, address) == 0, "CompletionEntry: address");
COMM_STATIC_ASSERT(offsetof(CompletionEntry, cookie) == 8, "CompletionEntry: cookie");
COMM_STATIC_ASSERT(offsetof(CompletionEntry, expected) == 16, "CompletionEntry: expected");
COMM_STATIC_ASSERT(offsetof(CompletionEntry, engine) == 20, "CompletionEntry: engine");
COMM_STATIC_ASSERT(offsetof(CompletionEntry, type) == 24, "CompletionEntry: type");
COMM_STATIC_ASSERT(offsetof(CompletionEntry, reserved) == 28, "CompletionEntry: reserved");

/*
 * Where a kernel asks for the completion of its task to wait for words. LocalContext points at its parts. At a
 * multiple of 64.
 *
 * In a graph of the chip's runtime the task completes when every word has been reached. A kernel that a Worker
 * launches by itself cannot wait so: it fails its task when it leaves a count. An error fails the task everywhere.
 *
 * A kernel that fails may say why to people: where the first entry is, it writes KERNEL_FAILURE_TEXT_MAGIC, then a text
 * that ends with a 0, and leaves a count of 0. The simulation shows it with the error.
 */
typedef struct CompletionSlab {
    uint32_t count; /* how many entries the kernel wrote; 0 when it starts */
    int32_t error;  /* not 0: the kernel failed; 0 when it starts */
    CompletionEntry entries[KERNEL_COMPLETIONS];
    uint8_t reserved[56]; /* 0 */
} CompletionSlab;

COMM_STATIC_ASSERT(sizeof(CompletionSlab) == 2112, "CompletionSlab: size");
COMM_STATIC_ASSERT(offsetof(CompletionSlab, count) == 0, "CompletionSlab: count");
COMM_STATIC_ASSERT(offsetof(CompletionSlab, error) == 4, "CompletionSlab: error");
COMM_STATIC_ASSERT(offsetof(CompletionSlab, entries) == 8, "CompletionSlab: entries");
COMM_STATIC_ASSERT(offsetof(CompletionSlab, reserved) == 2056, "CompletionSlab: reserved");

/* "failtext" in ASCII, first character in the lowest byte. */
#define KERNEL_FAILURE_TEXT_MAGIC UINT64_C(0x747865746c696166)

/* Where a kernel runs: its block of the launch. Addresses are 64-bit numbers, so that the layout is one. */
typedef struct LocalContext {
    int32_t block_idx;            /* this block, from 0 */
    int32_t block_num;            /* the number of blocks of the launch */
    uint64_t completion_count;    /* address of the slab's count */
    uint64_t completion_error;    /* address of the slab's error */
    uint64_t completion_entries;  /* address of the slab's entries */
    uint32_t completion_capacity; /* how many entries there are */
    uint32_t reserved;            /* 0 */
    uint64_t task;                /* the id of the task; all ones: none */
} LocalContext;

COMM_STATIC_ASSERT(sizeof(LocalContext) == 48, "LocalContext: size");
COMM_STATIC_ASSERT(offsetof(LocalContext, block_idx) == 0, "LocalContext: block_idx");
COMM_STATIC_ASSERT(offsetof(LocalContext, block_num) == 4, "LocalContext: block_num");
COMM_STATIC_ASSERT(offsetof(LocalContext, completion_count) == 8, "LocalContext: completion_count");
COMM_STATIC_ASSERT(offsetof(LocalContext, completion_error) == 16, "LocalContext: completion_error");
COMM_STATIC_ASSERT(offsetof(LocalContext, completion_entries) == 24, "LocalContext: completion_entries");
COMM_STATIC_ASSERT(offsetof(LocalContext, completion_capacity) == 32, "LocalContext: completion_capacity");
COMM_STATIC_ASSERT(offsetof(LocalContext, reserved) == 36, "LocalContext: reserved");
COMM_STATIC_ASSERT(offsetof(LocalContext, task) == 40, "LocalContext: task");

/* Which core of a cluster runs the kernel. */
typedef struct GlobalContext {
    int32_t sub_block_id; /* 0 or 1; 0 where a cluster has one core */
    uint32_t reserved;    /* 0 */
    uint64_t words[2];    /* 0; reserved */
} GlobalContext;

COMM_STATIC_ASSERT(sizeof(GlobalContext) == 24, "GlobalContext: size");
COMM_STATIC_ASSERT(offsetof(GlobalContext, sub_block_id) == 0, "GlobalContext: sub_block_id");
COMM_STATIC_ASSERT(offsetof(GlobalContext, reserved) == 4, "GlobalContext: reserved");
COMM_STATIC_ASSERT(offsetof(GlobalContext, words) == 8, "GlobalContext: words");

#endif
