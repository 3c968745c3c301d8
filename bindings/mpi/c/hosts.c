/*
 * hosts.c: communicators that span hosts, in two levels: inside each host by us, between the hosts by MPI among the
 * ranks that are first on theirs. What crosses is one buffer for each host. All-reduce is in hosts_allreduce.c.
 */
#include <limits.h>
#include <stdlib.h>

#include "shim.h"

int hosts_barrier(struct group *group) {
    group->sends = group->local_rank == 0;
    int failed = MOVE(group, .kind = CORE_BARRIER);
    if (!failed && group->local_rank == 0) failed = PMPI_Barrier(group->across);
    return failed ? failed : MOVE(group, .kind = CORE_BARRIER);
}

/* From one rank of this host to all of it. */
static int spread(struct group *group, void *at, size_t bytes, int from) {
    if (group->local_size == 1) return 0;
    return MOVE(group, .kind = CORE_BROADCAST, .root = (uint32_t)from, .count = bytes, .in = at, .out = at);
}

/* To the leader of this host. */
static int collect(struct group *group, const void *in, void *out, size_t count, const struct reduction *how) {
    return COMBINE(group, how, .kind = CORE_REDUCE, .count = count * how->lanes,
                .in = in, .out = group->local_rank == 0 ? out : NULL);
}

int hosts_bcast(struct group *group, void *at, size_t bytes, int root) {
    int host = group->host_of[root], own = group->host_of[group->rank], failed = 0;
    group->sends = group->local_rank == 0;
    if (own == host) failed = spread(group, at, bytes, group->local_of[root]);
    if (group->local_rank == 0) {
        for (size_t done = 0, part; !failed && done < bytes; done += part) {
            part = bytes - done < INT_MAX ? bytes - done : INT_MAX;
            failed = PMPI_Bcast((char *)at + done, (int)part, MPI_BYTE, host, group->across);
        }
    }
    return failed || own == host ? failed : spread(group, at, bytes, 0);
}

/* MPI's counts are ints: a large buffer crosses in parts. */
#define PART ((size_t)1 << 30)

/* To the leader of the root's host. */
static int cross(struct group *group, void *at, size_t count, MPI_Datatype type, MPI_Op op, size_t size, int root) {
    int failed = 0, own;
    PMPI_Comm_rank(group->across, &own);
    /* Not in place: MPICH 4.0 reads the address MPI_IN_PLACE itself where the root is not rank 0. */
    void *sum = own == root ? malloc((count < PART ? count : PART) * size) : NULL;
    if (own == root && !sum) return 1;
    for (size_t done = 0, part; !failed && done < count; done += part) {
        void *from = (char *)at + done * size;
        part = count - done < PART ? count - done : PART;
        failed = PMPI_Reduce(from, sum, (int)part, type, op, root, group->across);
        if (!failed && sum) memcpy(from, sum, part * size);
    }
    free(sum);
    return failed;
}

int hosts_reduce(struct group *group, const void *in, void *out, size_t count, MPI_Datatype type, MPI_Op op,
                 const struct reduction *how, int root) {
    size_t bytes = count * how->size;
    int host = group->host_of[root], failed = 0;
    bool leads = group->sends = group->local_rank == 0, is_root = group->rank == root;
    void *sum = is_root ? out : leads ? malloc(bytes) : NULL;
    if (leads && !sum) return 1;
    failed = collect(group, in, sum, count, how);
    if (!failed && leads) failed = cross(group, sum, count, type, op, how->size, host);
    /* On from the leader of the root's host to the root. */
    if (!failed && group->local_of[root] != 0 && group->host_of[group->rank] == host && (leads || is_root)) {
        struct core_message message = {sum, bytes, is_root ? 0 : (uint32_t)group->local_of[root], leads};
        failed = chipcomm_mpi_messages(group->core, &message, 1);
    }
    if (!is_root) free(sum);
    return failed;
}
