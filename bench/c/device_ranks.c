/*
 * Every collective of a library with NCCL's functions, on ranks that share a GPU or have one each: checked on the
 * host against arithmetic of its own, and timed. No header of CUDA or NCCL is needed to build it.
 *
 *   cc -std=c99 -O2 device_ranks.c -o device_ranks -ldl -lpthread -lm
 *   device_ranks [-p PROCESSES] [-t THREADS] [-g RANKS A THREAD DRIVES] [OPTION...] LIBRARY
 *
 *   --mode M          check  every collective, type and operator asked for, each element compared (default)
 *                     time   medians over samples of many calls between two events; the slowest rank's
 *                     launch one call at a time: until it returns, until the stream is empty, between two events
 *                     memory what a communicator takes of the device: made, after first calls, after its end
 *   --devices 0,1     rank r is on the (r modulo their number)th of these (0)
 *   --memory host     ordinary memory and no driver, for a library that takes it (device)
 *   --hosts H         process p says by NCCL_HOSTID that it is on host p modulo H
 *   --collectives L   of allreduce,reduce,broadcast,allgather,reducescatter,alltoall,gather,scatter,sendrecv (all)
 *   --types L --ops L names as nccl-tests has them (all; float and sum when timed)
 *   --sizes L         bytes of the longest buffer of a rank: 8,1K,4M or 8:4M:16, which multiplies (8,1000,64K,1M)
 *   --place P         out, in or both (both)
 *   --values V        exact: any order of folding gives the same bits; rounding: within the bound of any order;
 *                     ordered: rounding, and the bits are those of the fold from rank 0 to the last, rounded after
 * each; once: the same, but narrow floats are folded in 32 bits and rounded once (exact)
 *   --group-messages K  instead of collectives: groups in which every rank sends K messages of each size to every peer
 *                     and receives K from each
 *   --blocks N        minCTAs = maxCTAs = N
 *   --samples N       a time is the median of N samples (20)     --calls N  in a sample at most (200)
 *   --seed N --limit SECONDS
 *
 * Prints one JSON object a line, and one of progress about every second. Ends with 1 if anything was wrong, 3 if the
 * library refused to make the communicators, 4 if a library is not there, 124 if it took longer than the limit.
 * Absent: several devices of one thread, graphs, windows, one-sided calls.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "device/asked.h"
#include "device/job.h"
#include "device/libraries.h"
#include "device/messages.h"
#include "device/ranks.h"
#include "device/values.h"

/* A call to be made: the same on all ranks. `count` is NCCL's. */
typedef struct {
  enum collective what;
  int type, op, root, in_place;
  size_t count, width;
} call_t;

static int folds(enum collective what) { return what == ALL_REDUCE || what == REDUCE || what == REDUCE_SCATTER; }
static int is_in_blocks(enum collective what) {
  return what == ALL_GATHER || what == REDUCE_SCATTER || what == ALL_TO_ALL || what == GATHER || what == SCATTER;
}
static int has_in_place(enum collective what) { return what != ALL_TO_ALL && what != SEND_RECV; }

/* Elements a rank passes and gets. */
static size_t sent(const call_t *call, int rank) {
  int all = call->what == REDUCE_SCATTER || call->what == ALL_TO_ALL || call->what == SCATTER;
  if ((call->what == SCATTER || call->what == BROADCAST) && rank != call->root) return 0;
  return call->count * (size_t)(all ? asked.ranks : 1);
}
static size_t received(const call_t *call, int rank) {
  int all = call->what == ALL_GATHER || call->what == ALL_TO_ALL || call->what == GATHER;
  if ((call->what == GATHER || call->what == REDUCE) && rank != call->root) return 0;
  return call->count * (size_t)(all ? asked.ranks : 1);
}

/* Where a rank's input and output are: apart, or as NCCL defines in place. */
static void places(const rank_t *rank, const call_t *call, unsigned char **input, unsigned char **output) {
  size_t block = (size_t)rank->rank * call->count * call->width;
  *input = rank->from + GUARD, *output = rank->to + GUARD;
  if (!call->in_place) return;
  *input = *output;
  if (call->what == ALL_GATHER || (call->what == GATHER && rank->rank == call->root)) *input += block;
  if (call->what == REDUCE_SCATTER || (call->what == SCATTER && rank->rank == call->root)) *output += block;
}

static void exchange(const rank_t *rank, const call_t *call, const unsigned char *input, unsigned char *output) {
  size_t block = call->count * call->width;
  int n = asked.ranks, me = rank->rank;
  for (int other = 0; other < n; other++) {
    int sends = call->what == ALL_TO_ALL || (call->what == SCATTER && me == call->root) ||
                (call->what == GATHER && other == call->root) || (call->what == SEND_RECV && other == (me + 1) % n);
    int gets = call->what == ALL_TO_ALL || (call->what == GATHER && me == call->root) ||
               (call->what == SCATTER && other == call->root) ||
               (call->what == SEND_RECV && other == (me + n - 1) % n);
    size_t from = call->what == ALL_TO_ALL || call->what == SCATTER ? (size_t)other * block : 0;
    size_t to = call->what == ALL_TO_ALL || call->what == GATHER ? (size_t)other * block : 0;
    /* In place, the root's own block lies where it belongs. */
    if (call->in_place && other == me && me == call->root) continue;
    if (sends) nccl_ok(nccl.send(input + from, call->count, call->type, other, rank->comm, rank->stream), "ncclSend");
    if (gets) nccl_ok(nccl.recv(output + to, call->count, call->type, other, rank->comm, rank->stream), "ncclRecv");
  }
}

/* Makes the call for all ranks of this thread. */
static void issue(rank_t *ranks, const call_t *call, const int *ops) {
  int messages = call->what == SEND_RECV || (call->what == ALL_TO_ALL && !nccl.all_to_all) ||
                 (call->what == GATHER && !nccl.gather) || (call->what == SCATTER && !nccl.scatter);
  if (asked.group > 1 || messages) nccl_ok(nccl.group_start(), "ncclGroupStart");
  for (int local = 0; local < asked.group; local++) {
    rank_t *rank = &ranks[local];
    unsigned char *input, *output;
    int op = call->op == PREMUL ? ops[local] : call->op;
    places(rank, call, &input, &output);
    use(rank);
    int result = 0;
    if (messages) exchange(rank, call, input, output);
    else switch (call->what) {
        case ALL_REDUCE:
          result = nccl.all_reduce(input, output, call->count, call->type, op, rank->comm, rank->stream);
          break;
        case REDUCE:
          result = nccl.reduce(input, output, call->count, call->type, op, call->root, rank->comm, rank->stream);
          break;
        case BROADCAST:
          result = nccl.broadcast(input, output, call->count, call->type, call->root, rank->comm, rank->stream);
          break;
        case ALL_GATHER:
          result = nccl.all_gather(input, output, call->count, call->type, rank->comm, rank->stream);
          break;
        case REDUCE_SCATTER:
          result = nccl.reduce_scatter(input, output, call->count, call->type, op, rank->comm, rank->stream);
          break;
        case ALL_TO_ALL:
          result = nccl.all_to_all(input, output, call->count, call->type, rank->comm, rank->stream);
          break;
        case GATHER:
          result = nccl.gather(input, output, call->count, call->type, call->root, rank->comm, rank->stream);
          break;
        case SCATTER:
          result = nccl.scatter(input, output, call->count, call->type, call->root, rank->comm, rank->stream);
          break;
        case SEND_RECV: break;
      }
    nccl_ok(result, names[call->what]);
  }
  if (asked.group > 1 || messages) nccl_ok(nccl.group_end(), "ncclGroupEnd");
}

static call_t call_of(enum collective what, int type, int op, size_t bytes, int in_place, int root) {
  size_t width = (size_t)formats[type].bytes, count = bytes / width / (is_in_blocks(what) ? (size_t)asked.ranks : 1);
  call_t call = {what, type, op, root, in_place, count ? count : 1, width};
  return call;
}

/* Operators of a pre-multiplied sum are of a communicator. */
static void make_ops(rank_t *ranks, const call_t *call, int *ops) {
  for (int local = 0; local < asked.group && call->op == PREMUL; local++) {
    uint64_t scalar;
    scalar_of(call->type, asked.kind, asked.seed, ranks[local].rank, &scalar);
    nccl_ok(nccl.premul(&ops[local], &scalar, call->type, 1, ranks[local].comm), "ncclRedOpCreatePreMulSum");
  }
}

static void free_ops(rank_t *ranks, const call_t *call, const int *ops) {
  for (int local = 0; local < asked.group && call->op == PREMUL; local++)
    nccl_ok(nccl.op_free(ops[local], ranks[local].comm), "ncclRedOpDestroy");
}

/* Poisons both buffers and puts the input where the call takes it from. */
static void prepare(rank_t *rank, const call_t *call, const table *tables) {
  unsigned char *input, *output;
  size_t count = sent(call, rank->rank);
  places(rank, call, &input, &output);
  use(rank);
  poison(rank->from, rank->bytes), poison(rank->to, rank->bytes);
  fill(rank->copy, &tables[rank->rank], 0, count);
  upload(input, rank->copy, count * call->width);
}

static void complain(const rank_t *rank, const call_t *call, const char *what, size_t bad, size_t first) {
  printf(
      "{\"what\":\"wrong\",\"collective\":\"%s\",\"type\":\"%s\",\"op\":\"%s\",\"rank\":%d,\"root\":%d,\"count\":%zu,"
      "\"in_place\":%d,\"is\":\"%s\",\"elements\":%zu,\"first\":%zu}\n",
      names[call->what], formats[call->type].name, op_names[call->op], rank->rank, call->root, call->count,
      call->in_place, what, bad, first);
  fflush(stdout);
}

/* Compares every element of a rank's output, what lies around it, and its input; returns how many are wrong. */
static size_t examine(rank_t *rank, const call_t *call, const table *tables, const table *fold) {
  int me = rank->rank, n = asked.ranks;
  size_t count = call->count, width = call->width, first = 0, bad = 0, outside = 0, got = received(call, me);
  unsigned char *input, *output;
  places(rank, call, &input, &output);
  use(rank);
  download(rank->copy, rank->to, rank->bytes);
  const unsigned char *result = rank->copy + (output - rank->to);
  for (size_t block = 0; got && block < got / count; block++) {
    const table *want = fold;
    size_t from = call->what == REDUCE_SCATTER ? (size_t)me * count : 0, at = 0;
    if (!folds(call->what)) {
      int source = call->what == BROADCAST || call->what == SCATTER ? call->root
                   : call->what == SEND_RECV                        ? (me + n - 1) % n
                                                                    : (int)block;
      want = &tables[source];
      from = call->what == ALL_TO_ALL || call->what == SCATTER ? (size_t)me * count : 0;
    }
    size_t wrong = differences(result + block * count * width, want, from, count, &at);
    if (wrong && !bad) first = block * count + at;
    bad += wrong;
  }
  if (bad) complain(rank, call, "output", bad, first);
  uint64_t digest = 0;
  for (size_t at = 0; at < got * width; at += sizeof digest) {
    uint64_t word = 0;
    memcpy(&word, result + at, got * width - at < sizeof word ? got * width - at : sizeof word);
    digest = (digest ^ word) * 0x9e3779b97f4a7c15u;
    digest ^= digest >> 29;
  }
  shared->digests[me] = digest;
  /* Of a buffer of all blocks in place, other blocks may be anything afterwards (reduce-scatter) or stay (scatter).
   */
  size_t used = call->in_place ? sent(call, me) > got ? sent(call, me) : got : got;
  if (!untouched(rank->copy, 0, GUARD) || !untouched(rank->copy, GUARD + used * width, rank->bytes)) outside++;
  if (!call->in_place) {
    download(rank->copy, rank->from, rank->bytes);
    size_t passed = sent(call, me);
    outside += differences(rank->copy + GUARD, &tables[me], 0, passed, &first);
    if (!untouched(rank->copy, 0, GUARD) || !untouched(rank->copy, GUARD + passed * width, rank->bytes)) outside++;
  }
  if (outside) complain(rank, call, "outside of the output", outside, 0);
  return bad + outside;
}

/* Every combination that was asked for. */
static void check(rank_t *ranks) {
  int leads = ranks[0].rank == 0, ops[LOCAL_MAX];
  for (int what = 0; what < COLLECTIVES; what++) {
    uint64_t cases = 0, bad = 0, turn = 0;
    if (!asked.collectives[what]) continue;
    for (int type = 0; type < TYPES; type++) {
      for (int op = 0; op < (folds((enum collective)what) ? OPS : 1); op++) {
        table tables[RANKS_MAX], fold = {NULL, NULL, NULL, NULL};
        if (!asked.types[type] || (folds((enum collective)what) && !asked.ops[op])) continue;
        int is_fold = folds((enum collective)what);
        for (int rank = 0; rank < asked.ranks; rank++)
          tables[rank] = contribution(type, op, is_fold ? asked.kind : BITS, asked.seed, rank, asked.ranks);
        if (is_fold) fold = folded(type, op, asked.kind, asked.seed, tables, asked.ranks, asked.order);
        for (int size = 0; size < asked.sizes_count; size++) {
          for (int in_place = !asked.out_of_place;
               in_place <= (asked.in_place && has_in_place((enum collective)what)); in_place++) {
            call_t call = call_of((enum collective)what, type, op, asked.sizes[size], in_place,
                                  (int)(turn++ % (uint64_t)asked.ranks));
            for (int local = 0; local < asked.group; local++) prepare(&ranks[local], &call, tables);
            make_ops(ranks, &call, ops);
            settle(ranks);
            barrier(parties());
            issue(ranks, &call, ops);
            /* Out of place once more, behind the first: what is left over of one call must not show in the next. */
            if (!in_place) issue(ranks, &call, ops);
            free_ops(ranks, &call, ops);
            for (int local = 0; local < asked.group; local++) {
              wait_for(&ranks[local]);
              shared->bad[ranks[local].rank] = examine(&ranks[local], &call, tables, &fold);
            }
            barrier(parties());
            if (leads) {
              for (int rank = 0; rank < asked.ranks; rank++) {
                bad += shared->bad[rank];
                /* Whatever a sum rounds to, it is the same on all ranks. */
                if (what == ALL_REDUCE && shared->digests[rank] != shared->digests[0])
                  complain(&ranks[0], &call, "not the same on all ranks", 1, (size_t)rank), bad++;
              }
              cases++;
              progress(names[what], cases);
            }
            barrier(parties());
          }
        }
        for (int rank = 0; rank < asked.ranks; rank++) table_free(&tables[rank]);
        if (is_fold) table_free(&fold);
      }
    }
    if (leads) {
      printf("{\"what\":\"check\",\"collective\":\"%s\",\"ranks\":%d,\"cases\":%llu,\"bad\":%llu}\n", names[what],
             asked.ranks, (unsigned long long)cases, (unsigned long long)bad);
      fflush(stdout);
      if (bad) shared->figures[0][0] = 1;
    }
  }
}

static int by_size(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

/* `calls` calls in a row: how long until they had returned, until all was done, and between two events, in µs a call.
 */
static void sample(rank_t *ranks, const call_t *call, const int *ops, int calls, double figures[3]) {
  float elapsed_ms = 0;
  figures[2] = 0;
  barrier(parties());
  double begun = now_us();
  for (int local = 0; local < asked.group && !asked.on_host; local++)
    use(&ranks[local]), cuda_ok(cuda.record(ranks[local].begun, ranks[local].stream), "cuEventRecord");
  for (int each = 0; each < calls; each++) issue(ranks, call, ops);
  figures[0] = (now_us() - begun) / calls;
  for (int local = 0; local < asked.group && !asked.on_host; local++)
    use(&ranks[local]), cuda_ok(cuda.record(ranks[local].ended, ranks[local].stream), "cuEventRecord");
  for (int local = 0; local < asked.group; local++) wait_for(&ranks[local]);
  figures[1] = (now_us() - begun) / calls;
  for (int local = 0; local < asked.group && !asked.on_host; local++) {
    cuda_ok(cuda.elapsed(&elapsed_ms, ranks[local].begun, ranks[local].ended), "cuEventElapsedTime");
    if (elapsed_ms * 1e3 / calls > figures[2]) figures[2] = elapsed_ms * 1e3 / calls;
  }
}

/* Medians over samples, each that of the rank that took longest. */
static void measure_call(rank_t *ranks, const call_t *call, size_t bytes) {
  static double all[3][4096];
  double figures[3], worst[3];
  int leads = ranks[0].rank == 0, ops[LOCAL_MAX] = {0}, calls = 1;
  make_ops(ranks, call, ops);
  for (int round = 0; round < asked.samples + 3; round++) {
    sample(ranks, call, ops, calls, figures);
    for (int each = 0; each < 3; each++) shared->figures[each][ranks[0].rank] = figures[each];
    barrier(parties());
    for (int each = 0; each < 3; each++) {
      worst[each] = 0;
      for (int rank = 0; rank < asked.ranks; rank += asked.group)
        if (shared->figures[each][rank] > worst[each]) worst[each] = shared->figures[each][rank];
    }
    /* Some milliseconds a sample, the same number on all ranks. */
    if (asked.mode == TIME && round < 3) calls = worst[1] < 1 ? asked.calls : (int)(3000 / worst[1]) + 1;
    if (calls > asked.calls) calls = asked.calls;
    for (int each = 0; each < 3 && round >= 3 && leads; each++) all[each][round - 3] = worst[each];
    barrier(parties());
  }
  free_ops(ranks, call, ops);
  if (!leads) return;
  for (int each = 0; each < 3; each++) qsort(all[each], (size_t)asked.samples, sizeof(double), by_size);
  int half = asked.samples / 2;
  printf(
      "{\"what\":\"%s\",\"collective\":\"%s\",\"type\":\"%s\",\"op\":\"%s\",\"ranks\":%d,\"processes\":%d,"
      "\"threads\":%d,\"group\":%d,"
      "\"blocks\":%d,\"bytes\":%zu,\"in_place\":%d,\"calls\":%d,\"samples\":%d,\"call_us\":%.3f,\"done_us\":%.3f,"
      "\"event_us\":%.3f,"
      "\"done_least_us\":%.3f,\"event_least_us\":%.3f}\n",
      asked.mode == TIME ? "time" : "launch", names[call->what], formats[call->type].name, op_names[call->op],
      asked.ranks, asked.processes, asked.threads, asked.group, asked.blocks, bytes, call->in_place, calls,
      asked.samples, all[0][half], all[1][half], all[2][half], all[1][0], all[2][0]);
  fflush(stdout);
}

static void measure(rank_t *ranks) {
  for (int what = 0; what < COLLECTIVES; what++)
    for (int type = 0; asked.collectives[what] && type < TYPES; type++)
      for (int op = 0; asked.types[type] && op < (folds((enum collective)what) ? OPS : 1); op++)
        for (int size = 0; (asked.ops[op] || !folds((enum collective)what)) && size < asked.sizes_count; size++)
          for (int in_place = !asked.out_of_place;
               in_place <= (asked.in_place && has_in_place((enum collective)what)); in_place++) {
            call_t call = call_of((enum collective)what, type, op, asked.sizes[size], in_place, 0);
            for (int local = 0; local < asked.group; local++) {
              rank_t *rank = &ranks[local];
              table mine = contribution(type, op, EXACT, asked.seed, rank->rank, asked.ranks);
              /* Both buffers, whichever is read: numbers, and none that a sum in place makes infinite soon. */
              size_t count = call.count * (is_in_blocks((enum collective)what) ? (size_t)asked.ranks : 1);
              use(rank);
              fill(rank->copy, &mine, 0, count);
              upload(rank->from + GUARD, rank->copy, count * call.width),
                  upload(rank->to + GUARD, rank->copy, count * call.width);
              table_free(&mine);
            }
            settle(ranks);
            measure_call(ranks, &call, asked.sizes[size]);
          }
}

/* Free memory of the device in bytes, once all threads of the job are here. */
static double free_bytes(void) {
  size_t left = 0, all = 0;
  barrier(parties());
  if (!asked.on_host) cuda_ok(cuda.info(&left, &all), "cuMemGetInfo");
  barrier(parties());
  return (double)left;
}

static void make(rank_t *ranks) {
  struct config config = {sizeof config, 0xcafebeef, 21800, INT32_MIN, INT32_MIN,
                          INT32_MIN,     INT32_MIN,  NULL,  INT32_MIN, INT32_MIN};
  if (asked.blocks) config.blocks_least = config.blocks_most = asked.blocks;
  int result = 0, ended = 0;
  if (asked.group > 1) nccl_ok(nccl.group_start(), "ncclGroupStart");
  for (int local = 0; local < asked.group && !result; local++) {
    use(&ranks[local]);
    result = nccl.init(&ranks[local].comm, asked.ranks, shared->id, ranks[local].rank, &config);
  }
  if (asked.group > 1) ended = nccl.group_end();
  if (!result) result = ended;
  if (!result) return;
  fprintf(stderr, "ncclCommInitRankConfig of %d ranks: %d %s: %s\n", asked.ranks, result, nccl.error_string(result),
          nccl.last_error(NULL));
  fflush(NULL);
  _exit(ENDS_REFUSED);
}

static void end(rank_t *ranks) {
  if (asked.group > 1) nccl_ok(nccl.group_start(), "ncclGroupStart");
  for (int local = 0; local < asked.group; local++) {
    use(&ranks[local]);
    nccl_ok(nccl.destroy(ranks[local].comm), "ncclCommDestroy");
  }
  if (asked.group > 1) nccl_ok(nccl.group_end(), "ncclGroupEnd");
}

static void *drive(void *argument) {
  rank_t ranks[LOCAL_MAX];
  int first = *(int *)argument, leads = first == 0;
  size_t longest = 0;
  for (int size = 0; size < asked.sizes_count; size++)
    if (asked.sizes[size] > longest) longest = asked.sizes[size];
  memset(ranks, 0, sizeof ranks);
  for (int local = 0; local < asked.group; local++) {
    rank_t *rank = &ranks[local];
    rank->rank = first + local;
    /* Blocks are rounded up to an element. */
    rank->bytes = longest + (size_t)(8 * asked.ranks + 2 * GUARD);
    if (asked.messages) rank->bytes = messages_bytes(longest) + 2 * GUARD;
    if (!asked.on_host) {
      int device;
      cuda_ok(cuda.device(&device, asked.devices[rank->rank % asked.devices_count]), "cuDeviceGet");
      cuda_ok(cuda.retain(&rank->context, device), "cuDevicePrimaryCtxRetain");
      cuda_ok(cuda.current(rank->context), "cuCtxSetCurrent");
      cuda_ok(cuda.stream(&rank->stream, 1), "cuStreamCreate");
      cuda_ok(cuda.event(&rank->begun, 0), "cuEventCreate"), cuda_ok(cuda.event(&rank->ended, 0), "cuEventCreate");
    }
    rank->from = memory(rank->bytes), rank->to = memory(rank->bytes);
    if (!(rank->copy = malloc(rank->bytes))) abort();
  }
  /* Rank 0 is in the process of the id, as NCCL wants it. */
  if (leads) nccl_ok(nccl.get_id(&shared->id), "ncclGetUniqueId");
  double before = free_bytes(), begun = now_us();
  make(ranks);
  barrier(parties());
  double made_us = now_us() - begun, made = free_bytes();
  if (asked.messages) messages_check(ranks);
  else if (asked.mode == CHECK || asked.mode == MEMORY) check(ranks);
  else measure(ranks);
  double used = free_bytes();
  barrier(parties());
  end(ranks);
  double after = free_bytes();
  if (leads && !asked.on_host) {
    printf(
        "{\"what\":\"memory\",\"ranks\":%d,\"processes\":%d,\"threads\":%d,\"group\":%d,\"blocks\":%d,\"longest\":%"
        "zu,\"made_ms\":%.1f,"
        "\"made_bytes\":%.0f,\"used_bytes\":%.0f,\"left_bytes\":%.0f}\n",
        asked.ranks, asked.processes, asked.threads, asked.group, asked.blocks, longest, made_us / 1e3,
        (before - made) / asked.ranks, (before - used) / asked.ranks, (before - after) / asked.ranks);
  }
  for (int local = 0; local < asked.group; local++) {
    use(&ranks[local]);
    memory_free(ranks[local].from), memory_free(ranks[local].to);
    free(ranks[local].copy);
    if (!asked.on_host) cuda_ok(cuda.stream_free(ranks[local].stream), "cuStreamDestroy");
  }
  return NULL;
}

static int one_process(int process) {
  pthread_t threads[RANKS_MAX];
  int firsts[RANKS_MAX], version = 0, driver = 0, devices = 0, capability[2] = {0, 0}, processors = 0;
  char name[256] = "the host's memory", host[32];
  if (asked.hosts) {
    snprintf(host, sizeof host, "pretended-host-%d", process % asked.hosts);
    setenv("NCCL_HOSTID", host, 1);
  }
  if (!asked.on_host) {
    int device;
    open_cuda();
    cuda_ok(cuda.init(0), "cuInit");
    cuda_ok(cuda.driver_version(&driver), "cuDriverGetVersion");
    cuda_ok(cuda.count(&devices), "cuDeviceGetCount");
    if (devices == 0) return fprintf(stderr, "there is no device\n"), ENDS_ABSENT;
    cuda_ok(cuda.device(&device, asked.devices[0]), "cuDeviceGet");
    cuda_ok(cuda.name(name, sizeof name, device), "cuDeviceGetName");
    cuda_ok(cuda.attribute(&capability[0], 75, device), "cuDeviceGetAttribute");
    cuda_ok(cuda.attribute(&capability[1], 76, device), "cuDeviceGetAttribute");
    cuda_ok(cuda.attribute(&processors, 16, device), "cuDeviceGetAttribute");
  }
  open_nccl(asked.library);
  nccl_ok(nccl.version(&version), "ncclGetVersion");
  if (process == 0) {
    printf(
        "{\"what\":\"run\",\"version\":%d,\"driver\":%d,\"device\":\"%s\",\"devices\":%d,\"capability\":\"%d.%d\","
        "\"processors\":%d,"
        "\"ranks\":%d,\"processes\":%d,\"threads\":%d,\"group\":%d,\"hosts\":%d,\"blocks\":%d,\"seed\":%llu}\n",
        version, driver, name, devices, capability[0], capability[1], processors, asked.ranks, asked.processes,
        asked.threads, asked.group, asked.hosts, asked.blocks, (unsigned long long)asked.seed);
    fflush(stdout);
  }
  for (int thread = 0; thread < asked.threads; thread++) {
    firsts[thread] = (process * asked.threads + thread) * asked.group;
    if (pthread_create(&threads[thread], NULL, drive, &firsts[thread])) return ENDS_FAILED;
  }
  for (int thread = 0; thread < asked.threads; thread++) pthread_join(threads[thread], NULL);
  return shared->figures[0][0] == 1 && asked.mode == CHECK ? ENDS_FAILED : 0;
}

int main(int argc, char **argv) {
  read_arguments(argc, argv);
  return run_processes(asked.processes, asked.limit_s, one_process);
}
