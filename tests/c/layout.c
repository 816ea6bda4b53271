/*
 * NCCL 2.32.3's interface as a compiler sees it: sizes, offsets, values and signatures. It compiles with this
 * library's headers and with NVIDIA's alike, as C99 and (layout.cc) as C++, and calls nothing of the library.
 * `tests/tests/repository/header.rs` compiles and runs it; run, it checks the initializers and prints their bytes.
 */
#include <nccl.h>
#include <nccl_device.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* C99 has no static assertion: an array of a negative size does not compile. */
#define JOINED(a, b) a##b
#define NAMED(a, b) JOINED(a, b)
#define ASSERT(condition) typedef char NAMED(holds_in_line_, __LINE__)[(condition) ? 1 : -1];

#define SIZE(type, size) ASSERT(sizeof(type) == (size))
#define MEMBER(type, member, offset, size) \
  ASSERT(offsetof(type, member) == (offset) && sizeof(((type*)0)->member) == (size))
#define VALUE(name, value) ASSERT((name) == (value))
#define ENUM(type, values) ASSERT(sizeof(type) == 4 && (values))

/* ---- Values ---------------------------------------------------------------------------------------------- */

VALUE(NCCL_MAJOR, 2)
VALUE(NCCL_MINOR, 32)
VALUE(NCCL_PATCH, 3)
VALUE(sizeof(NCCL_SUFFIX), 1)
VALUE(NCCL_VERSION_CODE, 23203)
VALUE(NCCL_VERSION(2, 32, 3), 23203)
VALUE(NCCL_VERSION(2, 9, 0), 20900)
VALUE(NCCL_VERSION(2, 8, 4), 2804)
VALUE(NCCL_VERSION(1, 3, 5), 1305)
VALUE(NCCL_VERSION(3, 0, 1), 30001)
VALUE(NCCL_UNIQUE_ID_BYTES, 128)
VALUE(NCCL_CONFIG_UNDEF_INT, -2147483647 - 1)
VALUE(NCCL_SPLIT_NOCOLOR, -1)
VALUE(NCCL_API_MAGIC, 0xcafebeef)
VALUE(NCCL_WIN_DEFAULT, 0)
VALUE(NCCL_WIN_COLL_SYMMETRIC, 1)
VALUE(NCCL_WIN_STRICT_ORDERING, 2)
VALUE(NCCL_WIN_GIN_ONLY, 4)
VALUE(NCCL_WIN_CFT_COUNTED, 8)
VALUE(NCCL_WIN_REQUIRED_ALIGNMENT, 4096)
VALUE(NCCL_CTA_POLICY_DEFAULT, 0)
VALUE(NCCL_CTA_POLICY_EFFICIENCY, 1)
VALUE(NCCL_CTA_POLICY_ZERO, 2)
VALUE(NCCL_SHRINK_DEFAULT, 0)
VALUE(NCCL_SHRINK_ABORT, 1)
VALUE(NCCL_REVOKE_DEFAULT, 0)
VALUE(NCCL_SUSPEND_MEM, 1)
VALUE(NCCL_GIN_MAX_CONNECTIONS, 4)
VALUE(NCCL_GIN_MAX_ACTIVE_BACKENDS, 4)
VALUE(NCCL_LE_ID_INVALID, 4294967295u)

ENUM(ncclResult_t, ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2 &&
                       ncclInternalError == 3 && ncclInvalidArgument == 4 && ncclInvalidUsage == 5 &&
                       ncclRemoteError == 6 && ncclInProgress == 7 && ncclTimeout == 8 && ncclNumResults == 9)
ENUM(ncclDataType_t, ncclInt8 == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclUint32 == 3 && ncclInt64 == 4 &&
                         ncclUint64 == 5 && ncclFloat16 == 6 && ncclFloat32 == 7 && ncclFloat64 == 8 &&
                         ncclBfloat16 == 9 && ncclFloat8e4m3 == 10 && ncclFloat8e5m2 == 11 && ncclNumTypes == 12)
ENUM(ncclDataType_t,
     ncclChar == 0 && ncclInt == 2 && ncclHalf == 6 && ncclFloat == 7 && ncclDouble == 8)
ENUM(ncclRedOp_dummy_t, ncclNumOps_dummy == 5)
ENUM(ncclRedOp_t, ncclSum == 0 && ncclProd == 1 && ncclMax == 2 && ncclMin == 3 && ncclAvg == 4 &&
                      ncclNumOps == 5 && ncclMaxRedOp == 0x7fffffff)
ENUM(ncclScalarResidence_t, ncclScalarDevice == 0 && ncclScalarHostImmediate == 1)
ENUM(ncclCommMemStat_t, ncclStatGpuMemSuspend == 0 && ncclStatGpuMemSuspended == 1 &&
                            ncclStatGpuMemPersist == 2 && ncclStatGpuMemTotal == 3)
ENUM(ncclHostCftMode_t, ncclHostCftDefault == -2147483647 - 1 && ncclHostCftEnable == 1 &&
                            ncclHostCftDisable == 2 && ncclHostCftFallback == 3)
ENUM(ncclNvlsHostMode_t, ncclNvlsHostModeDefault == -2147483647 - 1 && ncclNvlsHostModeEnable == 0 &&
                             ncclNvlsHostModeDisableTransport == 1 &&
                             ncclNvlsHostModeDisableSymmetricMultimem == 2 &&
                             ncclNvlsHostModeDisable == 2147483647)
ENUM(ncclEncryptionMode_t, NCCL_ENCRYPTION_MODE_NONE == 0 && NCCL_ENCRYPTION_MODE_PSK == 1)
ENUM(ncclGinConnectionType_t, NCCL_GIN_CONNECTION_NONE == 0 && NCCL_GIN_CONNECTION_FULL == 1 &&
                                  NCCL_GIN_CONNECTION_RAIL == 2 && NCCL_GIN_CONNECTION_CUSTOM_STRIDE == 3)
ENUM(ncclGinType_t, NCCL_GIN_TYPE_NONE == 0 && NCCL_GIN_TYPE_PROXY == 2 && NCCL_GIN_TYPE_GDAKI == 3 &&
                        NCCL_GIN_TYPE_GPI == 4 && NCCL_GIN_TYPE_EFA_GDA == 5 && NCCL_GIN_MAX_TYPES == 6)
ENUM(ncclCftTeamMode_t,
     NCCL_CFT_TEAM_FLAT == 0 && NCCL_CFT_TEAM_HIER_MULTIMEM == 1 && NCCL_CFT_TEAM_HIER_LSA == 2)
ENUM(ncclCftCap_t, NCCL_CFT_NONE == 0 && NCCL_CFT == 1 && NCCL_CFT_MULTIMEM == 2)

/* ---- Structs --------------------------------------------------------------------------------------------- */

/* An array of bytes, so that it is passed by value in memory and may stand anywhere. */
struct after_a_byte {
  char byte;
  ncclUniqueId id;
};
SIZE(ncclUniqueId, 128)
MEMBER(ncclUniqueId, internal, 0, 128)
MEMBER(struct after_a_byte, id, 1, 128)

SIZE(ncclComm_t, 8)
SIZE(ncclWindow_t, 8)
SIZE(ncclParamHandle_t, 8)
SIZE(cudaStream_t, 8)
SIZE(cudaEvent_t, 8)

SIZE(ncclConfig_t, 120)
MEMBER(ncclConfig_t, size, 0, 8)
MEMBER(ncclConfig_t, magic, 8, 4)
MEMBER(ncclConfig_t, version, 12, 4)
MEMBER(ncclConfig_t, blocking, 16, 4)
MEMBER(ncclConfig_t, cgaClusterSize, 20, 4)
MEMBER(ncclConfig_t, minCTAs, 24, 4)
MEMBER(ncclConfig_t, maxCTAs, 28, 4)
MEMBER(ncclConfig_t, netName, 32, 8)
MEMBER(ncclConfig_t, splitShare, 40, 4)
MEMBER(ncclConfig_t, trafficClass, 44, 4)
MEMBER(ncclConfig_t, commName, 48, 8)
MEMBER(ncclConfig_t, collnetEnable, 56, 4)
MEMBER(ncclConfig_t, CTAPolicy, 60, 4)
MEMBER(ncclConfig_t, shrinkShare, 64, 4)
MEMBER(ncclConfig_t, nvlsCTAs, 68, 4)
MEMBER(ncclConfig_t, nChannelsPerNetPeer, 72, 4)
MEMBER(ncclConfig_t, nvlinkCentricSched, 76, 4)
MEMBER(ncclConfig_t, graphUsageMode, 80, 4)
MEMBER(ncclConfig_t, numRmaCtx, 84, 4)
MEMBER(ncclConfig_t, maxP2pPeers, 88, 4)
MEMBER(ncclConfig_t, graphStreamOrdering, 92, 4)
MEMBER(ncclConfig_t, launchOrderImplicit, 96, 4)
MEMBER(ncclConfig_t, numRmaSig, 100, 4)
MEMBER(ncclConfig_t, rmaEagerInit, 104, 4)
MEMBER(ncclConfig_t, hostCftMode, 108, 4)
MEMBER(ncclConfig_t, nvlsHostMode, 112, 4)

SIZE(ncclCollConfig_t, 72)
MEMBER(ncclCollConfig_t, size, 0, 8)
MEMBER(ncclCollConfig_t, magic, 8, 4)
MEMBER(ncclCollConfig_t, version, 12, 4)
MEMBER(ncclCollConfig_t, ext, 16, 8)
MEMBER(ncclCollConfig_t, minCTAs, 24, 4)
MEMBER(ncclCollConfig_t, maxCTAs, 28, 4)
MEMBER(ncclCollConfig_t, nvlsCTAs, 32, 4)
MEMBER(ncclCollConfig_t, cgaClusterSize, 36, 4)
MEMBER(ncclCollConfig_t, algSelection, 40, 8)
MEMBER(ncclCollConfig_t, forceAlgSelection, 48, 4)
MEMBER(ncclCollConfig_t, CTAPolicy, 52, 4)
MEMBER(ncclCollConfig_t, userProfilerTag, 56, 8)
MEMBER(ncclCollConfig_t, launchCompletionEvent, 64, 8)

SIZE(ncclDevCommRequirements_t, 120)
MEMBER(ncclDevCommRequirements_t, size, 0, 8)
MEMBER(ncclDevCommRequirements_t, magic, 8, 4)
MEMBER(ncclDevCommRequirements_t, version, 12, 4)
MEMBER(ncclDevCommRequirements_t, resourceRequirementsList, 16, 8)
MEMBER(ncclDevCommRequirements_t, teamRequirementsList, 24, 8)
MEMBER(ncclDevCommRequirements_t, lsaMultimem, 32, 1)
MEMBER(ncclDevCommRequirements_t, barrierCount, 36, 4)
MEMBER(ncclDevCommRequirements_t, lsaBarrierCount, 40, 4)
MEMBER(ncclDevCommRequirements_t, railGinBarrierCount, 44, 4)
MEMBER(ncclDevCommRequirements_t, lsaLLA2ABlockCount, 48, 4)
MEMBER(ncclDevCommRequirements_t, lsaLLA2ASlotCount, 52, 4)
MEMBER(ncclDevCommRequirements_t, ginForceEnable, 56, 1)
MEMBER(ncclDevCommRequirements_t, ginContextCount, 60, 4)
MEMBER(ncclDevCommRequirements_t, ginSignalCount, 64, 4)
MEMBER(ncclDevCommRequirements_t, ginCounterCount, 68, 4)
MEMBER(ncclDevCommRequirements_t, ginConnectionType, 72, 4)
MEMBER(ncclDevCommRequirements_t, ginExclusiveContexts, 76, 1)
MEMBER(ncclDevCommRequirements_t, ginQueueDepth, 80, 4)
MEMBER(ncclDevCommRequirements_t, ginTrafficClass, 84, 4)
MEMBER(ncclDevCommRequirements_t, worldGinBarrierCount, 88, 4)
MEMBER(ncclDevCommRequirements_t, ginStrongSignalsRequired, 92, 1)
MEMBER(ncclDevCommRequirements_t, ginVaSignalsRequired, 93, 1)
MEMBER(ncclDevCommRequirements_t, ginCustomStride, 96, 4)
MEMBER(ncclDevCommRequirements_t, ginType, 100, 4)
MEMBER(ncclDevCommRequirements_t, useRuntimeVersion, 104, 1)
MEMBER(ncclDevCommRequirements_t, cftCaps, 108, 4)
MEMBER(ncclDevCommRequirements_t, cftBarrierCount, 112, 4)

SIZE(ncclDevResourceRequirements_t, 56)
MEMBER(ncclDevResourceRequirements_t, next, 0, 8)
MEMBER(ncclDevResourceRequirements_t, bufferSize, 8, 8)
MEMBER(ncclDevResourceRequirements_t, bufferAlign, 16, 8)
MEMBER(ncclDevResourceRequirements_t, outBufferHandle, 24, 8)
MEMBER(ncclDevResourceRequirements_t, ginSignalCount, 32, 4)
MEMBER(ncclDevResourceRequirements_t, ginCounterCount, 36, 4)
MEMBER(ncclDevResourceRequirements_t, outGinSignalStart, 40, 8)
MEMBER(ncclDevResourceRequirements_t, outGinCounterStart, 48, 8)

SIZE(ncclTeamRequirements_t, 32)
MEMBER(ncclTeamRequirements_t, next, 0, 8)
MEMBER(ncclTeamRequirements_t, team, 8, 12)
MEMBER(ncclTeamRequirements_t, multimem, 20, 1)
MEMBER(ncclTeamRequirements_t, outMultimemHandle, 24, 8)

SIZE(ncclCommProperties_t, 152)
MEMBER(ncclCommProperties_t, size, 0, 8)
MEMBER(ncclCommProperties_t, magic, 8, 4)
MEMBER(ncclCommProperties_t, version, 12, 4)
MEMBER(ncclCommProperties_t, rank, 16, 4)
MEMBER(ncclCommProperties_t, nRanks, 20, 4)
MEMBER(ncclCommProperties_t, cudaDev, 24, 4)
MEMBER(ncclCommProperties_t, nvmlDev, 28, 4)
MEMBER(ncclCommProperties_t, deviceApiSupport, 32, 1)
MEMBER(ncclCommProperties_t, multimemSupport, 33, 1)
MEMBER(ncclCommProperties_t, ginType, 36, 4)
MEMBER(ncclCommProperties_t, nLsaTeams, 40, 4)
MEMBER(ncclCommProperties_t, hostRmaSupport, 44, 1)
MEMBER(ncclCommProperties_t, railedGinType, 48, 4)
MEMBER(ncclCommProperties_t, commHash, 56, 8)
MEMBER(ncclCommProperties_t, ginMinStride, 64, 4)
MEMBER(ncclCommProperties_t, ginConnectionType, 68, 4)
MEMBER(ncclCommProperties_t, ginSupport, 72, 64)
MEMBER(ncclCommProperties_t, devCommRuntimeVersionSize, 136, 8)
MEMBER(ncclCommProperties_t, cftSupport, 144, 1)
MEMBER(ncclCommProperties_t, cftMulticastSupport, 145, 1)
MEMBER(ncclCommProperties_t, cftCountedSupport, 146, 1)

SIZE(ncclDevComm_t, 248)
MEMBER(ncclDevComm_t, magic, 0, 4)
MEMBER(ncclDevComm_t, version, 4, 4)
MEMBER(ncclDevComm_t, rank, 8, 4)
MEMBER(ncclDevComm_t, nRanks, 12, 4)
MEMBER(ncclDevComm_t, nRanks_rcp32, 16, 4)
MEMBER(ncclDevComm_t, lsaRank, 20, 4)
MEMBER(ncclDevComm_t, lsaSize, 24, 4)
MEMBER(ncclDevComm_t, lsaSize_rcp32, 28, 4)
MEMBER(ncclDevComm_t, windowTable, 32, 8)
MEMBER(ncclDevComm_t, resourceWindow, 40, 8)
MEMBER(ncclDevComm_t, resourceWindow_inlined, 48, 16)
MEMBER(ncclDevComm_t, hybridDenseGinBarrier, 64, 8)
MEMBER(ncclDevComm_t, lsaMultimem, 72, 8)
MEMBER(ncclDevComm_t, lsaBarrier, 80, 8)
MEMBER(ncclDevComm_t, railGinBarrier, 88, 8)
MEMBER(ncclDevComm_t, ginConnectionCount, 96, 1)
MEMBER(ncclDevComm_t, backendIndex, 97, 1)
MEMBER(ncclDevComm_t, ginNetDeviceTypes, 98, 4)
MEMBER(ncclDevComm_t, ginHandles, 104, 32)
MEMBER(ncclDevComm_t, ginSignalCount, 136, 4)
MEMBER(ncclDevComm_t, ginCounterCount, 140, 4)
MEMBER(ncclDevComm_t, ginSignalShadows, 144, 8)
MEMBER(ncclDevComm_t, ginContextCount, 152, 4)
MEMBER(ncclDevComm_t, ginConnectionStride, 156, 4)
MEMBER(ncclDevComm_t, ginContextStride, 160, 4)
MEMBER(ncclDevComm_t, ginStrongLegacySignals, 164, 1)
MEMBER(ncclDevComm_t, abortFlag, 168, 8)
MEMBER(ncclDevComm_t, hybridLsaBarrier, 176, 8)
MEMBER(ncclDevComm_t, hybridRailGinBarrier, 184, 8)
MEMBER(ncclDevComm_t, worldGinBarrier, 192, 8)
MEMBER(ncclDevComm_t, ginConnectionStride_rcp32, 200, 4)
MEMBER(ncclDevComm_t, cftRank, 204, 4)
MEMBER(ncclDevComm_t, cftSize, 208, 4)
MEMBER(ncclDevComm_t, cftMultimemRank, 212, 4)
MEMBER(ncclDevComm_t, cftMultimemSize, 216, 4)
MEMBER(ncclDevComm_t, cftMultimemSize_rcp32, 220, 4)
MEMBER(ncclDevComm_t, ucLeId, 224, 4)
MEMBER(ncclDevComm_t, mcLeId, 228, 4)
MEMBER(ncclDevComm_t, cftBarrier, 232, 8)
MEMBER(ncclDevComm_t, cftMultimemBarrier, 240, 8)

SIZE(ncclWindow_vidmem_t, 96)
MEMBER(ncclWindow_vidmem_t, winHost, 0, 8)
MEMBER(ncclWindow_vidmem_t, lsaFlatBase, 8, 8)
MEMBER(ncclWindow_vidmem_t, lsaRank, 16, 4)
MEMBER(ncclWindow_vidmem_t, worldRank, 20, 4)
MEMBER(ncclWindow_vidmem_t, stride4G, 24, 4)
MEMBER(ncclWindow_vidmem_t, mcOffset4K, 28, 4)
MEMBER(ncclWindow_vidmem_t, ginOffset4K, 32, 4)
MEMBER(ncclWindow_vidmem_t, winFlags, 36, 4)
MEMBER(ncclWindow_vidmem_t, ginWinsDefaultBackend, 40, 32)
MEMBER(ncclWindow_vidmem_t, ginMultiSegmentWins, 72, 8)
MEMBER(ncclWindow_vidmem_t, numSegments, 80, 4)
MEMBER(ncclWindow_vidmem_t, cftFlatRank, 84, 4)
MEMBER(ncclWindow_vidmem_t, ucLeIdBase, 88, 4)

SIZE(ncclConfigExt_t, 24)
MEMBER(ncclConfigExt_t, next, 0, 8)
MEMBER(ncclConfigExt_t, key.vendorId, 8, 4)
MEMBER(ncclConfigExt_t, key.optionId, 12, 4)
MEMBER(ncclConfigExt_t, val, 16, 8)
MEMBER(ncclConfigExt_t, val.i, 16, 4)
MEMBER(ncclConfigExt_t, val.s, 16, 8)
MEMBER(ncclConfigExt_t, val.raw, 16, 8)

SIZE(ncclSimInfo_t, 24)
MEMBER(ncclSimInfo_t, size, 0, 8)
MEMBER(ncclSimInfo_t, magic, 8, 4)
MEMBER(ncclSimInfo_t, version, 12, 4)
MEMBER(ncclSimInfo_t, estimatedTime, 16, 4)

SIZE(ncclWaitSignalDesc_t, 16)
MEMBER(ncclWaitSignalDesc_t, opCnt, 0, 4)
MEMBER(ncclWaitSignalDesc_t, peer, 4, 4)
MEMBER(ncclWaitSignalDesc_t, sigIdx, 8, 4)
MEMBER(ncclWaitSignalDesc_t, ctx, 12, 4)

SIZE(ncclEncryptionConfig_t, 32)
MEMBER(ncclEncryptionConfig_t, size, 0, 8)
MEMBER(ncclEncryptionConfig_t, magic, 8, 4)
MEMBER(ncclEncryptionConfig_t, version, 12, 4)
MEMBER(ncclEncryptionConfig_t, mode, 16, 4)
MEMBER(ncclEncryptionConfig_t, psk, 24, 8)

SIZE(ncclTeam_t, 12)
MEMBER(ncclTeam_t, nRanks, 0, 4)
MEMBER(ncclTeam_t, rank, 4, 4)
MEMBER(ncclTeam_t, stride, 8, 4)

SIZE(ncclMultimemHandle_t, 8)
MEMBER(ncclMultimemHandle_t, mcBasePtr, 0, 8)
SIZE(ncclLsaBarrierHandle_t, 8)
MEMBER(ncclLsaBarrierHandle_t, bufHandle, 0, 4)
MEMBER(ncclLsaBarrierHandle_t, nBarriers, 4, 4)
SIZE(ncclGinBarrierHandle_t, 8)
MEMBER(ncclGinBarrierHandle_t, signal0, 0, 4)
MEMBER(ncclGinBarrierHandle_t, unused, 4, 4)
SIZE(ncclCftBarrierHandle_t, 8)
MEMBER(ncclCftBarrierHandle_t, bufHandle, 0, 4)
MEMBER(ncclCftBarrierHandle_t, nBarriers, 4, 4)
SIZE(ncclLLA2AHandle_t, 8)
MEMBER(ncclLLA2AHandle_t, bufHandle, 0, 4)
MEMBER(ncclLLA2AHandle_t, nSlots, 4, 4)
SIZE(ncclGinRequest_t, 16)
MEMBER(ncclGinRequest_t, opaque, 0, 16)
SIZE(ncclResourceWindow_vidmem_t, 16)
MEMBER(ncclResourceWindow_vidmem_t, lsaFlatBase, 0, 8)
MEMBER(ncclResourceWindow_vidmem_t, stride4G, 8, 4)
MEMBER(ncclResourceWindow_vidmem_t, mcOffset4K, 12, 4)
SIZE(ncclDevResourceHandle_t, 4)
SIZE(ncclGinSignal_t, 4)
SIZE(ncclGinCounter_t, 4)
SIZE(ncclCftLeId_t, 4)

/* ---- Signatures: declared again, which a compiler refuses where they differ ------------------------------ */

/* The name in parentheses is not taken for the macro that it is with NVIDIA's header in one case. */
#define DECLARED(type, name, arguments) type(name) arguments;
#define FUNCTION(type, name, arguments) DECLARED(type, name, arguments) DECLARED(type, p##name, arguments)

#ifdef __cplusplus
extern "C" {
#endif

FUNCTION(ncclResult_t, ncclGetVersion, (int*))
FUNCTION(const char*, ncclGetErrorString, (ncclResult_t))
FUNCTION(const char*, ncclGetLastError, (ncclComm_t))
FUNCTION(void, ncclResetDebugInit, (void))
FUNCTION(ncclResult_t, ncclMemAlloc, (void**, size_t))
FUNCTION(ncclResult_t, ncclMemFree, (void*))
FUNCTION(ncclResult_t, ncclGetUniqueId, (ncclUniqueId*))
FUNCTION(ncclResult_t, ncclCommInitRank, (ncclComm_t*, int, ncclUniqueId, int))
FUNCTION(ncclResult_t, ncclCommInitRankConfig, (ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*))
FUNCTION(ncclResult_t, ncclCommInitRankScalable, (ncclComm_t*, int, int, int, ncclUniqueId*, ncclConfig_t*))
FUNCTION(ncclResult_t, ncclCommInitAll, (ncclComm_t*, int, const int*))
FUNCTION(ncclResult_t, ncclCommSplit, (ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*))
FUNCTION(ncclResult_t, ncclCommShrink, (ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int))
FUNCTION(ncclResult_t, ncclCommGetUniqueId, (ncclComm_t, ncclUniqueId*))
FUNCTION(ncclResult_t, ncclCommGrow, (ncclComm_t, int, const ncclUniqueId*, int, ncclComm_t*, ncclConfig_t*))
FUNCTION(ncclResult_t, ncclCommRevoke, (ncclComm_t, int))
FUNCTION(ncclResult_t, ncclCommFinalize, (ncclComm_t))
FUNCTION(ncclResult_t, ncclCommDestroy, (ncclComm_t))
FUNCTION(ncclResult_t, ncclCommAbort, (ncclComm_t))
FUNCTION(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t, ncclResult_t*))
FUNCTION(ncclResult_t, ncclCommCount, (const ncclComm_t, int*))
FUNCTION(ncclResult_t, ncclCommCuDevice, (const ncclComm_t, int*))
FUNCTION(ncclResult_t, ncclCommUserRank, (const ncclComm_t, int*))
FUNCTION(ncclResult_t, ncclCommSuspend, (ncclComm_t, int))
FUNCTION(ncclResult_t, ncclCommResume, (ncclComm_t))
FUNCTION(ncclResult_t, ncclCommMemStats, (ncclComm_t, ncclCommMemStat_t, uint64_t*))
FUNCTION(ncclResult_t, ncclSetEncryption, (const ncclEncryptionConfig_t*))
FUNCTION(ncclResult_t, ncclCommRegister, (const ncclComm_t, void*, size_t, void**))
FUNCTION(ncclResult_t, ncclCommDeregister, (const ncclComm_t, void*))
FUNCTION(ncclResult_t, ncclCommWindowRegister, (ncclComm_t, void*, size_t, ncclWindow_t*, int))
FUNCTION(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t, ncclWindow_t))
FUNCTION(ncclResult_t, ncclWinGetUserPtr, (ncclComm_t, ncclWindow_t, void**))
FUNCTION(ncclResult_t, ncclRedOpCreatePreMulSum,
         (ncclRedOp_t*, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t))
FUNCTION(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t, ncclComm_t))
FUNCTION(ncclResult_t, ncclAllReduce,
         (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))
FUNCTION(ncclResult_t, ncclBroadcast,
         (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))
FUNCTION(ncclResult_t, ncclBcast, (void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))
FUNCTION(ncclResult_t, ncclReduce,
         (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t))
FUNCTION(ncclResult_t, ncclAllGather, (const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))
FUNCTION(ncclResult_t, ncclReduceScatter,
         (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))
FUNCTION(ncclResult_t, ncclAlltoAll, (const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))
FUNCTION(ncclResult_t, ncclGather,
         (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))
FUNCTION(ncclResult_t, ncclScatter,
         (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))
FUNCTION(ncclResult_t, ncclAllReduceConfig,
         (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t,
          const ncclCollConfig_t*))
FUNCTION(ncclResult_t, ncclBroadcastConfig,
         (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t, const ncclCollConfig_t*))
FUNCTION(ncclResult_t, ncclReduceConfig,
         (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t,
          const ncclCollConfig_t*))
FUNCTION(ncclResult_t, ncclAllGatherConfig,
         (const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t, const ncclCollConfig_t*))
FUNCTION(ncclResult_t, ncclReduceScatterConfig,
         (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t,
          const ncclCollConfig_t*))
FUNCTION(ncclResult_t, ncclAlltoAllConfig,
         (const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t, const ncclCollConfig_t*))
FUNCTION(ncclResult_t, ncclGatherConfig,
         (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t, const ncclCollConfig_t*))
FUNCTION(ncclResult_t, ncclScatterConfig,
         (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t, const ncclCollConfig_t*))
FUNCTION(ncclResult_t, ncclSend, (const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))
FUNCTION(ncclResult_t, ncclRecv, (void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))
FUNCTION(ncclResult_t, ncclPutSignal,
         (const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int, unsigned int, ncclComm_t,
          cudaStream_t))
FUNCTION(ncclResult_t, ncclSignal, (int, int, int, unsigned int, ncclComm_t, cudaStream_t))
FUNCTION(ncclResult_t, ncclWaitSignal, (int, ncclWaitSignalDesc_t*, ncclComm_t, cudaStream_t))
FUNCTION(ncclResult_t, ncclGroupStart, (void))
FUNCTION(ncclResult_t, ncclGroupEnd, (void))
FUNCTION(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t*))
FUNCTION(ncclResult_t, ncclParamBind, (ncclParamHandle_t*, const char*))
FUNCTION(ncclResult_t, ncclParamGetI8, (ncclParamHandle_t, int8_t*))
FUNCTION(ncclResult_t, ncclParamGetI16, (ncclParamHandle_t, int16_t*))
FUNCTION(ncclResult_t, ncclParamGetI32, (ncclParamHandle_t, int32_t*))
FUNCTION(ncclResult_t, ncclParamGetI64, (ncclParamHandle_t, int64_t*))
FUNCTION(ncclResult_t, ncclParamGetU8, (ncclParamHandle_t, uint8_t*))
FUNCTION(ncclResult_t, ncclParamGetU16, (ncclParamHandle_t, uint16_t*))
FUNCTION(ncclResult_t, ncclParamGetU32, (ncclParamHandle_t, uint32_t*))
FUNCTION(ncclResult_t, ncclParamGetU64, (ncclParamHandle_t, uint64_t*))
FUNCTION(ncclResult_t, ncclParamGetStr, (ncclParamHandle_t, const char**))
FUNCTION(ncclResult_t, ncclParamGet, (ncclParamHandle_t, void*, int, int*))
FUNCTION(ncclResult_t, ncclParamGetParameter, (const char*, const char**, int*))
FUNCTION(ncclResult_t, ncclParamGetAllParameterKeys, (const char***, int*))
FUNCTION(void, ncclParamDumpAll, (void))

DECLARED(ncclResult_t, ncclCommQueryProperties, (ncclComm_t, ncclCommProperties_t*))
DECLARED(ncclResult_t, ncclDevCommCreate, (ncclComm_t, ncclDevCommRequirements_t const*, ncclDevComm_t*))
DECLARED(ncclResult_t, ncclDevCommDestroy, (ncclComm_t, ncclDevComm_t const*))
DECLARED(ncclResult_t, ncclGetLsaMultimemDevicePointer, (ncclWindow_t, size_t, void**))
DECLARED(ncclResult_t, ncclGetMultimemDevicePointer, (ncclWindow_t, size_t, ncclMultimemHandle_t, void**))
DECLARED(ncclResult_t, ncclGetLsaDevicePointer, (ncclWindow_t, size_t, int, void**))
DECLARED(ncclResult_t, ncclGetPeerDevicePointer, (ncclWindow_t, size_t, int, void**))
DECLARED(ncclResult_t, ncclGetMultimemDeviceLeInfo, (ncclWindow_t, size_t, ncclCftLeId*, size_t*))
DECLARED(ncclResult_t, ncclGetCftDeviceLeInfo, (ncclWindow_t, size_t, int, ncclTeam_t, ncclCftLeId*, size_t*))
DECLARED(ncclResult_t, ncclGetPeerDeviceLeInfo, (ncclWindow_t, size_t, int, ncclCftLeId*, size_t*))
DECLARED(ncclTeam_t, ncclTeamWorld, (ncclComm_t))
DECLARED(ncclTeam_t, ncclTeamLsa, (ncclComm_t))
DECLARED(ncclTeam_t, ncclTeamCft, (ncclComm_t, ncclCftTeamMode_t))
DECLARED(ncclTeam_t, ncclTeamCftMultimem, (ncclComm_t))
DECLARED(int, ncclTeamRankToWorld, (ncclComm_t, ncclTeam_t, int))
DECLARED(int, ncclTeamRankToLsa, (ncclComm_t, ncclTeam_t, int))
DECLARED(ncclTeam_t, ncclTeamRail, (ncclComm_t))
DECLARED(ncclResult_t, ncclLsaBarrierCreateRequirement,
         (ncclTeam_t, int, ncclLsaBarrierHandle_t*, ncclDevResourceRequirements_t*))
DECLARED(ncclResult_t, ncclGinBarrierCreateRequirement,
         (ncclComm_t, ncclTeam_t, int, ncclGinBarrierHandle_t*, ncclDevResourceRequirements_t*))
DECLARED(int, ncclLLA2ACalcSlots, (int, int))
DECLARED(ncclResult_t, ncclLLA2ACreateRequirement,
         (int, int, ncclLLA2AHandle_t*, ncclDevResourceRequirements_t*))

/* NVIDIA's header does not declare these, though its library has them. */
#ifdef CONSORT_NCCL_CUDA
DECLARED(ncclResult_t, ncclGinOutboxCreateRequirement,
         (int, int, ncclGinOutboxHandle*, ncclDevResourceRequirements_t*))
DECLARED(ncclResult_t, ncclGinInboxA2ACreateRequirement,
         (ncclTeam_t, int, int, ncclGinInboxA2AHandle*, ncclDevResourceRequirements_t*))
#endif

#ifdef __cplusplus
}
#endif

/* ---- Initializers ---------------------------------------------------------------------------------------- */

/* Static: what is between the members is zero, too. */
static const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
static const ncclCollConfig_t call = NCCL_COLLCONFIG_INITIALIZER;
static const ncclSimInfo_t simulation = NCCL_SIM_INFO_INITIALIZER;
static const ncclEncryptionConfig_t encryption = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
static const ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
static const ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;

static void check(int condition, const char* what) {
  if (!condition) {
    fprintf(stderr, "not so: %s\n", what);
    exit(1);
  }
}
#define CHECK(condition) check(condition, #condition)
#define CHECK_HEAD(value, itsMagic) \
  CHECK((value).size == sizeof(value) && (value).magic == (itsMagic) && (value).version == 23203)

static void print(const char* name, const void* value, size_t size) {
  const unsigned char* bytes = (const unsigned char*)value;
  size_t i;
  printf("%s ", name);
  for (i = 0; i < size; i++) printf("%02x", bytes[i]);
  printf("\n");
}
#define PRINT(value) print(#value, &(value), sizeof(value))

int main(void) {
  const int unset = -2147483647 - 1;
  size_t at;

  CHECK_HEAD(config, 0xcafebeef);
  CHECK(config.netName == NULL && config.commName == NULL);
  for (at = offsetof(ncclConfig_t, blocking); at <= offsetof(ncclConfig_t, nvlsHostMode); at += 4) {
    int word;
    memcpy(&word, (const char*)&config + at, sizeof(word));
    CHECK(word == unset || at / 8 == offsetof(ncclConfig_t, netName) / 8 ||
          at / 8 == offsetof(ncclConfig_t, commName) / 8);
  }

  CHECK_HEAD(call, 0xcafebeef);
  CHECK(call.ext == NULL && call.algSelection == NULL && call.launchCompletionEvent == NULL);
  CHECK(call.minCTAs == unset && call.maxCTAs == unset && call.nvlsCTAs == unset);
  CHECK(call.cgaClusterSize == unset && call.CTAPolicy == unset);
  CHECK(call.forceAlgSelection == 1 && call.userProfilerTag == 0);

  CHECK_HEAD(simulation, 0x74685283);
  CHECK(simulation.estimatedTime == -1.0f);

  CHECK_HEAD(encryption, 0xcafebeef);
  CHECK(encryption.mode == NCCL_ENCRYPTION_MODE_NONE && encryption.psk == NULL);

  CHECK_HEAD(requirements, 0xcafebeef);
  CHECK(requirements.resourceRequirementsList == NULL && requirements.teamRequirementsList == NULL);
  CHECK(requirements.ginContextCount == 4 && requirements.ginTrafficClass == unset);
  CHECK(requirements.ginStrongSignalsRequired && requirements.ginVaSignalsRequired);
  CHECK(requirements.ginCustomStride == 1 && requirements.ginType == NCCL_GIN_TYPE_NONE);

  CHECK_HEAD(properties, 0xcafebeef);
  CHECK(!properties.deviceApiSupport && properties.nRanks == 0);

  CHECK((ncclComm_t)NCCL_COMM_NULL == NULL && (const char*)NCCL_CONFIG_UNDEF_PTR == NULL);
  CHECK(NCCL_UNDEF_FLOAT == -1.0f);

  PRINT(config);
  PRINT(call);
  PRINT(simulation);
  PRINT(encryption);
  PRINT(requirements);
  PRINT(properties);
  return 0;
}
