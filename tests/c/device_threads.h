/*
 * On which device a communicator is that a thread without a context makes.
 */
#ifndef DEVICE_THREADS_H
#define DEVICE_THREADS_H

#include "device_calls.h"

/* Makes a communicator of one rank on this thread, which has done nothing else. */
static void* make_on_fresh_thread(void* place) {
  struct rank* rank = place;
  ncclUniqueId id;
  float value = 3, sum = 0;
  rank->rank = 0, rank->ranks = 1;
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&rank->comm, 1, id, 0));
  OK(ncclCommCuDevice(rank->comm, &rank->device));
  /* Memory of the host is served on either. */
  OK(ncclAllReduce(&value, &sum, 1, ncclFloat32, ncclSum, rank->comm, NULL));
  CHECK(sum == 3);
  return NULL;
}

static struct rank on_fresh_thread(void) {
  struct rank rank;
  pthread_t thread;
  memset(&rank, 0, sizeof rank);
  CHECK(pthread_create(&thread, NULL, make_on_fresh_thread, &rank) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  return rank;
}

/* One thread uses a device, another makes the communicator: device 0 is the one that it is on. */
static void fresh_thread(void) {
  struct rank rank;
  struct buffers buffers;
  struct call call = {ALL_REDUCE, ncclFloat32, ncclSum, 0, 0, 203};
  open_driver();
  use_device(0);
  rank = on_fresh_thread();
  CHECK(rank.device == 0);
  CU(cuda.stream(&rank.stream, 1));
  buffers = buffers_of(&rank, DEVICE, DEVICE, call.count);
  perform(&call, &rank, &buffers, 1, 0);
  free_buffers(&buffers);
  end_rank(&rank);
}

/* No thread has used a device: the communicator is the host's, and no device has been given a context. */
static void untouched(void) {
  struct rank rank = on_fresh_thread();
  OK(ncclCommDestroy(rank.comm));
}

/* The thread's runtime, loaded as frameworks do it, says which device is its current one. */
static void runtime_says(int device) {
  struct rank rank;
  void* runtime = dlopen("libcudart.so.12", RTLD_NOW | RTLD_LOCAL);
  if (!runtime) fprintf(stderr, "%s\n", dlerror());
  CHECK(runtime != NULL);
  rank = on_fresh_thread();
  if (rank.device != device) fprintf(stderr, "on device %d, not %d\n", rank.device, device);
  CHECK(rank.device == device);
  OK(ncclCommDestroy(rank.comm));
}

static void runtime_says_0(void) { runtime_says(0); }

static void runtime_says_1(void) { runtime_says(1); }

#endif
