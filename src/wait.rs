//! How a thread waits for its peers: spins while that is cheap, gives the core away when ranks share it, and
//! naps when it takes long.
//!
//! Invariant: the sleeper pays, not the sender: a peer loads one word to see whether a rank sleeps that must be woken
//! ([`consort_memory::Bell`]); a rank that has sockets sleeps on both (`engine/readiness`).

use std::time::{Duration, Instant};

use consort_control::membership::group::Group;

/// Looks at what a peer with a core of its own does at the same time: some microseconds.
const LOOKS: u32 = 2_000;
/// Rounds of spinning before the core is offered to others, when every rank has a core.
const SPINS: u32 = 20_000;
/// The first of them, without the processor's pause.
const EAGER: u32 = 200;
/// The same when ranks share cores.
const SPINS_SHARED: u32 = 16;
/// Offers of the core before a call becomes a task, when ranks share cores. They are few, as a task looks after its deadline.
const OFFERS_SHARED: u32 = 8;
/// Offers of the core before the first nap.
const YIELDS: u32 = 20_000;
/// The same when ranks share cores: each offer then takes as long as the others use it.
const YIELDS_SHARED: u32 = 2_000;
/// How long a core of one's own is offered, at most.
const YIELDS_TIME: Duration = Duration::from_millis(3);
/// Looks that are calls of the system, with a core of one's own: as long as a peer takes for a short message. Each look
/// is a turn of the core for others too, so with shared cores the first offers it.
const CALLS: u32 = 64;
const CALLS_SHARED: u32 = 1;
/// Looks into completion queues, with a core of one's own: some loads each, and together longer than a short message takes to another
/// host and back.
const QUEUES: u32 = 2_000;
/// Offers of the core behind them before the first sleep, which the peer's bytes end.
const YIELDS_OF_CALLS: u32 = 256;
const YIELDS_OF_CALLS_SHARED: u32 = 8;
/// The first nap.
pub(crate) const NAP_MIN: Duration = Duration::from_micros(20);
const NAP_MAX: Duration = Duration::from_millis(1);

/// What waiting costs here: whether the ranks of this machine, in whatever containers, have a core each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Policy {
    pub(crate) cores_shared: bool,
}

impl Policy {
    /// For a rank of a communicator, as all its ranks on this machine said which cores they may run on.
    pub(crate) fn of(group: &Group) -> Self {
        let table = &group.member.table;
        let own = &table[group.member.rank as usize];
        let here = group.members.iter().map(|rank| &table[*rank as usize]);
        let claims = here.filter(|member| member.machine == own.machine).map(|member| member.place.claim);
        Policy { cores_shared: own.place.claim.is_shared_among(claims) }
    }

    /// Looks at what a peer does at the same time before it is waited for.
    #[inline]
    pub(crate) fn looks(self) -> u32 {
        if self.cores_shared { SPINS_SHARED } else { LOOKS }
    }

    /// Offers of the core behind them, each with a look, before it is waited for: what makes a task of a call takes longer than
    /// one.
    #[inline]
    pub(crate) fn offers(self) -> u32 {
        if self.cores_shared { OFFERS_SHARED } else { 0 }
    }

    pub(crate) fn waiter(self) -> Waiter {
        Waiter { policy: self, rounds: 0, nap: NAP_MIN, offered: None }
    }
}

/// What a look at what is waited for costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// A load of shared memory.
    Load,
    /// A call of the system, before a sleep that the peer's bytes end.
    Call,
    /// A look into completion queues, before the same sleep.
    Queue,
    /// A call of the system, before a nap that nothing ends: the core is offered for longer.
    CallBeforeNap,
}

impl Look {
    /// Rounds of spinning, and offers of the core behind them.
    #[inline]
    fn counts(self, policy: Policy) -> (u32, u32) {
        match (self, policy.cores_shared) {
            (Look::Load, false) => (SPINS, YIELDS),
            (Look::Load, true) => (SPINS_SHARED, YIELDS_SHARED),
            (Look::Call, false) => (CALLS, YIELDS_OF_CALLS),
            (Look::Call, true) => (CALLS_SHARED, YIELDS_OF_CALLS_SHARED),
            (Look::Queue, false) => (QUEUES, YIELDS_OF_CALLS),
            (Look::Queue, true) => (SPINS_SHARED, YIELDS_OF_CALLS_SHARED),
            (Look::CallBeforeNap, false) => (CALLS, YIELDS),
            (Look::CallBeforeNap, true) => (CALLS_SHARED, YIELDS_SHARED),
        }
    }
}

/// One wait.
#[derive(Debug)]
pub(crate) struct Waiter {
    policy: Policy,
    rounds: u32,
    nap: Duration,
    /// When it first offered its core; none where others want it, and offers do not keep it busy.
    offered: Option<Instant>,
}

impl Waiter {
    /// Something moved: wait eagerly again.
    #[inline]
    pub(crate) fn moved(&mut self) {
        self.rounds = 0;
        self.nap = NAP_MIN;
        self.offered = None;
    }

    /// Whether the wait is young and the core this thread's own: polling costs nothing.
    #[inline]
    pub(crate) fn is_eager(&self) -> bool {
        !self.policy.cores_shared && self.rounds < SPINS
    }

    /// Waits a little, where nothing ends a nap. Whether it is worth looking at the clock now.
    #[inline]
    pub(crate) fn pause(&mut self, look: Look) -> bool {
        self.pause_by(look, std::thread::sleep)
    }

    /// The same, with a better way to sleep for at most the time that it is given.
    #[inline]
    pub(crate) fn pause_by(&mut self, look: Look, sleep: impl FnOnce(Duration)) -> bool {
        let (spins, yields) = look.counts(self.policy);
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds < spins {
            // A pause takes as long as a message on some processors; the first rounds do without.
            if self.rounds > EAGER {
                std::hint::spin_loop();
            }
            return false;
        }
        if self.rounds < spins + yields {
            std::thread::yield_now();
            let look = self.rounds.is_multiple_of(64);
            if look && !self.policy.cores_shared {
                let now = Instant::now();
                if now.duration_since(*self.offered.get_or_insert(now)) > YIELDS_TIME {
                    self.rounds = spins + yields;
                }
            }
            return look;
        }
        sleep(self.nap);
        self.nap = (self.nap * 2).min(NAP_MAX);
        true
    }
}
