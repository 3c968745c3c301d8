/* arg_with_deps.h: CoreTaskArgsWithDeps, which orchestration_api.h has. */
#ifndef CHIPCOMM_COMPAT_ARG_WITH_DEPS_H
#define CHIPCOMM_COMPAT_ARG_WITH_DEPS_H

#include "orchestration_api.h"

#endif
