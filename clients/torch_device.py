"""torch.distributed on device tensors, its back end `nccl`, with whatever libnccl the process has: every collective.

    LIBNCCL=FILE LD_PRELOAD=FILE python3 torch_device.py [PROCESSES...]      1, 2 and 4 unless said

Without torchrun. Rank r is on device r modulo their number: several processes share a GPU, which NVIDIA's library
refuses and ours takes. Every result is compared with the CPU's result for the same numbers, which are so small that
each order of folding gives the same result. With LIBNCCL set, that file must be loaded and make the ids.
`BACKEND=gloo` runs the same on CPU tensors, which shows nothing but that this file is right; what that back end lacks
is left out by name.
"""

import os
import struct
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ranks

BACKEND = os.environ.get("BACKEND", "nccl")
ON_DEVICE = BACKEND == "nccl"
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTEGERS = [torch.int32, torch.int64, torch.uint8, torch.int8]
ALL = FLOATS + INTEGERS
COUNTS = [1, 1003, 1 << 18]
Op = dist.ReduceOp
# The factor 2 for PREMUL_SUM. For bfloat16, ProcessGroupNCCL (unpackPreMulSum<float, ncclBfloat16>) passes the address of a
# 32-bit float, whose lower half is what the library reads there. Both halves of this one are 2 in bfloat16.
FACTORS_OF_2 = {torch.bfloat16: struct.unpack("<f", struct.pack("<I", 0x40004000))[0]}


def values(number, count, kind):
    """A rank's values, on the CPU."""
    index = torch.arange(count, dtype=torch.int64)
    least = 0 if kind == torch.uint8 else 2
    return ((index * 7 + number * 3) % 5 - least).to(kind)


class Job:
    """One rank with its device."""

    def __init__(self, rank):
        self.rank, self.me, self.size = rank, rank.number, rank.size
        self.device = torch.device("cpu")
        if ON_DEVICE:
            self.device = torch.device("cuda", self.me % torch.cuda.device_count())
            torch.cuda.set_device(self.device)

    def mine(self, count, kind, number=None):
        return values(self.me if number is None else number, count, kind).to(self.device)

    def empty(self, count, kind):
        """Values that no rank has, so that an element that is not written shows."""
        return torch.full((count,), 77, dtype=kind, device=self.device)

    def same(self, what, got, want):
        got = got.cpu()
        equal = got.dtype == want.dtype and torch.equal(got, want)
        self.rank.check(what, equal, "" if equal else f"{got[:8].tolist()} instead of {want[:8].tolist()}")

    def near(self, what, got, want):
        got, tolerance = got.cpu().double(), 1e-2 if want.dtype in (torch.float16, torch.bfloat16) else 1e-5
        self.rank.check(
            what, torch.allclose(got, want.double(), rtol=tolerance, atol=tolerance), str(got[:8].tolist())
        )

    def all_of(self, count, kind):
        return torch.stack([values(number, count, kind) for number in range(self.size)])


def folded(stacked, op):
    """The fold of all ranks' values in their own type."""
    result = stacked[0].clone()
    for each in stacked[1:]:
        if op == Op.PRODUCT:
            result = result * each
        elif op == Op.MAX:
            result = torch.maximum(result, each)
        elif op == Op.MIN:
            result = torch.minimum(result, each)
        else:
            result = result + each
    return result


def all_reduces(job):
    for kind in ALL:
        for count in COUNTS:
            stacked = job.all_of(count, kind)
            for op in (Op.SUM, Op.PRODUCT, Op.MAX, Op.MIN):
                tensor = job.mine(count, kind)
                dist.all_reduce(tensor, op)
                job.same(f"all_reduce {kind} {op} {count}", tensor, folded(stacked, op))
            tensor = job.mine(count, kind)
            work = dist.all_reduce(tensor, async_op=True)
            work.wait()
            job.same(f"all_reduce {kind} not waited for at once", tensor, folded(stacked, Op.SUM))
    for kind in FLOATS if ON_DEVICE else []:
        stacked = job.all_of(1003, kind).double()
        tensor = job.mine(1003, kind)
        dist.all_reduce(tensor, Op.AVG)
        job.near(f"all_reduce {kind} AVG", tensor, (stacked.sum(0) / job.size).to(kind))
        tensor = job.mine(1003, kind)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(FACTORS_OF_2.get(kind, 2.0)))
        job.near(f"all_reduce {kind} PREMUL_SUM", tensor, (stacked.sum(0) * 2).to(kind))
    if ON_DEVICE:
        if job.me == 0:
            print(
                "SKIP: PREMUL_SUM of bfloat16 by other factors: PyTorch hands the library half of a 32-bit float, where the "
                "interface takes a bfloat16"
            )
        factor = torch.tensor([3.0], device=job.device)
        tensor = job.mine(1003, torch.float32)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
        job.same(
            "all_reduce PREMUL_SUM of a device scalar", tensor, folded(job.all_of(1003, torch.float32), Op.SUM) * 3
        )
    big = torch.full((1 << 24,), float(job.me + 1), device=job.device)
    dist.all_reduce(big)
    job.rank.check("all_reduce of 64 MiB", bool((big == sum(range(1, job.size + 1))).all()))
    several = [job.mine(count, torch.float32) for count in (3, 1003, 70000)]
    dist.all_reduce_coalesced(several)
    for tensor in several:
        job.same("all_reduce_coalesced", tensor, folded(job.all_of(len(tensor), torch.float32), Op.SUM))


def rooted(job):
    for kind in ALL:
        for root in range(job.size):
            tensor = job.mine(1003, kind) if job.me == root else job.empty(1003, kind)
            dist.broadcast(tensor, root)
            job.same(f"broadcast {kind} from {root}", tensor, values(root, 1003, kind))
            tensor = job.mine(1003, kind)
            dist.reduce(tensor, root)
            if job.me == root:
                job.same(f"reduce {kind} to {root}", tensor, folded(job.all_of(1003, kind), Op.SUM))
            into = [job.empty(257, kind) for _ in range(job.size)] if job.me == root else None
            dist.gather(job.mine(257, kind), into, dst=root)
            for number, tensor in enumerate(into or []):
                job.same(f"gather {kind} to {root}", tensor, values(number, 257, kind))
            parts = [job.mine(257, kind, number) for number in range(job.size)] if job.me == root else None
            tensor = job.empty(257, kind)
            dist.scatter(tensor, parts, src=root)
            job.same(f"scatter {kind} from {root}", tensor, values(job.me, 257, kind))


def blocks(job):
    size, me = job.size, job.me
    for kind in ALL:
        into = [job.empty(1003, kind) for _ in range(size)]
        dist.all_gather(into, job.mine(1003, kind))
        for number, tensor in enumerate(into):
            job.same(f"all_gather {kind}", tensor, values(number, 1003, kind))
        whole = job.empty(1003 * size, kind)
        dist.all_gather_into_tensor(whole, job.mine(1003, kind))
        job.same(
            f"all_gather_into_tensor {kind}", whole, torch.cat([values(number, 1003, kind) for number in range(size)])
        )

        wide = torch.stack([values(number, 1003 * size, kind) for number in range(size)])
        part = folded(wide, Op.SUM)[me * 1003 : (me + 1) * 1003]
        tensor = job.empty(1003, kind)
        dist.reduce_scatter_tensor(tensor, job.mine(1003 * size, kind))
        job.same(f"reduce_scatter_tensor {kind}", tensor, part)
        tensor = job.empty(1003, kind)
        dist.reduce_scatter(tensor, list(job.mine(1003 * size, kind).split(1003)))
        job.same(f"reduce_scatter {kind}", tensor, part)

        whole = job.empty(64 * size, kind)
        dist.all_to_all_single(whole, job.mine(64 * size, kind))
        want = torch.cat([values(number, 64 * size, kind)[me * 64 : (me + 1) * 64] for number in range(size)])
        job.same(f"all_to_all_single {kind}", whole, want)
    # Blocks that differ in length; rank r sends r + other + 1 elements to other, and none where 3 divides that.
    length = lambda sender, receiver: (sender + receiver + 1) % 3 * 100
    sends, gets = [length(me, other) for other in range(size)], [length(other, me) for other in range(size)]
    whole = job.empty(sum(gets), torch.float32)
    dist.all_to_all_single(whole, job.mine(sum(sends), torch.float32), gets, sends)
    want = []
    for number in range(size):
        theirs = [length(number, other) for other in range(size)]
        begin = sum(theirs[:me])
        want.append(values(number, sum(theirs), torch.float32)[begin : begin + theirs[me]])
    job.same("all_to_all_single with splits", whole, torch.cat(want))
    if ON_DEVICE:
        into = [job.empty(count, torch.float32) for count in gets]
        dist.all_to_all(into, list(job.mine(sum(sends), torch.float32).split(sends)))
        for number, tensor in enumerate(into):
            job.same("all_to_all of a list", tensor, want[number])
        counts = [10 * number + 1 for number in range(size)]
        into = [job.empty(count, torch.float32) for count in counts]
        dist.all_gather(into, job.mine(counts[me], torch.float32))
        for number, tensor in enumerate(into):
            job.same("all_gather of blocks that differ", tensor, values(number, counts[number], torch.float32))
        tensor, parts = job.empty(counts[me], torch.float32), list(job.mine(sum(counts), torch.float32).split(counts))
        dist.reduce_scatter(tensor, parts)
        begin = sum(counts[:me])
        want = folded(torch.stack([values(number, sum(counts), torch.float32) for number in range(size)]), Op.SUM)
        job.same("reduce_scatter of blocks that differ", tensor, want[begin : begin + counts[me]])


def messages(job):
    size, me = job.size, job.me
    following, before = (me + 1) % size, (me - 1) % size
    if size > 1:
        for kind in ALL:
            for count in COUNTS:
                tensor = job.empty(count, kind)
                if me % 2 == 0 and me + 1 < size:
                    dist.send(job.mine(count, kind), me + 1)
                    dist.recv(tensor, me + 1)
                    job.same(f"send and recv {kind}", tensor, values(me + 1, count, kind))
                elif me % 2:
                    dist.recv(tensor, me - 1)
                    dist.send(job.mine(count, kind), me - 1)
                    job.same(f"recv and send {kind}", tensor, values(me - 1, count, kind))
        tensor = job.empty(1003, torch.float32)
        sends = dist.P2POp(dist.isend, job.mine(1003, torch.float32), following)
        gets = dist.P2POp(dist.irecv, tensor, before)
        for work in dist.batch_isend_irecv([sends, gets]):
            work.wait()
        job.same("batch_isend_irecv around a ring", tensor, values(before, 1003, torch.float32))
    dist.barrier()
    found = [None] * size
    dist.all_gather_object(found, {"rank": me})
    job.rank.equal("all_gather_object", found, [{"rank": number} for number in range(size)])
    sent = [("of", size)] if me == 0 else [None]
    dist.broadcast_object_list(sent, 0)
    job.rank.equal("broadcast_object_list", sent, [("of", size)])


def coalesced(job):
    # Without a device: NCCL's back end has calls of its own for lists of tensors, and with one the handle that is waited for
    # is that of an empty group.
    manager = dist.distributed_c10d._coalescing_manager
    size = job.size
    tensors = [job.mine(count, torch.float32) for count in (5, 1003, 40000)]
    with manager(async_ops=True) as works:
        for tensor in tensors:
            dist.all_reduce(tensor)
    works.wait()
    for tensor in tensors:
        job.same("all_reduce in a coalescing manager", tensor, folded(job.all_of(len(tensor), torch.float32), Op.SUM))
    wholes = [job.empty(count * size, torch.float32) for count in (5, 1003)]
    with manager():
        for whole in wholes:
            dist.all_gather_into_tensor(whole, job.mine(len(whole) // size, torch.float32))
    for whole in wholes:
        count = len(whole) // size
        want = torch.cat([values(number, count, torch.float32) for number in range(size)])
        job.same("all_gather_into_tensor in a coalescing manager", whole, want)
    parts = [job.empty(count, torch.float32) for count in (5, 1003)]
    with manager():
        for part in parts:
            dist.reduce_scatter_tensor(part, job.mine(len(part) * size, torch.float32))
    for part in parts:
        want = folded(job.all_of(len(part) * size, torch.float32), Op.SUM).split(len(part))[job.me]
        job.same("reduce_scatter_tensor in a coalescing manager", part, want)


def groups(job):
    size, me = job.size, job.me
    for members in ([0], list(range(size)), list(range(0, size, 2)), list(range(size))[::-1]):
        group = dist.new_group(members)
        if me in members:
            tensor = job.mine(1003, torch.float32)
            dist.all_reduce(tensor, group=group)
            want = folded(torch.stack([values(number, 1003, torch.float32) for number in members]), Op.SUM)
            job.same(f"all_reduce in the group {members}", tensor, want)
            dist.barrier(group=group)
            dist.destroy_process_group(group)


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))


def batch(number):
    return values(number, 16 * 64, torch.float32).reshape(16, 64)


def training(job):
    """Three steps of DDP, beside the same on the whole batch on the CPU."""
    ours = DistributedDataParallel(
        model().to(job.device), device_ids=[job.device] if ON_DEVICE else None, bucket_cap_mb=0.01
    )
    alone = model()
    steps = torch.optim.SGD(ours.parameters(), lr=0.05), torch.optim.SGD(alone.parameters(), lr=0.05)
    whole = torch.cat([batch(number) for number in range(job.size)])
    for _ in range(3):
        for network, inputs, step in ((ours, batch(job.me).to(job.device), steps[0]), (alone, whole, steps[1])):
            step.zero_grad()
            network(inputs).square().mean().backward()
            step.step()
    for got, want in zip(ours.module.parameters(), alone.parameters()):
        found, wanted = got.detach().cpu(), want.detach()
        distance = float((found - wanted).norm() / wanted.norm())
        job.rank.check("a parameter after three steps of DDP", distance < 1e-3, f"{distance}")


def streams(job):
    """Inputs that are made late, in streams of their own, by two communicators."""
    if not ON_DEVICE:
        print("SKIP: streams are a device's")
        return
    several = [(torch.cuda.Stream(), dist.new_group(list(range(job.size)))) for _ in range(2)]
    tensors = [torch.zeros(100000, device=job.device) for _ in several]
    torch.cuda.synchronize()
    for turn in range(5):
        for (stream, group), tensor in zip(several, tensors):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(1_000_000)
                tensor.fill_(job.me + 1 + turn)
                dist.all_reduce(tensor, group=group)
                tensor.mul_(2)
        for (stream, _), tensor in zip(several, tensors):
            stream.synchronize()
            want = 2.0 * sum(number + 1 + turn for number in range(job.size))
            job.rank.check(
                "all_reduce behind work in a stream", bool((tensor == want).all()), str(tensor[:4].tolist())
            )


def body(rank):
    if ON_DEVICE and "LIBNCCL" in os.environ:
        libraries, ours = ranks.loaded()
        rank.check("the library", ours in libraries, f"{sorted(libraries)}")
        rank.equal("whose ids", torch.cuda.nccl.unique_id()[:4], b"cnst")
    job = Job(rank)
    path = rank.share(tempfile.mktemp() if rank.number == 0 else None)
    store = dist.FileStore(path, rank.size)
    # A device that is named here is what communicators are made for at once.
    bound = {"device_id": job.device} if ON_DEVICE else {}
    dist.init_process_group(
        BACKEND, store=store, rank=rank.number, world_size=rank.size, timeout=timedelta(seconds=60), **bound
    )
    for part in (all_reduces, rooted, blocks, messages, coalesced, groups, training, streams):
        if not ON_DEVICE and part is coalesced:
            print("SKIP: gloo has no coalescing manager")
            continue
        part(job)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if ON_DEVICE and not torch.cuda.is_available():
        print("SKIP: torch sees no GPU")
        sys.exit(77)
    sizes = [int(size) for size in sys.argv[1:]] or [1, 2, 4]
    sys.exit(0 if all([ranks.run(f"torch {torch.__version__}, {BACKEND}", body, size, 150) for size in sizes]) else 1)
