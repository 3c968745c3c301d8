/*
 * moves.c: calls that move blocks from rank to rank. All move bytes: as many as the signature has, which MPI obliges to be equal on both
 * sides. A side whose elements are not bytes in a row, or not where the block of the rank would be, goes through memory of its own.
 */
#include <stdlib.h>

#include "shim.h"
#include "counts.h"

/* Takes only what stays on one host. */
static struct group *find_local(MPI_Comm comm) {
    struct group *group = find_group(comm);
    if (!group || group->hosts == 1) return group;
    passing = BY_KIND;
    return NULL;
}

/* The blocks of all ranks on one side of a call. */
struct side {
    void *base;
    const COUNT *counts; /* of each rank; NULL: `count` for each, one behind the other */
    const PLACE *displacements;
    COUNT count;
    const MPI_Datatype *types;         /* of each rank, with displacements in bytes; NULL: `shape` for all */
    struct shape shape;
};

static bool side_of(struct side *side, void *base, COUNT count, const COUNT *counts, const PLACE *displacements,
                    MPI_Datatype type, int size) {
    *side = (struct side){.base = base, .counts = counts, .displacements = displacements, .count = count};
    for (int rank = 0; counts && rank < size; rank++)
        if (counts[rank] < 0) return false;
    return count >= 0 && shape_of(type, &side->shape);
}

static bool sides_of(struct side *side, void *base, const COUNT *counts, const PLACE *displacements,
                     const MPI_Datatype *types, int size) {
    struct shape shape;
    *side = (struct side){.base = base, .counts = counts, .displacements = displacements, .types = types};
    for (int rank = 0; rank < size; rank++)
        if (counts[rank] < 0 || !shape_of(types[rank], &shape)) return false;
    return true;
}

static struct shape shape_at(const struct side *side, int rank) {
    struct shape shape = side->shape;
    if (side->types) shape_of(side->types[rank], &shape);
    return shape;
}

static size_t elements_at(const struct side *side, int rank) {
    return (size_t)(side->counts ? side->counts[rank] : side->count);
}

static size_t bytes_at(const struct side *side, int rank) {
    return elements_at(side, rank) * shape_at(side, rank).size;
}

static char *block_at(const struct side *side, int rank) {
    if (side->types) return (char *)side->base + side->displacements[rank];
    MPI_Aint at = side->displacements ? side->displacements[rank] : (MPI_Aint)rank * (MPI_Aint)side->count;
    return (char *)side->base + at * side->shape.extent;
}

static size_t bytes_of_all(const struct side *side, int size, size_t *bytes) {
    size_t sum = 0;
    for (int rank = 0; rank < size; rank++) sum += bytes[rank] = bytes_at(side, rank);
    return sum;
}

/* Whether the blocks are bytes, one behind the other. */
static bool in_a_row(const struct side *side, int size) {
    if (side->types || !side->shape.plain) return false;
    const char *at = side->base;
    for (int rank = 0; side->displacements && rank < size; rank++) {
        if (elements_at(side, rank) && block_at(side, rank) != at) return false;
        at += bytes_at(side, rank);
    }
    return true;
}

static int pack_block(const struct side *side, int rank, void *to, MPI_Comm comm) {
    struct shape shape = shape_at(side, rank);
    return pack(block_at(side, rank), elements_at(side, rank), &shape, to, comm);
}

static int unpack_block(const struct side *side, int rank, const void *from, MPI_Comm comm) {
    struct shape shape = shape_at(side, rank);
    return unpack(from, block_at(side, rank), elements_at(side, rank), &shape, comm);
}

static int pack_all(const struct side *side, int size, char *to, MPI_Comm comm) {
    int failed = 0;
    for (int rank = 0; !failed && rank < size; rank++) {
        failed = pack_block(side, rank, to, comm);
        to += bytes_at(side, rank);
    }
    return failed;
}

static int unpack_all(const struct side *side, int size, const char *from, MPI_Comm comm) {
    int failed = 0;
    for (int rank = 0; !failed && rank < size; rank++) {
        failed = unpack_block(side, rank, from, comm);
        from += bytes_at(side, rank);
    }
    return failed;
}

/* Memory of its own where the side's is not bytes in a row; NULL in `*own` otherwise. */
static int buffer_for(const struct side *side, int size, size_t bytes, void **use, void **own) {
    *own = NULL;
    *use = side->base;
    if (in_a_row(side, size)) return 0;
    *use = *own = malloc(bytes ? bytes : 1);
    return *own == NULL;
}

/* What this rank gives to all others alike: its one block as bytes. */
static int own_bytes(const void *from, size_t count, const struct shape *shape, const void **use, void **own,
                     MPI_Comm comm) {
    *own = NULL;
    *use = from;
    if (shape->plain) return 0;
    *use = *own = malloc(count * shape->size + 1);
    return *own ? pack(from, count, shape, *own, comm) : 1;
}

/* Allgather and Allgatherv. */
static int collect_all(struct group *group, const void *from, COUNT count, MPI_Datatype type, struct side *to,
                       enum core_kind kind) {
    size_t bytes[MOST_RANKS], all = bytes_of_all(to, group->size, bytes);
    struct shape shape = to->shape;
    const void *in;
    void *packed, *out, *own;
    /* In place: the block is where the result goes. */
    size_t elements = from == MPI_IN_PLACE ? elements_at(to, group->rank) : (size_t)count;
    if (from == MPI_IN_PLACE) from = block_at(to, group->rank);
    else shape_of(type, &shape);
    int failed = own_bytes(from, elements, &shape, &in, &packed, group->comm);
    failed |= buffer_for(to, group->size, all, &out, &own);
    if (!failed)
        failed = MOVE(group, .kind = kind, .count = kind == CORE_ALL_GATHER ? bytes[0] : 0,
                      .counts = kind == CORE_ALL_GATHER ? NULL : bytes, .in = in, .out = out);
    if (!failed && own) failed = unpack_all(to, group->size, own, group->comm);
    free(packed);
    free(own);
    return failed;
}

EXPORT int OURS(Allgather)(const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count,
                  MPI_Datatype out_type, MPI_Comm comm) {
    struct group *group = find_local(comm);
    struct side to;
    struct shape shape;
    if (!group) PASS(ALLGATHER, THEIRS(Allgather)(in, in_count, in_type, out, out_count, out_type, comm));
    if (!side_of(&to, out, out_count, NULL, NULL, out_type, group->size) ||
        (in != MPI_IN_PLACE && (in_count < 0 || !shape_of(in_type, &shape))))
        PASS_FOR(BY_ARGUMENT, ALLGATHER,
                 THEIRS(Allgather)(in, in_count, in_type, out, out_count, out_type, comm));
    uint64_t since = begin();
    int failed = bytes_at(&to, 0) ? collect_all(group, in, in_count, in_type, &to, CORE_ALL_GATHER) : 0;
    return taken(group, ALLGATHER, since, failed);
}

EXPORT int OURS(Allgatherv)(const void *in, COUNT in_count, MPI_Datatype in_type, void *out, const COUNT out_counts[],
                   const PLACE displacements[], MPI_Datatype out_type, MPI_Comm comm) {
    struct group *group = find_local(comm);
    struct side to;
    struct shape shape;
    if (!group)
        PASS(ALLGATHERV,
             THEIRS(Allgatherv)(in, in_count, in_type, out, out_counts, displacements, out_type, comm));
    if (!side_of(&to, out, 0, out_counts, displacements, out_type, group->size) ||
        (in != MPI_IN_PLACE && (in_count < 0 || !shape_of(in_type, &shape))))
        PASS_FOR(BY_ARGUMENT, ALLGATHERV,
                 THEIRS(Allgatherv)(in, in_count, in_type, out, out_counts, displacements, out_type, comm));
    uint64_t since = begin();
    return taken(group, ALLGATHERV, since, collect_all(group, in, in_count, in_type, &to, CORE_ALL_GATHER_V));
}

EXPORT int OURS(Gather)(const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count,
               MPI_Datatype out_type, int root, MPI_Comm comm) {
    struct group *group = find_local(comm);
    struct side to = {.base = NULL};
    struct shape shape;
    if (!group) PASS(GATHER, THEIRS(Gather)(in, in_count, in_type, out, out_count, out_type, root, comm));
    bool is_root = group->rank == root, in_place = is_root && in == MPI_IN_PLACE;
    if (root < 0 || root >= group->size ||
        (is_root && !side_of(&to, out, out_count, NULL, NULL, out_type, group->size)) ||
        (!in_place && (in_count < 0 || !shape_of(in_type, &shape))))
        PASS_FOR(BY_ARGUMENT, GATHER, THEIRS(Gather)(in, in_count, in_type, out, out_count, out_type, root, comm));
    uint64_t since = begin();
    if (in_place) in = block_at(&to, root), in_count = out_count, shape = to.shape;
    size_t bytes = (size_t)in_count * shape.size;
    if (bytes == 0) return taken(group, GATHER, since, 0);
    const void *use;
    void *packed, *all = NULL, *own = NULL;
    int failed = own_bytes(in, (size_t)in_count, &shape, &use, &packed, comm);
    if (is_root) failed |= buffer_for(&to, group->size, bytes * (size_t)group->size, &all, &own);
    if (!failed)
        failed = MOVE(group, .kind = CORE_GATHER, .root = (uint32_t)root, .count = bytes, .in = use, .out = all);
    if (!failed && own) failed = unpack_all(&to, group->size, own, comm);
    free(packed);
    free(own);
    return taken(group, GATHER, since, failed);
}

EXPORT int OURS(Scatter)(const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count,
                MPI_Datatype out_type, int root, MPI_Comm comm) {
    struct group *group = find_local(comm);
    struct side from = {.base = NULL};
    struct shape shape;
    if (!group) PASS(SCATTER, THEIRS(Scatter)(in, in_count, in_type, out, out_count, out_type, root, comm));
    bool is_root = group->rank == root, in_place = is_root && out == MPI_IN_PLACE;
    if (root < 0 || root >= group->size ||
        (is_root && !side_of(&from, (void *)(uintptr_t)in, in_count, NULL, NULL, in_type, group->size)) ||
        (!in_place && (out_count < 0 || !shape_of(out_type, &shape))))
        PASS_FOR(BY_ARGUMENT, SCATTER, THEIRS(Scatter)(in, in_count, in_type, out, out_count, out_type, root, comm));
    uint64_t since = begin();
    size_t bytes = in_place ? bytes_at(&from, root) : (size_t)out_count * shape.size;
    if (bytes == 0) return taken(group, SCATTER, since, 0);
    void *all = NULL, *own = NULL, *got = out, *packed = NULL;
    int failed = 0;
    if (is_root) failed = buffer_for(&from, group->size, bytes * (size_t)group->size, &all, &own);
    if (!failed && own) failed = pack_all(&from, group->size, own, comm);
    if (in_place) got = (char *)all + bytes * (size_t)root;
    else if (!shape.plain) failed |= !(got = packed = malloc(bytes));
    if (!failed)
        failed = MOVE(group, .kind = CORE_SCATTER, .root = (uint32_t)root, .count = bytes, .in = all, .out = got);
    if (!failed && packed) failed = unpack(packed, out, (size_t)out_count, &shape, comm);
    free(packed);
    free(own);
    return taken(group, SCATTER, since, failed);
}

/* Alltoall, Alltoallv and Alltoallw. */
static int exchange(struct group *group, const struct side *from, const struct side *to, enum core_kind kind) {
    size_t sends[MOST_RANKS], receives[MOST_RANKS];
    size_t out_bytes = bytes_of_all(to, group->size, receives), in_bytes = bytes_of_all(from, group->size, sends);
    void *in, *packed, *out, *own;
    bool in_place = from == to;
    int failed = buffer_for(from, group->size, in_bytes, &in, &packed);
    /* In place, what is sent moves out of the way of what comes. */
    if (in_place && !packed) failed |= !(in = packed = malloc(in_bytes ? in_bytes : 1));
    failed |= buffer_for(to, group->size, out_bytes, &out, &own);
    if (!failed && packed) failed = pack_all(from, group->size, packed, group->comm);
    if (!failed)
        failed = kind == CORE_ALL_TO_ALL
                     ? MOVE(group, .kind = kind, .count = receives[0], .in = in, .out = out)
                     : MOVE(group, .kind = kind, .counts = sends, .receive_counts = receives, .in = in, .out = out);
    if (!failed && own) failed = unpack_all(to, group->size, own, group->comm);
    free(packed);
    free(own);
    return failed;
}

EXPORT int OURS(Alltoall)(const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count,
                 MPI_Datatype out_type, MPI_Comm comm) {
    struct group *group = find_local(comm);
    struct side from, to;
    if (!group) PASS(ALLTOALL, THEIRS(Alltoall)(in, in_count, in_type, out, out_count, out_type, comm));
    bool in_place = in == MPI_IN_PLACE;
    if (!side_of(&to, out, out_count, NULL, NULL, out_type, group->size) ||
        (!in_place && !side_of(&from, (void *)(uintptr_t)in, in_count, NULL, NULL, in_type, group->size)))
        PASS_FOR(BY_ARGUMENT, ALLTOALL, THEIRS(Alltoall)(in, in_count, in_type, out, out_count, out_type, comm));
    uint64_t since = begin();
    int failed = bytes_at(&to, 0) ? exchange(group, in_place ? &to : &from, &to, CORE_ALL_TO_ALL) : 0;
    return taken(group, ALLTOALL, since, failed);
}

EXPORT int OURS(Alltoallv)(const void *in, const COUNT in_counts[], const PLACE in_displacements[], MPI_Datatype in_type,
                  void *out, const COUNT out_counts[], const PLACE out_displacements[], MPI_Datatype out_type,
                  MPI_Comm comm) {
    struct group *group = find_local(comm);
    struct side from, to;
    if (!group)
        PASS(ALLTOALLV, THEIRS(Alltoallv)(in, in_counts, in_displacements, in_type, out, out_counts,
                                       out_displacements, out_type, comm));
    bool in_place = in == MPI_IN_PLACE;
    if (!side_of(&to, out, 0, out_counts, out_displacements, out_type, group->size) ||
        (!in_place && !side_of(&from, (void *)(uintptr_t)in, 0, in_counts, in_displacements, in_type, group->size)))
        PASS_FOR(BY_ARGUMENT, ALLTOALLV,
                 THEIRS(Alltoallv)(in, in_counts, in_displacements, in_type, out, out_counts, out_displacements,
                                out_type, comm));
    uint64_t since = begin();
    return taken(group, ALLTOALLV, since, exchange(group, in_place ? &to : &from, &to, CORE_ALL_TO_ALL_V));
}

EXPORT int OURS(Alltoallw)(const void *in, const COUNT in_counts[], const PLACE in_displacements[],
                  const MPI_Datatype in_types[], void *out, const COUNT out_counts[],
                  const PLACE out_displacements[], const MPI_Datatype out_types[], MPI_Comm comm) {
    struct group *group = find_local(comm);
    struct side from, to;
    if (!group)
        PASS(ALLTOALLW, THEIRS(Alltoallw)(in, in_counts, in_displacements, in_types, out, out_counts,
                                       out_displacements, out_types, comm));
    bool in_place = in == MPI_IN_PLACE;
    if (!sides_of(&to, out, out_counts, out_displacements, out_types, group->size) ||
        (!in_place &&
         !sides_of(&from, (void *)(uintptr_t)in, in_counts, in_displacements, in_types, group->size)))
        PASS_FOR(BY_ARGUMENT, ALLTOALLW,
                 THEIRS(Alltoallw)(in, in_counts, in_displacements, in_types, out, out_counts, out_displacements,
                                out_types, comm));
    uint64_t since = begin();
    return taken(group, ALLTOALLW, since, exchange(group, in_place ? &to : &from, &to, CORE_ALL_TO_ALL_V));
}

/*
 * Gatherv and Scatterv: only the root knows all counts, so they are messages between it and each rank. Blocks of no bytes are not
 * sent; both sides know.
 */
static int root_messages(struct group *group, const struct side *side, bool sends) {
    struct core_message messages[MOST_RANKS];
    void *own[MOST_RANKS] = {NULL};
    size_t count = 0;
    int failed = 0;
    for (int rank = 0; !failed && rank < group->size; rank++) {
        size_t bytes = bytes_at(side, rank);
        if (rank == group->rank || bytes == 0) continue;
        void *at = block_at(side, rank);
        if (!side->shape.plain) {
            failed = !(at = own[rank] = malloc(bytes));
            if (!failed && sends) failed = pack_block(side, rank, at, group->comm);
        }
        messages[count++] = (struct core_message){at, bytes, (uint32_t)rank, sends};
    }
    if (!failed) failed = chipcomm_mpi_messages(group->core, messages, count);
    for (int rank = 0; rank < group->size; rank++) {
        if (!failed && own[rank] && !sends) failed = unpack_block(side, rank, own[rank], group->comm);
        free(own[rank]);
    }
    return failed;
}

/* The root's own block, from one of its buffers to the other. */
static int own_block(const void *from, size_t count, const struct shape *shape, void *to, size_t to_count,
                     const struct shape *to_shape, MPI_Comm comm) {
    const void *bytes;
    void *packed;
    int failed = own_bytes(from, count, shape, &bytes, &packed, comm);
    if (!failed) failed = unpack(bytes, to, to_count, to_shape, comm);
    free(packed);
    return failed;
}

/* This rank's one message with the root. */
static int one_message(struct group *group, void *at, size_t count, const struct shape *shape, int root, bool sends) {
    size_t bytes = count * shape->size;
    void *packed = NULL;
    int failed = 0;
    if (bytes == 0) return 0;
    if (!shape->plain) failed = !(packed = malloc(bytes));
    if (!failed && packed && sends) failed = pack(at, count, shape, packed, group->comm);
    struct core_message message = {packed ? packed : at, bytes, (uint32_t)root, sends};
    if (!failed) failed = chipcomm_mpi_messages(group->core, &message, 1);
    if (!failed && packed && !sends) failed = unpack(packed, at, count, shape, group->comm);
    free(packed);
    return failed;
}

EXPORT int OURS(Gatherv)(const void *in, COUNT in_count, MPI_Datatype in_type, void *out, const COUNT out_counts[],
                const PLACE displacements[], MPI_Datatype out_type, int root, MPI_Comm comm) {
    struct group *group = find_local(comm);
    struct side to;
    struct shape shape;
    if (!group)
        PASS(GATHERV, THEIRS(Gatherv)(in, in_count, in_type, out, out_counts, displacements, out_type, root, comm));
    bool is_root = group->rank == root, in_place = is_root && in == MPI_IN_PLACE;
    if (root < 0 || root >= group->size ||
        (is_root && !side_of(&to, out, 0, out_counts, displacements, out_type, group->size)) ||
        (!in_place && (in_count < 0 || !shape_of(in_type, &shape))))
        PASS_FOR(BY_ARGUMENT, GATHERV,
                 THEIRS(Gatherv)(in, in_count, in_type, out, out_counts, displacements, out_type, root, comm));
    uint64_t since = begin();
    int failed = 0;
    if (!is_root)
        failed = one_message(group, (void *)(uintptr_t)in, (size_t)in_count, &shape, root, true);
    else if (!in_place)
        failed = own_block(in, (size_t)in_count, &shape, block_at(&to, root), elements_at(&to, root), &to.shape, comm);
    if (is_root && !failed) failed = root_messages(group, &to, false);
    return taken(group, GATHERV, since, failed);
}

EXPORT int OURS(Scatterv)(const void *in, const COUNT in_counts[], const PLACE displacements[], MPI_Datatype in_type,
                 void *out, COUNT out_count, MPI_Datatype out_type, int root, MPI_Comm comm) {
    struct group *group = find_local(comm);
    struct side from;
    struct shape shape;
    if (!group)
        PASS(SCATTERV,
             THEIRS(Scatterv)(in, in_counts, displacements, in_type, out, out_count, out_type, root, comm));
    bool is_root = group->rank == root, in_place = is_root && out == MPI_IN_PLACE;
    if (root < 0 || root >= group->size ||
        (is_root &&
         !side_of(&from, (void *)(uintptr_t)in, 0, in_counts, displacements, in_type, group->size)) ||
        (!in_place && (out_count < 0 || !shape_of(out_type, &shape))))
        PASS_FOR(BY_ARGUMENT, SCATTERV,
                 THEIRS(Scatterv)(in, in_counts, displacements, in_type, out, out_count, out_type, root, comm));
    uint64_t since = begin();
    int failed = 0;
    if (!is_root)
        failed = one_message(group, out, (size_t)out_count, &shape, root, false);
    else if (!in_place)
        failed = own_block(block_at(&from, root), elements_at(&from, root), &from.shape, out, (size_t)out_count, &shape, comm);
    if (is_root && !failed) failed = root_messages(group, &from, true);
    return taken(group, SCATTERV, since, failed);
}
