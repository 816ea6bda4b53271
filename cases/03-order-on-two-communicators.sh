#!/usr/bin/env bash
# Two communicators that overlap, used in another order on some ranks.
. "$(dirname "$0")/common.sh"

variant "two ranks: a then b on rank 0, b then a on rank 1"
for rank in 0 1; do start $rank 2 order two; done

variant "a grid of 2 x 2: rows first on ranks 0 and 3, columns first on ranks 1 and 2"
for rank in 0 1 2 3; do start $rank 4 order grid; done

# Both wait for their deadlines at the same time.
ended
job 1
expect "0 1" "Timeout after *deadlock: rank * waits in all_reduce #1 of communicator * for rank *, which waits in all_reduce #1 of communicator * for rank *: make the calls in the same order on all ranks"
job 2
# The ranks whose deadline passes first; the communicators that they then close may let the others go on.
expect_any "0 1 2 3" "Timeout after *deadlock: rank * waits in barrier #1 of communicator * for rank *, which*waits in barrier #1 of communicator * for rank *, which*waits in barrier #1 of communicator * for rank *, which*waits in barrier #1 of communicator * for rank *: make the calls in the same order on all ranks"

variant "the same order of starts, but no rank waits before both are started"
for rank in 0 1; do start $rank 2 order started; done
ended
expect "0 1" "both are done"
never "0 1" "ends with"

verdict
