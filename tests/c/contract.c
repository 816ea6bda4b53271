/*
 * NCCL's contract where processes die, hang or never join: one rank of a job, on host memory.
 * Called by `tests/tests/c/contract.rs`: contract SCENARIO RANK SIZE FILE, where rank 0 writes the id into the file.
 */
#define _POSIX_C_SOURCE 200809L

#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                             \
  do {                                                                                               \
    if (!(condition)) {                                                                              \
      fprintf(stderr, "rank %d, line %d: %s: %s\n", rank, __LINE__, #condition, ncclGetLastError(NULL)); \
      exit(1);                                                                                       \
    }                                                                                                \
  } while (0)
#define OK(call) CHECK((call) == ncclSuccess)

static int rank, size;
static const char* file;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void pause_for(double seconds) {
  struct timespec time;
  time.tv_sec = (time_t)seconds;
  time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
  nanosleep(&time, NULL);
}

/* The id: rank 0 makes it, the others find it in the file. */
static ncclUniqueId meeting(void) {
  ncclUniqueId id;
  char unfinished[4096];
  FILE* stream;
  if (rank == 0) {
    OK(ncclGetUniqueId(&id));
    CHECK(snprintf(unfinished, sizeof unfinished, "%s.unfinished", file) < (int)sizeof unfinished);
    stream = fopen(unfinished, "wb");
    CHECK(stream != NULL);
    CHECK(fwrite(&id, sizeof id, 1, stream) == 1 && fclose(stream) == 0);
    CHECK(rename(unfinished, file) == 0);
    return id;
  }
  while ((stream = fopen(file, "rb")) == NULL) pause_for(0.005);
  CHECK(fread(&id, sizeof id, 1, stream) == 1);
  fclose(stream);
  return id;
}

static ncclComm_t join(void) {
  ncclComm_t comm = NULL;
  OK(ncclCommInitRank(&comm, size, meeting(), rank));
  return comm;
}

#define COUNT 50000

/* All ranks contribute 1 + their rank. */
static ncclResult_t reduce(ncclComm_t comm, int mine, int* sum) {
  static int data[COUNT];
  ncclResult_t result;
  int i;
  for (i = 0; i < COUNT; i++) data[i] = mine + 1;
  result = ncclAllReduce(data, data, COUNT, ncclInt32, ncclSum, comm, NULL);
  for (i = 1; i < COUNT && result == ncclSuccess; i++) CHECK(data[i] == data[0]);
  *sum = data[0];
  return result;
}

struct watch {
  ncclComm_t comm;
  ncclResult_t seen;
};

/* Polls until something is wrong, as clients' watchdogs do. */
static void* watchdog(void* argument) {
  struct watch* watch = argument;
  do {
    pause_for(0.002);
    OK(ncclCommGetAsyncError(watch->comm, &watch->seen));
  } while (watch->seen == ncclSuccess);
  return NULL;
}

static void* kill_soon(void* nothing) {
  (void)nothing;
  pause_for(0.2);
  raise(SIGKILL);
  return NULL;
}

/* All-reduces without end, in which `victim` is killed; the others return the result of the last one. */
static ncclComm_t lose(int victim) {
  ncclComm_t comm = join();
  pthread_t thread;
  struct watch watch;
  ncclResult_t result;
  char named[32];
  int sum;
  if (rank == victim) CHECK(pthread_create(&thread, NULL, kill_soon, NULL) == 0);
  watch.comm = comm;
  watch.seen = ncclSuccess;
  if (rank != victim) CHECK(pthread_create(&thread, NULL, watchdog, &watch) == 0);
  while ((result = reduce(comm, rank, &sum)) == ncclSuccess) CHECK(sum == size * (size + 1) / 2);
  CHECK(result == ncclRemoteError);
  snprintf(named, sizeof named, "rank %d", victim);
  CHECK(strstr(ncclGetLastError(comm), named) != NULL);
  CHECK(strstr(ncclGetLastError(NULL), named) != NULL);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(watch.seen == ncclRemoteError);
  /* It stays so. */
  CHECK(reduce(comm, rank, &sum) == ncclRemoteError);
  return comm;
}

static void killed(void) {
  OK(ncclCommAbort(lose(size - 1)));
}

static void shrink(void) {
  ncclComm_t comm = lose(1), smaller = NULL;
  int excluded[1] = {1}, new_rank = -1, new_size = -1, sum, round;
  OK(ncclCommShrink(comm, excluded, 1, &smaller, NULL, NCCL_SHRINK_ABORT));
  OK(ncclCommDestroy(comm));
  OK(ncclCommUserRank(smaller, &new_rank));
  OK(ncclCommCount(smaller, &new_size));
  CHECK(new_size == size - 1 && new_rank == (rank < 1 ? rank : rank - 1));
  for (round = 0; round < 20; round++) {
    OK(reduce(smaller, new_rank, &sum));
    CHECK(sum == new_size * (new_size + 1) / 2);
  }
  OK(ncclCommFinalize(smaller));
  OK(ncclCommDestroy(smaller));
}

/* Polls until nothing is in progress; returns the communicator's state. */
static ncclResult_t settled(ncclComm_t comm) {
  ncclResult_t result = ncclInProgress;
  while (result == ncclInProgress) {
    pause_for(0.001);
    OK(ncclCommGetAsyncError(comm, &result));
  }
  return result;
}

static void nothing(void) {}

/* Marks, by a file, that this rank has come here. */
static void come(void) {
  char name[4096];
  FILE* stream;
  CHECK(snprintf(name, sizeof name, "%s.%d", file, rank) < (int)sizeof name);
  stream = fopen(name, "wb");
  CHECK(stream != NULL && fclose(stream) == 0);
}

/* Waits until the ranks below `ranks` have all come. */
static void meet(int ranks) {
  char name[4096];
  FILE* stream;
  int other;
  come();
  for (other = 0; other < ranks; other++) {
    CHECK(snprintf(name, sizeof name, "%s.%d", file, other) < (int)sizeof name);
    while ((stream = fopen(name, "rb")) == NULL) pause_for(0.005);
    fclose(stream);
  }
}

/* As `reduce`, on a communicator that does not block; what is done when it has begun. */
static ncclResult_t reduce_polled(ncclComm_t comm, int mine, int* sum, void (*begun)(void)) {
  static int data[COUNT];
  ncclResult_t result;
  int i;
  for (i = 0; i < COUNT; i++) data[i] = mine + 1;
  result = ncclAllReduce(data, data, COUNT, ncclInt32, ncclSum, comm, NULL);
  CHECK(result == ncclSuccess || result == ncclInProgress);
  begun();
  result = settled(comm);
  for (i = 1; i < COUNT && result == ncclSuccess; i++) CHECK(data[i] == data[0]);
  *sum = data[0];
  return result;
}

/* Rank 1 dies while the others' all-reduce waits for it. No call of theirs fails: they poll, ask why, and shrink. */
static void polled(void) {
  ncclUniqueId id = meeting();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm = NULL, smaller = NULL;
  int excluded[1] = {1}, new_rank = -1, new_size = -1, sum, round;
  ncclResult_t result;
  config.blocking = 0;
  result = ncclCommInitRankConfig(&comm, size, id, rank, &config);
  CHECK(result == ncclSuccess || result == ncclInProgress);
  OK(settled(comm));
  for (round = 0; round < 5; round++) {
    OK(reduce_polled(comm, rank, &sum, nothing));
    CHECK(sum == size * (size + 1) / 2);
  }
  CHECK(strcmp(ncclGetLastError(NULL), "") == 0);
  /* Not before the others' calls have begun, or these would fail. */
  if (rank == 1) meet(size), raise(SIGKILL);
  CHECK(reduce_polled(comm, rank, &sum, come) == ncclRemoteError);
  CHECK(strstr(ncclGetLastError(NULL), "rank 1") != NULL);
  CHECK(strstr(ncclGetLastError(comm), "rank 1") != NULL);
  CHECK(ncclCommShrink(comm, excluded, 1, &smaller, NULL, NCCL_SHRINK_ABORT) == ncclInProgress);
  OK(settled(comm));
  CHECK(smaller != NULL);
  OK(settled(smaller));
  /* The old one cannot be used for data nevertheless. */
  CHECK(ncclAllReduce(&sum, &sum, 1, ncclInt32, ncclSum, comm, NULL) == ncclRemoteError);
  OK(settled(comm));
  OK(ncclCommDestroy(comm));
  OK(ncclCommUserRank(smaller, &new_rank));
  OK(ncclCommCount(smaller, &new_size));
  CHECK(new_size == size - 1 && new_rank == (rank < 1 ? rank : rank - 1));
  for (round = 0; round < 20; round++) {
    OK(reduce_polled(smaller, new_rank, &sum, nothing));
    CHECK(sum == new_size * (new_size + 1) / 2);
  }
  result = ncclCommFinalize(smaller);
  CHECK(result == ncclSuccess || result == ncclInProgress);
  OK(settled(smaller));
  OK(ncclCommDestroy(smaller));
}

static double aborted_at;

static void* abort_soon(void* comm) {
  pause_for(0.2);
  aborted_at = now();
  OK(ncclCommAbort(comm));
  return NULL;
}

/* Rank 0 waits for rank 1, which makes no call; a thread of rank 0 aborts. */
static void blocked(void) {
  ncclComm_t comm = join();
  ncclResult_t result = ncclSuccess;
  pthread_t thread;
  int sum;
  if (rank == 0) {
    CHECK(pthread_create(&thread, NULL, abort_soon, comm) == 0);
    result = reduce(comm, rank, &sum);
    CHECK(result != ncclSuccess && result != ncclInProgress);
    CHECK(pthread_join(thread, NULL) == 0);
    /* A second is the contract; the rest is for cores that are taken away. */
    CHECK(now() - aborted_at < 4);
    return;
  }
  while (result == ncclSuccess) {
    pause_for(0.005);
    OK(ncclCommGetAsyncError(comm, &result));
  }
  CHECK(result == ncclRemoteError);
  OK(ncclCommAbort(comm));
}

/* The last rank never joins; the others poll and abort, all of them, as each learns that another has. */
static void never(void) {
  ncclUniqueId id = meeting();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm = NULL;
  ncclResult_t result;
  double begun;
  int count;
  if (rank == size - 1) return;
  config.blocking = 0;
  result = ncclCommInitRankConfig(&comm, size, id, rank, &config);
  CHECK(result == ncclInProgress && comm != NULL);
  for (count = 0; count < 20; count++) {
    pause_for(0.01);
    OK(ncclCommGetAsyncError(comm, &result));
    CHECK(result == ncclInProgress);
  }
  CHECK(ncclCommCount(comm, &count) == ncclInvalidArgument);
  meet(size - 1);
  begun = now();
  OK(ncclCommAbort(comm));
  /* As above. */
  CHECK(now() - begun < 4);
}

int main(int count, char** arguments) {
  const char* part;
  if (count != 5) return 2;
  part = arguments[1];
  rank = atoi(arguments[2]);
  size = atoi(arguments[3]);
  file = arguments[4];
  alarm(60);
  if (strcmp(part, "killed") == 0) killed();
  else if (strcmp(part, "shrink") == 0) shrink();
  else if (strcmp(part, "polled") == 0) polled();
  else if (strcmp(part, "blocked") == 0) blocked();
  else if (strcmp(part, "never") == 0) never();
  else return 2;
  printf("end\n");
  return 0;
}
