#!/usr/bin/env bash
# A rank is alive, but slow or stuck in its own code: this is no hang of the library, and the text says so.
. "$(dirname "$0")/common.sh"

# These four wait for deadlines; they do so side by side.
variant "rank 0 saves a checkpoint for longer than the deadline"
for rank in 0 1 2 3; do CONSORT_REPORT_AFTER=1 start $rank 4 slow saves; done

variant "rank 0 reads from a pipe that is never written to; rank 1 asks meanwhile"
mkfifo "$here/data"
for rank in 0 1 2 3; do start $rank 4 slow reads "$here/data"; done

variant "rank 0 is slow, but within the deadline: a report, and no error"
for rank in 0 1 2 3; do CONSORT_TIMEOUT=20 CONSORT_REPORT_AFTER=0.5 start $rank 4 slow short; done

variant "a longer deadline for this call alone"
for rank in 0 1 2 3; do start $rank 4 slow longer; done

job 2
for rank in 1 2 3; do await $rank "barrier: Timeout"; done
pid=$(pid 0)
kill_rank 0
ended
expect "1 2 3" "rank 0 (host *, process $pid) has not entered barrier #2" "not in a call now: look at a stack trace of process $pid"
expect "1" "asked meanwhile: rank 0 (host *, process $pid) has not entered barrier #2" "blamed meanwhile: Ranks([0])"

job 1
expect "1 2 3" "barrier: Timeout after * rank 0 (host *, process *) has not entered barrier #2; ranks 1-3 wait for it since *; its last call was all_reduce #1 (finished * ago), and it is not in a call now: look at a stack trace of process"
expect "0" "barrier: Timeout after"

job 3
expect "0 1 2 3" "barrier: done after"
expect "1" "hang report of communicator" "verdict: rank 0 (host *) has not entered barrier #2"

job 4
expect "0 1 2 3" "patient barrier: done after"

verdict
