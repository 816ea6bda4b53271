//! Ranks whose buffers are on devices: what `--device cuda` measures.
//!
//! Invariant: calls are made on memory of the device, between guards there. What the rest of the program fills and checks
//! is copied there before the calls and back after them, beside any clock; a clock stops when the rank's stream is
//! empty. Absent: which calls they are (`order`), who makes them (`team`).

mod order;
mod room;
mod team;

use std::cell::Cell;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use consort::Error;
use consort::device::{Device, Path, Stream};

use crate::arguments::{Devices, Settings};
use crate::backend::{self, Member};
use crate::collective::Work;
use crate::failure::{Exit, Failure};
use crate::group::{Buffers, Facts, Group, Repeat, gather_numbers};

use order::Order;
use room::Room;
use team::Seat;
pub(crate) use team::{Team, teams};

/// The variable that names the path.
const PATH: &str = "CONSORT_DEVICE_PATH";

/// The begin of the names of a stand-in's devices.
const STAND_IN: &str = "stand-in";

/// Whether this is what a stand-in for a driver calls its devices.
pub(crate) fn is_stand_in(name: &str) -> bool {
    name.starts_with(STAND_IN)
}

/// The failure for what the library refuses: the arguments asked for it.
fn refused(error: Error) -> Failure {
    let mut failure = backend::failure(error.clone());
    if matches!(error, Error::InvalidArgument { .. } | Error::Settings { .. } | Error::System { .. }) {
        failure.exit = Exit::Usage;
    }
    failure
}

/// Executes the program again, in the same process, with the asked path in the environment, where the library reads it.
/// Does nothing if the path is there.
///
/// # Errors
/// Why it cannot.
pub(crate) fn take_path(devices: &Devices, arguments: &[OsString]) -> Result<(), Failure> {
    let Some(path) = &devices.path else { return Ok(()) };
    if std::env::var_os(PATH).is_some_and(|now| now == path.as_str()) {
        return Ok(());
    }
    let program = std::env::current_exe()
        .map_err(|error| Failure::internal(format!("this program does not find itself: {error}")))?;
    let error = Command::new(program).args(&arguments[1..]).env(PATH, path).exec();
    Err(Failure::internal(format!("cannot begin anew with {PATH}={path}: {error}")))
}

/// The devices that ranks take in turn.
///
/// # Errors
/// There is no driver, or not such a device. Contexts are not made: the process that starts the ranks needs none.
pub(crate) fn gpus(devices: &Devices) -> Result<Vec<u32>, Failure> {
    let count = Device::count().map_err(refused)?;
    let Some(gpus) = &devices.gpus else { return Ok((0..count).collect()) };
    match gpus.iter().find(|gpu| **gpu >= count) {
        None => Ok(gpus.clone()),
        Some(gpu) => Err(Failure::usage(format!(
            "--gpus {gpu}: there is no such device; the driver has {count}, from 0 (see also CUDA_VISIBLE_DEVICES)"
        ))),
    }
}

/// A rank on a device.
pub(crate) struct Seated {
    member: Member,
    team: Arc<Team>,
    /// Which of the team's seats is its own.
    seat: usize,
    send: Room,
    receive: Room,
    facts: Facts,
    path: Path,
    strays: Cell<u64>,
}

impl Seated {
    /// Puts a rank, the `local`th of its host, on its device. All ranks do it together.
    ///
    /// # Errors
    /// There is no such device or not so much memory on it, on whichever rank; the asked path is none for these ranks.
    pub(crate) fn new(
        settings: &Settings,
        devices: &Devices,
        member: Member,
        local: u32,
        team: Arc<Team>,
    ) -> Result<Self, Failure> {
        let gpus = gpus(devices)?;
        let ordinal = gpus[local as usize % gpus.len()];
        let (send, receive) = settings.buffer_bytes(member.size());
        let had = open(ordinal, [send, receive], settings.unalign);
        // A rank that failed says so before it goes, so no other rank waits for it in the next step.
        let all = gather_numbers(&member, &[f64::from(u8::from(had.is_err()))])?;
        let (device, stream, [send, receive]) = had?;
        if let Some(rank) = all.iter().position(|failed| failed[0] != 0.0) {
            return Err(Failure::usage(format!("rank {rank} could not have its device")));
        }
        let comm = member.communicator().on_device(&device).map_err(refused)?;
        let path = comm.path();
        let (major, minor) = Device::driver_version().map_err(refused)?;
        let facts = Facts {
            ordinal,
            bus: device.pci().to_owned(),
            name: device.name().to_owned(),
            path: path.name(),
            driver: format!("{major}.{minor}"),
        };
        let seat = team.take(Seat { comm, stream });
        Ok(Seated { member, team, seat, send, receive, facts, path, strays: Cell::new(0) })
    }

    /// Has the team call the order `times` times.
    fn call(&self, order: &Order, times: u64) -> Result<(), Failure> {
        self.team.repeat(self.seat, order, times).map_err(|ended| match ended {
            team::Ended::Refused(error) => self.member.failure(error),
            team::Ended::Gone => Failure::new(Exit::Library, "another rank of this thread has ended"),
        })
    }
}

/// The device, a stream, and two buffers of `bytes` bytes.
fn open(ordinal: u32, bytes: [u64; 2], unalign: usize) -> Result<(Device, Stream, [Room; 2]), Failure> {
    let device = Device::open(ordinal).map_err(refused)?;
    let stream = device.stream().map_err(refused)?;
    let [send, receive] = bytes.map(|bytes| Room::new(&device, bytes as usize, unalign));
    Ok((device, stream, [send?, receive?]))
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.team.leave();
    }
}

impl Group for Seated {
    fn rank(&self) -> u32 {
        self.member.rank()
    }

    fn size(&self) -> u32 {
        self.member.size()
    }

    fn ready(
        &self,
        work: &Work,
        buffers: Buffers<'_>,
        body: &mut dyn FnMut(&mut Repeat<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (rank, size) = (self.rank(), self.size());
        let strays = match buffers {
            Buffers::Apart { input, output } => {
                self.send.put(input)?;
                self.receive.put(output)?;
                let (from, to) = (self.send.part(0..input.len()), self.receive.part(0..output.len()));
                let order = Order::new(work, rank, size, from, to);
                body(&mut |times| self.call(&order, times))?;
                self.send.changed(input)? + self.receive.get(output)?
            }
            Buffers::Together { memory, input, output } => {
                let room = if self.receive.holds(memory.len()) { &self.receive } else { &self.send };
                room.put(memory)?;
                let order = Order::new(work, rank, size, room.part(input), room.part(output));
                body(&mut |times| self.call(&order, times))?;
                room.get(memory)?
            }
        };
        self.strays.set(strays);
        Ok(())
    }

    fn barrier(&self) -> Result<(), Failure> {
        self.member.barrier()
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<u8>, Failure> {
        self.member.gather(mine)
    }

    fn algorithm(&self, work: &Work) -> Option<String> {
        // The host's links do what they do for memory of the host.
        let by = self.member.algorithm(work).filter(|_| self.path == Path::Host);
        Some(by.map_or(self.path.to_string(), |by| format!("{}, {by}", self.path)))
    }

    fn memory_bytes(&self) -> Result<usize, Failure> {
        self.member.memory_bytes()
    }

    fn device(&self) -> Option<Facts> {
        Some(self.facts.clone())
    }

    fn strays(&self) -> u64 {
        self.strays.get()
    }
}
