//! The chunks on each link and limit, and the rate that follows.
//!
//! Invariant: a pair's chunks travel the one route that the certificate gives it, a path of links that passes no rank
//! unless the machine's ranks relay. Absent: time.

use std::collections::BTreeMap;

use crate::network::Network;
use crate::number::Fraction;
use crate::parse::{Certificate, Kind, Part, Route};
use crate::{Refused, refused};

/// The algorithm bandwidth in bytes of the vector a second, by the link or limit that needs most time.
pub(crate) fn rate(certificate: &Certificate, network: &Network) -> Result<Fraction, Refused> {
    let Certificate { collective, ranks, parts, routes, .. } = certificate;
    let switches: Vec<usize> = certificate.switches().collect();
    let node = |end: u32| end.checked_sub(*ranks).map_or(end as usize, |switch| switches[switch as usize]);
    let mut pairs: BTreeMap<(u32, u32), u128> = BTreeMap::new();
    for transfer in certificate.transfers().filter(|transfer| transfer.from != transfer.to) {
        if !routes.contains_key(&(transfer.from, transfer.to)) {
            return refused(transfer.line, "the pair has no route");
        }
        *pairs.entry((transfer.from, transfer.to)).or_default() += 1;
    }
    let mut loads: BTreeMap<Part, u128> = BTreeMap::new();
    for (pair, route) in routes {
        let Some(chunks) = pairs.get(pair) else { return refused(route.0, "nothing takes this route") };
        let (from, to) = (node(pair.0), node(pair.1));
        walk(certificate, from, to, route)?;
        let links = route.1.iter().map(|link| ("link", *link));
        links.chain([("inject", from), ("eject", to)]).for_each(|of| *loads.entry(of).or_default() += chunks);
    }
    let vector = u128::from(collective.input_blocks(*ranks).max(collective.output_blocks(*ranks)))
        * u128::from(*parts);
    let mut least: Option<Fraction> = None;
    for arc in &network.arcs {
        let Some(&chunks) = loads.get(&arc.part) else { continue };
        let rate = arc.capacity.checked_mul(vector).and_then(|above| Fraction::new(above, chunks));
        let less =
            rate.and_then(|rate| Some((rate, least.map_or(Some(true), |least| rate.is_below(least))?)));
        let (rate, is_less) = less.ok_or_else(|| Refused { line: None, what: "too large a rate".into() })?;
        if is_less {
            least = Some(rate);
        }
    }
    least.ok_or_else(|| Refused { line: None, what: "the schedule moves nothing".into() })
}

/// Goes along a route.
fn walk(certificate: &Certificate, from: usize, to: usize, route: &Route) -> Result<(), Refused> {
    let mut at = from;
    for (number, link) in route.1.iter().map(|link| (*link, &certificate.machine.links[*link])) {
        let is_rank = matches!(certificate.machine.nodes[at], Kind::Rank { .. });
        if link.from != at || (at != from && is_rank && !certificate.machine.relays) {
            return refused(route.0, format!("link {number} does not go on from node {at}"));
        }
        at = link.to;
    }
    if at == to { Ok(()) } else { refused(route.0, format!("the route ends at node {at}, not at node {to}")) }
}
