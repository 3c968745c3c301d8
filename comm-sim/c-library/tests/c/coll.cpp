// One rank of a group, in C++17: program RANK NRANKS PATH. Two groups whose calls are waited for in opposite order.
#include <string>
#include <vector>

#include "check.h"
#include "comm_coll.h"

int main(int argc, char **argv) {
    CHECK(argc == 4);
    const int rank = std::stoi(argv[1]), nranks = std::stoi(argv[2]);
    CommHandle comm = comm_init(rank, nranks, nullptr, argv[3]);
    CHECK(comm != nullptr);
    CommCollOptions options = COMM_COLL_OPTIONS;
    CommColl group[2] = {comm_coll_create(comm), comm_coll_create_over(comm, nullptr, 0, &options)};
    CHECK(group[0] != nullptr && group[1] != nullptr && group[0] != group[1]);
    // More than one piece, so that both need progress.
    const std::size_t count = 700'000;
    std::vector<double> in(count), out[2] = {std::vector<double>(count), std::vector<double>(count)};
    for (std::size_t at = 0; at < count; ++at) {
        in[at] = static_cast<double>(at % 1000) + rank;
    }
    CommCollRequest request[2] = {0, 0};
    for (int which = 0; which < 2; ++which) {
        CHECK(comm_coll_start_all_reduce(group[which], in.data(), out[which].data(), count, COMM_COLL_FLOAT64,
                                         COMM_COLL_SUM, &request[which]) == COMM_SUCCESS);
    }
    for (int turn = 0; turn < 2; ++turn) {
        const int which = (turn + rank) % 2;
        CHECK(comm_coll_wait(group[which], request[which]) == COMM_SUCCESS);
        const double ranks = nranks * (nranks - 1) / 2.0;
        CHECK(out[which][count - 1] == nranks * static_cast<double>((count - 1) % 1000) + ranks);
    }
    CHECK(comm_coll_destroy(group[0]) == COMM_SUCCESS && comm_coll_destroy(group[1]) == COMM_SUCCESS);
    CHECK(comm_destroy(comm) == COMM_SUCCESS);
    std::puts("ok");
}
