"""The code of docs/guide-python.md, as a reader would copy it."""

import builtins
import re
import subprocess
import sys

from conftest import ROOT
from test_launchers import clean

import chipcomm

PAGE = (ROOT / "docs/guide-python.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def block(word: str) -> str:
    """The Python block that has this word."""
    (found,) = [text for text in blocks("python") if word in text]
    return found


def succeed(command: list[str], folder) -> None:
    ended = subprocess.run(command, cwd=folder, env=clean(), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_ranks_under_the_launcher_of_the_page(tmp_path):
    check = "\nassert (x == sum(range(comm.size))).all() and (parts == x).all() and comm.size == 4\n"
    (tmp_path / "script.py").write_text(block("chipcomm.init") + check)
    (command,) = [line.split() for text in blocks("sh") for line in text.splitlines() if "script.py" in line]
    assert command[0] == "python"
    succeed([sys.executable, *command[1:]], tmp_path)


def test_a_worker_with_a_function_and_a_kernel(tmp_path, scale):
    (tmp_path / "scale.so").symlink_to(scale)
    (tmp_path / "script.py").write_text(block("chipcomm.Worker"))
    succeed([sys.executable, "script.py"], tmp_path)


def test_every_block_is_run():
    """The third is run by tests/torch/test_torch.py."""
    assert len(blocks("python")) == 3 and block("chipcomm.torch")


def test_the_names_of_the_page_exist():
    def names(before: str, after: str) -> list[str]:
        return re.findall(r"`(\w+)`", PAGE[PAGE.index(before) : PAGE.index(after)])

    calls = names("A group has", "Where ranks have different counts")
    assert len(calls) > 10 and all(hasattr(chipcomm.Group, name) for name in calls), calls
    errors = [name for name in names("its class says", "A rank that dies") if name.endswith("Error")]
    assert len(errors) > 4 and all(hasattr(chipcomm.errors, name) or hasattr(builtins, name) for name in errors), errors
