"""Communication between accelerator chips: collectives, windows and Workers.

Every process is one *rank*. ``python -m chipcomm.launch -n 4 script.py`` starts four of them, and so do torchrun, mpirun and srun.
In each, `init` joins the others and returns a `Communicator`; its `Communicator.group` makes the collective calls.

>>> import chipcomm, numpy as np
>>> comm = chipcomm.init(rank=0, size=1)        # under a launcher: chipcomm.init()
>>> group = comm.group()
>>> x = np.arange(4, dtype=np.float32)
>>> group.all_reduce(x, "sum")                  # in place, on every rank
>>> y = group.empty(4, np.float32)              # in the window: peers read it where it stands
>>> y[:] = x
>>> group.all_reduce(y, "max")
>>> print(y)
[0. 1. 2. 3.]
>>> group.close(); comm.close()
"""

from __future__ import annotations

import atexit as _atexit
import os as _os
import tempfile as _tempfile
import weakref as _weakref

try:
    import numpy as _numpy  # noqa: F401
except ImportError as _missing:
    raise ImportError("chipcomm works on numpy arrays; install numpy: pip install numpy") from _missing

from . import errors
from ._native import Communicator, Group, Memory, Request, __version__
from .errors import (
    AbortedError,
    ClosedError,
    Error,
    ExitedError,
    InternalError,
    InvalidError,
    KilledError,
    LoadError,
    MismatchError,
    OutOfMemoryError,
    PanicError,
    PeerDiedError,
    PeerFailedError,
    PeerLeftError,
    ProtocolError,
    SystemCallError,
    TaskError,
    TimedOutError,
    VendorError,
)
from .chips import (
    ChipBootstrapConfig,
    ChipBootstrapResult,
    ChipBufferSpec,
    ChipCommBootstrapConfig,
    ChipContext,
    ChipWorker,
    CommBufferSpec,
    HostBufferStaging,
)
from .tasks import TaskArgs, Tensor, TensorArgType, scalar_to_uint64
from .worker import Domain, Orchestrator, Program, RunHandle, Worker

#: Rank and size as launchers give them, in the order in which they are tried: ours and torchrun's, Open MPI's, PMI's, Slurm's. With each
#: what names its job, where it has such a thing: all ranks see the same values, and other jobs others.
_LAUNCHERS = (
    (
        ("RANK", "WORLD_SIZE"),
        ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    ),
    (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")),
    (("PMI_RANK", "PMI_SIZE"), ("PMI_JOBID",)),
    (("SLURM_PROCID", "SLURM_NTASKS"), ("SLURM_JOB_ID", "SLURM_STEP_ID")),
)

_open: _weakref.WeakSet[Communicator] = _weakref.WeakSet()


def _number(name: str) -> int:
    text = _os.environ.get(name)
    if text is None:
        raise InvalidError(f"a launcher has set only one of rank and size: {name} is missing; set it, or pass rank and size")
    if not (text.isascii() and text.isdigit()):
        raise InvalidError(f"{name} is {text!r}, and a launcher sets it to a whole number; correct it, or pass rank and size")
    return int(text)


def _launched() -> tuple[int, int, tuple[str, ...]] | None:
    """Rank, size, and the names of the variables that name the job."""
    for (rank, size), job in _LAUNCHERS:
        if rank in _os.environ or size in _os.environ:
            return _number(rank), _number(size), job
    return None


def _rendezvous_path(names: tuple[str, ...]) -> str:
    """A path that all ranks of this job know, and no other job has."""
    path = _os.environ.get("CHIPCOMM_PATH")
    if path:
        return path
    values = [_os.environ.get(name, "") for name in names]
    # Without a name: ranks of one launcher have the same parent.
    values = values if any(values) else ["parent", str(_os.getppid())]
    job = "-".join("".join(c if c.isalnum() or c in "._" else "_" for c in value) for value in values)
    return _os.path.join(_tempfile.gettempdir(), f"chipcomm-{_os.getuid()}-{job}")


def init(
    path: str | _os.PathLike[str] | None = None,
    rank: int | None = None,
    size: int | None = None,
    timeout: float | None = None,
) -> Communicator:
    """Joins the other ranks and returns this one's `Communicator`.

    Rank and size come from the launcher unless they are given, and so does ``path``, which names the place where the ranks of one job
    meet: nothing is created there. ``timeout`` is in seconds, for this call and all later ones; without it, ``CHIPCOMM_TIMEOUT_S`` or
    120. The ranks are processes of one host and one user.

    >>> with chipcomm.init(rank=0, size=1) as comm:
    ...     print(comm)
    <chipcomm.Communicator: rank 0 of 1>
    """
    if (rank is None) != (size is None):
        raise InvalidError("give both rank and size, or neither and let a launcher set them")
    if rank is None or size is None:
        launched = _launched()
        if launched is None:
            raise InvalidError(
                "no launcher has set rank and size; run `python -m chipcomm.launch -n 4 script.py`, "
                "torchrun, mpirun or srun, or pass rank and size"
            )
        rank, size, job = launched
        if path is None:
            path = _rendezvous_path(job)
    elif path is None:
        if size == 1:
            path = _os.path.join(_tempfile.gettempdir(), f"chipcomm-alone-{_os.getpid()}-{_os.urandom(4).hex()}")
        else:
            path = _os.environ.get("CHIPCOMM_PATH")
    if path is None and not 0 <= rank < size:
        # The rank is refused below; there is no need for a path.
        path = _tempfile.gettempdir()
    if path is None:
        raise InvalidError("give a path that all ranks know, such as /tmp/my-job, or set CHIPCOMM_PATH")
    if not 0 <= rank < 2**32 or not 0 < size < 2**32:
        raise InvalidError(f"rank is {rank} and size is {size}; a rank is a number from 0 below the size")
    comm = Communicator(_os.fspath(path), rank, size, timeout)
    _open.add(comm)
    return comm


@_atexit.register
def _leave() -> None:
    """Peers that still wait learn that this rank has left, rather than that it died."""
    for comm in list(_open):
        try:
            comm.close()
        except Error:
            pass


__all__ = [
    "AbortedError",
    "ChipBootstrapConfig",
    "ChipBootstrapResult",
    "ChipBufferSpec",
    "ChipCommBootstrapConfig",
    "ChipContext",
    "ChipWorker",
    "ClosedError",
    "CommBufferSpec",
    "Communicator",
    "Domain",
    "Error",
    "ExitedError",
    "Group",
    "HostBufferStaging",
    "InternalError",
    "InvalidError",
    "KilledError",
    "LoadError",
    "Memory",
    "MismatchError",
    "Orchestrator",
    "OutOfMemoryError",
    "PanicError",
    "PeerDiedError",
    "PeerFailedError",
    "PeerLeftError",
    "Program",
    "ProtocolError",
    "Request",
    "RunHandle",
    "SystemCallError",
    "TaskArgs",
    "TaskError",
    "Tensor",
    "TensorArgType",
    "TimedOutError",
    "VendorError",
    "Worker",
    "__version__",
    "errors",
    "init",
    "scalar_to_uint64",
]
