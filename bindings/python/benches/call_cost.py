"""What a call from Python costs: an all_reduce in a group of one rank, where the C call itself takes some tens of nanoseconds.

The whole time is printed, so what Python adds is less.
"""

import timeit

import numpy as np

import chipcomm

with chipcomm.init(rank=0, size=1) as comm, comm.group() as group:
    x, call = np.ones(4, np.float32), group.all_reduce
    for name, run in [("all_reduce of 4 float32", lambda: call(x)), ("barrier", group.barrier)]:
        best = min(timeit.repeat(run, number=100_000, repeat=7)) / 100_000
        print(f"{name:<26} {best * 1e9:6.0f} ns a call, limit 1000 ns over C")
