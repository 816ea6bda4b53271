/*
 * What all experiments of probe.cu share on the host: the driver opened at run time, answers as lines of JSON that are
 * out at once, memory, launches, and a kernel that spins until a word stops it.
 *
 * Invariant: a call that must succeed and does not ends the process, with an answer that says which. Absent: experiments.
 */
#ifndef PROBE_HOST_H
#define PROBE_HOST_H

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels.cuh"

/* No kernel spins longer. A handshake that does not come about costs WAIT_NS. */
static const u64 WATCHDOG_NS = 5000000000ull, WAIT_NS = 400000000ull;

/* The name of the experiment that this process runs, and whether it found anything wrong. */
static const char *running = "";
static bool is_wrong = false;

/* Prints {"what":…,"answer":…,MORE}. */
static void say(const char *what, const char *answer, const char *format = "", ...) {
  char more[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(more, sizeof more, format, arguments);
  va_end(arguments);
  is_wrong |= !strcmp(answer, "wrong") || !strcmp(answer, "failed") || !strcmp(answer, "needs local memory");
  printf("{\"what\":\"%s\",\"answer\":\"%s\"%s%s}\n", what, answer, *more ? "," : "", more);
  fflush(stdout);
}

#define DRIVER_CALLS(X)                                                                                               \
  X(GetErrorName) X(ModuleLoadData) X(ModuleUnload) X(ModuleGetFunction) X(FuncGetAttribute) X(MemAlloc) X(MemFree)   \
  X(MemHostAlloc) X(MemFreeHost) X(MemHostRegister) X(MemHostUnregister) X(MemGetInfo) X(MemcpyHtoD) X(MemsetD8)      \
  X(EventCreate) X(EventDestroy) X(EventQuery) X(EventRecord) X(EventSynchronize) X(StreamCreate) X(StreamDestroy)    \
  X(StreamQuery) X(StreamWaitEvent) X(StreamSynchronize) X(StreamBeginCapture) X(StreamEndCapture)                    \
  X(StreamIsCapturing) X(StreamWriteValue64) X(StreamWaitValue64) X(ThreadExchangeStreamCaptureMode) X(GraphDestroy)  \
  X(MemAllocAsync) X(MemFreeAsync) X(IpcGetMemHandle) X(PointerGetAttribute) X(PointerGetAttributes)                  \
  X(CtxGetCurrent) X(CtxSetCurrent) X(CtxPushCurrent) X(CtxPopCurrent) X(DeviceGetAttribute)        \
  X(LaunchKernel) X(LaunchKernelEx) X(LaunchCooperativeKernel) X(OccupancyMaxActiveBlocksPerMultiprocessor)           \
  X(ModuleGetFunctionCount) X(ModuleEnumerateFunctions) X(GraphInstantiate) X(GraphLaunch) X(GraphExecDestroy)

/* cuMemAlloc is a macro for cuMemAlloc_v2, which is what the driver's library has. */
#define PROBE_TEXT_OF(name) #name
#define PROBE_TEXT(name) PROBE_TEXT_OF(name)

static struct {
#define PROBE_FIELD(name) decltype(&cu##name) name;
  DRIVER_CALLS(PROBE_FIELD)
} driver;

static std::string name_of(CUresult result) {
  const char *name = NULL;
  if (driver.GetErrorName) driver.GetErrorName(result, &name);
  return name ? name : "error " + std::to_string((int)result);
}

static void ended(std::string call, const std::string &why) {
  /* The text of a call may have quotes of its own. */
  std::replace(call.begin(), call.end(), '"', '\'');
  say(running, "failed", "\"call\":\"%s\",\"error\":\"%s\"", call.c_str(), why.c_str());
  _exit(1);
}

static void ok(CUresult result, const char *call) {
  if (result != CUDA_SUCCESS) ended(call, name_of(result));
}

static void ok(cudaError_t result, const char *call) {
  if (result != cudaSuccess) ended(call, cudaGetErrorName(result));
}

#define OK(call) ok(call, #call)

static CUdevice device;
static CUcontext context;
static int processors;

static int attribute(CUdevice_attribute which) {
  int value = -1;
  return driver.DeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : -1;
}

/* The driver, the first device, and its primary context on this thread. */
static void open_device() {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) ended("dlopen", "there is no libcuda.so.1");
#define PROBE_LOOK(name) driver.name = (decltype(driver.name))dlsym(library, PROBE_TEXT(cu##name));
  DRIVER_CALLS(PROBE_LOOK)
  OK(cudaSetDevice(0));
  OK(cudaFree(0));
  OK(driver.CtxGetCurrent(&context));
  device = 0;
  processors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
}

static double now_us() {
  return (double)std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
             .count() /
         1e3;
}

static double median(std::vector<double> all) {
  if (all.empty()) return 0;
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

/* Words of the device, zero, or of pinned memory that the device addresses too. Never freed: a process is short. */
static u64 *device_words(size_t count) {
  void *made = NULL;
  OK(cudaMalloc(&made, count * sizeof(u64)));
  OK(cudaMemset(made, 0, count * sizeof(u64)));
  return (u64 *)made;
}

static u64 *pinned_words(size_t count) {
  void *made = NULL;
  OK(cudaHostAlloc(&made, count * sizeof(u64), cudaHostAllocMapped | cudaHostAllocPortable));
  memset(made, 0, count * sizeof(u64));
  return (u64 *)made;
}

static u64 read_word(const u64 *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

static cudaStream_t new_stream() {
  cudaStream_t stream;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

/* Launches a kernel, plainly or cooperatively. */
template <class... Types, class... Given>
static void launch(bool is_cooperative, void (*kernel)(Types...), u32 blocks, u32 threads, size_t shared_bytes,
                   cudaStream_t stream, Given... given) {
  std::tuple<std::remove_const_t<Types>...> values(given...);
  std::vector<void *> at;
  std::apply([&](auto &...each) { (at.push_back((void *)&each), ...); }, values);
  if (is_cooperative)
    OK(cudaLaunchCooperativeKernel((const void *)kernel, dim3(blocks), dim3(threads), at.data(), shared_bytes, stream));
  else OK(cudaLaunchKernel((const void *)kernel, dim3(blocks), dim3(threads), at.data(), shared_bytes, stream));
}

static CUfunction function_of(const void *kernel) {
  cudaFunction_t function = NULL;
  OK(cudaGetFuncBySymbol(&function, kernel));
  return (CUfunction)function;
}

/* A kernel that spins in a stream of its own until stopped; made once, started again and again. */
struct Spinner {
  u64 *stop = pinned_words(16), *started = pinned_words(16);
  cudaStream_t stream = new_stream();

  void start() {
    __atomic_store_n(stop, 0, __ATOMIC_RELEASE), __atomic_store_n(started, 0, __ATOMIC_RELEASE);
    launch(false, spin, 1, 1, 0, stream, (const u64 *)stop, started, WATCHDOG_NS);
    double begun = now_us();
    while (!read_word(started))
      if (now_us() - begun > 4e6) ended("spin", "the kernel did not start");
  }
  void end() {
    __atomic_store_n(stop, 1, __ATOMIC_RELEASE);
    OK(cudaStreamSynchronize(stream));
  }
};

/* Cycles of a multiprocessor in a µs, while it works. */
static double cycles_per_us() {
  u64 *out = device_words(2), read[2];
  launch(false, clocks, 1, 1, 0, (cudaStream_t)0, out, (u64)20000000);
  OK(cudaMemcpy(read, out, sizeof read, cudaMemcpyDeviceToHost));
  return (double)read[1] / (double)read[0] * 1e3;
}

#endif
