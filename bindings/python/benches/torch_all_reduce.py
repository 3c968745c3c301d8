"""all_reduce through torch.distributed: chipcomm beside gloo, in turns, in the same processes.

``MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python -m chipcomm.launch -n 2 torch_all_reduce.py``
"""

import time

import torch
import torch.distributed as dist

import chipcomm.torch

torch.set_num_threads(1)
dist.init_process_group("gloo")
groups = {"gloo": dist.group.WORLD, "chipcomm": dist.new_group(backend="chipcomm")}
window = dist.get_rank() == 0
if window:
    print(f"{dist.get_world_size()} ranks, best of 7 rounds, microseconds")
    print(f"{'bytes':>10} {'gloo':>10} {'chipcomm':>10} {'times':>7}")
for power in range(2, 26):
    tensor = torch.ones((1 << power) // 4)
    calls = max(3, min(200, (1 << 22) >> power))
    best = dict.fromkeys(groups, float("inf"))
    for _ in range(7):
        for name, group in groups.items():
            dist.all_reduce(tensor, group=group)
            start = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(tensor, group=group)
            best[name] = min(best[name], (time.perf_counter() - start) / calls)
        tensor.fill_(1)
    if window:
        ratio = best["gloo"] / best["chipcomm"]
        print(f"{1 << power:>10} {best['gloo'] * 1e6:>10.1f} {best['chipcomm'] * 1e6:>10.1f} {ratio:>7.2f}", flush=True)
dist.barrier()
dist.destroy_process_group()
