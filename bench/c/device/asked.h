/*
 * What the caller of device_ranks asked for; the head of device_ranks.c says what each option is.
 *
 * Holds the one variable `asked`, which only read_arguments() writes. A value that is out of range ends the program.
 */
#ifndef DEVICE_ASKED_H
#define DEVICE_ASKED_H

#include "job.h"
#include "values.h"

enum { COLLECTIVES = 9, SIZES_MAX = 64, LOCAL_MAX = 16 };
enum collective { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, SEND_RECV };
static const char *const names[COLLECTIVES] = {"allreduce", "reduce", "broadcast", "allgather", "reducescatter",
                                               "alltoall",  "gather", "scatter",   "sendrecv"};
enum mode { CHECK, TIME, LAUNCH, MEMORY };

static struct {
  int processes, threads, group, ranks, hosts, blocks, messages, samples, calls;
  int devices[RANKS_MAX], devices_count, on_host, in_place, out_of_place;
  enum order order;
  enum mode mode;
  enum kind kind;
  int collectives[COLLECTIVES], types[TYPES], ops[OPS];
  size_t sizes[SIZES_MAX];
  int sizes_count;
  uint64_t seed;
  double limit_s;
  const char *library;
} asked = {.processes = 1,
           .threads = 1,
           .group = 1,
           .samples = 20,
           .calls = 200,
           .devices_count = 1,
           .in_place = 1,
           .out_of_place = 1,
           .sizes = {8, 1000, 65536, 1048576},
           .sizes_count = 4,
           .limit_s = 300};

static void wrong(const char *what, const char *value) {
  fprintf(stderr, "%s %s: see the head of device_ranks.c\n", what, value ? value : "needs a value");
  exit(ENDS_USAGE);
}

/* Marks what a list names. */
static void choose(const char *list, int *chosen, int count, const char *(*name)(int)) {
  char text[512];
  snprintf(text, sizeof text, "%s", list);
  memset(chosen, 0, (size_t)count * sizeof(int));
  for (char *rest = text, *word; (word = strtok_r(rest, ",", &rest));) {
    int known = !strcmp(word, "all");
    for (int each = 0; each < count; each++)
      if (!strcmp(word, "all") || !strcmp(word, name(each))) chosen[each] = known = 1;
    if (!known) wrong("there is no", word);
  }
}

static const char *collective_name(int each) { return names[each]; }
static const char *type_name(int each) { return formats[each].name; }
static const char *op_name(int each) { return op_names[each]; }

static size_t bytes_of(const char *text, char **end) {
  size_t value = strtoull(text, end, 10);
  int shift = **end == 'K' ? 10 : **end == 'M' ? 20 : **end == 'G' ? 30 : 0;
  if (shift) ++*end;
  return value << shift;
}

static void choose_sizes(const char *list) {
  char *end;
  asked.sizes_count = 0;
  for (const char *at = list; asked.sizes_count < SIZES_MAX; at = end + 1) {
    size_t size = bytes_of(at, &end), last = size, factor = 2;
    if (*end == ':') last = bytes_of(end + 1, &end), factor = *end == ':' ? strtoull(end + 1, &end, 10) : 2;
    if (size == 0 || factor < 2 || (*end && *end != ',')) wrong("no sizes:", list);
    for (; size <= last && asked.sizes_count < SIZES_MAX; size *= factor) asked.sizes[asked.sizes_count++] = size;
    if (!*end) return;
  }
}

static void read_arguments(int argc, char **argv) {
  const char *types = NULL, *ops = NULL;
  choose("all", asked.collectives, COLLECTIVES, collective_name);
  asked.seed = (uint64_t)time(NULL);
  for (int at = 1; at < argc; at++) {
    const char *option = argv[at], *value = at + 1 < argc ? argv[at + 1] : NULL;
    if (option[0] != '-') {
      asked.library = option;
      continue;
    }
    if (!value) wrong(option, NULL);
    at++;
    if (!strcmp(option, "-p")) asked.processes = atoi(value);
    else if (!strcmp(option, "-t")) asked.threads = atoi(value);
    else if (!strcmp(option, "-g")) asked.group = atoi(value);
    else if (!strcmp(option, "--hosts")) asked.hosts = atoi(value);
    else if (!strcmp(option, "--blocks")) asked.blocks = atoi(value);
    else if (!strcmp(option, "--group-messages")) asked.messages = atoi(value);
    else if (!strcmp(option, "--samples")) asked.samples = atoi(value);
    else if (!strcmp(option, "--calls")) asked.calls = atoi(value);
    else if (!strcmp(option, "--seed")) asked.seed = strtoull(value, NULL, 10);
    else if (!strcmp(option, "--limit")) asked.limit_s = atof(value);
    else if (!strcmp(option, "--collectives")) choose(value, asked.collectives, COLLECTIVES, collective_name);
    else if (!strcmp(option, "--types")) types = value;
    else if (!strcmp(option, "--ops")) ops = value;
    else if (!strcmp(option, "--sizes")) choose_sizes(value);
    else if (!strcmp(option, "--memory") && (!strcmp(value, "host") || !strcmp(value, "device")))
      asked.on_host = !strcmp(value, "host");
    else if (!strcmp(option, "--place") && (!strcmp(value, "in") || !strcmp(value, "out") || !strcmp(value, "both")))
      asked.in_place = *value != 'o', asked.out_of_place = *value != 'i';
    else if (!strcmp(option, "--mode") && !strcmp(value, "check")) asked.mode = CHECK;
    else if (!strcmp(option, "--mode") && !strcmp(value, "time")) asked.mode = TIME;
    else if (!strcmp(option, "--mode") && !strcmp(value, "launch")) asked.mode = LAUNCH;
    else if (!strcmp(option, "--mode") && !strcmp(value, "memory")) asked.mode = MEMORY;
    else if (!strcmp(option, "--values") && !strcmp(value, "exact")) asked.kind = EXACT;
    else if (!strcmp(option, "--values") && !strcmp(value, "rounding")) asked.kind = ROUNDING;
    else if (!strcmp(option, "--values") && !strcmp(value, "ordered"))
      asked.kind = ROUNDING, asked.order = AFTER_EACH;
    else if (!strcmp(option, "--values") && !strcmp(value, "once")) asked.kind = ROUNDING, asked.order = ONCE;
    else if (!strcmp(option, "--devices")) {
      char text[256];
      snprintf(text, sizeof text, "%s", value);
      asked.devices_count = 0;
      for (char *rest = text, *word; (word = strtok_r(rest, ",", &rest)) && asked.devices_count < RANKS_MAX;)
        asked.devices[asked.devices_count++] = atoi(word);
    } else wrong(option, value);
  }
  int is_timed = asked.mode != CHECK;
  choose(types ? types : is_timed ? "float" : "all", asked.types, TYPES, type_name);
  choose(ops ? ops : is_timed ? "sum" : "all", asked.ops, OPS, op_name);
  asked.ranks = asked.processes * asked.threads * asked.group;
  if (asked.mode == LAUNCH) asked.calls = 1;
  if (!asked.library) wrong("LIBRARY", NULL);
  if (asked.processes < 1 || asked.threads < 1 || asked.group < 1 || asked.group > LOCAL_MAX ||
      asked.ranks > RANKS_MAX || asked.messages < 0 || (asked.messages && (asked.mode != CHECK || asked.ranks < 2)) ||
      asked.samples < 1 || asked.samples > 4096 || asked.calls < 1 ||
      asked.devices_count < 1 || asked.sizes_count < 1)
    wrong("-p, -t, -g, --group-messages, --samples, --calls, --devices or --sizes:", "out of range");
}

#endif
