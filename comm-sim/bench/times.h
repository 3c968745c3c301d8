/* times.h: what the programs that measure MPI share. */
#ifndef TIMES_H
#define TIMES_H

#include <time.h>

/* Nanoseconds. */
static inline double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

/* For qsort. */
static inline int compare(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

#endif
