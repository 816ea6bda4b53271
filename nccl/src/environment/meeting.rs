//! The meeting point that the environment names: `NCCL_COMM_ID`.
//!
//! Every rank makes the same unique id of the text by itself, and rank 0 listens at its address when it joins. The
//! proof of membership is `CONSORT_SECRET` where that is set. Otherwise it is made of the text alone, so any process
//! that can reach the port can join; a warning says so.
//!
//! Invariant: the same text and secret give the same id in every process. Absent: the meeting itself (`bootstrap`).

use std::net::{SocketAddr, ToSocketAddrs};

use super::Environment;
use consort_control::bootstrap::UniqueId;
use consort_types::Rank;
use consort_types::error::{Error, Result};

/// The text of `NCCL_COMM_ID`, and the addresses where rank 0 may listen; `None` where the variable is unset or empty.
///
/// # Errors
/// [`Error::InvalidArgument`] if it is not `ipv4:port`, `[ipv6]:port` or `host:port`, or the host has no address.
fn meeting_place(environment: &Environment<'_>) -> Result<Option<(String, Vec<SocketAddr>)>> {
    let Some((text, _)) = environment.text("NCCL_COMM_ID") else { return Ok(None) };
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let refuse = |why: String| {
        Error::invalid(
            format!("NCCL_COMM_ID is {text:?}: {why}"),
            "write ipv4:port, [ipv6]:port or host:port of the host of rank 0, the same on every rank",
        )
    };
    let addresses: Vec<SocketAddr> = match text.parse() {
        Ok(address) => vec![address],
        Err(_) => {
            let (host, port) = text.rsplit_once(':').ok_or_else(|| refuse("it has no port".into()))?;
            // Remaining colons belong to an IPv6 address without brackets.
            if host.is_empty() || host.contains([':', '[', ']']) || port.parse::<u16>().is_err() {
                return Err(refuse("it is not written like an address with a port".into()));
            }
            text.to_socket_addrs().map_err(|error| refuse(error.to_string()))?.collect()
        }
    };
    if addresses.is_empty() || addresses.iter().any(|address| address.port() == 0) {
        return Err(refuse("no rank can be reached there".into()));
    }
    Ok(Some((text.to_owned(), addresses)))
}

/// A unique id: the agreed one where `NCCL_COMM_ID` is set, whose root does not run yet (see [`root_if_agreed`]), or
/// else a new one, whose root runs in this process.
///
/// # Errors
/// As [`UniqueId::create`]; [`Error::InvalidArgument`] for an `NCCL_COMM_ID` that is no address with a port, or whose
/// host has no address, and for a `CONSORT_SECRET` that is too short.
pub fn unique_id() -> Result<UniqueId> {
    unique_id_in(&Environment::of_process())
}

fn unique_id_in(environment: &Environment<'_>) -> Result<UniqueId> {
    let Some((place, addresses)) = meeting_place(environment)? else { return UniqueId::create() };
    if let Some((secret, _)) = environment.text("CONSORT_SECRET").filter(|(text, _)| !text.is_empty()) {
        return UniqueId::at_any(&addresses, secret.as_bytes());
    }
    consort_settings::notice::warn(&format!(
        "the job that meets at NCCL_COMM_ID={place} is not protected: any process that reaches that port can \
         join it; set CONSORT_SECRET to the same random text of 16 bytes or more on every rank"
    ));
    // The variable's text alone, behind a prefix that makes it long enough.
    UniqueId::at_any(&addresses, format!("unprotected NCCL_COMM_ID {place}").as_bytes())
}

/// The id with which `rank` joins. For rank 0 of an [agreed](unique_id) meeting point it is one whose root runs here
/// from now on; any other id is returned unchanged.
///
/// # Errors
/// [`Error::InvalidArgument`] if none of the addresses is free and of this host; [`Error::System`] if no
/// thread can be started.
pub fn root_if_agreed(rank: Rank, id: &UniqueId) -> Result<UniqueId> {
    if rank == 0 && id.is_agreed_elsewhere() { id.clone().listening() } else { Ok(id.clone()) }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use consort::Communicator;

    fn of(set: &[(&str, &str)]) -> Environment<'static> {
        let set: Vec<(String, String)> =
            set.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Environment::from_lookup(move |name| {
            set.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone())
        })
    }

    #[test]
    fn addresses_in_three_forms() {
        let places =
            |text| meeting_place(&of(&[("NCCL_COMM_ID", text)])).map(|found| found.map(|(_, at)| at));
        let one = |text: &str| vec![text.parse().expect("an address")];
        assert_eq!(places("10.0.0.1:4000").expect("an address"), Some(one("10.0.0.1:4000")));
        assert_eq!(places(" [fd00::1]:4000 ").expect("an address"), Some(one("[fd00::1]:4000")));
        let local = places("localhost:4000").expect("an address").expect("some");
        assert!(local.iter().all(|address| address.ip().is_loopback() && address.port() == 4000));
        assert_eq!(places("").expect("nothing"), None);
        for text in ["10.0.0.1", "fd00::1:4000", ":4000", "host:", "host:99999", "[fd00::1]", "10.0.0.1:0"] {
            let error = places(text).expect_err(text).to_string();
            assert!(error.contains("NCCL_COMM_ID") && error.contains("host:port"), "{error}");
        }
    }

    #[test]
    fn every_process_makes_the_same_id() {
        let bytes = |set: &[(&str, &str)]| unique_id_in(&of(set)).expect("an id").to_bytes();
        let place = ("NCCL_COMM_ID", "127.0.0.1:4000");
        assert_eq!(bytes(&[place]), bytes(&[place]));
        let secret = ("CONSORT_SECRET", "0123456789abcdef");
        assert_eq!(bytes(&[place, secret]), bytes(&[place, secret]));
        assert_ne!(bytes(&[place]), bytes(&[place, secret]));
        assert_ne!(bytes(&[place]), bytes(&[("NCCL_COMM_ID", "127.0.0.1:4001")]));
        assert!(unique_id_in(&of(&[place, ("CONSORT_SECRET", "short")])).is_err());
    }

    #[test]
    fn ranks_meet_at_the_agreed_place() {
        // An address of this process's own, so that no other process takes the port.
        let own = Ipv4Addr::from(std::process::id() | 0x7f80_0000);
        let free = TcpListener::bind((own, 0)).and_then(|l| l.local_addr()).expect("a port");
        let environment = of(&[("NCCL_COMM_ID", &free.to_string())]);
        let id = unique_id_in(&environment).expect("an id");
        let root = root_if_agreed(0, &UniqueId::from_bytes(&id.to_bytes()).expect("an id")).expect("a root");
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let id = root_if_agreed(1, &id).expect("the id as it is");
                let comm = Communicator::join(1, 2, &id).expect("rank 0 is there");
                comm.barrier().expect("both");
            });
            let comm = Communicator::join(0, 2, &root).expect("rank 1 comes");
            comm.barrier().expect("both");
        });
        let own = UniqueId::create().expect("an id");
        let same = root_if_agreed(0, &own).expect("nothing to do");
        assert_eq!(same.to_bytes(), own.to_bytes());
    }
}
