"""Every element type and operator of PyTorch, against gloo where it has them, and against PyTorch's own arithmetic."""

import functools

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torchjobs  # noqa: E402
from torch.distributed import ReduceOp  # noqa: E402

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
#: Types that are only moved.
MOVED = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fnuz, torch.complex32]
TYPES = [*FLOATS, *INTEGERS, *COMPLEX, torch.bool]
OPERATORS = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MAX": torch.maximum,
    "MIN": torch.minimum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
BITWISE = ("BAND", "BOR", "BXOR")


def has(dtype, op):
    """Whether there is such a fold."""
    if dtype.is_complex:
        return op in ("SUM", "AVG")
    if dtype is torch.bool:
        return op != "AVG"
    if dtype is torch.int16:
        return op != "AVG"
    return op not in BITWISE if dtype.is_floating_point else True


def gloo_has(dtype, op):
    """What gloo of PyTorch 2.15 folds."""
    if dtype in (torch.int16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex128) or dtype is torch.bool:
        return False
    if dtype.is_complex:
        return op == "SUM"
    return op != "AVG" or dtype.is_floating_point


def inputs(dtype, ranks, length, seed):
    """A tensor for each rank, whose folds are exact. The sum can be divided by the number of ranks."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return [torch.randint(0, 2, (length,), generator=generator).bool() for _ in range(ranks)]

    def part():
        middle, step = (torch.randint(1, 3, (length,), generator=generator) for _ in range(2))
        away = [-1, 1, *[0] * (ranks - 2)] if ranks > 1 else [0]
        return [middle + (step - 1) * away[(rank + seed) % ranks] for rank in range(ranks)]

    whole = part()
    if dtype.is_complex:
        whole = [torch.complex(real.double(), other.double()) for real, other in zip(whole, part())]
    return [one.to(dtype) for one in whole]


def folded(op, tensors):
    """The fold by PyTorch, in a type that holds all results."""
    dtype = tensors[0].dtype
    if dtype is torch.bool:
        named = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}.get(op, op)
        return functools.reduce(OPERATORS[named], tensors)
    if op in BITWISE:
        return functools.reduce(OPERATORS[op], tensors)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    result = functools.reduce(OPERATORS[op], [one.to(wide) for one in tensors])
    return (result / len(tensors) if op == "AVG" else result).to(dtype)


def as_folded(got, wanted, op, ranks, *what):
    """To the bit, but for averages that round each rank's part."""
    if op == "AVG" and ranks & (ranks - 1) and (got.dtype.is_floating_point or got.dtype.is_complex):
        wide = torch.complex128 if got.dtype.is_complex else torch.float64
        epsilon = torch.finfo(got.dtype).eps
        difference = (got.to(wide) - wanted.to(wide)).abs().max().item() if got.numel() else 0
        assert difference <= 3 * ranks * epsilon, (what, got, wanted)
    else:
        torchjobs.same(got, wanted, op, *what)


def all_folds(rank):
    size, own = rank.size, rank.number
    gloo = dist.new_group(backend="gloo")
    checked = 0
    for dtype in TYPES:
        for op in OPERATORS:
            named = getattr(ReduceOp, op)
            seed = rank.random.randrange(1000)
            whole = inputs(dtype, size, 6 * size, seed)
            if not has(dtype, op):
                with pytest.raises((ValueError, RuntimeError), match="; |does not support RedOpType"):
                    dist.all_reduce(whole[own].clone(), named)
                continue
            wanted, what = folded(op, whole), (str(dtype), seed)
            got = whole[own].clone()
            dist.all_reduce(got, named)
            as_folded(got, wanted, op, size, "all_reduce", *what)
            if gloo_has(dtype, op) and not (op == "AVG" and size & (size - 1)):
                theirs = whole[own].clone()
                dist.all_reduce(theirs, named, group=gloo)
                torchjobs.same(got, theirs, op, "gloo", *what)
            got, root = whole[own].clone(), rank.random.randrange(size)
            dist.reduce(got, root, named)
            if own == root:
                as_folded(got, wanted, op, size, "reduce", *what)
            got = torch.empty(6, dtype=dtype)
            dist.reduce_scatter_tensor(got, whole[own].clone(), named)
            as_folded(got, wanted[6 * own : 6 * own + 6], op, size, "reduce_scatter_tensor", *what)
            got = torch.empty(6, dtype=dtype)
            dist.reduce_scatter(got, list(whole[own].clone().split(6)), named)
            as_folded(got, wanted[6 * own : 6 * own + 6], op, size, "reduce_scatter", *what)
            checked += 4
    return checked


@pytest.mark.parametrize("size", [2, 3, 4])
def test_folds_of_every_type_and_operator(size):
    found = set(torchjobs.run(all_folds, size, limit=240).values())
    assert len(found) == 1 and found.pop() >= 4 * 60


def scaled(rank):
    factor = 0.5 if rank.number else 2.0
    make = torch._C._distributed_c10d._make_nccl_premul_sum
    for dtype in [*FLOATS, *COMPLEX]:
        for value in (factor, torch.tensor(factor)):
            tensor = torch.full((8,), 4, dtype=torch.float32).to(dtype)
            dist.all_reduce(tensor, make(value))
            torchjobs.same(tensor, torch.full((8,), 8 + 2 * (rank.size - 1)).to(dtype), dtype)
            out = torch.empty(8 // rank.size, dtype=dtype)
            dist.reduce_scatter_tensor(out, torch.full((8,), 4, dtype=torch.float32).to(dtype), make(value))
            torchjobs.same(out, torch.full((8 // rank.size,), 8 + 2 * (rank.size - 1)).to(dtype), dtype)
    tensor = torch.full((3,), 5)
    dist.all_reduce(tensor, make(3))
    assert tensor.tolist() == [15 * rank.size] * 3
    with pytest.raises((ValueError, RuntimeError), match="whole number"):
        dist.all_reduce(tensor, make(0.5))


@torchjobs.needs_backends
def test_scaled_sums():
    torchjobs.run(scaled, 2)


def unfolded(rank):
    """Types that are only moved are folded right where the library has them, and refused where it does not."""
    refused = 0
    for dtype in MOVED:
        for op in OPERATORS:
            named, seed = getattr(ReduceOp, op), rank.random.randrange(1000)
            numbers = torch.tensor([seed % 4 + 4, 2, 8]) + rank.number
            tensor = numbers.to(torch.complex64).to(dtype) if dtype.is_complex else numbers.to(dtype)
            kept = dtype in (torch.uint32, torch.uint64) or (dtype is torch.complex32 and op in ("SUM", "AVG"))
            if kept or (dtype is torch.uint16 and op in BITWISE):
                wide = [torch.tensor([seed % 4 + 4, 2, 8]) + other for other in range(rank.size)]
                wanted = functools.reduce(OPERATORS[op], wide)
                if op == "AVG":
                    continue
                dist.all_reduce(tensor, named)
                got = tensor.to(torch.complex64).real.long() if dtype.is_complex else tensor.long()
                torchjobs.same(got, wanted, str(dtype), op, seed)
                continue
            before = tensor.clone()
            for call in (
                lambda: dist.all_reduce(tensor, named),
                lambda: dist.reduce(tensor, 0, named),
                lambda: dist.reduce_scatter_tensor(torch.empty_like(tensor), torch.cat([tensor] * rank.size), named),
            ):
                with pytest.raises((ValueError, RuntimeError), match="there is no |moved and not folded|does not support RedOpType"):
                    call()
            torchjobs.same(tensor, before, str(dtype), op, seed)
            refused += 1
    scaled_sum = torch._C._distributed_c10d._make_nccl_premul_sum(2.0)
    with pytest.raises((ValueError, RuntimeError), match="there is no scaled sum of torch.float8_e4m3fnuz"):
        dist.all_reduce(torch.ones(3).to(torch.float8_e4m3fnuz), scaled_sum)
    return refused


def test_types_that_are_only_moved_are_not_folded_as_bytes():
    found = set(torchjobs.run(unfolded, 2).values())
    # FP8 without a type of the library by all operators, uint16 by all but the bitwise, complex32 by all but two.
    assert found == {8 + 5 + 6}


def moved(rank):
    size, own = rank.size, rank.number
    for dtype in [*TYPES, *MOVED]:
        seed = rank.random.randrange(1000)
        generator = torch.Generator().manual_seed(seed)
        raw = torch.randint(0, 2 if dtype is torch.bool else 256, (size, 4 * 16), generator=generator, dtype=torch.uint8)
        whole = [row.view(dtype)[:4].clone() for row in raw]
        if dtype is torch.bool:
            whole = [row.bool()[:4] for row in raw]
        what, mine = (str(dtype), seed), whole[own]
        outs = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(outs, mine)
        [torchjobs.same(out, one, "all_gather", *what) for out, one in zip(outs, whole)]
        flat = torch.empty(4 * size, dtype=dtype)
        dist.all_gather_into_tensor(flat, mine)
        [torchjobs.same(out, one, "into", *what) for out, one in zip(flat.split(4), whole)]
        root = rank.random.randrange(size)
        copied = mine.clone()
        dist.broadcast(copied, root)
        torchjobs.same(copied, whole[root], "broadcast", *what)
        outs = [torch.empty_like(mine) for _ in range(size)] if own == root else None
        dist.gather(mine, outs, root)
        [torchjobs.same(out, one, "gather", *what) for out, one in zip(outs or [], whole)]
        out = torch.empty_like(mine)
        dist.scatter(out, [one.clone() for one in whole] if own == root else None, root)
        torchjobs.same(out, whole[own], "scatter", *what)
        sent = torch.stack([mine.view(torch.uint8)] * size).view(-1).view(dtype)
        out = torch.empty_like(sent)
        dist.all_to_all_single(out, sent)
        [torchjobs.same(part, one, "all_to_all", *what) for part, one in zip(out.split(4), whole)]
        outs = [torch.empty_like(mine) for _ in range(size)]
        dist.all_to_all(outs, [mine.clone() for _ in range(size)])
        [torchjobs.same(part, one, "all_to_all, lists", *what) for part, one in zip(outs, whole)]
        out = torch.empty_like(mine)
        sends = dist.isend(mine, (own + 1) % size)
        dist.recv(out, (own - 1) % size)
        sends.wait()
        torchjobs.same(out, whole[own - 1], "message", *what)


@pytest.mark.parametrize("size", [2, 3])
def test_moves_of_every_type(size):
    torchjobs.run(moved, size, limit=120)
