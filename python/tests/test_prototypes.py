"""The table of C functions and numbers, read beside `include/nccl.h` and `include/consort.h`. Nothing is compiled."""

import ctypes
import pickle
import re
from ctypes import POINTER
from pathlib import Path

import pytest

from consort import errors, memory, observability, prototypes

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def headers():
    texts = [(ROOT / "include" / name).read_text() for name in ("nccl.h", "consort.h")]
    return re.sub(r"/\*.*?\*/", "", "\n".join(texts), flags=re.DOTALL)


def enumeration(text, prefix):
    return {name: int(value) for name, value in re.findall(rf"\b({prefix}\w+) = (\d+)\b", text)}


def test_numbers_are_those_of_the_headers(headers):
    known = enumeration(headers, "(?:nccl|CONSORT_)")
    for table in (prototypes.RESULTS, prototypes.DATA_TYPES, prototypes.OPERATORS):
        for name, value in table.items():
            assert known[name] == value, name
    # And none is left out: but for other names of the same type, and the ends.
    types = {value for name, value in known.items() if re.match(r"nccl(Int|Uint|Float|Bfloat)\d", name)}
    assert types == set(prototypes.DATA_TYPES.values()) and known["ncclNumTypes"] == len(types)
    assert known["ncclNumOps"] == len(prototypes.OPERATORS)
    assert known["ncclNumResults"] == len(prototypes.RESULTS)
    for name, value in prototypes.COLLECTIVES.items():
        assert known[f"CONSORT_{name.upper()}"] == value
    assert (known["CONSORT_TEXT"], known["CONSORT_JSON"]) == (prototypes.TEXT, prototypes.JSON)
    assert known["ncclScalarHostImmediate"] == prototypes.SCALAR_HOST_IMMEDIATE
    assert [known[f"ncclStatGpuMem{name}"] for name in ("Suspend", "Suspended", "Persist", "Total")] == list(
        observability._STATISTICS.values()
    )


def macro(text, name):
    return re.search(rf"#define {name} \(?([^\s)]+)", text).group(1)


def test_constants_are_those_of_the_headers(headers):
    assert int(macro(headers, "NCCL_SPLIT_NOCOLOR")) == prototypes.SPLIT_NO_COLOR
    assert int(macro(headers, "NCCL_SHRINK_DEFAULT"), 16) == prototypes.SHRINK_DEFAULT
    assert int(macro(headers, "NCCL_SHRINK_ABORT"), 16) == prototypes.SHRINK_ABORT
    assert float(macro(headers, "CONSORT_TIMEOUT_NONE")) == prototypes.TIMEOUT_NONE
    assert float(macro(headers, "CONSORT_TIMEOUT_INHERIT")) == prototypes.TIMEOUT_INHERIT
    assert int(macro(headers, "NCCL_UNIQUE_ID_BYTES")) == ctypes.sizeof(prototypes.UniqueId)
    config = prototypes.Config()
    assert config.magic == int(macro(headers, "NCCL_API_MAGIC"), 16)
    assert config.version == int(macro(headers, "NCCL_VERSION_CODE"))
    assert config.blocking == -(2**31) and config.commName is None


def kind(declared):
    """What ctypes calls the C type of a parameter."""
    # Its name goes, but not that of a type that stands alone.
    declared = re.sub(r"\b(const|enum)\b", "", declared).strip()
    array = "[]" in declared
    declared = declared.replace("[]", "")
    if "*" in declared:
        base = declared[: declared.rindex("*") + 1].replace(" ", "")
    else:
        base = declared.split()[0] if len(declared.split()) < 3 else " ".join(declared.split()[:-1])
    base += "*" if array else ""
    handles = {"ncclComm_t", "consortComm_t", "cudaStream_t", "void*", "size_t*"}
    if base in handles:
        return {ctypes.c_void_p}
    if base in ("ncclComm_t*", "void**", "consortComm_t*"):
        return {POINTER(ctypes.c_void_p)}
    integers = {"int", "ncclDataType_t", "ncclRedOp_t", "ncclScalarResidence_t", "consortFormat_t", "ncclResult_t"}
    if base in integers | {"consortCollective_t", "ncclCommMemStat_t"}:
        return {ctypes.c_int}
    return {
        "size_t": {ctypes.c_size_t},
        "uint64_t": {ctypes.c_uint64},
        "double": {ctypes.c_double},
        "char*": {ctypes.c_char_p},
        "ncclUniqueId": {prototypes.UniqueId},
        "ncclUniqueId*": {POINTER(prototypes.UniqueId)},
        "ncclConfig_t*": {POINTER(prototypes.Config)},
        "int*": {POINTER(ctypes.c_int)},
        "ncclRedOp_t*": {POINTER(ctypes.c_int)},
        "ncclResult_t*": {POINTER(ctypes.c_int)},
        "uint64_t*": {POINTER(ctypes.c_uint64)},
        "double*": {POINTER(ctypes.c_double)},
    }[base]


@pytest.mark.parametrize("name", prototypes.FUNCTIONS)
def test_a_function_has_its_parameters(headers, name):
    found = re.search(rf"^([\w ]+?[\s*]+){name}\(([^)]*)\);", headers, re.MULTILINE)
    assert found, f"no header declares {name}"
    result = re.sub(r"\bconst\b", "", found.group(1)).replace(" ", "")
    wanted = prototypes.OTHER_RESULTS.get(name)
    assert (result == "char*") if wanted else result in ("ncclResult_t", "consortResult_t")
    declared = [part for part in found.group(2).replace("\n", " ").split(",") if part.strip() not in ("", "void")]
    arguments = prototypes.FUNCTIONS[name]
    assert len(declared) == len(arguments)
    for parameter, argument in zip(declared, arguments):
        if argument is POINTER(ctypes.c_size_t) and kind(parameter) == {ctypes.c_void_p}:
            continue
        assert argument in kind(parameter), parameter


def test_the_config_has_the_members_of_the_header(headers):
    body = re.search(r"typedef struct ncclConfig_v\w+ \{(.*?)\} ncclConfig_t;", headers, re.DOTALL).group(1)
    declared = [line.strip(" ;").split() for line in body.splitlines() if line.strip()]
    members = [(" ".join(words[:-1]), words[-1]) for words in declared]
    of = {"size_t": ctypes.c_size_t, "unsigned int": ctypes.c_uint, "int": ctypes.c_int}
    wanted = [(name.lstrip("*"), of.get(kind, ctypes.c_char_p)) for kind, name in members]
    assert [(name, kind) for name, kind in prototypes.Config._fields_] == wanted


def test_every_error_of_the_library_has_its_class():
    """The sentences of `types/src/error.rs`, with values in them, are each taken for its own."""
    text = (ROOT / "types/src/error.rs").read_text()
    body = text[text.index("pub enum Error {") : text.index("\n}\n", text.index("pub enum Error {"))]
    found = re.findall(r'#\[error\(\s*"((?:[^"\\]|\\.)*)"(.*?)\)\]\s+(?:///.*\s+)*(\w+)', body, re.DOTALL)
    names = {name for _, _, name in found}
    assert len(names) >= 14 and "PeerLost" in names, names
    classes = {
        "InvalidArgument": errors.InvalidArgument,
        "Mismatch": errors.Mismatch,
        "Settings": errors.DifferentSettings,
        "MissingRanks": errors.MissingRanks,
        "Join": errors.JoinFailed,
        "PeerLost": errors.LostRank,
        "PeerLeft": errors.LeftRank,
        "Aborted": errors.Aborted,
        "ConcurrentUse": errors.ConcurrentUse,
        "Forked": errors.Forked,
        "OutOfMemory": errors.SystemFailure,
        "Device": errors.DeviceFailure,
        "Link": errors.LinkFailed,
        "Internal": errors.InternalError,
        "System": errors.SystemFailure,
    }
    values = {"rank": "3", "from": "2", "to": "3", "size": "4", "place": "host a, process 7", "sequence": "9"}
    values.update({"needed_bytes": "4096", "transport": "tcp", "difference": "rank 3: all_reduce of 8 float"})
    for form, _, name in found:
        if form == "{}":
            # Made by a function; below.
            continue
        form = re.sub(r"\\\s*\n\s*", "", form)
        form = form.replace("missing rank{} {};", "missing ranks 3;").replace("{} of {size}", "1 of {size}")
        form = form.replace("was lost{}:", "was lost during all_reduce #9:").replace("within {}", "within 1.5 s")
        sentence = re.sub(r"\{(\w*)\}", lambda value: values.get(value.group(1), "something"), form)
        for prefix in ("", "ncclAllReduce on rank 0 of 4: "):
            code = prototypes.RESULTS["ncclSystemError"] if name == "System" else 3
            error = errors.parse(prefix + sentence, code, 0)
            assert type(error) is classes[name], (name, sentence)
            if name not in ("InvalidArgument", "Settings", "ConcurrentUse", "Forked", "Internal", "System"):
                assert error.peers == (3,), (name, sentence)
            assert error.cause and error.remedy and not error.cause.startswith("nccl"), (name, sentence)
    # Those whose sentences functions make.
    late = "all_reduce #2 did not finish within 1.5 s: rank 3 has not called; consortCommLastReport has the details"
    assert type(errors.parse(late, 8)) is errors.Timeout and errors.parse(late, 8).peer == 3
    revoked = "the communicator was revoked by rank 3: why; its operations are over, and ncclCommSplit makes a new one"
    assert type(errors.parse(revoked, 5)) is errors.Revoked and "split makes" in errors.parse(revoked, 5).remedy


def test_an_error_survives_the_way_to_another_process():
    error = errors.parse("ncclAllReduce on rank 0 of 4: rank 3 (host a, process 7) was lost: gone; look there", 6, 0)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.LostRank and (str(again), vars(again)) == (str(error), vars(error))
    assert str(error).startswith("rank 0 of 4: rank 3 (host a") and error.remedy == "look there"


def test_memory_shows_every_type_or_bytes():
    from consort.dtypes import TYPES

    assert set(memory._FORMATS) <= set(TYPES)
