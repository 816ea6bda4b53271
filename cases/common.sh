# Starts ranks, prints their output, and checks it. The scripts beside it source this file.
#
#   variant NAME            a new job; the commands below are about it until the next one
#   job NUMBER              the commands are about this job again, the first, second, ... of the script
#   start RANK SIZE WORDS   a rank of it
#   await RANK TEXT         waits until the rank has printed it
#   ended                   waits until all ranks of all jobs have ended
#   pid RANK                its process
#   kill_rank RANK          with kill -9
#   expect RANKS TEXTS      texts that these ranks must have printed
#   expect_any RANKS TEXT   a text that one of them must have printed
#   never RANKS TEXTS       texts that they must not have printed
#   verdict                 ends the script: 0 if everything was as expected
#
# CASES_BIN names the program (`examples/cases`); without it, cargo builds it.

set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
here=$(mktemp -d)
jobs=0 job=0 facts=0 missing=0
declare -A pids=()
readers=()

clean_up() {
    for rank in "${!pids[@]}"; do kill -9 "${pids[$rank]}" 2>/dev/null; done
    wait 2>/dev/null
    rm -rf "$here"
}
trap clean_up EXIT

if [ -z "${CASES_BIN:-}" ]; then
    (cd "$root" && cargo build --quiet --example cases) || exit 2
    CASES_BIN=${CARGO_TARGET_DIR:-$root/target}/debug/examples/cases
fi
export CONSORT_TIMEOUT=${CONSORT_TIMEOUT:-2} CONSORT_JOIN_TIMEOUT=${CONSORT_JOIN_TIMEOUT:-10}
export RUST_BACKTRACE=0
# A launcher around this script must not be mistaken for the job's.
unset CONSORT_ADDRESS CONSORT_SECRET CONSORT_LOCAL_RANK CONSORT_LOCAL_SIZE

variant() {
    jobs=$((jobs + 1))
    job=$jobs
    export CONSORT_JOB="case-$$-$job"
    echo "--- $*"
}

job() { job=$1; }

pid() { echo "${pids[$job.$1]}"; }

start() {
    local rank=$1 size=$2 name=${name:-$1}
    shift 2
    local pipe=$here/$job.$name.pipe log=$here/$job.$name.log
    mkfifo "$pipe"
    : >"$log"
    sed -u "s/^/[job $job, rank $name] /" <"$pipe" | tee "$log" &
    readers+=($!)
    CONSORT_RANK=$rank CONSORT_SIZE=$size "$CASES_BIN" "$@" >"$pipe" 2>&1 &
    pids[$job.$name]=$!
}

kill_rank() {
    local pid
    pid=$(pid "$1")
    echo "    kill -9 $pid (rank $1)"
    kill -9 "$pid"
    # So that the shell does not comment on it.
    wait "$pid" 2>/dev/null
}

log() { echo "$here/$job.$1.log"; }

await() {
    local tries=0
    until grep -qF -- "$2" "$(log "$1")"; do
        tries=$((tries + 1))
        if [ $tries -gt 600 ] || ! kill -0 "$(pid "$1")" 2>/dev/null; then
            grep -qF -- "$2" "$(log "$1")" && return
            echo "    MISSING: rank $1 of job $job has not said: $2"
            missing=$((missing + 1))
            return
        fi
        sleep 0.05
    done
}

ended() {
    wait "${pids[@]}" 2>/dev/null
    wait "${readers[@]}" 2>/dev/null
    pids=()
    readers=()
}

# Texts are fixed strings; a `*` in one stands for anything.
said() {
    local pattern
    pattern=$(printf '%s' "$2" | sed -e 's/[][\.^$]/\\&/g' -e 's/\*/.*/g')
    grep -q -- "$pattern" "$(log "$1")"
}

expect() {
    local ranks=$1 rank text
    shift
    for text in "$@"; do
        for rank in $ranks; do
            facts=$((facts + 1))
            if ! said "$rank" "$text"; then
                missing=$((missing + 1))
                echo "    MISSING: rank $rank of job $job has not said: $text"
            fi
        done
    done
}

expect_any() {
    local rank
    facts=$((facts + 1))
    for rank in $1; do
        if said "$rank" "$2"; then return; fi
    done
    missing=$((missing + 1))
    echo "    MISSING: none of ranks $1 of job $job has said: $2"
}

never() {
    local ranks=$1 rank text
    shift
    for text in "$@"; do
        for rank in $ranks; do
            facts=$((facts + 1))
            if said "$rank" "$text"; then
                missing=$((missing + 1))
                echo "    WRONG: rank $rank of job $job has said: $text"
            fi
        done
    done
}

verdict() {
    if [ $missing -eq 0 ]; then
        echo "=== as expected: all $facts facts are as they should be"
        exit 0
    fi
    echo "=== NOT as expected: $missing of $facts facts"
    exit 1
}
