"""CuPy's NCCL binding on device arrays and streams: every call of `cupy.cuda.nccl` that moves data, in processes that share
a GPU, in one thread with several ranks, and through `cupyx.distributed`.

    LIBNCCL=FILE LD_LIBRARY_PATH=ITS DIRECTORY python3 cupy_device.py [PROCESSES...]      1, 2 and 4 unless said

Results are compared with numpy's. `cupy_nccl.py` is the same binding on host memory, with all that needs no device.
"""

import multiprocessing
import os
import socket
import sys

import cupy
import numpy
from cupy.cuda import nccl
from cupyx.distributed import init_process_group

import ranks
from cupy_nccl import FOLDS, PLAIN, values


def array(number, count, kind):
    return cupy.asarray(values(number, count, kind).astype(kind))


def all_values(size, count, kind):
    return numpy.stack([values(number, count, kind) for number in range(size)])


def same(rank, what, got, want, is_rounded=False):
    got = cupy.asnumpy(got)
    want = numpy.asarray(want)
    equal = (
        numpy.allclose(got.astype(float), want.astype(float), rtol=1e-2)
        if is_rounded
        else numpy.array_equal(got, want.astype(got.dtype))
    )
    rank.check(what, equal, f"{got[:8]} instead of {want[:8]}")


def collectives(rank, comm, stream):
    """Every type and operator, in a stream of its own, in place and not."""
    me, size = rank.number, rank.size
    for kind, code in PLAIN.items():
        for operation, (op, fold) in FOLDS.items():
            if operation == "avg" and not kind.startswith("float"):
                continue
            for count in (1, 1003, 100000):
                sent, got = array(me, count, kind), cupy.full(count, 77, dtype=kind)
                want, is_rounded = fold(all_values(size, count, kind)), operation == "avg"
                comm.allReduce(sent.data.ptr, got.data.ptr, count, code, op, stream.ptr)
                stream.synchronize()
                same(rank, f"all-reduce {kind} {operation} {count}", got, want, is_rounded)
                comm.allReduce(sent.data.ptr, sent.data.ptr, count, code, op, stream.ptr)
                stream.synchronize()
                same(rank, f"the same in place, {kind} {operation}", sent, want, is_rounded)
            root = op % size
            sent, got = array(me, 1003, kind), cupy.full(1003, 77, dtype=kind)
            comm.reduce(sent.data.ptr, got.data.ptr, 1003, code, op, root, stream.ptr)
            stream.synchronize()
            want = fold(all_values(size, 1003, kind)) if me == root else numpy.full(1003, 77)
            same(rank, f"reduce {kind} {operation}", got, want, operation == "avg")
            sent, got = array(me, 1003 * size, kind), cupy.full(1003, 77, dtype=kind)
            comm.reduceScatter(sent.data.ptr, got.data.ptr, 1003, code, op, stream.ptr)
            stream.synchronize()
            want = fold(all_values(size, 1003 * size, kind))[me * 1003 : (me + 1) * 1003]
            same(rank, f"reduce-scatter {kind} {operation}", got, want, operation == "avg")
        for root in range(size):
            sent, got = array(me, 1003, kind), cupy.full(1003, 77, dtype=kind)
            comm.broadcast(sent.data.ptr, got.data.ptr, 1003, code, root, stream.ptr)
            comm.bcast(sent.data.ptr, 1003, code, root, stream.ptr)
            stream.synchronize()
            same(rank, f"broadcast {kind}", got, values(root, 1003, kind))
            same(rank, f"the old broadcast {kind}", sent, values(root, 1003, kind))
        sent, got = array(me, 1003, kind), cupy.full(1003 * size, 77, dtype=kind)
        comm.allGather(sent.data.ptr, got.data.ptr, 1003, code, stream.ptr)
        stream.synchronize()
        same(rank, f"all-gather {kind}", got, all_values(size, 1003, kind).reshape(-1))


def messages(rank, comm, stream):
    """A ring, and an all-to-all, as groups."""
    me, size = rank.number, rank.size
    sent, got = array(me, 1003, "float32"), cupy.zeros(1003, dtype="float32")
    nccl.groupStart()
    comm.send(sent.data.ptr, 1003, nccl.NCCL_FLOAT32, (me + 1) % size, stream.ptr)
    comm.recv(got.data.ptr, 1003, nccl.NCCL_FLOAT32, (me - 1) % size, stream.ptr)
    nccl.groupEnd()
    stream.synchronize()
    same(rank, "a ring in a group", got, values((me - 1) % size, 1003, "float32"))
    table = cupy.asarray(numpy.array([[me * 100 + other] * 3 for other in range(size)], dtype="float64"))
    filled = cupy.zeros_like(table)
    nccl.groupStart()
    for other in range(size):
        comm.send(table[other].data.ptr, 3, nccl.NCCL_FLOAT64, other, stream.ptr)
        comm.recv(filled[other].data.ptr, 3, nccl.NCCL_FLOAT64, other, stream.ptr)
    nccl.groupEnd()
    stream.synchronize()
    same(
        rank,
        "an all-to-all in a group",
        filled.reshape(-1),
        numpy.repeat([other * 100 + me for other in range(size)], 3),
    )


def body(rank):
    cupy.cuda.Device(rank.number % cupy.cuda.runtime.getDeviceCount()).use()
    unique = rank.share(nccl.get_unique_id() if rank.number == 0 else None)
    if "LIBNCCL" in os.environ:
        libraries, ours = ranks.loaded()
        rank.check("the library", ours in libraries, f"{sorted(libraries)}")
        rank.equal("whose id", unique[:4], b"cnst")
    comm = nccl.NcclCommunicator(rank.size, unique, rank.number)
    # The second is the legacy default stream, to which work before and behind belongs.
    for stream in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null):
        with stream:
            collectives(rank, comm, stream)
            messages(rank, comm, stream)
    comm.check_async_error()
    comm.destroy()


def distributed(rank):
    """The same library below `cupyx.distributed`, whose rendezvous is its own."""
    me, size = rank.number, rank.size
    # Rank 0 starts a process for the rendezvous, which a process that ends with its parent may not. CuPy's object for it is
    # not made to be pickled: it must be forked, which this process, spawned itself, would not do. The child calls no CUDA.
    multiprocessing.current_process().daemon = False
    multiprocessing.set_start_method("fork", force=True)
    cupy.cuda.Device(me % cupy.cuda.runtime.getDeviceCount()).use()
    port = 0
    if me == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    comm = init_process_group(size, me, host="127.0.0.1", port=rank.share(port))
    sent, got = array(me, 1003, "float32"), cupy.zeros(1003, dtype="float32")
    comm.all_reduce(sent, got, "sum")
    same(rank, "all_reduce", got, all_values(size, 1003, "float32").sum(axis=0))
    for root in range(size):
        got = sent.copy()
        comm.broadcast(got, root)
        same(rank, "broadcast", got, values(root, 1003, "float32"))
        comm.reduce(sent, got, root, "max")
        if me == root:
            same(rank, "reduce", got, all_values(size, 1003, "float32").max(axis=0))
        whole = cupy.zeros((size, 1003), dtype="float32")
        comm.gather(sent, whole, root)
        if me == root:
            same(rank, "gather", whole.reshape(-1), all_values(size, 1003, "float32").reshape(-1))
        comm.scatter(cupy.asarray(all_values(size, 1003, "float32").astype("float32")), got, root)
        same(rank, "scatter", got, values(me, 1003, "float32"))
    whole = cupy.zeros((size, 1003), dtype="float32")
    comm.all_gather(sent, whole, 1003)
    same(rank, "all_gather", whole.reshape(-1), all_values(size, 1003, "float32").reshape(-1))
    comm.all_to_all(cupy.asarray(all_values(size, 1003, "float32").astype("float32")), whole)
    same(rank, "all_to_all", whole.reshape(-1), numpy.tile(values(me, 1003, "float32"), size))
    comm.send_recv(sent, got, (me + 1) % size if size == 2 else me)
    same(rank, "send_recv", got, values((me + 1) % size if size == 2 else me, 1003, "float32"))
    comm.barrier()
    comm.stop()


def together(rank):
    """Ranks of one thread on one device, which NVIDIA's library refuses."""
    size = 4
    comms = nccl.NcclCommunicator.initAll([0] * size)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in comms]
    sent = [array(number, 5003, "float32") for number in range(size)]
    got = [cupy.zeros(5003, dtype="float32") for _ in range(size)]
    cupy.cuda.runtime.deviceSynchronize()
    for _ in range(10):
        nccl.groupStart()
        for number, comm in enumerate(comms):
            comm.allReduce(
                sent[number].data.ptr,
                got[number].data.ptr,
                5003,
                nccl.NCCL_FLOAT32,
                nccl.NCCL_SUM,
                streams[number].ptr,
            )
        nccl.groupEnd()
    for number, stream in enumerate(streams):
        stream.synchronize()
        same(rank, "a sum over four ranks of a thread", got[number], all_values(size, 5003, "float32").sum(axis=0))
    for comm in comms:
        comm.destroy()


if __name__ == "__main__":
    try:
        devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        print(f"SKIP: CuPy sees no GPU: {error}")
        sys.exit(77)
    sizes = [int(size) for size in sys.argv[1:]] or [1, 2, 4]
    jobs = [("CuPy on device arrays", body, size) for size in sizes]
    jobs += [("cupyx.distributed", distributed, size) for size in sizes]
    jobs += [("CuPy, one thread, one device", together, 1)]
    sys.exit(0 if all([ranks.run(*job, 120) for job in jobs]) else 1)
