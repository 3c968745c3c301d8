/*
 * shim.h: what the files of the C half share. Compiled with the wrapper of an MPI library against its mpi.h.
 *
 * Rule    Take or pass on is decided from what MPI obliges to be equal on all ranks: communicator, kind of call, operation, the
 *         predefined type of a reduction, and the bytes of a signature. What only this rank knows (a derived type, displacements,
 *         MPI_IN_PLACE) changes how it copies, never which way the call goes.
 */
#ifndef CHIPCOMM_MPI_SHIM_H
#define CHIPCOMM_MPI_SHIM_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core.h"

#ifndef MOST_RANKS
#define MOST_RANKS 64
#endif

/* What takes the place of the library's; all else stays inside. */
#define EXPORT __attribute__((visibility("default")))

#define LIKELY(condition) __builtin_expect(!!(condition), 1)

/* The calls that may be taken. */
enum kind {
    BARRIER, BCAST, REDUCE, ALLREDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, GATHER, GATHERV, SCATTER, SCATTERV,
    ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, ALLTOALLW, KINDS
};

/* Why a call is passed on. */
enum why {
    BY_NOTHING, BY_INTER, BY_ONE, BY_MANY, BY_HOSTS, BY_KIND, BY_TYPE, BY_OP, BY_SETUP, BY_YOUTH, BY_ROOM, BY_OFF, BY_ARGUMENT, WHYS
};

/* What a communicator has: its attribute. */
struct group {
    MPI_Comm comm;
    int size, rank;
    unsigned calls;              /* before the group is made */
    enum why why;                /* BY_NOTHING: its calls are taken */
    struct core_group *core;     /* of the ranks on this host */
    int local_rank, local_size;  /* in core */
    int hosts;                   /* 1: core is all of the communicator */
    int width;                   /* ranks that every host has at least */
    MPI_Comm across;             /* of a local rank below width: that rank of each host, in their order; else MPI_COMM_NULL */
    bool sends;                  /* messages of the call go on between hosts while this rank waits inside its own */
    void *scratch;               /* of hosts_allreduce.c */
    size_t room;
    int *host_of, *local_of;     /* of each rank; hosts in the order of their first rank; NULL for one host */
    struct group *next, *previous;
};

/* groups.c: NULL where the communicator's calls are passed on, with the reason in `passing`. */
struct group *find_group(MPI_Comm comm);
extern __thread enum why passing;
/* The rank's error, by the communicator's error handler. */
int call_failed(struct group *group, enum kind kind);

/* stats.c */
extern bool stats_on;
uint64_t now_ns(void);
void count_taken(enum kind kind, uint64_t since);
void count_passed(enum kind kind, uint64_t since);
void stats_start(void);
void stats_end(void); /* collective over MPI_COMM_WORLD */

/* types.c */
void types_start(void);

struct reduction {
    uint8_t dtype, op;
    size_t lanes; /* elements of dtype in one of MPI's */
    size_t size;  /* bytes of one of MPI's */
};

/* Whether elements are combined here as MPI says; else the reason is in `passing`. */
bool reduction_of(MPI_Datatype type, MPI_Op op, struct reduction *out);

/* A type as bytes. */
struct shape {
    MPI_Datatype type;
    size_t size;     /* of its data */
    MPI_Aint extent;
    bool plain;      /* elements are bytes one behind the other */
};

bool shape_of(MPI_Datatype type, struct shape *out);
int pack(const void *from, size_t count, const struct shape *shape, void *to, MPI_Comm comm);
int unpack(const void *from, void *to, size_t count, const struct shape *shape, MPI_Comm comm);

/* hosts.c: communicators that span hosts. */
int hosts_barrier(struct group *group);
int hosts_bcast(struct group *group, void *at, size_t bytes, int root);
int hosts_reduce(struct group *group, const void *in, void *out, size_t count, MPI_Datatype type, MPI_Op op,
                 const struct reduction *how, int root);
/* hosts_allreduce.c */
int hosts_allreduce(struct group *group, const void *in, void *out, size_t count, MPI_Datatype type, MPI_Op op,
                    const struct reduction *how);

static inline uint64_t begin(void) { return __builtin_expect(stats_on, 0) ? now_ns() : 0; }

/* A call that combines elements as `how` says, and one that moves bytes; the given members are those of core_call. */
#define COMBINE(group, how, ...) \
    chipcomm_mpi_call((group)->core, &(struct core_call){.dtype = (how)->dtype, .op = (how)->op, __VA_ARGS__})
#define MOVE(group, ...) \
    chipcomm_mpi_call((group)->core, &(struct core_call){.dtype = CORE_U8, .op = CORE_NO_OP, __VA_ARGS__})

/* Ends a wrapper: the call goes to the MPI library. */
#define PASS(kind, call) \
    do { \
        uint64_t since_ = begin(); \
        int result_ = (call); \
        count_passed(kind, since_); \
        return result_; \
    } while (0)

/* Passes on for a reason of this call's. */
#define PASS_FOR(reason, kind, call) \
    do { \
        passing = (reason); \
        PASS(kind, call); \
    } while (0)

/* Ends a wrapper: the call was taken. */
static inline int taken(struct group *group, enum kind kind, uint64_t since, int failed) {
    count_taken(kind, since);
    return LIKELY(!failed) ? MPI_SUCCESS : call_failed(group, kind);
}

#endif
