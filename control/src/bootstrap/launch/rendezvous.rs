//! From a launch to the id that all its ranks share.
//!
//! Invariants: a secret never comes from a launcher and never goes into a message; MASTER_PORT is part of a name and
//! never a port to listen at, because torchrun's agent holds it; jobs meet only if user, launcher, job and network
//! namespace are the same. Absent: stores of launchers (PMIx, PMI, torch) as a way across hosts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use super::Launch;
use crate::bootstrap::UniqueId;
use crate::bootstrap::door::{self, Directory, Door};
use crate::bootstrap::root::Limits;
use crate::bootstrap::unique_id::{ADDRESSES_MAX, bind_addresses};
use crate::proof::{hex, prove};
use consort_settings::environment::Environment;
use consort_settings::options::PortRange;
use consort_types::error::{Error, Result};

/// What to do across hosts.
const ACROSS: &str = "set CONSORT_ADDRESS=<address of rank 0's host>:<free port> and CONSORT_SECRET=<at least 16 random \
    characters, the same on every rank>; under torchrun the port must not be MASTER_PORT, which its agent holds";

/// The id; `candidates` are the parents of the meeting directory, by default the user's runtime directory and `/tmp`.
pub(super) fn rendezvous(
    launch: &Launch,
    lookup: &dyn Fn(&str) -> Option<String>,
    candidates: Option<&[PathBuf]>,
    timeout: Duration,
) -> Result<UniqueId> {
    let text = |name: &str| lookup(name).map(|v| v.trim().to_owned()).filter(|value| !value.is_empty());
    if launch.size == 1 {
        return UniqueId::lone();
    }
    match (text("CONSORT_ADDRESS"), text("CONSORT_SECRET")) {
        (Some(address), Some(secret)) => return agreed(launch, &address, &secret),
        (Some(_), None) => {
            return Err(Error::invalid("CONSORT_ADDRESS is set and CONSORT_SECRET is not", ACROSS));
        }
        _ => {}
    }
    let explicit = launch.launcher == "CONSORT_RANK";
    // A user who names the job, but no number of local ranks, has asked for a meeting on one host.
    let one_host = launch.local_size == Some(launch.size)
        || launch.local_size.is_none() && (text("CONSORT_JOB").is_some() || explicit && launch.job.is_some());
    if !one_host {
        let (place, remedy) = match launch.local_size {
            Some(local) => {
                (format!("only {local} of {} ranks are on this host", launch.size), ACROSS.to_owned())
            }
            None => (
                format!(
                    "{} does not say whether all {} ranks are on this host",
                    launch.launcher, launch.size
                ),
                format!("if they are, set CONSORT_JOB=<a name for this job>; otherwise {ACROSS}"),
            ),
        };
        let cause = format!("{place}, and {} gives them no secret to find each other by", launch.launcher);
        return Err(Error::Join { rank: launch.rank, cause, hint: remedy });
    }
    let job = match (launch.job.clone(), launch.launcher) {
        (Some(job), _) => Some(job),
        (None, "MPICH") => starter("hydra_pmi_prox"),
        (None, _) => None,
    };
    let named = text("CONSORT_JOB");
    if job.is_none() && named.is_none() {
        return Err(Error::Join {
            rank: launch.rank,
            cause: format!("{} does not say which job this is", launch.launcher),
            hint: "set CONSORT_JOB=<a name that no other job of this user has>, the same on every rank"
                .into(),
        });
    }
    let name =
        meeting_name(&[launch.launcher, &job.unwrap_or_default(), &named.unwrap_or_default(), &network()]);
    let usual: Vec<PathBuf> =
        text("XDG_RUNTIME_DIR").map(PathBuf::from).into_iter().chain([PathBuf::from("/tmp")]).collect();
    let directory = Directory::open_in(candidates.unwrap_or(&usual))?;
    if launch.rank == 0 {
        let bind = bind_addresses(text("CONSORT_BIND").as_deref())?;
        let ports = PortRange::asked(&Environment::from_lookup(text))?;
        let door = Door::open(directory, &name, launch.rank)?;
        UniqueId::create_on(&bind, ports, Some(door), Limits::default())
    } else {
        UniqueId::from_bytes(&door::fetch(&directory, &name, launch.rank, timeout)?)
    }
}

/// The id that every process which knows address and secret can put together.
fn agreed(launch: &Launch, address: &str, secret: &str) -> Result<UniqueId> {
    let material = material(secret)?;
    let malformed = |what: String| Error::invalid(format!("CONSORT_ADDRESS={address}: {what}"), ACROSS);
    let literal: Option<SocketAddr> = address.parse().ok();
    let mut resolved: Vec<SocketAddr> = match literal {
        Some(address) => vec![address],
        None => address
            .to_socket_addrs()
            .map_err(|error| malformed(format!("it is neither ip:port nor a known host:port ({error})")))?
            .collect(),
    };
    resolved.truncate(ADDRESSES_MAX);
    if resolved.is_empty() || resolved.iter().any(|a| a.port() == 0 || a.ip().is_unspecified()) {
        return Err(malformed("it must name a host that the other ranks can reach, and a port".into()));
    }
    if launch.rank != 0 {
        return UniqueId::at_any(&resolved, &material);
    }
    if literal.is_some() {
        return UniqueId::create_at_any(&resolved, &material, Limits::default());
    }
    // Many hosts resolve their own name to a loopback address, which others cannot reach, and services to one that is
    // not on any host: then every address of this host is listened at.
    let local_name = address.starts_with("localhost:");
    if local_name || !resolved.iter().all(|a| a.ip().is_loopback()) {
        match UniqueId::create_at_any(&resolved, &material, Limits::default()) {
            Err(Error::InvalidArgument { what, .. })
                if !local_name && what.contains("not an address of this host") => {}
            other => return other,
        }
    }
    let port = resolved[0].port();
    let everywhere =
        |ip: IpAddr| UniqueId::create_at_any(&[SocketAddr::new(ip, port)], &material, Limits::default());
    match everywhere(Ipv6Addr::UNSPECIFIED.into()) {
        Err(Error::System { .. }) => everywhere(Ipv4Addr::UNSPECIFIED.into()),
        other => other,
    }
}

/// The bytes of a configured secret: hexadecimal digits are read as such, so that their case does not matter.
fn material(secret: &str) -> Result<Vec<u8>> {
    if secret.len() < 16 {
        return Err(Error::invalid(
            format!("CONSORT_SECRET has {} characters, too few to be a secret", secret.len()),
            "give at least 16, better 64 random hexadecimal digits, the same on every rank",
        ));
    }
    let digits = secret.as_bytes();
    if digits.len() >= 32 && digits.len().is_multiple_of(2) && digits.iter().all(u8::is_ascii_hexdigit) {
        let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or_default() as u8;
        return Ok(digits
            .as_chunks::<2>()
            .0
            .iter()
            .map(|[high, low]| digit(*high) << 4 | digit(*low))
            .collect());
    }
    Ok(digits.to_vec())
}

/// A file name that says nothing and is the same for equal parts.
fn meeting_name(parts: &[&str]) -> String {
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    hex(&prove(&[0; 32], "meeting place", &parts)[..16])
}

/// This process's network namespace: two containers may share `/tmp` and a job's name, but not their addresses.
fn network() -> String {
    std::fs::read_link("/proc/self/ns/net").map(|link| link.display().to_string()).unwrap_or_default()
}

/// The nearest ancestor whose name begins so, or else the parent: process and start time.
fn starter(named: &str) -> Option<String> {
    let mut process = std::os::unix::process::parent_id();
    let mut parent = None;
    for _ in 0..64 {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let (name, above, started) = parse_stat(&stat)?;
        let found = format!("{process} {started}");
        if name.starts_with(named) {
            return Some(found);
        }
        parent.get_or_insert(found);
        if above <= 1 {
            break;
        }
        process = above;
    }
    parent
}

/// Name, parent and start time in a line of `/proc/<pid>/stat`; the name may itself contain brackets and spaces.
fn parse_stat(stat: &str) -> Option<(&str, u32, u64)> {
    let (head, tail) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let mut fields = tail.split_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some((name, parent, started))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_read_as_digits_or_text_and_never_shown() {
        let lower = "00ff00ff00ff00ff00ff00ff00ff00ff";
        assert_eq!(material(lower).unwrap(), material(&lower.to_uppercase()).unwrap());
        assert_eq!(material(lower).unwrap().len(), 16);
        assert_eq!(material("correct horse battery").unwrap(), b"correct horse battery");
        let error = material("hunter2").unwrap_err().to_string();
        assert!(error.contains("CONSORT_SECRET") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn names_differ_by_every_part() {
        let name = meeting_name(&["torchrun", "a", "", "net:[1]"]);
        assert_eq!(name.len(), 32);
        assert_ne!(name, meeting_name(&["torchrun", "", "a", "net:[1]"]));
        assert_ne!(name, meeting_name(&["torchrun", "a", "", "net:[2]"]));
    }

    #[test]
    fn a_process_line_is_read_despite_its_name() {
        let mut line = "12 (a) b (c)) S 7".to_owned();
        for field in 5..=22 {
            line += &format!(" {field}");
        }
        assert_eq!(parse_stat(&line), Some(("a) b (c)", 7, 22)));
        assert_eq!(parse_stat("12 (a"), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert_eq!(parse_stat(&own).unwrap().1, std::os::unix::process::parent_id());
        assert!(starter("no process has this name").is_some(), "then it is the parent");
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod meeting_tests;
