"""A script finds its rank, its size and its job, whoever has started it."""

import os
import shutil
import subprocess
import sys
import uuid

import pytest

import chipcomm

SCRIPT = """
import sys, numpy as np, chipcomm
with chipcomm.init() as comm, comm.group() as group:
    ranks = np.zeros((comm.size, 1), np.int64)
    group.all_gather(np.array([comm.rank]), ranks)
    assert ranks[:, 0].tolist() == list(range(comm.size))
    sys.stdout.write(f"job {sys.argv[1]}: rank {comm.rank} of {comm.size}\\n")
"""
#: Variables by which the launchers say what a process is; those of the program that runs the tests do not count.
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMIX_", "PMI_", "PMI2_", "SLURM_", "TORCHELASTIC_", "MPI_", "HYD", "CHIPCOMM_PATH")


def clean(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)} | {"CHIPCOMM_TIMEOUT_S": "60"} | more


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def both_jobs(command: list[str], size: int) -> None:
    """Two jobs at a time, each of which finds its own ranks only."""
    jobs = [
        subprocess.Popen([*command, number], env=clean(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in ("1", "2")
    ]
    for number, job in enumerate(jobs, 1):
        out, err = job.communicate(timeout=120)
        assert job.returncode == 0, out + err
        lines = {line for line in out.splitlines() if line.startswith("job")}
        assert lines == {f"job {number}: rank {rank} of {size}" for rank in range(size)}, out + err


@pytest.mark.parametrize(
    "launcher",
    [
        ["mpirun.openmpi", "--oversubscribe", "--allow-run-as-root", "-n", "3"],
        ["mpirun.mpich", "-n", "3"],
    ],
    ids=["Open MPI", "MPICH"],
)
def test_mpirun(script, launcher):
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"{launcher[0]} is not installed")
    both_jobs([*launcher, sys.executable, script], 3)


def test_our_launcher(script):
    both_jobs([sys.executable, "-m", "chipcomm.launch", "-n", "3", script], 3)


def test_srun_by_its_variables(script):
    """Slurm is not needed: its variables are what a script sees of it."""
    job = str(uuid.uuid4().int % 10**9)
    steps = [(step, rank) for step in range(2) for rank in range(2)]
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(step)],
            env=clean(SLURM_JOB_ID=job, SLURM_STEP_ID=str(step), SLURM_PROCID=str(rank), SLURM_NTASKS="2", SLURM_LOCALID=str(rank)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for step, rank in steps
    ]
    for (step, rank), process in zip(steps, ranks):
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and out == f"job {step}: rank {rank} of 2\n"


def test_a_launcher_that_says_half_is_refused(monkeypatch):
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)
    for variables, text in [
        ({"RANK": "0"}, "a launcher has set only one of rank and size: WORLD_SIZE is missing; set it, or pass rank and size"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK is 'one', and a launcher sets it to a whole number; correct it, or pass rank and size"),
        ({"SLURM_PROCID": "-1", "SLURM_NTASKS": "2"}, "SLURM_PROCID is '-1'"),
    ]:
        with monkeypatch.context() as here:
            for name, value in variables.items():
                here.setenv(name, value)
            with pytest.raises(chipcomm.InvalidError, match=text):
                chipcomm.init()
