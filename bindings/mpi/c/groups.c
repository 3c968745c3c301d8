/* groups.c: the group of a communicator, made at its first call and kept as its attribute until it is freed. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"

/*
 * MPI's progress in our waits: at most once in this time. A rank of several hosts that has no message of the call under way looks at its
 * sockets less often: it would take the core from those that send.
 */
#define PROGRESS_NS 1000
#define PROGRESS_ASIDE_NS 50000

/*
 * A communicator other than MPI_COMM_WORLD has this many calls before its group is made, which takes as long as a thousand short
 * calls: libraries make communicators, use them once, and free them. All ranks count alike, since all make the same calls.
 */
#define FIRST_CALLS 16

/* Groups that a process has at the same time; and a part of the files that it may have open goes to them. */
#define MOST_GROUPS 256
#define PART_OF_FILES 4

__thread enum why passing;

/* The group that this thread used last. Valid as long as no group has ended since. */
static __thread struct {
    MPI_Comm comm;
    struct group *group;
    unsigned long generation;
} last;
static unsigned long generation = 1;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct group *groups;
static long live_groups, open_files; /* files by estimate: some for each group, and one for each of its ranks */
static int keyval = MPI_KEYVAL_INVALID, end_keyval = MPI_KEYVAL_INVALID;
static bool has_world, is_off;

/* The group whose call this thread is in. */
static __thread const struct group *current;

/* Called by waits for a peer: the peer may wait for a message of ours that goes on only while somebody is in MPI. */
static void progress(void) {
    static __thread uint64_t next;
    bool aside = current->hosts > 1 && !current->sends;
    if (now_ns() >= next) {
        int flag;
        /* A program that uses sessions only has no MPI_COMM_SELF. */
        MPI_Comm comm = has_world ? MPI_COMM_SELF : current->comm;
        PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &flag, MPI_STATUS_IGNORE);
        if (current->hosts > 1) sched_yield();
        next = now_ns() + (aside ? PROGRESS_ASIDE_NS : PROGRESS_NS);
    } else if (aside) {
        sched_yield();
    }
}

static void unlist(struct group *group) {
    pthread_mutex_lock(&lock);
    if (group->previous) group->previous->next = group->next;
    if (group->next) group->next->previous = group->previous;
    if (groups == group) groups = group->next;
    if (group->why == BY_NOTHING) live_groups--, open_files -= group->local_size + 4;
    /* Release: pairs with the acquire in find_group; who sees the new number asks for the attribute again. */
    __atomic_store_n(&generation, generation + 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
}

/* Ends what this rank has of a group, without any call of MPI. */
static void end_group(struct group *group) {
    unlist(group);
    if (group->core) chipcomm_mpi_close(group->core);
    free(group->host_of);
    free(group->scratch);
    free(group);
}

static int comm_ends(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)extra;
    end_group(value);
    return MPI_SUCCESS;
}

/* An attribute of MPI_COMM_SELF: deleted first of all in MPI_Finalize, whichever language calls it. */
static int world_ends(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)value, (void)extra;
    stats_end();
    is_off = true;
    pthread_mutex_lock(&lock);
    for (struct group *group = groups; group; group = group->next) {
        if (group->core) chipcomm_mpi_close(group->core);
        group->core = NULL;
        group->why = BY_OFF;
    }
    __atomic_store_n(&generation, generation + 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return MPI_SUCCESS;
}

static void start(void) {
    stats_start();
    types_start();
    const char *off = getenv("CHIPCOMM_MPI_OFF");
    is_off = off && *off && strcmp(off, "0") != 0;
    int initialized = 0, finalized = 0;
    PMPI_Initialized(&initialized);
    PMPI_Finalized(&finalized);
    has_world = initialized && !finalized;
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, comm_ends, &keyval, NULL);
    if (has_world) {
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, world_ends, &end_keyval, NULL);
        PMPI_Comm_set_attr(MPI_COMM_SELF, end_keyval, NULL);
    }
    chipcomm_mpi_set_hook(progress);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* What every rank tells every other before a group is made. */
struct hello {
    uint64_t host, nonce, state;
};
enum state { READY, NO_ROOM, OFF };

/* Whether this process may have one more group. What one rank lacks, all do without. */
static enum state state_of(int size) {
    struct rlimit files = {.rlim_cur = 1024};
    if (is_off) return OFF;
    getrlimit(RLIMIT_NOFILE, &files);
    pthread_mutex_lock(&lock);
    bool room = live_groups < MOST_GROUPS &&
                (rlim_t)(open_files + (size < MOST_RANKS ? size : MOST_RANKS) + 4) < files.rlim_cur / PART_OF_FILES;
    pthread_mutex_unlock(&lock);
    return room ? READY : NO_ROOM;
}

static uint64_t random_number(void) {
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != sizeof number) number = now_ns() ^ (uint64_t)getpid() << 40;
    return number;
}

/* Numbers the hosts and the ranks on each, from what all ranks said: the same everywhere. */
static enum why place_ranks(struct group *group, const struct hello *all, uint64_t *nonce) {
    int size = group->size, most = 0;
    int *first = calloc((size_t)size, sizeof *first), *count = calloc((size_t)size, sizeof *count);
    group->host_of = calloc((size_t)size * 2, sizeof *group->host_of);
    if (!first || !count || !group->host_of) PMPI_Abort(group->comm, MPI_ERR_NO_MEM);
    uint64_t worst = READY;
    for (int rank = 0; rank < size; rank++) {
        int host = 0;
        while (host < group->hosts && all[first[host]].host != all[rank].host) host++;
        if (host == group->hosts) first[group->hosts++] = rank;
        group->host_of[rank] = host;
        group->host_of[size + rank] = count[host]++;
        if (count[host] > most) most = count[host];
        if (all[rank].state > worst) worst = all[rank].state;
    }
    group->local_of = group->host_of + size;
    group->local_rank = group->local_of[group->rank];
    group->local_size = count[group->host_of[group->rank]];
    group->width = size;
    for (int host = 0; host < group->hosts; host++)
        if (count[host] < group->width) group->width = count[host];
    *nonce = all[first[group->host_of[group->rank]]].nonce;
    free(first);
    free(count);
    if (worst != READY) return worst == OFF ? BY_OFF : BY_ROOM;
    return most > MOST_RANKS ? BY_MANY : most == 1 ? BY_HOSTS : BY_NOTHING;
}

/* What the communicator says by itself. */
static enum why look_at(struct group *group, MPI_Comm comm) {
    int inter = 0;
    PMPI_Comm_test_inter(comm, &inter);
    if (inter) return BY_INTER;
    PMPI_Comm_size(comm, &group->size);
    PMPI_Comm_rank(comm, &group->rank);
    return group->size == 1 ? BY_ONE : BY_YOUTH;
}

/* Makes the group, or finds out why there is none: the same on all ranks. Only for calls that all ranks make. */
static enum why make(struct group *group, MPI_Comm comm) {
    struct hello own = {chipcomm_mpi_host(), random_number(), state_of(group->size)};
    struct hello *all = calloc((size_t)group->size, sizeof *all);
    /* Without so little memory this rank could not even say so. */
    if (!all) PMPI_Abort(comm, MPI_ERR_NO_MEM);
    /* With MPI's progress: a peer may be late because it waits for a message of this rank's. Afterwards all are here. */
    if (PMPI_Allgather(&own, 3, MPI_UINT64_T, all, 3, MPI_UINT64_T, comm) != MPI_SUCCESS) {
        free(all);
        return BY_SETUP;
    }
    uint64_t nonce = 0;
    enum why why = place_ranks(group, all, &nonce);
    free(all);
    if (why != BY_NOTHING) return why;
    char path[64];
    snprintf(path, sizeof path, "/tmp/chipcomm-mpi-%016llx", (unsigned long long)nonce);
    group->core = chipcomm_mpi_open(path, (uint32_t)group->local_rank, (uint32_t)group->local_size);
    if (!group->core && stats_on) fprintf(stderr, "chipcomm_mpi: no group: %s\n", chipcomm_mpi_error());
    int made = group->core != NULL, all_made = 0;
    PMPI_Allreduce(&made, &all_made, 1, MPI_INT, MPI_MIN, comm);
    if (!all_made) return BY_SETUP;
    if (group->hosts > 1) {
        int color = group->local_rank < group->width ? group->local_rank : MPI_UNDEFINED;
        int host = group->host_of[group->rank];
        if (PMPI_Comm_split(comm, color, host, &group->across) != MPI_SUCCESS) return BY_SETUP;
    }
    return BY_NOTHING;
}

static void set_up(struct group *group, MPI_Comm comm) {
    group->why = make(group, comm);
    if (group->why != BY_NOTHING && group->core) {
        chipcomm_mpi_close(group->core);
        group->core = NULL;
    }
    if (group->why != BY_NOTHING) return;
    pthread_mutex_lock(&lock);
    live_groups++, open_files += group->local_size + 4;
    pthread_mutex_unlock(&lock);
}

static struct group *attach(MPI_Comm comm) {
    struct group *group = calloc(1, sizeof *group);
    if (!group) PMPI_Abort(comm, MPI_ERR_NO_MEM);
    group->comm = comm;
    group->across = MPI_COMM_NULL;
    group->why = look_at(group, comm);
    if (has_world && comm == MPI_COMM_WORLD) group->calls = FIRST_CALLS;
    pthread_mutex_lock(&lock);
    group->next = groups;
    if (groups) groups->previous = group;
    groups = group;
    pthread_mutex_unlock(&lock);
    PMPI_Comm_set_attr(comm, keyval, group);
    return group;
}

static struct group *find_slowly(MPI_Comm comm) {
    pthread_once(&once, start);
    struct group *group = NULL;
    int found = 0;
    passing = BY_ARGUMENT;
    unsigned long now = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
    if (comm == MPI_COMM_NULL || PMPI_Comm_get_attr(comm, keyval, &group, &found) != MPI_SUCCESS) return NULL;
    if (!found) group = attach(comm);
    last.comm = comm;
    last.group = group;
    last.generation = now;
    return group;
}

struct group *find_group(MPI_Comm comm) {
    struct group *group = last.group;
    /* Acquire: pairs with the release in unlist. */
    unsigned long now = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
    if (!LIKELY(group && last.comm == comm && last.generation == now)) {
        group = find_slowly(comm);
        if (!group) return NULL;
    }
    current = group;
    if (LIKELY(group->why == BY_NOTHING)) return group;
    if (group->why == BY_YOUTH && group->calls++ >= FIRST_CALLS) set_up(group, comm);
    passing = group->why;
    return group->why == BY_NOTHING ? group : NULL;
}

int call_failed(struct group *group, enum kind kind) {
    (void)kind;
    const char *why = chipcomm_mpi_error();
    fprintf(stderr, "chipcomm_mpi: rank %d of %d: %s\n", group->rank, group->size,
            *why ? why : "a type could not be packed, or there is no memory for it");
    fflush(stderr);
    /* A dead rank is the launcher's to report, which ends this process too. Where it does not, the error is ours. */
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
    PMPI_Comm_call_errhandler(group->comm, MPI_ERR_OTHER);
    return MPI_ERR_OTHER;
}

/* Ends the group before its communicator. */
static void before_free(MPI_Comm *comm) {
    struct group *group = NULL;
    int found = 0;
    if (keyval == MPI_KEYVAL_INVALID || !comm || *comm == MPI_COMM_NULL) return;
    if (PMPI_Comm_get_attr(*comm, keyval, &group, &found) != MPI_SUCCESS || !found) return;
    MPI_Comm across = group->across;
    PMPI_Comm_delete_attr(*comm, keyval);
    if (across != MPI_COMM_NULL) PMPI_Comm_free(&across);
}

EXPORT int MPI_Comm_free(MPI_Comm *comm) {
    before_free(comm);
    return PMPI_Comm_free(comm);
}

EXPORT int MPI_Comm_disconnect(MPI_Comm *comm) {
    before_free(comm);
    return PMPI_Comm_disconnect(comm);
}

EXPORT int MPI_Init(int *argc, char ***argv) {
    int result = PMPI_Init(argc, argv);
    if (result == MPI_SUCCESS) pthread_once(&once, start);
    return result;
}

EXPORT int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int result = PMPI_Init_thread(argc, argv, required, provided);
    if (result == MPI_SUCCESS) pthread_once(&once, start);
    return result;
}
