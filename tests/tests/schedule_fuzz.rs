//! Hostile files of schedules: MSCCL's XML and MSCCL++'s plans, mutated; what is read is proved, written and read again.
//!
//! An input's pieces are joined to one text. Invariant under test: a text is read or refused with a line, a reason and a remedy, and
//! memory stays within a bound.

use consort_algorithms::LowerOptions;
use consort_algorithms::language::{self, msccl};
use consort_transports::fuzzing::{Counting, Input, Seen, Target, fuzz};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SLOTS: LowerOptions = LowerOptions { slots: 4 };

/// An input has at most 32 KiB, which is some 2,000 threadblocks, each with a clock of all others, or as many GPUs.
const fn target(name: &'static str, command: &'static str) -> Target {
    Target { name, command, bytes_max: 512 << 20, inputs: 200 }
}

fn handle(input: &Input, seen: &mut Seen) {
    let read = match language::read(&input.concat(), &SLOTS) {
        Ok(read) => read,
        Err(error) => {
            assert!(error.line.is_some() && !error.reason.is_empty() && !error.remedy.is_empty());
            // Without the numbers.
            let words: String = error.reason.chars().filter(|letter| !letter.is_ascii_digit()).collect();
            seen.note_text(&words);
            return;
        }
    };
    let schedule = &read.schedule;
    seen.note((schedule.rounds.len().min(16), schedule.messages().min(16), schedule.channels().min(4)));
    if let Some(xml) = msccl::write(schedule, read.range) {
        let again = msccl::read(&xml, &SLOTS).expect("what was read is written");
        assert_eq!((again.schedule.messages(), again.range), (schedule.messages(), read.range));
    }
}

/// Files of a format, a line a piece.
fn originals(texts: &[&str]) -> Vec<Input> {
    let pieces = |text: &&str| text.split_inclusive('\n').map(|line| line.as_bytes().to_vec()).collect();
    texts.iter().map(pieces).collect()
}

/// Two GPUs that exchange halves, with a copy, a wait and two channels.
const XML: &str = "<algo name=\"a\" proto=\"LL\" nchannels=\"2\" nchunksperloop=\"2\" ngpus=\"2\" coll=\"allreduce\" inplace=\"1\" outofplace=\"0\" minBytes=\"0\" maxBytes=\"9\">\n\
<gpu id=\"0\" i_chunks=\"2\" o_chunks=\"0\" s_chunks=\"1\">\n<tb id=\"0\" send=\"1\" recv=\"1\" chan=\"0\">\n\
<step s=\"0\" type=\"s\" srcbuf=\"i\" srcoff=\"1\" dstbuf=\"i\" dstoff=\"1\" cnt=\"1\" depid=\"-1\" deps=\"-1\" hasdep=\"0\"/>\n\
<step s=\"1\" type=\"rrcs\" srcbuf=\"i\" srcoff=\"0\" dstbuf=\"i\" dstoff=\"0\" cnt=\"1\" depid=\"-1\" deps=\"-1\" hasdep=\"1\"/>\n\
</tb>\n<tb id=\"1\" send=\"-1\" recv=\"1\" chan=\"1\">\n\
<step s=\"0\" type=\"nop\" srcbuf=\"i\" srcoff=\"-1\" dstbuf=\"o\" dstoff=\"-1\" cnt=\"0\" depid=\"0\" deps=\"1\" hasdep=\"0\"/>\n\
<step s=\"1\" type=\"r\" srcbuf=\"s\" srcoff=\"0\" dstbuf=\"s\" dstoff=\"0\" cnt=\"1\" depid=\"-1\" deps=\"-1\" hasdep=\"0\"/>\n\
<step s=\"2\" type=\"cpy\" srcbuf=\"s\" srcoff=\"0\" dstbuf=\"i\" dstoff=\"1\" cnt=\"1\" depid=\"0\" deps=\"0\" hasdep=\"0\"/>\n</tb>\n</gpu>\n\
<gpu id=\"1\" i_chunks=\"2\" o_chunks=\"0\" s_chunks=\"1\">\n<tb id=\"0\" send=\"0\" recv=\"0\" chan=\"0\">\n\
<step s=\"0\" type=\"s\" srcbuf=\"i\" srcoff=\"0\" dstbuf=\"i\" dstoff=\"0\" cnt=\"1\" depid=\"-1\" deps=\"-1\" hasdep=\"1\"/>\n\
<step s=\"1\" type=\"rrc\" srcbuf=\"i\" srcoff=\"1\" dstbuf=\"i\" dstoff=\"1\" cnt=\"1\" depid=\"-1\" deps=\"-1\" hasdep=\"1\"/>\n\
<step s=\"2\" type=\"r\" srcbuf=\"i\" srcoff=\"0\" dstbuf=\"i\" dstoff=\"0\" cnt=\"1\" depid=\"-1\" deps=\"-1\" hasdep=\"0\"/>\n</tb>\n\
<tb id=\"1\" send=\"0\" recv=\"-1\" chan=\"1\">\n\
<step s=\"0\" type=\"s\" srcbuf=\"i\" srcoff=\"1\" dstbuf=\"s\" dstoff=\"0\" cnt=\"1\" depid=\"0\" deps=\"1\" hasdep=\"0\"/>\n</tb>\n</gpu>\n</algo>\n";

/// Two GPUs that read, fold and write each other's halves.
const PLAN: &str = "{\"name\": \"p\", \"collective\": \"allreduce\", \"protocol\": \"Simple\", \"inplace\": true, \"gpus\": [\n\
{\"id\": 0, \"input_chunks\": 2, \"output_chunks\": 2, \"scratch_chunks\": 0, \"threadblocks\": [\n\
{\"id\": 0, \"ops\": [\n{\"name\": \"signal\", \"channel_ids\": [0], \"channel_type\": \"memory\"},\n{\"name\": \"wait\", \"channel_ids\": [0], \"channel_type\": \"memory\"},\n\
{\"name\": \"rres\", \"src_buff\": [{\"type\": \"i\", \"index\": 0, \"size\": 1}, {\"buffer_id\": 0, \"index\": 0, \"size\": 1}],\n\"dst_buff\": [{\"type\": \"i\", \"index\": 0, \"size\": 1}, {\"buffer_id\": 0, \"index\": 0, \"size\": 1}], \"channel_type\": \"memory\"}],\n\
\"channels\": [{\"channel_type\": \"memory\", \"channel_ids\": [0]}],\n\"remote_buffer_refs\": [{\"access_channel_type\": \"memory\", \"remote_buffer_ids\": [0]}]}],\n\
\"channels\": [{\"channel_type\": \"memory\", \"connected_to\": [1]}],\n\"remote_buffers\": [{\"rank\": 1, \"type\": \"i\", \"access_channel_types\": [\"memory\"]}], \"semaphores\": []},\n\
{\"id\": 1, \"input_chunks\": 2, \"output_chunks\": 2, \"scratch_chunks\": 0, \"threadblocks\": [\n\
{\"id\": 0, \"ops\": [\n{\"name\": \"signal\", \"channel_ids\": [0], \"channel_type\": \"memory\"},\n{\"name\": \"wait\", \"channel_ids\": [0], \"channel_type\": \"memory\"},\n\
{\"name\": \"rres\", \"src_buff\": [{\"type\": \"i\", \"index\": 1, \"size\": 1}, {\"buffer_id\": 0, \"index\": 1, \"size\": 1}],\n\"dst_buff\": [{\"type\": \"i\", \"index\": 1, \"size\": 1}, {\"buffer_id\": 0, \"index\": 1, \"size\": 1}], \"channel_type\": \"memory\"}],\n\
\"channels\": [{\"channel_type\": \"memory\", \"channel_ids\": [0]}],\n\"remote_buffer_refs\": [{\"access_channel_type\": \"memory\", \"remote_buffer_ids\": [0]}]}],\n\
\"channels\": [{\"channel_type\": \"memory\", \"connected_to\": [0]}],\n\"remote_buffers\": [{\"rank\": 0, \"type\": \"i\", \"access_channel_types\": [\"memory\"]}], \"semaphores\": []}]}\n";

/// Originals have to be right, so that mutants get far.
fn checked(target: &Target, text: &str) {
    let read = language::read(text.as_bytes(), &SLOTS);
    assert!(read.is_ok(), "{read:?}");
    fuzz(target, originals(&[text]), handle);
}

#[test]
fn algorithms_of_msccl_are_proved_and_written_again_or_refused() {
    checked(&target("algorithms-of-msccl", "-p consort-tests --test schedule_fuzz algorithms_of_msccl"), XML);
}

#[test]
fn plans_of_mscclpp_are_proved_or_refused() {
    checked(&target("plans-of-mscclpp", "-p consort-tests --test schedule_fuzz plans_of_mscclpp"), PLAN);
}
