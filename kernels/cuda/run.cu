// The interpreter of plans: every block runs one lane of one rank's program on its part of every chunk.
//
// Invariant: steps are done strictly in order, slice after slice, by all threads of the block; what a step wrote is
// visible before the next one begins and before a counter is raised. Signals and waits happen also where the range is
// empty, so that counts do not depend on lengths. Only one lane raises a counter, and it remembers by how much.
// Absent: checks of the plan, which was verified.

#include "kernels.cuh"

namespace consort {

// Looks at a counter before the block publishes in its status what it waits for; about a tenth of a second.
#ifndef CONSORT_PATIENCE
#define CONSORT_PATIENCE 131072
#endif

CONSORT_FN u64 load_u64(u64 address) {
    Word<8> word = {};
    load(address, word);
    return word.part[0] | u64(word.part[1]) << 32;
}

// The address of a field of a struct at an address.
#define CONSORT_FIELD(address, Type, field) reinterpret_cast<u64>(&reinterpret_cast<const Type *>(address)->field)

// The record in shared memory, and the state of this block.
struct Block {
    const Program *program;
    const Region *regions;
    const u64 *first_slot;
    const Counter *counters;
    const u64 *base;
    Chunk *chunks;
    // Behind the record: the value to which this lane has raised each counter.
    u64 *raised;
    u64 abort;
    u64 status;
    u32 lane;
    u32 instance;
};

CONSORT_FN u64 address_of(const Block &block, u64 operand, u32 chunk, u32 slice, u64 offset) {
    u32 index_of_region = u32(operand) & 0xffffu;
    u32 position = u32(operand) >> 16;
    u32 index = u32(operand >> 32);
    const Region &region = block.regions[index_of_region];
    if (position == position_input) {
        return region.address + block.chunks[chunk].input + offset;
    }
    if (position == position_output) {
        return region.address + block.chunks[chunk].output + offset;
    }
    u64 slot = index;
    if (position == position_slot) {
        u64 first = block.first_slot[index_of_region * block.program->instances + block.instance];
        slot = (first + u64(slice) * region.slots_per_iteration + index) & (region.slots - 1);
    }
    return region.address + block.instance * region.instance_stride + slot * region.slot_stride;
}

CONSORT_FN void report(const Block &block, u32 step, u32 slice) {
    store_relaxed(block.status + 8, step | u64(slice) << 32);
    store_release(block.status, block.program->sequence);
}

// Waits for a counter, in one thread; false when the call was aborted first.
CONSORT_FN bool await_counter(const Block &block, u32 counter_index, i32 value, u32 step, u32 slice) {
    const Counter &counter = block.counters[counter_index];
    u64 base = block.base[counter_index * block.program->instances + block.instance];
    u64 expected = base + u64(slice) * counter.per_iteration + u64(i64(value));
    u64 own = counter.own + block.instance * counter.instance_stride;
    u32 looks = 0;
    bool has_reported = false;
    CONSORT_ROLLED
    while (!has_reached(own, expected)) {
        looks++;
        if (looks % looks_between_polls == 0 && is_aborted(block.abort)) {
            return false;
        }
        if (looks == CONSORT_PATIENCE && block.status != 0) {
            report(block, step | status_waiting, slice);
            has_reported = true;
        }
        relax();
    }
    if (has_reported) {
        report(block, step, slice);
    }
    return true;
}

// Runs the lane; ends early when the call is aborted.
template <class T, class Op> CONSORT_FN void run_lane(const Block &block) {
    const Program &program = *block.program;
    u64 lane = load_u64(program.lanes + block.lane * sizeof(Lane));
    u32 turn = 0;
    CONSORT_ROLLED
    for (u32 slice = 0; slice < program.iterations; slice++) {
        u64 offset = slice * program.slot_bytes;
        CONSORT_ROLLED
        for (u32 step = u32(lane); step < u32(lane >> 32); step++) {
            u64 address = program.steps + step * sizeof(Step);
            u64 kind = load_u64(address);
            u64 where = load_u64(address + 8);
            u64 counting = load_u64(address + 16);
            u32 action = u32(kind) & 0xffu;
            u32 counter = u32(counting);
            i32 value = i32(counting >> 32);
            if (action == action_fold) {
                u32 chunk = u32(where >> 32);
                u64 whole = block.chunks[chunk].bytes;
                u64 left = program.sliced == 0 ? whole : whole < offset ? 0 : whole - offset;
                u64 bytes = program.sliced == 0 ? whole : smaller_of(left, program.slot_bytes);
                if (bytes == 0) {
                    continue;
                }
                u32 targets = u32(kind) >> 16 & 0xffu;
                u32 sources = u32(kind) >> 24;
                u64 *place = consort_shared.place[turn];
                turn ^= 1;
                CONSORT_ROLLED
                for (u32 i = thread(); i < targets + sources; i += threads()) {
                    u64 operand = load_u64(program.operands + (u32(where) + i) * sizeof(Operand));
                    place[i] = address_of(block, operand, chunk, slice, program.sliced == 0 ? 0 : offset);
                }
                barrier();
                Ranges ranges = {place, bytes, targets, sources, u32(kind >> 32), (u32(kind) >> 8 & step_finish) != 0};
                fold_range<T, Op>(ranges, program.factors);
            } else if (action == action_signal) {
                barrier();
                if (thread() == 0) {
                    const Counter &raises = block.counters[counter];
                    u64 raised = block.raised[counter] + u64(i64(value));
                    block.raised[counter] = raised;
                    store_release(raises.peer + block.instance * raises.instance_stride, raised);
                }
            } else {
                u32 *stop = consort_shared.stop[turn];
                turn ^= 1;
                if (thread() == 0) {
                    stop[0] = !await_counter(block, counter, value, step, slice);
                }
                barrier();
                if (stop[0] != 0) {
                    return;
                }
            }
        }
    }
}

// Runs this block's lane of the program whose record is in shared memory; `own` is the block's number within the program.
template <class T, class Op> CONSORT_FN void run_record(u64 *record, u32 words, u32 own) {
    const Program &program = *reinterpret_cast<const Program *>(record);
    u32 instances = program.instances;
    Block block;
    block.program = &program;
    block.regions = reinterpret_cast<const Region *>(record + sizeof(Program) / 8);
    block.first_slot = reinterpret_cast<const u64 *>(block.regions + program.region_count);
    block.counters = reinterpret_cast<const Counter *>(block.first_slot + program.region_count * instances);
    block.base = reinterpret_cast<const u64 *>(block.counters + program.counter_count);
    u64 *chunks = record + (block.base - record) + program.counter_count * instances;
    block.chunks = reinterpret_cast<Chunk *>(chunks);
    block.raised = record + words;
    block.lane = own / instances;
    block.instance = own % instances;
    block.abort = program.abort;
    block.status = program.status == 0 ? 0 : program.status + own * sizeof(Status);
    CONSORT_ROLLED
    for (u32 i = thread(); i < program.counter_count; i += threads()) {
        block.raised[i] = block.base[i * instances + block.instance];
    }
    // From here on a chunk is this instance's part of it.
    CONSORT_ROLLED
    for (u32 i = thread(); i < program.chunk_count; i += threads()) {
        Part part = part_of(block.chunks[i].bytes, block.instance, instances);
        block.chunks[i].input += part.start;
        block.chunks[i].output += part.start;
        block.chunks[i].bytes = part.bytes;
    }
    barrier();
    run_lane<T, Op>(block);
}

// Finds the programs of this block, copies the record of each and runs its lane.
template <class T, class Op> CONSORT_FN void run_program(u64 launch, u64 *record) {
    u32 programs = u32(load_u64(CONSORT_FIELD(launch, Launch, programs)));
    if (thread() == 0) {
        consort_shared.program = 0;
    }
    barrier();
    // The record lies in host memory: threads look at entries side by side, not one after the other.
    CONSORT_ROLLED
    for (u32 i = thread(); i < programs; i += threads()) {
        u64 shape = load_u64(CONSORT_FIELD(launch, Launch, program[i].end_block));
        u32 first = i == 0 ? 0 : u32(load_u64(CONSORT_FIELD(launch, Launch, program[i - 1].end_block)));
        if (block() >= first && block() < u32(shape)) {
            consort_shared.program = load_u64(CONSORT_FIELD(launch, Launch, program[i].program));
            consort_shared.record_bytes = u32(shape >> 32);
            consort_shared.first_block = first;
            consort_shared.blocks = u32(shape) - first;
        }
    }
    barrier();
    u64 source = consort_shared.program;
    u64 bytes = consort_shared.record_bytes;
    u32 own = block() - consort_shared.first_block;
    CONSORT_ROLLED
    while (source != 0) {
        u32 words = u32(bytes) / 8;
        CONSORT_ROLLED
        for (u32 i = thread(); i < words; i += threads()) {
            record[i] = load_u64(source + i * 8);
        }
        barrier();
        const Program &program = *reinterpret_cast<const Program *>(record);
        source = program.next;
        bytes = program.next_bytes;
        if (own < program.lane_count * program.instances) {
            run_record<T, Op>(record, words, own);
        }
        // All blocks of the entry pass the end of the program, also those without a part in it, since the host may
        // write over its record after that. Behind the barrier in here no thread reads the record.
        end_block(program.left, program.done, program.sequence, consort_shared.blocks);
    }
}

} // namespace consort

#define CONSORT_RUN(type, op)                                                                                       \
    CONSORT_ENTRY(CONSORT_JOIN(run, type, op), consort::u64) {                                                      \
        using namespace consort;                                                                                    \
        CONSORT_DYNAMIC_SHARED(record);                                                                             \
        run_program<CONSORT_CLASS(type), op_##op>(parameter, record);                                       \
    }
CONSORT_KERNELS(CONSORT_RUN)

#ifndef CONSORT_TYPE
CONSORT_ENTRY(consort_run_copy, consort::u64) {
    using namespace consort;
    CONSORT_DYNAMIC_SHARED(record);
    run_program<Bytes, op_copy>(parameter, record);
}
#endif
