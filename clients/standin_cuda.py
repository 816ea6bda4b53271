"""What the Python clients need of a CUDA driver, by ctypes: contexts, streams and memory with numpy's values in it.

The driver is the libcuda.so.1 that the loader finds; `clients/run` lets it find the repository's stand-in
(`standins/cuda`), whose devices are host memory.
"""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import numpy

ARGUMENTS = {
    "cuInit": [c_uint],
    "cuDeviceGetName": [c_void_p, c_int, c_int],
    "cuDevicePrimaryCtxRetain": [c_void_p, c_int],
    "cuCtxSetCurrent": [c_void_p],
    "cuMemAlloc_v2": [c_void_p, c_size_t],
    "cuMemFree_v2": [c_uint64],
    "cuMemcpyHtoDAsync_v2": [c_uint64, c_void_p, c_size_t, c_void_p],
    "cuMemcpyDtoHAsync_v2": [c_void_p, c_uint64, c_size_t, c_void_p],
    "cuStreamCreate": [c_void_p, c_uint],
    "cuStreamSynchronize": [c_void_p],
    "cuStreamDestroy_v2": [c_void_p],
}


class Driver:
    """The driver; every call that fails is an exception."""

    def __init__(self):
        library = ctypes.CDLL("libcuda.so.1")
        self.functions = {}
        for name, arguments in ARGUMENTS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = c_int, arguments
            self.functions[name] = function
        self("cuInit", 0)

    def __call__(self, name, *arguments):
        result = self.functions[name](*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {result}")

    def name(self, device=0):
        """What the driver calls a device."""
        text = ctypes.create_string_buffer(256)
        self("cuDeviceGetName", text, 256, device)
        return text.value.decode()

    def use(self, device=0):
        """Makes a device's primary context current on this thread."""
        context = c_void_p()
        self("cuDevicePrimaryCtxRetain", byref(context), device)
        self("cuCtxSetCurrent", context)


class Stream:
    """A stream that does not wait for the default one; `ptr` is its number."""

    def __init__(self, driver):
        self.driver, handle = driver, c_void_p()
        driver("cuStreamCreate", byref(handle), 1)
        self.ptr = handle.value

    def synchronize(self):
        self.driver("cuStreamSynchronize", self.ptr)

    def close(self):
        self.driver("cuStreamDestroy_v2", self.ptr)


class Array:
    """Device memory with the values of a numpy array, put there in the order of a stream; `ptr` is its address."""

    def __init__(self, driver, values, stream):
        self.driver, self.stream, self.kept = driver, stream, numpy.ascontiguousarray(values)
        address = c_uint64()
        driver("cuMemAlloc_v2", byref(address), max(self.kept.nbytes, 1))
        self.ptr = address.value
        driver("cuMemcpyHtoDAsync_v2", self.ptr, self.kept.ctypes.data, self.kept.nbytes, stream.ptr)

    def get(self):
        """The values that are there after everything in the stream; frees the memory."""
        out = numpy.empty_like(self.kept)
        self.driver("cuMemcpyDtoHAsync_v2", out.ctypes.data, self.ptr, out.nbytes, self.stream.ptr)
        self.stream.synchronize()
        self.driver("cuMemFree_v2", self.ptr)
        return out
