// Kernels of the tests of the stand-in driver. `kernels.ptx` is made of this file:
//   nvcc -std=c++17 -O3 -arch=sm_80 -ptx -fmad=false kernels.cu

using u64 = unsigned long long;

__device__ u64 counted[2] = {40, 2};

__device__ static u64 look(const u64* word) {
  u64 value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ static void post(u64* word, u64 value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

// out[i] += in[i] for count floats.
extern "C" __global__ void add(float* out, const float* in, u64 count) {
  for (u64 at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x) out[at] += in[at];
}

// Waits for a word to reach a value, then posts another.
extern "C" __global__ void wait_and_post(const u64* word, u64 value, u64* other, u64 posted) {
  if (threadIdx.x) return;
  while (look(word) < value) {
  }
  post(other, posted);
}

// Every block waits for all blocks.
extern "C" __global__ void meet(u64* counter, u64 blocks) {
  if (threadIdx.x) return;
  atomicAdd(counter, 1);
  while (look(counter) < blocks) {
  }
}

// Counts its block and ends.
extern "C" __global__ void count_blocks(u64* counter, u64) {
  if (threadIdx.x == 0) atomicAdd(counter, 1);
}

// Plays `rounds` of ping-pong: raises `theirs` to each odd (or even) number when `mine` has reached the one before.
extern "C" __global__ void ping_pong(const u64* mine, u64* theirs, u64 first, u64 rounds) {
  for (u64 at = 0; at < rounds; at++) {
    while (look(mine) < 2 * at + first) {
    }
    post(theirs, 2 * at + first + 1);
  }
}

// Writes at any address.
extern "C" __global__ void poke(unsigned* place, u64 value) { *place = (unsigned)value; }

// Reads the variables of the module.
extern "C" __global__ void sum_counted(u64* out, u64 more) { *out = counted[0] + counted[1] + more; }

extern __shared__ u64 area[];

// Turns each block's part around, through dynamic shared memory.
extern "C" __global__ void reverse(u64* out, const u64* in) {
  unsigned at = threadIdx.x, base = blockIdx.x * blockDim.x;
  area[at] = in[base + at];
  __syncthreads();
  out[base + at] = area[blockDim.x - 1 - at];
}
