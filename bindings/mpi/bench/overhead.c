/*
 * overhead.c: what the drop-in adds to a call of `collectives`. The same ranks make the same all-reduce in turns: on a group of
 * their own, and as MPI_Allreduce. `cargo xtask mpi --bench overhead` builds it with the drop-in inside and runs it.
 *
 * Prints bytes, and the 10th and 50th percentile of nanoseconds for both: the slower rank of each call counts.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../../comm-sim/bench/times.h"
#include "core.h"

#define MOST 20000

int main(int argc, char **argv) {
    static double times[2][MOST];
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char path[64] = "";
    if (rank == 0) snprintf(path, sizeof path, "/tmp/chipcomm-overhead-%ld", (long)now());
    PMPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
    struct core_group *group = chipcomm_mpi_open(path, (uint32_t)rank, (uint32_t)ranks);
    if (!group) {
        fprintf(stderr, "%s\n", chipcomm_mpi_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (size_t bytes = 4; bytes <= 4 << 20; bytes *= 4) {
        float *in = calloc(bytes, 1), *out = calloc(bytes, 1);
        int count = (int)(bytes / 4), calls = bytes < 65536 ? MOST : bytes < 1 << 20 ? 4000 : 400;
        struct core_call call = {CORE_ALL_REDUCE, CORE_F32, CORE_SUM, 0, (size_t)count, NULL, NULL, in, out};
        for (int at = -100; at < calls; at++) {
            for (int way = 0; way < 2; way++) {
                /* Both begin at the same time, as far as a barrier can see to it. */
                MPI_Barrier(MPI_COMM_WORLD);
                double begin = now();
                if (way == 0) chipcomm_mpi_call(group, &call);
                else MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
                if (at >= 0) times[way][at] = now() - begin;
            }
        }
        for (int way = 0; way < 2; way++) {
            PMPI_Allreduce(MPI_IN_PLACE, times[way], calls, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            qsort(times[way], (size_t)calls, sizeof(double), compare);
        }
        if (rank == 0)
            printf("%8zu  collectives %9.0f %9.0f   MPI_Allreduce %9.0f %9.0f\n", bytes, times[0][calls / 10],
                   times[0][calls / 2], times[1][calls / 10], times[1][calls / 2]);
        free(in);
        free(out);
    }
    chipcomm_mpi_close(group);
    MPI_Finalize();
    return 0;
}
