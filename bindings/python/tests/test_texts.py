"""Texts of errors that the other tests compare by their kind only."""

import threading

import numpy as np
import pytest

import chipcomm
from chipcomm import TaskArgs


def test_counts_that_cannot_be(run):
    uneven, huge = "ranks cannot share evenly", "would have more elements than memory"
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
        assert "ask for a task's group on the thread that runs the task" in groups[0], groups

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
            (np.empty(0, np.float32), "has no elements, or too many"),
            (np.empty(2**32, np.uint8), r"a dimension of a tensor has at most 2\^32 - 1 elements"),
        ]:
            with pytest.raises(chipcomm.InvalidError, match=text):
                worker.run(lambda orch: orch.submit_next_level(program, TaskArgs().add_input(array), worker=0))
