"""Arrays of each kind, as address, count and type."""

import array
import ctypes

import ml_dtypes
import numpy
import pytest
from values import TYPES

import consort
from consort.arrays import view
from consort.dtypes import TYPES as KNOWN


@pytest.mark.parametrize("name", TYPES)
def test_numpy_has_the_type(name):
    one = numpy.zeros((3, 4), TYPES[name])
    seen = view(one, True)
    assert (seen.pointer, seen.elements, seen.dtype.name) == (one.ctypes.data, 12, name)
    assert seen.dtype.bytes == one.dtype.itemsize
    assert view(one[1]).pointer == one.ctypes.data + one.strides[0]
    assert view(numpy.zeros((), TYPES[name])).elements == 1 and view(one[:0]).elements == 0


def test_buffers():
    for code, name in zip("bBiIqQfd", "int8 uint8 int32 uint32 int64 uint64 float32 float64".split()):
        one = array.array(code, [1, 2, 3])
        seen = view(one, True)
        assert (seen.pointer, seen.elements, seen.dtype.name) == (one.buffer_info()[0], 3, name)
    raw = bytearray(8)
    assert view(raw, True).dtype.name == "uint8" and view(memoryview(raw).cast("d")).dtype.name == "float64"
    shaped = (ctypes.c_float * 3 * 2)()
    assert (view(shaped, True).elements, view(shaped).pointer) == (6, ctypes.addressof(shaped))
    frozen = view(b"abc")
    assert frozen.elements == 3 and ctypes.string_at(frozen.pointer, 3) == b"abc"
    for refused in (memoryview(raw)[::2], "text", object(), 3.0):
        with pytest.raises(consort.InvalidArgument):
            view(refused)
    with pytest.raises(consort.InvalidArgument, match="read-only"):
        view(b"abc", True)
    assert view(bytearray()).elements == 0


class Other:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, within):
        self.within = within

    def __dlpack__(self, **options):
        return self.within.__dlpack__(**options)


class Old(Other):
    """One that does not know versions."""

    def __dlpack__(self, stream=None):
        return self.within.__dlpack__()


@pytest.mark.parametrize("name", [name for name in TYPES if TYPES[name].isbuiltin == 1])
@pytest.mark.parametrize("kind", [Other, Old])
def test_dlpack(name, kind):
    one = numpy.zeros((3, 4), TYPES[name])
    seen = view(kind(one), True)
    assert (seen.pointer, seen.elements, seen.dtype.name) == (one.ctypes.data, 12, name)
    assert view(kind(one[:, 0:0])).elements == 0
    with pytest.raises(consort.InvalidArgument, match="one after the other"):
        view(kind(one.T))


def test_dlpack_keeps_its_memory_and_says_when_it_must_not_be_written():
    one = numpy.arange(5.0)
    before = view(Other(one))
    del one
    assert ctypes.c_double.from_address(before.pointer + 16).value == 2.0
    frozen = numpy.arange(5.0)
    frozen.flags.writeable = False
    if numpy.lib.NumpyVersion(numpy.__version__) < "2.1.0":
        # It cannot say that an array is read-only, and refuses.
        with pytest.raises(consort.InvalidArgument, match="readonly"):
            view(Other(frozen))
        return
    assert view(Other(frozen)).elements == 5
    with pytest.raises(consort.InvalidArgument, match="read-only"):
        view(Other(frozen), True)


class OnDevice:
    """What CuPy's arrays say of themselves."""

    def __init__(self, typestr="<f4", strides=None, read_only=False, stream=7, dtype=None):
        said = {"shape": (2, 3), "typestr": typestr, "data": (4096, read_only), "version": 3, "strides": strides}
        said["stream"] = stream
        self.said = said
        if dtype is not None:
            self.dtype = dtype

    @property
    def __cuda_array_interface__(self):
        return self.said


def test_memory_of_devices():
    seen = view(OnDevice(), True)
    assert (seen.pointer, seen.elements, seen.dtype.name, seen.stream) == (4096, 6, "float32", 7)
    assert view(OnDevice(strides=(12, 4))).elements == 6 and view(OnDevice(stream=1)).stream == 0
    assert view(OnDevice("<c8")).dtype.name == "complex64" and view(OnDevice("|b1")).dtype.name == "bool"
    assert view(OnDevice("|V2", dtype=numpy.dtype(ml_dtypes.bfloat16))).dtype.name == "bfloat16"
    for refused in (OnDevice(strides=(4, 8)), OnDevice(">f4"), OnDevice("<f2x"[:3] + "9")):
        with pytest.raises(consort.InvalidArgument):
            view(refused)
    with pytest.raises(consort.InvalidArgument, match="read-only"):
        view(OnDevice(read_only=True), True)


class OnHost(Other):
    """What JAX's arrays say of themselves where they are on the host."""

    @property
    def __cuda_array_interface__(self):
        raise AttributeError("only of devices")


def test_an_array_of_the_host_whose_type_has_the_interface_of_devices():
    one = numpy.arange(6.0)
    seen = view(OnHost(one))
    assert (seen.pointer, seen.elements, seen.stream) == (one.ctypes.data, 6, 0)


def test_factors_have_the_bits_of_the_types_own_rounding():
    from consort.scalars import packed

    generator = numpy.random.default_rng(3)
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "float32", "float64"):
        kind, greatest = TYPES[name], float(ml_dtypes.finfo(TYPES[name]).max)
        values = [0.0, -0.0, 1.0, -1.5, 0.3, 1 / 3, 2.0**-9, 3 * 2.0**-17, greatest, *generator.normal(0, 2, 300)]
        for value in values:
            if abs(value) <= greatest:
                wanted = numpy.float64(value).astype(kind).tobytes()
                assert packed(float(value), KNOWN[name].code).raw == wanted, (name, value)
        if name not in ("float64", "float32"):
            with pytest.raises(consort.InvalidArgument):
                packed(greatest * 1.5, KNOWN[name].code)


def test_memory_that_others_map():
    one = consort.empty((2, 3), "float32")
    assert one.shape == (2, 3) and one.format == "f" and bytes(one) == bytes(24)
    array = numpy.asarray(one)
    array[:] = 2
    (comm,) = consort.local(1)
    comm.all_reduce(array)
    assert array.sum() == 12 and one[1, 2] == 2.0
    half = consort.empty(5, "bfloat16")
    assert half.nbytes == 10
    assert numpy.frombuffer(half, ml_dtypes.bfloat16).shape == (5,)
    assert consort.empty(0).nbytes == 0 and consort.empty((), "int8").nbytes == 1
    comm.close()
    # What is registered ends with the last that uses it: more of them one after the other than there may be at once.
    for _ in range(5000):
        consort.empty(1)
