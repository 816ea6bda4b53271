"""JAX's own arrays, on the host. JAX is no part of the tests' environment: without it this skips."""

import threading

import numpy
import pytest

import consort

jax = pytest.importorskip("jax", reason="JAX is not installed")

TYPES = ["float32", "bfloat16", "float16", "int32", "int8", "float8_e4m3fn", "bool", "complex64"]


def rank_of(comm, name):
    number = jax.numpy.dtype(name)
    rows = [(numpy.arange(12).reshape(3, 4) % 3 + rank).astype(number) for rank in range(comm.size)]
    array = jax.numpy.asarray(rows[comm.rank])
    result = comm.all_reduce(array, "max" if name == "bool" else "sum", out=numpy.empty_like(rows[0]))
    wanted = rows[0] | rows[1] if name == "bool" else rows[0] + rows[1]
    assert result.dtype == number and (result == wanted).all()
    assert (jax.numpy.asarray(result) == wanted).all()
    gathered = comm.all_gather(array, out=numpy.empty((2, 3, 4), number))
    assert (gathered == numpy.stack(rows)).all()
    # JAX's arrays never change, and its own copies may have any order of elements.
    with pytest.raises(consort.InvalidArgument, match="never change"):
        comm.all_reduce(array)


@pytest.mark.parametrize("name", TYPES)
def test_arrays_of_jax(name):
    comms, failed = consort.local(2), []

    def body(comm):
        try:
            rank_of(comm, name)
        except BaseException as error:
            failed.append(error)
            comm.abort(str(error))

    threads = [threading.Thread(target=body, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for comm in comms:
        comm.close()
    if failed:
        raise failed[0]
