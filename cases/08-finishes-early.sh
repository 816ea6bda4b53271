#!/usr/bin/env bash
# Rank 1 has fewer batches than the others and finishes early, well or badly.
. "$(dirname "$0")/common.sh"

try() {
    variant "rank 1 $1"
    for rank in 0 1 2; do start $rank 3 early "$2"; done
    ended
    expect "0 2" "batch 10: $3"
    never "0 2" "batch 10: done"
}
left="PeerLeft after * rank 1 (* closed the communicator before all_reduce #10, which needs it"
try "drops its communicator and lives" closes "$left"
try "returns from main" returns "$left"
try "goes to a final barrier" goes-on "Mismatch after * ranks disagree about operation #10: "
expect "0 1 2" "rank 1: barrier;" "rank* *: all_reduce of 1000 float (sum);"
expect "1" "final barrier: Mismatch"
try "panics and unwinds" panics "$left"
expect "1" "the file of batch 10 is damaged"
try "exits without closing anything" exits "PeerLost after * rank 1 (host *) was lost*: its process ended"

verdict
