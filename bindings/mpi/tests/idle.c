/*
 * idle.c: preloaded into ranks that are more than the cores, so that those that wait sleep for a moment instead of polling. Both MPI
 * libraries poll without an end, and a rank that polls keeps its core from the one it waits for until the next tick, milliseconds later.
 * Nothing else changes: a poll that found nothing takes longer.
 *
 * Open MPI calls sched_yield where a poll found nothing (with mpi_yield_when_idle). MPICH on UCX has no such place, so the poll itself
 * is taken: ucp_worker_progress, which says how much it found.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/prctl.h>
#include <time.h>

/* Polls in a row that find nothing before a rank sleeps: a peer that runs at the same time answers within them. */
#define POLLS 20
#define SLEEP_NS 20000

/* As long as was asked for: the kernel adds 50 µs otherwise. */
__attribute__((constructor)) static void start(void) { prctl(PR_SET_TIMERSLACK, 1000UL); }

int sched_yield(void) {
    nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    return 0;
}

unsigned ucp_worker_progress(void *worker) {
    static unsigned (*theirs)(void *);
    static __thread unsigned idle;
    if (!theirs) *(void **)&theirs = dlsym(RTLD_NEXT, "ucp_worker_progress");
    unsigned found = theirs(worker);
    idle = found ? 0 : idle + 1;
    if (idle == POLLS) {
        idle = 0;
        sched_yield();
    }
    return found;
}
