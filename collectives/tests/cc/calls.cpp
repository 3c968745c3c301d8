// One call of a group, by number: what the tests make kernels of.
// args: the context, the group's memory, its bytes, kind, type, operation, root, count, in, out. args[10] is 1 if the call returned
// true, 0 if not. A failure is said in the LocalContext of the arguments, if they have one.
#include "comm_collectives.h"

namespace {

template <typename T>
bool call(CommGroup &group, const int64_t *args) {
    const auto op = static_cast<CommOp>(args[5]);
    const auto root = static_cast<uint32_t>(args[6]);
    const auto count = static_cast<size_t>(args[7]);
    const auto *in = comm_pointer<const T>(args[8]);
    auto *out = comm_pointer<T>(args[9]);
    switch (args[3]) {
        case 2: return comm_all_reduce(group, in, out, count, op);
        case 3: return comm_all_gather(group, in, out, count);
        case 5: return comm_reduce_scatter(group, in, out, count, op);
        case 7: return comm_broadcast(group, out, count, root);
        case 8: return comm_reduce(group, in, out, count, op, root);
        case 9: return comm_all_to_all(group, in, out, count);
        case 11: return comm_gather(group, in, out, count, root);
        default: return comm_scatter(group, in, out, count, root);
    }
}

}  // namespace

extern "C" void kernel_entry(int64_t *args) {
    const auto *ctx = comm_pointer<const CommContext>(args[0]);
    CommGroup group(args, ctx, comm_pointer<void>(args[1]), static_cast<size_t>(args[2]));
    switch (args[4]) {
        case TENSOR_FLOAT32: args[10] = call<float>(group, args); break;
        case TENSOR_FLOAT16: args[10] = call<CommHalf>(group, args); break;
        case TENSOR_BFLOAT16: args[10] = call<CommBrain>(group, args); break;
        case TENSOR_INT8: args[10] = call<int8_t>(group, args); break;
        case TENSOR_UINT64: args[10] = call<uint64_t>(group, args); break;
        case TENSOR_UINT8: args[10] = comm_barrier(group); break;
        default: args[10] = call<double>(group, args); break;
    }
}

// The record of a call in words: its seven words are at args[0], the text goes to args[1], ended by a 0.
extern "C" void call_in_words(int64_t *args) {
    uint64_t record[7];
    std::memcpy(record, comm_pointer<uint64_t>(args[0]), sizeof(record));
    const auto text = comm_detail::call_in_words(record);
    std::memcpy(comm_pointer<char>(args[1]), text.bytes, text.used + 1);
}

// The layout of a group of args[0] ranks with a pool of args[1] bytes: its bytes go to args[2], its hash to args[3].
extern "C" void layout(int64_t *args) {
    const comm_detail::GroupLayout layout(static_cast<uint64_t>(args[0]));
    args[2] = static_cast<int64_t>(comm_group_bytes(static_cast<uint32_t>(args[0]), static_cast<size_t>(args[1])));
    args[3] = static_cast<int64_t>(layout.hash(static_cast<uint64_t>(args[2]) - layout.pool_at));
}
