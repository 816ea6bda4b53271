//! Plans in the device's layout, put on the device once a shape.
//!
//! Invariant: the steps on the device are the very steps that were verified. Absent: addresses and lengths, which a call
//! brings ([`super::draft`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use consort_algorithms::plan::{Action, Operand, Plan, Position, Region, Step};
use consort_cuda::DeviceMemory;
use consort_kernels::Reducer;
use consort_kernels::cuda::layout;

use super::super::gpu::Gpu;
use super::super::trouble::failed;
use crate::Rank;
use crate::planner::{Places, places, unsayable};
use consort_types::error::{Error, Result};

/// The programs that are on the device already.
#[derive(Default)]
pub(in super::super) struct Programs(Mutex<HashMap<Key, Arc<Uploaded>>>);

/// What a device program depends on: the plan, and whether its folds scale and divide.
type Key = (String, Rank, u64, bool, bool);

/// A plan's tables on the device.
pub(super) struct Uploaded {
    _memory: DeviceMemory,
    pub(super) steps: u64,
    pub(super) operands: u64,
    pub(super) lanes: u64,
    /// The chunks of each entry of the chunk table: of the input, of the output, and whose length.
    pub(super) chunks: Vec<Places>,
}

impl Programs {
    /// A plan's tables, put on the device if they are not there.
    ///
    /// # Errors
    /// The driver's; for steps that the device's layout has no room for.
    pub(super) fn of(
        &self,
        gpu: &Gpu,
        rank: Rank,
        plan: &Plan,
        fold_hash: u64,
        reducer: Option<&Reducer>,
    ) -> Result<Arc<Uploaded>> {
        let scales = reducer.is_some_and(Reducer::scales);
        let divides = reducer.is_some_and(Reducer::divides);
        let number = plan.collective.number().map_or(u64::MAX, |number| number as u64);
        let key = (plan.name.clone(), plan.rank.0, fold_hash ^ number, scales, divides);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(uploaded) = known.get(&key) {
            return Ok(uploaded.clone());
        }
        let uploaded = Arc::new(upload(gpu, rank, plan, scales, divides)?);
        known.insert(key, uploaded.clone());
        Ok(uploaded)
    }
}

/// Writes a plan in the device's layout.
fn upload(gpu: &Gpu, rank: Rank, plan: &Plan, scales: bool, divides: bool) -> Result<Uploaded> {
    let foreign = |what: &str| Error::internal(format!("the plan {} has {what}", plan.name));
    let mut chunks: Vec<Places> = Vec::new();
    let mut steps = Vec::with_capacity(plan.steps.len());
    let mut raisers: HashMap<u32, usize> = HashMap::new();
    for (lane, bounds) in plan.lanes.iter().enumerate() {
        for step in plan.lane(bounds).iter().filter(|step| step.action == Action::Signal) {
            if *raisers.entry(step.counter).or_insert(lane) != lane {
                return Err(foreign("a counter that two lanes raise"));
            }
        }
    }
    if let Some(what) = plan.steps.iter().find_map(|step| unsayable(plan, step)) {
        return Err(foreign(what));
    }
    for step in &plan.steps {
        let (action, chunk) = match step.action {
            Action::Signal => (layout::ACTION_SIGNAL, 0),
            Action::Wait => (layout::ACTION_WAIT, 0),
            Action::Copy | Action::Reduce | Action::Put | Action::Get => {
                let places = places(plan, step).map_err(foreign)?;
                let known = chunks.iter().position(|known| *known == places);
                let index = known.unwrap_or_else(|| {
                    chunks.push(places);
                    chunks.len() - 1
                });
                (layout::ACTION_FOLD, index as u32)
            }
        };
        steps.push(layout::Step {
            action,
            flags: if step.has(Step::FINISH) && divides { layout::STEP_FINISH } else { 0 },
            targets: step.targets,
            sources: step.sources,
            raw: if scales { step.raw } else { 0 },
            operands: step.operands,
            chunk,
            counter: step.counter,
            value: step.value,
        });
    }
    let operands: Vec<layout::Operand> = plan.operands.iter().map(|of| operand(plan, of)).collect();
    let lanes: Vec<layout::Lane> =
        plan.lanes.iter().map(|lane| layout::Lane { start: lane.start, end: lane.end }).collect();
    let (steps_bytes, operands_bytes) = (size_of_val(&*steps), size_of_val(&*operands));
    let bytes = steps_bytes + operands_bytes + size_of_val(&*lanes);
    let mut image = vec![0u8; bytes.max(8)];
    let span = consort_memory::SpanMut::of(&mut image);
    span.slice(0, steps_bytes).copy_from(consort_memory::Span::of(&steps));
    span.slice(steps_bytes, operands_bytes).copy_from(consort_memory::Span::of(&operands));
    span.slice(steps_bytes + operands_bytes, size_of_val(&*lanes))
        .copy_from(consort_memory::Span::of(&lanes));
    let cuda = |error| failed(rank, "a program on its device", error);
    let memory = gpu.context().allocate(image.len()).map_err(cuda)?;
    memory.copy_from_host(0, &image).map_err(cuda)?;
    let first = memory.address();
    let (operands, lanes) = (first + steps_bytes as u64, first + (steps_bytes + operands_bytes) as u64);
    Ok(Uploaded { _memory: memory, steps: first, operands, lanes, chunks })
}

fn operand(plan: &Plan, operand: &Operand) -> layout::Operand {
    let (position, index) = match operand.position {
        Position::Slot(nth) => (layout::POSITION_SLOT, nth),
        Position::Scratch(place) => (layout::POSITION_SCRATCH, place),
        Position::Chunk(_) | Position::Table(_) => match plan.regions[operand.region as usize].region {
            Region::Output(_) => (layout::POSITION_OUTPUT, 0),
            _ => (layout::POSITION_INPUT, 0),
        },
    };
    layout::Operand { region: operand.region, position, index }
}
