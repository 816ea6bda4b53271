//! Execution plans of MSCCL++, written by hand from what the format means.

use consort_algorithms::language::mscclpp;
use consort_algorithms::{Collective, Rank, lower_switch, verify};

use super::{SLOTS, plan_fault, runs, survives};

/// A plan for two GPUs, from the operations of each one's threadblocks.
fn plan(collective: &str, chunks: (u32, u32, u32), remote: &str, ops: [&[&str]; 2]) -> String {
    let gpu = |id: usize| {
        let peer = 1 - id;
        let block = |(tb, ops): (usize, &&str)| {
            format!(
                r#"{{"id": {tb}, "ops": [{ops}],
"channels": [{{"channel_type": "memory", "channel_ids": [{tb}]}}, {{"channel_type": "switch", "channel_ids": [0]}}],
"remote_buffer_refs": [{{"access_channel_type": "memory", "remote_buffer_ids": [0]}}]}}"#
            )
        };
        let blocks: Vec<String> = ops[id].iter().enumerate().map(block).collect();
        format!(
            r#"{{"id": {id}, "input_chunks": {}, "output_chunks": {}, "scratch_chunks": {},
"threadblocks": [{}],
"channels": [{{"channel_type": "memory", "connected_to": [{peer}, {peer}]}},
{{"channel_type": "switch", "buffer_type": "i", "rank_groups": [{{"size": 2, "ranks": [0, 1]}}]}}],
"remote_buffers": [{{"rank": {peer}, "type": "{remote}", "access_channel_types": ["memory"]}}],
"semaphores": [{{"init_value": 1}}, {{"init_value": 0}}]}}"#,
            chunks.0,
            chunks.1,
            chunks.2,
            blocks.join(",\n")
        )
    };
    format!(
        r#"{{"name": "by hand", "collective": "{collective}", "protocol": "Simple", "inplace": true,
"gpus": [{},
{}], "min_message_size": 64, "max_message_size": 1048576}}"#,
        gpu(0),
        gpu(1)
    )
}

fn local(buffer: &str, index: u32) -> String {
    format!(r#"{{"type": "{buffer}", "index": {index}, "size": 1}}"#)
}

fn remote(index: u32) -> String {
    format!(r#"{{"buffer_id": 0, "index": {index}, "size": 1}}"#)
}

fn op(name: &str, sources: &[String], targets: &[String]) -> String {
    format!(
        "{{\"name\": \"{name}\", \"channel_type\": \"memory\", \"src_buff\": [{}], \"dst_buff\": [{}]}}",
        sources.join(", "),
        targets.join(", ")
    )
}

const SIGNAL: &str = r#"{"name": "signal", "channel_ids": [0], "channel_type": "memory"}"#;
const WAIT: &str = r#"{"name": "wait", "channel_ids": [0], "channel_type": "memory"}"#;

fn ops(list: &[&str]) -> String {
    list.join(",\n")
}

#[test]
fn memory_of_peers_is_read_folded_and_written() {
    let by = |own: u32| op("rres", &[local("i", own), remote(own)], &[local("i", own), remote(own)]);
    let block = |own: u32| ops(&[SIGNAL, WAIT, "{\"name\": \"nop\"}", &by(own), SIGNAL, WAIT]);
    let text = plan("allreduce", (2, 2, 0), "i", [&[&block(0)], &[&block(1)]]);
    let read = mscclpp::read(&text, &SLOTS).expect("it is right");
    assert_eq!((read.range.least, read.range.most), (64, 1 << 20));
    assert_eq!((read.schedule.name.as_str(), read.schedule.messages()), ("by-hand", 4));
    runs(&read.schedule);
    survives(&read.schedule, read.range);
    // Without the waits it is a race.
    let racing = |own: u32| ops(&[SIGNAL, &by(own), SIGNAL]);
    let error = plan_fault(&plan("allreduce", (2, 2, 0), "i", [&[&racing(0)], &[&racing(1)]]));
    assert!(
        error.reason.contains("sends what is never taken") || error.reason.contains("nothing orders"),
        "{error}"
    );
    let waiting = |own: u32| ops(&[WAIT, &by(own), SIGNAL]);
    let error = plan_fault(&plan("allreduce", (2, 2, 0), "i", [&[&waiting(0)], &[&waiting(1)]]));
    assert!(
        error.reason.starts_with("operation 0 (wait) of threadblock 0 of GPU 0 waits for ever"),
        "{error}"
    );
    let line = error.line.expect("a line") as usize;
    assert!(text.lines().count() > line && line > 1, "{line}");
}

#[test]
fn packets_carry_their_flags() {
    let block = |mine: u32| {
        let (put, fold) = ("ppkt", "respkt");
        let theirs = 1 - mine;
        ops(&[
            &op(put, &[local("i", theirs)], &[remote(0)]),
            &op(fold, &[local("i", mine), local("s", 0)], &[local("i", mine), remote(1)]),
            &op("upkt", &[local("s", 1)], &[local("i", theirs)]),
        ])
    };
    let read = mscclpp::read(&plan("allreduce", (2, 2, 2), "s", [&[&block(0)], &[&block(1)]]), &SLOTS)
        .expect("right");
    assert_eq!(read.schedule.messages(), 4);
    runs(&read.schedule);
}

#[test]
fn groups_of_threadblocks_semaphores_barriers_and_pipelines() {
    let slice = |tb: u32, source: String, target: String| {
        let whole = op("put", &[source], &[target]);
        whole.replace("\"put\",", &format!("\"put\", \"tbg_info\": {{\"tb_id\": {tb}, \"tbg_size\": 2}},"))
    };
    let barrier = "{\"name\": \"barrier\", \"barrier_id\": 0, \"num_threadblocks\": 2}";
    let block = |rank: u32, tb: u32| {
        let put = slice(tb, local("i", 0), remote(rank));
        let (acquire, release) = if tb == 0 { (0, 1) } else { (1, 0) };
        let sem = |name: &str, id: u32| format!("{{\"name\": \"{name}\", \"semaphore_ids\": [{id}]}}");
        let inner = ops(&[&sem("sem_acquire", acquire), &put, &sem("sem_release", release)]);
        let pipeline = format!(
            "{{\"name\": \"pipeline\", \"iter_context\": {{\"unit_size\": 1024, \"num_chunks\": 1}}, \"ops\": [{inner}]}}"
        );
        ops(&[&pipeline, barrier, SIGNAL, WAIT])
    };
    let blocks = |rank: u32| [block(rank, 0), block(rank, 1)];
    let (zero, one) = (blocks(0), blocks(1));
    let text = plan("allgather", (1, 2, 0), "o", [&[&zero[0], &zero[1]], &[&one[0], &one[1]]]);
    let read = mscclpp::read(&text, &SLOTS).expect("it is right");
    assert_eq!((read.schedule.collective, read.schedule.partition.parts), (Collective::AllGather, 2));
    assert_eq!(read.schedule.messages(), 4);
    runs(&read.schedule);
}

#[test]
fn a_switch_folds_and_multicasts() {
    let of = |index: u32| {
        let side = format!("{{\"switch_channel_id\": 0, \"index\": {index}, \"size\": 1}}");
        let load =
            op("glres", std::slice::from_ref(&side), std::slice::from_ref(&side)).replace("memory", "switch");
        ops(&[SIGNAL, WAIT, &load, SIGNAL, WAIT])
    };
    let read =
        mscclpp::read(&plan("allreduce", (2, 2, 0), "i", [&[&of(0)], &[&of(1)]]), &SLOTS).expect("right");
    let schedule = &read.schedule;
    assert_eq!((schedule.switches, schedule.partition.parts), (1, 2));
    let plans: Result<Vec<_>, _> = (0..2).map(|rank| lower_switch(schedule, Rank(rank))).collect();
    verify(&plans.expect("it is of the only form that a group has")).expect("it is proved");
}

#[test]
fn damage_names_its_line() {
    let block = ops(&[SIGNAL, WAIT]);
    let text = plan("allreduce", (2, 2, 0), "i", [&[&block], &[&block]]);
    let cut = plan_fault(&text[..text.len() / 2]);
    assert!(cut.line.is_some_and(|line| line > 5) && cut.reason.starts_with("the plan is damaged"), "{cut}");
    for (from, to, why) in [
        ("\"allreduce\"", "\"custom\"", "is no collective of this library"),
        ("\"wait\"", "\"await\"", "no sources or no targets"),
        (
            "[0], \"channel_type\": \"memory\"}",
            "[5], \"channel_type\": \"memory\"}",
            "names channel 5, which does not exist",
        ),
        ("{\"id\": 1, \"input", "{\"id\": 2, \"input", "is not in its place"),
        ("\"input_chunks\": 2", "\"input_chunks\": \"two\"", "damaged"),
        ("\"ranks\": [0, 1]", "\"ranks\": [0, 7]", "whose members are not GPUs"),
        ("\"ops\"", "\"opera\"", "damaged"),
    ] {
        assert!(text.contains(from), "{from}");
        let error = plan_fault(&text.replacen(from, to, 1));
        assert!(error.reason.contains(why), "{from} -> {to}: {error}");
    }
    let missing = plan_fault(&text);
    assert!(
        missing.reason.contains("is not chunk")
            || missing.reason.contains("without the contribution")
            || missing.reason.contains("nothing writes"),
        "{missing}"
    );
}
