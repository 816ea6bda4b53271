"""The version of the package, which is that of the library's crates. Absent: NCCL's version, which the library speaks."""

VERSION = "0.1.0"
