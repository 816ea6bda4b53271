#!/usr/bin/env bash
# Strangers talk to all ports of a job while it joins and while it works: an HTTP scraper, a scanner, a crowd.
. "$(dirname "$0")/common.sh"

export CONSORT_TRANSPORT=${CONSORT_TRANSPORT:-tcp} CONSORT_JOIN_TIMEOUT=20 CONSORT_TIMEOUT=10

variant "a job of four ranks; rank 3 comes late"
for rank in 0 1 2; do start $rank 4 train; done
sleep 0.5
before=("$(pid 0)" "$(pid 1)" "$(pid 2)")
name="stranger-1" start 9 9 stray 1.5 "${before[@]}"
sleep 0.5
start 3 4 train
for rank in 0 1 2 3; do await $rank "is at work"; done
name="stranger-2" start 9 9 stray 1.5 "${before[@]}" "$(pid 3)"
ended
expect "0 1 2 3" "all sums are right"
never "0 1 2 3" "ends with"
expect "stranger-1" "talked to"
expect "stranger-2" "talked to"
never "stranger-1" "talked to 0 ports"
[ "$CONSORT_TRANSPORT" = shm ] || never "stranger-2" "talked to 0 ports"

verdict
