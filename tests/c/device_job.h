/*
 * Ranks on devices for C programs that test: the driver opened at run time, ranks as threads or as processes, a
 * communicator and a stream each. A check that fails ends the program with its line; a job that hangs is ended by an
 * alarm. Absent: any call of the library beyond making and ending communicators.
 */
#ifndef DEVICE_JOB_H
#define DEVICE_JOB_H

#include <consort.h>
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, consortGetLastError(NULL)); \
      _exit(1);                                                                                    \
    }                                                                                              \
  } while (0)
#define OK(call) CHECK((call) == ncclSuccess)
#define CU(call) CHECK((call) == 0)

enum { RANKS_MAX = 8, LIMIT_SECONDS = 60 };

/* Where buffers of a rank lie. */
enum place { DEVICE, PINNED, MANAGED };

static struct {
  int (*init)(unsigned), (*devices)(int*), (*retain)(void**, int), (*current)(void*);
  int (*alloc)(uint64_t*, size_t), (*release)(uint64_t), (*alloc_managed)(uint64_t*, size_t, unsigned);
  int (*alloc_pinned)(void**, size_t), (*release_pinned)(void*), (*info)(size_t*, size_t*);
  int (*to_device)(uint64_t, const void*, size_t, void*), (*to_host)(void*, uint64_t, size_t, void*);
  int (*stream)(void**, unsigned), (*wait)(void*), (*stream_free)(void*), (*wait_all)(void);
  int (*attribute)(void*, int, uint64_t), (*wait_value)(void*, uint64_t, uint64_t, unsigned);
} cuda;

static struct shared {
  ncclUniqueId id;
  pthread_barrier_t barrier;
}* shared;

/* A rank. */
struct rank {
  int rank, ranks, device;
  ncclComm_t comm;
  void* stream;
};

/* The job: its ranks, its devices, and the body of each rank. */
static struct {
  int ranks, devices, forks;
  void (*body)(struct rank*);
} job;

/* A function of the driver at `place`: C has no conversion for it. */
static void find(void* driver, const char* name, void* place) {
  void* address = dlsym(driver, name);
  CHECK(address != NULL);
  memcpy(place, &address, sizeof address);
}

static void open_driver(void) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver) fprintf(stderr, "%s\n", dlerror());
  CHECK(driver != NULL);
  find(driver, "cuInit", &cuda.init), find(driver, "cuDeviceGetCount", &cuda.devices);
  find(driver, "cuDevicePrimaryCtxRetain", &cuda.retain), find(driver, "cuCtxSetCurrent", &cuda.current);
  find(driver, "cuMemAlloc_v2", &cuda.alloc), find(driver, "cuMemFree_v2", &cuda.release);
  find(driver, "cuMemAllocManaged", &cuda.alloc_managed), find(driver, "cuMemAllocHost_v2", &cuda.alloc_pinned);
  find(driver, "cuMemFreeHost", &cuda.release_pinned), find(driver, "cuMemGetInfo_v2", &cuda.info);
  find(driver, "cuMemcpyHtoDAsync_v2", &cuda.to_device), find(driver, "cuMemcpyDtoHAsync_v2", &cuda.to_host);
  find(driver, "cuStreamCreate", &cuda.stream), find(driver, "cuStreamSynchronize", &cuda.wait);
  find(driver, "cuStreamDestroy_v2", &cuda.stream_free), find(driver, "cuCtxSynchronize", &cuda.wait_all);
  find(driver, "cuPointerGetAttribute", &cuda.attribute);
  find(driver, "cuStreamWaitValue64_v2", &cuda.wait_value);
  CU(cuda.init(0));
  CU(cuda.devices(&job.devices));
}

/* Makes a device's primary context current on this thread. */
static void use_device(int device) {
  void* context;
  CU(cuda.retain(&context, device));
  CU(cuda.current(context));
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void rest(void) {
  const struct timespec millisecond = {0, 1000000};
  nanosleep(&millisecond, NULL);
}

/* Free bytes of this thread's device. */
static size_t unused(void) {
  size_t left, all;
  CU(cuda.info(&left, &all));
  return left;
}

/* Memory of a rank that its stream can reach. */
static unsigned char* memory(enum place place, size_t bytes) {
  uint64_t address = 0;
  void* pinned = NULL;
  if (place == PINNED) {
    CU(cuda.alloc_pinned(&pinned, bytes));
    return pinned;
  }
  if (place == DEVICE) CU(cuda.alloc(&address, bytes));
  else CU(cuda.alloc_managed(&address, bytes, 1));
  return (unsigned char*)(uintptr_t)address;
}

static void memory_free(enum place place, unsigned char* what) {
  if (place == PINNED) CU(cuda.release_pinned(what));
  else CU(cuda.release((uint64_t)(uintptr_t)what));
}

/* All ranks are here. */
static void meet(void) {
  int result = pthread_barrier_wait(&shared->barrier);
  CHECK(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
}

/* Waits until the state of a communicator is another than this; which it is then. */
static ncclResult_t state_after(ncclComm_t comm, ncclResult_t state, double seconds) {
  double end = now() + seconds;
  ncclResult_t result = state;
  while (result == state && now() < end) {
    OK(ncclCommGetAsyncError(comm, &result));
    rest();
  }
  return result;
}

static void begin_rank(struct rank* rank, int number) {
  memset(rank, 0, sizeof *rank);
  rank->rank = number, rank->ranks = job.ranks, rank->device = number % job.devices;
  use_device(rank->device);
  CU(cuda.stream(&rank->stream, 1));
}

static void join(struct rank* rank, int blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclResult_t result;
  config.blocking = blocking;
  if (rank->rank == 0) OK(ncclGetUniqueId(&shared->id));
  meet();
  result = ncclCommInitRankConfig(&rank->comm, rank->ranks, shared->id, rank->rank, &config);
  if (!blocking && result == ncclInProgress) result = state_after(rank->comm, ncclInProgress, 60);
  CHECK(result == ncclSuccess);
  meet();
}

static void end_rank(struct rank* rank) {
  if (rank->comm) OK(ncclCommDestroy(rank->comm));
  CU(cuda.stream_free(rank->stream));
}

/* A rank with a communicator, as most bodies need it. */
static void one_rank(int number) {
  struct rank rank;
  begin_rank(&rank, number);
  join(&rank, 1);
  job.body(&rank);
  end_rank(&rank);
}

static void* thread_of(void* number) {
  one_rank((int)(intptr_t)number);
  return NULL;
}

static void in_threads(void) {
  pthread_t threads[RANKS_MAX];
  intptr_t rank;
  open_driver();
  for (rank = 0; rank < job.ranks; rank++) CHECK(pthread_create(&threads[rank], NULL, thread_of, (void*)rank) == 0);
  for (rank = 0; rank < job.ranks; rank++) CHECK(pthread_join(threads[rank], NULL) == 0);
}

/* All ranks end well, but `victim`, whose end is SIGKILL; -1: none. */
static void in_processes(int victim) {
  pid_t ranks[RANKS_MAX];
  int rank, state, bad = 0;
  for (rank = 0; rank < job.ranks; rank++) {
    ranks[rank] = fork();
    CHECK(ranks[rank] >= 0);
    if (ranks[rank] == 0) {
      alarm(LIMIT_SECONDS);
      open_driver();
      one_rank(rank);
      _exit(0);
    }
  }
  for (rank = 0; rank < job.ranks; rank++) {
    CHECK(waitpid(ranks[rank], &state, 0) == ranks[rank]);
    if (rank == victim ? !WIFSIGNALED(state) || WTERMSIG(state) != SIGKILL : state != 0) {
      fprintf(stderr, "rank %d ended with %#x\n", rank, (unsigned)state);
      bad = 1;
    }
  }
  CHECK(!bad);
}

/* Runs a body on each rank, in threads of this process or in processes of their own. */
static void run(int ranks, int forks, int victim, void (*body)(struct rank*)) {
  pthread_barrierattr_t attributes;
  job.ranks = ranks, job.forks = forks, job.body = body;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  CHECK(pthread_barrierattr_init(&attributes) == 0);
  CHECK(pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
  CHECK(pthread_barrier_init(&shared->barrier, &attributes, (unsigned)ranks) == 0);
  if (forks) in_processes(victim);
  else in_threads();
}

#endif
