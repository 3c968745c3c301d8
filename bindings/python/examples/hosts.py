"""Training on several hosts: a Worker for the chips of each, MPI between them: ``mpirun -n 2 python hosts.py``."""

import numpy as np

import chipcomm
from chipcomm import TaskArgs

CHIPS, SAMPLES, WIDTH, STEPS = 2, 64, 4, 60


def data_of(host, chip):
    """The samples of a chip: different ones on each chip of each host."""
    random = np.random.default_rng([host, chip])
    samples = random.uniform(-1, 1, (SAMPLES, WIDTH)).astype(np.float32)
    return samples, samples.sum(axis=1) + random.normal(0, 0.1, SAMPLES).astype(np.float32)


def gradient(task):
    """Runs in a chip's process: the gradient of its samples, summed over the chips of this host."""
    samples, targets, weights, out = task.tensors
    out[:] = samples.T @ (samples @ weights - targets)
    task.group.all_reduce(out)


def main() -> None:
    chips = range(CHIPS)  # devices of this host
    with chipcomm.Worker(device_ids=chips) as worker:
        program = worker.register(gradient)
        worker.init()  # forks a process for each chip: before MPI, and before threads

        from mpi4py import MPI  # initialises MPI

        hosts = MPI.COMM_WORLD
        # Zeros, in memory that the chips and MPI both see.
        samples, targets = [worker.empty((SAMPLES, WIDTH)) for _ in chips], [worker.empty(SAMPLES) for _ in chips]
        weights, sums = worker.empty(WIDTH), [worker.empty(WIDTH) for _ in chips]
        for chip in chips:
            samples[chip][:], targets[chip][:] = data_of(hosts.rank, chip)

        def step(orch):
            orch.collectives(chips)
            inputs = [TaskArgs().add_input(samples[chip]).add_input(targets[chip]).add_input(weights) for chip in chips]
            tasks = [args.add_output(sums[chip]) for chip, args in zip(chips, inputs)]
            orch.submit_next_level_group(program, tasks, workers=chips)

        for _ in range(STEPS):
            worker.run(step)  # every chip has the sum of this host's chips
            hosts.Allreduce(MPI.IN_PLACE, sums[0])  # and sums[0] now that of all hosts
            weights -= sums[0] / (hosts.size * CHIPS * SAMPLES)

        # What one process finds with the samples of all.
        everything = [data_of(host, chip) for host in range(hosts.size) for chip in chips]
        matrix, vector = (np.concatenate(part) for part in zip(*everything))
        expected = np.linalg.lstsq(matrix, vector, rcond=None)[0]
        assert np.allclose(weights, expected, atol=1e-4), f"{weights}, and not {expected}"
        assert len(set(hosts.allgather(weights.tobytes()))) == 1, "the hosts have different weights"
        if hosts.rank == 0:
            print(f"{hosts.size} hosts of {CHIPS} chips: right, and the same on each")


if __name__ == "__main__":
    main()
