"""The collective calls against numpy."""

import pytest

PRELUDE = """
comm = chipcomm.init()
group = comm.group()
n, me = comm.size, comm.rank
def of(rank, count=1000, dtype=np.float32):
    return ((np.arange(count) * 7 + rank * 13) % 101 + 1).astype(dtype)
"""


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_call_does_what_numpy_says(run, count):
    run(
        PRELUDE
        + """
everybody = [of(rank) for rank in range(n)]
x = of(me); group.all_reduce(x); assert (x == sum(everybody)).all()
for name, op in [("max", np.maximum.reduce), ("min", np.minimum.reduce)]:
    x = of(me); group.all_reduce(x, name); assert (x == op(everybody)).all()
out = np.zeros(1000, np.float32); group.all_reduce(of(me), out=out); assert (out == sum(everybody)).all()
out = np.zeros((n, 1000), np.float32); group.all_gather(of(me), out); assert (out == everybody).all()
counts = [r + 1 for r in range(n)]
out = np.zeros(sum(counts), np.float32); group.all_gather(of(me, me + 1), out, counts)
assert (out == np.concatenate([of(r, r + 1) for r in range(n)])).all()
out = np.zeros(250, np.float32); group.reduce_scatter(of(me, 250 * n), out)
assert (out == sum(of(r, 250 * n) for r in range(n)).reshape(n, 250)[me]).all()
out = np.zeros(me + 1, np.float32); group.reduce_scatter(of(me, sum(counts)), out, "sum", counts)
assert (out == sum(of(r, sum(counts)) for r in range(n))[sum(counts[:me]):][: me + 1]).all()
x = of(me); group.broadcast(x, root=n - 1); assert (x == everybody[n - 1]).all()
out = np.zeros(1000, np.float32) if me == 0 else None
group.reduce(of(me), out); assert me or (out == sum(everybody)).all()
out = np.zeros((n, 1000), np.float32) if me == n - 1 else None
group.gather(of(me), out, root=n - 1); assert out is None or (out == everybody).all()
out = np.zeros(10, np.float32); group.scatter(of(0, 10 * n) if me == 0 else None, out)
assert (out == of(0, 10 * n).reshape(n, 10)[me]).all()
out = np.zeros(10 * n, np.float32); group.all_to_all(of(me, 10 * n), out)
assert (out.reshape(n, 10) == [of(r, 10 * n).reshape(n, 10)[me] for r in range(n)]).all()
send = [me + 1] * n; receive = [r + 1 for r in range(n)]
out = np.zeros(sum(receive), np.float32); group.all_to_all(of(me, sum(send)), out, send, receive)
assert (out == np.concatenate([of(r, (r + 1) * n).reshape(n, r + 1)[me] for r in range(n)])).all()
group.barrier(); comm.barrier()
group.close(); comm.close()
""",
        count,
    )


def test_every_type_and_operation_has_its_meaning(run):
    run(
        PRELUDE
        + """
for dtype in [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]:
    x = of(me, 77, dtype); group.all_reduce(x); assert (x == of(0, 77, dtype) + of(1, 77, dtype)).all(), dtype
    if dtype(1) / 2 and np.issubdtype(dtype, np.floating):
        x = of(me, 77, dtype); group.all_reduce(x, "avg"); assert (x == (of(0, 77, dtype) + of(1, 77, dtype)) / 2).all()
    else:
        for op, f in [("band", np.bitwise_and), ("bor", np.bitwise_or), ("bxor", np.bitwise_xor)]:
            x = of(me, 77, dtype); group.all_reduce(x, op); assert (x == f(of(0, 77, dtype), of(1, 77, dtype))).all()
x = np.array([True, bool(me)]); group.all_reduce(x, "land"); assert (x == [True, False]).all()
# bfloat16 has no name in numpy: its bits as 16-bit integers.
bits = lambda x: (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
x = bits([1.0 + me, 2.0]); group.all_reduce(x, dtype="bf16"); assert (x == bits([3.0, 4.0])).all()
x = memoryview(bytearray(b"\\x01\\x02")); group.all_reduce(x); assert bytes(x) == b"\\x02\\x04"
group.close(); comm.close()
"""
    )


# PY-3
def test_arrays_in_the_window_are_reduced_where_they_stand_and_outlive_everything(run):
    run(
        PRELUDE
        + """
x = group.empty((100, 1000)); x[:] = me + 1
group.all_reduce(x); assert (x == 3).all() and x.shape == (100, 1000)
y = group.empty(10, np.int64)
assert y.dtype == np.int64 and not y.any()
try: group.empty(1 << 30); assert False
except chipcomm.OutOfMemoryError as error: assert "pool" in str(error)
for _ in range(100): group.empty(500_000)      # given back every time
z = np.from_dlpack(x); assert z.ctypes.data == x.ctypes.data
group.close(); comm.close()
x += 1; assert (x == 4).all() and (z == 4).all()
del x, z; y += 1
"""
    )


def test_windows_and_domains_are_memory_of_every_member(run):
    run(
        PRELUDE
        + """
parts = [np.frombuffer(part, np.int32) for part in comm.windows(4096)]
parts[1 - me][0] = 40 + me                       # into the peer's window
comm.barrier(); assert parts[me][0] == 41 - me
domain = [np.frombuffer(part, np.float64) for part in comm.allocate_domain(7, [1, 0], 8192)]
domain[1 - me][0] = me                           # rank 1 of the communicator is rank 0 of the domain
comm.barrier(); assert domain[me][0] == 1 - me or domain[1 - me][0] == me
try: comm.release_domain(7); assert False
except chipcomm.InvalidError as error: assert "delete them, and the arrays on them, first" in str(error)
del domain; comm.release_domain(7)
view = memoryview(comm.allocate_domain(8, [0, 1], 4096)[0])   # all that keeps it
try: comm.release_domain(8); assert False
except chipcomm.InvalidError as error: assert "delete them, and the arrays on them, first" in str(error)
del view; comm.release_domain(8)
group.close(); comm.close()
"""
    )


# PY-4
def test_started_calls_keep_their_arrays_and_end(run):
    run(
        PRELUDE
        + """
requests = [group.all_reduce(np.full(100_000, me + k, np.float32), start=True) for k in range(8)]
x = np.full(100_000, me, np.float32); last = group.all_reduce(x, start=True)
for request in requests: request.wait(); assert request.test()
last.wait(); assert (x == n * (n - 1) / 2).all()
peer = 1 - me
out, back = np.full(50_000, me, np.int32), np.zeros(50_000, np.int32)
send, recv = group.send(out, peer, 3, start=True), group.recv(back, peer, 3, start=True)
recv.wait(); send.wait(); assert (back == peer).all()
if me == 0: group.send(out[:5], 1)
else: group.recv(back[:5], 0); assert (back[:5] == 0).all()
group.close(); comm.close()
"""
    )


def test_a_progress_thread_finishes_what_nobody_waits_for(run):
    run(
        """
comm = chipcomm.init(); group = comm.group(progress_thread=True)
x = np.ones(1_000_000, np.float32); request = group.all_reduce(x, start=True)
deadline = time.monotonic() + 30
while not request.test() and time.monotonic() < deadline: time.sleep(0.01)
assert (x == comm.size).all()
group.close(); comm.close()
"""
    )


def test_smaller_groups(run):
    run(
        PRELUDE
        + """
half = group.split(me % 2, -me)
assert half.members == sorted([r for r in range(n) if r % 2 == me % 2], reverse=True)
x = np.array([me], np.int64); half.all_reduce(x); assert x[0] == sum(half.members)
none = group.split(None if me else 1); assert (none is None) == (me != 0)
if none: none.close()
half.close()
if me in (1, 3):
    pair = comm.group([3, 1]); x = np.array([me]); pair.broadcast(x, 0); assert x[0] == 3; pair.close()
group.close(); comm.close()
""",
        4,
    )


def test_the_launcher_starts_ranks_and_reports_the_one_that_fails(tmp_path):
    import subprocess
    import sys

    script = tmp_path / "script.py"
    script.write_text(
        "import chipcomm, sys, numpy as np\n"
        "with chipcomm.init() as comm, comm.group() as group:\n"
        "    x = np.ones(3); group.all_reduce(x); print(f'{int(x[0])} {sys.argv[1:]}\\n', end='')\n"
        "    if 'fail' in sys.argv and comm.rank == 1: sys.exit(7)\n"
        "    group.barrier()\n"
    )
    launch = [sys.executable, "-m", "chipcomm.launch", "-n", "3", str(script)]
    good = subprocess.run([*launch, "a", "-b"], capture_output=True, text=True, timeout=60)
    assert good.returncode == 0 and good.stdout.count("3 ['a', '-b']") == 3, good
    bad = subprocess.run([*launch, "fail"], capture_output=True, text=True, timeout=60)
    assert bad.returncode in (1, 7) and "chipcomm.launch: rank" in bad.stderr, bad
    refused = subprocess.run([*launch[:4], "65", str(script)], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "-n is 65; a job has 1 to 64 ranks" in refused.stderr
    missing = subprocess.run([*launch[:5], "no-such-script.py"], capture_output=True, text=True, timeout=60)
    assert missing.returncode == 2 and "is not a file; name a script, or a module with -m" in missing.stderr
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    killed = subprocess.run(launch, capture_output=True, text=True, timeout=60)
    assert killed.returncode == 137 and "was ended by signal 9; see what it printed" in killed.stderr, killed
    script.write_text("import sys\nsys.exit(7)\n")
    exits = subprocess.run(launch, capture_output=True, text=True, timeout=60)
    assert exits.returncode == 7 and "exited with status 7; see what it printed" in exits.stderr, exits


def test_doctor_says_that_ranks_meet():
    import subprocess
    import sys

    found = subprocess.run([sys.executable, "-m", "chipcomm.doctor"], capture_output=True, text=True, timeout=90)
    assert found.returncode == 0 and "two processes meet and add up" in found.stdout, found


def test_the_examples_in_the_documentation_run():
    import doctest

    import chipcomm
    import chipcomm.worker

    for module in (chipcomm, chipcomm.errors, chipcomm.tasks, chipcomm.chips, chipcomm.worker):
        found = doctest.testmod(module, extraglobs={"chipcomm": chipcomm})
        assert found.attempted > 0 and found.failed == 0
