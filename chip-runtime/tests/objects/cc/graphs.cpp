// Orchestrations with orchestration.h: a right one, and one for each mistake.
#include <stdexcept>
#include <thread>

#include "orchestration.h"

// out = (a + b) * factor: the same graph for all front ends, with explicit edges beside the tensors.
extern "C" void add_and_scale(const chip::EntryArgs &args) {
    const uint32_t shape[] = {static_cast<uint32_t>(args.tensor(0).numel())};
    const chip::CreateInfo info(shape, 1, chip::DataType::FLOAT32);
    for (int round = 0; round < 3; ++round) {
        const chip::Scope scope;
        chip::TaskArgs add;
        add.input(args.tensor(0), args.tensor(1));
        add.output(info);
        add.launch_spec.set_block_num(2);
        const chip::Submitted sum = chip::submit(chip::Kernels::aiv(0), add);
        const chip::TaskId first = sum.task_id();

        chip::TaskArgs scale;
        scale.input(sum.tensor(0));
        scale.output(args.tensor(2));
        scale.scalar(args.scalar<float>(0));
        scale.after(&first, 1);
        chip::submit(chip::Kernels::aic(1), scale);
    }
}

// The number of elements that are what they should be, counted while the graph is built.
extern "C" void reads_back(const chip::EntryArgs &args) {
    const chip::Tensor &out = args.tensor(0);
    chip::TaskArgs fill;
    fill.output(out);
    fill.scalar(2.0f);
    chip::submit(chip::Kernels::aiv(4), fill);
    uint32_t index[] = {1};
    const float value = chip::get_element<float>(out, 1, index);
    chip::set_element(out, 1, index, value + static_cast<float>(chip::cluster_count()));
}

// Rounds of two chips: each waits for the last one of the other, and begins the next one of the other.
extern "C" void takes_turns(const chip::EntryArgs &args) {
    const uint32_t rank = args.scalar<uint32_t>(0), rounds = args.scalar<uint32_t>(1);
    chip::TaskId before;
    for (uint32_t round = 0; round < rounds; ++round) {
        chip::TaskArgs count;
        count.inout(args.tensor(0));
        count.after(&before, before.is_valid() ? 1 : 0);
        chip::wait_for(64, round + rank, static_cast<int32_t>(1 - rank));
        chip::signal(1 - rank, 64, 1);
        before = chip::submit(chip::Kernels::aiv(0), count).task_id();
        chip::publish(before);
    }
}

// The first task is not complete before the last one has raised a word; the second reads it then.
extern "C" void completes_later(const chip::EntryArgs &args) {
    chip::TaskArgs defers, raises, reads;
    defers.inout(args.tensor(0));
    defers.scalar(args.scalar(0));
    chip::submit(chip::Kernels::aiv(0), defers);
    reads.inout(args.tensor(0));
    chip::submit(chip::Kernels::aiv(2), reads);
    chip::submit(chip::Kernels::aiv(1), raises);
}

extern "C" void mistakes(const chip::EntryArgs &args) {
    const chip::Tensor &tensor = args.tensor(0);
    chip::TaskArgs task;
    task.inout(tensor);
    task.scalar(1.0f);
    switch (args.scalar<int64_t>(0)) {
        case 0: chip::submit(chip::Kernels::aiv(4), task); break;
        case 1: throw std::runtime_error("nothing to build");
        case 2: chip::runtime()->ops->scope_begin(chip::runtime()); break;
        case 31:
            chip::submit(chip::Kernels::aiv(4), task);
            throw std::runtime_error("half built");
        case 32:
            chip::submit(chip::Kernels::aiv(4), task);
            chip::runtime()->ops->scope_begin(chip::runtime());
            break;
        case 3: std::thread([&] { chip::submit(chip::Kernels::aiv(4), task); }).join(); break;
        case 4: chip::submit(chip::Kernels::aiv(77), task); break;
        case 5: {
            chip::Tensor outside = tensor;
            outside.start_offset = 1 << 20;
            chip::TaskArgs wrong;
            wrong.input(outside);
            chip::submit(chip::Kernels::aiv(4), wrong);
            break;
        }
        case 6: {
            const chip::TaskId unknown{5};
            task.after(&unknown, 1);
            chip::submit(chip::Kernels::aiv(4), task);
            break;
        }
        case 7:
            task.launch_spec.set_block_num(1000);
            task.launch_spec.set_require_sync_start(true);
            chip::submit(chip::Kernels::mix(4, 4, 4), task);
            break;
        case 8:
            for (int i = 0; i < 100; ++i) chip::submit(chip::Kernels::aiv(4), task);
            break;
        case 9: CHIP_FAIL(42, "rounds=%d of %s", 3, "four"); break;
        case 10: chip::submit(chip::Kernels::aiv(5), task); break;
        case 11: {
            const chip::Submitted none = chip::submit(chip::Kernels::aiv(77), task);
            chip::submit(chip::Kernels::aiv(4), task);
            (void)none.tensor(0);
            break;
        }
        case 12:
            for (int i = 0; i < 33; ++i) task.input(tensor);
            chip::submit(chip::Kernels::aiv(4), task);
            break;
        case 13: {
            OrchRuntime *rt = chip::runtime();
            rt->ops->submit_task(rt, nullptr, nullptr);
            break;
        }
        case 14: chip::runtime()->ops->scope_end(chip::runtime()); break;
        case 15: throw 7;
        case 16: chip::submit(chip::Kernels::aiv(6), task); break;
        case 17:
            task.launch_spec.set_block_num(0);
            chip::submit(chip::Kernels::aiv(4), task);
            break;
        case 18: (void)args.tensor(1); break;
        case 19:
            chip::wait_for(1 << 30, 1);
            chip::submit(chip::Kernels::aiv(4), task);
            break;
        case 20:
            chip::signal(9, 0, 1);
            chip::submit(chip::Kernels::aiv(4), task);
            break;
        case 21:
            task.has_error = true;
            chip::submit(chip::Kernels::aiv(4), task);
            break;
        case 22:
            task.dependency_count = 3;
            chip::submit(chip::Kernels::aiv(4), task);
            break;
        case 23:
            task.tags[0] = 9;
            chip::submit(chip::Kernels::aiv(4), task);
            break;
        case 24:
            task.predicate.op = 99;
            chip::submit(chip::Kernels::aiv(4), task);
            break;
        case 25:
            task.predicate.op = ORCH_EQ;
            task.predicate.ndims = 6;
            chip::submit(chip::Kernels::aiv(4), task);
            break;
        case 26: {
            OrchRuntime *rt = chip::runtime();
            rt->ops->submit_task(rt, nullptr, &task);
            break;
        }
        case 27: {
            const uint32_t indices[6] = {};
            (void)chip::get_element<float>(tensor, 6, indices);
            break;
        }
        case 28: chip::allocate(task); break;
        case 29:
            task.refs[0] = nullptr;
            chip::submit(chip::Kernels::aiv(4), task);
            break;
        case 30:
            task.tags[0] = ORCH_OUTPUT;
            task.refs[0] = nullptr;
            chip::submit(chip::Kernels::aiv(4), task);
            break;
    }
}

// Tasks whose order is by edges alone, submitted the wrong way round: out = 2 * 3. By the scalar, more edges.
extern "C" void edges(const chip::EntryArgs &args) {
    const chip::Scope scope(chip::ScopeMode::MANUAL);
    chip::TaskArgs scale, fill, none;
    scale.inout(args.tensor(0));
    scale.inout(args.tensor(0));
    scale.scalar(3.0f);
    const chip::TaskId second = chip::submit(chip::Kernels::aiv(1), scale).task_id();
    fill.inout(args.tensor(0));
    fill.scalar(2.0f);
    const chip::TaskId first = chip::submit(chip::Kernels::aiv(4), fill).task_id();
    const chip::TaskId between = chip::submit_dummy(none).task_id();
    chip::add_dependency(second, between);
    chip::add_dependency(between, first);
    switch (args.scalar<int64_t>(0)) {
        case 1: chip::add_dependency(first, second); break;
        case 2: chip::add_dependency(first, first); break;
        case 3: chip::add_dependency(first, chip::TaskId{77}); break;
        case 4: chip::publish(first); chip::add_dependency(first, between); break;
    }
}
