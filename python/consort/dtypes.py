"""Element types: the library's twelve, and those that are views of them.

Invariant: an element of a `DataType` is `units` elements of its `code`, and has `units * unit_bytes` bytes. Absent: arrays.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from .errors import wrong
from .prototypes import DATA_TYPES, OPERATORS


class DataType(NamedTuple):
    """An element type."""

    name: str
    #: `ncclDataType_t` of what it is made of.
    code: int
    #: Elements of `code` in one element.
    units: int
    #: Bytes of an element of `code`.
    unit_bytes: int
    #: How folds treat it: `number`, `bool`, `complex` or `bytes` (which is only moved).
    kind: str

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return self.units * self.unit_bytes


def _all() -> "dict[str, DataType]":
    plain = [
        ("int8", "ncclInt8", 1),
        ("uint8", "ncclUint8", 1),
        ("int32", "ncclInt32", 4),
        ("uint32", "ncclUint32", 4),
        ("int64", "ncclInt64", 8),
        ("uint64", "ncclUint64", 8),
        ("float16", "ncclFloat16", 2),
        ("float32", "ncclFloat32", 4),
        ("float64", "ncclFloat64", 8),
        ("bfloat16", "ncclBfloat16", 2),
        ("float8_e4m3fn", "ncclFloat8e4m3", 1),
        ("float8_e5m2", "ncclFloat8e5m2", 1),
    ]
    table = {name: DataType(name, DATA_TYPES[code], 1, size, "number") for name, code, size in plain}

    def view(name: str, of: str, units: int, kind: str) -> None:
        table[name] = table[of]._replace(name=name, units=units, kind=kind)

    view("bool", "uint8", 1, "bool")
    view("complex32", "float16", 2, "complex")
    view("complex64", "float32", 2, "complex")
    view("complex128", "float64", 2, "complex")
    view("int16", "uint8", 2, "bytes")
    view("uint16", "uint8", 2, "bytes")
    return table


#: Every element type by its name, which is NumPy's, PyTorch's and `ml_dtypes`'.
TYPES = _all()

_NAMES = {"sum": "ncclSum", "prod": "ncclProd", "max": "ncclMax", "min": "ncclMin", "avg": "ncclAvg"}
_SAME = {"product": "prod", "mean": "avg", "maximum": "max", "minimum": "min", "add": "sum"}
_BITWISE = {"band": "min", "bor": "max", "and": "min", "or": "max"}


def data_type(name: "str | DataType") -> DataType:
    """The element type of a name such as `float32` or `bfloat16`. Raises `InvalidArgument` for others."""
    if isinstance(name, DataType):
        return name
    found = TYPES.get(name)
    if found is None:
        raise wrong(f"there is no element type {name!r}", "pass one of " + ", ".join(TYPES))
    return found


def _operator(op: str, of: DataType) -> int:
    name = _SAME.get(op, op)
    if of.kind == "bool":
        # As in torch's NCCL groups: a sum of truths is true where one of them is.
        name = {"sum": "max", "prod": "min", **_BITWISE}.get(name, name)
        if name == "avg":
            raise wrong("an average of bool", "convert the array to a number first")
    code = OPERATORS.get(_NAMES.get(name, ""))
    if code is None:
        if name in _BITWISE or name in ("bxor", "xor"):
            raise wrong(f"there is no {op} of {of.name}", "gather the arrays with all_gather and combine them")
        raise wrong(f"there is no operator {op!r}", "pass sum, prod, max, min, avg or consort.scaled_sum(factor)")
    if of.kind == "bytes":
        raise wrong(f"{of.name} can be moved and not folded", "convert the array to int32 first")
    if of.kind == "complex" and name not in ("sum", "avg"):
        raise wrong(f"there is no {op} of {of.name}", "complex numbers have sum and avg")
    return code


_codes: "dict[tuple[str, str], int]" = {}


def operator(op: str, of: DataType) -> int:
    """The `ncclRedOp_t` of an operator's name for an element type.

    bool: sum and max are "or", prod and min are "and". Complex numbers: sum and avg. Raises `InvalidArgument` otherwise.
    """
    key = (op, of.name)
    code = _codes.get(key)
    if code is None:
        code = _codes[key] = _operator(op, of)
    return code


class ScaledSum(NamedTuple):
    """The operator that multiplies this rank's elements by `factor`, in their type, and sums over the ranks."""

    factor: float


def scaled_sum(factor: float) -> ScaledSum:
    """An operator for folds: each rank's elements times its `factor`, summed. Ranks may pass different factors."""
    return ScaledSum(float(factor))


def of_torch(dtype: object) -> Optional[DataType]:
    """The element type of a `torch.dtype`; None where there is none."""
    return TYPES.get(str(dtype).rpartition(".")[2])
