"""NVIDIA's own Python binding, nccl4py, unchanged: the newest interface as a whole, on numpy arrays.

Its low-level half (`nccl.bindings`) is generated from NVIDIA's header and needs no CUDA: structures have NVIDIA's
layout, and every `ncclResult_t` but success and in-progress is an exception. Every part is a job of its own, so that
one that fails does not hide the others. Calls that need a device (device communicators, pointers for kernels) are only checked
to be refused.
"""

import ctypes
import sys
import time

import numpy
from nccl.bindings import nccl

import ranks

FLOAT, SUM, MAX = int(nccl.DataType.Float32), int(nccl.RedOp.Sum), int(nccl.RedOp.Max)
NO_STREAM, DEFAULT = 0, 0
COLL_SYMMETRIC, SUSPEND_MEM, SHRINK_ABORT = 1, 1, 1


class Address(int):
    """Where something is, which stays there as long as this does: an argument outlives its call."""

    def __new__(cls, address, owner):
        self = super().__new__(cls, address)
        self.owner = owner
        return self


def at(array):
    return Address(array.ctypes.data, array)


def struct(value):
    """The address of one of the binding's structures."""
    return Address(value.ptr, value)


def id_from(data):
    unique = nccl.UniqueId()
    ctypes.memmove(unique.ptr, data, 128)
    return unique


def id_bytes(unique):
    return ctypes.string_at(struct(unique), 128)


def join(rank, configure=None):
    """A communicator of all ranks; `configure` may change its configuration."""
    rank.explain = lambda: nccl.get_last_error(nccl.Comm(0))
    unique = id_from(rank.share(id_bytes(nccl.get_unique_id()) if rank.number == 0 else None))
    if configure is None:
        return nccl.comm_init_rank(rank.size, unique, rank.number)
    config = nccl.Config()
    configure(config)
    return nccl.comm_init_rank_config(rank.size, unique, rank.number, struct(config))


def floats(count, value):
    return numpy.full(count, value, dtype=numpy.float32)


def works(rank, comm, what, size=None):
    """One small sum."""
    buffer = floats(5, 1)
    nccl.all_reduce(at(buffer), at(buffer), 5, FLOAT, SUM, comm, NO_STREAM)
    rank.check(what, bool((buffer == (size or rank.size)).all()), str(buffer))


def wait_until_ready(rank, comm, what):
    """Polls the state until it is no longer "in progress"."""
    ends = time.monotonic() + 20
    while (state := nccl.comm_get_async_error(comm)) == nccl.Result.InProgress and time.monotonic() < ends:
        time.sleep(0.001)
    rank.equal(what, int(state), int(nccl.Result.Success))


def collectives(rank):
    """Every collective, plain and with a configuration of the call."""
    comm, me, size, count = join(rank), rank.number, rank.size, 1001
    rank.equal("count", nccl.comm_count(comm), size)
    rank.equal("user rank", nccl.comm_user_rank(comm), me)
    rank.check("device", nccl.comm_cu_device(comm) >= 0)
    tuned = nccl.CollConfig()
    tuned.user_profiler_tag = 7
    mine, sums = floats(count, me + 1), sum(range(1, size + 1))
    table = numpy.arange(size * count, dtype=numpy.float32).reshape(size, count) + 100_000 * me
    # Name, whether there is an operator, input, output, what it must hold at the end, root.
    block = numpy.arange(count, dtype=numpy.float32) + me * count
    root = size - 1
    at_root = me == root
    gathered = numpy.repeat(numpy.arange(1, size + 1, dtype=numpy.float32), count)
    untouched = floats(size * count, -1)
    calls = [
        ("all_reduce", True, mine, floats(count, -1), floats(count, sums), None),
        ("reduce", True, mine, floats(count, -1), floats(count, sums if at_root else -1), root),
        ("broadcast", False, mine, floats(count, -1), floats(count, root + 1), root),
        ("all_gather", False, mine, floats(size * count, -1), gathered, None),
        ("gather", False, mine, floats(size * count, -1), gathered if at_root else untouched, root),
        ("scatter", False, table, floats(count, -1), block + 100_000 * root, root),
        (
            "allto_all",
            False,
            table,
            floats(size * count, -1),
            numpy.concatenate([block + 100_000 * other for other in range(size)]),
            None,
        ),
        (
            "reduce_scatter",
            True,
            table,
            floats(count, -1),
            sum((block + 100_000 * other for other in range(size)), start=floats(count, 0)),
            None,
        ),
    ]
    for name, folds, sent, got, want, root_of in calls:
        for tail, suffix in (([], ""), ([struct(tuned)], "_config"), ([0], "_config")):
            got[:] = -1
            arguments = [at(sent), at(got), count, FLOAT]
            arguments += [SUM] if folds else []
            arguments += [] if root_of is None else [root_of]
            getattr(nccl, name + suffix)(*arguments, comm, NO_STREAM, *tail)
            rank.check(f"{name}{suffix}", numpy.array_equal(got, want), f"{got[:6]} and not {want[:6]}")
    got = mine.copy()
    nccl.bcast(at(got), count, FLOAT, root, comm, NO_STREAM)
    rank.check("bcast", bool((got == root + 1).all()))
    nccl.comm_finalize(comm)
    nccl.comm_destroy(comm)


def operators(rank):
    """Sums of values that were multiplied before."""
    comm, size = join(rank), rank.size
    for residence in (nccl.ScalarResidence.HostImmediate, nccl.ScalarResidence.Device):
        scalar, got = floats(1, 0.25), floats(100, -1)
        op = nccl.red_op_create_pre_mul_sum(at(scalar), FLOAT, int(residence), comm)
        rank.check("an operator beyond the built-in ones", op >= int(nccl.RedOp.NumOps), str(op))
        nccl.all_reduce(at(floats(100, 4)), at(got), 100, FLOAT, op, comm, NO_STREAM)
        rank.check(f"quarters, summed, {residence.name}", bool((got == size).all()), str(got[:4]))
        rank.raises(
            "an operator of another type",
            nccl.NCCLError,
            lambda: nccl.all_reduce(at(got), at(got), 1, int(nccl.DataType.Int32), op, comm, NO_STREAM),
        )
        nccl.red_op_destroy(op, comm)
        rank.raises("an operator that is gone", nccl.NCCLError, lambda: nccl.red_op_destroy(op, comm))
    works(rank, comm, "a sum afterwards")
    nccl.comm_destroy(comm)


def groups(rank):
    """A ring, several sums, two communicators, and a group that only tells how long it would take."""
    comm, me, size = join(rank), rank.number, rank.size
    sent, got = floats(1000, me), floats(1000, -1)
    nccl.group_start()
    nccl.group_start()
    nccl.send(at(sent), 1000, FLOAT, (me + 1) % size, comm, NO_STREAM)
    nccl.group_end()
    nccl.recv(at(got), 1000, FLOAT, (me - 1) % size, comm, NO_STREAM)
    nccl.group_end()
    rank.check("a ring in a nested group", bool((got == (me - 1) % size).all()))

    other = join(rank)
    buffers = [floats(10, 1), floats(20, 2)]
    nccl.group_start()
    for buffer, one in zip(buffers, (comm, other)):
        nccl.all_reduce(at(buffer), at(buffer), buffer.size, FLOAT, SUM, one, NO_STREAM)
    nccl.group_end()
    for factor, buffer in enumerate(buffers, 1):
        rank.check("sums on two communicators", bool((buffer == factor * size).all()), str(buffer))

    buffer = floats(1000, 1)
    nccl.group_start()
    nccl.all_reduce(at(buffer), at(buffer), 1000, FLOAT, SUM, comm, NO_STREAM)
    estimate = nccl.group_simulate_end()
    rank.check("an estimate", estimate.estimated_time > 0, str(estimate.estimated_time))
    rank.check("nothing happened", bool((buffer == 1).all()))
    works(rank, comm, "a sum after an estimate")
    rank.raises("the end of no group", nccl.NCCLError, nccl.group_end)
    nccl.comm_destroy(other)
    nccl.comm_destroy(comm)


def failures(rank):
    """Wrong arguments: the result, the last error's text, and no harm."""
    comm = join(rank)
    address = at(floats(3, 1))
    wrong = {
        "data type 12": lambda: nccl.all_reduce(address, address, 3, 12, SUM, comm, NO_STREAM),
        "operator -1": lambda: nccl.all_reduce(address, address, 3, FLOAT, -1, comm, NO_STREAM),
        "root": lambda: nccl.reduce(address, address, 3, FLOAT, SUM, rank.size, comm, NO_STREAM),
        "peer": lambda: nccl.recv(address, 3, FLOAT, -1, comm, NO_STREAM),
        "null communicator": lambda: nccl.all_reduce(address, address, 3, FLOAT, SUM, nccl.Comm(0), NO_STREAM),
        "communicator that is none": lambda: nccl.comm_count(nccl.Comm(at(floats(8, 0)))),
        "null buffer": lambda: nccl.all_reduce(0, 0, 3, FLOAT, SUM, comm, NO_STREAM),
    }
    for what, call in wrong.items():
        error = rank.raises(what, nccl.NCCLError, call)
        rank.check(f"the code of {what}", "InvalidArgument (4)" in str(error), str(error))
        rank.check(f"the text of {what}", len(nccl.get_last_error(comm)) > 10, nccl.get_last_error(comm))
    nccl.all_reduce(0, 0, 0, FLOAT, SUM, comm, NO_STREAM)
    works(rank, comm, "a sum afterwards")
    rank.equal("the state", int(nccl.comm_get_async_error(comm)), 0)
    nccl.comm_destroy(comm)
    nccl.comm_destroy(nccl.Comm(0))
    nccl.comm_abort(nccl.Comm(0))
    nccl.comm_finalize(nccl.Comm(0))
    for code in range(10):
        rank.check("a text for every result", nccl.get_error_string(code))


def memory(rank):
    """Registration, windows, suspension, counters, properties."""
    comm, me, size = join(rank), rank.number, rank.size
    length = 1 << 20
    address = nccl.mem_alloc(length)
    rank.equal("alignment for a window", address % 4096, 0)
    array = numpy.frombuffer((ctypes.c_char * length).from_address(address), dtype=numpy.float32)
    handle = nccl.comm_register(comm, address, length)
    array[:] = me
    nccl.all_reduce(address, address, array.size, FLOAT, MAX, comm, NO_STREAM)
    rank.check("a maximum in registered memory", bool((array == size - 1).all()))
    nccl.comm_deregister(comm, handle)

    # There are no windows: a client is given none and uses the buffer as it is.
    window = nccl.comm_window_register(comm, address, length, COLL_SYMMETRIC)
    rank.equal("a window", window.handle, 0)
    array[:] = me + 1
    nccl.all_reduce(address, address, array.size, FLOAT, SUM, comm, NO_STREAM)
    rank.check("a sum in memory for a window", bool((array == sum(range(1, size + 1))).all()))
    nccl.comm_window_deregister(comm, window)
    nccl.mem_free(address)

    properties = nccl.comm_query_properties(comm)
    rank.equal("properties", (properties.rank, properties.n_ranks), (me, size))
    rank.check("no device API", not properties.device_api_support)
    rank.raises("a device communicator", nccl.NCCLError, lambda: nccl.dev_comm_create(comm, struct(nccl.DevCommRequirements())))

    total = nccl.comm_mem_stats(comm, int(nccl.CommMemStat.GpuMemTotal))
    rank.check("memory in all", total >= 0)
    rank.equal("not suspended", nccl.comm_mem_stats(comm, int(nccl.CommMemStat.GpuMemSuspended)), 0)
    nccl.comm_suspend(comm, SUSPEND_MEM)
    rank.equal("suspended", nccl.comm_mem_stats(comm, int(nccl.CommMemStat.GpuMemSuspended)), 1)
    nccl.comm_resume(comm)
    works(rank, comm, "a sum after a resume")
    nccl.comm_destroy(comm)


def one_sided(rank):
    """Not offered, which the properties report; a call returns an error, without harm."""
    comm = join(rank)
    rank.check("the properties", not nccl.comm_query_properties(comm).host_rma_support)
    window, address = nccl.Window(0), at(floats(10, 1))
    waited = nccl.WaitSignalDesc()
    waited.op_cnt, waited.peer = 1, 0
    asked = {
        "put_signal": lambda: nccl.put_signal(address, 10, FLOAT, 0, window, 0, 0, 0, 0, comm, NO_STREAM),
        "signal": lambda: nccl.signal(0, 0, 0, 0, comm, NO_STREAM),
        "wait_signal": lambda: nccl.wait_signal(1, struct(waited), comm, NO_STREAM),
    }
    for what, call in asked.items():
        error = rank.raises(what, nccl.NCCLError, call)
        rank.check(f"the code of {what}", "InvalidUsage (5)" in str(error), str(error))
    works(rank, comm, "a sum afterwards")
    nccl.comm_destroy(comm)


def members(rank):
    """Split, shrink, grow, several ids, all in one thread."""
    comm, me, size = join(rank), rank.number, rank.size
    turned = nccl.comm_split(comm, 3, -me, 0)
    rank.equal("the rank in a split", nccl.comm_user_rank(turned), size - 1 - me)
    works(rank, turned, "a sum in a split")
    nccl.comm_destroy(turned)
    rest = nccl.comm_split(comm, -1 if me == 0 else 0, me, struct(nccl.Config()))
    rank.equal("who is left out has none", rest.handle == 0, me == 0)
    if rest.handle:
        works(rank, rest, "a sum without rank 0", size - 1)
        nccl.comm_destroy(rest)

    # Without the last rank; the flag says that nothing may be outstanding.
    smaller = None
    if me < size - 1:
        smaller = nccl.comm_shrink(comm, [size - 1], 1, 0, DEFAULT)
        rank.equal("the size after a shrink", nccl.comm_count(smaller), size - 1)
        works(rank, smaller, "a sum after a shrink", size - 1)
    # And with it again. Rank 0 makes the token; who is in brings none.
    token = rank.share(id_bytes(nccl.comm_get_unique_id(smaller)) if me == 0 else None)
    if me < size - 1:
        grown = nccl.comm_grow(smaller, size, struct(id_from(token)) if me == 0 else 0, -1, 0)
    else:
        grown = nccl.comm_grow(nccl.Comm(0), size, struct(id_from(token)), me, 0)
    rank.equal("the rank after a grow", nccl.comm_user_rank(grown), me)
    works(rank, grown, "a sum after a grow")
    nccl.comm_destroy(grown)
    if smaller is not None:
        nccl.comm_destroy(smaller)
    nccl.comm_destroy(comm)

    ids = rank.share([id_bytes(nccl.get_unique_id()) for _ in range(2)] if me == 0 else None)
    both = ctypes.create_string_buffer(b"".join(ids), 256)
    scalable = nccl.comm_init_rank_scalable(size, me, 2, ctypes.addressof(both), 0)
    works(rank, scalable, "a sum after joining with two ids")
    nccl.comm_destroy(scalable)


def progress(rank):
    """Calls that do not wait: the state says when they are through."""

    def configure(config):
        config.blocking = 0
        config.comm_name = "in-progress"

    comm = join(rank, configure)
    wait_until_ready(rank, comm, "joined")
    buffer = floats(1000, 1)
    nccl.all_reduce(at(buffer), at(buffer), 1000, FLOAT, SUM, comm, NO_STREAM)
    wait_until_ready(rank, comm, "a sum is through")
    rank.check("a sum", bool((buffer == rank.size).all()), str(buffer[:4]))
    nccl.group_start()
    nccl.all_reduce(at(buffer), at(buffer), 1000, FLOAT, MAX, comm, NO_STREAM)
    nccl.group_end()
    wait_until_ready(rank, comm, "a group is through")
    nccl.comm_finalize(comm)
    wait_until_ready(rank, comm, "finalized")
    nccl.comm_destroy(comm)


def endings(rank):
    """Revoked, aborted, and shrunk although a rank is gone."""
    comm = join(rank)
    works(rank, comm, "a sum")
    # A rank that is through early must not end the sums of the others.
    rank.meet()
    nccl.comm_revoke(comm, DEFAULT)
    error = rank.raises("a sum on a revoked communicator", nccl.NCCLError, lambda: works(rank, comm, "no sum"))
    rank.check("its code", "InvalidUsage (5)" in str(error), str(error))
    nccl.comm_destroy(comm)

    comm = join(rank)
    works(rank, comm, "a sum")
    rank.meet()
    if rank.number == rank.size - 1:
        nccl.comm_abort(comm)
        return
    survivors = nccl.comm_shrink(comm, [rank.size - 1], 1, 0, SHRINK_ABORT)
    works(rank, survivors, "a sum of those who are left", rank.size - 1)
    nccl.comm_destroy(survivors)
    nccl.comm_abort(comm)


def around(rank):
    """What needs no other rank: version, parameters, teams, all ranks in one thread."""
    rank.check("version", 20000 <= nccl.get_version() <= 99999, str(nccl.get_version()))
    keys = nccl.param_get_all_keys()
    rank.check("parameters", "NCCL_DEBUG_FILE" in keys, str(keys))
    for key in keys:
        rank.check(f"parameter {key}", isinstance(nccl.param_get_parameter(key), str))
    rank.raises("no such parameter", KeyError, lambda: nccl.param_get_parameter("NCCL_NO_SUCH_THING"))
    comms = nccl.comm_init_all(3, [0, 1, 2])
    buffers = [floats(50, index + 1) for index in range(3)]
    nccl.group_start()
    for comm, buffer in zip(comms, buffers):
        nccl.all_reduce(at(buffer), at(buffer), 50, FLOAT, SUM, comm, NO_STREAM)
    nccl.group_end()
    for index, (comm, buffer) in enumerate(zip(comms, buffers)):
        rank.check("a sum over one thread", bool((buffer == 6).all()), str(buffer[:4]))
        rank.equal("the device of comm_init_all", nccl.comm_cu_device(comm), index)
        team = nccl.team_world(comm)
        rank.equal("the world as a team", (team.n_ranks, team.rank, team.stride), (3, index, 1))
        rank.equal("a rank of the team", nccl.team_rank_to_world(comm, team, 2), 2)
    for comm in comms:
        nccl.comm_destroy(comm)
    ranks.only_ours()


PARTS = [collectives, operators, groups, failures, memory, one_sided, members, progress, endings]

if __name__ == "__main__":
    jobs = [(f"nccl4py {part.__name__}", part, size) for part in PARTS for size in (2, 3)]
    jobs.append(("nccl4py around", around, 1))
    sys.exit(0 if all([ranks.run(*job) for job in jobs]) else 1)
