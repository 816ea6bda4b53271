"""Every collective with every element type and operator, against NumPy's arithmetic, with 2 and 3 ranks."""

import jobs
import numpy
import pytest
from values import BYTES, TYPES, arrays, as_folded, folded, operators, same

import consort

LENGTHS = (0, 1, 7, 300, 5000)


def folds(rank):
    comm, (me, size), checked = rank.join(timeout=60), (rank.number, rank.size), 0
    for dtype in TYPES:
        for op in operators(dtype):
            length, root = rank.random.choice(LENGTHS), rank.random.randrange(size)
            inputs, total = arrays(rank.random, dtype, size, length * size), length * size

            def check(what, got, begin=0, end=total):
                as_folded(got, inputs, op, begin, end, what, dtype, length)

            mine = inputs[me].copy()
            assert comm.all_reduce(mine, op) is mine
            check("all_reduce in place", mine)
            mine, out = inputs[me].copy(), numpy.empty_like(mine)
            assert comm.all_reduce(mine, op, out) is out
            check("all_reduce", out)
            same(mine, inputs[me], "the input of all_reduce")
            out = comm.reduce(mine, root, op, numpy.zeros_like(mine))
            if me == root:
                check("reduce", out)
            else:
                assert out is None
            same(mine, inputs[me], "the input of reduce")
            comm.reduce(mine, root, op)
            if me == root:
                check("reduce in place", mine)
            else:
                same(mine, inputs[me], "the input of reduce in place")
            mine, block = inputs[me].copy(), (me * length, (me + 1) * length)
            check("reduce_scatter", comm.reduce_scatter(mine, op, numpy.empty_like(mine[:length])), *block)
            out = comm.reduce_scatter(mine.reshape(size, length), op)
            assert out.shape == (length,)
            check("reduce_scatter, new", out, *block)
            own = mine[block[0] : block[1]]
            comm.reduce_scatter(mine, op, own)
            check("reduce_scatter in place", own, *block)
            counts = [rank.random.randrange(0, 40) * (other != root) for other in range(size)]
            ends = numpy.cumsum([0, *counts])
            inputs = arrays(rank.random, dtype, size, ends[-1])
            out = numpy.empty(counts[me], TYPES[dtype])
            comm.reduce_scatter_v(inputs[me], out, counts, op)
            as_folded(out, inputs, op, ends[me], ends[me + 1], "reduce_scatter_v", dtype, counts)
            checked += 8
    # Factors of each rank's own.
    for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "float8_e5m2", "complex64"):
        inputs = arrays(rank.random, dtype, size, 50)
        mine = inputs[me].copy()
        comm.all_reduce(mine, consort.scaled_sum(me + 1))
        same(mine, folded("sum", [((r + 1) * one).astype(one.dtype) for r, one in enumerate(inputs)]), "scaled", dtype)
        checked += 1
    comm.close()
    return checked


def moves(rank):
    comm, (me, size), checked = rank.join(timeout=60), (rank.number, rank.size), 0
    for dtype in TYPES:
        for length in LENGTHS:
            root = rank.random.randrange(size)
            inputs = arrays(rank.random, dtype, size, length * size)
            blocks = [one[:length].copy() for one in inputs]
            whole = numpy.concatenate(blocks)
            mine = blocks[me].copy()
            assert comm.broadcast(mine, root) is mine
            same(mine, blocks[root], "broadcast", dtype, length)
            same(comm.all_gather(blocks[me], numpy.empty_like(whole)), whole, "all_gather", dtype, length)
            out = comm.all_gather(blocks[me])
            assert out.shape == (size, length)
            same(out, whole.reshape(size, length), "all_gather, new", dtype, length)
            out = numpy.zeros_like(whole)
            own = out[me * length : (me + 1) * length]
            own[:] = blocks[me]
            comm.all_gather(own, out)
            same(out, whole, "all_gather in place", dtype, length)
            wanted = numpy.concatenate([one[me * length : (me + 1) * length] for one in inputs])
            same(comm.all_to_all(inputs[me]), wanted, "all_to_all", dtype, length)
            out = comm.gather(blocks[me], root)
            assert (out is None) == (me != root)
            if me == root:
                same(out, whole.reshape(size, length), "gather", dtype, length)
            out = comm.scatter(inputs[root] if me == root else None, root, numpy.empty_like(blocks[0]))
            same(out, inputs[root][me * length : (me + 1) * length], "scatter", dtype, length)
            # Around the ring, both ways.
            out = numpy.empty_like(blocks[0])
            comm.exchange(blocks[me], (me + 1) % size, out, (me - 1) % size)
            same(out, blocks[me - 1], "exchange", dtype, length)
            if me == 0:
                comm.send(blocks[0], 1)
            elif me == 1:
                same(comm.recv(numpy.empty_like(blocks[0]), 0), blocks[0], "recv", dtype, length)
            checked += 9
    comm.close()
    return checked


def variable(rank):
    comm, (me, size), checked = rank.join(timeout=60), (rank.number, rank.size), 0
    for dtype in TYPES:
        for with_gaps in (False, True):
            table = [[rank.random.choice((0, 1, 30, 700)) for _ in range(size)] for _ in range(size)]
            counts, root = table[0], rank.random.randrange(size)
            gap = [rank.random.randrange(5) if with_gaps else 0 for _ in range(size)]

            def places(lengths):
                at, found = 0, []
                for length, space in zip(lengths, gap):
                    found.append(at + space)
                    at += space + length
                return (found, at) if with_gaps else (None, at)

            def layout(blocks, lengths, fill):
                at, total = places(lengths)
                out, end = numpy.full(total, fill).astype(TYPES[dtype]), 0
                for r, block in enumerate(blocks):
                    begin = at[r] if at else end
                    end = begin + len(block)
                    out[begin:end] = block
                return out, at

            blocks = [arrays(rank.random, dtype, 1, length)[0] for length in counts]
            wanted, at = layout(blocks, counts, 1)
            out, _ = layout([block[:0] for block in blocks], counts, 1)
            assert comm.all_gather_v(blocks[me], out, counts, at) is out
            same(out, wanted, "all_gather_v", dtype, counts, at)
            out, _ = layout([block[:0] for block in blocks], counts, 1)
            if me == root:
                same(comm.gather_v(blocks[me], out, counts, root, at), wanted, "gather_v", dtype, counts, at)
                comm.scatter_v(wanted, out[: counts[me]], counts, root, at)
            else:
                assert comm.gather_v(blocks[me], root=root) is None
                comm.scatter_v(None, out[: counts[me]], root=root)
            same(out[: counts[me]], blocks[me], "scatter_v", dtype, counts, at)
            # table[a][b] elements from rank a to rank b.
            pieces = [[arrays(rank.random, dtype, 1, length)[0] for length in row] for row in table]
            sent, received = table[me], [row[me] for row in table]
            mine, from_at = layout(pieces[me], sent, 1)
            wanted, to_at = layout([row[me] for row in pieces], received, 1)
            out, _ = layout([piece[:0] for piece in pieces[me]], received, 1)
            comm.all_to_all_v(mine, out, sent, received, from_at, to_at)
            same(out, wanted, "all_to_all_v", dtype, table)
            checked += 4
    comm.close()
    return checked


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("body", [folds, moves, variable])
def test_every_type_and_operator(body, size):
    checked = jobs.run(body, size)
    print(f"{body.__name__}, {size} ranks: {checked[0]} calls")
    assert len(set(checked.values())) == 1 and checked[0] > 100


def refusals(rank):
    comm = rank.join(timeout=60)
    array = numpy.ones(6, numpy.float32)
    frozen = numpy.ones(6, numpy.float32)
    frozen.flags.writeable = False
    cases = [
        (lambda: comm.all_reduce(frozen), "read-only"),
        (lambda: comm.all_reduce(array, "sum", frozen), "read-only"),
        (lambda: comm.all_reduce(array[::2]), "row-major"),
        (lambda: comm.all_reduce(array.reshape(2, 3).T), "row-major"),
        (lambda: comm.all_reduce(array, "bxor"), "no operator 'bxor'|no bxor"),
        (lambda: comm.all_reduce(array, "median"), "no operator 'median'"),
        (lambda: comm.all_reduce(array > 0, "avg"), "average of bool"),
        (lambda: comm.all_reduce(array.astype(complex), "max"), "no max of complex128"),
        (lambda: comm.all_reduce(numpy.ones(2, ">f4")), "other order of bytes"),
        (lambda: comm.all_reduce(numpy.ones(2, "datetime64[s]")), "datetime64"),
        (lambda: comm.all_reduce([1.0, 2.0]), "list is no array"),
        (lambda: comm.all_reduce(array, "sum", numpy.ones(6)), "float32 and an output of float64"),
        (lambda: comm.all_reduce(array, "sum", numpy.ones(5, numpy.float32)), "5 elements and not 6"),
        (lambda: comm.broadcast(array, 2), "root 2 of 2 ranks"),
        (lambda: comm.send(array, -1), "rank -1 of 2"),
        (lambda: comm.all_gather(array, numpy.ones(11, numpy.float32)), "pass an output of 12 elements"),
        (lambda: comm.reduce_scatter(numpy.ones(5, numpy.float32)), "first axis"),
        (lambda: comm.all_to_all(numpy.ones(5, numpy.float32)), "cannot be divided"),
        (lambda: comm.all_gather_v(array, numpy.ones(6, numpy.float32), [6, 6]), "end at element 12"),
        (lambda: comm.all_gather_v(array, numpy.ones(6, numpy.float32), [6]), "1 counts for 2 ranks"),
        (lambda: comm.all_gather_v(array, numpy.ones(12, numpy.float32), [6, -1]), "-1"),
        (lambda: comm.all_gather_v(array, numpy.ones(9, numpy.float32), [6, 6], [0, 4]), "end at element 10"),
        (lambda: comm.all_to_all(array, array), "overlap|not in place|apart"),
        (lambda: comm.all_reduce(array, consort.scaled_sum(float("nan"))), "nan"),
        (lambda: comm.all_reduce(numpy.ones(2, "i4"), consort.scaled_sum(0.5)), "0.5 for integers"),
    ]
    for dtype in BYTES:
        cases.append((lambda: comm.all_reduce(numpy.ones(2, dtype)), "moved and not folded"))
    for case, text in cases:
        with pytest.raises(consort.InvalidArgument, match=text) as caught:
            case()
        assert isinstance(caught.value, ValueError) and caught.value.remedy, text
    # Nothing has changed.
    comm.all_reduce(array)
    same(array, numpy.full(6, 2, numpy.float32), "after refusals")
    comm.close()


def test_wrong_arguments_change_nothing():
    jobs.run(refusals, 2)
