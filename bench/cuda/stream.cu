/*
 * What a device can do at most where ranks share it: a kernel that only streams, with a given number of thread
 * blocks. The limit beside which collectives are printed; it takes part in nothing else.
 *
 *   nvcc -O3 -arch=native stream.cu -o stream
 *   stream RANKS BYTES BLOCKS     each a list: 2,4 65536,268435456 1,2,4,8,0 (0: as many as pay)
 *
 * For each it moves what an all-reduce of BYTES among RANKS ranks must move, RANKS * BYTES read and as many written:
 *   copy  every rank's input to its output, which no folding slows down
 *   fold  the sum of all inputs to every output: what a fused all-reduce of floats is
 * Each runs with 256, 512 and 1024 threads a block; the fastest counts. Prints one JSON object a line with
 * medians between two events; checks the sums once. Absent: waiting, counters, ranks.
 */
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

enum { RANKS_MAX = 8, UNROLL = 4, SAMPLES = 15 };

struct Buffers {
  const float4* in[RANKS_MAX];
  float4* out[RANKS_MAX];
};

/* Vectors [0, count) of each rank; every thread has UNROLL loads under way. */
template <int RANKS>
__global__ void __launch_bounds__(1024) copy(Buffers all, size_t count) {
  size_t step = (size_t)gridDim.x * blockDim.x;
  for (int rank = 0; rank < RANKS; rank++) {
    const float4* in = all.in[rank];
    float4* out = all.out[rank];
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at + (UNROLL - 1) * step < count; at += UNROLL * step) {
      float4 held[UNROLL];
#pragma unroll
      for (int each = 0; each < UNROLL; each++) held[each] = in[at + each * step];
#pragma unroll
      for (int each = 0; each < UNROLL; each++) out[at + each * step] = held[each];
    }
    for (; at < count; at += step) out[at] = in[at];
  }
}

__device__ inline float4 sum(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

template <int RANKS>
__global__ void __launch_bounds__(1024) fold(Buffers all, size_t count) {
  size_t step = (size_t)gridDim.x * blockDim.x;
  for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
    float4 held[RANKS];
#pragma unroll
    for (int rank = 0; rank < RANKS; rank++) held[rank] = all.in[rank][at];
    float4 result = held[0];
#pragma unroll
    for (int rank = 1; rank < RANKS; rank++) result = sum(result, held[rank]);
#pragma unroll
    for (int rank = 0; rank < RANKS; rank++) all.out[rank][at] = result;
  }
}

static void ok(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result));
  exit(1);
}

static const void* kernel_of(int is_fold, int ranks) {
  switch (ranks) {
    case 1: return is_fold ? (const void*)fold<1> : (const void*)copy<1>;
    case 2: return is_fold ? (const void*)fold<2> : (const void*)copy<2>;
    case 4: return is_fold ? (const void*)fold<4> : (const void*)copy<4>;
    case 8: return is_fold ? (const void*)fold<8> : (const void*)copy<8>;
    default: fprintf(stderr, "ranks are 1, 2, 4 or 8\n"); exit(2);
  }
}

/* The median of one launch, in µs. */
static double timed(const void* kernel, Buffers buffers, size_t count, int blocks, int threads) {
  void* arguments[] = {&buffers, &count};
  cudaEvent_t begun, ended;
  std::vector<float> all;
  ok(cudaEventCreate(&begun), "cudaEventCreate"), ok(cudaEventCreate(&ended), "cudaEventCreate");
  int launches = 1;
  for (int round = 0; round < SAMPLES + 2; round++) {
    ok(cudaEventRecord(begun), "cudaEventRecord");
    for (int each = 0; each < launches; each++)
      ok(cudaLaunchKernel(kernel, dim3((unsigned)blocks), dim3((unsigned)threads), arguments, 0, 0),
         "cudaLaunchKernel");
    ok(cudaEventRecord(ended), "cudaEventRecord");
    ok(cudaEventSynchronize(ended), "cudaEventSynchronize");
    float elapsed_ms = 0;
    ok(cudaEventElapsedTime(&elapsed_ms, begun, ended), "cudaEventElapsedTime");
    float us = elapsed_ms * 1000 / (float)launches;
    /* Some milliseconds a sample. */
    if (round < 2) launches = std::min(100, 1 + (int)(2000 / (us + 0.1f)));
    else all.push_back(us);
  }
  std::sort(all.begin(), all.end());
  cudaEventDestroy(begun), cudaEventDestroy(ended);
  return all[all.size() / 2];
}

static std::vector<size_t> numbers(const char* list) {
  std::vector<size_t> read;
  char* end;
  for (const char* at = list;; at = end + 1) {
    read.push_back(strtoull(at, &end, 10));
    if (*end != ',') return read;
  }
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s RANKS BYTES BLOCKS\n", argv[0]);
    return 2;
  }
  cudaDeviceProp device;
  ok(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::vector<size_t> all_ranks = numbers(argv[1]), all_bytes = numbers(argv[2]), all_blocks = numbers(argv[3]);
  size_t most = *std::max_element(all_bytes.begin(), all_bytes.end()) + sizeof(float4);
  size_t ranks_most = *std::max_element(all_ranks.begin(), all_ranks.end());
  Buffers buffers;
  memset(&buffers, 0, sizeof buffers);
  std::vector<float> host(1 << 16);
  for (size_t rank = 0; rank < ranks_most && rank < RANKS_MAX; rank++) {
    void *in, *out;
    ok(cudaMalloc(&in, most), "cudaMalloc"), ok(cudaMalloc(&out, most), "cudaMalloc");
    for (size_t at = 0; at < host.size(); at++) host[at] = (float)((at * 2654435761u + rank * 40503u) % 1000);
    for (size_t at = 0; at < most; at += host.size() * sizeof(float))
      ok(cudaMemcpy((char*)in + at, host.data(), std::min(most - at, host.size() * sizeof(float)),
                    cudaMemcpyHostToDevice),
         "cudaMemcpy");
    buffers.in[rank] = (const float4*)in, buffers.out[rank] = (float4*)out;
  }
  for (size_t ranks : all_ranks)
    for (size_t bytes : all_bytes)
      for (size_t blocks : all_blocks)
        for (int is_fold = 0; is_fold < 2; is_fold++) {
          double best_us = 0;
          int best_threads = 0, best_blocks = 0;
          for (int threads = 256; threads <= 1024; threads *= 2)
            for (int waves = 1; waves <= (blocks ? 1 : 8); waves *= 2) {
              int grid = blocks ? (int)blocks : device.multiProcessorCount * waves;
              double us = timed(kernel_of(is_fold, (int)ranks), buffers, bytes / sizeof(float4), grid, threads);
              if (best_us == 0 || us < best_us) best_us = us, best_threads = threads, best_blocks = grid;
            }
          printf(
              "{\"what\":\"stream\",\"kernel\":\"%s\",\"ranks\":%zu,\"bytes\":%zu,\"blocks\":%zu,\"grid\":%d,"
              "\"threads\":%d,"
              "\"event_us\":%.3f,\"moved_gb_s\":%.1f}\n",
              is_fold ? "fold" : "copy", ranks, bytes, blocks, best_blocks, best_threads, best_us,
              2.0 * (double)(ranks * bytes) / best_us / 1e3);
          fflush(stdout);
          if (!is_fold) continue;
          size_t seen = std::min(host.size(), bytes / sizeof(float4) * 4);
          for (size_t rank = 0; rank < ranks; rank++) {
            ok(cudaMemcpy(host.data(), buffers.out[rank], seen * sizeof(float), cudaMemcpyDeviceToHost),
               "cudaMemcpy");
            for (size_t at = 0; at < seen; at++) {
              float want = 0;
              for (size_t other = 0; other < ranks; other++)
                want += (float)((at * 2654435761u + other * 40503u) % 1000);
              if (host[at] == want) continue;
              fprintf(stderr, "wrong sum at %zu of rank %zu: %g instead of %g\n", at, rank, host[at], want);
              return 1;
            }
          }
        }
  return 0;
}
