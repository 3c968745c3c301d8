"""Every call that torch defines for a group, against what gloo gives in the same processes, or what must come out."""

import pytest
import torch.distributed as dist
from ranks import BOTH, END, launch

import chipcomm.torch

#: Each is a function of the program below, called on three ranks.
CALLS = """
def ints(*shape, dtype=torch.float32): return torch.randint(1, 9, shape).to(dtype)
def same(run):
    results = []
    for group in (None, ours):
        torch.manual_seed(me)
        results.append(run(group))
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b), (a, b)

def allreduce():
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.float16, torch.bfloat16):
            def run(group): t = ints(33, dtype=dtype); dist.all_reduce(t, op, group=group); return [t]
            same(run)
    def transposed(group): t = ints(4, 6).t(); dist.all_reduce(t, group=group); return [t]
    same(transposed)
    t = torch.tensor([me == 0, True]); dist.all_reduce(t, group=ours); assert t.tolist() == [True, True]
    t = ints(3).to(torch.complex64); dist.all_reduce(t, group=ours)
    t = torch.full((4,), float(me)); dist.all_reduce(t, dist.ReduceOp.AVG, group=ours); assert (t == (n - 1) / 2).all()
    t = torch.tensor([1 << me]); dist.all_reduce(t, dist.ReduceOp.BOR, group=ours); assert t.item() == 7
def allreduce_coalesced():
    ts = [torch.full((3,), float(me)), torch.ones(5)]
    dist.all_reduce_coalesced(ts, group=ours); assert ts[0].tolist() == [3.0] * 3 and ts[1].tolist() == [3.0] * 5
    with dist._coalescing_manager(group=ours, async_ops=True) as works:
        ts = [torch.ones(3), torch.ones(2)]
        for t in ts: dist.all_reduce(t, group=ours)
    works.wait(); assert all((t == 3).all() for t in ts)
    with dist._coalescing_manager(group=ours, device=torch.device("cpu")):
        for t in ts: dist.all_reduce(t, group=ours)
    assert all((t == 9).all() for t in ts)
def broadcast():
    def run(group): t = ints(7); dist.broadcast(t, 1, group=group); return [t]
    same(run)
def reduce():
    def run(group): t = ints(6); dist.reduce(t, 0, group=group); return [t] if me == 0 else []
    same(run)
def allgather():
    def run(group): out = [torch.zeros(2, 3) for _ in range(n)]; dist.all_gather(out, ints(2, 3), group=group); return out
    same(run)
def allgather_coalesced():
    outs = [[torch.zeros(2), torch.zeros(3)] for _ in range(n)]
    dist.all_gather_coalesced(outs, [torch.full((2,), float(me)), torch.full((3,), 10.0 * me)], group=ours)
    assert all((outs[r][0] == r).all() and (outs[r][1] == 10 * r).all() for r in range(n))
def _allgather_base():
    def run(group): out = torch.zeros(n * 4); dist.all_gather_into_tensor(out, ints(4), group=group); return [out]
    same(run)
def allgather_into_tensor_coalesced():
    with dist._coalescing_manager(group=ours):
        outs = [torch.zeros(n * 2), torch.zeros(n)]
        for out in outs: dist.all_gather_into_tensor(out, torch.full((out.numel() // n,), float(me)), group=ours)
    assert outs[0].tolist() == [0, 0, 1, 1, 2, 2] and outs[1].tolist() == [0, 1, 2]
def _reduce_scatter_base():
    def run(group): out = torch.zeros(5); dist.reduce_scatter_tensor(out, ints(5 * n), group=group); return [out]
    same(run)
def reduce_scatter():
    def run(group): out = torch.zeros(5); dist.reduce_scatter(out, [ints(5) for _ in range(n)], group=group); return [out]
    same(run)
def reduce_scatter_tensor_coalesced():
    with dist._coalescing_manager(group=ours):
        outs = [torch.zeros(2), torch.zeros(1)]
        for out in outs: dist.reduce_scatter_tensor(out, torch.arange(float(n * out.numel())), group=ours)
    assert outs[0].tolist() == [n * 2 * me, n * (2 * me + 1)] and outs[1].tolist() == [n * me]
def alltoall_base():
    def run(group): out = torch.zeros(2 * n); dist.all_to_all_single(out, ints(2 * n), group=group); return [out]
    same(run)
    def split(group):
        out = torch.zeros(sum(r + 1 for r in range(n)), 2)
        dist.all_to_all_single(out, ints(n * (me + 1), 2), [r + 1 for r in range(n)], [me + 1] * n, group=group); return [out]
    same(split)
def alltoall():
    out = [torch.zeros(2) for _ in range(n)]
    dist.all_to_all(out, [torch.full((2,), float(10 * me + r)) for r in range(n)], group=ours)
    assert [int(o[0]) for o in out] == [10 * r + me for r in range(n)]
def gather():
    def run(group):
        out = [torch.zeros(3) for _ in range(n)] if me == 2 else None
        dist.gather(ints(3), out, dst=2, group=group); return out or []
    same(run)
def gather_single():
    if not hasattr(dist, "gather_single"): return
    out = torch.zeros(2 * n) if me == 1 else None
    dist.gather_single(torch.full((2,), float(me)), out, group_dst=1, group=ours)
    assert me != 1 or out.tolist() == [0, 0, 1, 1, 2, 2]
def scatter():
    def run(group):
        t = torch.zeros(3); dist.scatter(t, [ints(3) for _ in range(n)] if me == 1 else None, src=1, group=group); return [t]
    same(run)
def barrier():
    dist.barrier(group=ours); dist.barrier(group=ours, async_op=True).wait()
def monitored_barrier():
    chipcomm.torch.monitored_barrier(ours)
    ours.monitored_barrier(datetime.timedelta(seconds=20), wait_all_ranks=True)
def send():
    works = [dist.isend(torch.full((3,), float(me)), (me + 1) % n, group=ours), dist.irecv(back := torch.zeros(3), (me - 1) % n, group=ours)]
    for work in works: work.wait()
    assert (back == (me - 1) % n).all()
def recv():
    # A future of a message that comes later does not wait.
    work = dist.irecv(t := torch.zeros(2, 2).t(), (me - 1) % n, group=ours, tag=3); future = work.get_future()
    dist.send(torch.full((2, 2), float(me)), (me + 1) % n, group=ours, tag=3)
    future.wait(); assert (t == (me - 1) % n).all() and work.is_completed() and work.get_future().done()
def recv_anysource():
    if me: dist.send(torch.tensor([me]), 0, group=ours)
    else: assert sorted(dist.recv(torch.zeros(1, dtype=torch.int64), group=ours) for _ in range(n - 1)) == [1, 2]
def objects():
    every = [None] * n; dist.all_gather_object(every, {"rank": me}, group=ours); assert every[2] == {"rank": 2}
    some = [{"from": 0} if me == 0 else None]; dist.broadcast_object_list(some, 0, group=ours); assert some == [{"from": 0}]
    out = [None] * n if me == 0 else None; dist.gather_object(me, out, 0, group=ours); assert me or out == [0, 1, 2]
    mine = [None]; dist.scatter_object_list(mine, ["a", "b", "c"] if me == 1 else None, 1, group=ours); assert mine == ["abc"[me]]
    if me == 0: dist.send_object_list(["x"], 1, group=ours)
    if me == 1: got = [None]; dist.recv_object_list(got, 0, group=ours); assert got == ["x"]
def futures():
    works = [dist.all_reduce(torch.ones(1000), group=ours, async_op=True) for _ in range(20)]
    for work in works: assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    work = dist.all_reduce(torch.ones(3), group=ours, async_op=True); assert work.get_future().wait()[0].tolist() == [3.0] * 3
    then = dist.all_reduce(torch.ones(1), group=ours, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    assert then.wait().item() == 6 and work.result()[0][0] == 3
def groups():
    few = dist.new_group([0, 2], backend="chipcomm")
    if me != 1:
        t = torch.ones(1); dist.all_reduce(t, group=few); assert t.item() == 2
        t = torch.full((1,), float(me)); dist.broadcast(t, 2, group=few); assert t.item() == 2
    alone, _ = dist.new_subgroups_by_enumeration([[r] for r in range(n)], backend="chipcomm")
    t = torch.full((2,), 5.0); dist.all_reduce(t, group=alone); assert t.tolist() == [5, 5]
    out = [torch.zeros(2)]; dist.all_gather(out, t, group=alone); assert out[0].tolist() == [5, 5]
def empty():
    w = chipcomm.torch.empty(1000, dtype=torch.float64, group=ours); w += me; dist.all_reduce(w, group=ours); assert (w == 3).all()
    assert chipcomm.torch.empty(2, 3, group=ours).shape == (2, 3) and chipcomm.torch.empty(0, group=ours).numel() == 0
def functional():
    import torch.distributed._functional_collectives as f
    assert f.all_reduce(torch.ones(2), "sum", ours).tolist() == [3, 3]
    assert f.all_gather_tensor(torch.full((1,), float(me)), 0, ours).tolist() == [0, 1, 2]
    assert f.reduce_scatter_tensor(torch.ones(3), "sum", 0, ours).tolist() == [3]
"""
NAMES = [line[4:].split("(")[0] for line in CALLS.splitlines() if line.startswith("def ") and line.endswith("():")]

#: What a group is asked besides calls: its names, hooks, and what a backend may have and this one has not.
OTHERS = {
    "_add_ephemeral_timeout", "_backend_id", "_enable_collectives_timing", "_get_backend_name",
    "_get_sequence_number_for_group", "_has_hooks", "_id", "_pybind11_conduit_v1_", "_register_backend",
    "_register_on_completion_hook", "_set_default_backend", "_set_group_desc", "_set_group_name",
    "_wait_for_pending_works", "bound_device_id", "boxed", "get_backend", "get_group_store",
    "get_reconfigure_handle", "group_desc", "merge_remote_group", "new_window", "reconfigure",
    "register_abort_hook", "register_post_hook", "register_pre_hook", "split_group", "supports_abort_hooks",
    "supports_completion_hooks", "supports_reconfigure", "supports_window", "unbox", "unregister_abort_hook",
    "unregister_post_hook", "unregister_pre_hook", "use_pg_for_symm_mem_rendezvous",
}  # fmt: skip


@pytest.fixture(scope="module")
def outcome():
    """What every call gave, on three ranks that make all of them."""
    body = "".join(
        f"\ntry: {name}(); os.write(1, b'ok {name}\\n')"
        f"\nexcept Exception:\n    import traceback; print('bad {name}', traceback.format_exc(), flush=True); os._exit(1)"
        for name in NAMES
    )
    return launch(BOTH + CALLS + body + END, 3, expect=None)


@pytest.mark.parametrize("name", NAMES)
def test_the_call_gives_what_it_must(outcome, name):
    assert outcome.stdout.count(f"ok {name}\n") == 3, outcome.stdout[-4000:] + outcome.stderr[-4000:]


def test_a_program_of_all_calls_ends(outcome):
    assert outcome.returncode == 0, outcome.stderr[-4000:]


def test_every_call_of_a_group_of_this_torch_is_here():
    ours = chipcomm.torch.ProcessGroupChipcomm
    enums = {name for name in vars(dist.ProcessGroup) if name.isupper() or name == "BackendType"}
    wanted = {name for name in vars(dist.ProcessGroup) if not name.startswith("__")} - OTHERS - enums
    assert {name for name in wanted if name not in vars(ours)} == set()
