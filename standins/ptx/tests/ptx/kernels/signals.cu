typedef unsigned char u8; typedef unsigned int u32; typedef unsigned long long u64;
__device__ u64 acquire(const u64* p) { u64 v; asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory"); return v; }
__device__ void release(u64* p, u64 v) { asm volatile("st.release.sys.global.u64 [%0], %1;" :: "l"(p), "l"(v) : "memory"); }
// Data through `slot`, `rounds` times, with credits: rank 0 sends, rank 1 receives.
extern "C" __global__ void sender(u32* slot, u64* posted, u64* credit, u32 words, u32 rounds) {
  for (u32 r = 0; r < rounds; r++) {
    if (threadIdx.x == 0) while (acquire(credit) < r) {}
    __syncthreads();
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) slot[i] = r * 1000 + i;
    __syncthreads();
    if (threadIdx.x == 0) release(posted, r + 1);
  }
}
extern "C" __global__ void receiver(const u32* slot, u64* posted, u64* credit, u32* out, u32 words, u32 rounds) {
  for (u32 r = 0; r < rounds; r++) {
    if (threadIdx.x == 0) while (acquire(posted) < r + 1) {}
    __syncthreads();
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) out[r * words + i] = slot[i];
    __syncthreads();
    if (threadIdx.x == 0) release(credit, r + 1);
  }
}
extern "C" __global__ void packets_send(ulonglong2* to, const u64* from, u32 words, u32 flag) {
  for (u32 i = threadIdx.x; i < words; i += blockDim.x) {
    u64 v = from[i];
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" :: "l"(to + i), "r"((u32)v), "r"(flag), "r"((u32)(v >> 32)), "r"(flag) : "memory");
  }
}
extern "C" __global__ void packets_receive(u64* to, const ulonglong2* from, u32 words, u32 flag) {
  for (u32 i = threadIdx.x; i < words; i += blockDim.x) {
    u32 a, b, f, g;
    do asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(a), "=r"(f), "=r"(b), "=r"(g) : "l"(from + i) : "memory"); while (f != flag || g != flag);
    to[i] = a | (u64)b << 32;
  }
}
extern "C" __global__ void lines(u64* to, const u64* from, u32 n) {
  for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
    u64 v; asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(from + i) : "memory");
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"(to + i), "l"(v) : "memory");
    asm volatile("red.release.gpu.global.add.u64 [%0], %1;" :: "l"(to), "l"(1ull) : "memory");
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    __threadfence_system();
  }
}
