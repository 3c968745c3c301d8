"""Workers: chips in processes of their own, kernels and Python functions as tasks, and the names that users of simpler know.

>>> import chipcomm
>>> from chipcomm import TaskArgs
>>> def double(task):
...     task.tensors[1][:] = 2 * task.tensors[0]
>>> with chipcomm.Worker(device_ids=[0]) as worker:
...     program = worker.register(double)
...     x, y = worker.empty(3, "float32"), worker.empty(3, "float32")
...     worker.init()
...     x[:] = [1, 2, 3]
...     task = worker.run(lambda orch: orch.submit_next_level(program, TaskArgs().add_input(x).add_output(y)))
...     y.tolist()
[2.0, 4.0, 6.0]
"""

from __future__ import annotations

import enum
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _native
from ._native import TaskId
from .errors import InvalidError


class TensorArgType(enum.IntEnum):
    """What a task does with a tensor; the order of tasks follows from it."""

    INPUT = 0
    OUTPUT = 1
    INOUT = 2
    OUTPUT_EXISTING = 3
    NO_DEP = 4


@dataclass(frozen=True)
class Tensor:
    """Memory of a chip by its address: a part of a window."""

    address: int
    dtype: str
    shape: tuple[int, ...]


class TaskArgs:
    """Tensors, each with what the task does with it, and scalars, in the order in which a kernel finds them.

    A tensor is an array of `Worker.empty`, or a `Tensor` in a window.
    """

    def __init__(self) -> None:
        self._tensors: list[tuple[Any, int]] = []
        self._scalars: list[int] = []
        self._after: list[TaskId] = []
        self._blocks = 1

    def add_tensor(self, tensor: Any, tag: TensorArgType = TensorArgType.INPUT) -> TaskArgs:
        """One more tensor."""
        if isinstance(tensor, Tensor):
            tensor = (tensor.address, tensor.dtype, list(tensor.shape))
        elif hasattr(tensor, "__dlpack__") and not hasattr(tensor, "__array_interface__"):
            tensor = tensor.numpy() if hasattr(tensor, "numpy") else np.from_dlpack(tensor)
        self._tensors.append((tensor, int(TensorArgType(tag))))
        return self

    def add_input(self, tensor: Any) -> TaskArgs:
        """One more tensor that the task reads."""
        return self.add_tensor(tensor, TensorArgType.INPUT)

    def add_output(self, tensor: Any) -> TaskArgs:
        """One more tensor that the task writes."""
        return self.add_tensor(tensor, TensorArgType.OUTPUT)

    def add_inout(self, tensor: Any) -> TaskArgs:
        """One more tensor that the task reads and writes."""
        return self.add_tensor(tensor, TensorArgType.INOUT)

    def add_scalar(self, value: int) -> TaskArgs:
        """One more scalar, a whole number of 64 bits: an address, a context, a count."""
        value = int(value)
        if not -(2**63) <= value < 2**64:
            raise InvalidError(f"the scalar {value} does not fit into 64 bits")
        self._scalars.append(value % 2**64)
        return self

    def after(self, *tasks: TaskId) -> TaskArgs:
        """The task waits for these, whatever memory they touch."""
        self._after.extend(tasks)
        return self

    def blocks(self, count: int) -> TaskArgs:
        """A kernel runs on that many blocks."""
        self._blocks = count
        return self

    def _parts(self, more: list[int]) -> tuple[list[tuple[Any, int]], list[int], list[TaskId], int]:
        return self._tensors, self._scalars + more, self._after, self._blocks


@dataclass
class HostBufferStaging:
    """The array that a chip's buffer is loaded from or stored to: one of `Worker.empty`, of as many bytes."""

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
    """A chip's place in its group, and the size of its window. ``rootinfo_path`` is not used: a Worker's chips know each other."""

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


class Domain:
    """Some chips with a window of their own. ``domain[chip]`` is a chip's `ChipContext`. It ends with its run, so ``with`` is optional."""

    def __init__(self, name: str, members: dict[int, ChipContext]):
        self.name = name
        self.members = members

    def __getitem__(self, chip: int) -> ChipContext:
        return self.members[chip]

    def __iter__(self) -> Iterator[int]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def release(self) -> None:
        """Does nothing: the memory is released when the run has drained."""

    def __enter__(self) -> Domain:
        return self

    def __exit__(self, *_why: object) -> None:
        self.release()


@dataclass(frozen=True)
class Program:
    """What a task runs: a kernel, or a Python function."""

    number: int
    function: int | None = None


class Orchestrator:
    """Submits tasks inside `Worker.run`."""

    def __init__(self, worker: Worker, inner: _native.Orchestrator):
        self._worker, self._inner = worker, inner

    def _parts(self, program: Program, args: TaskArgs | None) -> Any:
        if not isinstance(program, Program):
            raise TypeError(f"{program!r} is not a program; register it with the Worker")
        self._worker._check_function(program)
        return (args or TaskArgs())._parts([] if program.function is None else [program.function])

    def submit_next_level(
        self, program: Program, args: TaskArgs | None = None, config: object = None, *, worker: int = 0
    ) -> TaskId:
        """Submits a task to chip number ``worker``. ``config`` is simpler's, and not used."""
        return self._inner.submit(program.number, self._parts(program, args), worker)

    def submit_next_level_group(
        self, program: Program, args_list: Sequence[TaskArgs], config: object = None, *, workers: Sequence[int]
    ) -> list[TaskId]:
        """Submits the same program to several chips together, each with its own arguments."""
        if len(args_list) != len(workers):
            raise InvalidError(f"there are {len(args_list)} lists of arguments for {len(workers)} chips")
        tasks = [(chip, self._parts(program, args)) for chip, args in zip(workers, args_list)]
        return self._inner.submit_group(program.number, tasks)

    def submit_sub(self, program: Program, args: TaskArgs | None = None) -> TaskId:
        """Submits a Python function to whichever sub-worker is next."""
        return self._inner.submit_sub(program.number, self._parts(program, args))

    def barrier(self) -> None:
        """What is submitted to the chips from now on waits for all that was submitted before."""
        self._inner.barrier()

    def collectives(self, chips: Sequence[int], pool: int = 4 << 20, timeout: float | None = None) -> None:
        """Makes the collectives of ``chips``, so that a function that is submitted to exactly these as a group has ``task.group``."""
        self._inner.collectives(list(chips), pool, timeout)

    def allocate_domain(
        self, name: str, workers: Sequence[int], window_size: int, buffers: Sequence[ChipBufferSpec] = ()
    ) -> Domain:
        """Gives some chips a window of their own, with buffers in it."""
        parts = [(spec.name, spec.dtype or "uint8", spec.count) for spec in buffers]
        types = {spec.name: (spec.dtype, spec.count) for spec in buffers}
        name, members = self._inner.allocate_domain(name, list(workers), window_size, parts)
        contexts = {
            chip: ChipContext(self._worker.device_ids[chip], rank, nranks, ctx, base, size, ptrs, types)
            for chip, rank, nranks, ctx, base, size, ptrs in members
        }
        return Domain(name, contexts)


class Worker:
    """Chips, the processes that drive them, and the tasks that run on them. See the module for an example."""

    def __init__(
        self,
        level: int = 3,
        platform: str = "sim",
        device_ids: Sequence[int] = (),
        num_sub_workers: int = 0,
        chip_bootstrap_configs: Sequence[ChipBootstrapConfig] | None = None,
        *,
        init_timeout: float | None = None,
        run_timeout: float | None = None,
        close_timeout: float | None = None,
        **unknown: object,
    ):
        if level != 3:
            raise InvalidError(f"level is {level}; from Python a Worker has level 3, the chips of one host")
        if unknown:
            raise TypeError(f"a Worker has no settings {sorted(unknown)}")
        self.device_ids = list(device_ids)
        self._native = _native.Worker(
            self.device_ids, num_sub_workers, platform, init_timeout, run_timeout, close_timeout
        )
        self._up = False
        self._buffers: weakref.WeakValueDictionary[int, _native.HostBuffer] = weakref.WeakValueDictionary()
        if chip_bootstrap_configs is not None:
            self.configure_chips(chip_bootstrap_configs)

    def configure_chips(self, configs: Sequence[ChipBootstrapConfig]) -> None:
        """Gives the chips communicators, windows and buffers: one configuration for each device. Before `init`."""
        if len(configs) != len(self.device_ids):
            raise InvalidError(f"there are {len(configs)} configurations for {len(self.device_ids)} devices")
        chips = []
        for device, config in zip(self.device_ids, configs):
            staged = [{one.name: one for one in side} for side in (config.host_inputs, config.host_outputs)]
            parts = []
            for spec in config.buffers:
                hosts = [
                    self._staged(side, spec.name) if wanted else None
                    for side, wanted in zip(staged, (spec.load_from_host, spec.store_to_host))
                ]
                parts.append((spec.name, spec.dtype, spec.count, *hosts))
            comm = config.comm
            chips.append(
                (device, (comm.rank, comm.nranks) if comm else None, comm.window_size if comm else 0, parts)
            )
        self._native.configure_chips(chips)

    def _staged(self, side: dict[str, HostBufferStaging], name: str) -> _native.HostBuffer:
        if name not in side:
            raise InvalidError(f"buffer {name!r} is staged, and no HostBufferStaging names it")
        found = self._buffers.get(side[name].array.ctypes.data)
        if found is None:
            raise InvalidError(f"the array of buffer {name!r} is not one of this Worker's; make it with worker.empty(shape, dtype)")
        return found

    def register_kernel(self, path: str | os.PathLike[str], symbol: str = "kernel_entry") -> Program:
        """Registers a kernel: a function of a shared object. At any time."""
        return Program(self._native.register_kernel(os.fspath(path), symbol))

    def register(self, what: Callable[[_native.Task], object] | str | os.PathLike[str]) -> Program:
        """Registers a Python function of one argument, its `Task`, before `init`; or, by its path, a kernel."""
        if isinstance(what, (str, os.PathLike)):
            return self.register_kernel(what)
        if not callable(what):
            raise TypeError(f"{what!r} is neither a function nor the path of a kernel")
        return Program(*self._native.register_function(what))

    def _check_function(self, program: Program) -> None:
        if program.function is not None and not self._native.has_function(program.function):
            raise InvalidError("this function was registered after init; close the Worker and init it again")

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> np.ndarray[Any, Any]:
        """A zeroed array in memory that all chips see at one address. At any time."""
        dtype = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        count = 1
        for one in shape:
            if one < 0:
                raise InvalidError(f"shape is {shape}; lengths are not negative")
            count *= one
        if count == 0:
            raise InvalidError(f"shape is {shape}; a host buffer has elements")
        buffer = self._native.host_buffer(count * dtype.itemsize)
        self._buffers[buffer.address] = buffer
        return np.frombuffer(buffer, dtype).reshape(shape)

    def create_host_buffer(self, nbytes: int) -> np.ndarray[Any, Any]:
        """The same as bytes."""
        return self.empty(nbytes, np.uint8)

    def init(self) -> None:
        """Brings all chips up. Returns when every one is ready, or raises the first cause when everything is cleaned up again."""
        self._native.init()

    @property
    def chip_contexts(self) -> list[ChipContext]:
        """The chips that are up, in the order of the devices."""
        return [
            ChipContext(
                device,
                rank,
                nranks,
                ctx,
                base,
                size,
                {name: at for name, _, _, at in parts},
                {name: (dtype, count) for name, dtype, count, _ in parts},
            )
            for device, rank, nranks, ctx, base, size, parts in self._native.chip_contexts()
        ]

    def run(self, orchestrate: Callable[..., Any], *args: Any) -> Any:
        """Runs tasks: ``orchestrate(orch, *args)`` submits them. Returns what it returned when all are done, or raises the first cause."""
        return self._native.run(lambda inner: orchestrate(Orchestrator(self, inner), *args))

    def copy_to(self, chip: int, address: int, data: Any) -> None:
        """Copies an array, or bytes, to a chip's window."""
        self._native.copy_to(chip, address, bytes(memoryview(np.ascontiguousarray(data)).cast("B")))

    def copy_from(self, chip: int, address: int, nbytes: int) -> bytes:
        """Copies bytes from a chip's window."""
        return bytes(self._native.copy_from(chip, address, nbytes))

    def close(self) -> None:
        """Ends all child processes. The Worker can be initialised again."""
        self._native.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_why: object) -> None:
        self.close()
