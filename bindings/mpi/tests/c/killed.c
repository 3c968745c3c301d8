/* A rank dies; the others wait for it in a call. Says what the error was, where errors return. */
#include <signal.h>
#include <unistd.h>

#include "check.h"

int main(int argc, char **argv) {
    begin(&argc, &argv);
    int in = 1, out;
    if (argc > 1) MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < 100; i++) MPI_Allreduce(&in, &out, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == ranks - 1) raise(SIGKILL);
    int result = MPI_Allreduce(&in, &out, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    /* Without an error it would be a sum with a dead rank. */
    CHECK(result != MPI_SUCCESS, "the call succeeded");
    fprintf(stderr, "rank %d: an error\n", rank);
    /* A launcher passes on what it has read before it ends the job. */
    sleep(1);
    MPI_Abort(MPI_COMM_WORLD, 5);
    return 1;
}
