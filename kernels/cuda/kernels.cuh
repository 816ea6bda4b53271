// The kernels of a translation unit: all operators on the type CONSORT_TYPE, or the kernels that only copy.
//
// `CONSORT_KERNELS(KERNEL)` expands KERNEL(type, op) for each. Absent: the kernels.

#ifndef CONSORT_KERNELS_CUH
#define CONSORT_KERNELS_CUH

#include "device.cuh"

#define CONSORT_JOIN_(kind, type, op) consort_##kind##_##type##_##op
#define CONSORT_JOIN(kind, type, op) CONSORT_JOIN_(kind, type, op)
#define CONSORT_CLASS_(type) type_##type
#define CONSORT_CLASS(type) CONSORT_CLASS_(type)

#ifdef CONSORT_TYPE
#define CONSORT_KERNELS(KERNEL)                                                                                     \
    KERNEL(CONSORT_TYPE, sum) KERNEL(CONSORT_TYPE, prod) KERNEL(CONSORT_TYPE, max) KERNEL(CONSORT_TYPE, min)
#else
#define CONSORT_KERNELS(KERNEL)
#endif

#endif
