"""Runs functions of a test on several ranks, each a process of its own."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import uuid
from dataclasses import dataclass

import pytest

# A shell starts what it runs in the background with Ctrl-C ignored, and processes inherit that. Tests send it to their own.
signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass
class Ended:
    """How a rank ended."""

    status: int
    out: str
    err: str


class Ranks:
    """Processes that run a program, each as one rank."""

    def __init__(self, program: str, count: int, env: dict[str, str]):
        path = f"/tmp/chipcomm-test-{uuid.uuid4().hex}"
        head = "import chipcomm, os, sys, time\nimport numpy as np\n"
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", head + textwrap.dedent(program)],
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(count),
                    "CHIPCOMM_PATH": path,
                    "CHIPCOMM_TIMEOUT_S": "60",
                    **env,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]

    def ended(self) -> list[Ended]:
        """Waits for all of them."""
        found = []
        for process in self.processes:
            try:
                out, err = process.communicate(timeout=90)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                err += "\n(killed by the test: it did not end)"
            found.append(Ended(process.returncode, out, err))
        return found

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def ranks():
    """Starts ranks; what a test leaves is killed."""
    started: list[Ranks] = []

    def start(program: str, count: int = 2, **env: str) -> Ranks:
        started.append(Ranks(program, count, env))
        return started[-1]

    yield start
    for job in started:
        job.kill()


@pytest.fixture
def run(ranks):
    """Runs a program on ranks, all of which must succeed, and returns what each printed."""

    def go(program: str, count: int = 2, **env: str) -> list[str]:
        ended = ranks(program, count, **env).ended()
        assert all(rank.status == 0 for rank in ended), "\n".join(f"{rank.status} {rank.out} {rank.err}" for rank in ended)
        return [rank.out for rank in ended]

    return go


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "chipcomm" in name}


@pytest.fixture(autouse=True)
def nothing_left():
    """No test leaves shared memory or a file at its path."""
    before = shared_memory()
    yield
    assert shared_memory() <= before
    assert not [name for name in os.listdir("/tmp") if name.startswith("chipcomm-test-")]


ROOT = pathlib.Path(__file__).parents[3]


def children() -> set[str]:
    return set(pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture
def no_process_left():
    """No test leaves a process."""
    before = children()
    yield
    assert children() <= before


@pytest.fixture(scope="session")
def scale(tmp_path_factory):
    """A kernel that multiplies."""
    kernel = tmp_path_factory.mktemp("kernels") / "scale.so"
    source, headers = ROOT / "examples/kernels/scale.cpp", ROOT / "comm-context/include"
    subprocess.run(
        ["c++", "-std=c++17", "-O1", "-fPIC", "-shared", f"-I{headers}", str(source), "-o", str(kernel)], check=True
    )
    return kernel
