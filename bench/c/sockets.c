/*
 * What two processes need for an exchange through one TCP stream, without any library: each sends BYTES and receives BYTES at
 * the same time, which is what an all-reduce of BYTES over two ranks has to move. The limit that `docs/measurements/hosts.md` holds
 * the library against.
 *
 *   cc -O2 bench/c/sockets.c -o target/sockets && target/sockets BYTES TIMES
 *
 * Between hosts, one process on each, as `scripts/hosts exec` makes them; ADDRESS is that of the first:
 *
 *   target/sockets BYTES TIMES listen ADDRESS       target/sockets BYTES TIMES call ADDRESS
 *
 * Prints the median and the least time of an exchange in microseconds. Both processes look without a pause, each on one core.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 19999 };

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static int by_value(const void* one, const void* other) {
  double a = *(const double*)one, b = *(const double*)other;
  return a < b ? -1 : a > b;
}

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static void exchange(int stream, const char* out, char* in, size_t bytes) {
  size_t sent = 0, got = 0;
  while (sent < bytes || got < bytes) {
    if (sent < bytes) {
      ssize_t done = send(stream, out + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (done > 0) sent += (size_t)done;
      else if (errno != EAGAIN) fail("send");
    }
    if (got < bytes) {
      ssize_t done = recv(stream, in + got, bytes - got, MSG_DONTWAIT);
      if (done > 0) got += (size_t)done;
      else if (done == 0 || errno != EAGAIN) fail("recv");
    }
  }
}

int main(int count, char** words) {
  size_t bytes = count > 1 ? strtoull(words[1], NULL, 10) : 0;
  int times = count > 2 ? atoi(words[2]) : 0, warm = times / 10 + 1, turn, on = 1, calls = count == 5 && !strcmp(words[3], "call");
  struct in_addr host = {htonl(INADDR_LOOPBACK)};
  if (bytes == 0 || times <= 0 || (count > 3 && (count != 5 || !inet_aton(words[4], &host)))) {
    fprintf(stderr, "usage: %s BYTES TIMES [listen|call ADDRESS]\n", words[0]);
    return 2;
  }
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = host, .sin_port = htons(count > 3 ? PORT : 0)};
  socklen_t length = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!calls && (bind(listener, (struct sockaddr*)&address, length) || listen(listener, 1) ||
                 getsockname(listener, (struct sockaddr*)&address, &length)))
    fail("listen");
  pid_t child = count > 3 ? !calls : fork();
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(child == 0, &core);
  sched_setaffinity(0, sizeof core, &core);
  int stream = child == 0 ? socket(AF_INET, SOCK_STREAM, 0) : accept(listener, NULL, NULL);
  if (child == 0 && connect(stream, (struct sockaddr*)&address, length)) fail("connect");
  setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  char *out = malloc(bytes), *in = malloc(bytes);
  double* took = malloc((size_t)times * sizeof *took);
  for (size_t at = 0; at < bytes; at++) out[at] = (char)(at * 7 + 1);
  memset(in, 0, bytes);
  for (turn = -warm; turn < times; turn++) {
    double began = now();
    exchange(stream, out, in, bytes);
    if (turn >= 0) took[turn] = now() - began;
  }
  if (memcmp(in, out, bytes) != 0) {
    fprintf(stderr, "other bytes arrived\n");
    return 1;
  }
  if (child == 0) return 0;
  qsort(took, (size_t)times, sizeof *took, by_value);
  printf("%zu bytes: median %.2f us, least %.2f us\n", bytes, took[times / 2], took[0]);
  return 0;
}
