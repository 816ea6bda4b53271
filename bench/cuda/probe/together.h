/*
 * Whether two kernels of one context run at the same time: each raises a flag and waits for the other's.
 */
#ifndef PROBE_TOGETHER_H
#define PROBE_TOGETHER_H

#include "host.h"

/* Whether both of a pair saw each other; `third` puts a kernel behind the first in its stream, before the second. */
static bool meet(bool first, bool second, bool third, cudaStream_t one, cudaStream_t other, double *waited_us) {
  static u64 *flags = device_words(32), *results = pinned_words(32);
  OK(cudaMemset(flags, 0, 32 * sizeof(u64)));
  memset(results, 0, 32 * sizeof(u64));
  OK(cudaDeviceSynchronize());
  launch(first, handshake, 1, 32, 0, one, flags, (const u64 *)(flags + 16), results, WAIT_NS);
  if (third) launch(first, handshake, 1, 32, 0, one, (u64 *)NULL, (const u64 *)NULL, results + 24, WAIT_NS);
  launch(second, handshake, 1, 32, 0, other, flags + 16, (const u64 *)flags, results + 8, WAIT_NS);
  OK(cudaDeviceSynchronize());
  *waited_us = (double)std::max(results[1], results[9]) / 1e3;
  return results[0] == 1 && results[8] == 1;
}

static const char *kind(bool is_cooperative) { return is_cooperative ? "cooperative" : "plain"; }

/* Every pair of kinds, and once more with a third kernel behind the first. */
static void together() {
  const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  cudaStream_t one = new_stream(), other = new_stream();
  double waited_us;
  /* Loaded before anything waits. */
  launch(false, handshake, 1, 32, 0, one, (u64 *)NULL, (const u64 *)NULL, (u64 *)NULL, WAIT_NS);
  launch(true, handshake, 1, 32, 0, one, (u64 *)NULL, (const u64 *)NULL, (u64 *)NULL, WAIT_NS);
  for (int third = 0; third < 2; third++)
    for (int first = 0; first < 2; first++)
      for (int second = 0; second < 2; second++) {
        bool met = meet(first, second, third, one, other, &waited_us);
        say("handshake", met ? "together" : "one after the other",
            "\"first\":\"%s\",\"second\":\"%s\",\"third behind the first\":%d,\"connections\":\"%s\","
            "\"waited_us\":%.1f",
            kind(first), kind(second), third, connections ? connections : "default", waited_us);
      }
}

/* With how many of 16 other streams a stream shares a hardware queue: behind its second kernel they wait. */
static void queues() {
  std::vector<cudaStream_t> streams;
  double waited_us;
  int shared = 0;
  for (int each = 0; each < 17; each++) streams.push_back(new_stream());
  launch(false, handshake, 1, 32, 0, streams[0], (u64 *)NULL, (const u64 *)NULL, (u64 *)NULL, WAIT_NS);
  for (int each = 1; each < 17; each++) shared += !meet(false, false, true, streams[0], streams[each], &waited_us);
  say("queues", shared ? "streams share queues" : "no stream shares a queue", "\"of 16 streams\":%d", shared);
}

#endif
