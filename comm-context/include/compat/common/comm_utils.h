/* common/comm_utils.h: helpers of communicating kernels, under upstream's path. */
#ifndef CHIPCOMM_COMPAT_COMMON_COMM_UTILS_H
#define CHIPCOMM_COMPAT_COMMON_COMM_UTILS_H

#include "../../comm_kernel.h"

#endif
