/* Communicators of every kind, made and freed: groups end with them, and nothing stays. */
#include <dirent.h>
#include <pthread.h>

#include "check.h"

static int sum(MPI_Comm comm) {
    int in = 1, out = 0, first = 0;
    for (int call = 0; call < FIRST_CALLS + 2; call++) {
        MPI_Allreduce(&in, &out, 1, MPI_INT, MPI_SUM, comm);
        first = call ? first : out;
        CHECK(out == first, "%d, then %d", first, out);
    }
    return out;
}

static int count_lines(const char *path) {
    FILE *file = fopen(path, "r");
    int lines = 0;
    for (int c; (c = fgetc(file)) != EOF;) lines += c == '\n';
    fclose(file);
    return lines;
}

static int count_files(void) {
    DIR *folder = opendir("/proc/self/fd");
    int files = 0;
    while (readdir(folder)) files++;
    closedir(folder);
    return files;
}

static void all_kinds(void) {
    MPI_Comm copy, half, some, other, merged, cart;
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    CHECK(sum(copy) == ranks, "a copy");
    MPI_Comm_split(copy, rank % 2, -rank, &half);
    CHECK(sum(half) == (rank % 2 ? ranks / 2 : (ranks + 1) / 2), "a half");
    MPI_Group all, part;
    MPI_Comm_group(copy, &all);
    MPI_Group_excl(all, 1, &(int){0}, &part);
    MPI_Comm_create(copy, part, &some);
    CHECK(some == MPI_COMM_NULL || sum(some) == ranks - 1, "all but one");
    CHECK((some == MPI_COMM_NULL) == (rank == 0), "who is in it");
    MPI_Group_free(&all);
    MPI_Group_free(&part);
    /* Between the halves: MPI's own, with a group of the union behind it. */
    MPI_Intercomm_create(half, 0, copy, rank % 2 ? (ranks - 1) / 2 * 2 : (ranks / 2) * 2 - 1, 7, &other);
    CHECK(sum(other) == (rank % 2 ? (ranks + 1) / 2 : ranks / 2), "the other half");
    MPI_Intercomm_merge(other, rank % 2, &merged);
    CHECK(sum(merged) == ranks, "the union");
    MPI_Cart_create(copy, 1, &ranks, &(int){1}, 0, &cart);
    CHECK(sum(cart) == ranks, "a ring");
    CHECK(sum(MPI_COMM_SELF) == 1, "alone");
    MPI_Comm_free(&cart);
    MPI_Comm_free(&merged);
    MPI_Comm_disconnect(&other);
    if (some != MPI_COMM_NULL) MPI_Comm_free(&some);
    MPI_Comm_free(&half);
    MPI_Comm_disconnect(&copy);
}

static void *in_thread(void *comm) {
    for (int i = 0; i < 50; i++) CHECK(sum(*(MPI_Comm *)comm) == ranks, "in a thread");
    return NULL;
}

/* Each thread has a communicator of its own, and their first calls come at the same time. */
static void threads(void) {
    MPI_Comm comms[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, in_thread, &comms[i]);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++) MPI_Comm_free(&comms[i]);
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int value = 0;
    CHECK(MPI_Bcast(&value, 1, MPI_INT, ranks, MPI_COMM_WORLD) != MPI_SUCCESS, "a root that does not exist");
    CHECK(MPI_Bcast(&value, -1, MPI_INT, 0, MPI_COMM_WORLD) != MPI_SUCCESS, "a negative count");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    for (int turn = 0; turn < 3; turn++) all_kinds();
    int files = count_files(), maps = count_lines("/proc/self/maps");
    for (int turn = 0; turn < 5; turn++) all_kinds();
    CHECK(count_files() <= files, "%d files were open, now %d", files, count_files());
    CHECK(count_lines("/proc/self/maps") <= maps + 12, "%d mappings, now %d", maps, count_lines("/proc/self/maps"));
    if (provided == MPI_THREAD_MULTIPLE) threads();
    return end();
}
