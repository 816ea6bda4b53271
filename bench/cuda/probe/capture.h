/*
 * What another thread may call while a stream is captured: each call in each mode of capture, in each mode of the
 * calling thread.
 */
#ifndef PROBE_CAPTURE_H
#define PROBE_CAPTURE_H

#include "waits.h"

struct Asked {
  const char *name;
  std::function<CUresult()> made;
};

static const char *mode_name(CUstreamCaptureMode mode) {
  return mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? "global"
         : mode == CU_STREAM_CAPTURE_MODE_RELAXED ? "relaxed"
                                                  : "thread-local";
}

/* One call beside a capture, by another thread or by the one that captures. */
static void beside_capture(const Asked &asked, CUstream stream, CUstreamCaptureMode mode, CUstreamCaptureMode calling,
                           bool is_same_thread) {
  CUresult called = CUDA_SUCCESS;
  CUgraph graph = NULL;
  auto call = [&] {
    CUstreamCaptureMode swapped = calling;
    OK(driver.CtxSetCurrent(context));
    OK(driver.ThreadExchangeStreamCaptureMode(&swapped));
    called = asked.made();
    OK(driver.ThreadExchangeStreamCaptureMode(&swapped));
  };
  OK(driver.StreamBeginCapture(stream, mode));
  launch(false, nothing, 1, 32, 0, (cudaStream_t)stream);
  if (is_same_thread) call();
  else std::thread(call).join();
  CUresult end = driver.StreamEndCapture(stream, &graph);
  if (graph) driver.GraphDestroy(graph);
  cudaGetLastError();
  say("capture", end != CUDA_SUCCESS ? "invalidates" : called != CUDA_SUCCESS ? "refused" : "fine",
      "\"call\":\"%s\",\"capture\":\"%s\",\"calling thread\":\"%s\",\"thread\":\"%s\",\"call gave\":\"%s\","
      "\"capture gave\":\"%s\"",
      asked.name, mode_name(mode), mode_name(calling), is_same_thread ? "the capturing" : "another",
      name_of(called).c_str(), name_of(end).c_str());
}

static void captures() {
  CUstream stream, other;
  CUevent event;
  OK(driver.StreamCreate(&stream, CU_STREAM_NON_BLOCKING)), OK(driver.StreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(driver.EventCreate(&event, CU_EVENT_DISABLE_TIMING));
  launch(false, nothing, 1, 32, 0, (cudaStream_t)other);
  OK(driver.EventRecord(event, other));
  OK(driver.StreamSynchronize(other));
  auto allocated = [] {
    CUdeviceptr memory;
    CUresult result = driver.MemAlloc(&memory, 2 << 20);
    if (result == CUDA_SUCCESS) driver.MemFree(memory);
    return result;
  };
  auto pinned = [] {
    void *memory;
    CUresult result = driver.MemHostAlloc(&memory, 4096, CU_MEMHOSTALLOC_DEVICEMAP);
    if (result == CUDA_SUCCESS) driver.MemFreeHost(memory);
    return result;
  };
  auto loaded = [] {
    CUmodule module;
    CUresult result = driver.ModuleLoadData(&module, TEXT);
    if (result == CUDA_SUCCESS) driver.ModuleUnload(module);
    return result;
  };
  const std::vector<Asked> all = {
      {"cuEventQuery", [&] { return driver.EventQuery(event); }},
      {"cuStreamQuery of another stream", [&] { return driver.StreamQuery(other); }},
      {"cuEventRecord in another stream", [&] { return driver.EventRecord(event, other); }},
      {"cuMemAlloc", allocated},
      {"cuMemHostAlloc", pinned},
      {"cuModuleLoadData", loaded},
  };
  for (CUstreamCaptureMode mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED})
    for (CUstreamCaptureMode calling : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED})
      for (const Asked &asked : all) beside_capture(asked, stream, mode, calling, false);
  for (CUstreamCaptureMode calling : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED})
    for (const Asked &asked : all) beside_capture(asked, stream, CU_STREAM_CAPTURE_MODE_GLOBAL, calling, true);
}

#endif
