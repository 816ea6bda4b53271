/* Stands in for CUDA's header: that it is included is all that matters. */
#ifndef __CUDA_FP16_H__
#define __CUDA_FP16_H__
#define CUDA_STANDS_IN_HALF 1
#endif
