// crossing.c - how bytes cross best between two cores through shared memory, by hand: `crossing message|allreduce [BYTES]`.
// Two processes, one per core, a ring of slots each way. Ways: slots written through the caches ("ca") or past them ("nt");
// pieces and slots of many sizes. An all-reduce of floats: A one exchange (all of the input crosses, each process adds
// all of it), B two hops (half of it, then half of the result), C process_vm_readv of the other's input in pieces.
// One line a combination: bytes, near or far (by the round trip of a line, under or over 300 ns), median of 7 in us, which.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "wide.h"
typedef struct { volatile uint64_t v; char pad[120]; } line;
#define RING ((size_t)32 << 20)
static char *ring[2], *scratch; static line *ready[2], *credit[2], *place; static int me; static pid_t peer;
static uint64_t sent, taken, phase; static const char *theirs;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e6 + t.tv_nsec * 1e-3; }
static void barrier(void) { phase++; place[me].v = phase; while (place[!me].v < phase); }
static double round_trip(void) { double t = now(); for (int i = 0; i < 200; i++) { phase++; if (!me) { place[0].v = phase; while (place[1].v < phase); } else { while (place[0].v < phase); place[1].v = phase; } } return (now() - t) / 200 * 1e3; }
static inline __attribute__((always_inline)) void put(int nt, float *to, __m512 x) { if (nt) _mm512_stream_ps(to, x); else _mm512_storeu_ps(to, x); }
static void copy(int nt, char *to, const char *from, size_t n) {
  if (!nt) { memcpy(to, from, n); return; }
  for (size_t i = 0; i < n; i += 64) _mm512_stream_ps((float *)(to + i), _mm512_loadu_ps((const float *)(from + i)));
  _mm_sfence();
}
static inline __attribute__((always_inline)) void sum(int nt, int nt2, char *to, char *also, const char *a, const char *b, size_t n) {
  for (size_t i = 0; i < n; i += 64) { __m512 x = _mm512_add_ps(_mm512_loadu_ps((const float *)(a + i)), _mm512_loadu_ps((const float *)(b + i))); put(nt, (float *)(to + i), x); if (also) put(nt2, (float *)(also + i), x); }
  if (nt || nt2) _mm_sfence();
}
static void add(int nt, int nt2, char *to, char *also, const char *a, const char *b, size_t n) {
  if (nt && nt2) sum(1, 1, to, also, a, b, n); else if (nt) sum(1, 0, to, also, a, b, n); else if (nt2) sum(0, 1, to, also, a, b, n); else sum(0, 0, to, also, a, b, n);
}
typedef struct { size_t piece; int slots, nt, nt_out, lag; } way;
static char *slot(int to, uint64_t number, way w) { return ring[to] + number % w.slots * w.piece; }
static char *fill(way w) { while (sent - credit[me]->v >= (uint64_t)w.slots); return slot(!me, sent, w); }
static void publish(void) { __atomic_store_n(&ready[!me]->v, ++sent, __ATOMIC_RELEASE); }
static char *await(way w) { while (__atomic_load_n(&ready[me]->v, __ATOMIC_ACQUIRE) <= taken); return slot(me, taken, w); }
static void release(void) { __atomic_store_n(&credit[!me]->v, ++taken, __ATOMIC_RELEASE); }
static size_t part(size_t n, size_t i, size_t piece) { size_t left = n - i * piece; return left < piece ? left : piece; }
static void to_peer(const char *in, size_t n, way w) { for (size_t i = 0; i * w.piece < n; i++) { copy(w.nt, fill(w), in + i * w.piece, part(n, i, w.piece)); publish(); } }
static void from_peer(char *out, size_t n, way w) { for (size_t i = 0; i * w.piece < n; i++) { copy(w.nt_out, out + i * w.piece, await(w), part(n, i, w.piece)); release(); } }
static void ping_pong(const char *in, char *out, size_t n, way w) { (void)in; if (!me) { to_peer(out, n, w); from_peer(out, n, w); } else { from_peer(out, n, w); to_peer(out, n, w); } }
static void one_exchange(const char *in, char *out, size_t n, way w) {
  size_t count = (n + w.piece - 1) / w.piece;
  for (size_t i = 0; i < count + w.lag; i++) {
    if (i < count) { copy(w.nt, fill(w), in + i * w.piece, part(n, i, w.piece)); publish(); }
    if (i >= (size_t)w.lag) { size_t j = i - w.lag, at = j * w.piece; add(w.nt_out, 0, out + at, 0, in + at, await(w), part(n, j, w.piece)); release(); }
  }
}
static void two_hops(const char *in, char *out, size_t n, way w) {
  size_t half = n / 2, count = (half + w.piece - 1) / w.piece, lag = w.lag;
  const char *mine = in + me * half, *yours = in + !me * half; char *to = out + me * half, *rest = out + !me * half;
  for (size_t i = 0; i < count + 2 * lag; i++) {
    if (i < count) { copy(w.nt, fill(w), yours + i * w.piece, part(half, i, w.piece)); publish(); }
    if (i >= lag && i - lag < count) { size_t at = (i - lag) * w.piece; char *raw = await(w); add(w.nt_out, w.nt, to + at, fill(w), mine + at, raw, part(half, i - lag, w.piece)); release(); publish(); }
    if (i >= 2 * lag) { size_t at = (i - 2 * lag) * w.piece; copy(w.nt_out, rest + at, await(w), part(half, i - 2 * lag, w.piece)); release(); }
  }
}
static void read_peer(const char *in, char *out, size_t n, way w) {
  barrier();
  for (size_t at = 0; at < n; at += w.piece) {
    size_t k = part(n, at / w.piece, w.piece); struct iovec here = {scratch, k}, there = {(void *)(theirs + at), k};
    if (process_vm_readv(peer, &here, 1, &there, 1, 0) != (ssize_t)k) { perror("process_vm_readv"); exit(1); }
    add(w.nt_out, 0, out + at, 0, in + at, scratch, k);
  }
  barrier();
}
static int compare(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return x < y ? -1 : x > y; }
static void measure(const char *name, void (*run)(const char *, char *, size_t, way), const char *in, char *out, size_t n, way w, double halves) {
  int repeats = n > (16 << 20) ? 1 : n > (1 << 20) ? 3 : n > 100000 ? 40 : 200; double times[7];
  for (int k = 0; k < 7; k++) { barrier(); double t = now(); for (int i = 0; i < repeats; i++) run(in, out, n, w); times[k] = (now() - t) / repeats / halves; }
  barrier(); double trip = round_trip(); qsort(times, 7, sizeof *times, compare);
  if (!me) { printf("%zu %s %.2f %s piece %zu slots %d %s lag %d rtt %.0f\n", n, trip < 300 ? "near" : "far", times[3], name, w.piece, w.slots, w.nt ? "nt" : "ca", w.lag, trip); fflush(stdout); }
}
int main(int count, char **words) {
  int messages = count > 1 && !strcmp(words[1], "message"); size_t only = count > 2 ? strtoull(words[2], 0, 0) : 0;
  char *m = mmap(0, 2 * RING + 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); memset(m, 0, 2 * RING + 8192);
  line *l = (line *)m; for (int k = 0; k < 2; k++) { ready[k] = l + k; credit[k] = l + 2 + k; ring[k] = m + 8192 + k * RING; } place = l + 4;
  pid_t *pids = (pid_t *)(m + 4096); pid_t child = fork(); me = !child; pids[me] = getpid();
  cpu_set_t set; CPU_ZERO(&set); CPU_SET(me, &set); sched_setaffinity(0, sizeof set, &set);
  size_t most = 64 << 20; char *in = aligned_alloc(2 << 20, most), *out = aligned_alloc(2 << 20, most); scratch = aligned_alloc(4096, 1 << 20);
  for (size_t i = 0; i < most / 4; i++) ((float *)in)[i] = ((float *)out)[i] = 1 + (i * 2654435761u + me) % 61; // never zero, no denormals
  memset(scratch, 1, 1 << 20); barrier(); peer = pids[!me]; theirs = in; // the same address in both
  size_t sizes[] = {16384, 65536, 262144, 1048576, 16777216, 67108864};
  for (int s = 0; s < 6; s++) for (size_t piece = 4096; piece <= 524288 && piece <= sizes[s]; piece *= 2) for (int slots = 4; slots <= 64; slots *= 4) for (int nt = 0; nt < 2; nt++) for (int lag = 1; lag <= 2; lag++) {
    size_t n = sizes[s]; way w = {piece, slots, nt, n >= (4 << 20), lag};
    if ((only && n != only) || piece * slots > RING || piece * slots < 16384 || (n > (1 << 20) && piece < 16384)) continue;
    if (messages) { if (lag == 1) measure("message", ping_pong, in, out, n, w, 2); continue; }
    if (lag < slots) measure("A", one_exchange, in, out, n, w, 1);
    if (piece <= n / 2 && 2 * lag + 2 <= slots) measure("B", two_hops, in, out, n, w, 1);
    if (slots == 4 && !nt && lag == 1) measure("C", read_peer, in, out, n, w, 1);
  }
  if (!me) wait(0);
  return 0;
}
