/*
 * A pretend CUDA driver for tests, built as libcuda.so.1, of six functions: it has no contexts, so that no rank can be
 * on one of its devices. Its "device memory" is that of `pretendAllocate`, and a thread that touches it crashes. It is not
 * NVIDIA's and shows nothing about NVIDIA's.
 *
 *   PRETEND_CUDA_INIT     what cuInit returns (0)
 *   PRETEND_CUDA_DEVICES  how many devices there are (2)
 *   PRETEND_CUDA_POINTER  what cuPointerGetAttribute returns of any address (what is right)
 *   PRETEND_CUDA_LOG      file to which every call is appended, as "name pid"
 */
#define _GNU_SOURCE

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, MEMORY_TYPE = 2, IS_MANAGED = 8, DEVICE = 2, RANGES_MAX = 16 };

static struct range {
  uintptr_t start, end;
  int managed;
} ranges[RANGES_MAX];
static int ranges_used, initialized;

static int number(const char* variable, int otherwise) {
  const char* text = getenv(variable);
  return text ? atoi(text) : otherwise;
}

static void called(const char* name) {
  const char* path = getenv("PRETEND_CUDA_LOG");
  char line[64];
  int length = snprintf(line, sizeof line, "%s %d\n", name, (int)getpid());
  int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
  if (file < 0) return;
  if (write(file, line, (size_t)length) != length) abort();
  close(file);
}

__attribute__((constructor)) static void opened(void) { called("opened"); }

int cuInit(unsigned int flags) {
  int result = number("PRETEND_CUDA_INIT", 0);
  called("cuInit");
  initialized = flags == 0 && result == 0;
  return flags == 0 ? result : INVALID_VALUE;
}

int cuDriverGetVersion(int* version) {
  called("cuDriverGetVersion");
  *version = 12040;
  return 0;
}

int cuDeviceGetCount(int* count) {
  called("cuDeviceGetCount");
  *count = number("PRETEND_CUDA_DEVICES", 2);
  return initialized ? 0 : NOT_INITIALIZED;
}

int cuGetErrorName(int result, const char** name) {
  static const struct { int result; const char* name; } names[] = {
      {1, "CUDA_ERROR_INVALID_VALUE"}, {3, "CUDA_ERROR_NOT_INITIALIZED"}, {100, "CUDA_ERROR_NO_DEVICE"},
      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
  size_t at;
  *name = NULL;
  for (at = 0; at < sizeof names / sizeof *names; at++)
    if (names[at].result == result) *name = names[at].name;
  return *name ? 0 : INVALID_VALUE;
}

int cuPointerGetAttribute(void* data, int attribute, uint64_t address) {
  int at, forced = number("PRETEND_CUDA_POINTER", 0);
  called("cuPointerGetAttribute");
  if (!initialized) return NOT_INITIALIZED;
  if (forced) return forced;
  for (at = 0; at < ranges_used; at++) {
    if (address < ranges[at].start || address >= ranges[at].end) continue;
    if (attribute == MEMORY_TYPE) *(unsigned int*)data = DEVICE;
    else if (attribute == IS_MANAGED) *(unsigned char*)data = (unsigned char)ranges[at].managed;
    else return INVALID_VALUE;
    return 0;
  }
  return INVALID_VALUE;
}

/* Memory of a device, or managed memory, which the host may touch. */
void* pretendAllocate(size_t bytes, int managed) {
  int protection = managed ? PROT_READ | PROT_WRITE : PROT_NONE;
  void* start = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED || ranges_used == RANGES_MAX) abort();
  ranges[ranges_used].start = (uintptr_t)start;
  ranges[ranges_used].end = (uintptr_t)start + bytes;
  ranges[ranges_used++].managed = managed;
  return start;
}
