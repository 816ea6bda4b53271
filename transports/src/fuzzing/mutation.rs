//! New inputs out of old ones.
//!
//! Invariant: a mutant is never longer than [`INPUT_BYTES_MAX`], and has a piece at least if its ancestors have.

use consort_testing::Random;

use super::{INPUT_BYTES_MAX, Input};

/// Values at which programs are wrong.
const INTERESTING: [u64; 22] = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    16,
    127,
    128,
    255,
    256,
    4096,
    0x7fff,
    0xffff,
    1 << 16,
    1 << 20,
    (1 << 20) + 1,
    0x7fff_ffff,
    0xffff_ffff,
    i64::MAX as u64,
    u64::MAX,
];

fn bytes_of(input: &Input) -> usize {
    input.iter().map(Vec::len).sum()
}

/// A mutant of something in the corpus.
pub(super) fn mutant(noise: &mut Random, corpus: &[Input]) -> Input {
    // The latest are the deepest, most likely.
    let at = match noise.below(3) {
        0 => corpus.len() - 1 - noise.below(corpus.len().div_ceil(8)),
        _ => noise.below(corpus.len()),
    };
    let mut input = corpus[at].clone();
    for _ in 0..1 << noise.below(5) {
        if noise.below(4) == 0 {
            rearrange(noise, &mut input, corpus);
        } else if !input.is_empty() {
            let at = noise.below(input.len());
            change(noise, &mut input[at]);
        }
    }
    while bytes_of(&input) > INPUT_BYTES_MAX {
        match input.len() {
            1 => input[0].truncate(INPUT_BYTES_MAX),
            _ => drop(input.pop()),
        }
    }
    input
}

/// Changes the order and number of pieces.
fn rearrange(noise: &mut Random, input: &mut Input, corpus: &[Input]) {
    let other = &corpus[noise.below(corpus.len())];
    let at = noise.below(input.len() + 1);
    let room = INPUT_BYTES_MAX.saturating_sub(bytes_of(input));
    match noise.below(7) {
        // A piece again, somewhere else.
        0 if !input.is_empty() => {
            let piece = input[noise.below(input.len())].clone();
            if piece.len() <= room {
                input.insert(at, piece);
            }
        }
        1 if input.len() > 1 => drop(input.remove(noise.below(input.len()))),
        2 if input.len() > 1 => {
            let (one, two) = (noise.below(input.len()), noise.below(input.len()));
            input.swap(one, two);
        }
        // A piece of another input.
        3 if !other.is_empty() => {
            let piece = other[noise.below(other.len())].clone();
            if piece.len() <= room {
                input.insert(at, piece);
            }
        }
        // The beginning of this one, the end of another.
        4 => {
            let from = noise.below(other.len() + 1);
            input.truncate(at.max(1));
            input.extend(other[from..].iter().cloned());
        }
        // Two pieces as one, or one as two.
        5 if input.len() > 1 => {
            let at = noise.below(input.len() - 1);
            let next = input.remove(at + 1);
            input[at].extend(next);
        }
        6 if !input.is_empty() => {
            let at = noise.below(input.len());
            let cut = noise.below(input[at].len() + 1);
            let rest = input[at].split_off(cut);
            input.insert(at + 1, rest);
        }
        _ => {}
    }
}

/// Changes the bytes of a piece.
fn change(noise: &mut Random, piece: &mut Vec<u8>) {
    if piece.is_empty() {
        let value = noise.draw();
        piece.extend_from_slice(&value.to_le_bytes()[..1 + (value >> 61) as usize]);
        return;
    }
    let at = noise.below(piece.len());
    let width = [1, 2, 4, 8][noise.below(4)].min(piece.len() - at);
    match noise.below(10) {
        0 => piece[at] ^= 1 << noise.below(8),
        1 => piece[at] = noise.draw() as u8,
        // A number: an interesting one, or one that is nearly right.
        2 | 3 => {
            let value = INTERESTING[noise.below(INTERESTING.len())];
            piece[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        4 => {
            let mut value = [0; 8];
            value[..width].copy_from_slice(&piece[at..at + width]);
            let by = (noise.below(9) as u64).wrapping_sub(4);
            let value = u64::from_le_bytes(value).wrapping_add(by).to_le_bytes();
            piece[at..at + width].copy_from_slice(&value[..width]);
        }
        // A length: of what follows, or a little off.
        5 => {
            let rest = (piece.len() - at - width + noise.below(3)).wrapping_sub(1) as u64;
            piece[at..at + width].copy_from_slice(&rest.to_le_bytes()[..width]);
        }
        6 => piece.truncate(at),
        7 => {
            let most = noise.below(10);
            let count = noise.below(1 << most);
            let value = noise.draw();
            let same = noise.below(2) == 0;
            piece.extend((0..count).map(|_| if same { value as u8 } else { noise.draw() as u8 }));
        }
        8 => {
            let count = noise.below(piece.len() - at).min(64) + 1;
            let bytes = piece[at..(at + count).min(piece.len())].to_vec();
            let to = noise.below(piece.len() + 1);
            piece.splice(to..to, bytes);
        }
        _ => {
            let count = (noise.below(16) + 1).min(piece.len() - at);
            piece.drain(at..at + count);
        }
    }
}
