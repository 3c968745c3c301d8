"""Workers: kernels and Python functions on chips and sub-workers."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import chipcomm
from chipcomm import (
    ChipBootstrapConfig,
    ChipBufferSpec,
    ChipCommBootstrapConfig,
    CommBufferSpec,
    HostBufferStaging,
    TaskArgs,
    TensorArgType,
)

pytestmark = pytest.mark.usefixtures("no_process_left")


def test_a_kernel_and_a_function_run_in_the_order_of_their_memory(scale):
    def add_one(task):
        task.tensors[0][:] += task.scalar(0)

    with chipcomm.Worker(device_ids=[0, 1]) as worker:
        kernel, function = worker.register(scale), worker.register(add_one)
        x, y = worker.empty((2, 2)), worker.empty((2, 2))
        worker.init()
        x[:] = [[1, 2], [3, 4]]

        def orchestrate(orch, factor):
            for _ in range(3):
                orch.submit_next_level(kernel, TaskArgs().add_input(x).add_output(y).add_scalar(factor), worker=0)
                orch.submit_next_level(function, TaskArgs().add_inout(y).add_scalar(1), worker=1)
            return "done"

        assert worker.run(orchestrate, 10) == "done"
        assert y.tolist() == [[11, 21], [31, 41]]
        assert worker.chip_contexts[1].device_id == 1
        z = worker.empty(4, np.int32)  # after init

        def fill(orch):
            orch.submit_next_level(function, TaskArgs().add_inout(z).add_scalar(7))

        worker.run(fill)
        assert z.tolist() == [7] * 4


def test_sub_workers_run_functions_with_what_the_program_has():
    table = {"three": 3}

    def look_up(task):
        assert not task.on_chip
        task.tensor(0)[:] = table["three"]
        print("seen by", os.getpid())

    with chipcomm.Worker(device_ids=[0], num_sub_workers=2) as worker:
        function = worker.register(look_up)
        buffers = [worker.empty(3, np.int64) for _ in range(4)]
        worker.init()
        worker.run(lambda orch: [orch.submit_sub(function, TaskArgs().add_output(one)) for one in buffers])
        assert all((one == 3).all() for one in buffers)


def test_configured_chips_have_windows_that_are_loaded_and_stored():
    def twice(task):
        task.tensor(0)[:] *= 2

    worker = chipcomm.Worker(level=3, platform="a2a3sim", device_ids=[4, 5])
    ins = [worker.empty(8) for _ in range(2)]
    outs = [worker.empty(8) for _ in range(2)]
    for chip, one in enumerate(ins):
        one[:] = chip + 1
    spec = ChipBufferSpec("x", "float32", 8, load_from_host=True, store_to_host=True)
    worker.configure_chips(
        [
            ChipBootstrapConfig(
                ChipCommBootstrapConfig(rank=chip, nranks=2, window_size=4096),
                [spec],
                [HostBufferStaging("x", ins[chip])],
                [HostBufferStaging("x", outs[chip])],
            )
            for chip in range(2)
        ]
    )
    function = worker.register(twice)
    with worker:
        worker.init()
        contexts = worker.chip_contexts
        assert [(one.rank, one.nranks) for one in contexts] == [(0, 2), (1, 2)]
        assert contexts[0].actual_window_size >= 4096 and contexts[0].device_ctx

        def orchestrate(orch):
            for chip, context in enumerate(contexts):
                orch.submit_next_level(function, TaskArgs().add_tensor(context.tensor("x"), TensorArgType.INOUT), worker=chip)

        worker.run(orchestrate)
        assert [one[0] for one in outs] == [2, 4]
        assert np.frombuffer(worker.copy_from(1, contexts[1].buffer_ptrs["x"], 32), np.float32)[0] == 4
        worker.copy_to(1, contexts[1].buffer_ptrs["x"], np.full(8, 9, np.float32))
        assert np.frombuffer(worker.copy_from(1, contexts[1].buffer_ptrs["x"], 32), np.float32)[7] == 9


def test_domains_and_collectives_of_chips():
    def add_up(task):
        x = task.tensor(0)
        task.group.all_reduce(x)
        task.tensor(1)[:] = x[:4]

    with chipcomm.Worker(device_ids=[0, 1, 2]) as worker:
        function = worker.register(add_up)
        xs = [worker.empty(1000) for _ in range(3)]
        worker.init()

        def orchestrate(orch):
            with orch.allocate_domain(
                name="tp", workers=[2, 0], window_size=4096, buffers=[CommBufferSpec("out", "float32", 4)]
            ) as domain:
                assert [domain[chip].domain_rank for chip in (2, 0)] == [0, 1] and domain[2].domain_size == 2
                orch.collectives([2, 0])
                args = [
                    TaskArgs().add_inout(xs[chip]).add_tensor(domain[chip].tensor("out"), TensorArgType.OUTPUT)
                    for chip in (2, 0)
                ]
                orch.submit_next_level_group(function, args, workers=[2, 0])

        for round_ in range(3):
            for chip, x in enumerate(xs):
                x[:] = chip + 1
            worker.run(orchestrate)
            assert (xs[0] == 4).all() and (xs[2] == 4).all() and (xs[1] == 2).all()


def test_an_exception_in_a_function_is_the_error_of_the_run_and_the_next_run_works():
    def fails(task):
        raise KeyError("no such thing")

    def works(task):
        task.tensor(0)[:] = 5

    with chipcomm.Worker(device_ids=[0]) as worker:
        fails, works = worker.register(fails), worker.register(works)
        x = worker.empty(2)
        worker.init()
        with pytest.raises(chipcomm.TaskError, match="(?s)KeyError: 'no such thing'.*in fails"):
            worker.run(lambda orch: orch.submit_next_level(fails))
        with pytest.raises(ZeroDivisionError):
            worker.run(lambda orch: 1 / 0)
        worker.run(lambda orch: orch.submit_next_level(works, TaskArgs().add_output(x)))
        assert (x == 5).all()


def test_a_function_that_dies_is_named():
    def dies(task):
        os.kill(os.getpid(), signal.SIGKILL)

    with chipcomm.Worker(device_ids=[0]) as worker:
        dies = worker.register(dies)
        worker.init()
        with pytest.raises(chipcomm.KilledError, match="SIGKILL"):
            worker.run(lambda orch: orch.submit_next_level(dies))


ARRAY = "the array is neither in a host buffer of this Worker nor in memory of a chip; make it with worker.empty"


def test_wrong_arguments_are_refused_and_the_worker_goes_on(scale):
    with pytest.raises(chipcomm.InvalidError, match="there is no level 2; a Worker of chips has level 3, one of Workers a higher one"):
        chipcomm.Worker(level=2)
    with pytest.raises(chipcomm.InvalidError, match="there is no level -1; a Worker of chips has level 3, one of Workers a higher one"):
        chipcomm.Worker(level=-1)
    with pytest.raises(TypeError, match=re.escape("a Worker has no settings ['block_dim']; see help(chipcomm.Worker)")):
        chipcomm.Worker(block_dim=3)
    with pytest.raises(chipcomm.InvalidError, match="unknown platform"):
        chipcomm.Worker(platform="b1")
    with pytest.raises(chipcomm.InvalidError, match="twice"):
        chipcomm.Worker(device_ids=[0, 0])
    with chipcomm.Worker(device_ids=[0]) as worker:
        kernel, x = worker.register(scale), worker.empty(4)
        with pytest.raises(chipcomm.LoadError):
            worker.register_kernel("/no/such/kernel.so")
        with pytest.raises(TypeError, match="7 is neither a function nor the path of a kernel; pass one of the two"):
            worker.register(7)
        with pytest.raises(chipcomm.InvalidError, match="init first"):
            worker.run(lambda orch: None)
        with pytest.raises(chipcomm.InvalidError, match="there are 0 configurations for 1 devices; give each device one"):
            worker.configure_chips([])
        comm, staged = ChipCommBootstrapConfig(0, 1, None, 4096), [HostBufferStaging("x", np.zeros(4, np.float32))]
        config = ChipBootstrapConfig(comm, [ChipBufferSpec("x", "float32", 4, load_from_host=True)], staged)
        text = "the array of buffer 'x' is not one of this Worker's; make it with worker.empty(shape, dtype)"
        with pytest.raises(chipcomm.InvalidError, match=re.escape(text)):
            worker.configure_chips([config])
        for shape in [0, (3, 0), -1]:
            text = ", with a negative length; make every length" if shape == -1 else ", which has no elements; make every length"
            with pytest.raises(chipcomm.InvalidError, match=f"shape is .*{text} at least 1"):
                worker.empty(shape)
        worker.init()
        late = worker.register(lambda task: None)
        square, double = worker.empty((4, 4)), worker.empty(4, np.float64)
        kept = []

        def in_a_thread(orch):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(orch.submit_next_level, kernel, TaskArgs()).result()

        refused = [
            (lambda orch: orch.submit_next_level(kernel, TaskArgs().add_input(np.ones(4, np.float32))), ARRAY),
            (lambda orch: orch.submit_next_level(kernel, TaskArgs().add_input(square.T)), "is not contiguous; pass np.ascontiguousarray"),
            (lambda orch: orch.submit_next_level(kernel, TaskArgs().add_input(double)), "kernels have no tensors of float64; use float32, float16, bfloat16 or integers"),
            (lambda orch: orch.submit_next_level(kernel, TaskArgs().add_input(x), worker=3), "no chip 3"),
            (lambda orch: orch.submit_next_level(late), "after init"),
            (lambda orch: orch.submit_sub(late), "no sub-workers"),
            (
                lambda orch: orch.submit_next_level_group(kernel, [TaskArgs()], workers=[0, 0]),
                "there are 1 lists of arguments for 2 chips; give each chip one",
            ),
            (in_a_thread, "another thread uses this orchestrator; use it on the thread that called run"),
            (lambda orch: TaskArgs().add_scalar(2**64), r"the scalar 18446744073709551616 does not fit into 64 bits; pass -2\*\*63 to 2\*\*64 - 1"),
            (lambda orch: worker.run(lambda again: None), "this Worker is inside a call; call it from one thread, and not inside its own run"),
        ]
        for body, text in refused:
            with pytest.raises(chipcomm.InvalidError, match=text):
                worker.run(body)
        worker.run(kept.append)
        with pytest.raises(chipcomm.InvalidError, match="this run is over; use its orchestrator inside the function that run calls"):
            kept[0].submit_next_level(kernel, TaskArgs().add_input(x).add_output(x).add_scalar(1))
        worker.run(lambda orch: orch.submit_next_level(kernel, TaskArgs().add_input(x).add_output(x).add_scalar(1)))


def test_a_closed_worker_and_a_forked_copy_are_refused():
    worker = chipcomm.Worker(device_ids=[0])
    function, x = worker.register(lambda task: task.tensor(0).fill(3)), worker.empty(2)
    worker.init()
    pid = os.fork()
    if pid == 0:
        status = 0
        for call in [worker.init, worker.close, lambda: worker.empty(2), lambda: worker.run(lambda orch: None)]:
            try:
                call()
                status = 1
            except chipcomm.InvalidError as error:
                status = status if "forked copy" in str(error) else 2
        os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    worker.run(lambda orch: orch.submit_next_level(function, TaskArgs().add_output(x)))
    worker.close()
    worker.close()
    for call in [lambda: worker.run(lambda orch: None), lambda: worker.copy_from(0, 4096, 4), lambda: worker.chip_contexts]:
        with pytest.raises(chipcomm.InvalidError, match="init first"):
            call()
    assert x.tolist() == [3, 3]


def test_fork_hooks_run_and_threads_of_the_program_do_no_harm():
    seen = []
    os.register_at_fork(before=lambda: seen.append("before"), after_in_child=lambda: seen.append("child"))
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            sum(range(1000))

    def check(task):
        # The only thread of the child, and Python knows it.
        task.tensor(0)[0] = threading.active_count()
        task.tensor(0)[1] = seen.count("child")
        thread = threading.Thread(target=lambda: task.tensor(0).__setitem__(2, 7))
        thread.start()
        thread.join()

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with chipcomm.Worker(device_ids=[0, 1]) as worker:
            check = worker.register(check)
            x = worker.empty(3, np.int64)
            worker.init()
            worker.run(lambda orch: orch.submit_next_level(check, TaskArgs().add_inout(x), worker=1))
            assert x.tolist() == [1, 1, 7] and seen.count("before") >= 2
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_ctrl_c_ends_a_run_and_leaves_nothing():
    program = """
import chipcomm, time, os
def sleeps(task): time.sleep(60)
worker = chipcomm.Worker(device_ids=[0, 1])
program = worker.register(sleeps)
worker.init()
print("up", flush=True)
try: worker.run(lambda orch: orch.submit_next_level(program))
except KeyboardInterrupt as error: print("interrupted", flush=True)
worker.close()
print("children:", open(f"/proc/self/task/{os.getpid()}/children").read())
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert process.stdout.readline().strip() == "children:"
    assert process.wait(timeout=20) == 0


def test_the_examples_run():
    folder = pathlib.Path(__file__).parents[1] / "examples"
    kernel = subprocess.run([sys.executable, folder / "kernel.py"], capture_output=True, text=True, timeout=60)
    assert "[11.0, 21.0, 31.0, 41.0]" in kernel.stdout, kernel
    launch = [sys.executable, "-m", "chipcomm.launch", "-n", "4", str(folder / "all_reduce.py")]
    ranks = subprocess.run(launch, capture_output=True, text=True, timeout=60)
    assert ranks.stdout.count("the sum is 10, the largest rank 3") == 4, ranks
