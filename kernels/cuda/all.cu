// All kernels of a type (-DCONSORT_TYPE=f32), or the kernels that only copy, in one translation unit.

#include "fold.cu"
#include "run.cu"
#ifdef CONSORT_TYPE
#include "oneshot.cu"
#include "twoshot.cu"
#endif
