//! What each rank of a host sees of it by itself, as one machine: in containers each may see one GPU and a part of the PCI tree.
//!
//! Invariant: ranks never fail to join because of what they see; a host whose views contradict each other says nothing. Absent: files, which
//! must say the same on all ranks of a host (`verdict`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use consort_algorithms::hardware::exchange::read_hardware;
use consort_algorithms::hardware::{Hardware, PROBED, merge};
use consort_types::Rank;

use super::super::wire::{HARDWARE_MAX, Member};
use super::verdict::Arrival;

/// Whether a machine is what a rank sees by itself, and no file.
pub(super) fn is_view(text: &[u8]) -> bool {
    // A whole word of a host's line.
    let word = format!(" +{PROBED}=");
    std::str::from_utf8(text).is_ok_and(|text| text.contains(&word))
}

/// What ranks of one host say alike is kept once.
pub(super) fn share(arrived: &BTreeMap<Rank, Arrival>, member: &mut Member) {
    let here = || arrived.values().map(|of| &of.member).filter(|known| known.host_key == member.host_key);
    if let Some(known) = here().find(|known| known.hardware == member.hardware) {
        member.hardware = known.hardware.clone();
    }
}

/// Gives all ranks of a host what they see together; where a rank of it has a file, what is seen is not used. To be called when all
/// are here.
pub(super) fn unite(arrived: &mut BTreeMap<Rank, Arrival>) {
    let known = || arrived.values().map(|of| &of.member).filter(|member| !member.hardware.is_empty());
    let (views, files): (Vec<&Member>, Vec<&Member>) = known().partition(|of| is_view(&of.hardware));
    let with_file: BTreeSet<[u8; 16]> = files.iter().map(|member| member.host_key).collect();
    // By their bytes: the same for any order of ranks.
    let mut hosts: BTreeMap<[u8; 16], BTreeSet<Arc<Vec<u8>>>> = BTreeMap::new();
    for member in views {
        hosts.entry(member.host_key).or_default().insert(member.hardware.clone());
    }
    let mut whole: BTreeMap<[u8; 16], Arc<Vec<u8>>> = BTreeMap::new();
    for (host, views) in hosts {
        if with_file.contains(&host) {
            whole.insert(host, Arc::default());
        } else if views.len() > 1 {
            let text = united(&views).unwrap_or_else(|why| {
                tracing::warn!(%why, "what ranks of one host see of it is not used");
                Vec::new()
            });
            whole.insert(host, Arc::new(text));
        }
    }
    for Arrival { member, .. } in arrived.values_mut().filter(|_| !whole.is_empty()) {
        if let Some(text) = whole.get(&member.host_key).filter(|_| is_view(&member.hardware)) {
            member.hardware = text.clone();
        }
    }
}

fn united(views: &BTreeSet<Arc<Vec<u8>>>) -> Result<Vec<u8>, String> {
    let read = |view: &Arc<Vec<u8>>| read_hardware(view).map(|(hardware, _)| hardware);
    let views: Vec<Hardware> =
        views.iter().map(read).collect::<Result<_, _>>().map_err(|why| why.to_string())?;
    let whole = merge(&views).map_err(|why| why.to_string())?.to_string().into_bytes();
    if whole.len() > HARDWARE_MAX {
        return Err(format!(
            "its {} bytes as text are more than a table holds ({HARDWARE_MAX})",
            whole.len()
        ));
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::super::verdict;
    use super::*;

    fn arrived(texts: &[(u8, &str)]) -> BTreeMap<Rank, Arrival> {
        let settings = verdict::Settings::default();
        let arrival = |(host, text): &(u8, &str)| {
            let mut member = Member::unknown();
            member.host_key = [*host; 16];
            member.hardware = Arc::new(text.as_bytes().to_vec());
            Arrival { settings: settings.clone(), member }
        };
        (0..).zip(texts.iter().map(arrival)).collect()
    }

    /// A container's view: one GPU of the host.
    fn view(gpu: u8, class: &str) -> String {
        format!(
            "hardware\nhost h0 +{PROBED}=yes\nnuma n0 on=h0 number=0\ngpu g0 on=h0 bus=0000:0{gpu}:00.0 class={class} described=yes\n\
             link h0 n0 local\nlink n0 g0 pcie generation=4 width=16\n"
        )
    }

    #[test]
    fn views_of_one_host_become_one_machine() {
        let (one, other) = (view(1, "0x030200"), view(2, "0x030200"));
        let mut all = arrived(&[(0, &one), (0, &other), (1, &one), (0, "")]);
        assert_eq!(verdict::difference(&all), None, "views may differ");
        unite(&mut all);
        let text = |rank: Rank| String::from_utf8(all[&rank].member.hardware.to_vec()).expect("text");
        assert_eq!(text(0), text(1));
        let (whole, _) = read_hardware(text(0).as_bytes()).expect("a machine");
        assert_eq!(whole.gpus().len(), 2, "{}", text(0));
        assert_eq!((text(2), text(3)), (one.clone(), String::new()));
        assert_eq!(verdict::difference(&all), None);
    }

    #[test]
    fn what_ranks_of_one_host_say_alike_is_kept_once() {
        let (one, other) = (view(1, "0x030200"), view(2, "0x030200"));
        let all = arrived(&[(0, &one), (0, &other), (1, &one)]);
        let shared = |host: u8, text: &str| {
            let mut last = arrived(&[(host, text)]).remove(&0).expect("a rank").member;
            share(&all, &mut last);
            assert_eq!(last.hardware.as_slice(), text.as_bytes());
            (0..3).find(|rank| Arc::ptr_eq(&last.hardware, &all[rank].member.hardware))
        };
        assert_eq!([shared(0, &other), shared(1, &one), shared(2, &one)], [Some(1), Some(2), None]);
    }

    #[test]
    fn the_file_of_one_rank_goes_before_what_ranks_of_its_host_see() {
        let file = "hardware m\nhost h0\ngpu g0 on=h0 bus=0000:0a:00.0\n";
        let mut all = arrived(&[
            (0, &view(1, "0x030200")),
            (0, file),
            (0, &view(2, "0x030200")),
            (1, &view(3, "0x030200")),
        ]);
        unite(&mut all);
        assert_eq!(verdict::difference(&all), None);
        let bytes = |rank: Rank| String::from_utf8(all[&rank].member.hardware.to_vec()).expect("text");
        assert_eq!([bytes(0), bytes(1), bytes(2)], [String::new(), file.into(), String::new()]);
        assert_eq!(bytes(3), view(3, "0x030200"), "another host has no file");
    }

    #[test]
    fn views_as_long_as_they_may_be_are_merged_in_time() {
        // Each rank sees hundreds of devices that no other rank sees.
        let text = |rank: u32| {
            let mut text =
                format!("hardware\nhost h0 +{PROBED}=yes\nnuma n0 on=h0 number=0\nlink h0 n0 local\n");
            for device in 0..500 {
                let bus = format!("{rank:04x}:{:02x}:{:02x}.0", device / 32, device % 32);
                text += &format!(
                    "bridge b{device} on=h0 bus={bus} class=0x060400\nlink n0 b{device} pcie generation=4 width=16\n"
                );
            }
            assert!((40_000..=HARDWARE_MAX).contains(&text.len()), "{}", text.len());
            text
        };
        let texts: Vec<String> = (0..1024).map(text).collect();
        let mut all = arrived(&texts.iter().map(|text| (0, text.as_str())).collect::<Vec<_>>());
        // A merge that looks at all links for each would take hours.
        unite(&mut all);
        assert!(all.values().all(|of| of.member.hardware.is_empty()), "together they are too long");
    }

    #[test]
    fn views_that_contradict_each_other_say_nothing_and_end_nothing() {
        let (one, other) = (view(1, "0x030200"), view(1, "0x030000"));
        let mut all = arrived(&[(0, &one), (0, &other)]);
        unite(&mut all);
        assert!(all.values().all(|of| of.member.hardware.is_empty()));
        let mut all = arrived(&[(0, &one), (0, &format!("{one}\nnonsense +{PROBED}=yes"))]);
        unite(&mut all);
        assert!(all.values().all(|of| of.member.hardware.is_empty()));
    }
}
