"""CuPy's NCCL binding on device memory and streams of the repository's stand-in for the CUDA driver (`standins/cuda`):
no GPU, and nothing is shown about one. Processes that share a device, and threads of one process.

CuPy's own arrays need CUDA's libraries; memory and streams come from the driver by ctypes, and CuPy passes their numbers
on. `cupy_device.py` is for machines with a GPU.
"""

import sys
import threading

import numpy
from cupy.cuda import nccl

import ranks
from cupy_nccl import FOLDS, NO_STREAM, TYPES, all_values, encode, same, values
from standin_cuda import Array, Driver, Stream

COUNT = 103


class Device:
    """A rank's device: arrays in its stream."""

    def __init__(self, driver, number, size):
        driver.use()
        self.driver, self.number, self.size = driver, number, size
        self.stream = Stream(driver)

    def array(self, kind, count=COUNT, number=None):
        return Array(self.driver, encode(values(self.number if number is None else number, count, kind), kind), self.stream)

    def room(self, kind, count=COUNT):
        return Array(self.driver, encode(numpy.full(count, 7), kind), self.stream)


def collectives(rank, comm, device):
    """Every type and operator; no call is waited for before its result is read in the stream."""
    me, size, stream = device.number, device.size, device.stream.ptr
    for turn, (kind, code) in enumerate(TYPES.items()):
        root = turn % size
        for operation, (op, fold) in FOLDS.items():
            want = fold(all_values(size, COUNT, kind))
            sent, got, mine = device.array(kind), device.room(kind), device.array(kind)
            comm.allReduce(sent.ptr, got.ptr, COUNT, code, op, stream)
            comm.allReduce(mine.ptr, mine.ptr, COUNT, code, op, stream)
            rank.check(f"all-reduce {kind} {operation}", same(got.get(), want, kind, operation))
            rank.check(f"the same in place, {kind} {operation}", same(mine.get(), want, kind, operation))
            got = device.room(kind)
            comm.reduce(sent.ptr, got.ptr, COUNT, code, op, root, stream)
            reduced = got.get()
            if me == root:
                rank.check(f"reduce {kind} {operation}", same(reduced, want, kind, operation))
            else:
                rank.check("a rank that is not the root", same(reduced, numpy.full(COUNT, 7), kind, "none"))
            wide, got = device.array(kind, COUNT * size), device.room(kind)
            comm.reduceScatter(wide.ptr, got.ptr, COUNT, code, op, stream)
            want = fold(all_values(size, COUNT * size, kind))[me * COUNT : (me + 1) * COUNT]
            rank.check(f"reduce-scatter {kind} {operation}", same(got.get(), want, kind, operation))
            wide.get(), sent.get()
        sent, got, mine = device.array(kind), device.room(kind), device.array(kind)
        whole = device.room(kind, COUNT * size)
        comm.broadcast(sent.ptr, got.ptr, COUNT, code, root, stream)
        comm.bcast(mine.ptr, COUNT, code, root, stream)
        comm.allGather(sent.ptr, whole.ptr, COUNT, code, stream)
        want = encode(values(root, COUNT, kind), kind)
        rank.check(f"broadcast {kind}", numpy.array_equal(got.get(), want))
        rank.check(f"the old broadcast {kind}", numpy.array_equal(mine.get(), want))
        want = numpy.concatenate([encode(values(other, COUNT, kind), kind) for other in range(size)])
        rank.check(f"all-gather {kind}", numpy.array_equal(whole.get(), want))
        sent.get()


def messages(rank, comm, device):
    """A ring as a group, and a refusal that sends nothing."""
    me, size, stream = device.number, device.size, device.stream.ptr
    sent, got = device.array("float32"), device.room("float32")
    nccl.groupStart()
    comm.send(sent.ptr, COUNT, nccl.NCCL_FLOAT32, (me + 1) % size, stream)
    comm.recv(got.ptr, COUNT, nccl.NCCL_FLOAT32, (me - 1) % size, stream)
    nccl.groupEnd()
    want = values((me - 1) % size, COUNT, "float32").astype("float32")
    rank.check("a ring in a group", numpy.array_equal(got.get(), want))
    host = numpy.zeros(COUNT, dtype="float32")
    error = rank.raises(
        "memory of a device and of the host in one call",
        nccl.NcclError,
        lambda: comm.allReduce(sent.ptr, host.ctypes.data, COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream),
    )
    rank.check("invalid usage", "INVALID_USAGE" in str(error), str(error))
    # All of a call on the host is moved by the host.
    host[:] = me + 1
    comm.allReduce(host.ctypes.data, host.ctypes.data, COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, NO_STREAM)
    rank.check("a call on host memory", bool((host == size * (size + 1) / 2).all()), str(host[:4]))
    sent.get()


def serve(rank, unique, number, size, driver):
    device = Device(driver, number, size)
    comm = nccl.NcclCommunicator(size, unique, number)
    rank.equal("its device", comm.device_id(), 0)
    collectives(rank, comm, device)
    messages(rank, comm, device)
    comm.check_async_error()
    comm.destroy()
    device.stream.close()


def started(rank):
    """The driver, once it is sure that it and the library are this repository's."""
    ranks.only_ours()
    driver = Driver()
    rank.check("that it is the stand-in", "stand-in" in driver.name(), driver.name())
    return driver


def processes(rank):
    driver = started(rank)
    unique = rank.share(nccl.get_unique_id() if rank.number == 0 else None)
    serve(rank, unique, rank.number, rank.size, driver)


def threads(rank):
    driver, unique, failures = started(rank), nccl.get_unique_id(), []

    def body(number):
        try:
            serve(rank, unique, number, 2, driver)
        except BaseException as error:
            failures.append(error)
            raise

    both = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(100)
        rank.check("a thread that ends", not thread.is_alive())
    rank.equal("failures", failures, [])


if __name__ == "__main__":
    print("on the stand-in driver, no GPU")
    jobs = [("CuPy on device memory", processes, 2), ("CuPy on device memory", processes, 4)]
    jobs += [("CuPy on device memory, 2 threads", threads, 1)]
    sys.exit(0 if all([ranks.run(*job, limit=150) for job in jobs]) else 1)
