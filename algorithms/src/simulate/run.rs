//! The run itself: lanes, credits, arrivals, and a queue of events in virtual time.
//!
//! Invariant: a lane runs ahead of the clock while no other lane can change its result, and waits for an event where
//! it uses something shared: links when a message starts, a processor when an arrival costs work. Events of one
//! moment are processed in the order of their kinds and numbers, then the lanes that they let go on in the order of
//! theirs, until nothing is left to do at this moment; then shares are computed once.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use super::Options;
use super::network::Network;
use super::outcome::{Outcome, Span};
use super::program::{Op, Program};
use crate::topology::{LinkId, Topology};

/// Ends come before starts, so that a message that ends makes room first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// The last byte of a connection's message has left, if the version is still the announced one.
    End { connection: u32, version: u32 },
    /// A lane may go on.
    Wake { lane: u32 },
    /// A connection's message enters its links.
    Start { connection: u32 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LaneState {
    Ready,
    /// Until an event wakes it.
    Asleep,
    /// Until a message arrives or a credit comes back.
    Waiting,
    /// Until its sends have left.
    Sending,
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Lane {
    state: LaneState,
    op: u32,
    slice: u64,
    clock_ps: u64,
    /// Messages that it has posted and that have not left yet.
    leaving: u32,
}

#[derive(Clone, Debug, Default)]
struct Mailbox {
    sent: u64,
    /// Bytes of the message that is about to leave or under way, and since when.
    bytes: u64,
    start_ps: u64,
    /// Times of arrival of messages that were not taken yet.
    arrivals: VecDeque<u64>,
    /// Times of return of credits that were not used yet.
    credits: VecDeque<u64>,
    sender_waits: bool,
    receiver_waits: bool,
}

pub(super) struct Run<'a> {
    program: &'a Program,
    topology: &'a Topology,
    options: &'a Options,
    network: Network,
    /// For each link the one that was run for it; `None` where all were.
    alike: Option<&'a [u32]>,
    /// The number of slices that are run.
    limit: u64,
    lanes: Vec<Lane>,
    mailboxes: Vec<Mailbox>,
    /// For each rank: the times from which its processors are free, one for each lane that runs at once.
    free_ps: Vec<u64>,
    processors: usize,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// Lanes that became ready at this moment.
    ready: BTreeSet<u32>,
    /// For each slice: the time at which the last lane ended it.
    ended_ps: Vec<u64>,
    timeline: Vec<Span>,
    ranks: u32,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        program: &'a Program,
        network: Network,
        topology: &'a Topology,
        options: &'a Options,
        ranks: u32,
        alike: Option<&'a [u32]>,
    ) -> Self {
        let limit = (options.messages_max / program.messages_of_all.max(1)).max(2).min(program.slices());
        let lanes_max = program.lanes.iter().map(|lane| lane.beside).max().unwrap_or(1);
        let processors = topology.costs.lanes.clamp(1, lanes_max.max(1)) as usize;
        let lane = Lane { state: LaneState::Ready, op: 0, slice: 0, clock_ps: 0, leaving: 0 };
        Run {
            program,
            topology,
            options,
            network,
            alike,
            limit,
            lanes: vec![lane; program.lanes.len()],
            mailboxes: vec![Mailbox::default(); program.connections.len()],
            free_ps: vec![0; ranks as usize * processors],
            processors,
            events: BinaryHeap::new(),
            ready: (0..program.lanes.len() as u32).collect(),
            ended_ps: vec![0; limit as usize],
            timeline: Vec::new(),
            ranks,
        }
    }

    pub(super) fn run(mut self) -> Outcome {
        let mut now_ps = 0;
        loop {
            self.drain(now_ps);
            while self.events.peek().is_some_and(|event| event.0.0 == now_ps) {
                while let Some(&Reverse((at_ps, event))) = self.events.peek()
                    && at_ps == now_ps
                {
                    self.events.pop();
                    self.handle(event, now_ps);
                }
                self.drain(now_ps);
            }
            let events = &mut self.events;
            self.network.share(now_ps, |at_ps, connection, version| {
                events.push(Reverse((at_ps, Event::End { connection, version })));
            });
            match self.events.peek() {
                Some(&Reverse((at_ps, _))) => now_ps = at_ps,
                None => break,
            }
        }
        assert!(
            self.lanes.iter().all(|lane| lane.state == LaneState::Done),
            "messages wait only for earlier ones"
        );
        self.outcome()
    }

    fn handle(&mut self, event: Event, now_ps: u64) {
        match event {
            Event::Wake { lane } => {
                self.ready.insert(lane);
            }
            Event::Start { connection } => {
                self.mailboxes[connection as usize].start_ps = now_ps;
                self.network.start(connection, self.mailboxes[connection as usize].bytes, now_ps);
            }
            Event::End { connection, version } => {
                if self.network.end(connection, version, now_ps) {
                    self.left(connection, now_ps);
                }
            }
        }
    }

    /// The last byte of the connection's message left at `now_ps`.
    fn left(&mut self, connection: u32, now_ps: u64) {
        let arrival_ps = now_ps + self.network.latency_ps(connection);
        self.arrives(connection, arrival_ps);
        let sender = self.program.connections[connection as usize].sender;
        let lane = &mut self.lanes[sender as usize];
        lane.leaving -= 1;
        if lane.leaving == 0 && lane.state == LaneState::Sending {
            lane.clock_ps = lane.clock_ps.max(now_ps);
            self.ready.insert(sender);
        }
    }

    fn arrives(&mut self, connection: u32, arrival_ps: u64) {
        let ends = &self.program.connections[connection as usize];
        let mailbox = &mut self.mailboxes[connection as usize];
        mailbox.arrivals.push_back(arrival_ps);
        if self.options.timeline {
            self.timeline.push(Span {
                from: ends.from,
                to: ends.to,
                channel: ends.channel,
                bytes: mailbox.bytes,
                start_ps: mailbox.start_ps,
                end_ps: arrival_ps,
            });
        }
        if std::mem::take(&mut mailbox.receiver_waits) {
            self.ready.insert(ends.receiver);
        }
    }

    fn drain(&mut self, now_ps: u64) {
        while let Some(lane) = self.ready.pop_first() {
            self.lanes[lane as usize].state = LaneState::Ready;
            self.advance(lane, now_ps);
        }
    }

    /// Runs a lane until it has to wait.
    fn advance(&mut self, index: u32, now_ps: u64) {
        let ops = &self.program.lanes[index as usize].ops;
        while self.lanes[index as usize].state == LaneState::Ready {
            let lane = &mut self.lanes[index as usize];
            let Some(&op) = ops.get(lane.op as usize) else {
                let ended_ps = &mut self.ended_ps[lane.slice as usize];
                *ended_ps = lane.clock_ps.max(*ended_ps);
                (lane.op, lane.slice) = (0, lane.slice + 1);
                if lane.slice == self.limit {
                    lane.state = LaneState::Done;
                }
                continue;
            };
            let through = match op {
                Op::Send { message, last } => self.send(index, message, last, now_ps),
                Op::Receive { message } => self.receive(index, message, now_ps),
                Op::Local { piece } => {
                    let (slice, clock_ps) = (lane.slice, lane.clock_ps);
                    let bytes = self.program.local_bytes(piece, slice);
                    let end_ps = self.work(index, bytes, clock_ps, now_ps);
                    end_ps.map(|end_ps| self.lanes[index as usize].clock_ps = end_ps).is_some()
                }
            };
            if through {
                self.lanes[index as usize].op += 1;
            }
        }
    }

    fn send(&mut self, index: u32, message: u32, last: bool, now_ps: u64) -> bool {
        let connection = self.program.messages[message as usize].connection;
        let mailbox = &mut self.mailboxes[connection as usize];
        let lane = &mut self.lanes[index as usize];
        if mailbox.sent >= u64::from(self.options.slots) {
            let Some(credit_ps) = mailbox.credits.pop_front() else {
                mailbox.sender_waits = true;
                lane.state = LaneState::Waiting;
                return false;
            };
            lane.clock_ps = lane.clock_ps.max(credit_ps);
        }
        if self.program.lanes[index as usize].rank.0 < self.ranks {
            lane.clock_ps += self.topology.costs.send_ns * 1000;
        }
        mailbox.sent += 1;
        let (copied, folded) = self.program.bytes(message, lane.slice);
        mailbox.bytes = copied + folded;
        if mailbox.bytes == 0 {
            mailbox.start_ps = lane.clock_ps;
            let arrival_ps = lane.clock_ps + self.network.latency_ps(connection);
            self.arrives(connection, arrival_ps);
        } else {
            lane.leaving += 1;
            let start_ps = lane.clock_ps.max(now_ps);
            self.events.push(Reverse((start_ps, Event::Start { connection })));
        }
        let lane = &mut self.lanes[index as usize];
        if last && lane.leaving > 0 {
            lane.state = LaneState::Sending;
        }
        true
    }

    fn receive(&mut self, index: u32, message: u32, now_ps: u64) -> bool {
        let connection = self.program.messages[message as usize].connection;
        let mailbox = &mut self.mailboxes[connection as usize];
        let lane = &mut self.lanes[index as usize];
        let Some(&arrival_ps) = mailbox.arrivals.front() else {
            mailbox.receiver_waits = true;
            lane.state = LaneState::Waiting;
            return false;
        };
        let (at_ps, slice) = (lane.clock_ps.max(arrival_ps), lane.slice);
        let Some(end_ps) = self.work(index, self.program.bytes(message, slice), at_ps, now_ps) else {
            return false;
        };
        let is_rank = self.program.lanes[index as usize].rank.0 < self.ranks;
        let end_ps = end_ps + if is_rank { self.topology.costs.receive_ns * 1000 } else { 0 };
        self.lanes[index as usize].clock_ps = end_ps;
        let mailbox = &mut self.mailboxes[connection as usize];
        mailbox.arrivals.pop_front();
        // The credit takes as long on its way as the first byte of a message.
        mailbox.credits.push_back(end_ps + self.network.latency_ps(connection));
        if std::mem::take(&mut mailbox.sender_waits) {
            self.ready.insert(self.program.connections[connection as usize].sender);
        }
        true
    }

    /// The time at which the processor of the lane's rank has handled (copied, folded) bytes that arrived at `at_ps`.
    /// `None` when that is later than now: the lane is then woken at that time, so that the processor serves in
    /// order.
    fn work(&mut self, index: u32, bytes: (u64, u64), at_ps: u64, now_ps: u64) -> Option<u64> {
        let super::program::Lane { rank, beside, .. } = self.program.lanes[index as usize];
        let cost_ns = self.topology.costs.work_ns(bytes.0, bytes.1, beside);
        let cost_ps = (cost_ns * 1000.0).ceil() as u64;
        if cost_ps == 0 || !self.options.work || rank.0 >= self.ranks {
            return Some(at_ps);
        }
        if at_ps > now_ps {
            self.lanes[index as usize].state = LaneState::Asleep;
            self.events.push(Reverse((at_ps, Event::Wake { lane: index })));
            return None;
        }
        let first = rank.index() * self.processors;
        let free_ps = self.free_ps[first..first + self.processors].iter_mut().min()?;
        *free_ps = at_ps.max(*free_ps) + cost_ps;
        Some(*free_ps)
    }

    fn outcome(self) -> Outcome {
        let (limit, slices) = (self.limit as usize, self.program.slices());
        let run_ps = self.ended_ps[limit - 1];
        let mut time_ps = run_ps;
        if (limit as u64) < slices {
            // The last slice may be short: the rest is counted in whole and broken slices.
            let left = self.program.longest as f64 / self.options.slot_bytes as f64 - limit as f64;
            let half = limit / 2;
            let a_slice_ps = (run_ps - self.ended_ps[half - 1]) as f64 / (limit - half) as f64;
            time_ps += (left * a_slice_ps).round() as u64;
        }
        let mut connection_bytes = vec![0u64; self.program.connections.len()];
        for (message, number) in self.program.messages.iter().zip(0..) {
            connection_bytes[message.connection as usize] += self.program.total(number);
        }
        let mut link_bytes = vec![0u64; self.topology.links().len()];
        for (&bytes, number) in connection_bytes.iter().zip(0..) {
            for link in self.network.links(number) {
                link_bytes[link.index()] += bytes * u64::from(link.weight);
            }
        }
        if let Some(alike) = self.alike {
            link_bytes = alike.iter().map(|&link| link_bytes[link as usize]).collect();
        }
        let needed =
            |link: usize| link_bytes[link] as f64 / self.topology.links()[link].bandwidth_bytes_s as f64;
        let busiest =
            (0..link_bytes.len()).rev().max_by(|&one, &other| needed(one).total_cmp(&needed(other)));
        let busiest = busiest.filter(|&link| link_bytes[link] > 0);
        let longer = time_ps as f64 / run_ps.max(1) as f64;
        let busy = |&busy_ps: &u64| {
            if time_ps == run_ps { busy_ps } else { (busy_ps as f64 * longer).round() as u64 }
        };
        let all_busy_ps: Vec<u64> = self.network.busy_ps().iter().map(busy).collect();
        let link_busy_ps = match self.alike {
            Some(alike) => alike.iter().map(|&link| all_busy_ps[link as usize]).collect(),
            None => all_busy_ps,
        };
        Outcome {
            time_ps,
            messages: self.program.messages_of_all * slices,
            slices,
            slices_run: self.limit,
            link_busy_ps,
            busiest_link: busiest.map(|link| LinkId(link as u32)),
            link_bytes,
            port_out_bytes: self.program.ports[0],
            port_in_bytes: self.program.ports[1],
            timeline: self.timeline,
        }
    }
}
