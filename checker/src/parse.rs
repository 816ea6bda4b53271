//! A certificate's lines as values.
//!
//! Invariant: numbers of nodes, links and ranks that are named exist, and counts are small enough that no sum of them
//! overflows. Absent: meaning, but for that.

use std::collections::BTreeMap;

use crate::collective::Collective;
use crate::number::Fraction;
use crate::{Refused, refused};

/// The most ranks, nodes and chunks of a buffer.
const RANKS_MAX: usize = 1 << 14;
const NODES_MAX: usize = 1 << 20;
const CHUNKS_MAX: u64 = 1 << 24;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Rank {
        inject: Option<u64>,
        eject: Option<u64>,
    },
    /// A port or a switch.
    Other {
        aggregates: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Bytes a second, above 0.
    pub(crate) bytes_s: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Place {
    Input(u32),
    Output(u32),
    Scratch(u32),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) line: usize,
    /// Numbers of ranks; those above the ranks are aggregating switches.
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) source: Place,
    pub(crate) target: Place,
    pub(crate) fold: Option<Place>,
}

/// A route's line and links.
pub(crate) type Route = (usize, Vec<usize>);

/// A set of nodes of the [`network`](crate::network) of flows.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) line: usize,
    /// The first word of the line, which says what is counted of the set.
    pub(crate) counts: &'static str,
    pub(crate) nodes: Vec<usize>,
}

/// What has a capacity: the word for its kind, and the number of the link or rank.
pub(crate) type Part = (&'static str, usize);

/// The machine; nodes below the number of ranks are ranks.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) relays: bool,
    pub(crate) nodes: Vec<Kind>,
    pub(crate) links: Vec<Link>,
}

/// What proves the bound; sets or lengths may be none.
#[derive(Debug)]
pub(crate) struct Witness {
    pub(crate) argument: (String, usize),
    pub(crate) sides: Vec<Side>,
    pub(crate) lengths: BTreeMap<Part, u64>,
}

/// The node where the links of a rank begin, in a machine of `nodes` nodes; the next one is where they end.
pub(crate) fn begin(nodes: usize, rank: usize) -> usize {
    nodes + 2 * rank
}

/// A whole certificate; claims come with their lines.
#[derive(Debug)]
pub(crate) struct Certificate {
    pub(crate) machine: Machine,
    pub(crate) collective: Collective,
    pub(crate) ranks: u32,
    pub(crate) root: u32,
    pub(crate) parts: u32,
    pub(crate) routes: BTreeMap<(u32, u32), Route>,
    pub(crate) rounds: Vec<Vec<Transfer>>,
    pub(crate) rate: (Fraction, usize),
    pub(crate) bound: (Fraction, usize),
    pub(crate) witness: Witness,
    pub(crate) share: (Fraction, usize),
}

impl Certificate {
    /// Aggregating switches, in the order of their numbers.
    pub(crate) fn switches(&self) -> impl Iterator<Item = usize> {
        let folds = |kind: &Kind| *kind == Kind::Other { aggregates: true };
        self.machine.nodes.iter().enumerate().filter(move |(_, kind)| folds(kind)).map(|(node, _)| node)
    }

    pub(crate) fn transfers(&self) -> impl Iterator<Item = &Transfer> {
        self.rounds.iter().flatten()
    }
}

/// The words of a line that are not yet read.
struct Words<'a> {
    line: usize,
    rest: std::str::SplitWhitespace<'a>,
}

impl<'a> Words<'a> {
    fn word(&mut self, what: &str) -> Result<&'a str, Refused> {
        self.rest.next().map_or_else(|| refused(self.line, format!("{what} is missing")), Ok)
    }

    fn number<N: std::str::FromStr>(&mut self, what: &str) -> Result<N, Refused> {
        let word = self.word(what)?;
        parsed(word, self.line, what)
    }

    fn below(&mut self, what: &str, limit: usize) -> Result<usize, Refused> {
        let word = self.word(what)?;
        below(word, self.line, what, limit)
    }

    /// Whether the next word is this one, which is then read.
    fn has(&mut self, word: &str) -> bool {
        let is_next = self.rest.clone().next() == Some(word);
        is_next && self.rest.next().is_some()
    }

    fn place(&mut self) -> Result<Place, Refused> {
        let word = self.word("a place")?;
        let (kind, number) = word.split_at_checked(1).unwrap_or_default();
        let number = parsed(number, self.line, "chunk")?;
        match kind {
            "i" => Ok(Place::Input(number)),
            "o" => Ok(Place::Output(number)),
            "s" => Ok(Place::Scratch(number)),
            _ => refused(self.line, "a place is i, o or s with a number"),
        }
    }

    fn fraction(mut self) -> Result<(Fraction, usize), Refused> {
        let fraction = Fraction::new(self.number("a fraction")?, self.number("a fraction")?);
        let fraction = fraction.map_or_else(|| refused(self.line, "nothing is divided by 0"), Ok)?;
        self.end((fraction, self.line))
    }

    /// The value of a line that has no more words.
    fn end<T>(&mut self, value: T) -> Result<T, Refused> {
        self.rest.next().map_or(Ok(value), |_| refused(self.line, "the line has a word too many"))
    }
}

fn parsed<N: std::str::FromStr>(word: &str, line: usize, what: &str) -> Result<N, Refused> {
    let number = word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok()).flatten();
    number.map_or_else(|| refused(line, format!("{what} is no number, or too large a one")), Ok)
}

fn below(word: &str, line: usize, what: &str, limit: usize) -> Result<usize, Refused> {
    let number: usize = parsed(word, line, what)?;
    if number < limit { Ok(number) } else { refused(line, format!("there is no {what} {number}")) }
}

/// The lines that are not yet read.
struct Lines<'a> {
    line: usize,
    next: Option<&'a str>,
    rest: std::str::Lines<'a>,
}

impl<'a> Lines<'a> {
    /// The rest of the next line, where that begins with the word.
    fn take(&mut self, first: &str) -> Option<Words<'a>> {
        let mut rest = self.next?.split_whitespace();
        (rest.next() == Some(first)).then(|| {
            let line = self.line;
            (self.line, self.next) = (line + 1, self.rest.next());
            Words { line, rest }
        })
    }

    fn need(&mut self, first: &str) -> Result<Words<'a>, Refused> {
        let line = self.line;
        self.take(first).map_or_else(|| refused(line, format!("no line {first}")), Ok)
    }

    fn single<N: std::str::FromStr>(&mut self, first: &str) -> Result<N, Refused> {
        let mut words = self.need(first)?;
        let number = words.number(first)?;
        words.end(number)
    }
}

pub(crate) fn parse(text: &str) -> Result<Certificate, Refused> {
    let mut rest = text.lines();
    let mut lines = Lines { line: 1, next: rest.next(), rest };
    if lines.single::<u32>("consort-certificate")? != 1 {
        return refused(1, "this is no certificate of version 1");
    }
    let name = lines.need("machine")?.rest.collect::<Vec<&str>>().join(" ");
    let relays = match lines.need("relays")?.word("yes or no")? {
        "yes" => true,
        "no" => false,
        _ => return refused(lines.line - 1, "relays is yes or no"),
    };
    let nodes = nodes(&mut lines)?;
    let links = links(&mut lines, nodes.len())?;
    let collective = Collective::named(lines.need("collective")?.word("a name")?);
    let collective = collective.map_or_else(|| refused(lines.line - 1, "it has no bound"), Ok)?;
    let (ranks, root, parts) = (lines.single("ranks")?, lines.single("root")?, lines.single("parts")?);
    let is_rank = |kind: &Kind| matches!(kind, Kind::Rank { .. });
    let are = nodes.iter().take_while(|kind| is_rank(kind)).count();
    let is_right = (2..=RANKS_MAX).contains(&are) && ranks as usize == are && root < ranks;
    if !is_right || nodes[are..].iter().any(is_rank) {
        return refused(lines.line - 1, "the first 2 to 16384 nodes are the ranks, among them the root");
    }
    let blocks = u64::from(collective.input_blocks(ranks).max(collective.output_blocks(ranks)));
    if parts == 0 || u64::from(parts) * blocks * u64::from(ranks) > CHUNKS_MAX {
        return refused(lines.line - 1, format!("all buffers have 1 to {CHUNKS_MAX} chunks"));
    }
    lines.need("schedule")?;
    let routes = routes(&mut lines, links.len())?;
    let rounds = rounds(&mut lines)?;
    let (rate, bound) = (lines.need("rate")?.fraction()?, lines.need("bound")?.fraction()?);
    let mut words = lines.need("argument")?;
    let argument = (words.word("a name")?.to_owned(), words.line);
    let mut sides = Vec::new();
    for first in ["sends", "leaves", "enters"] {
        while let Some(words) = lines.take(first) {
            sides.push(side(words, first, nodes.len(), ranks as usize)?);
        }
    }
    let mut lengths = BTreeMap::new();
    while let Some(words) = lines.take("length") {
        let (line, (part, length)) = (words.line, length(words, links.len(), ranks as usize)?);
        if lengths.insert(part, length).is_some() {
            return refused(line, "a second length");
        }
    }
    let share = lines.need("share")?.fraction()?;
    lines.need("end")?;
    if lines.next.is_some() {
        return refused(lines.line, "a line after the end");
    }
    let witness = Witness { argument, sides, lengths };
    let machine = Machine { name, relays, nodes, links };
    Ok(Certificate { machine, collective, ranks, root, parts, routes, rounds, rate, bound, witness, share })
}

fn nodes(lines: &mut Lines<'_>) -> Result<Vec<Kind>, Refused> {
    let mut nodes: Vec<Kind> = Vec::new();
    while let Some(mut words) = lines.take("node") {
        if words.number::<usize>("node")? != nodes.len() || nodes.len() == NODES_MAX {
            return refused(words.line, format!("the next node is {}, of at most {NODES_MAX}", nodes.len()));
        }
        let (kind, _) = (words.word("the kind")?, words.word("the name")?);
        nodes.push(match kind {
            "rank" => {
                let inject = words.has("inject").then(|| words.number("inject")).transpose()?;
                Kind::Rank { inject, eject: words.has("eject").then(|| words.number("eject")).transpose()? }
            }
            "port" => Kind::Other { aggregates: false },
            "switch" => Kind::Other { aggregates: words.has("aggregates") },
            _ => return refused(words.line, "a node is a rank, a port or a switch"),
        });
        words.end(())?;
    }
    Ok(nodes)
}

fn links(lines: &mut Lines<'_>, nodes: usize) -> Result<Vec<Link>, Refused> {
    let mut links: Vec<Link> = Vec::new();
    while let Some(mut words) = lines.take("link") {
        let number: usize = words.number("link")?;
        let (from, to, bytes_s) =
            (words.below("node", nodes)?, words.below("node", nodes)?, words.number("bytes")?);
        if number != links.len() || from == to || bytes_s == 0 {
            return refused(words.line, "links are numbered, join two nodes and carry something");
        }
        links.push(Link { from, to, bytes_s });
        words.end(())?;
    }
    Ok(links)
}

fn routes(lines: &mut Lines<'_>, all: usize) -> Result<BTreeMap<(u32, u32), Route>, Refused> {
    let mut routes = BTreeMap::new();
    while let Some(mut words) = lines.take("route") {
        let (line, pair) = (words.line, (words.number("rank")?, words.number("rank")?));
        let links = words.rest.map(|word| below(word, line, "link", all)).collect::<Result<_, _>>()?;
        if routes.insert(pair, (line, links)).is_some() {
            return refused(line, "a second route of this pair");
        }
    }
    Ok(routes)
}

fn rounds(lines: &mut Lines<'_>) -> Result<Vec<Vec<Transfer>>, Refused> {
    let mut rounds: Vec<Vec<Transfer>> = Vec::new();
    while let Some(mut words) = lines.take("round") {
        if words.number::<usize>("round")? != rounds.len() {
            return refused(words.line, format!("the next round is {}", rounds.len()));
        }
        words.end(())?;
        let mut round = Vec::new();
        while let Some(mut words) = lines.take("move") {
            let line = words.line;
            let (from, to) = (words.number("rank")?, words.number("rank")?);
            // Channels order transfers of different rounds, which no rate depends on.
            words.number::<u16>("channel")?;
            let (source, target) = (words.place()?, words.place()?);
            let fold = words.has("fold").then(|| words.place()).transpose()?;
            // The order of a fold is for its bits, which no rate depends on.
            if fold.is_some() && !words.has("arriving-first") && !words.has("own-first") {
                return refused(line, "a fold is arriving-first or own-first");
            }
            words.end(())?;
            round.push(Transfer { line, from, to, source, target, fold });
        }
        rounds.push(round);
    }
    Ok(rounds)
}

fn side(words: Words<'_>, counts: &'static str, nodes: usize, ranks: usize) -> Result<Side, Refused> {
    let line = words.line;
    let node = |word: &str| match word.split_once(':') {
        None => below(word, line, "node", nodes),
        Some(("begins", rank)) => Ok(begin(nodes, below(rank, line, "rank", ranks)?)),
        Some(("ends", rank)) => Ok(begin(nodes, below(rank, line, "rank", ranks)?) + 1),
        Some(_) => refused(line, "a set has nodes, begins:RANK and ends:RANK"),
    };
    Ok(Side { line, counts, nodes: words.rest.map(node).collect::<Result<_, _>>()? })
}

fn length(mut words: Words<'_>, links: usize, ranks: usize) -> Result<(Part, u64), Refused> {
    let (line, kind) = (words.line, words.word("a part")?);
    let known = ["link", "inject", "eject", "through"].into_iter().find(|known| *known == kind);
    let Some(kind) = known else {
        return refused(line, "only a link, inject, eject and through have lengths");
    };
    let part = (kind, words.below(kind, if kind == "link" { links } else { ranks })?);
    let length = words.number("length")?;
    words.end((part, length))
}
