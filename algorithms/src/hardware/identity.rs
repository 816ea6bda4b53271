//! What things of a machine are known by: PCI addresses and identifiers, sets of CPUs.
//!
//! Invariant: a value that was parsed is written in one way, and parses to itself. Absent: devices.

use std::fmt;
use std::str::FromStr;

/// The address of a function on PCI: `0000:3b:00.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BusId {
    /// The domain (segment).
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device. PCI has 32 a bus; programs that make addresses up use more.
    pub device: u8,
    /// The function.
    pub function: u8,
}

/// A text that is no PCI address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoBusId;

impl BusId {
    /// Whether `text` stands for a device that the writer of a file could not see. NCCL writes an address of nothing but `f`
    /// for all NVSwitches of a virtual machine (`src/graph/xml.cc`: `fffffff:ffff:ff`).
    pub fn is_hidden(text: &str) -> bool {
        // The function may be a zero behind the point.
        let (front, function) = text.split_once('.').unwrap_or((text, "f"));
        let all = |text: &str| text.chars().all(|letter| "fF:".contains(letter));
        front.len() >= 12 && all(front) && (all(function) || function == "0")
    }
}

impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for BusId {
    type Err = NoBusId;

    /// Reads `DOMAIN:BUS:DEVICE.FUNCTION` in hexadecimal digits of either case. The domain (0) and the function (0) may be
    /// missing.
    fn from_str(text: &str) -> Result<Self, NoBusId> {
        let (front, function) = text.trim().split_once('.').unwrap_or((text.trim(), "0"));
        let parts: Vec<&str> = front.split(':').collect();
        let (domain, bus, device) = match parts[..] {
            [domain, bus, device] => (domain, bus, device),
            [bus, device] => ("0", bus, device),
            _ => return Err(NoBusId),
        };
        let byte =
            |text: &str| hexadecimal(text, 2).and_then(|value| u8::try_from(value).ok()).ok_or(NoBusId);
        Ok(BusId {
            domain: hexadecimal(domain, 8).ok_or(NoBusId)?,
            bus: byte(bus)?,
            device: byte(device)?,
            function: byte(function)?,
        })
    }
}

/// The number that at most `digits` hexadecimal digits write.
pub(super) fn hexadecimal(text: &str, digits: usize) -> Option<u32> {
    let fits = (1..=digits).contains(&text.len()) && text.bytes().all(|letter| letter.is_ascii_hexdigit());
    fits.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

/// What the configuration space of a PCI device says that it is. What is not known is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pci {
    /// Its address.
    pub bus: Option<BusId>,
    /// Its class, 24 bits: base class, subclass, programming interface.
    pub class: Option<u32>,
    /// Its vendor and its device number.
    pub vendor: Option<u16>,
    /// The number that the vendor gave to the device.
    pub device: Option<u16>,
    /// The vendor of the board.
    pub subsystem_vendor: Option<u16>,
    /// The number that this vendor gave to the board.
    pub subsystem_device: Option<u16>,
}

/// NVIDIA's number as a vendor.
pub const NVIDIA: u16 = 0x10de;
/// AMD's number as a vendor of GPUs.
pub const AMD: u16 = 0x1002;

impl Pci {
    /// Base class and subclass, 16 bits: `0x0302` is a 3D controller.
    pub fn class16(&self) -> Option<u32> {
        self.class.map(|class| class >> 8)
    }

    /// Whether the class is one that GPUs for computing have: a 3D controller, or AMD's display controllers and
    /// processing accelerators. An adapter of a screen (`0x0300`) is none.
    pub fn looks_like_gpu(&self) -> bool {
        match self.class16() {
            Some(0x0302) => true,
            Some(0x0380 | 0x1200) => self.vendor == Some(AMD),
            _ => false,
        }
    }

    /// Whether the base class is that of network controllers.
    pub fn looks_like_nic(&self) -> bool {
        self.class.is_some_and(|class| class >> 16 == 0x02)
    }
}

/// The largest number of a CPU, so that a text of a few bytes cannot name a set of any size.
const CPU_MAX: u32 = (1 << 16) - 1;

/// A set of CPUs (hardware threads), by the numbers that the operating system gave them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CpuSet {
    /// First and last number of each stretch, in order; stretches do not touch.
    stretches: Vec<(u32, u32)>,
}

/// A text that is no set of CPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoCpuSet;

impl CpuSet {
    /// The set of these numbers, in any order. Numbers above 65,535 are left out.
    pub fn of(numbers: impl IntoIterator<Item = u32>) -> CpuSet {
        Self::of_stretches(
            numbers.into_iter().filter(|number| *number <= CPU_MAX).map(|number| (number, number)),
        )
    }

    fn of_stretches(stretches: impl IntoIterator<Item = (u32, u32)>) -> CpuSet {
        let mut sorted: Vec<(u32, u32)> = stretches.into_iter().collect();
        sorted.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (first, last) in sorted {
            match merged.last_mut() {
                Some(before) if first <= before.1 + 1 => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        CpuSet { stretches: merged }
    }

    /// The set that a mask in hexadecimal digits writes, with commas between its words of 32 bits, the highest first: `cpumap`
    /// of sysfs, `affinity` of NCCL, and `cpuset` of hwloc (whose words begin with `0x` and may be empty).
    ///
    /// # Errors
    ///
    /// [`NoCpuSet`] where the text is no mask, or one of infinitely many CPUs or of more than 65,536.
    pub fn from_mask(text: &str) -> Result<CpuSet, NoCpuSet> {
        let mut numbers = Vec::new();
        let words: Vec<&str> = text.trim().split(',').collect();
        if words.len() > CPU_MAX as usize / 32 + 1 {
            return Err(NoCpuSet);
        }
        for (word, at) in words.iter().rev().zip(0u32..) {
            let word = word.trim_start_matches("0x");
            let bits =
                if word.is_empty() && words.len() > 1 { 0 } else { hexadecimal(word, 8).ok_or(NoCpuSet)? };
            numbers.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| at * 32 + bit));
        }
        Ok(CpuSet::of(numbers))
    }

    /// The mask, in words of eight digits.
    pub fn mask(&self) -> String {
        let words = self.stretches.last().map_or(1, |(_, last)| last / 32 + 1);
        let mut bits = vec![0u32; words as usize];
        for number in self.iter() {
            bits[number as usize / 32] |= 1 << (number % 32);
        }
        bits.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
    }

    /// Its numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.stretches.iter().flat_map(|&(first, last)| first..=last)
    }

    /// How many CPUs it has.
    pub fn len(&self) -> usize {
        self.stretches.iter().map(|(first, last)| (last - first + 1) as usize).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.stretches.is_empty()
    }

    /// Whether it has this CPU.
    pub fn contains(&self, number: u32) -> bool {
        self.stretches.iter().any(|&(first, last)| (first..=last).contains(&number))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stretch = |&(first, last): &(u32, u32)| {
            if first == last { first.to_string() } else { format!("{first}-{last}") }
        };
        f.write_str(&self.stretches.iter().map(stretch).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for CpuSet {
    type Err = NoCpuSet;

    /// Reads a list as sysfs writes it: `0-3,8,10-11`; an empty text is the empty set.
    fn from_str(text: &str) -> Result<Self, NoCpuSet> {
        let number = |text: &str| match text.parse::<u32>() {
            Ok(number) if number <= CPU_MAX => Ok(number),
            _ => Err(NoCpuSet),
        };
        let stretch = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last) = (number(first)?, number(last)?);
            if first <= last { Ok((first, last)) } else { Err(NoCpuSet) }
        };
        if text.trim().is_empty() {
            return Ok(CpuSet::default());
        }
        Ok(Self::of_stretches(text.trim().split(',').map(stretch).collect::<Result<Vec<_>, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_all_their_forms() {
        let address = |text: &str| text.parse::<BusId>().map(|bus| bus.to_string());
        assert_eq!(address("0000:3B:00.0"), Ok("0000:3b:00.0".into()));
        assert_eq!(address("00000000:3b:00.0"), Ok("0000:3b:00.0".into()), "as NVML writes it");
        assert_eq!(address("3b:00.1"), Ok("0000:3b:00.1".into()), "as lspci writes it");
        assert_eq!(address("10de:ff:1c.0"), Ok("10de:ff:1c.0".into()));
        for wrong in
            ["", "0000", "0:1:2:3.0", "000g:00:00.0", "0000:3b0:00.0", "0000:3b:00.", "123456789:0:0.0"]
        {
            assert!(address(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn hidden_devices_are_known_by_their_digits() {
        for hidden in ["fffffff:ff:ff.0", "fffffff:ffff:ff", "FFFFFFFF:FF:FF.F"] {
            assert!(BusId::is_hidden(hidden), "{hidden}");
        }
        for seen in ["ffff:ff:01.0", "0000:ff:1f.7", "", "f", "ffffffffffffx", "0000:00:00.0"] {
            assert!(!BusId::is_hidden(seen), "{seen}");
        }
    }

    #[test]
    fn sets_of_cpus_have_two_forms() {
        let set = CpuSet::from_mask("0000,0fffff00,000fffff").expect("a mask");
        assert_eq!(set.to_string(), "0-19,40-59");
        assert_eq!((set.len(), set.contains(19), set.contains(20)), (40, true, false));
        assert_eq!(CpuSet::from_mask(&set.mask()), Ok(set.clone()));
        assert_eq!(set.to_string().parse(), Ok(set));
        let hwloc = CpuSet::from_mask("0x00000303,0x03030000,,0x03030303").expect("a mask");
        assert_eq!(hwloc.iter().take(3).collect::<Vec<_>>(), [0, 1, 8]);
        assert_eq!(hwloc.iter().last(), Some(105));
        assert_eq!("".parse(), Ok(CpuSet::default()));
        assert_eq!("3,1-2,0".parse::<CpuSet>().map(|set| set.to_string()), Ok("0-3".into()));
        for wrong in ["3-1", "70000", "0-", "a", "0--1"] {
            assert!(wrong.parse::<CpuSet>().is_err(), "{wrong:?}");
        }
        for wrong in ["", "0xf...f", "123456789", "g", "0-3"] {
            assert!(CpuSet::from_mask(wrong).is_err(), "{wrong:?}");
        }
    }
}
