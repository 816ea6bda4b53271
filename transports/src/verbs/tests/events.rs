//! What devices say of themselves becomes warnings, and errors of the connections that are lost by it.

use std::os::fd::AsRawFd;

use super::super::standin::{Adapter, AdapterPort, raise, set, unacknowledged};
use super::super::sys;
use super::*;
use crate::AdapterTrouble;

/// A device, a transport over it and both ends of a connection.
fn connected() -> (Verbs, [Box<dyn Connection>; 2], u32) {
    set(vec![Adapter::new("mlx5_0", vec![AdapterPort::ethernet([10, 0, 0, 1])])]);
    let verbs = transport(&RdmaOptions::default(), &nothing()).expect("a transport");
    let endpoints =
        [true, false].map(|calls| verbs.endpoint(Layout::new(64).calling(calls)).expect("an endpoint"));
    let number = Place::decode(&endpoints[0].address().bytes).expect("a place").queues[0].number;
    (verbs, meet(endpoints, Duration::ZERO), number)
}

/// Whether a descriptor is readable now.
fn is_readable(service: &dyn Service) -> bool {
    let mut poll = libc::pollfd { fd: service.descriptor().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure that lives during the call.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// The texts of the warnings of what runs within.
fn warnings(run: impl FnOnce()) -> Vec<String> {
    said(tracing::Level::WARN, run)
}

/// What is said of this level by what runs within.
pub(super) fn said(level: tracing::Level, run: impl FnOnce()) -> Vec<String> {
    #[derive(Clone)]
    struct Texts(Arc<Mutex<Vec<String>>>, tracing::Level);

    impl tracing::field::Visit for Texts {
        fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            lock(&self.0).last_mut().expect("an event").push_str(&format!("{field}={value:?} "));
        }
    }

    impl tracing::Subscriber for Texts {
        fn enabled(&self, of: &tracing::Metadata<'_>) -> bool {
            *of.level() == self.1
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            lock(&self.0).push(String::new());
            event.record(&mut self.clone());
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    let texts = Texts(Arc::default(), level);
    tracing::subscriber::with_default(texts.clone(), run);
    std::mem::take(&mut *lock(&texts.0))
}

fn event_of(error: TransportError) -> (String, &'static str) {
    let text = error.to_string();
    let TransportError::Adapter { trouble, .. } = error else { panic!("{text}") };
    let AdapterTrouble::Event { event, .. } = *trouble else { panic!("{text}") };
    (text, event)
}

#[test]
fn a_port_that_goes_down_and_comes_back_is_heard_and_breaks_nothing() {
    let (verbs, [mut one, mut other], _) = connected();
    let service = verbs.service().expect("a service");
    assert!(!is_readable(&*service));
    // Nothing was said: it does not block.
    service.serve();
    for event in
        [sys::EVENT_PORT_ERR, sys::EVENT_PORT_ACTIVE, sys::EVENT_GID_CHANGE, sys::EVENT_LID_CHANGE, 17]
    {
        raise(verbs.shared.domains[0].port.context, event, 1);
    }
    assert!(is_readable(&*service));
    let warned = warnings(|| service.serve());
    let heard = ["PORT_ERR", "PORT_ACTIVE", "GID_CHANGE", "LID_CHANGE"];
    assert_eq!(warned.len(), heard.len(), "what is usual is no warning: {warned:?}");
    for (text, event) in warned.iter().zip(heard) {
        let parts = [event, "port=1", "mlx5_0"];
        assert!(parts.iter().all(|part| text.contains(part)), "{event}: {text}");
    }
    assert!(!is_readable(&*service), "all of it was taken");
    assert_eq!(unacknowledged(verbs.shared.domains[0].port.context), 0);
    arrives(&mut *one, &mut *other, 1);
}

#[test]
fn a_queue_pair_that_fails_is_the_error_of_its_connection_alone() {
    let (verbs, [mut one, mut other], number) = connected();
    let endpoints =
        [true, false].map(|calls| verbs.endpoint(Layout::new(64).calling(calls)).expect("an endpoint"));
    let [mut third, mut fourth] = meet(endpoints, Duration::ZERO);
    raise(verbs.shared.domains[0].port.context, sys::EVENT_QP_FATAL, standin::object(number));
    let warned = warnings(|| verbs.service().expect("a service").serve());
    assert!(warned.len() == 1 && warned[0].contains(&format!("queue_pair={number}")), "{warned:?}");
    let (text, event) = event_of(one.progress().expect_err("its queue pair has failed"));
    assert_eq!(event, "IBV_EVENT_QP_FATAL");
    assert!(text.contains(&format!("queue pair {number}")) && text.contains("mlx5_0"), "{text}");
    assert_eq!(other.progress().expect("its own is well"), PeerState::Open);
    arrives(&mut *third, &mut *fourth, 1);
    assert_eq!(unacknowledged(verbs.shared.domains[0].port.context), 0);
    // A later queue pair at the same place in memory has not failed.
    drop((one, other));
    for round in 0..20 {
        let endpoints =
            [true, false].map(|calls| verbs.endpoint(Layout::new(64).calling(calls)).expect("an endpoint"));
        let [mut one, mut other] = meet(endpoints, Duration::ZERO);
        arrives(&mut *one, &mut *other, round + 1);
    }
}

#[test]
fn a_device_that_fails_is_the_error_of_all_its_connections() {
    let (verbs, mut ends, _) = connected();
    raise(verbs.shared.domains[0].port.context, sys::EVENT_DEVICE_FATAL, 0);
    verbs.service().expect("a service").serve();
    for end in &mut ends {
        let (text, event) = event_of(end.progress().expect_err("the device has failed"));
        assert_eq!(event, "IBV_EVENT_DEVICE_FATAL");
        assert!(text.contains("the adapter mlx5_0 has failed"), "{text}");
    }
}

/// The control thread may come later than the completion that something has failed.
#[test]
fn the_event_is_the_reason_of_a_completion_that_fails() {
    let (verbs, [mut one, other], number) = connected();
    raise(verbs.shared.domains[0].port.context, sys::EVENT_QP_ACCESS_ERR, standin::object(number));
    let peer = standin::connected(number).dest_qp_num;
    standin::vanish(peer);
    std::mem::forget(other);
    let _ = one.signal(CounterKind::Ready, 1, 0).expect("room");
    let error = crate::conformance::eventually("it fails", || one.progress().err());
    assert_eq!(event_of(error).1, "IBV_EVENT_QP_ACCESS_ERR");
}

#[test]
fn events_that_can_be_read_no_longer_wake_the_control_thread_no_more() {
    let (verbs, _, _) = connected();
    let service = verbs.service().expect("a service");
    assert!(warnings(|| service.serve()).is_empty());
    // What is readable and gives no event: the stand-in says that the device is gone.
    standin::deafen(verbs.shared.domains[0].port.context);
    assert!(is_readable(&*service));
    assert_eq!(warnings(|| (0..3).for_each(|_| service.serve())).len(), 1, "it is said once");
    assert!(!is_readable(&*service));
}
