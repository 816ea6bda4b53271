// A ring all-reduce through slots, written by hand as a plan of the interpreter, for all ranks of a job.
//
// Invariant: a rank sends its chunk on, folds what arrives with its own, and after as many steps as there are other
// ranks passes results round. Slots are fewer than messages, so that credits are waited for. Absent: any other plan.

#ifndef CONSORT_RING_HPP
#define CONSORT_RING_HPP

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "grid.hpp"

class Ring {
    typedef consort::u64 u64;
    typedef consort::u32 u32;
    static constexpr u32 slots = 4;
    enum : consort::u16 { input, output, own_slots, peer_slots, regions };
    enum : u32 { arrived, sends, freed, frees, counters };

    // What a rank owns, and its tables.
    struct Rank {
        std::vector<u64> slot_memory;
        // Arrivals from the rank before, then credits from the rank after: a word for each instance.
        std::vector<u64> words;
        std::vector<consort::Step> steps;
        std::vector<consort::Operand> operands;
        consort::Lane lane;
        std::vector<consort::Status> status;
        u32 left = 0;
        u64 done = 0;
        std::vector<u64> record;
    };

    u32 ranks;
    u32 instances;
    u64 slot_bytes;
    bool sliced;
    u32 iterations;
    consort::Factors factors;
    std::vector<consort::Chunk> chunks;
    std::vector<Rank> all;
    u64 calls = 0;
    u32 abort = 0;

    u32 messages() const { return 2 * (ranks - 1); }

    static u64 address(const void *place) { return reinterpret_cast<u64>(place); }

    void fold(Rank &rank, u32 chunk, std::vector<consort::Operand> targets, std::vector<consort::Operand> sources, u32 raw,
              bool finish) {
        consort::Step step = {};
        step.action = consort::action_fold;
        step.flags = finish ? consort::step_finish : 0;
        step.targets = consort::u8(targets.size());
        step.sources = consort::u8(sources.size());
        step.raw = raw;
        step.operands = u32(rank.operands.size());
        step.chunk = chunk;
        rank.steps.push_back(step);
        rank.operands.insert(rank.operands.end(), targets.begin(), targets.end());
        rank.operands.insert(rank.operands.end(), sources.begin(), sources.end());
    }

    void count(Rank &rank, consort::u8 action, u32 counter, int value) {
        consort::Step step = {};
        step.action = action;
        step.counter = counter;
        step.value = value;
        rank.steps.push_back(step);
    }

    void program(u32 number, bool raw, bool finish) {
        using namespace consort;
        Rank &rank = all[number];
        const Operand mine = {input, position_input, 0};
        const Operand result = {output, position_output, 0};
        for (u32 j = 0; j <= messages(); j++) {
            u32 chunk = (number + 2 * ranks - j) % ranks;
            bool is_last = j == messages();
            const Operand from = {own_slots, position_slot, j - 1};
            const Operand to = {peer_slots, position_slot, j};
            if (j > 0) {
                count(rank, action_wait, arrived, int(j));
            }
            if (!is_last) {
                count(rank, action_wait, freed, int(j) - int(slots) + 1);
            }
            if (j == 0) {
                fold(rank, chunk, {to}, {mine}, raw ? 1 : 0, false);
            } else if (j + 1 < ranks) {
                fold(rank, chunk, {to}, {from, mine}, raw ? 2 : 0, false);
            } else if (j + 1 == ranks) {
                // Nothing but the order of steps is between these two.
                fold(rank, chunk, {result}, {from, mine}, raw ? 2 : 0, finish);
                fold(rank, chunk, {to}, {result}, 0, false);
            } else if (!is_last) {
                fold(rank, chunk, {result, to}, {from}, 0, false);
            } else {
                fold(rank, chunk, {result}, {from}, 0, false);
            }
            if (j > 0) {
                count(rank, action_signal, frees, 1);
            }
            if (!is_last) {
                count(rank, action_signal, sends, 1);
            }
        }
        rank.lane = {0, u32(rank.steps.size())};
    }

    template <class T> static void append(std::vector<u64> &record, const T *items, size_t count) {
        static_assert(sizeof(T) % 8 == 0);
        size_t at = record.size();
        record.resize(at + count * sizeof(T) / 8);
        std::memcpy(&record[at], items, count * sizeof(T));
    }

    void write_record(u32 number, u64 from, u64 into) {
        using namespace consort;
        Rank &rank = all[number];
        Rank &next = all[(number + 1) % ranks];
        Rank &previous = all[(number + ranks - 1) % ranks];
        Program header = {};
        header.steps = address(rank.steps.data());
        header.operands = address(rank.operands.data());
        header.lanes = address(&rank.lane);
        header.done = address(&rank.done);
        header.status = address(rank.status.data());
        header.left = address(&rank.left);
        header.sequence = calls + 1;
        header.abort = address(&abort);
        header.slot_bytes = slot_bytes;
        header.lane_count = 1;
        header.instances = instances;
        header.iterations = iterations;
        header.sliced = sliced;
        header.region_count = regions;
        header.counter_count = counters;
        header.chunk_count = u32(chunks.size());
        header.factors = factors;
        u64 slot_stride = slot_bytes;
        auto slots_of = [&](Rank &owner) {
            return Region{address(owner.slot_memory.data()), slots * slot_stride, slot_stride, slots, messages()};
        };
        Region tables[regions] = {{from, 0, 0, 0, 0}, {into, 0, 0, 0, 0}, slots_of(rank), slots_of(next)};
        Counter words[counters] = {
            {address(&rank.words[0]), 0, 8, messages(), 0},
            {0, address(&next.words[0]), 8, messages(), 0},
            {address(&rank.words[instances]), 0, 8, messages(), 0},
            {0, address(&previous.words[instances]), 8, messages(), 0},
        };
        u64 before = calls * iterations * messages();
        std::vector<u64> first_slot(regions * instances, before % slots);
        std::vector<u64> base(counters * instances, before);
        rank.record.clear();
        append(rank.record, &header, 1);
        append(rank.record, tables, regions);
        append(rank.record, first_slot.data(), first_slot.size());
        append(rank.record, words, counters);
        append(rank.record, base.data(), base.size());
        append(rank.record, chunks.data(), chunks.size());
        reinterpret_cast<Program *>(rank.record.data())->record_bytes = u32(rank.record.size() * 8);
        rank.done = 0;
    }

    // The entry of a rank whose program is the `nth` of its launch, counted from 1.
    consort::Entry entry(u32 number, u32 nth) {
        Rank &rank = all[number];
        return {address(rank.record.data()), nth * instances, u32(rank.record.size() * 8)};
    }

    size_t dynamic_bytes(const Rank &rank) const { return rank.record.size() * 8 + counters * 8; }

    void require(bool holds, const char *what) {
        if (!holds) {
            std::fprintf(stderr, "ring: %s\n", what);
            std::abort();
        }
    }

  public:
    Ring(u32 ranks, u32 instances, u64 bytes, u64 slice, bool raw, bool finish, const consort::Factors &factors)
        : ranks(ranks), instances(instances), sliced(slice != 0), factors(factors), all(ranks) {
        u64 unit = ((bytes + ranks - 1) / ranks + 7) / 8 * 8;
        for (u32 i = 0; i < ranks; i++) {
            u64 start = std::min(i * unit, bytes);
            chunks.push_back({start, start, std::min(unit, bytes - start)});
        }
        u64 longest = consort::part_of(unit, 0, instances).bytes;
        slot_bytes = sliced ? slice : (longest + 127) / 128 * 128 + 128;
        iterations = sliced ? std::max<u32>(1, u32((longest + slice - 1) / slice)) : 1;
        for (u32 i = 0; i < ranks; i++) {
            all[i].slot_memory.resize(instances * slots * slot_bytes / 8);
            all[i].words.resize(2 * instances);
            all[i].status.resize(instances);
            program(i, raw, finish);
        }
    }

    void all_reduce(void (*kernel)(u64), u32 threads, const std::vector<u64> &inputs, const std::vector<u64> &outputs,
                    bool together) {
        std::vector<consort::Launch> launches(ranks);
        {
            std::vector<Grid> grids;
            for (u32 i = 0; i < ranks; i++) {
                write_record(i, inputs[i], outputs[i]);
                launches[together ? 0 : i].program[together ? i : 0] = entry(i, together ? i + 1 : 1);
            }
            for (u32 i = 0; i < (together ? 1 : ranks); i++) {
                launches[i].programs = together ? ranks : 1;
                // One block more than there is work for: it finds no program.
                u32 blocks = instances * launches[i].programs + 1;
                grids.emplace_back(kernel, blocks, threads, dynamic_bytes(all[i]), address(&launches[i]));
            }
        }
        for (Rank &rank : all) {
            require(rank.done == calls + 1 && rank.left == 0, "a rank did not say that it is done");
        }
        calls++;
    }

    // Rank 0 alone: it waits for the others, publishes that, and is aborted.
    void abort_rank(void (*kernel)(u64), u32 threads, u64 from, u64 into) {
        using namespace consort;
        write_record(0, from, into);
        Launch launch = {1, 0, {entry(0, 1)}};
        {
            Grid grid(kernel, instances, threads, dynamic_bytes(all[0]), address(&launch));
            for (u32 i = 0; i < instances; i++) {
                while (load_acquire(address(&all[0].status[i].sequence)) != 1) {
                    relax();
                }
                u32 step = load_relaxed(address(&all[0].status[i].step));
                require(step == (status_waiting | 3), "the status names another step");
            }
            require(load_acquire(address(&all[0].done)) == 0, "done before its end");
            __atomic_store_n(&abort, 1u, __ATOMIC_RELAXED);
        }
        require(all[0].done == 1 && all[0].left == 0, "an aborted rank did not say that it is done");
    }
};

#endif
