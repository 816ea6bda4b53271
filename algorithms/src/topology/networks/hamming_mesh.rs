//! HammingMesh: boards that are small meshes, in rows and columns.

use super::draft::{Draft, End};
use super::words::{Boxes, Family, Key, Values};

/// A HammingMesh: `columns` by `rows` boards, each a mesh of `a` by `b` accelerators. The two ends of each line of a board
/// lead to the switch of that line: one switch for each row of accelerators, and one for each column. An accelerator has
/// four ports and forwards messages. A switch stands for the tree of switches that a long line needs.
///
/// Source: T. Hoefler et al., "HammingMesh: a network topology for large-scale deep learning", SC 2022 (one plane of it;
/// there an HxMesh of `a` by `b` boards and `x` by `y` boards). Counted here: `a b x y` accelerators, `y b + x a`
/// switches, `x y (2 a b + a + b)` cables; diameter `2 floor((a-1)/2) + 2 floor((b-1)/2) + 4` where there are several boards
/// each way; a cut between two halves of the columns severs `x y b` cables, a share `1/2a` of what the
/// accelerators of a half can send.
pub(super) const FAMILY: Family = Family {
    name: "hamming-mesh",
    keys: &[
        Key::needed("a", "A", 1..=64),
        Key::needed("b", "B", 1..=64),
        Key::needed("columns", "X", 1..=1024),
        Key::needed("rows", "Y", 1..=1024),
    ],
    boxes: Boxes::Never,
    draft,
};

fn draft(values: &Values) -> Result<Draft, String> {
    let [a, b, columns, rows] = values.numbers();
    let (width, height) = (a * columns, b * rows);
    // The two ends of a line of one accelerator are cables side by side.
    let ends = |length: u32| if length == 1 { 1 } else { 2 };
    let along = |length: u32| u64::from(length - 1 + ends(length));
    let [w, h] = [width, height].map(u64::from);
    let cables = h * u64::from(columns) * along(a) + w * u64::from(rows) * along(b);
    let mut draft = Draft::announce(w * h, w + h, cables)?;
    draft.forwards = true;
    let row = draft.switches("row", height);
    let column = draft.switches("column", width);
    let host = |across: u32, down: u32| End::Host(down * width + across);
    for down in 0..height {
        for across in 0..width {
            let here = host(across, down);
            for (at, length, next, switch) in
                [(across, a, (across + 1, down), row + down), (down, b, (across, down + 1), column + across)]
            {
                let within = at % length;
                if within + 1 < length {
                    draft.cable(here, host(next.0, next.1));
                }
                if within == 0 || within + 1 == length {
                    draft.trunk(here, End::Switch(switch), 3 - ends(length));
                }
            }
        }
    }
    Ok(draft)
}
