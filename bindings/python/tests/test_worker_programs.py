"""Workers: memory of chips inside a run, signatures, checks, and Workers of Workers."""

import os
import subprocess
import time

import numpy as np
import pytest

import chipcomm
from chipcomm import CommBufferSpec, TaskArgs, TensorArgType

pytestmark = pytest.mark.usefixtures("no_process_left")


def add_one(task):
    task.tensor(0)[:] += 1


def test_memory_of_a_chip_inside_and_outside_a_run(scale):
    with chipcomm.Worker(device_ids=[0, 1]) as worker:
        kernel, function, y = worker.register(scale), worker.register(add_one), worker.empty(4)
        worker.init()
        before = worker.chip_bytes(1)
        kept = worker.alloc_child_tensor(1, (2, 2))
        assert worker.chip_bytes(1) == before + 16 and kept.nbytes == 16
        worker.copy_to(1, kept, np.full(4, 3, np.float32))

        def orchestrate(orch):
            assert orch.chips == 2
            orch.submit_next_level(function, TaskArgs().add_inout(kept), worker=1)
            seen = np.frombuffer(orch.copy_from(1, kept), np.float32)  # after the task
            scratch = orch.alloc_child_tensor(1, 4, np.float32)
            orch.copy_to(1, scratch, seen * 2)
            first = orch.submit_next_level(kernel, TaskArgs().add_input(scratch).add_output(y).add_scalar(10), worker=1)
            orch.submit_next_level(function, TaskArgs().add_tensor(y, TensorArgType.NO_DEP).add_dep(first), worker=0)
            orch.settle([0, 1])
            orch.barrier([1])
            return seen.tolist(), y.tolist()

        assert worker.run(orchestrate) == ([4.0] * 4, [81.0] * 4)
        with pytest.raises(chipcomm.InvalidError, match="belong to chip 1"):
            worker.copy_from(0, kept)
        with pytest.raises(chipcomm.InvalidError, match="give nbytes with an address; a tensor knows its own"):
            worker.copy_from(1, kept.address)
        worker.free(kept)
        worker.free(kept)
        assert worker.chip_bytes(1) == before
        with pytest.raises(chipcomm.InvalidError, match="not inside memory"):
            worker.copy_from(1, kept)
        with pytest.raises(chipcomm.InvalidError, match="memory of a chip"):
            worker.run(lambda orch: orch.submit_next_level(function, TaskArgs().add_inout(kept), worker=1))
        for shape in [0, (-1, 2)]:
            with pytest.raises(chipcomm.InvalidError, match="shape"):
                worker.alloc_child_tensor(0, shape)


def test_a_task_that_does_not_fit_its_signature_is_refused_and_so_is_one_that_was_unregistered(scale):
    with chipcomm.Worker(device_ids=[0]) as worker:
        kernel, function, x = worker.register(scale), worker.register(add_one), worker.empty(4)
        worker.set_signature(kernel, [(TensorArgType.INPUT, "float32", 4), (TensorArgType.OUTPUT, np.dtype("float32"))], 1)
        worker.set_signature(function, [(TensorArgType.INOUT, "float32")])
        worker.init()
        for program, args, text in [
            (kernel, TaskArgs().add_input(x), "takes 2 tensors and 1 scalars"),
            (kernel, TaskArgs().add_input(x[:3]).add_output(x).add_scalar(1), "elements"),
            (function, TaskArgs().add_inout(x).add_scalar(1), "add_one"),
        ]:
            with pytest.raises(chipcomm.InvalidError, match=text):
                worker.run(lambda orch: orch.submit_next_level(program, args))
        worker.run(lambda orch: orch.submit_next_level(function, TaskArgs().add_inout(x)))
        assert (x == 1).all()
        worker.unregister(function)
        with pytest.raises(chipcomm.InvalidError, match="unregistered"):
            worker.run(lambda orch: orch.submit_next_level(function, TaskArgs().add_inout(x)))
        with pytest.raises(chipcomm.InvalidError, match="unregistered|no program"):
            worker.unregister(function)
        with pytest.raises(TypeError, match="3 is not a program; register it with the Worker"):
            worker.unregister(3)


def test_a_checked_worker_finds_a_function_that_writes_to_its_input():
    with chipcomm.Worker(device_ids=[0], checked=True) as worker:
        function, x = worker.register(add_one), worker.empty(4)
        worker.init()
        worker.run(lambda orch: orch.submit_next_level(function, TaskArgs().add_inout(x)))
        with pytest.raises(chipcomm.TaskError, match="(?s)add_one.*input|input.*add_one"):
            worker.run(lambda orch: orch.submit_next_level(function, TaskArgs().add_input(x)))


def test_the_collectives_of_a_domain_and_its_early_end():
    def sums(task):
        task.domain_group("pair").all_reduce(task.tensor(0))

    with chipcomm.Worker(device_ids=[0, 1, 2]) as worker:
        function = worker.register(sums)
        xs = [worker.empty(8) for _ in range(3)]
        worker.init()

        def orchestrate(orch):
            for _ in range(2):  # the name is free again
                domain = orch.allocate_domain("pair", [0, 2], 4096, [CommBufferSpec("b", "float32", 4)])
                orch.domain_collectives(domain)
                tasks = [TaskArgs().add_inout(xs[chip]) for chip in domain]
                orch.submit_next_level_group(function, tasks, workers=list(domain))
                orch.release_domain(domain)
            with pytest.raises(chipcomm.InvalidError, match="there is no domain .* in this run; allocate it first"):
                orch.release_domain(domain)

        for chip, x in enumerate(xs):
            x[:] = chip + 1
        worker.run(orchestrate)
        assert [x[0] for x in xs] == [8, 2, 8]


def test_a_group_of_sub_workers_runs_at_once_and_forks_in_a_run_are_the_programs_own(tmp_path):
    def pid(task):
        task.tensor(0)[0] = os.getpid()
        # Python's own fork, in a process that a Worker forked.
        assert subprocess.run(["true"], preexec_fn=lambda: None, check=True).returncode == 0

    seen = []
    os.register_at_fork(after_in_parent=lambda: seen.append("forked"))
    with chipcomm.Worker(device_ids=[0], num_sub_workers=2) as worker:
        function, xs = worker.register(pid), [worker.empty(1, np.int64) for _ in range(3)]
        worker.init()

        def orchestrate(orch):
            orch.submit_sub_group(function, [TaskArgs().add_output(x) for x in xs[:2]])
            before = len(seen)
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            return len(seen) - before

        assert worker.run(orchestrate) == 1
        assert xs[0] != xs[1] and xs[0] and xs[1]
        with pytest.raises(chipcomm.InvalidError, match="3 tasks on 2 sub-workers"):
            worker.run(lambda orch: orch.submit_sub_group(function, [TaskArgs().add_output(x) for x in xs]))


def test_a_worker_of_workers(scale):
    hooks = []
    os.register_at_fork(after_in_child=lambda: hooks.append("child"))

    def count_hooks(task):
        task.tensor(0)[0] += len(hooks)

    below = []
    for number in range(2):
        lower = chipcomm.Worker(device_ids=[2 * number, 2 * number + 1])
        below.append((lower, lower.register(scale), lower.register(count_hooks), lower.empty(4)))

    def on_node(orch, task):
        number = task.scalar(0)
        _, kernel, function, own = below[number]
        x, hooked = task.tensors
        with orch.allocate_domain("both", [0, 1], 4096) as domain:
            assert [domain[chip].device_id for chip in domain] == [2 * number, 2 * number + 1]
        orch.submit_next_level(kernel, TaskArgs().add_input(x).add_output(own).add_scalar(10), worker=0)
        orch.submit_next_level(kernel, TaskArgs().add_input(own).add_output(x).add_scalar(1), worker=1)
        orch.submit_next_level(function, TaskArgs().add_inout(hooked), worker=1)

    with chipcomm.Worker(level=4, num_sub_workers=1) as worker:
        for number, (lower, *_) in enumerate(below):
            assert worker.add_worker(lower) == number
            with pytest.raises(chipcomm.InvalidError, match="this Worker is under another one, which brings it up and closes it; register its programs and make its arrays before add_worker"):
                lower.register(add_one)
        program = worker.register(on_node)
        worker.set_signature(program, [(TensorArgType.INOUT, "float32"), (TensorArgType.INOUT, "int64")], 1)
        finish = worker.register(add_one)
        xs, hooked = [worker.empty(4) for _ in below], [worker.empty(1, np.int64) for _ in below]
        worker.init()
        late = worker.empty(4)
        for x in xs:
            x[:] = [1, 2, 3, 4]

        def orchestrate(orch):
            for number, x in enumerate(xs):
                args = TaskArgs().add_inout(x).add_inout(hooked[number]).add_scalar(number)
                orch.submit_next_level(program, args, worker=number)
            orch.submit_sub(finish, TaskArgs().add_inout(xs[1]))
            orch.submit_next_level(program, TaskArgs().add_inout(late).add_inout(hooked[0]).add_scalar(0), worker=0)

        worker.run(orchestrate)
        assert xs[0].tolist() == [10, 20, 30, 40] and xs[1].tolist() == [11, 21, 31, 41]
        # Python's hooks ran in the Worker's process and in the chip's, once each; two tasks counted them.
        assert hooked[0][0] == 4 and hooked[1][0] == 2
        with pytest.raises(chipcomm.InvalidError, match="takes 2 tensors"):
            worker.run(lambda orch: orch.submit_next_level(program, TaskArgs(), worker=0))
        worker.run(orchestrate)


def test_what_goes_wrong_below_a_worker_of_workers_is_an_exception_above():
    lower = chipcomm.Worker(device_ids=[0])
    function, outside = lower.register(add_one), np.zeros(4, np.float32)
    worker = chipcomm.Worker(level=4)
    with pytest.raises(chipcomm.InvalidError, match="a Worker cannot be under itself; add another one"):
        worker.add_worker(worker)
    with pytest.raises(chipcomm.InvalidError, match="a Worker of level 4 cannot be under one of level 3; put it under one of a higher level"):
        lower.add_worker(worker)
    with pytest.raises(chipcomm.InvalidError, match="no devices of its own"):
        chipcomm.Worker(level=4, device_ids=[0])
    with worker:
        worker.add_worker(lower)

        def fails(orch, task):
            raise KeyError("below")

        def submits(orch, task):
            orch.submit_next_level(function, TaskArgs().add_inout(outside))

        fails, submits = worker.register(fails), worker.register(submits)
        worker.init()
        with pytest.raises(chipcomm.Error, match="(?s)KeyError: 'below'.*in fails"):
            worker.run(lambda orch: orch.submit_next_level(fails))
        with pytest.raises(chipcomm.Error, match="worker.empty"):
            worker.run(lambda orch: orch.submit_next_level(submits))
        with pytest.raises(chipcomm.InvalidError, match="one of the two Workers is up already; close it first"):
            worker.add_worker(chipcomm.Worker(device_ids=[1]))


def test_runs_in_flight_are_in_order_and_fail_behind_one_that_fails():
    def slowly(task):
        time.sleep(0.05)
        task.tensor(0)[:] = 2 * task.tensor(0) + task.scalar(0)

    def fails(task):
        raise KeyError("in flight")

    with chipcomm.Worker(device_ids=[0, 1], runs_in_flight=3) as worker:
        slowly, fails, x = worker.register(slowly), worker.register(fails), worker.empty(2)
        worker.init()

        def orchestrate(orch, program, number, chip):
            orch.submit_next_level(program, TaskArgs().add_inout(x).add_scalar(number), worker=chip)
            return number

        # More than may be in flight; each reads what the one before it wrote, on the other chip.
        runs = [worker.submit(orchestrate, slowly, number, number % 2) for number in range(1, 6)]
        assert [run.value for run in runs] == [1, 2, 3, 4, 5]
        assert runs[-1].wait() and all(run.is_done() for run in runs)
        assert x.tolist() == [57.0, 57.0]
        first, bad, behind = (worker.submit(orchestrate, program, 0, 0) for program in (slowly, fails, slowly))
        assert first.wait()
        for run in (bad, behind):
            with pytest.raises(chipcomm.Error, match="in flight"):
                run.wait()
        late = worker.submit(orchestrate, slowly, 0, 0)
        assert not late.wait(timeout=0.001) or late.is_done()
        late.cancel()
        # Over before it was cancelled, or not.
        try:
            late.wait()
        except chipcomm.Error:
            pass
        with pytest.raises(ZeroDivisionError):
            worker.submit(lambda orch: 1 / 0)
        x[:] = 1
        assert worker.run(orchestrate, slowly, 1, 1) == 1 and x.tolist() == [3, 3]


def test_a_trace_names_the_functions(tmp_path):
    with chipcomm.Worker(device_ids=[0], trace=tmp_path / "trace.json") as worker:
        function, x = worker.register(add_one), worker.empty(2)
        worker.init()
        worker.set_run_timeout(20)
        worker.run(lambda orch: orch.submit_next_level(function, TaskArgs().add_inout(x)))
    assert "add_one" in (tmp_path / "trace.json").read_text()


def test_scalars_are_the_bits_that_a_kernel_reads():
    import ctypes

    assert chipcomm.scalar_to_uint64(1.5) == 0x3FC00000
    assert chipcomm.scalar_to_uint64(ctypes.c_double(1.0)) == 0x3FF0000000000000
    assert chipcomm.scalar_to_uint64(ctypes.c_int64(-1)) == chipcomm.scalar_to_uint64(-1) == 2**64 - 1
    args = TaskArgs().add_scalar(np.int32(7)).add_scalar(2.0)
    assert args._parts([])[1] == [7, 0x40000000] and args.scalar_count() == 2 and args.tensor_count() == 0
    with pytest.raises(chipcomm.InvalidError, match="the scalar 18446744073709551616 does not fit into 64 bits; pass"):
        args.add_scalar(2**64)
