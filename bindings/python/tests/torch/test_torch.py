"""The torch backend against gloo, in the same processes."""

import os
import socket
import subprocess
import sys
import textwrap
import time

import pytest

HEAD = """
import os, sys, time, datetime
import torch, torch.distributed as dist
import chipcomm, chipcomm.torch
torch.set_num_threads(1)
me, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""
BOTH = """
dist.init_process_group("gloo")
ours = dist.new_group(backend="chipcomm")
"""
END = """
dist.barrier()
dist.destroy_process_group()
print("done", flush=True)
"""


def launch(program: str, count: int, *, expect: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-c", "import sys; from chipcomm.launch import launch; sys.exit(launch(int(sys.argv[1]), ['-c', sys.argv[2]]))"]
    found = subprocess.run(
        [*command, str(count), HEAD + textwrap.dedent(program)],
        env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CHIPCOMM_TIMEOUT_S": "60", **env},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert expect is None or found.returncode == expect, found.stdout + found.stderr
    return found


def test_every_collective_gives_what_gloo_gives():
    launch(
        BOTH
        + """
def same(run):
    results = []
    for group in (None, ours):
        torch.manual_seed(me)
        results.append(run(group))
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b), (a, b)
def ints(*shape, dtype=torch.float32): return torch.randint(1, 9, shape).to(dtype)
def reduced(tensor, op):
    def run(group): t = tensor(); dist.all_reduce(t, op, group=group); return [t]
    return run
for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.float16, torch.bfloat16):
        same(reduced(lambda: ints(33, dtype=dtype), op))
same(reduced(lambda: ints(4, 6).t(), dist.ReduceOp.SUM))                 # not contiguous
def broadcast(group): t = ints(7); dist.broadcast(t, 1, group=group); return [t]
same(broadcast)
def gathered(group): out = [torch.zeros(2, 3) for _ in range(n)]; dist.all_gather(out, ints(2, 3), group=group); return out
same(gathered)
def into(group): out = torch.zeros(n * 4); dist.all_gather_into_tensor(out, ints(4), group=group); return [out]
same(into)
def scattered(group): out = torch.zeros(5); dist.reduce_scatter_tensor(out, ints(5 * n), group=group); return [out]
same(scattered)
def lists(group): out = torch.zeros(5); dist.reduce_scatter(out, [ints(5) for _ in range(n)], group=group); return [out]
same(lists)
def reduce(group): t = ints(6); dist.reduce(t, 0, group=group); return [t] if me == 0 else []
same(reduce)
def gather(group):
    out = [torch.zeros(3) for _ in range(n)] if me == 2 else None
    dist.gather(ints(3), out, dst=2, group=group); return out or []
same(gather)
def scatter(group):
    t = torch.zeros(3); dist.scatter(t, [ints(3) for _ in range(n)] if me == 1 else None, src=1, group=group); return [t]
same(scatter)
def single(group): out = torch.zeros(2 * n); dist.all_to_all_single(out, ints(2 * n), group=group); return [out]
same(single)
def split(group):
    out = torch.zeros(sum(r + 1 for r in range(n)), 2)
    dist.all_to_all_single(out, ints(n * (me + 1), 2), [r + 1 for r in range(n)], [me + 1] * n, group=group); return [out]
same(split)
out = [torch.zeros(2) for _ in range(n)]; dist.all_to_all(out, [torch.full((2,), float(10 * me + r)) for r in range(n)], group=ours)
assert [int(o[0]) for o in out] == [10 * r + me for r in range(n)]
t = torch.tensor([me == 0, True]); dist.all_reduce(t, group=ours); assert t.tolist() == [True, True]
t = ints(3).to(torch.complex64); dist.all_reduce(t, group=ours)
t = torch.full((4,), float(me)); dist.all_reduce(t, dist.ReduceOp.AVG, group=ours); assert (t == (n - 1) / 2).all()
objects = [None] * n; dist.all_gather_object(objects, {"rank": me}, group=ours); assert objects[2] == {"rank": 2}
some = [{"from": 0} if me == 0 else None]; dist.broadcast_object_list(some, 0, group=ours); assert some == [{"from": 0}]
works = [dist.all_reduce(torch.ones(1000), group=ours, async_op=True) for _ in range(20)]
for work in works: assert work.wait() and work.is_completed()
work = dist.all_reduce(torch.ones(3), group=ours, async_op=True); assert work.get_future().wait()[0].tolist() == [3.0] * 3
chipcomm.torch.monitored_barrier(ours)
few = dist.new_group([0, 2], backend="chipcomm")
if me != 1: t = torch.ones(1); dist.all_reduce(t, group=few); assert t.item() == 2
w = chipcomm.torch.empty(1000, dtype=torch.float64, group=ours); w += me; dist.all_reduce(w, group=ours); assert (w == 3).all()
"""
        + END,
        3,
    )


def test_messages_cross_and_come_from_anybody():
    launch(
        """
dist.init_process_group("chipcomm")
for count in (1, 1_000_000):                       # both send first
    out, back = torch.full((count,), float(me)), torch.zeros(count)
    works = [dist.isend(out, (me + 1) % n), dist.irecv(back, (me - 1) % n)]
    for work in works: work.wait()
    assert (back == (me - 1) % n).all()
if me: dist.send(torch.tensor([me, 7]), 0, tag=me % 2)
else:
    seen = set()
    for tag in (1, 0) if n == 3 else (1,):
        t = torch.zeros(2, dtype=torch.int64); source = dist.recv(t, tag=tag); assert source == int(t[0]); seen.add(source)
    assert seen == set(range(1, n))
ops = [dist.P2POp(dist.isend, torch.full((3,), float(me)), (me + 1) % n), dist.P2POp(dist.irecv, back := torch.zeros(3), (me - 1) % n)]
for work in dist.batch_isend_irecv(ops): work.wait()
assert (back == (me - 1) % n).all()
"""
        + END,
        3,
    )


@pytest.mark.parametrize("count", [2, 4])
def test_ddp_learns_what_it_learns_with_gloo(count):
    launch(
        BOTH
        + """
from torch.nn.parallel import DistributedDataParallel as DDP
def train(group):
    torch.manual_seed(0)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)), process_group=group, bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    data = torch.Generator().manual_seed(me)
    for _ in range(15):
        x = torch.randn(16, 32, generator=data)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])
with_gloo, with_ours = train(None), train(ours)
# Bit for bit on two ranks; on more, gloo adds in another order.
assert torch.allclose(with_gloo, with_ours, rtol=1e-4, atol=1e-5)
assert n > 2 or torch.equal(with_gloo, with_ours)
everybody = [torch.zeros_like(with_ours) for _ in range(n)]
dist.all_gather(everybody, with_ours)
assert all(torch.equal(one, with_ours) for one in everybody)
"""
        + END,
        count,
    )


def test_fsdp_learns():
    launch(
        """
dist.init_process_group("chipcomm")
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
mesh = init_device_mesh("cpu", (n,))
for layer in model: fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.Generator().manual_seed(me); losses = []
for _ in range(30):
    x = torch.randn(16, 16, generator=data); loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step(); losses.append(loss.item())
assert losses[-1] < losses[0] / 2, losses
"""
        + END,
        2,
    )


def test_wrong_calls_are_refused_and_the_group_goes_on():
    launch(
        """
dist.init_process_group("chipcomm")
def refused(call, text):
    try: call()
    except (chipcomm.InvalidError, ValueError, RuntimeError, TypeError, MemoryError) as error: assert text in str(error), error
    else: assert False, text
refused(lambda: dist.all_reduce(torch.ones(3).to_sparse()), "dense CPU")
refused(lambda: dist.all_reduce(torch.ones(3, device="meta")), "CPU")
refused(lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.AVG), "floating point")
refused(lambda: dist.all_gather_into_tensor(torch.zeros(5), torch.zeros(3)), "takes 6")
refused(lambda: dist.all_to_all_single(torch.zeros(5), torch.zeros(5)), "split")
refused(lambda: chipcomm.torch.empty(1 << 40), "pool")
t = torch.ones(3); dist.all_reduce(t); assert (t == n).all()
"""
        + END,
        2,
    )


def test_a_killed_rank_is_an_exception_in_the_others():
    found = launch(
        """
dist.init_process_group("chipcomm")
t = torch.ones(3); dist.all_reduce(t)
if me == 1: time.sleep(0.5); os.kill(os.getpid(), 9)
try: dist.all_reduce(t)
except chipcomm.PeerDiedError as error: print("seen", error, flush=True)
""",
        3,
        expect=None,
    )
    assert found.stdout.count("seen") == 2 and "rank 1" in found.stdout, found


def test_a_missing_rank_is_a_timeout_that_names_it():
    found = launch(
        """
dist.init_process_group("chipcomm", timeout=datetime.timedelta(seconds=3))
if me == 1: time.sleep(6); os._exit(0)
try: dist.barrier()
except chipcomm.TimedOutError as error: print("late", error, flush=True)
""",
        2,
        expect=None,
    )
    assert "late" in found.stdout and "1" in found.stdout, found


def test_ranks_on_different_hosts_are_refused():
    found = launch(
        """
chipcomm.torch._host = lambda: f"host{me} boot{me}"
dist.init_process_group("chipcomm", timeout=datetime.timedelta(seconds=5))
""",
        2,
        expect=None,
    )
    assert "rank 1 is on host1 and rank 0 on host0" in found.stderr, found
    assert "gloo" in found.stderr
