//! Reading another process's memory by its addresses: `process_vm_readv(2)`, "cross-memory attach".
//!
//! Invariant: what is read is checked by nobody but the system; who reads makes sure first that the process is the one that
//! is meant (numbers of processes differ between containers, and are used again). Absent: writing.

use std::io;

use consort_memory::SpanMut;

/// Fills `to` with what process `pid` has at `address`.
///
/// # Errors
/// The system's: it forbids the call (`EPERM`, `ENOSYS`), there is no such process, or it has no memory there (`EFAULT`).
pub fn read_process(pid: u32, address: u64, to: SpanMut<'_>) -> io::Result<()> {
    let mut done = 0;
    while done < to.len() {
        let local =
            libc::iovec { iov_base: to.as_mut_ptr().wrapping_add(done).cast(), iov_len: to.len() - done };
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(address as usize + done),
            iov_len: to.len() - done,
        };
        // SAFETY: the local range is inside `to`, which its holder may write; the remote one is the other process's, and
        // is only read, by the system, which refuses what is not mapped there. If it is this process, what is read while
        // somebody writes it is bytes of which nothing is promised, as with all memory that ranks share.
        let read = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
        match read {
            ..0 => return Err(io::Error::last_os_error()),
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            more => done += more as usize,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_has_is_read_and_what_it_has_not_is_an_error() {
        let there: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
        let mut here = vec![0; there.len()];
        let address = there.as_ptr().expose_provenance() as u64;
        if let Err(error) = read_process(std::process::id(), address, SpanMut::of(&mut here)) {
            eprintln!("SKIP: this system forbids process_vm_readv: {error}");
            return;
        }
        assert_eq!(here, there);
        assert!(
            read_process(std::process::id(), 8, SpanMut::of(&mut here)).is_err(),
            "nothing is mapped there"
        );
        assert!(
            read_process(i32::MAX as u32, address, SpanMut::of(&mut here)).is_err(),
            "there is no such process"
        );
        assert!(read_process(std::process::id(), u64::MAX, SpanMut::of(&mut here)).is_err());
    }
}
