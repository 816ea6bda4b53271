/*
 * nccl_device/host.h - what host code calls and passes to use NCCL's device interface, 2.32.3, for C99 and C++.
 *
 * Names, values and layouts are NCCL's; the words are ours. Kernels can not be served with host memory: here
 * ncclCommQueryProperties says that the device interface is not supported, and what would need it fails with
 * ncclInvalidUsage. The structs are declared in full all the same, since programs have them in their own.
 *
 * Words. LSA: ranks whose memory a processor can load from and store to. GIN: network transfers made by a kernel.
 * CFT: transfers made by the fabric. Rail: ranks with the same place in their LSA teams.
 *
 * Every function here has a pncclX twin in the library, which NCCL's header does not declare, and nor does this
 * one. ncclCftBarrierCreateRequirement, which NCCL declares and its library does not have, is absent.
 */
#ifndef _NCCL_DEVICE_HOST_H_
#define _NCCL_DEVICE_HOST_H_

#include <nccl.h>
#include <stdbool.h>

#ifdef __cplusplus
#define NCCL_EXTERN_C extern "C"
#else
#define NCCL_EXTERN_C
#endif

/* ---- Values ---------------------------------------------------------------------------------------------- */

#define NCCL_GIN_MAX_CONNECTIONS 4
#define NCCL_GIN_MAX_ACTIVE_BACKENDS 4

typedef uint32_t ncclDevResourceHandle;
typedef ncclDevResourceHandle ncclDevResourceHandle_t;
typedef uint32_t ncclGinSignal_t;
typedef uint32_t ncclGinCounter_t;
typedef void* ncclGinWindow_t;
typedef uint32_t ncclCftLeId;
typedef ncclCftLeId ncclCftLeId_t;
#define NCCL_LE_ID_INVALID ((ncclCftLeId_t) - 1)

/* Which ranks a rank's kernels can reach over the network. */
typedef enum {
  NCCL_GIN_CONNECTION_NONE = 0,
  NCCL_GIN_CONNECTION_FULL = 1,
  NCCL_GIN_CONNECTION_RAIL = 2,
  NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3
} ncclGinConnectionType_t;

/* Who does it; 1 is not used. */
typedef enum {
  NCCL_GIN_TYPE_NONE = 0,
  NCCL_GIN_TYPE_PROXY = 2,
  NCCL_GIN_TYPE_GDAKI = 3,
  NCCL_GIN_TYPE_GPI = 4,
  NCCL_GIN_TYPE_EFA_GDA = 5,
  NCCL_GIN_MAX_TYPES = 6
} ncclGinType_t;

typedef enum {
  NCCL_CFT_TEAM_FLAT = 0,
  NCCL_CFT_TEAM_HIER_MULTIMEM = 1,
  NCCL_CFT_TEAM_HIER_LSA = 2
} ncclCftTeamMode_t;

/* Bits. */
typedef enum { NCCL_CFT_NONE = 0, NCCL_CFT = 1, NCCL_CFT_MULTIMEM = 2 } ncclCftCap_t;

/* ---- Teams and handles ----------------------------------------------------------------------------------- */

/* Ranks of a communicator at equal distances; `rank` is the caller's in the team. */
struct ncclTeam {
  int nRanks, rank, stride;
};
typedef struct ncclTeam ncclTeam_t;

struct ncclMultimemHandle {
  void* mcBasePtr;
};
typedef struct ncclMultimemHandle ncclMultimemHandle_t;

struct ncclLsaBarrierHandle {
  ncclDevResourceHandle_t bufHandle;
  int nBarriers;
};
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;

struct ncclGinBarrierHandle {
  ncclGinSignal_t signal0;
  ncclDevResourceHandle_t unused;
};
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;

struct ncclCftBarrierHandle {
  ncclDevResourceHandle_t bufHandle;
  int nBarriers;
};
typedef struct ncclCftBarrierHandle ncclCftBarrierHandle_t;

struct ncclLLA2AHandle {
  ncclDevResourceHandle_t bufHandle;
  uint32_t nSlots;
};
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;

typedef struct {
  uint64_t opaque[2];
} ncclGinRequest_t;

/* Of the two calls at the end, which NCCL declares for Windows alone. */
struct ncclGinOutboxHandle {
  ncclDevResourceHandle bufHandle;
  uint32_t size_log2;
};
typedef struct ncclGinOutboxHandle ncclGinOutboxHandle;

struct ncclGinInboxA2AHandle {
  ncclDevResourceHandle bufHandle;
  ncclGinSignal_t signals;
  uint32_t size_log2;
  uint32_t nPeers_rcp32;
};
typedef struct ncclGinInboxA2AHandle ncclGinInboxA2AHandle;

/* What is behind an ncclWindow_t in device memory. */
struct ncclSegmentWindow;
struct ncclWindow_vidmem {
  void* winHost;
  char* lsaFlatBase;
  int lsaRank;
  int worldRank;
  uint32_t stride4G;
  uint32_t mcOffset4K;
  uint32_t ginOffset4K;
  uint32_t winFlags;
  ncclGinWindow_t ginWinsDefaultBackend[NCCL_GIN_MAX_CONNECTIONS];
  struct ncclSegmentWindow* ginMultiSegmentWins;
  int numSegments;
  int cftFlatRank;
  ncclCftLeId_t ucLeIdBase;
};
typedef struct ncclWindow_vidmem ncclWindow_vidmem_t;

typedef struct ncclResourceWindow_vidmem {
  char* lsaFlatBase;
  uint32_t stride4G;
  uint32_t mcOffset4K;
} ncclResourceWindow_vidmem_t;

typedef struct ncclDevCommWindowTable* ncclDevCommWindowTable_t;

/* A communicator as kernels see it: ncclDevCommCreate's, not to be changed. */
struct ncclDevComm {
  unsigned int magic;
  unsigned int version;
  int rank, nRanks;
  uint32_t nRanks_rcp32;
  int lsaRank, lsaSize;
  uint32_t lsaSize_rcp32;
  ncclDevCommWindowTable_t windowTable;
  ncclWindow_t resourceWindow;
  ncclResourceWindow_vidmem_t resourceWindow_inlined;
  ncclGinBarrierHandle_t hybridDenseGinBarrier;
  ncclMultimemHandle_t lsaMultimem;
  ncclLsaBarrierHandle_t lsaBarrier;
  ncclGinBarrierHandle_t railGinBarrier;
  uint8_t ginConnectionCount;
  uint8_t backendIndex;
  uint8_t ginNetDeviceTypes[NCCL_GIN_MAX_CONNECTIONS];
  void* ginHandles[NCCL_GIN_MAX_CONNECTIONS];
  int ginSignalCount;
  int ginCounterCount;
  uint64_t* ginSignalShadows;
  uint32_t ginContextCount;
  int ginConnectionStride;
  int ginContextStride;
  bool ginStrongLegacySignals;
  uint32_t* abortFlag;
  ncclLsaBarrierHandle_t hybridLsaBarrier;
  ncclGinBarrierHandle_t hybridRailGinBarrier;
  ncclGinBarrierHandle_t worldGinBarrier;
  uint32_t ginConnectionStride_rcp32;
  int cftRank, cftSize;
  int cftMultimemRank, cftMultimemSize;
  uint32_t cftMultimemSize_rcp32;
  ncclCftLeId ucLeId;
  ncclCftLeId mcLeId;
  ncclCftBarrierHandle_t cftBarrier;
  ncclCftBarrierHandle_t cftMultimemBarrier;
};
typedef struct ncclDevComm ncclDevComm_t;

/* ---- What a kernel needs: lists that a program links and gives to ncclDevCommCreate ---------------------- */

/* Memory, signals and counters; what was assigned is written where the out* members point, unless NULL. */
typedef struct ncclDevResourceRequirements {
  struct ncclDevResourceRequirements* next;
  size_t bufferSize, bufferAlign;
  ncclDevResourceHandle_t* outBufferHandle;
  int ginSignalCount;
  int ginCounterCount;
  ncclGinSignal_t* outGinSignalStart;
  ncclGinCounter_t* outGinCounterStart;
} ncclDevResourceRequirements_t;

typedef struct ncclTeamRequirements {
  struct ncclTeamRequirements* next;
  ncclTeam_t team;
  bool multimem;
  ncclMultimemHandle_t* outMultimemHandle;
} ncclTeamRequirements_t;

typedef struct ncclDevCommRequirements {
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclDevResourceRequirements_t* resourceRequirementsList;
  ncclTeamRequirements_t* teamRequirementsList;
  bool lsaMultimem;
  int barrierCount;
  int lsaBarrierCount;
  int railGinBarrierCount;
  int lsaLLA2ABlockCount, lsaLLA2ASlotCount;
  bool ginForceEnable;
  int ginContextCount; /* a wish; the communicator may have another number */
  int ginSignalCount;
  int ginCounterCount;
  ncclGinConnectionType_t ginConnectionType;
  bool ginExclusiveContexts;
  int ginQueueDepth;
  int ginTrafficClass;
  int worldGinBarrierCount;
  bool ginStrongSignalsRequired;
  bool ginVaSignalsRequired;
  int ginCustomStride; /* for NCCL_GIN_CONNECTION_CUSTOM_STRIDE */
  ncclGinType_t ginType;
  bool useRuntimeVersion; /* the kernels are compiled at run time, with the library's own layouts */
  int cftCaps;            /* ncclCftCap_t */
  int cftBarrierCount;
} ncclDevCommRequirements_t;

#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER                                                              \
  {                                                                                                         \
    sizeof(ncclDevCommRequirements_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, /* size, magic, version */        \
        NULL, NULL,                      /* the two lists */                                                \
        false, 0, 0, 0, 0, 0,            /* lsaMultimem to lsaLLA2ASlotCount */                             \
        false, 4, 0, 0,                  /* ginForceEnable; contexts, signals, counters */                  \
        NCCL_GIN_CONNECTION_NONE, false, /* ginConnectionType, ginExclusiveContexts */                      \
        0, NCCL_CONFIG_UNDEF_INT, 0,     /* ginQueueDepth, ginTrafficClass, worldGinBarrierCount */         \
        true, true,                      /* strong and VA signals */                                        \
        1, NCCL_GIN_TYPE_NONE, false,    /* ginCustomStride, ginType, useRuntimeVersion */                  \
        NCCL_CFT_NONE, 0                 /* cftCaps, cftBarrierCount */                                     \
  }

/* What ncclCommQueryProperties writes; which members, the `version` that the caller filled in decides. */
typedef struct ncclCommProperties {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport;
  bool multimemSupport;
  ncclGinType_t ginType;
  int nLsaTeams;
  bool hostRmaSupport; /* ncclPutSignal works */
  ncclGinType_t railedGinType;
  uint64_t commHash; /* the same on all ranks */
  int ginMinStride;
  ncclGinConnectionType_t ginConnectionType;
  bool ginSupport[64]; /* by ncclGinType_t */
  size_t devCommRuntimeVersionSize;
  bool cftSupport;
  bool cftMulticastSupport;
  bool cftCountedSupport;
} ncclCommProperties_t;

#define NCCL_COMM_PROPERTIES_INITIALIZER                                                                    \
  {                                                                                                         \
    sizeof(ncclCommProperties_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, /* size, magic, version */             \
        0, 0, 0, 0, false, false, NCCL_GIN_TYPE_NONE, 0, false,      /* rank to hostRmaSupport */           \
        NCCL_GIN_TYPE_NONE, 0, 0, NCCL_GIN_CONNECTION_NONE,          /* railedGinType to ... */             \
        {false}, 0, false, false, false                              /* ... ginConnectionType; the rest */  \
  }

/* ---- Calls ----------------------------------------------------------------------------------------------- */

/* Says what the communicator has. `deviceApiSupport` is false on host memory. */
NCCL_EXTERN_C ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* props);

/* Makes what kernels see of a communicator, all ranks calling; and frees it. ncclInvalidUsage on host memory. */
NCCL_EXTERN_C ncclResult_t ncclDevCommCreate(ncclComm_t comm, ncclDevCommRequirements_t const* reqs,
                                             ncclDevComm_t* outDevComm);
NCCL_EXTERN_C ncclResult_t ncclDevCommDestroy(ncclComm_t comm, ncclDevComm_t const* devComm);

/* Where this process can load and store `offset` bytes into a window, of an LSA rank or of any rank. */
NCCL_EXTERN_C ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void** outPtr);
NCCL_EXTERN_C ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void** outPtr);

/* The same for an address that reaches all ranks of a team at once. */
NCCL_EXTERN_C ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void** outPtr);
NCCL_EXTERN_C ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset,
                                                        ncclMultimemHandle_t multimem, void** outPtr);

/* The same for the fabric, as a logical endpoint and an offset from it. */
NCCL_EXTERN_C ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, ncclCftLeId* leId,
                                                       size_t* leOffset);
NCCL_EXTERN_C ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int peerCft,
                                                  ncclTeam_t cftTeam, ncclCftLeId* leId, size_t* leOffset);
NCCL_EXTERN_C ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int peerWorld,
                                                   ncclCftLeId* leId, size_t* leOffset);

/* The teams that this rank is in. */
NCCL_EXTERN_C ncclTeam_t ncclTeamWorld(ncclComm_t comm);
NCCL_EXTERN_C ncclTeam_t ncclTeamLsa(ncclComm_t comm);
NCCL_EXTERN_C ncclTeam_t ncclTeamRail(ncclComm_t comm);
#ifdef __cplusplus
NCCL_EXTERN_C ncclTeam_t ncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode = NCCL_CFT_TEAM_FLAT);
#else
NCCL_EXTERN_C ncclTeam_t ncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode);
#endif
NCCL_EXTERN_C ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm);

/* A team's rank as one of the communicator, or of this rank's LSA team. */
NCCL_EXTERN_C int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
NCCL_EXTERN_C int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

/* Fill in a node for resourceRequirementsList, and a handle that is good once ncclDevCommCreate has seen it. */
NCCL_EXTERN_C ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                                           ncclLsaBarrierHandle_t* outHandle,
                                                           ncclDevResourceRequirements_t* outReq);
NCCL_EXTERN_C ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                                           ncclGinBarrierHandle_t* outHandle,
                                                           ncclDevResourceRequirements_t* outReq);
NCCL_EXTERN_C int ncclLLA2ACalcSlots(int maxElts, int maxEltSize);
NCCL_EXTERN_C ncclResult_t ncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t* outHandle,
                                                      ncclDevResourceRequirements_t* outReq);
NCCL_EXTERN_C ncclResult_t ncclGinOutboxCreateRequirement(int nBlocks, int size_log2,
                                                          ncclGinOutboxHandle* outHandle,
                                                          ncclDevResourceRequirements_t* outReq);
NCCL_EXTERN_C ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t peers, int nBlocks, int size_log2,
                                                            ncclGinInboxA2AHandle* outHandle,
                                                            ncclDevResourceRequirements_t* outReq);

#endif /* _NCCL_DEVICE_HOST_H_ */
