/*
 * Communicators on devices in the C interface: device PART RANKS threads|processes. Called by
 * `tests/devices/tests/devices/c.rs`, which sets the path that operations take and on how many devices. Prints "end" when
 * every check of the part held.
 */
#define _GNU_SOURCE

#include "device_job.h"

#include "device_calls.h"
#include "device_capture.h"
#include "device_threads.h"

#include <dirent.h>

enum { COUNT = 203 };

static const struct call ALL_FLOATS = {ALL_REDUCE, ncclFloat32, ncclSum, 0, 0, COUNT};

/* The text of a communicator's last error contains this. */
static void says(ncclComm_t comm, const char* part) {
  const char* text = ncclGetLastError(comm);
  if (!strstr(text, part)) fprintf(stderr, "no \"%s\" in: %s\n", part, text);
  CHECK(strstr(text, part) != NULL);
}

static void says_rank(ncclComm_t comm, int rank) {
  char part[32];
  snprintf(part, sizeof part, "rank %d", rank);
  says(comm, part);
}

/* A sum in a rank's stream that is not waited for. */
static ncclResult_t sum(const struct rank* rank, const struct buffers* buffers, size_t count) {
  return ncclAllReduce(buffers->from, buffers->to, count, ncclFloat32, ncclSum, rank->comm, rank->stream);
}

/* A sum that works. */
static void works(struct rank* rank) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, COUNT);
  perform(&ALL_FLOATS, rank, &buffers, 1, 0);
  free_buffers(&buffers);
}

static void collectives(struct rank* rank) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, 70000);
  struct call call = ALL_FLOATS;
  int device = -1;
  OK(ncclCommCuDevice(rank->comm, &device));
  CHECK(device == rank->device);
  everything(rank, &buffers, 1, COUNT);
  for (call.count = 1; call.count <= 70000; call.count *= 41) perform(&call, rank, &buffers, 1, 0);
  free_buffers(&buffers);
}

/* One thread has all ranks: ncclCommInitAll, and every call in a group. */
static void together(int count) {
  struct rank ranks[RANKS_MAX];
  struct buffers buffers[RANKS_MAX];
  ncclComm_t comms[RANKS_MAX];
  int devices[RANKS_MAX], at, device;
  open_driver();
  job.ranks = count;
  for (at = 0; at < count; at++) devices[at] = at % job.devices;
  OK(ncclCommInitAll(comms, count, devices));
  for (at = 0; at < count; at++) {
    begin_rank(&ranks[at], at);
    ranks[at].comm = comms[at];
    buffers[at] = buffers_of(&ranks[at], DEVICE, DEVICE, COUNT);
    OK(ncclCommCuDevice(comms[at], &device));
    CHECK(device == devices[at]);
  }
  everything(ranks, buffers, count, COUNT);
  OK(ncclGroupStart());
  for (at = 0; at < count; at++) OK(ncclCommDestroy(comms[at]));
  OK(ncclGroupEnd());
  for (at = 0; at < count; at++) {
    use_device(devices[at]);
    ranks[at].comm = NULL;
    free_buffers(&buffers[at]);
    end_rank(&ranks[at]);
  }
}

/* Messages around a ring as groups, short and of one and a half megabytes; each rank sends or receives first. */
static void ring(struct rank* rank, int receives_first) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, 400000);
  struct call call = {RING, ncclFloat32, ncclSum, 0, 0, COUNT};
  call.in_place = receives_first;
  for (; call.count <= 400000; call.count *= 1900) perform(&call, rank, &buffers, 1, 0);
  free_buffers(&buffers);
}

static void rings(struct rank* rank) { ring(rank, 0); }

static void backward_rings(struct rank* rank) { ring(rank, 1); }

/* The default stream, whose number is 0. */
static void default_stream(struct rank* rank) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, COUNT);
  void* own = rank->stream;
  rank->stream = NULL;
  everything(rank, &buffers, 1, 65);
  rank->stream = own;
  free_buffers(&buffers);
}

/* Memory that host and device reach, memory of ncclMemAlloc, and buffers of different kinds. */
static void memories(struct rank* rank) {
  static const enum place pairs[][2] = {{PINNED, PINNED}, {MANAGED, MANAGED}, {PINNED, DEVICE}, {DEVICE, MANAGED}};
  static float plain[RANKS_MAX][2][COUNT];
  float(*mine)[COUNT] = plain[rank->rank];
  struct buffers buffers;
  struct call call = ALL_FLOATS;
  void* given = NULL;
  unsigned type = 0;
  size_t at, before;
  consortStream_t queue;
  for (at = 0; at < sizeof pairs / sizeof *pairs; at++) {
    buffers = buffers_of(rank, pairs[at][0], pairs[at][1], COUNT);
    for (call.what = ALL_REDUCE; call.what < CALLS; call.what++) perform(&call, rank, &buffers, 1, 0);
    free_buffers(&buffers);
  }
  buffers = buffers_of(rank, DEVICE, DEVICE, COUNT);
  CHECK(sum(rank, &buffers, COUNT) == ncclSuccess);
  CU(cuda.wait(rank->stream));
  /* One of each is refused; nothing is sent, so that the others do not wait. */
  CHECK(ncclAllReduce(mine[0], buffers.to, COUNT, ncclFloat32, ncclSum, rank->comm, rank->stream) ==
        ncclInvalidUsage);
  says(rank->comm, "is device memory, the send buffer at ");
  says(rank->comm, "host memory, and one call cannot have both");
  CHECK(ncclAllReduce(buffers.from, mine[1], COUNT, ncclFloat32, ncclSum, rank->comm, rank->stream) ==
        ncclInvalidUsage);
  says(rank->comm, "is device memory, the receive buffer at ");
  OK(consortStreamCreate(&queue));
  CHECK(ncclAllReduce(buffers.from, buffers.to, COUNT, ncclFloat32, ncclSum, rank->comm, (cudaStream_t)queue) ==
        ncclInvalidUsage);
  says(rank->comm, "a host stream was passed with device memory");
  OK(consortStreamDestroy(queue));
  free_buffers(&buffers);
  /* Memory of the host alone is moved by the host, on the same communicator. */
  for (at = 0; at < COUNT; at++) mine[0][at] = (float)passed(rank->rank, at), mine[1][at] = -1;
  OK(ncclAllReduce(mine[0], mine[1], COUNT, ncclFloat32, ncclSum, rank->comm, NULL));
  for (at = 0; at < COUNT; at++) CHECK(mine[1][at] == (float)folded(&ALL_FLOATS, rank->ranks, at));
  works(rank);
  meet();
  before = unused();
  meet();
  OK(ncclMemAlloc(&given, 1 << 20));
  CU(cuda.attribute(&type, 2, (uint64_t)(uintptr_t)given));
  CHECK(type == 2);
  meet();
  CHECK(unused() <= before - (1 << 20));
  buffers = buffers_of(rank, DEVICE, DEVICE, COUNT);
  memory_free(DEVICE, buffers.to);
  buffers.to = given;
  perform(&ALL_FLOATS, rank, &buffers, 1, 0);
  memory_free(DEVICE, buffers.from), free(buffers.host);
  meet();
  OK(ncclMemFree(given));
  CHECK(ncclMemFree(given) == ncclInvalidArgument);
  meet();
  CHECK(unused() >= before);
  meet();
}

/* Ranks multiply by the same factor or each by its own, which the host has or a device. */
static void scalars(struct rank* rank) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, COUNT);
  unsigned char* on_device = memory(DEVICE, sizeof(float));
  int own, resident, what, from;
  size_t at;
  for (what = 0; what < 12; what++) {
    struct call call = ALL_FLOATS;
    ncclRedOp_t op;
    unsigned char *input, *output;
    float factor, got_there[COUNT];
    own = what & 1, resident = what >> 1 & 1;
    call.what = what < 4 ? ALL_REDUCE : what < 8 ? REDUCE : REDUCE_SCATTER;
    call.count = call.what == REDUCE_SCATTER ? COUNT / (size_t)rank->ranks : COUNT;
    factor = own ? (float)rank->rank + 0.5f : 2.5f;
    CU(cuda.to_device((uint64_t)(uintptr_t)on_device, &factor, sizeof factor, rank->stream));
    CU(cuda.wait(rank->stream));
    if (resident) OK(ncclRedOpCreatePreMulSum(&op, on_device, ncclFloat32, ncclScalarDevice, rank->comm));
    else OK(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, rank->comm));
    call.op = op;
    prepare(&call, rank, &buffers);
    places(&call, rank, &buffers, &input, &output);
    OK(make(&call, rank, input, output));
    OK(ncclRedOpDestroy(op, rank->comm));
    CU(cuda.to_host(got_there, (uint64_t)(uintptr_t)output, sizeof got_there, rank->stream));
    CU(cuda.wait(rank->stream));
    for (at = 0; at < got(&call, rank); at++) {
      size_t where = at + (call.what == REDUCE_SCATTER ? (size_t)rank->rank * call.count : 0);
      float want = 0;
      for (from = 0; from < rank->ranks; from++) want += (own ? (float)from + 0.5f : 2.5f) * (float)passed(from, where);
      if (got_there[at] != want)
        fprintf(stderr, "%s, own factors %d, on the device %d: element %zu is %g, not %g\n", names[call.what], own,
                resident, at, (double)got_there[at], (double)want);
      CHECK(got_there[at] == want);
    }
  }
  memory_free(DEVICE, on_device);
  free_buffers(&buffers);
}

/* A communicator that is made of another is on its ranks' devices. */
static void children(struct rank* rank) {
  struct rank part = *rank, fewer = *rank;
  int excluded = rank->ranks - 1, device;
  OK(ncclCommSplit(rank->comm, rank->rank % 2, -rank->rank, &part.comm, NULL));
  OK(ncclCommUserRank(part.comm, &part.rank));
  OK(ncclCommCount(part.comm, &part.ranks));
  CHECK(part.ranks == (rank->ranks + 1 - rank->rank % 2) / 2);
  OK(ncclCommCuDevice(part.comm, &device));
  CHECK(device == rank->device);
  works(&part);
  works(rank);
  fewer.comm = NULL;
  if (rank->rank != excluded) {
    OK(ncclCommShrink(rank->comm, &excluded, 1, &fewer.comm, NULL, NCCL_SHRINK_DEFAULT));
    fewer.ranks = rank->ranks - 1;
    works(&fewer);
    OK(ncclCommDestroy(fewer.comm));
  }
  works(&part);
  OK(ncclCommDestroy(part.comm));
  meet();
}

/* Waits until a non-blocking communicator has nothing in progress. */
static void settled(ncclComm_t comm, ncclResult_t result) {
  CHECK(result == ncclSuccess || result == ncclInProgress);
  CHECK(state_after(comm, ncclInProgress, 60) == ncclSuccess);
}

static void polled(struct rank* rank) {
  struct rank busy = *rank;
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, COUNT);
  struct call call = ALL_FLOATS;
  unsigned char *input, *output;
  join(&busy, 0);
  for (call.what = ALL_REDUCE; call.what < CALLS; call.what++) {
    if (call.what == RING) continue;
    prepare(&call, &busy, &buffers);
    places(&call, &busy, &buffers, &input, &output);
    settled(busy.comm, make(&call, &busy, input, output));
    examine(&call, &busy, &buffers);
  }
  settled(busy.comm, ncclCommFinalize(busy.comm));
  OK(ncclCommDestroy(busy.comm));
  free_buffers(&buffers);
}

/* The last rank's count differs: all ranks get the error, from the call or afterwards. */
static void differ(struct rank* rank, size_t count) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, count);
  int deviant = rank->ranks - 1;
  ncclResult_t result = sum(rank, &buffers, rank->rank == deviant ? count - 1 : count);
  if (result == ncclSuccess) result = state_after(rank->comm, ncclSuccess, 30);
  CHECK(result == ncclInvalidUsage);
  says_rank(rank->comm, deviant);
  meet();
  OK(ncclCommAbort(rank->comm));
  rank->comm = NULL;
  CU(cuda.wait(rank->stream));
  free_buffers(&buffers);
}

static void mismatch(struct rank* rank) { differ(rank, COUNT); }

static void long_mismatch(struct rank* rank) { differ(rank, 40000); }

/* The last rank is killed while the others wait for it in their streams. */
static void killed(struct rank* rank) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, 5000);
  int victim = rank->ranks - 1, more;
  ncclResult_t result;
  double began;
  OK(sum(rank, &buffers, 5000));
  CU(cuda.wait(rank->stream));
  meet();
  if (rank->rank == victim) {
    for (more = 0; more < 200; more++) rest();
    kill(getpid(), SIGKILL);
  }
  result = sum(rank, &buffers, 5000);
  began = now();
  if (result == ncclSuccess) result = state_after(rank->comm, ncclSuccess, 30);
  CHECK(result == ncclRemoteError);
  CHECK(now() - began < 10);
  says_rank(rank->comm, victim);
  CHECK(sum(rank, &buffers, 5000) != ncclSuccess);
  OK(ncclCommAbort(rank->comm));
  rank->comm = NULL;
  CHECK(now() - began < 15);
  CU(cuda.wait(rank->stream));
  free_buffers(&buffers);
}

/* Calls in a stream whose peer does not come are ended by ncclCommAbort, and the stream goes on. */
static void aborted(struct rank* rank) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, COUNT);
  ncclResult_t state;
  double began;
  int at;
  works(rank);
  if (rank->rank == 0) {
    for (at = 0; at < 3; at++) OK(sum(rank, &buffers, COUNT));
    for (at = 0; at < 100; at++) rest();
    OK(ncclCommGetAsyncError(rank->comm, &state));
    CHECK(state == ncclSuccess);
    began = now();
    OK(ncclCommAbort(rank->comm));
    rank->comm = NULL;
    CU(cuda.wait(rank->stream));
    CHECK(now() - began < 10);
  }
  meet();
  if (rank->comm) OK(ncclCommAbort(rank->comm));
  rank->comm = NULL;
  free_buffers(&buffers);
}

/* The communicator of rank 0. */
static ncclComm_t waiting;

/* A call that waits for another rank of its process is ended by ncclCommAbort on another thread. */
static void aborted_by_another(struct rank* rank) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, COUNT);
  int at;
  works(rank);
  if (rank->rank == 0) waiting = rank->comm;
  meet();
  if (rank->rank == 0) {
    CHECK(sum(rank, &buffers, COUNT) != ncclSuccess);
    rank->comm = NULL;
    CU(cuda.wait(rank->stream));
  } else {
    for (at = 0; at < 100; at++) rest();
    OK(ncclCommAbort(waiting));
    OK(ncclCommAbort(rank->comm));
    rank->comm = NULL;
  }
  meet();
  free_buffers(&buffers);
}

/* A deadline of two seconds, and a rank that does not call. */
static void deadline(struct rank* rank) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, COUNT);
  int absent = rank->ranks - 1;
  double began;
  works(rank);
  OK(consortCommSetTimeout(rank->comm, 2.0));
  /* Before any rank calls: the first rank whose call is over ends the others'. */
  began = now();
  meet();
  if (rank->rank != absent) {
    char* text = NULL;
    ncclResult_t result = sum(rank, &buffers, COUNT);
    if (result == ncclSuccess) result = state_after(rank->comm, ncclSuccess, 30);
    CHECK(result == ncclTimeout);
    CHECK(now() - began > 1.9 && now() - began < 15);
    says_rank(rank->comm, absent);
    OK(consortCommReportAlloc(rank->comm, CONSORT_TEXT, &text));
    CHECK(strstr(text, "rank") != NULL);
    consortFree(text);
  }
  meet();
  OK(ncclCommAbort(rank->comm));
  rank->comm = NULL;
  CU(cuda.wait(rank->stream));
  free_buffers(&buffers);
}

/*
 * Two communicators, each with a sum that takes every block of a device, in two streams: on rank 0 the first sum is held
 * up, so that the second could begin before it and take all blocks; on rank 1 the second, so that the first does.
 */
static void crowded(struct rank* rank) {
  enum { LONG = 65536 };
  struct call call = {ALL_REDUCE, ncclFloat32, ncclSum, 0, 0, LONG};
  struct buffers first = buffers_of(rank, DEVICE, DEVICE, LONG), second = buffers_of(rank, DEVICE, DEVICE, LONG);
  volatile uint64_t* held = (volatile uint64_t*)(void*)memory(PINNED, sizeof *held);
  struct rank other = *rank;
  int wait;
  OK(ncclCommSplit(rank->comm, 0, rank->rank, &other.comm, NULL));
  CU(cuda.stream(&other.stream, 1));
  *held = 0;
  /* Loads and allocations for the first call of a shape may wait for the device. */
  perform(&call, rank, &first, 1, 0);
  perform(&call, &other, &second, 1, 0);
  prepare(&call, rank, &first);
  prepare(&call, &other, &second);
  CU(cuda.wait_value(rank->rank == 0 ? rank->stream : other.stream, (uint64_t)(uintptr_t)held, 1, 0));
  OK(sum(rank, &first, LONG));
  OK(sum(&other, &second, LONG));
  meet();
  /* What could begin has: a defect shows by chance, and nothing depends on how long this takes. */
  for (wait = 0; wait < 200; wait++) rest();
  meet();
  *held = 1;
  examine(&call, rank, &first);
  examine(&call, &other, &second);
  OK(ncclCommDestroy(other.comm));
  CU(cuda.stream_free(other.stream));
  free_buffers(&first), free_buffers(&second);
  memory_free(PINNED, (unsigned char*)(uintptr_t)held);
}

/* A communicator that is destroyed with work in the stream: the work is done. */
static void destroyed(struct rank* rank) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, COUNT);
  int at;
  prepare(&ALL_FLOATS, rank, &buffers);
  for (at = 0; at < 20; at++) OK(sum(rank, &buffers, COUNT));
  OK(ncclCommDestroy(rank->comm));
  rank->comm = NULL;
  examine(&ALL_FLOATS, rank, &buffers);
  free_buffers(&buffers);
}

/* Ranks that are threads count one at a time: a count opens descriptors too. */
static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;

/* Entries of a directory of this process. */
static int entries(const char* path) {
  DIR* directory;
  int count = 0;
  pthread_mutex_lock(&looking);
  directory = opendir(path);
  CHECK(directory != NULL);
  while (readdir(directory)) count++;
  closedir(directory);
  pthread_mutex_unlock(&looking);
  return count;
}

/* Threads of this process, but for the stand-in driver's: of a queue until the end, of a launch until it is over. */
static int threads_left(void) {
  char path[280], name[32];
  struct dirent* entry;
  DIR* directory;
  int count = 0;
  pthread_mutex_lock(&looking);
  directory = opendir("/proc/self/task");
  CHECK(directory != NULL);
  while ((entry = readdir(directory))) {
    FILE* file;
    if (entry->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
    file = fopen(path, "r");
    /* It has ended meanwhile. */
    if (!file) continue;
    if (fgets(name, sizeof name, file) && strncmp(name, "standin ", 8) != 0) count++;
    fclose(file);
  }
  closedir(directory);
  pthread_mutex_unlock(&looking);
  return count;
}

/* The descriptors of this process, to find one that is left. */
static void say_descriptors(void) {
  char path[280], what[280];
  struct dirent* entry;
  DIR* directory = opendir("/proc/self/fd");
  CHECK(directory != NULL);
  while ((entry = readdir(directory))) {
    ssize_t length;
    snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
    length = readlink(path, what, sizeof what - 1);
    if (length > 0) fprintf(stderr, "descriptor %s is %.*s\n", entry->d_name, (int)length, what);
  }
  closedir(directory);
}

/* Fifty communicators leave nothing: no memory of the device, descriptor or thread. */
static void all_rounds(struct rank* rank, int aborts) {
  struct rank next = *rank;
  size_t left = 0;
  int round, descriptors = 0, threads = 0;
  for (round = 0; round < 50; round++) {
    join(&next, 1);
    works(&next);
    /* A rank that is through early must not end the sums of the others. */
    meet();
    if (aborts && round % 5 == 4) OK(ncclCommAbort(next.comm));
    else OK(ncclCommDestroy(next.comm));
    meet();
    if (round == 4) {
      left = unused(), descriptors = entries("/proc/self/fd"), threads = threads_left();
      meet();
    }
  }
  /* Memory of an aborted operation is freed when its peers have closed it, soon after. */
  CHECK(left > 0);
  for (round = 0; round < 10000 && unused() < left; round++) rest();
  if (unused() < left) fprintf(stderr, "unused were %zu bytes, are %zu\n", left, unused());
  CHECK(unused() >= left);
  for (round = 0; round < 10000 && entries("/proc/self/fd") > descriptors; round++) rest();
  if (round == 10000) say_descriptors();
  CHECK(round < 10000);
  /* A thread that was joined is in the list for a moment more. */
  for (round = 0; round < 10000 && threads_left() > threads; round++) rest();
  CHECK(threads_left() <= threads);
  meet();
}

static void rounds(struct rank* rank) { all_rounds(rank, 0); }

static void aborted_rounds(struct rank* rank) { all_rounds(rank, 1); }

/* Plain host memory on a communicator on devices; one rank has no buffer in this call. */
static void nothing(struct rank* rank) {
  const size_t counts[RANKS_MAX] = {3, 0, 3, 3, 3, 3, 3, 3};
  float from[3] = {1, 2, 3}, to[3 * RANKS_MAX] = {0};
  size_t places[RANKS_MAX];
  int at, out = 0;
  for (at = 0; at < rank->ranks; at++) places[at] = (size_t)out, out += (int)counts[at];
  OK(consortGatherV(from, to, counts[rank->rank], counts, places, ncclFloat32, 0, rank->comm, NULL));
  for (at = 0; rank->rank == 0 && at < out; at++) CHECK(to[at] == from[at % 3]);
  works(rank);
}

int main(int count, char** arguments) {
  static const struct {
    const char* name;
    void (*body)(struct rank*);
  } parts[] = {{"collectives", collectives}, {"default-stream", default_stream}, {"memories", memories},
               {"scalars", scalars},         {"children", children},             {"polled", polled},
               {"mismatch", mismatch},       {"long-mismatch", long_mismatch},   {"rings", rings},
               {"backward-rings", backward_rings},
               {"killed", killed},           {"aborted", aborted},
               {"deadline", deadline},       {"aborted-by-another", aborted_by_another},
               {"destroyed", destroyed},     {"rounds", rounds},                 {"nothing", nothing},
               {"crowded", crowded},
               {"aborted-rounds", aborted_rounds},
               {"captured", captured},       {"captured-long", captured_long},
               {"captured-itself", captured_itself},
               {"rank-alone", rank_alone}};
  static const struct {
    const char* name;
    void (*body)(void);
  } alone[] = {{"fresh-thread", fresh_thread},
               {"untouched", untouched},
               {"runtime-says-0", runtime_says_0},
               {"runtime-says-1", runtime_says_1}};
  int ranks = count > 2 ? atoi(arguments[2]) : 0;
  int forks = count > 3 && strcmp(arguments[3], "processes") == 0;
  size_t at;
  if (count < 4 || ranks < 1 || ranks > RANKS_MAX) return 2;
  alarm(LIMIT_SECONDS);
  if (strcmp(arguments[1], "together") == 0) {
    together(ranks);
    printf("end\n");
    return 0;
  }
  for (at = 0; at < sizeof alone / sizeof *alone; at++) {
    if (strcmp(alone[at].name, arguments[1]) != 0) continue;
    alone[at].body();
    printf("end\n");
    return 0;
  }
  for (at = 0; at < sizeof parts / sizeof *parts; at++) {
    if (strcmp(parts[at].name, arguments[1]) != 0) continue;
    run(ranks, forks, forks && parts[at].body == killed ? ranks - 1 : -1, parts[at].body);
    printf("end\n");
    return 0;
  }
  return 2;
}
