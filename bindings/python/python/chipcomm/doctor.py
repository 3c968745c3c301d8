"""Says what this machine and this Python have and lack for chipcomm: ``python -m chipcomm.doctor``."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys


def _ranks_meet() -> str:
    """Two ranks meet and add up; the text of what went wrong, or nothing."""
    program = (
        "import chipcomm, numpy as np\n"
        "with chipcomm.init(timeout=20) as comm, comm.group() as group:\n"
        "    x = np.full(1000, comm.rank + 1, np.float32)\n"
        "    group.all_reduce(x)\n"
        "    assert x[0] == 3\n"
    )
    from .launch import launch

    return "" if launch(2, ["-c", program]) == 0 else "two ranks could not add up; see above"


def main() -> int:
    """Prints one line for each finding. The status is 1 when something is missing that chipcomm needs."""
    bad = 0

    def line(good: bool, what: str, found: str, needed: bool = True) -> None:
        nonlocal bad
        bad += not good and needed
        print(f"{'ok  ' if good else 'FAIL' if needed else 'none'}  {what:<10} {found}")

    line(sys.platform == "linux", "system", platform.platform())
    line(True, "python", sys.version.split()[0])
    for name, needed, use in [("numpy", True, "arrays"), ("torch", False, "chipcomm.torch"), ("pytest", False, "tests")]:
        try:
            module = importlib.import_module(name)
            line(True, name, getattr(module, "__version__", "there"))
        except ImportError as error:
            line(False, name, f"{error}; pip install {name} (for {use})", needed)
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    line(compiler is not None, "c++", compiler or "no compiler; needed to build kernels", needed=False)
    cores = len(os.sched_getaffinity(0))
    line(True, "cores", f"{cores}; more ranks than cores work, and wait longer for each other")
    if not bad:
        problem = _ranks_meet()
        line(not problem, "ranks", problem or "two processes meet and add up")
    native = shutil.which("chipcomm-doctor")
    if native:
        return max(int(bool(bad)), subprocess.run([native], check=False).returncode)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
