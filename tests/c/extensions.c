/*
 * The additions of consort.h to NCCL, without those about failures (report.c): collectives of blocks that differ in length, host
 * streams, explanations, and options of single calls. C99 and C++17.
 * Called by `tests/tests/c/extensions.rs`, which reads what it prints.
 */
#define _POSIX_C_SOURCE 200809L

#include <consort.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, consortGetLastError(NULL)); \
      exit(1);                                                                               \
    }                                                                                        \
  } while (0)
#define OK(call) CHECK((call) == ncclSuccess)
#define REFUSED(call, words)                              \
  do {                                                    \
    CHECK((call) == ncclInvalidArgument);                 \
    CHECK(strstr(consortGetLastError(NULL), words) != NULL); \
  } while (0)

enum { RANKS_MAX = 4, ROUNDS = 7, ELEMENTS = 512 };
#define UNTOUCHED ((int64_t)-7)

/* ---- Blocks that differ -------------------------------------------------------------------------------------- */

enum how { AT_ONCE, IN_GROUP, IN_STREAM, IN_GROUP_AND_STREAM, NON_BLOCKING, HOWS };

struct rank {
  pthread_t thread;
  ncclComm_t comm;
  int rank, size;
  enum how how;
  cudaStream_t stream;
};

static ncclResult_t settled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    OK(ncclCommGetAsyncError(comm, &state));
    sched_yield();
  }
  return state;
}

/* A data call, however it is made. */
static void made(const struct rank* me, ncclResult_t result) {
  if (me->how == NON_BLOCKING) {
    CHECK(result == ncclSuccess || result == ncclInProgress);
    OK(settled(me->comm));
  } else {
    OK(result);
  }
}

struct blocks {
  size_t counts[RANKS_MAX], displacements[RANKS_MAX];
  size_t end;
};

/* Blocks of some lengths, zeros among them, in or against rank order, `gap` elements apart. */
static struct blocks lay(const size_t* counts, int size, size_t gap) {
  struct blocks blocks;
  size_t next = 0;
  int at;
  memset(&blocks, 0, sizeof blocks);
  for (at = 0; at < size; at++) {
    const int rank = gap == 0 ? at : size - 1 - at;
    blocks.counts[rank] = counts[rank];
    /* Where nothing is does not matter. */
    blocks.displacements[rank] = counts[rank] == 0 && gap != 0 ? SIZE_MAX / 2 : next + gap;
    if (counts[rank] != 0) next += gap + counts[rank];
  }
  CHECK(next <= ELEMENTS);
  blocks.end = next;
  return blocks;
}

static size_t count_of(int rank, int round) { return (size_t)((rank * 7 + round * 3) % 5 * 11); }

static size_t count_between(int from, int to, int round) { return (size_t)((from * 3 + to * 5 + round) % 4 * 9); }

static int64_t value(int from, int to, size_t at) { return from * 100000 + to * 1000 + (int64_t)at; }

static void fill(int64_t* start, int from, int to, size_t count) {
  size_t at;
  for (at = 0; at < count; at++) start[at] = value(from, to, at);
}

static void clear(int64_t* start) {
  size_t at;
  for (at = 0; at < ELEMENTS; at++) start[at] = UNTOUCHED;
}

/* Block r must be what rank r had for `to`; everything else, untouched. */
static void check_blocks(const int64_t* start, const struct blocks* blocks, int size, int to) {
  size_t at, seen = 0, total = 0;
  int rank;
  for (rank = 0; rank < size; rank++) {
    for (at = 0; at < blocks->counts[rank]; at++)
      CHECK(start[blocks->displacements[rank] + at] == value(rank, to, at));
    total += blocks->counts[rank];
  }
  for (at = 0; at < ELEMENTS; at++) seen += start[at] != UNTOUCHED;
  CHECK(seen == total);
}

/* Arrays as a call takes them, spoiled once it has returned. */
struct passed {
  size_t counts[RANKS_MAX], displacements[RANKS_MAX];
};

static struct passed pass(const struct blocks* blocks) {
  struct passed passed;
  memcpy(passed.counts, blocks->counts, sizeof passed.counts);
  memcpy(passed.displacements, blocks->displacements, sizeof passed.displacements);
  return passed;
}

static void round_of_all(const struct rank* me, int round) {
  static const size_t gaps[] = {0, 3};
  const size_t gap = gaps[round % 2];
  const int size = me->size, root = round % size;
  size_t counts[RANKS_MAX], out[RANKS_MAX], back[RANKS_MAX], mine, at;
  struct blocks all, to, from;
  struct passed passed, other;
  const size_t* where = gap == 0 ? NULL : passed.displacements;
  const size_t* where_else = gap == 0 ? NULL : other.displacements;
  ncclRedOp_t scaled;
  int64_t weight = me->rank + 2;
  int rank;
  int64_t gather_in[ELEMENTS], gather_out[ELEMENTS], fold_in[ELEMENTS], fold_out[ELEMENTS], scaled_out[ELEMENTS];
  int64_t exchange_in[ELEMENTS], exchange_out[ELEMENTS], root_out[ELEMENTS], root_in[ELEMENTS], own[ELEMENTS];
  for (rank = 0; rank < size; rank++) {
    counts[rank] = count_of(rank, round);
    out[rank] = count_between(me->rank, rank, round);
    back[rank] = count_between(rank, me->rank, round);
  }
  mine = counts[me->rank];
  all = lay(counts, size, gap);
  to = lay(out, size, gap);
  from = lay(back, size, gap);
  fill(gather_in, me->rank, 0, mine);
  clear(gather_out), clear(fold_out), clear(scaled_out), clear(exchange_out), clear(root_out), clear(own);
  for (rank = 0; rank < size; rank++) {
    if (counts[rank] != 0) fill(fold_in + all.displacements[rank], me->rank, rank, counts[rank]);
    if (counts[rank] != 0) fill(root_in + all.displacements[rank], me->rank, rank, counts[rank]);
    if (out[rank] != 0) fill(exchange_in + to.displacements[rank], me->rank, rank, out[rank]);
  }
  OK(ncclRedOpCreatePreMulSum(&scaled, &weight, ncclInt64, ncclScalarHostImmediate, me->comm));

  if (me->how == IN_GROUP || me->how == IN_GROUP_AND_STREAM) OK(ncclGroupStart());
  passed = pass(&all);
  made(me, consortAllGatherV(gather_in, gather_out, passed.counts, where, ncclInt64, me->comm, me->stream));
  memset(&passed, 0xff, sizeof passed);
  passed = pass(&all);
  made(me, consortReduceScatterV(fold_in, fold_out, passed.counts, where, ncclInt64, ncclSum, me->comm, me->stream));
  made(me, consortReduceScatterV(fold_in, scaled_out, passed.counts, where, ncclInt64, scaled, me->comm, me->stream));
  memset(&passed, 0xff, sizeof passed);
  passed = pass(&to);
  other = pass(&from);
  made(me, consortAllToAllV(exchange_in, exchange_out, passed.counts, where, other.counts, where_else, ncclInt64,
                            me->comm, me->stream));
  memset(&passed, 0xff, sizeof passed);
  memset(&other, 0xff, sizeof other);
  passed = pass(&all);
  if (me->rank == root) {
    made(me, consortGatherV(gather_in, root_out, mine, passed.counts, where, ncclInt64, root, me->comm, me->stream));
    made(me, consortScatterV(root_in, own, passed.counts, where, mine, ncclInt64, root, me->comm, me->stream));
  } else {
    made(me, consortGatherV(gather_in, NULL, mine, NULL, NULL, ncclInt64, root, me->comm, me->stream));
    made(me, consortScatterV(NULL, own, NULL, NULL, mine, ncclInt64, root, me->comm, me->stream));
  }
  memset(&passed, 0xff, sizeof passed);
  OK(ncclRedOpDestroy(scaled, me->comm));
  if (me->how == IN_GROUP || me->how == IN_GROUP_AND_STREAM) OK(ncclGroupEnd());
  if (me->stream != NULL) OK(consortStreamSynchronize(me->stream));

  check_blocks(gather_out, &all, size, 0);
  check_blocks(exchange_out, &from, size, me->rank);
  if (me->rank == root) check_blocks(root_out, &all, size, 0);
  for (at = 0; at < ELEMENTS; at++) {
    int64_t sum = 0, weighted = 0;
    for (rank = 0; rank < size; rank++) {
      sum += value(rank, me->rank, at);
      weighted += (rank + 2) * value(rank, me->rank, at);
    }
    CHECK(fold_out[at] == (at < mine ? sum : UNTOUCHED));
    CHECK(scaled_out[at] == (at < mine ? weighted : UNTOUCHED));
    CHECK(own[at] == (at < mine ? value(root, me->rank, at) : UNTOUCHED));
  }
}

/* This rank's block where it is in the buffer of all. */
static void round_in_place(const struct rank* me, int round) {
  const int size = me->size, root = round % size;
  size_t counts[RANKS_MAX], mine, at;
  struct blocks all;
  int64_t memory[ELEMENTS], apart[ELEMENTS], *own;
  const int is_root = me->rank == root;
  int rank;
  for (rank = 0; rank < size; rank++) counts[rank] = count_of(rank, round) + 1;
  mine = counts[me->rank];
  all = lay(counts, size, 2);
  own = memory + all.displacements[me->rank];
  clear(memory);
  fill(own, me->rank, 0, mine);
  OK(consortAllGatherV(own, memory, all.counts, all.displacements, ncclInt64, me->comm, NULL));
  check_blocks(memory, &all, size, 0);
  for (rank = 0; rank < size; rank++) fill(memory + all.displacements[rank], me->rank, rank, counts[rank]);
  OK(consortReduceScatterV(memory, own, all.counts, all.displacements, ncclInt64, ncclMax, me->comm, NULL));
  for (at = 0; at < mine; at++) CHECK(own[at] == value(size - 1, me->rank, at));
  clear(memory);
  fill(is_root ? own : apart, me->rank, 0, mine);
  OK(consortGatherV(is_root ? own : apart, is_root ? memory : NULL, mine, all.counts, all.displacements, ncclInt64,
                    root, me->comm, NULL));
  if (is_root) check_blocks(memory, &all, size, 0);
  OK(consortScatterV(memory, is_root ? own : apart, all.counts, all.displacements, mine, ncclInt64, root, me->comm,
                     NULL));
  for (at = 0; at < mine; at++) CHECK((is_root ? own : apart)[at] == value(me->rank, 0, at));
  if (is_root) check_blocks(memory, &all, size, 0);
}

static void* run_rank(void* argument) {
  struct rank* me = (struct rank*)argument;
  int round;
  for (round = 0; round < ROUNDS; round++) {
    round_of_all(me, round);
    if (me->how == AT_ONCE) round_in_place(me, round);
  }
  return NULL;
}

static void vectors(int size, enum how how) {
  struct rank ranks[RANKS_MAX];
  ncclComm_t comms[RANKS_MAX];
  int rank;
  if (how == NON_BLOCKING) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t begun;
    config.blocking = 0;
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    for (rank = 0; rank < size; rank++) OK(ncclCommInitRankConfig(&comms[rank], size, id, rank, &config));
    begun = ncclGroupEnd();
    CHECK(begun == ncclSuccess || begun == ncclInProgress);
    for (rank = 0; rank < size; rank++) OK(settled(comms[rank]));
  } else {
    OK(ncclCommInitAll(comms, size, NULL));
  }
  for (rank = 0; rank < size; rank++) {
    struct rank* it = &ranks[rank];
    it->comm = comms[rank];
    it->rank = rank;
    it->size = size;
    it->how = how;
    it->stream = NULL;
    if (how == IN_STREAM || how == IN_GROUP_AND_STREAM) OK(consortStreamCreate(&it->stream));
    CHECK(pthread_create(&it->thread, NULL, run_rank, it) == 0);
  }
  for (rank = 0; rank < size; rank++) CHECK(pthread_join(ranks[rank].thread, NULL) == 0);
  for (rank = 0; rank < size; rank++) {
    OK(consortStreamDestroy(ranks[rank].stream));
    OK(ncclCommDestroy(comms[rank]));
  }
}

static void wrong_vectors(void) {
  ncclComm_t comms[2];
  int64_t in[4] = {1, 2, 3, 4}, out[4] = {0, 0, 0, 0}, both[4] = {0, 5, 6, 0};
  const size_t counts[2] = {1, 2}, same[2] = {0, 0}, huge[2] = {SIZE_MAX / 2, 2}, far[2] = {0, SIZE_MAX - 1};
  size_t value_needed = 0;
  OK(ncclCommInitAll(comms, 2, NULL));
  REFUSED(consortAllGatherV(in, out, NULL, NULL, ncclInt64, comms[0], NULL), "counts is null");
  REFUSED(consortReduceScatterV(in, out, NULL, same, ncclInt64, ncclSum, comms[0], NULL), "counts is null");
  REFUSED(consortAllToAllV(in, out, NULL, NULL, counts, NULL, ncclInt64, comms[0], NULL), "sendcounts is null");
  REFUSED(consortAllToAllV(in, out, counts, NULL, NULL, NULL, ncclInt64, comms[0], NULL), "recvcounts is null");
  REFUSED(consortGatherV(in, out, 1, NULL, NULL, ncclInt64, 0, comms[0], NULL), "recvcounts is null");
  REFUSED(consortScatterV(in, out, NULL, NULL, 1, ncclInt64, 0, comms[0], NULL), "sendcounts is null");
  REFUSED(consortAllGatherV(in, out, huge, NULL, ncclInt64, comms[0], NULL), "exceed the address space");
  REFUSED(consortReduceScatterV(in, out, counts, far, ncclInt64, ncclSum, comms[0], NULL), "exceed the address space");
  REFUSED(consortAllGatherV(in, out, counts, same, ncclInt64, comms[0], NULL), "ranks 0 and 1 of the output overlap");
  REFUSED(consortAllGatherV(NULL, out, counts, NULL, ncclInt64, comms[0], NULL), "send buffer is null");
  REFUSED(consortAllGatherV(in, NULL, counts, NULL, ncclInt64, comms[0], NULL), "receive buffer is null");
  REFUSED(consortAllGatherV(out + 1, out, counts, NULL, ncclInt64, comms[0], NULL), "overlap, but not as");
  REFUSED(consortAllToAllV(in, in, counts, NULL, counts, NULL, ncclInt64, comms[0], NULL), "there is none for");
  REFUSED(consortGatherV(in, out, 2, counts, NULL, ncclInt64, 0, comms[0], NULL), "has 16 bytes and must have 8");
  REFUSED(consortScatterV(in, out, counts, NULL, 1, ncclInt64, 1, comms[1], NULL), "has 8 bytes and must have 16");
  REFUSED(consortGatherV(in, out, 1, counts, NULL, ncclInt64, 2, comms[0], NULL), "rank 2 does not exist");
  REFUSED(consortScatterV(in, out, counts, NULL, 1, ncclInt64, -1, comms[0], NULL), "rank -1 is negative");
  REFUSED(consortAllGatherV(in, out, counts, NULL, (ncclDataType_t)99, comms[0], NULL), "no data type 99");
  CHECK(consortReduceScatterV(in, out, counts, NULL, ncclInt64, (ncclRedOp_t)99, comms[0], NULL) == ncclInvalidArgument);
  REFUSED(consortAllGatherV(in, out, counts, NULL, ncclInt64, NULL, NULL), "communicator handle is null");
  /* One that is refused fails its group. */
  OK(ncclGroupStart());
  OK(consortAllGatherV(in, out, counts, NULL, ncclInt64, comms[0], NULL));
  REFUSED(consortAllGatherV(in, out, NULL, NULL, ncclInt64, comms[1], NULL), "counts is null");
  CHECK(ncclGroupEnd() == ncclInvalidArgument);
  CHECK(out[0] == 0);
  /* None of it was the communicators' end. Both ranks in one thread. */
  OK(ncclGroupStart());
  OK(consortAllGatherV(in, out, counts, NULL, ncclInt64, comms[0], NULL));
  OK(consortAllGatherV(both + 1, both, counts, NULL, ncclInt64, comms[1], NULL));
  OK(ncclGroupEnd());
  CHECK(out[0] == 1 && out[2] == 6 && both[0] == 1);
  OK(consortCommStatus(comms[0], NULL, 0, &value_needed));
  CHECK(value_needed == 1);
  OK(ncclCommDestroy(comms[0]));
  OK(ncclCommDestroy(comms[1]));
}

/* Counts that differ between ranks. */
static void* gather_other_counts(void* argument) {
  struct rank* me = (struct rank*)argument;
  size_t counts[2] = {4, 4};
  int64_t in[4] = {0, 0, 0, 0}, out[8];
  if (me->rank == 1) counts[0] = 3;
  CHECK(consortAllGatherV(in, out, counts, NULL, ncclInt64, me->comm, NULL) == ncclInvalidUsage);
  CHECK(strstr(consortGetLastError(me->comm), "all_gather_v of 4 int64") != NULL);
  return NULL;
}

static void other_counts(void) {
  struct rank ranks[2];
  ncclComm_t comms[2];
  int rank;
  OK(ncclCommInitAll(comms, 2, NULL));
  for (rank = 0; rank < 2; rank++) {
    ranks[rank].rank = rank;
    ranks[rank].comm = comms[rank];
    CHECK(pthread_create(&ranks[rank].thread, NULL, gather_other_counts, &ranks[rank]) == 0);
  }
  for (rank = 0; rank < 2; rank++) CHECK(pthread_join(ranks[rank].thread, NULL) == 0);
  for (rank = 0; rank < 2; rank++) OK(ncclCommDestroy(comms[rank]));
}

/* ---- Streams ------------------------------------------------------------------------------------------------- */

static ncclResult_t add_up(float* both, ncclComm_t comm, cudaStream_t stream) {
  return ncclAllReduce(both, both, 1, ncclFloat32, ncclSum, comm, stream);
}

static void streams(void) {
  ncclComm_t a[2], b[2], c[2];
  consortStream_t first, second, third;
  float x[2] = {1, 2}, y[2] = {10, 20};
  double outer = 0;
  int at;
  OK(ncclCommInitAll(a, 2, NULL));
  OK(ncclCommInitAll(b, 2, NULL));
  OK(ncclCommInitAll(c, 2, NULL));
  OK(consortStreamCreate(&first));
  OK(consortStreamCreate(&second));
  OK(consortStreamCreate(&third));
  CHECK(first != second && first != NULL);
  OK(consortStreamQuery(first));
  OK(consortStreamSynchronize(first));

  /* Returns although the other rank has not called it yet. */
  OK(add_up(&x[0], a[0], first));
  CHECK(consortStreamQuery(first) == ncclInProgress);
  OK(add_up(&x[1], a[1], second));
  OK(consortStreamSynchronize(first));
  OK(consortStreamSynchronize(second));
  OK(consortStreamQuery(first));
  CHECK(x[0] == 3 && x[1] == 3);

  /* In order, within a stream and between streams that share a communicator. */
  x[0] = x[1] = 1;
  for (at = 0; at < 10; at++) OK(add_up(&x[0], a[0], at % 2 == 0 ? first : third));
  CHECK(consortStreamQuery(third) == ncclInProgress);
  for (at = 0; at < 10; at++) OK(add_up(&x[1], a[1], second));
  OK(consortStreamSynchronize(third));
  CHECK(x[0] == 1024);
  OK(consortStreamSynchronize(second));
  CHECK(x[1] == 1024);

  /* Without a stream: after what is in streams, and complete. A foreign stream is none. */
  for (at = 0; at < 2; at++) {
    cudaStream_t none = at == 0 ? NULL : (cudaStream_t)(void*)x;
    x[0] = x[1] = 1;
    OK(add_up(&x[1], a[1], second));
    OK(add_up(&x[1], a[1], second));
    OK(add_up(&x[0], a[0], first));
    OK(add_up(&x[0], a[0], none));
    CHECK(x[0] == 4);
    OK(consortStreamSynchronize(second));
  }

  /* A group in several streams begins after all, and all go on after it. */
  x[0] = x[1] = 1;
  y[0] = y[1] = 10;
  OK(add_up(&x[0], a[0], first));
  OK(add_up(&y[0], b[0], third));
  OK(ncclGroupStart());
  OK(add_up(&x[0], a[0], first));
  OK(add_up(&y[0], b[0], third));
  OK(ncclGroupEnd());
  for (at = 0; at < 2; at++) {
    CHECK(consortStreamQuery(first) == ncclInProgress && consortStreamQuery(third) == ncclInProgress);
    OK(add_up(&x[1], a[1], second));
    OK(add_up(&y[1], b[1], second));
  }
  OK(consortStreamSynchronize(first));
  CHECK(x[0] == 4 && y[0] == 40);
  OK(consortStreamQuery(third));

  /* A group with a call that is in no stream is complete when it ends. */
  OK(add_up(&x[1], a[1], second));
  OK(add_up(&y[1], b[1], second));
  OK(ncclGroupStart());
  OK(add_up(&x[0], a[0], first));
  OK(add_up(&y[0], b[0], NULL));
  OK(ncclGroupEnd());
  CHECK(x[0] == 8 && y[0] == 80);
  OK(consortStreamQuery(first));
  OK(consortStreamSynchronize(second));

  /* A failure stays until it is asked for, and is returned once. */
  OK(consortThreadSetTimeout(0.3, &outer));
  OK(add_up(&x[0], a[0], first));
  OK(add_up(&y[0], b[0], first));
  OK(consortThreadSetTimeout(outer, NULL));
  OK(add_up(&y[1], b[1], second));
  CHECK(consortStreamSynchronize(first) == ncclTimeout);
  CHECK(strstr(consortGetLastError(NULL), "did not finish") != NULL);
  OK(consortStreamSynchronize(first));
  OK(consortStreamSynchronize(second));
  CHECK(y[0] == 160 && y[1] == 160);
  OK(consortThreadSetTimeout(0.3, &outer));
  OK(add_up(&y[0], b[0], first));
  while ((at = (int)consortStreamQuery(first)) == ncclInProgress) sched_yield();
  CHECK(at == ncclTimeout);
  OK(consortStreamQuery(first));
  OK(add_up(&x[0], c[0], first));
  OK(consortThreadSetTimeout(outer, NULL));
  CHECK(consortStreamDestroy(first) == ncclTimeout);

  REFUSED(consortStreamDestroy(first), "null, destroyed or not one");
  REFUSED(consortStreamSynchronize(first), "null, destroyed or not one");
  REFUSED(consortStreamQuery(first), "null, destroyed or not one");
  REFUSED(consortStreamQuery(NULL), "null, destroyed or not one");
  REFUSED(consortStreamSynchronize((consortStream_t)(void*)x), "null, destroyed or not one");
  REFUSED(consortStreamDestroy((consortStream_t)(void*)b[0]), "null, destroyed or not one");
  REFUSED(consortStreamCreate(NULL), "stream is null");
  OK(ncclCommDestroy(c[0]));
  OK(ncclCommDestroy(c[1]));
  OK(ncclCommInitAll(c, 1, NULL));
  REFUSED(add_up(&x[0], c[0], first), "the stream was destroyed");
  OK(add_up(&x[0], c[0], second));
  OK(consortStreamSynchronize(second));
  OK(ncclCommDestroy(c[0]));
  OK(consortStreamDestroy(NULL));
  OK(consortStreamDestroy(second));
  OK(consortStreamDestroy(third));
  for (at = 0; at < 2; at++) {
    OK(ncclCommDestroy(a[at]));
    OK(ncclCommDestroy(b[at]));
  }
}

/* ---- Explanations and options of a call ---------------------------------------------------------------------- */

static const struct {
  consortCollective_t number;
  const char* name;
} collectives[] = {
    {CONSORT_ALL_REDUCE, "all_reduce"},         {CONSORT_BROADCAST, "broadcast"},
    {CONSORT_REDUCE, "reduce"},                 {CONSORT_ALL_GATHER, "all_gather"},
    {CONSORT_REDUCE_SCATTER, "reduce_scatter"}, {CONSORT_ALL_TO_ALL, "all_to_all"},
    {CONSORT_GATHER, "gather"},                 {CONSORT_SCATTER, "scatter"},
};

static void explain(void) {
  static char text[1 << 16];
  char small[8];
  ncclComm_t comms[4];
  size_t needed = 0, at;
  OK(ncclCommInitAll(comms, 4, NULL));
  for (at = 0; at < sizeof collectives / sizeof *collectives; at++) {
    OK(consortCommExplain(comms[1], collectives[at].number, 4096, CONSORT_JSON, text, sizeof text, &needed));
    CHECK(needed == strlen(text) + 1);
    printf("json %s %s\n", collectives[at].name, text);
  }
  OK(consortCommExplain(comms[1], CONSORT_ALL_REDUCE, 1 << 20, CONSORT_TEXT, text, sizeof text, NULL));
  printf("text<<<\n%s>>>\n", text);
  OK(consortCommExplain(comms[1], CONSORT_ALL_REDUCE, 1 << 20, CONSORT_TEXT, small, sizeof small, &needed));
  CHECK(needed == strlen(text) + 1 && strcmp(small, "all_red") == 0);
  REFUSED(consortCommExplain(comms[1], (consortCollective_t)8, 1, CONSORT_TEXT, small, sizeof small, NULL),
          "no collective 8");
  REFUSED(consortCommExplain(comms[1], CONSORT_GATHER, 1, (consortFormat_t)2, small, sizeof small, NULL),
          "no report format 2");
  REFUSED(consortCommExplain(comms[1], CONSORT_GATHER, 1, CONSORT_TEXT, NULL, 1, NULL), "buffer is null");
  REFUSED(consortCommExplain(NULL, CONSORT_GATHER, 1, CONSORT_TEXT, small, sizeof small, NULL), "handle is null");
  for (at = 0; at < 4; at++) OK(ncclCommDestroy(comms[at]));
}

static void options_of_a_call(void) {
  ncclComm_t comms[2];
  consortStream_t other;
  float x[2] = {1, 2};
  ncclConfigExt_t deadline = {NULL, {CONSORT_EXTENSION_VENDOR, CONSORT_EXTENSION_TIMEOUT_MS}, {200}};
  ncclConfigExt_t algorithm = {&deadline, {CONSORT_EXTENSION_VENDOR, CONSORT_EXTENSION_ALGORITHM}, {0}};
  ncclConfigExt_t unknown = {NULL, {CONSORT_EXTENSION_VENDOR, 77}, {0}};
  ncclConfigExt_t of_others = {NULL, {CONSORT_EXTENSION_VENDOR + 1, 77}, {0}};
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  OK(ncclCommInitAll(comms, 2, NULL));
  OK(consortStreamCreate(&other));
  deadline.val.i = 20000;
  algorithm.val.s = "tree";
  config.ext = &algorithm;
  OK(ncclAllReduceConfig(&x[1], &x[1], 1, ncclFloat32, ncclSum, comms[1], other, &config));
  OK(ncclAllReduceConfig(&x[0], &x[0], 1, ncclFloat32, ncclSum, comms[0], NULL, &config));
  CHECK(x[0] == 3);
  OK(consortStreamSynchronize(other));
  algorithm.val.s = "pigeons";
  REFUSED(ncclAllReduceConfig(x, x, 1, ncclFloat32, ncclSum, comms[0], NULL, &config), "pigeons");
  algorithm.val.s = NULL;
  REFUSED(ncclAllReduceConfig(x, x, 1, ncclFloat32, ncclSum, comms[0], NULL, &config), "is no text");
  config.ext = &unknown;
  REFUSED(ncclAllReduceConfig(x, x, 1, ncclFloat32, ncclSum, comms[0], NULL, &config), "no option 77");
  deadline.val.i = 0;
  config.ext = &deadline;
  REFUSED(ncclAllReduceConfig(x, x, 1, ncclFloat32, ncclSum, comms[0], NULL, &config), "1 or more milliseconds");
  config.ext = &of_others;
  OK(ncclAllReduceConfig(&x[1], &x[1], 1, ncclFloat32, ncclSum, comms[1], other, &config));
  OK(ncclAllReduceConfig(&x[0], &x[0], 1, ncclFloat32, ncclSum, comms[0], NULL, &config));
  OK(consortStreamSynchronize(other));
  /* No other rank joins. */
  deadline.val.i = 200;
  config.ext = &deadline;
  CHECK(ncclAllReduceConfig(&x[0], &x[0], 1, ncclFloat32, ncclSum, comms[0], NULL, &config) == ncclTimeout);
  OK(ncclCommDestroy(comms[0]));
  OK(ncclCommDestroy(comms[1]));
  /* Ranks that name different algorithms get an error. */
  OK(ncclCommInitAll(comms, 2, NULL));
  deadline.val.i = 20000;
  algorithm.val.s = "tree";
  config.ext = &algorithm;
  OK(ncclAllReduceConfig(&x[1], &x[1], 1, ncclFloat32, ncclSum, comms[1], other, &config));
  algorithm.val.s = "ring";
  CHECK(ncclAllReduceConfig(&x[0], &x[0], 1, ncclFloat32, ncclSum, comms[0], NULL, &config) == ncclInvalidUsage);
  printf("differ %s\n", consortGetLastError(comms[0]));
  CHECK(consortStreamDestroy(other) == ncclInvalidUsage);
  OK(ncclCommDestroy(comms[0]));
  OK(ncclCommDestroy(comms[1]));
}

static void values(void) {
  printf("options %d %d %d\n", CONSORT_EXTENSION_VENDOR, CONSORT_EXTENSION_TIMEOUT_MS, CONSORT_EXTENSION_ALGORITHM);
  printf("sizes %d %d\n", (int)sizeof(consortCollective_t), (int)sizeof(consortStream_t));
}

int main(int count, char** arguments) {
  const char* part = count > 1 ? arguments[1] : "";
  int size, how;
  alarm(100);
  if (strcmp(part, "vectors") == 0) {
    for (how = 0; how < HOWS; how++)
      for (size = 1; size <= RANKS_MAX; size++) vectors(size, (enum how)how);
  } else if (strcmp(part, "wrong-vectors") == 0) {
    wrong_vectors();
    other_counts();
  } else if (strcmp(part, "streams") == 0) {
    streams();
  } else if (strcmp(part, "explain") == 0) {
    explain();
  } else if (strcmp(part, "options") == 0) {
    options_of_a_call();
  } else if (strcmp(part, "values") == 0) {
    values();
  } else {
    return 2;
  }
  printf("end\n");
  return 0;
}
