"""Messages between two ranks of a group.

PyTorch's `isend` and `irecv` return at once, and programs start them in whatever order: two ranks may both send first.
So each direction of each pair has a communicator of two ranks and a thread of its own, which are made with the pair's
first message.

Invariant: messages of one direction of a pair match in the order of the calls, and wait for no other operation. Absent:
tags.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from torch import Tensor

from ..communicator import Communicator
from ..errors import Closed
from ..work import Lane
from ..work import Work as Job
from . import meeting
from .work import Work

#: What makes of an error the one that the program gets; the ranks that 0 and 1 stand for.
Named = Callable[[BaseException, Tuple[int, int]], BaseException]


#: Seconds that messages which were ended may take to be over.
_END_SECONDS = 10.0
#: Seconds between two attempts to end them.
_AGAIN_SECONDS = 0.05


class Channel:
    """One direction of a pair of ranks."""

    def __init__(self, store: Any, sender: int, receiver: int, own: int, name: str):
        self._store, self._name = store, name
        self._pair = (sender, receiver)
        self._rank = 0 if own == sender else 1
        self._place = f"pair/{sender}/{receiver}"
        self._lane = Lane(f"consort-{'to' if own == sender else 'from'}-{receiver if own == sender else sender}")
        self._comm: Optional[Communicator] = None
        self._joining = meeting.Joining(f"the process group of the messages from rank {sender} to rank {receiver}")
        # A handler of a signal may come back in.
        self._lock = threading.RLock()

    def start(self, tensor: Tensor, work: Work, named: Named, group: Communicator, seconds: Optional[float]) -> None:
        """Queues a message; the elements of `tensor` go to, or come from, the other rank."""

        def body() -> None:
            try:
                comm = self._open(group, seconds)
                call = comm._send(tensor, 1) if self._rank == 0 else comm._recv(tensor, 0)
                comm._make(call)
            except BaseException as error:
                work.finish(named(error, self._pair))
            else:
                work.finish()

        self._lane.submit(Job(body))

    def _open(self, group: Communicator, seconds: Optional[float]) -> Communicator:
        if self._comm is None:

            def check() -> None:
                self._joining.check()
                text = group.status()
                if text:
                    raise meeting.Ended(text)

            name = f"{self._name} {self._pair[0]} to {self._pair[1]}"
            check()
            made = meeting.join(self._store, self._place, self._rank, 2, seconds, name, self._joining, check)
            with self._lock:
                self._comm, ended = made, self._joining.ended
            if ended:
                # By a thread that did not see the communicator.
                _abort(made, "the process group was ended while this pair met")
                check()
        return self._comm

    @property
    def ended(self) -> bool:
        """Whether `abort` was called."""
        return self._joining.ended

    def set_timeout(self, seconds: Optional[float]) -> None:
        """Seconds until a message fails; also for those that are queued."""
        comm = self._comm
        if comm is not None and not comm.closed:
            comm.timeout = seconds

    def abort(self, reason: str) -> None:
        """Ends what is under way, and what waits for the other rank.

        Without effect on a pair that is just about to join: to be called until the messages are over.
        """
        with self._lock:
            comm = self._comm
            self._joining.end()
        if comm is not None:
            _abort(comm, reason)

    def close(self, timeout: Optional[float]) -> bool:
        """Waits for what was started, frees the communicator; False when `timeout` seconds passed before.

        A callback of a message waits for nothing: what is queued behind it fails.
        """
        if self._lane.is_own_thread():
            self.abort("the process group was ended by a callback of a message")
        elif not self._lane.drain(timeout):
            return False
        self._lane.close()
        if self._comm is not None:
            self._comm.close()
        return True

    def leave(self) -> None:
        """Leaves the rest to the thread, which ends after the messages that it has. They were ended."""
        self._lane.close()


class Channels:
    """The channels of one group."""

    def __init__(self, store: Any, rank: int, name: str):
        self._store, self._rank, self._name = store, rank, name
        self._cloned = False
        self._open: Dict[Tuple[int, int], Channel] = {}
        # Under the lock: after it is set, no message is queued that `abort` and `close` do not see.
        self._closing = False
        self._lock = threading.RLock()

    def start(
        self,
        peer: int,
        receives: bool,
        tensor: Tensor,
        work: Work,
        named: Named,
        group: Communicator,
        seconds: Optional[float],
    ) -> None:
        """Queues a message to or from `peer`. Raises `Closed` when the group ends."""
        sender, receiver = (peer, self._rank) if receives else (self._rank, peer)
        with self._lock:
            if self._closing:
                raise group._gone()
            self._channel(sender, receiver).start(tensor, work, named, group, seconds)

    def _channel(self, sender: int, receiver: int) -> Channel:
        channel = self._open.get((sender, receiver))
        if channel is None:
            if not self._cloned:
                # A store waits with its lock held; the main thread may wait in it for a rank that waits for a message.
                self._store, self._cloned = _clone(self._store), True
            channel = self._open[sender, receiver] = Channel(self._store, sender, receiver, self._rank, self._name)
        return channel

    def _end(self) -> List[Channel]:
        with self._lock:
            self._closing = True
            return list(self._open.values())

    def _all(self) -> List[Channel]:
        with self._lock:
            return list(self._open.values())

    def set_timeout(self, seconds: Optional[float]) -> None:
        """Seconds until a message fails."""
        for channel in self._all():
            channel.set_timeout(seconds)

    def abort(self, reason: str) -> None:
        """Ends all messages. There are no others afterwards."""
        for channel in self._end():
            channel.abort(reason)

    def close(self, timeout: Optional[float]) -> None:
        """Waits for all messages that were started; after `timeout` seconds, ends them."""
        ends = None if timeout is None else time.monotonic() + timeout
        for channel in self._end():
            left = None if ends is None else max(0.0, ends - time.monotonic())
            if channel.ended or not channel.close(left):
                _finish(channel)
        with self._lock:
            self._open.clear()


def _finish(channel: Channel) -> None:
    """Ends a channel's messages and the channel."""
    ends = time.monotonic() + _END_SECONDS
    while True:
        channel.abort("the process group was destroyed before this message was over")
        if channel.close(_AGAIN_SECONDS):
            return
        if time.monotonic() >= ends:
            channel.leave()
            return


def _abort(comm: Communicator, reason: str) -> None:
    try:
        comm.abort(reason)
    except Closed:
        # By another thread.
        pass


def _clone(store: Any) -> Any:
    """A store with a connection of its own; the same one where PyTorch's has none."""
    try:
        return store.clone()
    except (AttributeError, RuntimeError, NotImplementedError):
        return store
