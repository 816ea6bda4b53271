//! Plugins that cannot be used: one sentence each.

use consort_tests::plugins::memory_plugin;
use consort_transports::{NetPlugin, TransportError};

#[track_caller]
fn refused(list: &str) -> String {
    match NetPlugin::load(list).map(drop) {
        Err(error @ (TransportError::NoPlugin { .. } | TransportError::Plugin { .. })) => error.to_string(),
        other => panic!("{list}: {other:?}"),
    }
}

#[test]
fn each_plugin_that_cannot_be_used_has_its_reason_and_its_remedy() {
    let missing = refused("not-there");
    assert!(missing.starts_with("plugin: the network plugin \"not-there\" cannot be opened"), "{missing}");
    assert!(missing.contains("libnccl-net-not-there.so") && missing.contains("LD_LIBRARY_PATH"), "{missing}");
    assert!(refused("none").contains("CONSORT_TRANSPORT"));
    let of = |definitions: &[&str]| Some(memory_plugin(definitions)?.display().to_string());
    let Some(foreign) = of(&["NET_TABLE=ncclNetPlugin_v7"]) else { return };
    let foreign = refused(&foreign);
    assert!(foreign.contains("exports none of ncclNetPlugin_v8 to ncclNetPlugin_v12"), "{foreign}");
    let empty = refused(&of(&["NET_DEVICES=0"]).expect("a compiler"));
    assert!(empty.contains("the network plugin Memory (") && empty.contains(") has no device; "), "{empty}");
    let failing = refused(&of(&["NET_INIT=2", "NET_VERSION=9"]).expect("a compiler"));
    assert!(failing.contains("init of the network plugin Memory ("), "{failing}");
    assert!(failing.contains(", version 9) returned ncclSystemError (2); look at the network"), "{failing}");
}

#[test]
fn the_first_of_a_list_that_can_be_used_is() {
    let Some(plugin) = memory_plugin(&["NET_VERSION=12"]) else { return };
    NetPlugin::load(&format!("not-there,{}", plugin.display())).expect("the second");
}
