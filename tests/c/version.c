/*
 * The calls that need no communicator, on a linked libnccl.so.2. What it prints does not depend on whose nccl.h it
 * was compiled with: `tests/tests/repository/header.rs` compares.
 */
#include <nccl.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  ncclUniqueId id, empty;
  int version = 0, code;

  printf("get version %d", ncclGetVersion(&version));
  printf(", %d, compiled for %d\n", version, NCCL_VERSION_CODE);
  printf("get version of nothing %d\n", ncclGetVersion(NULL));
  for (code = -1; code <= ncclNumResults + 1; code++)
    printf("result %d: %s\n", code, ncclGetErrorString((ncclResult_t)code));

  memset(&empty, 0, sizeof(empty));
  id = empty;
  printf("get id %d", ncclGetUniqueId(&id));
  printf(", empty %d\n", memcmp(&id, &empty, sizeof(id)) == 0);

  printf("sizes %zu %zu %zu %zu %zu %zu\n", sizeof(ncclUniqueId), sizeof(ncclComm_t), sizeof(ncclConfig_t),
         sizeof(ncclCollConfig_t), sizeof(ncclSimInfo_t), sizeof(ncclWaitSignalDesc_t));
  return 0;
}
