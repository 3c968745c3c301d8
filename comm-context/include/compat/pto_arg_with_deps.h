/* pto_arg_with_deps.h: an older name of arg_with_deps.h. */
#ifndef CHIPCOMM_COMPAT_PTO_ARG_WITH_DEPS_H
#define CHIPCOMM_COMPAT_PTO_ARG_WITH_DEPS_H

#include "orchestration_api.h"

#endif
