# llama.cpp with GGML_CUDA_NCCL: what ggml-cuda calls.
ncclAllReduce
ncclCommDestroy
ncclCommInitAll
ncclGetErrorString
ncclGroupEnd
ncclGroupStart
