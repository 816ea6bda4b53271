//! The arithmetic of a mesh: ranks and their places on axes; the last axis varies fastest.
//!
//! Invariant: pure; the same arguments give the same result on every rank. Absent: communicators, and where ranks run.

use crate::Rank;
use consort_types::error::{Error, Result};

/// Axes of a mesh, at most.
const AXES_MAX: usize = 16;
/// Bytes of the name of an axis, at most: names are in the texts of errors.
const NAME_BYTES_MAX: usize = 32;

/// The axes of a mesh, each with how many places it has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    axes: Vec<(String, u32)>,
}

/// Some axes of a shape by their numbers, in the shape's order: none twice, and one at least.
pub(super) type Along = Vec<usize>;

impl Shape {
    /// Checked for a communicator of this number of ranks.
    pub(super) fn new(axes: &[(&str, u32)], ranks: u32) -> Result<Self> {
        if axes.is_empty() || axes.len() > AXES_MAX {
            let what = format!("a mesh of {} axes", axes.len());
            return Err(Error::invalid(what, format!("name from 1 to {AXES_MAX} axes")));
        }
        for (at, (name, size)) in axes.iter().enumerate() {
            if name.len() > NAME_BYTES_MAX || !is_plain(name) {
                let hint =
                    format!("name it by 1 to {NAME_BYTES_MAX} bytes of letters, digits, `_`, `-` and `.`");
                return Err(Error::invalid(format!("axis {at} of a mesh has the name {name:?}"), hint));
            }
            if axes[..at].iter().any(|(before, _)| before == name) {
                return Err(Error::invalid(
                    format!("a mesh has two axes with the name {name}"),
                    "give each axis a name of its own",
                ));
            }
            if *size == 0 {
                let what = format!("the axis {name} of a mesh has the size 0");
                return Err(Error::invalid(what, "an axis that is not used has the size 1, or is left out"));
            }
        }
        let product = axes.iter().try_fold(1u32, |product, (_, size)| product.checked_mul(*size));
        if product != Some(ranks) {
            let places = product.map_or("more than 2^32".into(), |product| product.to_string());
            return Err(Error::invalid(
                format!(
                    "a mesh of {} has {places} places, and the communicator has {ranks} ranks",
                    text(axes, &[])
                ),
                "choose sizes whose product is the number of ranks",
            ));
        }
        Ok(Shape { axes: axes.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect() })
    }

    pub(super) fn axes(&self) -> impl ExactSizeIterator<Item = (&str, u32)> {
        self.axes.iter().map(|(name, size)| (name.as_str(), *size))
    }

    /// The number of an axis.
    pub(super) fn axis(&self, name: &str) -> Result<usize> {
        self.axes.iter().position(|(known, _)| known == name).ok_or_else(|| {
            Error::invalid(
                format!("the mesh has no axis {name:?}"),
                format!("it has {}", self.names().join(", ")),
            )
        })
    }

    /// The axes with these names, given in any order.
    pub(super) fn along(&self, names: &[&str]) -> Result<Along> {
        if names.is_empty() {
            let hint = format!("name one at least of {}", self.names().join(", "));
            return Err(Error::invalid("a set of no axes", hint));
        }
        let mut along = names.iter().map(|name| self.axis(name)).collect::<Result<Along>>()?;
        along.sort_unstable();
        if let Some(pair) = along.windows(2).find(|pair| pair[0] == pair[1]) {
            let what = format!("the axis {} is named twice in {}", self.axes[pair[0]].0, names.join("+"));
            return Err(Error::invalid(what, "name each axis once"));
        }
        Ok(along)
    }

    /// The ranks from one place of an axis to the next.
    fn stride(&self, axis: usize) -> u32 {
        self.axes[axis + 1..].iter().map(|(_, size)| size).product()
    }

    pub(super) fn size(&self, axis: usize) -> u32 {
        self.axes[axis].1
    }

    /// The place of a rank on an axis.
    pub(super) fn coordinate(&self, rank: Rank, axis: usize) -> u32 {
        rank / self.stride(axis) % self.size(axis)
    }

    /// The rank with these places; on the axes that are not named it has those of `rank`.
    pub(super) fn rank_at(&self, rank: Rank, places: &[(&str, u32)]) -> Result<Rank> {
        self.along(&places.iter().map(|(name, _)| *name).collect::<Vec<_>>())?;
        let mut found = rank;
        for (name, place) in places {
            let axis = self.axis(name)?;
            if *place >= self.size(axis) {
                return Err(Error::invalid(
                    format!("the place {place} on the axis {name}, which has {}", self.size(axis)),
                    "places count from 0 to the size of the axis - 1",
                ));
            }
            found = found - self.coordinate(rank, axis) * self.stride(axis) + place * self.stride(axis);
        }
        Ok(found)
    }

    /// The ranks that differ from `rank` on these axes alone, in ascending order.
    pub(super) fn members(&self, rank: Rank, along: &Along) -> Vec<Rank> {
        let own = |axis: &usize| self.coordinate(rank, *axis) * self.stride(*axis);
        let first = rank - along.iter().map(own).sum::<u32>();
        along.iter().fold(vec![first], |ranks, axis| {
            let places = (0..self.size(*axis)).map(|place| place * self.stride(*axis));
            ranks.into_iter().flat_map(|rank| places.clone().map(move |place| rank + place)).collect()
        })
    }

    /// `dp+cp`.
    pub(super) fn name(&self, along: &Along) -> String {
        along.iter().map(|axis| self.axes[*axis].0.as_str()).collect::<Vec<_>>().join("+")
    }

    /// What of a mesh the ranks with `rank` along some axes are: `tp at dp=1, pp=0`.
    pub(super) fn label(&self, rank: Rank, along: &Along) -> String {
        let others = (0..self.axes.len()).filter(|axis| !along.contains(axis) && self.size(*axis) > 1);
        let at = |axis: usize| format!("{}={}", self.axes[axis].0, self.coordinate(rank, axis));
        let at = others.map(at).collect::<Vec<_>>().join(", ");
        if at.is_empty() { self.name(along) } else { format!("{} at {at}", self.name(along)) }
    }

    fn names(&self) -> Vec<&str> {
        self.axes().map(|(name, _)| name).collect()
    }
}

/// Whether an axis can have this name, whatever its length.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c))
}

/// A mesh as its program asks for it: `dp=2, cp=2, tp=2 along dp+cp`.
pub(super) fn text(axes: &[(&str, u32)], along: &[&[&str]]) -> String {
    // A name that is refused is quoted, so that it makes the text of no other mesh.
    let shown = |name: &str| if is_plain(name) { name.to_owned() } else { format!("{name:?}") };
    let axes: Vec<String> = axes.iter().map(|(name, size)| format!("{}={size}", shown(name))).collect();
    let set = |names: &&[&str]| names.iter().map(|name| shown(name)).collect::<Vec<_>>().join("+");
    let (axes, along) = (axes.join(", "), along.iter().map(set).collect::<Vec<_>>().join(", "));
    if along.is_empty() { axes } else { format!("{axes} along {along}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_meshes_have_different_texts() {
        assert_eq!(text(&[("a", 1), ("b", 2)], &[&["a", "b"]]), "a=1, b=2 along a+b");
        assert_ne!(text(&[("a=1, b", 2)], &[]), text(&[("a", 1), ("b", 2)], &[]));
        assert_ne!(text(&[("a", 1)], &[&["a+b"]]), text(&[("a", 1)], &[&["a", "b"]]));
        assert_ne!(text(&[("", 1)], &[]), text(&[("\"\"", 1)], &[]));
    }

    fn refused(axes: &[(&str, u32)], ranks: u32) -> String {
        let error = Shape::new(axes, ranks).expect_err("refused");
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        error.to_string()
    }

    #[test]
    fn shapes_that_cannot_be_are_refused_with_what_is_wrong() {
        let many: Vec<String> = (0..17).map(|axis| format!("a{axis}")).collect();
        let many: Vec<(&str, u32)> = many.iter().map(|name| (name.as_str(), 1)).collect();
        for (axes, ranks, texts) in [
            (&[("dp", 2), ("tp", 3)][..], 8, &["dp=2, tp=3", "6 places", "8 ranks"][..]),
            (&[("dp", 1 << 16), ("tp", 1 << 16)], 8, &["more than 2^32", "8 ranks"]),
            (&[("dp", 2), ("tp", 2), ("dp", 2)], 8, &["two axes with the name dp"]),
            (&[("dp", 2), ("", 2)], 4, &["axis 1", "\"\""]),
            (&[("dp+cp", 2)], 2, &["axis 0", "dp+cp"]),
            (&[("a-name-that-is-much-longer-than-any", 2)], 2, &["32 bytes"]),
            (&[("dp", 0)], 0, &["dp", "size 0"]),
            (&[], 1, &["0 axes"]),
            (&many, 1, &["17 axes"]),
        ] {
            let text = refused(axes, ranks);
            assert!(texts.iter().all(|part| text.contains(part)), "{texts:?}: {text}");
        }
    }

    #[test]
    fn every_rank_is_once_among_the_ranks_along_any_axes() {
        let axes = [("dp", 3), ("one", 1), ("pp", 2), ("tp", 4)];
        let shape = Shape::new(&axes, 24).expect("a shape");
        for set in 1..16u32 {
            let along: Along = (0..4).filter(|axis| set >> axis & 1 == 1).collect();
            let size: u32 = along.iter().map(|axis| axes[*axis].1).product();
            let mut seen = [0; 24];
            for rank in 0..24 {
                let members = shape.members(rank, &along);
                assert_eq!(members.len() as u32, size);
                assert!(members.is_sorted() && members.contains(&rank));
                for member in members {
                    assert_eq!(shape.members(member, &along), shape.members(rank, &along));
                    let differs = |axis| shape.coordinate(rank, axis) != shape.coordinate(member, axis);
                    assert!((0..4).filter(|axis| differs(*axis)).all(|axis| along.contains(&axis)));
                    assert_eq!(shape.label(rank, &along), shape.label(member, &along));
                    seen[member as usize] += 1;
                }
            }
            assert_eq!(seen, [size; 24]);
        }
    }

    #[test]
    fn places_and_ranks_are_inverse() {
        let shape = Shape::new(&[("dp", 3), ("pp", 2), ("tp", 4)], 24).expect("a shape");
        for rank in 0..24 {
            let places =
                [("tp", 2), ("pp", 1), ("dp", 0)].map(|(name, axis)| (name, shape.coordinate(rank, axis)));
            assert_eq!(shape.rank_at(7, &places).expect("it is there"), rank);
        }
        assert_eq!(shape.rank_at(13, &[("pp", 0)]).expect("it is there"), 9);
        for (places, text) in [
            (&[("dp", 3)][..], "place 3 on the axis dp, which has 3"),
            (&[("ep", 0)], "no axis \"ep\"; it has dp, pp, tp"),
            (&[("dp", 0), ("dp", 1)], "dp is named twice"),
            (&[], "name one at least of dp, pp, tp"),
        ] {
            let error = shape.rank_at(0, places).expect_err("refused").to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn what_a_rank_is_part_of_is_said_by_the_places_that_its_ranks_share() {
        let shape = Shape::new(&[("dp", 2), ("ep", 1), ("pp", 2), ("tp", 2)], 8).expect("a shape");
        let label = |names: &[&str]| shape.label(5, &shape.along(names).expect("axes"));
        assert_eq!(label(&["tp"]), "tp at dp=1, pp=0");
        assert_eq!(label(&["tp", "dp"]), "dp+tp at pp=0");
        assert_eq!(label(&["pp", "tp", "dp"]), "dp+pp+tp");
    }
}
