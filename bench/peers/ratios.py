#!/usr/bin/env python3
"""ratios.py CSV... [--ours PEER] [--inputs same|rewritten] [--passes N] [--pages 4k|thp] [--long]: the best peer's time over ours,
by operation and size, in Markdown; over 1 we are ahead, under 1 it is bold. Times are medians over batches, and of these medians over the passes that met
the state, near and far apart. A point counts where it was met in N passes (1). ROOF-shm, a bound, and our other ways (consort-*) are
no peers. --long: a row a point, with the times, the number of passes of both and the second best."""
import argparse, collections, statistics as st
from rows import NOISY, read, size_name, time_name
a = argparse.ArgumentParser(); a.add_argument('files', nargs='+'); a.add_argument('--ours', default='consort'); a.add_argument('--inputs', default='same')
a.add_argument('--passes', type=int, default=1); a.add_argument('--pages'); a.add_argument('--long', action='store_true'); a = a.parse_args()

def is_peer(name):
    return not name.startswith(('consort', 'ROOF')) and name != a.ours

def medians(placement):
    """For each operation and size the median and the number of passes of each peer; and the wrong rows."""
    met, wrong = collections.defaultdict(lambda: collections.defaultdict(list)), []
    for r in read(a.files, 2, placement, a.inputs, a.pages):
        if r.verdict != 'ok': wrong.append((r.peer, r.op, r.size))
        elif r.foreign < NOISY: met[r.op, r.size][r.peer].append(r.median)
    return {point: {p: (st.median(t), len(t)) for p, t in peers.items() if len(t) >= a.passes} for point, peers in met.items()}, wrong

def ranked(peers):
    return sorted((t, n, p) for p, (t, n) in peers.items() if is_peer(p))

def grid(points):
    ops, sizes = list(dict.fromkeys(op for op, _ in points)), sorted({s for _, s in points if s})
    print('| | ' + ' | '.join(map(size_name, sizes)) + ' |\n|---|' + '---|' * len(sizes))
    for op in ops:
        cells = []
        for size in sizes if op != 'barrier' else [0]:
            peers = points.get((op, size), {}); best = ranked(peers)[:1]
            ratio = best and a.ours in peers and best[0][0] / peers[a.ours][0]
            cells.append('-' if not ratio else f'{ratio:.2f} {best[0][2]}' if ratio >= 0.995 else f'**{ratio:.2f}** {best[0][2]}')
        print(f'| {op} | ' + ' | '.join(cells) + ' |')

def rows(points):
    print('| operation | size | ours us (passes) | best peer us (passes) | ratio | second us |\n|---|---|---:|---|---:|---|')
    for (op, size), peers in points.items():
        best = ranked(peers)
        if not best or a.ours not in peers: continue
        (t, n, p), (ours, passes) = best[0], peers[a.ours]
        print(f'| {op} | {size_name(size)} | {time_name(ours)} ({passes}) | {p} {time_name(t)} ({n}) | {t / ours:.2f} | ' + (f'{best[1][2]} {time_name(best[1][0])}' if len(best) > 1 else '-') + ' |')

for placement in 'near', 'far':
    points, wrong = medians(placement)
    print(f"\n### {placement}, inputs {'unchanged' if a.inputs == 'same' else a.inputs}\n")
    if points: (rows if a.long else grid)(points)
    else: print('Not met.')
    if wrong: print('\nWRONG RESULTS:', wrong[:20])
