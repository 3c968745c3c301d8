"""The sum of numpy arrays on every rank: ``python -m chipcomm.launch -n 4 all_reduce.py``."""

import numpy as np

import chipcomm

with chipcomm.init() as comm, comm.group() as group:
    x = np.full(1_000_000, comm.rank + 1, np.float32)
    group.all_reduce(x)
    expected = comm.size * (comm.size + 1) // 2
    assert (x == expected).all()

    # In the window: peers read it where it stands, and nothing is copied.
    y = group.empty(1000, np.float32)
    y[:] = comm.rank
    group.all_reduce(y, "max")
    assert (y == comm.size - 1).all()
    print(f"rank {comm.rank} of {comm.size}: the sum is {x[0]:.0f}, the largest rank {y[0]:.0f}")
