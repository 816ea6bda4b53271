/*
 * consort.h - what this library's `libnccl.so.2` has beyond NCCL, for C99 and C++: what happens when something
 * breaks, and what one sees of it. NCCL's own calls are in <nccl.h>, which this header includes unless the program
 * has included one before, ours or NVIDIA's.
 *
 * Handles.    A communicator is a number dressed as a pointer. One that is NULL, was freed or never was one is
 *             refused with ncclInvalidArgument; nothing is dereferenced.
 * Threads.    Data calls on one communicator must not overlap in time (ncclInvalidUsage); different communicators
 *             may be used at the same time. All calls here, and ncclCommAbort, ncclCommRevoke and
 *             ncclCommGetAsyncError, may be made by any thread at any time, also while another thread waits in a
 *             call on the same communicator. None of them may be made in a signal handler.
 * Completion. <nccl.h> says when a data call has completed; after that no rank touches its buffers any more, with
 *             or without an error.
 * Failure.    The first failure ends the communicator on all ranks, and every later data call returns it again.
 *             Not so ncclInvalidArgument and the two cases marked (*) below, after which all is as it was.
 *
 *   result                   when
 *   2 ncclSystemError        the operating system refused something, or there was not enough memory
 *   3 ncclInternalError      a defect of this library
 *   4 ncclInvalidArgument    the call itself is wrong
 *   5 ncclInvalidUsage       ranks called different things, or were started with different settings; two threads
 *                            in one communicator (*); a forked child uses its parent's communicator (*); somebody
 *                            revoked the communicator
 *   6 ncclRemoteError        a rank or a link was lost, a rank left early or did not come within the join timeout,
 *                            the id leads nowhere; somebody aborted the communicator
 *   8 ncclTimeout            an operation's deadline passed
 *
 * The text of an error names rank, cause and what to try: see consortGetLastError and consortCommStatus.
 */
#ifndef CONSORT_H
#define CONSORT_H

#include <stddef.h>

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
  CONSORT_TEXT = 0, /* for people: several lines, no newline after the last */
  CONSORT_JSON = 1  /* for programs: one object; durations are seconds in keys that end in _s */
} consortFormat_t;

/*
 * Texts are written by one rule, that of snprintf. At most `capacity` bytes are written to `buffer`, the last of
 * them a zero; what does not fit is left off, never in the middle of a UTF-8 character, and the call still
 * succeeds. `*needed` becomes the bytes of the whole text, its zero included: all of it is there if and only if
 * *needed <= capacity. To ask for the size alone, pass NULL and a capacity of 0. `needed` may be NULL where
 * `buffer` is not. Result: ncclInvalidArgument when `buffer` is NULL and the capacity is not 0, or both are NULL.
 */

/*
 * What every rank is doing, and whose fault it is that an operation does not end. Made when asked for: it takes up
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
 * The report that was made last by itself: when an operation had lasted CONSORT_REPORT_AFTER seconds (60 unless
 * set), or when its deadline passed. Empty ("" and *needed == 1) where there was none. Asks nobody and does not wait.
 * Result: as consortCommReport.
 */
consortResult_t consortCommLastReport(consortComm_t comm, consortFormat_t format, char* buffer, size_t capacity,
                                      size_t* needed);

/*
 * The flight record: the last operations of this rank on the communicator, with when each was entered, how long it
 * took, and whether it is finished, open or failed. Any thread, at any time; asks nobody and does not wait.
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

/* Frees what a call here says the caller is to free. NULL is fine. */
void consortFree(void* memory);

/*
 * The text of the error that ended the communicator, "" while it works. Does not wait, so that within a moment of
 * the first failure another may be named, nearer to the cause. ncclCommGetAsyncError says it as a result.
 * Result: ncclInvalidArgument for a wrong handle or buffer.
 */
consortResult_t consortCommStatus(consortComm_t comm, char* buffer, size_t capacity, size_t* needed);

/*
 * The text of the calling thread's last failed call with this communicator as an argument; where there was none, what
 * ended the communicator, and "" while it works.
 * A call that succeeds leaves it. With NULL, of the thread's last failed call at all. Never NULL.
 * The library owns the text; it stays until the same thread's next failing call with that communicator (with NULL,
 * or once the communicator is freed: its next failing call at all), or until the thread ends.
 */
const char* consortGetLastError(consortComm_t comm);

/*
 * Deadlines. An operation has none unless one is set: it waits for as long as its ranks live, and still fails when a
 * rank is known to be lost. A rank's deadline is its own; the first that passes ends the operation, and with it the
 * communicator, on all ranks. The narrowest of these holds:
 *
 *   of the thread         consortThreadSetTimeout
 *   of the communicator   consortCommSetTimeout
 *   of the process        CONSORT_TIMEOUT in the environment, seconds, read when a communicator is made
 *
 * In seconds greater than 0 (shorter than a millisecond is taken for one; 100 years and more for no deadline), or:
 */
#define CONSORT_TIMEOUT_NONE (-1.0)    /* no deadline */
#define CONSORT_TIMEOUT_INHERIT (-2.0) /* what the next wider scope says */

/*
 * Of all later data calls on this communicator that this process makes; a call under way keeps its own. Other ranks
 * are not told.
 * Result: ncclInvalidArgument for a wrong handle, 0, NaN and other negative numbers; then nothing is changed.
 */
consortResult_t consortCommSetTimeout(consortComm_t comm, double seconds);

/*
 * What holds for a data call by a thread that has set nothing: never CONSORT_TIMEOUT_INHERIT.
 * Result: ncclInvalidArgument for a wrong handle or NULL.
 */
consortResult_t consortCommGetTimeout(consortComm_t comm, double* seconds);

/*
 * Of all later data calls that this thread makes, on any communicator, until it is set again; joining has a deadline
 * of its own (CONSORT_JOIN_TIMEOUT, 300 s unless set). `*previous` (unless NULL) becomes what was set before.
 * A deadline of one call:
 *
 *   double outer;
 *   consortThreadSetTimeout(5.0, &outer);
 *   result = ncclAllReduce(...);
 *   consortThreadSetTimeout(outer, NULL);
 *
 * It is of the thread so that calls keep NCCL's signatures and code in between, which makes the calls, need not know;
 * one that held for the next call alone would stay behind where that call is never made; and what is put back by
 * value nests without a depth that could be miscounted.
 * Result: ncclInvalidArgument as consortCommSetTimeout; then neither is changed.
 */
consortResult_t consortThreadSetTimeout(double seconds, double* previous);

/*
 * Ends the communicator on all ranks: calls under way return ncclRemoteError, here at once and elsewhere within a
 * second, and so do all later ones. May be done more than once; the first reason stays. Does not free the handle:
 * ncclCommDestroy does, and does not wait for anybody then.
 * `reason` is UTF-8 for the other ranks' error texts, copied before the call returns; NULL for none.
 * Result: ncclInvalidArgument for a wrong handle; ncclInvalidUsage in a forked child.
 */
consortResult_t consortCommAbort(consortComm_t comm, const char* reason);

/*
 * As consortCommAbort, but calls return ncclInvalidUsage, and the ranks are not given up: a split of the communicator
 * is possible afterwards in the Rust interface, and not in this one yet.
 */
consortResult_t consortCommRevoke(consortComm_t comm, const char* reason);

#ifdef __cplusplus
}
#endif

#endif /* CONSORT_H */
