/*
 * hosts_allreduce.c: all-reduce of a communicator that spans hosts. What crosses the network is the least that can, spread over the ranks
 * of a host, in pieces so that memory and network work at the same time:
 *
 *   1. inside each host, reduce-scatter: each of its first ranks has the host's sum of one slice of the piece
 *   2. between the ranks that have the same slice, one on each host: each sums one block of the slice of all hosts
 *   3. and sends it to the others
 *   4. inside each host, all-gather
 *
 * Sums are made in the order of the hosts, so that all ranks have the same bits. A small call goes without step 3: each host sums all.
 */
#include <stdlib.h>

#include "shim.h"

/* Bytes of a piece; of a slice at least; and those of a call that is not worth two steps between hosts. All measured. */
#define PIECE ((size_t)1 << 20)
#define SLICE ((size_t)64 << 10)
#define SMALL ((size_t)32 << 10)

/* More hosts than this are the MPI library's to find a way for: each would send to each. */
#ifndef DIRECT
#define DIRECT 16
#endif

/* Pieces under way: one in step 1, one in 2, one in 3. */
#define STAGES 3

struct piece {
    size_t first, count, counts[MOST_RANKS]; /* elements: of the call, and the slice of each rank of this host */
    char *slice, *others;
    MPI_Request requests[2 * DIRECT];
};

struct call {
    struct group *group;
    const char *in;
    char *out;
    MPI_Datatype type;
    MPI_Op op;
    const struct reduction *how;
    int width;            /* ranks of a host that have a slice */
    bool has_slice, once; /* once: a block is the whole slice, on every host */
};

/* Where part `index` of `parts` begins. */
static size_t cut(size_t count, int parts, int index) { return count * (size_t)index / (size_t)parts; }

static int host_of(const struct call *call) { return call->group->host_of[call->group->rank]; }

/* The block that a host sums. */
static char *block(const struct call *call, const struct piece *piece, int host, size_t *count) {
    size_t all = piece->counts[call->group->local_rank], from = cut(all, call->group->hosts, host);
    *count = cut(all, call->group->hosts, host + 1) - from;
    if (call->once) from = 0, *count = all;
    return piece->slice + from * call->how->size;
}

/* What came for the block of this host from another one. */
static char *from_host(const struct call *call, const struct piece *piece, int host, size_t count) {
    return piece->others + (size_t)(host - (host > host_of(call))) * count * call->how->size;
}

/* Sends each other host its block and receives what belongs to the own one; or sends the own one, summed, and receives theirs. */
static int exchange(const struct call *call, struct piece *piece, bool summed) {
    int own = host_of(call), hosts = call->group->hosts, failed = 0;
    MPI_Request *request = piece->requests;
    size_t own_count, count;
    char *own_block = block(call, piece, own, &own_count);
    for (int turn = 1; !failed && turn < hosts; turn++) {
        int host = (own + hosts - turn) % hosts;
        char *at = block(call, piece, host, &count);
        if (!summed) at = from_host(call, piece, host, own_count), count = own_count;
        failed = PMPI_Irecv(at, (int)count, call->type, host, summed, call->group->across, request++);
    }
    for (int turn = 1; !failed && turn < hosts; turn++) {
        int host = (own + turn) % hosts;
        const char *at = block(call, piece, host, &count);
        if (summed) at = own_block, count = own_count;
        failed = PMPI_Isend(at, (int)count, call->type, host, summed, call->group->across, request++);
    }
    return failed;
}

static int finish(const struct call *call, struct piece *piece) {
    /* Not MPI_STATUSES_IGNORE: MPICH's is an address that compilers warn of. */
    MPI_Status statuses[2 * DIRECT];
    return PMPI_Waitall(2 * (call->group->hosts - 1), piece->requests, statuses);
}

/* Step 1, and the start of step 2. */
static int begin_piece(const struct call *call, struct piece *piece) {
    const struct reduction *how = call->how;
    size_t lists[MOST_RANKS] = {0};
    for (int rank = 0; rank < call->group->local_size; rank++) {
        int slice = rank < call->width ? rank : call->width, next = rank < call->width ? rank + 1 : call->width;
        piece->counts[rank] = cut(piece->count, call->width, next) - cut(piece->count, call->width, slice);
        lists[rank] = piece->counts[rank] * how->lanes;
    }
    int failed = COMBINE(call->group, how, .kind = CORE_REDUCE_SCATTER_V, .counts = lists,
                         .in = call->in + piece->first * how->size, .out = piece->slice);
    return failed || !call->has_slice || call->group->hosts > DIRECT ? failed : exchange(call, piece, false);
}

/* The rest of step 2, and the start of step 3. */
static int middle_piece(const struct call *call, struct piece *piece) {
    if (!call->has_slice) return 0;
    int own = host_of(call), hosts = call->group->hosts;
    size_t count;
    char *own_block = block(call, piece, own, &count), *sum = NULL;
    if (hosts > DIRECT)
        return PMPI_Allreduce(MPI_IN_PLACE, piece->slice, (int)piece->counts[call->group->local_rank], call->type,
                              call->op, call->group->across);
    int failed = finish(call, piece);
    /* In the order of the hosts, whoever sums. */
    for (int host = 0; !failed && host < hosts; host++) {
        char *at = host == own ? own_block : from_host(call, piece, host, count);
        if (sum) failed = PMPI_Reduce_local(sum, at, (int)count, call->type, call->op);
        sum = at;
    }
    if (sum != own_block) memcpy(own_block, sum, count * call->how->size);
    return failed || call->once ? failed : exchange(call, piece, true);
}

/* The rest of step 3, and step 4. */
static int end_piece(const struct call *call, struct piece *piece) {
    const struct reduction *how = call->how;
    size_t bytes[MOST_RANKS];
    int failed = call->has_slice && !call->once && call->group->hosts <= DIRECT ? finish(call, piece) : 0;
    for (int rank = 0; rank < call->group->local_size; rank++) bytes[rank] = piece->counts[rank] * how->size;
    if (failed) return failed;
    return MOVE(call->group, .kind = CORE_ALL_GATHER_V, .counts = bytes, .in = piece->slice,
                .out = call->out + piece->first * how->size);
}

int hosts_allreduce(struct group *group, const void *in, void *out, size_t count, MPI_Datatype type, MPI_Op op,
                    const struct reduction *how) {
    struct call call = {group, in, out, type, op, how, group->width, false, false};
    size_t bytes = count * how->size, each = PIECE / how->size;
    if (bytes / SLICE < (size_t)call.width) call.width = bytes < 2 * SLICE ? 1 : (int)(bytes / SLICE);
    call.has_slice = group->local_rank < call.width;
    /* A short call has nothing under way between hosts while a rank waits inside its own. */
    group->sends = call.has_slice && bytes >= 2 * SLICE;
    call.once = bytes <= SMALL && group->hosts <= DIRECT;
    if (each > count) each = count;
    /* A slice, and as many blocks of it as there are other hosts. */
    size_t room = (each / (size_t)call.width + 1) * how->size, most = call.once ? room * (size_t)group->hosts : 2 * room;
    most += (size_t)group->hosts * how->size;
    if (group->room < STAGES * most) {
        free(group->scratch);
        group->scratch = malloc(group->room = STAGES * most);
        if (!group->scratch) {
            group->room = 0;
            return 1;
        }
    }
    struct piece pieces[STAGES];
    size_t number = (count + each - 1) / each;
    int failed = 0;
    for (size_t at = 0; !failed && at < number + 2; at++) {
        if (at < number) {
            struct piece *piece = &pieces[at % STAGES];
            piece->first = at * each;
            piece->count = count - piece->first < each ? count - piece->first : each;
            piece->slice = (char *)group->scratch + at % STAGES * most;
            piece->others = piece->slice + room;
            failed = begin_piece(&call, piece);
        }
        if (!failed && at >= 1 && at - 1 < number) failed = middle_piece(&call, &pieces[(at - 1) % STAGES]);
        if (!failed && at >= 2) failed = end_piece(&call, &pieces[(at - 2) % STAGES]);
    }
    return failed;
}
