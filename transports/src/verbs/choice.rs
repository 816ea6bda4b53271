//! The order in which a rank takes ports: by their distance, then by their speed; ranks as near as each other take turns.
//!
//! Invariant: pure; ports of the same distance and speed keep their order but for the turn. Absent: which ports there are.

use super::options::DeviceLevel;
use super::sysfs::Placement;

/// Where a rank is, and which of those that are as near it is.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Near {
    /// The PCI address of its GPU, as 0000:65:00.0, where it has one.
    pub device: Option<String>,
    /// The memory node in which it runs, where it keeps to one.
    pub node: Option<u32>,
    /// How many ranks of its host that are in the same place come before it.
    pub turn: usize,
    /// How many ranks of its host are in the same place, with this one; 0 where that is not known.
    pub ranks: usize,
}

/// How far a port is from a rank; the nearest is the least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Distance {
    /// Below one port of the processor: what they send each other need not pass it.
    Switch {
        /// Bridges between them.
        bridges: usize,
    },
    /// At one root of PCI.
    Root,
    /// In one memory node.
    Node,
    /// Not known.
    Unknown,
    /// In another memory node.
    Elsewhere,
}

impl Distance {
    /// From the place of a rank's GPU, if it has one, or from its memory node to a port.
    pub(super) fn between(gpu: Option<&Placement>, node: Option<u32>, port: &Placement) -> Self {
        if let (Some(gpu), Some(_)) = (gpu.and_then(|gpu| gpu.path.as_deref()), &port.path)
            && let Some(distance) = Self::over_pci(gpu, port)
        {
            return distance;
        }
        match (gpu.and_then(|gpu| gpu.node).or(node), port.node) {
            (Some(own), Some(other)) if own == other => Distance::Node,
            (Some(_), Some(_)) => Distance::Elsewhere,
            _ => Distance::Unknown,
        }
    }

    /// The distance of two devices that are at one root of PCI.
    fn over_pci(gpu: &str, port: &Placement) -> Option<Self> {
        let other = port.path.as_deref()?;
        let shared = gpu.split('/').zip(other.split('/')).take_while(|(one, other)| one == other);
        let shared: Vec<&str> = shared.map(|(part, _)| part).collect();
        let root = shared.iter().position(|part| part.starts_with("pci"))?;
        // What follows the root are bridges and switches.
        let common = shared.len() - root - 1;
        let depth = |path: &str| path.split('/').count() - root - 1;
        let bridges = depth(gpu) + depth(other) - 2 * common;
        Some(if common > 0 { Distance::Switch { bridges } } else { Distance::Root })
    }
}

impl Distance {
    /// As NCCL counts it; none where it is not known.
    pub(super) fn level(self) -> Option<DeviceLevel> {
        /// Below one switch each has a port of it, and itself.
        const ONE_SWITCH: usize = 4;
        Some(match self {
            Distance::Switch { bridges } if bridges <= ONE_SWITCH => DeviceLevel::Pix,
            Distance::Switch { .. } => DeviceLevel::Pxb,
            Distance::Root | Distance::Node => DeviceLevel::Phb,
            Distance::Elsewhere => DeviceLevel::Sys,
            Distance::Unknown => return None,
        })
    }
}

/// What the order of a port depends on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Standing {
    pub(super) distance: Distance,
    pub(super) speed_mbit_s: u64,
    /// Its adapter: its ports, and its functions, share what leads to it.
    pub(super) adapter: String,
}

/// The ports by their numbers, the best first.
pub(super) fn order(ports: &[&Standing], turn: usize) -> Vec<usize> {
    let key = |at: usize| (ports[at].distance, std::cmp::Reverse(ports[at].speed_mbit_s));
    // Ports of one adapter come after the first ones of others.
    let of_adapter = |at: usize| {
        let before = ports[..at].iter().enumerate();
        before.filter(|(other, of)| of.adapter == ports[at].adapter && key(*other) == key(at)).count()
    };
    let mut order: Vec<usize> = (0..ports.len()).collect();
    order.sort_by_key(|at| (key(*at), of_adapter(*at), *at));
    for equals in order.chunk_by_mut(|one, other| key(*one) == key(*other)) {
        equals.rotate_left(turn % equals.len());
    }
    order
}

/// Of ports in the order of a rank, those that it takes, and whether each is a reserve: ports as near and fast as the first are dealt
/// out among the `ranks` in the same place, each takes `most` at most; a rank with one has the next port as a reserve, of another adapter where
/// there is one.
pub(super) fn share(ports: &[&Standing], ranks: usize, most: usize) -> Vec<(usize, bool)> {
    let Some(first) = ports.first() else { return Vec::new() };
    let is_equal = |of: &&&Standing| (of.distance, of.speed_mbit_s) == (first.distance, first.speed_mbit_s);
    let equals = ports.iter().take_while(is_equal).count();
    let ranks = ranks.max(1);
    let own: Vec<usize> = (0..equals / ranks).map(|turn| turn * ranks).take(most).collect();
    if own.len() > 1 {
        return own.into_iter().map(|at| (at, false)).collect();
    }
    let others = 1..ports.len();
    let reserve = others.clone().find(|at| ports[*at].adapter != first.adapter).or(others.clone().next());
    [Some((0, false)), reserve.map(|at| (at, true))].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCH: &str = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0";

    fn at(path: &str, node: Option<u32>) -> Placement {
        Placement { path: Some(path.into()), node }
    }

    #[test]
    fn distances_go_by_what_two_devices_share() {
        let gpu = at(&format!("{SWITCH}/0000:17:00.0/0000:18:00.0"), Some(0));
        let to = |path: &str, node| Distance::between(Some(&gpu), None, &at(path, node));
        let same = to(&format!("{SWITCH}/0000:17:02.0/0000:1a:00.0"), Some(0));
        let farther = to(&format!("{SWITCH}/0000:17:03.0/0000:40:00.0/0000:41:00.0/0000:42:00.0"), Some(0));
        let root = to("sys/devices/pci0000:15/0000:15:02.0/0000:30:00.0", Some(0));
        let node = to("sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0", Some(0));
        let elsewhere = to("sys/devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0", Some(1));
        let unknown = to("sys/devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0", None);
        assert_eq!(same, Distance::Switch { bridges: 4 });
        assert_eq!(
            (root, node, elsewhere, unknown),
            (Distance::Root, Distance::Node, Distance::Elsewhere, Distance::Unknown)
        );
        let mut all = [unknown, elsewhere, node, root, farther, same];
        all.sort();
        assert_eq!(all, [same, farther, root, node, unknown, elsewhere]);
        // Without a GPU the memory node says it, and without PCI too.
        assert_eq!(Distance::between(None, Some(1), &at("x", Some(1))), Distance::Node);
        assert_eq!(Distance::between(None, Some(1), &at("x", Some(0))), Distance::Elsewhere);
        assert_eq!(Distance::between(None, None, &at("x", Some(0))), Distance::Unknown);
        assert_eq!(Distance::between(None, Some(1), &Placement::default()), Distance::Unknown);
    }

    #[test]
    fn the_nearest_then_the_fastest_then_in_turn_and_adapters_before_their_second_ports() {
        let port = |distance, speed_mbit_s, adapter: &str| Standing {
            distance,
            speed_mbit_s,
            adapter: adapter.into(),
        };
        let ports = [
            port(Distance::Elsewhere, 400_000, "a"),
            port(Distance::Node, 100_000, "b"),
            port(Distance::Node, 200_000, "c"),
            port(Distance::Node, 200_000, "c"),
            port(Distance::Node, 200_000, "d"),
            port(Distance::Node, 200_000, "d"),
        ];
        let ports: Vec<&Standing> = ports.iter().collect();
        assert_eq!(order(&ports, 0), [2, 4, 3, 5, 1, 0]);
        assert_eq!(order(&ports, 1), [4, 3, 5, 2, 1, 0]);
        assert_eq!(order(&ports, 5), order(&ports, 1));
        let first: Vec<usize> = (0..4).map(|turn| order(&ports, turn)[0]).collect();
        assert_eq!(first, [2, 4, 3, 5], "four ranks, four ports");
        assert!(order(&[], 3).is_empty());
    }

    #[test]
    fn ports_are_dealt_out_among_ranks_and_who_has_one_has_a_reserve() {
        let port = |speed_mbit_s, adapter: &str| Standing {
            distance: Distance::Node,
            speed_mbit_s,
            adapter: adapter.into(),
        };
        let all: Vec<Standing> = (0..8).map(|at| port(400_000, &format!("a{at}"))).collect();
        let all: Vec<&Standing> = all.iter().collect();
        // Which of the eight ports each of some ranks takes, by the order that its turn gives it.
        let taken = |ranks: usize| -> Vec<Vec<usize>> {
            let of = |turn| {
                let order = order(&all, turn);
                let primary = |(at, is_reserve): (usize, bool)| (!is_reserve).then(|| order[at]);
                share(&all, ranks, 4).into_iter().filter_map(primary).collect()
            };
            (0..ranks).map(of).collect()
        };
        assert_eq!(taken(2), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(taken(4), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(taken(1)[0].len(), 4, "as many as a connection has");
        assert_eq!(taken(8).concat(), (0..8).collect::<Vec<_>>());
        assert_eq!(taken(16)[9], [1], "two ranks a port");
        assert_eq!(share(&all, 0, 4).len(), 4, "an unknown number of ranks is one");

        let ports = [port(400_000, "a"), port(200_000, "a"), port(100_000, "b")];
        let ports: Vec<&Standing> = ports.iter().collect();
        assert_eq!(share(&ports, 1, 4), [(0, false), (2, true)], "of another adapter");
        assert_eq!(share(&ports[..2], 1, 4), [(0, false), (1, true)]);
        assert_eq!(share(&ports[..1], 1, 4), [(0, false)]);
        assert!(share(&[], 1, 4).is_empty());
    }
}
