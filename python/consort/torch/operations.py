"""PyTorch's operations of a process group, as calls of the package.

Names and arguments are PyTorch's: those of `torch.distributed.ProcessGroup`, from 2.13 on and before. Tensors may have any
strides and shape; those that are not dense are copied. Every operation returns work at once; one that the program waits
for is over by then.

Invariant: what is wrong with arguments is raised by the method. Absent: when calls are made (`engine`).
"""

from __future__ import annotations

from typing import Any, List, Sequence

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from ..errors import wrong
from . import monitored
from .engine import Engine, Plan
from .tensors import (
    Operator,
    blocks,
    by_gathering,
    combined,
    joined,
    operator_of,
    source,
    spread,
    target,
    units,
)
from .work import Work


def _one(tensors: Sequence[Any], what: str) -> Any:
    if len(tensors) != 1:
        raise wrong(f"{len(tensors)} {what} in one operation", "pass one; a process has one rank of a group")
    return tensors[0]


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)


class Operations:
    """The operations of a group; its subclasses are what PyTorch takes for one."""

    engine: Engine

    # Folds.

    def _fold_all(self, plan: Plan, tensor: Tensor, op: Operator) -> None:
        comm, combine = self.engine.comm, by_gathering(op, tensor)
        buffer = target(tensor, plan.copies, filled=True)
        if combine is None:
            plan.calls.append(comm._all_reduce(buffer, op, None))
            return
        rows = buffer.new_empty((comm.size, buffer.numel()))
        plan.calls.append(comm._all_gather(buffer, rows))
        plan.after.append(lambda: _fill(buffer, combined(rows, combine)))

    def allreduce(self, tensors: List[Tensor], opts: Any = None) -> Work:
        """Folds a tensor of all ranks, in place."""
        opts = opts or c10d.AllreduceOptions()
        tensor, plan = _one(tensors, "tensors"), Plan(tensors)
        self._fold_all(plan, tensor, operator_of(opts.reduceOp))
        return self.engine.submit(plan, opts, _bytes(tensor))

    def allreduce_coalesced(self, tensors: List[Tensor], opts: Any = None) -> Work:
        """Folds several tensors of all ranks, each in place, together."""
        opts, plan = opts or c10d.AllreduceCoalescedOptions(), Plan(tensors)
        for tensor in tensors:
            self._fold_all(plan, tensor, operator_of(opts.reduceOp))
        return self.engine.submit(plan, opts, _bytes(*tensors))

    def reduce(self, tensors: List[Tensor], opts: Any = None) -> Work:
        """Folds a tensor of all ranks, in place on the root."""
        opts = opts or c10d.ReduceOptions()
        comm, root = self.engine.comm, opts.rootRank
        tensor, plan = _one(tensors, "tensors"), Plan(tensors)
        op = operator_of(opts.reduceOp)
        combine = by_gathering(op, tensor)
        buffer = target(tensor, plan.copies, filled=True) if comm.rank == root else source(tensor)
        if combine is None:
            plan.calls.append(comm._reduce(buffer, root, op, None))
        elif comm.rank == root:
            rows = buffer.new_empty((comm.size, buffer.numel()))
            plan.calls.append(comm._gather(buffer, root, rows))
            plan.after.append(lambda: _fill(buffer, combined(rows, combine)))
        else:
            plan.calls.append(comm._gather(buffer, root, None))
        return self.engine.submit(plan, opts, _bytes(tensor))

    def _fold_blocks(self, plan: Plan, output: Tensor, flat: Tensor, op: Operator) -> None:
        comm, combine = self.engine.comm, by_gathering(op, output)
        buffer = target(output, plan.copies)
        if combine is None:
            plan.calls.append(comm._reduce_scatter(flat, op, buffer))
            return
        rows = buffer.new_empty((comm.size, buffer.numel()))
        plan.calls.append(comm._all_to_all(flat, rows))
        plan.after.append(lambda: _fill(buffer, combined(rows, combine)))

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Folds a tensor of all ranks; rank r gets block r of the result."""
        opts, plan = opts or c10d.ReduceScatterOptions(), Plan([output])
        self._fold_blocks(plan, output, source(input), operator_of(opts.reduceOp))
        return self.engine.submit(plan, opts, _bytes(input))

    def reduce_scatter_single_coalesced(self, outputs: List[Tensor], inputs: List[Tensor], opts: Any = None) -> Work:
        """Several `reduce_scatter_single`, together."""
        opts, plan = opts or c10d.ReduceScatterOptions(), Plan(outputs)
        for output, input in zip(outputs, inputs):
            self._fold_blocks(plan, output, source(input), operator_of(opts.reduceOp))
        return self.engine.submit(plan, opts, _bytes(*inputs))

    def reduce_scatter(self, outputs: List[Tensor], inputs: List[List[Tensor]], opts: Any = None) -> Work:
        """Folds lists of tensors; rank r gets the fold of those at place r, which may differ in length from others."""
        opts = opts or c10d.ReduceScatterOptions()
        comm = self.engine.comm
        output, tensors, plan = _one(outputs, "outputs"), _one(inputs, "lists of inputs"), Plan(outputs)
        op = operator_of(opts.reduceOp)
        if len(tensors) != comm.size:
            raise wrong(f"{len(tensors)} inputs for {comm.size} ranks", "pass one for each rank")
        lengths = [tensor.numel() for tensor in tensors]
        if len(set(lengths)) == 1:
            self._fold_blocks(plan, output, joined(tensors), op)
        elif by_gathering(op, output) is not None:
            raise wrong(f"a fold of {output.dtype} in blocks that differ in length", "pass blocks of one length")
        else:
            flat, buffer = joined(tensors), target(output, plan.copies)
            plan.calls.append(comm._reduce_scatter_v(flat, buffer, lengths, op, None))
        return self.engine.submit(plan, opts, _bytes(*tensors))

    # Gathers and scatters.

    def broadcast(self, tensors: List[Tensor], opts: Any = None) -> Work:
        """Copies the root's tensor into those of all."""
        opts = opts or c10d.BroadcastOptions()
        comm, root = self.engine.comm, opts.rootRank
        tensor, plan = _one(tensors, "tensors"), Plan(tensors)
        buffer = source(tensor) if comm.rank == root else target(tensor, plan.copies)
        plan.calls.append(comm._broadcast(buffer, root))
        return self.engine.submit(plan, opts, _bytes(tensor))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Gives the tensors of all ranks, one after the other, to all."""
        opts, plan = opts or c10d.AllgatherOptions(), Plan([output])
        plan.calls.append(self.engine.comm._all_gather(source(input), target(output, plan.copies)))
        return self.engine.submit(plan, opts, _bytes(output))

    def all_gather_single_coalesced(self, outputs: List[Tensor], inputs: List[Tensor], opts: Any = None) -> Work:
        """Several `all_gather_single`, together."""
        opts, plan = opts or c10d.AllgatherOptions(), Plan(outputs)
        for output, input in zip(outputs, inputs):
            plan.calls.append(self.engine.comm._all_gather(source(input), target(output, plan.copies)))
        return self.engine.submit(plan, opts, _bytes(*outputs))

    def _gather_list(self, plan: Plan, outputs: List[Tensor], input: Tensor) -> None:
        comm = self.engine.comm
        if len(outputs) != comm.size:
            raise wrong(f"{len(outputs)} outputs for {comm.size} ranks", "pass one for each rank")
        flat, lengths = spread(outputs, plan.copies), [output.numel() * units(input) for output in outputs]
        if len(set(lengths)) == 1:
            plan.calls.append(comm._all_gather(source(input), flat))
        else:
            plan.calls.append(comm._all_gather_v(source(input), flat, lengths, None))

    def allgather(self, outputs: List[List[Tensor]], inputs: List[Tensor], opts: Any = None) -> Work:
        """Gives the tensors of all ranks to all, in a list; their lengths may differ."""
        opts = opts or c10d.AllgatherOptions()
        tensors = _one(outputs, "lists of outputs")
        plan = Plan(tensors)
        self._gather_list(plan, tensors, _one(inputs, "inputs"))
        return self.engine.submit(plan, opts, _bytes(*tensors))

    def allgather_coalesced(self, outputs: List[List[Tensor]], inputs: List[Tensor], opts: Any = None) -> Work:
        """Several `allgather`, together. `outputs` has a list for each rank, or one for each input."""
        opts = opts or c10d.AllgatherOptions()
        size = self.engine.comm.size
        # PyTorch's own callers pass a list for each rank.
        if len(outputs) == size and all(len(row) == len(inputs) for row in outputs):
            outputs = [[row[index] for row in outputs] for index in range(len(inputs))]
        flat = [tensor for row in outputs for tensor in row]
        plan = Plan(flat)
        for row, input in zip(outputs, inputs):
            self._gather_list(plan, row, input)
        return self.engine.submit(plan, opts, _bytes(*flat))

    def gather(self, outputs: List[List[Tensor]], inputs: List[Tensor], opts: Any = None) -> Work:
        """Gives the tensors of all ranks to the root, in a list; their lengths may differ."""
        opts = opts or c10d.GatherOptions()
        comm, root, input = self.engine.comm, opts.rootRank, _one(inputs, "inputs")
        if comm.rank != root:
            plan = Plan([])
            plan.calls.append(comm._gather_v(source(input), None, None, root, None))
            return self.engine.submit(plan, opts, _bytes(input))
        tensors = _one(outputs, "lists of outputs")
        if len(tensors) != comm.size:
            raise wrong(f"{len(tensors)} outputs for {comm.size} ranks", "pass one for each rank")
        plan = Plan(tensors)
        flat, lengths = spread(tensors, plan.copies), [tensor.numel() * units(input) for tensor in tensors]
        plan.calls.append(comm._gather_v(source(input), flat, lengths, root, None))
        return self.engine.submit(plan, opts, _bytes(*tensors))

    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Gives the tensors of all ranks, one after the other, to the root."""
        opts = opts or c10d.GatherOptions()
        comm, root = self.engine.comm, opts.rootRank
        plan = Plan([output] if comm.rank == root else [])
        buffer = target(output, plan.copies) if comm.rank == root else None
        plan.calls.append(comm._gather(source(input), root, buffer))
        return self.engine.submit(plan, opts, _bytes(input))

    def scatter(self, outputs: List[Tensor], inputs: List[List[Tensor]], opts: Any = None) -> Work:
        """Gives tensor r of the root's list to rank r; their lengths may differ."""
        opts = opts or c10d.ScatterOptions()
        comm, root, output = self.engine.comm, opts.rootRank, _one(outputs, "outputs")
        plan = Plan(outputs)
        buffer = target(output, plan.copies)
        if comm.rank != root:
            plan.calls.append(comm._scatter_v(None, buffer, None, root, None))
            return self.engine.submit(plan, opts, _bytes(output))
        tensors = _one(inputs, "lists of inputs")
        if len(tensors) != comm.size:
            raise wrong(f"{len(tensors)} inputs for {comm.size} ranks", "pass one for each rank")
        lengths = [tensor.numel() * units(tensor) for tensor in tensors]
        plan.calls.append(comm._scatter_v(joined(tensors), buffer, lengths, root, None))
        return self.engine.submit(plan, opts, _bytes(*tensors))

    # Exchanges.

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = None
    ) -> Work:
        """Gives block r of the input's first axis to rank r. Without split sizes blocks are equally long."""
        opts, plan, comm = opts or c10d.AllToAllOptions(), Plan([output]), self.engine.comm
        sent = blocks(input, input_splits, comm.size, "an input")
        received = blocks(output, output_splits, comm.size, "an output")
        buffer = target(output, plan.copies)
        plan.calls.append(comm._all_to_all_v(source(input), buffer, sent, received, None, None))
        return self.engine.submit(plan, opts, _bytes(input, output))

    def alltoall(self, outputs: List[Tensor], inputs: List[Tensor], opts: Any = None) -> Work:
        """Gives tensor r of the list to rank r."""
        opts, plan, comm = opts or c10d.AllToAllOptions(), Plan(outputs), self.engine.comm
        if len(outputs) != comm.size or len(inputs) != comm.size:
            raise wrong(f"{len(inputs)} inputs and {len(outputs)} outputs for {comm.size} ranks", "pass one for each rank")
        sent = [tensor.numel() * units(tensor) for tensor in inputs]
        received = [tensor.numel() * units(tensor) for tensor in outputs]
        flat = spread(outputs, plan.copies)
        plan.calls.append(comm._all_to_all_v(joined(inputs), flat, sent, received, None, None))
        return self.engine.submit(plan, opts, _bytes(*inputs, *outputs))

    # Messages and barriers.

    def send(self, tensors: List[Tensor], dst: int, tag: int = 0) -> Work:
        """Sends a tensor. Messages of a pair match in the order of the calls: a tag is not looked at."""
        tensor = _one(tensors, "tensors")
        return self.engine.message(source(tensor), tensor, [], dst, False)

    def recv(self, tensors: List[Tensor], src: int, tag: int = 0) -> Work:
        """Receives the next message of `src`."""
        tensor: Tensor = _one(tensors, "tensors")
        copies: "list[tuple[Tensor, Tensor]]" = []
        return self.engine.message(target(tensor, copies), tensor, copies, src, True)

    def recv_anysource(self, tensors: List[Tensor], tag: int = 0) -> Work:
        """Refused."""
        raise wrong("a receive from any rank: messages match by the rank that sends", "pass src= to recv")

    def barrier(self, opts: Any = None) -> Work:
        """Over when all ranks have come."""
        plan = Plan([])
        plan.calls.append(self.engine.comm._barrier())
        return self.engine.submit(plan, opts or c10d.BarrierOptions(), 1)

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """Returns when all ranks have come; else raises, on all, and names those that did not. The group goes on."""
        monitored.barrier(self.engine, opts or c10d.BarrierOptions(), wait_all_ranks)

    # The names before 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    gather_into_tensor = gather_single


def _fill(buffer: Tensor, values: Tensor) -> None:
    with torch.inference_mode(buffer.is_inference()), torch.no_grad():
        buffer.copy_(values.view(buffer.shape))

