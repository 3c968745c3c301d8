// Orchestrations for a device. Kernels: 0 scales its first tensor to its second by a whole number, 1 adds its first two to its third,
// 2 sets an error.
#include <stdexcept>

#include "orchestration.h"

// y = (2 x + 3 x) * x[0], over both kinds of cores; scopes, made tensors and elements that are read while the graph is built.
extern "C" void five_times(const chip::EntryArgs &args) {
    const chip::Tensor &x = args.tensor(0), &y = args.tensor(1);
    const uint32_t shape[] = {static_cast<uint32_t>(x.numel())};
    const chip::CreateInfo info(shape, 1, chip::DataType::FLOAT32);
    const uint32_t first[] = {0};
    const auto factor = static_cast<int64_t>(chip::get_element<float>(x, 1, first));

    const chip::Scope scope;
    chip::TaskArgs two, three;
    two.input(x);
    two.output(info);
    two.scalar(int64_t{2});
    three.input(x);
    three.output(info);
    three.scalar(int64_t{3});
    const chip::Submitted twice = chip::submit(chip::Kernels::aic(0), two);
    const chip::Submitted thrice = chip::submit(chip::Kernels::aiv(0), three);
    chip::TaskArgs add, made;
    made.output(info);
    const chip::Submitted room = chip::allocate(made);
    add.input(twice.tensor(0), thrice.tensor(0));
    add.output(room.tensor(0));
    chip::submit(chip::Kernels::aiv(1), add);
    chip::TaskArgs last;
    last.input(room.tensor(0));
    last.output(y);
    last.scalar(factor);
    chip::submit(chip::Kernels::aic(0), last);
}

// y = x * 2 * 3, in an order that edges alone give: what comes last is submitted first.
extern "C" void edges(const chip::EntryArgs &args) {
    const chip::Tensor &x = args.tensor(0), &y = args.tensor(1);
    const chip::Scope scope(chip::ScopeMode::MANUAL);
    chip::TaskArgs second, first, none;
    second.inout(y);
    second.inout(y);
    second.scalar(int64_t{3});
    const chip::TaskId last = chip::submit(chip::Kernels::aic(0), second).task_id();
    first.input(x);
    first.output(y);
    first.scalar(int64_t{2});
    const chip::TaskId before = chip::submit(chip::Kernels::aiv(0), first).task_id();
    const chip::TaskId between = chip::submit_dummy(none).task_id();
    chip::add_dependency(last, between);
    chip::add_dependency(between, before);
    if (args.scalar<int64_t>(0) == 1) {
        chip::add_dependency(before, last);
    }
}

// Scalars: rank, ranks, where the word is, where to signal. y = x * (rank + 1), once the rank before has signalled.
extern "C" void ring(const chip::EntryArgs &args) {
    const auto rank = args.scalar<uint32_t>(0), ranks = args.scalar<uint32_t>(1);
    const auto word = args.scalar<uint64_t>(2), told = args.scalar<uint64_t>(3);
    chip::TaskArgs none, scale;
    chip::signal((rank + 1) % ranks, told, 1);
    chip::submit_dummy(none);
    scale.input(args.tensor(0));
    scale.output(args.tensor(1));
    scale.scalar(int64_t{rank} + 1);
    chip::wait_for(word, 1, static_cast<int32_t>((rank + ranks - 1) % ranks));
    chip::submit(chip::Kernels::aiv(0), scale);
}

extern "C" void mistakes(const chip::EntryArgs &args) {
    const chip::Tensor &x = args.tensor(0), &y = args.tensor(1);
    chip::TaskArgs task;
    task.input(x);
    task.output(y);
    task.scalar(int64_t{2});
    switch (args.scalar<int64_t>(0)) {
        case 0: throw std::runtime_error("nothing to build");
        case 1: chip::submit(chip::Kernels::mix(0, 0), task); break;
        case 2: chip::submit(chip::Kernels::aiv(77), task); break;
        case 3: chip::runtime()->ops->scope_begin(chip::runtime()); break;
        case 4: {
            uint32_t shape[] = {4};
            const chip::CreateInfo info(shape, 1, chip::DataType::FLOAT32);
            chip::TaskArgs late, make;
            make.output(info);
            chip::Tensor made;
            {
                const chip::Scope scope;
                made = chip::allocate(make).tensor(0);
            }
            late.input(made);
            late.output(y);
            chip::submit(chip::Kernels::aiv(0), late);
            break;
        }
        case 5: {
            uint32_t shape[] = {4}, index[] = {0};
            const chip::CreateInfo info(shape, 1, chip::DataType::FLOAT32);
            chip::TaskArgs make;
            make.output(info);
            (void)chip::get_element<float>(chip::allocate(make).tensor(0), 1, index);
            break;
        }
        case 6: CHIP_FAIL(42, "rounds=%d", 3); break;
        case 7: {
            chip::wait_for(0, 1);
            chip::submit(chip::Kernels::aiv(0), task);
            break;
        }
        case 8: {
            chip::TaskArgs fails;
            fails.inout(y);
            fails.scalar(int64_t{17});
            chip::submit(chip::Kernels::aiv(0), task);
            chip::submit(chip::Kernels::aic(2), fails);
            break;
        }
    }
}
