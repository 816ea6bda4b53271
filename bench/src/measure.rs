//! One rank's run: every type, operator, root and size, in both placements, timed and checked.
//!
//! Invariant: all ranks make the same calls in the same order. Whatever is decided while running (the number
//! of iterations) is decided from numbers that all ranks have gathered; only rank 0 reports. Nothing but the
//! measured calls, and the barrier of `-z 1`, happens while the clock runs.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Instant;

use crate::arguments::{ITERATIONS_LEAST, ITERATIONS_MOST, ITERATIONS_TIME, Settings};
use crate::buffers::Guarded;
use crate::collective::Work;
use crate::data::{Data, Pair, Placement};
use crate::failure::{Exit, Failure};
use crate::group::{Buffers, Group, Repeat, gather_numbers};
use crate::progress::{Progress, Way};
use crate::report::{Peer, Report};
use crate::statistics::Spread;
use crate::table::{Measured, Row};

/// Progress is counted in these steps per placement.
const STEPS: u64 = 3;

/// What rank 0 needs for its report.
pub(crate) struct Output<'a> {
    pub(crate) out: Box<dyn Write + 'a>,
    pub(crate) arguments: Vec<String>,
    pub(crate) progress: Way,
}

/// Runs everything that the settings ask for. Only rank 0's `output` is used.
pub(crate) fn run(settings: &Settings, group: &dyn Group, output: Output<'_>) -> Result<Exit, Failure> {
    let root = settings.root.filter(|_| settings.collective.has_root());
    for (flag, rank) in [("-r", root), ("--corrupt", settings.corrupt)] {
        if let Some(rank) = rank.filter(|rank| *rank >= group.size()) {
            let last = group.size() - 1;
            return Err(Failure::usage(format!("{flag} {rank}: there is no such rank; the last is {last}")));
        }
    }
    settings.collective.check_ranks(group.size())?;
    let peers = peers(group)?;
    let (send, receive) = settings.buffer_bytes(group.size());
    let mut report = match group.rank() {
        0 => Some(Report::new(settings, output.out, output.arguments, peers, group.device())?),
        _ => None,
    };
    if let Some(report) = &mut report {
        report.heading()?;
    }
    let mut pair = Pair {
        send: Guarded::new(send as usize, settings.unalign, settings.shared)?,
        receive: Guarded::new(receive as usize, settings.unalign, settings.shared)?,
    };
    let mut run = Run {
        settings,
        group,
        report,
        progress: Progress::new(if group.rank() == 0 { output.progress } else { Way::Nowhere }),
        algorithms: BTreeMap::new(),
        named: None,
        round: 0,
        done: 0,
        failed_checks: 0,
    };
    let result = run.everything(&mut pair);
    run.progress.clear();
    match (result, &mut run.report) {
        (Ok(library_bytes), Some(report)) => report.finish(library_bytes),
        (Ok(_), None) if run.failed_checks > 0 => Ok(Exit::WrongData),
        (Ok(_), None) => Ok(Exit::Done),
        (Err(failure), report) => {
            if let Some(report) = report {
                report.abandon(&failure);
            }
            Err(failure)
        }
    }
}

struct Run<'a> {
    settings: &'a Settings,
    group: &'a dyn Group,
    report: Option<Report<'a>>,
    progress: Progress,
    /// The library's algorithm by the bytes of a block, so that the library is asked once; rank 0 alone asks.
    algorithms: BTreeMap<usize, Option<String>>,
    /// The algorithm that the last remark names.
    named: Option<String>,
    /// Counts the times that data was written, so that each has its own.
    round: u64,
    done: u64,
    failed_checks: u64,
}

impl Run<'_> {
    /// Returns the most memory that the library held in any rank.
    fn everything(&mut self, pair: &mut Pair) -> Result<u64, Failure> {
        let settings = self.settings;
        let roots = match settings.root {
            _ if !settings.collective.has_root() => 0..1,
            Some(root) => root..root + 1,
            None => 0..self.group.size(),
        };
        let mut cycle = 0;
        while settings.cycles == 0 || cycle < settings.cycles {
            cycle += 1;
            for data_type in &settings.data_types {
                for op in &settings.ops {
                    let (rank, ranks) = (self.group.rank(), self.group.size());
                    let data = Data::new(settings.collective, *data_type, *op, rank, ranks, settings.seed);
                    for root in roots.clone() {
                        for size in settings.sweep.sizes() {
                            let shape = settings.collective.shape(size, data_type.size(), ranks);
                            let (collective, data_type, op) = (settings.collective, *data_type, *op);
                            let work = Work { collective, data_type, op, root, shape };
                            self.line(&data, &work, roots.len(), pair)?;
                        }
                    }
                }
            }
        }
        let memory = gather_numbers(self.group, &[self.group.memory_bytes()? as f64])?;
        Ok(memory.into_iter().flatten().fold(0.0, f64::max) as u64)
    }

    /// One line of the table.
    fn line(&mut self, data: &Data, work: &Work, roots: usize, pair: &mut Pair) -> Result<(), Failure> {
        let settings = self.settings;
        let Work { collective, data_type, op, root, shape } = *work;
        let lines = settings.sweep.sizes().count() * settings.data_types.len() * settings.ops.len() * roots;
        let placements = 1 + u64::from(collective.has_in_place());
        let total = lines as u64 * placements * STEPS * settings.cycles;

        let failed_before = self.failed_checks;
        let algorithm = self.algorithm(work);
        let out_of_place = self.placement(data, work, Placement::OutOfPlace, total, pair)?;
        let in_place = match collective.has_in_place() {
            true => Some(self.placement(data, work, Placement::InPlace, total, pair)?),
            false => None,
        };
        self.progress.clear();
        let failed = self.failed_checks - failed_before;
        let Some(report) = &mut self.report else { return Ok(()) };
        let both = [(Placement::OutOfPlace, Some(&out_of_place)), (Placement::InPlace, in_place.as_ref())];
        let fewer: Vec<String> = both
            .into_iter()
            .filter_map(|(placement, measured)| Some((placement.name(), measured?.iterations)))
            .filter(|(_, iterations)| settings.iterations.is_none() && *iterations != ITERATIONS_MOST)
            .map(|(placement, iterations)| format!("{iterations} {placement}"))
            .collect();
        if algorithm.is_some() && algorithm != self.named {
            report.comment(&format!(
                "algorithm of the next lines: {}",
                algorithm.as_deref().unwrap_or_default()
            ))?;
            self.named.clone_from(&algorithm);
        }
        if !fewer.is_empty() {
            report.comment(&format!("iters of the next line: {}", fewer.join(", ")))?;
        }
        let row = Row {
            bytes: (shape.elements() * data_type.size()) as u64,
            count: shape.count as u64,
            data_type: data_type.name(),
            op: if collective.folds() { op.name() } else { "none" },
            root: if collective.has_root() { i64::from(root) } else { -1 },
            algorithm,
            out_of_place: Some(out_of_place),
            in_place,
        };
        report.row(&row, failed)
    }

    /// The algorithm of the work, where this rank reports and there is work.
    fn algorithm(&mut self, work: &Work) -> Option<String> {
        let bytes = work.shape.count * work.data_type.size();
        if self.report.is_none() || bytes == 0 {
            return None;
        }
        self.algorithms.entry(bytes).or_insert_with(|| self.group.algorithm(work)).clone()
    }

    fn step(&mut self, total: u64, work: &Work, placement: Placement, what: &str) {
        let bytes = (work.shape.elements() * work.data_type.size()) as u64;
        let size = crate::sizes::human(bytes);
        let what = format!("{size} {} {}: {what}", work.data_type, placement.name());
        self.progress.step(self.done, total, bytes, &what);
        self.done += 1;
    }

    /// Fills, warms up, times and checks one placement.
    fn placement(
        &mut self,
        data: &Data,
        work: &Work,
        placement: Placement,
        total: u64,
        pair: &mut Pair,
    ) -> Result<Measured, Failure> {
        let (settings, group) = (self.settings, self.group);
        self.step(total, work, placement, "writing data");
        self.round += 1;
        data.fill(work, placement, self.round, pair);

        let (mut iterations, mut mean, mut each) = (0, 0.0, Vec::new());
        group.ready(work, data.buffers(work, placement, pair), &mut |repeat| {
            group.barrier()?;
            let begun = Instant::now();
            repeat(settings.warmups * settings.calls)?;
            iterations = match settings.iterations {
                Some(iterations) => iterations,
                None => self.iterations(begun.elapsed().as_secs_f64() / settings.warmups.max(1) as f64)?,
            };
            self.step(total, work, placement, "timing");
            group.barrier()?;
            (mean, each) = self.timed(repeat, iterations)?;
            group.barrier()
        })?;
        let means: Vec<f64> = gather_numbers(self.group, &[mean])?.into_iter().flatten().collect();
        if settings.verbose && self.group.rank() == 0 {
            let times: Vec<String> = means.iter().map(|mean| format!("{:.2}", mean * 1e6)).collect();
            eprintln!(
                "{}: {iterations} iterations, us per call by rank: {}",
                placement.name(),
                times.join(" ")
            );
        }
        let spread = match settings.times_each() {
            true => Spread::of(slowest(&gather_numbers(self.group, &each)?)),
            false => None,
        };

        self.step(total, work, placement, "checking");
        let wrong = self.check(data, work, placement, pair)?;
        let seconds = settings.average.of(&means);
        let bytes = (work.shape.elements() * work.data_type.size()) as f64;
        let bandwidth = if seconds > 0.0 { bytes / 1e9 / seconds } else { 0.0 };
        Ok(Measured {
            time_us: seconds * 1e6,
            algorithm_bandwidth: bandwidth,
            bus_bandwidth: bandwidth * work.collective.bus_factor(self.group.size()),
            wrong,
            iterations,
            spread,
        })
    }

    /// The number of iterations that fit into the time, if the slowest rank takes `seconds` for one.
    fn iterations(&self, seconds: f64) -> Result<u64, Failure> {
        let slowest = gather_numbers(self.group, &[seconds])?.into_iter().flatten().fold(0.0, f64::max);
        let fit = ITERATIONS_TIME.as_secs_f64() / slowest.max(1e-9);
        Ok((fit as u64).clamp(ITERATIONS_LEAST, ITERATIONS_MOST))
    }

    /// Seconds per call, and per call of each iteration if each is timed.
    fn timed(&self, repeat: &mut Repeat<'_>, iterations: u64) -> Result<(f64, Vec<f64>), Failure> {
        let settings = self.settings;
        let calls = settings.calls;
        let mut each = Vec::with_capacity(if settings.times_each() { iterations as usize } else { 0 });
        let begun = Instant::now();
        if settings.times_each() || settings.blocking == 1 {
            let mut last = begun;
            for _ in 0..iterations {
                if settings.blocking == 1 {
                    for _ in 0..calls {
                        repeat(1)?;
                        self.group.barrier()?;
                    }
                } else {
                    repeat(calls)?;
                }
                if settings.times_each() {
                    let now = Instant::now();
                    each.push((now - last).as_secs_f64() / calls as f64);
                    last = now;
                }
            }
        } else {
            repeat(iterations * calls)?;
        }
        Ok((begun.elapsed().as_secs_f64() / (iterations * calls) as f64, each))
    }

    /// Runs once on new data and looks at every element, as often as asked. Returns the wrong elements of all
    /// ranks.
    fn check(
        &mut self,
        data: &Data,
        work: &Work,
        placement: Placement,
        pair: &mut Pair,
    ) -> Result<Option<u64>, Failure> {
        let group = self.group;
        let mut wrong = None;
        for _ in 0..self.settings.checks {
            self.round += 1;
            data.fill(work, placement, self.round, pair);
            group.ready(work, data.buffers(work, placement, pair), &mut |repeat| {
                group.barrier()?;
                repeat(1)
            })?;
            if self.settings.corrupt == Some(group.rank()) {
                corrupt(data.buffers(work, placement, pair));
            }
            let mut finding = data.check(work, placement, self.round, pair);
            finding.note_strays(group.strays());
            for text in &finding.text {
                eprintln!(
                    "collbench: rank {}: {} of {} {}, {}: {text}",
                    self.group.rank(),
                    work.collective,
                    work.shape.count,
                    work.data_type,
                    placement.name()
                );
            }
            let all = gather_numbers(self.group, &[finding.wrong as f64])?;
            let found = all.into_iter().flatten().sum::<f64>() as u64;
            wrong = Some(wrong.unwrap_or(0) + found);
            if found > 0 {
                self.failed_checks += 1;
                break;
            }
        }
        Ok(wrong)
    }
}

/// Changes the last element of the output by more than any tolerance, to show that the check sees it.
fn corrupt(buffers: Buffers<'_>) {
    let output = match buffers {
        Buffers::Apart { output, .. } => output,
        Buffers::Together { memory, output, .. } => &mut memory[output],
    };
    if let Some(last) = output.last_mut() {
        // The second highest bit: the highest may be the sign of a zero.
        *last ^= 0x40;
    }
}

/// Of each iteration, the slowest rank's time.
fn slowest(ranks: &[Vec<f64>]) -> Vec<f64> {
    let iterations = ranks.first().map_or(0, Vec::len);
    (0..iterations).map(|iteration| ranks.iter().map(|times| times[iteration]).fold(0.0, f64::max)).collect()
}

/// Where each rank runs.
fn peers(group: &dyn Group) -> Result<Vec<Peer>, Failure> {
    const TEXT: usize = 64;
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let host = read("/proc/sys/kernel/hostname").trim().to_owned();
    let information = read("/proc/cpuinfo");
    let model = information.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let processor = model.map_or(std::env::consts::ARCH, |(_, model)| model.trim());
    let device = group.device();
    let (ordinal, bus, name) = match &device {
        Some(device) => (device.ordinal, device.bus.as_str(), device.name.as_str()),
        None => (0, "cpu", processor),
    };
    let mut record: Vec<u8> = [std::process::id(), ordinal].into_iter().flat_map(u32::to_le_bytes).collect();
    let numbers = record.len();
    for text in [host.as_str(), bus, name] {
        let mut field: Vec<u8> = text.bytes().take(TEXT).collect();
        field.resize(TEXT, 0);
        record.extend(field);
    }
    let all = group.gather(&record)?;
    let peer = |record: &[u8]| {
        let number =
            |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        let text = |nth: usize| {
            let at = numbers + nth * TEXT;
            String::from_utf8_lossy(&record[at..at + TEXT]).trim_end_matches('\0').to_owned()
        };
        Peer { process: number(0), device: number(4), host: text(0), bus: text(1), name: text(2) }
    };
    Ok(all.chunks_exact(record.len()).map(peer).collect())
}

#[cfg(test)]
mod tests;
