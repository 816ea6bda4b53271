//! Environments and doors that say anything.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use consort_transports::fuzzing::{Input, Seen, Target, fuzz};

use super::detect::detect;
use super::rendezvous::rendezvous;
use crate::bootstrap::UniqueId;
use crate::bootstrap::door::{Directory, Door, fetch};
use crate::bootstrap::unique_id::bind_addresses;
use consort_settings::options::{Options, Settings};

/// Values are copied a few times, into errors too; an input has 32 KiB.
const TEXT: Target = Target {
    name: "environment",
    command: "-p consort-control --lib bootstrap::launch::fuzz::environments",
    bytes_max: 1 << 20,
    inputs: 30_000,
};

/// An id and a path.
const DOOR: Target = Target {
    name: "door",
    command: "-p consort-control --lib bootstrap::launch::fuzz::whatever",
    bytes_max: 64 << 10,
    inputs: 2_000,
};

const NAMES: [&str; 39] = [
    "CONSORT_RANK",
    "CONSORT_SIZE",
    "CONSORT_LOCAL_RANK",
    "CONSORT_LOCAL_SIZE",
    "CONSORT_JOB",
    "CONSORT_ADDRESS",
    "CONSORT_SECRET",
    "CONSORT_BIND",
    "CONSORT_TIMEOUT",
    "CONSORT_JOIN_TIMEOUT",
    "CONSORT_CONNECT_TIMEOUT",
    "CONSORT_REPORT_AFTER",
    "CONSORT_PATH_LOST_AFTER",
    "CONSORT_TRANSPORT",
    "CONSORT_CHANNELS",
    "CONSORT_BIDIRECTIONAL",
    "CONSORT_SLOT_BYTES",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "SLURM_PROCID",
    "SLURM_STEP_ID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_LOCALID",
    "SLURM_STEP_TASKS_PER_NODE",
];

/// Which variable is complained about; the rest of the text is the value, mostly.
fn complain(error: &consort_types::Error, seen: &mut Seen) {
    let text = error.to_string();
    seen.note((std::mem::discriminant(error), text.split(['=', ' ']).next().map(str::to_owned)));
}

/// Pieces are a variable and its value.
fn environment(input: &Input, seen: &mut Seen) {
    let lookup = |name: &str| -> Option<String> {
        let wanted = NAMES.iter().position(|other| *other == name)?;
        let of = |piece: &&Vec<u8>| piece.first().is_some_and(|at| usize::from(*at) % NAMES.len() == wanted);
        input.iter().find(of).map(|piece| String::from_utf8_lossy(&piece[1..]).into_owned())
    };
    match Settings::resolve_from(&Options::default(), &lookup) {
        Ok(settings) => {
            let times =
                [settings.timeout, settings.join_timeout, settings.connect_timeout, settings.report_after];
            assert!(
                times.iter().all(|time| !time.is_zero()) && !settings.path_lost_after.is_zero(),
                "a time of nothing was accepted: {settings:?}"
            );
            assert!(times.iter().all(|time| Instant::now().checked_add(*time).is_some()));
            seen.note((settings.transport, settings.channels, settings.bidirectional, settings.slot_bytes));
        }
        Err(error) => complain(&error, seen),
    }
    match bind_addresses(lookup("CONSORT_BIND").as_deref()) {
        Ok(addresses) => seen.note(("bind", addresses.len())),
        Err(error) => complain(&error, seen),
    }
    match detect(&lookup) {
        Ok(Some(launch)) => {
            assert!(launch.rank < launch.size);
            assert!(launch.local_size.is_none_or(|local| (1..=launch.size).contains(&local)));
            seen.note((launch.launcher, launch.local_rank.is_some(), launch.local_size.is_some()));
            let address = lookup("CONSORT_ADDRESS").unwrap_or_default();
            // Neither names are resolved here nor ports listened at.
            let literal = address.trim().parse::<SocketAddr>().is_ok();
            if launch.rank != 0 && literal && lookup("CONSORT_SECRET").is_some() {
                match rendezvous(&launch, &lookup, Some(&[]), Duration::ZERO) {
                    Ok(id) => {
                        let bytes = id.to_bytes();
                        assert_eq!(UniqueId::from_bytes(&bytes).expect("an id").to_bytes(), bytes);
                        seen.note("id");
                    }
                    Err(error) => complain(&error, seen),
                }
            }
        }
        Ok(None) => seen.note("no launch"),
        Err(error) => complain(&error, seen),
    }
}

#[test]
fn environments_are_understood_or_refused() {
    let originals: Vec<Input> = [
        "CONSORT_RANK=1 CONSORT_SIZE=4 CONSORT_LOCAL_RANK=1 CONSORT_LOCAL_SIZE=2 CONSORT_ADDRESS=10.0.0.1:5 \
         CONSORT_SECRET=0123456789abcdef0123456789abcdef",
        "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x MASTER_ADDR=h",
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
        "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2",
        "SLURM_PROCID=4 SLURM_STEP_ID=0 SLURM_NTASKS=5 SLURM_NNODES=2 SLURM_NODEID=1 SLURM_LOCALID=0 \
         SLURM_STEP_TASKS_PER_NODE=2(x2),1",
        "CONSORT_TIMEOUT=0.5 CONSORT_JOIN_TIMEOUT=1e9 CONSORT_CONNECT_TIMEOUT=1e-9 CONSORT_REPORT_AFTER=inf",
        "CONSORT_TIMEOUT=3153599999.9999999 CONSORT_JOIN_TIMEOUT=1e-20",
        "CONSORT_TRANSPORT=shm CONSORT_CHANNELS=16 CONSORT_BIDIRECTIONAL=1 CONSORT_SLOT_BYTES=16384",
        "CONSORT_BIND=127.0.0.1,::1 CONSORT_JOB=x",
    ]
    .iter()
    .map(|environment| {
        let variable = |text: &str| -> Option<Vec<u8>> {
            let (name, value) = text.split_once('=')?;
            let at = NAMES.iter().position(|other| *other == name)? as u8;
            Some([&[at], value.as_bytes()].concat())
        };
        environment.split_whitespace().filter_map(variable).collect()
    })
    .collect();
    fuzz(&TEXT, originals, environment);
}

/// A directory that only this test uses.
struct Place(std::path::PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn whatever_a_door_says_is_an_id_or_an_error_in_time() {
    let name: [u8; 8] = crate::proof::random().expect("randomness");
    let place = Place(std::env::temp_dir().join(format!("consort-fuzz-{:016x}", u64::from_le_bytes(name))));
    std::fs::DirBuilder::new().mode(0o700).create(&place.0).expect("a directory");
    let directory = Directory::open_in(std::slice::from_ref(&place.0)).expect("a directory");
    let meeting = place.0.join(format!("consort-{}", nix::unistd::geteuid()));
    let listener = UnixListener::bind(meeting.join("door")).expect("bind");
    let (say, said) = mpsc::channel::<Input>();
    let door = std::thread::spawn(move || {
        // A piece for each caller.
        for piece in said.iter().flatten() {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let _ = stream.write_all(&piece);
        }
    });
    let id =
        UniqueId::at(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 4), &[7; 32]).expect("an id").to_bytes();
    let originals = vec![
        vec![id.to_vec()],
        vec![id[..127].to_vec(), id.to_vec()],
        vec![vec![], vec![0; 300]],
        vec![id.repeat(2)],
    ];
    fuzz(&DOOR, originals, |input, seen| {
        // Short ones, after which it knocks again, then one that is long enough.
        let whole = input.iter().take(4).position(|piece| piece.len() >= UniqueId::BYTES);
        let mut pieces: Input = input.iter().take(whole.unwrap_or(0) + 1).cloned().collect();
        pieces.resize(pieces.len().max(1), Vec::new());
        say.send(pieces).expect("the door is there");
        let patience = if whole.is_some() { Duration::from_secs(10) } else { Duration::ZERO };
        let fetched = fetch(&directory, "door", 1, patience);
        assert_eq!(fetched.is_ok(), whole.is_some());
        match fetched.and_then(|bytes| UniqueId::from_bytes(&bytes)) {
            Ok(_) => seen.note("id"),
            Err(error) => seen.note_text(&error.to_string()),
        }
        seen.note(whole);
    });
    drop(say);
    door.join().expect("the door");
}

#[test]
fn a_door_that_drips_is_given_up_by_the_deadline() {
    let name: [u8; 8] = crate::proof::random().expect("randomness");
    let place = Place(std::env::temp_dir().join(format!("consort-fuzz-{:016x}", u64::from_le_bytes(name))));
    std::fs::DirBuilder::new().mode(0o700).create(&place.0).expect("a directory");
    let directory = Directory::open_in(std::slice::from_ref(&place.0)).expect("a directory");
    let meeting = place.0.join(format!("consort-{}", nix::unistd::geteuid()));
    let listener = UnixListener::bind(meeting.join("door")).expect("bind");
    let dripping = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a caller");
        for _ in 0..127 {
            if stream.write_all(&[1]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(40));
        }
    });
    let begun = Instant::now();
    assert!(fetch(&directory, "door", 1, Duration::from_millis(200)).is_err());
    // All of it would take five seconds.
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    dripping.join().expect("no panic");
}

#[test]
fn callers_at_the_door_that_go_or_do_not_read_delay_nobody() {
    let name: [u8; 8] = crate::proof::random().expect("randomness");
    let place = Place(std::env::temp_dir().join(format!("consort-fuzz-{:016x}", u64::from_le_bytes(name))));
    std::fs::DirBuilder::new().mode(0o700).create(&place.0).expect("a directory");
    let open = || Directory::open_in(std::slice::from_ref(&place.0)).expect("a directory");
    let door = Door::open(open(), "door", 0).expect("a door");
    let meeting = place.0.join(format!("consort-{}", nix::unistd::geteuid()));
    let crowd: Vec<_> = (0..50)
        .map(|at| {
            let mut caller = std::os::unix::net::UnixStream::connect(meeting.join("door")).expect("connect");
            let _ = caller.write_all(&[0; 100]);
            (at % 2 == 0).then_some(caller)
        })
        .collect();
    let directory = open();
    let rank = std::thread::spawn(move || fetch(&directory, "door", 1, Duration::from_secs(30)));
    let begun = Instant::now();
    while !rank.is_finished() {
        door.answer(&[3; UniqueId::BYTES]);
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
    assert_eq!(rank.join().expect("no panic").expect("an id"), [3; UniqueId::BYTES]);
    drop(crowd);
}
