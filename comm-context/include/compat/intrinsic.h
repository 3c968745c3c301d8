/* intrinsic.h: where a kernel runs, under upstream's names. */
#ifndef CHIPCOMM_COMPAT_INTRINSIC_H
#define CHIPCOMM_COMPAT_INTRINSIC_H

#include "../kernel_completion.h"

inline int32_t get_block_idx(const int64_t *args) { return chip::block_idx(args); }
inline int32_t get_block_num(const int64_t *args) { return chip::block_num(args); }
inline int32_t get_sub_block_id(const int64_t *args) { return chip::sub_block(args); }

#endif
