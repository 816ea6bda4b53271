/*
 * Litmus tests of what the library's protocols rest on: pairs of blocks on multiprocessors of their own, many rounds,
 * and how often a reader saw anything but what was written before the flag that it saw. That must be never.
 */
#ifndef PROBE_LITMUS_H
#define PROBE_LITMUS_H

#include "host.h"

static const u64 ROUNDS_LEAST = 10000000;

/* ms of a launch of `all.rounds` rounds; what it found is added up in `all`. */
static double litmus_ms(void (*kernel)(Litmus), const Litmus &all, u32 blocks, size_t shared_bytes) {
  cudaEvent_t begun, done;
  float ms = 0;
  OK(cudaEventCreate(&begun)), OK(cudaEventCreate(&done));
  u32 pairs = blocks / 2;
  OK(cudaMemset(all.counts, 0, pairs * 16 * sizeof(u64))), OK(cudaMemset(all.credits, 0, pairs * 16 * sizeof(u64)));
  OK(cudaMemset(all.packets, 0, pairs * 2 * 2 * LITMUS_THREADS * 2 * sizeof(u64)));
  OK(cudaDeviceSynchronize());
  OK(cudaEventRecord(begun));
  launch(true, kernel, blocks, LITMUS_THREADS, shared_bytes, (cudaStream_t)0, all);
  OK(cudaEventRecord(done));
  OK(cudaEventSynchronize(done));
  OK(cudaEventElapsedTime(&ms, begun, done));
  return ms;
}

/* One test in one memory: at least ROUNDS_LEAST rounds of all pairs together, and about a second of them. */
static void litmus_test(const char *name, void (*kernel)(Litmus), bool is_pinned) {
  u32 pairs = (u32)processors / 2, blocks = pairs * 2;
  auto words = [&](size_t count) { return is_pinned ? pinned_words(count) : device_words(count); };
  Litmus all = {};
  all.data = words(pairs * SLOTS * LITMUS_THREADS), all.counts = words(pairs * 16), all.credits = words(pairs * 16);
  all.packets = words(pairs * 2 * 2 * LITMUS_THREADS * 2);
  all.violations = device_words(1), all.late = device_words(1), all.processors = device_words(blocks);
  all.limit_ns = WATCHDOG_NS;
  /* More than half of a multiprocessor's shared memory: no two blocks share one. */
  int most = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  OK(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  all.rounds = 2000;
  double ms = litmus_ms(kernel, all, blocks, (size_t)most);
  double each_us = ms * 1e3 / (double)all.rounds;
  u64 least = ROUNDS_LEAST / pairs + 1, second = (u64)(1e6 / each_us);
  /* The watchdog counts from the start of a kernel. */
  u64 within = (u64)(4e6 / each_us);
  all.rounds = std::max((u64)1, std::min(std::max(least, second), within));
  ms = litmus_ms(kernel, all, blocks, (size_t)most);
  u64 violations, late;
  std::vector<u64> where(blocks);
  OK(cudaMemcpy(&violations, all.violations, sizeof violations, cudaMemcpyDeviceToHost));
  OK(cudaMemcpy(&late, all.late, sizeof late, cudaMemcpyDeviceToHost));
  OK(cudaMemcpy(where.data(), all.processors, blocks * sizeof(u64), cudaMemcpyDeviceToHost));
  int apart = 0;
  for (u32 pair = 0; pair < pairs; pair++) apart += where[pair * 2] != where[pair * 2 + 1];
  const char *few = all.rounds * pairs < ROUNDS_LEAST ? "holds, in too few rounds" : "holds";
  say("litmus", violations || late ? "wrong" : few,
      "\"test\":\"%s\",\"memory\":\"%s\",\"rounds\":%llu,\"violations\":%llu,\"waits that did not end\":%llu,"
      "\"pairs\":%u,\"pairs on two multiprocessors\":%d,\"ns a round\":%.0f,\"seconds\":%.2f",
      name, is_pinned ? "pinned" : "device", all.rounds * pairs, violations, late, pairs, apart,
      ms * 1e6 / (double)all.rounds, ms / 1e3);
}

static void litmus(bool is_pinned) {
  litmus_test("data, then a flag", litmus_message, is_pinned);
  litmus_test("packets that carry their flag", litmus_packets, is_pinned);
  litmus_test("a ring with credits", litmus_credits, is_pinned);
}

#endif
