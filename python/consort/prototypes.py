"""The C functions that the package calls, with the types of their arguments, and the numbers of NCCL's enumerations.

Invariant: everything here is in `include/nccl.h` or `include/consort.h`, with the same values and as many arguments; a
test compares. Absent: what the functions do.
"""

from __future__ import annotations

import ctypes
import threading
from ctypes import POINTER, c_char_p, c_double, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Optional

from . import library

UNIQUE_ID_BYTES = 128

#: `ncclResult_t`
RESULTS = {
    "ncclSuccess": 0,
    "ncclUnhandledCudaError": 1,
    "ncclSystemError": 2,
    "ncclInternalError": 3,
    "ncclInvalidArgument": 4,
    "ncclInvalidUsage": 5,
    "ncclRemoteError": 6,
    "ncclInProgress": 7,
    "ncclTimeout": 8,
}

#: `ncclDataType_t`
DATA_TYPES = {
    "ncclInt8": 0,
    "ncclUint8": 1,
    "ncclInt32": 2,
    "ncclUint32": 3,
    "ncclInt64": 4,
    "ncclUint64": 5,
    "ncclFloat16": 6,
    "ncclFloat32": 7,
    "ncclFloat64": 8,
    "ncclBfloat16": 9,
    "ncclFloat8e4m3": 10,
    "ncclFloat8e5m2": 11,
}

#: `ncclRedOp_t`
OPERATORS = {"ncclSum": 0, "ncclProd": 1, "ncclMax": 2, "ncclMin": 3, "ncclAvg": 4}

#: `ncclScalarResidence_t`
SCALAR_HOST_IMMEDIATE = 1
#: `NCCL_SPLIT_NOCOLOR`
SPLIT_NO_COLOR = -1
#: `NCCL_SHRINK_DEFAULT` and `NCCL_SHRINK_ABORT`
SHRINK_DEFAULT, SHRINK_ABORT = 0, 1
#: `CONSORT_TIMEOUT_NONE` and `CONSORT_TIMEOUT_INHERIT`, in seconds
TIMEOUT_NONE, TIMEOUT_INHERIT = -1.0, -2.0
#: `consortFormat_t`
TEXT, JSON = 0, 1
#: `consortCollective_t`, by the names that this package has for the calls
COLLECTIVES = {
    "all_reduce": 0,
    "broadcast": 1,
    "reduce": 2,
    "all_gather": 3,
    "reduce_scatter": 4,
    "all_to_all": 5,
    "gather": 6,
    "scatter": 7,
}


class UniqueId(ctypes.Structure):
    """`ncclUniqueId`, passed by value."""

    _fields_ = [("internal", ctypes.c_ubyte * UNIQUE_ID_BYTES)]


_UNDEFINED = -(2**31)
_INTEGERS = "blocking cgaClusterSize minCTAs maxCTAs | splitShare trafficClass | collnetEnable CTAPolicy shrinkShare \
nvlsCTAs nChannelsPerNetPeer nvlinkCentricSched graphUsageMode numRmaCtx maxP2pPeers graphStreamOrdering \
launchOrderImplicit numRmaSig rmaEagerInit hostCftMode nvlsHostMode".split(" | ")


class Config(ctypes.Structure):
    """`ncclConfig_t`, with every member left to the library."""

    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        *((name, c_int) for name in _INTEGERS[0].split()),
        ("netName", c_char_p),
        *((name, c_int) for name in _INTEGERS[1].split()),
        ("commName", c_char_p),
        *((name, c_int) for name in _INTEGERS[2].split()),
    ]

    def __init__(self, name: Optional[str] = None):
        super().__init__(size=ctypes.sizeof(Config), magic=0xCAFEBEEF, version=23203)
        for part in _INTEGERS:
            for member in part.split():
                setattr(self, member, _UNDEFINED)
        if name is not None:
            self.commName = name.encode()


# Handles, buffers and streams are numbers here.
_P, _N, _I = c_void_p, c_size_t, c_int
_TEXT = [c_char_p, _N, POINTER(c_size_t)]
# comm, stream
_END = [_P, _P]

#: The arguments of each function; all but those of `OTHER_RESULTS` return an `ncclResult_t`.
FUNCTIONS: "dict[str, list[Any]]" = {
    "ncclGetVersion": [POINTER(c_int)],
    "ncclGetUniqueId": [POINTER(UniqueId)],
    "ncclCommInitRankConfig": [POINTER(c_void_p), _I, UniqueId, _I, POINTER(Config)],
    "ncclCommInitAll": [POINTER(c_void_p), _I, POINTER(c_int)],
    "ncclCommSplit": [_P, _I, _I, POINTER(c_void_p), POINTER(Config)],
    "ncclCommShrink": [_P, POINTER(c_int), _I, POINTER(c_void_p), POINTER(Config), _I],
    "ncclCommGetUniqueId": [_P, POINTER(UniqueId)],
    "ncclCommGrow": [_P, _I, POINTER(UniqueId), _I, POINTER(c_void_p), POINTER(Config)],
    "ncclCommDestroy": [_P],
    "ncclCommAbort": [_P],
    "ncclCommGetAsyncError": [_P, POINTER(c_int)],
    "ncclCommCount": [_P, POINTER(c_int)],
    "ncclCommUserRank": [_P, POINTER(c_int)],
    "ncclCommMemStats": [_P, _I, POINTER(c_uint64)],
    "ncclRedOpCreatePreMulSum": [POINTER(c_int), _P, _I, _I, _P],
    "ncclRedOpDestroy": [_I, _P],
    "ncclAllReduce": [_P, _P, _N, _I, _I, *_END],
    "ncclBroadcast": [_P, _P, _N, _I, _I, *_END],
    "ncclReduce": [_P, _P, _N, _I, _I, _I, *_END],
    "ncclAllGather": [_P, _P, _N, _I, *_END],
    "ncclReduceScatter": [_P, _P, _N, _I, _I, *_END],
    "ncclAlltoAll": [_P, _P, _N, _I, *_END],
    "ncclGather": [_P, _P, _N, _I, _I, *_END],
    "ncclScatter": [_P, _P, _N, _I, _I, *_END],
    "ncclSend": [_P, _N, _I, _I, *_END],
    "ncclRecv": [_P, _N, _I, _I, *_END],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "consortLaunch": [POINTER(c_int), POINTER(c_int), POINTER(UniqueId)],
    "consortAllGatherV": [_P, _P, _P, _P, _I, *_END],
    "consortReduceScatterV": [_P, _P, _P, _P, _I, _I, *_END],
    "consortAllToAllV": [_P, _P, _P, _P, _P, _P, _I, *_END],
    "consortGatherV": [_P, _P, _N, _P, _P, _I, _I, *_END],
    "consortScatterV": [_P, _P, _P, _P, _N, _I, _I, *_END],
    "consortCommReport": [_P, _I, *_TEXT],
    "consortCommLastReport": [_P, _I, *_TEXT],
    "consortCommFlightRecord": [_P, _I, *_TEXT],
    "consortCommStragglers": [_P, _I, *_TEXT],
    "consortCommExplain": [_P, _I, _N, _I, *_TEXT],
    "consortCommStatus": [_P, *_TEXT],
    "consortCommSetTimeout": [_P, c_double],
    "consortCommGetTimeout": [_P, POINTER(c_double)],
    "consortThreadSetTimeout": [c_double, POINTER(c_double)],
    "consortCommAbort": [_P, c_char_p],
    "consortCommRevoke": [_P, c_char_p],
    "consortMemRegisterFd": [_P, _N, _I, c_uint64, POINTER(c_void_p)],
    "consortMemDeregister": [_P],
    "consortGetLastError": [_P],
    "ncclGetErrorString": [_I],
}

#: Functions that return no `ncclResult_t`.
OTHER_RESULTS = {"consortGetLastError": c_char_p, "ncclGetErrorString": c_char_p}


class Functions:
    """The functions of `FUNCTIONS` as attributes; the first use of an instance opens the library."""

    _lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if name not in FUNCTIONS:
            raise AttributeError(name)
        with self._lock:
            opened = library.load()
            for known, arguments in FUNCTIONS.items():
                function = getattr(opened, known, None)
                if function is None:
                    raise ImportError(
                        f"{opened._name} has no {known}: it is not the library that this package was made for; unset "
                        "CONSORT_LIBRARY or build it anew"
                    )
                function.argtypes = arguments
                function.restype = OTHER_RESULTS.get(known, c_int)
                setattr(self, known, function)
        return self.__dict__[name]


C = Functions()
