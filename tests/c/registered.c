/*
 * Memory of the program's own that the other rank maps: one of two ranks. Called by `tests/ranks/tests/ranks/registered.rs`:
 * registered RANK SIZE, with the id as the first bytes of the input.
 */
#define _GNU_SOURCE

#include <consort.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(condition)                                                                                     \
  do {                                                                                                       \
    if (!(condition)) {                                                                                      \
      fprintf(stderr, "rank %d, line %d: %s: %s\n", rank, __LINE__, #condition, consortGetLastError(NULL)); \
      exit(1);                                                                                               \
    }                                                                                                        \
  } while (0)
#define OK(call) CHECK((call) == ncclSuccess)

#define COUNT (256 * 1024)
#define BYTES (COUNT * sizeof(int))
#define SENTINEL 1000000

static int rank, size;
static ncclComm_t comm;

/* A memory file that cannot become shorter. */
static int sealed(void) {
  char name[40];
  int fd;
  snprintf(name, sizeof name, "registered-%d", rank);
  fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(fd >= 0 && ftruncate(fd, BYTES) == 0);
  CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  return fd;
}

static int* mapped(int fd, void* at) {
  void* base = mmap(at, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | (at == NULL ? 0 : MAP_FIXED), fd, 0);
  CHECK(base != MAP_FAILED && (at == NULL || at == base));
  return base;
}

static void fill(int* data, int number) {
  int i;
  for (i = 0; i < COUNT; i++) data[i] = number;
}

static int all_are(const int* data, int number) {
  int i;
  for (i = 0; i < COUNT; i++)
    if (data[i] != number) return 0;
  return 1;
}

static void meet(void) {
  int one = 1;
  OK(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, comm, NULL));
  CHECK(one == size);
}

/* Both contribute 1 + their rank + `add`. */
static void reduces(int* data, int add) {
  fill(data, 1 + rank + add);
  OK(ncclAllReduce(data, data, COUNT, ncclInt32, ncclSum, comm, NULL));
  CHECK(all_are(data, 3 + 2 * add));
}

/* Whether a file of this rank is mapped here. */
static int maps_file_of(int whose) {
  char line[4096], wanted[60];
  int found = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  CHECK(maps != NULL);
  snprintf(wanted, sizeof wanted, "/memfd:registered-%d ", whose);
  while (fgets(line, sizeof line, maps) != NULL) found += strstr(line, wanted) != NULL;
  fclose(maps);
  return found;
}

int main(int count, char** words) {
  ncclUniqueId id;
  void* handle = NULL;
  void* gone = NULL;
  int fd, round;
  int *data, *old;
  if (count < 4) return 2;
  rank = atoi(words[2]);
  size = atoi(words[3]);
  CHECK(size == 2 && fread(&id, sizeof id, 1, stdin) == 1);
  OK(ncclCommInitRank(&comm, size, id, rank));
  fd = sealed();
  data = mapped(fd, NULL);

  /* Registered: the other rank maps it. */
  CHECK(maps_file_of(1 - rank) == 0);
  OK(consortMemRegisterFd(data, BYTES, fd, 0, &handle));
  for (round = 0; round < 5; round++) reduces(data, round);
  CHECK(maps_file_of(1 - rank) == 1 && maps_file_of(rank) == 1);

  /* Not any more: as any other memory. */
  OK(consortMemDeregister(handle));
  for (round = 0; round < 5; round++) reduces(data, round);
  CHECK(consortMemDeregister(handle) == ncclInvalidArgument);

  /* Again and again other memory at the same address, some of it registered. */
  old = mapped(fd, NULL);
  for (round = 0; round < 50; round++) {
    int next = sealed();
    OK(consortMemRegisterFd(data, BYTES, fd, 0, &gone));
    reduces(data, round);
    OK(consortMemDeregister(gone));
    mapped(next, data);
    fill(old, SENTINEL);
    handle = NULL;
    if (round % 3 != 0 || rank == 0) OK(consortMemRegisterFd(data, BYTES, next, 0, &handle));
    meet();
    reduces(data, 7 * round);
    meet();
    CHECK(all_are(old, SENTINEL));
    OK(consortMemDeregister(handle));
    CHECK(munmap(old, BYTES) == 0 && close(fd) == 0);
    fd = next;
    old = mapped(fd, NULL);
  }
  /* The memory may go while the communicator stays. */
  CHECK(munmap(data, BYTES) == 0 && munmap(old, BYTES) == 0 && close(fd) == 0);
  meet();
  OK(ncclCommDestroy(comm));
  CHECK(maps_file_of(0) == 0 && maps_file_of(1) == 0);
  puts("end");
  return 0;
}
