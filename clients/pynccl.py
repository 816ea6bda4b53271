"""What vLLM's and SGLang's `pynccl` does with libnccl, in one file: ctypes, no header, no compiler.

The functions and their argument types are those of vLLM 0.33 (15 that it needs, 6 without which it turns a feature
off); the library comes from VLLM_NCCL_SO_PATH or the loader's own search. Each is called on two and on three ranks,
on host memory, and what it did is checked.
"""

import ctypes
import os
import sys

import ranks
from ctypes import POINTER, byref, c_bool, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p


class UniqueId(ctypes.Structure):
    """128 bytes, passed by value."""

    _fields_ = [("internal", ctypes.c_byte * 128)]


class Properties(ctypes.Structure):
    """ncclCommProperties_t as of 2.31; how much of it is filled depends on the version that the caller declares."""

    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("rank", c_int),
        ("nRanks", c_int),
        ("cudaDev", c_int),
        ("nvmlDev", c_int),
        ("deviceApiSupport", c_bool),
        ("multimemSupport", c_bool),
        ("ginType", c_int),
        ("nLsaTeams", c_int),
        ("hostRmaSupport", c_bool),
        ("railedGinType", c_int),
        ("commHash", c_uint64),
        ("ginMinStride", c_int),
        ("ginConnectionType", c_int),
        ("ginSupport", c_bool * 64),
        ("devCommRuntimeVersionSize", c_size_t),
    ]


MAGIC, NEWEST = 0xCAFEBEEF, 23102
FLOAT, SUM, MAX = 7, 0, 2
COLL_SYMMETRIC, SUSPEND_MEM = 1, 1

# The handle and the stream are both plain pointers to ctypes.
REQUIRED = {
    "ncclGetErrorString": (c_char_p, [c_int]),
    "ncclGetVersion": (c_int, [POINTER(c_int)]),
    "ncclGetUniqueId": (c_int, [POINTER(UniqueId)]),
    "ncclCommInitRank": (c_int, [POINTER(c_void_p), c_int, UniqueId, c_int]),
    "ncclAllReduce": (c_int, [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p]),
    "ncclReduce": (c_int, [c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, c_void_p, c_void_p]),
    "ncclAllGather": (c_int, [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p]),
    "ncclReduceScatter": (c_int, [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p]),
    "ncclSend": (c_int, [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p]),
    "ncclRecv": (c_int, [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p]),
    "ncclBroadcast": (c_int, [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p]),
    "ncclCommDestroy": (c_int, [c_void_p]),
    "ncclCommAbort": (c_int, [c_void_p]),
    "ncclGroupStart": (c_int, []),
    "ncclGroupEnd": (c_int, []),
}
OPTIONAL = {
    "ncclGetLastError": (c_char_p, [c_void_p]),
    "ncclCommSuspend": (c_int, [c_void_p, c_int]),
    "ncclCommResume": (c_int, [c_void_p]),
    "ncclCommWindowRegister": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_void_p), c_int]),
    "ncclCommWindowDeregister": (c_int, [c_void_p, c_void_p]),
    "ncclCommQueryProperties": (c_int, [c_void_p, POINTER(Properties)]),
}
# What vLLM's memory pool, compiled against nccl.h, calls besides.
POOL = {"ncclMemAlloc": (c_int, [POINTER(c_void_p), c_size_t]), "ncclMemFree": (c_int, [c_void_p])}


class Nccl:
    """The library, whose failures are exceptions with both of its texts."""

    def __init__(self):
        self.library = ctypes.CDLL(os.environ.get("VLLM_NCCL_SO_PATH") or "libnccl.so.2")
        self.functions = {}
        for name, (result, arguments) in {**REQUIRED, **OPTIONAL, **POOL}.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments
            self.functions[name] = function

    def __call__(self, name, *arguments):
        result = self.functions["nccl" + name](*arguments)
        if result != 0:
            text = self.functions["ncclGetErrorString"](result).decode()
            last = self.functions["ncclGetLastError"](None).decode()
            raise RuntimeError(f"nccl{name}: NCCL error: {text}\nLast error:\n{last}")

    def version(self):
        """The number, and the text that vLLM cuts from its digits."""
        number = c_int()
        self("GetVersion", byref(number))
        digits = str(number.value)
        return number.value, ".".join(part.lstrip("0") for part in (digits[0], digits[1:3], digits[3:]))


def floats(*values):
    return (c_float * len(values))(*values)


def collectives(rank, nccl, comm):
    """Every operation once, as vLLM calls them: pointers, a count, codes, a stream."""
    me, size, stream = rank.number, rank.size, None
    mine = [float(me * 10 + index) for index in range(size * 4)]
    sums = [sum(float(other * 10 + index) for other in range(size)) for index in range(size * 4)]
    count = size * 4

    output = floats(*[-1.0] * count)
    nccl("AllReduce", floats(*mine), output, count, FLOAT, SUM, comm, stream)
    rank.equal("all-reduce", list(output), sums)
    output = floats(*mine)
    nccl("AllReduce", output, output, count, FLOAT, MAX, comm, stream)
    rank.equal("all-reduce in place", list(output), [(size - 1) * 10.0 + index for index in range(count)])

    for root in range(size):
        output = floats(*[-1.0] * count)
        nccl("Reduce", floats(*mine), output, count, FLOAT, SUM, root, comm, stream)
        rank.equal(f"reduce to {root}", list(output), sums if me == root else [-1.0] * count)
        output = floats(*mine)
        nccl("Broadcast", output, output, count, FLOAT, root, comm, stream)
        rank.equal(f"broadcast from {root}", list(output), [float(root * 10 + index) for index in range(count)])

    output = floats(*[-1.0] * (size * count))
    nccl("AllGather", floats(*mine), output, count, FLOAT, comm, stream)
    all_values = [float(other * 10 + index) for other in range(size) for index in range(count)]
    rank.equal("all-gather", list(output), all_values)
    output = floats(*[-1.0] * 4)
    nccl("ReduceScatter", floats(*mine), output, 4, FLOAT, SUM, comm, stream)
    rank.equal("reduce-scatter", list(output), sums[me * 4 : me * 4 + 4])

    if me == 0:
        nccl("Send", floats(1.5, 2.5), 2, FLOAT, 1, comm, stream)
    elif me == 1:
        output = floats(0.0, 0.0)
        nccl("Recv", output, 2, FLOAT, 0, comm, stream)
        rank.equal("send and receive", list(output), [1.5, 2.5])


def groups(rank, nccl, comm):
    """An all-gather and a reduce-scatter of blocks that differ in length, which vLLM builds as groups, and a ring."""
    me, size = rank.number, rank.size
    lengths = [index + 1 for index in range(size)]
    output = floats(*[-1.0] * sum(lengths))
    starts = [sum(lengths[:index]) for index in range(size)]
    mine = floats(*[me + 0.5] * lengths[me])
    nccl("GroupStart")
    for root in range(size):
        place = ctypes.addressof(output) + 4 * starts[root]
        nccl("Broadcast", mine if me == root else None, place, lengths[root], FLOAT, root, comm, None)
    nccl("GroupEnd")
    rank.equal("a group of broadcasts", list(output), [root + 0.5 for root in range(size) for _ in range(root + 1)])

    everything = floats(*[me + index for index in range(sum(lengths))])
    output = floats(*[-1.0] * lengths[me])
    nccl("GroupStart")
    for root in range(size):
        place = ctypes.addressof(everything) + 4 * starts[root]
        nccl("Reduce", place, output, lengths[root], FLOAT, SUM, root, comm, None)
    nccl("GroupEnd")
    want = [sum(other + index for other in range(size)) for index in range(starts[me], starts[me] + lengths[me])]
    rank.equal("a group of reduces", list(output), [float(value) for value in want])

    sent, received = floats(me, me), floats(-1.0, -1.0)
    nccl("GroupStart")
    nccl("Send", sent, 2, FLOAT, (me + 1) % size, comm, None)
    nccl("Recv", received, 2, FLOAT, (me - 1) % size, comm, None)
    nccl("GroupEnd")
    rank.equal("a ring in a group", list(received), [float((me - 1) % size)] * 2)


def features(rank, nccl, comm, version):
    """What vLLM uses when the library has it."""
    properties = Properties(ctypes.sizeof(Properties), MAGIC, min(version, NEWEST))
    nccl("CommQueryProperties", comm, byref(properties))
    rank.equal("properties", (properties.rank, properties.nRanks), (rank.number, rank.size))
    rank.equal("device API", properties.deviceApiSupport, False)

    memory, window = c_void_p(), c_void_p()
    nccl("MemAlloc", byref(memory), 1 << 20)
    rank.check("memory", memory.value)
    nccl("CommWindowRegister", comm, memory, 1 << 20, byref(window), COLL_SYMMETRIC)
    values = ctypes.cast(memory, POINTER(c_float))
    for index in range(1024):
        values[index] = rank.number + index
    nccl("AllReduce", memory, memory, 1024, FLOAT, SUM, comm, None)
    offset = sum(range(rank.size))
    want = [float(offset + rank.size * index) for index in range(1024)]
    rank.equal("all-reduce in a window", values[:1024], want)
    nccl("CommWindowDeregister", comm, window)
    nccl("MemFree", memory)

    nccl("CommSuspend", comm, SUSPEND_MEM)
    nccl("CommResume", comm)
    output = floats(1.0)
    nccl("AllReduce", output, output, 1, FLOAT, SUM, comm, None)
    rank.equal("all-reduce after suspend and resume", output[0], float(rank.size))


def failures(rank, nccl, comm):
    """A wrong call says why, and does no harm."""
    output = floats(1.0)
    error = rank.raises(
        "data type 99", RuntimeError, lambda: nccl("AllReduce", output, output, 1, 99, SUM, comm, None)
    )
    rank.check("the result's text", "invalid argument" in str(error), str(error))
    rank.check("the last error's text", "99" in str(error).split("Last error:\n")[1], str(error))
    nccl("AllReduce", output, output, 1, FLOAT, SUM, comm, None)
    rank.equal("all-reduce after a wrong call", output[0], float(rank.size))


def init(rank, nccl):
    unique = UniqueId()
    if rank.number == 0:
        nccl("GetUniqueId", byref(unique))
        rank.equal("whose id", bytes(unique)[:4], b"cnst")
    # vLLM broadcasts the bytes and copies them into a structure of its own.
    ctypes.memmove(byref(unique), rank.share(bytes(unique)), 128)
    comm = c_void_p()
    nccl("CommInitRank", byref(comm), rank.size, unique, rank.number)
    return comm


def body(rank):
    nccl = Nccl()
    rank.explain = lambda: nccl.functions["ncclGetLastError"](None).decode()
    ranks.only_ours()
    version, text = nccl.version()
    rank.check("five digits", 20000 <= version <= 99999, str(version))
    rank.equal("the text", text, f"{version // 10000}.{version // 100 % 100}.{version % 100}")
    comm = init(rank, nccl)
    collectives(rank, nccl, comm)
    groups(rank, nccl, comm)
    failures(rank, nccl, comm)
    features(rank, nccl, comm, version)
    nccl("CommDestroy", comm)
    nccl("CommAbort", init(rank, nccl))


if __name__ == "__main__":
    sys.exit(0 if all([ranks.run("pynccl", body, size) for size in (2, 3)]) else 1)
