//! Fewer slots: registers that are never live together share one.
//!
//! The compiler's text names a new register for every value, some thousand in a kernel. A thread needs some hundred
//! places for them. A live range runs along the text from the first to the last instruction between which a value may
//! be read, and live ranges get places in order. Invariant: a value stays in its place from where it is written to
//! every place where it is read. Absent: kernels with calls, which keep a slot for each register. A register that a
//! text reads before it writes it holds any value.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::program::{ALWAYS, Instruction, Op, SINK, Slot, Start, WarpOp};

/// What an instruction does with a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Reads,
    Writes,
}

/// Calls `see` for every slot of `op`, those that are read first.
fn slots(op: &mut Op, mut see: impl FnMut(&mut Slot, Role)) {
    use Role::{Reads, Writes};
    let mut all = |read: &mut [&mut Slot], written: &mut [&mut Slot]| {
        read.iter_mut().for_each(|slot| see(slot, Reads));
        written.iter_mut().for_each(|slot| see(slot, Writes));
    };
    match op {
        Op::Unary { d, a, .. }
        | Op::Convert { d, a, .. }
        | Op::Address { d, a, .. }
        | Op::IsSpace { d, a, .. }
        | Op::ActiveMask { d, lane: a } => all(&mut [a], &mut [d]),
        Op::Binary { d, a, b, .. } | Op::Set { d, a, b, .. } | Op::Pack2 { d, a, b, .. } => {
            all(&mut [a, b], &mut [d]);
        }
        Op::Ternary { d, a, b, c, .. }
        | Op::Logic { d, a, b, c, .. }
        | Op::Select { d, a, b, p: c }
        | Op::SelectSign { d, a, b, c, .. } => all(&mut [a, b, c], &mut [d]),
        Op::Insert { d, a, b, from, length, .. } => all(&mut [a, b, from, length], &mut [d]),
        Op::Compare { d, q, a, b, with, .. } => match with {
            Some((_, c, _)) => all(&mut [a, b, c], &mut [d, q]),
            None => all(&mut [a, b], &mut [d, q]),
        },
        Op::Join { d, parts: [w, x, y, z], .. } => all(&mut [w, x, y, z], &mut [d]),
        Op::Split { a, parts: [w, x, y, z], .. } => all(&mut [a], &mut [w, x, y, z]),
        Op::Load { how, to: [w, x, y, z], .. } => all(&mut [&mut how.base], &mut [w, x, y, z]),
        Op::Store { how, from: [w, x, y, z] } => all(&mut [&mut how.base, w, x, y, z], &mut []),
        Op::Atomic { how, d, b, c, .. } => all(&mut [&mut how.base, b, c], &mut [d]),
        Op::Barrier { id, count, d, p, .. } => all(&mut [id, count, p], &mut [d]),
        Op::Warp { op: WarpOp::Shuffle { valid, lane, clamp, .. }, d, a, members, .. } => {
            all(&mut [a, lane, clamp, members], &mut [d, valid]);
        }
        Op::Warp { d, a, members, .. } => all(&mut [a, members], &mut [d]),
        Op::Clock { d, .. } => all(&mut [], &mut [d]),
        Op::BranchTable { index, .. } => all(&mut [index], &mut []),
        Op::Call { back, .. } => all(&mut [], &mut [back]),
        Op::Return { back } => all(&mut [back], &mut []),
        Op::Fence { .. } | Op::Branch { .. } | Op::Copy { .. } | Op::Exit | Op::Trap | Op::Sleep => {}
    }
}

/// Calls `see` for every slot of an instruction. A guarded instruction may leave unchanged what it writes.
fn roles(instruction: &Instruction, mut see: impl FnMut(Slot, Role)) {
    let guarded = instruction.guard != ALWAYS;
    if guarded {
        see(instruction.guard, Role::Reads);
    }
    let mut op = instruction.op;
    slots(&mut op, |slot, role| {
        if guarded && role == Role::Writes {
            see(*slot, Role::Reads);
        }
        see(*slot, role);
    });
}

/// A piece of code that is entered at its start and left at its end.
struct Piece {
    code: std::ops::Range<usize>,
    next: Vec<usize>,
    /// Sets of slots: read before written, written, and wanted by what follows.
    reads: Vec<u64>,
    writes: Vec<u64>,
    after: Vec<u64>,
}

impl Piece {
    /// The slots whose value at the start of the piece is read later, a bit each.
    fn before(&self, word: usize) -> u64 {
        self.reads[word] | self.after[word] & !self.writes[word]
    }
}

/// The instructions that may follow. `at + 1` is left out when it never does.
fn next(code: &[Instruction], targets: &[u32], at: usize) -> (Vec<usize>, bool) {
    let instruction = &code[at];
    let jumps = match instruction.op {
        Op::Branch { target } => vec![target as usize],
        Op::BranchTable { first, count, .. } => {
            targets[first as usize..(first + count) as usize].iter().map(|&target| target as usize).collect()
        }
        Op::Exit | Op::Trap => Vec::new(),
        _ => return (Vec::new(), true),
    };
    (jumps, instruction.guard != ALWAYS)
}

fn pieces(code: &[Instruction], targets: &[u32], words: usize) -> Vec<Piece> {
    let mut starts = vec![false; code.len() + 1];
    starts[0] = true;
    for at in 0..code.len() {
        let (jumps, goes_on) = next(code, targets, at);
        if !jumps.is_empty() || !goes_on {
            starts[at + 1] = true;
        }
        for jump in jumps {
            starts[jump] = true;
        }
    }
    let firsts: Vec<usize> = (0..code.len()).filter(|&at| starts[at]).collect();
    let number: HashMap<usize, usize> = firsts.iter().enumerate().map(|(n, &at)| (at, n)).collect();
    let mut found = Vec::new();
    for (n, &first) in firsts.iter().enumerate() {
        let end = firsts.get(n + 1).copied().unwrap_or(code.len());
        let (mut after, goes_on) = next(code, targets, end - 1);
        if goes_on && end < code.len() {
            after.push(end);
        }
        let (mut reads, mut writes) = (vec![0u64; words], vec![0u64; words]);
        for instruction in &code[first..end] {
            roles(instruction, |slot, role| {
                let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
                match role {
                    Role::Reads => reads[word] |= bit & !writes[word],
                    Role::Writes => writes[word] |= bit,
                }
            });
        }
        let next = after.iter().map(|at| number[at]).collect();
        found.push(Piece { code: first..end, next, reads, writes, after: vec![0; words] });
    }
    found
}

/// First and last point of every slot at which it holds something. Point `2n` is where instruction `n` reads,
/// `2n + 1` where it writes.
fn ranges(code: &[Instruction], targets: &[u32], count: u32) -> Vec<Option<(usize, usize)>> {
    let words = (count as usize).div_ceil(64);
    let mut pieces = pieces(code, targets, words);
    let mut changed = true;
    while changed {
        changed = false;
        for n in (0..pieces.len()).rev() {
            for word in 0..words {
                let wanted = pieces[n].next.iter().fold(0, |all, &next| all | pieces[next].before(word));
                changed |= wanted != pieces[n].after[word];
                pieces[n].after[word] = wanted;
            }
        }
    }
    let mut found: Vec<Option<(usize, usize)>> = vec![None; count as usize];
    let mut hold = |slot: usize, point: usize| {
        let (first, last) = found[slot].unwrap_or((point, point));
        found[slot] = Some((first.min(point), last.max(point)));
    };
    for piece in &pieces {
        for slot in 0..count as usize {
            let (word, bit) = (slot / 64, slot % 64);
            if piece.before(word) >> bit & 1 == 1 {
                hold(slot, 2 * piece.code.start);
            }
            if piece.after[word] >> bit & 1 == 1 {
                hold(slot, 2 * piece.code.end - 1);
            }
        }
        for at in piece.code.clone() {
            roles(&code[at], |slot, role| hold(slot as usize, 2 * at + usize::from(role == Role::Writes)));
        }
    }
    found
}

/// Gives the slots of `code` new numbers, and returns how many there are now.
pub(super) fn share(
    code: &mut [Instruction],
    targets: &[u32],
    starts: &mut [(Slot, Start)],
    count: u32,
) -> u32 {
    if code.iter().any(|instruction| matches!(instruction.op, Op::Call { .. })) {
        return count;
    }
    let mut place = vec![SINK; count as usize];
    let mut places = SINK + 1;
    // A slot that is set when a thread starts is live throughout.
    for (slot, _) in starts.iter_mut() {
        place[*slot as usize] = places;
        *slot = places;
        places += 1;
    }
    let mut held: Vec<(usize, usize, usize)> = ranges(code, targets, count)
        .into_iter()
        .enumerate()
        .skip(1)
        .filter(|&(slot, _)| place[slot] == SINK)
        .filter_map(|(slot, range)| range.map(|(first, last)| (first, last, slot)))
        .collect();
    held.sort_unstable();
    let mut free: Vec<Slot> = Vec::new();
    let mut busy = BinaryHeap::new();
    for (first, last, slot) in held {
        while let Some(&Reverse((end, place))) = busy.peek() {
            if end >= first {
                break;
            }
            free.push(place);
            busy.pop();
        }
        let own = free.pop().unwrap_or_else(|| {
            places += 1;
            places - 1
        });
        place[slot] = own;
        busy.push(Reverse((last, own)));
    }
    for instruction in code {
        slots(&mut instruction.op, |slot, _| *slot = place[*slot as usize]);
        if instruction.guard != ALWAYS {
            instruction.guard = place[instruction.guard as usize];
        }
    }
    places
}
