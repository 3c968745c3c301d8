"""What a task gets: tensors and scalars."""

from __future__ import annotations

import ctypes
import enum
import struct
from collections.abc import Sequence
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
    """Memory of a chip by its address: a part of a window, or what `Worker.alloc_child_tensor` made."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    #: Keeps it, where it is not part of a window.
    _memory: _native.ChipMemory | None = field(default=None, repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return element_size(self.dtype) * count_of(self.shape)


def element_size(dtype: Any) -> int:
    """Bytes of an element. numpy has no bfloat16."""
    return 2 if str(dtype) == "bfloat16" else np.dtype(dtype).itemsize


def count_of(shape: Sequence[int]) -> int:
    """How many elements an array of this shape has; a shape that no array can have is refused."""
    count = 1
    for one in shape:
        if one < 0:
            raise InvalidError(f"shape is {tuple(shape)}, with a negative length; make every length at least 1")
        count *= one
    if count == 0:
        raise InvalidError(f"shape is {tuple(shape)}, which has no elements; make every length at least 1")
    return count


def scalar_to_uint64(value: Any) -> int:
    """A scalar as the 64 bits that a kernel gets: a float as those of a float32, a ctypes number as its own, a whole number as it is.

    >>> hex(scalar_to_uint64(1.0)), scalar_to_uint64(-1) == 2**64 - 1
    ('0x3f800000', True)
    """
    if isinstance(value, float):
        return int.from_bytes(struct.pack("<f", value), "little")
    if isinstance(value, (ctypes.c_float, ctypes.c_double)):
        return int.from_bytes(bytes(value), "little")
    value = int(getattr(value, "value", value))
    if not -(2**63) <= value < 2**64:
        raise InvalidError(f"the scalar {value} does not fit into 64 bits; pass -2**63 to 2**64 - 1")
    return value % 2**64


class TaskArgs:
    """Tensors, each with what the task does with it, and scalars, in the order in which a kernel finds them.

    A tensor is an array of `Worker.empty`, or a `Tensor` of a chip.
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

    def add_scalar(self, value: Any) -> TaskArgs:
        """One more scalar of 64 bits: an address, a context, a count; anything else as `scalar_to_uint64` has it."""
        self._scalars.append(scalar_to_uint64(value))
        return self

    def add_dep(self, *tasks: TaskId) -> TaskArgs:
        """The task waits for these, whatever memory they touch."""
        self._after.extend(tasks)
        return self

    #: The same.
    after = add_dep

    def blocks(self, count: int) -> TaskArgs:
        """A kernel runs on that many blocks."""
        self._blocks = count
        return self

    def tensor_count(self) -> int:
        """How many tensors there are."""
        return len(self._tensors)

    def scalar_count(self) -> int:
        """How many scalars there are."""
        return len(self._scalars)

    def _parts(self, more: list[int]) -> tuple[list[tuple[Any, int]], list[int], list[TaskId], int]:
        return self._tensors, self._scalars + more, self._after, self._blocks
