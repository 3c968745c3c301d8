/*
 * Multiplies: see scale.h. It takes its time, so that a kernel that does not wait for it reads what was there before.
 */
#include "scale.h"

COMM_KERNEL void kernel_entry(COMM_GM int64_t *args) { scale(args, 2000000); }
