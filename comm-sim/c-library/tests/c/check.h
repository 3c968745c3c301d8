/* Shared by the test programs: a check that prints its line and the library's last error. */
#ifndef CHIPCOMM_TEST_CHECK_H
#define CHIPCOMM_TEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "comm.h"

#define CHECK(condition)                                                                                    \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, comm_last_error()); \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

#endif
