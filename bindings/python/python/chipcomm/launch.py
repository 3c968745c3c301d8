"""Starts the ranks of a job on this host: ``python -m chipcomm.launch -n 4 script.py arguments…``.

Every rank has ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and ``CHIPCOMM_PATH`` in its environment. When one fails the others are ended,
and the command ends with its status. Ctrl-C reaches all ranks, and none outlives the launcher.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time

#: How long ranks have to end after SIGTERM before they are killed, in seconds.
_GRACE = 5.0


def _die_with_parent(parent: int) -> None:
    """In the child, before the program: SIGKILL when the launcher dies."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def launch(count: int, command: list[str]) -> int:
    """Runs ``command`` with this Python in ``count`` processes, and returns the status of the first that failed, or 0."""
    path = os.path.join(tempfile.gettempdir(), f"chipcomm-{os.getuid()}-{os.getpid()}-{os.urandom(4).hex()}")
    me = os.getpid()
    ranks: list[subprocess.Popen[bytes]] = []

    def end(how: int) -> None:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(how)

    def asked(number: int, _frame: object) -> None:
        end(signal.SIGTERM)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, asked)
    status = 0
    try:
        for rank in range(count):
            env = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(count),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(count),
                "CHIPCOMM_PATH": path,
            }
            ranks.append(
                subprocess.Popen([sys.executable, *command], env=env, preexec_fn=lambda: _die_with_parent(me))
            )
        waiting = dict(enumerate(ranks))
        while waiting and status == 0:
            for number, rank in list(waiting.items()):
                code = rank.poll()
                if code is None:
                    continue
                del waiting[number]
                if code != 0:
                    how = f"was ended by signal {-code}" if code < 0 else f"exited with status {code}"
                    print(f"chipcomm.launch: rank {number} (pid {rank.pid}) {how}; see what it printed", file=sys.stderr)
                    status = 128 - code if code < 0 else code
                    break
            else:
                time.sleep(0.01)
        if waiting:
            # The others learn from each other what happened; give them a moment to say it.
            _wait(ranks, 1.0)
    except KeyboardInterrupt:
        # The terminal has sent the same signal to the ranks.
        status = 128 + signal.SIGINT
        _wait(ranks, _GRACE)
    finally:
        end(signal.SIGTERM)
        _wait(ranks, _GRACE)
        end(signal.SIGKILL)
        for rank in ranks:
            rank.wait()
    return status


def _wait(ranks: list[subprocess.Popen[bytes]], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(rank.poll() is None for rank in ranks):
        time.sleep(0.01)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m chipcomm.launch", description="Starts the ranks of a job on this host.")
    parser.add_argument("-n", "--ranks", type=int, required=True, help="how many processes, 1 to 64")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script", help="what each of them runs")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on to it")
    args = parser.parse_args(arguments)
    if not 1 <= args.ranks <= 64:
        parser.error(f"-n is {args.ranks}; a job has 1 to 64 ranks")
    if not args.module and not os.path.isfile(args.script):
        parser.error(f"{args.script} is not a file; name a script, or a module with -m")
    command = ["-m", args.script] if args.module else [args.script]
    return launch(args.ranks, [*command, *args.arguments])


if __name__ == "__main__":
    sys.exit(main())
