/* platform_comm/comm_context.h: CommContext, under upstream's path. */
#ifndef CHIPCOMM_COMPAT_PLATFORM_COMM_COMM_CONTEXT_H
#define CHIPCOMM_COMPAT_PLATFORM_COMM_COMM_CONTEXT_H

#include "../../comm_context.h"

#endif
