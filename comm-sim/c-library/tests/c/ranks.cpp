// One rank of a group, in C++17, which runs a kernel from a shared object: program RANK NRANKS PATH KERNEL.
#include <dlfcn.h>

#include <string>

#include "check.h"
#include "comm_kernel.h"

int main(int argc, char **argv) {
    CHECK(argc == 5);
    const auto rank = static_cast<uint32_t>(std::stoul(argv[1]));
    const auto nranks = static_cast<uint32_t>(std::stoul(argv[2]));
    void *library = dlopen(argv[4], RTLD_NOW | RTLD_LOCAL);
    CHECK(library != nullptr);
    const auto kernel = reinterpret_cast<void (*)(int64_t *)>(dlsym(library, "kernel_entry"));
    CHECK(kernel != nullptr);

    CommHandle comm = comm_init(static_cast<int>(rank), static_cast<int>(nranks), nullptr, argv[3]);
    CHECK(comm != nullptr);
    uint64_t address = 0, base = 0;
    CHECK(comm_alloc_windows(comm, 4096, &address) == COMM_SUCCESS);
    int64_t args[] = {static_cast<int64_t>(address), static_cast<int64_t>(100 + rank)};
    kernel(args);
    CHECK(comm_get_local_window_base(comm, &base) == COMM_SUCCESS);
    const uint32_t sum = *reinterpret_cast<const uint32_t *>(base + 64 + 4 * COMM_MAX_RANK_NUM);
    CHECK(sum == 100 * nranks + nranks * (nranks - 1) / 2);
    CHECK(comm_barrier(comm) == COMM_SUCCESS);
    CHECK(comm_destroy(comm) == COMM_SUCCESS);
    dlclose(library);
    std::puts("ok");
}
