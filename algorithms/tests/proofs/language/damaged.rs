//! Files of MSCCL that are damaged or wrong: the line, the step and the reason.

use consort_algorithms::language::{self, msccl};
use consort_algorithms::{Collective, Schedule};

use super::{SLOTS, meaning, runs, survives, xml_fault};
use crate::common::{Random, seed};

/// An all-reduce of two GPUs in place: each sends its half, folds the other's into its own, and gets the other's sum.
const EXCHANGE: &str = r#"<algo name="exchange two" proto="LL" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="1" outofplace="0" minBytes="16" maxBytes="4096">
  <gpu id="0" i_chunks="2" o_chunks="0" s_chunks="0">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="rrcs" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="r" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="2" o_chunks="0" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="rrcs" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="r" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"#;

/// A reduce-scatter and an all-gather along a chain of three, with every kind of step, an older copy and two channels.
const CHAIN: &str = r#"<algo name="chain" proto="Simple" nchannels="2" nchunksperloop="2" ngpus="3" coll="allreduce" inplace="0" outofplace="1">
  <gpu id="0" i_chunks="2" o_chunks="2" s_chunks="0">
    <tb id="0" send="1" recv="-1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="1" chan="1">
      <step s="0" type="r" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="2" o_chunks="2" s_chunks="2">
    <tb id="0" send="2" recv="0" chan="0">
      <step s="0" type="rrs" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="1" send="0" recv="2" chan="1">
      <step s="0" type="rcs" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="2" i_chunks="2" o_chunks="2" s_chunks="2">
    <copy i_off="0" o_off="0"/>
    <copy i_off="1" o_off="1"/>
    <tb id="0" send="-1" recv="1" chan="0">
      <step s="0" type="r" srcbuf="s" srcoff="0" dstbuf="s" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="1"/>
    </tb>
    <tb id="1" send="-1" recv="-1" chan="0">
      <step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" depid="0" deps="0" hasdep="0"/>
      <step s="1" type="re" srcbuf="s" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="re" srcbuf="s" srcoff="1" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="1"/>
    </tb>
    <tb id="2" send="1" recv="-1" chan="1">
      <step s="0" type="s" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="2" depid="1" deps="2" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"#;

#[test]
fn steps_of_all_kinds_are_read() {
    let read = msccl::read(EXCHANGE, &SLOTS).expect("it is right");
    let Schedule { name, collective, ranks, partition, .. } = &read.schedule;
    assert_eq!(
        (name.as_str(), *collective, *ranks, partition.parts),
        ("exchange-two", Collective::AllReduce, 2, 2)
    );
    assert_eq!((read.range.least, read.range.most), (16, 4096));
    assert_eq!(read.schedule.messages(), 4);
    runs(&read.schedule);
    survives(&read.schedule, read.range);
    let chain = msccl::read(CHAIN, &SLOTS).expect("it is right");
    assert_eq!((chain.range, chain.schedule.messages()), (language::Range::ALL, 8));
    runs(&chain.schedule);
    survives(&chain.schedule, chain.range);
}

/// The line of a text in a file, and the file with that text replaced.
fn changed(file: &str, from: &str, to: &str) -> (u32, String) {
    let at = file.find(from).unwrap_or_else(|| panic!("{from} is not there"));
    (file[..at].matches('\n').count() as u32 + 1, file.replacen(from, to, 1))
}

#[test]
fn what_is_wrong_names_its_step_and_line() {
    let step = |kind: &str, from: &str| format!("type=\"{kind}\" srcbuf=\"i\" srcoff=\"{from}\"");
    // Rank 0 folds the other half with its own.
    let (line, text) = changed(EXCHANGE, &step("rrcs", "0"), &step("rrcs", "1"));
    let error = xml_fault(&text);
    assert_eq!(
        (error.line, error.reason.as_str()),
        (Some(line), "step 1 of threadblock 0 of GPU 0 folds chunk 0 with chunk 1")
    );
    // The first send of rank 1 is missing: rank 0 takes the next for it, and then waits in vain.
    let (_, text) =
        changed(EXCHANGE, "      <step s=\"0\" type=\"s\" srcbuf=\"i\" srcoff=\"0\"", "      <other");
    let error = xml_fault(&text);
    assert!(error.reason.starts_with("step 2 of threadblock 0 of GPU 0 waits for ever"), "{error}");
    assert_eq!(error.line, Some(6));
    // The last receive is missing.
    let (line, _) = changed(EXCHANGE, &step("rrcs", "1"), "");
    let (_, text) =
        changed(EXCHANGE, "      <step s=\"2\" type=\"r\" srcbuf=\"i\" srcoff=\"1\"", "      <other");
    let error = xml_fault(&text);
    assert_eq!(
        (error.line, error.reason.as_str()),
        (Some(line), "step 1 of threadblock 0 of GPU 1 sends what is never taken")
    );
    // It receives into another chunk: the output is wrong.
    let (line, text) = changed(
        EXCHANGE,
        "type=\"r\" srcbuf=\"i\" srcoff=\"0\" dstbuf=\"i\" dstoff=\"0\"",
        "type=\"r\" srcbuf=\"i\" srcoff=\"0\" dstbuf=\"i\" dstoff=\"1\"",
    );
    let error = xml_fault(&text);
    assert_eq!(
        (error.line, error.reason.as_str()),
        (Some(line - 4), "nothing writes output chunk 0 of rank 1")
    );
    // Nothing orders the folds after the receive.
    let (line, text) =
        changed(CHAIN, "cnt=\"0\" depid=\"0\" deps=\"0\"", "cnt=\"0\" depid=\"-1\" deps=\"-1\"");
    let error = xml_fault(&text);
    let race = error.reason.contains("nothing orders it after")
        && error.reason.contains("scratch chunk 0 of rank 2");
    assert!(race || error.reason.contains("before anything is there"), "{line}: {error}");
    // Threadblocks that wait for each other.
    let (line, text) = changed(
        CHAIN,
        "cnt=\"2\" depid=\"-1\" deps=\"-1\" hasdep=\"1\"",
        "cnt=\"2\" depid=\"1\" deps=\"2\" hasdep=\"1\"",
    );
    let error = xml_fault(&text);
    assert!(
        error.line == Some(line) && error.reason.contains("waits for ever, for a step that never ends"),
        "{error}"
    );
    let (line, text) = changed(CHAIN, "deps=\"2\"", "deps=\"7\"");
    let error = xml_fault(&text);
    assert!(
        error.line == Some(line) && error.reason.contains("step 7 of threadblock 1, which does not exist"),
        "{error}"
    );
}

#[test]
fn what_is_no_algorithm_says_so() {
    for (from, to, why) in [
        ("<algo ", "<graphs ", "damaged"),
        ("coll=\"allreduce\"", "coll=\"custom\"", "is no collective of this library"),
        ("ngpus=\"2\"", "ngpus=\"3\"", "there are 2 GPUs, and ngpus is 3"),
        ("ngpus=\"2\"", "ngpus=\"x\"", "is no number that fits"),
        ("<gpu id=\"1\"", "<gpu id=\"0\"", "is no other GPU"),
        ("send=\"1\"", "send=\"0\"", "is no other GPU"),
        ("send=\"1\"", "send=\"-1\"", "has no send peer"),
        ("type=\"s\"", "type=\"x\"", "which MSCCL does not have"),
        ("srcbuf=\"i\"", "srcbuf=\"q\"", "none of i, o and s"),
        ("cnt=\"1\"", "cnt=\"0\"", "cnt that is not from 1"),
        ("srcoff=\"1\"", "srcoff=\"9\"", "which does not exist"),
        ("chan=\"0\"", "chan=\"70000\"", "is no number that fits"),
    ] {
        let (_, text) = changed(EXCHANGE, from, to);
        let error = xml_fault(&text);
        assert!(error.reason.contains(why), "{from} -> {to}: {error}");
    }
    let twice =
        EXCHANGE.replacen("    </tb>", "    </tb>\n    <tb id=\"1\" send=\"1\" recv=\"-1\" chan=\"0\"/>", 1);
    assert!(xml_fault(&twice).reason.contains("the same send peer on channel 0"));
    for bytes in [&b"\xff\xfe"[..], b"", b"ring", b"<", b"{", b"{}"] {
        let error = language::read(bytes, &SLOTS).expect_err("it is none");
        assert!(error.line.is_some() && !error.remedy.is_empty(), "{error}");
    }
}

#[test]
fn files_that_are_damaged_by_a_seed_are_read_or_refused() {
    let mut random = Random::new(seed(0x6461_6d61));
    let mut accepted = 0;
    for file in [EXCHANGE, CHAIN] {
        let whole = meaning(&msccl::read(file, &SLOTS).expect("it is right").schedule);
        for _ in 0..300 {
            let mut bytes = file.as_bytes().to_vec();
            for _ in 0..1 + random.below(2) {
                let at = random.below(bytes.len());
                match random.below(4) {
                    0 => bytes.truncate(at.max(1)),
                    1 => {
                        bytes.remove(at);
                    }
                    // A number that is another.
                    _ => {
                        let digits: Vec<usize> =
                            (0..bytes.len()).filter(|at| bytes[*at].is_ascii_digit()).collect();
                        if let Some(at) = digits.get(at % digits.len().max(1)) {
                            bytes[*at] = b'0' + random.below(4) as u8;
                        }
                    }
                }
            }
            match language::read(&bytes, &SLOTS) {
                // What is accepted computes the collective, whatever it is now.
                Ok(read) => {
                    accepted += 1;
                    assert_eq!(meaning(&read.schedule).0.split(' ').next(), whole.0.split(' ').next());
                }
                Err(error) => assert!(error.line.is_some() && !error.reason.is_empty(), "{error}"),
            }
        }
    }
    println!("{accepted} of 600 mean something");
}
