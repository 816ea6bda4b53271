/*
 * nccl.h - NCCL's C interface, version 2.32.3, as this library's `libnccl.so.2` has it, for C99 and C++.
 *
 * Names, values and layouts are NCCL's, so that a program may be compiled with this header or with NCCL's own and
 * run with either library. The words are ours and say what THIS library does. What NCCL does not have is in
 * <consort.h>; the host side of the device interface is in <nccl_device.h>.
 *
 * Devices.    A communicator is on devices when all its ranks made it on a thread that has a device: one whose CUDA
 *             context is current, or else the runtime's current device if it is in use (ncclCommInitAll: the devices it
 *             names). Otherwise it is on host memory. CONSORT_DEVICE says more.
 * Buffers.    On devices: memory that the rank's device reaches, or in all of a call host memory. Otherwise host memory.
 * Completion. On devices: in the order of the CUDA stream that is passed. Ranks of one process that share a device
 *             wait in their calls until all of them have called. On host memory: when the data call returns; in a
 *             group, when the outermost ncclGroupEnd has. Of streams, only the host streams of <consort.h> are looked
 *             at then; pass NULL, or what you have. With a non-blocking communicator a call may return
 *             ncclInProgress: it is over (on devices: in its stream) when ncclCommGetAsyncError says something else.
 * Order.      All ranks of a communicator make the same calls in the same order. Where they do not, the call fails
 *             with ncclInvalidUsage and says which ranks differ.
 * Handles.    A communicator that is NULL, freed or foreign is refused with ncclInvalidArgument and not followed.
 * Errors.     Every call returns an ncclResult_t unless its declaration says otherwise; ncclGetLastError has the
 *             text of the last failure: what, where, and what to do.
 * Twins.      Each ncclX is also there as pncclX with the same signature (at the end), for tools that put a
 *             function of their own in front of ncclX and call pncclX from it.
 *
 * CUDA's headers are included where the compiler finds them. -DCONSORT_NCCL_CUDA=0 leaves them out all the same,
 * -DCONSORT_NCCL_CUDA=1 insists. Without them cudaStream_t and cudaEvent_t are declared here, to the letter as CUDA
 * does: C11 and C++ allow the same typedef twice. A C99 program that declares them itself, defines
 * CONSORT_NCCL_STREAM_TYPES before it includes this header, which then leaves them out.
 */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#ifndef CONSORT_NCCL_CUDA
#ifdef __has_include
#if __has_include(<cuda_runtime.h>)
#define CONSORT_NCCL_CUDA 1
#endif
#endif
#endif
#ifndef CONSORT_NCCL_CUDA
#define CONSORT_NCCL_CUDA 0
#endif

#if CONSORT_NCCL_CUDA
#include <cuda_runtime.h>
/* The element types; clients count on getting them from here. */
#include <cuda_fp16.h>
#if defined(CUDART_VERSION) && CUDART_VERSION >= 11000
#include <cuda_bf16.h>
#endif
#if defined(__cplusplus) && defined(CUDART_VERSION) && CUDART_VERSION >= 11080
#include <cuda_fp8.h>
#endif
/* __DRIVER_TYPES_H__: CUDA's were included before, from a place that <> does not search. */
#elif !defined(CONSORT_NCCL_STREAM_TYPES) && !defined(__DRIVER_TYPES_H__)
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
#endif

#define NCCL_MAJOR 2
#define NCCL_MINOR 32
#define NCCL_PATCH 3
#define NCCL_SUFFIX ""

#define NCCL_VERSION_CODE 23203
/* The code of a version; up to 2.8 it had a digit less. */
#define NCCL_VERSION(X, Y, Z) \
  ((X) < 3 && (Y) < 9 ? 1000 * (X) + 100 * (Y) + (Z) : 10000 * (X) + 100 * (Y) + (Z))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Handles --------------------------------------------------------------------------------------------- */

typedef struct ncclComm* ncclComm_t;
#define NCCL_COMM_NULL NULL

/* Memory that was registered with ncclCommWindowRegister. */
typedef struct ncclWindow_vidmem* ncclWindow_t;

/* A setting, for the ncclParam* calls. */
typedef struct ncclParamHandle* ncclParamHandle_t;

/* Where the ranks of a communicator find each other. Secret: a process that has it can join. */
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

/* ---- Values ---------------------------------------------------------------------------------------------- */

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1, /* CUDA refused something */
  ncclSystemError = 2,        /* the operating system refused something, or memory is short */
  ncclInternalError = 3,      /* a defect of this library */
  ncclInvalidArgument = 4,    /* the call itself is wrong; nothing has changed */
  ncclInvalidUsage = 5,       /* ranks differ in what they call, or the call does not fit the state */
  ncclRemoteError = 6,        /* a rank or a link was lost */
  ncclInProgress = 7,         /* not an error: poll ncclCommGetAsyncError */
  ncclTimeout = 8,            /* a deadline passed */
  ncclNumResults = 9
} ncclResult_t;

typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

/* ncclNumOps and above are the operators that a program made; the greatest value keeps the enum four bytes wide. */
typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4, /* the sum over the number of ranks */
  ncclNumOps = 5,
  ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

/* Where the scalar of ncclRedOpCreatePreMulSum lies, and with that when it is read. */
typedef enum {
  ncclScalarDevice = 0,       /* device memory, when an operation runs */
  ncclScalarHostImmediate = 1 /* host memory, by the call that makes the operator */
} ncclScalarResidence_t;

/* Marks a member of a config that the program leaves to the library. */
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT -1.0f

/* What stands in `magic` of the structs below; the initializers write it. */
#define NCCL_API_MAGIC 0xcafebeef

/* ncclCommSplit: this rank will be in no new communicator. */
#define NCCL_SPLIT_NOCOLOR -1

/* ncclCommShrink */
#define NCCL_SHRINK_DEFAULT 0x00 /* the communicator works and is idle */
#define NCCL_SHRINK_ABORT 0x01   /* end what is under way first; ranks may be dead */

/* ncclCommRevoke */
#define NCCL_REVOKE_DEFAULT 0x00

/* ncclCommSuspend */
#define NCCL_SUSPEND_MEM 0x01

/* ncclCommWindowRegister: bits */
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01   /* all ranks use the same offsets */
#define NCCL_WIN_STRICT_ORDERING 0x02  /* writes arrive in the order in which they were made */
#define NCCL_WIN_GIN_ONLY 0x04         /* for device-made network transfers alone */
#define NCCL_WIN_CFT_COUNTED 0x08      /* for counted fabric transfers alone */
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

/* CTAPolicy of the configs: bits */
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01 /* spare the processors of the device */
#define NCCL_CTA_POLICY_ZERO 0x02       /* use none of them: copy engines */

/* hostCftMode of ncclConfig_t */
typedef enum {
  ncclHostCftDefault = NCCL_CONFIG_UNDEF_INT,
  ncclHostCftEnable = 1,
  ncclHostCftDisable = 2,
  ncclHostCftFallback = 3
} ncclHostCftMode_t;

/* nvlsHostMode of ncclConfig_t: the two in the middle are bits */
typedef enum {
  ncclNvlsHostModeDefault = NCCL_CONFIG_UNDEF_INT,
  ncclNvlsHostModeEnable = 0,
  ncclNvlsHostModeDisableTransport = 1,
  ncclNvlsHostModeDisableSymmetricMultimem = 2,
  ncclNvlsHostModeDisable = INT_MAX
} ncclNvlsHostMode_t;

/* The counters of ncclCommMemStats, in bytes unless it is said otherwise. */
typedef enum {
  ncclStatGpuMemSuspend = 0,   /* what ncclCommSuspend could give back */
  ncclStatGpuMemSuspended = 1, /* not bytes: 1 while suspended, otherwise 0 */
  ncclStatGpuMemPersist = 2,   /* what stays until the communicator is freed */
  ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

typedef enum { NCCL_ENCRYPTION_MODE_NONE = 0, NCCL_ENCRYPTION_MODE_PSK = 1 } ncclEncryptionMode_t;

/* ---- Structs: start each from its initializer ------------------------------------------------------------ */

/*
 * Settings of a communicator. New members are appended only; `size` and `version` tell the library which of them
 * the program knew. What only concerns GPUs is checked; of it, minCTAs and maxCTAs have an effect.
 */
typedef struct ncclConfig_v23100 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;            /* 0: calls may return ncclInProgress */
  int cgaClusterSize;      /* thread blocks in a cluster */
  int minCTAs;             /* thread blocks of a kernel, at least */
  int maxCTAs;             /* ... at most */
  const char* netName;     /* network to be used */
  int splitShare;          /* 1: a split uses its parent's resources */
  int trafficClass;        /* of network packets */
  const char* commName;    /* for reports and logs */
  int collnetEnable;       /* 1: reduction inside the network */
  int CTAPolicy;           /* NCCL_CTA_POLICY_* */
  int shrinkShare;         /* 1: a shrunk communicator uses its parent's resources */
  int nvlsCTAs;            /* thread blocks for multicast */
  int nChannelsPerNetPeer; /* 1 to 64 */
  int nvlinkCentricSched;  /* 1: order peers by NVLink */
  int graphUsageMode;      /* 0 no CUDA graphs, 1 one at a time, 2 mixed with other work */
  int numRmaCtx;           /* contexts for ncclPutSignal */
  int maxP2pPeers;         /* ranks that send and receive will ever reach */
  int graphStreamOrdering; /* 1: graphs keep the order of streams */
  int launchOrderImplicit; /* 1: the device runs in the order of the program's calls */
  int numRmaSig;           /* signals for each pair */
  int rmaEagerInit;        /* 1: prepare one-sided calls when joining */
  int hostCftMode;         /* ncclHostCftMode_t */
  int nvlsHostMode;        /* ncclNvlsHostMode_t */
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                           \
  {                                                                                                       \
    sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, /* size, magic, version */                   \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,        /* blocking, cgaClusterSize */               \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,        /* minCTAs, maxCTAs */                       \
        NCCL_CONFIG_UNDEF_PTR,                               /* netName */                                \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,        /* splitShare, trafficClass */               \
        NCCL_CONFIG_UNDEF_PTR,                               /* commName */                               \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,        /* collnetEnable, CTAPolicy */               \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,        /* shrinkShare, nvlsCTAs */                  \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,        /* nChannelsPerNetPeer, nvlinkCentricSched */ \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,        /* graphUsageMode, numRmaCtx */              \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,        /* maxP2pPeers, graphStreamOrdering */       \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,        /* launchOrderImplicit, numRmaSig */         \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,        /* rmaEagerInit, hostCftMode */              \
        NCCL_CONFIG_UNDEF_INT                                /* nvlsHostMode */                           \
  }

/* An option of one vendor's library, in a list that ends with NULL; a library skips those of others. */
typedef struct ncclConfigExt {
  struct ncclConfigExt* next;
  struct {
    int vendorId;
    int optionId;
  } key;
  union {
    int i;
    const char* s;
    void* raw;
  } val;
} ncclConfigExt_t;

/* Settings of one call, for the nccl*Config calls; the same on all ranks. */
typedef struct ncclCollConfig_v23200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclConfigExt_t* ext;
  int minCTAs;
  int maxCTAs;
  int nvlsCTAs;
  int cgaClusterSize;
  const char* algSelection; /* the algorithm that runs the call; NULL or "" for any */
  int forceAlgSelection;    /* 1: an error where it cannot */
  int CTAPolicy;
  uint64_t userProfilerTag;          /* a number of the program's own, for what it reads in a profile */
  cudaEvent_t launchCompletionEvent; /* NULL */
} ncclCollConfig_t;

#define NCCL_COLLCONFIG_INITIALIZER                                                                       \
  {                                                                                                       \
    sizeof(ncclCollConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE,          /* size, magic, version */      \
        NCCL_CONFIG_UNDEF_PTR,                                            /* ext */                       \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                     /* minCTAs, maxCTAs */          \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                     /* nvlsCTAs, cgaClusterSize */  \
        NCCL_CONFIG_UNDEF_PTR, 1,                                         /* algSelection and its force */ \
        NCCL_CONFIG_UNDEF_INT,                                            /* CTAPolicy */                 \
        0, NCCL_CONFIG_UNDEF_PTR                                          /* tag, event */                \
  }

/* What ncclGroupSimulateEnd writes: microseconds. */
typedef struct ncclSimInfo_v22200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime;
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER \
  { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT }

/* One line of what ncclWaitSignal waits for. */
typedef struct {
  int opCnt;  /* signals */
  int peer;   /* from this rank */
  int sigIdx; /* on this signal */
  int ctx;    /* of this context */
} ncclWaitSignalDesc_t;

typedef struct ncclEncryptionConfig_v23200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int mode;        /* ncclEncryptionMode_t */
  const char* psk; /* the key that all ranks share */
} ncclEncryptionConfig_t;

#define NCCL_ENCRYPTION_CONFIG_INITIALIZER                                                             \
  {                                                                                                    \
    sizeof(ncclEncryptionConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NCCL_ENCRYPTION_MODE_NONE,      \
        NCCL_CONFIG_UNDEF_PTR                                                                          \
  }

/* ---- Version, errors, memory ----------------------------------------------------------------------------- */

/* Writes the version code of NCCL's interface that the library speaks. */
ncclResult_t ncclGetVersion(int* version);

/* A static text for a result; never NULL, for unknown ones either. */
const char* ncclGetErrorString(ncclResult_t result);

/* The text of the last failure; reading does not clear it. `comm` is not looked at: pass NULL. Never NULL. */
const char* ncclGetLastError(ncclComm_t comm);

/* Reads the settings of logging from the environment again. Not part of NCCL's documented interface. */
void ncclResetDebugInit(void);

/* Memory of the device that is current on the calling thread, or without one host memory, zeroed. Any memory may be used for
   any call, though. */
ncclResult_t ncclMemAlloc(void** ptr, size_t size);

/* Frees memory of ncclMemAlloc. */
ncclResult_t ncclMemFree(void* ptr);

/* ---- Communicators --------------------------------------------------------------------------------------- */

/* Makes an id, and opens in this process the place where its ranks will meet. One process calls, and gives it on. */
ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId);

/* Joins; returns when all `nranks` ranks have. In a group, one thread can join for several ranks. */
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);

/* The same with settings; NULL for none. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t* config);

/* The same with 1 to `nranks` ids, all ranks having all of them in one order. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                                      ncclConfig_t* config);

/* All ranks in one process: writes `ndev` communicators, rank i to comm[i]. */
ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist);

/* Divides a communicator by colour; all its ranks call. Ordered by key, then by old rank. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config);

/* A communicator without the listed ranks; the others call, with the same list. */
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
                            ncclConfig_t* config, int shrinkFlags);

/* An id for one ncclCommGrow of this communicator; one of its ranks calls, and gives it to those who are to join. */
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId);

/*
 * A communicator with more ranks. Old ranks pass `comm` and rank -1, and one of them the id; new ones pass
 * NCCL_COMM_NULL, the id, and a rank from the old size on. `comm` stays.
 */
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank, ncclComm_t* newcomm,
                          ncclConfig_t* config);

/* Ends what is under way on all ranks; split, shrink and destroy are still possible. `revokeFlags` must be 0. */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);

/* Waits for what was issued, and leaves the communicator: only ncclCommDestroy and ncclCommAbort may follow. */
ncclResult_t ncclCommFinalize(ncclComm_t comm);

/* Frees the communicator, finalizing it where that was not done. NULL is fine. */
ncclResult_t ncclCommDestroy(ncclComm_t comm);

/* Ends what this rank has under way, on all ranks, from any thread and without waiting for other ranks, and frees. A rank
   that has nothing under way only leaves: calls that the others are finishing do not fail. NULL is allowed. */
ncclResult_t ncclCommAbort(ncclComm_t comm);

/* Writes ncclSuccess, ncclInProgress, or what ended the communicator. Any thread, also during a call. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);

/* How many ranks it has; which of them this is; and its device, on host memory what ncclCommInitAll was given, or 0. */
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device);

/* Gives memory of an idle communicator back until ncclCommResume. `flags`: NCCL_SUSPEND_MEM. */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t ncclCommResume(ncclComm_t comm);

/* Reads one counter of the communicator's memory. */
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value);

/* How links over a network are to be protected, for communicators that this process makes from now on. */
ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t* config);

/* ---- Registered memory ----------------------------------------------------------------------------------- */

/* Registers a buffer that will be used often. `*handle` may become NULL, where that has no advantage. */
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle);
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle);

/* Opens memory to the other ranks; all call. `*win` is written at the latest by the outermost ncclGroupEnd. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

/* Writes where this rank's memory of the window begins. */
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** outUserPtr);

/* ---- Reduction operators --------------------------------------------------------------------------------- */

/* An operator that multiplies this rank's input by *scalar, in the datatype, and sums. Ranks may differ in it. */
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm);

/* Gives it up; calls that were made with it are not affected. */
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

/* ---- Collectives ----------------------------------------------------------------------------------------- */

/* The reduction of all ranks' `count` elements, to all. In place: sendbuff == recvbuff. */
ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

/* Root's elements, to all. Only root's `sendbuff` is read. */
ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream);

/* The same in place. */
ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream);

/* The reduction, to root. Only root's `recvbuff` is written. */
ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);

/* All ranks' `sendcount` elements one after the other, to all. In place: sendbuff == recvbuff + rank * sendcount. */
ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream);

/* The reduction in parts of `recvcount`, part i to rank i. In place: recvbuff == sendbuff + rank * recvcount. */
ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

/* `count` elements from each rank to each; not in place. */
ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                          ncclComm_t comm, cudaStream_t stream);

/* All ranks' `count` elements one after the other, to root. */
ncclResult_t ncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream);

/* Root's elements in parts of `count`, part i to rank i. */
ncclResult_t ncclScatter(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                         ncclComm_t comm, cudaStream_t stream);

/* The same with settings for this call; NULL for none. */
ncclResult_t ncclAllReduceConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t* config);
ncclResult_t ncclBroadcastConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                 int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclReduceConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                              ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                              const ncclCollConfig_t* config);
ncclResult_t ncclAllGatherConfig(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclReduceScatterConfig(const void* sendbuff, void* recvbuff, size_t recvcount,
                                     ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                     const ncclCollConfig_t* config);
ncclResult_t ncclAlltoAllConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclGatherConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                              int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclScatterConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                               int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);

/* ---- Between two ranks ----------------------------------------------------------------------------------- */

/* A pair's messages match in the order of the calls. Ranks that send to each other do so in a group. */
ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);

/* Writes to the peer's window, `peerWinOffset` BYTES from its beginning, then signals. `flags` must be 0. */
ncclResult_t ncclPutSignal(const void* localbuff, size_t count, ncclDataType_t datatype, int peer,
                           ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags,
                           ncclComm_t comm, cudaStream_t stream);

/* Signals alone. */
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);

/* Waits for that many signals, and uses them up. */
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm, cudaStream_t stream);

/* ---- Groups ---------------------------------------------------------------------------------------------- */

/* From here to ncclGroupEnd this thread's calls are only recorded. Groups nest; the outermost end issues them. */
ncclResult_t ncclGroupStart(void);

/* Issues the group's calls, all at once; a call that was refused in the group fails all of them. */
ncclResult_t ncclGroupEnd(void);

/* Issues none of them, and writes how long they would take. NULL is allowed. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo);

/* ---- Settings -------------------------------------------------------------------------------------------- */

/* Finds a setting by the name of its variable. The handle stays good. */
ncclResult_t ncclParamBind(ncclParamHandle_t* out, const char* key);

/* Its value as a number that fits, otherwise ncclInvalidArgument. */
ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t* out);
ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t* out);
ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t* out);
ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t* out);
ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t* out);
ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t* out);
ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t* out);
ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t* out);

/* As text, which stays until this thread's next call of the same function. */
ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char** out);

/* As the bytes of its C type; `*len` becomes how many were written. */
ncclResult_t ncclParamGet(ncclParamHandle_t h, void* out, int maxLen, int* len);

/* By name, as text, which stays until this thread's next call of the same function. */
ncclResult_t ncclParamGetParameter(const char* key, const char** value, int* valueLen);

/* The names of all; the table stays until this thread's next call of the same function. */
ncclResult_t ncclParamGetAllParameterKeys(const char*** table, int* tableLen);

/* Writes all names and values to the log. */
void ncclParamDumpAll(void);

/* ---- Twins: to each of the above, with its signature ----------------------------------------------------- */

ncclResult_t pncclGetVersion(int* version);
const char* pncclGetErrorString(ncclResult_t result);
const char* pncclGetLastError(ncclComm_t comm);
void pncclResetDebugInit(void);
ncclResult_t pncclMemAlloc(void** ptr, size_t size);
ncclResult_t pncclMemFree(void* ptr);
ncclResult_t pncclGetUniqueId(ncclUniqueId* uniqueId);
ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t* config);
ncclResult_t pncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                       ncclUniqueId* commIds, ncclConfig_t* config);
ncclResult_t pncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config);
ncclResult_t pncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                             ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags);
ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId);
ncclResult_t pncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank,
                           ncclComm_t* newcomm, ncclConfig_t* config);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t pncclCommFinalize(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommAbort(ncclComm_t comm);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);
ncclResult_t pncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank);
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device);
ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t pncclCommResume(ncclComm_t comm);
ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value);
ncclResult_t pncclSetEncryption(const ncclEncryptionConfig_t* config);
ncclResult_t pncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle);
ncclResult_t pncclCommDeregister(const ncclComm_t comm, void* handle);
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                     int winFlags);
ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** outUserPtr);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t pncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                            int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                        cudaStream_t stream);
ncclResult_t pncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                         ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                            ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                cudaStream_t stream);
ncclResult_t pncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                         int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclScatter(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                          int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllReduceConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                  const ncclCollConfig_t* config);
ncclResult_t pncclBroadcastConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                  int root, ncclComm_t comm, cudaStream_t stream,
                                  const ncclCollConfig_t* config);
ncclResult_t pncclReduceConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                               ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                               const ncclCollConfig_t* config);
ncclResult_t pncclAllGatherConfig(const void* sendbuff, void* recvbuff, size_t sendcount,
                                  ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                  const ncclCollConfig_t* config);
ncclResult_t pncclReduceScatterConfig(const void* sendbuff, void* recvbuff, size_t recvcount,
                                      ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                      cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclAlltoAllConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclGatherConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                               int root, ncclComm_t comm, cudaStream_t stream,
                               const ncclCollConfig_t* config);
ncclResult_t pncclScatterConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                int root, ncclComm_t comm, cudaStream_t stream,
                                const ncclCollConfig_t* config);
ncclResult_t pncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t pncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t pncclPutSignal(const void* localbuff, size_t count, ncclDataType_t datatype, int peer,
                            ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                            unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                         cudaStream_t stream);
ncclResult_t pncclWaitSignal(int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm,
                             cudaStream_t stream);
ncclResult_t pncclGroupStart(void);
ncclResult_t pncclGroupEnd(void);
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* simInfo);
ncclResult_t pncclParamBind(ncclParamHandle_t* out, const char* key);
ncclResult_t pncclParamGetI8(ncclParamHandle_t h, int8_t* out);
ncclResult_t pncclParamGetI16(ncclParamHandle_t h, int16_t* out);
ncclResult_t pncclParamGetI32(ncclParamHandle_t h, int32_t* out);
ncclResult_t pncclParamGetI64(ncclParamHandle_t h, int64_t* out);
ncclResult_t pncclParamGetU8(ncclParamHandle_t h, uint8_t* out);
ncclResult_t pncclParamGetU16(ncclParamHandle_t h, uint16_t* out);
ncclResult_t pncclParamGetU32(ncclParamHandle_t h, uint32_t* out);
ncclResult_t pncclParamGetU64(ncclParamHandle_t h, uint64_t* out);
ncclResult_t pncclParamGetStr(ncclParamHandle_t h, const char** out);
ncclResult_t pncclParamGet(ncclParamHandle_t h, void* out, int maxLen, int* len);
ncclResult_t pncclParamGetParameter(const char* key, const char** value, int* valueLen);
ncclResult_t pncclParamGetAllParameterKeys(const char*** table, int* tableLen);
void pncclParamDumpAll(void);

#ifdef __cplusplus
}
#endif

#endif /* NCCL_H_ */
