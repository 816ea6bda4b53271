//! What NCCL does with a plugin, by the functions of each version, in one process.

use std::time::{Duration, Instant};

use consort_testing::Random;
use consort_transports::abi::{INVALID_USAGE, REMOTE_ERROR, TRAFFIC_CLASS_NONE};

use super::*;

/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A receive: the comm, the buffers, their sizes and tags, and the request.
type Irecv<'a> = dyn Fn(Address, &mut [Address], &mut [usize], &mut [c_int], *mut Address) -> Code + 'a;

/// What differs from version to version, as closures over what is alike.
struct Version<'a> {
    listen: &'a dyn Fn(Address, *mut Address) -> Code,
    connect: &'a dyn Fn(Address, *mut Address) -> Code,
    isend: &'a dyn Fn(Address, Address, usize, c_int, *mut Address) -> Code,
    irecv: &'a Irecv<'a>,
}

fn eventually<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(result) = step() {
            return result;
        }
        assert!(since.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::yield_now();
    }
}

impl Version<'_> {
    /// A comm to send by and one to receive by.
    fn pair(&self) -> [Address; 2] {
        let mut handle = [0u64; HANDLE_BYTES / 8];
        let [mut listening, mut sending, mut receiving]: [Address; 3] = [null_mut(); 3];
        assert_eq!((self.listen)(handle.as_mut_ptr().cast(), &mut listening), SUCCESS);
        eventually("both comms are there", || {
            if sending.is_null() {
                assert_eq!((self.connect)(handle.as_mut_ptr().cast(), &mut sending), SUCCESS);
            }
            if receiving.is_null() {
                // SAFETY: the listening comm, and places.
                assert_eq!(unsafe { accept(listening, &mut receiving, &mut null_mut()) }, SUCCESS);
            }
            (!sending.is_null() && !receiving.is_null()).then_some(())
        });
        // SAFETY: closed once.
        assert_eq!(unsafe { close_listen(listening) }, SUCCESS);
        [sending, receiving]
    }

    fn send(&self, comm: Address, data: &[u8], tag: c_int) -> Address {
        let mut request = null_mut();
        assert_eq!(
            (self.isend)(comm, data.as_ptr().cast_mut().cast(), data.len(), tag, &mut request),
            SUCCESS
        );
        request
    }

    fn receive(&self, comm: Address, into: &mut [&mut [u8]], tags: &mut [c_int]) -> Address {
        let mut request = null_mut();
        let mut bytes: Vec<usize> = into.iter().map(|buffer| buffer.len()).collect();
        let mut data: Vec<Address> = into.iter_mut().map(|buffer| buffer.as_mut_ptr().cast()).collect();
        assert_eq!((self.irecv)(comm, &mut data, &mut bytes, tags, &mut request), SUCCESS);
        request
    }
}

fn look(request: Address) -> Result<Option<[c_int; 8]>, Code> {
    let (mut done, mut sizes) = (0, [-1; 8]);
    // SAFETY: a request under way, and places.
    match unsafe { test(request, &mut done, sizes.as_mut_ptr()) } {
        SUCCESS => Ok((done != 0).then_some(sizes)),
        code => Err(code),
    }
}

fn close_both(comms: [Address; 2]) {
    // SAFETY: each once.
    comms.into_iter().for_each(|comm| assert_eq!(unsafe { close(comm) }, SUCCESS));
}

/// Messages of all lengths with as many under way as NCCL has, and more than the ring holds.
fn exchange(version: &Version<'_>) {
    let [sending, receiving] = version.pair();
    let mut random = Random::announced("exchange");
    let lengths = [0, 1, STAGED, STAGED + 1, 65_536, 300_000, RING + 5, 7, 0, 3 * RING];
    let messages: Vec<Vec<u8>> = lengths.iter().map(|length| random.bytes(*length)).collect();
    let mut buffers: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0; length + 3]).collect();
    let mut sends: Vec<_> = messages.iter().map(|message| version.send(sending, message, 5)).collect();
    let mut receives: Vec<_> = buffers
        .iter_mut()
        .map(|buffer| version.receive(receiving, &mut [&mut buffer[..]], &mut [5]))
        .collect();
    assert!(sends.iter().chain(&receives).all(|request| !request.is_null()));
    let mut sizes = Vec::new();
    eventually("all is sent and received", || {
        if sends.first().is_some_and(|request| look(*request).expect("it goes on").is_some()) {
            sends.remove(0);
        }
        if let Some(of) = receives.first().and_then(|request| look(*request).expect("it goes on")) {
            receives.remove(0);
            sizes.push(of[0] as usize);
        }
        (sends.is_empty() && receives.is_empty()).then_some(())
    });
    assert_eq!(sizes, lengths);
    assert!(messages.iter().zip(&buffers).all(|(message, buffer)| buffer[..message.len()] == message[..]));
    close_both([sending, receiving]);
}

const RING: usize = crate::network::RING_BYTES;
/// The longest message that is written at once.
const STAGED: usize = 4080;

/// Grouped receives, by their tags; no more than 32 requests; errors.
fn edges(version: &Version<'_>) {
    let comms @ [sending, receiving] = version.pair();
    let (mut one, mut two, mut three) = ([0; 4], [0; 4], [0; 4]);
    let grouped = version.receive(receiving, &mut [&mut one[..], &mut two], &mut [8, 9]);
    let single = version.receive(receiving, &mut [&mut three[..]], &mut [9]);
    let sends = [(9, b"two"), (9, b"tri"), (8, b"one")].map(|(tag, text)| version.send(sending, text, tag));
    for (request, parts) in sends.into_iter().map(|request| (request, 1)).chain([(single, 1), (grouped, 2)]) {
        let sizes = eventually("it is over", || look(request).expect("it goes on"));
        assert_eq!(sizes[..parts], [3, 3][..parts]);
    }
    assert_eq!([&one[..3], &two[..3], &three[..3]], [b"one", b"two", b"tri"]);
    // As many as NCCL has, and one more.
    let data = vec![7u8; RING];
    let sends: Vec<_> = (0..34).map(|_| version.send(sending, &data, 0)).collect();
    assert!(
        sends.iter().position(|request| request.is_null()).is_some_and(|first| (32..=33).contains(&first))
    );
    let mut short = vec![0u8; RING - 1];
    let truncated = version.receive(receiving, &mut [&mut short[..]], &mut [0]);
    let code = eventually("the message comes", || match look(truncated) {
        Ok(None) => {
            let _ = look(sends[0]).expect("it goes on");
            None
        }
        other => Some(other),
    });
    assert_eq!(code, Err(INVALID_USAGE));
    close_both(comms);

    let [sending, receiving] = version.pair();
    let request = version.receive(receiving, &mut [&mut short[..]], &mut [0]);
    // SAFETY: closed once.
    assert_eq!(unsafe { close(sending) }, SUCCESS);
    let code = eventually("the peer's end is seen", || {
        look(request).map_or_else(Some, |done| done.map(|_| SUCCESS))
    });
    assert_eq!(code, REMOTE_ERROR);
    // SAFETY: closed once.
    assert_eq!(unsafe { close(receiving) }, SUCCESS);

    // A comm that is closed with a request under way is closed for the peer, and the request is not over.
    let [sending, receiving] = version.pair();
    let request = version.receive(receiving, &mut [&mut short[..]], &mut [0]);
    // SAFETY: closed once.
    assert_eq!(unsafe { close(receiving) }, SUCCESS);
    assert_eq!(look(request), Err(REMOTE_ERROR));
    let unsent = version.send(sending, &data, 0);
    let unsent = [unsent, version.send(sending, &data, 0)];
    let code =
        eventually("the peer's end is seen", || unsent.iter().find_map(|request| look(*request).err()));
    assert_eq!(code, REMOTE_ERROR);
    // SAFETY: closed once.
    assert_eq!(unsafe { close(sending) }, SUCCESS);
}

fn both(version: &Version<'_>) {
    exchange(version);
    edges(version);
}

/// The functions of a version without a context.
macro_rules! old {
    ($table:ident, $init:expr, $connect:expr, $isend:expr, $irecv:expr) => {{
        // SAFETY: as NCCL calls them.
        let table = &$table;
        assert_eq!($init(table), SUCCESS);
        both(&Version {
            // SAFETY: as NCCL calls it, with comms, places and lists of this test.
            listen: &|handle, comm| unsafe { table.listen.expect("listen")(0, handle, comm) },
            connect: &|handle, comm| $connect(table, handle, comm),
            isend: &|comm, data, bytes, tag, request| $isend(table, comm, data, bytes, tag, request),
            irecv: &|comm, data, bytes, tags, request| $irecv(table, comm, data, bytes, tags, request),
        });
    }};
}

#[test]
fn version_8() {
    old!(
        ncclNetPlugin_v8,
        // SAFETY: as NCCL calls it, with comms, places and lists of this test.
        |table: &NetV8| unsafe { table.init.expect("init")(None) },
        // SAFETY: as NCCL calls it, with comms, places and lists of this test.
        |table: &NetV8, handle, comm| unsafe {
            table.connect.expect("connect")(0, handle, comm, &mut null_mut())
        },
        // SAFETY: as NCCL calls it, with comms, places and lists of this test.
        |table: &NetV8, comm, data, bytes: usize, tag, request| unsafe {
            table.isend.expect("isend")(comm, data, bytes as c_int, tag, null_mut(), request)
        },
        |table: &NetV8, comm, data: &mut [Address], bytes: &mut [usize], tags: &mut [c_int], request| {
            let mut ints: Vec<c_int> = bytes.iter().map(|bytes| *bytes as c_int).collect();
            let (count, tags) = (data.len() as c_int, tags.as_mut_ptr());
            let irecv = table.irecv.expect("irecv");
            // SAFETY: as NCCL calls it, with comms, places and lists of this test.
            unsafe { irecv(comm, count, data.as_mut_ptr(), ints.as_mut_ptr(), tags, null_mut(), request) }
        }
    );
}

#[test]
fn version_9() {
    old!(
        ncclNetPlugin_v9,
        // SAFETY: as NCCL calls it, with comms, places and lists of this test.
        |table: &NetV9| unsafe { table.init.expect("init")(None) },
        // SAFETY: as NCCL calls it, with comms, places and lists of this test.
        |table: &NetV9, handle, comm| unsafe {
            table.connect.expect("connect")(0, handle, comm, &mut null_mut())
        },
        // SAFETY: as NCCL calls it, with comms, places and lists of this test.
        |table: &NetV9, comm, data, bytes, tag, request| unsafe {
            table.isend.expect("isend")(comm, data, bytes, tag, null_mut(), request)
        },
        |table: &NetV9, comm, data: &mut [Address], bytes: &mut [usize], tags: &mut [c_int], request| {
            let (count, tags) = (data.len() as c_int, tags.as_mut_ptr());
            let irecv = table.irecv.expect("irecv");
            // SAFETY: as NCCL calls it, with comms, places and lists of this test.
            unsafe { irecv(comm, count, data.as_mut_ptr(), bytes.as_mut_ptr(), tags, null_mut(), request) }
        }
    );
}

#[test]
fn version_10() {
    old!(
        ncclNetPlugin_v10,
        // SAFETY: as NCCL calls it, with comms, places and lists of this test.
        |table: &NetV10| unsafe { table.init.expect("init")(None, None) },
        // SAFETY: as NCCL calls it, with comms, places and lists of this test.
        |table: &NetV10, handle, comm| unsafe {
            let mut config = Config { traffic_class: TRAFFIC_CLASS_NONE };
            table.connect.expect("connect")(0, &mut config, handle, comm, &mut null_mut())
        },
        // SAFETY: as NCCL calls it, with comms, places and lists of this test.
        |table: &NetV10, comm, data, bytes, tag, request| unsafe {
            table.isend.expect("isend")(comm, data, bytes, tag, null_mut(), null_mut(), request)
        },
        |table: &NetV10, comm, data: &mut [Address], bytes: &mut [usize], tags: &mut [c_int], request| {
            let (count, tags) = (data.len() as c_int, tags.as_mut_ptr());
            let irecv = table.irecv.expect("irecv");
            let (data, bytes) = (data.as_mut_ptr(), bytes.as_mut_ptr());
            // SAFETY: as NCCL calls it, with comms, places and lists of this test.
            unsafe { irecv(comm, count, data, bytes, tags, null_mut(), null_mut(), request) }
        }
    );
}

/// Versions 11 and 12 differ in what they say of a device alone.
#[test]
fn versions_11_and_12() {
    macro_rules! new {
        ($table:ident) => {{
            let (table, mut context) = (&$table, null_mut());
            let mut config = Config { traffic_class: TRAFFIC_CLASS_NONE };
            let init = table.init.expect("init");
            // SAFETY: as NCCL calls it, with comms, places and lists of this test.
            assert_eq!(unsafe { init(&mut context, 7, &mut config, None, None) }, SUCCESS);
            let (listen, connect) = (table.listen.expect("listen"), table.connect.expect("connect"));
            let (isend, irecv) = (table.isend.expect("isend"), table.irecv.expect("irecv"));
            both(&Version {
                // SAFETY: as NCCL calls it, with comms, places and lists of this test.
                listen: &|handle, comm| unsafe { listen(context, 0, handle, comm) },
                // SAFETY: as NCCL calls it, with comms, places and lists of this test.
                connect: &|handle, comm| unsafe { connect(context, 0, handle, comm, &mut null_mut()) },
                // SAFETY: as NCCL calls it, with comms, places and lists of this test.
                isend: &|comm, data, bytes, tag, request| unsafe {
                    isend(comm, data, bytes, tag, null_mut(), null_mut(), request)
                },
                irecv: &|comm, data, bytes, tags, request| {
                    let (count, tags) = (data.len() as c_int, tags.as_mut_ptr());
                    let (data, bytes) = (data.as_mut_ptr(), bytes.as_mut_ptr());
                    // SAFETY: as NCCL calls it, with comms, places and lists of this test.
                    unsafe { irecv(comm, count, data, bytes, tags, null_mut(), null_mut(), request) }
                },
            });
            // SAFETY: of all fields a zero is a value.
            let mut found = unsafe { std::mem::zeroed() };
            let properties = table.properties.expect("properties");
            // SAFETY: as NCCL calls it, with comms, places and lists of this test.
            assert_eq!(unsafe { properties(0, &mut found) }, SUCCESS);
            assert_eq!((found.pointers, found.receives_max, found.joined.count), (POINTER_HOST, 1, 1));
            // SAFETY: as NCCL calls it, with comms, places and lists of this test.
            assert_eq!(unsafe { properties(1, &mut found) }, INVALID_ARGUMENT);
            // SAFETY: as NCCL calls it, with comms, places and lists of this test.
            assert_eq!(unsafe { table.tail.finalize.expect("finalize")(context) }, SUCCESS);
        }};
    }
    new!(ncclNetPlugin_v11);
    new!(ncclNetPlugin_v12);
}
