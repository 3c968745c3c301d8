/* Programs that are right only if MPI's messages go on while a rank waits in a collective call. */
#include "check.h"

#define BIG (8 << 20) /* never sent before the receiver is there */

static char *data;

/* Rank 0 sends and goes on to a call that needs rank 1, which receives first. */
static void send_then_call(int (*call)(void)) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == 0) MPI_Isend(data, BIG, MPI_CHAR, 1, 0, MPI_COMM_WORLD, &request);
    if (rank == 1) MPI_Recv(data, BIG, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(call() == ranks * (ranks + 1) / 2, "wrong sum");
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static int allreduce(void) {
    int in = rank + 1, out = 0;
    MPI_Allreduce(&in, &out, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    return out;
}

/* From the rank that is late. */
static int bcast(void) {
    int value = rank == 1 ? ranks * (ranks + 1) / 2 : 0;
    MPI_Bcast(&value, 1, MPI_INT, 1, MPI_COMM_WORLD);
    return value;
}

static int gatherv(void) {
    int in = rank + 1, out[64], counts[64], places[64], sum = 0;
    for (int i = 0; i < ranks; i++) counts[i] = 1, places[i] = i;
    MPI_Gatherv(&in, 1, MPI_INT, out, counts, places, MPI_INT, 0, MPI_COMM_WORLD);
    for (int i = 0; i < ranks && rank == 0; i++) sum += out[i];
    return rank == 0 ? sum : ranks * (ranks + 1) / 2;
}

static int barrier(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    return ranks * (ranks + 1) / 2;
}

/* The call that makes the group of a new communicator. */
static int first_call(void) {
    MPI_Comm comm;
    int in = rank + 1, out = 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    first_calls(comm);
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == 0) MPI_Isend(data, BIG, MPI_CHAR, 1, 1, MPI_COMM_WORLD, &request);
    if (rank == 1) MPI_Recv(data, BIG, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Allreduce(&in, &out, 1, MPI_INT, MPI_SUM, comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm_free(&comm);
    return out;
}

/* A communicator is freed while a peer waits for a message of this rank's. */
static int free_early(void) {
    MPI_Comm comm;
    int in = rank + 1, out = 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    first_calls(comm);
    MPI_Allreduce(&in, &out, 1, MPI_INT, MPI_SUM, comm);
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == 0) MPI_Isend(data, BIG, MPI_CHAR, 1, 2, MPI_COMM_WORLD, &request);
    if (rank == 0) MPI_Comm_free(&comm);
    if (rank == 1) MPI_Recv(data, BIG, MPI_CHAR, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank != 0) MPI_Comm_free(&comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return out;
}

/* A non-blocking call of the library's, started before a call of ours and waited for behind it; on one rank the other way round. */
static int started(void) {
    int in = rank + 1, out = 0, all = 0;
    MPI_Request request;
    MPI_Iallreduce(&in, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    if (rank == 1) MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Allreduce(&in, &out, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank != 1) MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(all == out, "the started call");
    return out;
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    data = memory(BIG);
    int (*const calls[])(void) = {allreduce, bcast, gatherv, barrier, first_call, free_early, started};
    for (int turn = 0; turn < 3; turn++)
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) send_then_call(calls[i]);
    free(data);
    return end();
}
