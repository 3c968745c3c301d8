"""Programs that use the torch backend, and what goes wrong in them."""

import pathlib
import subprocess
import sys

import pytest
from ranks import BOTH, END, launch


def test_the_program_of_the_guide():
    page = (pathlib.Path(__file__).parents[4] / "docs/guide-python.md").read_text()
    (program,) = [block for block in page.split("```") if block.startswith("python\n") and "chipcomm.torch" in block]
    check = "x = torch.ones(3); dist.all_reduce(x); assert (x == dist.get_world_size()).all() and dist.get_backend() == 'chipcomm'\n"
    launch(program.removeprefix("python\n") + check + END, 2)


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
dist.init_process_group("chipcomm", timeout=datetime.timedelta(seconds=6))
pair = dist.new_group([0, 1])                       # of the default group's backend
def late(what, call):
    try: call()
    except chipcomm.TimedOutError as error: os.write(1, f"{what} {me}: {error}\\n".encode())
if me == 1:
    dist.recv(torch.zeros(1), 0); os._exit(0)
if me == 0:
    late("watched", lambda: dist.monitored_barrier(pair, datetime.timedelta(seconds=1)))
    dist.set_timeout(datetime.timedelta(seconds=1))
    try: dist.set_timeout(datetime.timedelta(seconds=60))
    except chipcomm.InvalidError as error: os.write(1, f"longer 0: {error}\\n".encode())
    late("short", lambda: dist.irecv(torch.zeros(1), 2).wait())
    late("given", lambda: dist.barrier(group=pair, timeout=datetime.timedelta(seconds=1)))
late("whole", lambda: dist.barrier())
if me == 0: time.sleep(10); dist.send(torch.zeros(1), 1)
os._exit(0)
""",
        3,
        expect=None,
    )
    lines = dict(line.split(": ", 1) for line in found.stdout.splitlines() if ": " in line)
    assert "ranks [1]" in lines["watched 0"], found
    assert "6.0 s" in lines["longer 0"], found
    assert all("1.0 s" in lines[name] for name in ("short 0", "given 0", "whole 0")), found
    # The rank that waits to the end learns who is missing.
    assert "rank 1" in lines["whole 2"] or "ranks [1]" in lines["whole 2"], found


def test_torchrun_and_a_group_after_its_end(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import os, torch, torch.distributed as dist, chipcomm.torch
with chipcomm.init() as comm: assert (comm.rank, comm.size) == (int(os.environ["RANK"]), 2); comm.barrier()
dist.init_process_group("chipcomm")
t = torch.ones(3); dist.all_reduce(t); assert t.tolist() == [2, 2, 2]
group = dist.group.WORLD
dist.destroy_process_group()
for call in (lambda: group.allreduce([t]).wait(), lambda: group.barrier().wait(), lambda: group.send([t], 1 - comm.rank)):
    try: call()
    except chipcomm.ClosedError as error: assert "make a new one" in str(error)
    else: assert False
os.write(1, f"rank {comm.rank}\\n".encode())
"""
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert found.returncode == 0 and sorted(found.stdout.splitlines()) == ["rank 0", "rank 1"], found


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
