/*
 * The CUDA driver and a library with NCCL's functions, both opened at run time, with prototypes of our own: the same
 * program runs on ours and on NVIDIA's, and is built where neither is. What is missing ends the program with a word.
 * Absent: anything of the CUDA runtime.
 */
#ifndef DEVICE_LIBRARIES_H
#define DEVICE_LIBRARIES_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ENDS_FAILED = 1, ENDS_USAGE = 2, ENDS_REFUSED = 3, ENDS_ABSENT = 4 };

static struct {
  int (*init)(unsigned), (*driver_version)(int *), (*count)(int *), (*device)(int *, int), (*name)(char *, int, int);
  int (*attribute)(int *, int, int), (*retain)(void **, int), (*current)(void *);
  int (*alloc)(uint64_t *, size_t), (*release)(uint64_t), (*info)(size_t *, size_t *);
  int (*to_device)(uint64_t, const void *, size_t), (*to_host)(void *, uint64_t, size_t);
  int (*set)(uint64_t, unsigned char, size_t), (*wait_all)(void);
  int (*stream)(void **, unsigned), (*stream_wait)(void *), (*stream_free)(void *);
  int (*event)(void **, unsigned), (*record)(void *, void *), (*elapsed)(float *, void *, void *),
      (*event_wait)(void *);
  int (*error_name)(int, const char **);
} cuda;

typedef struct {
  char internal[128];
} unique_id;
typedef void *comm_t;

/* NCCL's config as of 2.18: every later library takes it. */
struct config {
  size_t size;
  unsigned magic, version;
  int blocking, cluster, blocks_least, blocks_most;
  const char *net;
  int share, traffic;
};

static struct {
  int (*version)(int *), (*get_id)(unique_id *), (*init)(comm_t *, int, unique_id, int, struct config *);
  int (*destroy)(comm_t), (*group_start)(void), (*group_end)(void);
  const char *(*last_error)(comm_t), *(*error_string)(int);
  int (*all_reduce)(const void *, void *, size_t, int, int, comm_t, void *);
  int (*reduce)(const void *, void *, size_t, int, int, int, comm_t, void *);
  int (*broadcast)(const void *, void *, size_t, int, int, comm_t, void *);
  int (*all_gather)(const void *, void *, size_t, int, comm_t, void *);
  int (*reduce_scatter)(const void *, void *, size_t, int, int, comm_t, void *);
  int (*send)(const void *, size_t, int, int, comm_t, void *), (*recv)(void *, size_t, int, int, comm_t, void *);
  int (*premul)(int *, void *, int, int, comm_t), (*op_free)(int, comm_t);
  /* NULL before NCCL 2.28: messages in a group then. */
  int (*all_to_all)(const void *, void *, size_t, int, comm_t, void *);
  int (*gather)(const void *, void *, size_t, int, int, comm_t, void *);
  int (*scatter)(const void *, void *, size_t, int, int, comm_t, void *);
} nccl;

/* A function at `place`: C has no conversion for it. */
static int found(void *library, const char *name, void *place) {
  void *address = dlsym(library, name);
  memcpy(place, &address, sizeof address);
  return address != NULL;
}

static void needed(void *library, const char *name, void *place) {
  if (found(library, name, place)) return;
  fprintf(stderr, "there is no %s\n", name);
  _exit(ENDS_ABSENT);
}

static void *opened(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library) return library;
  fprintf(stderr, "%s\n", dlerror());
  _exit(ENDS_ABSENT);
}

static void open_cuda(void) {
  void *at = opened("libcuda.so.1");
  needed(at, "cuInit", &cuda.init), needed(at, "cuDriverGetVersion", &cuda.driver_version);
  needed(at, "cuDeviceGetCount", &cuda.count), needed(at, "cuDeviceGet", &cuda.device);
  needed(at, "cuDeviceGetName", &cuda.name), needed(at, "cuDeviceGetAttribute", &cuda.attribute);
  needed(at, "cuDevicePrimaryCtxRetain", &cuda.retain), needed(at, "cuCtxSetCurrent", &cuda.current);
  needed(at, "cuMemAlloc_v2", &cuda.alloc), needed(at, "cuMemFree_v2", &cuda.release);
  needed(at, "cuMemGetInfo_v2", &cuda.info), needed(at, "cuMemcpyHtoD_v2", &cuda.to_device);
  needed(at, "cuMemcpyDtoH_v2", &cuda.to_host), needed(at, "cuMemsetD8_v2", &cuda.set);
  needed(at, "cuCtxSynchronize", &cuda.wait_all), needed(at, "cuStreamCreate", &cuda.stream);
  needed(at, "cuStreamSynchronize", &cuda.stream_wait), needed(at, "cuStreamDestroy_v2", &cuda.stream_free);
  needed(at, "cuEventCreate", &cuda.event), needed(at, "cuEventRecord", &cuda.record);
  needed(at, "cuEventElapsedTime", &cuda.elapsed), needed(at, "cuEventSynchronize", &cuda.event_wait);
  needed(at, "cuGetErrorName", &cuda.error_name);
}

static void open_nccl(const char *path) {
  void *at = opened(path);
  needed(at, "ncclGetVersion", &nccl.version), needed(at, "ncclGetUniqueId", &nccl.get_id);
  needed(at, "ncclCommInitRankConfig", &nccl.init), needed(at, "ncclCommDestroy", &nccl.destroy);
  needed(at, "ncclGroupStart", &nccl.group_start), needed(at, "ncclGroupEnd", &nccl.group_end);
  needed(at, "ncclGetErrorString", &nccl.error_string), needed(at, "ncclAllReduce", &nccl.all_reduce);
  needed(at, "ncclReduce", &nccl.reduce), needed(at, "ncclBroadcast", &nccl.broadcast);
  needed(at, "ncclAllGather", &nccl.all_gather), needed(at, "ncclReduceScatter", &nccl.reduce_scatter);
  needed(at, "ncclSend", &nccl.send), needed(at, "ncclRecv", &nccl.recv);
  needed(at, "ncclRedOpCreatePreMulSum", &nccl.premul), needed(at, "ncclRedOpDestroy", &nccl.op_free);
  needed(at, "ncclGetLastError", &nccl.last_error);
  found(at, "ncclAlltoAll", &nccl.all_to_all), found(at, "ncclGather", &nccl.gather);
  found(at, "ncclScatter", &nccl.scatter);
}

static void cuda_ok(int result, const char *what) {
  const char *name = NULL;
  if (!result) return;
  if (cuda.error_name) cuda.error_name(result, &name);
  fprintf(stderr, "%s: CUDA error %d %s\n", what, result, name ? name : "");
  fflush(NULL);
  _exit(ENDS_FAILED);
}

static void nccl_ok(int result, const char *what) {
  if (!result) return;
  fprintf(stderr, "%s: %d %s: %s\n", what, result, nccl.error_string(result), nccl.last_error(NULL));
  fflush(NULL);
  _exit(ENDS_FAILED);
}

#endif
