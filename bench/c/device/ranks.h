/*
 * A rank of device_ranks: its communicator, stream and buffers, and what is done with their bytes on a device or in
 * ordinary memory. A call of the driver that fails ends the program. Absent: what ranks call.
 */
#ifndef DEVICE_RANKS_H
#define DEVICE_RANKS_H

#include "asked.h"
#include "libraries.h"

/* Bytes before and behind every buffer that must stay as they were. */
enum { GUARD = 256 };

/* One rank: its communicator, stream and two buffers with a guard at both ends. */
typedef struct {
  int rank;
  comm_t comm;
  void *context, *stream, *begun, *ended;
  unsigned char *from, *to, *copy; /* copy: the host's, of either */
  size_t bytes;
} rank_t;

static unsigned parties(void) { return (unsigned)(asked.processes * asked.threads); }

static void use(const rank_t *rank) {
  if (!asked.on_host && asked.group > 1) cuda_ok(cuda.current(rank->context), "cuCtxSetCurrent");
}

static void wait_for(const rank_t *rank) {
  use(rank);
  if (!asked.on_host) cuda_ok(cuda.stream_wait(rank->stream), "cuStreamSynchronize");
}

static unsigned char *memory(size_t bytes) {
  uint64_t address = 0;
  if (!asked.on_host) {
    cuda_ok(cuda.alloc(&address, bytes), "cuMemAlloc");
    return (unsigned char *)(uintptr_t)address;
  }
  unsigned char *made = malloc(bytes);
  if (!made) abort();
  return made;
}

static void memory_free(unsigned char *what) {
  if (asked.on_host) free(what);
  else cuda_ok(cuda.release((uint64_t)(uintptr_t)what), "cuMemFree");
}

static void upload(unsigned char *to, const void *from, size_t bytes) {
  if (asked.on_host) memcpy(to, from, bytes);
  else if (bytes) cuda_ok(cuda.to_device((uint64_t)(uintptr_t)to, from, bytes), "cuMemcpyHtoD");
}

static void download(void *to, const unsigned char *from, size_t bytes) {
  if (asked.on_host) memcpy(to, from, bytes);
  else if (bytes) cuda_ok(cuda.to_host(to, (uint64_t)(uintptr_t)from, bytes), "cuMemcpyDtoH");
}

static void poison(unsigned char *what, size_t bytes) {
  if (asked.on_host) memset(what, 0xa5, bytes);
  else if (bytes) cuda_ok(cuda.set((uint64_t)(uintptr_t)what, 0xa5, bytes), "cuMemsetD8");
}

/* What was copied and set so far is there before any stream goes on. */
static void settle(const rank_t *ranks) {
  for (int local = 0; local < asked.group && !asked.on_host; local++) {
    use(&ranks[local]);
    cuda_ok(cuda.wait_all(), "cuCtxSynchronize");
  }
}

/* Whether bytes of the copy are still poison. */
static int untouched(const unsigned char *copy, size_t from, size_t to) {
  for (; from < to; from++)
    if (copy[from] != 0xa5) return 0;
  return 1;
}

/* A line now and then, so that a job that goes on differs from one that hangs. One thread of a job calls it. */
static void progress(const char *what, uint64_t cases) {
  static double said_us;
  double us = now_us();
  if (us - said_us < 1e6) return;
  said_us = us;
  printf("{\"what\":\"progress\",\"collective\":\"%s\",\"cases\":%llu}\n", what, (unsigned long long)cases);
  fflush(stdout);
}

#endif
