#!/usr/bin/env bash
# Rank 2 of 4 dies; rank 3 waits for it on two communicators, which are aborted in every order.
. "$(dirname "$0")/common.sh"

lost="was lost*: its process ended without closing the communicator"
try() {
    variant "$1"
    mkdir "$here/$2"
    for rank in 0 1 2 3; do start $rank 4 several "$2" "$here/$2"; done
    ended
    expect "0 1 3" "world: PeerLost after *rank 2 (host *) $lost" "status of world: PeerLost: rank 2" "aborted and dropped both at once"
    expect "3" "pair: PeerLost after *rank 0 (host *, rank 2 of the job) $lost" "status of pair: PeerLost"
    expect "0" "goes on as rank 0 of 3: the sum is 3"
    expect "1" "goes on as rank 1 of 3: the sum is 3"
    expect "3" "goes on as rank 2 of 3: the sum is 3"
    never "0 1 3" "panicked"
}
try "the pair is aborted first" pair-first
try "the world is aborted first" world-first
try "both at once, from two threads" at-once

variant "no rank dies: rank 3 aborts the world while rank 2 is busy"
for rank in 0 1 2 3; do start $rank 4 several all-live "$here"; done
ended
expect "0 1 2 3" "world: Aborted after *the communicator was aborted by rank 3: the loss is not a number"

verdict
