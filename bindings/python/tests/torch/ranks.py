"""Runs programs with torch on several ranks, each a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap

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
