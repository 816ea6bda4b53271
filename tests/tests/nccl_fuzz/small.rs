//! The calls that move nothing and make no communicator.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use consort_tests::c_calls::Comm;
use nccl::extensions as ours;

use crate::calls::{Arguments, Function, MAGIC};
use crate::world::{MappedFile, World};

/// Writes a text of the library into a buffer of any size.
fn text(
    ask: unsafe extern "C" fn(*mut c_void, c_int, *mut c_char, usize, *mut usize) -> c_int,
    comm: Comm,
    arguments: &mut Arguments<'_>,
) -> c_int {
    let (mut room, mut needed) = ([0 as c_char; 600], 0);
    let (format, capacity) = (arguments.int(), usize::from(arguments.byte()) * 2);
    let place = if arguments.byte() & 3 == 3 { null_mut() } else { room.as_mut_ptr() };
    // SAFETY: there is room for twice the largest byte.
    unsafe { ask(comm, format, place, capacity, &mut needed) }
}

/// Seconds that end soon, or none that are any.
fn seconds(arguments: &mut Arguments<'_>) -> f64 {
    const SECONDS: [f64; 8] = [0.02, 0.001, 0.2, -2.0, 1e-12, 0.0, f64::NAN, -3.0];
    SECONDS[usize::from(arguments.byte()) % SECONDS.len()]
}

/// The calls that move nothing and make no communicator.
pub(crate) fn small(world: &mut World, function: Function, arguments: &mut Arguments<'_>) -> c_int {
    let comm = arguments.handle(&world.comms);
    let mut int = 0;
    let place = if arguments.byte() & 31 == 31 { null_mut() } else { std::ptr::from_mut(&mut int) };
    let mut handle = null_mut();
    let mut room = [0; 40];
    // SAFETY: any handle and any number may be passed; places are writable, structures are of the size that they say or
    // smaller than what there is.
    unsafe {
        match function {
            Function::Finalize => nccl::ncclCommFinalize(comm),
            Function::Destroy => nccl::ncclCommDestroy(comm),
            Function::Abort => nccl::ncclCommAbort(comm),
            Function::AsyncError => nccl::ncclCommGetAsyncError(comm, place),
            Function::Count => nccl::ncclCommCount(comm, place),
            Function::Rank => nccl::ncclCommUserRank(comm, place),
            Function::Device => nccl::ncclCommCuDevice(comm, place),
            Function::Suspend => nccl::ncclCommSuspend(comm, arguments.int()),
            Function::Resume => nccl::ncclCommResume(comm),
            Function::MemStats => nccl::ncclCommMemStats(comm, arguments.int(), &mut 0),
            Function::GroupStart => nccl::ncclGroupStart(),
            Function::GroupEnd => nccl::ncclGroupEnd(),
            Function::SimulateEnd => {
                let structure = arguments.structure(&mut room, 32, 0x7468_5283, &[]);
                nccl::ncclGroupSimulateEnd(structure.cast_mut().cast())
            }
            Function::MemAlloc => {
                let bytes = match arguments.byte() {
                    small @ 0..=0xbf => usize::from(small) << 8,
                    0xc0..=0xdf => usize::MAX,
                    _ => 1 << 60,
                };
                let result = nccl::ncclMemAlloc(&mut handle, bytes);
                world.given.push(handle);
                result
            }
            Function::MemFree => nccl::ncclMemFree(arguments.handle(&world.given)),
            Function::Register => {
                let bytes = if arguments.byte() & 7 == 7 { usize::MAX } else { 100 };
                let buffer = arguments.handle(&world.given);
                let result = nccl::ncclCommRegister(comm, buffer, bytes, &mut handle);
                world.registered.push(handle);
                result
            }
            Function::Deregister => nccl::ncclCommDeregister(comm, arguments.handle(&world.registered)),
            Function::Window => {
                let result = nccl::ncclCommWindowRegister(comm, null_mut(), 1, &mut handle, arguments.int());
                let window = arguments.handle(&world.registered);
                result.max(nccl::ncclCommWindowDeregister(comm, window))
            }
            Function::OpCreate => {
                let (element, residence) = (arguments.int(), arguments.int());
                let scalar = if arguments.byte() & 15 == 15 { null_mut() } else { world.region() };
                let result = nccl::ncclRedOpCreatePreMulSum(place, scalar, element, residence, comm);
                world.operators.push(int);
                result
            }
            Function::OpDestroy => {
                let at = usize::from(arguments.byte());
                let operator = match world.operators.is_empty() || at & 0x80 != 0 {
                    true => arguments.int(),
                    false => world.operators[at % world.operators.len()],
                };
                nccl::ncclRedOpDestroy(operator, comm)
            }
            Function::MemRegister => register(world, arguments),
            Function::MemDeregister => nccl::consortMemDeregister(arguments.handle(&world.memories)),
            Function::StreamCreate => {
                let result = ours_stream(world.streams.len(), &mut handle);
                world.streams.extend((!handle.is_null()).then_some(handle));
                result
            }
            Function::StreamDestroy => nccl::consortStreamDestroy(arguments.handle(&world.streams)),
            Function::StreamWait => nccl::consortStreamSynchronize(arguments.handle(&world.streams)),
            Function::StreamQuery => nccl::consortStreamQuery(arguments.handle(&world.streams)),
            _ => settings_and_texts(function, comm, arguments, world),
        }
    }
}

/// Pages of the file that is mapped for as long as the process lives, or an invalid range.
fn register(world: &mut World, arguments: &mut Arguments<'_>) -> c_int {
    const PAGE: usize = 4096;
    let file = MappedFile::get();
    let (first, pages) = (usize::from(arguments.byte()), usize::from(arguments.byte()));
    let (base, mut offset, mut fd) = (file.start.wrapping_add(first % 9 * PAGE), first % 9 * PAGE, file.fd());
    let mut bytes = pages % 9 * PAGE;
    match arguments.byte() {
        0x80..=0x8f => fd = arguments.int(),
        0x90..=0x9f => offset = usize::from(arguments.byte()),
        0xa0..=0xaf => bytes = usize::MAX - 4095,
        0xb0..=0xbf => offset = usize::MAX - 4095,
        0xc0..=0xcf => bytes += usize::from(arguments.byte()),
        _ => {}
    }
    let base = if arguments.byte() & 31 == 31 { 0 } else { base + usize::from(arguments.byte() & 1) };
    let mut handle = null_mut();
    let place = if arguments.byte() & 31 == 31 { null_mut() } else { &raw mut handle };
    let base = std::ptr::with_exposed_provenance_mut(base);
    // SAFETY: pages of the file stay mapped, and other ranges are refused.
    let result = unsafe { nccl::consortMemRegisterFd(base, bytes, fd, offset as u64, place) };
    world.memories.extend((!handle.is_null()).then_some(handle));
    result
}

/// Makes a stream; the place is null once there are many.
fn ours_stream(streams: usize, place: &mut *mut c_void) -> c_int {
    let place = if streams < 8 { std::ptr::from_mut(place) } else { null_mut() };
    // SAFETY: null or writable.
    unsafe { nccl::consortStreamCreate(place) }
}

/// Settings, questions and refused calls.
///
/// # Safety
/// None is needed.
unsafe fn settings_and_texts(
    function: Function,
    comm: Comm,
    arguments: &mut Arguments<'_>,
    world: &mut World,
) -> c_int {
    let mut room = [0; 40];
    let (mut handle, mut names, mut word, mut number) = (null_mut(), null_mut(), null(), 0);
    let keys: [*const c_char; 4] =
        [c"NCCL_ALGO".as_ptr(), c"CONSORT_TIMEOUT".as_ptr(), c"\xff".as_ptr(), null()];
    let key = keys[usize::from(arguments.byte() & 3)];
    // SAFETY: as in `small`; strings end with a zero.
    unsafe {
        match function {
            Function::Report => text(ours::consortCommReport, comm, arguments),
            Function::LastReport => text(ours::consortCommLastReport, comm, arguments),
            Function::FlightRecord => text(ours::consortCommFlightRecord, comm, arguments),
            Function::Stragglers => text(ours::consortCommStragglers, comm, arguments),
            Function::Status => {
                let mut buffer = [0 as c_char; 64];
                let room = usize::from(arguments.byte() & 63);
                ours::consortCommStatus(comm, buffer.as_mut_ptr(), room, null_mut())
            }
            Function::CommTimeout => {
                let result = ours::consortCommSetTimeout(comm, seconds(arguments));
                result.max(ours::consortCommGetTimeout(comm, &mut 0.0))
            }
            Function::ThreadTimeout => ours::consortThreadSetTimeout(seconds(arguments), null_mut()),
            Function::OurAbort => ours::consortCommAbort(comm, key),
            Function::OurRevoke => ours::consortCommRevoke(comm, key),
            Function::ParamBind => {
                let result = nccl::ncclParamBind(&mut handle, key);
                world.parameters.push(handle);
                result
            }
            Function::ParamGet => {
                let (parameter, mut bytes) = (arguments.handle(&world.parameters), [0u8; 512]);
                let asked = nccl::ncclParamGet(
                    parameter,
                    bytes.as_mut_ptr().cast(),
                    c_int::from(arguments.byte()),
                    &mut number,
                );
                let asked = asked.max(nccl::ncclParamGetStr(parameter, &mut word));
                asked
                    .max(nccl::ncclParamGetU8(parameter, &mut 0))
                    .max(nccl::ncclParamGetI64(parameter, &mut 0))
            }
            Function::ParamNames => {
                let names = nccl::ncclParamGetAllParameterKeys(&mut names, &mut number);
                names.max(nccl::ncclParamGetParameter(key, &mut word, &mut number))
            }
            Function::Properties => {
                let structure = arguments.structure(&mut room, 64, MAGIC, &[]);
                nccl::ncclCommQueryProperties(comm, structure.cast_mut())
            }
            Function::Teams => {
                let team = [nccl::ncclTeamWorld(comm), nccl::ncclTeamLsa(comm), nccl::ncclTeamRail(comm)];
                let [all, local, rail] = team;
                nccl::ncclTeamRankToWorld(comm, rail, arguments.int());
                nccl::ncclTeamRankToLsa(comm, local, arguments.int());
                nccl::ncclTeamRankToWorld(comm, all, arguments.int());
                nccl::ncclLLA2ACalcSlots(arguments.int(), arguments.int());
                0
            }
            Function::Texts => {
                // This text is valid until the next question only.
                assert!(std::ffi::CStr::from_ptr(nccl::ncclGetLastError(comm)).to_str().is_ok());
                let texts = [
                    nccl::ncclGetErrorString(arguments.int()),
                    nccl::consortGetLastError(comm),
                    nccl::consortGetLastError(null_mut()),
                    nccl::ncclGetLastError(null_mut()),
                ];
                // Each text is still valid after the others were returned.
                texts.iter().for_each(|text| assert!(std::ffi::CStr::from_ptr(*text).to_str().is_ok()));
                0
            }
            Function::Encryption => {
                let structure = arguments.structure(&mut room, 32, MAGIC, &[3]);
                nccl::ncclSetEncryption(structure.cast())
            }
            Function::Version => nccl::ncclGetVersion(&mut number),
            Function::LogAgain => {
                nccl::ncclResetDebugInit();
                0
            }
            _ => nccl::ncclDevCommCreate(comm, null_mut(), null_mut()).max(nccl::ncclPutSignal(
                null(),
                0,
                0,
                0,
                null_mut(),
                0,
                0,
                0,
                0,
                comm,
                null_mut(),
            )),
        }
    }
}
