#!/usr/bin/env bash
# PyTorch on our library: torch-import.sh PYTHON LIBNCCL, where PYTHON belongs to an environment with torch that
# no other process uses (a file in it is replaced for a moment).
#
# torch's DT_RPATH goes before LD_LIBRARY_PATH, so there are two ways: LD_PRELOAD, where the loader takes our file for
# libnccl.so.2 by its SONAME, and our file in the place of NVIDIA's. Both are shown.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$1
LIBNCCL=$(readlink -f "$2")
export LIBNCCL
bindings=$(mktemp)
theirs=
clean_up() {
  rm -f "$bindings"
  if [ -n "$theirs" ]; then mv -f "$theirs.aside" "$theirs"; fi
}
trap clean_up EXIT

echo "LD_PRELOAD:"
LD_PRELOAD=$LIBNCCL "$python" -W ignore "$here/torch_import.py"

# Again, with the loader's output of the file and symbol of each binding.
LD_PRELOAD=$LIBNCCL LD_DEBUG=bindings "$python" -W ignore -c 'import torch; torch.cuda.nccl.unique_id()' 2>&1 >/dev/null |
  grep -a "libtorch_.* \`nccl" >"$bindings" || true
site=$("$python" -c 'import importlib.util, os; print(os.path.dirname(os.path.dirname(importlib.util.find_spec("torch").origin)))')
wanted=$(nm -D --undefined-only "$site/torch/lib/libtorch_cuda.so" | awk '$2 ~ /^nccl/ { print $2 }' | sort -u)
strangers=$(grep -avF " to $LIBNCCL [" "$bindings" || true)
if [ -n "$strangers" ]; then
  echo "torch has bound to another library: $strangers" >&2
  exit 1
fi
bound=$(sed "s/.*\`\(nccl[A-Za-z0-9]*\)'.*/\1/" "$bindings" | sort -u)
missing=$(comm -23 <(echo "$wanted") <(echo "$bound"))
if [ -z "$wanted" ] || [ -n "$missing" ]; then
  echo "torch has not bound to $LIBNCCL: ${missing:-nothing found in libtorch_cuda.so}" >&2
  exit 1
fi
echo "the loader bound all $(wc -w <<<"$wanted") of libtorch_cuda.so's symbols to it, such as"
grep -am1 "ncclGetUniqueId" "$bindings" | sed 's/^ *[0-9]*:[[:space:]]*/  /'

echo "in the place of NVIDIA's file:"
file=$site/nvidia/nccl/lib/libnccl.so.2
mv "$file" "$file.aside"
theirs=$file
ln -s "$LIBNCCL" "$file"
"$python" -W ignore "$here/torch_import.py" alone
