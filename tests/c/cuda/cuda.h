/* Stands in for CUDA's header: what the headers of NCCL's device interface take from it. */
#ifndef __cuda_cuda_h__
#define __cuda_cuda_h__

typedef enum CUmemLocationType_enum { CU_MEM_LOCATION_TYPE_INVALID = 0 } CUmemLocationType;

#endif
