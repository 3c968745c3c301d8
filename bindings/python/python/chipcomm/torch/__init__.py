"""chipcomm as a backend of ``torch.distributed``, for tensors in host memory of ranks on one host.

>>> import torch, torch.distributed as dist        # doctest: +SKIP
>>> import chipcomm.torch                           # registers the backend
>>> dist.init_process_group("chipcomm")             # doctest: +SKIP

Sums are combined in the order of the ranks, always: results do not depend on size or timing. ``empty`` makes tensors in window memory,
which peers read where they stand.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

try:
    import torch
    import torch.distributed as dist
except ImportError as _missing:
    raise ImportError("chipcomm.torch is a backend of torch.distributed; install torch: pip install torch") from _missing

from .. import Communicator
from ..errors import Error, InvalidError
from ._work import BYTES, Message, Messages, Work, check, seconds

#: The name of the backend.
NAME = "chipcomm"

# Codes of the native calls: those of `comm_coll.h`.
_BARRIER, _ALL_REDUCE, _ALL_GATHER, _ALL_GATHER_V, _REDUCE_SCATTER, _REDUCE_SCATTER_V = 1, 2, 3, 4, 5, 6
_BROADCAST, _REDUCE, _ALL_TO_ALL_V, _GATHER, _SCATTER = 7, 8, 10, 11, 12

_TYPES = {
    torch.float32: 0,
    torch.float16: 1,
    torch.int32: 2,
    torch.int16: 3,
    torch.int8: 4,
    torch.uint8: 5,
    torch.bfloat16: 6,
    torch.int64: 7,
    torch.uint64: 8,
    torch.uint16: 9,
    torch.uint32: 10,
    torch.float64: 32,
    torch.bool: 33,
}

_RED = dist.ReduceOp.RedOpType
_OPS = {_RED.SUM: 0, _RED.PRODUCT: 1, _RED.MAX: 2, _RED.MIN: 3, _RED.AVG: 4, _RED.BAND: 5, _RED.BOR: 6, _RED.BXOR: 7}
#: A sum of truths is whether there is any, a product whether all are.
_BOOL_OPS = {_RED.SUM: 9, _RED.PRODUCT: 8}

#: Bytes of a rank's window for `empty`, unless ``CHIPCOMM_TORCH_POOL`` says otherwise.
_POOL = 64 << 20


def _op(reduce_op: Any, dtype: torch.dtype) -> int:
    kind = getattr(reduce_op, "op", reduce_op)
    found = _BOOL_OPS.get(kind) if dtype == torch.bool else None
    found = _OPS.get(kind) if found is None else found
    if found is None:
        raise InvalidError(f"{reduce_op} is not supported; use SUM, PRODUCT, MIN, MAX, AVG, BAND, BOR or BXOR")
    return found


def _code(tensor: torch.Tensor) -> int:
    """For a reduction."""
    check(tensor)
    code = _TYPES.get(tensor.dtype)
    if code is None:
        raise InvalidError(f"{tensor.dtype} cannot be reduced; use a floating point, integer or bool type")
    return code


def _one(tensors: Any) -> torch.Tensor:
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise InvalidError(f"{len(tensors)} tensors; a rank passes one")
    return tensors[0]


def _host() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{socket.gethostname()} {file.read().strip()}"


def _rendezvous(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Communicator:
    """The ranks agree on a path through torch's store, and see that they are on one host."""
    if rank == 0:
        store.set("chipcomm", f"/tmp/chipcomm-torch-{os.getuid()}-{os.getpid()}-{os.urandom(6).hex()}|{_host()}")
    path, host = store.get("chipcomm").decode().split("|")
    if host != _host():
        raise InvalidError(
            f"rank {rank} is on {_host().split()[0]} and rank 0 on {host.split()[0]}; backend {NAME} connects ranks of one "
            "host, so use gloo between hosts"
        )
    return Communicator(path, rank, size, timeout.total_seconds())


class ProcessGroupChipcomm(dist.ProcessGroup):
    """The ranks of one torch group. Calls that torch waits for are made at once, others by a thread, in the order in which they came."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta):
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        #: How long calls take at most, in seconds, and how long a caller waits for one, where that is less.
        self._longest, self._limit = timeout.total_seconds(), None
        pool = int(os.environ.get("CHIPCOMM_TORCH_POOL", _POOL))
        self._comm = _rendezvous(store, rank, size, timeout)
        self._group = self._comm.group(pool=pool)
        self._messages = Messages(self._comm.group(pool=0, progress_thread=True))
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._queued = 0
        self._thread: threading.Thread | None = None
        self._coalesced: list[Work] | None = None
        _groups.append(self)

    # How calls are made.

    def _do(self, result: list[torch.Tensor], opts: Any, call: Callable[[], None], limit: float | None = None) -> Work:
        limit = limit or self._limit
        if not getattr(opts, "asyncOp", True) and self._coalesced is None and limit is None:
            with self._lock:
                idle = self._queued == 0
                if idle:
                    call()
            if idle:
                return Work(result)
        work = Work(result, threading.Event(), limit)
        with self._lock:
            self._queued += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="chipcomm-torch", daemon=True)
                self._thread.start()
        self._queue.put((call, work))
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            call, work = item
            error: BaseException | None = None
            with self._lock:
                try:
                    call()
                except BaseException as raised:
                    error = raised
                self._queued -= 1
            del call, item
            work.finish(error)
            del work

    def _start_coalescing(self, device: Any = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any = None) -> Work:
        works, self._coalesced = self._coalesced or [], None
        return works[-1] if works else Work([])

    # The calls.

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        tensor = _one(tensors)
        code, op = _code(tensor), _op(opts.reduceOp if opts is not None else _RED.SUM, tensor.dtype)
        if tensor.is_contiguous():
            at, count, raw = tensor.data_ptr(), tensor.numel(), self._group._raw
            return self._do([tensor], opts, lambda: raw(_ALL_REDUCE, at, at, count, code, op))

        def call() -> None:
            data = tensor.contiguous()
            self._group._raw(_ALL_REDUCE, data.data_ptr(), data.data_ptr(), data.numel(), code, op)
            tensor.copy_(data)

        return self._do([tensor], opts, call)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        works = [self.allreduce([tensor], opts) for tensor in tensors]
        return _all(works, list(tensors))

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        tensor, root = _one(tensors), opts.rootRank if opts is not None else 0
        check(tensor)

        def call() -> None:
            data = tensor.contiguous()
            bytes_ = data.numel() * data.element_size()
            self._group._raw(_BROADCAST, data.data_ptr(), data.data_ptr(), bytes_, BYTES, -1, root)
            if data is not tensor:
                tensor.copy_(data)

        return self._do([tensor], opts, call)

    def reduce(self, tensors: Any, opts: Any = None) -> Work:
        tensor, root = _one(tensors), opts.rootRank if opts is not None else 0
        code, op = _code(tensor), _op(opts.reduceOp if opts is not None else _RED.SUM, tensor.dtype)

        def call() -> None:
            data = tensor.contiguous()
            out = data.data_ptr() if root == self._rank else 0
            self._group._raw(_REDUCE, data.data_ptr(), out, data.numel(), code, op, root)
            if data is not tensor and root == self._rank:
                tensor.copy_(data)

        return self._do([tensor], opts, call)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        check(output), check(input)
        if output.numel() != input.numel() * self._size or output.dtype != input.dtype:
            raise InvalidError(f"output has {output.numel()} elements; this call takes {input.numel() * self._size} of the input's type")

        def call() -> None:
            data = input.contiguous()
            out = output if output.is_contiguous() else output.contiguous()
            self._group._raw(_ALL_GATHER, data.data_ptr(), out.data_ptr(), data.numel() * data.element_size(), BYTES)
            if out is not output:
                output.copy_(out)

        return self._do([output], opts, call)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        outputs, tensor = (output_tensors[0] if isinstance(output_tensors[0], (list, tuple)) else output_tensors), _one(input_tensors)
        self._check_list("output", outputs, tensor)
        for one in outputs:
            check(one)

        def call() -> None:
            data, size = tensor.contiguous(), tensor.element_size()
            counts = [one.numel() * size for one in outputs]
            flat = torch.empty(sum(counts), dtype=torch.uint8)
            self._group._raw(_ALL_GATHER_V, data.data_ptr(), flat.data_ptr(), 0, BYTES, -1, 0, counts)
            _unflatten(flat, outputs)

        return self._do(list(outputs), opts, call)

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Work:
        # output_lists[rank][i] is tensor i of that rank.
        works = [
            self.allgather([[of_rank[at] for of_rank in output_lists]], [tensor], opts)
            for at, tensor in enumerate(input_list)
        ]
        return _all(works, [tensor for of_rank in output_lists for tensor in of_rank])

    def all_gather_single_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Work:
        works = [self.all_gather_single(out, tensor, opts) for out, tensor in zip(output_lists, input_list, strict=True)]
        return _all(works, list(output_lists))

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        code, op = _code(input), _op(opts.reduceOp if opts is not None else _RED.SUM, input.dtype)
        check(output)
        if input.numel() != output.numel() * self._size or output.dtype != input.dtype:
            raise InvalidError(f"input has {input.numel()} elements; this call takes {output.numel() * self._size} of the output's type")

        def call() -> None:
            data, out = input.contiguous(), output.contiguous()
            if data.data_ptr() <= out.data_ptr() < data.data_ptr() + data.numel() * data.element_size():
                out = torch.empty_like(out)
            self._group._raw(_REDUCE_SCATTER, data.data_ptr(), out.data_ptr(), out.numel(), code, op)
            if out is not output:
                output.copy_(out)

        return self._do([output], opts, call)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        output, inputs = _one(output_tensors), (input_tensors[0] if isinstance(input_tensors[0], (list, tuple)) else input_tensors)
        self._check_list("input", inputs, output)
        code, op = _code(output), _op(opts.reduceOp if opts is not None else _RED.SUM, output.dtype)

        def call() -> None:
            flat, counts = torch.cat([one.reshape(-1) for one in inputs]), [one.numel() for one in inputs]
            out = torch.empty(output.shape, dtype=output.dtype)
            self._group._raw(_REDUCE_SCATTER_V, flat.data_ptr(), out.data_ptr(), 0, code, op, 0, counts)
            output.copy_(out)

        return self._do([output], opts, call)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        works = [self.reduce_scatter_single(out, tensor, opts) for out, tensor in zip(outputs, inputs, strict=True)]
        return _all(works, list(outputs))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> Work:
        check(output), check(input)
        receive, send = self._splits(output, output_split_sizes), self._splits(input, input_split_sizes)

        def call() -> None:
            data, out = input.contiguous(), output.contiguous()
            if data.data_ptr() == out.data_ptr():
                data = data.clone()
            self._group._raw(_ALL_TO_ALL_V, data.data_ptr(), out.data_ptr(), 0, BYTES, -1, 0, send, receive)
            if out is not output:
                output.copy_(out)

        return self._do([output], opts, call)

    def _splits(self, tensor: torch.Tensor, sizes: Sequence[int] | None) -> list[int]:
        """Bytes to or from each rank."""
        rows = tensor.size(0) if tensor.dim() else 1
        if not sizes:
            if rows % self._size:
                raise InvalidError(f"{rows} rows cannot be split evenly among {self._size} ranks; pass split sizes")
            sizes = [rows // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != rows:
            raise InvalidError(f"split sizes {list(sizes)} are not one for each of {self._size} ranks with the sum {rows}")
        row = tensor.numel() // rows * tensor.element_size() if rows else 0
        return [size * row for size in sizes]

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        if len(output_tensors) != self._size or len(input_tensors) != self._size:
            raise InvalidError(f"{len(output_tensors)} outputs and {len(input_tensors)} inputs for {self._size} ranks")

        def call() -> None:
            flat = torch.cat([one.contiguous().reshape(-1).view(torch.uint8) for one in input_tensors])
            send, receive = ([one.numel() * one.element_size() for one in side] for side in (input_tensors, output_tensors))
            out = torch.empty(sum(receive), dtype=torch.uint8)
            self._group._raw(_ALL_TO_ALL_V, flat.data_ptr(), out.data_ptr(), 0, BYTES, -1, 0, send, receive)
            _unflatten(out, output_tensors)

        return self._do(list(output_tensors), opts, call)

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        tensor, root = _one(input_tensors), opts.rootRank if opts is not None else 0
        check(tensor)
        outputs = []
        if root == self._rank:
            outputs = output_tensors[0] if isinstance(output_tensors[0], (list, tuple)) else output_tensors
            self._check_list("output", outputs, tensor)

        def call() -> None:
            data = tensor.contiguous()
            bytes_ = data.numel() * data.element_size()
            flat = torch.empty(bytes_ * self._size if outputs else 0, dtype=torch.uint8)
            self._group._raw(_GATHER, data.data_ptr(), flat.data_ptr(), bytes_, BYTES, -1, root)
            if outputs:
                _unflatten(flat, outputs)

        return self._do(list(outputs), opts, call)

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self.gather([list(output.chunk(self._size))] if opts.rootRank == self._rank else [], [input], opts)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        output, root = _one(output_tensors), opts.rootRank if opts is not None else 0
        check(output)
        inputs = []
        if root == self._rank:
            inputs = input_tensors[0] if isinstance(input_tensors[0], (list, tuple)) else input_tensors
            self._check_list("input", inputs, output)

        def call() -> None:
            parts = [one.contiguous().reshape(-1).view(torch.uint8) for one in inputs]
            flat = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
            out = torch.empty(output.numel() * output.element_size(), dtype=torch.uint8)
            self._group._raw(_SCATTER, flat.data_ptr(), out.data_ptr(), out.numel(), BYTES, -1, root)
            _unflatten(out, [output])

        return self._do([output], opts, call)

    def _check_list(self, what: str, tensors: Sequence[torch.Tensor], like: torch.Tensor) -> None:
        if len(tensors) != self._size or any(one.dtype != like.dtype for one in tensors):
            raise InvalidError(f"{what} is a list of {len(tensors)} tensors; pass {self._size} of {like.dtype}, one for each rank")

    def barrier(self, opts: Any = None) -> Work:
        limit = seconds(getattr(opts, "timeout", None))
        return self._do([], opts, lambda: self._group._raw(_BARRIER, 0, 0, 0, BYTES), limit)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the ranks that did not come in time, always all of them."""
        self._messages.monitored_barrier(min(seconds(timeout) or self._longest, self._longest))

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Message:
        return self._messages.send(_one(tensors), dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Message:
        return self._messages.recv(_one(tensors), src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Message:
        return self._messages.recv_any(_one(tensors), tag)

    # Names of other versions of torch.

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    gather_into_tensor = gather_single

    # What torch asks a group.

    supports_coalescing = False
    supports_splitting = False
    _supports_time_estimate = False

    @property
    def _device_types(self) -> list[torch.device]:
        # None while torch makes the group: it would attach a recorder, which cannot name a group that is in Python.
        return [torch.device("cpu")] if self in dist.distributed_c10d._world.pg_names else []

    def set_timeout(self, timeout: timedelta) -> None:
        """From now on a caller waits that long at most; the call itself ends with the time that the group was made with."""
        limit = seconds(timeout)
        if limit is None or limit > self._longest:
            text = f"timeout is {timeout}; this group was made with {self._longest} s, which is the longest that a call can take"
            raise InvalidError(f"{text}, so give init_process_group or new_group more")
        self._limit = self._messages.limit = limit

    def _get_backend(self, device: Any) -> ProcessGroupChipcomm:
        return self

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def getGroupName(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]

    #: torch keeps the name, and a group in Python does not learn it.
    group_name = property(getGroupName)

    def getBackendName(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    def shutdown(self) -> None:
        """Leaves the others. Called by ``destroy_process_group``."""
        if self in _groups:
            _groups.remove(self)
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        try:
            self._group.close()
        except Error:
            # A group that failed has said so.
            pass
        # Ends the group of messages too, which may wait for announcements that never come.
        self._comm.close()

    abort = shutdown

    def __repr__(self) -> str:
        return f"<ProcessGroupChipcomm: rank {self._rank} of {self._size}>"


def _unflatten(flat: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
    at = 0
    for one in outputs:
        end = at + one.numel() * one.element_size()
        one.copy_(flat[at:end].view(one.dtype).view(one.shape) if end > at else one)
        at = end


def _all(works: list[Work], result: list[torch.Tensor]) -> Work:
    """One work for several that a group makes in order: the last, with the results of all."""
    if not works:
        return Work(result)
    works[-1]._result = result
    return works[-1]


#: The groups of this process, in the order in which they were made.
_groups: list[ProcessGroupChipcomm] = []


def _of(group: Any) -> ProcessGroupChipcomm:
    found = group if group is not None else dist.group.WORLD
    if not isinstance(found, ProcessGroupChipcomm):
        raise InvalidError(f"the group is not one of backend {NAME}; make it with dist.init_process_group({NAME!r})")
    return found


def empty(*size: Any, dtype: torch.dtype | None = None, group: Any = None) -> torch.Tensor:
    """A zeroed tensor in this rank's window. An ``all_reduce`` for which every rank passes one copies nothing."""
    dtype = dtype or torch.get_default_dtype()
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    bytes_ = shape.numel() * torch.empty(0, dtype=dtype).element_size()
    if bytes_ == 0:
        return torch.empty(shape, dtype=dtype)
    this = _of(group)
    with this._lock:
        memory = this._group.memory(bytes_)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def monitored_barrier(group: Any = None, timeout: timedelta | None = None) -> None:
    """A barrier whose error names the ranks that are missing, also where torch's own function of that name is for gloo only."""
    _of(group).monitored_barrier(timeout)


def _create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> ProcessGroupChipcomm:
    return ProcessGroupChipcomm(store, rank, size, timeout)


if NAME not in dist.Backend.backend_list:
    dist.Backend.register_backend(NAME, _create, devices=["cpu"])
