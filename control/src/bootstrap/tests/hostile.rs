//! Strangers, port scanners, garbage, slow ones and impostors: none of them delays or learns anything.

use std::io::{Read, Write};

use super::*;
use crate::handshake::Claim;

/// Limits that a test can wait for. An honest rank that is kept from its core for longer is sent away too, and tries again.
fn strict(unproved_max: usize) -> Limits {
    Limits { unproved_max, proof: Duration::from_millis(300), ..Limits::default() }
}

fn root(limits: Limits) -> UniqueId {
    UniqueId::create_on(&[Ipv4Addr::LOCALHOST.into()], None, None, limits).unwrap()
}

fn closed_within(stream: &mut TcpStream, limit: Duration) -> bool {
    let begun = Instant::now();
    stream.set_read_timeout(Some(limit)).unwrap();
    let mut piece = [0; 512];
    while begun.elapsed() < limit {
        match stream.read(&mut piece) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
    false
}

#[test]
fn garbage_is_dropped_and_delays_nobody() {
    let id = root(Limits::default());
    let seed: [u8; 8] = random().unwrap();
    eprintln!("seed {seed:?}");
    let mut noise = fuzz::Random::new(u64::from_le_bytes(seed));
    let mut strangers: Vec<TcpStream> = Vec::new();
    for round in 0..64 {
        let mut stream = TcpStream::connect(id.addresses[0]).unwrap();
        let bytes = match round % 4 {
            0 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            1 => vec![0xff; 64],
            2 => frame(kind::HELLO, &[&[0; 64]]),
            _ => (0..noise.below(200)).map(|_| noise.draw() as u8).collect(),
        };
        let _ = stream.write_all(&bytes);
        strangers.push(stream);
    }
    let begun = Instant::now();
    agree(join_all(&id, (0..4).map(|rank| hello(rank, 4)).collect(), LONG));
    assert!(begun.elapsed() < Duration::from_secs(5));
    for stranger in &mut strangers {
        assert!(closed_within(stranger, LONG));
    }
}

#[test]
fn silent_and_dripping_ones_are_sent_away_in_time() {
    let id = root(strict(64));
    let mut silent = TcpStream::connect(id.addresses[0]).unwrap();
    let mut dripping = TcpStream::connect(id.addresses[0]).unwrap();
    let begun = Instant::now();
    // A proof is longer than that. What comes after the limit meets a closed stream.
    let was_refused = frame(kind::CLAIM, &[&[0; 90]]).iter().any(|byte| {
        thread::sleep(Duration::from_millis(50));
        dripping.write_all(&[*byte]).is_err()
    });
    assert!(was_refused, "a whole proof was taken in {:?}", begun.elapsed());
    assert!(closed_within(&mut silent, late()) && closed_within(&mut dripping, late()));
    agree(join_all(&id, vec![hello(0, 2), hello(1, 2)], LONG));
    // One that proved itself and then says nothing is not waited for either.
    let id = root(Limits { hello: Duration::from_millis(300), ..Limits::default() });
    let (mut mute, _) = prove_by_hand(&id);
    assert!(closed_within(&mut mute, Duration::from_millis(300) + late()));
}

#[test]
fn a_crowd_of_strangers_cannot_keep_ranks_out() {
    let id = root(strict(4));
    let crowd: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(id.addresses[0]).unwrap()).collect();
    let begun = Instant::now();
    agree(join_all(&id, (0..8).map(|rank| hello(rank, 8)).collect(), LONG));
    eprintln!("8 ranks through a crowd of {}: {:?}", crowd.len(), begun.elapsed());
}

#[test]
fn a_proof_cannot_be_replayed_or_altered() {
    let id = root(Limits::default());
    let mut stream = TcpStream::connect(id.addresses[0]).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    frame_from(&mut stream);
    // A proof that was right for another challenge.
    let (nonce, old): ([u8; 32], _) = (random().unwrap(), [3u8; 32]);
    let proof = prove(&id.secret.0, "joiner", &[&old, &nonce, &id.job.to_le_bytes()]);
    let claim = marked(&(id.job, nonce, proof));
    stream.write_all(&frame(kind::CLAIM, &[&claim])).unwrap();
    assert_eq!(frame_from(&mut stream).0, kind::REFUSAL);
    // A hello that was changed on the way.
    let (mut stream, key) = prove_by_hand(&id);
    let mut body = wire::encode_hello(&hello(1, 2), LONG).unwrap();
    let code = prove(&key, "hello", &[&body]);
    body[2] = 0;
    stream.write_all(&frame(kind::HELLO, &[&code, &body])).unwrap();
    assert!(closed_within(&mut stream, LONG));
    agree(join_all(&id, vec![hello(0, 2), hello(1, 2)], LONG));
}

/// A root that behaves so; whatever else the rank said to it.
fn impostor(behaviour: &str, listener: TcpListener) -> Vec<u8> {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    match behaviour {
        "silence" => {}
        "noise" => stream.write_all(b"220 mail.example ESMTP\r\n").unwrap(),
        "endless length" => stream.write_all(&[0xff, 0xff, 0xff, 0xff, kind::GREETING]).unwrap(),
        _ => {
            stream.write_all(&frame(kind::GREETING, &[&marked(&[1; 32])])).unwrap();
            assert_eq!(frame_from(&mut stream).0, kind::CLAIM);
            stream.write_all(&frame(kind::ACCEPT, &[&[7; 32]])).unwrap();
        }
    }
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    rest
}

#[test]
fn an_impostor_root_learns_nothing_and_is_given_up_by_the_deadline() {
    let given_up = |behaviour: &'static str| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let id = UniqueId::at(listener.local_addr().unwrap(), SECRET).unwrap();
        let impostor = thread::spawn(move || impostor(behaviour, listener));
        let (limit, begun) = (Duration::from_millis(1500), Instant::now());
        let error = join(&id, hello(1, 2), limit).unwrap_err();
        assert!(matches!(error, Error::Join { rank: 1, .. }), "{error}");
        assert!(begun.elapsed() < limit + VERDICT_GRACE + late(), "{behaviour}: {:?}", begun.elapsed());
        assert_eq!(impostor.join().unwrap(), b"", "{behaviour}: something was said to an impostor");
    };
    // All wait for their deadlines at the same time.
    thread::scope(|threads| {
        for behaviour in ["silence", "noise", "wrong proof", "endless length"] {
            threads.spawn(move || given_up(behaviour));
        }
    });
}

#[test]
fn a_true_root_that_stalls_is_given_up_by_the_deadline() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let id = UniqueId::at(listener.local_addr().unwrap(), SECRET).unwrap();
    let secret = id.secret.0;
    let stalling = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&frame(kind::GREETING, &[&marked(&[1; 32])])).unwrap();
        let (_, nonce, _): Claim<u64> = unmarked(&frame_from(&mut stream).1).unwrap();
        let answer = prove(&secret, "root", &[&nonce, &[1; 32]]);
        stream.write_all(&frame(kind::ACCEPT, &[&answer])).unwrap();
        assert_eq!(frame_from(&mut stream).0, kind::HELLO);
        let _ = stream.read(&mut [0]);
    });
    let (limit, begun) = (Duration::from_millis(1500), Instant::now());
    let Err(Error::Join { rank: 1, cause, .. }) = join(&id, hello(1, 2), limit) else { panic!() };
    assert!(cause.contains("gave no answer"), "{cause}");
    assert!(begun.elapsed() < limit + VERDICT_GRACE + late());
    stalling.join().unwrap();
}

#[test]
fn a_rank_that_does_not_read_does_not_hold_up_the_others() {
    let id = root(Limits { flush: Duration::from_millis(300), ..Limits::default() });
    let (mut stopped, key) = prove_by_hand(&id);
    say(&mut stopped, &key, &wire::encode_hello(&hello(1, 3), LONG).unwrap());
    agree(join_all(&id, vec![hello(0, 3), hello(2, 3)], LONG));
    let begun = Instant::now();
    drop(id);
    assert!(begun.elapsed() < Duration::from_secs(5));
}
