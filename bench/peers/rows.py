"""rows.py - the rows that peers.py writes, one a measured point. Older files lack the last columns."""
import collections, csv
Row = collections.namedtuple('Row', 'peer op ranks size least median algbw busbw calls batches verdict trip tag pages foreign inputs')
NEAR_NS = 200 # line round trips under this are near; between 200 and 400 ns none was ever met on AMD, and Intel's are all far
NOISY = 10 # per cent of the processor that other programs had while the peer ran; rows with more count only where there are no others

def state(trip):
    return 'smt' if 0 < trip < 75 else 'near' if trip < NEAR_NS else 'far'

def read(files, ranks=2, placement='any', inputs='same', pages=None):
    for file in files:
        for r in csv.reader(open(file)):
            if len(r) < 12 or int(r[2]) != ranks:
                continue
            r += ['', '4k', '0', 'same'][len(r) - 12:] if len(r) < 16 else []
            row = Row(r[0], r[1], int(r[2]), int(r[3]), *map(float, r[4:8]), int(r[8]), int(r[9]), r[10], float(r[11]), r[12], r[13], float(r[14]), r[15])
            if row.inputs == inputs and (pages is None or row.pages == pages) and (ranks != 2 or placement == 'any' or state(row.trip) == placement):
                yield row

def size_name(bytes):
    return f'{bytes} B' if bytes < 1024 else f'{bytes >> 10} KiB' if bytes < 1 << 20 else f'{bytes >> 20} MiB'

def time_name(us):
    return f'{us:.2f}' if us < 100 else f'{us:.0f}'
