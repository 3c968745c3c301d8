"""What a call of the backend returns, and messages between two ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import Group
from ..errors import InvalidError, TimedOutError

#: The code of a byte, and of a whole number of 64 bits, in native calls.
BYTES, _WORDS = 5, 7
#: The tag of the messages that announce others, and of those of a monitored barrier.
_ANNOUNCES, _MONITORS = 0xFFFF_FFFF, 0xFFFF_FFFE


def seconds(timeout: timedelta | None) -> float | None:
    """A time limit, or None where torch gives none."""
    return timeout.total_seconds() if timeout and timeout > timedelta(0) else None


def check(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise InvalidError(f"a {tensor.layout} tensor on {tensor.device}; the backend takes dense CPU tensors")


class Work(dist.Work):
    """A call that is over, or that a thread of the group makes."""

    def __init__(self, result: list[torch.Tensor], done: threading.Event | None = None, limit: float | None = None):
        super().__init__()
        self._result, self._done, self._limit = result, done, limit
        self._error: BaseException | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._lock = threading.Lock()
        self.source = -1

    def finish(self, error: BaseException | None) -> None:
        """The call is over. Once more does nothing."""
        with self._lock:
            if self._over():
                return
            self._error = error
            self._done.set()
            future = self._future
        if future is not None:
            self._settle(future)

    def _over(self) -> bool:
        return self._done is None or self._done.is_set()

    def _settle(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        if self._error is None:
            future.set_result(self._result)
        else:
            future.set_exception(self._error)

    def is_completed(self) -> bool:
        return self._over()

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Any:
        return self._error

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self._done is not None:
            limit = seconds(timeout) or self._limit
            if not self._done.wait(limit):
                raise TimedOutError(f"the call is not over after {limit} s; it goes on, and its tensors are in use")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    #: A stream of the host is the thread itself.
    block_current_stream = synchronize

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._result

    def source_rank(self) -> int:
        self.wait()
        return self.source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if not self._over():
                    return self._future
                future = self._future
            else:
                return self._future
        self._settle(future)
        return future


class Message(Work):
    """A message that was started."""

    def __init__(self, messages: Messages, tensor: torch.Tensor, step: Callable[[], bool]):
        super().__init__([tensor], threading.Event())
        self._messages, self._step = messages, step
        self._waits = False

    def is_completed(self) -> bool:
        if not self._done.is_set():
            try:
                with self._messages.lock:
                    over = self._done.is_set() or self._step()
                if over:
                    self.finish(None)
            except BaseException as error:
                self.finish(error)
                raise
        return self._done.is_set()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        limit = seconds(timeout) or self._messages.limit
        until = None if limit is None else time.monotonic() + limit
        polls = 0
        while not self.is_completed():
            polls += 1
            # Mostly it is there soon; then other ranks may need the core.
            time.sleep(0 if polls < 50 else min(1e-3, 2e-5 * (polls - 49)))
            if until is not None and time.monotonic() > until:
                raise TimedOutError(f"no message after {limit} s; the call goes on, and its tensor is in use")
        return super().wait()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future = super().get_future()
        with self._lock:
            begin, self._waits = not self._waits and not self._done.is_set(), True
        if begin:
            threading.Thread(target=self._await, name="chipcomm-message", daemon=True).start()
        return future

    def _await(self) -> None:
        try:
            self.wait()
        except BaseException as error:
            self.finish(error)

class Messages:
    """Messages between two ranks. Each is announced, so that a receiver can take one from anybody."""

    def __init__(self, group: Group):
        self.group, self.lock = group, threading.RLock()
        #: How long a wait for a message takes at most, in seconds.
        self.limit: float | None = None
        #: Announcements that have come, by their source; and those that belong to messages that were received by name.
        self.announced: dict[int, list[int]] = {}
        self.owed: dict[int, list[int]] = {}
        #: Announcements that are being received.
        self.expected: dict[int, tuple[int, torch.Tensor]] = {}
        self.kept: list[tuple[int, torch.Tensor]] = []

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Message:
        check(tensor)
        data = tensor.contiguous()
        with self.lock:
            self._forget_sent()
            head = torch.tensor([tag], dtype=torch.int64)
            announced = self.group._raw_message(True, head.data_ptr(), 1, _WORDS, to, _ANNOUNCES)
            self.kept.append((announced, head))
            bytes_ = data.numel() * data.element_size()
            number = self.group._raw_message(True, data.data_ptr(), bytes_, BYTES, to, tag)
        work = Message(self, tensor, lambda: self.group._test(number))
        work.data = data
        return work

    def _forget_sent(self) -> None:
        self.kept = [(number, head) for number, head in self.kept if not self.group._test(number)]

    def recv(self, tensor: torch.Tensor, source: int, tag: int) -> Message:
        check(tensor)
        with self.lock:
            self.owed.setdefault(source, []).append(tag)
            self._expect(source)
            step = self._receive(tensor, source, tag)
        work = Message(self, tensor, step)
        work.source = source
        return work

    def _receive(self, tensor: torch.Tensor, source: int, tag: int) -> Callable[[], bool]:
        data = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        bytes_ = data.numel() * data.element_size()
        number = self.group._raw_message(False, data.data_ptr(), bytes_, BYTES, source, tag)

        def step() -> bool:
            self._poll(source)
            if not self.group._test(number):
                return False
            if data is not tensor:
                tensor.copy_(data)
            return True

        return step

    def recv_any(self, tensor: torch.Tensor, tag: int) -> Message:
        check(tensor)
        peers = [rank for rank in range(self.group.size) if rank != self.group.rank]
        found: list[Callable[[], bool]] = []

        def step() -> bool:
            if not found:
                for source in peers:
                    self._expect(source)
                    self._poll(source)
                    if tag in self.announced.get(source, []):
                        self.announced[source].remove(tag)
                        work.source = source
                        found.append(self._receive(tensor, source, tag))
                        break
            return bool(found) and found[0]()

        work = Message(self, tensor, step)
        return work

    def _expect(self, source: int) -> None:
        if source not in self.expected:
            head = torch.empty(1, dtype=torch.int64)
            self.expected[source] = (self.group._raw_message(False, head.data_ptr(), 1, _WORDS, source, _ANNOUNCES), head)

    def _poll(self, source: int) -> None:
        """Takes the announcements that have come from there."""
        while source in self.expected and self.group._test(self.expected[source][0]):
            tag = int(self.expected.pop(source)[1][0])
            owed = self.owed.get(source, [])
            if tag in owed:
                owed.remove(tag)
            else:
                self.announced.setdefault(source, []).append(tag)
            if owed:
                self._expect(source)

    def monitored_barrier(self, limit: float) -> None:
        """Rank 0 waits for all others within ``limit`` seconds, and says to all who is missing."""
        me, missing = self.group.rank, torch.zeros(1, dtype=torch.int64)
        within = timedelta(seconds=limit)
        if me:
            self.send(missing, 0, _MONITORS)
            # Rank 0 may come late itself, and then waits as long as this rank.
            self.recv(missing, 0, _MONITORS).wait(2 * within)
        else:
            came = {rank: self.recv(torch.empty(1, dtype=torch.int64), rank, _MONITORS) for rank in range(1, self.group.size)}
            until = time.monotonic() + limit
            while not all([work.is_completed() for work in came.values()]) and time.monotonic() < until:
                time.sleep(1e-4)
            # A group has at most 64 ranks, and rank 0 is here: a rank is a bit.
            missing[0] = sum(1 << (rank - 1) for rank, work in came.items() if not work.is_completed())
            for rank, work in came.items():
                if work.is_completed():
                    self.send(missing, rank, _MONITORS).wait()
        if ranks := [rank for rank in range(1, self.group.size) if int(missing[0]) >> (rank - 1) & 1]:
            raise TimedOutError(f"ranks {ranks} have not come to the monitored barrier within {limit} s; see what they do")
