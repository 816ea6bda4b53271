/*
 * Every collective on devices, checked against arithmetic of its own: values are small whole numbers, which all data
 * types have exactly, so that the order of a fold does not matter. Absent: rounding, which other tests compare bit for
 * bit.
 */
#ifndef DEVICE_CALLS_H
#define DEVICE_CALLS_H

#include "device_job.h"

enum what { ALL_REDUCE, REDUCE, BROADCAST, BCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, RING, CALLS };

static const char* const names[CALLS] = {"all-reduce",     "reduce",     "broadcast", "bcast",   "all-gather",
                                         "reduce-scatter", "all-to-all", "gather",    "scatter", "ring"};

/* A call of all ranks. A ring that is said to be in place receives before it sends, in the same group. */
struct call {
  enum what what;
  ncclDataType_t type;
  int op, root, in_place;
  size_t count;
};

/* The buffers of a rank for calls: `bytes` each. */
struct buffers {
  enum place from_place, to_place;
  size_t bytes;
  unsigned char *from, *to, *host;
};

static size_t width(ncclDataType_t type) {
  switch (type) {
    case ncclInt8: case ncclUint8: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    default: return 8;
  }
}

/* A small number as an element. */
static void encode(ncclDataType_t type, double value, unsigned char* place) {
  float single = (float)value;
  int64_t whole = (int64_t)value;
  uint32_t bits;
  uint16_t half = 0;
  memcpy(&bits, &single, sizeof bits);
  switch (type) {
    case ncclFloat64: memcpy(place, &value, 8); return;
    case ncclFloat32: memcpy(place, &single, 4); return;
    case ncclBfloat16: half = (uint16_t)(bits >> 16), memcpy(place, &half, 2); return;
    case ncclFloat16:
      if (bits << 1) half = (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 112) << 10) | (bits >> 13 & 0x3ff));
      memcpy(place, &half, 2);
      return;
    default: memcpy(place, &whole, width(type)); return;
  }
}

static int is_float(ncclDataType_t type) { return type >= ncclFloat16; }

/* What rank `rank` passes as element `at`: 1, 2 or 3. */
static double passed(int rank, size_t at) { return (double)(1 + ((size_t)rank * 5 + at * 7 + at / 3) % 3); }

static double folded(const struct call* call, int ranks, size_t at) {
  double value = passed(0, at), next;
  int rank;
  for (rank = 1; rank < ranks; rank++) {
    next = passed(rank, at);
    if (call->op == ncclSum || call->op == ncclAvg) value += next;
    else if (call->op == ncclProd) value *= next;
    else if (call->op == ncclMax ? next > value : next < value) value = next;
  }
  if (call->op == ncclAvg) value /= ranks;
  return is_float(call->type) ? value : (double)(int64_t)value;
}

static int folds(enum what what) { return what == ALL_REDUCE || what == REDUCE || what == REDUCE_SCATTER; }

/* Elements that a rank passes and gets. */
static size_t sent(const struct call* call, const struct rank* rank) {
  int all = call->what == REDUCE_SCATTER || call->what == ALL_TO_ALL || call->what == SCATTER;
  int rooted = call->what == BROADCAST || call->what == BCAST || call->what == SCATTER;
  if (rooted && rank->rank != call->root) return 0;
  return call->count * (size_t)(all ? rank->ranks : 1);
}

static size_t got(const struct call* call, const struct rank* rank) {
  int all = call->what == ALL_GATHER || call->what == ALL_TO_ALL || call->what == GATHER;
  if ((call->what == REDUCE || call->what == GATHER) && rank->rank != call->root) return 0;
  return call->count * (size_t)(all ? rank->ranks : 1);
}

/* Element `at` of what a rank gets. */
static double wanted(const struct call* call, const struct rank* rank, size_t at) {
  size_t block = at / call->count, within = at % call->count, mine = (size_t)rank->rank * call->count;
  switch (call->what) {
    case ALL_REDUCE: case REDUCE: return folded(call, rank->ranks, at);
    case REDUCE_SCATTER: return folded(call, rank->ranks, mine + at);
    case BROADCAST: case BCAST: return passed(call->root, at);
    case ALL_GATHER: case GATHER: return passed((int)block, within);
    case ALL_TO_ALL: return passed((int)block, mine + within);
    case SCATTER: return passed(call->root, mine + at);
    default: return passed((rank->rank + rank->ranks - 1) % rank->ranks, at);
  }
}

/* Where a rank's input and output are: apart, or as NCCL defines in place. */
static void places(const struct call* call, const struct rank* rank, const struct buffers* buffers,
                   unsigned char** input, unsigned char** output) {
  size_t block = (size_t)rank->rank * call->count * width(call->type);
  int is_root = rank->rank == call->root;
  *input = buffers->from, *output = buffers->to;
  if (call->what == BCAST) *input = *output;
  if (!call->in_place || call->what == ALL_TO_ALL || call->what == RING) return;
  *input = *output;
  if (call->what == ALL_GATHER || (call->what == GATHER && is_root)) *input += block;
  if (call->what == REDUCE_SCATTER || (call->what == SCATTER && is_root)) *output += block;
}

static ncclResult_t make(const struct call* call, const struct rank* rank, unsigned char* input, unsigned char* output) {
  ncclComm_t comm = rank->comm;
  cudaStream_t stream = rank->stream;
  ncclRedOp_t op = (ncclRedOp_t)call->op;
  size_t count = call->count;
  int next = (rank->rank + 1) % rank->ranks, last = (rank->rank + rank->ranks - 1) % rank->ranks;
  switch (call->what) {
    case ALL_REDUCE: return ncclAllReduce(input, output, count, call->type, op, comm, stream);
    case REDUCE: return ncclReduce(input, output, count, call->type, op, call->root, comm, stream);
    case BROADCAST: return ncclBroadcast(input, output, count, call->type, call->root, comm, stream);
    case BCAST: return ncclBcast(output, count, call->type, call->root, comm, stream);
    case ALL_GATHER: return ncclAllGather(input, output, count, call->type, comm, stream);
    case REDUCE_SCATTER: return ncclReduceScatter(input, output, count, call->type, op, comm, stream);
    case ALL_TO_ALL: return ncclAlltoAll(input, output, count, call->type, comm, stream);
    case GATHER: return ncclGather(input, output, count, call->type, call->root, comm, stream);
    case SCATTER: return ncclScatter(input, output, count, call->type, call->root, comm, stream);
    default:
      OK(ncclGroupStart());
      if (call->in_place) OK(ncclRecv(output, count, call->type, last, comm, stream));
      OK(ncclSend(input, count, call->type, next, comm, stream));
      if (!call->in_place) OK(ncclRecv(output, count, call->type, last, comm, stream));
      return ncclGroupEnd();
  }
}

static struct buffers buffers_of(const struct rank* rank, enum place from, enum place to, size_t count) {
  struct buffers buffers;
  buffers.from_place = from, buffers.to_place = to, buffers.bytes = count * (size_t)rank->ranks * 8;
  buffers.from = memory(from, buffers.bytes), buffers.to = memory(to, buffers.bytes);
  buffers.host = malloc(buffers.bytes);
  CHECK(buffers.host != NULL);
  return buffers;
}

static void free_buffers(struct buffers* buffers) {
  memory_free(buffers->from_place, buffers->from), memory_free(buffers->to_place, buffers->to);
  free(buffers->host);
}

/* Puts the input there, in the stream, after both buffers were overwritten. */
static void prepare(const struct call* call, const struct rank* rank, struct buffers* buffers) {
  unsigned char *input, *output;
  size_t at, bytes = width(call->type), count = sent(call, rank);
  use_device(rank->device);
  memset(buffers->host, 0xa5, buffers->bytes);
  CU(cuda.to_device((uint64_t)(uintptr_t)buffers->from, buffers->host, buffers->bytes, rank->stream));
  CU(cuda.to_device((uint64_t)(uintptr_t)buffers->to, buffers->host, buffers->bytes, rank->stream));
  CU(cuda.wait(rank->stream));
  places(call, rank, buffers, &input, &output);
  for (at = 0; at < count; at++) encode(call->type, passed(rank->rank, at), buffers->host + at * bytes);
  if (count) CU(cuda.to_device((uint64_t)(uintptr_t)input, buffers->host, count * bytes, rank->stream));
}

/* Compares what came, and that nothing came behind it. */
static void examine(const struct call* call, const struct rank* rank, struct buffers* buffers) {
  unsigned char *input, *output, want[8];
  size_t at, bytes = width(call->type), count = got(call, rank), all;
  use_device(rank->device);
  CU(cuda.to_host(buffers->host, (uint64_t)(uintptr_t)buffers->to, buffers->bytes, rank->stream));
  CU(cuda.wait(rank->stream));
  places(call, rank, buffers, &input, &output);
  for (at = 0; at < count; at++) {
    encode(call->type, wanted(call, rank, at), want);
    if (memcmp(want, buffers->host + (output - buffers->to) + at * bytes, bytes) == 0) continue;
    fprintf(stderr, "rank %d of %d: %s, type %d, op %d, root %d, %zu elements, in place %d: element %zu is wrong\n",
            rank->rank, rank->ranks, names[call->what], (int)call->type, call->op, call->root, call->count,
            call->in_place, at);
    _exit(1);
  }
  all = (call->in_place && sent(call, rank) > count ? sent(call, rank) : count) * bytes;
  for (at = all; at < buffers->bytes; at++) CHECK(buffers->host[at] == 0xa5);
}

/* Makes a call on the ranks of this thread, as a group if they are several or it is asked for, and compares. */
static void perform(const struct call* call, struct rank* ranks, struct buffers* buffers, int here, int grouped) {
  unsigned char *input, *output;
  int at;
  for (at = 0; at < here; at++) prepare(call, &ranks[at], &buffers[at]);
  if (here > 1 || grouped) OK(ncclGroupStart());
  for (at = 0; at < here; at++) {
    use_device(ranks[at].device);
    places(call, &ranks[at], &buffers[at], &input, &output);
    OK(make(call, &ranks[at], input, output));
  }
  if (here > 1 || grouped) OK(ncclGroupEnd());
  for (at = 0; at < here; at++) examine(call, &ranks[at], &buffers[at]);
}

/* Every call with several types, all operators, roots and both places. */
static void everything(struct rank* ranks, struct buffers* buffers, int here, size_t count) {
  static const ncclDataType_t types[] = {ncclFloat32, ncclInt8,    ncclUint8,   ncclInt32,
                                         ncclUint64,  ncclFloat16, ncclFloat64, ncclBfloat16};
  size_t type, types_count = sizeof types / sizeof *types;
  int what, op, turn = 0;
  for (what = 0; what < CALLS; what++) {
    for (type = 0; type < types_count; type++) {
      for (op = 0; op < (folds((enum what)what) ? ncclNumOps : 1); op++) {
        struct call call = {(enum what)what, types[type], op, 0, 0, count};
        /* A third of a number is none of these. */
        if (op == ncclAvg && (ranks->ranks & (ranks->ranks - 1)) != 0 && is_float(types[type])) continue;
        call.root = turn % ranks->ranks, call.in_place = what != RING && (turn / 2) % 2;
        perform(&call, ranks, buffers, here, turn % 3 == 0);
        turn++;
      }
    }
  }
}

#endif
