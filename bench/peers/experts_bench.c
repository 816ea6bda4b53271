// experts_bench.c - what `collbench experts` measures as "all-to-all there" and "back", by MPI_Alltoallv: rows of bfloat16, one for each
// choice of a token, to the rank of the chosen expert and back, with the counts, the packing and the weighted sums within the time. Between
// the two a pass over the rows stands for experts.
// mpicc -O3 -march=native bench/peers/experts_bench.c -o experts_bench
// mpirun -n N experts_bench TOKENS HIDDEN TOP_K EXPERTS ITERATIONS WARMUPS; choices and values are those of
// collbench with seed 1, and all weights are alike.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t w) {
  w = (w ^ (w >> 30)) * 0xbf58476d1ce4e5b9u;
  w = (w ^ (w >> 27)) * 0x94d049bb133111ebu;
  return w ^ (w >> 31);
}
static float wide(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
// To the nearest, ties to even.
static uint16_t narrow(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
static float value(int rank, int token, int at) { return (float)((rank * 37 + token * 11 + at * 5) % 251) - 125; }
// What stands for experts, outside the time: each element is read and written, as collbench's experts do.
static void pass(uint16_t *rows, size_t count) {
  static volatile float one = 1.0f;
  float factor = one;
  for (size_t i = 0; i < count; i++) rows[i] = narrow(wide(rows[i]) * factor);
}
static void *room(size_t bytes) {
  void *at = calloc(bytes ? bytes : 1, 1);
  if (!at) { fprintf(stderr, "out of memory\n"); MPI_Abort(MPI_COMM_WORLD, 3); }
  return at;
}
static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int rank, ranks, tokens, hidden, top_k, experts;

// The ranks of the experts of each choice.
static int *owners(void) {
  int *chosen = room(sizeof(int) * tokens * top_k), *owner = room(sizeof(int) * tokens * top_k), count = 0;
  uint64_t drawn = mix(1 ^ (uint64_t)rank << 32);
  for (int token = 0; token < tokens; token++)
    while (count < (token + 1) * top_k) {
      drawn += 0x9e3779b97f4a7c15u;
      int expert = (int)(mix(drawn) % (uint64_t)experts), seen = 0;
      for (int i = token * top_k; i < count; i++) seen |= chosen[i] == expert;
      if (!seen) { owner[count] = expert / (experts / ranks); chosen[count++] = expert; }
    }
  free(chosen);
  return owner;
}
static size_t starts(const int *counts, int *at) {
  size_t sum = 0;
  for (int r = 0; r < ranks; r++) { at[r] = (int)sum; sum += counts[r]; }
  return sum;
}
static void report(const char *name, double *times, int iterations) {
  MPI_Allreduce(MPI_IN_PLACE, times, iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  qsort(times, iterations, sizeof *times, by_size);
  if (rank == 0) printf("  %-18s%12.1f%12.1f\n", name, times[iterations / 2] * 1e6, times[0] * 1e6);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 7) { fprintf(stderr, "usage: %s TOKENS HIDDEN TOP_K EXPERTS ITERATIONS WARMUPS\n", argv[0]); MPI_Abort(MPI_COMM_WORLD, 2); }
  tokens = atoi(argv[1]); hidden = atoi(argv[2]); top_k = atoi(argv[3]); experts = atoi(argv[4]);
  if (experts < ranks || top_k < 1 || top_k > experts) { fprintf(stderr, "as many experts as ranks or choices at least\n"); MPI_Abort(MPI_COMM_WORLD, 2); }
  int iterations = atoi(argv[5]), warmups = atoi(argv[6]), slots = tokens * top_k;
  int *owner = owners(), *counts = room(4 * ranks), *heard = room(4 * ranks), *out = room(4 * ranks), *in = room(4 * ranks);
  int *order = room(sizeof(int) * slots), *place = room(sizeof(int) * slots), *next = room(4 * ranks);
  for (int i = 0; i < slots; i++) counts[owner[i]]++;
  starts(counts, out);
  memcpy(next, out, 4 * ranks);
  for (int i = 0; i < slots; i++) { place[i] = next[owner[i]]++; order[place[i]] = i / top_k; }
  uint16_t *mine = room(2ul * tokens * hidden), *sums = room(2ul * tokens * hidden), *packed = room(2ul * slots * hidden), *rows = NULL;
  float *sum = room(4ul * hidden), weight = 1.0f / top_k;
  for (int t = 0; t < tokens; t++)
    for (int at = 0; at < hidden; at++) mine[(size_t)t * hidden + at] = narrow(value(rank, t, at));
  double *there = room(sizeof(double) * iterations), *back = room(sizeof(double) * iterations);
  MPI_Datatype row;
  MPI_Type_contiguous(hidden, MPI_UINT16_T, &row);
  MPI_Type_commit(&row);
  size_t held = 0;
  for (int i = -warmups; i < iterations; i++) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    for (int r = 0; r < slots; r++) memcpy(packed + (size_t)r * hidden, mine + (size_t)order[r] * hidden, 2ul * hidden);
    MPI_Alltoall(counts, 1, MPI_INT, heard, 1, MPI_INT, MPI_COMM_WORLD);
    size_t come = starts(heard, in);
    if (come > held) { free(rows); rows = room(2ul * come * hidden); held = come; }
    MPI_Alltoallv(packed, counts, out, row, rows, heard, in, row, MPI_COMM_WORLD);
    if (i >= 0) there[i] = MPI_Wtime() - begun;
    pass(rows, come * hidden);
    MPI_Barrier(MPI_COMM_WORLD);
    begun = MPI_Wtime();
    MPI_Alltoallv(rows, heard, in, row, packed, counts, out, row, MPI_COMM_WORLD);
    for (int t = 0; t < tokens; t++) {
      memset(sum, 0, 4ul * hidden);
      for (int k = 0; k < top_k; k++) {
        const uint16_t *from = packed + (size_t)place[t * top_k + k] * hidden;
        for (int at = 0; at < hidden; at++) sum[at] += wide(from[at]) * weight;
      }
      for (int at = 0; at < hidden; at++) sums[(size_t)t * hidden + at] = narrow(sum[at]);
    }
    if (i >= 0) back[i] = MPI_Wtime() - begun;
  }
  long wrong = 0;
  for (size_t i = 0; i < (size_t)tokens * hidden; i++) wrong += wide(mine[i]) - wide(sums[i]) > 3 || wide(sums[i]) - wide(mine[i]) > 3;
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  report("MPI_Alltoallv there", there, iterations);
  report("MPI_Alltoallv back", back, iterations);
  if (rank == 0) printf("# Out of bounds values : %ld %s\n", wrong, wrong ? "FAILED" : "OK");
  MPI_Finalize();
  return wrong != 0;
}
