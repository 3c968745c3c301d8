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

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _native
from ._native import TaskId
from .chips import ChipBootstrapConfig, ChipBufferSpec, ChipContext, HostBufferStaging, as_bytes
from .errors import InvalidError
from .tasks import TaskArgs, Tensor, TensorArgType, count_of, element_size

#: The level of a Worker of chips.
_CHIPS = 3


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
        """Does nothing: the memory is released when the run has drained, or with `Orchestrator.release_domain`."""

    def __enter__(self) -> Domain:
        return self

    def __exit__(self, *_why: object) -> None:
        self.release()


@dataclass(frozen=True)
class Program:
    """What a task runs: a kernel, or a Python function."""

    number: int
    #: As an orchestration of Workers of the next level: the number of the program, and of the function.
    orchestration: tuple[int, int] | None = None


class Orchestrator:
    """Submits tasks inside `Worker.run`."""

    def __init__(self, worker: Worker, inner: _native.Orchestrator):
        self._worker, self._inner = worker, inner

    def _next_level(self, program: Program, args: TaskArgs | None, worker: int) -> tuple[int, Any]:
        """The number of the program, and the parts of the task."""
        number, args = _number(program), args or TaskArgs()
        if self._worker.level == _CHIPS:
            return number, args._parts([])
        if program.orchestration is None:
            raise InvalidError("a kernel runs on chips; submit a Python function to a Worker, which submits it there")
        number, function = program.orchestration
        return number, args._parts([function, worker])

    def submit_next_level(
        self, program: Program, args: TaskArgs | None = None, config: object = None, *, worker: int = 0
    ) -> TaskId:
        """Submits a task to chip, or Worker, number ``worker``. ``config`` is simpler's, and not used."""
        number, parts = self._next_level(program, args, worker)
        return self._inner.submit(number, parts, worker)

    def submit_next_level_group(
        self, program: Program, args_list: Sequence[TaskArgs], config: object = None, *, workers: Sequence[int]
    ) -> list[TaskId]:
        """Submits the same program to several chips together, each with its own arguments."""
        if len(args_list) != len(workers):
            raise InvalidError(f"there are {len(args_list)} lists of arguments for {len(workers)} chips; give each chip one")
        members = [(chip, self._next_level(program, args, chip)) for chip, args in zip(workers, args_list)]
        number = members[0][1][0] if members else _number(program)
        return self._inner.submit_group(number, [(chip, parts) for chip, (_, parts) in members])

    def submit_sub(self, program: Program, args: TaskArgs | None = None) -> TaskId:
        """Submits a Python function to whichever sub-worker is next."""
        return self._inner.submit_sub(_number(program), (args or TaskArgs())._parts([]))

    def submit_sub_group(self, program: Program, args_list: Sequence[TaskArgs]) -> list[TaskId]:
        """Submits a Python function to as many sub-workers together, each with its own arguments."""
        return self._inner.submit_sub_group(_number(program), [args._parts([]) for args in args_list])

    def barrier(self, chips: Sequence[int] | None = None) -> None:
        """What is submitted to the chips, or to these, from now on waits for all that was submitted to them before."""
        self._inner.barrier(None if chips is None else list(chips))

    def settle(self, chips: Sequence[int]) -> None:
        """Waits until these chips have done what was submitted to them."""
        self._inner.settle(list(chips))

    @property
    def chips(self) -> int:
        """How many chips, or Workers, there are."""
        return self._inner.chips()

    def alloc_child_tensor(self, worker: int, shape: int | Sequence[int], dtype: Any = "float32") -> Tensor:
        """Allocates memory on a chip, as `Worker.alloc_child_tensor` does."""
        return _child_tensor(self._inner.chip_alloc, worker, shape, dtype)

    def free(self, tensor: Tensor) -> None:
        """Frees what `alloc_child_tensor` made, when the run is over."""
        _free(tensor)

    def copy_to(self, chip: int, to: int | Tensor, data: Any) -> None:
        """Copies an array, or bytes, to memory of a chip, after the earlier tasks that touch it. Later ones find it there."""
        self._inner.copy_to(chip, _address(to), as_bytes(data))

    def copy_from(self, chip: int, source: int | Tensor, nbytes: int | None = None) -> bytes:
        """Copies bytes from memory of a chip, after the earlier tasks that touch it."""
        return self._inner.copy_from(chip, _address(source), _length(source, nbytes))

    def collectives(self, chips: Sequence[int], pool: int = 4 << 20, timeout: float | None = None) -> None:
        """Makes the collectives of ``chips``, so that a function that is submitted to exactly these as a group has ``task.group``."""
        self._inner.collectives(list(chips), pool, timeout)

    def domain_collectives(self, domain: Domain, pool: int = 4 << 20, timeout: float | None = None) -> None:
        """Makes the collectives of a domain: a function on its chips has them as ``task.domain_group(domain.name)``."""
        self._inner.domain_collectives(domain.name, pool, timeout)

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

    def release_domain(self, domain: Domain) -> None:
        """Releases a domain before the run is over, after the earlier tasks of its chips."""
        self._inner.release_domain(domain.name)


def _number(program: Program) -> int:
    if not isinstance(program, Program):
        raise TypeError(f"{program!r} is not a program; register it with the Worker")
    return program.number


def _child_tensor(alloc: Callable[[int, int], _native.ChipMemory], chip: int, shape: Any, dtype: Any) -> Tensor:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    name = "bfloat16" if str(dtype) == "bfloat16" else np.dtype(dtype).name
    memory = alloc(chip, count_of(shape) * element_size(name))
    return Tensor(memory.address, name, shape, memory)


def _free(tensor: Tensor) -> None:
    if tensor._memory is None:
        raise InvalidError("this tensor is part of a window, which is freed as a whole; free what alloc_child_tensor made")
    tensor._memory.free()


def _address(of: int | Tensor) -> int:
    return of.address if isinstance(of, Tensor) else of


def _length(of: int | Tensor, nbytes: int | None) -> int:
    if nbytes is not None:
        return nbytes
    if isinstance(of, Tensor):
        return of.nbytes
    raise InvalidError("give nbytes with an address; a tensor knows its own")


class RunHandle:
    """A run that `Worker.submit` submitted. A handle that is dropped does not end it."""

    def __init__(self, value: Any, inner: _native.Run):
        #: What the function of the run returned.
        self.value = value
        self._inner = inner

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the run is over, at most ``timeout`` seconds, and says whether it is. A run that failed raises its first cause."""
        return self._inner.wait(timeout)

    def is_done(self) -> bool:
        """Whether the run is over, without waiting; how it ended says `wait`."""
        return self._inner.is_done()

    def cancel(self) -> None:
        """Cancels the run and those behind it, and does not wait. Tasks that have not begun do not begin."""
        self._inner.cancel()


class Worker:
    """Chips, the processes that drive them, and the tasks that run on them. See the module for an example."""

    def __init__(
        self,
        level: int = _CHIPS,
        platform: str = "sim",
        device_ids: Sequence[int] = (),
        num_sub_workers: int = 0,
        chip_bootstrap_configs: Sequence[ChipBootstrapConfig] | None = None,
        *,
        init_timeout: float | None = None,
        run_timeout: float | None = None,
        close_timeout: float | None = None,
        checked: bool = False,
        trace: str | os.PathLike[str] | None = None,
        runs_in_flight: int | None = None,
        **unknown: object,
    ):
        """Level 3 has chips, one for each device; level 4 and above Workers, which `add_worker` puts under it.

        With ``checked``, or ``CHIPCOMM_CHECK=1`` in the environment, a task fails that accesses memory beside its buffers or writes to an
        input. ``trace`` is a file for the times of all tasks, which Perfetto shows. ``runs_in_flight`` is how many runs of `submit` there are
        at most, 8 unless given; with more the oldest is waited for.
        """
        if unknown:
            raise TypeError(f"a Worker has no settings {sorted(unknown)}; see help(chipcomm.Worker)")
        if not 0 <= level < 2**32:
            raise InvalidError(f"there is no level {level}; a Worker of chips has level {_CHIPS}, one of Workers a higher one")
        self.level = level
        self.device_ids = list(device_ids)
        self._workers: list[Worker] = []
        file = None if trace is None else os.fspath(trace)
        limits = init_timeout, run_timeout, close_timeout
        self._native = _native.Worker(level, self.device_ids, num_sub_workers, platform, *limits, checked, file, runs_in_flight)
        self._buffers: weakref.WeakValueDictionary[int, _native.HostBuffer] = weakref.WeakValueDictionary()
        if chip_bootstrap_configs is not None:
            self.configure_chips(chip_bootstrap_configs)

    def add_worker(self, worker: Worker) -> int:
        """Puts a Worker of a lower level under this one, which brings it up and closes it, and returns its number.

        Register its programs, and make its arrays, before: afterwards it is used by the orchestrations that are submitted to it alone.
        """
        if worker is self:
            raise InvalidError("a Worker cannot be under itself; add another one")
        self._native.add_worker(worker._native)
        self._workers.append(worker)
        return len(self._workers) - 1

    def configure_chips(self, configs: Sequence[ChipBootstrapConfig]) -> None:
        """Gives the chips communicators, windows and buffers: one configuration for each device. Before `init`."""
        if len(configs) != len(self.device_ids):
            raise InvalidError(f"there are {len(configs)} configurations for {len(self.device_ids)} devices; give each device one")
        chips = []
        for device, config in zip(self.device_ids, configs):
            parts = []
            for spec in config.buffers:
                load = self._staged(config.input_staging(spec.name)) if spec.load_from_host else None
                store = self._staged(config.output_staging(spec.name)) if spec.store_to_host else None
                parts.append((spec.name, spec.dtype, spec.count, load, store))
            comm = config.comm
            chips.append(
                (device, (comm.rank, comm.nranks) if comm else None, comm.window_size if comm else 0, parts)
            )
        self._native.configure_chips(chips)

    def _staged(self, staging: HostBufferStaging) -> _native.HostBuffer:
        found = self._buffers.get(staging.array.ctypes.data)
        if found is None:
            raise InvalidError(
                f"the array of buffer {staging.name!r} is not one of this Worker's; make it with worker.empty(shape, dtype)"
            )
        return found

    def register_kernel(self, path: str | os.PathLike[str], symbol: str = "kernel_entry") -> Program:
        """Registers a kernel: a function of a shared object. At any time."""
        return Program(self._native.register_kernel(os.fspath(path), symbol))

    def register(self, what: Callable[..., object] | str | os.PathLike[str]) -> Program:
        """Registers a Python function before `init`; or, by its path, a kernel.

        On chips and sub-workers the function has one argument, its `Task`; on a Worker of the next level two, the `Orchestrator` there
        and the task.
        """
        if isinstance(what, (str, os.PathLike)):
            return self.register_kernel(what)
        if not callable(what):
            raise TypeError(f"{what!r} is neither a function nor the path of a kernel; pass one of the two")
        name = getattr(what, "__qualname__", type(what).__qualname__)
        number = self._native.register_function(name, what)
        if self.level == _CHIPS:
            return Program(number)
        this = weakref.ref(self)

        def orchestrate(inner: _native.Orchestrator, task: _native.Task, worker: int) -> None:
            what(Orchestrator(this()._workers[worker], inner), task)

        return Program(number, self._native.register_orchestration(name, orchestrate))

    def unregister(self, program: Program) -> None:
        """Tasks with this program are refused from here on. A kernel whose file was compiled again can be registered again."""
        self._native.unregister(_number(program))
        if program.orchestration is not None:
            self._native.unregister(program.orchestration[0])

    def set_signature(
        self, program: Program, tensors: Sequence[tuple[Any, ...]], scalars: int = 0
    ) -> None:
        """Says what a program takes: ``(TensorArgType, dtype)`` or ``(TensorArgType, dtype, least count)`` for each tensor, and how many
        scalars. A task that does not fit is refused when it is submitted, with the argument that does not."""
        parts = [(int(TensorArgType(tag)), str(dtype), *(rest or (0,))) for tag, dtype, *rest in tensors]
        self._native.set_signature(_number(program), parts, scalars)
        if program.orchestration is not None:
            # With the two that say which function and which Worker.
            self._native.set_signature(program.orchestration[0], parts, scalars + 2)

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> np.ndarray[Any, Any]:
        """A zeroed array in memory that all chips see at one address. At any time."""
        dtype = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        buffer = self._native.host_buffer(count_of(shape) * dtype.itemsize)
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

    def submit(self, orchestrate: Callable[..., Any], *args: Any) -> RunHandle:
        """The same without the wait: several runs are in flight, and behave as if each began when the one before it was over."""
        return RunHandle(*self._native.submit_run(lambda inner: orchestrate(Orchestrator(self, inner), *args)))

    def set_run_timeout(self, seconds: float) -> None:
        """Changes how long each later run may take."""
        self._native.set_run_within(seconds)

    def alloc_child_tensor(self, worker: int, shape: int | Sequence[int], dtype: Any = "float32") -> Tensor:
        """Allocates memory on a chip that is up. It is freed when the tensor is gone, or with `free`."""
        return _child_tensor(self._native.chip_alloc, worker, shape, dtype)

    def free(self, tensor: Tensor) -> None:
        """Frees what `alloc_child_tensor` made."""
        _free(tensor)

    def chip_bytes(self, chip: int) -> int:
        """How many bytes a chip has at the moment: its window, and what was allocated on it."""
        return self._native.chip_bytes(chip)

    def copy_to(self, chip: int, to: int | Tensor, data: Any) -> None:
        """Copies an array, or bytes, to a chip: its window, or what was allocated on it."""
        self._native.copy_to(chip, _address(to), as_bytes(data))

    def copy_from(self, chip: int, source: int | Tensor, nbytes: int | None = None) -> bytes:
        """Copies bytes from there."""
        return self._native.copy_from(chip, _address(source), _length(source, nbytes))

    def close(self) -> None:
        """Ends all child processes. The Worker can be initialised again."""
        self._native.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_why: object) -> None:
        self.close()
