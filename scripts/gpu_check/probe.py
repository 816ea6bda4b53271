"""bench/cuda/probe.cu: built where nvcc is and run where a GPU is; in a rehearsal its device code is compiled, if it can be.

Invariant: each answer is a record as soon as it is printed, and an experiment that hangs costs no other.
Absent: the experiments.
"""

import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import zlib

from running import Failed, Skip, answers

# Seconds that the probe may be silent: it ends an experiment that hangs itself, after 20 and the last after 60.
SILENCE_S = 65


def run(context):
    images = unpacked(context.root / "kernels/cuda/images", context.scratch / "images")
    if context.is_rehearsal:
        context.notes.append(f"images unpacked: {len(list(images.iterdir()))}")
        compiled(context)
        return
    built = context.scratch / "probe"
    build(context, built, ["-arch=native"])
    code, text = context.command([built, "--images", images], stall_s=SILENCE_S)
    take(context, code, text)


def unpacked(packed, place):
    """The library's images as the driver takes them; in the checkout they are zlib's streams."""
    place.mkdir(exist_ok=True)
    for image in packed.glob("*.z"):
        (place / image.stem).write_bytes(zlib.decompress(image.read_bytes()))
    if not any(place.iterdir()):
        raise Failed(f"no image is in {packed}")
    return place


def build(context, built, options):
    words = [context.tool("nvcc"), "-O3", "-std=c++17", *options, context.root / "bench/cuda/probe.cu", "-o", built]
    code, text = context.command([*words, "-ldl", "-lpthread"], 90, stall_s=90)
    if code:
        raise Failed(f"nvcc: {text.splitlines()[0] if text else code}")


def take(context, code, text):
    """Keeps the answers, and fails where there is none or a wrong one."""
    count = 0
    for record in answers(text):
        asks = record.pop("what")
        context.records.append({"what": "probe", "asks": asks, **record})
        count += 1
        if record.get("answer") in ("hung", "failed", "wrong", "needs local memory"):
            context.failures.append(f"{asks}: {json.dumps(record)}")
    if code and not context.failures:
        said = [line for line in text.splitlines() if line and not line.startswith("{")]
        context.failures.append(f"the probe ended with {code}: {said[-1] if said else 'no word'}")
    if not count:
        raise Failed("the probe answered nothing")


def wheels(context):
    """NVRTC's library and ptxas from the wheels of kernels/cuda/generate."""
    places = [os.environ.get("CONSORT_CUDA_WHEELS"), context.root / "target/cuda-wheels"]
    for place in (pathlib.Path(place) for place in places if place):
        library = sorted(place.glob("lib/python*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"))
        assembler = sorted(place.glob("lib/python*/site-packages/nvidia/cuda_nvcc/bin/ptxas"))
        if library and assembler:
            return library[0], assembler[0]
    raise Skip(
        "neither nvcc nor the wheels of NVRTC and ptxas are here (CONSORT_CUDA_WHEELS): the probe was not compiled"
    )


def compiled(context):
    """Compiles what of the probe can be compiled without a GPU, and says how much that was."""
    if shutil.which("nvcc"):
        build(context, context.scratch / "probe", ["-arch=sm_90"])
        context.notes.append("the whole probe was built by nvcc; not run")
        return
    library, assembler = wheels(context)
    text = nvrtc(library, context.root / "bench/cuda/probe/kernels.cuh")
    place = context.scratch / "probe.ptx"
    place.write_text(text)
    code, said = context.command([assembler, "-arch=sm_90", place, "-o", context.scratch / "probe.cubin"], 60)
    if code:
        raise Failed(f"ptxas: {said.splitlines()[0] if said else code}")
    kernels = text.count(".entry ")
    context.notes.append(
        f"{kernels} kernels of the probe were compiled by NVRTC and ptxas for sm_90; its host part was not, and nothing was run"
    )


def nvrtc(library, source):
    """The PTX of a file of device code, by NVIDIA's runtime compiler in a process of its own."""
    words = ["python3", "-B", __file__, str(library), str(source)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if done.returncode or ".entry " not in done.stdout:
        raise Failed(f"NVRTC: {(done.stderr or done.stdout).strip()[:400]}")
    return done.stdout


def main(library, source):
    builtins = sorted(pathlib.Path(library).parent.glob("libnvrtc-builtins.so.*"))
    for name in builtins[:1]:
        ctypes.CDLL(str(name), mode=ctypes.RTLD_GLOBAL)
    compiler, program, size = ctypes.CDLL(library), ctypes.c_void_p(), ctypes.c_size_t()
    text = pathlib.Path(source).read_bytes()
    if compiler.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None):
        raise SystemExit("nvrtcCreateProgram failed")
    options = (ctypes.c_char_p * 2)(b"--gpu-architecture=compute_90", b"--std=c++17")
    code = compiler.nvrtcCompileProgram(program, 2, options)
    compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    compiler.nvrtcGetProgramLog(program, log)
    if code:
        raise SystemExit(log.value.decode())
    compiler.nvrtcGetPTXSize(program, ctypes.byref(size))
    made = ctypes.create_string_buffer(size.value)
    compiler.nvrtcGetPTX(program, made)
    print(made.value.decode(), end="")


if __name__ == "__main__":
    import sys

    main(*sys.argv[1:])
