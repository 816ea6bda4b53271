//! Names within braces.
//!
//! Invariant: a name means what the innermost brace around it says. Absent: names of the module.

use std::collections::HashMap;

use crate::program::Slot;

/// What a name within a function stands for.
#[derive(Clone, Debug)]
pub(super) enum Item<'t> {
    /// A register and its bits.
    Register(Slot, u32),
    /// First byte in the thread's local memory: variables, and parameters of functions and calls.
    Local(u64),
    /// First byte in the block's static shared memory.
    Shared(u64),
    /// First byte in the kernel's parameters.
    Parameter(u64),
    /// The labels of a branch table.
    Targets(Vec<&'t str>),
}

#[derive(Default)]
struct Scope<'t> {
    parent: usize,
    items: HashMap<&'t str, Item<'t>>,
    /// First slot, count and bits of `%r<count>`, by `%r`.
    families: HashMap<&'t str, (Slot, u32, u32)>,
    labels: HashMap<&'t str, u32>,
}

/// All braces of a function; those that are closed stay, for jumps to labels further on.
pub(super) struct Scopes<'t> {
    all: Vec<Scope<'t>>,
    current: usize,
}

impl<'t> Scopes<'t> {
    pub(super) fn new() -> Self {
        Self { all: vec![Scope::default()], current: 0 }
    }

    pub(super) fn open(&mut self) {
        self.all.push(Scope { parent: self.current, ..Scope::default() });
        self.current = self.all.len() - 1;
    }

    pub(super) fn close(&mut self) {
        self.current = self.all[self.current].parent;
    }

    pub(super) fn current(&self) -> usize {
        self.current
    }

    pub(super) fn declare(&mut self, name: &'t str, item: Item<'t>) {
        self.all[self.current].items.insert(name, item);
    }

    pub(super) fn declare_family(&mut self, prefix: &'t str, first: Slot, count: u32, width: u32) {
        self.all[self.current].families.insert(prefix, (first, count, width));
    }

    pub(super) fn place_label(&mut self, name: &'t str, at: u32) {
        self.all[self.current].labels.insert(name, at);
    }

    /// The scopes from `from` outwards.
    fn outwards(&self, from: usize) -> impl Iterator<Item = &Scope<'t>> {
        let mut next = Some(from);
        std::iter::from_fn(move || {
            let at = next?;
            next = (at != 0).then(|| self.all[at].parent);
            Some(&self.all[at])
        })
    }

    pub(super) fn item(&self, name: &str) -> Option<&Item<'t>> {
        self.outwards(self.current).find_map(|scope| scope.items.get(name))
    }

    /// The slot and bits of a register.
    pub(super) fn register(&self, name: &str) -> Option<(Slot, u32)> {
        if let Some(item) = self.item(name) {
            return match *item {
                Item::Register(slot, width) => Some((slot, width)),
                _ => None,
            };
        }
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let index: u32 = name[prefix.len()..].parse().ok()?;
        self.outwards(self.current).find_map(|scope| {
            let &(first, count, width) = scope.families.get(prefix)?;
            (index < count).then_some((first + index, width))
        })
    }

    pub(super) fn label(&self, scope: usize, name: &str) -> Option<u32> {
        self.outwards(scope).find_map(|scope| scope.labels.get(name).copied())
    }
}
