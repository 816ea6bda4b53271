//! One rank as a process of its own: `rank SCENARIO RANK SIZE [name=value ...]`, with the job's unique id as the
//! first 128 bytes of its input. It prints its progress, and reads lines where it has to wait.

mod device_groups;
mod device_made;
mod device_prices;
mod devices;
mod faults;
mod fork;
mod hygiene;
mod members;
mod plain;
mod torture;
mod traces;

use std::collections::HashMap;
use std::io::{BufRead, Read};

use crate::difference::variant;
use consort::{Communicator, Error, Result, UniqueId};

/// The arguments of this rank.
pub(crate) struct Context {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    arguments: HashMap<String, String>,
    id: [u8; UniqueId::BYTES],
}

impl Context {
    /// The value of an argument.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.arguments.get(name).map_or("", String::as_str)
    }

    /// The value of a numeric argument; 0 when it was not given.
    pub(crate) fn number(&self, name: &str) -> usize {
        self.text(name).parse().unwrap_or(0)
    }

    /// Whether this rank is the one that an argument names.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.text(name).parse() == Ok(self.rank)
    }

    /// The job's unique id.
    pub(crate) fn id(&self) -> Result<UniqueId> {
        UniqueId::from_bytes(&self.id)
    }

    pub(crate) fn join(&self) -> Result<Communicator> {
        Communicator::join(self.rank, self.size, &self.id()?)
    }

    /// Waits for the test's next line.
    pub(crate) fn listen(&self) -> String {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }
}

/// Prints how a call ended, in the form that the harness reads.
pub(crate) fn report(result: &Result<()>) {
    match result {
        Ok(()) => println!("passed"),
        Err(error) => println!("failed {}: {}", variant(error), error.to_string().replace('\n', " ")),
    }
}

/// The program `rank`: runs the scenario of its arguments.
///
/// # Panics
/// If the arguments or the input are not those of a rank, or its scenario finds something wrong.
pub fn main() {
    // Ends with the process that started it.
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    let words: Vec<String> = std::env::args().collect();
    let [_, scenario, rank, size, arguments @ ..] = &words[..] else {
        eprintln!("usage: rank SCENARIO RANK SIZE [name=value ...]");
        std::process::exit(2);
    };
    let pairs = arguments.iter().filter_map(|word| word.split_once('='));
    let mut context = Context {
        rank: rank.parse().expect("a rank"),
        size: size.parse().expect("a size"),
        arguments: pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        id: [0; UniqueId::BYTES],
    };
    std::io::stdin().lock().read_exact(&mut context.id).expect("an id");
    let result: std::result::Result<(), Error> = match scenario.as_str() {
        "everything" => plain::everything(&context),
        "bits" => plain::bits(&context),
        "launched" => plain::launched(&context),
        "unattended" => plain::unattended(&context),
        "dropped" => plain::dropped(&context),
        "split" => plain::split(&context),
        "vectors" => plain::vectors(&context),
        "groups" => plain::groups(&context),
        "folds" => plain::folds(&context),
        "planned" => plain::planned(&context),
        "matrix" => plain::matrix(&context),
        "device-everything" => devices::everything(&context),
        "device-typed" => devices::typed(&context),
        "device-ring" => device_groups::ring(&context),
        "device-exchange" => device_groups::exchange(&context),
        "device-plans" => devices::plans(&context),
        "device-made" => device_made::made(&context),
        "device-prices" => device_prices::prices(&context),
        "device-second" => devices::second(&context),
        "device-uneven" => device_groups::uneven(&context),
        "device-vectors" => devices::vectors(&context),
        "device-interleaved" => devices::interleaved(&context),
        "device-discarded" => devices::discarded(&context),
        "device-crossing" => devices::crossing(&context),
        "device-many" => devices::many(&context),
        "device-differ" => devices::differ(&context),
        "device-without" => devices::without(&context),
        "device-memory" => devices::memory(&context),
        "device-hang" => devices::hang(&context),
        "device-fork" => devices::fork(&context),
        "device-path" => devices::path(&context),
        "differ" => faults::differ(&context),
        "probe" => faults::probe(&context),
        "graph" => faults::graph(&context),
        "extra" => faults::extra(&context),
        "messages" => faults::messages(&context),
        "only-join" => faults::only_join(&context),
        "loop" => faults::repeat_until_failure(&context),
        "absent" => faults::absent(&context),
        "absent-in-two-hops" => faults::absent_in_two_hops(&context),
        "leave" => faults::leave(&context),
        "abort" => faults::abort(&context),
        "memory" => faults::too_little_memory(&context),
        "shrink" => members::shrink(&context),
        "large" => members::large(&context),
        "shrink-idle" => members::shrink_idle(&context),
        "shrink-and-die" => members::shrink_and_die(&context),
        "mesh" => members::mesh(&context),
        "part-without" => members::part_without(&context),
        "suspend" => members::suspend(&context),
        "grow" => members::grow(&context),
        "fork" => fork::fork_and_go_on(&context),
        "fork-mapped" => fork::fork_in_zero_copy(&context),
        "fork-and-die" => fork::fork_and_wait_to_die(&context),
        "allocations" => hygiene::allocations(&context),
        "count" => hygiene::count(&context),
        "first-calls" => hygiene::first_calls(&context),
        "rounds" => hygiene::rounds(&context),
        "idle" => hygiene::idle(&context),
        "wait" => hygiene::wait(&context),
        "traced" => traces::traced(&context),
        "late" => traces::late(&context),
        "torture" => torture::torture(&context),
        other => panic!("no scenario {other}"),
    };
    if let Err(error) = result {
        report(&Err(error));
        std::process::exit(3);
    }
}
