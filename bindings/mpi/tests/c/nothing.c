/* A program that makes no call that is taken: messages, a window, a scan, a non-blocking call. Says what it computed. */
#include "check.h"

int main(int argc, char **argv) {
    begin(&argc, &argv);
    int in = rank, out = -1, next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
    MPI_Sendrecv(&in, 1, MPI_INT, next, 0, &out, 1, MPI_INT, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(out == last, "the message of the last rank");
    int *values = memory(1 << 20);
    for (int i = 0; i < 1 << 18; i++) values[i] = rank + i;
    MPI_Request requests[2];
    MPI_Isend(values, 1 << 17, MPI_INT, next, 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(values + (1 << 17), 1 << 17, MPI_INT, last, 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, (MPI_Status[2]){0});
    CHECK(values[(1 << 17) + 9] == last + 9, "a long message");
    int sum = 0, before = 0;
    MPI_Iallreduce(&in, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, requests);
    MPI_Wait(requests, MPI_STATUS_IGNORE);
    MPI_Scan(&in, &before, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Win window;
    MPI_Win_create(values, 1 << 20, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_fence(0, window);
    MPI_Put(&in, 1, MPI_INT, next, 5, 1, MPI_INT, window);
    MPI_Win_fence(0, window);
    CHECK(values[5] == last, "what the last rank put");
    MPI_Win_free(&window);
    free(values);
    if (rank == 0) printf("%d of %d: %d %d\n", rank, ranks, sum, before);
    return end();
}
