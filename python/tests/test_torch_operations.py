"""Each operation of `torch.distributed`: shapes, strides, lengths, groups, order."""

import datetime
import threading

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torchjobs  # noqa: E402
from torchjobs import same  # noqa: E402

import consort.torch  # noqa: E402


def filled(rank, *shape):
    return torch.arange(max(1, torch.Size(shape).numel()), dtype=torch.float32).mul(rank + 1)[: torch.Size(shape).numel()].view(shape)


def scattered(tensor):
    """The same elements with other strides."""
    wide = torch.zeros(*tensor.shape, 3, dtype=tensor.dtype)
    wide[..., 1] = tensor
    return wide[..., 1]


SHAPES = [(), (0,), (0, 3), (1,), (5,), (3, 4), (2, 3, 4), (70001,)]


def shapes(rank):
    size, own = rank.size, rank.number
    factor = sum(range(1, size + 1))
    for shape in SHAPES:
        for change in (torch.clone, scattered, lambda one: one.clone().t().contiguous().t() if one.dim() == 2 else one.clone()):
            def mine():
                return change(filled(own, *shape))

            tensor = mine()
            strides = tensor.stride()
            dist.all_reduce(tensor)
            same(tensor, filled(0, *shape) * factor, "all_reduce", shape)
            assert tensor.stride() == strides
            tensor = mine()
            dist.broadcast(tensor, 1)
            same(tensor, filled(1, *shape), "broadcast", shape)
            tensor = mine()
            dist.reduce(tensor, 1)
            if own == 1:
                same(tensor, filled(0, *shape) * factor, "reduce", shape)
            outs = [change(torch.zeros(shape)) for _ in range(size)]
            dist.all_gather(outs, mine())
            [same(out, filled(other, *shape), "all_gather", shape) for other, out in enumerate(outs)]
            # Outputs that lie one after the other in one storage.
            whole = torch.zeros(size, *shape)
            dist.all_gather(list(whole.unbind()), mine())
            [same(out, filled(other, *shape), "all_gather, views", shape) for other, out in enumerate(whole)]
            out = change(torch.zeros(size, *shape))
            dist.all_gather_into_tensor(out, mine())
            [same(part, filled(other, *shape), "into", shape) for other, part in enumerate(out)]
            outs = [change(torch.zeros(shape)) for _ in range(size)] if own == 1 else None
            dist.gather(mine(), outs, 1)
            [same(out, filled(other, *shape), "gather", shape) for other, out in enumerate(outs or [])]
            out = change(torch.zeros(shape))
            dist.scatter(out, [change(filled(other, *shape)) for other in range(size)] if own == 1 else None, 1)
            same(out, filled(own, *shape), "scatter", shape)
            out = change(torch.zeros(shape))
            dist.reduce_scatter(out, [change(filled(own, *shape) * (other + 1)) for other in range(size)])
            same(out, filled(0, *shape) * factor * (own + 1), "reduce_scatter", shape)
            out = change(torch.zeros(shape))
            dist.reduce_scatter_tensor(out, change(torch.stack([filled(own, *shape) * (other + 1) for other in range(size)])))
            same(out, filled(0, *shape) * factor * (own + 1), "reduce_scatter_tensor", shape)
            outs = [change(torch.zeros(shape)) for _ in range(size)]
            dist.all_to_all(outs, [change(filled(own, *shape) + other) for other in range(size)])
            [same(out, filled(other, *shape) + own, "all_to_all", shape) for other, out in enumerate(outs)]
            out = change(torch.zeros(size, *shape))
            dist.all_to_all_single(out, change(torch.stack([filled(own, *shape) + other for other in range(size)])))
            [same(part, filled(other, *shape) + own, "all_to_all_single", shape) for other, part in enumerate(out)]
            out = change(torch.zeros(shape))
            sends = dist.isend(mine(), (own + 1) % size)
            dist.irecv(out, (own - 1) % size).wait()
            sends.wait()
            same(out, filled((own - 1) % size, *shape), "message", shape)
    return True


@pytest.mark.parametrize("form", torchjobs.FORMS)
@pytest.mark.parametrize("size", [2, 3])
def test_every_operation_on_every_shape(size, form):
    torchjobs.run(shapes, size, form=form, limit=120)


def uneven(rank):
    size, own = rank.size, rank.number
    lengths = [2 * other + 1 for other in range(size)]
    outs = [torch.zeros(length) for length in lengths]
    dist.all_gather(outs, filled(own, lengths[own]))
    [same(out, filled(other, lengths[other]), "all_gather") for other, out in enumerate(outs)]
    outs = [torch.zeros(length) for length in lengths] if own == 0 else None
    group = dist.group.WORLD
    from torch._C._distributed_c10d import GatherOptions, ScatterOptions

    group.gather([outs] if outs else [], [filled(own, lengths[own])], GatherOptions()).wait()
    [same(out, filled(other, lengths[other]), "gather") for other, out in enumerate(outs or [])]
    out = torch.zeros(lengths[own])
    group.scatter([out], [[filled(other, lengths[other]) for other in range(size)]] if own == 0 else [], ScatterOptions()).wait()
    same(out, filled(own, lengths[own]), "scatter")
    out = torch.zeros(lengths[own])
    dist.reduce_scatter(out, [filled(own, length) for length in lengths])
    same(out, filled(0, lengths[own]) * sum(range(1, size + 1)), "reduce_scatter")
    # Rank r sends r + other rows to another, some none, with columns.
    sent = [own * other for other in range(size)]
    received = [other * own for other in range(size)]
    for change in (torch.clone, scattered):
        whole = change(torch.full((sum(sent), 3), float(own)))
        out = change(torch.full((sum(received), 3), -1.0))
        dist.all_to_all_single(out, whole, received, sent)
        wanted = [torch.full((rows, 3), float(other)) for other, rows in enumerate(received)]
        same(out, torch.cat(wanted), "all_to_all_single")
    outs = [torch.zeros(rows, 2) for rows in received]
    dist.all_to_all(outs, [torch.full((rows, 2), float(own)) for rows in sent])
    [same(out, torch.full((rows, 2), float(other)), "lists") for other, (out, rows) in enumerate(zip(outs, received))]
    # Splits on one rank, equal blocks by default on the others.
    out, splits = torch.zeros(size), [1] * size if own == 0 else None
    dist.all_to_all_single(out, torch.full((size,), float(own)), splits, splits)
    assert out.tolist() == list(range(size))
    for wrong in ([1] * (size + 1), [2] * size):
        with pytest.raises((ValueError, RuntimeError), match="split"):
            dist.all_to_all_single(torch.zeros(size), torch.zeros(size), wrong, wrong)
    with pytest.raises((ValueError, RuntimeError), match="rows for"):
        dist.all_to_all_single(torch.zeros(size + 1), torch.zeros(size + 1))


@pytest.mark.parametrize("size", [2, 4])
def test_blocks_that_differ_in_length(size):
    torchjobs.run(uneven, size)


def special(rank):
    own, size = rank.number, rank.size
    # A view that is negated when it is read. PyTorch's dispatcher gives backends a copy of it, of gloo too; and PyTorch
    # refuses those that are conjugated.
    number = torch.complex(torch.arange(3.0), torch.ones(3) * (own + 1))
    tensor = number.conj().imag
    assert tensor.is_neg()
    dist.all_reduce(tensor)
    if isinstance(dist.group.WORLD, consort.torch.Group):
        assert number.imag.tolist() == [float(sum(range(1, size + 1)))] * 3 and (tensor == -number.imag).all()
    # Parameters, and tensors of the inference mode.
    parameter = torch.nn.Parameter(scattered(torch.ones(4) * (own + 1)))
    dist.broadcast(parameter, 1)
    assert parameter.tolist() == [2.0] * 4 and parameter.requires_grad
    with torch.inference_mode():
        tensor = scattered(torch.ones(4))
        dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert tensor.tolist() == [size * size] * 4
    # Wrong arguments are refused, and the group goes on.
    for call, text in [
        (lambda: dist.recv(torch.zeros(2)), "rank that sends"),
        (lambda: dist.all_reduce(torch.eye(3).to_sparse()), "dense"),
        (lambda: dist.all_gather_into_tensor(torch.zeros(3 * size + 1), torch.zeros(3)), "elements"),
        (lambda: dist.all_gather([torch.zeros(3)] * (size + 1), torch.zeros(3)), "for each rank"),
        (lambda: dist.reduce_scatter_tensor(torch.zeros(3), torch.zeros(3 * size + 1)), "elements"),
    ]:
        with pytest.raises((ValueError, RuntimeError), match=text):
            call()
    dist.barrier()


@pytest.mark.parametrize("form", torchjobs.FORMS)
def test_views_parameters_and_wrong_arguments(form):
    torchjobs.run(special, 2, form=form)


def coalesced(rank):
    own, size = rank.number, rank.size
    tensors = [torch.full((length,), own + 1.0) for length in (1, 0, 7, 1000)]
    with dist._coalescing_manager(device=None):
        for tensor in tensors:
            dist.all_reduce(tensor)
    total = float(sum(range(1, size + 1)))
    assert all((tensor == total).all() for tensor in tensors)
    outs = [torch.zeros(size * length) for length in (1, 5)]
    with dist._coalescing_manager(async_ops=True) as works:
        for out in outs:
            dist.all_gather_into_tensor(out, torch.full((out.numel() // size,), float(own)))
    works.wait()
    assert [out.view(size, -1)[:, 0].tolist() for out in outs] == [list(range(size))] * 2
    outs = [torch.zeros(length) for length in (1, 5)]
    with dist._coalescing_manager():
        for out in outs:
            dist.reduce_scatter_tensor(out, torch.full((out.numel() * size,), 2.0))
    assert all((out == 2 * size).all() for out in outs)
    rows = [[torch.zeros(2), scattered(torch.zeros(3))] for _ in range(size)]
    dist.all_gather_coalesced(rows, [torch.full((2,), float(own)), torch.full((3,), -float(own))])
    assert [[one.sum().item() for one in row] for row in rows] == [[2 * other, -3 * other] for other in range(size)]
    tensors = [scattered(torch.tensor([1, 2 + own, 3])), torch.tensor([own])]
    dist.all_reduce_coalesced(tensors, dist.ReduceOp.BXOR)
    assert tensors[0].tolist() == [0, 2 ^ 3, 0] and tensors[1].tolist() == [1]


@pytest.mark.parametrize("form", torchjobs.FORMS)
def test_several_tensors_at_once(form):
    torchjobs.run(coalesced, 2, form=form)


def asynchronous(rank):
    own, size = rank.number, rank.size
    works, tensors = [], [torch.full((100,), float(n + own)) for n in range(50)]
    for tensor in tensors:
        works.append(dist.all_reduce(tensor, async_op=True))
    # One that waits comes after all that were started.
    last = torch.ones(3)
    dist.all_reduce(last)
    for n, tensor in enumerate(tensors):
        assert (tensor == n * size + sum(range(size))).all() and works[n].wait()
    # Futures, and callbacks that raise or make operations of their own.
    seen, order = threading.Event(), []
    first, second = torch.ones(5), torch.ones(5)
    work = dist.all_reduce(first, async_op=True)

    def fails(future):
        raise ValueError("a callback that fails")

    def chained(future):
        order.append(float(future.value()[0][0]))
        inner = torch.full((5,), 3.0)
        dist.all_reduce(inner)
        again = dist.all_reduce(inner, async_op=True)
        again.wait()
        order.append(float(inner[0]))
        seen.set()
        return inner

    future = work.get_future()
    failed = future.then(fails)
    result = future.then(chained)
    dist.all_reduce(second, async_op=True).wait()
    assert seen.wait(30) and order == [size, 3.0 * size * size] and (result.wait() == 3 * size * size).all()
    with pytest.raises(RuntimeError, match="a callback that fails"):
        failed.wait()
    assert (second == size).all()
    # It is not over before the others come, and a wait of a given time ends.
    if own == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        with pytest.raises(RuntimeError, match="still under way after 0.05 s"):
            work.wait(datetime.timedelta(seconds=0.05))
        assert not work.get_future().done()
        rank.store.set("waited", "1")
        work.wait()
        assert work.get_future().done()
    else:
        rank.store.wait(["waited"])
        dist.all_reduce(torch.ones(1))
    # Other operations may be between the start of one and its end.
    work = dist.barrier(async_op=True) if own == 0 else None
    if own == 0:
        dist.send(torch.ones(2), 1)
    elif own == 1:
        dist.recv(torch.ones(2), 0)
    if own:
        dist.barrier()
    else:
        work.wait()


@pytest.mark.parametrize("form", torchjobs.FORMS)
@pytest.mark.parametrize("size", [2, 3])
def test_operations_that_are_started(size, form):
    torchjobs.run(asynchronous, size, form=form)


def messages(rank):
    own, size = rank.number, rank.size
    # All send first, much and little, to all; then receive in the other order.
    out = {other: [torch.full((n,), float(own)) for n in (1, 100000)] for other in range(size) if other != own}
    works = [dist.isend(tensor, other, tag=n) for other, row in out.items() for n, tensor in enumerate(row)]
    back = {other: [torch.zeros(n) for n in (1, 100000)] for other in reversed(list(out))}
    works += [dist.irecv(tensor, other, tag=n) for other, row in back.items() for n, tensor in enumerate(row)]
    for work in works:
        work.wait()
    assert all((tensor == other).all() for other, row in back.items() for tensor in row)
    ops, got = [], torch.zeros(3)
    ops.append(dist.P2POp(dist.irecv, got, (own - 1) % size))
    ops.append(dist.P2POp(dist.isend, torch.full((3,), float(own)), (own + 1) % size))
    [work.wait() for work in dist.batch_isend_irecv(ops)]
    assert (got == (own - 1) % size).all()
    # In order, for a pair.
    if own == 0:
        for n in range(50):
            dist.send(torch.tensor([n]), 1)
    elif own == 1:
        got = torch.zeros(1, dtype=torch.int64)
        for n in range(50):
            assert dist.recv(got, 0) == 0 and got.item() == n
    objects = [None] * 2
    if own == 0:
        dist.send_object_list(["a", {"b": 1}], 1)
    elif own == 1:
        dist.recv_object_list(objects, 0)
        assert objects == ["a", {"b": 1}]
    with pytest.raises((ValueError, RuntimeError)):
        dist.send(torch.zeros(1), own)


@pytest.mark.parametrize("form", torchjobs.FORMS)
@pytest.mark.parametrize("size", [2, 3])
def test_messages(size, form):
    torchjobs.run(messages, size, form=form)


def groups(rank):
    own, size = rank.number, rank.size
    halves = [dist.new_group(list(range(first, size, 2))) for first in (0, 1)]
    mine = halves[own % 2]
    members = list(range(own % 2, size, 2))
    tensor = torch.tensor([own])
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == sum(members)
    tensor = torch.tensor([own])
    dist.broadcast(tensor, members[-1], group=mine)
    assert tensor.item() == members[-1]
    # Groups of the same ranks in another order of making; used in another order too.
    first, second = dist.new_group(), dist.new_group(list(reversed(range(size))))
    one, other = torch.ones(2), torch.ones(3)
    works = [(first, one), (second, other)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for group, tensor in (works if own else works[::-1])]
    [work.wait() for work in works]
    assert one[0] == size and other[0] == size
    # Many, that are left open and closed.
    for n in range(60):
        group = dist.new_group()
        tensor = torch.ones(4)
        dist.all_reduce(tensor, group=group)
        assert tensor[0] == size
        if n % 2:
            dist.destroy_process_group(group)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("a", "b"))
    tensor = torch.tensor([own])
    dist.all_reduce(tensor, group=mesh["a"].get_group())
    assert tensor.item() == own % (size // 2) * 2 + size // 2
    dist.destroy_process_group()
    # And again, from the start, on the same store.
    for name in ("again", "again", "other"):
        torchjobs.join(rank, name)
        dist.barrier()
        dist.destroy_process_group()
    # PyTorch's own error: its text and its type are another in each version.
    with pytest.raises((ValueError, RuntimeError, AssertionError)):
        dist.destroy_process_group()


def test_groups_of_some_ranks_and_many_groups():
    torchjobs.run(groups, 4, limit=120)


def divided(rank):
    own, size = rank.number, rank.size
    assert dist.group.WORLD._get_backend(torch.device("cpu")).supports_splitting
    child = dist.split_group(split_ranks=[[0, 2], [1]])
    tensor = torch.tensor([own])
    dist.all_reduce(tensor, group=child)
    assert tensor.item() == (1 if own == 1 else 2)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.options.backend == "consort" and backend.name() == "consort"
    assert backend.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=45))
    assert backend.engine.timeout == backend.engine.comm.timeout == 45
    for name in ("supports_coalescing", "supports_shrinking", "supports_reconfigure", "supports_window"):
        assert getattr(backend, name) is False
    return size


@torchjobs.needs_backends
def test_split_group_and_what_a_backend_says():
    torchjobs.run(divided, 3)


def test_tensors_of_devices_are_refused():
    from consort.torch import tensors

    away, here = torch.empty(3, device="meta"), torch.empty(3)
    for call in (
        lambda: tensors.source(away),
        lambda: tensors.target(away, []),
        lambda: tensors.joined([away]),
        lambda: tensors.joined([here, away]),
        lambda: tensors.spread([away], []),
        lambda: tensors.spread([here, away], []),
    ):
        with pytest.raises(ValueError, match="a tensor on meta .*cpu:consort,cuda:nccl"):
            call()


def devices(rank):
    dist.destroy_process_group()
    torchjobs.join(rank, "with devices", "cpu:consort,cuda:gloo")
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor[0] == rank.size and dist.get_backend(dist.group.WORLD) is not None
    dist.destroy_process_group()
    torchjobs.join(rank, "alone", "consort", pg_options=consort.torch.Options(inline_bytes=1 << 16))
    assert dist.group.WORLD._get_backend(torch.device("cpu")).options.inline_bytes == 1 << 16
    # Small ones are over when they return.
    tensor = torch.ones(2)
    assert dist.all_reduce(tensor, async_op=True).get_future().done() and tensor[0] == rank.size


def test_other_devices_and_options():
    torchjobs.run(devices, 2)


def monitored(rank):
    own, size = rank.number, rank.size
    dist.monitored_barrier()
    dist.monitored_barrier(wait_all_ranks=True)
    # A barrier takes the keys of the one before out of the store: some of it may be under way still.
    keys = rank.store.num_keys()
    for _ in range(20):
        dist.monitored_barrier()
    assert rank.store.num_keys() <= keys + 2 * size
    absent = rank.arguments[0]
    if own not in absent:
        for wait_all_ranks, text in ((False, f"rank {absent[0]} did"), (True, "rank.* " + ", ".join(map(str, absent)) + " did")):
            with pytest.raises(dist.DistBackendError, match=text):
                dist.monitored_barrier(timeout=datetime.timedelta(seconds=0.2), wait_all_ranks=wait_all_ranks)
    else:
        # They come when all others have given up.
        rank.store.wait([f"gave up {other}" for other in range(size) if other not in absent])
    rank.store.set(f"gave up {own}", "1")
    # The group goes on.
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor[0] == size


@torchjobs.needs_backends
@pytest.mark.parametrize("absent", [[2], [1, 3]])
def test_a_monitored_barrier_names_those_that_did_not_come(absent):
    torchjobs.run(monitored, 4, absent)


def objects(rank):
    own, size = rank.number, rank.size
    found = [None] * size
    dist.all_gather_object(found, {"rank": own, "long": "x" * (100 * own)})
    assert [one["rank"] for one in found] == list(range(size)) and len(found[-1]["long"]) == 100 * (size - 1)
    shared = [own, "only the root's"] if own == 1 else [None, None]
    dist.broadcast_object_list(shared, 1)
    assert shared == [1, "only the root's"]
    gathered = [None] * size if own == 0 else None
    dist.gather_object(("from", own), gathered, 0)
    assert own or gathered == [("from", other) for other in range(size)]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {other}" for other in range(size)] if own == 0 else None, 0)
    assert mine == [f"for {own}"]


@pytest.mark.parametrize("form", torchjobs.FORMS)
def test_objects(form):
    torchjobs.run(objects, 3, form=form)
