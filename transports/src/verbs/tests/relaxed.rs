//! Which memory adapters may write in any order.

use consort_memory::{Mapping, UserBuffer};

use super::*;
use crate::RelaxedOrdering::{self, Asked, Never, WherePossible};

fn transport(functions: library::Functions, relaxed_ordering: RelaxedOrdering) -> Verbs {
    let options = &RdmaOptions {
        memory: MemoryUse { relaxed_ordering, ..MemoryUse::default() },
        ..RdmaOptions::default()
    };
    let (near, sysfs) = (&Near::default(), &nothing());
    let ports = Search { functions, sysfs, options, near }.ports().expect("ports");
    Verbs::over(&ports, 1, 1, None).expect("a transport")
}

#[test]
fn writes_may_pass_each_other_where_a_completion_follows_them() {
    for (functions, asked, expected) in [
        (standin::functions(), WherePossible, true),
        (standin::functions(), Asked, true),
        (standin::functions(), Never, false),
        (standin::older(), WherePossible, false),
        (standin::older(), Asked, false),
    ] {
        let mut transport = None;
        let said = events::said(tracing::Level::WARN, || transport = Some(self::transport(functions, asked)));
        assert_eq!(said.len(), usize::from(asked == Asked && !expected), "{said:?}");
        assert!(said.iter().all(|line| line.contains("NCCL_IB_PCI_RELAXED_ORDERING")), "{said:?}");
        let transport = transport.expect("a transport");
        let endpoint = transport.endpoint(Layout::new(4096)).expect("an endpoint");
        let place = Place::decode(&endpoint.address().bytes).expect("a place");
        assert_eq!(standin::is_relaxed(place.ports[0].1), expected, "trays and the mailbox");
        let domain = &transport.shared.domains[0];
        let of = |by| {
            let mapping = Mapping::anonymous(4096).expect("memory");
            let region = port::Region::new(std::slice::from_ref(domain), mapping, by).expect("registered");
            standin::is_relaxed(region.keys(0).0)
        };
        assert_eq!(of(Written::Here), expected, "what is sent");
        let others = [Written::InOrder, Written::ReadBack, Written::ByDevice].map(of);
        assert_eq!(others, [false; 3], "memory of devices, and what flushes it");
        if expected {
            let data = vec![0u8; 4096];
            let _buffer = UserBuffer::new(data.as_ptr() as usize, data.len()).expect("a buffer");
            let registered = transport.shared.registrations[0].of(Span::of(&data)).expect("registered");
            assert!(standin::is_relaxed(registered.keys().0), "memory of the program");
        }
    }
}
