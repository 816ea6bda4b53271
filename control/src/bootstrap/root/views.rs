//! What each rank of a host sees of it by itself, as one machine: in containers each may see one GPU and a part of the PCI tree.
//!
//! Invariant: ranks never fail to join because of what they see; a host whose views contradict each other says nothing. Absent: files, which
//! must say the same on all ranks of a host (`verdict`).

use std::collections::BTreeMap;
use std::sync::Arc;

use consort_algorithms::hardware::exchange::read_hardware;
use consort_algorithms::hardware::{Hardware, PROBED, merge};
use consort_types::Rank;

use super::super::wire::HARDWARE_MAX;
use super::verdict::Arrival;

/// Whether a machine is what a rank sees by itself, and no file.
pub(super) fn is_view(text: &[u8]) -> bool {
    // A whole word of a host's line.
    let word = format!(" +{PROBED}=");
    text.windows(word.len()).any(|part| part == word.as_bytes())
}

/// Gives all ranks of a host what they see together. To be called when all are here.
pub(super) fn unite(arrived: &mut BTreeMap<Rank, Arrival>) {
    let mut hosts: BTreeMap<[u8; 16], Vec<Arc<Vec<u8>>>> = BTreeMap::new();
    for Arrival { member, .. } in arrived.values().filter(|of| is_view(&of.member.hardware)) {
        let views = hosts.entry(member.host_key).or_default();
        if !views.contains(&member.hardware) {
            views.push(member.hardware.clone());
        }
    }
    for (host, views) in hosts.into_iter().filter(|(_, views)| views.len() > 1) {
        let whole = united(&views).unwrap_or_else(|why| {
            tracing::warn!(%why, "what ranks of one host see of it is not used");
            Vec::new()
        });
        let whole = Arc::new(whole);
        for Arrival { member, .. } in arrived.values_mut() {
            if member.host_key == host && is_view(&member.hardware) {
                member.hardware = whole.clone();
            }
        }
    }
}

fn united(views: &[Arc<Vec<u8>>]) -> Result<Vec<u8>, String> {
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
            let mut member = verdict::nowhere();
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
