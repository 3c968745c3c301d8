"""What is wrong is an exception that says what to do, and the interpreter and the group go on."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import chipcomm


@pytest.fixture
def group():
    with chipcomm.init(rank=0, size=1) as comm:
        with comm.group() as group:
            yield group


# PY-1
def test_arrays_that_cannot_be_used_are_refused_and_the_group_goes_on(group):
    x = np.ones(12, np.float32)
    refused = [
        (lambda: group.all_reduce(np.ones(3, np.complex64)), chipcomm.InvalidError, "float32"),
        (lambda: group.all_reduce(np.ones(3, ">f4")), chipcomm.InvalidError, 'array has elements of format ">f"; use float16, float32, float64, bool or an integer type in native byte order, or 16-bit integers with dtype="bf16"'),
        (lambda: group.all_reduce(np.array(["a"])), chipcomm.InvalidError, "array has elements of format \"1w\"; use float16"),
        (lambda: group.all_reduce(np.array([object()])), chipcomm.InvalidError, "format"),
        (lambda: group.all_reduce(x.reshape(3, 4).T), chipcomm.InvalidError, r"array is not contiguous; pass np.ascontiguousarray\(array\), and copy a result back$"),
        (lambda: group.all_reduce(x[::2]), chipcomm.InvalidError, "contiguous"),
        (lambda: group.all_reduce(b"bytes"), chipcomm.InvalidError, "is read-only, and the result goes there; pass a writable array such as"),
        (lambda: group.all_reduce([1, 2]), TypeError, "array is a list; pass a numpy array, or another object with the buffer protocol or DLPack"),
        (lambda: group.all_reduce(None), TypeError, "numpy array"),
        (lambda: group.all_reduce(np.array(["2020"], "M8[Y]")), TypeError, r"array cannot be passed as memory \(ValueError: .*\); use float16, float32"),
        (lambda: group.all_reduce(x, "mean"), chipcomm.InvalidError, 'op is "mean"; it is one of sum, prod, max, min, avg, band, bor, bxor, land, lor, lxor'),
        (lambda: group.all_reduce(np.ones(3, np.int32), "avg"), chipcomm.InvalidError, "floating point"),
        (lambda: group.all_reduce(x, out=np.ones(3, np.float32)), chipcomm.InvalidError, "out has 3 elements; this call takes 12"),
        (lambda: group.all_reduce(x, out=np.ones(12)), chipcomm.InvalidError, "input has elements of f32 and output of f64; pass arrays of one type$"),
        (lambda: group.all_reduce(x, out=x[0:11]), chipcomm.InvalidError, "takes 12"),
        (lambda: group.all_reduce(x[:11], out=x[1:]), chipcomm.InvalidError, "overlap"),
        (lambda: group.all_reduce(x, dtype="bf16"), chipcomm.InvalidError, "array has elements of 4 bytes, and those of bf16 have 2; leave dtype out, or pass the array's own"),
        (lambda: group.all_reduce(x, dtype="float"), chipcomm.InvalidError, "dtype is .*; it is one of f32"),
        (lambda: group.all_gather(x, np.ones(5, np.float32)), chipcomm.InvalidError, "takes 12"),
        (lambda: group.all_gather(x, x, [1, 2]), chipcomm.InvalidError, "counts has 2"),
        (lambda: group.broadcast(x, 1), chipcomm.InvalidError, "root is 1; the group has ranks 0 to 0"),
        (lambda: group.broadcast(x, -1), OverflowError, "negative"),
        (lambda: group.reduce(x), chipcomm.InvalidError, "the root needs output; pass an array for it"),
        (lambda: group.scatter(None, x), chipcomm.InvalidError, "the root needs input; pass an array for it"),
        (lambda: group.all_to_all(x, x.copy(), [12]), chipcomm.InvalidError, "give both send_counts and receive_counts, or neither"),
        (lambda: group.send(x, 0), chipcomm.InvalidError, "cannot be sent to"),
        (lambda: group.recv(x, 5), chipcomm.InvalidError, "cannot be"),
        (lambda: group.empty(-1), ValueError, "negative"),
        (lambda: group.empty(2**59, "V64"), chipcomm.InvalidError, "the array would be larger than memory; ask for a smaller shape"),
        (lambda: group.empty(3, "no such type"), TypeError, "no such type"),
    ]
    import re

    for call, kind, text in refused:
        with pytest.raises(kind) as raised:
            call()
        assert re.search(text, str(raised.value)), raised.value
    group.all_reduce(x)
    assert (x == 1).all()


def test_a_read_only_root_of_a_broadcast_is_no_error(group):
    x = np.ones(3)
    x.flags.writeable = False
    group.broadcast(x)
    with pytest.raises(chipcomm.InvalidError, match="copy()"):
        group.all_reduce(x)


def test_what_is_closed_says_so():
    comm = chipcomm.init(rank=0, size=1)
    group = comm.group()
    group.close()
    group.close()
    for call in [lambda: group.all_reduce(np.ones(3)), lambda: group.empty(3), group.barrier]:
        with pytest.raises(chipcomm.ClosedError, match="this group is closed; make a new one"):
            call()
    other = comm.group()
    comm.close()
    comm.close()
    for call in [comm.barrier, comm.group, other.barrier, lambda: comm.windows(4096)]:
        with pytest.raises(chipcomm.ClosedError, match="this (communicator|group) is closed; make a new one"):
            call()
    assert comm.closed and "closed" in repr(comm)


def test_wrong_ranks_and_times_are_refused():
    for rank, size, text in [
        (1, 1, "rank is 1 in a group of 1; pass 0 to 0"),
        (-1, 1, "rank is -1 and size is 1; a rank is a number from 0 below the size"),
        (0, 0, "size is 0"),
        (0, 65, "65"),
    ]:
        with pytest.raises(chipcomm.InvalidError, match=text):
            chipcomm.init("/tmp/x", rank, size)
    for timeout in [0, -1, float("nan"), 1e300]:
        text = "a time limit of 0ns is refused" if timeout == 0 else "timeout is .*; it is a number of seconds above 0"
        with pytest.raises(chipcomm.InvalidError, match=text):
            chipcomm.init(rank=0, size=1, timeout=timeout)
    with pytest.raises(chipcomm.InvalidError, match="give both rank and size, or neither and let a launcher set them"):
        chipcomm.init(rank=0)
    with pytest.raises(chipcomm.InvalidError, match="no launcher has set rank and size; run `python -m chipcomm.launch -n 4 script.py`, torchrun, mpirun or srun, or pass rank and size"):
        chipcomm.init()
    with pytest.raises(chipcomm.InvalidError, match="give a path that all ranks know, such as /tmp/my-job, or set CHIPCOMM_PATH"):
        chipcomm.init(rank=0, size=2)


def test_a_missing_rank_is_named_when_time_is_up():
    with pytest.raises(chipcomm.TimedOutError, match="1") as raised:
        chipcomm.init(f"/tmp/chipcomm-missing-{os.getpid()}", 0, 2, timeout=0.3)
    assert isinstance(raised.value, TimeoutError) and raised.value.code == 2


def test_different_calls_name_both(ranks):
    job = ranks(
        """
comm = chipcomm.init(); group = comm.group(); x = np.ones(4)
try:
    group.all_reduce(x) if comm.rank else group.broadcast(x)
    group.barrier()
except chipcomm.MismatchError as error: print(error)
"""
    )
    for rank in job.ended():
        assert "all_reduce" in rank.out and "broadcast" in rank.out, rank


def test_a_killed_rank_is_an_exception_in_the_others_within_200_ms(ranks):
    job = ranks(
        """
comm = chipcomm.init(); group = comm.group(); x = np.ones(4)
group.all_reduce(x); print("up", flush=True)
if comm.rank == 1: time.sleep(60)
try: group.all_reduce(x)
except chipcomm.PeerDiedError as error:
    print("at", time.clock_gettime(time.CLOCK_MONOTONIC), error.phase, error)
""",
        3,
    )
    for process in job.processes:
        assert process.stdout.readline() == "up\n"
    time.sleep(0.2)
    killed = time.clock_gettime(time.CLOCK_MONOTONIC)
    job.processes[1].kill()
    for number, rank in enumerate(job.ended()):
        if number != 1:
            words = rank.out.split() or [""]
            assert words[0] == "at" and "rank 1" in rank.out, rank
            # 200 ms is what it promises; the rest is for a machine that does other things.
            assert float(words[1]) - killed < 2.0, rank.out


def test_an_exception_on_one_rank_ends_the_wait_of_the_others(ranks):
    job = ranks(
        """
with chipcomm.init() as comm, comm.group() as group:
    if comm.rank == 0: raise KeyError("mine")
    group.barrier()
"""
    )
    zero, one = job.ended()
    assert "KeyError: 'mine'" in zero.err and zero.status == 1
    assert "PeerLeftError" in one.err or "PeerDiedError" in one.err, one


# PY-2
@pytest.mark.parametrize("where", ["group.all_reduce(x)", "comm.barrier()", "comm.group([1, 0])"])
def test_ctrl_c_ends_a_wait_and_the_peer_is_told(ranks, where):
    job = ranks(
        f"""
comm = chipcomm.init(); group = comm.group(); x = np.ones(4); group.all_reduce(x); print("up", flush=True)
if comm.rank == 1:
    time.sleep(1.0)
    # What rank 0 gave before it was interrupted is delivered, so the first call may succeed.
    try: {where}; {where}
    except chipcomm.Error as error: print(type(error).__name__)
else:
    try: {where}
    except KeyboardInterrupt as error: print("interrupted", type(error.__cause__).__name__)
"""
    )
    for process in job.processes:
        assert process.stdout.readline() == "up\n"
    time.sleep(0.3)
    job.processes[0].send_signal(signal.SIGINT)
    zero, one = job.ended()
    # With a cause: it was the wait that ended, before the peer came.
    assert zero.out.startswith("interrupted") and "NoneType" not in zero.out, zero
    assert "Error" in one.out, one


def test_ctrl_c_while_ranks_are_missing():
    program = "import chipcomm\nprint('up', flush=True)\nchipcomm.init('/tmp/chipcomm-nobody-%d', 0, 2)" % os.getpid()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in err and process.returncode != 0


# PY-5
def test_a_forked_copy_is_refused_and_harms_nobody(run):
    launch = "`python -m chipcomm.launch` or multiprocessing's \"spawn\""
    start = f"make it after the fork, or start processes with {launch}"
    comm = f"this communicator belongs to the process that made it, and this is a forked copy; {start}"
    group = "this is a forked copy; make the group after the fork"
    memory = "this memory belongs to the process that this one was forked from; make it after the fork"
    run(
        f"""
comm = chipcomm.init(); group = comm.group(); x = np.ones(4); w = group.empty(4); memory = group.memory(8)
pid = os.fork()
if pid == 0:
    status = 0
    try: group.all_reduce(x); status = 1
    except chipcomm.InvalidError as error:
        if {group!r} not in str(error): status = 2
    for call in [comm.barrier, comm.group]:
        try: call(); status = 1
        except chipcomm.InvalidError as error:
            if {comm!r} not in str(error): status = 2
    try: memoryview(memory); status = 3
    except BufferError as error:
        if str(error) != {memory!r}: status = 4
    comm.close(); del comm, group
    os._exit(status)
assert os.waitpid(pid, 0)[1] == 0
for closes in [True, False]:      # with nothing left that keeps the communicator
    pid = os.fork()
    if pid == 0:
        del w, memory, group
        if closes: comm.close()
        del comm
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
group.all_reduce(x); assert (x == 2).all()
if comm.rank: time.sleep(0.5)     # rank 0 waits, and looks whether rank 1 has left
comm.barrier(); del w, memory; group.close(); comm.close()
"""
    )


def test_two_threads_in_one_group_are_refused(run):
    said = run(
        """
import threading
comm = chipcomm.init(); group = comm.group(); seen = []
def other():
    time.sleep(0.5)
    if comm.rank: return
    try: group.barrier()
    except chipcomm.InvalidError as error: seen.append(str(error))
thread = threading.Thread(target=other); thread.start()
if comm.rank: time.sleep(1.0)
group.barrier(); thread.join()
print(*seen)
comm.close()
"""
    )
    assert "another thread is inside a call on this group, which takes one at a time; give each thread a group of its own" in said[0]


@pytest.mark.parametrize(
    ("missing", "module", "text"),
    [
        ("numpy", "chipcomm", "chipcomm works on numpy arrays; install numpy: pip install numpy"),
        ("torch", "chipcomm.torch", "chipcomm.torch is a backend of torch.distributed; install torch: pip install torch"),
    ],
)
def test_without_it_the_import_says_what_to_install(tmp_path, missing, module, text):
    (tmp_path / f"{missing}.py").write_text(f"raise ImportError('no {missing} here')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, env=env)
    assert found.returncode == 1 and f"ImportError: {text}\n" in found.stderr


def test_a_group_of_one_gives_everything_back(group):
    x, y = np.arange(3.0), np.zeros(3)
    group.barrier()
    group.all_reduce(x)
    group.reduce(x, y)
    group.all_gather(x, y)
    group.reduce_scatter(x, y)
    group.gather(x, y)
    group.scatter(x, y)
    group.all_to_all(x, y)
    group.broadcast(y)
    assert x.tolist() == y.tolist() == [0, 1, 2]
    assert group.split(0).size == 1 and group.split(None) is None


def test_a_script_that_closes_nothing_leaves_in_order(ranks):
    job = ranks(
        """
comm = chipcomm.init(); group = comm.group(); x = group.empty(4)
if comm.rank == 0: sys.exit(0)
try: group.barrier()
except chipcomm.PeerLeftError as error: print("left", error)
"""
    )
    zero, one = job.ended()
    assert zero.status == 0 and one.out.startswith("left"), (zero, one)
