//! The checker, which shares no code with the library, accepts certificates of the library's schedules, and refuses
//! them with any one thing changed.

use std::collections::BTreeMap;

use consort_algorithms::Rank;
use consort_algorithms::catalogue::{Shape, candidates};
use consort_algorithms::synthesize::{CertificateError, certificate, offers};
use consort_algorithms::topology::profile;
use consort_checker::check;

use crate::common::machines::{BOUNDED, machine};
use crate::common::{Random, seed};

/// Machines that differ in what limits them.
const MACHINES: [&str; 6] = ["host:4", "dgx-a100:1", "dgx-a100:2", "dgx-h100:2", "torus:3x3", "tcp:3x2"];

/// A certificate of every schedule of the catalogue on a machine.
fn certificates(name: &str) -> Vec<(String, String)> {
    let topology = profile(name).expect("a profile");
    let per_box = topology.boxes()[0].len() as u32;
    let shape = Shape {
        per_box,
        channels: 2,
        bidirectional: true,
        all_pairs: true,
        rails: per_box,
        ..Shape::default()
    };
    let mut all = Vec::new();
    for collective in BOUNDED {
        for algorithm in candidates(collective, topology.ranks(), &shape) {
            let schedule = algorithm.schedule(collective, topology.ranks());
            let text = certificate(&schedule, &topology).expect("a certificate");
            all.push((format!("{algorithm} of {collective} on {name}"), text));
        }
    }
    all
}

#[test]
fn certificates_of_the_catalogue_are_accepted() {
    let mut accepted = 0;
    for (what, text) in MACHINES.into_iter().flat_map(certificates) {
        let found = check(&text).unwrap_or_else(|refused| panic!("{what}: {refused}"));
        assert!(found.to_string().starts_with("accepted: "), "{found}");
        accepted += 1;
    }
    println!("{accepted} accepted");
    assert!(accepted > 100);
}

/// Forests, trees that are used both ways, routed exchanges and greedy schedules: each with most of what its machine allows.
#[test]
fn certificates_of_what_is_made_are_accepted() {
    let mut makers: BTreeMap<String, u32> = BTreeMap::new();
    for name in ["dgx-a100:1", "dgx-h100:2", "torus:3x3", "torus:2x2x2", "pcie:1", "tcp:3x2"] {
        let topology = profile(name).expect("a profile").bundled();
        for collective in BOUNDED {
            for offer in offers(&topology, collective, Rank(0)) {
                let (maker, _) = offer.schedule.name.split_once('-').expect("the maker's name");
                let what = format!("{} of {collective} on {name}", offer.schedule.name);
                let text =
                    certificate(&offer.schedule, &topology).unwrap_or_else(|error| panic!("{what}: {error}"));
                let found = check(&text).unwrap_or_else(|refused| panic!("{what}: {refused}"));
                let (part, whole) = value(&text, "share").split_once(' ').expect("a fraction");
                let share = part.parse::<f64>().expect("a number") / whole.parse::<f64>().expect("a number");
                println!("{what}: {share:.3}, {found}");
                assert!((0.9..=1.0).contains(&share), "{what}: {share}");
                *makers.entry(maker.to_owned()).or_default() += 1;
            }
        }
    }
    println!("{makers:?}");
    assert!(makers.len() >= 3, "few makers: {makers:?}");
}

/// Limits of ranks, relaying, ports and one-way links: every kind of witness.
#[test]
fn bounds_of_random_machines_are_proved_again() {
    let mut random = Random::new(seed(0x5eed_0610));
    let mut arguments: BTreeMap<String, u32> = BTreeMap::new();
    for number in 0..60 {
        let topology = machine(&mut random, 8, 4);
        let shape = Shape { all_pairs: true, ..Shape::default() };
        for collective in BOUNDED {
            for algorithm in candidates(collective, topology.ranks(), &shape).into_iter().take(2) {
                let schedule = algorithm.schedule(collective, topology.ranks());
                let text = match certificate(&schedule, &topology) {
                    Ok(text) => text,
                    Err(CertificateError::Machine(_)) => continue,
                    Err(error) => panic!("{error}"),
                };
                if let Err(refused) = check(&text) {
                    panic!("machine {number}, {algorithm} of {collective}: {refused}\n{text}");
                }
                let argument = value(&text, "argument").to_owned();
                *arguments.entry(argument).or_default() += 1;
            }
        }
    }
    println!("{arguments:?}");
    assert!(arguments.len() == 5, "not every argument was met: {arguments:?}");
}

/// What follows the first word of the first line that begins with it.
fn value<'a>(text: &'a str, first: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.strip_prefix(first)?.strip_prefix(' '));
    found.unwrap_or_default()
}

/// The numbers of the lines that begin with a word.
fn lines_of(text: &str, first: &str) -> Vec<usize> {
    let begins = |line: &str| line.split(' ').next() == Some(first);
    text.lines().enumerate().filter(|(_, line)| begins(line)).map(|(number, _)| number).collect()
}

/// The text with one line changed; dropped where that gives nothing.
fn changed(text: &str, number: usize, change: impl Fn(&str) -> Option<String>) -> String {
    let lines = text.lines().enumerate();
    let kept = lines.filter_map(|(at, line)| if at == number { change(line) } else { Some(line.to_owned()) });
    kept.map(|line| line + "\n").collect()
}

/// A line with one of its words replaced.
fn with_word(line: &str, at: usize, by: &str) -> String {
    line.split(' ')
        .enumerate()
        .map(|(number, word)| if number == at { by } else { word })
        .collect::<Vec<_>>()
        .join(" ")
}

/// The same claims with the bound as low as the rate, and the set of its cut without one of its nodes.
fn fake_cut(text: &str, random: &mut Random) -> Option<String> {
    let rate = value(text, "rate").to_owned();
    if value(text, "share") == "1 1" {
        return None;
    }
    let side = ["sends", "leaves", "enters", "length"]
        .into_iter()
        .find_map(|first| lines_of(text, first).first().copied())?;
    let one = |first: &str| lines_of(text, first)[0];
    let fake = changed(text, one("bound"), |_| Some(format!("bound {rate}")));
    let fake = changed(&fake, one("share"), |_| Some("share 1 1".into()));
    let words = text.lines().nth(side)?.split(' ').count();
    let gone = 1 + random.below(words - 1);
    Some(changed(&fake, side, |line| {
        let words = line.split(' ').enumerate().filter(|(at, _)| *at != gone);
        Some(words.map(|(_, word)| word).collect::<Vec<_>>().join(" "))
    }))
}

/// A route with another link, which joins other nodes.
fn other_link(text: &str, random: &mut Random) -> Option<String> {
    let links: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("link ")?.split_once(' ')?.1.rsplit_once(' '))
        .map(|of| of.0)
        .collect();
    let routes = lines_of(text, "route");
    let number = routes[random.below(routes.len())];
    let words: Vec<&str> = text.lines().nth(number)?.split(' ').collect();
    let at = 3 + random.below(words.len() - 3);
    let old: usize = words[at].parse().ok()?;
    let new = random.below(links.len());
    (links[new] != links[old])
        .then(|| changed(text, number, |line| Some(with_word(line, at, &new.to_string()))))
}

/// The kinds of lies.
const LIES: [&str; 6] = [
    "a dropped transfer",
    "another target",
    "another receiver",
    "a higher rate",
    "a fake cut",
    "another link",
];

fn lie(kind: &str, text: &str, random: &mut Random) -> Option<String> {
    let moves = lines_of(text, "move");
    let one = moves[random.below(moves.len())];
    let words: Vec<&str> = text.lines().nth(one)?.split(' ').collect();
    let ranks: usize = value(text, "ranks").parse().ok()?;
    match kind {
        "a dropped transfer" => Some(changed(text, one, |_| None)),
        "another target" => {
            let chunk: u32 = words[5][1..].parse().ok()?;
            let target = format!("{}{}", &words[5][..1], chunk + 1);
            Some(changed(text, one, |line| Some(with_word(line, 5, &target))))
        }
        "another receiver" => {
            let to = (words[2].parse::<usize>().ok()? + 1) % ranks;
            Some(changed(text, one, |line| Some(with_word(line, 2, &to.to_string()))))
        }
        "a higher rate" => {
            let rate = lines_of(text, "rate")[0];
            let above: u128 = value(text, "rate").split(' ').next()?.parse().ok()?;
            Some(changed(text, rate, |line| Some(with_word(line, 1, &(above + above / 10 + 1).to_string()))))
        }
        "a fake cut" => fake_cut(text, random),
        _ => other_link(text, random),
    }
}

#[test]
fn a_certificate_with_a_lie_is_refused() {
    let mut random = Random::new(seed(0x5eed_0611));
    let mut refused: BTreeMap<&str, u32> = BTreeMap::new();
    for (what, text) in ["dgx-a100:1", "torus:3x3", "tcp:3x2"].into_iter().flat_map(certificates) {
        for kind in LIES {
            for _ in 0..2 {
                let Some(lying) = lie(kind, &text, &mut random) else { continue };
                if let Ok(accepted) = check(&lying) {
                    panic!("{what}, with {kind}: {accepted}\n{lying}");
                }
                *refused.entry(kind).or_default() += 1;
            }
        }
    }
    println!("refused: {refused:?}");
    assert!(refused.len() == LIES.len() && refused.values().all(|count| *count >= 20), "{refused:?}");
}

#[test]
fn any_bytes_are_refused_without_a_panic() {
    let mut random = Random::new(seed(0x5eed_0612));
    let (_, text) = certificates("host:4").swap_remove(0);
    for _ in 0..2000 {
        let mut bytes = text.clone().into_bytes();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len());
            match random.below(3) {
                0 => bytes[at] = random.draw() as u8,
                1 => _ = bytes.remove(at),
                _ => bytes.insert(at, b"0123456789 \n:ios"[random.below(16)]),
            }
        }
        // What is still a certificate may be accepted: another name, for example.
        let _ = check(&String::from_utf8_lossy(&bytes));
    }
    for text in ["", "\n", "consort-certificate 2\n", "consort-certificate 1\nmachine m\nrelays no\n"] {
        assert!(check(text).is_err(), "{text:?}");
    }
    let huge = "99999999999999999999999999999999999999999";
    for first in ["parts", "ranks", "rate", "bound"] {
        let number = lines_of(&text, first)[0];
        assert!(check(&changed(&text, number, |line| Some(with_word(line, 1, huge)))).is_err(), "{first}");
    }
    let end = text.strip_suffix("end\n").expect("it ends so");
    assert!(check(end).is_err_and(|refused| refused.what.contains("end")));
}
