"""How chips are configured, and the chip of a process that makes its communicator itself, without a Worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ._native import Communicator
from .errors import InvalidError
from .tasks import Tensor, element_size


@dataclass
class HostBufferStaging:
    """The array that a chip's buffer is loaded from or stored to, of as many bytes: one of `Worker.empty`, for chips of a Worker."""

    name: str
    array: np.ndarray[Any, Any]


@dataclass
class ChipBufferSpec:
    """A named part of a chip's window. Without a dtype it is plain bytes."""

    name: str
    dtype: str | None
    count: int
    nbytes: int | None = None
    load_from_host: bool = False
    store_to_host: bool = False


#: Its name in domains.
CommBufferSpec = ChipBufferSpec


@dataclass
class ChipCommBootstrapConfig:
    """A chip's place in its group, and the size of its window. A Worker's chips know each other, and need no ``rootinfo_path``."""

    rank: int
    nranks: int
    rootinfo_path: str = ""
    window_size: int = 0


@dataclass
class ChipBootstrapConfig:
    """One chip: its communicator, its buffers, and what they are loaded from and stored to."""

    comm: ChipCommBootstrapConfig | None = None
    buffers: list[ChipBufferSpec] = field(default_factory=list)
    host_inputs: list[HostBufferStaging] = field(default_factory=list)
    host_outputs: list[HostBufferStaging] = field(default_factory=list)

    def input_staging(self, buffer_name: str) -> HostBufferStaging:
        """What that buffer is loaded from."""
        return _staging(self.host_inputs, buffer_name, "host_inputs")

    def output_staging(self, buffer_name: str) -> HostBufferStaging:
        """What that buffer is stored to."""
        return _staging(self.host_outputs, buffer_name, "host_outputs")


def _staging(side: list[HostBufferStaging], name: str, where: str) -> HostBufferStaging:
    for one in side:
        if one.name == name:
            return one
    raise InvalidError(f"buffer {name!r} is staged, and no HostBufferStaging in {where} names it; add one there")


@dataclass(frozen=True)
class ChipContext:
    """A chip that is up, or a member of a domain."""

    device_id: int
    rank: int
    nranks: int
    device_ctx: int
    local_window_base: int
    actual_window_size: int
    buffer_ptrs: dict[str, int]
    _types: dict[str, tuple[str | None, int]] = field(repr=False, default_factory=dict)

    @property
    def domain_rank(self) -> int:
        """The rank in the domain."""
        return self.rank

    @property
    def domain_size(self) -> int:
        """How many ranks the domain has."""
        return self.nranks

    def tensor(self, name: str) -> Tensor:
        """The buffer with that name, for `TaskArgs`."""
        if name not in self._types:
            raise InvalidError(f"there is no buffer {name!r}; there are {sorted(self._types)}")
        dtype, count = self._types[name]
        return Tensor(self.buffer_ptrs[name], dtype or "uint8", (count,))


@dataclass(frozen=True)
class ChipBootstrapResult:
    """What `ChipWorker.bootstrap_context` made. ``buffer_ptrs`` is in the order of the configuration's buffers."""

    device_ctx: int
    local_window_base: int
    actual_window_size: int
    buffer_ptrs: list[int]


class ChipWorker:
    """The chip of this process, on the simulation: communicators with windows by their addresses, as kernels take them.

    >>> chip = ChipWorker()
    >>> chip.init(0)
    >>> comm = chip.comm_init(0, 1, "/tmp/chipcomm-example")
    >>> context = chip.comm_alloc_windows(comm, 4096)
    >>> base = chip.comm_get_local_window_base(comm)
    >>> chip.copy_to(base, b"abc"); chip.copy_from(base, 3)
    b'abc'
    >>> chip.finalize()
    """

    #: Buffers start at multiples of this, in bytes.
    _ALIGN = 64

    def __init__(self) -> None:
        self._device: int | None = None
        self._comms: dict[int, Communicator] = {}
        self._windows: dict[int, tuple[int, int, int]] = {}
        self._numbers = 0
        self._bootstrapped: tuple[int, ChipBootstrapConfig, ChipBootstrapResult] | None = None

    def init(self, device_id: int, bins: object = None, **_unused: object) -> None:
        """Takes the device. ``bins`` and what else simpler passes are not used: nothing has to be loaded."""
        if self._device is not None:
            raise InvalidError(f"this ChipWorker has device {self._device} already; make another one")
        self._device = int(device_id)

    def finalize(self) -> None:
        """Leaves all communicators."""
        self.comm_destroy_all()
        self._device = None

    def comm_init(self, rank: int, nranks: int, rootinfo_path: str) -> int:
        """Joins the other ranks, which name the same path, and returns a handle for the other calls."""
        if self._device is None:
            raise InvalidError("this ChipWorker has no device; call init(device_id) first")
        if not 0 <= rank < 2**32 or not 0 < nranks < 2**32:
            raise InvalidError(f"rank is {rank} and nranks is {nranks}; a rank is a number from 0 below nranks")
        comm = Communicator(rootinfo_path, rank, nranks)
        self._numbers += 1
        self._comms[self._numbers] = comm
        return self._numbers

    def _comm(self, handle: int) -> Communicator:
        if handle not in self._comms:
            raise InvalidError(f"there is no communicator {handle}; comm_init makes one, comm_destroy ends it")
        return self._comms[handle]

    def comm_alloc_windows(self, handle: int, win_size: int) -> int:
        """Gives every rank a window, and returns the address of the ``CommContext``. Collective, once."""
        self._windows[handle] = self._comm(handle)._alloc(win_size)
        return self._windows[handle][0]

    def _window(self, handle: int) -> tuple[int, int, int]:
        self._comm(handle)
        if handle not in self._windows:
            raise InvalidError("this communicator has no windows; call comm_alloc_windows first")
        return self._windows[handle]

    def comm_get_local_window_base(self, handle: int) -> int:
        """The address of this rank's window."""
        return self._window(handle)[1]

    def comm_get_window_size(self, handle: int) -> int:
        """The real size of each rank's window, in bytes."""
        return self._window(handle)[2]

    def comm_derive_context(
        self, handle: int, rank_ids: Sequence[int], domain_rank: int, window_offset: int, window_size: int
    ) -> int:
        """The address of a ``CommContext`` for some of the ranks, on a slice of the windows. Not collective."""
        return self._comm(handle)._derive_context(list(rank_ids), domain_rank, window_offset, window_size)

    def comm_alloc_domain_windows(
        self, handle: int, allocation_id: int, rank_ids: Sequence[int], window_size: int
    ) -> tuple[int, int]:
        """Gives some of the ranks another window: the addresses of its context and of this rank's part. Collective among them."""
        context, base, _ = self._comm(handle)._alloc(window_size, allocation_id, list(rank_ids))
        return context, base

    def comm_release_domain_windows(self, handle: int, allocation_id: int) -> None:
        """Releases it. Collective among its ranks."""
        self._comm(handle).release_domain(allocation_id)

    def comm_barrier(self, handle: int) -> None:
        """Returns when every rank has come here."""
        self._comm(handle).barrier()

    def comm_destroy(self, handle: int) -> None:
        """Leaves the others, and ends what this communicator made."""
        comm = self._comm(handle)
        del self._comms[handle]
        self._windows.pop(handle, None)
        comm.close()

    def comm_destroy_all(self) -> None:
        """The same for all communicators."""
        self._bootstrapped = None
        for handle in list(self._comms):
            self.comm_destroy(handle)

    def copy_to(self, address: int, data: Any) -> None:
        """Copies an array, or bytes, into a window."""
        if not any(_try(comm._write, address, as_bytes(data)) for comm in self._comms.values()):
            raise InvalidError(f"{address:#x} is not in a window of this ChipWorker; take addresses from comm_get_local_window_base")

    def copy_from(self, address: int, nbytes: int) -> bytes:
        """Copies bytes out of a window."""
        for comm in self._comms.values():
            if (found := _try(comm._read, address, nbytes)) is not None:
                return found[0]
        raise InvalidError(f"{address:#x} is not in a window of this ChipWorker; take addresses from comm_get_local_window_base")

    def bootstrap_context(self, device_id: int, cfg: ChipBootstrapConfig, channel: object = None) -> ChipBootstrapResult:
        """Everything in one call: communicator, window, the buffers in it, and what they are loaded from."""
        if device_id != self._device:
            raise InvalidError(f"this ChipWorker has device {self._device}, not {device_id}; call init({device_id}) first")
        if channel is not None:
            raise InvalidError("a channel to a parent is a Worker's; use Worker(chip_bootstrap_configs=…)")
        if self._bootstrapped is not None:
            raise InvalidError("this ChipWorker is bootstrapped already; call shutdown_bootstrap first")
        loads = [(spec, cfg.input_staging(spec.name)) for spec in cfg.buffers if spec.load_from_host]
        for spec in cfg.buffers:
            if spec.store_to_host:
                cfg.output_staging(spec.name)
        if cfg.comm is None:
            if cfg.buffers:
                raise InvalidError("the configuration has buffers and no comm, which makes the window that they lie in; give it a comm")
            return ChipBootstrapResult(0, 0, 0, [])
        handle = self.comm_init(cfg.comm.rank, cfg.comm.nranks, cfg.comm.rootinfo_path)
        try:
            context = self.comm_alloc_windows(handle, cfg.comm.window_size)
            base, size = self.comm_get_local_window_base(handle), self.comm_get_window_size(handle)
            pointers, at = [], base
            for spec in cfg.buffers:
                pointers.append(at)
                at += -(-_bytes_of(spec) // self._ALIGN) * self._ALIGN
            if at > base + size:
                raise InvalidError(f"the buffers need {at - base} bytes and the window has {size}; ask for a larger one")
            by_name = dict(zip((spec.name for spec in cfg.buffers), pointers))
            for spec, staging in loads:
                self.copy_to(by_name[spec.name], _checked(spec, staging))
        except BaseException:
            self.comm_destroy(handle)
            raise
        result = ChipBootstrapResult(context, base, size, pointers)
        self._bootstrapped = handle, cfg, result
        return result

    def shutdown_bootstrap(self) -> None:
        """Stores the buffers that say so, and leaves the communicator of `bootstrap_context`."""
        if self._bootstrapped is None:
            return
        (handle, cfg, result), self._bootstrapped = self._bootstrapped, None
        for spec, at in zip(cfg.buffers, result.buffer_ptrs):
            if spec.store_to_host:
                into = memoryview(_checked(spec, cfg.output_staging(spec.name))).cast("B")
                into[:] = self.copy_from(at, len(into))
        self.comm_destroy(handle)


def as_bytes(data: Any) -> bytes:
    """The bytes of an array or of a buffer."""
    return data if isinstance(data, bytes) else bytes(memoryview(np.ascontiguousarray(data)).cast("B"))


def _bytes_of(spec: ChipBufferSpec) -> int:
    return spec.count * element_size(spec.dtype or "uint8")


def _checked(spec: ChipBufferSpec, staging: HostBufferStaging) -> np.ndarray[Any, Any]:
    if staging.array.nbytes != _bytes_of(spec) or not staging.array.flags.c_contiguous:
        raise InvalidError(
            f"the array of buffer {spec.name!r} has {staging.array.nbytes} bytes; pass a contiguous one of {_bytes_of(spec)}"
        )
    return staging.array


def _try(call: Any, address: int, what: Any) -> tuple[Any] | None:
    try:
        return (call(address, what),)
    except InvalidError:
        return None
