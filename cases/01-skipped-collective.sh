#!/usr/bin/env bash
# Rank 0 makes a collective that the others skip: a metric that is only reduced where it is logged.
. "$(dirname "$0")/common.sh"

variant "the others stay in their own code"
for rank in 0 1 2 3; do start $rank 4 skipped stays; done
ended
expect "0" \
    "metric: Timeout after * all_reduce #2 did not finish within * ranks 1-3 (host *) have not entered all_reduce #2; rank 0 waits for them since *; their last call was all_reduce #1 (finished * ago), and they are not in a call now" \
    "all_reduce #2 of 1 float (sum)*waiting for" \
    "all_reduce #1 * ago  not in a call"
expect "1 2 3" "next call: Timeout after * ranks 1-3 (host *) have not entered all_reduce #2"

variant "the others go on with their next gradients"
for rank in 0 1 2 3; do start $rank 4 skipped goes-on; done
ended
expect "0 1 2 3" "Mismatch after * ranks disagree about operation #2: " "rank 0: all_reduce of 1 float (sum);" "rank* *: all_reduce of 1048576 float (sum);"

variant "the others close their communicators"
for rank in 0 1 2 3; do start $rank 4 skipped closes; done
ended
expect "0" "metric: PeerLeft after * closed the communicator before all_reduce #2, which needs it"

variant "the others' next call looks the same: no rank can see it before the end"
for rank in 0 1 2 3; do start $rank 4 skipped shifted; done
ended
expect "0 1 2 3" "the sum of all losses is 1003"
expect "0" "loss: PeerLeft after * closed the communicator before all_reduce #3"

verdict
