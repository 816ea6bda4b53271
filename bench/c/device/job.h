/*
 * Processes and threads of a job that know each other: a page of shared memory with a barrier, the unique id and what
 * every rank measured. Processes are forked before anybody has called CUDA; the first that fails ends the job.
 * Absent: ranks, devices, what is measured.
 */
#ifndef DEVICE_JOB_H
#define DEVICE_JOB_H

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libraries.h"

enum { RANKS_MAX = 64, ENDS_LATE = 124 };

static struct shared {
  unsigned arrived, round;
  unique_id id;
  double figures[3][RANKS_MAX];
  uint64_t digests[RANKS_MAX], bad[RANKS_MAX];
} *shared;

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* All threads of all processes, `parties` of them; spins at first, so that all leave close together. */
static void barrier(unsigned parties) {
  unsigned round = __atomic_load_n(&shared->round, __ATOMIC_ACQUIRE);
  if (__atomic_fetch_add(&shared->arrived, 1, __ATOMIC_ACQ_REL) + 1 == parties) {
    __atomic_store_n(&shared->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&shared->round, round + 1, __ATOMIC_RELEASE);
    return;
  }
  for (unsigned spins = 0; __atomic_load_n(&shared->round, __ATOMIC_ACQUIRE) == round; spins++)
    if (spins > 2000) sched_yield();
}

/* Runs `body(process)` in `processes` processes for at most `limit_s` seconds; returns how the job ended. */
static int run_processes(int processes, double limit_s, int (*body)(int)) {
  pid_t children[RANKS_MAX];
  double ends = now_us() + limit_s * 1e6;
  int result = 0, left = processes;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return ENDS_FAILED;
  fflush(NULL);
  for (int process = 0; process < processes; process++) {
    children[process] = fork();
    if (children[process] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      int ended = body(process);
      fflush(NULL);
      exit(ended);
    }
  }
  while (left) {
    int status;
    pid_t child = waitpid(-1, &status, WNOHANG);
    if (child == 0 && now_us() < ends) {
      usleep(2000);
      continue;
    }
    int ended = child <= 0 ? ENDS_LATE : WIFEXITED(status) ? WEXITSTATUS(status) : ENDS_FAILED;
    if (child > 0 && WIFSIGNALED(status) && !result)
      fprintf(stderr, "a process was ended by signal %d\n", WTERMSIG(status));
    if (child == 0 && !result) fprintf(stderr, "not done after %.0f s\n", limit_s);
    if (ended && !result) {
      result = ended;
      /* Others may be about to say what they saw. */
      usleep(200000);
      for (int process = 0; process < processes; process++)
        if (children[process] > 0 && children[process] != child) kill(children[process], SIGKILL);
    }
    for (int process = 0; process < processes; process++)
      if (children[process] == child) children[process] = 0;
    if (child > 0) left--;
    if (child < 0) break;
    if (child == 0) ends = 1e300;
  }
  return result;
}

#endif
