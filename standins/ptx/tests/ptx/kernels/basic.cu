// Kernels of the PTX stand-in's own tests: arithmetic, vectors, shared memory, calls, tables.
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64; typedef long long i64;
struct Params { u64 address; u32 count; u32 small[6]; float factor; };
__constant__ u32 table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
__device__ u32 tickets;
extern __shared__ __align__(16) u8 dynamic_memory[];
extern "C" __global__ void copy16(uint4* to, const uint4* from, u64 count) {
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += 4 * stride) {
    uint4 v[4];
#pragma unroll
    for (int k = 0; k < 4; k++) if (i + k * stride < count) v[k] = from[i + k * stride];
#pragma unroll
    for (int k = 0; k < 4; k++) if (i + k * stride < count) to[i + k * stride] = v[k];
  }
}
extern "C" __global__ void fold_f32(float* to, const float* a, const float* b, u64 count) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) to[i] = a[i] + b[i];
}
extern "C" __global__ void fold_f64(double* to, const double* a, const double* b, u64 count, int op) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x)
    to[i] = op == 0 ? a[i] + b[i] : op == 1 ? a[i] * b[i] : op == 2 ? fmax(a[i], b[i]) : a[i] / b[i];
}
extern "C" __global__ void fold_i64(i64* to, const i64* a, const i64* b, u64 count, int op, u32 divisor) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
    i64 x = a[i], y = b[i];
    to[i] = op == 0 ? x + y : op == 1 ? x * y : op == 2 ? (x > y ? x : y) : op == 3 ? (x < y ? x : y) : op == 4 ? x / (i64)divisor : x % (y | 1);
  }
}
extern "C" __global__ void fold_i8(signed char* to, const signed char* a, const signed char* b, u64 count, int divisor) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) to[i] = (signed char)((a[i] + b[i]) / divisor);
}
__device__ __noinline__ u32 mix(u32 x, u32 y) { x ^= y * 0x9e3779b9u; x = (x << 13) | (x >> 19); return x * 5 + __popc(y) + __clz(x) + __brev(y); }
extern "C" __global__ void mixing(u32* to, Params p) {
  u32 i = threadIdx.x + blockIdx.x * blockDim.x;
  u32 x = mix(i, p.small[i % 6]) ^ table[i & 7];
  switch (i % 5) { case 0: x += 7; break; case 1: x *= 3; break; case 2: x = __byte_perm(x, i, 0x1032); break; case 3: x = __funnelshift_l(x, i, i); break; default: x ^= 1; }
  if (i < p.count) to[i] = x + (u32)(int)(p.factor * (float)i);
}
extern "C" __global__ void reverse(u32* data) {
  __shared__ u32 s[64];
  u32* d = (u32*)dynamic_memory;
  s[threadIdx.x] = data[threadIdx.x]; d[threadIdx.x] = data[threadIdx.x] * 2;
  __syncthreads();
  data[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x] + d[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void lanes(u32* out) {
  u32 v = threadIdx.x;
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  u32 b = __ballot_sync(~0u, threadIdx.x & 1);
  u32 any = __any_sync(~0u, threadIdx.x == 40), all = __all_sync(~0u, threadIdx.x < 64);
  u32 up = __shfl_up_sync(~0u, threadIdx.x, 3), down = __shfl_down_sync(~0u, threadIdx.x, 3), idx = __shfl_sync(~0u, threadIdx.x, 5);
  u32 r = __reduce_add_sync(~0u, threadIdx.x);
  __syncwarp();
  u32* o = out + threadIdx.x * 8;
  o[0] = v; o[1] = b; o[2] = any; o[3] = all; o[4] = up; o[5] = down; o[6] = idx; o[7] = r;
}
extern "C" __global__ void last(u32* out, u32* left) {
  __shared__ u32 mine;
  __syncthreads();
  if (threadIdx.x == 0) { __threadfence(); mine = atomicAdd(left, 1); atomicMax(&tickets, mine); }
  __syncthreads();
  if (mine == gridDim.x - 1 && threadIdx.x == 0) { out[0] = mine; *left = 0; out[1] = atomicCAS(left + 1, 5u, 9u); }
}
extern "C" __global__ void locals(u32* out, u32 n) {
  u32 a[16];
  for (u32 i = 0; i < 16; i++) a[i] = i * i;
  for (u32 i = 0; i < n; i++) a[(i * 7) & 15] += a[i & 15];
  out[threadIdx.x] = a[threadIdx.x & 15];
}
extern "C" __global__ void clocks(u64* out) { out[0] = clock64(); u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); out[1] = t; __nanosleep(20); }
extern "C" __global__ void __launch_bounds__(512) floats(float* o, const float* a, u32 n) {
  u32 i = threadIdx.x; if (i >= n) return;
  float x = a[i];
  o[i*8] = rintf(x); o[i*8+1] = fmaf(x, x, 1.0f); o[i*8+2] = 1.0f / x; o[i*8+3] = fmaxf(x, 1.0f); o[i*8+4] = (float)(double)x; o[i*8+5] = sqrtf(x);
  o[i*8+6] = (float)(int)x; o[i*8+7] = __int_as_float(__float_as_int(x) & 0x7fffffff);
}
