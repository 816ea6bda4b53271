//! Domains of NVLink that span several hosts.

use super::draft::{Draft, End};
use super::words::{Boxes, Family, Key, Values};

/// Ports of an NVLink switch of the fifth generation, and links of a GPU.
const PORTS: u32 = 72;
const LINKS: u32 = 18;

/// GPUs that load and store in each other's memory over NVLink switches: up to 72 with one tier of switches, up to 576
/// with two. A GPU has 18 links of 50 GB/s each way (`gbit=400`), one to each of 18 planes; `planes=1` draws them as
/// one, with the bandwidth of all, which is what a route over a single path can use.
///
/// Source: NVIDIA, "GB200 NVL72" (72 GPUs, 18 switch chips of 72 ports, 1.8 TB/s a GPU both ways together, so 130 TB/s in
/// all) and "NVIDIA NVLink and NVLink Switch" (up to 576 GPUs without blocking). The wiring of 576 is not published:
/// here a plane is a folded Clos network of those chips, with 36 GPUs below each lower one and as few upper ones as share
/// the 36 ways up evenly.
pub(super) const FAMILY: Family = Family {
    name: "nvlink",
    keys: &[Key::needed("gpus", "GPUS", 2..=576), Key::or("planes", "1|18", 1, 1..=LINKS)],
    boxes: Boxes::Never,
    draft,
};

fn draft(values: &Values) -> Result<Draft, String> {
    let [gpus, planes] = values.numbers();
    if !LINKS.is_multiple_of(planes) {
        return Err(format!("planes={planes} does not divide the {LINKS} links of a GPU"));
    }
    let links = LINKS / planes;
    if gpus <= PORTS {
        let [g, p] = [gpus, planes].map(u64::from);
        let mut draft = Draft::announce(g, p, g * p)?;
        draft.is_domain = true;
        draft.switches("nvswitch", planes);
        for number in 0..gpus * planes {
            draft.trunk(End::Host(number / planes), End::Switch(number % planes), links);
        }
        return Ok(draft);
    }
    let below = PORTS / 2;
    if !gpus.is_multiple_of(below) {
        return Err(format!("gpus={gpus}: more than {PORTS} come in multiples of {below}"));
    }
    let lower = gpus / below;
    let enough = |upper: &u32| below.is_multiple_of(*upper) && upper * PORTS >= gpus;
    let upper = (1..=below).find(enough).expect("36 chips of 72 ports take 16 times 36 links");
    let [g, p, l, u] = [gpus, planes, lower, upper].map(u64::from);
    let mut draft = Draft::announce(g, p * (l + u), p * (g + l * u))?;
    draft.is_domain = true;
    for plane in 0..planes {
        let first = draft.switches(&format!("nvswitch{plane}."), lower);
        let top = draft.switches(&format!("nvspine{plane}."), upper);
        for gpu in 0..gpus {
            draft.trunk(End::Host(gpu), End::Switch(first + gpu / below), links);
        }
        for number in 0..lower * upper {
            let chip = End::Switch(first + number / upper);
            draft.trunk(chip, End::Switch(top + number % upper), links * (below / upper));
        }
    }
    Ok(draft)
}
