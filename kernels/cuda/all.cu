// All kernels of a type (-DCONSORT_TYPE=f32), or those that reduce nothing, in one translation unit.

#include "fold.cu"
#include "run.cu"
#ifdef CONSORT_TYPE
#include "oneshot.cu"
#include "twoshot.cu"
#endif
