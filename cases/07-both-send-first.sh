#!/usr/bin/env bash
# Messages in an order in which they cannot arrive.
. "$(dirname "$0")/common.sh"

variant "two ranks: both send first"
for rank in 0 1; do start $rank 2 messages send-first; done

variant "a ring of four: all send first"
for rank in 0 1 2 3; do start $rank 4 messages send-first; done

variant "two ranks: both receive first"
for rank in 0 1; do start $rank 2 messages receive-first; done

variant "rank 1 receives what rank 0 never sends"
for rank in 0 1 2; do start $rank 3 messages receive-alone; done

# All of them wait at the same time.
ended
job 1
expect "0 1" "send: Timeout after *deadlock: rank * waits in send #1 for rank *, which waits in send #1 for rank *: let them exchange, or one of them receive first"
job 2
expect "0 1 2 3" "send: Timeout after *deadlock: rank * waits in send #1 for rank *, which waits in send #1 for rank *, which waits in send #1 for rank *, which waits in send #1 for rank *: let them exchange"
job 3
expect "0 1" "receive: Timeout after *deadlock: rank * waits in receive #1 for rank *, which waits in receive #1 for rank *: let them exchange"
job 4
expect "1" "receive: Timeout after * rank 0 (host *, process *) has not called send #1 to rank 1; rank 1 waits for it since"

variant "the lengths differ"
for rank in 0 1; do start $rank 2 messages lengths; done
ended
expect "0 1" "Mismatch after * ranks disagree about operation #1" "rank 0: send of 4194304 float to 1" "rank 1: receive of 2097152 float from 0"

variant "both send first, but little: it fits into the mailbox, which is luck"
for rank in 0 1; do start $rank 2 messages small; done
ended
expect "0 1" "send: done" "receive: done"

variant "the remedy: exchange_into"
for rank in 0 1 2 3; do start $rank 4 messages exchange; done
ended
expect "0 1 2 3" "exchanged 2 elements" "exchanged 4194304 elements"

verdict
