// The primitives of a GPU's thread, in inline PTX: its index, loads and stores, flags, the barrier of its block.
//
// Invariant: every access is to global memory at a 64-bit address and stays where the text has it. Flags are loads
// with acquire and stores with release at system scope, never a fence beside a relaxed access. The same names are in
// `host.cuh`. Absent: any include and any built-in variable, so that every compiler of device code takes it.

#ifndef CONSORT_GPU_CUH
#define CONSORT_GPU_CUH

#define CONSORT_FN static __device__ __forceinline__
#define CONSORT_UNROLL _Pragma("unroll")
#define CONSORT_ROLLED _Pragma("unroll 1")
#define CONSORT_ENTRY(name, Parameter)                                                                              \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const Parameter parameter)
#define CONSORT_SHARED(Type) __shared__ Type consort_shared;
#define CONSORT_DYNAMIC_SHARED(name)                                                                                \
    extern __shared__ u64 consort_dynamic[];                                                                        \
    u64 *name = consort_dynamic

namespace consort {

// Threads that run in step; their accesses to adjacent addresses become one.
constexpr u32 warp_threads = 32;

#define CONSORT_REGISTER(name, special)                                                                             \
    CONSORT_FN u32 name() {                                                                                         \
        u32 value;                                                                                                  \
        asm volatile("mov.u32 %0, %%" special ";" : "=r"(value));                                                   \
        return value;                                                                                               \
    }
CONSORT_REGISTER(thread, "tid.x")
CONSORT_REGISTER(threads, "ntid.x")
CONSORT_REGISTER(block, "ctaid.x")
CONSORT_REGISTER(blocks, "nctaid.x")
#undef CONSORT_REGISTER

// Barrier of the block: all threads see what each did before it.
CONSORT_FN void barrier() { asm volatile("bar.sync 0;" ::: "memory"); }

// A value that is opaque to the compiler.
CONSORT_FN u32 opaque(u32 value) {
    asm("mov.u32 %0, %1;" : "=r"(value) : "r"(value));
    return value;
}

// Pause between two looks at a flag.
CONSORT_FN void relax() {}

CONSORT_FN u64 load_acquire(u64 address) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

CONSORT_FN void store_release(u64 address, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

CONSORT_FN u32 load_relaxed(u64 address) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

CONSORT_FN void store_relaxed(u64 address, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

// Adds to a word that blocks of this device share, and returns its old value.
CONSORT_FN u32 fetch_add(u64 address, u32 value) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(address), "r"(value) : "memory");
    return before;
}

// Two words that are each stored in one piece, whatever the order between them. 16-byte aligned.
CONSORT_FN void store_pair(u64 address, u64 first, u64 second) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(first), "l"(second) : "memory");
}

CONSORT_FN void load_pair(u64 address, u64 &first, u64 &second) {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(address) : "memory");
}

// Words of 1, 2, 4, 8 or 16 bytes, aligned to their size.
template <u32 bytes> struct Word {
    u32 part[bytes < 4 ? 1 : bytes / 4];
};

CONSORT_FN void load(u64 address, Word<16> &word) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.part[0]), "=r"(word.part[1]), "=r"(word.part[2]), "=r"(word.part[3])
                 : "l"(address)
                 : "memory");
}

CONSORT_FN void load(u64 address, Word<8> &word) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(word.part[0]), "=r"(word.part[1])
                 : "l"(address)
                 : "memory");
}

CONSORT_FN void store(u64 address, const Word<16> &word) {
    asm volatile("st.global.v4.u32 [%4], {%0, %1, %2, %3};" ::"r"(word.part[0]), "r"(word.part[1]), "r"(word.part[2]),
                 "r"(word.part[3]), "l"(address)
                 : "memory");
}

CONSORT_FN void store(u64 address, const Word<8> &word) {
    asm volatile("st.global.v2.u32 [%2], {%0, %1};" ::"r"(word.part[0]), "r"(word.part[1]), "l"(address) : "memory");
}

#define CONSORT_WORD(bytes, type)                                                                                   \
    CONSORT_FN void load(u64 address, Word<bytes> &word) {                                                          \
        asm volatile("ld.global." type " %0, [%1];" : "=r"(word.part[0]) : "l"(address) : "memory");                \
    }                                                                                                               \
    CONSORT_FN void store(u64 address, const Word<bytes> &word) {                                                   \
        asm volatile("st.global." type " [%1], %0;" ::"r"(word.part[0]), "l"(address) : "memory");                  \
    }
CONSORT_WORD(4, "u32")
CONSORT_WORD(2, "u16")
CONSORT_WORD(1, "u8")
#undef CONSORT_WORD

// Conversions and extremes that the processor does with the bits of `arithmetic.cuh`, NaN apart.
CONSORT_FN f32 single_of_half(u32 code) {
    f32 value;
    asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(value) : "r"(code));
    return value;
}

CONSORT_FN u32 half_of_single(f32 value) {
    u32 code;
    asm("{.reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.u32.u16 %0, h;}" : "=r"(code) : "f"(value));
    return code;
}

CONSORT_FN f32 maximum_single(f32 left, f32 right) {
    f32 value;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(left), "f"(right));
    return value;
}

CONSORT_FN f32 minimum_single(f32 left, f32 right) {
    f32 value;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(left), "f"(right));
    return value;
}

} // namespace consort

#endif
