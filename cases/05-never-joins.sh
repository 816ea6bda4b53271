#!/usr/bin/env bash
# A rank never joins: it was not started, it came twice, or it was started for another size.
. "$(dirname "$0")/common.sh"

export CONSORT_JOIN_TIMEOUT=3

variant "rank 2 of 4 is not started"
for rank in 0 1 3; do start $rank 4 joins; done
ended
expect "0 1 3" "MissingRanks: 1 of 4 ranks did not join within 3.* missing rank 2" "gave up after 3."

variant "eight ranks are announced, four are started"
for rank in 0 1 2 3; do start $rank 8 joins; done
ended
expect "0 1 2 3" "MissingRanks: 4 of 8 ranks did not join within 3.* missing ranks 4-7"

variant "rank 0 is not started"
for rank in 1 2 3; do start $rank 4 joins; done
ended
expect "1 2 3" "rank 0" "gave up after 3."

variant "two processes are rank 1"
start 0 3 joins
start 1 3 joins
name="1 again" start 1 3 joins
ended
expect "0" "rank 1"

variant "rank 1 was told 2 ranks, the others 3"
start 0 3 joins
start 1 2 joins
start 2 3 joins
ended
expect "0 1 2" "size"

verdict
