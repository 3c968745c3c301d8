"""Texts of errors that the other tests compare by their kind only."""

import threading

import numpy as np
import pytest

import chipcomm
from chipcomm import CommBufferSpec, TaskArgs


def test_counts_that_cannot_be(run):
    uneven = "input has 3 elements, which 2 ranks cannot share evenly; pass send_counts and receive_counts"
    huge = "output would have more elements than memory holds; pass smaller counts"
    run(
        f"""
        def refused(text, call, *arguments):
            try: call(*arguments)
            except chipcomm.InvalidError as error: assert text in str(error), error
            else: raise AssertionError(text)
        x = np.ones(3, np.float32)
        with chipcomm.init() as comm, comm.group() as group:
            refused({uneven!r}, group.all_to_all, x, np.ones(3, np.float32))
            counts = [2**64 - 1, 2**64 - 1]
            counts[comm.rank] = 3
            refused({huge!r}, group.all_gather, x, x, counts)
            group.barrier()
        """
    )


def test_a_group_outside_its_task(no_process_left):
    groups = []

    def elsewhere(task):
        def ask():
            try:
                task.group
            except chipcomm.InvalidError as error:
                groups.append(str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert "another thread asks for this task's group; ask for it on the thread that runs the task" in groups[0], groups

    kept = []

    def keep(task):
        kept.append(task)

    def late(task):
        with pytest.raises(chipcomm.InvalidError, match="this task is over; use its group inside its function"):
            kept[0].group

    with chipcomm.Worker(device_ids=[0]) as worker:
        programs = [worker.register(function) for function in (elsewhere, keep, late)]
        worker.init()

        def orchestrate(orch):
            orch.collectives([0])
            for program in programs:
                orch.submit_next_level(program, TaskArgs(), worker=0)

        worker.run(orchestrate)


def test_programs_and_arrays_that_a_worker_cannot_submit(scale, no_process_left):
    lower = chipcomm.Worker(device_ids=[0])
    with chipcomm.Worker(level=4) as upper:
        kernel = upper.register_kernel(str(scale))
        upper.add_worker(lower)
        upper.init()
        with pytest.raises(chipcomm.InvalidError, match="a kernel runs on chips; submit a Python function to a Worker, which submits it there"):
            upper.run(lambda orch: orch.submit_next_level(kernel, TaskArgs(), worker=0))
    with chipcomm.Worker(device_ids=[0]) as worker:
        program = worker.register(lambda task: None)
        worker.init()
        for array, text in [
            (np.empty(0, np.float32), "has no elements, or more than memory; make every length at least 1"),
            (np.empty(2**32, np.uint8), r"a dimension of a tensor has at most 2\^32 - 1 elements; split it in two"),
        ]:
            with pytest.raises(chipcomm.InvalidError, match=text):
                worker.run(lambda orch: orch.submit_next_level(program, TaskArgs().add_input(array), worker=0))


def test_memory_of_a_domain_that_is_in_use_and_of_one_without_this_rank(run):
    strange = "do not name this rank, {}; only members make this call"
    in_use = "1 pieces of memory of domain 7 are still in use; delete them, and the arrays on them, first"
    run(
        f"""
        def refused(text, call, *arguments):
            try: call(*arguments)
            except chipcomm.InvalidError as error: assert text in str(error), error
            else: raise AssertionError(text)
        with chipcomm.init() as comm:
            other = 1 - comm.rank
            refused({strange!r}.format(comm.rank), comm.allocate_domain, 5, [other], 4096)
            parts = comm.allocate_domain(7, [0, 1], 4096)
            array = np.frombuffer(parts[0], np.float32)
            del parts[1]
            refused({in_use!r}, comm.release_domain, 7)
            del parts
            refused({in_use!r}, comm.release_domain, 7)
            del array
            comm.release_domain(7)
        """
    )


def test_a_call_that_another_thread_started(run):
    text = "another thread has started calls on this group that are not over; wait for them there, or make the group with progress_thread=True"
    run(
        f"""
        import threading
        with chipcomm.init() as comm, comm.group() as group:
            x, seen = np.ones(4), []
            request = group.all_reduce(x, start=True)
            def other():
                try: group.barrier()
                except chipcomm.InvalidError as error: seen.append(str(error))
            thread = threading.Thread(target=other); thread.start(); thread.join()
            assert len(seen) == 1 and {text!r} in seen[0], seen
            request.wait()
            assert (x == 2).all()
        """
    )


def test_what_a_task_does_not_have(no_process_left):
    def mistakes(task):
        text = "a task's group has no empty, memory, split or close: its Worker makes and closes it; use the task's tensors"
        for call in [lambda: task.group.empty(4), lambda: task.group.memory(4), lambda: task.group.split(0), task.group.close]:
            with pytest.raises(chipcomm.InvalidError, match=text):
                call()
        with pytest.raises(chipcomm.InvalidError, match="there is no scalar 1; the task has 1, counted from 0"):
            task.scalar(1)

    with chipcomm.Worker(device_ids=[0], num_sub_workers=1) as worker:
        program = worker.register(mistakes)
        worker.init()

        def orchestrate(orch):
            orch.collectives([0])
            orch.submit_next_level_group(program, [TaskArgs().add_scalar(7)], workers=[0])
            domain = orch.allocate_domain("one", [0], 4096, [CommBufferSpec("x", "float32", 4)])
            with pytest.raises(chipcomm.InvalidError, match=r"there is no buffer 'y'; there are \['x'\]"):
                domain[0].tensor("y")
            part = domain[0].tensor("x")
            text = "this tensor is part of a window, which is freed as a whole; free what alloc_child_tensor made"
            with pytest.raises(chipcomm.InvalidError, match=text):
                orch.free(part)
            text = r"tensor 0: sub-workers reach host buffers only; make the array with worker.empty\(shape, dtype\)"
            with pytest.raises(chipcomm.InvalidError, match=text):
                orch.submit_sub(program, TaskArgs().add_input(part))

        worker.run(orchestrate)


def test_what_a_run_raised_is_told_alone(no_process_left):
    """The failure that stands for it inside the Worker is not seen, by this run or by those after it."""
    with chipcomm.Worker(device_ids=[0]) as worker:
        program = worker.register(lambda task: None)
        worker.init()
        for go in (worker.run, worker.submit):
            with pytest.raises(ZeroDivisionError) as raised:
                go(lambda orch: 1 / 0)
            assert raised.value.__cause__ is None and str(raised.value) == "division by zero"
            worker.run(lambda orch: orch.submit_next_level(program))
