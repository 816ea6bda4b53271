/*
 * The device code of probe.cu, in a file that NVRTC compiles too: no header is included.
 *
 * Invariant: whatever spins ends by itself after `limit_ns`. Waits load with acquire and signals store with release at
 * system scope, as the library's kernels do. Absent: any call of the host.
 */
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

enum { LITMUS_THREADS = 64, RECORD_WORDS = 256, SLOTS = 4 };

static __device__ __forceinline__ u64 now_ns() {
  u64 value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

static __device__ __forceinline__ u64 now_cycles() {
  u64 value;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(value));
  return value;
}

static __device__ __forceinline__ u64 load_acquire(const u64 *at) {
  u64 value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

static __device__ __forceinline__ void store_release(u64 *at, u64 value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

static __device__ __forceinline__ void store_pair(u64 *at, u64 first, u64 second) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(first), "l"(second) : "memory");
}

static __device__ __forceinline__ void load_pair(const u64 *at, u64 &first, u64 &second) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(at) : "memory");
}

/* Whether a word reached a value before the limit. */
static __device__ bool reached(const u64 *at, u64 value, u64 begun, u64 limit_ns) {
  for (u32 looks = 1; load_acquire(at) < value; looks++)
    if (looks % 256 == 0 && now_ns() - begun > limit_ns) return false;
  return true;
}

extern "C" __global__ void nothing() {}

/* Needs local memory, which a new context does not have. */
extern "C" __global__ void deep(u64 *out, u32 count) {
  u64 held[512];
  for (u32 at = 0; at < 512; at++) held[at] = at * count;
  for (u32 at = 0; at < count; at++) held[(at * 7 + count) % 512] += held[at % 512];
  if (out) out[threadIdx.x] = held[count % 512];
}

/* Spins until the host says stop. */
extern "C" __global__ void spin(const u64 *stop, u64 *started, u64 limit_ns) {
  u64 begun = now_ns();
  store_release(started, 1);
  reached(stop, 1, begun, limit_ns);
}

/* Raises a flag and waits for another's; `result`: whether it came, and after how many ns. */
extern "C" __global__ void handshake(u64 *mine, const u64 *theirs, u64 *result, u64 limit_ns) {
  u64 begun = now_ns();
  if (mine) store_release(mine, 1);
  if (!theirs) return;
  bool came = reached(theirs, 1, begun, limit_ns);
  result[1] = now_ns() - begun;
  store_release(&result[0], came ? 1 : 2);
}

/* Reads and writes memory for a while, as a computation beside does. */
extern "C" __global__ void stream_bytes(u64 *memory, u64 words, u64 limit_ns) {
  u64 begun = now_ns(), step = (u64)gridDim.x * blockDim.x;
  while (now_ns() - begun < limit_ns)
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < words; at += step) memory[at] += at;
}

enum fence_kind {
  EMPTY,
  FENCE_SYSTEM,
  FENCE_DEVICE,
  STORE_FENCE,
  STORES_FENCE,
  STORES_RELEASE,
  RELEASE,
  ACQUIRE,
  FENCE_KINDS
};

/* `rounds` of one of these by a block; out: ns and cycles of all rounds. `memory` is pinned or the device's. */
extern "C" __global__ void fence(int kind, u64 *memory, u64 *word, u32 rounds, u64 *out) {
  u64 begun_ns = now_ns(), begun = now_cycles(), seen = 0;
  for (u32 round = 0; round < rounds; round++) {
    if (kind == STORES_FENCE || kind == STORES_RELEASE) {
      memory[threadIdx.x * 2] = round, memory[threadIdx.x * 2 + 1] = round;
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      if (kind == STORE_FENCE) *(volatile u64 *)memory = round;
      if (kind == FENCE_SYSTEM || kind == STORE_FENCE || kind == STORES_FENCE) __threadfence_system();
      if (kind == FENCE_DEVICE) __threadfence();
      if (kind == RELEASE || kind == STORES_RELEASE) store_release(word, round);
      if (kind == ACQUIRE) seen += load_acquire(word);
    }
    if (kind == STORES_FENCE || kind == STORES_RELEASE) __syncthreads();
  }
  if (threadIdx.x == 0) out[0] = now_ns() - begun_ns, out[1] = now_cycles() - begun, out[2] = seen;
}

struct Record {
  u64 word[RECORD_WORDS];
};

static __device__ void note_record(u64 begun, const u64 *copied, u64 *out) {
  __syncthreads();
  if (threadIdx.x == 0) out[0] = now_cycles() - begun, out[1] = copied[blockDim.x % RECORD_WORDS];
}

/* Copies a record to shared memory, from where `record` is; out: cycles. */
extern "C" __global__ void record_from_memory(const Record *record, u64 *out) {
  __shared__ u64 copied[RECORD_WORDS];
  u64 begun = now_cycles();
  for (u32 at = threadIdx.x; at < RECORD_WORDS; at += blockDim.x) copied[at] = record->word[at];
  note_record(begun, copied, out);
}

extern "C" __global__ void record_from_parameters(const __grid_constant__ Record record, u64 *out) {
  __shared__ u64 copied[RECORD_WORDS];
  u64 begun = now_cycles();
  for (u32 at = threadIdx.x; at < RECORD_WORDS; at += blockDim.x) copied[at] = record.word[at];
  note_record(begun, copied, out);
}

/* A chain of loads: each gives the address of the next. out: cycles. */
extern "C" __global__ void chain(const u64 *first, u32 length, u64 *out) {
  u64 begun = now_cycles();
  const u64 *at = first;
  for (u32 step = 0; step < length; step++) at = (const u64 *)*(volatile const u64 *)at;
  out[0] = now_cycles() - begun, out[1] = (u64)at;
}

/* ns and cycles of the same time. */
extern "C" __global__ void clocks(u64 *out, u64 duration_ns) {
  u64 begun_ns = now_ns(), begun = now_cycles();
  while (now_ns() - begun_ns < duration_ns) {}
  out[0] = now_ns() - begun_ns, out[1] = now_cycles() - begun;
}

/* What a pair of blocks shares; each pair has a part of every array. */
struct Litmus {
  u64 *data, *counts, *credits, *packets;
  /* Of all: rounds that saw a wrong value, waits that took too long, and on which multiprocessor each block was. */
  u64 *violations, *late, *processors;
  u64 rounds, limit_ns;
};

static __device__ void note_block(const Litmus &all) {
  u32 processor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(processor));
  if (threadIdx.x == 0) all.processors[blockIdx.x] = processor;
}

static __device__ __forceinline__ u64 value_of(u64 round, u32 thread) {
  return (round << 20 ^ thread) * 0x9e3779b97f4a7c15ull;
}

/* Waits by the first thread for the block; false if it took too long. */
static __device__ bool wait_block(const Litmus &all, const u64 *at, u64 value, u64 begun) {
  int is_late = threadIdx.x == 0 && !reached(at, value, begun, all.limit_ns);
  is_late = __syncthreads_or(is_late);
  if (is_late && threadIdx.x == 0) atomicAdd(all.late, 1ull);
  return !is_late;
}

/* Data, then a count of it: the reader sees the data. `ahead` rounds may be written that were not read. */
static __device__ void produce_and_consume(const Litmus &all, u64 ahead) {
  u64 begun = now_ns(), pair = blockIdx.x / 2;
  u64 *data = all.data + pair * SLOTS * LITMUS_THREADS;
  /* 128 bytes apart. */
  u64 *count = all.counts + pair * 16, *credit = all.credits + pair * 16;
  note_block(all);
  for (u64 round = 1; round <= all.rounds; round++) {
    u64 *place = data + round % SLOTS * LITMUS_THREADS + threadIdx.x;
    if (blockIdx.x % 2 == 0) {
      if (round > ahead && !wait_block(all, credit, round - ahead, begun)) return;
      *place = value_of(round, threadIdx.x);
      __syncthreads();
      if (threadIdx.x == 0) store_release(count, round);
    } else {
      if (!wait_block(all, count, round, begun)) return;
      if (*place != value_of(round, threadIdx.x)) atomicAdd(all.violations, 1ull);
      __syncthreads();
      if (threadIdx.x == 0) store_release(credit, round);
    }
  }
}

extern "C" __global__ void litmus_message(const Litmus all) { produce_and_consume(all, 1); }

extern "C" __global__ void litmus_credits(const Litmus all) { produce_and_consume(all, SLOTS); }

/* Packets of eight bytes that carry their flag, in two sets: both blocks of a pair send and receive. */
extern "C" __global__ void litmus_packets(const Litmus all) {
  u64 begun = now_ns(), pair = blockIdx.x / 2, side = blockIdx.x % 2;
  /* Of each side two sets of two packets a thread. */
  u64 *mine = all.packets + (pair * 2 + side) * 2 * LITMUS_THREADS * 2;
  u64 *theirs = all.packets + (pair * 2 + (side ^ 1)) * 2 * LITMUS_THREADS * 2;
  note_block(all);
  for (u64 round = 1; round <= all.rounds; round++) {
    u64 flag = (round & 0xffffffff) << 32, first, second;
    u64 place = (round % 2 * LITMUS_THREADS + threadIdx.x) * 2;
    u32 sent = (u32)value_of(round, (u32)side << 10 | threadIdx.x);
    u32 expected = (u32)value_of(round, (u32)(side ^ 1) << 10 | threadIdx.x);
    store_pair(theirs + place, flag | sent, flag | (u32)~sent);
    for (u32 looks = 1;; looks++) {
      load_pair(mine + place, first, second);
      if (first >> 32 == flag >> 32 && second >> 32 == flag >> 32) break;
      if (looks % 256 == 0 && now_ns() - begun > all.limit_ns) {
        atomicAdd(all.late, 1ull);
        return;
      }
    }
    if ((u32)first != expected || (u32)second != (u32)~expected) atomicAdd(all.violations, 1ull);
  }
}
