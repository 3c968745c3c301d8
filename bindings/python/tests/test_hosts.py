"""The program of docs/guide-hosts.md, under the launchers that are here."""

import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT
from test_launchers import clean

PROGRAM, PAGE = ROOT / "bindings/python/examples/hosts.py", ROOT / "docs/guide-hosts.md"


def launch(family: str, options: list[str], *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    launcher = f"mpirun.{family}"
    if shutil.which(launcher) is None:
        pytest.skip(f"{launcher} is not installed")
    pytest.importorskip("mpi4py")
    # Where several libraries are installed, mpi4py has to be told.
    env = clean(MPI4PY_MPIABI=family, **env)
    return subprocess.run(
        [launcher, *options, "-n", "2", sys.executable, *words], env=env, capture_output=True, text=True, timeout=120
    )


def is_right(ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 0 and ended.stdout.startswith("2 hosts of 2 chips: right"), ended.stdout + ended.stderr
    assert f"```text\n{ended.stdout}```" in PAGE.read_text(), ended.stdout


OPEN_MPI = ["--oversubscribe", "--allow-run-as-root"]


def test_a_worker_on_each_host_with_open_mpi():
    is_right(launch("openmpi", OPEN_MPI, str(PROGRAM)))


def test_a_worker_on_each_host_with_mpich(tmp_path):
    # Debian's has another name than the one that mpi4py's wheel looks for.
    for library in pathlib.Path("/usr/lib").glob("*/libmpich.so.12"):
        (tmp_path / "libmpi.so.12").symlink_to(library)
    is_right(launch("mpich", [], str(PROGRAM), LD_LIBRARY_PATH=str(tmp_path)))


def test_a_chip_that_fails_on_one_host_ends_the_job(tmp_path):
    program = PROGRAM.read_text()
    fails = program.replace("    out[:] =", "    assert not np.isnan(weights).any(), 'no weights'\n    out[:] =")
    fails = fails.replace("            worker.run(", "            weights[:] = np.nan if hosts.rank == 1 else weights\n            worker.run(")
    (tmp_path / "fails.py").write_text(fails)
    ended = launch("openmpi", OPEN_MPI, "-m", "mpi4py", str(tmp_path / "fails.py"))
    assert ended.returncode != 0 and "AssertionError: no weights" in ended.stderr, ended.stdout + ended.stderr


def test_the_page_shows_the_program_that_runs():
    assert f"```python\n{PROGRAM.read_text()}```" in PAGE.read_text()
