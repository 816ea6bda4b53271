// The names of `gpu.cuh` for the host's compiler: a thread of the system is a thread of a block.
//
// Invariant: flags are atomics with the order of the device's, and everything else is plain accesses, so that
// ThreadSanitizer reports what the device's memory model calls a race. With -DCONSORT_RELAXED_FLAGS flags order
// nothing, and ThreadSanitizer must report races. Absent: starting threads (`tests/cuda`), speed.

#ifndef CONSORT_HOST_CUH
#define CONSORT_HOST_CUH

#include <cstring>
#include <pthread.h>
#include <sched.h>

#define CONSORT_FN static inline
#define CONSORT_UNROLL
#define CONSORT_ROLLED
#define CONSORT_ENTRY(name, Parameter) extern "C" void name(const Parameter parameter)
#define CONSORT_SHARED(Type)
#define CONSORT_DYNAMIC_SHARED(name) u64 *name = context.dynamic
#define consort_shared (*static_cast<Shared *>(consort::context.shared))

namespace consort {

// Few threads, so that small blocks have several warps.
constexpr u32 warp_threads = 4;

// The index of a thread, set before it calls a kernel.
struct Context {
    u32 thread;
    u32 threads;
    u32 block;
    u32 blocks;
    // Not std::barrier: its waiters share words with those of other barriers, which orders accesses that nothing else
    // orders.
    pthread_barrier_t *meeting;
    void *shared;
    u64 *dynamic;
};
inline thread_local Context context;

CONSORT_FN u32 thread() { return context.thread; }
CONSORT_FN u32 threads() { return context.threads; }
CONSORT_FN u32 block() { return context.block; }
CONSORT_FN u32 blocks() { return context.blocks; }
CONSORT_FN void barrier() { pthread_barrier_wait(context.meeting); }
CONSORT_FN u32 opaque(u32 value) { return value; }
CONSORT_FN void relax() { sched_yield(); }

#ifdef CONSORT_RELAXED_FLAGS
constexpr int flag_load = __ATOMIC_RELAXED;
constexpr int flag_store = __ATOMIC_RELAXED;
#else
constexpr int flag_load = __ATOMIC_ACQUIRE;
constexpr int flag_store = __ATOMIC_RELEASE;
#endif

template <class T> T *at_address(u64 address) { return reinterpret_cast<T *>(address); }

CONSORT_FN u64 load_acquire(u64 address) { return __atomic_load_n(at_address<u64>(address), flag_load); }
CONSORT_FN void store_release(u64 address, u64 value) { __atomic_store_n(at_address<u64>(address), value, flag_store); }
CONSORT_FN u32 load_relaxed(u64 address) { return __atomic_load_n(at_address<u32>(address), __ATOMIC_RELAXED); }
CONSORT_FN void store_relaxed(u64 address, u64 value) {
    __atomic_store_n(at_address<u64>(address), value, __ATOMIC_RELAXED);
}
CONSORT_FN u32 fetch_add(u64 address, u32 value) {
    return __atomic_fetch_add(at_address<u32>(address), value, __ATOMIC_ACQ_REL);
}
// Stores the words in either order, with time between them for another thread to see one alone.
CONSORT_FN void store_pair(u64 address, u64 first, u64 second) {
    bool is_swapped = (address >> 4 & 1) != 0;
    store_relaxed(is_swapped ? address + 8 : address, is_swapped ? second : first);
    relax();
    store_relaxed(is_swapped ? address : address + 8, is_swapped ? first : second);
}
CONSORT_FN void load_pair(u64 address, u64 &first, u64 &second) {
    first = __atomic_load_n(at_address<u64>(address), __ATOMIC_RELAXED);
    second = __atomic_load_n(at_address<u64>(address + 8), __ATOMIC_RELAXED);
}

// Words of 1, 2, 4, 8 or 16 bytes. As on the device, an address that is no multiple of its word is a fault.
template <u32 bytes> struct Word {
    u32 part[bytes < 4 ? 1 : bytes / 4];
};

template <u32 bytes> static inline void load(u64 address, Word<bytes> &word) {
    if (address % bytes != 0) {
        __builtin_trap();
    }
    word.part[0] = 0;
    std::memcpy(word.part, at_address<void>(address), bytes);
}

template <u32 bytes> static inline void store(u64 address, const Word<bytes> &word) {
    if (address % bytes != 0) {
        __builtin_trap();
    }
    std::memcpy(at_address<void>(address), word.part, bytes);
}

CONSORT_FN f32 single_of_half(u32 code) {
    u32 magnitude = code & 0x7fffu;
    f32 denormal = f32(magnitude) * __builtin_bit_cast(f32, 103u << 23);
    u32 finite = magnitude < 0x400u ? __builtin_bit_cast(u32, denormal) : (magnitude << 13) + (112u << 23);
    u32 bits = magnitude > 0x7c00u ? 0x7fc00000u : magnitude == 0x7c00u ? 0x7f800000u : finite;
    return __builtin_bit_cast(f32, bits | (code & 0x8000u) << 16);
}

CONSORT_FN u32 half_of_single(f32 value) {
    u32 bits = __builtin_bit_cast(u32, value);
    u32 magnitude = bits & 0x7fffffffu;
    constexpr u32 magic = 126u << 23;
    u32 normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    f32 shifted = __builtin_bit_cast(f32, magnitude) + __builtin_bit_cast(f32, magic);
    u32 code = magnitude < (113u << 23) ? __builtin_bit_cast(u32, shifted) - magic : normal;
    code = code < 0x7c00u ? code : 0x7c00u;
    return code | (bits >> 31) << 15;
}

CONSORT_FN f32 maximum_single(f32 left, f32 right) {
    u32 tie = __builtin_bit_cast(u32, left) & __builtin_bit_cast(u32, right);
    f32 number = left == right ? __builtin_bit_cast(f32, tie) : left > right ? left : right;
    return left != left || right != right ? __builtin_bit_cast(f32, 0x7fc00000u) : number;
}

CONSORT_FN f32 minimum_single(f32 left, f32 right) {
    u32 tie = __builtin_bit_cast(u32, left) | __builtin_bit_cast(u32, right);
    f32 number = left == right ? __builtin_bit_cast(f32, tie) : left < right ? left : right;
    return left != left || right != right ? __builtin_bit_cast(f32, 0x7fc00000u) : number;
}

} // namespace consort

#endif
