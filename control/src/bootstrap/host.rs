//! What distinguishes the hosts of a job.
//!
//! Invariant: two ranks with the same `sockets` can call each other's abstract sockets, and what they say of themselves by
//! [`host_key`] is the program's word where it gives one.

use std::os::unix::fs::MetadataExt;

use super::host_id;
use consort_settings::environment::Environment;

/// The host's name, for people.
pub fn host_name() -> String {
    nix::sys::utsname::uname()
        .ok()
        .and_then(|names| names.nodename().to_str().map(str::to_owned))
        .unwrap_or_else(|| "unknown".into())
}

/// Equal on ranks that may share memory, as `sockets` says; or of one text that the user gave instead.
pub fn host_key() -> [u8; 16] {
    let environment = Environment::of_process();
    let mut named = ["CONSORT_HOSTID", "NCCL_HOSTID"].iter().filter_map(|name| environment.text(name));
    match named.find(|(text, _)| !text.is_empty()) {
        Some((text, _)) => host_id(&text),
        None => sockets(),
    }
}

/// Equal on processes of one user, whatever its number in a container, of one boot of one kernel, and of one network namespace, in
/// which the abstract sockets live through which memory is handed over.
pub(crate) fn sockets() -> [u8; 16] {
    let network = std::fs::metadata("/proc/self/ns/net").map_or((0, 0), |meta| (meta.dev(), meta.ino()));
    let user = user_of_the_host();
    // A kernel that does not say when it was started has its host's name at least.
    let boot = boot_id();
    let name = if boot == [0; 16] { host_name() } else { String::new() };
    host_id(&format!("{boot:?} {network:?} {name} {user}"))
}

/// The number that this process's user has outside of all namespaces of users that it is in, as far as the innermost says.
fn user_of_the_host() -> u32 {
    let own = nix::unistd::geteuid().as_raw();
    outer_user(own, &std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default())
}

/// The number outside of a namespace of the user `own` in it, by the lines of its map: first number inside, first outside, how many.
fn outer_user(own: u32, map: &str) -> u32 {
    let outer = |line: &str| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (inside, outside, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        let nth = own.checked_sub(inside).filter(|nth| *nth < count)?;
        outside.checked_add(nth)
    };
    map.lines().find_map(outer).unwrap_or(own)
}

/// The kernel's boot id: equal on ranks of one machine, in whatever containers.
pub fn boot_id() -> [u8; 16] {
    let mut id = [0; 16];
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> =
        text.bytes().filter_map(|byte| (byte as char).to_digit(16).map(|digit| digit as u8)).collect();
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    id
}

#[cfg(test)]
mod tests {
    use super::outer_user;

    #[test]
    fn a_user_in_a_container_is_the_one_outside() {
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!(outer_user(0, rootless), 1000);
        assert_eq!(outer_user(5, rootless), 100_004);
        assert_eq!(outer_user(70_000, rootless), 70_000, "it has none");
        assert_eq!(outer_user(7, "         0          0 4294967295\n"), 7);
        assert_eq!(outer_user(7, ""), 7);
        assert_eq!(outer_user(7, "a b c\n7\n"), 7);
    }
}
