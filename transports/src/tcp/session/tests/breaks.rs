//! Pairs of sessions whose sockets break.

use super::*;

fn serve(side: &Tcp) {
    side.shared.listeners.iter().for_each(|listener| listener.serve());
}

/// Two endpoints, each at a listener of its own; the first calls.
pub(super) struct Pair {
    pub(super) sides: [Tcp; 2],
    pub(super) up: [Box<dyn Connection>; 2],
}

impl Pair {
    pub(super) fn new(mailbox_bytes: usize) -> Self {
        Self::over(mailbox_bytes, 1)
    }

    fn over(mailbox_bytes: usize, interfaces: u8) -> Self {
        Self::between([tcp_at(interfaces), tcp_at(interfaces)], mailbox_bytes)
    }

    pub(super) fn between(sides: [Tcp; 2], mailbox_bytes: usize) -> Self {
        let layout = Layout::new(mailbox_bytes);
        let [caller, callee] = [true, false]
            .map(|calls| sides[usize::from(!calls)].endpoint(layout.calling(calls)).expect("an endpoint"));
        let addresses = [callee.address().clone(), caller.address().clone()];
        let mut connecting: Vec<Box<dyn Connecting>> = [caller, callee]
            .into_iter()
            .zip(&addresses)
            .map(|(endpoint, peer)| endpoint.connect(peer).expect("an address"))
            .collect();
        let mut up = [None, None];
        while up.iter().any(Option::is_none) {
            for (connecting, up) in connecting.iter_mut().zip(&mut up).filter(|(_, up)| up.is_none()) {
                if let Poll::Ready(connection) = connecting.poll().expect("it connects") {
                    *up = Some(connection);
                }
            }
        }
        Pair { sides, up: up.map(|up| up.expect("it is up")) }
    }

    /// The sockets of a side end, as where its system or an administrator ends them.
    pub(super) fn kill(&self, side: usize, spared: usize) {
        let sockets = self.sockets(side);
        let killed = sockets.iter().enumerate().filter(|(at, _)| sockets.len() == 1 || *at != spared);
        for (_, socket) in killed {
            let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        }
    }

    pub(super) fn sockets(&self, side: usize) -> Vec<Arc<OwnedFd>> {
        self.session(side)
            .map(|session| session.lock().expect("not poisoned").descriptors())
            .unwrap_or_default()
    }

    pub(super) fn session(&self, side: usize) -> Option<Arc<Mutex<Session>>> {
        self.sides[side].shared.watcher().only_session()
    }

    pub(super) fn serve(&self) {
        self.sides.iter().for_each(serve);
    }
}

#[test]
fn what_sockets_carry_is_counted_and_begins_anew_with_the_next() {
    const BYTES: usize = 300_000;
    let source = vec![7u8; BYTES];
    let mut pair = Pair::new(BYTES);
    let flow = |pair: &Pair| {
        let mut all = Vec::new();
        pair.up[0].flows(&mut |flow| all.push(flow));
        all
    };
    let began = Instant::now();
    for turn in 1..=2u64 {
        let mut done = 0;
        while pair.up[0].fill(0, Span::of(&source), (turn, 0), &mut done).expect("it goes").is_pending() {
            assert!(began.elapsed() < Duration::from_secs(60), "turn {turn}");
            advance(&mut pair);
        }
        while pair.up[1].counter(CounterKind::Ready).value() < turn || !pair.up[0].is_delivered() {
            assert!(began.elapsed() < Duration::from_secs(60), "turn {turn}");
            advance(&mut pair);
        }
        let [flow] = flow(&pair)[..] else { panic!("one socket") };
        let local = IpAddr::from([127, 0, 0, 1]);
        assert_eq!((flow.way, u64::from(flow.epoch), flow.from, flow.to), (0, turn, local, local));
        let hello = 4096;
        assert!((BYTES as u64..BYTES as u64 + hello).contains(&flow.bytes), "{flow:?}");
        if turn == 1 {
            pair.kill(0, 0);
            while pair.sockets(0).is_empty() || epoch(&pair) < 2 {
                assert!(began.elapsed() < Duration::from_secs(60), "it is not mended");
                pair.serve();
                advance(&mut pair);
            }
        }
    }
}

fn advance(pair: &mut Pair) {
    for up in &mut pair.up {
        up.progress().expect("it goes on");
    }
}

/// Which socket of the caller's, counted from the first, is open.
fn epoch(pair: &Pair) -> u32 {
    let mut epoch = 0;
    pair.up[0].flows(&mut |flow| epoch = flow.epoch);
    epoch
}

/// Bytes both ways through four slots while sockets end again and again, on either side and on both: all of it is right when its
/// slot is read.
fn break_sockets(interfaces: u8, random: &mut Random) {
    const SLOTS: u64 = 4;
    const SLOT: usize = 96 << 10;
    const FILLS: u64 = 600;
    let mut pair = Pair::over(SLOTS as usize * SLOT, interfaces);
    let byte = |side: usize, fill: u64| (fill * 7 + side as u64 * 101 + 1) as u8;
    let (mut filled, mut emptied, mut done) = ([0u64; 2], [0u64; 2], [0usize; 2]);
    let mut sources = [vec![0u8; SLOT], vec![0u8; SLOT]];
    let (mut kills, mut kill_at, began) = (0, 10, Instant::now());
    while emptied != [FILLS; 2] {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "filled {filled:?}, emptied {emptied:?}, {kills} kills"
        );
        // After some fills each time, once all sockets are there again.
        let is_whole = || (0..2).all(|side| pair.sockets(side).len() == usize::from(interfaces));
        if emptied[0] + emptied[1] >= kill_at && is_whole() {
            kills += 1;
            kill_at += 40 + random.below(60) as u64;
            // All sockets, or some of several.
            let spared = random.below(usize::from(interfaces) + 1);
            match random.below(3) {
                0 => pair.kill(0, spared),
                1 => pair.kill(1, spared),
                _ => (0..2).for_each(|side| pair.kill(side, spared)),
            }
        }
        // Where a rank is not in a call, its listener is all that is served.
        let side = random.below(2);
        if random.below(4) == 0 {
            serve(&pair.sides[side]);
            continue;
        }
        serve(&pair.sides[side]);
        let up = &mut pair.up[side];
        assert_eq!(up.progress().expect("progress"), PeerState::Open);
        let credited = up.counter(CounterKind::Credit).value();
        if filled[side] < FILLS && filled[side] < credited + SLOTS {
            let fill = filled[side];
            if done[side] == 0 {
                sources[side].fill(byte(side, fill));
            }
            let bytes = if fill.is_multiple_of(5) { 8 } else { SLOT };
            let at = (fill % SLOTS) as usize * SLOT;
            let source = Span::of(&sources[side][..bytes]);
            if up.fill(at, source, (fill + 1, fill), &mut done[side]).expect("fill").is_ready() {
                (filled[side], done[side]) = (fill + 1, 0);
                // The source is free.
                sources[side].fill(0);
            }
        }
        let fill = emptied[side];
        if fill < up.counter(CounterKind::Ready).value() && random.below(3) > 0 {
            let bytes = if fill.is_multiple_of(5) { 8 } else { SLOT };
            let mut copy = vec![0u8; bytes];
            SpanMut::of(&mut copy)
                .copy_from(up.mailbox().slice((fill % SLOTS) as usize * SLOT, bytes).read());
            assert!(copy.iter().all(|is| *is == byte(1 - side, fill)), "fill {fill} of side {}", 1 - side);
            assert!(up.signal(CounterKind::Credit, fill + 1, 0).expect("signal").is_ready());
            emptied[side] += 1;
        }
    }
    assert!(kills > 3, "{kills} kills");
    let breaks = pair.session(0).expect("a session").lock().expect("not poisoned").peering.counts().0;
    println!("{interfaces} interfaces: {kills} kills, {breaks} breaks");
    assert!(breaks > 3);
}

#[test]
fn sockets_that_break_lose_nothing() {
    let mut random = Random::announced("sockets_that_break_lose_nothing");
    for interfaces in [1, 2, 3] {
        break_sockets(interfaces, &mut random);
    }
}

/// Of two interfaces one does not lead to the peer: its calls are refused, and the other carries everything.
#[test]
fn an_interface_that_leads_nowhere_is_done_without() {
    // Its calls are refused; or another endpoint's listener answers, which knows nothing of this one.
    for refuses in [true, false] {
        let mut pair = Pair::over(4096, 2);
        let elsewhere = tcp();
        if refuses {
            pair.sides[1].shared.listeners[1].hang_up();
        } else {
            let there = elsewhere.shared.watcher().here;
            pair.session(0).expect("a session").lock().expect("not poisoned").ways[1].1 = there;
        }
        pair.kill(0, 0);
        for fill in 1..=100 {
            let mut done = 0;
            while pair.up[0].fill(0, Span::of(&[7u8; 4096]), (fill, 0), &mut done).expect("fill").is_pending()
            {
                pair.up[0].progress().expect("progress");
            }
            while pair.up[1].counter(CounterKind::Ready).value() < fill {
                pair.serve();
                serve(&elsewhere);
                (0..2).for_each(|side| {
                    assert_eq!(pair.up[side].progress().expect("progress"), PeerState::Open)
                });
            }
        }
    }
}

/// A rank that has sent something and is in no call: its socket breaks before the peer has read, and its listener sends it again.
#[test]
fn what_an_idle_rank_has_sent_is_sent_again() {
    for killed in [0, 1] {
        for sender in [0, 1] {
            let mut pair = Pair::new(64);
            // Broken before it is used: the sender does not know.
            pair.kill(killed, 0);
            let mut done = 0;
            let began = Instant::now();
            while pair.up[sender].fill(0, Span::of(&[9u8; 8]), (1, 5), &mut done).expect("fill").is_pending()
            {
                assert!(began.elapsed() < Duration::from_secs(10), "killed {killed}, sender {sender}");
                let _ = pair.up[sender].progress().expect("progress");
                pair.serve();
            }
            while pair.up[1 - sender].counter(CounterKind::Ready).value() == 0 {
                assert!(began.elapsed() < Duration::from_secs(10), "killed {killed}, sender {sender}");
                pair.serve();
                pair.up[1 - sender].progress().expect("progress");
            }
            assert!(
                pair.sides.iter().any(|side| side.shared.watcher().has_chores())
                    || pair.sockets(0).len() == 1
            );
        }
    }
}

/// The same with more than a socket takes at once, and with what the sender itself has not read behind which the end is.
#[test]
fn an_idle_rank_sends_all_of_it_again() {
    const FILL: usize = 1 << 20;
    const FILLS: u64 = 24;
    for sender in [0, 1] {
        let mut pair = Pair::new(FILLS as usize * FILL);
        let data = vec![5u8; FILL];
        let mut unread = 0;
        while pair.up[1 - sender].put(0, Span::of(&data[..1000]), &mut unread).expect("put").is_pending() {}
        for fill in 0..FILLS {
            let mut done = 0;
            let at = fill as usize * FILL;
            while pair.up[sender]
                .fill(at, Span::of(&data), (fill + 1, 0), &mut done)
                .expect("fill")
                .is_pending()
            {
                pair.up[1 - sender].progress().expect("progress");
            }
        }
        // The sender is in no call from here on; nor has it read.
        pair.kill(1 - sender, 1);
        let began = Instant::now();
        while pair.up[1 - sender].counter(CounterKind::Ready).value() < FILLS {
            assert!(began.elapsed() < Duration::from_secs(20), "sender {sender}");
            pair.serve();
            pair.up[1 - sender].progress().expect("progress");
        }
    }
}

/// The end of a socket lies behind bytes that an idle rank has not read; the peer, which may not call, waits for its call.
#[test]
fn an_end_behind_unread_bytes_is_seen() {
    let mut pair = Pair::new(4096);
    assert!(pair.up[1].put(0, Span::of(&[1u8; 1000]), &mut 0).expect("put").is_ready());
    pair.kill(1, 1);
    let began = Instant::now();
    while !pair.sockets(1).is_empty() {
        pair.up[1].progress().expect("progress");
    }
    while pair.sockets(1).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(10), "the idle side does not call");
        pair.serve();
    }
}

fn call(there: SocketAddr, key: &Key, meeting: &Meeting, epoch: u32) -> TcpStream {
    let mut stream = TcpStream::connect(there).expect("a listener");
    let meeting = Meeting { path: Path { number: 0, epoch }, ..*meeting };
    stream.write_all(&key.hello(&meeting)).expect("a hello");
    stream
}

/// A call of the peer's for a later epoch replaces a socket that this side finds nothing wrong with; what is called for an earlier
/// one, or again, changes nothing.
#[test]
fn the_peers_later_call_counts_and_an_earlier_one_does_not() {
    let mut pair = Pair::new(64);
    let [caller, callee] = [0, 1].map(|side| pair.session(side).expect("a session"));
    let (key, meeting, there) = {
        let caller = caller.lock().expect("not poisoned");
        let path = Path { number: 0, epoch: 3 };
        let meeting = Meeting { caller: caller.expectation.nonce, callee: caller.peer, path };
        (caller.key.clone(), meeting, caller.ways[0].1)
    };
    let call = |epoch| call(there, &key, &meeting, epoch);
    let present = || {
        let callee = callee.lock().expect("not poisoned");
        callee.sockets.iter().map(|socket| socket.path.epoch).collect::<Vec<_>>()
    };
    assert_eq!(present(), [1]);
    let began = Instant::now();
    let _later = call(3);
    while present() != [3] {
        assert!(began.elapsed() < Duration::from_secs(10), "the call is not taken");
        pair.serve();
    }
    for epoch in [1, 2, 3] {
        let mut earlier = call(epoch);
        earlier.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        // Welcome, perhaps, and then nothing more.
        let mut answer = Vec::new();
        while answer.len() <= 100 && began.elapsed() < Duration::from_secs(10) {
            pair.serve();
            let mut some = [0; 64];
            match earlier.read(&mut some) {
                Ok(0) => break,
                Ok(bytes) => answer.extend_from_slice(&some[..bytes]),
                Err(_) => {}
            }
        }
        assert_eq!(present(), [3], "after a call for epoch {epoch}");
    }
    // The true caller comes back with a later one still.
    let mut done = 0;
    while pair.up[1].counter(CounterKind::Ready).value() == 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "the caller does not come back");
        pair.serve();
        (0..2).for_each(|side| assert_eq!(pair.up[side].progress().expect("progress"), PeerState::Open));
        if done < 8 {
            let _ = pair.up[0].fill(0, Span::of(&[1u8; 8]), (1, 0), &mut done).expect("fill");
        }
    }
}

/// The end of a session arrives although its socket broke.
#[test]
fn the_end_arrives_although_the_socket_broke() {
    for leaves in [0, 1] {
        let Pair { sides, up } = Pair::new(64);
        let [first, second] = up;
        let (leaving, mut staying) = if leaves == 0 { (first, second) } else { (second, first) };
        let mut leaving = leaving;
        let sessions = sides.each_ref().map(|side| side.shared.watcher().only_session().expect("a session"));
        for socket in sessions[leaves].lock().expect("not poisoned").descriptors() {
            shutdown(socket.as_raw_fd(), Shutdown::Both).expect("shutdown");
        }
        drop(sessions);
        let mut done = 0;
        let began = Instant::now();
        while leaving.fill(0, Span::of(&[4u8; 64]), (1, 6), &mut done).is_ok_and(|sent| sent.is_pending()) {
            sides.iter().for_each(serve);
            let _ = leaving.progress();
            assert!(began.elapsed() < Duration::from_secs(10));
        }
        drop(leaving);
        while staying.progress().expect("progress") == PeerState::Open {
            sides.iter().for_each(serve);
            assert!(began.elapsed() < Duration::from_secs(10), "leaving side {leaves}");
        }
        assert_eq!(staying.counter(CounterKind::Ready).value(), 1);
    }
}

/// A peer whose listener has gone is closed soon; one whose calls do not come is cut, with what is known of it.
#[test]
fn a_peer_that_does_not_come_back_is_an_error() {
    // The side that calls finds it in its calls, the other by asking.
    for survivor in [0, 1] {
        let Pair { sides, up } = Pair::new(64);
        let dead = &sides[1 - survivor].shared;
        let theirs = dead.watcher().only_session().expect("a session");
        for socket in theirs.lock().expect("not poisoned").descriptors() {
            shutdown(socket.as_raw_fd(), Shutdown::Both).expect("shutdown");
        }
        // As if its process had died: nothing says that it ends.
        dead.watcher().hang_up();
        let mut up = up.map(Some);
        std::mem::forget(up[1 - survivor].take());
        let mut alive = up[survivor].take().expect("it is up");
        let began = Instant::now();
        while alive.progress().expect("progress") == PeerState::Open {
            serve(&sides[survivor]);
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "side {survivor} does not see that calls are refused"
            );
        }
    }

    let (mut connection, attacker) = attacked(MAILBOX_BYTES);
    session(&connection).patience = Duration::from_millis(50);
    drop(attacker);
    let error = loop {
        match connection.progress() {
            Ok(state) => assert_eq!(state, PeerState::Open),
            Err(error) => break error,
        }
    };
    let text = error.to_string();
    let parts = ["the peer's system ended it", "path MTU", "the peer is to call again, and has not"];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}
