/*
 * beside.c: MPI_Allreduce with the drop-in beside the library's own, in turns in one run. Build it with mpicc -O2, and start it with
 * the drop-in in LD_PRELOAD, on one host or on several. Arguments: the smallest and the largest size in bytes, calls of each size.
 *
 * Prints bytes, and the 10th and 50th percentile of microseconds for both: the slowest rank of each call counts.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../comm-sim/bench/times.h"

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    size_t least = argc > 1 ? strtoul(argv[1], NULL, 10) : 4, most = argc > 2 ? strtoul(argv[2], NULL, 10) : 1 << 20;
    int calls = argc > 3 ? atoi(argv[3]) : 100;
    double *times[2] = {malloc((size_t)calls * sizeof(double)), malloc((size_t)calls * sizeof(double))};
    for (size_t bytes = least; bytes <= most; bytes *= 4) {
        int count = (int)(bytes / 4);
        float *in = malloc(bytes), *out[2] = {malloc(bytes), malloc(bytes)};
        for (int i = 0; i < count; i++) in[i] = (float)((i + rank) % 7);
        for (int at = -3; at < calls; at++) {
            for (int way = 0; way < 2; way++) {
                PMPI_Barrier(MPI_COMM_WORLD);
                double begin = MPI_Wtime();
                if (way == 0) MPI_Allreduce(in, out[0], count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
                else PMPI_Allreduce(in, out[1], count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
                if (at >= 0) times[way][at] = 1e6 * (MPI_Wtime() - begin);
            }
        }
        /* Sums of small whole numbers are the same in any order. */
        if (memcmp(out[0], out[1], bytes)) {
            fprintf(stderr, "rank %d: %zu bytes differ\n", rank, bytes);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        for (int way = 0; way < 2; way++) {
            PMPI_Allreduce(MPI_IN_PLACE, times[way], calls, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            qsort(times[way], (size_t)calls, sizeof(double), compare);
        }
        if (rank == 0)
            printf("%8zu  drop-in %10.1f %10.1f   library %10.1f %10.1f\n", bytes, times[0][calls / 10],
                   times[0][calls / 2], times[1][calls / 10], times[1][calls / 2]);
        free(in), free(out[0]), free(out[1]);
    }
    free(times[0]), free(times[1]);
    MPI_Finalize();
    return 0;
}
