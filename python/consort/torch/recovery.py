"""A process group that goes on when a rank dies.

```
              a rank dies, or is hung                        a new rank applied
   works ─────────────────────────► failed ── shrink ──► works ── admit ──► works, with one more
     ▲                                 │
     └────── configure, on a store ────┴── abort: all calls raise, also those under way
```

`ProcessGroupConsort` has the methods of torchft's process groups, so that a manager can drive it as it does those. `shrink`,
`apply`, `admit`, `commit` and `resume` do without a manager: the ranks that live make a new communicator of the old one,
within milliseconds.

Invariant: an operation fails and never hangs; the object stays the same, so DDP keeps it. Absent: when to do what
(`examples/recovery.py` shows it).
"""

from __future__ import annotations

import io
import re
import time
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

from ..communicator import Communicator, join_grown
from ..errors import Error, LostRank, MissingRanks, Timeout, parse, wrong
from ..prototypes import RESULTS
from .backend import Group
from .engine import Engine
from .failures import raised
from .meeting import Ended, Joining, seconds_of, wait_for

_MINUTE = timedelta(seconds=60)
#: What ranks said that shrank without different ranks.
_EXCLUDED = re.compile(r"shrink without ([\d, -]*\d)")
#: Keys of the store: how many ever applied, how many of them were answered, and the answers.
APPLIED, _ANSWERED, _ANSWER = "newcomers/applied", "newcomers/answered", "newcomers/answer"
#: Whether a newcomer is still there: asked, and replied.
_CALLED, _HERE = "newcomers/called", "newcomers/here"
#: Seconds that a newcomer has to reply.
_REPLY_SECONDS = 2.0


class ProcessGroupConsort(Group):
    """A process group whose ranks may change. It has none until `configure` or `apply`.

    Args:
        timeout: how long an operation, and the meeting of the ranks, may last.
    """

    def __init__(self, timeout: timedelta = _MINUTE):
        dist.ProcessGroup.__init__(self, 0, 1)
        self._made: Optional[Engine] = None
        #: While `configure` meets the other ranks.
        self._joining: Optional[Joining] = None
        self._failure: Optional[Exception] = None
        self._store: Any = None
        self._generation = 0
        self._group_name = self._group_desc = ""
        self._timeout = timeout

    # What torchft's groups have.

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: Optional[int] = None,
        group_rank: Optional[int] = None,
        group_world_size: Optional[int] = None,
        global_ranks: Optional[Sequence[int]] = None,
    ) -> None:
        """Joins the ranks that call this with the same address. May be called again: what is under way is aborted first.

        Args:
            store_addr: `host:port/prefix` of a `TCPStore`; each time with another prefix.
            replica_id: this process's name in reports.
            rank, world_size: from now on.
            quorum_id, group_rank, group_world_size, global_ranks: what a manager's own records have; not looked at.
        Raises `DistBackendError` when ranks did not come within the timeout, or `abort` was called meanwhile; the group has
        no ranks then.
        """
        self._end(gently=True)
        host, _, rest = store_addr.partition(":")
        port, _, prefix = rest.partition("/")
        store = c10d.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=self._timeout)
        self._failure, self._generation = None, 0
        self._store = c10d.PrefixStore(prefix, store)
        seconds, joining = seconds_of(self._timeout), Joining("the process group")
        self._joining = joining
        try:
            _all_here(self._store, rank, world_size, seconds, joining)
            made = Engine(self._store, rank, world_size, seconds, name=replica_id, joining=joining)
            self._made = made
            if joining.ended:
                # By a thread that did not see the ranks.
                self._end()
                joining.check()
        except (Error, Ended) as error:
            raise self._failed(error) from error
        finally:
            self._joining = None

    def abort(self, errored: bool = True) -> None:
        """Ends what is under way, on all ranks; calls in other threads raise, `configure` too. Any thread; may be called again.

        Args:
            errored: whether `errored` says so.
        """
        joining = self._joining
        if joining is not None:
            joining.end()
        if self._end() and errored and self._failure is None:
            self._failure = dist.DistBackendError("the process group was aborted; configure it to use it again")

    def shutdown(self) -> None:
        """Finishes what was started, and ends the group. `configure` makes it anew."""
        made, self._made = self._made, None
        if made is not None:
            made.shutdown()

    def errored(self) -> Optional[Exception]:
        """What ended the group; None while it works, and after `configure`. Does not wait."""
        made = self._made
        if self._failure is None and made is not None and not made.comm.closed and made.comm.failed():
            text = made.comm.status()
            code = RESULTS["ncclTimeout" if "did not finish within" in text else "ncclRemoteError"]
            error = raised(parse(text, code, made.comm.rank))
            assert isinstance(error, Exception)
            self._failure = error
        return self._failure

    def set_timeout(self, timeout: timedelta) -> None:
        """How long an operation, and the next meeting of the ranks, may last."""
        self._timeout = timeout
        if self._made is not None:
            self._made.set_timeout(seconds_of(timeout))

    _set_default_timeout = set_timeout

    def size(self) -> int:
        """The number of ranks; 1 where the group has none."""
        return self._made.comm.size if self._made is not None else 1

    def rank(self) -> int:
        """This process's rank, now; 0 where the group has none."""
        return self._made.comm.rank if self._made is not None else 0

    getSize, getRank = size, rank

    def getBackendName(self) -> str:
        """`consort`."""
        return "consort"

    # What the operations ask.

    @property
    def engine(self) -> Engine:  # type: ignore[override]
        """What makes the operations. Raises `DistBackendError` where the group has no ranks."""
        made = self._made
        if made is None:
            raise self._failure or dist.DistBackendError("the process group has no ranks yet; configure it, or apply")
        return made

    def _end(self, gently: bool = False) -> bool:
        """Leaves the ranks; `gently` spares those that are at the end of an operation which is over here."""
        made, self._made = self._made, None
        if made is None:
            return False
        if gently and _quiet(made):
            made.shutdown()
        else:
            made.abort()
        return True

    def _failed(self, error: BaseException) -> Exception:
        found = raised(error)
        assert isinstance(found, Exception)
        self._failure = found
        return found

    # Without a manager.

    def shrink(self, exclude: Sequence[int] = ()) -> "List[int]":
        """Makes the group anew without the ranks that ended it: those that died, or that an operation waited for too long.

        All ranks that live call it, whether they saw the failure or not. Their numbers close up, in order.

        Args:
            exclude: ranks to leave out beside those, the same on all ranks.
        Returns: the ranks that are left out, by their numbers before.
        Raises `DistBackendError` where that does not come about within the timeout, as after a failure of a link or where this
        rank itself was left out; `configure` is left then.
        """
        old = self.engine
        left_out = set(exclude) | _culprits(self.errored())
        ends = time.monotonic() + (seconds_of(self._timeout) or float("inf"))
        reason = "the process group goes on with the ranks that live"
        # Messages wait on communicators of their own.
        old.channels.abort(reason)
        if not old.comm.failed():
            old.comm.revoke(reason)
        if not left_out:
            raise self._failed(wrong("no rank is known to be gone", "name those to exclude, or configure the group"))
        while True:
            if old.comm.rank in left_out:
                raise self._failed(wrong("the other ranks go on without this one", "configure the group, or apply to them"))
            try:
                comm = old.comm.shrink(sorted(left_out), abort=True, name=old.name or None)
                try:
                    self._generation = _agreed(comm, self._generation)
                    break
                except BaseException:
                    comm.close()
                    raise
            except (Error, dist.DistBackendError) as error:
                more = _culprits(error) - left_out
                if not more or time.monotonic() >= ends:
                    raise self._failed(error) from error
                left_out |= more
        self._adopt(comm)
        # Not before all have the new one.
        old.abort()
        return sorted(left_out)

    def apply(self, store: Any, timeout: Optional[timedelta] = None) -> int:
        """Joins, as a new rank, a group whose ranks `admit` on the same store. Returns this process's rank.

        Raises `DistBackendError` when it was not admitted within `timeout`, the group's own where that is None.
        """
        self._end(gently=True)
        seconds = seconds_of(timeout or self._timeout)
        number = store.add(APPLIED, 1)
        key = f"{_ANSWER}/{number}"

        def reply() -> None:
            if store.check([f"{_CALLED}/{number}"]):
                store.set(f"{_HERE}/{number}", b"")

        if not wait_for(store, key, seconds, reply):
            cause, remedy = f"no group admitted this rank within {seconds:g} s", "let all of its ranks call admit"
            code = RESULTS["ncclRemoteError"]
            raise self._failed(MissingRanks(f"{cause}; {remedy}", cause=cause, remedy=remedy, code=code))
        id, rank, size = store.get(key).decode().split()
        try:
            comm = join_grown(bytes.fromhex(id), int(rank), int(size), timeout=seconds)
            self._failure, self._store = None, store
            self._generation = _agreed(comm, 0)
        except Error as error:
            raise self._failed(error) from error
        self._adopt(comm)
        return comm.rank

    def admit(self, store: Any) -> int:
        """Takes in the ranks that applied on the store. All ranks call it, between steps. Returns how many came.

        Those that died since they applied do not count. Where one dies within the call, the group stays as it is, if it is
        before it has joined after `CONSORT_JOIN_TIMEOUT`. Raises `DistBackendError` where a rank of the group itself fails.
        """
        try:
            return self._admit(store)
        except Error as error:
            raise self._failed(error) from error

    def _admit(self, store: Any) -> int:
        old = self.engine
        comm = old.comm
        comm.drain()
        new = _living(store) if comm.rank == 0 else []
        count = torch.tensor([len(new)])
        comm.broadcast(count, 0)
        size, id = comm.size + int(count[0]), None
        if size == comm.size:
            return 0
        if comm.rank == 0:
            id = comm.growth_id()
            for index, number in enumerate(new):
                store.set(f"{_ANSWER}/{number}", f"{id.hex()} {comm.size + index} {size}")
        try:
            grown = comm.grow(size, id, name=old.name or None)
        except MissingRanks:
            return 0
        joined, generation = torch.ones(1, dtype=torch.uint8), self._generation
        try:
            generation = _agreed(grown, generation)
        except Error:
            joined[0] = 0
        # A newcomer may have died when some had heard of all and some had not: the old ranks decide together.
        comm.all_reduce(joined, "min")
        if not joined[0]:
            grown.abort("a new rank died while it joined")
            grown.close()
            return 0
        self._generation, self._store = generation, store
        self._adopt(grown)
        old.shutdown()
        return grown.size - comm.size

    def commit(self) -> bool:
        """Whether the step went well on all ranks, which all call it at its end: with False, none of them may count on it.

        Where a rank dies within the call itself, some ranks may get True and some False; `resume` brings them together.
        """
        try:
            good = torch.tensor([self.errored() is None], dtype=torch.uint8)
            self.engine.comm.all_reduce(good, "min")
        except Error as error:
            self._failed(error)
            return False
        except dist.DistBackendError:
            return False
        return bool(good[0])

    def resume(self, step: int, state: "Callable[[], Any]") -> "Tuple[int, Any]":
        """After `shrink`, `apply` or `admit`: brings ranks that are behind to where the foremost is. All ranks call it.

        Args:
            step: how many steps this rank has made.
            state: gives this rank's state, which `torch.save` can write; called on the foremost rank only.
        Returns: the step of the foremost rank, and its state, or None where this rank has that already.

        Raises `DistBackendError` where a rank fails.
        """
        try:
            return self._resume(step, state)
        except Error as error:
            raise self._failed(error) from error

    def _resume(self, step: int, state: "Callable[[], Any]") -> "Tuple[int, Any]":
        comm = self.engine.comm
        steps = torch.zeros(comm.size, dtype=torch.int64)
        comm.all_gather(torch.tensor([step]), steps)
        foremost = int(steps.argmax())
        newest = int(steps[foremost])
        if bool((steps == newest).all()):
            return newest, None
        file = io.BytesIO()
        if comm.rank == foremost:
            torch.save(state(), file)
        length = torch.tensor([file.tell()])
        comm.broadcast(length, foremost)
        raw = bytearray(file.getvalue()) if comm.rank == foremost else bytearray(int(length[0]))
        comm.broadcast(raw, foremost)
        return newest, None if step == newest else torch.load(io.BytesIO(raw), weights_only=True)

    def _adopt(self, comm: Communicator) -> None:
        """Goes on with a communicator."""
        seconds = seconds_of(self._timeout)
        comm.timeout = seconds
        name = self._made.name if self._made is not None else ""
        store = c10d.PrefixStore(f"generation/{self._generation}", self._store)
        self._made = Engine(store, comm.rank, comm.size, seconds, name=name, comm=comm)
        self._failure = None


def _all_here(store: Any, rank: int, size: int, seconds: Optional[float], joining: Joining) -> None:
    """Rank 0 waits for the others, which wait for what it then does. Raises `MissingRanks`."""
    if rank:
        store.set(f"here/{rank}", b"")
        return
    ends = None if seconds is None else time.monotonic() + seconds
    missing = []
    for other in range(1, size):
        left = None if ends is None else max(0.0, ends - time.monotonic())
        if not wait_for(store, f"here/{other}", left, joining.check):
            missing.append(other)
    if missing:
        ranks = ", ".join(map(str, missing))
        cause, remedy = f"rank{'s' * (len(missing) > 1)} {ranks} of {size} did not come within {seconds:g} s", "configure anew"
        code = RESULTS["ncclRemoteError"]
        raise MissingRanks(f"{cause}; {remedy}", rank=0, peers=tuple(missing), cause=cause, remedy=remedy, code=code)


def _living(store: Any) -> "List[int]":
    """Those who applied since the last call and are still there."""
    answered = store.add(_ANSWERED, 0)
    new = range(answered + 1, store.add(APPLIED, 0) + 1)
    for number in new:
        store.set(f"{_CALLED}/{number}", b"")
    ends = time.monotonic() + _REPLY_SECONDS
    here = [number for number in new if wait_for(store, f"{_HERE}/{number}", max(0.0, ends - time.monotonic()), lambda: None)]
    store.add(_ANSWERED, len(new))
    return here


def _quiet(engine: Engine) -> bool:
    """Whether the group works, and nothing of this rank is under way."""
    busy = not engine.comm.idle() or any(channel._lane.busy() for channel in engine.channels._all())
    if busy or engine.comm.closed or engine.comm.failed() or not engine._turn.acquire(blocking=False):
        return False
    engine._turn.release()
    return True


def _agreed(comm: Communicator, generation: int) -> int:
    """The number of the generation that the communicator begins: later than any that its ranks know."""
    number = torch.tensor([generation])
    comm.all_reduce(number, "max")
    return int(number[0]) + 1


def _culprits(error: Optional[BaseException]) -> "Set[int]":
    """The ranks without which the others can go on after that error."""
    found = error if isinstance(error, Error) else error.__cause__ if error is not None else None
    if isinstance(found, Error):
        text = str(found)
        listed = [rank for part in _EXCLUDED.findall(text) for rank in _numbers(part)]
        if listed:
            # Ranks knew of different failures: all of them.
            return set(listed)
        if isinstance(found, (LostRank, Timeout)):
            return set(found.peers)
    return set()


def _numbers(listed: str) -> "List[int]":
    """The numbers of `0, 2, 5-7`."""
    found: "List[int]" = []
    for part in listed.split(","):
        first, _, end = part.strip().partition("-")
        found.extend(range(int(first), int(end or first) + 1))
    return found


def average(group: ProcessGroupConsort, bucket: Any) -> "Future[Tensor]":
    """A communication hook for DDP: averages over the ranks that there are, and never fails in the backward pass.

    `ddp.register_comm_hook(group, consort.torch.recovery.average)`. After a failure the gradients are worthless:
    `group.errored()` says so after the backward pass, and the step is to be made again.
    """
    tensor: Tensor = bucket.buffer()
    opts = c10d.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.AVG
    try:
        pending = group.allreduce([tensor], opts).get_future()
    except Exception as error:
        group._failed(error)
        future: "Future[Tensor]" = Future()
        future.set_result(tensor)
        return future

    def settled(future: Any) -> Tensor:
        try:
            future.value()
        except Exception as error:
            if group.errored() is None:
                group._failed(error)
        return tensor

    return pending.then(settled)


# DDP compares the annotations themselves, and above they are texts.
average.__annotations__.update({"bucket": c10d.GradBucket, "return": Future[Tensor]})
