"""Builds the Rust tests that need a device and puts them, stripped, into a directory: stage.py ROOT DIRECTORY.

Which: those of PARTS. What a test starts by its path (other binaries of its package) is put beside them, and paths.json says
where each was built, so that it can be found there, and which of its tests are meant.
Absent: running them (parts.py).
"""

import json
import pathlib
import subprocess
import sys

# Package and target, and what the names of the tests that need a device begin with.
PARTS = {
    ("consort-cuda", "cuda"): "driver::",
    ("consort-transports", "transports"): "cuda_ipc::",
    ("consort-kernels", "kernels"): "device_folds::",
    ("consort-tests-devices", "devices"): "ranks::",
}


def main():
    root, into = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    manifest = ["--manifest-path", str(root / "Cargo.toml")]
    metadata = json.loads(
        subprocess.check_output(["cargo", "metadata", "--format-version", "1", "--no-deps", *manifest])
    )
    packages = {package["manifest_path"]: package["name"] for package in metadata["packages"]}
    targets = [word for name in sorted({target for _, target in PARTS}) for word in ("--test", name)]
    # Within the workspace, so that what its tests have built is taken as it is.
    command = ["cargo", "test", "--workspace", "--no-run", "--quiet", "--message-format=json", *manifest, *targets]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = [json.loads(line) for line in output.splitlines()]
    chosen = {package for package, _ in PARTS}
    paths = {}
    for message in messages:
        built = message.get("executable")
        if message.get("reason") != "compiler-artifact" or not built:
            continue
        package, target = packages[message["manifest_path"]], message["target"]["name"]
        is_test = message["profile"]["test"]
        if package not in chosen or (is_test and (package, target) not in PARTS):
            continue
        name = f"{package}.{target}{'.test' if is_test else ''}"
        subprocess.run(["strip", "--strip-unneeded", "-o", str(into / name), built], check=True)
        directory = pathlib.Path(message["manifest_path"]).parent.relative_to(root)
        part = PARTS.get((package, target), "")
        paths[name] = {"built": built, "is_test": is_test, "package": str(directory), "part": part}
    (into / "paths.json").write_text(json.dumps({"root": str(root), "binaries": paths}, indent=1) + "\n")


main()
