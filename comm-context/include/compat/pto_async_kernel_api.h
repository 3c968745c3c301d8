/* pto_async_kernel_api.h: an older name of async_kernel_api.h. */
#ifndef CHIPCOMM_COMPAT_PTO_ASYNC_KERNEL_API_H
#define CHIPCOMM_COMPAT_PTO_ASYNC_KERNEL_API_H

#include "async_kernel_api.h"

#endif
