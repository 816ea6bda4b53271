//! What a token is: a byte, or with the feature `bpe` and a file of ranks, bytes that often stand together.
//!
//! Invariant: any bytes have tokens, and these are the bytes again. A file of ranks has all single bytes, and each other token is made of two
//! that are above it, so that merging the pair of the lowest rank first (Sennrich and others, 2016) gives each token for its own bytes. Absent:
//! a split into words before that, as some programs make with expressions of their own; and tokens that are no bytes.

use std::borrow::Cow;
use std::path::Path;

use crate::error::{Error, Result};

/// Tokens that there are where each is a byte.
pub const VOCABULARY: usize = 256;

/// What a token is.
pub enum Vocabulary {
    /// A byte.
    Bytes,
    /// A rank of a file.
    #[cfg(feature = "bpe")]
    Pairs(Box<bpe::byte_pair_encoding::BytePairEncoding>),
}

impl Vocabulary {
    /// That of a file of ranks, a line for each token, from the lowest: its bytes in base64, a space, and its rank, as tiktoken writes them.
    ///
    /// # Errors
    /// [`Error::File`] where it cannot be read; [`Error::Configuration`] with the line that makes no sense, or where the program was built
    /// without the feature `bpe`.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::file(path, "read", error))?;
        Self::parse(&text)
            .map_err(|(what, hint)| Error::configuration(format!("{}: {what}", path.display()), hint))
    }

    #[cfg(not(feature = "bpe"))]
    fn parse(_: &str) -> Parsed {
        Err((
            "this program cannot read vocabularies".into(),
            "build it with cargo build -p consort-trainer --features bpe",
        ))
    }

    #[cfg(feature = "bpe")]
    fn parse(text: &str) -> Parsed {
        pairs::parse(text).map(|pairs| Vocabulary::Pairs(Box::new(pairs)))
    }

    /// Tokens that there are, in multiples of 64, so that ranks can share them evenly: the last ones may stand for nothing.
    pub fn size(&self) -> usize {
        match self {
            Vocabulary::Bytes => VOCABULARY,
            #[cfg(feature = "bpe")]
            Vocabulary::Pairs(pairs) => pairs.num_tokens().next_multiple_of(64),
        }
    }

    /// The tokens of some bytes.
    pub fn encode<'a>(&self, bytes: &'a [u8]) -> Tokens<'a> {
        match self {
            Vocabulary::Bytes => Tokens::Bytes(Cow::Borrowed(bytes)),
            #[cfg(feature = "bpe")]
            Vocabulary::Pairs(pairs) => Tokens::Pairs(pairs.encode_via_backtracking(bytes)),
        }
    }

    /// The bytes of some tokens. Those that stand for nothing are left out.
    pub fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        match self {
            Vocabulary::Bytes => tokens.iter().filter_map(|token| u8::try_from(*token).ok()).collect(),
            #[cfg(feature = "bpe")]
            Vocabulary::Pairs(pairs) => {
                let known = tokens.iter().filter(|token| (**token as usize) < pairs.num_tokens());
                known.flat_map(|token| pairs.token_bytes(*token)).copied().collect()
            }
        }
    }

    /// What a token is called.
    pub fn unit(&self) -> &'static str {
        match self {
            Vocabulary::Bytes => "byte",
            #[cfg(feature = "bpe")]
            Vocabulary::Pairs(_) => "token",
        }
    }
}

/// A vocabulary, or what is wrong with its file and what to do.
type Parsed<V = Vocabulary> = std::result::Result<V, (String, &'static str)>;

/// Tokens, as small as they can be.
#[derive(Clone, Hash, Debug)]
pub enum Tokens<'a> {
    /// Each a byte.
    Bytes(Cow<'a, [u8]>),
    /// Each a rank.
    Pairs(Vec<u32>),
}

impl Tokens<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Tokens::Bytes(bytes) => bytes.len(),
            Tokens::Pairs(ranks) => ranks.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Some of them.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn of(&self, range: std::ops::Range<usize>) -> Vec<u32> {
        match self {
            Tokens::Bytes(bytes) => bytes[range].iter().copied().map(u32::from).collect(),
            Tokens::Pairs(ranks) => ranks[range].to_vec(),
        }
    }

    /// The first ones, and the others from `at` on.
    pub(crate) fn split(self, at: usize) -> [Tokens<'static>; 2] {
        match self {
            Tokens::Bytes(bytes) => {
                let (first, rest) = bytes.split_at(at);
                [first, rest].map(|part| Tokens::Bytes(Cow::Owned(part.to_vec())))
            }
            Tokens::Pairs(mut ranks) => {
                let rest = ranks.split_off(at);
                [ranks, rest].map(Tokens::Pairs)
            }
        }
    }

    /// Adds them to a checksum.
    pub(crate) fn sum(&self, sum: &mut adler2::Adler32) {
        match self {
            Tokens::Bytes(bytes) => sum.write_slice(bytes),
            Tokens::Pairs(ranks) => ranks.iter().for_each(|rank| sum.write_slice(&rank.to_le_bytes())),
        }
    }
}

#[cfg(feature = "bpe")]
mod pairs {
    //! Files of ranks.

    use std::collections::{HashMap, HashSet};

    use bpe::byte_pair_encoding::{BytePairEncoding, read_tiktoken};

    use super::Parsed;

    const HINT: &str = "give a file of ranks as tiktoken writes them";

    /// The vocabulary, after what makes none was found: the crate would panic.
    pub(super) fn parse(text: &str) -> Parsed<BytePairEncoding> {
        let lines = || text.lines().filter(|line| !line.is_empty());
        for (number, line) in lines().enumerate() {
            let mut words = line.split_whitespace();
            let rank = words.nth(1).and_then(|rank| rank.parse::<usize>().ok());
            if rank != Some(number) || words.next().is_some() {
                return Err((
                    format!("line {} is not a token and its rank {number}: {line}", number + 1),
                    HINT,
                ));
            }
        }
        let tokens =
            read_tiktoken(text).map_err(|error| (format!("a token is not base64: {error}"), HINT))?;
        check(&tokens)?;
        let factor = factor(&tokens);
        Ok(BytePairEncoding::from_dictionary(tokens, Some(factor)))
    }

    /// The crate's hash of a token: FNV-1a of its length and its bytes, times a factor, the upper half.
    fn hash(token: &[u8], factor: u64) -> u32 {
        let length = (token.len() as u64).to_le_bytes();
        let fnv = length.iter().chain(token).fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (fnv.wrapping_mul(factor) >> 32) as u32
    }

    /// A factor with which no two tokens have the same hash, without which the crate panics. Its own search needs random numbers, and
    /// with them more crates.
    fn factor(tokens: &[Vec<u8>]) -> u64 {
        let factors = (1..).map(|number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let are_apart = |factor: &u64| {
            let mut seen = HashSet::with_capacity(tokens.len());
            tokens.iter().all(|token| seen.insert(hash(token, *factor)))
        };
        factors.take(1 << 10).find(are_apart).unwrap_or(1)
    }

    /// Whether the tokens are all bytes, and what pairs of them make.
    fn check(tokens: &[Vec<u8>]) -> Parsed<()> {
        let mut ranks: HashMap<&[u8], u32> = HashMap::new();
        for (rank, token) in (0..).zip(tokens) {
            if token.is_empty() || ranks.insert(token, rank).is_some() {
                return Err((format!("token {rank} is empty or is there twice: {token:?}"), HINT));
            }
        }
        if let Some(byte) = (0..=u8::MAX).find(|byte| !ranks.contains_key(&[*byte][..])) {
            return Err((format!("byte {byte} is no token"), HINT));
        }
        match tokens.iter().find(|token| merged(token, &ranks) != [&token[..]]) {
            None => Ok(()),
            Some(token) => Err((format!("no two tokens make {token:?}, merged in their order"), HINT)),
        }
    }

    /// Bytes as tokens: the pair that makes the lowest rank is merged, until no pair makes a token.
    pub(super) fn merged<'a>(bytes: &'a [u8], ranks: &HashMap<&[u8], u32>) -> Vec<&'a [u8]> {
        let mut ends: Vec<usize> = (0..=bytes.len()).collect();
        loop {
            let pairs = ends.windows(3).enumerate();
            let rank = |(at, pair): (usize, &[usize])| Some((*ranks.get(&bytes[pair[0]..pair[2]])?, at + 1));
            let Some((_, end)) = pairs.filter_map(rank).min() else { break };
            ends.remove(end);
        }
        ends.windows(2).map(|part| &bytes[part[0]..part[1]]).collect()
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::vocabulary::Vocabulary;

        /// Tokens above the bytes.
        fn of(more: &[&str]) -> Vec<Vec<u8>> {
            let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
            bytes.chain(more.iter().map(|token| token.as_bytes().to_vec())).collect()
        }

        #[test]
        fn what_makes_no_vocabulary_is_named() {
            let said = |tokens: &[Vec<u8>]| check(tokens).expect_err("a fault").0;
            assert!(said(&of(&["th", "th"])).contains("token 257 is empty or is there twice"));
            assert!(said(&of(&[""])).contains("token 256 is empty"));
            assert!(said(&of(&[])[1..]).contains("byte 0 is no token"));
            assert!(said(&of(&["the"])).contains("no two tokens make [116, 104, 101]"));
            // There is no token of three bytes on the way.
            assert!(said(&of(&["xy", "yz", "xyzw"])).contains("no two tokens make"));
            check(&of(&["he", "the"])).expect("the is made of t and he");
            for (text, part) in [("YQ== 1", "line 1 is not a token and its rank 0"), ("YQ 0", "not base64")] {
                assert!(parse(text).err().expect("a fault").0.contains(part), "{part}");
            }
        }

        #[test]
        fn hashes_are_those_of_the_crate() {
            // Its own test has these values.
            let hash = |token: &[u8]| hash(token, 17_846_336_922_010_275_747);
            assert_eq!(
                (hash(b""), hash(b" the"), hash(b"hello")),
                (3_616_665_607, 1_767_689_079, 2_209_557_787)
            );
            // All pairs of bytes, beside the bytes.
            let mut tokens = of(&[]);
            tokens.extend((0..=u16::MAX).map(|pair| pair.to_be_bytes().to_vec()));
            let pairs = BytePairEncoding::from_dictionary(tokens.iter().cloned(), Some(factor(&tokens)));
            assert_eq!(pairs.encode_via_backtracking(b"abc").len(), 2);
        }

        #[test]
        fn any_bytes_are_merged_in_the_order_of_ranks() {
            let tokens = of(&["he", "the", " the", "in", "er", "re", "here"]);
            let ranks: HashMap<&[u8], u32> = tokens.iter().map(|token| &token[..]).zip(0..).collect();
            let factor = factor(&tokens);
            let pairs = BytePairEncoding::from_dictionary(tokens.iter().cloned(), Some(factor));
            let vocabulary = Vocabulary::Pairs(Box::new(pairs));
            for bytes in
                [&b"in the other thereherethe"[..], b"\xff\x00the\xfe", b"", "h\u{e4}here".as_bytes()]
            {
                let found = vocabulary.encode(bytes);
                let found = found.of(0..found.len());
                let expected: Vec<u32> = merged(bytes, &ranks).iter().map(|token| ranks[token]).collect();
                assert_eq!(found, expected, "{bytes:?}");
                assert_eq!(vocabulary.decode(&found), bytes);
            }
            assert_eq!((vocabulary.size(), vocabulary.decode(&[300, 263])), (320, Vec::new()));
        }
    }
}
