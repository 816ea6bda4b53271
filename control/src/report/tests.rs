//! Verdicts on tables: what the ranks say, and whom it must name.

mod random;
mod world;

use std::time::Duration;

use super::evidence::{Position, Reach, SlowWire, Want};
use super::machine::{Way, Wires};
use super::{Guilty, Report};
use crate::bootstrap::Member;
use consort_types::Rank;
use consort_types::call::Kind;
use world::{HOME, OTHER, THIRD, World, call, moving, process, there, waiting};

fn check(report: &Report, guilty: Guilty, parts: &[&str]) {
    println!("{report}\n");
    assert_eq!(report.guilty, guilty, "{report}");
    for part in parts {
        assert!(report.verdict.contains(part), "{part:?} is not in: {}", report.verdict);
    }
    assert!(report.verdict.len() <= 460, "{} is long: {}", report.verdict.len(), report.verdict);
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("valid JSON");
    assert_eq!(json["verdict"], report.verdict.as_str());
}

fn cycle_of(report: &Report) -> Vec<(String, Rank, String, Rank)> {
    let Guilty::Cycle(steps) = &report.guilty else { panic!("{report}") };
    println!("{report}\n");
    let step = |step: &super::CycleStep| {
        (step.communicator.clone(), step.rank, step.operation.clone(), step.waits_for)
    };
    steps.iter().map(step).collect()
}

/// Two boxes of four ranks.
#[derive(Debug)]
struct Boxes;

impl Wires for Boxes {
    fn graph(&self) -> (String, u64) {
        ("boxes".into(), 0xbeef)
    }

    fn way(&self, _: &[&Member], from: Rank, to: Rank) -> Option<Way> {
        let kind = if from / 4 == to / 4 { "NVL" } else { "NET" };
        let bytes_s = (kind == "NVL").then_some(450_000_000_000 + u64::from(from));
        (from < 8 && to < 8).then(|| Way { kind: Some(kind.into()), bytes_s })
    }
}

#[test]
fn the_way_on_which_a_rank_waits_is_in_the_report() {
    let waits = |report: Report| {
        let way = report.on(&Boxes, &[]).graph.and_then(|graph| graph.way);
        way.map(|way| (way.waits, way.awaited))
    };
    let report = World::new(8).ring([0, 1, 2, 4, 5, 6, 7]).report().on(&Boxes, &[]);
    let text = report.to_string();
    let line = text.lines().nth(2).unwrap_or_default();
    assert_eq!(line, "machine: boxes, graph 000000000000beef; rank 4 waits for rank 3 over NET", "{text}");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("valid JSON");
    let way = serde_json::json!({ "waits": 4, "awaited": 3, "kind": "NET", "bytes_s": null });
    assert_eq!(
        json["graph"],
        serde_json::json!({ "machine": "boxes", "hash": "000000000000beef", "way": way })
    );
    let near = World::new(4).ring([0, 1, 2]).report().on(&Boxes, &[]).to_string();
    assert!(near.contains("; rank 0 waits for rank 3 over NVL at 450.0 GB/s\n"), "{near}");
    let send = |peer: Rank| {
        let mut open = waiting(3, call(Kind::Send, peer), peer);
        open.stuck.as_mut().expect("it waits").want = Want::Room;
        open
    };
    let both = World::new(2).open(0, send(1)).open(1, send(0)).ask(0, 3, call(Kind::Send, 1)).report();
    let pair = match both.guilty {
        Guilty::Cycle(ref steps) => Some((steps[0].rank, steps[0].waits_for)),
        _ => None,
    };
    assert!(pair.is_some());
    assert_eq!(waits(both), pair);
    assert_eq!(waits(World::new(2).report()), None);
    assert!(World::new(2).report().to_string().lines().nth(2).is_some_and(|line| !line.contains("machine")));
}

#[test]
fn an_absent_rank_is_named_with_what_it_did_last() {
    let report = World::new(8).ring([0, 1, 2, 4, 5, 6, 7]).report();
    check(
        &report,
        Guilty::Ranks(vec![3]),
        &[
            "rank 3 (host a, process 73) has not entered all_reduce #42; ranks 0-2, 4-7 wait for it since 12.0 s; ",
            "its last call was broadcast #41 (finished 14.2 s ago), and it is not in a call now",
            "stack trace of process 73 on host a",
        ],
    );
    let text = report.to_string();
    let mut lines = text.lines();
    let head =
        "hang report of communicator 1a2b3c4d (8 ranks), by rank 0: all_reduce #42, waiting for 12.0 s";
    assert_eq!(lines.next(), Some(head));
    assert!(lines.next().is_some_and(|line| line.starts_with("verdict: rank 3 ")));
    assert_eq!(lines.next(), Some("rank  where           last finished             now"));
    assert_eq!(
        lines.next(),
        Some(
            "   0  host a, pid 70  broadcast #41 14.2 s ago  all_reduce #42 of 1048576 float (sum), ring, step 3 of 14, \
             slice 2 of 8: 11.9 s waiting for data from rank 7"
        )
    );
    assert_eq!(lines.nth(2), Some("   3  host a, pid 73  broadcast #41 14.2 s ago  not in a call"));
    assert_eq!(text.lines().count(), 3 + 8);
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("valid JSON");
    assert_eq!(json["guilty"], serde_json::json!({ "kind": "ranks", "ranks": [3] }));
    assert_eq!((&json["waited_s"], &json["by"], &json["size"]), (&12.0.into(), &0.into(), &8.into()));
    let wait = &json["ranks"][0]["waiting"];
    assert_eq!((&wait["peer"], &wait["stuck_s"]), (&7.into(), &11.9.into()));
    assert_eq!(wait["call"]["op"], "sum");
    assert_eq!(wait["call"]["root"], serde_json::Value::Null);
    assert_eq!(json["ranks"][3]["finished"]["call"]["name"], "broadcast");
    assert_eq!(json["ranks"][3]["waiting"], serde_json::Value::Null);
}

#[test]
fn nobody_needs_to_be_stuck_for_an_absent_rank() {
    let mut world = World::new(3);
    for rank in 0..2 {
        world = world.open(rank, moving(42, call(Kind::AllReduce, 0)));
    }
    check(&world.report(), Guilty::Ranks(vec![2]), &["has not entered all_reduce #42; ranks 0, 1 wait"]);
}

#[test]
fn of_two_absent_ranks_the_one_further_behind_is_to_blame() {
    let mut world = World::new(4).ring([0, 1]);
    (world.at(2).entered, world.at(2).finished) = (40, 40);
    let parts =
        ["rank 2 (host a, process 72) has not entered", "; rank 3 has not entered all_reduce #42 either"];
    check(&world.report(), Guilty::Ranks(vec![2]), &parts);
    let report = World::new(6).ring([0, 1, 4, 5]).report();
    let parts = ["ranks 2, 3 (host a) have not entered all_reduce #42", "they are not in a call now"];
    check(&report, Guilty::Ranks(vec![2, 3]), &parts);
}

#[test]
fn an_absent_rank_is_followed_into_an_earlier_collective() {
    // Rank 1 is still in #41, for which rank 2 has not come.
    let mut world = World::new(4).ring([0, 3]).open(1, waiting(41, call(Kind::Broadcast, 2), 2));
    (world.at(2).entered, world.at(2).finished) = (40, 40);
    let expected = "rank 2 (host a, process 72) has not entered broadcast #41; rank 1 waits for it since 12.0 s, and so \
                ranks 0, 3 wait in all_reduce #42";
    let parts = [expected];
    check(&world.report(), Guilty::Ranks(vec![2]), &parts);
    let report = World::new(4).ring([0, 2, 3]).open(1, moving(41, call(Kind::Broadcast, 2))).report();
    check(&report, Guilty::Ranks(vec![1]), &["it is still in broadcast #41 (since 300 ms), which moves"]);
}

#[test]
fn an_absent_rank_is_followed_into_another_communicator() {
    // Its thread waits in OTHER for job rank 2, which is in no call; then the same by its rank in the job.
    for by_thread in [true, false] {
        let mut inside = there(OTHER, 0, 3, Some(waiting(3, call(Kind::AllReduce, 0), 1)));
        if !by_thread {
            inside.caller = 9;
        } else {
            inside.job_rank = 30;
        }
        let mut world = World::new(4).ring([0, 1]);
        if !by_thread {
            // No thread has called here yet: which thread will is not known.
            world.at(3).caller = 0;
            world.at(2).caller = 5;
        }
        let report = world
            .also(process(3), inside)
            .also(process(2), Position { caller: if by_thread { 5 } else { 0 }, ..there(OTHER, 1, 2, None) })
            .open(2, waiting(42, call(Kind::AllReduce, 0), 1))
            .report();
        // Rank 2 waits here on one thread, and has not come there on the same: a cycle.
        assert_eq!(
            cycle_of(&report),
            [
                (format!("{HOME:016x}"), 0, "all_reduce #42".into(), 3),
                (format!("{OTHER:016x}"), 0, "all_reduce #3".into(), 1),
                (format!("{HOME:016x}"), 2, "all_reduce #42".into(), 3),
            ][1..]
        );
        assert_eq!(
            report.ranks[3].elsewhere.as_ref().map(|(name, _)| name.as_str()),
            Some("9f00112200000002")
        );
        assert!(report.to_string().contains(
            "not in a call here; in all_reduce #3 of 1048576 float (sum) on communicator 9f001122"
        ));
    }
}

#[test]
fn a_chain_through_another_communicator_ends_at_a_rank_of_this_one() {
    let report = World::new(4)
        .ring([0, 1])
        .also(process(3), there(OTHER, 0, 3, Some(waiting(3, call(Kind::AllReduce, 0), 1))))
        .also(process(2), there(OTHER, 1, 2, None))
        .report();
    let parts = ["rank 2 (host a, process 72)", "has not entered all_reduce #42; ranks 0, 1 wait"];
    check(&report, Guilty::Ranks(vec![2]), &parts);
    // The same where rank 2 is through with the operation here.
    let mut world = World::new(4)
        .ring([0, 1])
        .also(process(3), there(OTHER, 0, 3, Some(waiting(3, call(Kind::AllReduce, 0), 1))))
        .also(process(2), there(OTHER, 1, 2, None));
    (world.at(2).entered, world.at(2).finished) = (42, 42);
    let parts = [
        "rank 2 (host a, process 72; rank 1 there) has not entered all_reduce #3 of communicator 9f001122",
        "rank 3 waits for it there since 12.0 s, and so ranks 0, 1 wait in all_reduce #42",
    ];
    check(&world.report(), Guilty::Ranks(vec![2]), &parts);
}

#[test]
fn a_chain_may_end_outside() {
    let world = || {
        World::new(3)
            .ring([0, 1])
            .also(process(2), there(OTHER, 0, 2, Some(waiting(3, call(Kind::AllReduce, 0), 1))))
    };
    let place = "a process of no rank here, number 33333333".to_string();
    let guilty = Guilty::Elsewhere { place, communicator: format!("{OTHER:016x}"), rank: 1 };
    let mut outside = there(OTHER, 1, 50, None);
    outside.caller = 0;
    let report = world().also(process(50), outside).report();
    check(
        &report,
        guilty,
        &[
            "rank 1 of communicator 9f001122 (",
            "has not entered all_reduce #3 there; rank 2 waits for it there since 12.0 s, and so ranks 0, 1 wait",
        ],
    );
    // No process answered for that rank. Its process is rank 1's, then an unknown one.
    let report = world().report();
    check(&report, Guilty::Ranks(vec![1]), &["whose state is not known: the process of rank 1 (host a"]);
    let mut world = world();
    let there = &mut world.0.processes.get_mut(&process(2)).expect("it said so")[0];
    let stuck = there.open.as_mut().and_then(|open| open.stuck.as_mut()).expect("it waits");
    stuck.peer_process = [0; 16];
    let place = "a process that is not known".to_string();
    let guilty = Guilty::Elsewhere { place, communicator: format!("{OTHER:016x}"), rank: 1 };
    check(&world.report(), guilty, &["whose state is not known"]);
}

#[test]
fn a_silent_process_at_the_end_of_a_chain_is_unreachable() {
    // A message to rank 1, whose thread waits elsewhere for the process of rank 2, which does not answer.
    let report = World::new(4)
        .open(0, waiting(1, call(Kind::Send, 1), 1))
        .ask(0, 1, call(Kind::Send, 1))
        .also(process(1), there(OTHER, 0, 1, Some(waiting(3, call(Kind::Barrier, 0), 2))))
        .reach(2..4, Reach::Silent)
        .report();
    check(&report, Guilty::Unreachable(vec![2]), &["rank 2 (host a, process 72) does not answer rank 0"]);
}

#[test]
fn cycles_across_communicators_are_told_step_by_step() {
    // Rank 0 waits here for rank 1, which waits in OTHER for rank 0, on the same threads.
    let report = World::new(2)
        .ring([0])
        .also(process(0), there(OTHER, 0, 0, None))
        .also(process(1), there(OTHER, 1, 1, Some(waiting(3, call(Kind::Broadcast, 0), 0))))
        .report();
    let step =
        |name: u64, rank, operation: &str, peer| (format!("{name:016x}"), rank, operation.into(), peer);
    assert_eq!(cycle_of(&report), [step(HOME, 0, "all_reduce #42", 1), step(OTHER, 1, "broadcast #3", 0)]);
    let expected = "rank 0 waits in all_reduce #42 of communicator 1a2b3c4d for rank 1, which waits in broadcast #3 of \
                communicator 9f001122 for rank 0";
    assert!(report.verdict.contains(expected), "{}", report.verdict);
    // Three ranks on three communicators of two each.
    let report = World::new(2)
        .ring([0])
        .also(process(1), there(OTHER, 0, 1, Some(waiting(3, call(Kind::Broadcast, 0), 1))))
        .also(process(2), there(OTHER, 1, 2, None))
        .also(process(2), there(THIRD, 0, 2, Some(waiting(5, call(Kind::Barrier, 0), 1))))
        .also(process(0), there(THIRD, 1, 0, None))
        .report();
    let steps = [
        step(HOME, 0, "all_reduce #42", 1),
        step(OTHER, 0, "broadcast #3", 1),
        step(THIRD, 0, "barrier #5", 1),
    ];
    assert_eq!(cycle_of(&report), steps);
    assert!(
        report.verdict.contains(", which (rank 0 there, rank 1 of the job) waits in"),
        "{}",
        report.verdict
    );
}

#[test]
fn two_ranks_that_both_send_wait_for_each_other() {
    let send = |peer: Rank| {
        let mut open = waiting(3, call(Kind::Send, peer), peer);
        open.stuck.as_mut().expect("it waits").want = Want::Room;
        open
    };
    let report = World::new(2).open(0, send(1)).open(1, send(0)).ask(0, 3, call(Kind::Send, 1)).report();
    let step = |rank, peer| (format!("{HOME:016x}"), rank, "send #3".into(), peer);
    assert_eq!(cycle_of(&report), [step(0, 1), step(1, 0)]);
    let expected =
        "deadlock: rank 0 waits in send #3 for rank 1, which waits in send #3 for rank 0: let them exchange";
    assert!(report.verdict.starts_with(expected), "{}", report.verdict);
    assert!(report.to_string().contains("waiting for room at rank 1"));
}

#[test]
fn what_another_thread_of_a_rank_waits_in_says_nothing() {
    // Rank 3's thread that calls here is in its own code; another one serves a communicator of its own.
    let mut service = there(OTHER, 0, 3, Some(waiting(3, call(Kind::Receive, 1), 1)));
    service.caller = 9;
    let report = World::new(4).ring([0, 1, 2]).also(process(3), service).report();
    check(&report, Guilty::Ranks(vec![3]), &["rank 3 (host a, process 73) has not entered all_reduce #42"]);
}

#[test]
fn messages_of_an_exchange_do_not_wait_for_each_other() {
    // Each shows the half that it sends, and both receive at the same time.
    let exchange = |world: World, rank: Rank, peer: Rank| {
        let mut world = world.open(rank, waiting(3, call(Kind::Send, peer), peer));
        world.at(rank).messages.push((3, call(Kind::Receive, peer)));
        world
    };
    let world = exchange(exchange(World::new(2), 0, 1), 1, 0).ask(0, 3, call(Kind::Send, 1));
    assert_eq!(world.report().guilty, Guilty::Nobody);
    let world = exchange(exchange(World::new(2), 0, 1), 1, 0).ask(0, 3, call(Kind::Send, 1));
    let report = world.traffic(0, 1, [9, 0, 0, 9]).traffic(1, 0, [0, 8, 8, 0]).report();
    assert_eq!(report.guilty, Guilty::Link { from: 0, to: 1 }, "{report}");
}

#[test]
fn messages_without_their_other_end() {
    let world =
        || World::new(4).open(0, waiting(2, call(Kind::Receive, 1), 1)).ask(0, 2, call(Kind::Receive, 1));
    let parts =
        ["rank 1 (host a, process 71) has not called send #2 to rank 0; rank 0 waits for it since 12.0 s"];
    check(&world().report(), Guilty::Ranks(vec![1]), &parts);
    // It is in another operation, for which rank 3 is missing.
    let report = world()
        .open(1, waiting(42, call(Kind::AllReduce, 0), 2))
        .open(2, moving(42, call(Kind::AllReduce, 0)));
    let mut report = report.open(0, waiting(2, call(Kind::Receive, 1), 1));
    (report.at(0).entered, report.at(3).entered) = (42, 41);
    let parts = ["rank 3 (host a, process 73) has not entered all_reduce #42", "rank 0 waits in receive #2"];
    check(&report.report(), Guilty::Ranks(vec![3]), &parts);
    // Both ends are there and wait: what the sender filled did not arrive.
    let both = || world().open(1, waiting(2, call(Kind::Send, 0), 0));
    check(&both().report(), Guilty::Link { from: 1, to: 0 }, &["and both wait"]);
    let report = both().traffic(1, 0, [9, 0, 0, 9]).traffic(0, 1, [0, 9, 9, 0]).report();
    check(&report, Guilty::Link { from: 1, to: 0 }, &["and both wait"]);
    let report = both().traffic(1, 0, [9, 0, 0, 8]).traffic(0, 1, [0, 9, 9, 0]).report();
    check(&report, Guilty::Link { from: 0, to: 1 }, &["rank 0 gave back 9 slots and rank 1 has seen 8"]);
    // The sender is through with it, or is in it and moves.
    let mut done = world();
    done.at(1).passed = vec![(0, 2, 0)];
    check(&done.report(), Guilty::Link { from: 1, to: 0 }, &["rank 1 is through with send #2"]);
    let report = world().open(1, moving(2, call(Kind::Send, 0))).report();
    check(&report, Guilty::Ranks(vec![1]), &["is at the other end of receive #2 but moves slowly"]);
}

#[test]
fn ranks_that_do_not_answer() {
    let report = World::new(4).ring([0, 1, 3]).reach(2..3, Reach::Silent).report();
    let parts =
        ["rank 2 (host a, process 72) does not answer rank 0: stopped, or its host or the network to it is"];
    check(&report, Guilty::Unreachable(vec![2]), &parts);
    assert!(report.to_string().contains("unreachable: no answer"), "{report}");
    // A partition, and a rank on this side that is absent.
    let report = World::new(12).ring(0..3).reach(4..12, Reach::Silent).report();
    let parts = [
        "ranks 4-11 (hosts b, c) do not answer rank 0: stopped, or their hosts or the network to them are down",
        "; rank 3 has not entered all_reduce #42",
    ];
    check(&report, Guilty::Unreachable((4..12).collect()), &parts);
    let lost = Reach::Lost("connection reset by peer\n".into());
    let report = World::new(8).ring(0..4).reach(4..8, Reach::Silent).reach(4..5, lost).report();
    let parts =
        ["rank 4 (host b, process 74) was lost (connection reset by peer )", "; ranks 5-7 do not answer"];
    check(&report, Guilty::Ranks(vec![4]), &parts);
}

#[test]
fn who_does_not_answer_is_named_before_those_who_wait_for_it_in_joining() {
    // Rank 0 is in a collective of a group for which most have not joined yet, as rank 5 has stopped.
    let joining = |mut world: World, ranks: std::ops::Range<Rank>| {
        ranks.for_each(|rank| world.0.ranks[rank as usize].position = None);
        world
    };
    let message = |world: World| world.ask(0, 1, call(Kind::Send, 1));
    let group = || message(World::new(6).open(0, waiting(1, call(Kind::AllReduce, 0), 4)));
    let parts = [
        "rank 5 (host b, process 75) does not answer rank 0: stopped",
        "; rank 0 waits in send #1 since 12.0 s",
        "; ranks 1-4 have not made the communicator yet, which takes all ranks",
    ];
    let report = joining(group(), 1..5).reach(5..6, Reach::Silent).report();
    check(&report, Guilty::Unreachable(vec![5]), &parts);
    // A rank that waits for the message alone needs no other rank, but joining needs all.
    let send = || message(World::new(6).open(0, waiting(1, call(Kind::Send, 1), 1)));
    let report = joining(send(), 1..2).reach(3..5, Reach::Silent).report();
    let parts =
        ["ranks 3, 4 (hosts a, b) do not answer", "; rank 1 has not made the communicator yet, which"];
    check(&report, Guilty::Unreachable(vec![3, 4]), &parts);
    let report = send().reach(3..5, Reach::Silent).report();
    check(&report, Guilty::Ranks(vec![1]), &["rank 1 (host a, process 71) has not called receive #1"]);
    let report = joining(send(), 1..2).report();
    check(&report, Guilty::Ranks(vec![1]), &["has not made the communicator yet, and send #1 needs it"]);
    let lost = Reach::Lost("reset".into());
    let report = joining(send(), 1..2).reach(3..4, lost).report();
    check(&report, Guilty::Ranks(vec![3]), &["rank 3 (host a, process 73) was lost (reset)"]);
    // A collective that the message waits for needs them all too.
    let world = World::new(6).open(0, waiting(42, call(Kind::AllReduce, 0), 4));
    let report = message(world).open(4, moving(42, call(Kind::AllReduce, 0))).reach(5..6, Reach::Silent);
    check(&report.report(), Guilty::Unreachable(vec![5]), &["rank 5 (host b, process 75) does not answer"]);
}

#[test]
fn what_a_rank_finished_before_it_left_is_lost_on_the_way() {
    let mut world = World::new(2).ring([0]).reach(1..2, Reach::Left);
    (world.at(1).entered, world.at(1).finished) = (42, 42);
    check(&world.report(), Guilty::Link { from: 1, to: 0 }, &["rank 1 is through with all_reduce #42"]);
    let receive = call(Kind::Receive, 1);
    let world = || World::new(2).open(0, waiting(2, receive, 1)).ask(0, 2, receive).reach(1..2, Reach::Left);
    let mut done = world();
    done.at(1).passed = vec![(0, 2, 0)];
    check(&done.report(), Guilty::Link { from: 1, to: 0 }, &["rank 1 is through with send #2"]);
    check(
        &world().report(),
        Guilty::Ranks(vec![1]),
        &["closed the communicator after #41, and receive #2 needs"],
    );
}

#[test]
fn a_rank_that_left_or_never_came() {
    let report = World::new(4).ring([0, 1, 3]).reach(2..3, Reach::Left).report();
    let parts =
        ["rank 2 (host a, process 72) closed the communicator after #41, and all_reduce #42 needs it"];
    check(&report, Guilty::Ranks(vec![2]), &parts);
    assert!(report.ranks[2].left && report.to_string().contains("closed the communicator\n"));
    let mut world = World::new(4).ring([0, 1, 3]).reach(2..3, Reach::Left);
    world.0.ranks[2].position = None;
    check(&world.report(), Guilty::Ranks(vec![2]), &["closed the communicator, and all_reduce #42 needs it"]);
    let mut world = World::new(4).ring([0, 1, 3]);
    world.0.ranks[2].position = None;
    check(&world.report(), Guilty::Ranks(vec![2]), &["has not made the communicator yet"]);
}

#[test]
fn a_ring_that_waits_for_itself() {
    let ring = |broken: bool| {
        let mut world = World::new(4).ring(0..4);
        for rank in 0..4 {
            let arrived = if broken && rank == 2 { 16 } else { 17 };
            world = world.traffic(rank, (rank + 1) % 4, [17, 0, 0, 17]);
            world = world.traffic(rank, (rank + 3) % 4, [0, arrived, 17, 0]);
        }
        world
    };
    let parts = ["what rank 1 sent does not reach rank 2", "rank 1 sent 17 slots and 16 arrived at rank 2"];
    check(&ring(true).report(), Guilty::Link { from: 1, to: 2 }, &parts);
    let parts = ["ranks 0-3 wait for each other since 12.0 s", "too slowly for this deadline"];
    check(&ring(false).report(), Guilty::Nobody, &parts);
    // Rank 1 has begun to send something that it has not counted.
    let mut untaken = ring(false);
    let stuck = untaken.at(1).open.as_mut().and_then(|open| open.stuck.as_mut()).expect("it waits");
    (stuck.want, stuck.peer) = (Want::Room, 2);
    let parts = ["what rank 1 sent does not reach rank 2", "waits for room at rank 2, where no slot is full"];
    check(&untaken.report(), Guilty::Link { from: 1, to: 2 }, &parts);
    // With a full slot it waits for rank 2 to empty it.
    let mut full = ring(false).traffic(1, 2, [17, 0, 0, 16]).traffic(2, 1, [0, 17, 16, 0]);
    let stuck = full.at(1).open.as_mut().and_then(|open| open.stuck.as_mut()).expect("it waits");
    (stuck.want, stuck.peer) = (Want::Room, 2);
    check(&full.report(), Guilty::Nobody, &["too slowly for this deadline"]);
    // Rank 1 is through: what it sent is not at rank 2.
    let mut world = World::new(4).ring([0, 2, 3]);
    (world.at(1).entered, world.at(1).finished) = (42, 42);
    check(&world.report(), Guilty::Link { from: 1, to: 2 }, &["rank 1 is through with all_reduce #42"]);
}

#[test]
fn of_all_who_wait_for_connections_those_who_wait_for_each_other_are_named() {
    let world = |peers: [Rank; 5]| {
        (0..).zip(peers).fold(World::new(5), |world, (rank, peer)| {
            let mut open = waiting(42, call(Kind::AllReduce, 0), peer);
            open.stuck.as_mut().expect("it waits").want =
                if rank == 2 { Want::Connection } else { Want::Link };
            world.open(rank, open)
        })
    };
    // Rank 3 connects with rank 2 first, and has not come to ranks 0, 1 and 4.
    let parts = ["what rank 3 sent does not reach rank 2: their connection does not come up"];
    check(&world([3, 3, 3, 2, 3]).report(), Guilty::Link { from: 3, to: 2 }, &parts);
    // Rank 3 has all its connections and waits for data, so its half has not come to rank 4, for which rank 0 waits.
    let mut counted = world([4, 0, 0, 0, 3]);
    for rank in 1..4 {
        counted = counted.open(rank, waiting(42, call(Kind::AllReduce, 0), 0));
    }
    check(&counted.report(), Guilty::Link { from: 3, to: 4 }, &["what rank 3 sent does not reach rank 4"]);
    // No rank waits for one that waits for it.
    check(&world([1, 2, 3, 4, 0]).report(), Guilty::Link { from: 1, to: 0 }, &["does not come up"]);
}

#[test]
fn a_slow_rank_is_named_when_nothing_else_is_wrong() {
    let world = World::new(4).ring([0, 2, 3]).open(1, moving(42, call(Kind::AllReduce, 0)));
    let parts = ["rank 1 (host a, process 71) is in all_reduce #42 but moves slowly; ranks 0, 2, 3 wait"];
    check(&world.report(), Guilty::Ranks(vec![1]), &parts);
    let mut world = World::new(2);
    for rank in 0..2 {
        world = world.open(rank, moving(42, call(Kind::AllReduce, 0)));
    }
    check(&world.report(), Guilty::Nobody, &["every rank is in all_reduce #42 (since 300 ms) and it moves"]);
    let mut world = World::new(2);
    (0..2).for_each(|rank| (world.at(rank).entered, world.at(rank).finished) = (42, 42));
    check(&world.report(), Guilty::Nobody, &["no rank waits in all_reduce #42 now: it has ended meanwhile"]);
}

#[test]
fn on_demand_the_longest_wait_is_reported() {
    let demand = |mut world: World| {
        (world.0.operation, world.0.waited) = (None, Duration::ZERO);
        world.report()
    };
    let report = demand(World::new(3));
    check(&report, Guilty::Nobody, &["no operation is waiting"]);
    assert!(
        report
            .to_string()
            .starts_with("hang report of communicator 1a2b3c4d (3 ranks), by rank 0, on demand\n")
    );
    check(&demand(World::new(3).reach(1..2, Reach::Silent)), Guilty::Nobody, &["; rank 1 did not answer"]);
    let report = demand(World::new(3).ring([1, 2]));
    check(&report, Guilty::Ranks(vec![0]), &["rank 0 (host a, process 70) has not entered all_reduce #42"]);
    assert_eq!(report.operation, None);
    let report = demand(World::new(3).ring([0, 1]));
    assert_eq!((report.operation.map(|call| call.sequence), report.waited.as_secs()), (Some(42), 12));
}

#[test]
fn many_ranks_share_lines() {
    let report =
        World::new(64).ring((0..64).filter(|rank| *rank != 17)).reach(40..48, Reach::Silent).report();
    check(&report, Guilty::Unreachable((40..48).collect()), &["; rank 17 has not entered all_reduce #42"]);
    let text = report.to_string();
    assert!(text.lines().count() <= 8, "{text}");
    assert!(text.contains("\n0-16, 18-39, 48-63  14 hosts"), "{text}");
}

#[test]
fn a_slow_wire_has_a_line_of_its_own_and_the_rank_that_sends_says_so() {
    let mut world = World::new(4).ring([0, 1, 3]);
    world.at(3).slow.push(SlowWire {
        peer: 1,
        from: "10.0.0.3".into(),
        to: "10.0.0.1".into(),
        usual: 118_000_000,
        now: 59_500_000,
        age: Duration::from_millis(6_500),
    });
    let report = world.report();
    let line = "slow: the wire from rank 3 (10.0.0.3) to rank 1 (10.0.0.1) carries 59.5 MB/s, 50 % of its usual 118.0 MB/s, \
                since 6.5 s";
    assert!(report.to_string().lines().any(|other| other == line), "{report}");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("JSON");
    let wire = serde_json::json!({
        "from": 3, "to": 1, "source": "10.0.0.3", "destination": "10.0.0.1", "usual_bytes_s": 118_000_000,
        "bytes_s": 59_500_000, "since_s": 6.5
    });
    assert_eq!(json["slow"], serde_json::json!([wire]));
    assert!(World::new(2).report().slow.is_empty());
}
