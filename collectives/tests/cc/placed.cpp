/* The kernel of calls.cpp on a machine with two cores that this file makes up, so that a test knows on which of them a rank is. */

#include <sched.h>

namespace placed {

/* Where this thread is: all begin on the first core. */
thread_local int core = 0;
/* To how many cores it was bound last, and how often it was. */
thread_local int bound_to = 2, bound = 0;

int getcpu() { return core; }

int getaffinity(pid_t, size_t, cpu_set_t *cores) {
    CPU_ZERO(cores);
    CPU_SET(0, cores);
    CPU_SET(1, cores);
    return 0;
}

int setaffinity(pid_t, size_t, const cpu_set_t *cores) {
    bound_to = CPU_COUNT(cores);
    ++bound;
    /* Where it may stay it does. */
    core = CPU_ISSET(core, cores) ? core : 1 - core;
    return 0;
}

} // namespace placed

#define sched_getcpu placed::getcpu
#define sched_getaffinity placed::getaffinity
#define sched_setaffinity placed::setaffinity
#include "calls.cpp"

extern "C" void place(int64_t *args) {
    args[0] = placed::core;
    args[1] = placed::bound_to;
    args[2] = placed::bound;
}
