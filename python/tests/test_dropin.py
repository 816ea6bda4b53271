"""The library in the place of NCCL's, and what an import brings."""

import os
import subprocess
import sys

import consort
from test_processes import script

LIBRARY = consort.library_path()


def test_an_import_brings_neither_numpy_nor_torch_nor_the_library():
    run = script("""
        import sys, consort
        print([name for name in ("numpy", "torch", "jax", "cupy") if name in sys.modules])
        print("libnccl" in open("/proc/self/maps").read())
        import consort.nccl
        print([name for name in ("numpy", "torch") if name in sys.modules])
    """)
    assert run.stdout.split("\n")[:3] == ["[]", "False", "[]"]


def test_it_satisfies_those_who_ask_for_nccl():
    run = script("""
        import consort.nccl, ctypes, os
        # By the name that other libraries ask for, and by nothing at all.
        by_name, global_names = ctypes.CDLL("libnccl.so.2"), ctypes.CDLL(None)
        print(global_names.ncclGetVersion and by_name.consortLaunch and "found")
        print({line.split()[-1] for line in open("/proc/self/maps") if "libnccl" in line})
        print(os.environ["VLLM_NCCL_SO_PATH"])
        id = ctypes.create_string_buffer(128)
        print(by_name.ncclGetUniqueId(id), id.raw[:4])
    """)
    assert run.stdout.splitlines() == ["found", repr({LIBRARY}), LIBRARY, "0 b'cnst'"]


def other_nccl(directory):
    """A library of that name which is not ours."""
    source, built = directory / "other.c", directory / "libnccl.so.2"
    source.write_text("int ncclGetVersion(int *version) { return *version = 1, 0; }\n")
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", str(source), "-o", str(built)]
    subprocess.run(command, check=True)
    return str(built)


def test_it_says_when_it_comes_too_late(tmp_path):
    run = script("import ctypes, sys; ctypes.CDLL(sys.argv[1]); import consort.nccl", other_nccl(tmp_path))
    assert "was loaded before consort.nccl" in run.stderr
    # Ours is used all the same by this package.
    again = script("import ctypes, sys; ctypes.CDLL(sys.argv[1]); import consort; print(consort.local(1))", other_nccl(tmp_path))
    assert "rank 0 of 1" in again.stdout


def test_the_other_way_round_ours_is_taken(tmp_path):
    run = script(
        """
        import consort.nccl, ctypes, sys
        from ctypes import c_int, byref
        other, version = ctypes.CDLL("libnccl.so.2"), c_int()
        other.ncclGetVersion(byref(version))
        print(version.value)
        """,
        other_nccl(tmp_path),
        LD_LIBRARY_PATH=str(tmp_path),
    )
    assert int(run.stdout) > 20000


def run_module(*arguments, **options):
    here = os.path.dirname(os.path.dirname(consort.__file__))
    environment = {**os.environ, "PYTHONPATH": here}
    return subprocess.run([sys.executable, "-m", *arguments], env=environment, capture_output=True, text=True, **options)


def test_the_command_says_where_the_library_is():
    assert run_module("consort", "--lib").stdout.strip() == LIBRARY
    assert run_module("consort", "--version").stdout.startswith(f"consort {consort.__version__}, which speaks NCCL 2.")
    wrong = run_module("consort", "--nothing")
    assert wrong.returncode == 2 and "usage" in wrong.stderr


def test_programs_run_with_it(tmp_path):
    program = tmp_path / "program.py"
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    program.write_text(
        "import beside, os, subprocess, sys\n"
        "assert __name__ == '__main__'\n"
        "maps = 'open(\"/proc/self/maps\").read()'\n"
        "print(beside.VALUE, sys.argv[1:], 'libnccl' in eval(maps), os.environ['VLLM_NCCL_SO_PATH'])\n"
        "print(subprocess.run([sys.executable, '-c', f'print(\"libnccl\" in {maps})'], capture_output=True).stdout)\n"
        "sys.exit(5)\n"
    )
    run = run_module("consort.run", str(program), "--flag", "value")
    assert run.returncode == 5, run.stderr
    assert run.stdout.splitlines() == [f"7 ['--flag', 'value'] True {LIBRARY}", repr(b"True\n")]
    module = run_module("consort.run", "-m", "beside", cwd=tmp_path)
    assert module.returncode == 0, module.stderr
    wrong = run_module("consort.run")
    assert wrong.returncode == 2 and "usage" in wrong.stderr


def test_a_missing_library_says_where_it_was_looked_for(tmp_path):
    run = script("import consort; consort.local(1)", check=False, CONSORT_LIBRARY=str(tmp_path / "nothing"))
    assert "there is no consort library at" in run.stderr and "CONSORT_LIBRARY" in run.stderr
    other = script("import consort; consort.local(1)", check=False, CONSORT_LIBRARY=other_nccl(tmp_path))
    assert "it is not the library that this package was made for" in other.stderr
