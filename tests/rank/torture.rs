//! One rank of a torture run: makes the plan's calls until its end or until the communicator fails, and causes the
//! plan's faults on itself.

mod operations;

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::difference::variant;
use crate::system;
use crate::torture::{Ends, Fault, Kind, Plan};
use consort::{Communicator, Error, ReduceOp, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::rank::Context;
use operations::{Kept, Seat, perform};

/// Operations on the communicator that is made of a revoked one.
const AFTER_REVOKE: u64 = 6;

/// Why a rank stops calling.
enum End {
    Passed,
    Failed(Error),
    /// It drops its communicators in the middle.
    Leaves,
}

/// Prints a line in the form that the harness reads; it is flushed, so that it is not lost where the process ends.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Whether the harness has sent a line.
fn has_line() -> bool {
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

fn text(error: &Error) -> String {
    format!("{}: {}", variant(error), error.to_string().replace('\n', " "))
}

/// The communicator that was split last, and the wrong results on it.
#[derive(Default)]
struct Child {
    comm: Option<Communicator>,
    salt: u64,
    failed: bool,
}

impl Child {
    fn split(&mut self, world: &Communicator, key: u64) -> Result<()> {
        let color = (key >> 8) as u32 ^ world.rank().wrapping_mul(key as u32 | 1) >> 7;
        let color = color % 3;
        // One of four colours has no communicator.
        let chosen = (color != 0 || !key.is_multiple_of(4)).then_some(color);
        let sign = if key.is_multiple_of(2) { 1 } else { -1 };
        let comm = world.split(chosen, sign * i64::from(world.rank()))?;
        *self = Child { comm, salt: u64::from(color + 1) << 40, failed: false };
        Ok(())
    }
}

struct Run<'a> {
    context: &'a Context,
    plan: &'a Plan,
    kept: Kept,
    child: Child,
}

impl Run<'_> {
    /// Calls until the end. A split communicator may fail before the world does (its ranks have deadlines of their
    /// own); then it is not used any more and the world's operations go on.
    fn go(&mut self, world: &Communicator) -> End {
        std::thread::scope(|threads| {
            let mut number = 0;
            loop {
                let strikes = self.plan.strikes(self.context.rank, number);
                if strikes {
                    match self.plan.fault {
                        Fault::Leave { .. } => {
                            say("fault");
                            return End::Leaves;
                        }
                        Fault::Abort | Fault::Revoke | Fault::Exit { by_thread: true, .. } => {
                            let plan = self.plan;
                            threads.spawn(move || by_another_thread(plan, world));
                        }
                        _ => self.strike(),
                    }
                }
                if matches!(self.plan.ends, Ends::After(length) if number >= length) {
                    return world.barrier().map_or_else(End::Failed, |()| End::Passed);
                }
                match self.turn(world, number, strikes) {
                    Ok(false) => {}
                    Ok(true) => return self.after(world, number + 1),
                    Err(error) => return End::Failed(error),
                }
                number += 1;
            }
        })
    }

    /// The operations after the last one that the harness has a part in.
    fn after(&mut self, world: &Communicator, number: u64) -> End {
        for further in 0..self.plan.after {
            if let Err(error) = self.turn(world, number + further, false) {
                return End::Failed(error);
            }
        }
        End::Passed
    }

    /// The fault on this rank's own thread, or a wait for the harness's.
    fn strike(&self) {
        match self.plan.fault {
            Fault::Exit { code, by_thread: false } => {
                say("fault");
                std::process::exit(code);
            }
            Fault::Nap => std::thread::sleep(self.plan.lasts),
            Fault::Away => {
                say("fault");
                self.context.listen();
            }
            Fault::Panic { within: false } => {
                say("fault");
                panic!("the plan says so");
            }
            _ => say("at"),
        }
    }

    /// One operation; whether it was the last.
    fn turn(&mut self, world: &Communicator, number: u64, strikes: bool) -> Result<bool> {
        let operation = self.plan.operation(number);
        match operation.kind {
            Kind::Split => {
                self.child.split(world, operation.key)?;
                return Ok(false);
            }
            Kind::Agree => {
                let mut is_over = [u8::from(self.context.rank == 0 && has_line())];
                world.all_reduce(&mut is_over, ReduceOp::Max)?;
                return Ok(is_over[0] != 0);
            }
            _ => {}
        }
        if operation.on_child {
            let Some(comm) = self.child.comm.as_ref().filter(|_| !self.child.failed) else {
                return Ok(false);
            };
            let seat = Seat { comm, salt: self.child.salt };
            if let Err(error) = perform(seat, operation, &mut self.kept, false) {
                say(&format!("child {}", text(&error)));
                self.child.failed = true;
            }
            return Ok(false);
        }
        let panics = strikes && self.plan.fault == (Fault::Panic { within: true });
        perform(Seat { comm: world, salt: 0 }, operation, &mut self.kept, panics).map(|()| false)
    }

    /// The failed ranks print that, keep their memory, and find the communicator as the fault left it.
    fn failed(&mut self, world: Communicator, error: Error) {
        // The others may wait there for this rank, which will not come.
        self.child = Child::default();
        let revoked = matches!(error, Error::Revoked { .. });
        say(&format!("ended {}", text(&error)));
        for again in [world.barrier(), world.status()] {
            let again = again.expect_err("a failure stays");
            assert_eq!(text(&again), text(&error));
        }
        if let Some(report) = world.last_report().filter(|_| matches!(error, Error::Timeout { .. })) {
            say(&format!("report {}", report.to_json()));
        }
        if revoked {
            self.recover(&world);
        }
        say("filled");
        self.context.listen();
        say(&format!("changed {}", self.kept.changed()));
    }

    /// A revoked communicator can be split, and the new one works.
    fn recover(&mut self, world: &Communicator) {
        let comm = world.split(Some(0), 0).expect("a split after a revocation").expect("a colour was given");
        assert_eq!((comm.rank(), comm.size()), (world.rank(), world.size()));
        for number in 0..AFTER_REVOKE {
            let mut operation = self.plan.operation(1_000_000 + number);
            operation.count %= 10_000;
            perform(Seat { comm: &comm, salt: 1 }, operation, &mut self.kept, false).expect("it works");
        }
        comm.barrier().expect("it works");
        say("recovered");
    }
}

/// Ends the communicators beside the world, whatever ended it, unless the run passed.
struct Beside<'a> {
    comms: &'a [Communicator],
    is_well: bool,
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        if !self.is_well {
            self.comms.iter().for_each(|comm| comm.abort("the run is over"));
        }
    }
}

/// The calls of a thread of its own on a communicator beside the world: until it fails, or all its operations are
/// done, or rank 0 has the harness's line. Returns the buffers that it keeps.
fn beside(context: &Context, plan: &Plan, which: u32, comm: &Communicator, over: &AtomicBool) -> Kept {
    let mut kept = Kept::default();
    let mut calls = || -> Result<()> {
        for number in 0.. {
            if matches!(plan.ends, Ends::After(length) if number >= length) {
                return comm.barrier();
            }
            if plan.ends == Ends::Line && number % 4 == 3 {
                // Relaxed: a flag alone.
                let mut is_over = [u8::from(context.rank == 0 && over.load(Ordering::Relaxed))];
                comm.all_reduce(&mut is_over, ReduceOp::Max)?;
                if is_over[0] != 0 {
                    return Ok(());
                }
            }
            let seat = Seat { comm, salt: (u64::from(which) + 1) << 50 };
            perform(seat, plan.operation_beside(which, number), &mut kept, false)?;
        }
        Ok(())
    };
    if let Err(error) = calls() {
        say(&format!("beside {}", text(&error)));
    }
    kept
}

impl Run<'_> {
    /// The world's operations, with those of the others beside them.
    fn all(&mut self, world: &Communicator, comms: &[Communicator]) -> End {
        let (context, plan, over) = (self.context, self.plan, AtomicBool::new(false));
        let over = &over;
        std::thread::scope(|threads| {
            let start = |(which, comm)| threads.spawn(move || beside(context, plan, which, comm, over));
            let started: Vec<_> = (0..).zip(comms).map(start).collect();
            let mut guard = Beside { comms, is_well: false };
            let end = self.go(world);
            over.store(true, Ordering::Relaxed);
            guard.is_well = matches!(end, End::Passed);
            drop(guard);
            for thread in started {
                self.kept.take(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            end
        })
    }
}

fn by_another_thread(plan: &Plan, world: &Communicator) {
    std::thread::sleep(plan.delay);
    say("fault");
    match plan.fault {
        Fault::Abort => world.abort("the plan says so"),
        Fault::Revoke => world.revoke("the plan says so"),
        Fault::Exit { code, .. } => std::process::exit(code),
        _ => {}
    }
}

fn whole(context: &Context, plan: &Plan) -> Result<()> {
    let world = context.join()?;
    let mut comms = Vec::new();
    for _ in 0..plan.beside {
        comms.extend(world.split(Some(0), i64::from(world.rank()))?);
    }
    say("joined");
    context.listen();
    let mut run = Run { context, plan, kept: Kept::default(), child: Child::default() };
    let end = run.all(&world, &comms);
    drop(comms);
    match end {
        End::Passed => {
            run.child = Child::default();
            drop(world);
            say("ended passed");
        }
        End::Failed(error) => run.failed(world, error),
        End::Leaves => {
            // In either order.
            if plan.seed.is_multiple_of(2) {
                drop(world);
                run.child = Child::default();
            } else {
                run.child = Child::default();
                drop(world);
            }
            if plan.fault == (Fault::Leave { stay: true }) {
                context.listen();
            }
        }
    }
    Ok(())
}

/// All operations, and a check that nothing is left in this process afterwards.
pub(crate) fn torture(context: &Context) -> Result<()> {
    let seed = context.text("seed").parse().expect("a seed");
    let plan = Plan::named(context.text("traffic"), context.text("fault"), seed);
    let (descriptors, threads) = (system::descriptors(), system::threads());
    let mapped = system::shared_mappings();
    if matches!(plan.fault, Fault::Panic { .. }) && plan.victims.contains(&context.rank) {
        let ended = std::thread::scope(|threads| threads.spawn(|| whole(context, &plan)).join());
        assert!(ended.is_err(), "it should have panicked");
    } else {
        whole(context, &plan)?;
    }
    let cleared = system::eventually(system::SOON, || system::descriptors() == descriptors);
    assert!(cleared, "descriptors before: {descriptors:?}, after: {:?}", system::descriptors());
    let joined = system::eventually(system::SOON, || system::threads() == threads);
    assert!(joined, "{threads} threads before, {} after", system::threads());
    let unmapped = system::eventually(system::SOON, || system::shared_mappings() == mapped);
    assert!(unmapped, "mapped before: {mapped:?}, after: {:?}", system::shared_mappings());
    say("clean");
    Ok(())
}
