/* A program that makes no call that is taken. */
#include "check.h"

int main(int argc, char **argv) {
    begin(&argc, &argv);
    int in = rank, out = -1, next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
    MPI_Sendrecv(&in, 1, MPI_INT, next, 0, &out, 1, MPI_INT, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(out == last, "the message of the last rank");
    return end();
}
