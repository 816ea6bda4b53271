/*
 * nccl_device.h - the host side of NCCL's device interface, 2.32.3, for C99 and C++: see nccl_device/host.h.
 *
 * There is no device code here (cooperative groups, symmetric pointers, barrier and GIN sessions, reduce and copy):
 * kernels that need it do not compile with this header. Host code can query what is supported.
 */
#ifndef _NCCL_DEVICE_H_
#define _NCCL_DEVICE_H_

#include "nccl_device/host.h"

#endif /* _NCCL_DEVICE_H_ */
