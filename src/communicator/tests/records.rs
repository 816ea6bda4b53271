//! What a communicator remembers of its operations.

use crate::{Communicator, Options};

#[test]
fn more_than_the_ring_holds_is_counted() {
    let options = Options::default().trace_events(1);
    let comm = Communicator::local_with(1, &options).expect("one rank").remove(0);
    assert_eq!(
        comm.flight_record().map(|record| (record.operations.len(), record.dropped)).ok(),
        Some((0, 0))
    );
    for _ in 0..300 {
        comm.barrier().expect("alone");
    }
    let record = comm.flight_record().expect("not forked");
    assert_eq!((record.operations.len(), record.dropped), (128, 172));
    assert_eq!((record.operations[0].call.sequence, record.operations[127].call.sequence), (173, 300));
    assert!(record.operations.iter().all(|entry| entry.ended.is_some_and(|ended| ended <= entry.entered)));
}
