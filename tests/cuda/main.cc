// The host ring: kernels run on cases from a file, results go to a file.
//
// A case is a Case and its sources; its answer is `answers` ranges of as many bytes. Memory around every range that is
// written is checked here. Absent: the expected results, which the test that wrote the cases has.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>

#include "grid.hpp"
#include "ring.hpp"

using namespace consort;

#define DECLARE(type, op)                                                                                           \
    extern "C" void consort_fold_##type##_##op(Folds);                                                              \
    extern "C" void consort_run_##type##_##op(u64);                                                                 \
    extern "C" void consort_oneshot_##type##_##op(OneShot);                                                         \
    extern "C" void consort_twoshot_##type##_##op(TwoShot);
#define ENTRY(type, op)                                                                                             \
    {consort_fold_##type##_##op, consort_run_##type##_##op, consort_oneshot_##type##_##op, consort_twoshot_##type##_##op},
#define OPS(MACRO, type) MACRO(type, sum) MACRO(type, prod) MACRO(type, max) MACRO(type, min)
#ifdef ONE_TYPE
#define TYPES(MACRO) OPS(MACRO, f32)
#else
#define TYPES(MACRO)                                                                                                \
    OPS(MACRO, i8) OPS(MACRO, u8) OPS(MACRO, i32) OPS(MACRO, u32) OPS(MACRO, i64) OPS(MACRO, u64) OPS(MACRO, f16)     \
    OPS(MACRO, f32) OPS(MACRO, f64) OPS(MACRO, bf16) OPS(MACRO, f8e4m3) OPS(MACRO, f8e5m2)
#endif
TYPES(DECLARE)
extern "C" void consort_fold_copy(Folds);
extern "C" void consort_run_copy(u64);

struct Kernels {
    void (*fold)(Folds);
    void (*run)(u64);
    void (*one_shot)(OneShot);
    void (*two_shot)(TwoShot);
};
static const Kernels table[] = {TYPES(ENTRY)};
// Of a type and operator. A program of one type has no other.
static const Kernels &kernels_of(u32 data_type, u32 op) { return table[(sizeof table / sizeof *table == 4 ? 0 : data_type) * 4 + op]; }

enum Kind : u32 { kind_fold, kind_ring, kind_one_shot, kind_two_shot, kind_copy };

struct Case {
    u32 kind;
    u32 data_type;
    u32 op;
    // Or sources of a fold.
    u32 ranks;
    u32 targets;
    u32 raw;
    u32 finish;
    u32 blocks;
    u32 threads;
    // Target 0 is source 0, or outputs are inputs.
    u32 in_place;
    u64 bytes;
    u64 slot_bytes;
    Factors factors;
    // Of each place, from an address that is a multiple of 16.
    u8 offset[max_places];
};
static_assert(sizeof(Case) == 112);

// A range with known bytes around it, at a chosen offset from an aligned address.
class Range {
    static constexpr size_t margin = 64;
    std::vector<u8> storage;
    size_t start;
    size_t length;

  public:
    Range(size_t length, size_t offset) : storage(length + 2 * margin + 32, 0xa5), length(length) {
        start = 16 - reinterpret_cast<u64>(storage.data()) % 16 + margin + offset;
    }
    u8 *data() { return storage.data() + start; }
    u64 address() { return reinterpret_cast<u64>(data()); }
    void check() {
        for (size_t i = 0; i < storage.size(); i++) {
            if ((i < start || i >= start + length) && storage[i] != 0xa5) {
                std::fprintf(stderr, "a byte at %zd of a range of %zu was written\n", ssize_t(i) - ssize_t(start), length);
                std::abort();
            }
        }
    }
};

static void require(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "%s\n", what);
        std::abort();
    }
}

static void run_fold(const Case &call, std::vector<Range> &sources, std::vector<Range> &targets, u32 number) {
    Folds folds = {};
    std::vector<Job> jobs(2);
    Job job = {};
    job.bytes = call.bytes;
    job.targets = u8(call.targets);
    job.sources = u8(call.ranks);
    job.finish = u8(call.finish);
    job.raw = call.raw;
    for (u32 i = 0; i < call.targets; i++) {
        job.place[i] = i == 0 && call.in_place ? sources[0].address() : targets[i].address();
    }
    for (u32 i = 0; i < call.ranks; i++) {
        job.place[call.targets + i] = sources[i].address();
    }
    // Every other case has its jobs in memory, with an empty one in front.
    u64 done = 0;
    u32 left = 0;
    folds.count = 1;
    folds.inline_jobs[0] = job;
    if (number % 2 == 1) {
        jobs[0] = job;
        jobs[0].bytes = 0;
        jobs[1] = job;
        folds.jobs = reinterpret_cast<u64>(jobs.data());
        folds.count = 2;
    }
    folds.blocks_per_job = call.blocks;
    folds.done = reinterpret_cast<u64>(&done);
    folds.left = reinterpret_cast<u64>(&left);
    folds.sequence = 77;
    folds.factors = call.factors;
    auto kernel = call.kind == kind_copy ? consort_fold_copy : kernels_of(call.data_type, call.op).fold;
    { Grid grid(kernel, folds.count * call.blocks, call.threads, 0, folds); }
    require(done == 77 && left == 0, "a fold did not say that it is done");
}

// Runs calls of every rank one after the other, ranks beside each other: only what the kernels do orders them. `call`
// gets a rank, the number of the call and the word that marks its end; a call's output is read at once.
template <class Call> static void beside(u32 ranks, u32 calls, const Call &call) {
    std::vector<std::thread> threads;
    for (u32 rank = 0; rank < ranks; rank++) {
        threads.emplace_back([&call, rank, calls] {
            std::vector<u8> first;
            for (u32 turn = 0; turn < calls; turn++) {
                u64 done = 0;
                u32 left = 0;
                std::pair<u64, u64> output = call(rank, turn, reinterpret_cast<u64>(&done), reinterpret_cast<u64>(&left));
                require(done == turn + 1 && left == 0, "a rank did not say that it is done");
                std::vector<u8> seen(output.second);
                std::memcpy(seen.data(), reinterpret_cast<const void *>(output.first), output.second);
                require(turn == 0 || seen == first, "calls with the same inputs gave different outputs");
                first = seen;
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
}

static void run_one_shot(const Case &call, std::vector<Range> &sources, std::vector<Range> &targets) {
    u64 stride = (call.bytes * 2 + 15) / 16 * 16 + 16;
    // Two sets of packets for each rank; three calls, so that one set is used again.
    std::vector<std::vector<u64>> packets(call.ranks, std::vector<u64>(2 * stride * call.ranks / 8 + 2));
    auto area = [&](u32 rank, u32 set) {
        return (reinterpret_cast<u64>(packets[rank].data()) + 15) / 16 * 16 + set * stride * call.ranks;
    };
    beside(call.ranks, 3, [&](u32 rank, u32 turn, u64 done, u64 left) {
        OneShot one = {};
        one.input = sources[rank].address();
        one.output = call.in_place && turn == 2 ? one.input : targets[rank].address();
        one.bytes = call.bytes;
        one.done = done;
        one.left = left;
        one.sequence = turn + 1;
        one.ranks = call.ranks;
        one.rank = rank;
        one.flag = turn + 9;
        one.raw = call.raw;
        one.finish = call.finish;
        one.packets = area(rank, turn % 2);
        one.packet_stride = stride;
        for (u32 peer = 0; peer < call.ranks; peer++) {
            one.peers[peer] = area(peer, turn % 2);
        }
        one.factors = call.factors;
        Grid grid(kernels_of(call.data_type, call.op).one_shot, call.blocks, call.threads, 0, one);
        return std::pair(one.output, call.bytes);
    });
}

static void run_two_shot(const Case &call, std::vector<Range> &sources, std::vector<Range> &targets) {
    std::vector<u64> counters(call.ranks * call.ranks * call.blocks, 100);
    auto counter = [&](u32 owner, u32 raiser) {
        return reinterpret_cast<u64>(&counters[(owner * call.ranks + raiser) * call.blocks]);
    };
    beside(call.ranks, call.in_place ? 1 : 2, [&](u32 rank, u32 turn, u64 done, u64 left) {
        TwoShot two = {};
        two.done = done;
        two.left = left;
        two.sequence = turn + 1;
        two.bytes = call.bytes;
        two.ranks = call.ranks;
        two.rank = rank;
        two.raw = call.raw;
        two.finish = call.finish;
        for (u32 peer = 0; peer < call.ranks; peer++) {
            two.inputs[peer] = sources[peer].address();
            two.outputs[peer] = call.in_place ? sources[peer].address() : targets[peer].address();
            two.counters[peer] = counter(peer, rank);
            two.own[peer] = counter(rank, peer);
        }
        two.counter_stride = 8;
        two.base = 100 + turn * 2;
        two.factors = call.factors;
        Grid grid(kernels_of(call.data_type, call.op).two_shot, call.blocks, call.threads, 0, two);
        return std::pair(two.outputs[rank], call.bytes);
    });
}

static void run_case(std::ifstream &in, std::ofstream &out, const Case &call, u32 number) {
    u32 answers = call.kind == kind_fold || call.kind == kind_copy ? call.targets : call.ranks;
    std::vector<Range> sources;
    std::vector<Range> targets;
    for (u32 i = 0; i < answers; i++) {
        targets.emplace_back(call.bytes, call.offset[i]);
    }
    for (u32 i = 0; i < call.ranks; i++) {
        sources.emplace_back(call.bytes, call.offset[(answers + i) % max_places]);
        in.read(reinterpret_cast<char *>(sources[i].data()), std::streamsize(call.bytes));
    }
    bool written_over = call.in_place != 0;
    switch (call.kind) {
    case kind_fold:
    case kind_copy:
        run_fold(call, sources, targets, number);
        break;
    case kind_ring: {
        std::vector<u64> inputs;
        std::vector<u64> outputs;
        for (u32 rank = 0; rank < call.ranks; rank++) {
            inputs.push_back(sources[rank].address());
            outputs.push_back(written_over ? inputs[rank] : targets[rank].address());
        }
        Ring ring(call.ranks, call.blocks, call.bytes, call.slot_bytes, call.raw != 0, call.finish != 0, call.factors);
        ring.all_reduce(kernels_of(call.data_type, call.op).run, call.threads, inputs, outputs, false);
        if (!written_over) {
            // Again, with counters and slots where the first call left them, all ranks in one launch.
            ring.all_reduce(kernels_of(call.data_type, call.op).run, call.threads, inputs, outputs, true);
        }
        break;
    }
    case kind_one_shot:
        run_one_shot(call, sources, targets);
        break;
    default:
        run_two_shot(call, sources, targets);
    }
    for (u32 i = 0; i < answers; i++) {
        bool is_source = written_over && (call.kind == kind_ring || call.kind == kind_two_shot || i == 0);
        is_source = is_source || (written_over && call.kind == kind_one_shot);
        Range &answer = is_source ? sources[i] : targets[i];
        out.write(reinterpret_cast<const char *>(answer.data()), std::streamsize(call.bytes));
        answer.check();
        targets[i].check();
    }
}

// A rank whose peer never comes waits, publishes what it waits for, and leaves when the call is aborted.
static void abort_alone() {
    std::vector<f32> input(64, 1.0f);
    std::vector<f32> output(64);
    Ring ring(2, 2, 256, 128, false, false, {1.0, 1, 1.0f, 1});
    ring.abort_rank(table[0].run, 4, reinterpret_cast<u64>(input.data()), reinterpret_cast<u64>(output.data()));
    std::printf("aborted\n");
}

int main(int count, char **arguments) {
    if (count == 2 && std::string(arguments[1]) == "abort") {
        abort_alone();
        return 0;
    }
    require(count == 3, "two files, or abort");
    std::ifstream in(arguments[1], std::ios::binary);
    std::ofstream out(arguments[2], std::ios::binary);
    Case call;
    u32 number = 0;
    while (in.read(reinterpret_cast<char *>(&call), sizeof call)) {
        run_case(in, out, call, number++);
    }
    std::printf("%u cases\n", number);
}
