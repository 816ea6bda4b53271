//! One call of a program: its arguments are read from bytes.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use consort_tests::c_calls::Comm;

use crate::small::small;
use crate::world::{REGION, World};

macro_rules! functions {
    ($($name:ident),* $(,)?) => {
        /// The functions, and some of them together.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Function { $($name),* }

        impl Function {
            const ALL: &[Function] = &[$(Function::$name),*];
        }
    };
}

functions!(
    InitAll,
    UniqueId,
    InitRank,
    InitRankConfig,
    InitScalable,
    Split,
    Shrink,
    GrowthId,
    Grow,
    Revoke,
    Finalize,
    Destroy,
    Abort,
    AsyncError,
    Count,
    Rank,
    Device,
    Suspend,
    Resume,
    MemStats,
    GroupStart,
    GroupEnd,
    SimulateEnd,
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    Bcast,
    Send,
    Recv,
    MemAlloc,
    MemFree,
    Register,
    Deregister,
    Window,
    OpCreate,
    OpDestroy,
    StreamCreate,
    StreamDestroy,
    StreamWait,
    StreamQuery,
    Report,
    LastReport,
    FlightRecord,
    Stragglers,
    Status,
    CommTimeout,
    ThreadTimeout,
    OurAbort,
    OurRevoke,
    ParamBind,
    ParamGet,
    ParamNames,
    Properties,
    Teams,
    Texts,
    Encryption,
    Version,
    Refused,
    LogAgain,
    Both,
    MemRegister,
    MemDeregister,
);

impl Function {
    pub(crate) fn of(number: u8) -> Self {
        Self::ALL[usize::from(number) % Self::ALL.len()]
    }
}

/// Numbers that wrong callers pass.
const WILD: [i32; 12] = [-1, -2, i32::MIN, i32::MAX, 99, 255, 4096, 4097, 65_536, 1 << 30, 0x5c001, 7];

/// The word after the size in structures, and the version of the header.
pub(crate) const MAGIC: u64 = 0xcafe_beef;
const VERSION: u64 = 23_203;

/// Reads arguments; zeros when there are no more.
pub(crate) struct Arguments<'a>(&'a [u8]);

impl Arguments<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Small, one of [`WILD`], or any.
    pub(crate) fn int(&mut self) -> c_int {
        match self.byte() {
            small @ 0..=0xbf => c_int::from(small & 0x0f),
            wild @ 0xc0..=0xef => WILD[usize::from(wild) % WILD.len()],
            _ => c_int::from_ne_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// One of these, freed ones too; null or foreign now and then.
    pub(crate) fn handle(&mut self, known: &[*mut c_void]) -> *mut c_void {
        match self.byte() {
            0xff => null_mut(),
            0xfe => {
                std::ptr::without_provenance_mut(usize::from(self.byte()) << 44 | usize::from(self.byte()))
            }
            at if known.is_empty() => {
                std::ptr::without_provenance_mut(usize::from(at & 1) * 0x5_c001_0000_0000)
            }
            // The index within the table of handles, or the generation, may be off by some.
            0xfd => known[0].map_addr(|bits| bits.wrapping_add(usize::from(self.byte()) << 12)),
            0xfc => known[0].map_addr(|bits| bits ^ usize::from(self.byte())),
            at => known[usize::from(at) % known.len()],
        }
    }

    /// A structure that begins with its size, for a caller's config: nothing, one that is set up, with an int changed,
    /// or these bytes. Where addresses stand, there is null or one of a string.
    pub(crate) fn structure(
        &mut self,
        room: &mut [u64; 40],
        size: u64,
        magic: u64,
        addresses: &[usize],
    ) -> *const c_void {
        let kind = self.byte();
        if kind & 7 == 0 {
            return null();
        }
        room.fill(0x8000_0000_8000_0000);
        room[0] = size;
        room[1] = magic | VERSION << 32;
        addresses.iter().for_each(|at| room[*at] = 0);
        match kind & 7 {
            1 => {}
            // The third word begins with `blocking`.
            2 => room[2] &= !0xffff_ffff,
            7 => room
                .iter_mut()
                .for_each(|word| *word = u64::from_ne_bytes(std::array::from_fn(|_| self.byte()))),
            _ => {
                let (at, value) = (usize::from(self.byte()) % 40, self.int() as u32);
                let shift = u32::from(self.byte() & 1) * 32;
                room[at] = room[at] & !(0xffff_ffff << shift) | u64::from(value) << shift;
            }
        }
        for at in addresses {
            let strings: [*const c_char; 3] = [null(), c"ring".as_ptr(), c"Socket".as_ptr()];
            room[*at] = strings[usize::from(kind >> 4) % 3].expose_provenance() as u64;
        }
        std::ptr::from_ref(room).cast()
    }

    /// An `ncclConfig_t`.
    fn config(&mut self, room: &mut [u64; 40]) -> *const c_void {
        self.structure(room, 120, MAGIC, &[4, 6])
    }

    /// An `ncclCollConfig_t`; its list of options is empty.
    fn call_config(&mut self, room: &mut [u64; 40]) -> *const c_void {
        let config = self.structure(room, 72, MAGIC, &[2, 5]);
        room[2] = 0;
        config
    }
}

/// Bytes of an element, as the header has it; 8 where there is no such type.
fn element_bytes(element: c_int) -> usize {
    match element {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        _ => 8,
    }
}

/// The arguments of a data call.
struct Data {
    input: *mut c_void,
    output: *mut c_void,
    count: usize,
    element: c_int,
    op: c_int,
    root: c_int,
    comm: Comm,
    stream: *mut c_void,
}

/// Buffers are long enough for the count on eight ranks, null, or, where the count cannot be one, anywhere.
fn data(world: &mut World, arguments: &mut Arguments<'_>) -> Data {
    let (shape, element) = (arguments.byte(), arguments.int());
    let count = match arguments.byte() {
        small @ 0..=0x9f => usize::from(small),
        0xa0..=0xcf => 1 << 61,
        0xd0..=0xef => usize::MAX,
        _ => (1 << 61) + 1,
    };
    let is_possible =
        count.checked_mul(element_bytes(element)).is_some_and(|bytes| bytes <= isize::MAX as usize);
    let is_within = count < REGION / 64;
    let mut buffer = |is_null: bool| match (is_null, is_within, is_possible) {
        (true, ..) | (_, false, true) => null_mut(),
        (_, true, _) => world.region(),
        (_, false, false) => std::ptr::without_provenance_mut(0x1000),
    };
    let (mut input, output) = (buffer(shape & 7 == 7), buffer(shape & 0x38 == 0x38));
    if shape & 0x40 != 0 {
        input = output;
    }
    let op = match arguments.byte() {
        at if at & 0x80 != 0 && !world.operators.is_empty() => {
            world.operators[usize::from(at & 0x7f) % world.operators.len()]
        }
        _ => arguments.int(),
    };
    let (root, comm) = (arguments.int(), arguments.handle(&world.comms));
    let stream = if shape & 0x80 != 0 { arguments.handle(&world.streams) } else { null_mut() };
    Data { input, output, count, element, op, root, comm, stream }
}

/// A collective, plain or with a config.
macro_rules! collective {
    ($plain:ident, $with:ident, $world:ident, $arguments:ident, |$data:ident| ($($argument:expr),*)) => {{
        let $data = data($world, &mut $arguments);
        let mut room = [0; 40];
        let config = $arguments.call_config(&mut room);
        // SAFETY: `data` keeps the contract of buffers, and the config is one of the size that it says, or smaller.
        unsafe {
            match config.is_null() {
                true => nccl::$plain($($argument,)* $data.comm, $data.stream),
                false => nccl::$with($($argument,)* $data.comm, $data.stream, config),
            }
        }
    }};
}

/// Makes the call; its result, or success where it has none.
pub(crate) fn call(world: &mut World, function: Function, arguments: &[u8]) -> c_int {
    let mut arguments = Arguments(arguments);
    let result = match function {
        Function::InitAll => init_all(world, &mut arguments),
        Function::UniqueId | Function::GrowthId => {
            let mut id = std::mem::MaybeUninit::uninit();
            let comm = arguments.handle(&world.comms);
            // SAFETY: the place is writable.
            let result = unsafe {
                match function {
                    Function::UniqueId => nccl::ncclGetUniqueId(id.as_mut_ptr()),
                    _ => nccl::ncclCommGetUniqueId(comm, id.as_mut_ptr()),
                }
            };
            if result == 0 {
                // SAFETY: the call succeeded.
                world.ids.push(unsafe { id.assume_init() });
            }
            result
        }
        Function::InitRank
        | Function::InitRankConfig
        | Function::InitScalable
        | Function::Split
        | Function::Shrink
        | Function::Grow => make(world, function, &mut arguments),
        Function::Revoke => {
            let comm = arguments.handle(&world.comms);
            // SAFETY: any handle.
            unsafe { nccl::ncclCommRevoke(comm, arguments.int()) }
        }
        Function::AllReduce => {
            collective!(ncclAllReduce, ncclAllReduceConfig, world, arguments, |it| (
                it.input, it.output, it.count, it.element, it.op
            ))
        }
        Function::Reduce => {
            collective!(ncclReduce, ncclReduceConfig, world, arguments, |it| (
                it.input, it.output, it.count, it.element, it.op, it.root
            ))
        }
        Function::Broadcast => {
            collective!(ncclBroadcast, ncclBroadcastConfig, world, arguments, |it| (
                it.input, it.output, it.count, it.element, it.root
            ))
        }
        Function::AllGather => {
            collective!(ncclAllGather, ncclAllGatherConfig, world, arguments, |it| (
                it.input, it.output, it.count, it.element
            ))
        }
        Function::ReduceScatter => {
            collective!(ncclReduceScatter, ncclReduceScatterConfig, world, arguments, |it| (
                it.input, it.output, it.count, it.element, it.op
            ))
        }
        Function::AllToAll => {
            collective!(ncclAlltoAll, ncclAlltoAllConfig, world, arguments, |it| (
                it.input, it.output, it.count, it.element
            ))
        }
        Function::Gather => {
            collective!(ncclGather, ncclGatherConfig, world, arguments, |it| (
                it.input, it.output, it.count, it.element, it.root
            ))
        }
        Function::Scatter => {
            collective!(ncclScatter, ncclScatterConfig, world, arguments, |it| (
                it.input, it.output, it.count, it.element, it.root
            ))
        }
        Function::Bcast | Function::Send | Function::Recv => {
            let it = data(world, &mut arguments);
            // SAFETY: `data` keeps the contract of buffers.
            unsafe {
                match function {
                    Function::Bcast => {
                        nccl::ncclBcast(it.output, it.count, it.element, it.root, it.comm, it.stream)
                    }
                    Function::Send => {
                        nccl::ncclSend(it.input, it.count, it.element, it.root, it.comm, it.stream)
                    }
                    _ => nccl::ncclRecv(it.output, it.count, it.element, it.root, it.comm, it.stream),
                }
            }
        }
        Function::Both => both(world, &mut arguments),
        _ => small(world, function, &mut arguments),
    };
    world.harvest();
    result
}

/// At most eight ranks: as many handles as there is room for.
fn init_all(world: &mut World, arguments: &mut Arguments<'_>) -> c_int {
    let (number, kind) = (arguments.int(), arguments.byte());
    let (mut comms, devices) = ([null_mut(); 8], [3, 1, 4, 1, 5, 9, 2, 6]);
    // One program in four would have more communicators than there is room for.
    let number = if number > 8 { 1 + number % 3 } else { number };
    let place = if kind & 15 == 15 { null_mut() } else { comms.as_mut_ptr() };
    let devices = if kind & 16 == 0 { null() } else { devices.as_ptr() };
    // SAFETY: room for eight handles, and as many devices.
    let result = unsafe { nccl::ncclCommInitAll(place, number, devices) };
    world.comms.extend(comms.into_iter().filter(|comm| !comm.is_null()));
    result
}

/// Calls that make a communicator out of an id or of another.
fn make(world: &mut World, function: Function, arguments: &mut Arguments<'_>) -> c_int {
    let mut room = [0; 40];
    let config = arguments.config(&mut room);
    let parent = match function {
        Function::Split | Function::Shrink | Function::Grow => arguments.handle(&world.comms),
        _ => null_mut(),
    };
    let is_null = arguments.byte() & 31 == 31;
    let place = if is_null { null_mut() } else { world.place(parent) };
    let (size, rank) = (arguments.int(), arguments.int());
    let at = usize::from(arguments.byte());
    let known = (!world.ids.is_empty()).then(|| world.ids[at % world.ids.len().max(1)]);
    let mut zeros = std::mem::MaybeUninit::zeroed();
    // SAFETY: an id is bytes, and zeros are bytes.
    let id = known.unwrap_or_else(|| unsafe { *zeros.assume_init_mut() });
    let ids = [id; 16];
    let (color, key) = (size, rank);
    let mut excluded: [c_int; 16] = std::array::from_fn(|at| if at == 0 { rank } else { at as c_int });
    // SAFETY: the place stays until all is ended, the config is one of the size that it says or smaller, ids and ranks are as
    // many as the number says.
    unsafe {
        match function {
            Function::InitRank => nccl::ncclCommInitRank(place, size, id, rank),
            Function::InitRankConfig => nccl::ncclCommInitRankConfig(place, size, id, rank, config),
            Function::InitScalable => {
                let number = arguments.int().min(16);
                nccl::ncclCommInitRankScalable(place, size, rank, number, ids.as_ptr(), config)
            }
            Function::Split => nccl::ncclCommSplit(parent, color, key, place, config),
            Function::Shrink => {
                let number = size.min(16);
                nccl::ncclCommShrink(
                    parent,
                    excluded.as_mut_ptr(),
                    number,
                    place,
                    config,
                    arguments.int() & 3,
                )
            }
            _ => {
                let id = if at & 128 == 0 { null() } else { std::ptr::from_ref(&id) };
                nccl::ncclCommGrow(parent, size, id, rank, place, config)
            }
        }
    }
}

/// The same all-reduce on the first and the last communicator, in a group.
fn both(world: &mut World, arguments: &mut Arguments<'_>) -> c_int {
    let (&[first, ..], &[.., last]) = (&world.comms[..], &world.comms[..]) else { return 0 };
    // SAFETY: nothing is asked.
    unsafe { nccl::ncclGroupStart() };
    for comm in [first, last] {
        // The same numbers, other memory.
        let it = data(world, &mut Arguments(arguments.0));
        // SAFETY: `data` keeps the contract of buffers.
        unsafe { nccl::ncclAllReduce(it.input, it.output, it.count, it.element, it.op, comm, it.stream) };
    }
    // SAFETY: the buffers stay.
    unsafe { nccl::ncclGroupEnd() }
}
