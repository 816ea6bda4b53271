//! Meeting on one host and at an agreed address.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;
use std::time::Instant;

use super::*;
use crate::bootstrap::tests::late;
use crate::bootstrap::{Hello, Member, Table, join};
use crate::proof::random;

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

/// A directory for one test, removed at its end.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let name: [u8; 8] = random().unwrap();
        let path = std::env::temp_dir().join(format!("consort-test-{:016x}", u64::from_le_bytes(name)));
        std::fs::create_dir(&path).unwrap();
        Place(path)
    }

    fn meeting(&self) -> PathBuf {
        self.0.join(format!("consort-{}", nix::unistd::geteuid()))
    }

    fn names(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.meeting()).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn launch(rank: u32, size: u32, job: &str) -> Launch {
    Launch {
        rank,
        size,
        local_rank: Some(rank),
        local_size: Some(size),
        launcher: "torchrun",
        job: Some(job.into()),
    }
}

fn meet(launch: &Launch, place: &Path, timeout: Duration) -> Result<UniqueId> {
    let lookup = |name: &str| (name == "CONSORT_BIND").then(|| "127.0.0.1".to_owned());
    rendezvous(launch, &lookup, Some(&[place.to_owned()]), timeout)
}

fn enter(launch: &Launch, id: &UniqueId) -> Result<Table> {
    let host = launch.job.clone().unwrap_or_default();
    let member = Member { host, ..Member::unknown() };
    join(id, Hello { rank: launch.rank, size: launch.size, settings: vec![], member }, LONG)
}

fn configured(launch: &Launch, environment: &[(&str, &str)]) -> Result<UniqueId> {
    let lookup =
        |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
    rendezvous(launch, &lookup, Some(&[]), SHORT)
}

#[test]
fn ranks_of_one_host_meet_again_and_again_and_leave_nothing() {
    let place = Place::new();
    let ranks: Vec<_> = (0..4)
        .map(|rank| {
            let path = place.0.clone();
            thread::spawn(move || {
                let launch = launch(rank, 4, "a");
                // Without any pause: who has joined must not find the door of the job that it joined.
                for _ in 0..10 {
                    enter(&launch, &meet(&launch, &path, LONG).unwrap()).unwrap();
                }
            })
        })
        .collect();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
    assert_eq!(place.names(), [] as [String; 0]);
    assert_eq!(std::fs::metadata(place.meeting()).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn two_jobs_at_the_same_time_do_not_meet() {
    let place = Place::new();
    let ranks: Vec<_> = (0..4)
        .map(|at| {
            let path = place.0.clone();
            let launch = launch(at / 2, 2, if at % 2 == 0 { "a" } else { "b" });
            thread::spawn(move || {
                (launch.job.clone(), enter(&launch, &meet(&launch, &path, LONG).unwrap()).unwrap())
            })
        })
        .collect();
    for rank in ranks {
        let (job, table) = rank.join().unwrap();
        assert!(table.members.iter().all(|member| Some(&member.host) == job.as_ref()), "{job:?} {table:?}");
    }
}

#[test]
fn a_second_rank_zero_is_refused_until_the_first_has_left() {
    let place = Place::new();
    let first = meet(&launch(0, 2, "a"), &place.0, LONG).unwrap();
    let Err(Error::Join { rank: 0, cause, .. }) = meet(&launch(0, 2, "a"), &place.0, LONG) else { panic!() };
    assert!(cause.contains(&format!("process {}", std::process::id())), "{cause}");
    drop(first);
    assert_eq!(place.names(), [] as [String; 0]);
    meet(&launch(0, 2, "a"), &place.0, LONG).unwrap();
}

#[test]
fn what_a_crash_left_is_replaced() {
    let place = Place::new();
    drop(meet(&launch(0, 2, "a"), &place.0, LONG).unwrap());
    let name = meeting_name(&["torchrun", "a", "", &network()]);
    // A listener that is dropped leaves its file, as a killed process does.
    drop(UnixListener::bind(place.meeting().join(&name)).unwrap());
    std::fs::write(place.meeting().join(format!("{name}.lock")), "process 1\n").unwrap();
    let early = thread::spawn({
        let path = place.0.clone();
        move || enter(&launch(1, 2, "a"), &meet(&launch(1, 2, "a"), &path, LONG).unwrap()).unwrap()
    });
    thread::sleep(Duration::from_millis(50));
    let id = meet(&launch(0, 2, "a"), &place.0, LONG).unwrap();
    enter(&launch(0, 2, "a"), &id).unwrap();
    early.join().unwrap();
    assert_eq!(place.names(), [] as [String; 0]);
}

#[test]
fn a_rank_zero_that_never_comes_is_an_error_by_the_deadline() {
    let place = Place::new();
    let begun = Instant::now();
    let Err(Error::Join { rank: 1, cause, hint }) = meet(&launch(1, 2, "a"), &place.0, SHORT) else {
        panic!()
    };
    assert!(begun.elapsed() >= SHORT && begun.elapsed() < SHORT + late());
    assert!(cause.contains("rank 0 did not offer") && hint.contains("CONSORT_ADDRESS"), "{cause}; {hint}");
    // The same with a caller at the door that says nothing.
    let name = meeting_name(&["torchrun", "a", "", &network()]);
    let _mute = UnixListener::bind(place.meeting().join(name)).unwrap();
    let begun = Instant::now();
    assert!(matches!(meet(&launch(1, 2, "a"), &place.0, SHORT), Err(Error::Join { rank: 1, .. })));
    assert!(begun.elapsed() < SHORT + late(), "{:?}", begun.elapsed());
}

#[test]
fn unsafe_directories_are_refused() {
    let refused = |place: &Place, expected: &str| {
        for rank in [0, 1] {
            let Err(Error::InvalidArgument { what, hint }) = meet(&launch(rank, 2, "a"), &place.0, SHORT)
            else {
                panic!("{expected}")
            };
            assert!(what.contains(expected) && hint.contains("XDG_RUNTIME_DIR"), "{what}; {hint}");
        }
    };
    let open = Place::new();
    std::fs::create_dir(open.meeting()).unwrap();
    std::fs::set_permissions(open.meeting(), PermissionsExt::from_mode(0o755)).unwrap();
    refused(&open, "mode 755, must be 700");

    let linked = Place::new();
    std::fs::create_dir(linked.0.join("elsewhere")).unwrap();
    symlink(linked.0.join("elsewhere"), linked.meeting()).unwrap();
    refused(&linked, "it is a link or a file");

    let file = Place::new();
    std::fs::write(file.meeting(), "").unwrap();
    refused(&file, "it is a link or a file");

    let foreign = Place::new();
    std::fs::create_dir(foreign.meeting()).unwrap();
    std::fs::set_permissions(foreign.meeting(), PermissionsExt::from_mode(0o700)).unwrap();
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(foreign.meeting(), Some(65533), None).unwrap();
        refused(&foreign, "belongs to user 65533");
    } else {
        eprintln!("SKIPPED: a directory of another user can only be made by root");
    }
}

#[test]
fn several_hosts_need_an_address_and_a_secret() {
    let mut launch = launch(1, 4, "a");
    let expect = |launch: &Launch, environment: &[(&str, &str)], expected: &str| {
        let error = configured(launch, environment).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("CONSORT_SECRET"), "{error}");
        assert!(!error.contains("tooshort"), "{error}");
    };
    launch.local_size = Some(2);
    expect(&launch, &[("MASTER_ADDR", "h"), ("MASTER_PORT", "29500")], "only 2 of 4 ranks are on this host");
    launch.local_size = None;
    expect(&launch, &[], "does not say whether all 4 ranks are on this host");
    expect(&launch, &[("CONSORT_ADDRESS", "10.0.0.1:4000")], "CONSORT_SECRET is not");
    let secret = ("CONSORT_SECRET", "0123456789abcdef0123");
    expect(&launch, &[("CONSORT_ADDRESS", "10.0.0.1:4000"), ("CONSORT_SECRET", "tooshort")], "8 characters");
    for wrong in ["10.0.0.1", "0.0.0.0:4000", "10.0.0.1:0", "[::]:1", "localhost:x"] {
        expect(&launch, &[("CONSORT_ADDRESS", wrong), secret], wrong);
    }
}

#[test]
fn an_agreed_address_needs_no_directory() {
    // The first is an address of its own, so that no other test takes the port.
    for host in ["127.0.71.3", "localhost"] {
        let port = std::net::TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().port();
        let address = format!("{host}:{port}");
        let ranks: Vec<_> = (0..3)
            .map(|rank| {
                let address = address.clone();
                thread::spawn(move || {
                    let mut launch = launch(rank, 3, "a");
                    launch.local_size = Some(1);
                    // The case of hexadecimal digits does not matter.
                    let secret = if rank == 0 { "ab".repeat(32) } else { "AB".repeat(32) };
                    let id =
                        configured(&launch, &[("CONSORT_ADDRESS", &address), ("CONSORT_SECRET", &secret)]);
                    enter(&launch, &id.unwrap()).unwrap().key
                })
            })
            .collect();
        let keys: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(keys.iter().all(|key| *key == keys[0]));
    }
}

#[test]
fn explicit_ranks_name_their_job() {
    let mut launch = launch(1, 2, "");
    (launch.launcher, launch.job, launch.local_size) = ("CONSORT_RANK", None, Some(2));
    let error = configured(&launch, &[]).unwrap_err().to_string();
    assert!(error.contains("set CONSORT_JOB"), "{error}");
    launch.local_size = None;
    let place = Place::new();
    let lookup = |name: &str| (name == "CONSORT_JOB").then(|| "mine".to_owned());
    let error =
        rendezvous(&launch, &lookup, Some(std::slice::from_ref(&place.0)), SHORT).unwrap_err().to_string();
    assert!(error.contains("rank 0 did not offer"), "{error}");
}

#[test]
fn one_rank_meets_nobody() {
    assert!(configured(&launch(0, 1, "a"), &[]).unwrap().addresses.is_empty());
}
