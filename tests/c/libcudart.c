/*
 * A pretend CUDA runtime for tests, built as libcudart.so.12, of one function: the current device is the one that
 * PRETEND_CUDART_DEVICE names. It makes no context. It is not NVIDIA's and shows nothing about NVIDIA's.
 */
#include <stdlib.h>

int cudaGetDevice(int* device) {
  const char* text = getenv("PRETEND_CUDART_DEVICE");
  if (!text) return 3;
  *device = atoi(text);
  return 0;
}
