//! The fast schedule where launches wait for others: in other threads of the system, and for blocks that are not
//! resident.

use std::sync::{Arc, Mutex};

use consort_standin_ptx::{Access, Atomic, Fault, Memory, Module, Options, Plain, Problem, Site, run};

use crate::support::records::{Record, launch};

const SIGNALS: &str = include_str!("kernels/signals.ptx");

/// One memory for several runs at once; a run is stopped when it has been idle for long.
struct Common {
    memory: Arc<Mutex<Plain>>,
    patience: u64,
}

impl Memory for Common {
    fn load(&mut self, site: &Site, access: &Access) -> Result<u128, Problem> {
        self.memory.lock().unwrap().load(site, access)
    }
    fn store(&mut self, site: &Site, access: &Access, value: u128) -> Result<bool, Problem> {
        self.memory.lock().unwrap().store(site, access, value)
    }
    fn atomic(&mut self, site: &Site, access: &Access, atomic: &Atomic) -> Result<u64, Problem> {
        self.memory.lock().unwrap().atomic(site, access, atomic)
    }
    fn idle(&mut self, turns: u64) -> Result<(), Problem> {
        if turns > self.patience {
            return Err(Problem::Stopped);
        }
        std::thread::yield_now();
        Ok(())
    }
}

/// Sender and receiver: memory, parameters of both, the output and what it should be.
fn passing() -> (Plain, [Vec<u8>; 2], u64, Vec<u8>) {
    let mut memory = Plain::new();
    let (words, rounds) = (33u32, 20u32);
    let slot = memory.allocate(vec![0; 132]);
    let (posted, credit) = (memory.allocate(vec![0; 8]), memory.allocate(vec![0; 8]));
    let out = memory.allocate(vec![0; (words * rounds * 4) as usize]);
    let send = Record::new().u64(&[slot, posted, credit]).u32(&[words, rounds]).0;
    let receive = Record::new().u64(&[slot, posted, credit, out]).u32(&[words, rounds]).0;
    let expected: Vec<u32> = (0..rounds).flat_map(|r| (0..words).map(move |i| r * 1000 + i)).collect();
    (memory, [send, receive], out, Record::new().u32(&expected).0)
}

#[test]
fn launches_of_several_threads_wait_for_each_other() {
    let module = Module::parse(SIGNALS).unwrap();
    let (memory, params, out, expected) = passing();
    let memory = Arc::new(Mutex::new(memory));
    std::thread::scope(|scope| {
        for (kernel, params) in ["sender", "receiver"].iter().zip(&params) {
            let (module, memory) = (&module, memory.clone());
            scope.spawn(move || {
                let mut common = Common { memory, patience: u64::MAX };
                run(&[launch(module, kernel, 1, 32, params, 0)], &mut common, &Options::fast()).unwrap();
            });
        }
    });
    assert_eq!(memory.lock().unwrap().bytes(out), expected);
}

#[test]
fn what_is_not_resident_is_waited_for_in_vain() {
    let module = Module::parse(SIGNALS).unwrap();
    let (memory, params, ..) = passing();
    let memory = Arc::new(Mutex::new(memory));
    let launches =
        [launch(&module, "receiver", 1, 32, &params[1], 0), launch(&module, "sender", 1, 32, &params[0], 0)];
    let mut common = Common { memory, patience: 200 };
    let one = Options { resident_blocks: 1, ..Options::fast() };
    let fault: Fault = run(&launches, &mut common, &one).unwrap_err();
    assert_eq!(fault.problem, Problem::Stopped);
    assert_eq!(fault.place.kernel, "receiver");
    run(&launches, &mut common, &Options { resident_blocks: 2, ..Options::fast() }).unwrap();
}
