from collections.abc import Buffer, Sequence
from os import PathLike
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import DTypeLike

__version__: str

_Op = Literal["sum", "prod", "max", "min", "avg", "band", "bor", "bxor", "land", "lor", "lxor"]
_Type = Literal["f32", "f16", "i32", "i16", "i8", "u8", "bf16", "i64", "u64", "u16", "u32", "f64", "bool"]

class Memory(Buffer):
    @property
    def address(self) -> int: ...
    def __len__(self) -> int: ...

class Request:
    def wait(self) -> None: ...
    def test(self) -> bool: ...

class Communicator:
    def __init__(self, path: str | PathLike[str], rank: int, size: int, timeout: float | None = None) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def barrier(self) -> None: ...
    def group(
        self,
        ranks: Sequence[int] | None = None,
        *,
        pool: int = ...,
        timeout: float | None = None,
        progress_thread: bool = False,
    ) -> Group: ...
    def windows(self, bytes: int) -> list[Memory]: ...
    def allocate_domain(self, id: int, ranks: Sequence[int], bytes: int) -> list[Memory]: ...
    def release_domain(self, id: int) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *why: object) -> None: ...

class Group:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def members(self) -> list[int]: ...
    @property
    def closed(self) -> bool: ...
    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = None) -> np.ndarray[Any, Any]: ...
    def memory(self, bytes: int) -> Memory: ...
    def split(self, color: int | None, key: int = 0) -> Group | None: ...
    def barrier(self, *, start: bool = False) -> Request | None: ...
    def all_reduce(
        self,
        array: Buffer,
        op: _Op = "sum",
        *,
        out: Buffer | None = None,
        dtype: _Type | None = None,
        start: bool = False,
    ) -> Request | None: ...
    def all_gather(
        self,
        input: Buffer,
        output: Buffer,
        counts: Sequence[int] | None = None,
        *,
        dtype: _Type | None = None,
        start: bool = False,
    ) -> Request | None: ...
    def reduce_scatter(
        self,
        input: Buffer,
        output: Buffer,
        op: _Op = "sum",
        counts: Sequence[int] | None = None,
        *,
        dtype: _Type | None = None,
        start: bool = False,
    ) -> Request | None: ...
    def broadcast(
        self, array: Buffer, root: int = 0, *, dtype: _Type | None = None, start: bool = False
    ) -> Request | None: ...
    def reduce(
        self,
        input: Buffer,
        output: Buffer | None = None,
        op: _Op = "sum",
        root: int = 0,
        *,
        dtype: _Type | None = None,
        start: bool = False,
    ) -> Request | None: ...
    def gather(
        self,
        input: Buffer,
        output: Buffer | None = None,
        root: int = 0,
        *,
        dtype: _Type | None = None,
        start: bool = False,
    ) -> Request | None: ...
    def scatter(
        self,
        input: Buffer | None,
        output: Buffer,
        root: int = 0,
        *,
        dtype: _Type | None = None,
        start: bool = False,
    ) -> Request | None: ...
    def all_to_all(
        self,
        input: Buffer,
        output: Buffer,
        send_counts: Sequence[int] | None = None,
        receive_counts: Sequence[int] | None = None,
        *,
        dtype: _Type | None = None,
        start: bool = False,
    ) -> Request | None: ...
    def send(
        self, array: Buffer, to: int, tag: int = 0, *, dtype: _Type | None = None, start: bool = False
    ) -> Request | None: ...
    def recv(
        self, array: Buffer, source: int, tag: int = 0, *, dtype: _Type | None = None, start: bool = False
    ) -> Request | None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *why: object) -> None: ...
