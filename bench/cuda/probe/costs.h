/*
 * What the device has, and what fences, launch records, launches and calls of the driver cost.
 */
#ifndef PROBE_COSTS_H
#define PROBE_COSTS_H

#include "host.h"

/* What the device has. */
static void attributes() {
  const struct {
    const char *name;
    int which;
  } all[] = {
      {"multiprocessors", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
      {"64-bit stream memory operations", CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS},
      {"cooperative launches", CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH},
      {"threads of a multiprocessor", CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
      {"shared memory of a multiprocessor", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR},
      {"shared memory of a block, opted in", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
      {"registers of a multiprocessor", CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR},
      {"bytes of the L2 cache", CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
      {"copy engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
      {"compute mode", CU_DEVICE_ATTRIBUTE_COMPUTE_MODE},
      {"memory synchronization domains", CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT},
      {"memory handles as descriptors", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
      {"memory pools", CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
      {"multicast", CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED},
      {"host registration", CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED},
      {"clock in kHz", CU_DEVICE_ATTRIBUTE_CLOCK_RATE},
  };
  for (const auto &each : all) say("attribute", std::to_string(attribute((CUdevice_attribute)each.which)).c_str(),
                                   "\"attribute\":\"%s\"", each.name);
  int blocks = 0, registers = 0;
  CUfunction function = function_of((const void *)stream_bytes);
  OK(driver.OccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 512, 0));
  OK(driver.FuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  say("occupancy", std::to_string(blocks).c_str(),
      "\"of\":\"blocks of a small kernel on a multiprocessor\",\"threads\":512,\"registers\":%d", registers);
  say("clock", "measured", "\"cycles in a us\":%.1f", cycles_per_us());
}

/* One kind of fence, in ns each; `place` is where what is stored before lies. */
static void one_fence(const char *name, int kind, u32 threads, const char *place, u64 *memory, u64 *word, bool is_busy) {
  static u64 *out = device_words(4);
  const u32 rounds = 2000;
  std::vector<double> all;
  cudaStream_t stream = new_stream();
  for (int sample = 0; sample < 7; sample++) {
    u64 read[2];
    launch(false, fence, 1, threads, 0, stream, kind, memory, word, rounds, out);
    OK(cudaMemcpyAsync(read, out, sizeof read, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    all.push_back((double)read[0] / rounds);
  }
  OK(cudaStreamDestroy(stream));
  say("fence", "measured", "\"of\":\"%s\",\"memory\":\"%s\",\"threads\":%u,\"beside a computation\":%d,\"ns\":%.1f", name,
      place, threads, is_busy, median(all));
}

static void fences_with(bool is_busy) {
  static u64 *of_device = device_words(4096), *of_host = pinned_words(4096);
  for (int pinned = 0; pinned < 2; pinned++) {
    u64 *memory = pinned ? of_host : of_device, *word = memory + 2048;
    const char *place = pinned ? "pinned" : "device";
    if (!pinned) {
      one_fence("an empty loop", EMPTY, 32, "none", memory, word, is_busy);
      one_fence("fence of the device alone", FENCE_DEVICE, 32, "none", memory, word, is_busy);
      one_fence("fence of the system alone", FENCE_SYSTEM, 32, "none", memory, word, is_busy);
    }
    one_fence("a store and a fence of the system", STORE_FENCE, 32, place, memory, word, is_busy);
    one_fence("8 KiB of stores, barriers, a fence of the system", STORES_FENCE, 512, place, memory, word, is_busy);
    one_fence("8 KiB of stores, barriers, a release", STORES_RELEASE, 512, place, memory, word, is_busy);
    one_fence("release", RELEASE, 32, place, memory, word, is_busy);
    one_fence("acquire", ACQUIRE, 32, place, memory, word, is_busy);
  }
}

/* Alone, and beside a kernel that writes memory all the time: a release of the same domain waits for its writes too. */
static void fences() {
  const u64 words = 8 << 20;
  u64 *memory = device_words(words);
  cudaStream_t beside = new_stream();
  fences_with(false);
  launch(false, stream_bytes, (u32)std::max(1, processors - 8), 512, 0, beside, memory, words, (u64)3000000000ull);
  fences_with(true);
  OK(cudaStreamSynchronize(beside));
}

/* Medians in ns of a kernel's copies of its record, launched one at a time. */
static void records() {
  double per_us = cycles_per_us();
  u64 *out = pinned_words(16), *of_device = device_words(RECORD_WORDS), *of_host = pinned_words(RECORD_WORDS);
  static Record record;
  cudaStream_t stream = new_stream();
  for (int place = 0; place < 3; place++) {
    std::vector<double> cycles, done;
    for (int sample = 0; sample < 220; sample++) {
      double begun = now_us();
      if (place == 0) launch(false, record_from_parameters, 1, 512, 0, stream, record, out);
      else
        launch(false, record_from_memory, 1, 512, 0, stream, (const Record *)(place == 1 ? of_device : of_host), out);
      OK(cudaStreamSynchronize(stream));
      if (sample >= 20) cycles.push_back((double)out[0]), done.push_back(now_us() - begun);
    }
    const char *const names[] = {"parameters", "device memory", "pinned memory"};
    say("record", "measured", "\"of 2 KiB from\":\"%s\",\"ns\":%.0f,\"launch to result us\":%.2f", names[place],
        median(cycles) / per_us * 1e3, median(done));
  }
  for (int pinned = 0; pinned < 2; pinned++) {
    u64 *words = pinned ? pinned_words(4096) : device_words(4096), links[4096] = {0};
    std::vector<double> cycles;
    for (int step = 0; step < 4; step++) links[step * 512] = (u64)(uintptr_t)(words + (step + 1) % 4 * 512);
    OK(cudaMemcpy(words, links, sizeof links, cudaMemcpyDefault));
    for (int sample = 0; sample < 220; sample++) {
      launch(false, chain, 1, 1, 0, stream, (const u64 *)words, (u32)4, out);
      OK(cudaStreamSynchronize(stream));
      if (sample >= 20) cycles.push_back((double)out[0]);
    }
    say("record", "measured", "\"four loads, each of the next one's address, from\":\"%s memory\",\"ns\":%.0f",
        pinned ? "pinned" : "device", median(cycles) / per_us * 1e3);
  }
}

/* Time of a call by the host, in µs: the median over batches that no queue is too short for. */
static double cost_us(const std::function<void()> &call, cudaStream_t stream, double *done_us = NULL) {
  std::vector<double> all, ended;
  for (int batch = 0; batch < 21; batch++) {
    double begun = now_us();
    for (int each = 0; each < 100; each++) call();
    double called = now_us();
    OK(cudaStreamSynchronize(stream));
    if (batch) all.push_back((called - begun) / 100), ended.push_back((now_us() - begun) / 100);
  }
  if (done_us) *done_us = median(ended);
  return median(all);
}

static void launches() {
  cudaStream_t stream = new_stream();
  CUfunction function = function_of((const void *)nothing);
  for (u32 blocks : {1u, 16u}) {
    CUlaunchAttribute domain = {};
    CUlaunchConfig shape = {};
    domain.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN;
    domain.value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
    shape.gridDimX = blocks, shape.gridDimY = shape.gridDimZ = shape.blockDimY = shape.blockDimZ = 1;
    shape.blockDimX = 512, shape.hStream = (CUstream)stream, shape.attrs = &domain, shape.numAttrs = 1;
    const struct {
      const char *name;
      std::function<void()> call;
    } all[] = {
        {"plain",
         [&] { OK(driver.LaunchKernel(function, blocks, 1, 1, 512, 1, 1, 0, (CUstream)stream, NULL, NULL)); }},
        {"cooperative",
         [&] { OK(driver.LaunchCooperativeKernel(function, blocks, 1, 1, 512, 1, 1, 0, (CUstream)stream, NULL)); }},
        {"plain, memory domain of its own", [&] { OK(driver.LaunchKernelEx(&shape, function, NULL, NULL)); }},
    };
    for (const auto &each : all) {
      double done_us, call_us = cost_us(each.call, stream, &done_us), alone_us;
      std::vector<double> alone;
      for (int sample = 0; sample < 200; sample++) {
        double begun = now_us();
        each.call();
        OK(cudaStreamSynchronize(stream));
        alone.push_back(now_us() - begun);
      }
      alone_us = median(alone);
      say("launch", "measured",
          "\"kind\":\"%s\",\"blocks\":%u,\"call_us\":%.2f,\"in a row us\":%.2f,\"call to empty stream us\":%.2f",
          each.name, blocks, call_us, done_us, alone_us);
    }
  }
}

/* What the calls around a launch cost the host. */
static void calls() {
  CUstream stream, other;
  CUevent event;
  CUdeviceptr memory;
  OK(driver.StreamCreate(&stream, CU_STREAM_NON_BLOCKING)), OK(driver.StreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(driver.EventCreate(&event, CU_EVENT_DISABLE_TIMING)), OK(driver.MemAlloc(&memory, 4096));
  OK(driver.EventRecord(event, stream));
  unsigned type, managed;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void *places[] = {&type, &managed};
  CUstreamCaptureStatus status;
  CUcontext popped;
  u64 value = 0;
  const struct {
    const char *name;
    std::function<void()> call;
  } all[] = {
      {"cuPointerGetAttribute", [&] { OK(driver.PointerGetAttribute(&type, which[0], memory)); }},
      {"cuPointerGetAttributes of two", [&] { OK(driver.PointerGetAttributes(2, which, places, memory)); }},
      {"cuCtxPushCurrent and cuCtxPopCurrent",
       [&] { OK(driver.CtxPushCurrent(context)), OK(driver.CtxPopCurrent(&popped)); }},
      {"cuStreamIsCapturing", [&] { OK(driver.StreamIsCapturing(stream, &status)); }},
      {"cuEventRecord", [&] { OK(driver.EventRecord(event, stream)); }},
      {"cuEventQuery", [&] { driver.EventQuery(event); }},
      {"cuStreamWaitEvent", [&] { OK(driver.StreamWaitEvent(other, event, 0)); }},
      {"cuStreamWriteValue64", [&] { OK(driver.StreamWriteValue64(stream, memory, ++value, 0)); }},
      {"cuStreamWaitValue64 of what is there",
       [&] { OK(driver.StreamWaitValue64(stream, memory, 0, CU_STREAM_WAIT_VALUE_GEQ)); }},
  };
  for (const auto &each : all)
    say("call", "measured", "\"call\":\"%s\",\"us\":%.3f", each.name, cost_us(each.call, (cudaStream_t)stream));
}

#endif
