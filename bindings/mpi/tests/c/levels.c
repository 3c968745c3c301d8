/* MPI_Init_thread with the level of the argument. Says what is granted; a thread makes a call that is taken, where that is allowed. */
#include <pthread.h>

#include "check.h"

static void *in_thread(void *unused) {
    int in = rank + 1, out = 0;
    MPI_Allreduce(&in, &out, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(out == ranks * (ranks + 1) / 2, "wrong sum");
    return unused;
}

int main(int argc, char **argv) {
    const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
    int asked = levels[argc > 1 ? atoi(argv[1]) : 0], provided = -1, later = -2, is_main = 0;
    MPI_Init_thread(&argc, &argv, asked, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Query_thread(&later);
    MPI_Is_thread_main(&is_main);
    in_thread(NULL);
    if (provided >= MPI_THREAD_SERIALIZED) {
        pthread_t thread;
        pthread_create(&thread, NULL, in_thread, NULL);
        pthread_join(thread, NULL);
        in_thread(NULL);
    }
    if (rank == 0) printf("asked for %d, granted %d, later %d, main %d\n", asked, provided, later, is_main);
    return end();
}
