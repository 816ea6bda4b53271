//! What follows when a lane opens or closes: what the two sides say of it, and how it is opened anew.
//!
//! Absent: what is found of a lane (`lane`), and what two sides know of paths (`streams::Peering`).

use std::time::Instant;

use super::super::ends::Ends;
use super::super::line::Line;
use super::super::meeting::Meeting;
use super::super::message::{Kind, later_packet};
use super::super::queue::{Peer, Queue};
use super::inbox::{Dialled, write_fence};
use super::lane::{Lane, Seen, State};
use super::{NAME, Session};
use crate::TransportError;
use crate::streams::{Order, Path};

/// Packets' numbers of a queue pair begin as far behind those of the one before it.
const PACKETS_APART: u64 = 1 << 12;

impl Lane {
    /// Whether it carries something in this epoch.
    pub(super) fn is_open_as(&self, path: Path) -> bool {
        self.path == path && self.is_open()
    }
}

impl Session {
    /// A lane has opened or closed.
    pub(super) fn turned(&mut self, at: usize, seen: Seen) {
        let now = self.now();
        let path = self.lanes[at].path;
        match seen {
            Seen::Opened => {
                let State::Meeting(line, ..) = std::mem::replace(&mut self.lanes[at].state, State::Closed)
                else {
                    return;
                };
                if self.inbox.peering.opened(path, now) {
                    self.lanes[at].state = State::Open(line);
                    (self.lanes[at].has_led, self.lanes[at].unanswered) = (true, 0);
                    if path.epoch > 1 {
                        let port = self.domains[self.lanes[at].ends.port].port.name().to_string();
                        let (breaks, again) = self.inbox.peering.counts();
                        tracing::info!(
                            transport = NAME,
                            port,
                            path = path.number,
                            path.epoch,
                            breaks,
                            again,
                            "a queue pair was replaced"
                        );
                    }
                }
            }
            Seen::Closed(why) => {
                self.note_lost(path, why);
                self.inbox.peering.broken(path, now);
                // The question may have gone by it.
                self.asked = self.acknowledged;
            }
            Seen::NotOpened(why) => {
                if let Some(error) = why {
                    self.lost.get_or_insert(error);
                }
                self.lanes[at].unanswered += 1;
                self.inbox.peering.not_opened(path, now);
            }
            Seen::Nothing | Seen::Came => {}
        }
        self.carry_out();
        self.is_whole = self.lanes.iter().all(Lane::is_open);
    }

    /// Keeps why a lane has failed, and says so.
    fn note_lost(&mut self, path: Path, why: Option<TransportError>) {
        let others = self.lanes.iter().filter(|lane| lane.is_open()).count();
        if let Some(error) = why {
            tracing::warn!(transport = NAME, path = path.number, path.epoch, others, %error, "a queue pair has failed; what it carried goes by others");
            self.lost = Some(error);
        }
    }

    /// Stops lanes whose port here is down, where others carry on: what they carried need not wait until packets were sent again in vain.
    pub(super) fn leave_ports_that_are_down(&mut self) {
        let is_down = |lane: &Lane| lane.is_open() && self.domains[lane.ends.port].port.is_down();
        let down: Vec<usize> = (0..self.lanes.len()).filter(|at| is_down(&self.lanes[*at])).collect();
        let open = self.lanes.iter().filter(|lane| lane.is_open()).count();
        if down.is_empty() || down.len() == open {
            return;
        }
        for at in down {
            let lane = &mut self.lanes[at];
            let port = &self.domains[lane.ends.port].port;
            tracing::warn!(
                transport = NAME,
                device = port.device,
                port = port.number,
                path = lane.path.number,
                "a port is down; what it carried goes by others"
            );
            lane.stop();
        }
        self.is_whole = false;
    }

    /// Mends what is not open.
    ///
    /// # Errors
    /// What the peer said that it must not.
    pub(super) fn mend(&mut self) -> Result<(), &'static str> {
        self.hear_fences()?;
        self.hear_dialled()?;
        for path in std::mem::take(&mut self.held) {
            self.dial(path);
        }
        // A path is asked for by another one.
        if self.lanes.iter().any(Lane::is_open) {
            let now = self.now();
            self.inbox.peering.tick(now);
        }
        self.carry_out();
        Ok(())
    }

    /// Whether nothing that the peer has said of paths waits.
    pub(super) fn fences_are_heard(&self) -> bool {
        self.inbox.fences.is_empty() && self.inbox.dialled.is_empty()
    }

    /// The peer has closed paths: each lane of them is closed here too, when all that had come by it is heard.
    fn hear_fences(&mut self) -> Result<(), &'static str> {
        for fenced in std::mem::take(&mut self.inbox.fences) {
            let number = usize::from(fenced.path.number);
            let lane = self.lanes.get_mut(number).ok_or("it names a path that there is not")?;
            if lane.path.epoch <= fenced.path.epoch && !lane.is_closed() {
                if let State::Asking(..) = lane.state {
                    lane.state = State::Closed;
                } else {
                    lane.stop();
                    self.inbox.fences.push(fenced);
                    continue;
                }
            }
            let now = self.now();
            self.inbox.peering.fenced(&fenced, now)?;
            self.carry_out();
        }
        Ok(())
    }

    /// The peer has made queue pairs for paths that are to be opened anew.
    fn hear_dialled(&mut self) -> Result<(), &'static str> {
        for dialled in std::mem::take(&mut self.inbox.dialled) {
            let Dialled { path, is_answer, .. } = dialled;
            if is_answer != self.calls {
                return Err("it opens a path that this side does, or the other way round");
            }
            let lane =
                self.lanes.get_mut(usize::from(path.number)).ok_or("it names a path that there is not")?;
            if is_answer {
                let state = std::mem::replace(&mut lane.state, State::Closed);
                match state {
                    State::Asking(queue, _) if lane.path == path => self.meet(dialled, *queue),
                    state => lane.state = state,
                }
            } else if self.inbox.peering.expects(path) && path.epoch > lane.path.epoch {
                if self.domains[lane.ends.port].port.is_down() {
                    // The peer asks again when it has waited for long enough.
                } else if lane.is_closed() {
                    self.answer(dialled);
                } else {
                    // What had come by the one before is heard first.
                    lane.stop();
                    self.inbox.dialled.push(dialled);
                }
            }
        }
        Ok(())
    }

    /// Makes a queue pair for a path that the peer opens, and says so.
    fn answer(&mut self, dialled: Dialled) {
        let lane = &mut self.lanes[usize::from(dialled.path.number)];
        match Queue::new(&self.domains[lane.ends.port]) {
            Ok(queue) => {
                lane.path = dialled.path;
                let answer = Dialled { number: queue.number(), is_answer: true, ..dialled };
                self.dialling.push_back(answer);
                self.meet(dialled, queue);
            }
            Err(error) => tracing::debug!(%error, "no queue pair for a path that the peer opens"),
        }
    }

    /// Two queue pairs are on their way to each other.
    fn meet(&mut self, dialled: Dialled, queue: Queue) {
        let now = self.now();
        let lane = &self.lanes[usize::from(dialled.path.number)];
        let by = PACKETS_APART * u64::from(dialled.path.epoch - 1);
        let Ends { peer, first_packet, .. } = lane.ends;
        let peer = Peer { number: dialled.number, first_packet: later_packet(peer.first_packet, by), ..peer };
        let ends = Ends { peer, first_packet: later_packet(first_packet, by), ..lane.ends };
        let line = self.watch(&queue).and_then(|()| Line::new(queue, self.memory.clone(), ends));
        match line {
            Ok(line) => {
                let state = State::Meeting(Box::new(line), Meeting::new(false), Instant::now());
                self.lanes[usize::from(dialled.path.number)].state = state;
            }
            Err(error) => {
                tracing::debug!(%error, "a queue pair cannot be connected anew");
                self.inbox.peering.not_opened(dialled.path, now);
            }
        }
    }

    /// Does what the peering wants done.
    pub(super) fn carry_out(&mut self) {
        while let Some(order) = self.inbox.peering.order() {
            match order {
                Order::Close(path) => {
                    let lane = &mut self.lanes[usize::from(path.number)];
                    if lane.path.epoch <= path.epoch {
                        lane.state = State::Closed;
                    }
                    self.held.retain(|of| of.number != path.number);
                }
                Order::Say(on, fenced) => self.letters.push_back((on, write_fence(&fenced))),
                Order::Dial(path) => self.dial(path),
            }
        }
        self.is_whole = self.lanes.iter().all(Lane::is_open);
    }

    /// Asks the peer for a queue pair for a path, when the port here is there.
    fn dial(&mut self, path: Path) {
        let lane = &mut self.lanes[usize::from(path.number)];
        if self.domains[lane.ends.port].port.is_down() {
            self.held.push(path);
            return;
        }
        match Queue::new(&self.domains[lane.ends.port]) {
            Ok(queue) => {
                let number = queue.number();
                lane.path = path;
                lane.state = State::Asking(Box::new(queue), Instant::now());
                self.dialling.push_back(Dialled { path, number, is_answer: false });
            }
            Err(error) => {
                tracing::debug!(%error, "no queue pair for a path that is to be opened anew");
                let now = self.now();
                self.inbox.peering.not_opened(path, now);
            }
        }
    }

    /// Says what is to be said before anything else, as far as there is room.
    pub(super) fn send_letters(&mut self) {
        for (on, letter) in std::mem::take(&mut self.letters) {
            let has_before = self.letters.iter().any(|(before, _)| *before == on);
            let lane = &mut self.lanes[usize::from(on.number)];
            // What is said of paths is said again on those that open.
            if lane.path != on {
                continue;
            }
            let Some(line) = lane.open() else { continue };
            if has_before || !line.send_letter(Kind::Fence, &letter).unwrap_or(false) {
                self.letters.push_back((on, letter));
            }
        }
        while let Some(dialled) = self.dialling.pop_front() {
            if self.say(dialled.message()).is_none() {
                self.dialling.push_front(dialled);
                break;
            }
        }
    }
}
