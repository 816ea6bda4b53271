/*
 * consort.h - what this library's `libnccl.so.2` has beyond NCCL, for C99 and C++: what happens when something
 * breaks and what one sees of it, why a call runs as it does, collectives of blocks that differ in length, streams
 * for host memory, host memory that other ranks can map, and options of single calls. NCCL's own calls are in
 * <nccl.h>, which this header includes unless the program has included one before, this library's or NVIDIA's.
 *
 * Handles.    A communicator is a number in the form of a pointer. One that is NULL, was freed or never was one
 *             is refused with ncclInvalidArgument; nothing is dereferenced.
 * Threads.    Data calls on one communicator must not overlap in time (ncclInvalidUsage); different communicators
 *             may be used at the same time. All other calls here, and ncclCommAbort, ncclCommRevoke and
 *             ncclCommGetAsyncError, may be made by any thread at any time, also while another thread waits in a
 *             call on the same communicator. None of them may be made in a signal handler.
 * Completion. <nccl.h> says when a data call has completed; after that no rank touches its buffers any more, with
 *             or without an error.
 * Failure.    The first failure ends the communicator on all ranks, and every later data call returns it again.
 *             ncclInvalidArgument and the two cases marked (*) below do not: they change nothing.
 *
 *   result                   when
 *   2 ncclSystemError        the operating system refused something, or there was not enough memory
 *   3 ncclInternalError      a defect of this library
 *   4 ncclInvalidArgument    the call itself is wrong
 *   5 ncclInvalidUsage       ranks called different things, or were started with different settings; two threads
 *                            in one communicator (*); a forked child uses its parent's communicator (*); a rank
 *                            revoked the communicator
 *   6 ncclRemoteError        a rank or a link was lost, a rank left early or did not come within the join timeout,
 *                            the id leads nowhere; a rank aborted the communicator
 *   8 ncclTimeout            an operation's deadline passed
 *
 * The text of an error names rank, cause and what to try: see consortGetLastError and consortCommStatus.
 */
#ifndef CONSORT_H
#define CONSORT_H

#include <stddef.h>
#include <stdint.h>

/* <nccl.h> defines it: this library's, or NVIDIA's, whichever the program has included. */
#ifndef NCCL_MAJOR
#include <nccl.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef ncclComm_t consortComm_t;
typedef ncclResult_t consortResult_t;

/* The result of a deadline that passed: ncclTimeout, for programs whose <nccl.h> does not have that yet. */
#define CONSORT_RESULT_TIMEOUT 8

typedef enum {
  CONSORT_TEXT = 0, /* for users: several lines, no newline after the last */
  CONSORT_JSON = 1  /* for programs: one object; durations are seconds in keys that end in _s */
} consortFormat_t;

/*
 * This process's place in the job that a launcher started: torchrun, Open MPI, MPICH, Slurm, or CONSORT_RANK and
 * CONSORT_SIZE. Writes its rank, the number of ranks, and the id by which they all join (ncclCommInitRank). On one host
 * the ranks find each other by themselves; across hosts CONSORT_ADDRESS and CONSORT_SECRET have to be set. All ranks
 * call it, and each call is for one communicator; a rank waits in it until rank 0 has called too.
 * Result: ncclInvalidArgument for NULL, without a launcher, and for a variable that is missing or malformed;
 * ncclRemoteError when rank 0 did not come within the join timeout.
 */
consortResult_t consortLaunch(int* rank, int* size, ncclUniqueId* id);

/*
 * Texts are written by one rule, that of snprintf. At most `capacity` bytes are written to `buffer`, the last of
 * them a zero; what does not fit is left off, never in the middle of a UTF-8 character, and the call still
 * succeeds. `*needed` becomes the bytes of the whole text, its zero included: all of it is there if and only if
 * *needed <= capacity. To ask for the size alone, pass NULL and a capacity of 0. `needed` may be NULL where
 * `buffer` is not. Result: ncclInvalidArgument when `buffer` is NULL and the capacity is not 0, or both are NULL.
 */

/*
 * What every rank does, and which rank keeps an operation from ending. Each call makes a new report: it takes up
 * to half a second when ranks do not answer, and may be longer the next time (so ask for a size and add to it, or
 * let consortCommReportAlloc find the memory). After a deadline has passed it is the one report that all ranks share.
 * Result: ncclInvalidArgument for a wrong handle, format or buffer; ncclInvalidUsage in a forked child.
 */
consortResult_t consortCommReport(consortComm_t comm, consortFormat_t format, char* buffer, size_t capacity,
                                  size_t* needed);

/*
 * The same in memory of its own, which the caller frees with consortFree. On an error nothing is written or to be
 * freed. Result: as consortCommReport, and ncclSystemError without memory.
 */
consortResult_t consortCommReportAlloc(consortComm_t comm, consortFormat_t format, char** text);

/*
 * The last report that the library made by itself: when an operation had lasted CONSORT_REPORT_AFTER seconds (60
 * unless set), or when its deadline passed. Empty ("" and *needed == 1) where there was none. Asks no other rank and
 * does not wait.
 * Result: as consortCommReport.
 */
consortResult_t consortCommLastReport(consortComm_t comm, consortFormat_t format, char* buffer, size_t capacity,
                                      size_t* needed);

/*
 * The flight record: the last operations of this rank on the communicator, with when each was entered, how long it
 * took, and whether it is finished, open or failed. Any thread, at any time; asks no other rank and does not wait.
 * Result: as consortCommReport.
 */
consortResult_t consortCommFlightRecord(consortComm_t comm, consortFormat_t format, char* buffer, size_t capacity,
                                        size_t* needed);

/*
 * Which ranks arrived last at the last collectives, how often and by how much. Asks all ranks, as consortCommReport
 * does. Result: as consortCommReport.
 */
consortResult_t consortCommStragglers(consortComm_t comm, consortFormat_t format, char* buffer, size_t capacity,
                                      size_t* needed);

/* Collectives, as consortCommExplain takes them. */
typedef enum {
  CONSORT_ALL_REDUCE = 0,
  CONSORT_BROADCAST = 1,
  CONSORT_REDUCE = 2,
  CONSORT_ALL_GATHER = 3,     /* and consortAllGatherV */
  CONSORT_REDUCE_SCATTER = 4, /* and consortReduceScatterV */
  CONSORT_ALL_TO_ALL = 5,
  CONSORT_GATHER = 6,
  CONSORT_SCATTER = 7
} consortCollective_t;

/*
 * The choice of the algorithm for a collective on this communicator: the algorithm that is chosen, the reason, and
 * every other candidate with its price. `bytes` is the call's count times the size of an element (with blocks that
 * differ, the longest count). Asks no other rank and moves nothing. It does not take settings of a single call into
 * account.
 * Result: as consortCommReport, and ncclInvalidArgument for an unknown collective, or when CONSORT_ALGO or NCCL_ALGO
 * leaves no algorithm for it; the text then lists the possible ones.
 */
consortResult_t consortCommExplain(consortComm_t comm, consortCollective_t collective, size_t bytes,
                                   consortFormat_t format, char* buffer, size_t capacity, size_t* needed);

/* Frees memory that a call here documents as the caller's to free. NULL is allowed. */
void consortFree(void* memory);

/*
 * The text of the error that ended the communicator, "" while it works. Does not wait, so that within a moment of
 * the first failure another may be named, nearer to the cause. ncclCommGetAsyncError returns it as a result.
 * Result: ncclInvalidArgument for a wrong handle or buffer.
 */
consortResult_t consortCommStatus(consortComm_t comm, char* buffer, size_t capacity, size_t* needed);

/*
 * The text of the calling thread's last failed call with this communicator as an argument; where there was none, the
 * failure that ended the communicator, and "" while it works.
 * A call that succeeds does not change it. With NULL, the text of the thread's last failed call. Never NULL.
 * The library owns the text; it stays until the same thread's next failing call with that communicator (with NULL,
 * or once the communicator is freed: its next failing call), or until the thread ends.
 */
const char* consortGetLastError(consortComm_t comm);

/*
 * Deadlines. An operation has none unless one is set: it waits for as long as its ranks live, and still fails when a
 * rank is known to be lost. A rank's deadline is its own; the first that passes ends the operation, and with it the
 * communicator, on all ranks. The narrowest of these holds:
 *
 *   of the call           CONSORT_EXTENSION_TIMEOUT_MS
 *   of the thread         consortThreadSetTimeout
 *   of the communicator   consortCommSetTimeout
 *   of the process        CONSORT_TIMEOUT in the environment, seconds, read when a communicator is made
 *
 * In seconds greater than 0 (shorter than a millisecond is taken for one; 100 years and more for no deadline), or:
 */
#define CONSORT_TIMEOUT_NONE (-1.0)    /* no deadline */
#define CONSORT_TIMEOUT_INHERIT (-2.0) /* that of the next wider scope */

/*
 * Sets the deadline of all later data calls on this communicator by this process; a call under way keeps its own. Other
 * ranks keep theirs.
 * Result: ncclInvalidArgument for a wrong handle, 0, NaN and other negative numbers; then nothing is changed.
 */
consortResult_t consortCommSetTimeout(consortComm_t comm, double seconds);

/*
 * Writes the deadline of a data call by a thread that has set none: never CONSORT_TIMEOUT_INHERIT.
 * Result: ncclInvalidArgument for a wrong handle or NULL.
 */
consortResult_t consortCommGetTimeout(consortComm_t comm, double* seconds);

/*
 * Sets the deadline of all later data calls by this thread, on any communicator, until it is set again; joining has one
 * of its own (CONSORT_JOIN_TIMEOUT, 300 s unless set). `*previous` (unless NULL) becomes the deadline set before.
 * A deadline of one call:
 *
 *   double outer;
 *   consortThreadSetTimeout(5.0, &outer);
 *   result = ncclAllReduce(...);
 *   consortThreadSetTimeout(outer, NULL);
 *
 * It belongs to the thread so that calls keep NCCL's signatures, and code in between, which makes the calls, need not know
 * of it. A deadline for the next call alone would stay behind where that call is never made. Restoring by value nests
 * without a depth that could be miscounted.
 * Result: ncclInvalidArgument as consortCommSetTimeout; then neither is changed.
 */
consortResult_t consortThreadSetTimeout(double seconds, double* previous);

/*
 * Ends the communicator on all ranks: calls under way return ncclRemoteError, here at once and elsewhere within a
 * second, and so do all later ones. May be done more than once; the first reason stays. Does not free the handle:
 * ncclCommDestroy does, and then does not wait for other ranks.
 * `reason` is UTF-8 for the other ranks' error texts, copied before the call returns; NULL for none.
 * Result: ncclInvalidArgument for a wrong handle; ncclInvalidUsage in a forked child.
 */
consortResult_t consortCommAbort(consortComm_t comm, const char* reason);

/*
 * As consortCommAbort, but calls return ncclInvalidUsage, and the ranks stay usable: ncclCommSplit and
 * ncclCommShrink are possible afterwards.
 */
consortResult_t consortCommRevoke(consortComm_t comm, const char* reason);

/*
 * Collectives of blocks that differ in length. Counts and displacements are in elements, one for each rank in rank
 * order, and copied before the call returns. Without displacements (NULL) the blocks lie one after the other; with
 * them, block r begins displacements[r] elements behind the start of its buffer. Elements between blocks are not
 * touched. Blocks that are written must not overlap. The displacement of a block of no elements does not matter, nor
 * does the address of a buffer of no elements.
 *
 * They are data calls like NCCL's: `stream`, groups, non-blocking communicators and deadlines are the same there and
 * here, and so are the rules of <nccl.h> for buffers. Input and output must be apart, or for all but consortAllToAllV
 * this rank's block may be where it is in the buffer of all blocks (in place).
 *
 * Result: as NCCL's calls; ncclInvalidArgument when counts that this rank needs are NULL, when blocks overlap that may
 * not, or reach beyond the address space.
 */

/*
 * All ranks get the blocks of all: rank r passes counts[r] elements in `sendbuff`, which become block r of every
 * rank's `recvbuff`. All ranks pass the same counts (otherwise ncclInvalidUsage, and which ranks differ); displacements are
 * each rank's own. In place: sendbuff is this rank's block of recvbuff.
 */
consortResult_t consortAllGatherV(const void* sendbuff, void* recvbuff, const size_t counts[],
                                  const size_t displacements[], ncclDataType_t datatype, consortComm_t comm,
                                  cudaStream_t stream);

/*
 * Block r of `sendbuff` is folded over all ranks into the `recvbuff` of rank r, which has counts[r] elements. Counts
 * and displacements as above, but of sendbuff. `op` may be one that ncclRedOpCreatePreMulSum made. In place: recvbuff
 * is this rank's block of sendbuff; the other blocks of sendbuff are unspecified afterwards.
 */
consortResult_t consortReduceScatterV(const void* sendbuff, void* recvbuff, const size_t counts[],
                                      const size_t displacements[], ncclDataType_t datatype, ncclRedOp_t op,
                                      consortComm_t comm, cudaStream_t stream);

/*
 * Block r of `sendbuff` goes to rank r, and block r of `recvbuff` comes from rank r. What a rank sends to another must
 * be as long as what that one receives from it (otherwise ncclInvalidUsage, and which two differ; where one of the two
 * lengths is 0, this may come to light at the next message between them). There is no in-place form.
 */
consortResult_t consortAllToAllV(const void* sendbuff, void* recvbuff, const size_t sendcounts[],
                                 const size_t senddisplacements[], const size_t recvcounts[],
                                 const size_t recvdisplacements[], ncclDataType_t datatype, consortComm_t comm,
                                 cudaStream_t stream);

/*
 * `sendcount` elements of rank r become block r of the root's `recvbuff`. On other ranks than the root, recvbuff,
 * recvcounts and displacements are not looked at. In place, on the root: sendbuff is its block of recvbuff.
 */
consortResult_t consortGatherV(const void* sendbuff, void* recvbuff, size_t sendcount, const size_t recvcounts[],
                               const size_t displacements[], ncclDataType_t datatype, int root, consortComm_t comm,
                               cudaStream_t stream);

/*
 * Block r of the root's `sendbuff` becomes the `recvcount` elements of rank r. On other ranks than the root, sendbuff,
 * sendcounts and displacements are not looked at. In place, on the root: recvbuff is its block of sendbuff.
 */
consortResult_t consortScatterV(const void* sendbuff, void* recvbuff, const size_t sendcounts[],
                                const size_t displacements[], size_t recvcount, ncclDataType_t datatype, int root,
                                consortComm_t comm, cudaStream_t stream);

/*
 * Host streams: queues of data calls on host memory, each with a thread of this library that makes them. A host stream
 * is passed where a cudaStream_t is expected; CUDA itself does not know it, and a call on memory of a device refuses it.
 *
 * A data call with one returns once it is in the queue, and its buffers must stay, untouched, until the stream has
 * run it. An error that can be found at once is still returned at once, and the call is then not in the queue. It runs
 * after all earlier calls of this stream, and after all earlier calls on its communicator, in any
 * stream. A call on that communicator with stream NULL waits for all of that too, and is complete when it
 * returns; so is one with any other stream that is none of this library's, such as CUDA's. Deadlines count from when
 * the call runs. Deadlines of a thread or a single call are those of the time when the call is made, the
 * communicator's is that of the time when it runs.
 *
 * A group is one entry: its calls run together. Where they are in several streams, it starts after the calls that are
 * in any of them, and before calls that are put into any of them later. If one of its calls is in no host stream,
 * ncclGroupEnd waits for all of them.
 *
 * A call that fails ends its communicator as always, and its result comes from the next consortStreamSynchronize,
 * consortStreamQuery or consortStreamDestroy: the first failure since the last of these, once. Later calls in the
 * queue are still made. On a non-blocking communicator ncclCommGetAsyncError returns it as well, and ncclInProgress until
 * its call is over; only then may the next be made.
 *
 * ncclCommDestroy and ncclCommAbort (which ends operations under way) wait until the communicator's calls are over:
 * also those in the queue, and the calls in front of them, on other communicators too.
 */
typedef cudaStream_t consortStream_t;

/* Result: ncclSystemError without a thread, ncclInvalidUsage when there are 4096 already. */
consortResult_t consortStreamCreate(consortStream_t* stream);

/*
 * Waits until the queue is empty. Any thread may call it.
 * Result: that of the first call that failed; ncclInvalidArgument for a stream that is NULL, destroyed or foreign;
 * ncclInvalidUsage in a forked child.
 */
consortResult_t consortStreamSynchronize(consortStream_t stream);

/* Does not wait: ncclInProgress (not an error) while the queue is not empty. Result: as consortStreamSynchronize. */
consortResult_t consortStreamQuery(consortStream_t stream);

/*
 * Waits as consortStreamSynchronize does and frees the stream, also with a failure. NULL is allowed. A stream that was
 * destroyed is refused from then on, by data calls too (ncclInvalidArgument).
 * Result: as consortStreamSynchronize.
 */
consortResult_t consortStreamDestroy(consortStream_t stream);

/*
 * Host memory that the other ranks of the host can map. Collectives on such buffers are not staged: ranks read and
 * write each other's buffers where they are. ncclMemAlloc returns such memory; the calls here register memory that the
 * program has mapped itself, from a memory file. Registration changes how long a collective takes and never its result,
 * and any other memory works unregistered.
 *
 *   int fd = memfd_create("gradients", MFD_CLOEXEC | MFD_ALLOW_SEALING);
 *   ftruncate(fd, bytes);
 *   fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
 *   void* base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
 *   result = consortMemRegisterFd(base, bytes, fd, 0, &handle);
 *   close(fd);
 *   ... any calls on any communicators, on any part of it ...
 *   result = consortMemDeregister(handle);
 *   munmap(base, bytes);
 *
 * All ranks of this user on this host may map and write the whole file, during a collective and later. The seal keeps
 * the file from becoming shorter, so that they cannot fault.
 */

/*
 * Registers `bytes` bytes at `base`, which are mapped from `fd` at `offset`, shared, readable and writable, and stay so
 * until they are deregistered; address, length and offset are whole pages (4096 bytes). The descriptor may be closed
 * afterwards; the library keeps one of its own. `*handle` becomes a number for consortMemDeregister. The
 * registration belongs to this process, not to a communicator or another rank: each rank decides whether to register
 * its own memory.
 *
 * When a collective fails while a rank that does not answer may still write to a registered output, the library puts
 * other pages in the place of the output's, with the same bytes: the addresses stay the caller's own, and are no
 * longer the file's. Later collectives on this memory are staged.
 *
 * Result: ncclInvalidArgument, and nothing is registered, when `handle` or `base` is NULL, `bytes` is 0, any of the three
 * is not whole pages, the descriptor is not open, is not of a memory file (memfd_create), cannot be written to, or is
 * of one without F_SEAL_SHRINK or with a seal against writing; when the file ends before, something else is mapped
 * there, or privately (MAP_PRIVATE), or a part of it is registered already or ncclMemAlloc's. ncclSystemError without a
 * descriptor; ncclInvalidUsage when there are 4096 registrations already.
 */
consortResult_t consortMemRegisterFd(void* base, size_t bytes, int fd, uint64_t offset, void** handle);

/*
 * Undoes it: from then on the memory is as any other, and may be unmapped, mapped anew and registered again, there or
 * elsewhere. Not while a collective uses a part of it, in whatever stream. Ranks may keep the file mapped for a while, and
 * the library its descriptor until each communicator's next call: to give the memory back to the system at once, punch
 * the file empty (fallocate with FALLOC_FL_PUNCH_HOLE). NULL is fine.
 * Result: ncclInvalidArgument for a handle that is foreign or was deregistered.
 */
consortResult_t consortMemDeregister(void* handle);

/*
 * Options of a single call: in the list `ext` of ncclCollConfig_t, whose elements are of a vendor and an option (NCCL
 * 2.31.2 and later). NCCL skips those of other vendors, as this library does; one of ours that it does not know is
 * refused (ncclInvalidArgument).
 *
 *   ncclConfigExt_t deadline = {NULL, {CONSORT_EXTENSION_VENDOR, CONSORT_EXTENSION_TIMEOUT_MS}, {2500}};
 *   ncclConfigExt_t algorithm = {&deadline, {CONSORT_EXTENSION_VENDOR, CONSORT_EXTENSION_ALGORITHM}, {0}};
 *   ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
 *   algorithm.val.s = "tree";
 *   config.ext = &algorithm;
 *   result = ncclAllReduceConfig(sendbuff, recvbuff, count, ncclFloat32, ncclSum, comm, stream, &config);
 */
#define CONSORT_EXTENSION_VENDOR 0x637374

/* val.i: the call's deadline in milliseconds, 1 or more; goes before that of the thread. Of this rank alone. */
#define CONSORT_EXTENSION_TIMEOUT_MS 1

/*
 * val.s: what is to run the call, a name as consortCommExplain writes it (or NCCL's); goes before every setting. It
 * must be possible for the call and the same on all ranks.
 */
#define CONSORT_EXTENSION_ALGORITHM 2

#ifdef __cplusplus
}
#endif

#endif /* CONSORT_H */
