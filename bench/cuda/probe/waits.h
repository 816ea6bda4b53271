/*
 * Which calls of the driver wait while a kernel spins in a stream that has nothing to do with them.
 *
 * Each call is made three times: twice with nothing under way (the second time is printed), and once beside the
 * kernel, which is stopped after STOPPED_US. A call that took as long has waited.
 */
#ifndef PROBE_WAITS_H
#define PROBE_WAITS_H

#include "host.h"

static const double STOPPED_US = 300e3;

static const char TEXT[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }\n";

struct Call {
  const char *name;
  std::function<void()> before, made, after;
  /* Only the first time is of interest. */
  bool is_once = false;
};

static double timed_us(const Call &call) {
  if (call.before) call.before();
  OK(cudaDeviceSynchronize());
  double begun = now_us();
  call.made();
  double took = now_us() - begun;
  OK(cudaDeviceSynchronize());
  if (call.after) call.after();
  return took;
}

static double timed_beside_us(const Call &call, Spinner &spinner) {
  if (call.before) call.before();
  OK(cudaDeviceSynchronize());
  spinner.start();
  bool is_made = false;
  std::thread stopping([&] {
    double begun = now_us();
    while (!__atomic_load_n(&is_made, __ATOMIC_ACQUIRE) && now_us() - begun < STOPPED_US) usleep(200);
    __atomic_store_n(spinner.stop, 1, __ATOMIC_RELEASE);
  });
  double begun = now_us();
  call.made();
  double took = now_us() - begun;
  __atomic_store_n(&is_made, true, __ATOMIC_RELEASE);
  stopping.join();
  spinner.end();
  OK(cudaDeviceSynchronize());
  if (call.after) call.after();
  return took;
}

/* What the calls work on. */
static struct {
  CUmodule module;
  CUfunction function;
  CUdeviceptr memory;
  void *host;
  CUevent event;
  CUstream stream;
  CUgraph graph;
  CUgraphExec instance;
  CUipcMemHandle handle;
} it;

static std::vector<char> read_file(const std::string &name) {
  std::vector<char> text;
  FILE *file = fopen(name.c_str(), "rb");
  for (int each; file && (each = fgetc(file)) != EOF;) text.push_back((char)each);
  if (file) fclose(file);
  text.push_back(0);
  return text;
}

/* Kernels that nothing has launched yet: the runtime loads each when it is first launched. */
template <int NUMBER>
static __global__ void fresh(u64 *out) {
  if (out) *out = NUMBER;
}

static void launch_fresh() {
  static int next = 0;
  void (*const all[])(u64 *) = {fresh<0>, fresh<1>, fresh<2>, fresh<3>};
  launch(false, all[next++ % 4], 1, 32, 0, (cudaStream_t)it.stream, (u64 *)NULL);
}

/* Needs more local memory than the context has, the first time. */
static void launch_deep() { launch(false, deep, 1, 32, 0, (cudaStream_t)it.stream, (u64 *)NULL, (u32)3); }

static void load_text() { OK(driver.ModuleLoadData(&it.module, TEXT)); }
static void get_function() { OK(driver.ModuleGetFunction(&it.function, it.module, "empty")); }
static void unload() { OK(driver.ModuleUnload(it.module)); }
static void load_and_get() { load_text(), get_function(); }
static void launch_it() { OK(driver.LaunchKernel(it.function, 1, 1, 1, 32, 1, 1, 0, it.stream, NULL, NULL)); }
static void load_and_launch() { load_and_get(), launch_it(); }
static void allocate() { OK(driver.MemAlloc(&it.memory, 2 << 20)); }
static void allocate_much() { OK(driver.MemAlloc(&it.memory, 256 << 20)); }
static void release() { OK(driver.MemFree(it.memory)); }
static void allocate_async() { OK(driver.MemAllocAsync(&it.memory, 2 << 20, it.stream)); }
static void release_async() { OK(driver.MemFreeAsync(it.memory, it.stream)); }
static void allocate_host() { OK(driver.MemHostAlloc(&it.host, 1 << 20, CU_MEMHOSTALLOC_DEVICEMAP)); }
static void release_host() { OK(driver.MemFreeHost(it.host)); }
static void make_host() {
  it.host = aligned_alloc(4096, 1 << 20);
  memset(it.host, 0, 1 << 20);
}
static void free_host() { free(it.host); }
static void register_host() { OK(driver.MemHostRegister(it.host, 1 << 20, CU_MEMHOSTREGISTER_DEVICEMAP)); }
static void unregister_host() { OK(driver.MemHostUnregister(it.host)); }
static void unregister_and_free() { unregister_host(), free_host(); }
static void make_and_register() { make_host(), register_host(); }
static void create_event() { OK(driver.EventCreate(&it.event, CU_EVENT_DISABLE_TIMING)); }
static void destroy_event() { OK(driver.EventDestroy(it.event)); }
static void create_stream() { OK(driver.StreamCreate(&it.stream, CU_STREAM_NON_BLOCKING)); }
static void destroy_stream() { OK(driver.StreamDestroy(it.stream)); }
static void get_handle() { OK(driver.IpcGetMemHandle(&it.handle, it.memory)); }
static void copy_in() {
  static char bytes[65536];
  OK(driver.MemcpyHtoD(it.memory, bytes, sizeof bytes));
}
static void set_bytes() { OK(driver.MemsetD8(it.memory, 0, 65536)); }
static void record_and_query() {
  OK(driver.EventRecord(it.event, it.stream));
  driver.EventQuery(it.event);
}
static void get_info() {
  size_t left, all;
  OK(driver.MemGetInfo(&left, &all));
}
static void capture() {
  load_and_get();
  OK(driver.StreamBeginCapture(it.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  launch_it();
  OK(driver.StreamEndCapture(it.stream, &it.graph));
}
static void instantiate() { OK(driver.GraphInstantiate(&it.instance, it.graph, 0)); }
static void launch_graph() { OK(driver.GraphLaunch(it.instance, it.stream)); }
static void capture_and_instantiate() { capture(), instantiate(); }
static void destroy_graph() {
  OK(driver.GraphExecDestroy(it.instance)), OK(driver.GraphDestroy(it.graph));
  unload();
}

static std::vector<Call> all_calls() {
  return {
      {"cuModuleLoadData of text", NULL, load_text, unload},
      {"cuModuleGetFunction", load_text, get_function, unload},
      {"cuLaunchKernel, the first of a function", load_and_get, launch_it, unload},
      {"cuLaunchKernel, a later one", load_and_launch, launch_it, unload},
      {"cudaLaunchKernel, the first of a function", NULL, launch_fresh, NULL},
      {"cuModuleUnload", load_and_launch, unload, NULL},
      {"cuMemAlloc of 2 MiB", NULL, allocate, release},
      {"cuMemAlloc of 256 MiB", NULL, allocate_much, release},
      {"cuMemFree", allocate, release, NULL},
      {"cuMemAllocAsync", NULL, allocate_async, release_async},
      {"cuMemFreeAsync", allocate_async, release_async, NULL},
      {"cuMemHostAlloc", NULL, allocate_host, release_host},
      {"cuMemFreeHost", allocate_host, release_host, NULL},
      {"cuMemHostRegister", make_host, register_host, unregister_and_free},
      {"cuMemHostUnregister", make_and_register, unregister_host, free_host},
      {"cuEventCreate", NULL, create_event, destroy_event},
      {"cuEventDestroy", create_event, destroy_event, NULL},
      {"cuEventRecord and cuEventQuery", create_event, record_and_query, destroy_event},
      {"cuIpcGetMemHandle", allocate, get_handle, release},
      {"cuMemcpyHtoD of 64 KiB", allocate, copy_in, release},
      {"cuMemsetD8 of 64 KiB", allocate, set_bytes, release},
      {"cuMemGetInfo", NULL, get_info, NULL},
      {"a launch that needs more local memory", NULL, launch_deep, NULL, true},
  };
}

/* `image`: a cubin for this device, or nothing. */
static void waits(const std::vector<char> &image) {
  Spinner spinner;
  CUstream kept;
  spinner.start(), spinner.end();
  create_stream();
  kept = it.stream;
  auto ask = [&](const Call &call) {
    double without_us = 0, beside_us;
    for (int round = 0; round < 2 && !call.is_once; round++) without_us = timed_us(call);
    beside_us = timed_beside_us(call, spinner);
    say("waits", beside_us > 0.8 * STOPPED_US ? "waits" : "goes on",
        "\"call\":\"%s\",\"alone_us\":%.1f,\"beside_us\":%.1f", call.name, without_us, beside_us);
  };
  it.stream = kept;
  for (const Call &call : all_calls()) ask(call);
  /* These put another stream in the place of the one that is used above. */
  ask({"cuStreamCreate", NULL, create_stream, destroy_stream});
  ask({"cuStreamDestroy", create_stream, destroy_stream, NULL});
  it.stream = kept;
  ask({"cuGraphInstantiate", capture, instantiate, destroy_graph});
  ask({"cuGraphLaunch", capture_and_instantiate, launch_graph, destroy_graph});
  if (image.size() > 1)
    ask({"cuModuleLoadData of a cubin of the library", NULL,
         [&image] { OK(driver.ModuleLoadData(&it.module, image.data())); }, unload});
}

#endif
