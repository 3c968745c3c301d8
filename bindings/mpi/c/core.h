/*
 * core.h: the Rust half of libchipcomm_mpi.so (bindings/mpi/src/exports.rs).
 *
 * Numbers of kinds, types and operations are those of comm_coll.h and of the crate `collectives`.
 */
#ifndef CHIPCOMM_MPI_CORE_H
#define CHIPCOMM_MPI_CORE_H

#include <stddef.h>
#include <stdint.h>

struct core_group;

enum core_kind {
    CORE_BARRIER = 1,
    CORE_ALL_REDUCE = 2,
    CORE_ALL_GATHER = 3,
    CORE_ALL_GATHER_V = 4,
    CORE_REDUCE_SCATTER = 5,
    CORE_REDUCE_SCATTER_V = 6,
    CORE_BROADCAST = 7,
    CORE_REDUCE = 8,
    CORE_ALL_TO_ALL = 9,
    CORE_ALL_TO_ALL_V = 10,
    CORE_GATHER = 11,
    CORE_SCATTER = 12
};

enum core_type {
    CORE_F32 = 0,
    CORE_I32 = 2,
    CORE_I16 = 3,
    CORE_I8 = 4,
    CORE_U8 = 5,
    CORE_I64 = 7,
    CORE_U64 = 8,
    CORE_U16 = 9,
    CORE_U32 = 10,
    CORE_F64 = 32,
    CORE_BOOL = 33
};

enum core_op {
    CORE_SUM = 0,
    CORE_PROD = 1,
    CORE_MAX = 2,
    CORE_MIN = 3,
    CORE_BIT_AND = 5,
    CORE_BIT_OR = 6,
    CORE_BIT_XOR = 7,
    CORE_LOGICAL_AND = 8,
    CORE_LOGICAL_OR = 9,
    CORE_LOGICAL_XOR = 10,
    CORE_NO_OP = 255
};

struct core_call {
    uint8_t kind, dtype, op;
    uint32_t root;
    size_t count;
    const size_t *counts, *receive_counts;
    const void *in;
    void *out;
};

/* A message of bytes, to (sends 1) or from (0) a rank that has one of as many. */
struct core_message {
    void *at;
    size_t bytes;
    uint32_t rank, sends;
};

/* What this process has in common with those on the same host. */
uint64_t chipcomm_mpi_host(void);

/* Makes a group: collective among ranks that pass the same path. NULL on failure. */
struct core_group *chipcomm_mpi_open(const char *path, uint32_t rank, uint32_t nranks);

/* Ends this rank's part. Waits for nobody. */
void chipcomm_mpi_close(struct core_group *group);

/* 0, or 1 with the reason in chipcomm_mpi_error. */
int chipcomm_mpi_call(const struct core_group *group, const struct core_call *call);
int chipcomm_mpi_messages(const struct core_group *group, const struct core_message *messages, size_t count);

/* Has every wait call `hook` now and then, which must not come back here. */
void chipcomm_mpi_set_hook(void (*hook)(void));

/* Why the last call of this thread failed. */
const char *chipcomm_mpi_error(void);

#endif
