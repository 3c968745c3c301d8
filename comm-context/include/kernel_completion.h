/*
 * kernel_completion.h: where a kernel runs, and how it asks for its task's completion to wait. C++17, for the
 * simulation.
 */
#ifndef CHIPCOMM_KERNEL_COMPLETION_H
#define CHIPCOMM_KERNEL_COMPLETION_H

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernel_context.h"

namespace chip {

inline const LocalContext &local_context(const int64_t *args) {
    return *reinterpret_cast<const LocalContext *>(static_cast<uintptr_t>(args[KERNEL_LOCAL_CONTEXT_ARG]));
}
inline const GlobalContext &global_context(const int64_t *args) {
    return *reinterpret_cast<const GlobalContext *>(static_cast<uintptr_t>(args[KERNEL_GLOBAL_CONTEXT_ARG]));
}

/* This block of the task, and how many it has. */
inline int32_t block_idx(const int64_t *args) { return local_context(args).block_idx; }
inline int32_t block_num(const int64_t *args) { return local_context(args).block_num; }
/* Which vector core of its cluster runs the kernel: 0 or 1. */
inline int32_t sub_block(const int64_t *args) { return global_context(args).sub_block_id; }

/* Adds an entry to the slab behind `local`. False when all are taken. */
inline bool add_completion(const LocalContext &local, const CompletionEntry &entry) {
    auto *count = reinterpret_cast<uint32_t *>(static_cast<uintptr_t>(local.completion_count));
    auto *entries = reinterpret_cast<CompletionEntry *>(static_cast<uintptr_t>(local.completion_entries));
    if (*count >= local.completion_capacity) {
        return false;
    }
    entries[*count] = entry;
    *count += 1;
    return true;
}

/* The task is not complete before the word has reached `at_least`: their difference, as a signed number, is not
 * negative. The kernel returns without waiting. False when its task already waits for 64 words. */
inline bool complete_when(int64_t *args, const volatile void *word, uint32_t at_least, uint64_t cookie = 0) {
    const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(word));
    return add_completion(local_context(args), CompletionEntry{address, cookie, at_least, 0, 0, 0});
}

/* The task fails with a code of the kernel's own, which is not 0, and a text in UTF-8 for whoever reads the error. It
 * waits for no words then: the text is where they were. */
inline void fail_task(int64_t *args, int32_t code, const char *text = "") {
    const LocalContext &local = local_context(args);
    *reinterpret_cast<int32_t *>(static_cast<uintptr_t>(local.completion_error)) = code;
    const uint64_t magic = KERNEL_FAILURE_TEXT_MAGIC;
    const size_t room = sizeof(CompletionEntry) * local.completion_capacity, bytes = std::strlen(text);
    if (bytes == 0 || room <= sizeof(magic)) {
        return;
    }
    auto *at = reinterpret_cast<unsigned char *>(static_cast<uintptr_t>(local.completion_entries));
    const size_t kept = bytes < room - sizeof(magic) ? bytes : room - sizeof(magic) - 1;
    std::memcpy(at, &magic, sizeof(magic));
    std::memcpy(at + sizeof(magic), text, kept);
    at[sizeof(magic) + kept] = 0;
    *reinterpret_cast<uint32_t *>(static_cast<uintptr_t>(local.completion_count)) = 0;
}

}  // namespace chip

#endif
