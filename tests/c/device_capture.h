/*
 * Captures of streams into graphs beside collectives: a thread of the program captures a stream of its own, in the mode
 * that forbids most, while the library calls the driver on other threads. A capture must end valid.
 */
#ifndef DEVICE_CAPTURE_H
#define DEVICE_CAPTURE_H

#include "device_calls.h"

enum { GLOBAL_MODE = 0 };

/* A capture that lasts from `begin_capture` to `end_capture`, and its thread, which is there from `open_capture` on. */
struct capture {
  int device, ended;
  pthread_barrier_t turn;
  pthread_t thread;
  int (*begin)(void*, int), (*end)(void*, void**), (*destroy)(void*), (*mode)(int*);
};

/* The functions of the driver that captures need. */
static void find_capture(struct capture* capture) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  CHECK(driver != NULL);
  find(driver, "cuStreamBeginCapture_v2", &capture->begin), find(driver, "cuStreamEndCapture", &capture->end);
  find(driver, "cuGraphDestroy", &capture->destroy);
  find(driver, "cuThreadExchangeStreamCaptureMode", &capture->mode);
}

static void* capture_thread(void* place) {
  struct capture* capture = place;
  void *stream, *graph = NULL;
  use_device(capture->device);
  CU(cuda.stream(&stream, 1));
  pthread_barrier_wait(&capture->turn);
  pthread_barrier_wait(&capture->turn);
  CU(capture->begin(stream, GLOBAL_MODE));
  pthread_barrier_wait(&capture->turn);
  pthread_barrier_wait(&capture->turn);
  capture->ended = capture->end(stream, &graph);
  if (capture->ended == 0) CU(capture->destroy(graph));
  CU(cuda.stream_free(stream));
  return NULL;
}

/* What a capture needs of the driver is made before any rank captures, which would forbid it. */
static void open_capture(struct capture* capture, const struct rank* rank) {
  find_capture(capture);
  capture->device = rank->device;
  CHECK(pthread_barrier_init(&capture->turn, NULL, 2) == 0);
  CHECK(pthread_create(&capture->thread, NULL, capture_thread, capture) == 0);
  pthread_barrier_wait(&capture->turn);
}

static void begin_capture(struct capture* capture) {
  pthread_barrier_wait(&capture->turn);
  pthread_barrier_wait(&capture->turn);
}

/* What the driver said when the capture ended: 901, if some call has invalidated it. */
static int end_capture(struct capture* capture) {
  pthread_barrier_wait(&capture->turn);
  CHECK(pthread_join(capture->thread, NULL) == 0);
  pthread_barrier_destroy(&capture->turn);
  if (capture->ended != 0) fprintf(stderr, "a capture ended with %d\n", capture->ended);
  return capture->ended;
}

/* How often this process has called a function of the stand-in driver, as its log has it. */
static int called(const char* name) {
  char line[128], wanted[128];
  const char* path = getenv("CONSORT_STANDIN_LOG");
  FILE* log;
  int count = 0;
  CHECK(path != NULL);
  snprintf(wanted, sizeof wanted, "%s %d\n", name, (int)getpid());
  log = fopen(path, "r");
  CHECK(log != NULL);
  while (fgets(line, sizeof line, log)) count += strcmp(line, wanted) == 0;
  fclose(log);
  return count;
}

/* The first call of a length, for which the library takes memory, while every rank captures. */
static void captured(struct rank* rank) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, 300000);
  struct call call = {ALL_REDUCE, ncclFloat64, ncclSum, 0, 0, 30000};
  struct capture capture;
  unsigned char *input, *output;
  prepare(&call, rank, &buffers);
  places(&call, rank, &buffers, &input, &output);
  CU(cuda.wait(rank->stream));
  open_capture(&capture, rank);
  meet();
  begin_capture(&capture);
  OK(make(&call, rank, input, output));
  CHECK(end_capture(&capture) == 0);
  /* Of a process that has all ranks the other captures are over too: what the check calls they would forbid. */
  meet();
  examine(&call, rank, &buffers);
  free_buffers(&buffers);
}

/* A call in a stream that is captured is refused, and changes neither the capture nor the thread's mode. */
static void captured_itself(struct rank* rank) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, 203);
  struct call call = {ALL_REDUCE, ncclFloat32, ncclSum, 0, 0, 203};
  struct capture capture;
  void* graph = NULL;
  int mode;
  find_capture(&capture);
  perform(&call, rank, &buffers, 1, 0);
  for (mode = 0; mode < 3; mode++) {
    int before = mode;
    meet();
    CU(capture.mode(&before));
    CHECK(before == GLOBAL_MODE);
    CU(capture.begin(rank->stream, mode));
    CHECK(make(&call, rank, buffers.from, buffers.to) == ncclInvalidArgument);
    CHECK(strstr(ncclGetLastError(rank->comm), "being captured into a graph") != NULL);
    CU(capture.end(rank->stream, &graph));
    CU(capture.destroy(graph));
    before = GLOBAL_MODE;
    CU(capture.mode(&before));
    CHECK(before == mode);
    /* Of a process that has all ranks the other captures are over too. */
    meet();
    perform(&call, rank, &buffers, 1, 0);
  }
  free_buffers(&buffers);
}

/* Collectives of one rank: what changes nothing calls the driver for nothing, the rest is a copy or a launch that nothing
 * watches, and a stream that is being captured takes them too. */
static void rank_alone(struct rank* rank) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, 8 * 203);
  static const ncclRedOp_t ops[] = {ncclSum, ncclAvg};
  struct capture capture;
  void* graph = NULL;
  size_t at;
  int what;
  CHECK(rank->ranks == 1);
  find_capture(&capture);
  for (what = ALL_REDUCE; what < RING; what++) {
    for (at = 0; at < 4; at++) {
      /* An integer's average is a division, which a kernel makes. */
      struct call call = {ALL_REDUCE, ncclInt32, 0, 0, 0, 203};
      int copies, launches, divides = folds((enum what)what) && at / 2 == 1;
      unsigned char *input, *output;
      call.what = (enum what)what, call.op = ops[at / 2], call.in_place = at % 2 == 1;
      prepare(&call, rank, &buffers);
      places(&call, rank, &buffers, &input, &output);
      CU(cuda.wait(rank->stream));
      copies = called("cuMemcpyAsync"), launches = called("cuLaunchKernel");
      OK(make(&call, rank, input, output));
      CHECK(called("cuMemcpyAsync") - copies == (!divides && input != output));
      CHECK(called("cuLaunchKernel") - launches == divides);
      examine(&call, rank, &buffers);
    }
  }
  CHECK(called("cuEventRecord") == 0 && called("cuStreamWriteValue64_v2") == 0);
  CU(capture.begin(rank->stream, GLOBAL_MODE));
  for (at = 0; at < 2; at++) {
    struct call call = {ALL_REDUCE, ncclInt32, ncclSum, 0, (int)at, 203};
    OK(make(&call, rank, buffers.from, at == 1 ? buffers.from : buffers.to));
  }
  CU(capture.end(rank->stream, &graph));
  CU(capture.destroy(graph));
  free_buffers(&buffers);
}

/* A call whose peers come late, so late that the library has asked the driver whether the device is well. */
static void captured_long(struct rank* rank) {
  struct buffers buffers = buffers_of(rank, DEVICE, DEVICE, 20000);
  struct call call = {ALL_REDUCE, ncclFloat32, ncclSum, 0, 0, 1000};
  struct capture capture;
  unsigned char *input, *output;
  int asked;
  perform(&call, rank, &buffers, 1, 0);
  prepare(&call, rank, &buffers);
  places(&call, rank, &buffers, &input, &output);
  CU(cuda.wait(rank->stream));
  meet();
  if (rank->rank == 0) {
    open_capture(&capture, rank);
    OK(make(&call, rank, input, output));
    begin_capture(&capture);
    asked = called("cuEventQuery");
    while (called("cuEventQuery") == asked) rest();
    CHECK(end_capture(&capture) == 0);
  }
  meet();
  if (rank->rank != 0) OK(make(&call, rank, input, output));
  examine(&call, rank, &buffers);
  free_buffers(&buffers);
}

#endif
