#!/usr/bin/env bash
# Rank 2 calls the same collective with another count, data type, operator or root.
. "$(dirname "$0")/common.sh"

same="all_reduce of 409600 float (sum)"
try() {
    variant "rank 2: $1"
    for rank in 0 1 2 3; do start $rank 4 differs "$1"; done
    ended
    # A rank that has not entered the call when the difference is found is not in the list.
    expect "0 1 2 3" "Mismatch after * ranks disagree about operation #2: " "rank 2: $2;" "rank* *: ${3:-$same};"
    never "0 1 2 3" "gradients: done" "barrier: done"
}
try shorter "all_reduce of 409598 float (sum)"
try longer "all_reduce of 8388608 float (sum)"
try bf16-same-count "all_reduce of 409600 bfloat16 (sum)"
try bf16-same-bytes "all_reduce of 819200 bfloat16 (sum)"
try max "all_reduce of 409600 float (max)"
try reduce-scatter "reduce_scatter of 102400 float (sum)"
# A root may finish alone; the difference is found at the next call at the latest.
try root "broadcast of 409600 float root 1" "broadcast of 409600 float root 0"

verdict
