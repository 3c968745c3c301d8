/*
 * comm.h: the C API of a communicator backend. C11 and C++17.
 *
 * libcomm_sim.so (simulation) and libcomm_hccl.so (Ascend devices) export the same symbols.
 *
 * Results    comm_init returns a handle, or NULL on failure. Every other call returns COMM_SUCCESS or
 *            another CommResult. comm_last_error() has the reason of the calling thread's last failure,
 *            which is also printed to stderr.
 * Arguments  Checked before anything is created. A NULL, stale or out-of-range argument is
 *            COMM_E_INVALID, never a crash.
 * Threads    A handle may be used from any thread, and from several at once.
 * Waiting    A call marked "collective" returns on no rank before every member has made it. It fails with
 *            COMM_E_TIMED_OUT after 120 seconds, or after CHIPCOMM_TIMEOUT_S seconds if that is set, and
 *            does not wait for the deadline when a member's process dies or leaves. The others return at
 *            once in the simulation; on Ascend devices they make vendor calls, each under the same deadline.
 *            comm_destroy is not collective, and waits too: see there. On Ascend devices HCCL has limits of
 *            its own inside comm_init (HCCL_CONNECT_TIMEOUT, 120 seconds) and comm_barrier
 *            (HCCL_EXEC_TIMEOUT); the shorter one ends the call. The first allocation waits for the path to
 *            each peer's device to be reported as up, for 3 seconds on A2 and A3 and 30 seconds on A5, and
 *            then goes on without the report.
 * Failure    After a timeout, a death or an abort the communicator is broken: every later call repeats
 *            the first cause. comm_destroy works in any state.
 */
#ifndef CHIPCOMM_COMM_H
#define CHIPCOMM_COMM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A communicator. Opaque; never dereferenced, so a stale handle is refused. */
typedef struct CommHandleTag *CommHandle;

/*
 * The result of a call. The numbers are those of ErrorCode in the Rust crate worker-errors, hence the gaps.
 * A number never changes its meaning.
 */
enum CommResult {
    COMM_SUCCESS = 0,
    COMM_E_INVALID = 1,       /* a wrong argument, or a call in the wrong state */
    COMM_E_TIMED_OUT = 2,     /* the deadline passed while every peer was alive */
    COMM_E_PEER_DIED = 3,     /* the process of a peer is gone */
    COMM_E_PEER_LEFT = 4,     /* a peer destroyed its communicator too early */
    COMM_E_ABORTED = 5,       /* the run was aborted */
    COMM_E_OUT_OF_MEMORY = 6, /* not enough memory */
    COMM_E_SYSTEM = 7,        /* the operating system refused a call */
    COMM_E_VENDOR = 8,        /* a vendor library refused a call */
    COMM_E_MISMATCH = 9,      /* ranks disagree on something that must be the same */
    COMM_E_PROTOCOL = 10,     /* a peer wrote what cannot be: another build, or an overwritten window */
    COMM_E_CLOSED = 16,       /* the communicator is destroyed */
    COMM_E_INTERNAL = 17,     /* a bug in the library */
    COMM_E_PEER_FAILED = 18   /* a peer could not do its part; nothing changed, so the call can be repeated */
};

/*
 * Joins a group of nranks (1 to 64) ranks as rank `rank` (from 0). Collective.
 *
 * The ranks find each other by rootinfo_path, the same on every rank. It is only a name: nothing may exist
 * there, and nothing is created. The caller owns the stream and the life cycle of the device; the
 * simulation ignores the stream.
 *
 * Ranks on several hosts: rootinfo_path is "tcp://HOST:PORT", an address of rank 0's host (IPv6 in brackets),
 * or "env://", which takes it from MASTER_ADDR and MASTER_PORT, or from Slurm's variables. Rank 0 listens there
 * until all have joined. CHIPCOMM_TOKEN_FILE names a file with a token that only its owner can read, the same
 * on every host; or CHIPCOMM_TOKEN holds it. A rank whose process ends is noticed at once, a host or network
 * that fails within 10 seconds. Windows reach other hosts by Fabric only. Everything passes through rank 0:
 * comm_destroy of rank 0 waits up to 2 seconds for the others to leave. The simulation refuses addresses.
 */
CommHandle comm_init(int rank, int nranks, void *stream, const char *rootinfo_path);

/*
 * Allocates the base window of every rank. Collective, at most once, with the same win_size on every rank.
 *
 * win_size may be rounded up; comm_get_window_size has the real size. The window is zeroed before a peer
 * can reach it. *device_ctx_out is the device address of a CommContext for kernels (comm_context.h).
 */
int comm_alloc_windows(CommHandle handle, size_t win_size, uint64_t *device_ctx_out);

/* The device address of this rank's base window. */
int comm_get_local_window_base(CommHandle handle, uint64_t *base_out);

/* The real size of the base window in bytes. */
int comm_get_window_size(CommHandle handle, size_t *size_out);

/*
 * Derives a context in which a subset of the ranks sees a slice of the base windows. Local, not collective.
 *
 * rank_ids[0..rank_count] are the ranks of the subset in their new order, and domain_rank is the position
 * of the calling rank among them. The slice is window_size bytes at window_offset of every base window. The
 * context lives until comm_destroy.
 */
int comm_derive_context(CommHandle handle, const uint32_t *rank_ids, size_t rank_count, uint32_t domain_rank,
                        size_t window_offset, size_t window_size, uint64_t *device_ctx_out);

/*
 * Allocates a domain: a subset of the ranks with windows of its own. Collective among its members, in any
 * order relative to other domains.
 *
 * allocation_id is chosen by the caller: the same on every member, different for concurrent domains. The
 * other arguments are as in comm_derive_context.
 */
int comm_alloc_domain_windows(CommHandle handle, uint64_t allocation_id, const uint32_t *rank_ids,
                              size_t rank_count, uint32_t domain_rank, size_t window_size,
                              uint64_t *device_ctx_out, uint64_t *local_window_base_out);

/*
 * Releases a domain. Collective among its members; rank_count and domain_rank must be those of its
 * allocation. Afterwards allocation_id may be used again. Frees this rank's window even when a peer is gone.
 */
int comm_release_domain_windows(CommHandle handle, uint64_t allocation_id, size_t rank_count,
                                uint32_t domain_rank);

/* Waits for every rank. Collective. What a rank wrote before the call, every rank sees after it. */
int comm_barrier(CommHandle handle);

/*
 * Leaves the group and releases everything that this rank owns, even when peers are gone. The handle is
 * invalid afterwards, unless the call is refused because another thread is inside a call on it.
 *
 * In the simulation it waits for nobody. On Ascend devices it waits until every living rank that has this
 * rank's windows open has closed them, which it does in its own comm_destroy: at most until the deadline,
 * and never for a dead rank. A vendor call that hangs is waited for as long. When the communicator has
 * failed already, for example because a peer died, both waits together are at most 5 seconds.
 */
int comm_destroy(CommHandle handle);

/* The text of the calling thread's last failure, "" if there was none; valid until the thread's next call. */
const char *comm_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
