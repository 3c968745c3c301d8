// A peer that knows the plain fields of the mailbox and nothing of stamps, wake-ups or this workspace.
//
//   peer write-success PATH fills the mailbox that PATH maps
//   peer write-error PATH
//   peer read PATH          waits for a reply and prints it

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <thread>

struct Mailbox {
    std::atomic<int32_t> state;
    int32_t error_code;
    int32_t buffer_count;
    uint64_t device_ctx;
    uint64_t local_window_base;
    uint64_t actual_window_size;
    unsigned char other[24];
    uint64_t buffer_ptrs[376];
    char error_message[1024];
};

static_assert(sizeof(Mailbox) == 4096, "size");
static_assert(offsetof(Mailbox, state) == 0, "state");
static_assert(offsetof(Mailbox, error_code) == 4, "error_code");
static_assert(offsetof(Mailbox, buffer_count) == 8, "buffer_count");
static_assert(offsetof(Mailbox, device_ctx) == 16, "device_ctx");
static_assert(offsetof(Mailbox, local_window_base) == 24, "local_window_base");
static_assert(offsetof(Mailbox, actual_window_size) == 32, "actual_window_size");
static_assert(offsetof(Mailbox, buffer_ptrs) == 64, "buffer_ptrs");
static_assert(offsetof(Mailbox, error_message) == 3072, "error_message");

static int read_reply(Mailbox *box) {
    for (int polls = 0; polls < 60 * 1000; ++polls) {
        int32_t state = box->state.load(std::memory_order_acquire);
        if (state == 1) {
            std::printf("success %llx %llx %llx", (unsigned long long)box->device_ctx,
                        (unsigned long long)box->local_window_base,
                        (unsigned long long)box->actual_window_size);
            for (int32_t i = 0; i < box->buffer_count; ++i)
                std::printf(" %llx", (unsigned long long)box->buffer_ptrs[i]);
            std::printf("\n");
            return 0;
        }
        if (state == 2) {
            std::printf("error %d %s\n", box->error_code, box->error_message);
            return 0;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int fd = open(argv[2], O_RDWR);
    void *memory = fd < 0 ? MAP_FAILED : mmap(nullptr, sizeof(Mailbox), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        std::perror(argv[2]);
        return 3;
    }
    Mailbox *box = static_cast<Mailbox *>(memory);
    if (std::strcmp(argv[1], "read") == 0) return read_reply(box);
    // Late, so that the reader is parked: nothing here wakes it.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (std::strcmp(argv[1], "write-success") == 0) {
        box->device_ctx = 0x1122334455667788;
        box->local_window_base = 0x7f0000001000;
        box->actual_window_size = 1 << 20;
        box->buffer_count = 376;
        for (int i = 0; i < 376; ++i) box->buffer_ptrs[i] = 0x7f0000001000 + 64 * i;
        box->state.store(1, std::memory_order_release);
        return 0;
    }
    if (std::strcmp(argv[1], "write-error") == 0) {
        box->error_code = 507018;
        // All of the field, without a NUL, and a character cut in two at its end.
        std::memset(box->error_message, 'x', sizeof box->error_message);
        std::memcpy(box->error_message, "aclrtSetDevice\n", 15);
        box->error_message[1023] = '\xc3';
        box->state.store(2, std::memory_order_release);
        return 0;
    }
    return 2;
}
