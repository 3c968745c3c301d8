"""The work of coll_perf with torch's gloo: RANKS KIND TYPE OP MODE FROM TO FACTOR WARMUP ITERATIONS COLD_BYTES.

Prints the lines that mpi.c prints. In place only, all_reduce, broadcast and reduce only, hot and dirty only.
"""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

BATCHES = 5
GUESSES = 5


def rank_main(rank, ranks, path, words):
    kind, dtype, op, mode = words[:4]
    begin, end, factor, warmup, given = (int(word) for word in words[4:9])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=ranks)
    types = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "i64": torch.int64}
    ops = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
    calls = {
        "all_reduce": lambda x: dist.all_reduce(x, ops[op]),
        "broadcast": lambda x: dist.broadcast(x, 0),
        "reduce": lambda x: dist.reduce(x, 0, ops[op]),
    }
    if kind not in calls or dtype not in types or op not in ops or mode == "cold":
        sys.exit(3)
    call, dirty, size = calls[kind], mode == "dirty", begin
    while size <= end:
        x = torch.ones(max(size // torch.tensor([], dtype=types[dtype]).element_size(), 1), dtype=types[dtype])
        call(x)
        expected = {"sum": ranks}.get(op, 1) if kind == "all_reduce" else 1
        wrong = int((x != expected).sum()) if kind == "all_reduce" else 0

        def one():
            if dirty:
                x.fill_(1)
            call(x)
            if dirty:
                x.sum()

        for _ in range(warmup):
            one()
        # The least of some tries: one that met a change of turns would leave a batch of two calls.
        least = float("inf")
        for guess in range(GUESSES):
            started = time.perf_counter()
            one()
            took = torch.tensor([time.perf_counter() - started], dtype=torch.float64)
            dist.broadcast(took, 0)
            least = min(least, took.item())
            if least > 2e-3:
                break
        rounds = given or max(2, min(2000, int(2e-3 / least)))
        times, single, alone = [], [], 0.0
        for _ in range(BATCHES):
            dist.barrier()
            started = time.perf_counter()
            for _ in range(rounds):
                before = time.perf_counter()
                one()
                single.append(time.perf_counter() - before)
            took = (time.perf_counter() - started) / rounds
            if dirty:
                started = time.perf_counter()
                for _ in range(rounds):
                    x.fill_(1)
                    x.sum()
                alone = (time.perf_counter() - started) / rounds
            slowest = torch.tensor([took - alone], dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            times.append(slowest.item())
        times.sort()
        single.sort()
        if rank == 0:
            p50, p99 = single[len(single) // 2] - alone, single[len(single) * 99 // 100] - alone
            print(f"{size} in {times[BATCHES // 2] * 1e6:.4f} {p50 * 1e6:.4f} {p99 * 1e6:.4f} {wrong}", flush=True)
        size *= factor
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        count = int(sys.argv[1])
        mp.spawn(rank_main, args=(count, os.path.join(folder, "store"), sys.argv[2:]), nprocs=count)
