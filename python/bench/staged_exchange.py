"""Exchanges of unequal counts between hosts: all messages at once beside one-to-one stages, in one run.

    scripts/hosts up 4 50mbit
    scripts/hosts run "0 0 1 1 2 2 3 3" PYTHONPATH=python -- python3 python/bench/staged_exchange.py --mbits 50 even random
    python3 python/bench/staged_exchange.py --fair

The hosts have the same number of ranks each, in order. `at once` is what `all_to_all_v` does: every message is started,
and the network shares its wires among them. `staged` takes the bytes between hosts apart into stages in which each host
sends to one other and receives from one (Birkhoff, as FAST does; long stages first), sends each pair's part of a stage,
and begins the next stage on a rank when its own part of the one before is over. All ranks know all counts here, so that
what it takes to learn them is not counted. The two take turns, and every result is checked. The bound is the most that a
host sends or receives, through a wire of that rate less 5.7 % of headers.

`--fair` runs no rank: it draws matrices and says how much longer than the bound fair shares of all wires take
(max-min fair rates, anew whenever a message ends), which is what stages could gain.
"""

from __future__ import annotations

import argparse
import random
import time
import zlib
from typing import Any, Callable, Dict, List, Tuple

#: Bytes between hosts, or elements between ranks: from, to.
Matrix = List[List[int]]
#: What one host sends to another in a stage.
Parcel = Tuple[int, int, int]

#: A wire's payload through its rate.
PAYLOAD = 0.943

#: How the counts between two ranks are drawn; `from_first` says whether the sender is on the first host.
KINDS: Dict[str, Callable[[random.Random, bool, bool], float]] = {
    "even": lambda draw, from_first, to_first: 1,
    "random": lambda draw, from_first, to_first: draw.random(),
    "heavy": lambda draw, from_first, to_first: draw.paretovariate(1.0),
    "into-one": lambda draw, from_first, to_first: 8 if to_first else 1,
    "from-one": lambda draw, from_first, to_first: 1 if from_first else 0,
}


def makespan(matrix: Matrix) -> int:
    """The most that a host sends or receives."""
    hosts = range(len(matrix))
    sent = [sum(matrix[at][to] for to in hosts if to != at) for at in hosts]
    received = [sum(matrix[source][at] for source in hosts if source != at) for at in hosts]
    return max(sent + received)


def stages(matrix: Matrix) -> List[List[Parcel]]:
    """The stages, whose lengths add up to the makespan; as `synthesize::exchange::stages`."""
    count, left = len(matrix), makespan(matrix)
    real = [[0 if row == column else matrix[row][column] for column in range(count)] for row in range(count)]
    rows = [left - sum(row) for row in real]
    columns = [left - sum(row[column] for row in real) for column in range(count)]
    filled = [list(row) for row in real]
    row = column = 0
    while row < count and column < count:
        both = min(rows[row], columns[column])
        filled[row][column] += both
        rows[row] -= both
        columns[column] -= both
        row, column = (row + 1, column) if rows[row] == 0 else (row, column + 1)
    floor, made = 1 << max(max(line) for line in filled).bit_length(), []
    while left:
        taken = matching(filled, max(floor, 1))
        if taken is None:
            floor //= 2
            continue
        length, parcels = min(filled[at][to] for at, to in taken), []
        for at, to in taken:
            sent = min(real[at][to], length)
            real[at][to] -= sent
            filled[at][to] -= length
            if sent:
                parcels.append((at, to, sent))
        left -= length
        made.append(parcels)
    return made


def matching(matrix: Matrix, floor: int) -> Any:
    """All rows with a column each, along entries of at least `floor`; None where there is no such matching."""
    count = len(matrix)
    row_of: Dict[int, int] = {}

    def augment(row: int, seen: set[int]) -> bool:
        for column in range(count):
            if matrix[row][column] >= floor and column not in seen:
                seen.add(column)
                if column not in row_of or augment(row_of[column], seen):
                    row_of[column] = row
                    return True
        return False

    if not all(augment(row, set()) for row in range(count)):
        return None
    return sorted((row, column) for column, row in row_of.items())


def fair(matrix: Matrix) -> float:
    """Seconds with max-min fair shares of wires that carry a byte a second each way."""
    left = {(at, to): float(sent) for at, line in enumerate(matrix) for to, sent in enumerate(line) if at != to and sent}
    took = 0.0
    while left:
        rates: Dict[Tuple[int, int], float] = {}
        free = {(way, host): 1.0 for way in (0, 1) for host in range(len(matrix))}
        while len(rates) < len(left):
            users: Dict[Tuple[int, int], int] = {}
            for flow in left.keys() - rates.keys():
                for way in (0, 1):
                    users[way, flow[way]] = users.get((way, flow[way]), 0) + 1
            narrow = min(users, key=lambda wire: (free[wire] / users[wire], wire))
            share = free[narrow] / users[narrow]
            for flow in left.keys() - rates.keys():
                if flow[narrow[0]] == narrow[1]:
                    rates[flow] = share
                    free[0, flow[0]] -= share
                    free[1, flow[1]] -= share
        step = min(sent / rates[flow] for flow, sent in left.items())
        took += step
        left = {flow: sent - rates[flow] * step for flow, sent in left.items() if sent - rates[flow] * step > 1e-6}
    return took


def counts_of(kind: str, seed: int, ranks: int, each: int, total: int) -> Matrix:
    """Bytes between ranks, `each` on a host; `total` is about what all send."""
    draw = random.Random(seed)
    weigh = KINDS[kind]
    weights = [[weigh(draw, at < each, to < each) for to in range(ranks)] for at in range(ranks)]
    whole = sum(map(sum, weights))
    return [[int(weight / whole * total) for weight in line] for line in weights]


def between_hosts(counts: Matrix, each: int) -> Matrix:
    """The same between hosts."""
    hosts = range(len(counts) // each)
    of = lambda host: range(host * each, (host + 1) * each)
    return [[sum(counts[at][to] for at in of(source) for to in of(target)) for target in hosts] for source in hosts]


def said_of_fairness(seed: int) -> None:
    """What stages could gain."""
    print(f"seed {seed}\n| hosts | counts | mean | 95 % | most |\n|---:|---|---:|---:|---:|")
    for hosts, times in ((4, 200), (8, 200), (16, 30)):
        for kind in ("random", "heavy"):
            matrices = [counts_of(kind, seed + at, hosts, 1, 1 << 30) for at in range(times)]
            ratios = sorted(fair(matrix) / makespan(matrix) for matrix in matrices)
            mean = sum(ratios) / times
            print(f"| {hosts} | {kind} | {mean:.3f} | {ratios[times * 95 // 100]:.3f} | {ratios[-1]:.3f} |")


class Exchange:
    """One rank's buffers of an exchange."""

    def __init__(self, comm: Any, counts: Matrix, each: int) -> None:
        self.comm, self.counts, self.each = comm, counts, each
        self.matrix = between_hosts(counts, each)
        self.stages = stages(self.matrix)
        ranks = range(comm.size)
        self.input = [memoryview(bytearray(self.content(comm.rank, to))) for to in ranks]
        self.expected = [zlib.crc32(self.content(source, comm.rank)) for source in ranks]
        self.clear()

    def content(self, source: int, to: int) -> bytes:
        length, piece = self.counts[source][to], random.Random(source << 16 | to).randbytes(1 << 16)
        return (piece * (length // len(piece) + 1))[:length]

    def clear(self) -> None:
        self.output = [memoryview(bytearray(line[self.comm.rank])) for line in self.counts]

    def check(self) -> None:
        if [zlib.crc32(block) for block in self.output] != self.expected:
            raise SystemExit("wrong data")

    def at_once(self) -> None:
        import consort

        with consort.group():
            for step in range(self.comm.size):
                to, source = (self.comm.rank + step) % self.comm.size, (self.comm.rank - step) % self.comm.size
                self.comm.send(self.input[to], to)
                self.comm.recv(self.output[source], source)

    def staged(self) -> None:
        import consort

        each, me, host = self.each, self.comm.rank, self.comm.rank // self.each
        of = lambda host: range(host * each, (host + 1) * each)
        done: Dict[Tuple[int, int], int] = {}
        for number, parcels in enumerate(self.stages):
            with consort.group():
                for peer in of(host) if number == 0 else ():
                    self.comm.send(self.input[peer], peer)
                    self.comm.recv(self.output[peer], peer)
                for source, target, sent in parcels:
                    begin = done.get((source, target), 0)
                    done[source, target] = begin + sent
                    # Each pair of ranks sends the same part of what it has.
                    cut = lambda count: slice(
                        *(count * at // self.matrix[source][target] for at in (begin, begin + sent))
                    )
                    for peer in of(target) if source == host else ():
                        self.comm.send(self.input[peer][cut(self.counts[me][peer])], peer)
                    for peer in of(source) if target == host else ():
                        self.comm.recv(self.output[peer][cut(self.counts[peer][me])], peer)


def measure(comm: Any, kind: str, options: argparse.Namespace) -> None:
    """Takes turns."""
    each = comm.size // options.hosts
    counts = counts_of(kind, options.seed, comm.size, each, (options.kib << 10) * options.hosts)
    exchange = Exchange(comm, counts, each)
    took: Dict[str, List[float]] = {"at once": [], "staged": []}
    for turn in range(options.times + 1):
        for name, run in (("at once", exchange.at_once), ("staged", exchange.staged)):
            exchange.clear()
            comm.barrier()
            began = time.perf_counter()
            run()
            comm.barrier()
            if turn:
                took[name].append(1e3 * (time.perf_counter() - began))
            exchange.check()
    if comm.rank == 0:
        bound = makespan(exchange.matrix) * 8e-3 / (options.mbits * PAYLOAD)
        text = [f"{sorted(all)[len(all) // 2]:.0f} ({min(all):.0f}–{max(all):.0f})" for all in took.values()]
        print(f"| {kind} | {len(exchange.stages)} | {bound:.0f} | {text[0]} | {text[1]} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="how counts are drawn")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--mbits", type=float, default=50, help="the rate of a host's wire")
    parser.add_argument("--kib", type=int, default=16384, help="what a host sends, on average")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fair", action="store_true")
    options = parser.parse_args()
    if options.fair:
        return said_of_fairness(options.seed)
    import consort

    with consort.init(timeout=120) as comm:
        if comm.rank == 0:
            print("| counts | stages | bound, ms | at once | staged |\n|---|---:|---:|---:|---:|", flush=True)
        for kind in options.kinds:
            measure(comm, kind, options)


if __name__ == "__main__":
    main()
