/*
 * Buffers of a device, of the host and of both in the C interface. Called by `tests/devices/tests/devices/memory.rs`, which
 * reads what it prints: of every call that matters a line "what result text".
 */
#define _POSIX_C_SOURCE 200809L

#include <consort.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                       \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, consortGetLastError(NULL)); \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)
#define OK(call) CHECK((call) == ncclSuccess)

enum { COUNT = 1024, BYTES = 1 << 16 };

static float from[COUNT], to[COUNT];

static void* driver;

/* A function of the driver's library, at `place`: C has no conversion for it. */
static int find(const char* name, void* place) {
  void* address = dlsym(driver, name);
  memcpy(place, &address, sizeof address);
  return address != NULL;
}

/* Memory of a device, or managed memory: the pretend driver's, or a real one's in a context that does not stay current and
 * is not the device's primary one, on which a communicator would be. */
static char* allocate(int managed) {
  void* (*pretend)(size_t, int);
  int (*init)(unsigned), (*create)(void**, unsigned, int), (*set)(void*);
  int (*allocates)(uint64_t*, size_t), (*allocates_managed)(uint64_t*, size_t, unsigned);
  static void* context;
  uint64_t address = 0;
  if (!driver) driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  CHECK(driver != NULL);
  if (find("pretendAllocate", &pretend)) return pretend(BYTES, managed);
  CHECK(find("cuInit", &init) && init(0) == 0);
  if (!context) CHECK(find("cuCtxCreate_v2", &create) && create(&context, 0, 0) == 0);
  CHECK(find("cuCtxSetCurrent", &set) && set(context) == 0);
  if (managed) CHECK(find("cuMemAllocManaged", &allocates_managed) && allocates_managed(&address, BYTES, 1) == 0);
  else CHECK(find("cuMemAlloc_v2", &allocates) && allocates(&address, BYTES) == 0);
  CHECK(set(NULL) == 0);
  return (char*)(uintptr_t)address;
}

static ncclComm_t alone(void) {
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&comm, 1, id, 0));
  return comm;
}

static ncclResult_t reduce(const void* in, void* out, ncclComm_t comm) {
  return ncclAllReduce(in, out, COUNT, ncclFloat32, ncclSum, comm, NULL);
}

static void tell(const char* what, ncclResult_t result) {
  printf("%s %d %s\n", what, result, result == ncclSuccess ? "" : ncclGetLastError(NULL));
}

/* Host memory moves. */
static void moves(ncclComm_t comm) {
  int at;
  for (at = 0; at < COUNT; at++) from[at] = (float)at, to[at] = -1;
  OK(reduce(from, to, comm));
  CHECK(memcmp(from, to, sizeof to) == 0);
}

static void pointers(void) {
  char *device = allocate(0), *other = allocate(0), *managed = allocate(1);
  ncclComm_t comm = alone();
  ncclComm_t pair[2];
  ncclRedOp_t op;
  float* shared = (float*)(void*)managed;
  /* No machine has these devices: such ranks are on host memory. */
  const int nowhere[2] = {1000, 1001};
  printf("device %p other %p host %p\n", (void*)device, (void*)other, (void*)to);
  tell("fresh", reduce(device, other, comm));
  tell("in-place", reduce(device + 4096, device + 4096, comm));
  tell("send-only", reduce(device, to, comm));
  tell("receive-only", reduce(from, device, comm));
  OK(ncclAllReduce(device, other, 0, ncclFloat32, ncclSum, comm, NULL));
  tell("after-nothing", reduce(device, other, comm));
  moves(comm);
  tell("after-host", reduce(device, other, comm));
  tell("foreign-stream", ncclAllReduce(device, other, COUNT, ncclFloat32, ncclSum, comm, (cudaStream_t)(void*)16));
  moves(comm);
  shared[0] = 7, shared[COUNT] = 0;
  OK(ncclAllReduce(shared, shared + COUNT, 1, ncclFloat32, ncclSum, comm, NULL));
  CHECK(shared[COUNT] == 7);
  tell("scalar-now", ncclRedOpCreatePreMulSum(&op, device, ncclFloat32, ncclScalarHostImmediate, comm));
  OK(ncclRedOpCreatePreMulSum(&op, device, ncclFloat32, ncclScalarDevice, comm));
  tell("scalar-later", ncclAllReduce(from, to, COUNT, ncclFloat32, op, comm, NULL));
  OK(ncclRedOpDestroy(op, comm));
  OK(ncclRedOpCreatePreMulSum(&op, managed, ncclFloat32, ncclScalarDevice, comm));
  OK(ncclRedOpDestroy(op, comm));
  OK(ncclCommInitAll(pair, 2, nowhere));
  tell("send", ncclSend(device, COUNT, ncclFloat32, 1, pair[0], NULL));
  tell("receive", ncclRecv(device, COUNT, ncclFloat32, 0, pair[1], NULL));
  OK(ncclGroupStart());
  OK(ncclSend(from, COUNT, ncclFloat32, 1, pair[0], NULL));
  OK(ncclRecv(to, COUNT, ncclFloat32, 0, pair[1], NULL));
  OK(ncclGroupEnd());
  OK(ncclCommDestroy(pair[0]));
  OK(ncclCommDestroy(pair[1]));
  OK(ncclCommDestroy(comm));
}

/* A refused call fails its group, and no call of the group runs; the next group works. */
static void group(void) {
  char* device = allocate(0);
  ncclComm_t comm = alone();
  to[0] = -1, from[0] = 1;
  OK(ncclGroupStart());
  OK(reduce(from, to, comm));
  tell("inside", reduce(device, to, comm));
  tell("end", ncclGroupEnd());
  CHECK(to[0] == -1);
  OK(ncclGroupStart());
  OK(reduce(from, to, comm));
  OK(ncclGroupEnd());
  CHECK(to[0] == 1);
  OK(ncclCommDestroy(comm));
}

static void host(void) {
  ncclComm_t comm = alone();
  moves(comm);
  OK(ncclCommDestroy(comm));
}

/* A child of a process that has asked its driver: makes a communicator of its own and does not ask the driver. */
static void forked(void) {
  int state = 0;
  pid_t child;
  ncclComm_t comm = alone();
  moves(comm);
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    host();
    _exit(0);
  }
  printf("child %d parent %d\n", (int)child, (int)getpid());
  CHECK(waitpid(child, &state, 0) == child && state == 0);
  moves(comm);
  OK(ncclCommDestroy(comm));
}

static void init(void) {
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  OK(ncclGetUniqueId(&id));
  tell("init", ncclCommInitRank(&comm, 1, id, 0));
  tell("all", ncclCommInitAll(&comm, 1, NULL));
}

static void unknown(void) {
  ncclComm_t comm = alone();
  tell("unknown", reduce(from, to, comm));
  OK(ncclCommDestroy(comm));
}

/* Whether there is a driver, real or not. */
static void present(void) {
  int (*start)(unsigned);
  driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  printf("library %d\n", driver != NULL);
  printf("starts %d\n", driver && find("cuInit", &start) && start(0) == 0);
}

int main(int count, char** arguments) {
  const char* part = count > 1 ? arguments[1] : "";
  alarm(100);
  if (strcmp(part, "pointers") == 0) pointers();
  else if (strcmp(part, "group") == 0) group();
  else if (strcmp(part, "host") == 0) host();
  else if (strcmp(part, "fork") == 0) forked();
  else if (strcmp(part, "init") == 0) init();
  else if (strcmp(part, "unknown") == 0) unknown();
  else if (strcmp(part, "present") == 0) present();
  else return 2;
  printf("end\n");
  return 0;
}
