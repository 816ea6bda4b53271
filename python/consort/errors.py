"""The ways in which a call can fail, as exceptions, made of the library's texts.

Invariant: each exception carries what the library said, unchanged but for the names of calls. Absent: when to raise.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Optional, Tuple, Type

from .prototypes import C, RESULTS


class Error(RuntimeError):
    """A failure that the library reported; `str()` is its whole sentence.

    Attributes:
        kind: a short name of the failure, such as `lost_rank`; the same for each class.
        rank: this process's rank, None where the failure is about no communicator.
        peer: the rank that the failure is about, None where it names none; the first of `peers`.
        peers: all ranks that the failure is about, in the order of the text.
        cause: what is wrong, without the remedy.
        remedy: what to do, "" where the library has no advice.
        code: the `ncclResult_t`, a number from 1 on.
    """

    kind = "error"

    def __init__(
        self,
        text: str,
        *,
        rank: Optional[int] = None,
        peers: Tuple[int, ...] = (),
        cause: str = "",
        remedy: str = "",
        code: int = 3,
    ):
        super().__init__(text)
        self.rank = rank
        self.peers = peers
        self.cause = cause or text
        self.remedy = remedy
        self.code = code

    @property
    def peer(self) -> Optional[int]:
        """The first of `peers`; None where there is none."""
        return self.peers[0] if self.peers else None

    def __reduce__(self) -> Tuple[Any, ...]:
        state = dict(rank=self.rank, peers=self.peers, cause=self.cause, remedy=self.remedy, code=self.code)
        return (_again, (type(self), str(self), state))


def _again(kind: Type[Error], text: str, state: Dict[str, Any]) -> Error:
    return kind(text, **state)


class InvalidArgument(Error, ValueError):
    """The call itself is wrong; nothing has changed."""

    kind = "invalid_argument"


class InvalidUsage(Error):
    """The call does not fit the state of the communicator, or ranks differ in what they call."""

    kind = "invalid_usage"


class Mismatch(InvalidUsage):
    """Ranks made different calls at the same place of their sequences; `peers` has all that the text names."""

    kind = "mismatch"


class DifferentSettings(InvalidUsage):
    """Ranks were started with different versions or settings."""

    kind = "different_settings"


class ConcurrentUse(InvalidUsage):
    """Two threads made data calls on one communicator at the same time. The communicator goes on."""

    kind = "concurrent_use"


class Forked(InvalidUsage):
    """A forked child used a communicator of its parent. The parent's communicator goes on."""

    kind = "forked"


class Closed(InvalidUsage):
    """The communicator was closed before."""

    kind = "closed"


class Revoked(InvalidUsage):
    """A rank revoked the communicator; `split` and `shrink` make a new one."""

    kind = "revoked"


class RemoteError(Error):
    """A rank or a link is gone, or a rank ended the communicator."""

    kind = "remote"


class LostRank(RemoteError):
    """A rank died, or its host or link did; `peer` is that rank."""

    kind = "lost_rank"


class LeftRank(LostRank):
    """A rank closed its communicator while others needed it; `peer` is that rank."""

    kind = "left_rank"


class LinkFailed(RemoteError):
    """A link broke, and it is not known whether the rank at its other end lives; `peer` is that rank."""

    kind = "link_failed"


class JoinFailed(RemoteError):
    """A rank could not join; `peer` is that rank."""

    kind = "join_failed"


class MissingRanks(JoinFailed):
    """Ranks did not come within the join timeout; `peers` has them."""

    kind = "missing_ranks"


class Aborted(RemoteError):
    """A rank aborted the communicator; `peer` is that rank."""

    kind = "aborted"


class Timeout(Error, TimeoutError):
    """An operation's deadline passed; `peer` is the rank that is waited for, where the report found one."""

    kind = "timeout"


class SystemFailure(Error):
    """The operating system refused something, or memory is short."""

    kind = "system"


class DeviceFailure(Error):
    """A device or its driver refused or failed."""

    kind = "device"


class InternalError(Error):
    """A defect of the library."""

    kind = "internal"


#: How the texts of the library begin, or what they have in them. The first that is found decides; `peer` and `list` are
#: the ranks that are named.
_FORMS = [
    (InvalidArgument, r"^invalid argument: "),
    (Mismatch, r"^ranks disagree about operation "),
    (DifferentSettings, r"^ranks cannot form a communicator: "),
    (MissingRanks, r"^\d+ of \d+ ranks did not join within .*?: missing ranks? (?P<list>[\d, -]+);"),
    (JoinFailed, r"^rank (?P<peer>\d+) could not join: "),
    (LostRank, r"^rank (?P<peer>\d+) \(.*?\) was lost"),
    (LeftRank, r"^rank (?P<peer>\d+) \(.*?\) closed the communicator before "),
    (Aborted, r"^the communicator was aborted by rank (?P<peer>\d+)"),
    (Revoked, r"^the communicator was revoked by rank (?P<peer>\d+)"),
    (ConcurrentUse, r"^two threads use the same communicator"),
    (Forked, r"^this communicator belongs to the parent process"),
    (SystemFailure, r"^rank (?P<peer>\d+) needed \d+ bytes for "),
    (DeviceFailure, r"^rank (?P<peer>\d+)'s device failed at "),
    (LinkFailed, r"^the \S+ link between rank \d+ and rank (?P<peer>\d+) failed: "),
    (InternalError, r"^internal error: "),
    (Timeout, r" did not finish within .*?: (?:.*?\brank (?P<peer>\d+))?"),
]
_COMPILED = [(kind, re.compile(form, re.DOTALL)) for kind, form in _FORMS]

#: The classes for results whose texts have none of the forms above.
_BY_CODE = {
    RESULTS["ncclUnhandledCudaError"]: DeviceFailure,
    RESULTS["ncclSystemError"]: SystemFailure,
    RESULTS["ncclInternalError"]: InternalError,
    RESULTS["ncclInvalidArgument"]: InvalidArgument,
    RESULTS["ncclInvalidUsage"]: InvalidUsage,
    RESULTS["ncclRemoteError"]: RemoteError,
    RESULTS["ncclTimeout"]: Timeout,
}

#: What the C interface calls by another name.
_NAMES = [
    ("ncclCommShrink with NCCL_SHRINK_ABORT", "shrink(abort=True)"),
    ("ncclCommShrink", "shrink"),
    ("ncclCommSplit", "split"),
    ("consortCommLastReport", "last_report()"),
    ("consortThreadSetTimeout", "consort.deadline(seconds)"),
    ("ncclCommGetAsyncError", "status()"),
]

_PREFIX = re.compile(r"^(?:nccl|consort)\w+(?: on (?P<label>.*?))?: (?=\S)", re.DOTALL)


def _ranks(listed: str) -> Tuple[int, ...]:
    """The ranks of `0, 2, 5-7`."""
    found: "list[int]" = []
    for part in listed.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def parse(text: str, code: int, rank: Optional[int] = None) -> Error:
    """The exception for a text of the library and the result that came with it. The name of the C function goes."""
    # The prefix first: it begins with a C function's name.
    prefix = _PREFIX.match(text)
    bare = text[prefix.end() :] if prefix else text
    for theirs, ours in _NAMES:
        bare = bare.replace(theirs, ours)
    kind, peers = _BY_CODE.get(code, Error), ()  # type: Type[Error], Tuple[int, ...]
    for candidate, form in _COMPILED:
        found = form.search(bare)
        if found:
            kind, groups = candidate, found.groupdict()
            if groups.get("list"):
                peers = _ranks(groups["list"])
            elif groups.get("peer"):
                peers = (int(groups["peer"]),)
            break
    # Only the advice about joining has more than one sentence.
    cause, _, remedy = bare.partition("; ") if kind is JoinFailed else bare.rpartition("; ")
    text = f"{prefix['label']}: {bare}" if prefix and prefix["label"] else bare
    if kind is Mismatch:
        listed = re.findall(r"ranks? ([\d, -]*\d):", cause)
        peers = tuple(sorted({rank for part in listed for rank in _ranks(part)}))
    return kind(text, rank=rank, peers=peers, cause=cause or bare, remedy=remedy if cause else "", code=code)


def last(code: int, rank: Optional[int] = None) -> Error:
    """The exception for the calling thread's last failed call, which returned `code`."""
    text = (C.consortGetLastError(None) or b"").decode("utf-8", "replace")
    if not text:
        text = (C.ncclGetErrorString(code) or b"").decode("utf-8", "replace")
    return parse(text, code, rank)


def check(code: int, rank: Optional[int] = None) -> None:
    """Raises the exception of a call that returned `code`, unless it is 0."""
    if code:
        raise last(code, rank)


def wrong(what: str, hint: str, rank: Optional[int] = None) -> InvalidArgument:
    """An argument that this package refuses: what is wrong with the values, and what to do."""
    return InvalidArgument(
        f"invalid argument: {what}; {hint}",
        rank=rank,
        cause=what,
        remedy=hint,
        code=RESULTS["ncclInvalidArgument"],
    )
