#!/usr/bin/env bash
# A rank is killed (kill -9; the kernel's out-of-memory killer does the same).
. "$(dirname "$0")/common.sh"

try() {
    variant "$1"
    for rank in 0 1 2 3; do start $rank 4 killed "$2"; done
    for rank in 0 1 2 3; do await $rank "is $3"; done
    local pid
    pid=$(pid 2)
    kill_rank 2
    ended
    expect "0 1 3" "$4PeerLost: rank 2 (host *$pid*) was lost*: its process ended without closing the communicator"
}
try "in the middle of a collective" within "in the loop" "round *: "
try "while the others are in their own code" between "between two calls" "status: "

verdict
