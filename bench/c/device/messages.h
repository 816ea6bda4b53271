/*
 * Groups of messages: every rank sends several messages to each of its peers and receives as many from each, all in
 * one group, as pipelines and uneven exchanges do. All messages are on their way at once, so a library that runs
 * them one after the other hangs as soon as they are longer than what it holds of a message.
 *
 * Every eight bytes tell sender, receiver, message and place. Absent: collectives.
 */
#ifndef DEVICE_MESSAGES_H
#define DEVICE_MESSAGES_H

#include "ranks.h"

/* The bytes that a rank sends in a group, which are as many as it receives. */
static size_t messages_bytes(size_t bytes) { return bytes * (size_t)asked.messages * (size_t)(asked.ranks - 1); }

/* Where a message to or from a peer lies within a buffer; a rank sends itself none. */
static size_t message_at(int me, int peer, int message, size_t bytes) {
  size_t place = (size_t)(peer < me ? peer : peer - 1);
  return GUARD + (place * (size_t)asked.messages + (size_t)message) * bytes;
}

static uint64_t message_word(int from, int to, int message, size_t index) {
  uint64_t key = asked.seed ^ ((uint64_t)from << 56) ^ ((uint64_t)to << 48) ^ ((uint64_t)message << 40) ^ index;
  key *= 0x9e3779b97f4a7c15u;
  return key ^ (key >> 31);
}

/* Writes a message's bytes, or counts in how many words they differ. */
static size_t message_each(unsigned char *at, size_t bytes, int from, int to, int message, int is_written) {
  size_t bad = 0;
  for (size_t done = 0; done < bytes; done += sizeof(uint64_t)) {
    uint64_t word = message_word(from, to, message, done / sizeof word);
    size_t part = bytes - done < sizeof word ? bytes - done : sizeof word;
    if (is_written) memcpy(at + done, &word, part);
    else bad += memcmp(at + done, &word, part) != 0;
  }
  return bad;
}

static void messages_prepare(rank_t *rank, size_t bytes) {
  use(rank);
  memset(rank->copy, 0xa5, rank->bytes);
  for (int peer = 0; peer < asked.ranks; peer++)
    for (int message = 0; peer != rank->rank && message < asked.messages; message++)
      message_each(rank->copy + message_at(rank->rank, peer, message, bytes), bytes, rank->rank, peer, message, 1);
  upload(rank->from, rank->copy, rank->bytes);
  poison(rank->to, rank->bytes);
}

/* All messages of all ranks of this thread, in one group. */
static void messages_issue(rank_t *ranks, size_t bytes) {
  enum { BYTE = 0 };
  int n = asked.ranks;
  nccl_ok(nccl.group_start(), "ncclGroupStart");
  for (int local = 0; local < asked.group; local++) {
    rank_t *rank = &ranks[local];
    int me = rank->rank;
    use(rank);
    for (int message = 0; message < asked.messages; message++)
      for (int distance = 1; distance < n; distance++) {
        int to = (me + distance) % n, from = (me + n - distance) % n;
        nccl_ok(nccl.send(rank->from + message_at(me, to, message, bytes), bytes, BYTE, to, rank->comm, rank->stream),
                "ncclSend");
        nccl_ok(nccl.recv(rank->to + message_at(me, from, message, bytes), bytes, BYTE, from, rank->comm, rank->stream),
                "ncclRecv");
      }
  }
  nccl_ok(nccl.group_end(), "ncclGroupEnd");
}

static void messages_complain(int rank, size_t bytes, const char *is, int peer, int message, size_t words) {
  printf("{\"what\":\"wrong\",\"collective\":\"messages\",\"rank\":%d,\"bytes\":%zu,\"is\":\"%s\",\"peer\":%d,"
         "\"message\":%d,\"words\":%zu}\n",
         rank, bytes, is, peer, message, words);
  fflush(stdout);
}

/* How many messages are wrong, and whether anything else was written. */
static uint64_t messages_examine(rank_t *rank, size_t bytes) {
  uint64_t bad = 0;
  size_t ends = GUARD + messages_bytes(bytes);
  use(rank);
  download(rank->copy, rank->to, rank->bytes);
  for (int peer = 0; peer < asked.ranks; peer++)
    for (int message = 0; peer != rank->rank && message < asked.messages; message++) {
      size_t at = message_at(rank->rank, peer, message, bytes);
      size_t words = message_each(rank->copy + at, bytes, peer, rank->rank, message, 0);
      if (words) messages_complain(rank->rank, bytes, "output", peer, message, words), bad++;
    }
  if (!untouched(rank->copy, 0, GUARD) || !untouched(rank->copy, ends, rank->bytes))
    messages_complain(rank->rank, bytes, "outside of the output", -1, -1, 1), bad++;
  return bad;
}

/* Each size: a group, and at once a second one behind it. */
static void messages_check(rank_t *ranks) {
  int leads = ranks[0].rank == 0;
  uint64_t cases = 0, bad = 0;
  for (int size = 0; size < asked.sizes_count; size++) {
    size_t bytes = asked.sizes[size];
    for (int local = 0; local < asked.group; local++) messages_prepare(&ranks[local], bytes);
    settle(ranks);
    barrier(parties());
    messages_issue(ranks, bytes);
    messages_issue(ranks, bytes);
    for (int local = 0; local < asked.group; local++) {
      wait_for(&ranks[local]);
      shared->bad[ranks[local].rank] = messages_examine(&ranks[local], bytes);
    }
    barrier(parties());
    for (int rank = 0; leads && rank < asked.ranks; rank++) bad += shared->bad[rank];
    cases++;
    if (leads) progress("messages", cases);
    barrier(parties());
  }
  if (!leads) return;
  printf("{\"what\":\"check\",\"collective\":\"messages\",\"ranks\":%d,\"messages\":%d,\"cases\":%llu,\"bad\":%llu}\n",
         asked.ranks, asked.messages, (unsigned long long)cases, (unsigned long long)bad);
  fflush(stdout);
  if (bad) shared->figures[0][0] = 1;
}

#endif
