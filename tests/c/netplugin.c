/* A network plugin over shared memory, for tests of what loads plugins: of the version that NET_VERSION says.
 *
 * It does as little as NCCL's interface allows. Each comm is a ring of bytes in a segment that the listening side makes. What was
 * sent moves only when its request is tested, and what was received too; every few calls it has nothing to give, as when a network is
 * busy. Whatever NCCL would not do ends the program: memory that is not registered, a request too many, a comm closed with memory
 * that is still registered, an end with open comms.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef NET_VERSION
#define NET_VERSION 12
#endif
#ifndef NET_DEVICES
#define NET_DEVICES 2
#endif
#ifndef NET_INIT
#define NET_INIT 0
#endif

enum { HANDLE = 128, REQUESTS = 32, HOST = 1, DEVICE = 2, RING = 1 << 20, NAME = 64, SKIPS = 3 };
enum { OK = 0, SYSTEM = 2, USAGE = 5, REMOTE = 6 };

typedef void logger(int level, unsigned long subsystems, const char *place, int line, const char *format, ...);
typedef int profiler(void **event, int what, void *handle, int64_t plugin, void *more);
static logger *say;
static atomic_int made;
#if NET_VERSION < 11
static atomic_int of_process;
#endif

#define DEMAND(holds)                                                                                                 \
  do {                                                                                                                \
    if (!(holds)) {                                                                                                   \
      fprintf(stderr, "netplugin.c:%d: %s does not hold\n", __LINE__, #holds);                                       \
      abort();                                                                                                        \
    }                                                                                                                 \
  } while (0)

struct segment {
  atomic_uint connected, sender_closed, receiver_closed;
  _Atomic uint64_t written, taken;
  char ring[RING];
};

struct message {
  uint32_t bytes;
  int32_t tag;
};

struct comm;
struct request {
  struct comm *comm;
  char *data;
  size_t bytes, at;
  struct message header;
  int tag, is_used;
};

struct comm {
  struct segment *segment;
  char name[NAME];
  int is_sender, is_listening, calls;
  /* The open comms of its context. */
  atomic_int *open;
  char *start;
  size_t registered;
  uint64_t begun, over;
  struct request requests[REQUESTS];
};

/* Whether there is nothing to give this time. */
static int is_busy(struct comm *comm) { return ++comm->calls % SKIPS == 0; }

static struct comm *opened(atomic_int *open) {
  struct comm *comm = calloc(1, sizeof *comm);
  DEMAND(comm);
  comm->open = open;
  atomic_fetch_add(open, 1);
  return comm;
}

static int map(struct comm *comm, int flags) {
  int file = shm_open(comm->name, O_RDWR | O_CLOEXEC | flags, 0600);
  if (file < 0) return SYSTEM;
  if (flags && ftruncate(file, sizeof(struct segment)) != 0) {
    close(file);
    return SYSTEM;
  }
  comm->segment = mmap(NULL, sizeof(struct segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return comm->segment == MAP_FAILED ? SYSTEM : OK;
}

static int start(logger *log) {
  DEMAND(log);
  say = log;
  say(3, 16, __FILE__, __LINE__, "version %d of the %s plugin", NET_VERSION, "test's");
  return NET_INIT;
}

static int devices(int *count) {
  *count = NET_DEVICES;
  return OK;
}

static int listen_at(atomic_int *open, int device, void *handle, void **listening) {
  struct comm *comm = opened(open);
  DEMAND(device == NET_DEVICES - 1);
  comm->is_listening = 1;
  snprintf(comm->name, NAME, "/consort-net-%d-%d", (int)getpid(), atomic_fetch_add(&made, 1));
  memcpy(handle, comm->name, NAME);
  *listening = comm;
  return map(comm, O_CREAT | O_EXCL);
}

/* How far it has come is kept in the handle, behind the name. */
static int connect_to(atomic_int *open, int device, void *handle, void **sending) {
  struct comm *comm;
  char *calls = (char *)handle + NAME;
  DEMAND(device == NET_DEVICES - 1);
  *sending = NULL;
  if (++*calls < SKIPS) return OK;
  DEMAND(*calls == SKIPS);
  comm = opened(open);
  comm->is_sender = 1;
  memcpy(comm->name, handle, NAME);
  if (map(comm, 0) != OK) {
    free(comm);
    atomic_fetch_sub(open, 1);
    say(2, 16, __FILE__, __LINE__, "there is no %.64s", (char *)handle);
    return REMOTE;
  }
  atomic_store(&comm->segment->connected, 1);
  *sending = comm;
  return OK;
}

static int take_caller(void *listening, void **receiving, void **on_device) {
  struct comm *from = listening, *comm;
  DEMAND(from->is_listening && on_device && *on_device == NULL);
  *receiving = NULL;
  if (is_busy(from) || !atomic_load(&from->segment->connected)) return OK;
  comm = opened(from->open);
  comm->segment = from->segment;
  from->segment = NULL;
  shm_unlink(from->name);
  *receiving = comm;
  return OK;
}

static int reg(void *of, void *data, size_t bytes, int kind, void **registration) {
  struct comm *comm = of;
  DEMAND(kind == HOST && !comm->start && !comm->is_listening);
  comm->start = data;
  comm->registered = bytes;
  *registration = &comm->start;
  return OK;
}

static int dereg(void *of, void *registration) {
  struct comm *comm = of;
  DEMAND(registration == &comm->start && comm->start);
  comm->start = NULL;
  return OK;
}

static int begin(struct comm *comm, char *data, size_t bytes, int tag, void *registration, void **request) {
  struct request *next = &comm->requests[comm->begun % REQUESTS];
  *request = NULL;
  DEMAND(registration == &comm->start && comm->start);
  DEMAND(data >= comm->start && data + bytes <= comm->start + comm->registered);
  if (is_busy(comm)) return OK;
  DEMAND(comm->begun - comm->over < REQUESTS && !next->is_used);
  *next = (struct request){.comm = comm, .data = data, .bytes = bytes, .tag = tag, .is_used = 1};
  next->header = (struct message){(uint32_t)bytes, tag};
  comm->begun++;
  *request = next;
  return OK;
}

/* Copies between the ring and what a request is about, from its byte `at` on, as far as there are bytes or room. */
static void copy(struct segment *segment, int sends, char *bytes, size_t count, size_t *at) {
  uint64_t written = atomic_load(&segment->written), taken = atomic_load(&segment->taken);
  uint64_t from = sends ? written : taken;
  size_t room = sends ? RING - (size_t)(written - taken) : (size_t)(written - taken);
  while (*at < count && room) {
    size_t place = from % RING, piece = count - *at;
    if (piece > room) piece = room;
    if (piece > RING - place) piece = RING - place;
    if (sends) memcpy(segment->ring + place, bytes + *at, piece);
    else memcpy(bytes + *at, segment->ring + place, piece);
    *at += piece;
    from += piece;
    room -= piece;
  }
  atomic_store(sends ? &segment->written : &segment->taken, from);
}

static int test(void *of, int *done, int *sizes) {
  struct request *request = of;
  struct comm *comm = request->comm;
  struct segment *segment = comm->segment;
  size_t header = request->at < sizeof request->header ? request->at : sizeof request->header;
  size_t at = request->at - header;
  int gone = atomic_load(comm->is_sender ? &segment->receiver_closed : &segment->sender_closed);
  *done = 0;
  /* Only the oldest is asked. */
  DEMAND(request->is_used && request == &comm->requests[comm->over % REQUESTS]);
  if (is_busy(comm)) return OK;
  if (comm->is_sender && gone) return REMOTE;
  copy(segment, comm->is_sender, (char *)&request->header, sizeof request->header, &header);
  if (header == sizeof request->header) {
    if (request->header.tag != request->tag || request->header.bytes > request->bytes) return USAGE;
    copy(segment, comm->is_sender, request->data, request->header.bytes, &at);
  }
  if (header + at == request->at && gone) return REMOTE;
  request->at = header + at;
  if (header < sizeof request->header || at < request->header.bytes) return OK;
  if (sizes) *sizes = (int)request->header.bytes;
  *done = 1;
  request->is_used = 0;
  comm->over++;
  return OK;
}

static int end(void *of) {
  struct comm *comm = of;
  DEMAND(!comm->start);
  if (comm->is_listening && comm->segment) shm_unlink(comm->name);
  if (comm->segment && !comm->is_listening)
    atomic_store(comm->is_sender ? &comm->segment->sender_closed : &comm->segment->receiver_closed, 1);
  if (comm->segment) munmap(comm->segment, sizeof *comm->segment);
  atomic_fetch_sub(comm->open, 1);
  free(comm);
  return OK;
}

/* What differs from version to version. */
struct joined {
  int count;
  int devices[NET_VERSION >= 12 ? 8 : 4];
};

struct properties {
  char *name, *path;
  uint64_t guid;
  int pointers, registers_for_all;
#if NET_VERSION >= 9
  int flushes;
#endif
  int speed, port;
  float latency;
  int comms, receives, offload, offload_version;
#if NET_VERSION >= 9
  struct joined joined;
  size_t p2p, collective;
#endif
#if NET_VERSION >= 11
  int multi;
#endif
#if NET_VERSION >= 12
  int16_t rail, plane;
#endif
};

static int properties(int device, struct properties *of) {
  static char name[] = "memory0", devices_name[] = "gpu0";
  /* The first sends from devices alone. */
  int is_host = device == NET_DEVICES - 1;
  memset(of, 0, sizeof *of);
  of->name = is_host ? name : devices_name;
  of->pointers = is_host ? HOST : DEVICE;
  of->speed = 100000;
  of->comms = 1 << 20;
  of->receives = 1;
#if NET_VERSION >= 9
  of->joined.count = 1;
  of->p2p = of->collective = 1 << 30;
#endif
#if NET_VERSION >= 12
  of->rail = of->plane = -1;
#endif
  return OK;
}

struct config {
  int traffic_class;
};

#if NET_VERSION >= 11
static int init(void **context, uint64_t number, struct config *config, logger *log, profiler *events) {
  (void)number;
  DEMAND(config->traffic_class == -1 && events);
  *context = calloc(1, sizeof(atomic_int));
  return start(log);
}
static int finalize(void *context) {
  DEMAND(atomic_load((atomic_int *)context) == 0);
  free(context);
  return OK;
}
static int do_listen(void *context, int device, void *handle, void **comm) {
  return listen_at(context, device, handle, comm);
}
static int do_connect(void *context, int device, void *handle, void **comm, void **on_device) {
  DEMAND(on_device && *on_device == NULL);
  return connect_to(context, device, handle, comm);
}
#else
static void once(void) {
  static atomic_int calls;
  DEMAND(atomic_fetch_add(&calls, 1) == 0);
}
#if NET_VERSION >= 10
static int init(logger *log, profiler *events) {
  once();
  DEMAND(events);
  return start(log);
}
#else
static int init(logger *log) {
  once();
  return start(log);
}
#endif
static int do_listen(int device, void *handle, void **comm) {
  return listen_at(&of_process, device, handle, comm);
}
#if NET_VERSION == 10
static int do_connect(int device, struct config *config, void *handle, void **comm, void **on_device) {
  DEMAND(config->traffic_class == -1 && on_device && *on_device == NULL);
  return connect_to(&of_process, device, handle, comm);
}
#else
static int do_connect(int device, void *handle, void **comm, void **on_device) {
  DEMAND(on_device && *on_device == NULL);
  return connect_to(&of_process, device, handle, comm);
}
#endif
#endif

#if NET_VERSION >= 9
typedef size_t length;
#else
typedef int length;
#endif
#if NET_VERSION >= 10
static int isend(void *comm, void *data, length bytes, int tag, void *registration, void *event, void **request) {
  DEMAND(!event);
#else
static int isend(void *comm, void *data, length bytes, int tag, void *registration, void **request) {
#endif
  return begin(comm, data, (size_t)bytes, tag, registration, request);
}
#if NET_VERSION >= 10
static int irecv(void *comm, int n, void **data, length *bytes, int *tags, void **registrations, void **events,
                 void **request) {
  DEMAND(events && !*events);
#else
static int irecv(void *comm, int n, void **data, length *bytes, int *tags, void **registrations, void **request) {
#endif
  DEMAND(n == 1 && *request == NULL);
  return begin(comm, *data, (size_t)*bytes, *tags, *registrations, request);
}

#define JOINED(a, b) a##b
#define TABLE(version) JOINED(ncclNetPlugin_v, version)
#ifndef NET_TABLE
#define NET_TABLE TABLE(NET_VERSION)
#endif

struct {
  const char *name;
  void *functions[22];
} NET_TABLE = {"Memory",
               {init, devices, properties, do_listen, do_connect, take_caller, reg, NULL, dereg, isend, irecv, NULL, test,
                end, end, end, NULL, NULL,
#if NET_VERSION >= 9
                NULL,
#endif
#if NET_VERSION >= 11
                finalize, NULL
#endif
               }};
