// wide.h - sixteen floats at a time where the processor has no AVX-512: pairs of AVX registers under the same names.
#pragma once
#include <immintrin.h>
#ifndef __AVX512F__
typedef struct { __m256 lo, hi; } wide_t;
static inline wide_t wide_load(const float *p) { return (wide_t){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void wide_store(float *p, wide_t x) { _mm256_storeu_ps(p, x.lo); _mm256_storeu_ps(p + 8, x.hi); }
static inline void wide_stream(float *p, wide_t x) { _mm256_stream_ps(p, x.lo); _mm256_stream_ps(p + 8, x.hi); }
static inline wide_t wide_add(wide_t x, wide_t y) { return (wide_t){_mm256_add_ps(x.lo, y.lo), _mm256_add_ps(x.hi, y.hi)}; }
static inline wide_t wide_set(float v) { return (wide_t){_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
static inline float wide_sum(wide_t x) { float f[8], s = 0; _mm256_storeu_ps(f, _mm256_add_ps(x.lo, x.hi)); for (int i = 0; i < 8; i++) s += f[i]; return s; }
#define __m512 wide_t
#define _mm512_load_ps wide_load
#define _mm512_loadu_ps wide_load
#define _mm512_store_ps wide_store
#define _mm512_storeu_ps wide_store
#define _mm512_stream_ps wide_stream
#define _mm512_add_ps wide_add
#define _mm512_set1_ps wide_set
#define _mm512_setzero_ps() wide_set(0)
#define _mm512_reduce_add_ps wide_sum
#endif
