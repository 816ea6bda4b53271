//! A running job, and strangers that connect to all of its ports.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use consort::{ReduceOp, Result};
use nix::sys::socket::{setsockopt, sockopt::Linger};

use crate::{join, say};

/// All-reduces for three seconds, every element checked.
pub(crate) fn train() -> Result<()> {
    let comm = join()?;
    let (mut rounds, mut longest) = (0u32, Duration::ZERO);
    let began = Instant::now();
    // Rank 0 decides when it ends.
    let mut more = [1.0f32];
    while more[0] > 0.0 {
        let call = Instant::now();
        let mut buffer = vec![comm.rank() as f32; 1 << 18];
        comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        longest = longest.max(call.elapsed());
        let sum = (0..comm.size()).sum::<u32>() as f32;
        assert!(buffer.iter().all(|value| *value == sum), "a wrong sum in round {rounds}");
        rounds += 1;
        if rounds == 3 {
            say("is at work");
        }
        more[0] = if began.elapsed() < Duration::from_secs(3) { 1.0 } else { 0.0 };
        comm.broadcast(&mut more, 0)?;
    }
    say("all sums are right");
    say(&format!("{rounds} rounds, the longest took {} ms", longest.as_millis()));
    Ok(())
}

/// Talks to every port on which these processes listen, for a few seconds.
pub(crate) fn attack(words: &[String]) -> Result<()> {
    let seconds: f64 = words.first().and_then(|word| word.parse().ok()).expect("seconds");
    let (began, mut held, mut tried, mut round) = (Instant::now(), Vec::new(), 0u32, 0u32);
    let mut ports = BTreeSet::new();
    while began.elapsed().as_secs_f64() < seconds {
        for port in words[1..].iter().flat_map(|pid| listening(pid)) {
            ports.insert(port);
            for kind in 0..6 {
                tried += 1;
                held.extend(stranger(port, kind));
            }
            // Once, a crowd that sends nothing.
            if round == 0 {
                held.extend((0..100).filter_map(|_| stranger(port, 2)));
                tried += 100;
            }
        }
        // Strangers that send a byte at a time.
        held.retain_mut(|stream| stream.write(b"c").is_ok());
        round += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    say(&format!("talked to {} ports, {tried} connections", ports.len()));
    Ok(())
}

/// One connection; it is returned if it should stay open.
fn stranger(port: u16, kind: u32) -> Option<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok()?;
    let limit = Some(Duration::from_millis(20));
    stream.set_write_timeout(limit).and_then(|()| stream.set_read_timeout(limit)).ok()?;
    match kind {
        // Closes at once.
        0 => return None,
        // Resets at once.
        1 => {
            setsockopt(&stream, Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 }).ok()?;
            return None;
        }
        // Sends nothing and stays open.
        2 => return Some(stream),
        // Asks for metrics and waits for the answer.
        3 => {
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
            let _ = stream.read(&mut [0; 64]);
        }
        // Sends half a word.
        4 => {
            stream.write_all(b"cn").ok()?;
            return Some(stream);
        }
        // Sends garbage, as much as the port takes.
        _ => {
            let garbage: Vec<u8> =
                (0..1u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let _ = stream.write_all(&garbage);
        }
    }
    None
}

/// The ports on which a process listens.
fn listening(pid: &str) -> Vec<u16> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let inode = |link: std::path::PathBuf| {
        Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    let sockets: BTreeSet<String> = links.filter_map(inode).collect();
    let tables =
        ["tcp", "tcp6"].map(|name| std::fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default());
    let port = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ours = *words.get(3)? == "0A" && sockets.contains(*words.get(9)?);
        let port = words.get(1)?.rsplit_once(':')?.1;
        ours.then(|| u16::from_str_radix(port, 16).ok()).flatten()
    };
    tables.iter().flat_map(|table| table.lines()).filter_map(port).collect()
}
