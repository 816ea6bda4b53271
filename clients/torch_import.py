"""What PyTorch does with libnccl on a machine without a GPU: it binds all of its symbols, and it makes unique ids.

With the argument `alone`, no other libnccl may be loaded. PyTorch opens the one of NVIDIA's wheel by its path if it
is there, also when it has ours already and binds to that.
"""

import ctypes
import sys

import torch

import ranks

SUCCESS = 0

libraries, ours = ranks.loaded()
if ours not in libraries or ("alone" in sys.argv[1:] and libraries != {ours}):
    raise AssertionError(f"this process has {sorted(libraries)} and not {ours}")
unique = torch.cuda.nccl.unique_id()
if len(unique) != 128 or unique[:4] != b"cnst":
    raise AssertionError(f"torch.cuda.nccl.unique_id() was not made by {ours}: {unique!r}")

# torch.cuda.nccl.version() is a constant of torch's build.
version = ctypes.c_int()
if ctypes.CDLL(ours).ncclGetVersion(ctypes.byref(version)) != SUCCESS:
    raise AssertionError("ncclGetVersion failed")
print(f"torch {torch.__version__}, built for NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}:", end=" ")
print(f"{ours}, version {version.value}, made a unique id that begins with {unique[:4].decode()};", end=" ")
print(f"other libnccl in the process: {', '.join(sorted(libraries - {ours})) or 'none'}")
