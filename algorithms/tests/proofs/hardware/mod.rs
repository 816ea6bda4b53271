//! Machines from files: what is read, that it comes back after it was written, and what is refused.

mod bad_input;
mod boxes;
mod drawing;
mod machines;
mod other_formats;
mod warnings;

pub(crate) use boxes::dgx_1;
use consort_algorithms::hardware::exchange::{Note, ReadError, nccl_topology_xml, read_hardware};
use consort_algorithms::hardware::{Hardware, Rates};

/// The machine of a text that is right.
fn machine(text: &str) -> Hardware {
    noted(text).0
}

/// The machine, and what was left out.
fn noted(text: &str) -> (Hardware, Vec<Note>) {
    match read_hardware(text.as_bytes()) {
        Ok(read) => read,
        Err(error) => panic!("{error}\n{text}"),
    }
}

/// Why a text is refused.
fn refused(text: &str) -> ReadError {
    match read_hardware(text.as_bytes()) {
        Ok((hardware, _)) => panic!("it was read:\n{hardware}"),
        Err(error) => error,
    }
}

/// Writes and reads the machine again, as text.
fn survives_text(hardware: &Hardware) {
    let text = hardware.to_string();
    assert_eq!(machine(&text), *hardware, "{text}");
}

/// Writes and reads the machine again, as NCCL's XML.
fn survives_xml(hardware: &Hardware) {
    let xml = nccl_topology_xml(hardware).expect("it can be written");
    assert_eq!(machine(&xml), *hardware, "{xml}");
}

/// The wires by kind and gigabytes a second, each with its number.
fn wires(hardware: &Hardware, rates: Rates) -> String {
    let mut counts: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for link in hardware.summary(rates).links {
        let gb_s = link.bytes_s.map_or("?".into(), |bytes_s| (bytes_s as f64 / 1e9).to_string());
        *counts.entry(format!("{} {gb_s}", link.kind)).or_default() += 1;
    }
    counts.iter().map(|(wire, count)| format!("{count} x {wire}")).collect::<Vec<_>>().join(", ")
}
