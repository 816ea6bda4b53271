//! What is mapped at addresses of this process, as the kernel tells it.
//!
//! Invariant: what is refused is not as the caller says. Where the kernel tells nothing (no procfs), nothing is refused.

use nix::sys::stat::{FileStat, major, minor};

/// A line of `/proc/self/maps`.
struct Line<'a> {
    start: usize,
    end: usize,
    /// Such as `rw-s`.
    access: &'a str,
    offset: u64,
    device: (u64, u64),
    inode: u64,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let hexadecimal = |word: &str| u64::from_str_radix(word, 16).ok();
        let (start, end) = words.next()?.split_once('-')?;
        let (access, offset) = (words.next()?, words.next()?);
        let (device, inode) = (words.next()?.split_once(':')?, words.next()?);
        Some(Line {
            start: hexadecimal(start)? as usize,
            end: hexadecimal(end)? as usize,
            access,
            offset: hexadecimal(offset)?,
            device: (hexadecimal(device.0)?, hexadecimal(device.1)?),
            inode: inode.parse().ok()?,
        })
    }
}

/// Why `bytes` bytes at `start` are not those of the file from `offset` on, shared, readable and writable.
pub(crate) fn difference(start: usize, bytes: usize, file: &FileStat, offset: usize) -> Option<&'static str> {
    let table = std::fs::read_to_string("/proc/self/maps").ok()?;
    compare(&table, start, bytes, file, offset)
}

fn compare(table: &str, start: usize, bytes: usize, file: &FileStat, offset: usize) -> Option<&'static str> {
    let Some(end) = start.checked_add(bytes) else { return Some("they would exceed the address space") };
    // The lines are in the order of addresses.
    let mut next = start;
    for line in table.lines().filter_map(Line::parse) {
        if line.end <= next || next == end {
            continue;
        }
        if line.start > next {
            break;
        }
        let is_file = line.inode == file.st_ino && line.device == (major(file.st_dev), minor(file.st_dev));
        let at = line.offset.checked_add((next - line.start) as u64);
        if !is_file {
            return Some("something else than the file is mapped there");
        }
        if !line.access.ends_with('s') {
            return Some("the mapping is private (MAP_PRIVATE)");
        }
        if !line.access.starts_with("rw") {
            return Some("the mapping is not readable and writable");
        }
        if at != Some((offset + (next - start)) as u64) {
            return Some("the mapping is of another part of the file");
        }
        next = line.end.min(end);
    }
    (next < end).then_some("not all of it is mapped")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two lines of one file that follow each other, a private one, one that is only read, and one of another file.
    const TABLE: &str = "\
00001000-00003000 rw-s 00005000 00:01 77 /memfd:it (deleted)
00003000-00004000 rw-s 00007000 00:01 77 /memfd:it (deleted)
00005000-00006000 rw-p 00000000 00:01 77 /memfd:it (deleted)
00006000-00007000 r--s 00000000 00:01 77 /memfd:it (deleted)
00007000-00008000 rw-s 00000000 00:01 78 /memfd:other (deleted)
00008000-00009000 rw-s 00000000 00:02 77 /dev/shm/x
00009000-0000a000 rw-p 00000000 00:00 0
";

    #[test]
    fn what_is_mapped_is_told_from_what_is_not() {
        // SAFETY: plain numbers, for which zeros are fine.
        let mut file: FileStat = unsafe { std::mem::zeroed() };
        (file.st_ino, file.st_dev) = (77, nix::sys::stat::makedev(0, 1));
        let found = |start: usize, bytes: usize, offset: usize| compare(TABLE, start, bytes, &file, offset);
        assert_eq!(found(0x1000, 0x3000, 0x5000), None);
        assert_eq!(found(0x2000, 0x2000, 0x6000), None);
        assert_eq!(found(0x3000, 0x1000, 0x7000), None);
        assert_eq!(found(0x1000, 0x3000, 0x6000), Some("the mapping is of another part of the file"));
        assert_eq!(found(0x2000, 0x3000, 0x6000), Some("not all of it is mapped"));
        assert_eq!(found(0, 0x2000, 0x4000), Some("not all of it is mapped"));
        assert_eq!(found(0xf000, 0x1000, 0), Some("not all of it is mapped"));
        assert_eq!(found(0x5000, 0x1000, 0), Some("the mapping is private (MAP_PRIVATE)"));
        assert_eq!(found(0x6000, 0x1000, 0), Some("the mapping is not readable and writable"));
        for other in [0x7000, 0x8000, 0x9000] {
            assert_eq!(found(other, 0x1000, 0), Some("something else than the file is mapped there"));
        }
        assert_eq!(found(0x1000, usize::MAX, 0x5000), Some("they would exceed the address space"));
    }
}
