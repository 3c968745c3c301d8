/* reduce.c: calls that combine or move one buffer. Also compiled for large counts, by large.c. */
#include <stdlib.h>

#include "shim.h"
#include "counts.h"

#ifndef LARGE_COUNTS
EXPORT int MPI_Barrier(MPI_Comm comm) {
    struct group *group = find_group(comm);
    if (!group) PASS(BARRIER, PMPI_Barrier(comm));
    uint64_t since = begin();
    if (group->hosts > 1) return taken(group, BARRIER, since, hosts_barrier(group));
    return taken(group, BARRIER, since, MOVE(group, .kind = CORE_BARRIER));
}
#endif

static int bcast_bytes(struct group *group, void *at, size_t bytes, int root) {
    if (group->hosts > 1) return hosts_bcast(group, at, bytes, root);
    return MOVE(group, .kind = CORE_BROADCAST, .root = (uint32_t)root, .count = bytes, .in = at, .out = at);
}

EXPORT int OURS(Bcast)(void *buffer, COUNT count, MPI_Datatype type, int root, MPI_Comm comm) {
    struct group *group = find_group(comm);
    struct shape shape;
    if (!group) PASS(BCAST, THEIRS(Bcast)(buffer, count, type, root, comm));
    if (count < 0 || root < 0 || root >= group->size || !shape_of(type, &shape))
        PASS_FOR(BY_ARGUMENT, BCAST, THEIRS(Bcast)(buffer, count, type, root, comm));
    uint64_t since = begin();
    size_t bytes = (size_t)count * shape.size;
    if (bytes == 0) return taken(group, BCAST, since, 0);
    if (shape.plain) return taken(group, BCAST, since, bcast_bytes(group, buffer, bytes, root));
    void *packed = malloc(bytes);
    int failed = !packed;
    if (!failed && group->rank == root) failed = pack(buffer, (size_t)count, &shape, packed, comm);
    if (!failed) failed = bcast_bytes(group, packed, bytes, root);
    if (!failed && group->rank != root) failed = unpack(packed, buffer, (size_t)count, &shape, comm);
    free(packed);
    return taken(group, BCAST, since, failed);
}

EXPORT int OURS(Allreduce)(const void *in, void *out, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    struct group *group = find_group(comm);
    struct reduction how;
    if (!group || !reduction_of(type, op, &how))
        PASS(ALLREDUCE, THEIRS(Allreduce)(in, out, count, type, op, comm));
    if (count < 0) PASS_FOR(BY_ARGUMENT, ALLREDUCE, THEIRS(Allreduce)(in, out, count, type, op, comm));
    uint64_t since = begin();
    if (in == MPI_IN_PLACE) in = out;
    if (count == 0) return taken(group, ALLREDUCE, since, 0);
    if (group->hosts > 1)
        return taken(group, ALLREDUCE, since, hosts_allreduce(group, in, out, (size_t)count, type, op, &how));
    return taken(group, ALLREDUCE, since,
                 COMBINE(group, &how, .kind = CORE_ALL_REDUCE,
                      .count = (size_t)count * how.lanes, .in = in, .out = out));
}

EXPORT int OURS(Reduce)(const void *in, void *out, COUNT count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
    struct group *group = find_group(comm);
    struct reduction how;
    if (!group || !reduction_of(type, op, &how))
        PASS(REDUCE, THEIRS(Reduce)(in, out, count, type, op, root, comm));
    if (count < 0 || root < 0 || root >= group->size)
        PASS_FOR(BY_ARGUMENT, REDUCE, THEIRS(Reduce)(in, out, count, type, op, root, comm));
    uint64_t since = begin();
    if (in == MPI_IN_PLACE) in = out;
    if (count == 0) return taken(group, REDUCE, since, 0);
    if (group->rank != root) out = NULL;
    if (group->hosts > 1)
        return taken(group, REDUCE, since, hosts_reduce(group, in, out, (size_t)count, type, op, &how, root));
    return taken(group, REDUCE, since,
                 COMBINE(group, &how, .kind = CORE_REDUCE, .root = (uint32_t)root,
                      .count = (size_t)count * how.lanes, .in = in, .out = out));
}

/* In place, the result goes to the start of the input: through memory of its own. */
static int scatter_reduced(struct group *group, struct core_call *call, void *out, size_t bytes) {
    call->out = out;
    if (call->in != MPI_IN_PLACE) return chipcomm_mpi_call(group->core, call);
    call->in = out;
    call->out = malloc(bytes ? bytes : 1);
    int failed = !call->out || chipcomm_mpi_call(group->core, call);
    if (!failed && bytes) memcpy(out, call->out, bytes);
    free(call->out);
    return failed;
}

EXPORT int OURS(Reduce_scatter_block)(const void *in, void *out, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    struct group *group = find_group(comm);
    struct reduction how;
    if (group && group->hosts > 1) {
        passing = BY_KIND;
        group = NULL;
    }
    if (!group || !reduction_of(type, op, &how))
        PASS(REDUCE_SCATTER_BLOCK, THEIRS(Reduce_scatter_block)(in, out, count, type, op, comm));
    if (count < 0)
        PASS_FOR(BY_ARGUMENT, REDUCE_SCATTER_BLOCK, THEIRS(Reduce_scatter_block)(in, out, count, type, op, comm));
    uint64_t since = begin();
    if (count == 0) return taken(group, REDUCE_SCATTER_BLOCK, since, 0);
    struct core_call call = {.kind = CORE_REDUCE_SCATTER, .dtype = how.dtype, .op = how.op,
                             .count = (size_t)count * how.lanes, .in = in};
    int failed = scatter_reduced(group, &call, out, (size_t)count * how.size);
    return taken(group, REDUCE_SCATTER_BLOCK, since, failed);
}

EXPORT int OURS(Reduce_scatter)(const void *in, void *out, const COUNT counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    struct group *group = find_group(comm);
    struct reduction how;
    size_t elements[MOST_RANKS];
    if (group && group->hosts > 1) {
        passing = BY_KIND;
        group = NULL;
    }
    if (!group || !reduction_of(type, op, &how))
        PASS(REDUCE_SCATTER, THEIRS(Reduce_scatter)(in, out, counts, type, op, comm));
    for (int rank = 0; rank < group->size; rank++) {
        if (counts[rank] < 0)
            PASS_FOR(BY_ARGUMENT, REDUCE_SCATTER, THEIRS(Reduce_scatter)(in, out, counts, type, op, comm));
        elements[rank] = (size_t)counts[rank] * how.lanes;
    }
    uint64_t since = begin();
    struct core_call call = {.kind = CORE_REDUCE_SCATTER_V, .dtype = how.dtype, .op = how.op,
                             .counts = elements, .in = in};
    int failed = scatter_reduced(group, &call, out, (size_t)counts[group->rank] * how.size);
    return taken(group, REDUCE_SCATTER, since, failed);
}
