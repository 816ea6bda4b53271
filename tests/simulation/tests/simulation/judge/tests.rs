//! Made-up jobs: an error that names the cause is accepted, and one that names another rank is refused.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use super::job::{End, Job};
use super::verdict;
use crate::faults::{Deviation, Fault, Moment};
use crate::process::Failed;
use crate::program::{Item, Program};
use consort::{CycleStep, Guilty, Rank, Report};
use consort_types::error::{Error, Operation};

const PLACE: &str = "host h, process 1";

/// A moment of a job, in milliseconds from its beginning.
fn at(milliseconds: u64) -> Instant {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    *BEGINNING + Duration::from_millis(milliseconds)
}

fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Ranks 0 and 2 are on one part, ranks 1 and 3 on the other.
fn job(fault: Fault) -> Job {
    let colors = vec![7, 8, 7, 8];
    let program = Program { items: vec![Item::Split { colors: colors.clone() }], colors };
    let ends = (0..4).map(|_| End::Completed).collect();
    Job { name: "1".into(), timeout: millis(1000), fault, program: Arc::new(program), is_sparse: false, ends }
}

fn kill(rank: Rank) -> Fault {
    Fault::Kill { rank, when: Moment::At(millis(1)) }
}

fn operation() -> Operation {
    Operation { name: "all_reduce".into(), sequence: 3 }
}

fn lost(rank: Rank) -> Error {
    Error::PeerLost { rank, place: PLACE.into(), operation: None, cause: "it ended".into() }
}

fn left(rank: Rank) -> Error {
    Error::PeerLeft { rank, place: PLACE.into(), operation: operation() }
}

fn aborted(rank: Rank) -> Error {
    Error::Aborted { rank, reason: "closed".into() }
}

fn link(from: Rank, to: Rank) -> Error {
    Error::Link { from, to, transport: "data".into(), cause: "reset".into() }
}

fn timeout(verdict: &str) -> Error {
    Error::Timeout { operation: operation(), waited: millis(1000), verdict: verdict.into() }
}

fn failed(on: Option<usize>, ended: u64, error: Error) -> Failed {
    Failed {
        error,
        on,
        has_part: true,
        report: None,
        began: at(0),
        ended: at(ended),
        buffer: Vec::new(),
        went_on: None,
    }
}

fn blaming(guilty: Guilty) -> Option<Arc<Report>> {
    Some(Arc::new(Report {
        communicator: "1".into(),
        size: 4,
        by: 0,
        operation: None,
        waited: millis(1000),
        guilty,
        verdict: String::new(),
        graph: None,
        slow: Vec::new(),
        ranks: Vec::new(),
    }))
}

impl Job {
    fn dead(mut self, rank: usize) -> Self {
        self.ends[rank] = End::Never;
        self
    }

    fn fails(self, rank: usize, on: usize, ended: u64, error: Error) -> Self {
        self.fails_so(rank, failed(Some(on), ended, error))
    }

    fn fails_so(mut self, rank: usize, failed: Failed) -> Self {
        self.ends[rank] = End::Failed(failed);
        self
    }

    /// A deadline passed, and the report names a rank.
    fn times_out(self, rank: usize, on: usize, ended: u64, verdict: &str, guilty: Guilty) -> Self {
        let report = blaming(guilty);
        self.fails_so(rank, Failed { report, ..failed(Some(on), ended, timeout(verdict)) })
    }

    #[track_caller]
    fn right(&self) {
        assert_eq!(verdict(self), Ok(()));
    }

    #[track_caller]
    fn wrong(&self, about: &str) {
        let text = verdict(self).expect_err("nothing was found to be wrong");
        assert!(text.contains(about), "{text}");
    }
}

/// Rank 3 died; rank 2 learned of it on the communicator of all, after 10 ms.
fn heard_by_two() -> Job {
    job(kill(3)).dead(3).fails(2, 0, 10, lost(3))
}

/// Every error that may follow from another rank's, naming a rank by its number there.
fn following(named: Rank) -> [Error; 3] {
    [left(named), lost(named), aborted(named)]
}

const CANNOT: &str = "this fault cannot cause";

#[test]
fn a_rank_that_gave_up_before_is_a_reason() {
    for error in following(1) {
        // Rank 1 of that part is rank 2 of the job.
        heard_by_two().fails(0, 1, 11, error).right();
    }
    // From a part to the communicator of all.
    for error in following(1) {
        job(kill(3)).dead(3).fails(1, 1, 10, lost(1)).fails(0, 0, 11, error).right();
    }
}

#[test]
fn a_rank_that_did_not_give_up_is_no_reason() {
    for error in following(1) {
        // Rank 2 completed.
        job(kill(3)).dead(3).fails(0, 1, 11, error.clone()).wrong(CANNOT);
        // Rank 2 goes on for ever, or is dead: then it has closed nothing.
        job(kill(3)).dead(3).dead(2).fails(0, 1, 11, error).wrong(CANNOT);
    }
    for named in [0, 2, 3] {
        for error in following(named) {
            // The rank itself, and ranks that its part does not have. By their numbers in the job two have failed.
            heard_by_two().fails(0, 1, 11, error).wrong(CANNOT);
        }
    }
    for named in [0, 1] {
        for error in following(named) {
            // By its number on the part rank 2 would be named, which is another rank here.
            heard_by_two().fails(1, 0, 11, error).wrong("rank 1: this fault cannot cause");
        }
    }
}

#[test]
fn a_rank_that_never_made_its_part_cannot_say_that_it_leaves_it() {
    let revoked = || Error::Revoked { rank: 3, reason: "enough".into() };
    let leaves_with = |has_part: bool| {
        let first = Failed { has_part, ..failed(Some(0), 10, revoked()) };
        job(Fault::Revoke { rank: 3, when: Moment::At(millis(1)) }).fails_so(0, first).fails(
            2,
            1,
            20,
            lost(0),
        )
    };
    leaves_with(false).right();
    // The rank that made it has closed it, and its process ended after that.
    leaves_with(true).wrong(CANNOT);
}

#[test]
fn a_rank_that_gave_up_later_or_at_the_same_moment_is_no_reason() {
    for ended in [0, 9, 10] {
        for error in following(1) {
            heard_by_two().fails(0, 1, ended, error).wrong("rank 0: this fault cannot cause");
        }
    }
}

#[test]
fn a_rank_that_failed_on_the_same_communicator_is_no_reason() {
    for error in following(1) {
        let job = job(kill(3)).dead(3).fails(2, 1, 10, error.clone()).fails(0, 1, 11, error);
        job.wrong("rank 0: this fault cannot cause");
    }
    for error in following(2) {
        heard_by_two().fails(1, 0, 11, error).wrong("rank 1: this fault cannot cause");
    }
    // The other part is another communicator.
    for error in following(1) {
        job(kill(3)).dead(3).fails(1, 1, 10, lost(1)).fails(2, 0, 11, left(1)).fails(0, 1, 12, error).right();
    }
}

#[test]
fn a_chain_ends_at_what_the_fault_broke() {
    let chain = |first: Error| {
        job(kill(3)).dead(3).fails(1, 1, 10, first).fails(2, 0, 20, left(1)).fails(0, 1, 30, left(1))
    };
    // Rank 1 of the second part is the dead rank 3.
    chain(lost(1)).right();
    // The others' errors follow, but the first one names its own rank.
    chain(lost(0)).wrong("rank 1: this fault cannot cause");
    // The one in the middle completed: the last one's error about it is wrong.
    let mut broken = chain(lost(1));
    broken.ends[2] = End::Completed;
    broken.wrong("rank 0: this fault cannot cause");
}

#[test]
fn a_rank_that_left_is_a_reason_from_then_on() {
    let leaves = |ended: u64| {
        let mut job = job(Fault::Sleep { rank: 3, item: 0, time: millis(5000) });
        job.ends[2] = End::Left(at(ended));
        job.fails(0, 1, 20, left(1))
    };
    leaves(10).right();
    leaves(20).wrong(CANNOT);
    // It could send its leave, and is not dead.
    let mut job = job(Fault::Sleep { rank: 3, item: 0, time: millis(5000) });
    job.ends[2] = End::Left(at(10));
    job.fails(0, 1, 20, lost(1)).wrong(CANNOT);
}

fn missing(named: &[Rank]) -> Error {
    Error::MissingRanks { missing: named.to_vec(), size: 4, waited: millis(2000), address: "here".into() }
}

#[test]
fn a_list_of_missing_ranks_names_no_rank_that_came() {
    let joining = |job: Job, named: &[Rank]| job.fails_so(1, failed(None, 2000, missing(named)));
    let never = || {
        let mut job = job(Fault::NeverJoin { rank: 3 }).dead(3);
        job.ends[0] = End::Failed(failed(None, 2000, missing(&[3])));
        job.ends[2] = End::Failed(failed(None, 2000, missing(&[3])));
        job
    };
    joining(never(), &[3]).right();
    // Rank 2 could not join either, for the same reason.
    joining(never(), &[2, 3]).right();
    let mut came = never();
    came.ends[2] = End::Completed;
    joining(came, &[2, 3]).wrong(CANNOT);
    joining(job(kill(3)).dead(3), &[3]).right();
    joining(job(kill(3)).dead(3), &[2, 3]).wrong(CANNOT);
    let cut = || job(Fault::Partition { side: vec![2, 3], when: millis(1) });
    joining(cut(), &[2, 3]).right();
    joining(cut(), &[0, 3]).wrong(CANNOT);
}

#[test]
fn a_rank_that_was_stopped_may_have_missed_others_and_nothing_else() {
    let stops = || job(Fault::Freeze { rank: 1, when: Moment::Turn(1), pause: Some(millis(2000)) });
    let joining = |rank: usize, error: Error| stops().fails_so(rank, failed(None, 2000, error));
    joining(1, missing(&[0, 2])).right();
    joining(1, lost(2)).wrong(CANNOT);
    joining(2, missing(&[1])).right();
    joining(2, missing(&[0])).wrong(CANNOT);
}

#[test]
fn ranks_that_no_cut_link_ends_at_say_the_same() {
    let cut = || job(Fault::Cut { one: 0, other: 1, when: millis(1), pause: None });
    cut().fails(0, 0, 10, link(0, 1)).fails(1, 0, 10, link(1, 0)).right();
    cut().fails(2, 0, 10, link(0, 1)).fails(3, 0, 10, link(1, 0)).wrong("different errors");
}

#[test]
fn a_report_of_ranks_that_gave_up_names_all_of_them_and_says_so() {
    let closed = "rank 1 (host h, process 102) closed the communicator, and all_reduce #3 needs it";
    let unmade = "rank 1 (host h, process 102) has not made the communicator yet, and all_reduce #3 needs it";
    let late = "rank 1 (host h, process 102) has not entered all_reduce #3";
    let one = || Guilty::Ranks(vec![1]);
    for verdict in [closed, unmade] {
        heard_by_two().times_out(0, 1, 900, verdict, one()).right();
        heard_by_two().times_out(0, 1, 10, verdict, one()).wrong(CANNOT);
        heard_by_two().times_out(0, 1, 900, verdict, Guilty::Ranks(vec![0, 1])).wrong(CANNOT);
        heard_by_two().times_out(0, 1, 900, verdict, Guilty::Ranks(vec![])).wrong(CANNOT);
        heard_by_two().times_out(0, 1, 900, verdict, Guilty::Nobody).wrong(CANNOT);
        heard_by_two().fails(0, 1, 900, timeout(verdict)).wrong(CANNOT);
        job(kill(3)).dead(3).times_out(0, 1, 900, verdict, one()).wrong(CANNOT);
        // Two of the communicator of all is rank 2; seen from the other part it is its process.
        let there = |process: Rank| Guilty::Elsewhere {
            place: format!("host h, process {process}"),
            communicator: "2".into(),
            rank: 1,
        };
        heard_by_two().times_out(1, 1, 900, verdict, there(102)).right();
        heard_by_two().times_out(1, 1, 900, verdict, there(101)).wrong(CANNOT);
    }
    heard_by_two().times_out(0, 1, 900, late, one()).wrong(CANNOT);
}

#[test]
fn beside_the_cause_a_report_may_name_who_gave_up_since() {
    let late = || job(Fault::Sleep { rank: 3, item: 0, time: millis(2000) });
    let names = |job: Job, ranks: &[Rank]| job.times_out(0, 0, 1000, "late", Guilty::Ranks(ranks.to_vec()));
    let two = || late().times_out(1, 1, 990, "late", Guilty::Ranks(vec![1]));
    names(two(), &[3, 1]).right();
    // Rank 2 goes on, and rank 1 would have to fail before.
    names(two(), &[3, 2]).wrong(CANNOT);
    names(late().times_out(1, 1, 1000, "late", Guilty::Ranks(vec![1])), &[3, 1]).wrong(CANNOT);
    // Rank 1 could not join in the end, which takes longer; its own error says so.
    let cut = || job(Fault::Partition { side: vec![2, 3], when: millis(1) });
    let missing = |named: Rank| Error::MissingRanks {
        missing: vec![named],
        size: 4,
        waited: millis(2000),
        address: "here".into(),
    };
    names(cut().fails_so(1, failed(None, 2000, missing(3))), &[1, 2]).right();
    names(cut().fails_so(1, failed(None, 2000, missing(0))), &[1, 2]).wrong("rank 1: this fault");
    names(cut(), &[1, 2]).wrong(CANNOT);
    // A rank that failed is not the cause.
    names(two(), &[1]).wrong(CANNOT);
}

#[test]
fn where_nothing_broke_nothing_follows() {
    let short = millis(100);
    for fault in [
        Fault::None,
        Fault::Slow { rank: 3, factor: 9 },
        Fault::Remake { one: 0, other: 3, when: short, outage: short },
        Fault::Cut { one: 0, other: 3, when: short, pause: Some(short) },
        Fault::Freeze { rank: 3, when: Moment::Turn(1), pause: Some(short) },
        Fault::Sleep { rank: 3, item: 0, time: short },
    ] {
        let text = format!("{fault:?}");
        let job = job(fault).fails(2, 0, 10, timeout("late")).fails(0, 1, 11, left(1));
        assert!(verdict(&job).is_err_and(|wrong| wrong.contains("rank 0: this fault")), "{text}");
    }
}

#[test]
fn who_died_is_named_by_its_number_on_each_communicator() {
    job(kill(3)).dead(3).fails(0, 0, 10, lost(3)).right();
    job(kill(3)).dead(3).fails(1, 1, 10, lost(1)).right();
    job(kill(3)).dead(3).fails(1, 1, 10, link(0, 1)).right();
    job(kill(3)).dead(3).fails(1, 1, 10, lost(3)).wrong(CANNOT);
    job(kill(1)).dead(1).fails(2, 1, 10, lost(1)).wrong(CANNOT);
    job(kill(3)).dead(3).fails(0, 0, 10, lost(1)).wrong(CANNOT);
    job(kill(3)).dead(3).fails(0, 0, 10, left(3)).wrong(CANNOT);
    job(kill(3)).dead(3).fails(0, 0, 10, link(0, 1)).wrong(CANNOT);
}

#[test]
fn each_fault_is_named_and_no_other_rank() {
    let when = millis(1);
    let moment = Moment::At(when);
    let ranks = |named: Rank| (timeout("late"), Some(Guilty::Ranks(vec![named])));
    let silent = |named: Rank| (timeout("late"), Some(Guilty::Unreachable(vec![named])));
    let broken = |from, to| (timeout("late"), Some(Guilty::Link { from, to }));
    let short = |error: Error| (error, None);
    let memory =
        |rank| short(Error::OutOfMemory { rank, needed_bytes: 8, what: "a slot".into(), cause: "no".into() });
    let revoked = |rank| short(Error::Revoked { rank, reason: "enough".into() });
    let step = |rank| CycleStep { communicator: "1".into(), rank, operation: "send #1".into(), waits_for: 0 };
    let cycle = |ranks: [Rank; 2]| (timeout("deadlock"), Some(Guilty::Cycle(ranks.map(step).to_vec())));
    let differs = |text: &str| short(Error::Mismatch { sequence: 1, difference: text.into() });
    for (fault, right, wrong) in [
        (Fault::Freeze { rank: 3, when: moment, pause: None }, silent(3), silent(1)),
        (Fault::Cut { one: 1, other: 3, when, pause: None }, silent(3), silent(2)),
        (Fault::Cut { one: 1, other: 3, when, pause: None }, short(link(1, 3)), short(link(1, 2))),
        (Fault::Partition { side: vec![2, 3], when }, silent(2), silent(1)),
        (Fault::Partition { side: vec![2, 3], when }, short(lost(3)), short(lost(1))),
        (Fault::Blackhole { from: 3, to: 1, when }, broken(3, 1), broken(1, 3)),
        (Fault::Reset { one: 1, other: 3, when }, short(link(3, 1)), short(link(3, 2))),
        (Fault::Deny { rank: 3, after: 1 }, memory(3), memory(0)),
        (Fault::Skip { rank: 3, item: 0 }, ranks(3), ranks(1)),
        (Fault::Skip { rank: 3, item: 0 }, short(left(3)), short(left(1))),
        (
            Fault::Deviate { rank: 3, item: 0, how: Deviation::Count },
            differs("rank 3: all_reduce of 9 float"),
            differs("they differ"),
        ),
        (Fault::Deviate { rank: 3, item: 0, how: Deviation::Kind }, short(left(3)), short(left(1))),
        (Fault::Sleep { rank: 3, item: 0, time: millis(2000) }, ranks(3), ranks(2)),
        (Fault::Leave { rank: 3, item: 0 }, short(left(3)), short(left(2))),
        (Fault::Leave { rank: 3, item: 0 }, short(aborted(3)), short(aborted(2))),
        (Fault::Swap { rank: 3, item: 0 }, cycle([1, 3]), ranks(3)),
        (Fault::BothSend { one: 1, other: 3 }, cycle([1, 3]), cycle([1, 2])),
        (Fault::Abort { rank: 3, when: moment }, short(aborted(3)), short(aborted(1))),
        (Fault::Revoke { rank: 3, when: moment }, revoked(3), revoked(1)),
    ] {
        let text = format!("{fault:?}");
        let judged = |(error, guilty): (Error, Option<Guilty>)| {
            let report = guilty.and_then(blaming);
            verdict(&job(fault.clone()).fails_so(0, Failed { report, ..failed(Some(0), 10, error) }))
        };
        assert_eq!(judged(right), Ok(()), "{text}");
        assert!(judged(wrong).is_err_and(|wrong| wrong.contains(CANNOT)), "{text}");
    }
}

#[test]
fn who_did_not_join_is_named() {
    let missing = |named: Rank| Error::MissingRanks {
        missing: vec![named],
        size: 4,
        waited: millis(2000),
        address: "here".into(),
    };
    let joins = |fault: Fault, error: Error| job(fault).fails_so(0, failed(None, 2000, error));
    for fault in [
        Fault::NeverJoin { rank: 3 },
        kill(3),
        Fault::Freeze { rank: 3, when: Moment::Turn(1), pause: None },
        Fault::Cut { one: 1, other: 3, when: millis(1), pause: None },
        Fault::Partition { side: vec![3], when: millis(1) },
    ] {
        joins(fault.clone(), missing(3)).right();
        joins(fault, missing(2)).wrong(CANNOT);
    }
    // Ranks 1 and 2 miss each other only. That is right where one of them misses the cause.
    let both = |first: Error| {
        let cut = Fault::Partition { side: vec![0, 3], when: millis(1) };
        joins(cut, missing(1))
            .fails_so(1, failed(None, 2000, first))
            .fails_so(2, failed(None, 2000, missing(1)))
    };
    both(missing(0)).right();
    both(missing(2)).wrong("rank 1: this fault cannot cause");
    let settings = |difference: &str| Error::Settings { difference: difference.into() };
    joins(Fault::Settings { rank: 3 }, settings("rank 3: simulated is differs")).right();
    joins(Fault::Settings { rank: 3 }, settings("rank 2: simulated is differs")).wrong(CANNOT);
    joins(Fault::Leave { rank: 3, item: 0 }, missing(3)).wrong(CANNOT);
}

#[test]
fn all_have_the_same_error_and_in_time() {
    heard_by_two().fails(0, 0, 12, lost(3)).right();
    heard_by_two().fails(0, 0, 12, link(0, 3)).wrong("ranks 0 and 2 have different errors");
    heard_by_two().fails(0, 1, 1701, left(1)).wrong("rank 0 failed only after 1.701s");
    // Where two ranks abort, each reports its own; a rank that learns of both reports one.
    let closed = |other: Error| {
        job(kill(3)).dead(3).fails(1, 1, 10, lost(1)).fails(0, 0, 20, aborted(1)).fails(2, 0, 20, other)
    };
    closed(aborted(1)).right();
    closed(lost(3)).wrong("ranks 0 and 2 have different errors");
    let late = Fault::Sleep { rank: 3, item: 0, time: millis(2000) };
    let both = |other: Rank| {
        let report = blaming(Guilty::Ranks(vec![3, other]));
        let second = Failed { report, ..failed(Some(0), 1001, timeout("late")) };
        job(late.clone()).times_out(0, 0, 1000, "late", Guilty::Ranks(vec![3, 3])).fails_so(2, second)
    };
    both(3).right();
    both(2).wrong(CANNOT);
    let unlike = both(3).times_out(0, 0, 1000, "late", Guilty::Ranks(vec![3]));
    unlike.wrong("ranks 0 and 2 have different reports");
}

#[test]
fn what_must_be_noticed_is() {
    job(Fault::NeverJoin { rank: 3 }).wrong("no rank noticed; completed [0, 1, 2, 3]");
    job(Fault::BothSend { one: 0, other: 1 }).wrong("no rank noticed");
    job(Fault::Swap { rank: 3, item: 0 }).wrong("no rank found the cycle");
    job(Fault::Deviate { rank: 3, item: 0, how: Deviation::Op }).wrong("called something else");
    job(Fault::None).right();
    let all = |went_on: Option<Result<(), String>>| {
        let all = (0..3).fold(job(kill(3)).dead(3), |job, rank| {
            job.fails_so(rank, Failed { went_on: Some(Ok(())), ..failed(Some(0), 10, lost(3)) })
        });
        all.fails_so(1, Failed { went_on, ..failed(Some(0), 10, lost(3)) })
    };
    all(Some(Ok(()))).right();
    all(None).wrong("rank 1 did not go on without rank 3");
    all(Some(Err("no".into()))).wrong("rank 1 did not go on without rank 3");
}
