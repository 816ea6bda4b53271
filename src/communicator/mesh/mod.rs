//! Meshes: the ranks of a communicator on named axes, and communicators along any of them, made in one call.
//!
//! Invariant: who is in which communicator, and what it is called, every rank computes by itself; what ranks say to each
//! other is that they asked for the same mesh. Absent: which parallelism an axis is for.

mod shape;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use self::shape::{Along, Shape};
use super::Communicator;
use super::agree::by_text;
use super::split::{Said, Seed};
use crate::Rank;
use crate::planner::Machine;
use consort_control::bootstrap;
use consort_settings::options::Settings;
use consort_types::call::Kind;
use consort_types::error::{Error, Result};

/// Words in which a rank says what it asked for, where ranks differ: 8 bytes each.
const SAID_WORDS: usize = 48;

/// The ranks of a communicator on named axes, with a communicator along each axis; made by [`Communicator::mesh`].
///
/// Its communicators are as those of [`Communicator::split`]: each has its own order of calls, fails alone, and lives
/// without the one that the mesh was made of. They close with the mesh.
pub struct Mesh {
    shape: Shape,
    rank: Rank,
    parts: Vec<Part>,
    /// The host of each rank, counted in the order in which they come.
    hosts: Vec<u32>,
    seed: Seed,
    settings: Settings,
}

/// The communicator along some axes.
struct Part {
    along: Along,
    uid: u64,
    /// Its ranks as ranks of the job.
    members: Vec<Rank>,
    label: String,
    /// Of one rank alone it is made when it is asked for: no other rank needs to know of it.
    communicator: OnceLock<Communicator>,
}

impl Communicator {
    /// Places the ranks of this communicator on named axes, and makes a communicator along each axis: of the ranks that
    /// have the same places on all other axes. The last axis varies fastest, so its ranks are neighbours. `along` are
    /// sets of several axes along which there are to be communicators too. Every rank of this communicator must call
    /// it, with the same axes and sets.
    ///
    /// All of them are made in one agreement, of 8 bytes a rank, and take hardly any memory until they are used. One of
    /// a single rank takes nothing until it is asked for. What is wrong is found on all ranks: one whose arguments are
    /// refused takes part in the agreement, so that no other waits for it. A [revoked](Communicator::revoke)
    /// communicator can be made a mesh of too.
    ///
    /// ```
    /// use consort::{Communicator, ReduceOp};
    ///
    /// let step = |comm: &Communicator| -> consort::Result<()> {
    ///     let mesh = comm.mesh(&[("dp", 2), ("cp", 2), ("tp", 2)], &[&["dp", "cp"]])?;
    ///     // Activations are summed over neighbours, gradients over all that have the same weights.
    ///     let (mut activation, mut gradient) = ([1.0f32], [1.0f32]);
    ///     mesh.axis("tp")?.all_reduce(&mut activation, ReduceOp::Sum)?;
    ///     mesh.along(&["dp", "cp"])?.all_reduce(&mut gradient, ReduceOp::Sum)?;
    ///     assert_eq!((activation, gradient), ([2.0], [4.0]));
    ///
    ///     assert_eq!(mesh.coordinate("dp")?, comm.rank() / 4);
    ///     // The rank of `comm` with the other half of this one's weights.
    ///     let other = mesh.rank_at(&[("tp", 1 - mesh.coordinate("tp")?)])?;
    ///     assert_eq!(other, comm.rank() ^ 1);
    ///     // No boundary between hosts cuts the tensor-parallel axis.
    ///     assert_eq!(mesh.hosts_max(&["tp"])?, 1);
    ///     Ok(())
    /// };
    /// let world = Communicator::local(8)?;
    /// std::thread::scope(|threads| {
    ///     for comm in &world {
    ///         threads.spawn(|| step(comm).expect("all ranks do the same"));
    ///     }
    /// });
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for sizes whose product is not the number of ranks, names that are empty, strange or
    /// there twice, a size of 0, sets with unknown axes or there twice; and when ranks asked for different meshes: it
    /// names which rank asked for what, and the communicator goes on. [`Error::Revoked`] when it is revoked meanwhile: the ranks that
    /// have it can call again. Otherwise as every collective: see [`Error`].
    pub fn mesh(&self, axes: &[(&str, u32)], along: &[&[&str]]) -> Result<Mesh> {
        let asked = shape::text(axes, along);
        let span = tracing::debug_span!("mesh", rank = self.rank(), asked);
        let _entered = span.enter();
        let checked = Shape::new(axes, self.size()).and_then(|shape| Ok((sets(&shape, along)?, shape)));
        let agreed = self.agree_on_mesh(&asked);
        if let Err(error) = &agreed
            && error.is_fatal()
        {
            return Err(error.clone());
        }
        // What is wrong here says more than that others asked for something else.
        let (sets, shape) = checked?;
        let Said { number, by_control_links, .. } = agreed?;
        let group = &self.core().group;
        let label = if by_control_links { "mesh after revoke" } else { "mesh" };
        let part = |(at, along): (u64, Along)| {
            let members = shape.members(self.rank(), &along);
            let numbers = [group.uid, number, at, u64::from(members[0])];
            let within = if group.label.is_empty() { String::new() } else { format!(", in {}", group.label) };
            Part {
                uid: bootstrap::name(&group.member.key, label, &numbers),
                members: members.iter().map(|rank| group.members[*rank as usize]).collect(),
                label: shape.label(self.rank(), &along) + &within,
                along,
                communicator: OnceLock::new(),
            }
        };
        let parts: Vec<Part> = (0..).zip(sets).map(part).collect();
        let settings = self.core().settings.clone();
        let hosts = Machine::hosts_of(group.infos());
        let mesh = Mesh { shape, rank: self.rank(), parts, hosts, seed: self.seed(), settings };
        for part in mesh.parts.iter().filter(|part| part.members.len() > 1) {
            mesh.open(part);
        }
        Ok(mesh)
    }

    /// All ranks asked for the same mesh.
    fn agree_on_mesh(&self, asked: &str) -> Result<Said> {
        let words = packed(asked.as_bytes());
        let numbers: Vec<u64> = words.iter().map(|word| word.cast_unsigned()).collect();
        let mark = bootstrap::name(&self.core().group.member.key, "mesh", &numbers);
        let said = self.all_say_of_parts(Kind::Mesh, &[mark.cast_signed()])?;
        if said.words.iter().all(|word| *word == said.words[0]) {
            return Ok(said);
        }
        self.say_difference(words, &said)
    }

    /// Every rank has seen that marks differ, and says what it asked for, by the way by which the marks went. Where the communicator is
    /// revoked in between, ranks do not go on by the other way: some have the error already, and would not come.
    fn say_difference<R>(&self, mut mine: Vec<i64>, marks: &Said) -> Result<R> {
        mine.resize(SAID_WORDS, 0);
        let all = match marks.by_control_links {
            true => self.all_agree_on_parts(Kind::Mesh, &mine)?.words,
            false => self.all_say(Kind::Mesh, &mine)?.1,
        };
        let texts = all.chunks(SAID_WORDS).zip(&marks.words).map(|(words, mark)| unpacked(words, *mark));
        Err(Error::invalid(
            format!("ranks asked for different meshes of one communicator: {}", by_text((0..).zip(texts))),
            "let all ranks name the same axes, sizes and sets, in the same order",
        ))
    }
}

/// The sets of axes along which there are communicators: each axis, and those of several that are asked for.
fn sets(shape: &Shape, asked: &[&[&str]]) -> Result<Vec<Along>> {
    let mut sets: Vec<Along> = (0..shape.axes().len()).map(|axis| vec![axis]).collect();
    for names in asked {
        let along = shape.along(names)?;
        if sets.contains(&along) {
            return Err(Error::invalid(
                format!("a communicator along {} is asked for twice", shape.name(&along)),
                "name each set of several axes once; along each single axis there is one anyway",
            ));
        }
        sets.push(along);
    }
    Ok(sets)
}

/// Bytes as words, the last filled up with zeros.
fn packed(bytes: &[u8]) -> Vec<i64> {
    let word =
        |bytes: &[u8]| i64::from_le_bytes(std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0)));
    bytes.chunks(size_of::<i64>()).map(word).collect()
}

/// The text in words of [`packed`]; with its mark where the end is missing.
fn unpacked(words: &[i64], mark: i64) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_end_matches('\0');
    if text.len() < bytes.len() { text.to_owned() } else { format!("{text}... ({mark:x})") }
}

impl Mesh {
    /// The axes and their sizes, in order.
    pub fn axes(&self) -> impl ExactSizeIterator<Item = (&str, u32)> {
        self.shape.axes()
    }

    /// How many places an axis has.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a name that the mesh does not have, with those that it has.
    pub fn size(&self, axis: &str) -> Result<u32> {
        self.shape.axis(axis).map(|axis| self.shape.size(axis))
    }

    /// The place of this rank on an axis: its rank in the communicator along it.
    ///
    /// # Errors
    /// As [`Mesh::size`].
    pub fn coordinate(&self, axis: &str) -> Result<u32> {
        self.shape.axis(axis).map(|axis| self.shape.coordinate(self.rank, axis))
    }

    /// The rank, of the communicator that the mesh was made of, at these places; on the axes that are not named it has
    /// this rank's places.
    ///
    /// # Errors
    /// As [`Mesh::size`]; [`Error::InvalidArgument`] for a place that the axis does not have, for an axis that is
    /// named twice and for no axis.
    pub fn rank_at(&self, places: &[(&str, u32)]) -> Result<Rank> {
        self.shape.rank_at(self.rank, places)
    }

    /// The communicator along an axis: of the ranks that have this rank's places on all other axes, in the order of the
    /// axis.
    ///
    /// # Errors
    /// As [`Mesh::size`]; [`Error::Forked`].
    pub fn axis(&self, axis: &str) -> Result<&Communicator> {
        self.along(&[axis])
    }

    /// The communicator along several axes, named in any order: of the ranks that have this rank's places on all other
    /// axes. Its ranks are in the order of those that the mesh was made of: the last of these axes varies fastest.
    ///
    /// # Errors
    /// As [`Mesh::size`]; [`Error::InvalidArgument`] for a set that [`Communicator::mesh`] was not asked for, with those
    /// that there are; [`Error::Forked`].
    pub fn along(&self, axes: &[&str]) -> Result<&Communicator> {
        let along = self.shape.along(axes)?;
        let Some(part) = self.parts.iter().find(|part| part.along == along) else {
            let there: Vec<String> = self.parts.iter().map(|part| self.shape.name(&part.along)).collect();
            return Err(Error::invalid(
                format!("the mesh has no communicator along {}", self.shape.name(&along)),
                format!("it has those along {}; name further sets when it is made", there.join(", ")),
            ));
        };
        if self.seed.is_forked() {
            return Err(Error::Forked);
        }
        Ok(self.open(part))
    }

    /// How many hosts the ranks are on that have this rank's places on all axes but these. At 1 they may share memory;
    /// there need be no communicator along the axes.
    ///
    /// # Errors
    /// As [`Mesh::size`]; [`Error::InvalidArgument`] for an axis that is named twice and for no axis.
    pub fn hosts(&self, axes: &[&str]) -> Result<u32> {
        let along = self.shape.along(axes)?;
        Ok(self.hosts_of(self.rank, &along))
    }

    /// The most [`Mesh::hosts`] of any rank, the same on all of them: at 1, no boundary between hosts cuts these axes
    /// anywhere, as shards that are gathered within hosts need (hpZ of
    /// [ZeRO++](https://arxiv.org/abs/2306.10209), [MiCS](https://arxiv.org/abs/2205.00119)).
    ///
    /// # Errors
    /// As [`Mesh::hosts`].
    pub fn hosts_max(&self, axes: &[&str]) -> Result<u32> {
        let along = self.shape.along(axes)?;
        let is_first = |rank: &Rank| along.iter().all(|axis| self.shape.coordinate(*rank, *axis) == 0);
        let firsts = (0..self.hosts.len() as Rank).filter(is_first);
        Ok(firsts.map(|rank| self.hosts_of(rank, &along)).max().unwrap_or(1))
    }

    /// Ends all communicators of the mesh, each on all of its ranks: a rank that cannot go on frees those that wait for
    /// it along any axis. See [`Communicator::abort`].
    pub fn abort(&self, reason: &str) {
        self.parts.iter().filter_map(|part| part.communicator.get()).for_each(|comm| comm.abort(reason));
    }

    fn hosts_of(&self, rank: Rank, along: &Along) -> u32 {
        let ranks = self.shape.members(rank, along);
        let mut hosts: Vec<u32> = ranks.iter().map(|rank| self.hosts[*rank as usize]).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts.len() as u32
    }

    fn open<'a>(&self, part: &'a Part) -> &'a Communicator {
        let Part { uid, members, label, .. } = part;
        part.communicator
            .get_or_init(|| self.seed.grow(*uid, members.clone(), self.settings.clone(), label.clone()))
    }
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let axes = self.axes().map(|(name, _)| (name, self.coordinate(name).unwrap_or_default()));
        f.debug_map().entries(axes).finish()
    }
}
