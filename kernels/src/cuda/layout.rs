//! The records that the host passes to device kernels, byte for byte.
//!
//! Invariant: little-endian, every type 8-byte aligned and without padding, the same as `kernels/cuda/plan.h`; a test
//! compiles that header and compares sizes and offsets. Addresses are 64-bit numbers that the device can use;
//! strides, offsets and lengths are in bytes.
//!
//! Absent: filling the records in, and any check of them: a kernel trusts its record.

use consort_memory::Plain;

use crate::Reducer;

/// Parts of a range begin at multiples of this number of bytes: a whole number of elements of every type.
pub const GRAIN: u64 = 128;
/// The most targets and sources of one fold together.
pub const MAX_PLACES: usize = 32;
/// The most ranks of a [`OneShot`] or [`TwoShot`].
pub const MAX_RANKS: usize = 16;
/// The most programs of a [`Launch`].
pub const MAX_PROGRAMS: usize = 64;
/// The most jobs that [`Folds`] itself holds.
pub const MAX_INLINE_JOBS: usize = 8;
/// [`Step::action`]: fold sources into targets.
pub const ACTION_FOLD: u8 = 0;
/// [`Step::action`]: raise a counter.
pub const ACTION_SIGNAL: u8 = 1;
/// [`Step::action`]: wait for a counter.
pub const ACTION_WAIT: u8 = 2;
/// [`Step::flags`]: the result is divided by [`Factors::divisor`].
pub const STEP_FINISH: u8 = 1;
/// [`Operand::position`]: the chunk at its input offset in the region.
pub const POSITION_INPUT: u16 = 0;
/// [`Operand::position`]: the chunk at its output offset in the region.
pub const POSITION_OUTPUT: u16 = 1;
/// [`Operand::position`]: a slot of the region.
pub const POSITION_SLOT: u16 = 2;
/// [`Operand::position`]: a scratch place of the region.
pub const POSITION_SCRATCH: u16 = 3;
/// Bit of [`Status::step`] that is set while the wait lasts.
pub const STATUS_WAITING: u32 = 1 << 31;

macro_rules! records {
    ($($(#[$about:meta])* $name:ident { $($(#[$field_about:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C, align(8))]
        pub struct $name {
            $($(#[$field_about])* pub $field: $type,)*
        }

        // The fields leave no padding.
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*);

        // SAFETY: integers, floats, and records and arrays of these, without padding (just asserted); every bit
        // pattern is a value.
        unsafe impl Plain for $name {}

        impl Default for $name {
            /// All zeros.
            fn default() -> Self {
                // SAFETY: every bit pattern is a value, as above.
                unsafe { std::mem::zeroed() }
            }
        }

        #[cfg(test)]
        impl tests::Layout for $name {
            const NAME: &'static str = stringify!($name);
            const FIELDS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field))),*];
        }
    )*};
}

records! {
    /// One step of a lane.
    Step {
        /// [`ACTION_FOLD`], [`ACTION_SIGNAL`] or [`ACTION_WAIT`].
        action: u8,
        /// [`STEP_FINISH`] or 0.
        flags: u8,
        /// Number of targets of a fold; with `sources` at most [`MAX_PLACES`].
        targets: u8,
        /// Number of sources of a fold, at least 1.
        sources: u8,
        /// Bit i: source i is multiplied by the factor before it is folded. Only sums scale; 0 for other operators
        /// and for sums without a factor.
        raw: u32,
        /// Index of the fold's first operand: targets, then sources.
        operands: u32,
        /// Index of the fold's chunk.
        chunk: u32,
        /// Index of the counter of a signal or wait.
        counter: u32,
        /// A signal adds it to what this lane has raised; a wait is for the counter's base plus
        /// `per_iteration` for each slice before this one plus `value`.
        value: i32,
    }

    /// Where a target or source is.
    Operand {
        /// Index of the region.
        region: u16,
        /// One of the `POSITION_` constants.
        position: u16,
        /// Number of the slot within the iteration, or of the scratch place.
        index: u32,
    }

    /// Steps `start..end` of the step table, done in order for each slice.
    Lane {
        /// The first step.
        start: u32,
        /// One past the last step.
        end: u32,
    }

    /// Memory that operands lie in.
    Region {
        /// Its first byte.
        address: u64,
        /// Distance from an instance's part to the next one's; 0 for buffers, where instances share the chunks
        /// instead.
        instance_stride: u64,
        /// Distance from a slot or scratch place to the next.
        slot_stride: u64,
        /// Slots of an instance, a power of two; 0 for buffers and scratch.
        slots: u32,
        /// Slots that an instance uses in a slice.
        slots_per_iteration: u32,
    }

    /// A 64-bit word for each instance by which one rank signals another.
    Counter {
        /// The word that this rank waits for; 0 if it does not wait.
        own: u64,
        /// The peer's word that this rank raises, as mapped here; 0 if it raises none. Only one lane raises it.
        peer: u64,
        /// Distance from an instance's word to the next one's.
        instance_stride: u64,
        /// The amount that a slice adds.
        per_iteration: u32,
        /// 0.
        reserved: u32,
    }

    /// A part of the buffers.
    Chunk {
        /// Offset in buffers at [`POSITION_INPUT`].
        input: u64,
        /// Offset in buffers at [`POSITION_OUTPUT`].
        output: u64,
        /// Length.
        bytes: u64,
    }

    /// The factor of raw sources, in every type of arithmetic, and the divisor of sums of integers.
    Factors {
        /// For binary64.
        double_: f64,
        /// For integers, whose low bits count.
        whole: u64,
        /// For floats of up to 32 bits.
        single: f32,
        /// The divisor of folds that finish, at least 1; 1 where nothing is divided.
        divisor: u32,
    }

    /// The state that a block publishes when a wait has lasted a while.
    Status {
        /// The sequence of the block's program; stored last.
        sequence: u64,
        /// Index of the step, with [`STATUS_WAITING`] while it waits.
        step: u32,
        /// The slice, from 0.
        slice: u32,
    }

    /// The header of a record: one rank's program for one call. Directly after it come `Region[region_count]`,
    /// `u64 first_slot[region_count * instances]`, `Counter[counter_count]`, `u64 base[counter_count * instances]`
    /// and `Chunk[chunk_count]`.
    Program {
        /// Device memory: the table of [`Step`]s.
        steps: u64,
        /// Device memory: the table of [`Operand`]s.
        operands: u64,
        /// Device memory: `Lane[lane_count]`.
        lanes: u64,
        /// A 64-bit word that becomes `sequence` when all blocks of the program's [`Entry`] have passed the program,
        /// also those without a part in it, and also where it is aborted. From then on no block reads its record. 0
        /// for none.
        done: u64,
        /// `Status[lane_count * instances]`, host-mapped: that of a lane's instance is at
        /// `lane * instances + instance`; 0 for none.
        status: u64,
        /// A 32-bit word in device memory that is 0 between calls: the number of blocks that have ended. Needed if
        /// `done` is set.
        left: u64,
        /// Number of the call.
        sequence: u64,
        /// A 32-bit host-mapped word. Where it is not 0, the program's blocks leave at their next wait. 0 for none.
        abort: u64,
        /// Address of the record of the program that the same blocks run after this one, which continues its
        /// counters. 0 for none.
        next: u64,
        /// [`Program::record_bytes`] of that record.
        next_bytes: u64,
        /// Bytes of an instance's part of a chunk in one slice; a multiple of [`GRAIN`].
        slot_bytes: u64,
        /// Lanes.
        lane_count: u32,
        /// Blocks of a lane, each with its part of every chunk; at least 1.
        instances: u32,
        /// Slices; 1 if not sliced.
        iterations: u32,
        /// Whether slices handle `slot_bytes` each (1) or the one slice handles everything (0).
        sliced: u32,
        /// Regions.
        region_count: u32,
        /// Counters.
        counter_count: u32,
        /// Chunks.
        chunk_count: u32,
        /// Length of the whole record; a multiple of 8.
        record_bytes: u32,
        /// The call's factors.
        factors: Factors,
    }

    /// Programs of a launch that the same blocks run, one after the other: a block has part in those that have more
    /// blocks than its number.
    Entry {
        /// Address of the first [`Program`] record.
        program: u64,
        /// One past the last of its blocks, which begin where those of the entry before end.
        end_block: u32,
        /// [`Program::record_bytes`].
        record_bytes: u32,
    }

    /// The parameter of one launch of the interpreter: the blocks of all programs, one program after the other.
    /// Programs may belong to several communicators, each with its own abort word.
    Launch {
        /// Entries, at most [`MAX_PROGRAMS`].
        programs: u32,
        /// 0.
        reserved: u32,
        /// The entries, in the order of their blocks.
        program: [Entry; MAX_PROGRAMS],
    }

    /// One fold with its addresses.
    Job {
        /// Length of each target and source.
        bytes: u64,
        /// Number of targets; with `sources` at most [`MAX_PLACES`].
        targets: u8,
        /// Number of sources, at least 1.
        sources: u8,
        /// 1: the result is divided by [`Factors::divisor`].
        finish: u8,
        /// 0.
        reserved: u8,
        /// As [`Step::raw`].
        raw: u32,
        /// Addresses of targets, then of sources.
        place: [u64; MAX_PLACES],
    }

    /// Parameter of the fold kernels: jobs that do not depend on each other, `blocks_per_job` blocks for each.
    Folds {
        /// `Job[count]`, readable by the device; 0: `inline_jobs`.
        jobs: u64,
        /// Jobs.
        count: u32,
        /// Blocks that share a job, at least 1; the grid has `count * blocks_per_job`.
        blocks_per_job: u32,
        /// As [`Program::done`].
        done: u64,
        /// As [`Program::left`].
        left: u64,
        /// As [`Program::sequence`].
        sequence: u64,
        /// Factors of all jobs.
        factors: Factors,
        /// The jobs, where there are at most [`MAX_INLINE_JOBS`].
        inline_jobs: [Job; MAX_INLINE_JOBS],
    }

    /// Parameter of the one-shot all-reduce: every rank sends its whole contribution to all others, as packets of
    /// four bytes of data and four of `flag`, and folds what arrives, in the order of ranks.
    OneShot {
        /// This rank's contribution.
        input: u64,
        /// The result; may be `input`.
        output: u64,
        /// Length of both.
        bytes: u64,
        /// As [`Program::abort`].
        abort: u64,
        /// As [`Program::done`].
        done: u64,
        /// As [`Program::left`].
        left: u64,
        /// As [`Program::sequence`].
        sequence: u64,
        /// Ranks, at most [`MAX_RANKS`].
        ranks: u32,
        /// This rank.
        rank: u32,
        /// Differs from those of all former calls that used the same packets, and from 0. Calls take turns with
        /// two sets of packets: a rank may be one call ahead of another.
        flag: u32,
        /// Bit `rank`: the contribution is multiplied by the factor before it is sent.
        raw: u32,
        /// 1: the result is divided by [`Factors::divisor`].
        finish: u32,
        /// 0.
        reserved: u32,
        /// The packets that peers write: an area for each rank.
        packets: u64,
        /// Distance from an area to the next; at least twice `bytes`, rounded up to 16, and a multiple of 16.
        packet_stride: u64,
        /// The `packets` of each rank, as mapped here.
        peers: [u64; MAX_RANKS],
        /// This rank's factors.
        factors: Factors,
    }

    /// Parameter of the two-shot all-reduce: every rank folds its shard from all inputs, in the order of ranks, into
    /// all outputs. All ranks launch grids of the same size.
    TwoShot {
        /// As [`Program::abort`].
        abort: u64,
        /// As [`Program::done`].
        done: u64,
        /// As [`Program::left`].
        left: u64,
        /// As [`Program::sequence`].
        sequence: u64,
        /// Length of each input and output.
        bytes: u64,
        /// Ranks, at most [`MAX_RANKS`].
        ranks: u32,
        /// This one.
        rank: u32,
        /// Bit r: rank r's contribution is multiplied by this launch's factor, which is therefore the same on all
        /// ranks.
        raw: u32,
        /// 1: the result is divided by [`Factors::divisor`].
        finish: u32,
        /// The input of each rank, as mapped here.
        inputs: [u64; MAX_RANKS],
        /// The output of each rank, as mapped here; may be its input.
        outputs: [u64; MAX_RANKS],
        /// Peer r's counters for this rank: one 64-bit word for each block.
        counters: [u64; MAX_RANKS],
        /// This rank's counters raised by peer r.
        own: [u64; MAX_RANKS],
        /// From a block's counter to the next one's.
        counter_stride: u64,
        /// The value of all counters before the call. The call raises each by [`TWO_SHOT_RISE`].
        base: u64,
        /// The call's factors.
        factors: Factors,
    }
}

/// The amount that a two-shot all-reduce adds to every counter.
pub const TWO_SHOT_RISE: u64 = 2;

impl Factors {
    /// Nothing is scaled or divided.
    pub const ONE: Factors = Factors { double_: 1.0, whole: 1, single: 1.0, divisor: 1 };

    /// The factors of a reducer. A kernel gets `raw` and `finish` only where [`Reducer::scales`] and
    /// [`Reducer::divides`] return `true`.
    pub fn of(reducer: &Reducer) -> Self {
        let factors = reducer.factors();
        Self {
            double_: factors.double,
            whole: factors.whole,
            single: factors.single,
            divisor: factors.divisor,
        }
    }
}

/// The part of `0..bytes` that instance `instance` of `instances` handles, as kernels compute it: parts begin at
/// multiples of [`GRAIN`], and late ones may be short or empty.
pub const fn part(bytes: u64, instance: u64, instances: u64) -> std::ops::Range<u64> {
    let unit = bytes.div_ceil(instances).next_multiple_of(GRAIN);
    let (start, end) = (instance * unit, (instance + 1) * unit);
    (if start < bytes { start } else { bytes })..(if end < bytes { end } else { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;
    use std::process::Command;

    pub(super) trait Layout {
        const NAME: &'static str;
        const FIELDS: &'static [(&'static str, usize)];
    }

    /// The line that the C++ program prints for each field of `T`, and the code that prints it.
    fn describe<T: Layout>(expected: &mut String, program: &mut String) {
        let name = T::NAME;
        writeln!(expected, "{name} {}", size_of::<T>()).unwrap();
        writeln!(program, "std::printf(\"{name} %zu\\n\", sizeof({name}));").unwrap();
        for (field, offset) in T::FIELDS {
            writeln!(expected, "{name}.{field} {offset}").unwrap();
            writeln!(program, "std::printf(\"{name}.{field} %zu\\n\", offsetof({name}, {field}));").unwrap();
        }
    }

    #[test]
    fn layout_is_that_of_the_header() {
        if Command::new("g++").arg("--version").output().is_err() {
            eprintln!("SKIPPED: there is no g++");
            return;
        }
        let (mut expected, mut body) = (String::new(), String::new());
        macro_rules! describe_all {
            ($($name:ident),*) => { $(describe::<$name>(&mut expected, &mut body);)* };
        }
        describe_all!(
            Step, Operand, Lane, Region, Counter, Chunk, Factors, Status, Program, Launch, Job, Folds,
            OneShot, TwoShot
        );
        let constants = [
            ("grain", GRAIN),
            ("max_places", MAX_PLACES as u64),
            ("max_ranks", MAX_RANKS as u64),
            ("max_programs", MAX_PROGRAMS as u64),
            ("max_inline_jobs", MAX_INLINE_JOBS as u64),
            ("action_fold", ACTION_FOLD.into()),
            ("action_signal", ACTION_SIGNAL.into()),
            ("action_wait", ACTION_WAIT.into()),
            ("step_finish", STEP_FINISH.into()),
            ("position_input", POSITION_INPUT.into()),
            ("position_output", POSITION_OUTPUT.into()),
            ("position_slot", POSITION_SLOT.into()),
            ("position_scratch", POSITION_SCRATCH.into()),
            ("status_waiting", STATUS_WAITING.into()),
        ];
        for (name, value) in constants {
            writeln!(expected, "{name} {value}").unwrap();
            writeln!(body, "std::printf(\"{name} %llu\\n\", u64({name}));").unwrap();
        }
        let place = std::env::temp_dir().join(format!("consort-layout-{}", std::process::id()));
        let source = place.with_extension("cc");
        let text = format!(
            "#include <cstddef>\n#include <cstdio>\n#include \"plan.h\"\nusing namespace consort;\n\
             int main() {{\n{body}}}\n"
        );
        std::fs::write(&source, text).unwrap();
        let mut compiler = Command::new("g++");
        compiler.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I"]);
        compiler.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/cuda")).arg("-o").arg(&place).arg(&source);
        let compiled = compiler.output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let printed = Command::new(&place).output().unwrap();
        for file in [&source, &place] {
            std::fs::remove_file(file).unwrap();
        }
        assert_eq!(String::from_utf8_lossy(&printed.stdout), expected);
    }

    #[test]
    fn parts_cover_the_range_once() {
        for bytes in [0, 1, 127, 128, 129, 1000, 4096, 100_000] {
            for instances in 1..20 {
                let parts: Vec<_> = (0..instances).map(|instance| part(bytes, instance, instances)).collect();
                assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, bytes));
                assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert!(parts.iter().all(|part| part.is_empty() || part.start.is_multiple_of(GRAIN)));
            }
        }
    }
}
