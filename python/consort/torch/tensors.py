"""PyTorch's tensors and operators in the forms that the package's calls take.

Invariant: what a call gets is dense, in row-major order, of a type that the package knows, and holds the tensor's
elements; a result that had to go into another buffer is copied into its tensor when the call is over. Absent: calls.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from ..dtypes import DataType, ScaledSum, of_torch
from ..errors import wrong

Operator = Union[str, ScaledSum]
#: Pairs of a tensor and the buffer whose elements it gets when the calls are over.
Copies = List[Tuple[Tensor, Tensor]]
Combine = Callable[[Tensor, Tensor], Tensor]

_NAMES = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "avg",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}
_BITWISE = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}
_ARITHMETIC = {"sum": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum}


def operator_of(op: Any) -> Operator:
    """The package's name of a `ReduceOp`, or the scaled sum that it is."""
    # Comparing is a tenth of what taking an operator apart costs, and most are this one.
    if op == ReduceOp.SUM:
        return "sum"
    state: Any = op.__getstate__() if isinstance(op, ReduceOp) else (op, None)
    kind = state[0] if isinstance(state, tuple) else state
    if kind == ReduceOp.RedOpType.PREMUL_SUM:
        factor = state[1]
        return ScaledSum(float(factor.item() if isinstance(factor, Tensor) else factor))
    name = _NAMES.get(kind)
    if name is None:
        raise wrong(f"the operator {op}", "pass one of torch.distributed.ReduceOp")
    return name


_known: "dict[torch.dtype, Optional[DataType]]" = {}


def _type_of(tensor: Tensor) -> Optional[DataType]:
    dtype = tensor.dtype
    known = _known.get(dtype)
    if known is None and dtype not in _known:
        known = _known[dtype] = of_torch(dtype)
    return known


def by_gathering(op: Operator, tensor: Tensor) -> Optional[Combine]:
    """How two tensors are combined where the library cannot fold them itself, but can move them; None where it can.

    Raises `InvalidArgument` for what cannot be combined at all.
    """
    dtype = _type_of(tensor)
    if dtype is None and op not in _BITWISE:
        # Its elements are moved as bytes, which the library would fold one by one.
        named = "scaled sum" if isinstance(op, ScaledSum) else op
        raise wrong(f"there is no {named} of {tensor.dtype}", "convert the tensor to float32 first")
    if isinstance(op, ScaledSum):
        return None
    if op in _BITWISE:
        if tensor.dtype is torch.bool and op != "bxor":
            return None
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            raise wrong(f"there is no {op} of {tensor.dtype}", "pass a tensor of integers or of bool")
        return _BITWISE[op]
    if dtype is not None and dtype.name == "int16" and op in _ARITHMETIC:
        return _ARITHMETIC[op]
    return None


def combined(rows: Tensor, combine: Combine) -> Tensor:
    """The fold of the rows of a tensor, in the order of ranks."""
    result = rows[0]
    for row in rows[1:]:
        result = combine(result, row)
    return result


def units(tensor: Tensor) -> int:
    """How many elements `plain` makes of one element."""
    return 1 if _type_of(tensor) is not None else tensor.element_size()


def plain(tensor: Tensor) -> Tensor:
    """A dense tensor as one of a type that the package has: bytes for those that it does not."""
    if _type_of(tensor) is not None:
        return tensor
    # Strides of axes of one element may be anything.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_neg() and not (tensor.is_complex() and tensor.is_conj())


def _usable(tensor: Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise wrong(f"a tensor of the layout {tensor.layout}", "pass a dense one: tensor.to_dense()")
    if not tensor.is_cpu:
        raise wrong(
            f"a tensor on {tensor.device} for the backend of the host",
            'pass "cpu:consort,cuda:nccl" to init_process_group after import consort.nccl, or move the tensor to the CPU',
        )


def source(tensor: Tensor) -> Tensor:
    """The elements of an input: the tensor itself where it is dense, else a copy."""
    _usable(tensor)
    if _dense(tensor):
        return plain(tensor)
    return plain(tensor.detach().resolve_conj().resolve_neg().contiguous())


def target(tensor: Tensor, copies: Copies, filled: bool = False) -> Tensor:
    """Where a result is written to: the tensor itself where it is dense, else a buffer that is copied into it.

    `filled` is for calls that also read it.
    """
    _usable(tensor)
    if _dense(tensor):
        return plain(tensor)
    detached = tensor.detach()
    if filled:
        buffer = detached.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    else:
        buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    copies.append((tensor, buffer))
    return plain(buffer)


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """The elements of several inputs, one after the other."""
    flat = _adjacent(tensors)
    if flat is None:
        return torch.cat([source(tensor).reshape(-1) for tensor in tensors])
    return plain(flat)


def spread(tensors: Sequence[Tensor], copies: Copies) -> Tensor:
    """Where results are written one after the other, that belong to several tensors."""
    flat = _adjacent(tensors)
    if flat is not None:
        return plain(flat)
    for tensor in tensors:
        _usable(tensor)
    first = tensors[0]
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=first.dtype, device=first.device)
    at = 0
    for tensor in tensors:
        if tensor.dtype is not first.dtype:
            raise wrong(f"outputs of {first.dtype} and of {tensor.dtype}", "pass tensors of one type")
        copies.append((tensor, flat[at : at + tensor.numel()].view(tensor.shape)))
        at += tensor.numel()
    return plain(flat)


def _adjacent(tensors: Sequence[Tensor]) -> Optional[Tensor]:
    """One tensor of the elements of several that lie one after the other in one storage; None where they do not."""
    first = tensors[0]
    if first.layout is not torch.strided or first.device.type != "cpu" or not first.numel():
        return None
    storage, at = first.untyped_storage().data_ptr(), first.data_ptr()
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.dtype is not first.dtype or not _dense(tensor):
            return None
        if tensor.data_ptr() != at or tensor.untyped_storage().data_ptr() != storage:
            return None
        at += tensor.numel() * tensor.element_size()
    with torch.no_grad():
        return first.detach().as_strided((sum(tensor.numel() for tensor in tensors),), (1,), first.storage_offset())


def copy_out(copies: Copies) -> None:
    """Gives the tensors what their buffers have."""
    for tensor, buffer in copies:
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.copy_(buffer)


def blocks(tensor: Tensor, splits: Sequence[int], ranks: int, what: str) -> "list[int]":
    """How many elements of `plain` each rank's block has; equal blocks where `splits` is empty.

    Raises `InvalidArgument` where the first axis is not what the splits add up to.
    """
    length = tensor.shape[0] if tensor.dim() else 1
    row = tensor.numel() // length * units(tensor) if length else 0
    if not splits:
        if length % ranks:
            raise wrong(f"{what} of {length} rows for {ranks} ranks", "pass split sizes, or a multiple of the ranks")
        return [length // ranks * row] * ranks
    if len(splits) != ranks or sum(splits) != length or min(splits) < 0:
        raise wrong(
            f"split sizes {list(splits)} of {what} of {length} rows for {ranks} ranks",
            "pass one size for each rank; they add up to the first axis",
        )
    return [size * row for size in splits]
