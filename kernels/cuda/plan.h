// The records that the host passes to kernels: tables of a plan, the record of a call, parameters of the kernels
// without a plan.
//
// Invariant: little-endian, no padding, the same as `kernels/src/cuda/layout.rs`, where every field is explained; a
// test there compares sizes and offsets. Absent: any include, so that every compiler of device code takes it.

#ifndef CONSORT_PLAN_H
#define CONSORT_PLAN_H

namespace consort {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef float f32;
typedef double f64;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "widths");

// Parts of a range begin at multiples of this number of bytes: a whole number of elements of every type.
constexpr u64 grain = 128;
// Targets and sources of one fold together.
constexpr u32 max_places = 32;
constexpr u32 max_ranks = 16;
constexpr u32 max_programs = 64;
constexpr u32 max_inline_jobs = 8;

enum Action : u8 { action_fold = 0, action_signal = 1, action_wait = 2 };
enum StepFlag : u8 { step_finish = 1 };
enum Position : u16 { position_input = 0, position_output = 1, position_slot = 2, position_scratch = 3 };
// Set in Status::step while the wait lasts.
constexpr u32 status_waiting = 0x80000000u;

struct alignas(8) Step {
    u8 action;
    u8 flags;
    u8 targets;
    u8 sources;
    u32 raw;
    u32 operands;
    u32 chunk;
    u32 counter;
    i32 value;
};

struct alignas(8) Operand {
    u16 region;
    u16 position;
    u32 index;
};

struct alignas(8) Lane {
    u32 start;
    u32 end;
};

struct Region {
    u64 address;
    u64 instance_stride;
    u64 slot_stride;
    u32 slots;
    u32 slots_per_iteration;
};

struct Counter {
    u64 own;
    u64 peer;
    u64 instance_stride;
    u32 per_iteration;
    u32 reserved;
};

struct Chunk {
    u64 input;
    u64 output;
    u64 bytes;
};

struct Factors {
    f64 double_;
    u64 whole;
    f32 single;
    u32 divisor;
};

struct Status {
    u64 sequence;
    u32 step;
    u32 slice;
};

// Followed directly by Region[region_count], u64 first_slot[region_count * instances], Counter[counter_count],
// u64 base[counter_count * instances], Chunk[chunk_count].
struct Program {
    u64 steps;
    u64 operands;
    u64 lanes;
    u64 done;
    u64 status;
    u64 left;
    u64 sequence;
    u64 abort;
    u64 next;
    u64 next_bytes;
    u64 slot_bytes;
    u32 lane_count;
    u32 instances;
    u32 iterations;
    u32 sliced;
    u32 region_count;
    u32 counter_count;
    u32 chunk_count;
    u32 record_bytes;
    Factors factors;
};

struct Entry {
    u64 program;
    u32 end_block;
    u32 record_bytes;
};

struct Launch {
    u32 programs;
    u32 reserved;
    Entry program[max_programs];
};

struct Job {
    u64 bytes;
    u8 targets;
    u8 sources;
    u8 finish;
    u8 reserved;
    u32 raw;
    u64 place[max_places];
};

struct Folds {
    u64 jobs;
    u32 count;
    u32 blocks_per_job;
    u64 done;
    u64 left;
    u64 sequence;
    Factors factors;
    Job inline_jobs[max_inline_jobs];
};

struct OneShot {
    u64 input;
    u64 output;
    u64 bytes;
    u64 abort;
    u64 done;
    u64 left;
    u64 sequence;
    u32 ranks;
    u32 rank;
    u32 flag;
    u32 raw;
    u32 finish;
    u32 reserved;
    u64 packets;
    u64 packet_stride;
    u64 peers[max_ranks];
    Factors factors;
};

struct TwoShot {
    u64 abort;
    u64 done;
    u64 left;
    u64 sequence;
    u64 bytes;
    u32 ranks;
    u32 rank;
    u32 raw;
    u32 finish;
    u64 inputs[max_ranks];
    u64 outputs[max_ranks];
    u64 counters[max_ranks];
    u64 own[max_ranks];
    u64 counter_stride;
    u64 base;
    Factors factors;
};

} // namespace consort

#endif
