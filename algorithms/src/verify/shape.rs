//! Fold expressions up to moving all ranks along the dimensions of a symmetric schedule.
//!
//! Invariant: a value is a shape and its start; equal pairs are equal expressions, and a move of a value changes its
//! start only. (Where a shape looks the same after a move along a dimension of length 2, its start is the lowest.)
//! Brackets are those that the full verifier gives the same expressions. Absent: chunks; a fold has the contributions
//! of one chunk only.

use super::expression::Bracket;
use crate::numbers::Numbers;

/// Ranks as points along dimensions, the first one fastest; moves wrap around.
pub(super) struct Group {
    dimensions: Vec<u32>,
    pub(super) ranks: u32,
}

impl Group {
    /// `None` unless every dimension has a rank and together they have `ranks`.
    pub(super) fn new(dimensions: Vec<u32>, ranks: u32) -> Option<Self> {
        let product = dimensions.iter().try_fold(1u32, |product, &length| product.checked_mul(length))?;
        (product == ranks && ranks > 0).then_some(Group { dimensions, ranks })
    }

    fn along(&self, a: u32, b: u32, combine: impl Fn(u32, u32, u32) -> u32) -> u32 {
        let (mut a, mut b, mut stride, mut result) = (a, b, 1, 0);
        for &length in &self.dimensions {
            result += combine(a % length, b % length, length) % length * stride;
            (a, b, stride) = (a / length, b / length, stride * length);
        }
        result
    }

    pub(super) fn plus(&self, a: u32, b: u32) -> u32 {
        self.along(a, b, |a, b, _| a + b)
    }

    pub(super) fn minus(&self, a: u32, b: u32) -> u32 {
        self.along(a, b, |a, b, length| a + length - b)
    }

    /// One step along each dimension that is longer than 1.
    pub(super) fn generators(&self) -> impl Iterator<Item = u32> {
        let strides = self.dimensions.iter().scan(1, |stride, &length| {
            let here = *stride;
            *stride *= length;
            Some((here, length))
        });
        strides.filter(|&(_, length)| length > 1).map(|(stride, _)| stride)
    }

    pub(super) fn is_binary(&self) -> bool {
        self.dimensions.iter().all(|&length| length == 2)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Node {
    Undefined,
    Input,
    Scaled(u32),
    /// The right operand starts at a distance of `by` from the left one.
    Fold {
        left: u32,
        right: u32,
        by: u32,
    },
    /// As a fold, with the operand that starts lower first wherever the whole has moved.
    LowerFirst {
        left: u32,
        right: u32,
        by: u32,
    },
    Finished(u32),
}

/// A shape that starts at a rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Moved {
    pub(super) shape: u32,
    pub(super) first: u32,
}

impl Moved {
    pub(super) const UNDEFINED: Moved = Moved { shape: 0, first: 0 };
}

pub(super) struct Shapes {
    pub(super) group: Group,
    nodes: Vec<Node>,
    /// For each shape: the dimensions (of length 2) along which a move changes nothing, as the sum of their strides.
    free: Vec<u32>,
    /// For each shape its bracket when it starts at rank 0; the same wherever there is one dimension.
    brackets: Vec<Bracket>,
    numbers: Numbers<Node>,
    proved: Vec<bool>,
    known: Numbers<Moved, Bracket>,
}

impl Shapes {
    pub(super) fn new(group: Group) -> Self {
        let mut made = Shapes {
            group,
            nodes: Vec::new(),
            free: Vec::new(),
            brackets: Vec::new(),
            numbers: Numbers::default(),
            proved: Vec::new(),
            known: Numbers::default(),
        };
        made.intern(Node::Undefined, 0);
        made.intern(Node::Input, 0);
        made
    }

    fn intern(&mut self, node: Node, free: u32) -> u32 {
        if let Some(&number) = self.numbers.get(&node) {
            return number;
        }
        if self.group.dimensions.len() == 1 {
            let at = |shape: u32, first: u32| Bracket { first, ..self.brackets[shape as usize] };
            self.brackets.push(match node {
                Node::Undefined => Bracket::undefined(),
                Node::Input => Bracket::input(0),
                Node::Scaled(of) => at(of, 0).scaled(),
                Node::Fold { left, right, by } | Node::LowerFirst { left, right, by } => {
                    at(left, 0).fold(at(right, by), self.group.ranks)
                }
                Node::Finished(of) => at(of, 0).finished(),
            });
        }
        let number = self.nodes.len() as u32;
        self.nodes.push(node);
        self.free.push(free);
        self.proved.push(false);
        self.numbers.insert(node, number);
        number
    }

    pub(super) fn input(&mut self, rank: u32) -> Moved {
        Moved { shape: 1, first: rank }
    }

    /// The rank of a contribution that is neither scaled nor folded; `None` for any other value.
    pub(super) fn as_input(&self, of: Moved) -> Option<u32> {
        (self.nodes[of.shape as usize] == Node::Input).then_some(of.first)
    }

    pub(super) fn scaled(&mut self, of: Moved) -> Moved {
        self.wrapped(of, Node::Scaled(of.shape))
    }

    pub(super) fn finished(&mut self, of: Moved) -> Moved {
        self.wrapped(of, Node::Finished(of.shape))
    }

    fn wrapped(&mut self, of: Moved, node: Node) -> Moved {
        if of == Moved::UNDEFINED {
            return of;
        }
        Moved { shape: self.intern(node, self.free[of.shape as usize]), ..of }
    }

    pub(super) fn fold(&mut self, left: Moved, right: Moved) -> Moved {
        if left == Moved::UNDEFINED || right == Moved::UNDEFINED {
            return Moved::UNDEFINED;
        }
        let by = self.group.minus(right.first, left.first);
        let free = self.free[left.shape as usize] & self.free[right.shape as usize];
        let shape = self.intern(Node::Fold { left: left.shape, right: right.shape, by }, free);
        Moved { shape, first: left.first }
    }

    /// The fold of two values whose order moves with them: the ranks that meet differ by `between`, and so do the
    /// starts in the highest dimension in which they differ. Undefined otherwise.
    pub(super) fn fold_lower_first(&mut self, left: Moved, right: Moved, between: u32) -> Moved {
        let apart = left.first ^ right.first;
        let same_side = apart.checked_ilog2() == between.checked_ilog2();
        if left == Moved::UNDEFINED || right == Moved::UNDEFINED || !same_side || left.first > right.first {
            return Moved::UNDEFINED;
        }
        let mut free = self.free[left.shape as usize] & self.free[right.shape as usize];
        if left.shape == right.shape && apart.is_power_of_two() {
            free |= apart;
        }
        let shape = self.intern(Node::LowerFirst { left: left.shape, right: right.shape, by: apart }, free);
        Moved { shape, first: left.first & !free }
    }

    /// The same value with all ranks moved.
    pub(super) fn moved(&self, of: Moved, by: u32) -> Moved {
        if of == Moved::UNDEFINED {
            return of;
        }
        Moved { first: self.group.plus(of.first, by) & !self.free[of.shape as usize], ..of }
    }

    /// Whether a value is finished once and folds the contribution of every rank once, scaled once.
    ///
    /// # Errors
    ///
    /// The fault, as text.
    pub(super) fn check_fold(&mut self, of: Moved) -> Result<(), &'static str> {
        if self.proved[of.shape as usize] {
            return Ok(());
        }
        let Node::Finished(inner) = self.nodes[of.shape as usize] else {
            return Err("it was not finished last");
        };
        let mut seen = vec![false; self.group.ranks as usize];
        let mut leaves = 0;
        let mut open = vec![(inner, of.first, false)];
        while let Some((shape, first, scaled)) = open.pop() {
            match self.nodes[shape as usize] {
                Node::Undefined => return Err("part of it was never written"),
                Node::Finished(_) => return Err("part of it was finished before it was complete"),
                Node::Scaled(_) if scaled => return Err("a contribution was scaled twice"),
                Node::Scaled(of) => open.push((of, first, true)),
                Node::Fold { left, right, by } | Node::LowerFirst { left, right, by } => {
                    open.extend([(left, first, scaled), (right, self.group.plus(first, by), scaled)]);
                }
                Node::Input if !scaled => return Err("a contribution was never scaled"),
                Node::Input if std::mem::replace(&mut seen[first as usize], true) => {
                    return Err("a contribution is in it twice");
                }
                Node::Input => leaves += 1,
            }
        }
        if leaves < self.group.ranks {
            return Err("a contribution is missing");
        }
        self.proved[of.shape as usize] = true;
        Ok(())
    }

    pub(super) fn bracket(&mut self, of: Moved) -> Bracket {
        if let Some(&bracket) = self.brackets.get(of.shape as usize) {
            return Bracket { first: of.first, ..bracket };
        }
        if let Some(&bracket) = self.known.get(&of) {
            return bracket;
        }
        // Down the left operands, which form a long chain, and up again.
        let mut spine = vec![of.shape];
        loop {
            match self.nodes[spine[spine.len() - 1] as usize] {
                Node::Undefined | Node::Input => break,
                Node::Scaled(inner) | Node::Finished(inner) => spine.push(inner),
                Node::Fold { left, .. } | Node::LowerFirst { left, .. } => spine.push(left),
            }
        }
        let mut bracket = Bracket::undefined();
        while let Some(shape) = spine.pop() {
            bracket = match self.nodes[shape as usize] {
                Node::Undefined => Bracket::undefined(),
                Node::Input => Bracket::input(of.first),
                Node::Scaled(_) => bracket.scaled(),
                Node::Finished(_) => bracket.finished(),
                Node::Fold { right, by, .. } => {
                    let right = self.right(of.first, right, by);
                    bracket.fold(right, self.group.ranks)
                }
                Node::LowerFirst { right, by, .. } => {
                    let right = self.right(of.first, right, by);
                    let lower = bracket.first < right.first;
                    let (low, high) = if lower { (bracket, right) } else { (right, bracket) };
                    low.fold(high, self.group.ranks)
                }
            };
        }
        bracket
    }

    fn right(&mut self, first: u32, shape: u32, by: u32) -> Bracket {
        let moved = Moved { shape, first: self.group.plus(first, by) };
        let bracket = self.bracket(moved);
        if matches!(self.nodes[shape as usize], Node::Fold { .. } | Node::LowerFirst { .. }) {
            self.known.insert(moved, bracket);
        }
        bracket
    }
}
