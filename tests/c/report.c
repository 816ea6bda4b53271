/*
 * Failures as a C program sees them: two ranks, as threads and as processes, on host memory.
 * Called by `tests/tests/c/interface.rs`, which reads what it prints.
 */
#define _POSIX_C_SOURCE 200809L

#include <consort.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, consortGetLastError(NULL)); \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)
#define OK(call) CHECK((call) == ncclSuccess)

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

/* Joins as one of two. */
static ncclComm_t join(ncclUniqueId id, int rank) {
  ncclComm_t comm = NULL;
  OK(ncclCommInitRank(&comm, 2, id, rank));
  return comm;
}

static ncclResult_t reduce(ncclComm_t comm) {
  float in[4] = {1, 2, 3, 4}, out[4];
  return ncclAllReduce(in, out, 4, ncclFloat32, ncclSum, comm, NULL);
}

struct joining {
  ncclUniqueId id;
  ncclComm_t comm;
};

static void* join_as_1(void* argument) {
  struct joining* joining = argument;
  joining->comm = join(joining->id, 1);
  return NULL;
}

/* Both ranks in this process; they may be used by any thread. */
static void pair(ncclComm_t comms[2]) {
  struct joining other;
  pthread_t thread;
  other.comm = NULL;
  OK(ncclGetUniqueId(&other.id));
  CHECK(pthread_create(&thread, NULL, join_as_1, &other) == 0);
  comms[0] = join(other.id, 0);
  CHECK(pthread_join(thread, NULL) == 0);
  comms[1] = other.comm;
}

/* A call by a thread of its own. */
struct call {
  pthread_t thread;
  ncclComm_t comm;
  ncclResult_t result;
  double seconds;
  char error[1024];
};

static void* make_call(void* argument) {
  struct call* call = argument;
  const double begun = now();
  call->result = reduce(call->comm);
  call->seconds = now() - begun;
  snprintf(call->error, sizeof call->error, "%s", consortGetLastError(call->comm));
  /* This thread has no other. */
  CHECK(strcmp(call->error, consortGetLastError(NULL)) == 0);
  return NULL;
}

static void begin(struct call* call, ncclComm_t comm) {
  call->comm = comm;
  CHECK(pthread_create(&call->thread, NULL, make_call, call) == 0);
}

/* The communicator's report, once it says this: the call of the other thread is under way, or waits for a rank. */
static char* report_with(ncclComm_t comm, const char* part) {
  char* text = NULL;
  for (;;) {
    OK(consortCommReportAlloc(comm, CONSORT_JSON, &text));
    if (strstr(text, part)) return text;
    consortFree(text);
    pause_for(0.001);
  }
}

static void end(struct call* call) { CHECK(pthread_join(call->thread, NULL) == 0); }

static char* status_of(ncclComm_t comm) {
  static char text[2048];
  size_t needed = 0;
  OK(consortCommStatus(comm, text, sizeof text, &needed));
  CHECK(needed == strlen(text) + 1);
  return text;
}

static void free_pair(ncclComm_t comms[2]) {
  OK(ncclCommDestroy(comms[0]));
  OK(ncclCommDestroy(comms[1]));
}

/* Rank 1 stays away; rank 0 has a deadline. */
static void one_stays_away(void) {
  ncclComm_t comms[2];
  struct call call;
  size_t needed = 0, again = 0;
  char* text;
  char small[16];
  ncclResult_t ended;
  pair(comms);
  OK(consortCommLastReport(comms[0], CONSORT_TEXT, small, sizeof small, &needed));
  CHECK(needed == 1 && small[0] == '\0');
  CHECK(strcmp(status_of(comms[0]), "") == 0);
  CHECK(strcmp(consortGetLastError(comms[0]), "") == 0);

  OK(consortCommSetTimeout(comms[0], 2.0));
  begin(&call, comms[0]);
  /* While the other thread waits in its call. */
  text = report_with(comms[0], "\"kind\":\"ranks\"");
  printf("meanwhile %s\n", text);
  consortFree(text);
  OK(ncclCommGetAsyncError(comms[0], &ended));
  CHECK(ended == ncclSuccess);
  end(&call);
  CHECK(call.result == ncclTimeout && ncclTimeout == CONSORT_RESULT_TIMEOUT);
  CHECK(call.seconds > 1.9 && call.seconds < 20);
  printf("result %d\nerror %s\n", (int)call.result, call.error);
  CHECK(strcmp(ncclGetErrorString(call.result), "") != 0);
  OK(ncclCommGetAsyncError(comms[0], &ended));
  CHECK(ended == ncclTimeout);
  CHECK(strstr(status_of(comms[0]), "did not finish") != NULL);
  /* It ends the communicator on the other rank too. */
  CHECK(reduce(comms[1]) == ncclTimeout);

  /* The calls, and the rank that came last to them. */
  OK(consortCommFlightRecord(comms[0], CONSORT_JSON, NULL, 0, &needed));
  text = malloc(needed);
  CHECK(text != NULL);
  OK(consortCommFlightRecord(comms[0], CONSORT_JSON, text, needed, &again));
  CHECK(strstr(text, "all_reduce") != NULL);
  free(text);
  OK(consortCommStragglers(comms[0], CONSORT_TEXT, small, sizeof small, &needed));
  CHECK(needed > 1);

  /* The report is the last one from now on, and no longer grows. */
  OK(consortCommLastReport(comms[0], CONSORT_TEXT, NULL, 0, &needed));
  CHECK(needed > sizeof small);
  text = malloc(needed);
  CHECK(text != NULL);
  OK(consortCommLastReport(comms[0], CONSORT_TEXT, text, needed, &again));
  CHECK(again == needed && strlen(text) + 1 == needed);
  printf("text<<<\n%s\n>>>\n", text);
  memset(small, 'x', sizeof small);
  OK(consortCommReport(comms[0], CONSORT_TEXT, small, sizeof small - 1, &again));
  CHECK(again == needed);
  CHECK(strlen(small) == sizeof small - 2 && small[sizeof small - 1] == 'x');
  CHECK(strncmp(small, text, sizeof small - 2) == 0);
  small[0] = 'x';
  OK(consortCommReport(comms[0], CONSORT_TEXT, small, 1, NULL));
  CHECK(small[0] == '\0');
  small[0] = 'x';
  OK(consortCommReport(comms[0], CONSORT_TEXT, small, 0, &again));
  CHECK(small[0] == 'x' && again == needed);
  free(text);
  OK(consortCommReportAlloc(comms[0], CONSORT_JSON, &text));
  printf("json %s\n", text);
  consortFree(text);
  consortFree(NULL);
  free_pair(comms);
}

/* A call without a deadline is ended by another thread. */
static void abort_and_revoke(void) {
  int how;
  for (how = 0; how < 4; how++) {
    ncclComm_t comms[2];
    struct call call;
    double seconds = 0, begun;
    const ncclResult_t expected = how < 2 ? ncclRemoteError : ncclInvalidUsage;
    pair(comms);
    OK(consortCommGetTimeout(comms[0], &seconds));
    CHECK(seconds == CONSORT_TIMEOUT_NONE);
    begin(&call, comms[0]);
    consortFree(report_with(comms[0], "all_reduce"));
    begun = now();
    switch (how) {
      case 0:
        OK(consortCommAbort(comms[0], "the watchdog says so"));
        break;
      case 1:
        OK(ncclCommAbort(comms[0]));
        break;
      case 2:
        OK(consortCommRevoke(comms[0], "a rank is to be replaced"));
        break;
      default:
        CHECK(ncclCommRevoke(comms[0], 1) == ncclInvalidArgument);
        OK(ncclCommRevoke(comms[0], 0));
    }
    end(&call);
    printf("ended after %.4f s\n", now() - begun);
    CHECK(now() - begun < 5);
    CHECK(call.result == expected);
    if (how == 0) {
      CHECK(strstr(call.error, "the watchdog says so") != NULL);
      printf("aborted %s\n", call.error);
      OK(consortCommAbort(comms[0], NULL));
      CHECK(strstr(status_of(comms[0]), "the watchdog says so") != NULL);
      CHECK(reduce(comms[0]) == ncclRemoteError);
    }
    if (how == 2) CHECK(strstr(call.error, "a rank is to be replaced") != NULL);
    CHECK(reduce(comms[1]) == expected);
    if (how == 1) {
      CHECK(ncclCommAbort(comms[0]) == ncclInvalidArgument);
      CHECK(reduce(comms[0]) == ncclInvalidArgument);
      CHECK(strstr(consortGetLastError(comms[0]), "freed") != NULL);
      OK(ncclCommAbort(NULL));
      OK(ncclCommDestroy(comms[1]));
    } else {
      free_pair(comms);
    }
  }
}

/* The deadline of a thread goes before that of the communicator, and is put back. */
static void deadline_of_a_thread(void) {
  ncclComm_t comms[2];
  double outer = 0, inner = 0, begun;
  pair(comms);
  OK(consortCommSetTimeout(comms[0], 600));
  OK(consortThreadSetTimeout(500, &outer));
  CHECK(outer == CONSORT_TIMEOUT_INHERIT);
  OK(consortThreadSetTimeout(0.3, &inner));
  CHECK(inner == 500);
  begun = now();
  CHECK(reduce(comms[0]) == ncclTimeout);
  CHECK(now() - begun < 20);
  OK(consortThreadSetTimeout(inner, NULL));
  OK(consortThreadSetTimeout(outer, &inner));
  CHECK(inner == 500);
  OK(consortCommGetTimeout(comms[0], &outer));
  CHECK(outer == 600);
  free_pair(comms);
}

static void wrong_arguments(void) {
  ncclComm_t comm = NULL, freed, wrong[3];
  ncclUniqueId id;
  ncclResult_t ended;
  char buffer[64];
  char* text = NULL;
  double seconds = 0;
  size_t needed = 0, at;
  const double no_times[] = {0.0, -0.5, -3.0, (double)NAN};
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&freed, 1, id, 0));
  OK(ncclCommDestroy(freed));
  wrong[0] = NULL;
  wrong[1] = freed;
  wrong[2] = (ncclComm_t)(void*)buffer;
  for (at = 0; at < 3; at++) {
    ncclComm_t it = wrong[at];
    CHECK(consortCommReport(it, CONSORT_TEXT, buffer, sizeof buffer, &needed) == ncclInvalidArgument);
    CHECK(consortCommReportAlloc(it, CONSORT_TEXT, &text) == ncclInvalidArgument && text == NULL);
    CHECK(consortCommLastReport(it, CONSORT_TEXT, buffer, sizeof buffer, &needed) == ncclInvalidArgument);
    CHECK(consortCommFlightRecord(it, CONSORT_TEXT, buffer, sizeof buffer, &needed) == ncclInvalidArgument);
    CHECK(consortCommStragglers(it, CONSORT_TEXT, buffer, sizeof buffer, &needed) == ncclInvalidArgument);
    CHECK(consortCommStatus(it, buffer, sizeof buffer, &needed) == ncclInvalidArgument);
    CHECK(consortCommSetTimeout(it, 1) == ncclInvalidArgument);
    CHECK(consortCommGetTimeout(it, &seconds) == ncclInvalidArgument);
    CHECK(consortCommAbort(it, "no") == ncclInvalidArgument);
    CHECK(consortCommRevoke(it, "no") == ncclInvalidArgument);
    CHECK(ncclCommRevoke(it, 0) == ncclInvalidArgument);
    CHECK(ncclCommGetAsyncError(it, &ended) == ncclInvalidArgument);
    CHECK(strstr(consortGetLastError(NULL), "null, freed or foreign") != NULL);
    CHECK(strstr(consortGetLastError(it), "freed or foreign") != NULL);
  }
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&comm, 1, id, 0));
  CHECK(strcmp(consortGetLastError(comm), "") == 0);
  CHECK(consortCommReport(comm, (consortFormat_t)7, buffer, sizeof buffer, &needed) == ncclInvalidArgument);
  CHECK(strstr(consortGetLastError(comm), "no report format 7") != NULL);
  CHECK(consortCommReport(comm, CONSORT_TEXT, NULL, 8, &needed) == ncclInvalidArgument);
  CHECK(consortCommReport(comm, CONSORT_TEXT, NULL, 0, NULL) == ncclInvalidArgument);
  CHECK(consortCommStatus(comm, NULL, 8, NULL) == ncclInvalidArgument);
  CHECK(consortCommReportAlloc(comm, CONSORT_TEXT, NULL) == ncclInvalidArgument);
  CHECK(consortCommGetTimeout(comm, NULL) == ncclInvalidArgument);
  CHECK(ncclCommGetAsyncError(comm, NULL) == ncclInvalidArgument);
  OK(consortCommSetTimeout(comm, 9));
  for (at = 0; at < sizeof no_times / sizeof *no_times; at++) {
    CHECK(consortCommSetTimeout(comm, no_times[at]) == ncclInvalidArgument);
    CHECK(consortThreadSetTimeout(no_times[at], &seconds) == ncclInvalidArgument);
  }
  OK(consortCommGetTimeout(comm, &seconds));
  CHECK(seconds == 9);
  OK(consortCommSetTimeout(comm, (double)INFINITY));
  OK(consortCommGetTimeout(comm, &seconds));
  CHECK(seconds == CONSORT_TIMEOUT_NONE);
  /* None of it was the communicator's end. */
  OK(reduce(comm));
  CHECK(strcmp(status_of(comm), "") == 0);
  OK(ncclCommDestroy(comm));
}

/* A rank's process has ended: the others learn of it without a deadline. */
static void a_process_dies(void) {
  ncclUniqueId id;
  ncclComm_t comm;
  int ends[2], state = 0;
  pid_t child;
  CHECK(pipe(ends) == 0);
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(read(ends[0], &id, sizeof id) == (ssize_t)sizeof id);
    comm = join(id, 1);
    OK(reduce(comm));
    _exit(0);
  }
  OK(ncclGetUniqueId(&id));
  CHECK(write(ends[1], &id, sizeof id) == (ssize_t)sizeof id);
  comm = join(id, 0);
  OK(reduce(comm));
  CHECK(reduce(comm) == ncclRemoteError);
  printf("died %s\n", consortGetLastError(comm));
  CHECK(waitpid(child, &state, 0) == child && state == 0);
  /* A child has its parent's handles and cannot use them. */
  fflush(stdout);
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    char buffer[64];
    CHECK(consortCommReport(comm, CONSORT_TEXT, buffer, sizeof buffer, NULL) == ncclInvalidUsage);
    CHECK(consortCommLastReport(comm, CONSORT_TEXT, buffer, sizeof buffer, NULL) == ncclInvalidUsage);
    CHECK(consortCommAbort(comm, "from a child") == ncclInvalidUsage);
    CHECK(reduce(comm) == ncclInvalidUsage);
    OK(ncclCommAbort(comm));
    _exit(0);
  }
  CHECK(waitpid(child, &state, 0) == child && state == 0);
  OK(ncclCommDestroy(comm));
}

/* What both sides of the boundary must agree on. */
static void layout(void) {
  printf("layout %d %d %d %d %d %d\n", (int)sizeof(ncclUniqueId), (int)sizeof(consortComm_t),
         (int)sizeof(consortResult_t), (int)sizeof(consortFormat_t), (int)sizeof(ncclDataType_t),
         (int)sizeof(ncclRedOp_t));
  printf("results %d %d %d %d %d %d %d\n", ncclSuccess, ncclSystemError, ncclInternalError, ncclInvalidArgument,
         ncclInvalidUsage, ncclRemoteError, CONSORT_RESULT_TIMEOUT);
  printf("formats %d %d\n", CONSORT_TEXT, CONSORT_JSON);
  printf("timeouts %g %g\n", CONSORT_TIMEOUT_NONE, CONSORT_TIMEOUT_INHERIT);
}

/* What a new communicator takes from the environment. */
static void environment(void) {
  ncclUniqueId id;
  ncclComm_t comm;
  double seconds = 0;
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&comm, 1, id, 0));
  OK(consortCommGetTimeout(comm, &seconds));
  printf("timeout %g\n", seconds);
  OK(consortCommSetTimeout(comm, 3));
  OK(consortCommSetTimeout(comm, CONSORT_TIMEOUT_INHERIT));
  OK(consortCommGetTimeout(comm, &seconds));
  printf("again %g\n", seconds);
  OK(ncclCommDestroy(comm));
}

int main(int count, char** arguments) {
  const char* part = count > 1 ? arguments[1] : "";
  alarm(100);
  if (strcmp(part, "stays-away") == 0) one_stays_away();
  else if (strcmp(part, "abort") == 0) abort_and_revoke();
  else if (strcmp(part, "thread") == 0) deadline_of_a_thread();
  else if (strcmp(part, "arguments") == 0) wrong_arguments();
  else if (strcmp(part, "dies") == 0) a_process_dies();
  else if (strcmp(part, "layout") == 0) layout();
  else if (strcmp(part, "environment") == 0) environment();
  else return 2;
  printf("end\n");
  return 0;
}
