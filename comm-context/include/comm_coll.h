/*
 * comm_coll.h: all-reduce and its family, on a communicator of comm.h. C11 and C++17.
 *
 * libcomm_sim.so and libcomm_hccl.so export the same symbols; link to one of them.
 *
 * Results    comm_coll_create, comm_coll_create_over and comm_coll_alloc return NULL on failure. Every other
 *            call returns COMM_SUCCESS or another CommResult, with the reason in comm_last_error().
 * Arguments  Checked before any peer knows of the call: COMM_E_INVALID leaves the group as it was.
 * Same calls Every rank of a group makes the same calls in the same order, with the same kind, type,
 *            operation, root and counts. Where they differ every rank gets COMM_E_MISMATCH with both calls: in
 *            that call or, where it need not wait for the others in it, in the next. This is a promise of the
 *            simulation too; on devices such calls end at the deadline.
 * Same bits  Values are combined in the order of the ranks, always: results do not depend on size, place,
 *            algorithm or timing. Half precision is combined in float and rounded once. This is a promise of
 *            the simulation; HCCL has an order of its own.
 * In place   in == out for all_reduce and reduce. For gather and all_gather, in may be this rank's block of
 *            out; for scatter and reduce_scatter, out may be this rank's block of in (reduce_scatter not in
 *            device memory). The same for _v. Any other overlap is refused.
 * Unused     What a rank does not need (out of a rank that is not the root) may be NULL.
 * Failure    Any other error breaks the group: later calls repeat the first cause, and memory of
 *            comm_coll_alloc must not be read or written any more, because a slow peer may still use it.
 *            comm_coll_destroy works in any state.
 * Threads    One thread at a time uses a group; a second one is refused. Calls that were started and not yet
 *            found to be over tie the group to the thread that started them, unless it has a progress thread.
 */
#ifndef CHIPCOMM_COMM_COLL_H
#define CHIPCOMM_COMM_COLL_H

#include <stddef.h>
#include <stdint.h>

#include "comm.h"
#include "comm_context.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A group of ranks that make collective calls. Opaque; never dereferenced, so a stale handle is refused. */
typedef struct CommCollTag *CommColl;

/* A call that was started. Never 0, and never the same number twice in a group. */
typedef uint64_t CommCollRequest;

/* Types of elements: those of TensorDType, and these. */
enum CommCollType { COMM_COLL_FLOAT64 = 32, COMM_COLL_BOOL = 33 };

/* How elements are combined. Sums and products of integers wrap; NaN wins in MAX and MIN. */
enum CommCollOp {
    COMM_COLL_SUM = 0,
    COMM_COLL_PROD = 1,
    COMM_COLL_MAX = 2,
    COMM_COLL_MIN = 3,
    COMM_COLL_AVG = 4,     /* floating point only */
    COMM_COLL_BIT_AND = 5, /* this and those below: integers and bool only */
    COMM_COLL_BIT_OR = 6,
    COMM_COLL_BIT_XOR = 7,
    COMM_COLL_LOGICAL_AND = 8,
    COMM_COLL_LOGICAL_OR = 9,
    COMM_COLL_LOGICAL_XOR = 10
};

/* Flags of CommCollOptions. */
enum { COMM_COLL_PROGRESS_THREAD = 1 };

/* Bytes of a pool where nobody says otherwise. */
#define COMM_COLL_POOL 4194304

/* How a group is made. Start from COMM_COLL_OPTIONS and change what differs. */
typedef struct CommCollOptions {
    uint32_t size;       /* sizeof(CommCollOptions) */
    uint32_t flags;      /* COMM_COLL_PROGRESS_THREAD: started calls go on while this rank computes */
    uint64_t pool_bytes; /* of every rank's window, for comm_coll_alloc; the same on every rank */
    uint64_t timeout_ms; /* how long a call may wait for its peers; 0: CHIPCOMM_TIMEOUT_S, or 120 s */
} CommCollOptions;

#define COMM_COLL_OPTIONS {sizeof(CommCollOptions), 0, COMM_COLL_POOL, 0}

COMM_STATIC_ASSERT(sizeof(CommCollOptions) == 24, "CommCollOptions: size");

/* Makes a group of all ranks of a communicator. Collective. */
CommColl comm_coll_create(CommHandle comm);

/*
 * Makes a group of some ranks, in that order; for a domain, its ranks. Collective among them. NULL and 0 stand
 * for all ranks, options NULL for COMM_COLL_OPTIONS. Groups of the same ranks in the same order are made, and
 * destroyed, in the same order on all of them.
 */
CommColl comm_coll_create_over(CommHandle comm, const uint32_t *rank_ids, size_t rank_count,
                               const CommCollOptions *options);

/*
 * Makes a group of all ranks of `coll` that pass the same color, in the order of their keys, and of their ranks
 * where keys are equal. Collective in `coll`. With color -1 a rank takes part and gets NULL.
 */
int comm_coll_split(CommColl coll, int color, int64_t key, CommColl *coll_out);

/* Finishes what was started, and closes the group. Collective. The handle is invalid afterwards, whatever the
 * result, unless another thread is inside a call on it, or has started calls that are not over. */
int comm_coll_destroy(CommColl coll);

/* This rank in the group, and how many it has. */
int comm_coll_rank(CommColl coll, int *rank_out);
int comm_coll_size(CommColl coll, int *size_out);

/*
 * Memory in this rank's window, aligned to 128 bytes, not initialized, until comm_coll_free or
 * comm_coll_destroy. Not collective. Peers read and write it where it stands: an all_reduce whose buffers are
 * such memory on all ranks copies nothing.
 */
void *comm_coll_alloc(CommColl coll, size_t bytes);
int comm_coll_free(CommColl coll, void *memory);

/* Returns when every rank has come here. */
int comm_coll_barrier(CommColl coll);

/* Every rank gets the combination of all. */
int comm_coll_all_reduce(CommColl coll, const void *in, void *out, size_t count, int dtype, int op);

/* Every rank gets what all have, in the order of the ranks; in _v, counts[r] elements of rank r. */
int comm_coll_all_gather(CommColl coll, const void *in, void *out, size_t count_per_rank, int dtype);
int comm_coll_all_gather_v(CommColl coll, const void *in, void *out, const size_t *counts, int dtype);

/* Rank r gets block r of the combination of all; in _v, counts[r] elements. */
int comm_coll_reduce_scatter(CommColl coll, const void *in, void *out, size_t count_per_rank, int dtype, int op);
int comm_coll_reduce_scatter_v(CommColl coll, const void *in, void *out, const size_t *counts, int dtype, int op);

/* Every rank gets what the root has. */
int comm_coll_broadcast(CommColl coll, void *buf, size_t count, int dtype, int root);

/* The root gets the combination of all. */
int comm_coll_reduce(CommColl coll, const void *in, void *out, size_t count, int dtype, int op, int root);

/* Rank r gets block r of every rank; in _v, send_counts[r] elements to rank r and receive_counts[r] from it. */
int comm_coll_all_to_all(CommColl coll, const void *in, void *out, size_t count_per_pair, int dtype);
int comm_coll_all_to_all_v(CommColl coll, const void *in, const size_t *send_counts, void *out,
                           const size_t *receive_counts, int dtype);

/* The root gets what all have, in the order of the ranks. */
int comm_coll_gather(CommColl coll, const void *in, void *out, size_t count, int dtype, int root);

/* Rank r gets block r of what the root has. */
int comm_coll_scatter(CommColl coll, const void *in, void *out, size_t count, int dtype, int root);

/*
 * A message to another rank of the group. Messages of a pair arrive in order; recv takes the first with its
 * tag. send returns when the buffer may be written again. Another type or count than was sent is
 * COMM_E_MISMATCH on both sides.
 */
int comm_coll_send(CommColl coll, const void *buf, size_t count, int dtype, int to, uint32_t tag);
int comm_coll_recv(CommColl coll, void *buf, size_t count, int dtype, int from, uint32_t tag);

/*
 * The same calls, started: they return at once, and the buffers belong to the call until comm_coll_wait, or
 * comm_coll_test with *done_out 1, says that it is over. Lists of counts are copied. Started calls go on in every
 * call of this header that their thread makes, on any group, and, with COMM_COLL_PROGRESS_THREAD, also while it
 * makes none.
 */
int comm_coll_start_barrier(CommColl coll, CommCollRequest *request_out);
int comm_coll_start_all_reduce(CommColl coll, const void *in, void *out, size_t count, int dtype, int op,
                               CommCollRequest *request_out);
int comm_coll_start_all_gather(CommColl coll, const void *in, void *out, size_t count_per_rank, int dtype,
                               CommCollRequest *request_out);
int comm_coll_start_all_gather_v(CommColl coll, const void *in, void *out, const size_t *counts, int dtype,
                                 CommCollRequest *request_out);
int comm_coll_start_reduce_scatter(CommColl coll, const void *in, void *out, size_t count_per_rank, int dtype,
                                   int op, CommCollRequest *request_out);
int comm_coll_start_reduce_scatter_v(CommColl coll, const void *in, void *out, const size_t *counts, int dtype,
                                     int op, CommCollRequest *request_out);
int comm_coll_start_broadcast(CommColl coll, void *buf, size_t count, int dtype, int root,
                              CommCollRequest *request_out);
int comm_coll_start_reduce(CommColl coll, const void *in, void *out, size_t count, int dtype, int op, int root,
                           CommCollRequest *request_out);
int comm_coll_start_all_to_all(CommColl coll, const void *in, void *out, size_t count_per_pair, int dtype,
                               CommCollRequest *request_out);
int comm_coll_start_all_to_all_v(CommColl coll, const void *in, const size_t *send_counts, void *out,
                                 const size_t *receive_counts, int dtype, CommCollRequest *request_out);
int comm_coll_start_gather(CommColl coll, const void *in, void *out, size_t count, int dtype, int root,
                           CommCollRequest *request_out);
int comm_coll_start_scatter(CommColl coll, const void *in, void *out, size_t count, int dtype, int root,
                            CommCollRequest *request_out);
int comm_coll_start_send(CommColl coll, const void *buf, size_t count, int dtype, int to, uint32_t tag,
                         CommCollRequest *request_out);
int comm_coll_start_recv(CommColl coll, void *buf, size_t count, int dtype, int from, uint32_t tag,
                         CommCollRequest *request_out);

/* Waits until a started call is over. Its number is invalid afterwards, whatever the result. */
int comm_coll_wait(CommColl coll, CommCollRequest request);

/* Whether a started call is over: *done_out is 1 or 0. After 1, and after an error, its number is invalid. */
int comm_coll_test(CommColl coll, CommCollRequest request, int *done_out);

#ifdef __cplusplus
}
#endif

#endif
