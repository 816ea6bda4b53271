//! Devices: their number, their attributes, which device reaches which.

use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;

use crate::boundary::{Out, Text, exports};
use crate::code::{Answer, Code};
use crate::driver;
use crate::module::{REGISTERS, SHARED, SHARED_MULTIPROCESSOR, SHARED_OPT_IN, SHARED_RESERVED, THREADS};
use crate::settings::Peers;

fn put_text(place: Out<c_char>, room: c_int, text: &str) -> Answer {
    let room = usize::try_from(room).ok().filter(|room| *room > 0).ok_or(Code::INVALID_VALUE)?;
    let shown = &text.as_bytes()[..text.len().min(room - 1)];
    let mut bytes: Vec<c_char> = shown.iter().map(|byte| *byte as c_char).collect();
    bytes.push(0);
    place.put_all(&bytes)
}

/// The PCI address of a device: one bus for each.
fn pci(ordinal: i32) -> String {
    format!("0000:{:02X}:00.0", ordinal + 0x10)
}

/// An attribute that is not zero.
fn attribute(number: c_int, ordinal: c_int) -> Answer<c_int> {
    let settings = &driver::get()?.settings;
    Ok(match number {
        // Threads of a block, its sides, and those of a grid.
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        // Shared memory, constants, a warp, pitch, registers.
        8 => SHARED as i32,
        9 => 64 << 10,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => REGISTERS as i32,
        // Clocks in kHz, alignment, overlap, multiprocessors.
        13 => 1_000_000,
        14 | 51 => 512,
        15 => 1,
        16 => settings.multiprocessors() as i32,
        // Host memory can be mapped; several kernels at once.
        19 | 31 => 1,
        // ECC is off, the bus, and below the rest of the PCI address, which is zero.
        33 => ordinal + 0x10,
        36 => 1_000_000,
        37 => 512,
        38 => 4 << 20,
        39 => THREADS as i32,
        40 => 2,
        // Unified addresses, compute capability, priorities, caches.
        41 => 1,
        75 => settings.capability.0 as i32,
        76 => settings.capability.1 as i32,
        78..=80 => 1,
        81 => SHARED_MULTIPROCESSOR as i32,
        // Managed memory; the host's atomics do not reach it over a link.
        83 => 1,
        // Preemption; registered memory has the host's address; memory operations of streams.
        90..=94 | 122 | 123 => 1,
        95 => 1,
        97 => SHARED_OPT_IN as i32,
        98 | 99 => 1,
        // Virtual memory, exported as descriptors.
        102 | 103 => 1,
        106 => settings.blocks_per_multiprocessor() as i32,
        111 => SHARED_RESERVED as i32,
        113 => 1,
        115 => 1,
        // Other devices reach memory; what they have written is there after a flush by the host; DMA buffers.
        116 | 117 | 124 => 1,
        129 => 1,
        130 => 0,
        131 | 134 => -1,
        ..=0 | 148.. => return Err(Code::INVALID_VALUE),
        _ => 0,
    })
}

/// Whether a device can be made to reach another's memory, as this driver says.
pub(crate) fn is_reachable(device: i32, peer: i32) -> Answer<bool> {
    let driver = driver::get()?;
    driver.device(device)?;
    driver.device(peer)?;
    Ok(device != peer && driver.settings.peers != Peers::None)
}

fn uuid(ordinal: c_int) -> Answer<[u8; 16]> {
    driver::get()?.device(ordinal)?;
    let mut uuid = *b"standin device..";
    uuid[14..].copy_from_slice(&(ordinal as u16).to_be_bytes());
    Ok(uuid)
}

exports! {
    /// The number of devices.
    fn cuDeviceGetCount(count: Out<c_int>) {
        count.put(driver::get()?.settings.devices as c_int)
    }

    /// The device of this number: the number.
    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        driver::get()?.device(ordinal)?;
        device.put(ordinal)
    }

    /// The name of a device.
    fn cuDeviceGetName(name: Out<c_char>, room: c_int, device: c_int) {
        driver::get()?.device(device)?;
        put_text(name, room, &format!("stand-in device {device} (host memory, no GPU)"))
    }

    /// The UUID of a device: the same for this number in every process of the machine.
    fn cuDeviceGetUuid_v2(place: Out<[u8; 16]>, device: c_int) {
        place.put(uuid(device)?)
    } = cuDeviceGetUuid;

    /// Bytes of a device's memory.
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        driver::get()?.device(device)?;
        bytes.put(driver::get()?.settings.memory as usize)
    }

    /// An attribute of a device.
    fn cuDeviceGetAttribute(value: Out<c_int>, number: c_int, device: c_int) {
        driver::get()?.device(device)?;
        value.put(attribute(number, device)?)
    }

    /// The PCI address of a device.
    fn cuDeviceGetPCIBusId(text: Out<c_char>, room: c_int, device: c_int) {
        driver::get()?.device(device)?;
        put_text(text, room, &pci(device))
    }

    /// The device at a PCI address.
    fn cuDeviceGetByPCIBusId(device: Out<c_int>, text: Text) {
        let wanted = text.get()?.to_string_lossy();
        let mut all = 0..driver::get()?.settings.devices as c_int;
        device.put(all.find(|ordinal| pci(*ordinal).eq_ignore_ascii_case(&wanted)).ok_or(Code::INVALID_DEVICE)?)
    }

    /// Whether a device reaches another, as the settings say.
    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        can.put(c_int::from(is_reachable(device, peer)?))
    }

    /// Rank 0; access and atomics where there is access; no arrays.
    fn cuDeviceGetP2PAttribute(value: Out<c_int>, number: c_int, device: c_int, peer: c_int) {
        let reachable = is_reachable(device, peer)?;
        if device == peer {
            return Err(Code::INVALID_DEVICE);
        }
        match number {
            1 | 4 | 5 => value.put(0),
            2 | 3 => value.put(c_int::from(reachable)),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Free and total bytes of the current context's device, by the memory that this process has of it.
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let context = crate::context::working()?;
        let driver = driver::get()?;
        let used = driver.device(context.device as c_int)?.used.load(Ordering::Relaxed);
        free.put((driver.settings.memory - used) as usize)?;
        total.put(driver.settings.memory as usize)
    }
}
