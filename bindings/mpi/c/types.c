/* types.c: MPI's types and operations in the words of the Rust half, and types as bytes. */
#include <limits.h>
#include <stdlib.h>

#include "shim.h"

/* Operations that MPI allows for the types of a family. */
enum {
    ARITHMETIC = 1 << CORE_SUM | 1 << CORE_PROD | 1 << CORE_MAX | 1 << CORE_MIN,
    BITS = 1 << CORE_BIT_AND | 1 << CORE_BIT_OR | 1 << CORE_BIT_XOR,
    LOGICAL = 1 << CORE_LOGICAL_AND | 1 << CORE_LOGICAL_OR | 1 << CORE_LOGICAL_XOR,
    INTEGER = ARITHMETIC | BITS | LOGICAL,
    FLOATING = ARITHMETIC,
    COMPLEX = 1 << CORE_SUM, /* a sum is that of the parts */
    NONE = 0                 /* moved, never combined here */
};

struct known {
    uintptr_t handle;
    uint32_t size;
    uint16_t ops;
    uint8_t dtype, lanes;
};

/* Open addressing; a quarter full. */
#define SLOTS 256
static struct known table[SLOTS];

static inline unsigned slot_of(uintptr_t handle) {
    return (unsigned)((handle * UINT64_C(0x9E3779B97F4A7C15)) >> 56) % SLOTS;
}

static struct known *look_up(uintptr_t handle) {
    for (unsigned at = slot_of(handle);; at = (at + 1) % SLOTS) {
        if (table[at].size == 0) return NULL;
        if (LIKELY(table[at].handle == handle)) return &table[at];
    }
}

static void add(MPI_Datatype type, int dtype, size_t lanes, size_t lane_size, unsigned ops) {
    uintptr_t handle = (uintptr_t)type;
    int size;
    MPI_Aint lower, extent;
    /* A library without the language that a type belongs to has no such type; one of another size is not the type we mean. */
    if (type == MPI_DATATYPE_NULL || look_up(handle) || PMPI_Type_size(type, &size) != MPI_SUCCESS) return;
    PMPI_Type_get_extent(type, &lower, &extent);
    if ((size_t)size != lanes * lane_size || extent != size || lower != 0) return;
    unsigned at = slot_of(handle);
    while (table[at].size) at = (at + 1) % SLOTS;
    table[at] = (struct known){handle, (uint32_t)size, (uint16_t)ops, (uint8_t)dtype, (uint8_t)lanes};
}

static void add_integer(MPI_Datatype type, size_t size, bool is_signed, unsigned ops) {
    static const uint8_t types[4][2] = {
        {CORE_U8, CORE_I8}, {CORE_U16, CORE_I16}, {CORE_U32, CORE_I32}, {CORE_U64, CORE_I64}};
    int row = size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3;
    add(type, types[row][is_signed], 1, size, ops);
}

void types_start(void) {
    add_integer(MPI_SIGNED_CHAR, sizeof(char), true, INTEGER);
    add_integer(MPI_SHORT, sizeof(short), true, INTEGER);
    add_integer(MPI_INT, sizeof(int), true, INTEGER);
    add_integer(MPI_LONG, sizeof(long), true, INTEGER);
    add_integer(MPI_LONG_LONG, sizeof(long long), true, INTEGER);
    add_integer(MPI_UNSIGNED_CHAR, sizeof(char), false, INTEGER);
    add_integer(MPI_UNSIGNED_SHORT, sizeof(short), false, INTEGER);
    add_integer(MPI_UNSIGNED, sizeof(int), false, INTEGER);
    add_integer(MPI_UNSIGNED_LONG, sizeof(long), false, INTEGER);
    add_integer(MPI_UNSIGNED_LONG_LONG, sizeof(long long), false, INTEGER);
    add_integer(MPI_INT8_T, 1, true, INTEGER);
    add_integer(MPI_INT16_T, 2, true, INTEGER);
    add_integer(MPI_INT32_T, 4, true, INTEGER);
    add_integer(MPI_INT64_T, 8, true, INTEGER);
    add_integer(MPI_UINT8_T, 1, false, INTEGER);
    add_integer(MPI_UINT16_T, 2, false, INTEGER);
    add_integer(MPI_UINT32_T, 4, false, INTEGER);
    add_integer(MPI_UINT64_T, 8, false, INTEGER);
    add_integer(MPI_AINT, sizeof(MPI_Aint), true, INTEGER);
    add_integer(MPI_OFFSET, sizeof(MPI_Offset), true, INTEGER);
    add_integer(MPI_COUNT, sizeof(MPI_Count), true, INTEGER);
    add(MPI_FLOAT, CORE_F32, 1, 4, FLOATING);
    add(MPI_DOUBLE, CORE_F64, 1, 8, FLOATING);
    add(MPI_C_FLOAT_COMPLEX, CORE_F32, 2, 4, COMPLEX);
    add(MPI_C_DOUBLE_COMPLEX, CORE_F64, 2, 8, COMPLEX);
    add(MPI_C_BOOL, CORE_BOOL, 1, 1, LOGICAL);
    add_integer(MPI_BYTE, 1, false, BITS);
    add_integer(MPI_CHAR, 1, false, NONE);
    add_integer(MPI_PACKED, 1, false, NONE);
    add(MPI_WCHAR, CORE_U8, sizeof(wchar_t), 1, NONE);
    /* Fortran's, as C programs and the library's own Fortran layer pass them. */
    add_integer(MPI_INTEGER, 4, true, ARITHMETIC | BITS);
    add(MPI_REAL, CORE_F32, 1, 4, FLOATING);
    add(MPI_DOUBLE_PRECISION, CORE_F64, 1, 8, FLOATING);
    add(MPI_COMPLEX, CORE_F32, 2, 4, COMPLEX);
    add(MPI_DOUBLE_COMPLEX, CORE_F64, 2, 8, COMPLEX);
    add_integer(MPI_CHARACTER, 1, false, NONE);
}

static inline int op_of(MPI_Op op) {
    if (op == MPI_SUM) return CORE_SUM;
    if (op == MPI_MAX) return CORE_MAX;
    if (op == MPI_MIN) return CORE_MIN;
    if (op == MPI_PROD) return CORE_PROD;
    if (op == MPI_LAND) return CORE_LOGICAL_AND;
    if (op == MPI_LOR) return CORE_LOGICAL_OR;
    if (op == MPI_LXOR) return CORE_LOGICAL_XOR;
    if (op == MPI_BAND) return CORE_BIT_AND;
    if (op == MPI_BOR) return CORE_BIT_OR;
    if (op == MPI_BXOR) return CORE_BIT_XOR;
    return CORE_NO_OP;
}

bool reduction_of(MPI_Datatype type, MPI_Op op, struct reduction *out) {
    int with = op_of(op);
    if (with == CORE_NO_OP) {
        passing = BY_OP;
        return false;
    }
    const struct known *known = look_up((uintptr_t)type);
    if (!known || !(known->ops >> with & 1)) {
        passing = BY_TYPE;
        return false;
    }
    *out = (struct reduction){known->dtype, (uint8_t)with, known->lanes, known->size};
    return true;
}

bool shape_of(MPI_Datatype type, struct shape *out) {
    const struct known *known = look_up((uintptr_t)type);
    if (LIKELY(known != NULL)) {
        *out = (struct shape){type, known->size, known->size, true};
        return true;
    }
    MPI_Count size;
    MPI_Aint lower;
    passing = BY_ARGUMENT;
    if (type == MPI_DATATYPE_NULL || PMPI_Type_size_x(type, &size) != MPI_SUCCESS || size < 0) return false;
    *out = (struct shape){.type = type, .size = (size_t)size};
    return PMPI_Type_get_extent(type, &lower, &out->extent) == MPI_SUCCESS;
}

/* How many elements PMPI_Pack takes at a time: its sizes are ints. At least one: a larger element is its own error. */
static size_t at_once(size_t count, size_t size) {
    size_t most = size && (size_t)INT_MAX / size ? (size_t)INT_MAX / size : 1;
    return count < most ? count : most;
}

/*
 * MPI_BOTTOM is NULL, which MPICH's MPI_Pack refuses. The same data from another base: the type moved down by as much as the base is
 * moved up. Returns the base; the type is to be freed where it differs.
 */
static void *based(const void *at, MPI_Datatype *type) {
    MPI_Aint up = 4096, down = -up;
    if (at != MPI_BOTTOM) return (void *)(uintptr_t)at;
    if (PMPI_Type_create_hindexed(1, &(int){1}, &down, *type, type) != MPI_SUCCESS) return NULL;
    PMPI_Type_commit(type);
    return (void *)(uintptr_t)up;
}

int pack(const void *from, size_t count, const struct shape *shape, void *to, MPI_Comm comm) {
    MPI_Datatype type = shape->type;
    int result = MPI_SUCCESS;
    if (shape->plain) {
        if (count && from != to) memcpy(to, from, count * shape->size);
        return MPI_SUCCESS;
    }
    const char *base = based(from, &type);
    for (size_t done = 0, part; result == MPI_SUCCESS && done < count && shape->size; done += part) {
        part = at_once(count - done, shape->size);
        int at = 0;
        result = PMPI_Pack(base + (MPI_Aint)done * shape->extent, (int)part, type, (char *)to + done * shape->size,
                           (int)(part * shape->size), &at, comm);
    }
    if (type != shape->type) PMPI_Type_free(&type);
    return result;
}

int unpack(const void *from, void *to, size_t count, const struct shape *shape, MPI_Comm comm) {
    MPI_Datatype type = shape->type;
    int result = MPI_SUCCESS;
    if (shape->plain) {
        if (count && from != to) memcpy(to, from, count * shape->size);
        return MPI_SUCCESS;
    }
    char *base = based(to, &type);
    for (size_t done = 0, part; result == MPI_SUCCESS && done < count && shape->size; done += part) {
        part = at_once(count - done, shape->size);
        int at = 0;
        result = PMPI_Unpack((const char *)from + done * shape->size, (int)(part * shape->size), &at,
                             base + (MPI_Aint)done * shape->extent, (int)part, type, comm);
    }
    if (type != shape->type) PMPI_Type_free(&type);
    return result;
}
