"""CuPy's own NCCL binding, unchanged, on numpy arrays: everything that `cupy.cuda.nccl` offers, on two and three ranks.

CuPy's extension is linked against libnccl.so.2 and passes addresses on without looking at them, so it needs no GPU
here. The results of every collective are compared with numpy's.
"""

import sys
import threading
import time

import numpy
from cupy.cuda import nccl

import ranks


class Bfloat16:
    """A type that numpy lacks: the upper halves of float32."""

    @staticmethod
    def encode(values):
        return (values.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)

    @staticmethod
    def decode(values):
        return (values.astype(numpy.uint32) << 16).view(numpy.float32)


PLAIN = {
    "int8": nccl.NCCL_INT8,
    "uint8": nccl.NCCL_UINT8,
    "int32": nccl.NCCL_INT32,
    "uint32": nccl.NCCL_UINT32,
    "int64": nccl.NCCL_INT64,
    "uint64": nccl.NCCL_UINT64,
    "float16": nccl.NCCL_FLOAT16,
    "float32": nccl.NCCL_FLOAT32,
    "float64": nccl.NCCL_FLOAT64,
}
TYPES = {**PLAIN, "bfloat16": nccl.NCCL_BFLOAT16}
FOLDS = {
    "sum": (nccl.NCCL_SUM, lambda all_of_them: all_of_them.sum(axis=0)),
    "prod": (nccl.NCCL_PROD, lambda all_of_them: all_of_them.prod(axis=0)),
    "max": (nccl.NCCL_MAX, lambda all_of_them: all_of_them.max(axis=0)),
    "min": (nccl.NCCL_MIN, lambda all_of_them: all_of_them.min(axis=0)),
    "avg": (nccl.NCCL_AVG, lambda all_of_them: all_of_them.sum(axis=0) / len(all_of_them)),
}
FLOAT, SUM, NO_STREAM = nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0


def values(number, count, kind):
    """A rank's values: small numbers, so that every fold is exact in every type but for the rounding of avg."""
    index = numpy.arange(count, dtype=numpy.int64)
    return (index * 7 + number * 3) % 5 - (0 if kind.startswith("u") else 2)


def encode(wide, kind):
    return Bfloat16.encode(wide) if kind == "bfloat16" else wide.astype(kind)


def same(got, want, kind, operation):
    """Whether an array of a type has these values; 0 and -0 are one."""
    got = Bfloat16.decode(got) if kind == "bfloat16" else got
    if operation == "avg" and got.dtype.kind == "f":
        return numpy.allclose(got.astype(float), want, rtol=0, atol=1e-6 if kind in ("float32", "float64") else 0.02)
    # An average of integers is cut off toward zero.
    return numpy.array_equal(got, numpy.trunc(want).astype(got.dtype))


def all_values(size, count, kind):
    return numpy.stack([values(number, count, kind) for number in range(size)])


def reductions(rank, comm):
    """Every type with every operator, in place and not; each root."""
    me, size = rank.number, rank.size
    for kind, code in TYPES.items():
        for operation, (op, fold) in FOLDS.items():
            for count in (1, 1003):
                mine, want = values(me, count, kind), fold(all_values(size, count, kind))
                sent = encode(mine, kind)
                got = numpy.zeros_like(sent)
                comm.allReduce(sent.ctypes.data, got.ctypes.data, count, code, op, NO_STREAM)
                rank.check(f"all-reduce {kind} {operation} {count}", same(got, want, kind, operation), str(got[:8]))
                comm.allReduce(sent.ctypes.data, sent.ctypes.data, count, code, op, NO_STREAM)
                rank.check(f"the same in place, {kind} {operation} {count}", same(sent, want, kind, operation))

                sent, root = encode(mine, kind), (count + op) % size
                got = numpy.zeros_like(sent)
                comm.reduce(sent.ctypes.data, got.ctypes.data, count, code, op, root, NO_STREAM)
                kept = numpy.zeros(count)
                rank.check(
                    f"reduce {kind} {operation} to {root}",
                    same(got, want if me == root else kept, kind, operation if me == root else "none"),
                )

                wide = values(me, count * size, kind)
                want = fold(all_values(size, count * size, kind))[me * count : (me + 1) * count]
                sent = encode(wide, kind)
                got = numpy.zeros(count, dtype=sent.dtype)
                comm.reduceScatter(sent.ctypes.data, got.ctypes.data, count, code, op, NO_STREAM)
                rank.check(f"reduce-scatter {kind} {operation}", same(got, want, kind, operation))


def copies(rank, comm):
    """Every type through what moves bytes."""
    me, size = rank.number, rank.size
    for kind, code in TYPES.items():
        for count in (1, 1003):
            mine = encode(values(me, count, kind), kind)
            for root in range(size):
                want = encode(values(root, count, kind), kind)
                got = numpy.zeros_like(mine)
                # Only the root's input is looked at.
                comm.broadcast(mine.ctypes.data if me == root else 0, got.ctypes.data, count, code, root, NO_STREAM)
                rank.check(f"broadcast {kind} from {root}", numpy.array_equal(got, want))
                got = mine.copy()
                comm.bcast(got.ctypes.data, count, code, root, NO_STREAM)
                rank.check(f"the old broadcast, {kind} from {root}", numpy.array_equal(got, want))
            want = numpy.concatenate([encode(values(number, count, kind), kind) for number in range(size)])
            got = numpy.zeros_like(want)
            comm.allGather(mine.ctypes.data, got.ctypes.data, count, code, NO_STREAM)
            rank.check(f"all-gather {kind}", numpy.array_equal(got, want))
            got[:] = 0
            block = got[me * count : (me + 1) * count]
            block[:] = mine
            comm.allGather(block.ctypes.data, got.ctypes.data, count, code, NO_STREAM)
            rank.check(f"all-gather in place, {kind}", numpy.array_equal(got, want))


def large(rank, comm):
    """More than what fits into any staging buffer."""
    count = 5_000_011
    sent = numpy.full(count, rank.number + 1, dtype=numpy.float32)
    comm.allReduce(sent.ctypes.data, sent.ctypes.data, count, FLOAT, SUM, NO_STREAM)
    rank.check("all-reduce of 20 MB", bool((sent == sum(range(1, rank.size + 1))).all()))


def messages(rank, comm):
    """One message between two, a ring and an all-to-all as groups."""
    me, size = rank.number, rank.size
    sent, got = numpy.full(10, me, dtype=numpy.int32), numpy.full(10, -1, dtype=numpy.int32)
    if me == 0:
        comm.send(sent.ctypes.data, 10, nccl.NCCL_INT32, 1, NO_STREAM)
    elif me == 1:
        comm.recv(got.ctypes.data, 10, nccl.NCCL_INT32, 0, NO_STREAM)
        rank.check("send and receive", bool((got == 0).all()))

    nccl.groupStart()
    comm.send(sent.ctypes.data, 10, nccl.NCCL_INT32, (me + 1) % size, NO_STREAM)
    comm.recv(got.ctypes.data, 10, nccl.NCCL_INT32, (me - 1) % size, NO_STREAM)
    nccl.groupEnd()
    rank.check("a ring in a group", bool((got == (me - 1) % size).all()))

    # CuPy's own distributed module builds its all-to-all like this, itself included.
    table = numpy.array([[me * 100 + other] * 3 for other in range(size)], dtype=numpy.float64)
    filled = numpy.zeros_like(table)
    nccl.groupStart()
    for other in range(size):
        comm.send(table[other].ctypes.data, 3, nccl.NCCL_FLOAT64, other, NO_STREAM)
        comm.recv(filled[other].ctypes.data, 3, nccl.NCCL_FLOAT64, other, NO_STREAM)
    nccl.groupEnd()
    want = numpy.array([[other * 100 + me] * 3 for other in range(size)], dtype=numpy.float64)
    rank.check("an all-to-all in a group", numpy.array_equal(filled, want), str(filled))

    buffers = [numpy.full(100 + index, me + index, dtype=numpy.float32) for index in range(4)]
    nccl.groupStart()
    for buffer in buffers:
        comm.allReduce(buffer.ctypes.data, buffer.ctypes.data, buffer.size, FLOAT, SUM, NO_STREAM)
    nccl.groupEnd()
    for index, buffer in enumerate(buffers):
        want = sum(range(size)) + size * index
        rank.check("all-reduces in a group", bool((buffer == want).all()), str(buffer[:4]))


def works(rank, comm, what):
    """One small sum."""
    buffer = numpy.ones(3, dtype=numpy.float32)
    comm.allReduce(buffer.ctypes.data, buffer.ctypes.data, 3, FLOAT, SUM, NO_STREAM)
    rank.check(what, bool((buffer == comm.size()).all()), str(buffer))


def failures(rank, comm):
    """Wrong arguments are CuPy's exception, at once, and do no harm."""
    buffer = numpy.ones(3, dtype=numpy.float32)
    address = buffer.ctypes.data
    wrong = {
        "data type": lambda: comm.allReduce(address, address, 3, 99, SUM, NO_STREAM),
        "operator": lambda: comm.allReduce(address, address, 3, FLOAT, 99, NO_STREAM),
        "root": lambda: comm.broadcast(address, address, 3, FLOAT, rank.size, NO_STREAM),
        "negative root": lambda: comm.bcast(address, 3, FLOAT, -1, NO_STREAM),
        "peer": lambda: comm.send(address, 3, FLOAT, rank.size, NO_STREAM),
        "no group": nccl.groupEnd,
    }
    for what, call in wrong.items():
        text = str(rank.raises(f"a wrong {what}", nccl.NcclError, call))
        kind = "NCCL_ERROR_INVALID_USAGE" if what == "no group" else "NCCL_ERROR_INVALID_ARGUMENT"
        rank.check(f"the text for a wrong {what}", text.startswith(kind), text)
    works(rank, comm, "a sum after wrong calls")

    # A wrong call in a group ends the group, too, and nothing of it happens.
    nccl.groupStart()
    comm.allReduce(address, address, 3, FLOAT, SUM, NO_STREAM)
    rank.raises("a wrong call in a group", nccl.NcclError, lambda: comm.allReduce(address, address, 3, 99, SUM, NO_STREAM))
    rank.raises("the end of such a group", nccl.NcclError, nccl.groupEnd)
    rank.check("a group that failed does nothing", bool((buffer == 1).all()))
    works(rank, comm, "a sum after a group that failed")
    comm.check_async_error()


def parts(rank, comm):
    """Communicators made from one."""
    me, size = rank.number, rank.size
    reverse = comm.commSplit(0, -me)
    rank.equal("the size of a split", reverse.size(), size)
    rank.equal("the rank in a split by a key", reverse.rank_id(), size - 1 - me)
    works(rank, reverse, "a sum in a split")
    half = comm.commSplit(me % 2, me, nccl.NcclConfig(split_share=1))
    rank.equal("the size of a half", half.size(), len(range(me % 2, size, 2)))
    works(rank, half, "a sum in a half")
    without = comm.commSplit(0 if me else -1, me)
    rank.equal("who is left out has none", without is None, me == 0)
    if without is not None:
        works(rank, without, "a sum without rank 0")
        without.destroy()
    half.destroy()
    reverse.destroy()
    works(rank, comm, "a sum in the parent afterwards")


def stopped(rank, comm):
    """A call that waits for a rank that never comes, ended by another thread."""
    buffer, seen = numpy.ones(3, dtype=numpy.float32), []

    def wait():
        try:
            comm.allReduce(buffer.ctypes.data, buffer.ctypes.data, 3, FLOAT, SUM, NO_STREAM)
        except nccl.NcclError as error:
            seen.append(error)

    if rank.number == rank.size - 1:
        # Stays away until the first one has seen its call end.
        rank.meet()
        rank.share()
        comm.abort()
        return
    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    if rank.number == 0:
        rank.check("a call waits", thread.is_alive())
    # Another one's abort ends this one's call too.
    rank.meet()
    comm.abort()
    thread.join(20)
    rank.check("an aborted call ends", not thread.is_alive())
    rank.check("with an error", len(seen) == 1, str(seen))
    rank.share(True)
    # CuPy forgets the handle, so what it passes from now on is null.
    rank.raises("a call after an abort", nccl.NcclError, comm.size)
    rank.raises("the state after an abort", nccl.NcclError, comm.check_async_error)
    comm.abort()


def body(rank):
    ranks.only_ours()
    version = nccl.get_version()
    rank.check("the version", 20000 <= version <= 99999, str(version))
    rank.check("the version CuPy was built with", nccl.get_build_version() >= 22000, str(nccl.get_build_version()))
    unique = rank.share(nccl.get_unique_id() if rank.number == 0 else None)
    rank.equal("whose id", (len(unique), unique[:4]), (128, b"cnst"))
    comm = nccl.NcclCommunicator(rank.size, unique, rank.number)
    rank.equal("the getters", (comm.size(), comm.rank_id()), (rank.size, rank.number))
    rank.check("the device", comm.device_id() >= 0, str(comm.device_id()))
    rank.check("the handle", comm.comm != 0)
    for part in (reductions, copies, large, messages, failures, parts):
        part(rank, comm)
    comm.check_async_error()
    comm.destroy()
    comm.destroy()
    # With CuPy's configuration object.
    unique = rank.share(nccl.get_unique_id() if rank.number == 0 else None)
    comm = nccl.NcclCommunicator(rank.size, unique, rank.number, nccl.NcclConfig(split_share=1))
    works(rank, comm, "a sum with a configuration")
    stopped(rank, comm)


def together(rank):
    """All ranks in one thread: initAll, then groups."""
    for devices, size in ((2, 2), ([0, 1, 2], 3)):
        comms = nccl.NcclCommunicator.initAll(devices)
        got = [(comm.size(), comm.rank_id(), comm.device_id()) for comm in comms]
        rank.equal("the getters of initAll", got, [(size, number, number) for number in range(size)])
        buffers = [numpy.full(1003, number + 1, dtype=numpy.float64) for number in range(size)]
        nccl.groupStart()
        for comm, buffer in zip(comms, buffers):
            comm.allReduce(buffer.ctypes.data, buffer.ctypes.data, 1003, nccl.NCCL_FLOAT64, SUM, NO_STREAM)
        nccl.groupEnd()
        for buffer in buffers:
            rank.check("a sum over one thread", bool((buffer == sum(range(1, size + 1))).all()), str(buffer[:4]))
        for comm in comms:
            comm.destroy()
    # NCCL refuses two ranks of one device; on host memory there is none to share.
    twice = nccl.NcclCommunicator.initAll([0, 0])
    rank.check("the same device twice", [comm.device_id() for comm in twice] == [0, 0])
    for comm in twice:
        comm.destroy()


if __name__ == "__main__":
    jobs = [("CuPy", body, 2), ("CuPy", body, 3), ("CuPy, one thread", together, 1)]
    sys.exit(0 if all([ranks.run(*job) for job in jobs]) else 1)
