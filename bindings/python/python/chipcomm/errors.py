"""What can go wrong. Every error says what failed, where, and what to do next.

All of them are an ``Error`` with these attributes; the errors that caused one are its ``__cause__``, and in ``causes``.

>>> import chipcomm
>>> try:
...     chipcomm.init(rank=3, size=2)
... except chipcomm.InvalidError as error:
...     error.code, isinstance(error, ValueError)
(1, True)
"""

from __future__ import annotations


class Error(Exception):
    """A call failed."""

    #: The number of the kind, as in ``comm.h``.
    code: int = 0
    #: The step in which it happened, or an empty text.
    phase: str = ""
    #: The rank on which it happened, where that is known.
    rank: int | None = None
    #: The device on which it happened, where that is known.
    device: int | None = None
    #: The process in which it happened, where that is known.
    pid: int | None = None

    @property
    def causes(self) -> list[Error]:
        """The errors behind this one, the first cause last."""
        found: list[Error] = []
        cause = self.__cause__
        while isinstance(cause, Error):
            found.append(cause)
            cause = cause.__cause__
        return found


class InvalidError(Error, ValueError):
    """A wrong argument, or a call in the wrong state. Nothing has changed, and no peer knows of the call."""

    code = 1


class TimedOutError(Error, TimeoutError):
    """The deadline passed while every peer was alive."""

    code = 2


class PeerDiedError(Error):
    """The process of a peer is gone."""

    code = 3


class PeerLeftError(Error):
    """A peer left the group while this rank still needed it."""

    code = 4


class AbortedError(Error):
    """The run was aborted, or this process interrupted."""

    code = 5


class OutOfMemoryError(Error, MemoryError):
    """Not enough memory."""

    code = 6


class SystemCallError(Error):
    """The operating system refused a call."""

    code = 7


class VendorError(Error):
    """A vendor library refused a call."""

    code = 8


class MismatchError(Error):
    """Ranks disagree on something that must be the same, such as the call that they make."""

    code = 9


class ProtocolError(Error):
    """A peer wrote what cannot be: another build, or an overwritten window."""

    code = 10


class PanicError(Error):
    """A part of the library stopped in a panic."""

    code = 11


class ExitedError(PeerDiedError):
    """A peer, or a child process, exited on its own."""

    code = 12


class KilledError(PeerDiedError):
    """A signal ended a peer, or a child process."""

    code = 13


class TaskError(Error):
    """A task or a kernel reported failure."""

    code = 14


class LoadError(Error):
    """A library, kernel or symbol could not be loaded."""

    code = 15


class ClosedError(Error):
    """The object is closed."""

    code = 16


class InternalError(Error):
    """A bug in the library."""

    code = 17


class PeerFailedError(Error):
    """A peer could not do its part; nothing changed, so the call can be repeated."""

    code = 18


_KINDS = {kind.code: kind for kind in [*Error.__subclasses__(), *PeerDiedError.__subclasses__()]}

_Link = tuple[int, str, "int | None", "int | None", "int | None", str]


def _from_native(text: str, links: list[_Link]) -> Error:
    """The exception of a failure: its whole text, and one link for it and for each cause."""
    first: Error | None = None
    above: Error | None = None
    for code, phase, rank, device, pid, message in links:
        error = _KINDS.get(code, Error)(text if first is None else message)
        error.code, error.phase, error.rank, error.device, error.pid = code, phase, rank, device, pid
        if above is None:
            first = error
        else:
            above.__cause__ = error
        above = error
    return first if first is not None else Error(text)
