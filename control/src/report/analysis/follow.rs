//! Follows waits, from rank to rank and from communicator to communicator, to where they end.
//!
//! Invariant: every rank of every communicator is left once, so it ends on any evidence, and it needs no stack
//! of calls however long a chain is. Absent: which of the findings is the verdict, and its words.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use super::view::{Abroad, Node, State, View, matches_end};
use super::words::label;
use crate::report::evidence::{Open, ProcessId, Reach, Stuck, Want};
use consort_types::Rank;
use consort_types::call::Descriptor;
use consort_types::call::Kind;

/// A rank that moves counts as slow when another has waited so long for its next step.
const SLOW_AFTER: Duration = Duration::from_secs(1);

/// A call that a rank waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Need {
    pub(super) communicator: u64,
    pub(super) sequence: u64,
    /// As the waiting rank called it.
    pub(super) descriptor: Descriptor,
    /// Who waits, and whether it is this one alone: messages.
    pub(super) waiter: Rank,
}

impl Need {
    /// `all_reduce #7`.
    pub(super) fn label(&self) -> String {
        label(self.sequence, &self.descriptor)
    }
}

/// How a rank came not to make a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum How<'a> {
    Idle,
    Left(Option<u64>),
    /// It has not made the communicator.
    Unmade,
    /// It is in another operation, which moves.
    Busy(&'a Open),
    /// The same on another communicator.
    Abroad(Abroad<'a>),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Absent<'a> {
    pub(super) node: Node,
    pub(super) need: Need,
    pub(super) how: How<'a>,
}

/// A wait on the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    pub(super) node: Node,
    pub(super) open: &'a Open,
    pub(super) waits_for: Rank,
}

/// A direction in which something does not arrive.
#[derive(Clone, Debug)]
pub(super) struct Broken {
    pub(super) need: Need,
    pub(super) from: Rank,
    pub(super) to: Rank,
    /// What shows it.
    pub(super) detail: String,
}

/// Where the waits end, by kind, each in the order in which it was found.
#[derive(Default, Debug)]
pub(super) struct Findings<'a> {
    pub(super) lost: BTreeSet<Rank>,
    pub(super) silent: BTreeSet<Rank>,
    pub(super) cycles: Vec<Vec<Step<'a>>>,
    pub(super) absent: Vec<Absent<'a>>,
    pub(super) links: Vec<Broken>,
    /// Of whom nothing is known: who, the process it is said to be, and what is waited for.
    pub(super) unknown: Vec<(Node, ProcessId, Need)>,
    /// In the operation, and it moves.
    pub(super) slow: Vec<(Node, Need)>,
    /// Operations in which all wait for each other and nothing is missing.
    pub(super) still: Vec<Need>,
    /// Waits for a rank that the communicator does not have.
    pub(super) nonsense: Vec<(Need, Rank)>,
}

impl Findings<'_> {
    /// Whether a rank is found without which nothing can go on.
    fn is_strong(&self) -> bool {
        !(self.lost.is_empty() && self.silent.is_empty() && self.cycles.is_empty() && self.absent.is_empty())
    }
}

struct Frame<'a> {
    step: Step<'a>,
    targets: Vec<(Rank, Node)>,
    at: usize,
}

/// Who has not entered a collective.
struct Behind {
    ranks: BTreeSet<Rank>,
    /// Where those wait who are furthest behind.
    targets: Vec<(Rank, Node)>,
}

struct Walk<'v, 'a> {
    view: &'v View<'a>,
    path: Vec<Frame<'a>>,
    on_path: BTreeMap<Node, usize>,
    done: BTreeSet<Node>,
    /// Who is in the findings, and for absent ranks where.
    blamed: BTreeMap<Node, usize>,
    /// By communicator and number of a collective.
    behind: BTreeMap<(u64, u64), Rc<Behind>>,
    /// Whether all who do not answer are in the findings.
    needs_everybody: bool,
    found: Findings<'a>,
}

/// Follows every wait that may hold up the operation that `need` says its waiter is in.
pub(super) fn follow<'a>(view: &View<'a>, need: Need) -> Findings<'a> {
    let home = view.evidence.communicator;
    let mut walk = Walk {
        view,
        path: Vec::new(),
        on_path: BTreeMap::new(),
        done: BTreeSet::new(),
        blamed: BTreeMap::new(),
        behind: BTreeMap::new(),
        needs_everybody: false,
        found: Findings::default(),
    };
    walk.run((home, need.waiter));
    if need.descriptor.kind.is_message() {
        if walk.found.is_strong() || view.stuck((home, need.waiter)).is_some() {
            return walk.found;
        }
        // It moved when it was asked; whatever the other end says.
        let targets = walk.point((home, need.waiter), need, need.descriptor.root, None);
        targets.into_iter().for_each(|(_, node)| walk.run(node));
        return walk.found;
    }
    walk.all_unreachable();
    (0..view.size()).for_each(|rank| walk.run((home, rank)));
    let mut absent = view.absent(home, need.sequence);
    absent.sort_unstable();
    let first = absent.first().map(|(entered, _)| *entered);
    for (entered, rank) in absent {
        // The rank that is furthest behind keeps the others that are behind.
        if Some(entered) == first || !walk.found.is_strong() {
            let next = walk.resolve((home, rank), need, None);
            next.into_iter().for_each(|node| walk.run(node));
        }
    }
    walk.found
}

impl<'a> Walk<'_, 'a> {
    fn run(&mut self, start: Node) {
        self.enter(start);
        while let Some(frame) = self.path.last_mut() {
            let Some((waits_for, next)) = frame.targets.get(frame.at).copied() else {
                let node = frame.step.node;
                self.path.pop();
                self.on_path.remove(&node);
                self.done.insert(node);
                continue;
            };
            frame.at += 1;
            frame.step.waits_for = waits_for;
            match self.on_path.get(&next) {
                Some(at) => self.close(*at),
                None => self.enter(next),
            }
        }
    }

    fn enter(&mut self, node: Node) {
        if self.done.contains(&node) {
            return;
        }
        let Some((open, stuck)) = self.view.stuck(node) else { return };
        let step = Step { node, open, waits_for: stuck.peer };
        let targets = self.targets(node, open, stuck);
        self.on_path.insert(node, self.path.len());
        self.path.push(Frame { step, targets, at: 0 });
    }

    /// For whom a rank waits, and where that one waits itself.
    fn targets(&mut self, node: Node, open: &'a Open, stuck: &'a Stuck) -> Vec<(Rank, Node)> {
        let (sequence, descriptor) = (open.sequence, open.descriptor);
        let need = Need { communicator: node.0, sequence, descriptor, waiter: node.1 };
        if descriptor.kind.is_message() {
            return self.point(node, need, stuck.peer, Some(stuck));
        }
        let behind = self.behind(need, stuck);
        let mut targets = behind.targets.clone();
        let peer = (node.0, stuck.peer);
        if behind.ranks.contains(&stuck.peer) {
            return targets;
        }
        let (State::Known(position) | State::Left(Some(position))) = self.view.state(peer) else {
            let next = self.resolve(peer, need, Some(stuck));
            targets.extend(next.map(|next| (stuck.peer, next)));
            return targets;
        };
        let inside = position.open.as_ref().filter(|open| !open.descriptor.kind.is_message());
        if position.finished >= sequence || inside.is_some_and(|open| open.sequence > sequence) {
            self.finished(need, stuck.peer);
        } else if inside.is_some_and(|open| open.stuck.is_some()) {
            if behind.ranks.is_empty() {
                targets.push((stuck.peer, peer));
            }
        } else if stuck.age >= SLOW_AFTER && self.blame(peer) {
            self.found.slow.push((peer, need));
        }
        targets
    }

    /// Who has not entered a collective; the first time it is asked for, those furthest behind are looked at.
    fn behind(&mut self, need: Need, stuck: &Stuck) -> Rc<Behind> {
        let key = (need.communicator, need.sequence);
        if let Some(known) = self.behind.get(&key) {
            return known.clone();
        }
        if self.view.is_home(need.communicator) {
            self.all_unreachable();
        }
        let absent = self.view.absent(need.communicator, need.sequence);
        let first = absent.iter().map(|(entered, _)| *entered).min();
        let mut targets = Vec::new();
        for (_, rank) in absent.iter().filter(|(entered, _)| Some(*entered) == first) {
            let next = self.resolve((need.communicator, *rank), need, Some(stuck));
            targets.extend(next.map(|next| (*rank, next)));
        }
        let ranks = absent.into_iter().map(|(_, rank)| rank).collect();
        let behind = Rc::new(Behind { ranks, targets });
        self.behind.insert(key, behind.clone());
        behind
    }

    /// A message of `node` with `peer`.
    fn point(&mut self, node: Node, need: Need, peer: Rank, stuck: Option<&Stuck>) -> Vec<(Rank, Node)> {
        let (communicator, rank) = node;
        let other = (communicator, peer);
        if let State::Known(position) | State::Left(Some(position)) = self.view.state(other) {
            let is_end = |descriptor: &Descriptor| matches_end(descriptor, &need.descriptor, rank);
            let number = |passed: &(Rank, u64, u64)| {
                if need.descriptor.kind == Kind::Send { passed.2 } else { passed.1 }
            };
            let last = position.passed.iter().find(|(with, ..)| *with == rank).map(number);
            let mut ends = position.messages.iter().filter(|(_, descriptor)| is_end(descriptor));
            let open = ends.next().map(|(sequence, _)| *sequence);
            let reached = open.map(|sequence| sequence.saturating_sub(1));
            if last.max(reached).is_some_and(|number| number >= need.sequence) {
                self.finished(need, peer);
                return Vec::new();
            }
            if open == Some(need.sequence) {
                let shown = position.open.as_ref();
                if shown.is_some_and(|shown| shown.stuck.is_some()) && stuck.is_some() {
                    if shown.is_some_and(|shown| is_end(&shown.descriptor)) {
                        self.both_wait(need, peer);
                        return Vec::new();
                    }
                    // An exchange whose other message waits: why that one does not go on is the question.
                    return vec![(peer, other)];
                }
                if self.blame(other) {
                    self.found.slow.push((other, need));
                }
                return Vec::new();
            }
            if let Some(detail) = self.view.loss(communicator, peer, rank) {
                self.broken(Broken { need, from: peer, to: rank, detail });
                return Vec::new();
            }
        }
        self.resolve(other, need, stuck).map(|next| (peer, next)).into_iter().collect()
    }

    /// A rank that has not made a call: the node where it waits itself, or it is to blame.
    fn resolve(&mut self, node: Node, need: Need, stuck: Option<&Stuck>) -> Option<Node> {
        let how = match self.view.state(node) {
            State::Silent | State::Lost => {
                self.unreachable(node.1);
                return None;
            }
            State::Unknown => {
                self.unknown(node, need, stuck.map_or([0; 16], |stuck| stuck.peer_process));
                return None;
            }
            State::Missing => {
                self.found.nonsense.push((need, node.1));
                return None;
            }
            State::Left(position) => How::Left(position.map(|position| position.entered)),
            State::Known(position) => match (&position.open, self.view.abroad(node)) {
                (Some(open), _) if open.stuck.is_some() => return Some(node),
                (Some(open), _) => How::Busy(open),
                (None, Some(abroad)) if abroad.open.stuck.is_some() => return Some(abroad.node),
                (None, Some(abroad)) => How::Abroad(abroad),
                (None, None) => How::Idle,
            },
            State::Unmade => match self.view.abroad(node) {
                Some(abroad) if abroad.open.stuck.is_some() => return Some(abroad.node),
                Some(abroad) => How::Abroad(abroad),
                None => {
                    // It needs all ranks to make the communicator, and waits for who does not answer as one does here.
                    self.all_unreachable();
                    How::Unmade
                }
            },
        };
        let known = *self.blamed.entry(node).or_insert(self.found.absent.len());
        if known == self.found.absent.len() {
            self.found.absent.push(Absent { node, need, how });
        } else if let Some(known) = self.found.absent.get_mut(known)
            && !need.descriptor.kind.is_message()
            && need.sequence < known.need.sequence
        {
            // The first call that it has to make is the one to name.
            known.need = need;
        }
        None
    }

    /// A rank of the communicator that is asked about.
    fn unreachable(&mut self, rank: Rank) {
        match self.view.witness(rank).map(|witness| &witness.reach) {
            Some(Reach::Silent) => _ = self.found.silent.insert(rank),
            Some(Reach::Lost(_)) => _ = self.found.lost.insert(rank),
            _ => {}
        }
    }

    /// Something needs all ranks of the communicator that is asked about.
    fn all_unreachable(&mut self) {
        if !std::mem::replace(&mut self.needs_everybody, true) {
            (0..self.view.size()).for_each(|rank| self.unreachable(rank));
        }
    }

    /// Whether a rank is found for the first time.
    fn blame(&mut self, node: Node) -> bool {
        self.blamed.insert(node, usize::MAX).is_none()
    }

    fn unknown(&mut self, node: Node, need: Need, process: ProcessId) {
        let ranks = if process == [0; 16] { Vec::new() } else { self.view.of_process(&process) };
        let gone = |rank: &&Rank| {
            let reach = self.view.witness(**rank).map(|witness| &witness.reach);
            matches!(reach, Some(Reach::Silent | Reach::Lost(_)))
        };
        let gone: Vec<Rank> = ranks.iter().filter(gone).copied().collect();
        if !gone.is_empty() {
            gone.into_iter().for_each(|rank| self.unreachable(rank));
        } else if self.blame(node) {
            self.found.unknown.push((node, process, need));
        }
    }

    /// The peer is through with an operation in which the waiter still waits for it.
    fn finished(&mut self, need: Need, peer: Rank) {
        let detail = self.view.loss(need.communicator, peer, need.waiter).unwrap_or_else(|| {
            let kind = match need.descriptor.kind {
                Kind::Send => Kind::Receive,
                Kind::Receive => Kind::Send,
                kind => kind,
            };
            format!("rank {peer} is through with {} #{}", kind.name(), need.sequence)
        });
        self.broken(Broken { need, from: peer, to: need.waiter, detail });
    }

    /// Both ends of a message are there and wait.
    fn both_wait(&mut self, need: Need, peer: Rank) {
        let (communicator, waiter) = (need.communicator, need.waiter);
        let sends = need.descriptor.kind == Kind::Send;
        let (sender, receiver) = if sends { (waiter, peer) } else { (peer, waiter) };
        let number = need.sequence;
        let (from, to, detail) = if let Some(detail) = self.view.loss(communicator, sender, receiver) {
            (sender, receiver, detail)
        } else if let Some(detail) = self.view.loss(communicator, receiver, sender) {
            (receiver, sender, detail)
        } else if let Some(to) = [waiter, peer].into_iter().find(|rank| self.connects((communicator, *rank)))
        {
            let from = if to == waiter { peer } else { waiter };
            (from, to, "their connection does not come up".to_owned())
        } else {
            let both = format!("rank {sender} is in send #{number} and rank {receiver} in its receive");
            (sender, receiver, format!("{both}, and both wait"))
        };
        self.broken(Broken { need, from, to, detail });
    }

    /// Whether a rank waits for a connection.
    fn connects(&self, node: Node) -> bool {
        self.view.stuck(node).is_some_and(|(_, stuck)| connects(stuck))
    }

    /// The ends of a connection that is not there, in operations in which some ranks wait for connections. While a
    /// connection does not come up, its two ends make no other one either, and third ranks wait for them. So a wait for a
    /// rank that waits for a third one is no evidence. Evidence is that the two ends wait for each other, or that one end
    /// waits for the connection and the other for what comes after it.
    fn unconnected(&self, communicator: u64, is_in: impl Fn(&Open) -> bool) -> Option<(Rank, Rank)> {
        let stuck = self.view.known(communicator).filter_map(|(rank, position)| {
            let open = position.open.as_ref().filter(|open| is_in(open))?;
            Some((rank, open.stuck.as_ref()?))
        });
        let stuck: BTreeMap<Rank, &Stuck> = stuck.collect();
        let waits =
            || stuck.iter().filter(|(_, stuck)| connects(stuck)).map(|(rank, stuck)| (*rank, stuck.peer));
        let is_met = |(rank, peer): &(Rank, Rank)| {
            stuck.get(peer).is_some_and(|other| connects(other) && other.peer == *rank)
        };
        let is_told = |(_, peer): &(Rank, Rank)| stuck.get(peer).is_some_and(|other| !connects(other));
        let ends = waits().find(is_met).or_else(|| waits().find(is_told)).or_else(|| waits().next());
        ends.map(|(rank, peer)| (peer, rank))
    }

    fn broken(&mut self, broken: Broken) {
        let same = |other: &Broken| {
            (other.need.communicator, other.from, other.to)
                == (broken.need.communicator, broken.from, broken.to)
        };
        if !self.found.links.iter().any(same) {
            self.found.links.push(broken);
        }
    }

    /// The path from `at` on waits for its own begin.
    fn close(&mut self, at: usize) {
        let steps: Vec<Step<'a>> = self.path.iter().skip(at).map(|frame| frame.step).collect();
        let Some(first) = steps.first() else { return };
        let (communicator, waiter) = first.node;
        let (sequence, descriptor) = (first.open.sequence, first.open.descriptor);
        let need = Need { communicator, sequence, descriptor, waiter };
        let together = |step: &Step<'_>| {
            let open = step.open;
            step.node.0 == communicator && open.sequence == sequence && !open.descriptor.kind.is_message()
        };
        let view = self.view;
        // Messages whose other ends are there too, as those of exchanges, wait side by side, not one for the other.
        let met = |step: &Step<'_>| {
            let open = step.open;
            let end = |(sequence, descriptor): &(u64, Descriptor)| {
                *sequence == open.sequence && matches_end(descriptor, &open.descriptor, step.node.1)
            };
            let peer = view.position((step.node.0, step.waits_for));
            peer.is_some_and(|peer| peer.messages.iter().any(end))
        };
        if !steps.iter().all(together) && !steps.iter().all(met) {
            self.found.cycles.push(steps);
            return;
        }
        let in_cycle = steps.iter().map(|step| (step.waits_for, step.node.1));
        let in_cycle = in_cycle.flat_map(|(from, to)| [(from, to), (to, from)]);
        let is_in = |open: &Open| {
            open.sequence == sequence && !descriptor.kind.is_message() && !open.descriptor.kind.is_message()
        };
        let others = view
            .known(communicator)
            .filter(|(_, position)| position.open.as_ref().is_some_and(is_in))
            .flat_map(|(from, position)| position.traffic.iter().map(move |to| (from, to.peer)));
        let loss = in_cycle
            .chain(others)
            .find_map(|(from, to)| Some((from, to, view.loss(communicator, from, to)?)));
        let connecting = || self.unconnected(communicator, is_in);
        let dangling = || {
            let step = steps
                .iter()
                .find(|step| step.open.descriptor.kind.is_message() && self.connects(step.node))?;
            Some((step.waits_for, step.node.1))
        };
        let connecting = connecting().or_else(dangling);
        if let Some((from, to, detail)) = loss {
            self.broken(Broken { need, from, to, detail });
        } else if let Some((from, to)) = connecting {
            let detail = "their connection does not come up".into();
            self.broken(Broken { need, from, to, detail });
        } else {
            self.found.still.push(need);
        }
    }
}

/// Whether it is a connection that is waited for.
fn connects(stuck: &Stuck) -> bool {
    matches!(stuck.want, Want::Link | Want::Connection)
}
