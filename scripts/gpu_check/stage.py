"""Builds the Rust tests that need a device and puts them, stripped, into a directory: stage.py ROOT DIRECTORY.

Which: test targets of the workspace whose name begins with one of PREFIXES, and those of PARTS. What a test starts by its
path (other binaries of its package) is put beside them, and paths.json says where each was built, so that it can be found
there, and which of its tests are meant.
Absent: running them (parts.py).
"""

import json
import pathlib
import subprocess
import sys

PREFIXES = ("driver", "device", "cuda")
# Tests that a GPU has no part in: the pretend driver of tests/c, kernels built by the host's compiler.
EXCEPT = {"device_memory", "cuda_host"}
# Targets of which only some tests need a device, by package and target: what the names of those contain.
PARTS = {
    ("consort-memory", "memory"): "driver::",
    ("consort-transports", "transports"): "cuda_ipc::",
    ("consort-kernels", "kernels"): "device_folds::",
}


def is_chosen(package, target):
    return (package, target) in PARTS or (target.startswith(PREFIXES) and target not in EXCEPT)


def main():
    root, into = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    manifest = ["--manifest-path", str(root / "Cargo.toml")]
    metadata = json.loads(
        subprocess.check_output(["cargo", "metadata", "--format-version", "1", "--no-deps", *manifest])
    )
    paths = {}
    for package in metadata["packages"]:
        names = [target["name"] for target in package["targets"] if "test" in target["kind"]]
        names = [name for name in names if is_chosen(package["name"], name)]
        # The stand-ins' own tests are of the stand-ins.
        if not names or package["name"].startswith("consort-standin"):
            continue
        chosen = [word for name in names for word in ("--test", name)]
        command = [
            "cargo",
            "test",
            "--release",
            "--no-run",
            "--quiet",
            "--message-format=json",
            "--package",
            package["name"],
            *manifest,
            *chosen,
        ]
        for line in subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
            message = json.loads(line)
            built = message.get("executable")
            if message.get("reason") != "compiler-artifact" or not built:
                continue
            is_test = message["profile"]["test"]
            name = f"{package['name']}.{message['target']['name']}{'.test' if is_test else ''}"
            subprocess.run(["strip", "--strip-unneeded", "-o", str(into / name), built], check=True)
            directory = pathlib.Path(package["manifest_path"]).parent.relative_to(root)
            part = PARTS.get((package["name"], message["target"]["name"]), "")
            paths[name] = {"built": built, "is_test": is_test, "package": str(directory), "part": part}
    (into / "paths.json").write_text(json.dumps({"root": str(root), "binaries": paths}, indent=1) + "\n")


main()
