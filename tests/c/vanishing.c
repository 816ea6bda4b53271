/*
 * A rank of a job of two hosts, through NCCL's names, that calls until a call fails. Called by `.ci/hosts`, which takes one of the
 * hosts off the network. NCCL_COMM_ID says where rank 0 listens; rank and size are arguments.
 */
#define _POSIX_C_SOURCE 200809L

#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call)                                                        \
  do {                                                                  \
    if ((call) != ncclSuccess) {                                        \
      printf("%s: %s\n", #call, ncclGetLastError(NULL));                \
      return 1;                                                         \
    }                                                                   \
  } while (0)

int main(int count, char** words) {
  static float in[1024], out[1024];
  ncclUniqueId id;
  ncclComm_t comm;
  int rank, size, turn;
  if (count != 3) return 2;
  rank = atoi(words[1]);
  size = atoi(words[2]);
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&comm, size, id, rank));
  for (turn = 0;; turn++) {
    if (ncclAllReduce(in, out, 1024, ncclFloat32, ncclSum, comm, NULL) != ncclSuccess) break;
    if (turn == 100) {
      printf("it runs\n");
      fflush(stdout);
    }
  }
  printf("a call failed: %s\n", ncclGetLastError(comm));
  ncclCommAbort(comm);
  return 0;
}
