//! Connecting to whichever of a rank's addresses answers first.
//!
//! Source: RFC 8305, "Happy Eyeballs Version 2": the next address gets its turn when those before it have failed or have
//! not answered for [`HEAD_START`]; the first connection wins. Addresses that look most like the one that answered last
//! come first: the hosts of a job have the same interfaces.
//!
//! Invariant: nothing is left open but the connection that is returned; the error names every address with its reason.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::task::Poll;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::patience::Patience;
use crate::bootstrap::{common_bits, connect, connected};

/// How long an address may be silent before the next is tried beside it.
const HEAD_START: Duration = Duration::from_millis(250);
/// How long all of them together may be silent before they are called anew.
const ATTEMPT_MAX: Duration = Duration::from_secs(3);

/// The first of `addresses` that answers, as a stream that never blocks; `like` is one that did so before, and those of `avoided` come last.
///
/// # Errors
/// Every address with what became of it.
pub(super) fn connect_to_any(
    addresses: &[SocketAddr],
    like: Option<IpAddr>,
    avoided: &[SocketAddr],
    patience: Patience<'_>,
) -> io::Result<TcpStream> {
    let mut waiting = addresses.to_vec();
    let likeness = |address: &SocketAddr| like.map_or(0, |like| common_bits(address.ip(), like));
    waiting.sort_by_key(|address| (avoided.contains(address), std::cmp::Reverse(likeness(address))));
    waiting.reverse();
    let first = waiting.last().copied();
    let mut under_way: Vec<(SocketAddr, TcpStream)> = Vec::new();
    let mut failed: Vec<(SocketAddr, io::Error)> = Vec::new();
    let until = Instant::now() + ATTEMPT_MAX.min(patience.left().max(Duration::from_millis(1)));
    let mut next_at = Instant::now();
    loop {
        let now = Instant::now();
        if (now >= next_at || under_way.is_empty())
            && let Some(address) = waiting.pop()
        {
            match connect(address) {
                Ok(stream) => {
                    next_at = now + HEAD_START;
                    under_way.push((address, stream));
                }
                Err(error) => failed.push((address, error)),
            }
            continue;
        }
        let is_over = now >= until || patience.left().is_zero();
        if is_over || under_way.is_empty() {
            let silent = under_way.iter().map(|(address, _)| *address);
            failed.extend(silent.map(|address| (address, io::ErrorKind::TimedOut.into())));
            let untried = || io::Error::new(io::ErrorKind::TimedOut, "not tried, there was no time left");
            failed.extend(waiting.iter().map(|address| (*address, untried())));
            return Err(all(first, &failed));
        }
        let left = if waiting.is_empty() { until } else { until.min(next_at) }.saturating_duration_since(now);
        if let Some(answered) = first_answer(&under_way, left.min(patience.turn()))? {
            let (address, stream) = under_way.swap_remove(answered);
            match connected(&stream) {
                Poll::Ready(Ok(())) => return Ok(stream),
                Poll::Ready(Err(error)) => failed.push((address, error)),
                Poll::Pending => under_way.push((address, stream)),
            }
        }
    }
}

/// Which attempt has come to an end, good or bad, if one has in that time.
fn first_answer(attempts: &[(SocketAddr, TcpStream)], limit: Duration) -> io::Result<Option<usize>> {
    let mut polled: Vec<PollFd<'_>> =
        attempts.iter().map(|(_, stream)| PollFd::new(stream.as_fd(), PollFlags::POLLOUT)).collect();
    // Rounded up: a limit below a millisecond must not become a busy loop.
    let limit = PollTimeout::try_from(limit + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    match poll(&mut polled, limit) {
        Ok(0) | Err(Errno::EINTR) => Ok(None),
        Ok(_) => Ok(polled.iter().position(|fd| fd.any().unwrap_or(true))),
        Err(error) => Err(error.into()),
    }
}

/// One error for all addresses; of the kind that the one had which was likeliest to lead there.
fn all(first: Option<SocketAddr>, failed: &[(SocketAddr, io::Error)]) -> io::Error {
    let of_first = failed.iter().find(|(address, _)| Some(*address) == first);
    let Some((_, last)) = of_first.or(failed.last()) else {
        return io::Error::new(io::ErrorKind::AddrNotAvailable, "the rank has no address");
    };
    let each: Vec<String> = failed.iter().map(|(address, error)| format!("{address}: {error}")).collect();
    io::Error::new(last.kind(), each.join(", "))
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::os::fd::{AsRawFd, OwnedFd};

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

    use super::*;

    /// Longer than any test takes.
    fn long() -> Patience<'static> {
        Patience::from(Instant::now() + Duration::from_secs(600))
    }

    fn listening() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let address = listener.local_addr().expect("an address");
        (listener, address)
    }

    /// A port that is taken and at which nothing listens.
    pub(in crate::membership) fn refusing() -> (OwnedFd, SocketAddr) {
        use nix::sys::socket::{SockaddrIn, bind, getsockname};
        let socket =
            socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).expect("bind");
        let name: SockaddrIn = getsockname(socket.as_raw_fd()).expect("a name");
        (socket, SocketAddr::from((name.ip(), name.port())))
    }

    /// A listener whose queue is full does not answer: its system drops what asks for a connection.
    fn silent() -> (Vec<TcpStream>, TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).expect("bind");
        let address = listener.local_addr().expect("an address");
        let none = nix::sys::socket::Backlog::new(0).expect("a backlog");
        nix::sys::socket::listen(&listener, none).expect("listen");
        let mut callers = Vec::new();
        while let Ok(caller) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            callers.push(caller);
        }
        (callers, listener, address)
    }

    #[test]
    fn a_refused_and_a_silent_address_do_not_keep_the_good_one_waiting() {
        let (_refusing, refused) = refusing();
        let (_callers, _listener, silent) = silent();
        let (_open, open) = listening();
        let answered = |like: Option<IpAddr>, avoided: &[SocketAddr]| {
            let began = Instant::now();
            let stream =
                connect_to_any(&[refused, silent, open], like, avoided, long()).expect("a connection");
            assert_eq!(stream.peer_addr().expect("a peer"), open);
            began.elapsed()
        };
        // The silent one has its head start.
        assert!(answered(None, &[]) >= HEAD_START);
        // What is like the address that answered before goes first, and what has answered wrongly last: a head start less.
        let least = |like, avoided: &[SocketAddr]| (0..5).map(|_| answered(like, avoided)).min();
        assert!(least(Some(open.ip()), &[]) < Some(HEAD_START));
        assert!(least(None, &[silent]) < Some(HEAD_START));
    }

    #[test]
    fn an_error_names_every_address() {
        let ((_one, one), (_other, other)) = (refusing(), refusing());
        let error =
            connect_to_any(&[one, other], None, &[], long()).expect_err("nothing listens").to_string();
        assert!(error.contains(&one.to_string()) && error.contains(&other.to_string()), "{error}");
        assert!(error.contains("refused"), "{error}");
        let none = connect_to_any(&[], None, &[], long()).expect_err("no address").to_string();
        assert!(none.contains("no address"), "{none}");
        let (_callers, _listener, silent) = silent();
        let short = Patience::from(Instant::now() + Duration::from_millis(50));
        let error = connect_to_any(&[silent, one], None, &[], short).expect_err("silence");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let text = error.to_string();
        assert!(text.contains(&silent.to_string()) && text.contains("not tried"), "{text}");
    }

    #[test]
    fn an_address_like_the_last_good_one_goes_first() {
        let bits = |one: &str, other: &str| common_bits(one.parse().unwrap(), other.parse().unwrap());
        assert_eq!(bits("10.0.1.7", "10.0.1.9"), 28);
        assert_eq!(bits("10.0.1.7", "::ffff:10.0.1.7"), 32);
        assert_eq!(bits("10.0.1.7", "fd00::1"), 0);
        assert!(bits("fd00::1", "fd00::2") > bits("fd00::1", "fe80::2"));
    }
}
