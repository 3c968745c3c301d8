/* What failed calls print, in C11: program RANK NRANKS PATH. Prints the last error after each, for comparison. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "comm_coll.h"

#define FAILS(call)                   \
    do {                              \
        CHECK((call) != 0);           \
        puts(comm_last_error());      \
    } while (0)

int main(int argc, char **argv) {
    CHECK(argc == 4);
    const int rank = atoi(argv[1]), nranks = atoi(argv[2]);
    CommHandle comm = comm_init(rank, nranks, NULL, argv[3]);
    CHECK(comm != NULL);
    /* Each rank has another number in the group. */
    const uint32_t turned[2] = {1, 0};
    CommColl coll = comm_coll_create_over(comm, turned, 2, NULL);
    CHECK(coll != NULL && comm_coll_barrier(coll) == 0 && comm_barrier(comm) == 0);
    if (rank == 1) {
        _exit(7);
    }
    float value = 0;
    FAILS(comm_barrier(NULL));
    FAILS(comm_coll_all_reduce(coll, &value, &value, 1, 99, COMM_COLL_SUM));
    FAILS(comm_coll_all_reduce(coll, &value, &value, 1, TENSOR_FLOAT32, COMM_COLL_SUM));
    FAILS(comm_coll_barrier(coll));
    FAILS(comm_barrier(comm));
    FAILS(comm_barrier(comm));
    (void)comm_coll_destroy(coll);
    (void)comm_destroy(comm);
    return 0;
}
