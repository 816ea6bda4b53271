/*
 * A wire that is long: what comes in at one interface leaves at the other after a time, in both directions, in order. For
 * `scripts/hosts delay` where the kernel has no netem. Both interfaces are of this program (tap) and vanish with it; packets keep
 * the sizes that the sender's kernel gave them (segments of up to 64 KiB).
 *
 *   cc -O2 bench/c/delay.c -o target/delay && target/delay INTERFACE INTERFACE MICROSECONDS
 *
 * Prints "ready" once the interfaces are there. Loses what comes when QUEUE packets are under way in one direction.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { QUEUE = 16384, FRAME = 66000, BATCH = 64 };

struct frame {
  int64_t due;
  size_t bytes;
  char* content;
};

/* What is under way from one interface to the other. */
struct way {
  struct frame frames[QUEUE];
  size_t first, count;
};

static struct way ways[2];

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static int interface(const char* name) {
  int descriptor = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
  struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
  strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  if (descriptor < 0 || ioctl(descriptor, TUNSETIFF, &request)) fail(name);
  if (ioctl(descriptor, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)) fail("TUNSETOFFLOAD");
  return descriptor;
}

static void take(int from, struct way* way, int64_t delay) {
  static char piece[FRAME];
  for (int turn = 0; turn < BATCH; turn++) {
    ssize_t got = read(from, piece, sizeof piece);
    if (got < 0 && (errno == EAGAIN || errno == EINTR || errno == EIO)) return;
    if (got < 0) fail("read");
    if (way->count == QUEUE) continue;
    struct frame* frame = &way->frames[(way->first + way->count++) % QUEUE];
    *frame = (struct frame){now() + delay, (size_t)got, malloc((size_t)got)};
    memcpy(frame->content, piece, (size_t)got);
  }
}

/* Until when nothing is due. */
static int64_t give(int to, struct way* way) {
  while (way->count) {
    struct frame* frame = &way->frames[way->first];
    if (frame->due > now()) return frame->due;
    if (write(to, frame->content, frame->bytes) < 0 && errno != EIO && errno != EINVAL && errno != ENOBUFS) {
      if (errno != EAGAIN) fail("write");
      return now() + 50000;
    }
    free(frame->content);
    way->first = (way->first + 1) % QUEUE;
    way->count--;
  }
  return INT64_MAX;
}

int main(int count, char** words) {
  if (count != 4) {
    fprintf(stderr, "usage: %s INTERFACE INTERFACE MICROSECONDS\n", words[0]);
    return 2;
  }
  int64_t delay = atoll(words[3]) * 1000;
  struct pollfd ends[2] = {{interface(words[1]), POLLIN, 0}, {interface(words[2]), POLLIN, 0}};
  /* A wire waits for no core; where the system does not allow that, it does. */
  sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
  puts("ready");
  fflush(stdout);
  /* The script that started it may be read to its end. */
  for (int end = 0, nothing = open("/dev/null", O_RDWR); end < 3; end++) dup2(nothing, end);
  for (;;) {
    int64_t until = INT64_MAX;
    for (int end = 0; end < 2; end++) {
      take(ends[end].fd, &ways[end], delay);
      int64_t next = give(ends[1 - end].fd, &ways[end]);
      if (next < until) until = next;
    }
    int64_t left = until == INT64_MAX ? 1000000000 : until - now();
    if (left < 0) left = 0;
    struct timespec patience = {left / 1000000000, left % 1000000000};
    if (ppoll(ends, 2, &patience, NULL) < 0 && errno != EINTR) fail("poll");
  }
}
