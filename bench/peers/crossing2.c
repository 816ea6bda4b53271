// crossing2.c - how bytes cross best between two cores through shared memory: in which state the lines of the slots are left.
// Two processes on cores 0 and 1, slots in a memfd, private buffers of the callers'. Built by build.sh.
//   crossing2            the ways that matter (see DEFAULTS) for every operation and size        [MOST=bytes BUDGET=us COLD=bytes THPS=1 THPP=1]
//   crossing2 FILE       ways from a file, one a line: OP BYTES piece slots wr wd rd rdd nto own after lag flag skew
//   crossing2 micro      steps timed apart: writer's and reader's copy of 16 KiB with every state the lines can be left in
//   crossing2 history    does a line's past matter? (the reader stores into the lines only every k-th round)
// OP is one of `ops`; wr, rd and after are names of `wn`, `rn` and `an`; wd and rdd are how many bytes ahead those prefetch; nto 1
// stores the output past the caches; own is how many bytes of the coming slots the writer asks for while it waits; lag is by how
// many pieces receiving follows sending; skew are bytes between two slots.
// flag 0: a ring with cumulative counters. flag 1: a flag line in front of each slot. flag 2: migrating slots: a slot belongs to the
// process that read it last, which keeps it on a private stack, last in first out; surplus goes back, its lines written first.
// after touch: the reader stores 8 bytes into each line it has read, so that the line is dirty in the reader's cache.
// lag + 64: "own" by stores instead of prefetchw. MOST: the largest size. BUDGET: the time of a point. COLD: bytes that each
// process rewrites between calls, outside the clock. THPS, THPP: huge pages asked for under slots, under private buffers.
// U: unchanged inputs, calls back to back, median of 7 batches. D: new inputs at every call, every byte of every output checked, median.
// Every line has the round trip of a line, the worse of before and after: under 200 ns is near. Each process ends with the other.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "wide.h"
typedef struct { volatile uint64_t v; char pad[120]; } line;
#define RING ((size_t)64 << 20)
#define HDR ((size_t)2 << 20)
static char *ring[2]; static line *ready[2], *credit[2], *place; static int me; static pid_t *pids; static double *tm_;
static uint64_t sent, taken, phase, seen_credit; static char *theirs; static uint64_t wpos, rpos;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e6 + t.tv_nsec * 1e-3; }
static void barrier(void) { phase++; __atomic_store_n(&place[me].v, phase, __ATOMIC_RELEASE); while (__atomic_load_n(&place[!me].v, __ATOMIC_ACQUIRE) < phase); }
static double round_trip(void) { double t = now(); for (int i = 0; i < 200; i++) { phase++; if (!me) { place[0].v = phase; while (place[1].v < phase); } else { while (place[0].v < phase); place[1].v = phase; } } return (now() - t) / 200 * 1e3; }
enum { W_MEM, W_512, W_256, W_REP, W_NT, W_PFW, W_PFWALL, W_CLZ };
static const char *wn[] = {"mem", "z", "y", "rep", "nt", "pfw", "pfwall", "clz"};
enum { R_MEM, R_512, R_256, R_REP, R_PF0, R_PFNTA, R_PFALL, R_PFW, R_TAKE, R_PF1, R_PF1ALL };
static const char *rn[] = {"mem", "z", "y", "rep", "pf0", "pfnta", "pfall", "pfw", "take", "pf1", "pf1all"};
enum { A_NONE, A_FLUSH, A_CLWB, A_DEMOTE, A_PFW, A_TOUCH };
static const char *an[] = {"-", "flush", "clwb", "demote", "own", "touch"};
typedef struct { size_t piece; int slots, wr, wd, rd, rdd, nto, own, after, lag, flag; size_t skew; } way;
#define AI static inline __attribute__((always_inline))
AI __m512 ld(const void *p) { return _mm512_loadu_ps((const float *)p); }
AI void st(void *p, __m512 x) { _mm512_storeu_ps((float *)p, x); }
AI void nt_st(void *p, __m512 x) { _mm512_stream_ps((float *)p, x); }
AI void cp512(char *to, const char *from, size_t n, int nt, int pw, int pr, size_t dw, size_t dr) {
  size_t i = 0;
  for (; i + 256 <= n; i += 256) {
    if (pw) for (int k = 0; k < 4; k++) __builtin_prefetch(to + i + dw + 64 * k, 1, 3);
    if (pr == 1) for (int k = 0; k < 4; k++) _mm_prefetch(from + i + dr + 64 * k, _MM_HINT_T0);
    if (pr == 2) for (int k = 0; k < 4; k++) _mm_prefetch(from + i + dr + 64 * k, _MM_HINT_NTA);
    if (pr == 3) for (int k = 0; k < 4; k++) __builtin_prefetch(from + i + dr + 64 * k, 1, 3);
    __m512 a = ld(from + i), b = ld(from + i + 64), c = ld(from + i + 128), d = ld(from + i + 192);
    if (nt) { nt_st(to + i, a); nt_st(to + i + 64, b); nt_st(to + i + 128, c); nt_st(to + i + 192, d); }
    else { st(to + i, a); st(to + i + 64, b); st(to + i + 128, c); st(to + i + 192, d); }
  }
  if (i < n) memcpy(to + i, from + i, n - i);
  if (nt) _mm_sfence();
}
static void cp256(char *to, const char *from, size_t n) {
  size_t i = 0; for (; i + 128 <= n; i += 128) { __m256i a = _mm256_loadu_si256((void *)(from + i)), b = _mm256_loadu_si256((void *)(from + i + 32)), c = _mm256_loadu_si256((void *)(from + i + 64)), d = _mm256_loadu_si256((void *)(from + i + 96));
    _mm256_storeu_si256((void *)(to + i), a); _mm256_storeu_si256((void *)(to + i + 32), b); _mm256_storeu_si256((void *)(to + i + 64), c); _mm256_storeu_si256((void *)(to + i + 96), d); }
  if (i < n) memcpy(to + i, from + i, n - i);
}
static void rep(char *to, const char *from, size_t n) { __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n)::"memory"); }
static void c_z(char *t, const char *f, size_t n) { cp512(t, f, n, 0, 0, 0, 0, 0); }
static void c_nt(char *t, const char *f, size_t n) { cp512(t, f, n, 1, 0, 0, 0, 0); }
static void c_pw(char *t, const char *f, size_t n, size_t d) { cp512(t, f, n, 0, 1, 0, d, 0); }
static void c_p0(char *t, const char *f, size_t n, size_t d) { cp512(t, f, n, 0, 0, 1, 0, d); }
static void c_pn(char *t, const char *f, size_t n, size_t d) { cp512(t, f, n, 0, 0, 2, 0, d); }
static void c_rw(char *t, const char *f, size_t n, size_t d) { cp512(t, f, n, 0, 0, 3, 0, d); }
static void c_ntp0(char *t, const char *f, size_t n, size_t d) { cp512(t, f, n, 1, 0, 1, 0, d); }
static void own(char *p, size_t n) { for (size_t i = 0; i < n; i += 64) __builtin_prefetch(p + i, 1, 3); }
static void wr(char *to, const char *from, size_t n, const way *w) {
  switch (w->wr) {
    case W_MEM: memcpy(to, from, n); break; case W_512: c_z(to, from, n); break; case W_256: cp256(to, from, n); break; case W_REP: rep(to, from, n); break;
    case W_NT: c_nt(to, from, n); break; case W_PFW: own(to, (size_t)w->wd < n ? (size_t)w->wd : n); c_pw(to, from, n, w->wd); break; case W_PFWALL: own(to, n); c_z(to, from, n); break;
    case W_CLZ: for (size_t i = 0; i < n; i += 64) __asm__ volatile(".byte 0x0f,0x01,0xfc" ::"a"(to + i) : "memory"); c_z(to, from, n); break;
  }
}
static void rdx(char *to, const char *from, size_t n, const way *w) {
  if (w->nto) { if (w->rd == R_TAKE) own((char *)from, n); if (w->rd == R_PF0) c_ntp0(to, from, n, w->rdd); else c_nt(to, from, n); }
  else switch (w->rd) {
    case R_MEM: memcpy(to, from, n); break; case R_512: c_z(to, from, n); break; case R_256: cp256(to, from, n); break; case R_REP: rep(to, from, n); break;
    case R_PF0: c_p0(to, from, n, w->rdd); break; case R_PFNTA: c_pn(to, from, n, w->rdd); break; case R_PFW: own((char *)from, (size_t)w->rdd < n ? (size_t)w->rdd : n); c_rw(to, from, n, w->rdd); break;
    case R_PF1: { size_t d = w->rdd; for (size_t i = 0; i < n; i += 512) { if (i + d < n) for (int k = 0; k < 512; k += 64) _mm_prefetch(from + i + d + k, _MM_HINT_T1); c_z(to + i, from + i, n - i < 512 ? n - i : 512); } } break;
    case R_PF1ALL: for (size_t i = 0; i < n; i += 64) _mm_prefetch(from + i, _MM_HINT_T1); c_z(to, from, n); break;
    case R_TAKE: own((char *)from, n); c_z(to, from, n); break;
    case R_PFALL: for (size_t i = 0; i < n; i += 64) _mm_prefetch(from + i, _MM_HINT_T0); c_z(to, from, n); break;
  }
}
static void flush(char *p) { __asm__ volatile("clflushopt %0" : "+m"(*p)); }
static void aft(char *p, size_t n, const way *w) {
  switch (w->after) { case A_NONE: return; case A_FLUSH: for (size_t i = 0; i < n; i += 64) flush(p + i); break; case A_CLWB: for (size_t i = 0; i < n; i += 64) __asm__ volatile("clwb %0" : "+m"(*(char *)(p + i))); break;
    case A_DEMOTE: for (size_t i = 0; i < n; i += 64) __asm__ volatile(".byte 0x0f,0x1c,0x00" ::"a"(p + i) : "memory"); break; case A_PFW: own(p, n); break; case A_TOUCH: for (size_t i = 0; i < n; i += 64) *(volatile uint64_t *)(p + i) = 0; break; }
}
static size_t stride(const way *w) { return w->piece + (w->flag == 1 ? 128 : 0) + w->skew; }
static char *slot(int to, uint64_t k, const way *w) { return ring[to] + (k % w->slots) * stride(w) + (w->flag == 1 ? 128 : 0); }
static char *fill(const way *w) { if (sent - seen_credit >= (uint64_t)w->slots) while (sent - (seen_credit = __atomic_load_n(&credit[me]->v, __ATOMIC_ACQUIRE)) >= (uint64_t)w->slots); return slot(!me, sent, w); }
static void publish(const way *w) { if (w->flag) { char *s = slot(!me, sent, w); ++sent; __atomic_store_n((uint64_t *)(s - 64), sent, __ATOMIC_RELEASE); } else __atomic_store_n(&ready[!me]->v, ++sent, __ATOMIC_RELEASE); }
static char *await(const way *w) { char *s = slot(me, taken, w); if (w->flag) while (__atomic_load_n((uint64_t *)(s - 64), __ATOMIC_ACQUIRE) != taken + 1); else { while (__atomic_load_n(&ready[me]->v, __ATOMIC_ACQUIRE) <= taken); } return s; }
static void release(void) { __atomic_store_n(&credit[!me]->v, ++taken, __ATOMIC_RELEASE); }
static size_t part(size_t n, size_t i, size_t piece) { size_t left = n - i * piece; return left < piece ? left : piece; }
static void own_next(size_t bytes, const way *w) { // own the coming slots, as far as free
  for (uint64_t k = sent; bytes && k - seen_credit < (uint64_t)w->slots; k++) { size_t b = bytes < w->piece ? bytes : w->piece; if (w->lag & 64) { char *q = slot(!me, k, w); for (size_t i = 0; i < b; i += 64) *(volatile uint64_t *)(q + i) = 0; } else own(slot(!me, k, w), b); bytes -= b; }
}
static void tail(const way *w, size_t n) { if (w->own) own_next(n < (size_t)w->own ? n : (size_t)w->own, w); }
static void to_peer(const char *in, size_t n, const way *w) { for (size_t i = 0; i * w->piece < n; i++) { wr(fill(w), in + i * w->piece, part(n, i, w->piece), w); publish(w); } if (w->own) { seen_credit = credit[me]->v; tail(w, n); } }
static void from_peer(char *out, size_t n, const way *w) { for (size_t i = 0; i * w->piece < n; i++) { size_t b = part(n, i, w->piece); char *s = await(w); rdx(out + i * w->piece, s, b, w); aft(s, b, w); release(); } }
static void add512(char *to, const char *a, const char *b, size_t n, int nt) {
  if (nt) { for (size_t i = 0; i < n; i += 64) nt_st(to + i, _mm512_add_ps(ld(a + i), ld(b + i))); _mm_sfence(); return; }
  for (size_t i = 0; i < n; i += 256) { __m512 x[4]; for (int k = 0; k < 4; k++) x[k] = _mm512_add_ps(ld(a + i + 64 * k), ld(b + i + 64 * k)); for (int k = 0; k < 4; k++) st(to + i + 64 * k, x[k]); }
}
static void add2(char *to, char *also, const char *a, const char *b, size_t n) { for (size_t i = 0; i < n; i += 128) { __m512 x = _mm512_add_ps(ld(a + i), ld(b + i)), y = _mm512_add_ps(ld(a + i + 64), ld(b + i + 64)); st(also + i, x); st(also + i + 64, y); st(to + i, x); st(to + i + 64, y); } }
static void pre(const char *s, size_t n) { for (size_t i = 0; i < n; i += 64) _mm_prefetch(s + i, _MM_HINT_T0); }

// migrating slots: free slots on a private stack, last in first out; their ids beside the counter
typedef struct { volatile uint64_t v; uint16_t id[28]; char pad[64]; } post;
typedef struct { volatile uint64_t v; char pad[120]; uint16_t id[4096]; } backs; static post *mready[2]; static backs *mback[2]; static uint16_t stack[4096]; static int top, cap; static uint64_t back_sent, back_taken;
static char *mslot(int id, const way *w) { return ring[0] + (size_t)id * stride(w); }
static void mreturn(int id, const way *w) { aft(mslot(id, w), w->piece, w); mback[!me]->id[back_sent % 4096] = id; __atomic_store_n(&mback[!me]->v, ++back_sent, __ATOMIC_RELEASE); }
static void mdrain(const way *w) { uint64_t b = __atomic_load_n(&mback[me]->v, __ATOMIC_ACQUIRE); while (back_taken < b) { stack[top++] = mback[me]->id[back_taken % 4096]; back_taken++; } while (top > cap) mreturn(stack[--top], w); }
static int mtake(const way *w) { while (!top) mdrain(w); while (sent - seen_credit >= 28 && sent - (seen_credit = __atomic_load_n(&credit[me]->v, __ATOMIC_ACQUIRE)) >= 28); return stack[--top]; }
static void mput(int id) { mready[!me]->id[sent % 28] = id; __atomic_store_n(&mready[!me]->v, ++sent, __ATOMIC_RELEASE); }
static const way *cw; static int mget(void) { while (__atomic_load_n(&mready[me]->v, __ATOMIC_ACQUIRE) <= taken) if (back_taken != mback[me]->v) mdrain(cw); return mready[me]->id[taken % 28]; }
static void mdone(int id, const way *w) { ++taken; if (top >= cap) mreturn(id, w); else stack[top++] = id; if (!(taken & 7)) __atomic_store_n(&credit[!me]->v, taken, __ATOMIC_RELEASE); }
static void minit(const way *w) { cw = w; for (int k = 0; k < w->slots; k++) stack[k] = me * w->slots + k; top = w->slots; cap = 2 * w->slots - (w->slots < 16 ? w->slots / 2 : 12); if (cap < w->slots) cap = w->slots; back_sent = back_taken = 0; if (!me) for (int k = 0; k < 2; k++) mready[k]->v = mback[k]->v = 0; }
static void mto(const char *in, size_t n, const way *w) { for (size_t i = 0; i * w->piece < n; i++) { int id = mtake(w); wr(mslot(id, w), in + i * w->piece, part(n, i, w->piece), w); mput(id); } }
static void mfrom(char *out, size_t n, const way *w) { for (size_t i = 0; i * w->piece < n; i++) { int id = mget(); rdx(out + i * w->piece, mslot(id, w), part(n, i, w->piece), w); mdone(id, w); } }
// ops: in (private input), out (private output), it = number of the call
static void op_ping(char *in, char *out, size_t n, const way *w, int it) { (void)in; if (w->flag == 2) { if (!me) { mto(out, n, w); mfrom(out, n, w); } else { mfrom(out, n, w); mto(out, n, w); } return; } if (!me) { to_peer(out, n, w); from_peer(out, n, w); } else { from_peer(out, n, w); to_peer(out, n, w); } }
static void op_bcast(char *in, char *out, size_t n, const way *w, int it) { (void)in; if (w->flag == 2) { if (me == (it & 1)) mto(out, n, w); else mfrom(out, n, w); return; } if (me == (it & 1)) to_peer(out, n, w); else from_peer(out, n, w); }
static void op_gather(char *in, char *out, size_t n, const way *w, int it) { // n total; halves
  size_t h = n / 2, count = (h + w->piece - 1) / w->piece; char *mine = out + me * h, *yours = out + !me * h;
  for (size_t i = 0; i < count + (w->lag & 63); i++) {
    if (i < count) { size_t at = i * w->piece, b = part(h, i, w->piece); if (w->flag == 2) { int id = mtake(w); wr(mslot(id, w), in + at, b, w); mput(id); } else { wr(fill(w), in + at, b, w); publish(w); } }
    if (i < count) { size_t at = i * w->piece, b = part(h, i, w->piece); if (w->nto) c_nt(mine + at, in + at, b); else c_z(mine + at, in + at, b); }
    if (i >= (size_t)(w->lag & 63)) { size_t j = i - (w->lag & 63), b = part(h, j, w->piece); if (w->flag == 2) { int id = mget(); rdx(yours + j * w->piece, mslot(id, w), b, w); mdone(id, w); } else { char *s = await(w); rdx(yours + j * w->piece, s, b, w); aft(s, b, w); release(); } }
  }
  if (w->own) { seen_credit = credit[me]->v; tail(w, h); }
}
static void op_redA(char *in, char *out, size_t n, const way *w, int it) {
  size_t count = (n + w->piece - 1) / w->piece;
  for (size_t i = 0; i < count + (w->lag & 63); i++) {
    if (i < count) { if (w->flag == 2) { int id = mtake(w); wr(mslot(id, w), in + i * w->piece, part(n, i, w->piece), w); mput(id); } else { wr(fill(w), in + i * w->piece, part(n, i, w->piece), w); publish(w); } }
    if (i >= (size_t)(w->lag & 63) && w->flag == 2) { size_t j = i - (w->lag & 63), at = j * w->piece, b = part(n, j, w->piece); int id = mget(); add512(out + at, in + at, mslot(id, w), b, w->nto); mdone(id, w); }
    else if (i >= (size_t)(w->lag & 63)) { size_t j = i - (w->lag & 63), at = j * w->piece, b = part(n, j, w->piece); char *s = await(w); if (w->rd == R_PFALL) pre(s, b); if (w->rd == R_TAKE || w->rd == R_PFW) own(s, b); add512(out + at, in + at, s, b, w->nto); aft(s, b, w); release(); }
  }
  if (w->own) { seen_credit = credit[me]->v; tail(w, n); }
}
static void op_redB(char *in, char *out, size_t n, const way *w, int it) {
  size_t half = n / 2, count = (half + w->piece - 1) / w->piece, lag = w->lag & 63; char *mine = in + me * half, *yours = in + !me * half, *to = out + me * half, *rest = out + !me * half;
  for (size_t i = 0; i < count + 2 * lag; i++) {
    if (w->flag == 2) {
      if (i < count) { int id = mtake(w); wr(mslot(id, w), yours + i * w->piece, part(half, i, w->piece), w); mput(id); }
      if (i >= lag && i - lag < count) { size_t at = (i - lag) * w->piece, b = part(half, i - lag, w->piece); int id = mget(); char *s = mslot(id, w); add2(to + at, s, mine + at, s, b); ++taken; if (!(taken & 7)) __atomic_store_n(&credit[!me]->v, taken, __ATOMIC_RELEASE); mput(id); }
      if (i >= 2 * lag) { size_t at = (i - 2 * lag) * w->piece; int id = mget(); rdx(rest + at, mslot(id, w), part(half, i - 2 * lag, w->piece), w); mdone(id, w); }
      continue;
    }
    if (i < count) { wr(fill(w), yours + i * w->piece, part(half, i, w->piece), w); publish(w); }
    if (i >= lag && i - lag < count) { size_t at = (i - lag) * w->piece, b = part(half, i - lag, w->piece); char *s = await(w); if (w->rd == R_PFALL) pre(s, b); if (w->rd == R_TAKE || w->rd == R_PFW) own(s, b); add2(to + at, fill(w), mine + at, s, b); aft(s, b, w); release(); publish(w); }
    if (i >= 2 * lag) { size_t at = (i - 2 * lag) * w->piece; char *s = await(w); rdx(rest + at, s, part(half, i - 2 * lag, w->piece), w); aft(s, part(half, i - 2 * lag, w->piece), w); release(); }
  }
  if (w->own) { seen_credit = credit[me]->v; tail(w, n); }
}
static void op_cma(char *in, char *out, size_t n, const way *w, int it) { (void)in; // ping-pong by process_vm_readv: notify, the other reads, tells
  for (int k = 0; k < 2; k++) {
    if (me == k) { __atomic_store_n(&ready[!me]->v, ++sent, __ATOMIC_RELEASE); while (__atomic_load_n(&credit[me]->v, __ATOMIC_ACQUIRE) < sent); }
    else { while (__atomic_load_n(&ready[me]->v, __ATOMIC_ACQUIRE) <= taken); for (size_t at = 0; at < n; at += w->piece) { size_t b = n - at < w->piece ? n - at : w->piece; struct iovec h = {out + at, b}, t = {theirs + at, b}; if (process_vm_readv(pids[!me], &h, 1, &t, 1, 0) != (ssize_t)b) { perror("cma"); exit(1); } } release(); }
  }
}
static void op_oneway(char *in, char *out, size_t n, const way *w, int it) { (void)in; if (w->flag == 2) { if (!me) mto(out, n, w); else mfrom(out, n, w); return; } if (!me) to_peer(out, n, w); else from_peer(out, n, w); }
typedef void (*op)(char *, char *, size_t, const way *, int);
static struct { const char *name; op f; double halves; int kind; } ops[] = {{"pingpong", op_ping, 2, 0}, {"broadcast", op_bcast, 1, 0}, {"allgather", op_gather, 1, 1}, {"allreduceA", op_redA, 1, 2}, {"allreduceB", op_redB, 1, 2}, {"allreduceA_ip", op_redA, 1, 3}, {"allreduceB_ip", op_redB, 1, 3}, {"cma", op_cma, 2, 0}, {"oneway", op_oneway, 1, 0}};
static int cmp(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return x < y ? -1 : x > y; }
static float val(int r, size_t i, int it) { return (float)(1 + (((uint32_t)(i * 2654435761u) + (uint32_t)r * 0x9E3779B1u + (uint32_t)it * 0x85ebca6bu) >> 26)); }
static void setup(int k, char *in, char *out, size_t n, int it) { size_t N = n / 4; float *a = (float *)in, *b = (float *)out;
  if (ops[k].kind == 0) { int src = ops[k].f == op_bcast ? (it & 1) : 0; if (me == src) for (size_t i = 0; i < N; i++) b[i] = val(0, i, it); else for (size_t i = 0; i < N; i += 16) b[i] = -1; }
  else if (ops[k].kind == 3) for (size_t i = 0; i < N; i++) b[i] = val(me, i, it); else { for (size_t i = 0; i < N / (ops[k].kind == 1 ? 2 : 1); i++) a[i] = val(me, i, it); for (size_t i = 0; i < N; i += 16) b[i] = -1; } }
static long check(int k, char *out, size_t n, int it) { size_t N = n / 4, bad = 0; float *b = (float *)out;
  if (ops[k].kind == 0) for (size_t i = 0; i < N; i++) bad += b[i] != val(0, i, it);
  else if (ops[k].kind == 1) for (int r = 0; r < 2; r++) for (size_t i = 0; i < N / 2; i++) bad += b[r * (N / 2) + i] != val(r, i, it);
  else for (size_t i = 0; i < N; i++) bad += b[i] != val(0, i, it) + val(1, i, it);
  return bad; }
static double budget = 4000; static size_t cold; static char *cold_at; static void chill(void) { for (size_t i = 0; i < cold; i += 64) cold_at[i]++; }
static void measure(int k, char *in, char *out, size_t n, const way *w) {
  char *src = ops[k].kind == 3 ? out : in; static int it = 0; static double D[64], U[16]; int nd = n > (1 << 20) ? 3 : n > 100000 ? 7 : 15; long bad = 0;
  sent = taken = seen_credit = 0; barrier(); if (w->flag == 2) minit(w); if (!me) { for (int j = 0; j < 2; j++) ready[j]->v = credit[j]->v = 0; for (int j = 0; j < 2; j++) for (int s = 0; s < w->slots; s++) if (w->flag == 1) *(uint64_t *)(slot(j, s, w) - 64) = 0; } barrier();
  double trip0 = round_trip();
  // unchanged: back to back
  it += 2 - (it & 1); setup(k, in, out, n, it); barrier(); double t = now(); int R = 1; ops[k].f(src, out, n, w, 0); barrier(); double est = now() - t; tm_[me] = est; barrier(); est = tm_[0]; R = (int)(budget / 7 / (est + .1)); if (R < 1) R = 1; if (R > 2000) R = 2000; R = (R + 1) & ~1; if (ops[k].kind == 3) { barrier(); memset(out, 0, n); barrier(); }
  for (int j = 0; j < 7; j++) { barrier(); double t0 = now(); for (int i = 0; i < R; i++) ops[k].f(src, out, n, w, i); double t1 = now(); tm_[me] = (t1 - t0) / R; barrier(); U[j] = (tm_[0] > tm_[1] ? tm_[0] : tm_[1]) / ops[k].halves; }
  barrier(); if (ops[k].kind != 3) bad += check(k, out, n, it);
  // dirty: new inputs at every call, every output checked
  for (int d = 0; d < nd; d++) { it++; setup(k, in, out, n, it); if (cold) chill(); barrier(); double t0 = now(); ops[k].f(src, out, n, w, it); double t1 = now(); tm_[me] = t1 - t0; barrier(); D[d] = (tm_[0] > tm_[1] ? tm_[0] : tm_[1]) / ops[k].halves; barrier(); bad += check(k, out, n, it); }
  barrier(); double trip = round_trip(); if (trip0 > trip) trip = trip0; qsort(U, 7, 8, cmp); qsort(D, nd, 8, cmp); tm_[me] = bad; barrier(); bad = tm_[0] + tm_[1]; barrier();
  if (!me) { printf("%-13s %8zu %s rtt %3.0f  U %8.2f (min %.2f)  D %8.2f  piece %zu slots %d wr %s/%d rd %s/%d nto %d own %d after %s lag %d flag %d skew %zu %s\n", ops[k].name, n, trip < 200 ? "near" : "far ", trip, U[3], U[0], D[nd / 2], w->piece, w->slots, wn[w->wr], w->wd, rn[w->rd], w->rdd, w->nto, w->own, an[w->after], w->lag, w->flag, w->skew, bad ? "BAD" : "ok"); fflush(stdout); }
}
static int find(const char *s, const char **t, int n) { for (int i = 0; i < n; i++) if (!strcmp(s, t[i])) return i; fprintf(stderr, "? %s\n", s); exit(2); }
enum {S_NO,S_PW,S_P0,S_ST,S_FL,S_LD,S_CPZ,S_CPY,S_CPM,S_CPREP,S_CPNT,S_STCPZ,S_RD,S_STRD,S_PWRD,S_PWCPZ,S_NTRD};
static const char*nm[]={"-","prefetchw","prefetcht0","store8","clflushopt","load","copy512","copy256","memcpy","repmovsb","copynt","store8+copy512","read512","store8+read512","prefetchw+read512","prefetchw+copy512","x"};
static char*pb; static volatile uint64_t sink;
static void step(int s,char*p,size_t n){ switch(s){
  case S_NO: break; case S_PW: own(p,n); break; case S_P0: pre(p,n); break; case S_ST: for(size_t j=0;j<n;j+=64) *(volatile uint64_t*)(p+j)=7; break;
  case S_FL: for(size_t j=0;j<n;j+=64) flush(p+j); break; case S_LD: { uint64_t x=0; for(size_t j=0;j<n;j+=64) x+=*(volatile uint64_t*)(p+j); sink=x; } break;
  case S_CPZ: c_z(p,pb,n); break; case S_CPY: cp256(p,pb,n); break; case S_CPM: memcpy(p,pb,n); break; case S_CPREP: rep(p,pb,n); break; case S_CPNT: c_nt(p,pb,n); break;
  case S_STCPZ: for(size_t k=0;k<n;k+=2048){ for(size_t j=0;j<2048;j+=64) *(volatile uint64_t*)(p+k+j)=7; c_z(p+k,pb+k,2048);} break;
  case S_RD: c_z(pb+65536,p,n); break; case S_STRD: for(size_t j=0;j<n;j+=64) *(volatile uint64_t*)(p+j)=7; c_z(pb+65536,p,n); break; case S_PWRD: own(p,n); c_z(pb+65536,p,n); break; case S_PWCPZ: own(p,n); c_z(p,pb,n); break; }
  _mm_mfence(); }
static void wait2(void){ double t=now(); while(now()-t<2); }
static void micro(void) {
  pb=aligned_alloc(2<<20,2<<20); memset(pb,1,2<<20);
  static int P[][6]={ // W0 W R0 R R1 W1
    {S_NO,S_CPZ,S_NO,S_RD,S_NO,S_NO},{S_NO,S_CPY,S_NO,S_RD,S_NO,S_NO},{S_NO,S_CPM,S_NO,S_RD,S_NO,S_NO},{S_NO,S_CPREP,S_NO,S_RD,S_NO,S_NO},{S_NO,S_CPNT,S_NO,S_RD,S_NO,S_NO},{S_NO,S_STCPZ,S_NO,S_RD,S_NO,S_NO},
    {S_PW,S_CPZ,S_NO,S_RD,S_NO,S_NO},{S_ST,S_CPZ,S_NO,S_RD,S_NO,S_NO},
    {S_NO,S_CPZ,S_PW,S_RD,S_NO,S_NO},{S_PW,S_CPZ,S_PW,S_RD,S_NO,S_NO},{S_ST,S_CPZ,S_PW,S_RD,S_NO,S_NO},
    {S_NO,S_CPZ,S_NO,S_STRD,S_NO,S_NO},{S_PW,S_CPZ,S_NO,S_STRD,S_NO,S_NO},{S_ST,S_CPZ,S_NO,S_STRD,S_NO,S_NO},{S_NO,S_PWCPZ,S_NO,S_STRD,S_NO,S_NO},{S_NO,S_STCPZ,S_NO,S_STRD,S_NO,S_NO},
    {S_NO,S_CPZ,S_NO,S_PWRD,S_NO,S_NO},{S_PW,S_CPZ,S_NO,S_PWRD,S_NO,S_NO},{S_ST,S_CPZ,S_NO,S_PWRD,S_NO,S_NO},
    {S_NO,S_CPZ,S_NO,S_RD,S_ST,S_NO},{S_PW,S_CPZ,S_NO,S_RD,S_ST,S_NO},{S_NO,S_CPZ,S_NO,S_RD,S_FL,S_NO},{S_PW,S_CPZ,S_NO,S_RD,S_FL,S_NO},{S_NO,S_CPZ,S_NO,S_RD,S_NO,S_FL},{S_P0,S_CPZ,S_NO,S_RD,S_NO,S_NO},{S_LD,S_CPZ,S_NO,S_RD,S_NO,S_NO},
    {S_NO,S_CPNT,S_NO,S_RD,S_FL,S_NO},{S_PW,S_CPZ,S_NO,S_RD,S_FL,S_FL},
  };
  size_t n=16384; size_t tot[]={16384,65536,262144,4<<20};
  for(int ti=0;ti<4;ti++) for(int pi=0;pi<sizeof P/sizeof*P;pi++){ size_t total=tot[ti]; int it=total>262144?600:150; static double T[6][1001]; size_t k=0; barrier(); double trip=round_trip();
    for(int i=0;i<it;i++,k++){ char*p=ring[0]+(k*n)%total; int who[6]={0,0,1,1,1,0};
      for(int q=0;q<6;q++){ barrier(); wait2(); barrier(); double t0=now(); if(me==who[q]) step(P[pi][q],p,n); T[q][i]=now()-t0; } }
    for(int q=0;q<6;q++) { qsort(T[q],it,8,cmp); } tm_[me*0+8*me]=0; for(int q=0;q<6;q++) tm_[me*8+q]=T[q][it/2]; barrier();
    if(!me) printf("rtt %3.0f total %5zuK  W0 %-10s %5.2f  W %-14s %5.2f  R0 %-9s %5.2f  R %-14s %5.2f  R1 %-10s %5.2f  W1 %-10s %5.2f\n",trip,total>>10,nm[P[pi][0]],tm_[0],nm[P[pi][1]],tm_[1],nm[P[pi][2]],tm_[8+2],nm[P[pi][3]],tm_[8+3],nm[P[pi][4]],tm_[8+4],nm[P[pi][5]],tm_[5]); fflush(stdout); barrier(); }
}
static void history(void) {
  pb=aligned_alloc(2<<20,2<<20); memset(pb,1,2<<20); size_t n=16384; char*p=ring[0];
  for(int k=0;k<=6;k++){ static double W[2][1000],R[2][1000],S[1000]; int nw[2]={0,0},nr[2]={0,0},ns=0; barrier(); double trip=round_trip(); int last=0;
    for(int i=0;i<400;i++){ int st=k&&i%k==0; 
      barrier(); double t0=now(); if(!me){ c_z(p,pb,n); _mm_mfence(); } double t1=now(); W[last][nw[last]++]=t1-t0; barrier();
      t0=now(); if(me){ c_z(pb+65536,p,n); _mm_mfence(); } t1=now(); R[st][nr[st]++]=t1-t0; double x=now(); while(now()-x<1); 
      if(st){ t0=now(); if(me){ for(size_t j=0;j<n;j+=64) *(volatile uint64_t*)(p+j)=7; _mm_mfence(); } t1=now(); S[ns++]=t1-t0; } barrier(); last=st; }
    for(int q=0;q<2;q++){ qsort(W[q],nw[q],8,cmp); qsort(R[q],nr[q],8,cmp);} qsort(S,ns,8,cmp);
    if(me){ tm_[1]=ns?S[ns/2]:0; tm_[2]=nr[0]?R[0][nr[0]/2]:0; tm_[3]=nr[1]?R[1][nr[1]/2]:0; } barrier();
    if(!me) printf("rtt %3.0f reader stores every %d round: W after a round without %.2f, after a round with %.2f; store %.2f; R %.2f/%.2f\n",trip,k,nw[0]?W[0][nw[0]/2]:0,nw[1]?W[1][nw[1]/2]:0,tm_[1],tm_[2],tm_[3]); fflush(stdout); barrier(); }
}
static void child_ended(int signal) { (void)signal; int status; if (waitpid(-1, &status, WNOHANG) > 0 && status) { static const char text[] = "crossing2: the other process failed\n"; if (write(2, text, sizeof text - 1)) _exit(1); _exit(1); } }
static const char *DEFAULTS[] = {"pingpong", "oneway", "broadcast", "allgather", "allreduceA", "allreduceA_ip", "allreduceB", "allreduceB_ip"};
static size_t pow2(size_t x) { size_t p = 1; while (p * 2 <= x) p *= 2; return p; }
int main(int c, char **v) {
  size_t most = 64 << 20; int thp_s = getenv("THPS") != 0, thp_p = getenv("THPP") != 0; if (getenv("BUDGET")) budget = atof(getenv("BUDGET"));
  int fd = memfd_create("x", 0); if (ftruncate(fd, HDR + 2 * RING)) return 1; char *base = mmap(0, HDR + 2 * RING + (2 << 20), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); base = (char *)(((uintptr_t)base + (2 << 20) - 1) & ~(uintptr_t)((2 << 20) - 1));
  char *m = mmap(base, HDR + 2 * RING, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0); if (thp_s) if (madvise(m, HDR + 2 * RING, MADV_HUGEPAGE)) perror("thp");
  memset(m, 0, HDR + 2 * RING);
  line *l = (line *)m; for (int k = 0; k < 2; k++) { ready[k] = l + k; credit[k] = l + 2 + k; ring[k] = m + HDR + k * RING; } place = l + 4; for (int k = 0; k < 2; k++) { mready[k] = (post *)(l + 8 + k); mback[k] = (backs *)(m + 16384 + 16384 * k); } tm_ = (double *)(m + 8192); pids = (pid_t *)(m + 4096);
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  // A process without the other would spin for ever: the child dies with its parent, and a child that fails ends its parent.
  pid_t parent = getpid(); signal(SIGCHLD, child_ended); pid_t child = fork(); if (child < 0) { perror("fork"); return 1; }
  me = !child; if (me) { prctl(PR_SET_PDEATHSIG, SIGKILL); if (getppid() != parent) return 1; } pids[me] = getpid(); cpu_set_t set; CPU_ZERO(&set); CPU_SET(me, &set); sched_setaffinity(0, sizeof set, &set);
  char *in = aligned_alloc(2 << 20, most), *out = aligned_alloc(2 << 20, most); if (thp_p) { madvise(in, most, MADV_HUGEPAGE); madvise(out, most, MADV_HUGEPAGE); }
  size_t init = getenv("MOST") ? strtoull(getenv("MOST"), 0, 0) : most; memset(in, 1, init); memset(out, 1, init); theirs = out;
  if (getenv("COLD")) { cold = strtoull(getenv("COLD"), 0, 0); cold_at = aligned_alloc(2 << 20, 64 << 20); memset(cold_at, 1, cold); }
  if (c > 1 && !strcmp(v[1], "micro")) { barrier(); micro(); if (!me) wait(0); return 0; }
  if (c > 1 && !strcmp(v[1], "history")) { barrier(); history(); if (!me) wait(0); return 0; }
  if (c < 2) { size_t sizes[] = {4096, 16384, 65536, 262144, 1048576}; barrier();
    for (int s = 0; s < 5; s++) for (int o = 0; o < 8; o++) { size_t n = sizes[s]; int k; for (k = 0; strcmp(ops[k].name, DEFAULTS[o]); k++); if (n > init) continue;
      int halved = ops[k].f == op_gather || ops[k].f == op_redB, both = o > 2; size_t block = halved ? n / 2 : n, piece = n <= 16384 ? (both ? 8192 : 4096) : n <= 65536 ? 8192 : n <= 262144 ? (both ? 8192 : 32768) : 65536; if (piece > block) piece = block;
      way w = {piece, 16, W_512, 0, R_512, 0, 0, 0, A_TOUCH, both && block / piece > 1 ? 2 : 1, 2, 0}; measure(k, in, out, n, &w);
      w.flag = 0; w.slots = 8; measure(k, in, out, n, &w); w.after = A_NONE; measure(k, in, out, n, &w); w.slots = (4 << 20) / piece; measure(k, in, out, n, &w); }
    if (!me) wait(0); return 0; }
  FILE *f = fopen(v[1], "r"); if (!f) { perror(v[1]); return 1; } char o[32], a[16], b[16], d[16]; size_t n; way w; barrier();
  while (fscanf(f, "%31s %zu %zu %d %15s %d %15s %d %d %d %15s %d %d %zu", o, &n, &w.piece, &w.slots, a, &w.wd, b, &w.rdd, &w.nto, &w.own, d, &w.lag, &w.flag, &w.skew) == 14) {
    w.wr = find(a, wn, 8); w.rd = find(b, rn, 11); w.after = find(d, an, 6); int k; for (k = 0; k < 9 && strcmp(ops[k].name, o); k++); if (k == 9) { if (!me) fprintf(stderr, "? %s\n", o); continue; } if (n > init || stride(&w) * w.slots > RING || w.slots > 2000 && w.flag == 2) continue; measure(k, in, out, n, &w);
  }
  if (!me) wait(0);
  return 0;
}
