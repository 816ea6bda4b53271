/* Stands in for CUDA's header, where there is no CUDA: what NCCL's headers take from it. */
#ifndef __CUDA_RUNTIME_H__
#define __CUDA_RUNTIME_H__

#include <stddef.h>

#define CUDART_VERSION 10020

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;

#endif
