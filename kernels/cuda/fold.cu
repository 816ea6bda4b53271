// Folds that do not depend on each other: no block waits.
//
// Invariant: block b works on part `b % blocks_per_job` of job `b / blocks_per_job`. Absent: counters, ranks.

#include "kernels.cuh"

namespace consort {

template <class T, class Op> CONSORT_FN void fold_jobs(const Folds &folds) {
    u32 index = block() / folds.blocks_per_job;
    // From memory, or from the parameter.
    Word<8> head[2] = {};
    u64 job = folds.jobs + index * sizeof(Job);
    if (folds.jobs != 0) {
        load(job, head[0]);
        load(job + 8, head[1]);
    } else {
        const Job &own = folds.inline_jobs[index];
        head[0].part[0] = u32(own.bytes);
        head[0].part[1] = u32(own.bytes >> 32);
        head[1].part[0] = own.targets | u32(own.sources) << 8 | u32(own.finish) << 16;
        head[1].part[1] = own.raw;
    }
    u32 targets = head[1].part[0] & 0xffu;
    u32 sources = head[1].part[0] >> 8 & 0xffu;
    bool finish = (head[1].part[0] >> 16 & 1u) != 0;
    u64 bytes = head[0].part[0] | u64(head[0].part[1]) << 32;
    Part part = part_of(bytes, block() % folds.blocks_per_job, folds.blocks_per_job);
    CONSORT_ROLLED
    for (u32 i = thread(); i < targets + sources; i += threads()) {
        u64 address;
        if (folds.jobs != 0) {
            Word<8> word = {};
            load(job + 16 + i * 8, word);
            address = word.part[0] | u64(word.part[1]) << 32;
        } else {
            address = folds.inline_jobs[index].place[i];
        }
        consort_shared.place[0][i] = address + part.start;
    }
    barrier();
    if (part.bytes != 0) {
        Ranges ranges = {consort_shared.place[0], part.bytes, targets, sources, head[1].part[1], finish};
        fold_range<T, Op>(ranges, folds.factors);
    }
    end_block(folds.left, folds.done, folds.sequence, folds.count * folds.blocks_per_job);
}

} // namespace consort

#define CONSORT_FOLD(type, op)                                                                                      \
    CONSORT_ENTRY(CONSORT_JOIN(fold, type, op), consort::Folds) {                                                   \
        using namespace consort;                                                                                    \
        fold_jobs<CONSORT_CLASS(type), op_##op>(parameter);                                                 \
    }
CONSORT_KERNELS(CONSORT_FOLD)

#ifndef CONSORT_TYPE
CONSORT_ENTRY(consort_fold_copy, consort::Folds) {
    using namespace consort;
    fold_jobs<Bytes, op_copy>(parameter);
}
#endif
