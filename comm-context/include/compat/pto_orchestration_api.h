/* pto_orchestration_api.h: an older name of orchestration_api.h. */
#ifndef CHIPCOMM_COMPAT_PTO_ORCHESTRATION_API_H
#define CHIPCOMM_COMPAT_PTO_ORCHESTRATION_API_H

#include "orchestration_api.h"

#endif
