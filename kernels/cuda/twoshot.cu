// Two-shot all-reduce over memory that all ranks have mapped (protocol Simple): every rank folds its shard of all
// inputs into all outputs.
//
// Invariant: a block reads inputs after the same block of every rank has begun, and ends after the same block of
// every rank has written. Only one rank touches a shard, so outputs may be inputs. All ranks launch equal grids.
// Absent: scalars that differ between ranks: here the rank that folds a shard scales all contributions to it.

#include "kernels.cuh"

namespace consort {

// Signals to every rank that this block has done `steps` steps and waits for theirs; false when the call is aborted.
CONSORT_FN bool meet(const TwoShot &call, u32 steps) {
    u64 value = call.base + steps;
    u64 offset = block() * call.counter_stride;
    barrier();
    CONSORT_ROLLED
    for (u32 peer = thread(); peer < call.ranks; peer += threads()) {
        if (peer != call.rank) {
            store_release(call.counters[peer] + offset, value);
        }
    }
    CONSORT_ROLLED
    for (u32 peer = thread(); peer < call.ranks; peer += threads()) {
        u32 looks = 0;
        bool is_alive = true;
        CONSORT_ROLLED
        while (peer != call.rank && is_alive && !has_reached(call.own[peer] + offset, value)) {
            looks++;
            is_alive = looks % looks_between_polls != 0 || !is_aborted(call.abort);
            relax();
        }
        consort_shared.stop[steps - 1][peer] = !is_alive;
    }
    barrier();
    u32 stop = 0;
    CONSORT_ROLLED
    for (u32 peer = 0; peer < call.ranks; peer++) {
        stop |= consort_shared.stop[steps - 1][peer];
    }
    return stop == 0;
}

template <class T, class Op> CONSORT_FN void all_reduce_twice(const TwoShot &call) {
    Part shard = part_of(call.bytes, call.rank, call.ranks);
    Part part = part_of(shard.bytes, block(), blocks());
    u64 start = shard.start + part.start;
    CONSORT_ROLLED
    for (u32 i = thread(); i < call.ranks; i += threads()) {
        consort_shared.place[0][i] = call.outputs[i] + start;
        consort_shared.place[0][call.ranks + i] = call.inputs[i] + start;
    }
    if (meet(call, 1)) {
        if (part.bytes != 0) {
            Ranges ranges = {consort_shared.place[0], part.bytes, call.ranks, call.ranks, call.raw, call.finish != 0};
            fold_range<T, Op>(ranges, call.factors);
        }
        meet(call, 2);
    }
    end_block(call.left, call.done, call.sequence, blocks());
}

} // namespace consort

#define CONSORT_TWO_SHOT(type, op)                                                                                  \
    CONSORT_ENTRY(CONSORT_JOIN(twoshot, type, op), consort::TwoShot) {                                              \
        using namespace consort;                                                                                    \
        all_reduce_twice<CONSORT_CLASS(type), op_##op>(parameter);                                          \
    }
CONSORT_KERNELS(CONSORT_TWO_SHOT)
