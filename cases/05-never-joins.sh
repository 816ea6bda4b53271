#!/usr/bin/env bash
# A rank never joins: it was not started, it came twice, or it was started for another size.
. "$(dirname "$0")/common.sh"

export CONSORT_JOIN_TIMEOUT=2

variant "rank 2 of 4 is not started"
for rank in 0 1 3; do start $rank 4 joins; done

variant "eight ranks are announced, four are started"
for rank in 0 1 2 3; do start $rank 8 joins; done

variant "rank 0 is not started"
for rank in 1 2 3; do start $rank 4 joins; done

# All three wait at the same time.
ended
job 1
expect "0 1 3" "MissingRanks: 1 of 4 ranks did not join within * missing rank 2" "gave up after"
job 2
expect "0 1 2 3" "MissingRanks: 4 of 8 ranks did not join within * missing ranks 4-7"
job 3
expect "1 2 3" "Join: * rank 0 did not offer the job's unique id" "gave up after"

variant "two processes are rank 1"
start 0 3 joins
start 1 3 joins
name="1 again" start 1 3 joins
ended
expect "0" "Join: rank 1 could not join: two claim to be rank 1: host *, process * and host *, process *"

# The second rank that joins finds the difference, and all learn which ranks had joined.
variant "rank 1 has size 2, rank 0 size 3; rank 2 has not come"
start 0 3 joins
start 1 2 joins
ended
expect "0 1" "Settings: ranks cannot form a communicator: number of ranks: rank 0 says 3; rank 1 says 2"

# In whichever order they come.
variant "rank 1 has size 2, the others 3"
start 0 3 joins
start 1 2 joins
start 2 3 joins
ended
expect "0 1" "Settings: ranks cannot form a communicator: number of ranks: *rank 1 says 2" " say* 3*"

verdict
