//! Precedence of settings, and settings that are refused.

use super::settings::{RECORDS, RECORDS_FOR_TRACE};
use super::*;
use crate::environment::{Environment, Origin, Setting};
use consort_types::error::Result;

#[test]
fn the_environment_wins_over_the_options() {
    let options = Options::default().timeout(Duration::from_secs(5)).channels(2);
    let lookup = |name: &str| (name == "CONSORT_TIMEOUT").then(|| "0.25".to_owned());
    let settings = Settings::resolve_from(&options, &lookup).expect("valid settings");
    assert_eq!(settings.timeout, Duration::from_millis(250));
    assert_eq!(settings.channels, 2);
    assert_eq!(settings.join_timeout, Duration::from_secs(300));
}

fn settings(set: &[(&str, &str)], options: &Options) -> Result<(Settings, Vec<Setting>)> {
    let lookup =
        |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
    Settings::resolve_in(options, &Environment::from_lookup(lookup))
}

#[test]
fn ncclss_variables_come_after_ours_and_before_options() {
    let transport = |set: &[(&str, &str)], options: Options| {
        let (settings, listed) = settings(set, &options).expect("settings");
        let listed = listed.into_iter().find(|listed| listed.name == "CONSORT_TRANSPORT").expect("a setting");
        assert_eq!(listed.value, settings.transport.name());
        (settings.transport, listed.origin, listed.variable)
    };
    let shared = Options::default().transport(TransportChoice::SharedMemory);
    let nccl = ("NCCL_SHM_DISABLE", "1");
    assert_eq!(
        transport(&[nccl], shared.clone()),
        (TransportChoice::Tcp, Origin::Nccl, Some("NCCL_SHM_DISABLE"))
    );
    assert_eq!(
        transport(&[nccl, ("CONSORT_TRANSPORT", "auto")], shared.clone()),
        (TransportChoice::Auto, Origin::Consort, Some("CONSORT_TRANSPORT"))
    );
    assert_eq!(
        transport(&[("NCCL_SHM_DISABLE", "0")], shared),
        (TransportChoice::SharedMemory, Origin::Config, None)
    );
    assert_eq!(
        transport(&[("NCCL_SHM_DISABLE", "no")], Options::default()),
        (TransportChoice::Auto, Origin::Default, None)
    );
}

#[test]
fn pinning_is_asked_for() {
    let pinning = |set: &[(&str, &str)], options: Options| {
        let (settings, listed) = settings(set, &options).expect("settings");
        let listed = listed.into_iter().find(|listed| listed.name == "CONSORT_PIN").expect("a setting");
        assert_eq!(listed.value, settings.pinning.name());
        (settings.pinning, listed.origin)
    };
    let asked = Options::default().pin(Pinning::Domains);
    assert_eq!(pinning(&[], Options::default()), (Pinning::None, Origin::Default));
    assert_eq!(pinning(&[], asked.clone()), (Pinning::Domains, Origin::Config));
    assert_eq!(pinning(&[("CONSORT_PIN", " cores ")], asked.clone()), (Pinning::Cores, Origin::Consort));
    assert_eq!(pinning(&[("CONSORT_PIN", "none")], asked), (Pinning::None, Origin::Consort));
}

#[test]
fn ports_are_listed_and_may_differ_between_ranks() {
    let ports = |set: &[(&str, &str)]| {
        let (settings, listed) = settings(set, &Options::default()).expect("settings");
        let listed = listed.into_iter().find(|listed| listed.name == "CONSORT_PORTS").expect("a setting");
        assert_eq!(listed.value, settings.ports.map_or(String::new(), |ports| ports.to_string()));
        (listed.value, listed.origin, settings.agreed())
    };
    let (value, origin, agreed) = ports(&[("CONSORT_PORTS", "61000-61063")]);
    assert_eq!((value.as_str(), origin), ("61000-61063", Origin::Consort));
    for unset in [&[] as &[(&str, &str)], &[("CONSORT_PORTS", " ")]] {
        assert_eq!(ports(unset), (String::new(), Origin::Default, agreed.clone()));
    }
}

#[test]
fn the_speed_of_a_wire_can_be_said_and_may_differ_between_ranks() {
    let wire = |set: &[(&str, &str)]| {
        let (settings, listed) = settings(set, &Options::default()).expect("settings");
        let listed =
            listed.into_iter().find(|listed| listed.name == "CONSORT_WIRE_MBITS").expect("a setting");
        (settings.wire_mbits, listed.value, settings.agreed())
    };
    let (mbits, said, agreed) = wire(&[("CONSORT_WIRE_MBITS", " 1000 ")]);
    assert_eq!((mbits, said.as_str()), (Some(1000), "1000"));
    for unset in [&[] as &[(&str, &str)], &[("CONSORT_WIRE_MBITS", " ")]] {
        assert_eq!(wire(unset), (None, String::new(), agreed.clone()));
    }
}

#[test]
fn ctas_bound_the_streams() {
    let streams =
        |set: &[(&str, &str)], options: Options| settings(set, &options).expect("settings").0.channels;
    let none = Options::default;
    assert_eq!(streams(&[], none()), 1);
    assert_eq!(streams(&[("NCCL_MIN_CTAS", "4")], none()), 4);
    assert_eq!(streams(&[("NCCL_MIN_NRINGS", "99999999")], none()), 16);
    assert_eq!(streams(&[("NCCL_MIN_NCHANNELS", "8"), ("NCCL_MAX_NCHANNELS", "2")], none()), 2);
    assert_eq!(streams(&[("NCCL_MIN_CTAS", "0"), ("NCCL_MIN_NCHANNELS", "3")], none()), 3);
    assert_eq!(streams(&[("NCCL_MIN_CTAS", "-2"), ("NCCL_MAX_CTAS", "many")], none()), 1);
    assert_eq!(streams(&[("NCCL_MIN_CTAS", "4"), ("CONSORT_CHANNELS", "2")], none()), 2);
    assert_eq!(streams(&[("NCCL_MIN_CTAS", "4")], none().channels(2)), 2);
    assert_eq!(streams(&[], none().channels_within(Some(3), None)), 3);
    assert_eq!(streams(&[("NCCL_MAX_CTAS", "2")], none().channels_within(Some(3), Some(5))), 2);
    let (_, listed) = settings(&[("NCCL_MIN_CTAS", "4")], &none()).expect("settings");
    let listed = listed.iter().find(|listed| listed.name == "CONSORT_CHANNELS").expect("a setting");
    assert_eq!((listed.value.as_str(), listed.variable), ("4", Some("NCCL_MIN_CTAS")));
}

#[test]
fn a_buffer_is_four_slots() {
    let slots = |set: &[(&str, &str)]| settings(set, &Options::default()).expect("settings").0.slot_bytes;
    for (bytes, slot) in [
        ("4194304", None),
        ("2097152", None),
        ("2097151", Some(256 << 10)),
        ("0x100000", Some(256 << 10)),
        ("65536", Some(16 << 10)),
        ("1", Some(16 << 10)),
        ("0", None),
        ("-2", None),
        ("big", None),
    ] {
        assert_eq!(slots(&[("NCCL_BUFFSIZE", bytes)]), slot, "{bytes}");
    }
    let both = [("NCCL_BUFFSIZE", "65536"), ("CONSORT_SLOT_BYTES", "32768")];
    assert_eq!(slots(&both), Some(32 << 10));
}

#[test]
fn a_network_that_is_not_there_is_an_error() {
    let found = |set: &[(&str, &str)], options: Options| settings(set, &options).map(drop);
    let infiniband = Options::default().network("IB");
    for name in ["Socket", "socket", " SOCKET ", ""] {
        assert!(found(&[("NCCL_NET", name)], Options::default()).is_ok(), "{name:?}");
    }
    assert!(found(&[("NCCL_NET", "Socket")], infiniband.clone()).is_ok(), "the environment wins");
    let error = found(&[("NCCL_NET", "IB")], Options::default()).expect_err("no such").to_string();
    assert!(error.contains("NCCL_NET is \"IB\"") && error.contains("Socket"), "{error}");
    let error = found(&[], infiniband).expect_err("no such").to_string();
    assert!(error.contains("netName"), "{error}");
}

#[test]
fn nonsense_is_named() {
    for (name, value) in [
        ("CONSORT_TIMEOUT", "soon"),
        ("CONSORT_TIMEOUT", "-1"),
        ("CONSORT_PATH_LOST_AFTER", "0"),
        ("CONSORT_PATH_LOST_AFTER", "nevermore"),
        ("CONSORT_JOIN_TIMEOUT", "nan"),
        ("CONSORT_JOIN_TIMEOUT", "1e-20"),
        ("CONSORT_TRANSPORT", "pigeon"),
        ("CONSORT_PORTS", "5"),
        ("CONSORT_PORTS", "70000-70001"),
        ("CONSORT_WIRE_MBITS", "0"),
        ("CONSORT_WIRE_MBITS", "1gbit"),
        ("CONSORT_WIRE_MBITS", "100000001"),
        ("CONSORT_PIN", "core"),
        ("CONSORT_PIN", ""),
        ("CONSORT_CHANNELS", "0"),
        ("CONSORT_CHANNELS", "99"),
        ("CONSORT_BIDIRECTIONAL", "yes"),
        ("CONSORT_SLOT_BYTES", "100000"),
        ("CONSORT_SLOT_BYTES", "1048576"),
        ("CONSORT_TRACE_EVENTS", "many"),
        ("CONSORT_TRACE_EVENTS", "0"),
        ("CONSORT_TRACE_EVENTS", "-1"),
        ("CONSORT_TRACE_EVENTS", "4194305"),
    ] {
        let lookup = |asked: &str| (asked == name).then(|| value.to_owned());
        let error = Settings::resolve_from(&Options::default(), &lookup).expect_err(value).to_string();
        assert!(error.contains(name) && error.contains(value), "{error}");
    }
}

#[test]
fn a_trace_makes_the_ring_longer() {
    let resolved = |options: &Options, set: &[(&str, &str)]| {
        let lookup = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        let settings = Settings::resolve_from(options, &lookup).expect("valid settings");
        (settings.records, settings.trace.is_some(), settings.flight_record.is_some())
    };
    let options = Options::default();
    assert_eq!(resolved(&options, &[]), (RECORDS, false, false));
    assert_eq!(resolved(&options, &[("CONSORT_TRACE", "t.json")]), (RECORDS_FOR_TRACE, true, false));
    assert_eq!(resolved(&options, &[("CONSORT_TRACE_EVENTS", " 500 ")]), (500, false, false));
    let options = options.trace("t.json").trace_events(9).flight_record("here");
    assert_eq!(resolved(&options, &[]), (9, true, true));
    assert_eq!(
        resolved(&options, &[("CONSORT_TRACE", ""), ("CONSORT_FLIGHT_RECORD", "")]),
        (9, false, false)
    );
}

#[test]
fn what_is_asked_of_rdma_counts_where_that_is_the_transport() {
    let wrong = ("NCCL_IB_SL", "16");
    let (without, _) = settings(&[wrong], &Options::default()).expect("it is not read");
    assert_eq!(without.rdma, Rdma::default());
    let error =
        settings(&[wrong, ("CONSORT_TRANSPORT", "verbs")], &Options::default()).expect_err("no such level");
    assert!(error.to_string().contains("NCCL_IB_SL"), "{error}");
    let (with, _) = settings(&[("NCCL_IB_SL", "3")], &Options::default().transport(TransportChoice::Verbs))
        .expect("a level");
    assert_eq!(with.rdma.service_level, Some(3));
}

#[test]
fn a_path_is_lost_after_a_time_or_never() {
    let after = |text: Option<&str>, option: Option<Duration>| {
        let lookup =
            |name: &str| (name == "CONSORT_PATH_LOST_AFTER").then(|| text.map(str::to_owned)).flatten();
        let options = option.map_or_else(Options::default, |time| Options::default().path_lost_after(time));
        Settings::resolve_from(&options, &lookup).map(|settings| settings.path_lost_after)
    };
    assert_eq!(after(None, None).expect("the default"), Duration::from_secs(30));
    assert_eq!(after(Some("2.5"), None).expect("seconds"), Duration::from_millis(2500));
    assert_eq!(after(Some(" never "), None).expect("never"), Duration::MAX);
    assert_eq!(after(None, Some(Duration::MAX)).expect("never"), Duration::MAX);
    assert!(after(None, Some(Duration::ZERO)).is_err());
}
