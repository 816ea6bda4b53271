//! What the measurement needs from a communicator: one rank's view of its group.
//!
//! Invariant: nothing but `backend` and `device` knows the library's calls; everything else is written against [`Group`]
//! and tested with a stand-in that makes mistakes on purpose.

use std::ops::Range;

use crate::collective::Work;
use crate::failure::Failure;

/// The memory of one call.
pub(crate) enum Buffers<'a> {
    /// Out of place.
    Apart { input: &'a [u8], output: &'a mut [u8] },
    /// In place: both are parts of the same memory.
    Together { memory: &'a mut [u8], input: Range<usize>, output: Range<usize> },
}

/// Makes a call that stands ready, the given number of times back to back.
pub(crate) type Repeat<'a> = dyn FnMut(u64) -> Result<(), Failure> + 'a;

/// The device that a rank's buffers are on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Facts {
    /// Its number in the rank's process.
    pub(crate) ordinal: u32,
    /// Its place on the bus.
    pub(crate) bus: String,
    /// As the driver names it.
    pub(crate) name: String,
    /// How operations run on it.
    pub(crate) path: &'static str,
    /// The newest CUDA that the driver serves.
    pub(crate) driver: String,
}

/// One rank of a group.
pub(crate) trait Group {
    fn rank(&self) -> u32;

    fn size(&self) -> u32;

    /// Gets a call ready and lends it to `body`. What a work needs once, and not in each call, is done before `body`,
    /// beside any clock. The buffers hold the result when this returns.
    fn ready(
        &self,
        work: &Work,
        buffers: Buffers<'_>,
        body: &mut dyn FnMut(&mut Repeat<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure>;

    /// Returns when every rank has called it.
    fn barrier(&self) -> Result<(), Failure>;

    /// The bytes of all ranks in rank order; all ranks pass the same number.
    fn gather(&self, mine: &[u8]) -> Result<Vec<u8>, Failure>;

    /// The algorithm that runs the work; `None` where there is no choice.
    fn algorithm(&self, work: &Work) -> Option<String>;

    /// Bytes that the library holds in this process for this group.
    fn memory_bytes(&self) -> Result<usize, Failure>;

    /// The device that has the buffers; `None` where they are the memory that `ready` is given.
    fn device(&self) -> Option<Facts> {
        None
    }

    /// Changed bytes of a device's buffers since the last [`Group::ready`] began, in inputs and guards, which no call may
    /// change.
    fn strays(&self) -> u64 {
        0
    }
}

/// The numbers of all ranks: one row per rank.
pub(crate) fn gather_numbers(group: &dyn Group, mine: &[f64]) -> Result<Vec<Vec<f64>>, Failure> {
    let bytes: Vec<u8> = mine.iter().flat_map(|number| number.to_le_bytes()).collect();
    let numbers: Vec<f64> = group
        .gather(&bytes)?
        .chunks_exact(8)
        .map(|chunk| f64::from_le_bytes(chunk.try_into().expect("chunks of eight")))
        .collect();
    Ok(numbers.chunks(mine.len().max(1)).map(<[f64]>::to_vec).collect())
}

#[cfg(test)]
pub(crate) mod stand_in {
    //! Ranks as threads that exchange whole inputs through a mutex: slow, simple, float32 sums only.

    use std::sync::{Arc, Condvar, Mutex};

    use super::*;
    use crate::collective::Collective;

    /// A mistake to make.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Mistake {
        None,
        /// Rank 1 flips a bit of its last output byte.
        WrongByte,
        /// Rank 1's output is not written.
        NotWritten,
        /// Every call fails.
        Fails,
    }

    #[derive(Default)]
    struct Shared {
        inputs: Vec<Option<Vec<u8>>>,
        taken: usize,
        round: Option<Arc<Vec<Vec<u8>>>>,
    }

    pub(crate) struct StandIn {
        rank: u32,
        size: u32,
        mistake: Mistake,
        shared: Arc<(Mutex<Shared>, Condvar)>,
    }

    pub(crate) fn local(size: u32, mistake: Mistake) -> Vec<StandIn> {
        let shared = Shared { inputs: vec![None; size as usize], ..Shared::default() };
        let shared = Arc::new((Mutex::new(shared), Condvar::new()));
        (0..size).map(|rank| StandIn { rank, size, mistake, shared: shared.clone() }).collect()
    }

    impl StandIn {
        fn exchange(&self, mine: &[u8]) -> Arc<Vec<Vec<u8>>> {
            let (mutex, signal) = &*self.shared;
            let mut shared =
                signal.wait_while(mutex.lock().unwrap(), |shared| shared.round.is_some()).unwrap();
            shared.inputs[self.rank as usize] = Some(mine.to_vec());
            if shared.inputs.iter().all(Option::is_some) {
                shared.round = Some(Arc::new(shared.inputs.iter_mut().map(|i| i.take().unwrap()).collect()));
                signal.notify_all();
            }
            let mut shared = signal.wait_while(shared, |shared| shared.round.is_none()).unwrap();
            let all = shared.round.clone().unwrap();
            shared.taken += 1;
            if shared.taken == self.size as usize {
                shared.taken = 0;
                shared.round = None;
                signal.notify_all();
            }
            all
        }

        fn result(&self, work: &Work, input: &[u8]) -> Option<Vec<u8>> {
            let all = self.exchange(input);
            let rank = self.rank as usize;
            let cut = work.cut(self.size);
            let own = 4 * cut.start(rank)..4 * cut.start(rank + 1);
            let sum = || -> Vec<u8> {
                let value = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
                (0..all[0].len() / 4)
                    .flat_map(|i| {
                        all.iter().map(|input| value(&input[4 * i..4 * i + 4])).sum::<f32>().to_le_bytes()
                    })
                    .collect()
            };
            match work.collective {
                Collective::AllReduce => Some(sum()),
                Collective::Reduce => (self.rank == work.root).then(sum),
                Collective::Broadcast => Some(all[work.root as usize].clone()),
                Collective::AllGather | Collective::AllGatherV | Collective::HyperCube => Some(all.concat()),
                Collective::Gather | Collective::GatherV => (self.rank == work.root).then(|| all.concat()),
                Collective::ReduceScatter | Collective::ReduceScatterV => Some(sum()[own].to_vec()),
                Collective::Scatter | Collective::ScatterV => Some(all[work.root as usize][own].to_vec()),
                Collective::AllToAll | Collective::AllToAllV => {
                    let message = |from: usize| {
                        let start = 4 * cut.sent_start(from, rank);
                        &all[from][start..start + 4 * cut.message(from, rank)]
                    };
                    Some((0..all.len()).map(message).collect::<Vec<_>>().concat())
                }
                Collective::SendRecv => Some(all[(rank + all.len() - 1) % all.len()].clone()),
            }
        }
    }

    impl Group for StandIn {
        fn rank(&self) -> u32 {
            self.rank
        }

        fn size(&self) -> u32 {
            self.size
        }

        fn algorithm(&self, _: &Work) -> Option<String> {
            Some("by mutex".into())
        }

        fn ready(
            &self,
            work: &Work,
            mut buffers: Buffers<'_>,
            body: &mut dyn FnMut(&mut Repeat<'_>) -> Result<(), Failure>,
        ) -> Result<(), Failure> {
            body(&mut |times| self.repeat(work, &mut buffers, times))
        }

        fn barrier(&self) -> Result<(), Failure> {
            self.exchange(&[]);
            Ok(())
        }

        fn gather(&self, mine: &[u8]) -> Result<Vec<u8>, Failure> {
            Ok(self.exchange(mine).concat())
        }

        fn memory_bytes(&self) -> Result<usize, Failure> {
            Ok(4096)
        }
    }

    impl StandIn {
        fn repeat(&self, work: &Work, buffers: &mut Buffers<'_>, times: u64) -> Result<(), Failure> {
            if self.mistake == Mistake::Fails {
                return Err(Failure::new(crate::failure::Exit::Library, "made to fail"));
            }
            for _ in 0..times {
                let input = match &*buffers {
                    Buffers::Apart { input, .. } => input.to_vec(),
                    Buffers::Together { memory, input, .. } => memory[input.clone()].to_vec(),
                };
                let Some(mut result) = self.result(work, &input) else { continue };
                let mistake = if self.rank == 1 { self.mistake } else { Mistake::None };
                if let (Mistake::WrongByte, Some(last)) = (mistake, result.last_mut()) {
                    *last ^= 1;
                }
                let output = match buffers {
                    Buffers::Apart { output, .. } => &mut **output,
                    Buffers::Together { memory, output, .. } => &mut memory[output.clone()],
                };
                if mistake != Mistake::NotWritten {
                    output.copy_from_slice(&result);
                }
            }
            Ok(())
        }
    }
}
