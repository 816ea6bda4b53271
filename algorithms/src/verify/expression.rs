//! The content of a piece of memory, as a fold expression over the ranks' contributions.
//!
//! Invariant: equal expressions have equal ids (they are hash-consed), and an expression's hash depends on its
//! structure alone: not on the order in which expressions were made, nor on the machine. Absent: algebra. `a + b` and
//! `b + a` are different expressions, as in floating point.

use std::fmt::Write;

/// Index of an expression in its [`Expressions`].
pub(super) type Id = u32;

/// Memory that no step filled, or a mixture that is no value of this operation.
pub(super) const UNDEFINED: Id = 0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Node {
    Undefined,
    /// Chunk (or table entry) `chunk` of the input of `rank`.
    Input {
        rank: u32,
        chunk: u32,
    },
    /// A contribution multiplied for `avg`.
    Scaled(Id),
    Fold(Id, Id),
    /// A sum after the division of `avg` over integers.
    Finished(Id),
    /// A sum in an order of its own: that of one step, which no other step's equals.
    Unordered {
        of: Id,
        step: u64,
    },
}

/// The order in which contributions are folded, whatever the chunk: the shape, with ranks counted round from the
/// first contribution, and that contribution's rank. A move of all ranks changes only the latter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bracket {
    pub(super) shape: u64,
    pub(super) first: u32,
}

impl Bracket {
    pub(super) fn undefined() -> Self {
        Bracket { shape: mix(1, 0, 0), first: 0 }
    }

    pub(super) fn input(rank: u32) -> Self {
        Bracket { shape: mix(2, 0, 0), first: rank }
    }

    pub(super) fn scaled(self) -> Self {
        Bracket { shape: mix(3, self.shape, 0), ..self }
    }

    pub(super) fn finished(self) -> Self {
        Bracket { shape: mix(5, self.shape, 0), ..self }
    }

    pub(super) fn unordered(self) -> Self {
        Bracket { shape: mix(8, self.shape, 0), ..self }
    }

    pub(super) fn fold(self, right: Bracket, ranks: u32) -> Self {
        let distance = (u64::from(right.first) + u64::from(ranks) - u64::from(self.first)) % u64::from(ranks);
        Bracket { shape: mix(4, self.shape, mix(6, right.shape, distance)), ..self }
    }

    pub(super) fn hash(self) -> u64 {
        mix(7, self.shape, self.first.into())
    }
}

pub(super) struct Expressions {
    nodes: Vec<Node>,
    hashes: Vec<u64>,
    ranks: u32,
    brackets: Vec<Bracket>,
    /// Open addressing; `Id::MAX` is free. Its length is a power of two and more than twice the nodes.
    table: Vec<Id>,
}

impl Expressions {
    pub(super) fn new(ranks: u32) -> Self {
        let mut made = Expressions {
            nodes: Vec::new(),
            hashes: Vec::new(),
            ranks: ranks.max(1),
            brackets: Vec::new(),
            table: vec![Id::MAX; 1024],
        };
        made.intern(Node::Undefined);
        made
    }

    pub(super) fn bracket(&self, id: Id) -> Bracket {
        self.brackets[id as usize]
    }

    pub(super) fn input(&mut self, rank: u32, chunk: u32) -> Id {
        self.intern(Node::Input { rank, chunk })
    }

    pub(super) fn scaled(&mut self, of: Id) -> Id {
        if of == UNDEFINED { of } else { self.intern(Node::Scaled(of)) }
    }

    pub(super) fn finished(&mut self, of: Id) -> Id {
        if of == UNDEFINED { of } else { self.intern(Node::Finished(of)) }
    }

    /// What a switch folds in the order that suits it, by that step.
    pub(super) fn unordered(&mut self, of: Id, step: u64) -> Id {
        if of == UNDEFINED { of } else { self.intern(Node::Unordered { of, step }) }
    }

    pub(super) fn fold(&mut self, left: Id, right: Id) -> Id {
        if left == UNDEFINED || right == UNDEFINED { UNDEFINED } else { self.intern(Node::Fold(left, right)) }
    }

    fn intern(&mut self, node: Node) -> Id {
        if self.nodes.len() * 2 >= self.table.len() {
            self.grow();
        }
        let hash = self.hash_of(node);
        let mask = self.table.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            match self.table[at] {
                Id::MAX => break,
                id if self.nodes[id as usize] == node => return id,
                _ => at = (at + 1) & mask,
            }
        }
        let id = self.nodes.len() as Id;
        self.nodes.push(node);
        self.hashes.push(hash);
        self.brackets.push(match node {
            Node::Undefined => Bracket::undefined(),
            Node::Input { rank, .. } => Bracket::input(rank),
            Node::Scaled(of) => self.bracket(of).scaled(),
            Node::Fold(left, right) => self.bracket(left).fold(self.bracket(right), self.ranks),
            Node::Finished(of) => self.bracket(of).finished(),
            Node::Unordered { of, .. } => self.bracket(of).unordered(),
        });
        self.table[at] = id;
        id
    }

    fn grow(&mut self) {
        let mask = self.table.len() * 2 - 1;
        let mut table = vec![Id::MAX; mask + 1];
        for (id, hash) in self.hashes.iter().enumerate() {
            let mut at = *hash as usize & mask;
            while table[at] != Id::MAX {
                at = (at + 1) & mask;
            }
            table[at] = id as Id;
        }
        self.table = table;
    }

    fn hash_of(&self, node: Node) -> u64 {
        let hash = |id: Id| self.hashes[id as usize];
        match node {
            Node::Undefined => mix(1, 0, 0),
            Node::Input { rank, chunk } => mix(2, rank.into(), chunk.into()),
            Node::Scaled(of) => mix(3, hash(of), 0),
            Node::Fold(left, right) => mix(4, hash(left), hash(right)),
            Node::Finished(of) => mix(5, hash(of), 0),
            Node::Unordered { of, step } => mix(8, hash(of), step),
        }
    }

    /// Whether `id` is finished once and folds `chunk` of every one of `ranks` ranks once, scaled once.
    ///
    /// # Errors
    ///
    /// The fault, as text.
    pub(super) fn check_fold(&self, id: Id, ranks: u32, chunk: u32) -> Result<(), &'static str> {
        let Node::Finished(inner) = self.nodes[id as usize] else {
            return Err("it was not finished last");
        };
        let mut seen = vec![false; ranks as usize];
        let mut leaves = 0;
        let mut open = vec![(inner, false)];
        while let Some((id, scaled)) = open.pop() {
            match self.nodes[id as usize] {
                Node::Undefined => return Err("part of it was never written"),
                Node::Finished(_) => return Err("part of it was finished before it was complete"),
                Node::Scaled(_) if scaled => return Err("a contribution was scaled twice"),
                Node::Scaled(of) => open.push((of, true)),
                Node::Unordered { of, .. } => open.push((of, scaled)),
                Node::Fold(left, right) => open.extend([(left, scaled), (right, scaled)]),
                Node::Input { .. } if !scaled => return Err("a contribution was never scaled"),
                Node::Input { chunk: other, .. } if other != chunk => {
                    return Err("it holds a contribution of another chunk");
                }
                Node::Input { rank, .. } => {
                    if std::mem::replace(&mut seen[rank as usize], true) {
                        return Err("a contribution is in it twice");
                    }
                    leaves += 1;
                }
            }
        }
        if leaves == ranks { Ok(()) } else { Err("a contribution is missing") }
    }

    /// The expression in brackets, cut off after some length.
    pub(super) fn text(&self, id: Id) -> String {
        enum Part {
            Expression(Id),
            Text(&'static str),
        }
        let mut result = String::new();
        let mut open = vec![Part::Expression(id)];
        while let Some(part) = open.pop() {
            if result.len() > 400 {
                result.push_str(" …");
                break;
            }
            match part {
                Part::Text(text) => result.push_str(text),
                Part::Expression(id) => match self.nodes[id as usize] {
                    Node::Undefined => result.push('?'),
                    Node::Input { rank, chunk } => {
                        // Writing to a String cannot fail.
                        let _ = write!(result, "r{rank}.c{chunk}");
                    }
                    Node::Scaled(of) => open.extend([Part::Text("'"), Part::Expression(of)]),
                    Node::Finished(of) => {
                        open.extend([Part::Text("]"), Part::Expression(of), Part::Text("[")]);
                    }
                    Node::Unordered { of, .. } => {
                        open.extend([Part::Text("}"), Part::Expression(of), Part::Text("{")]);
                    }
                    Node::Fold(left, right) => open.extend([
                        Part::Text(")"),
                        Part::Expression(right),
                        Part::Text(" + "),
                        Part::Expression(left),
                        Part::Text("("),
                    ]),
                },
            }
        }
        result
    }
}

/// Three words to one, the same on every machine.
pub(super) fn mix(a: u64, b: u64, c: u64) -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for word in [a, b, c] {
        state = (state ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        state ^= state >> 32;
        state = state.wrapping_mul(0xc4ce_b9fe_1a85_ec53).rotate_left(29);
    }
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_structure_is_equal_id_and_hash() {
        let mut one = Expressions::new(2);
        let mut other = Expressions::new(2);
        let build = |table: &mut Expressions, order: [u32; 2]| {
            let leaves = order.map(|rank| table.input(rank, 7));
            let (low, high) = if order[0] == 0 { (leaves[0], leaves[1]) } else { (leaves[1], leaves[0]) };
            (table.fold(low, high), table.fold(high, low))
        };
        let (a, b) = build(&mut one, [0, 1]);
        let (c, d) = build(&mut other, [1, 0]);
        assert_eq!(one.bracket(a), other.bracket(c));
        assert_eq!(one.bracket(b), other.bracket(d));
        assert_ne!(one.bracket(a), one.bracket(b));
        assert_eq!(build(&mut one, [0, 1]).0, a);
        assert_eq!(one.text(a), "(r0.c7 + r1.c7)");
    }

    #[test]
    fn the_table_grows() {
        let mut table = Expressions::new(2);
        let ids: Vec<Id> = (0..5000).map(|rank| table.input(rank, 0)).collect();
        assert!((0..5000).all(|rank| table.input(rank, 0) == ids[rank as usize]));
    }

    #[test]
    fn exponential_sharing_ends_at_once() {
        let mut table = Expressions::new(2);
        let leaf = table.input(0, 0);
        let mut sum = table.scaled(leaf);
        for _ in 0..200 {
            sum = table.fold(sum, sum);
        }
        let sum = table.finished(sum);
        assert_eq!(table.check_fold(sum, 2, 0), Err("a contribution is in it twice"));
        assert!(table.text(sum).ends_with('…'));
    }
}
