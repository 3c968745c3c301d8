/*
 * The C API of a communicator backend: libcomm_sim.so and libcomm_hccl.so export the same symbols. C11 and
 * C++17.
 *
 * A call returns 0, or a CommResult that is not 0; comm_init returns a handle, or NULL. The reason of a
 * failure is in comm_last_error() of the calling thread and on stderr. A NULL or impossible argument is an
 * error, never a crash. A handle may be used from any thread, and from several at once.
 *
 * A call that waits for peers gives up after 120 seconds, or after CHIPCOMM_TIMEOUT_S seconds if that is set.
 */
#ifndef CHIPCOMM_COMM_H
#define CHIPCOMM_COMM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CommHandleTag *CommHandle;

/*
 * What a call returns. The numbers are those of ErrorCode in the Rust crate worker-errors, so there are gaps;
 * a number never changes its meaning.
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
    COMM_E_CLOSED = 16,       /* the communicator is destroyed */
    COMM_E_INTERNAL = 17,     /* a bug in the library */
    COMM_E_PEER_FAILED = 18   /* a peer could not do its part; nothing changed, call again */
};

/*
 * Joins the group of nranks (1 to 64) ranks that meet at rootinfo_path, as rank `rank`. Returns when all have
 * come. The caller owns the stream and the life cycle of the device; the simulator ignores the stream.
 */
CommHandle comm_init(int rank, int nranks, void *stream, const char *rootinfo_path);

/*
 * Allocates the base window of every rank; collective, once. win_size may be rounded up. The window is zeroed
 * before a peer can reach it. *device_ctx_out is the address of a CommContext for kernels.
 */
int comm_alloc_windows(CommHandle handle, size_t win_size, uint64_t *device_ctx_out);

/* Where the base window of this rank starts. */
int comm_get_local_window_base(CommHandle handle, uint64_t *base_out);

/* The real size of the base window. */
int comm_get_window_size(CommHandle handle, size_t *size_out);

/*
 * Makes the view that the ranks rank_ids[0..rank_count] have of window_size bytes at window_offset of every
 * base window. domain_rank is the position of this rank among them. Local: no peer takes part. The context
 * lives until comm_destroy.
 */
int comm_derive_context(CommHandle handle, const uint32_t *rank_ids, size_t rank_count, uint32_t domain_rank,
                        size_t window_offset, size_t window_size, uint64_t *device_ctx_out);

/*
 * Allocates a window for a subset of the ranks. Collective among its members, in any order relative to other
 * domains; allocation_id keeps concurrent ones apart.
 */
int comm_alloc_domain_windows(CommHandle handle, uint64_t allocation_id, const uint32_t *rank_ids,
                              size_t rank_count, uint32_t domain_rank, size_t window_size,
                              uint64_t *device_ctx_out, uint64_t *local_window_base_out);

/* Releases a domain. Collective among its members; rank_count and domain_rank are those of its allocation. */
int comm_release_domain_windows(CommHandle handle, uint64_t allocation_id, size_t rank_count,
                                uint32_t domain_rank);

/* Waits until every rank has come. What a rank wrote before, every rank sees after. */
int comm_barrier(CommHandle handle);

/* Leaves the group and releases what this rank owns, even when peers are gone. The handle is then invalid. */
int comm_destroy(CommHandle handle);

/* The text of the calling thread's last failure, "" if there was none; valid until the thread's next call. */
const char *comm_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
