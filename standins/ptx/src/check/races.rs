//! Causality order by vector clocks, and the accesses that it leaves unordered.
//!
//! Invariant: an access recorded in a granule is either not ordered before some later access to the same bytes, or
//! the last to write them. The rule is written down in [`super`].

use std::rc::Rc;

use super::Effect;
use super::clock::Clock;
use crate::fault::Conflict;
use crate::memory::{Access, Actor, Scope, Semantics, Site};
use crate::run::HOST;

/// One release pattern's first operation, carried by a strong write.
#[derive(Clone, Debug)]
struct Part {
    /// The accesses that come before it.
    clock: Clock,
    /// The threads that the first operation reaches.
    scope: Scope,
}

/// An access.
#[derive(Debug)]
struct Record {
    actor: u32,
    epoch: u32,
    /// Bytes of the granule that later accesses are compared in.
    mask: u16,
    /// Bytes that it accessed.
    extent: u16,
    /// Bytes that still hold the value that this access wrote.
    live: u16,
    write: bool,
    semantics: Semantics,
    scope: Scope,
    line: u32,
    /// The releases with which a read of this access can synchronise.
    parts: Vec<Rc<Part>>,
    /// Threads that observed it, and their epoch then.
    observers: Vec<(u32, u32)>,
}

impl Record {
    fn conflict(&self) -> Conflict {
        Conflict {
            actor: self.actor,
            line: self.line,
            write: self.write,
            semantics: self.semantics,
            scope: self.scope,
            place: None,
        }
    }
}

/// Accesses to 16 bytes.
#[derive(Debug, Default)]
pub(super) struct Granule {
    writes: Vec<Record>,
    reads: Vec<Record>,
}

impl Granule {
    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }
}

/// The causality state of a thread.
struct Thread {
    who: Actor,
    clock: Clock,
    /// The last releasing fence of each scope that no wider one followed.
    fences: [Option<Rc<Part>>; 3],
    /// The releases that strong reads returned, and with which a later fence may synchronise.
    pending: Vec<Rc<Part>>,
}

/// All threads of a run; the last one is the host.
#[derive(Default)]
pub(super) struct Threads {
    all: Vec<Thread>,
    /// The last `fence.sc` of each thread and scope.
    sequential: Vec<Rc<Part>>,
}

impl Threads {
    pub(super) fn new(actors: &[Actor]) -> Self {
        let zeros = Rc::new(vec![0; actors.len() + 1]);
        let host = Actor { launch: u32::MAX, block: u32::MAX, device: u32::MAX };
        let all = actors.iter().chain([&host]).enumerate().map(|(actor, &who)| Thread {
            who,
            clock: Clock::new(&zeros, actor as u32),
            fences: [None, None, None],
            pending: Vec::new(),
        });
        Self { all: all.collect(), sequential: Vec::new() }
    }

    fn index(&self, actor: u32) -> usize {
        if actor == HOST { self.all.len() - 1 } else { actor as usize }
    }

    /// The narrowest scope at which two threads reach each other.
    fn distance(&self, a: u32, b: u32) -> Scope {
        let (a, b) = (&self.all[a as usize].who, &self.all[b as usize].who);
        if a.block == b.block {
            Scope::Cta
        } else if a.device == b.device {
            Scope::Gpu
        } else {
            Scope::Sys
        }
    }

    /// Whether an access of thread `a` and a recorded one are morally strong.
    fn morally_strong(&self, a: u32, access: &Access, mask: u16, record: &Record) -> bool {
        if a == record.actor {
            return true;
        }
        let distance = self.distance(a, record.actor);
        access.semantics.strong()
            && record.semantics.strong()
            && access.scope >= distance
            && record.scope >= distance
            && mask == record.extent
    }

    /// Whether the record comes before the current access of thread `a`.
    fn ordered(&self, a: u32, record: &Record) -> bool {
        let clock = &self.all[a as usize].clock;
        record.actor == a
            || clock.of(record.actor) >= record.epoch
            || record.observers.iter().any(|&(z, epoch)| z == a || clock.of(z) >= epoch)
    }

    /// Checks and records an access to the bytes `mask` of a granule. Returns the two accesses that race, if they do.
    pub(super) fn access(
        &mut self,
        granule: &mut Granule,
        site: &Site,
        access: &Access,
        mask: u16,
        effect: Effect,
    ) -> Result<(), (Conflict, Conflict)> {
        let actor = self.index(site.actor) as u32;
        let earlier = granule.writes.iter().chain(granule.reads.iter().filter(|_| effect.write));
        for record in earlier {
            if record.mask & mask != 0
                && !self.ordered(actor, record)
                && !self.morally_strong(actor, access, mask, record)
            {
                let mine = Conflict {
                    actor: site.actor,
                    line: site.line,
                    write: effect.write,
                    semantics: access.semantics,
                    scope: access.scope,
                    place: None,
                };
                return Err((mine, record.conflict()));
            }
        }
        let mut parts = Vec::new();
        if effect.read && access.semantics.strong() {
            self.observe(granule, actor, access, mask, effect, &mut parts);
        }
        if effect.write {
            if access.semantics.strong() {
                self.release(granule, actor, access, mask, &mut parts);
            }
            self.record_write(granule, actor, site, access, mask, parts);
        } else {
            self.record_read(granule, actor, site, access, mask);
        }
        if access.semantics.releases() {
            // Later accesses do not come before those of a thread that acquires this one.
            self.all[actor as usize].clock.epoch += 1;
        }
        Ok(())
    }

    /// A strong read: notes the writes that it observes, and synchronises if it acquires. What the writes carry
    /// goes on in `carried`.
    fn observe(
        &mut self,
        granule: &mut Granule,
        actor: u32,
        access: &Access,
        mask: u16,
        effect: Effect,
        carried: &mut Vec<Rc<Part>>,
    ) {
        for record in &mut granule.writes {
            if record.live & mask == 0 || !self.morally_strong(actor, access, mask, record) {
                continue;
            }
            if record.actor != actor && !record.observers.iter().any(|&(z, _)| z == actor) {
                let clock = &mut self.all[actor as usize].clock;
                clock.epoch += 1;
                record.observers.push((actor, clock.epoch));
            }
            for part in &record.parts {
                if effect.write {
                    carried.push(part.clone());
                }
                let distance = self.distance(part.clock.actor, actor);
                if !effect.returns || part.scope < distance {
                    continue;
                }
                let thread = &mut self.all[actor as usize];
                if access.semantics.acquires() && access.scope >= distance {
                    thread.clock.join(&part.clock);
                } else if !thread.pending.iter().any(|known| Rc::ptr_eq(known, part)) {
                    thread.pending.push(part.clone());
                }
            }
        }
    }

    /// A strong write: collects the releases with which a read of it can synchronise.
    fn release(&self, granule: &Granule, actor: u32, access: &Access, mask: u16, parts: &mut Vec<Rc<Part>>) {
        let thread = &self.all[actor as usize];
        if access.semantics.releases() {
            parts.push(Rc::new(Part { clock: thread.clock.clone(), scope: access.scope }));
        } else {
            // An own release to the same bytes goes on with this write.
            for record in &granule.writes {
                if record.actor == actor && record.extent == mask && record.semantics.releases() {
                    parts.extend(record.parts.iter().filter(|part| part.clock.actor == actor).cloned());
                }
            }
        }
        parts.extend(thread.fences.iter().flatten().cloned());
        // A later release of the same thread with at least the same scope stands for an earlier one.
        let all = std::mem::take(parts);
        for (at, part) in all.iter().enumerate() {
            let stands = |(other, by): (usize, &Rc<Part>)| {
                by.clock.actor == part.clock.actor
                    && by.scope >= part.scope
                    && (by.clock.epoch > part.clock.epoch
                        || by.clock.epoch == part.clock.epoch && (by.scope > part.scope || other > at))
            };
            if !all.iter().enumerate().any(stands) {
                parts.push(part.clone());
            }
        }
    }

    fn record_write(
        &mut self,
        granule: &mut Granule,
        actor: u32,
        site: &Site,
        access: &Access,
        mask: u16,
        parts: Vec<Rc<Part>>,
    ) {
        for record in granule.writes.iter_mut().chain(&mut granule.reads) {
            record.live &= !mask;
            if record.mask & mask != 0 && self.ordered(actor, record) {
                record.mask &= !mask;
            }
        }
        granule.writes.retain(|record| record.mask | record.live != 0);
        granule.reads.retain(|record| record.mask != 0);
        granule.writes.push(Record {
            actor,
            epoch: self.all[actor as usize].clock.epoch,
            mask,
            extent: mask,
            live: mask,
            write: true,
            semantics: access.semantics,
            scope: access.scope,
            line: site.line,
            parts,
            observers: Vec::new(),
        });
    }

    fn record_read(&mut self, granule: &mut Granule, actor: u32, site: &Site, access: &Access, mask: u16) {
        let epoch = self.all[actor as usize].clock.epoch;
        let strong = access.semantics.strong();
        // A later read of the same kind stands for the earlier one: what is ordered after it is after both.
        let same = granule.reads.iter_mut().find(|record| {
            record.actor == actor
                && record.extent == mask
                && record.mask == mask
                && record.semantics.strong() == strong
                && record.scope == access.scope
        });
        if let Some(record) = same {
            record.epoch = epoch;
            record.line = site.line;
            return;
        }
        granule.reads.push(Record {
            actor,
            epoch,
            mask,
            extent: mask,
            live: 0,
            write: false,
            semantics: access.semantics,
            scope: access.scope,
            line: site.line,
            parts: Vec::new(),
            observers: Vec::new(),
        });
    }

    pub(super) fn fence(&mut self, actor: u32, semantics: Semantics, scope: Scope) {
        let at = self.index(actor);
        if semantics.acquires() {
            let pending = std::mem::take(&mut self.all[at].pending);
            for part in pending {
                if scope >= self.distance(part.clock.actor, at as u32) {
                    self.all[at].clock.join(&part.clock);
                } else {
                    self.all[at].pending.push(part);
                }
            }
        }
        if semantics == Semantics::Sequential {
            for part in std::mem::take(&mut self.sequential) {
                let distance = self.distance(part.clock.actor, at as u32);
                if part.scope >= distance && scope >= distance {
                    self.all[at].clock.join(&part.clock);
                }
                // The own one of this scope is replaced.
                if part.clock.actor != at as u32 || part.scope != scope {
                    self.sequential.push(part);
                }
            }
        }
        let thread = &mut self.all[at];
        let part = Rc::new(Part { clock: thread.clock.clone(), scope });
        thread.clock.epoch += 1;
        if semantics.releases() {
            let rank = scope as usize;
            thread.fences[..rank].fill(None);
            thread.fences[rank] = Some(part.clone());
        }
        if semantics == Semantics::Sequential {
            self.sequential.push(part);
        }
    }

    pub(super) fn barrier(&mut self, came: &[u32], waited: &[u32]) {
        let Some(&first) = came.first() else { return };
        let mut joined = self.all[first as usize].clock.clone();
        for &actor in &came[1..] {
            joined.join(&self.all[actor as usize].clock);
        }
        // The first one's entry is beside its clock's shared part.
        let all = joined.of_no_one();
        for &actor in waited {
            self.all[actor as usize].clock.share(&all);
        }
        for &actor in came {
            self.all[actor as usize].clock.epoch += 1;
        }
    }
}
