//! The chunks on each link and limit, and the rate that follows.
//!
//! Invariant: a pair's chunks travel the one route that the certificate gives it, a path of links that passes no rank unless the
//! machine's ranks relay. Absent: time.

use std::collections::BTreeMap;

use crate::number::Fraction;
use crate::parse::{Certificate, Kind, Route};
use crate::{Refused, refused};

/// The algorithm bandwidth in bytes of the vector a second, by the link or limit that needs most time.
pub(crate) fn rate(certificate: &Certificate) -> Result<Fraction, Refused> {
    let Certificate { ranks, nodes, links, routes, .. } = certificate;
    let switches: Vec<usize> = certificate.switches().collect();
    let node = |end: u32| end.checked_sub(*ranks).map_or(end as usize, |switch| switches[switch as usize]);
    let mut pairs: BTreeMap<(u32, u32), u128> = BTreeMap::new();
    for transfer in certificate.transfers().filter(|transfer| transfer.from != transfer.to) {
        if !routes.contains_key(&(transfer.from, transfer.to)) {
            return refused(transfer.line, "the pair has no route");
        }
        *pairs.entry((transfer.from, transfer.to)).or_default() += 1;
    }
    let mut loads = vec![0u128; links.len()];
    let (mut sent, mut received) = (vec![0u128; nodes.len()], vec![0u128; nodes.len()]);
    for (pair, route) in routes {
        let Some(chunks) = pairs.get(pair) else { return refused(route.line, "nothing takes this route") };
        walk(certificate, node(pair.0), node(pair.1), route)?;
        route.links.iter().for_each(|link| loads[*link] += chunks);
        sent[node(pair.0)] += chunks;
        received[node(pair.1)] += chunks;
    }
    let blocks =
        certificate.collective.input_blocks(*ranks).max(certificate.collective.output_blocks(*ranks));
    let vector = u128::from(blocks) * u128::from(certificate.parts);
    let of_links = links.iter().map(|link| Some(link.bytes_s)).zip(&loads);
    let limits = |enter: bool| {
        nodes.iter().map(move |kind| match *kind {
            Kind::Rank { inject, eject } => {
                if enter {
                    eject
                } else {
                    inject
                }
            }
            _ => None,
        })
    };
    let ends = limits(false).zip(&sent).chain(limits(true).zip(&received));
    let mut least: Option<Fraction> = None;
    for (bytes_s, chunks) in of_links.chain(ends).filter(|(_, chunks)| **chunks > 0) {
        let Some(rate) = bytes_s.and_then(|bytes_s| Fraction::new(u128::from(bytes_s) * vector, *chunks))
        else {
            continue;
        };
        let is_less = least.is_none_or(|least| rate.is_below(least).unwrap_or(false));
        if is_less {
            least = Some(rate);
        }
    }
    least.ok_or_else(|| Refused { line: None, what: "the schedule moves nothing".into() })
}

/// Goes along a route.
fn walk(certificate: &Certificate, from: usize, to: usize, route: &Route) -> Result<(), Refused> {
    let mut at = from;
    for (place, link) in route.links.iter().map(|link| (*link, &certificate.links[*link])) {
        let passes_rank =
            at != from && matches!(certificate.nodes[at], Kind::Rank { .. }) && !certificate.relays;
        if link.from != at || passes_rank {
            return refused(route.line, format!("link {place} does not go on from node {at}"));
        }
        at = link.to;
    }
    if at == to {
        Ok(())
    } else {
        refused(route.line, format!("the route ends at node {at}, not at node {to}"))
    }
}
