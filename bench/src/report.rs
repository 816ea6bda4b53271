//! What rank 0 writes: the table, JSON, comma-separated values.
//!
//! Invariant: the JSON file appears complete or not at all (it is written beside its place and renamed), and
//! contains no variable of the environment that could hold a secret.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::arguments::{ITERATIONS_LEAST, ITERATIONS_MOST, ITERATIONS_TIME, Settings};
use crate::clock;
use crate::device::is_stand_in;
use crate::failure::{Exit, Failure};
use crate::group::Facts;
use crate::sizes::{Step, human};
use crate::table::{self, Extra, Measured, Row};

/// The version of nccl-tests' JSON layout.
const JSON_VERSION: u32 = 2;

/// Where a rank runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    pub(crate) process: u32,
    pub(crate) host: String,
    /// The number of its device.
    pub(crate) device: u32,
    /// Where the device is on the bus; `cpu` where there is none.
    pub(crate) bus: String,
    /// The device's name, or the processor's.
    pub(crate) name: String,
}

/// Everything that a run tells.
pub(crate) struct Report<'a> {
    settings: &'a Settings,
    out: Box<dyn Write + 'a>,
    csv: Option<File>,
    extras: Vec<Extra>,
    arguments: Vec<String>,
    begun: String,
    peers: Vec<Peer>,
    /// Rank 0's device.
    device: Option<Facts>,
    results: Vec<Value>,
    bus: Vec<f64>,
    failed_checks: u64,
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Usage, format!("cannot {what} {}: {error}", path.display()))
}

/// Where the JSON is written until it is complete.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Finds out whether the files can be written, and leaves no partial one.
pub(crate) fn check_files(settings: &Settings) -> Result<(), Failure> {
    if let Some(path) = &settings.json {
        let partial = partial(path);
        File::create(&partial)
            .and_then(|_| fs::remove_file(&partial))
            .map_err(|error| cannot("write", path, &error))?;
    }
    if let Some(path) = &settings.csv {
        File::create(path).map_err(|error| cannot("write", path, &error))?;
    }
    Ok(())
}

impl<'a> Report<'a> {
    /// Opens the files, so that a wrong path is found before the measurement.
    pub(crate) fn new(
        settings: &'a Settings,
        out: Box<dyn Write + 'a>,
        arguments: Vec<String>,
        peers: Vec<Peer>,
        device: Option<Facts>,
    ) -> Result<Self, Failure> {
        check_files(settings)?;
        let csv = match &settings.csv {
            Some(path) => Some(File::create(path).map_err(|error| cannot("write", path, &error))?),
            None => None,
        };
        let extras = table::extras(settings.per_iteration, settings.percentiles);
        Ok(Self {
            settings,
            out,
            csv,
            extras,
            arguments,
            begun: clock::now(),
            peers,
            device,
            results: Vec::new(),
            bus: Vec::new(),
            failed_checks: 0,
        })
    }

    fn print(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        written.map_err(|error| Failure::internal(format!("cannot write the results: {error}")))
    }

    /// The comment lines above the results.
    pub(crate) fn heading(&mut self) -> Result<(), Failure> {
        let settings = self.settings;
        let (step, kind) = match settings.sweep.step {
            Step::Bytes(bytes) => (bytes, "bytes"),
            Step::Factor(factor) => (factor, "factor"),
        };
        let version = env!("CARGO_PKG_VERSION");
        let (threads, per_thread) = self.threads();
        let mut text = format!(
            "# collbench version {version} consort-library={version}\n\
             # Collective test starting: {}\n\
             # nThread {threads} nGpus {per_thread} minBytes {} maxBytes {} step: {step}({kind}) warmup iters: {} iters: {} \
             agg iters: {} validation: {} graph: 0 unalign: {}\n",
            settings.collective,
            settings.sweep.smallest,
            settings.sweep.largest,
            settings.warmups,
            settings.iterations.unwrap_or(ITERATIONS_MOST),
            settings.calls,
            settings.checks,
            settings.unalign,
        );
        if settings.iterations.is_none() {
            text.push_str(&format!(
                "# iters not given: {ITERATIONS_MOST}, or at least {ITERATIONS_LEAST}, as many as fit into {} s\n",
                ITERATIONS_TIME.as_secs()
            ));
        }
        if settings.blocking == 1 {
            text.push_str("# Blocking Enabled: wait for completion and barrier after each collective\n");
        }
        if settings.times_each() {
            text.push_str("# Per-Iteration Report: each iteration is the slowest rank's\n");
        }
        text.push_str(&format!("# seed: {}\n", settings.seed));
        if let Some(note) = &settings.note {
            text.push_str(&format!("# {note}\n"));
        }
        text.push_str(&self.places());
        text.push_str("#\n# Using devices\n");
        for (rank, peer) in self.peers.iter().enumerate() {
            text.push_str(&format!(
                "#  Rank {rank:>2} Group {:>2} Pid {:>6} on {:>10} device {:>2} [{}] {}\n",
                0, peer.process, peer.host, peer.device, peer.bus, peer.name
            ));
        }
        text.push_str(&table::heading(&self.extras));
        self.print(&text)?;
        let mut line = String::from("size,count,type,redop,root");
        for placement in ["out_of_place", "in_place"] {
            let columns = ["time_us", "alg_bw_gbs", "bus_bw_gbs", "wrong", "iterations"];
            let extras = self.extras.iter().map(|extra| extra.name.replace('%', "_pct"));
            for column in columns.into_iter().map(str::to_owned).chain(extras) {
                line.push_str(&format!(",{placement}_{column}"));
            }
        }
        line.push_str(",device,path");
        self.write_csv(&line)
    }

    /// How many threads of a process drive ranks, and how many devices each drives; 0 on a host.
    fn threads(&self) -> (usize, u32) {
        let per_thread = self.settings.devices.as_ref().map_or(0, |devices| devices.per_thread);
        let threads = if self.settings.threads { self.peers.len() / per_thread.max(1) as usize } else { 1 };
        (threads, per_thread)
    }

    /// Whether the devices are a stand-in's.
    fn pretends(&self) -> bool {
        self.peers.iter().any(|peer| peer.bus != "cpu" && is_stand_in(&peer.name))
    }

    /// `host` or `cuda`, and how operations run there.
    fn place(&self) -> (&'static str, &'static str) {
        self.device.as_ref().map_or(("host", ""), |device| ("cuda", device.path))
    }

    /// The comment lines about devices.
    fn places(&self) -> String {
        let Some(device) = &self.device else { return String::new() };
        let mut text = format!("# device: cuda, driver CUDA {}, path {}\n", device.driver, device.path);
        let all: BTreeSet<(&str, &str)> =
            self.peers.iter().map(|peer| (peer.host.as_str(), peer.bus.as_str())).collect();
        if all.len() < self.peers.len() {
            let devices = if all.len() == 1 { "device" } else { "devices" };
            text.push_str(&format!(
                "# {} ranks on {} {devices}: several ranks share one\n",
                self.peers.len(),
                all.len()
            ));
        }
        if self.pretends() {
            text.push_str("# a stand-in for tests serves as driver, without a GPU: TIMES MEAN NOTHING\n");
        }
        text
    }

    fn write_csv(&mut self, line: &str) -> Result<(), Failure> {
        let (Some(file), Some(path)) = (&mut self.csv, &self.settings.csv) else { return Ok(()) };
        writeln!(file, "{line}").map_err(|error| cannot("write", path, &error))
    }

    /// A comment between results.
    pub(crate) fn comment(&mut self, text: &str) -> Result<(), Failure> {
        self.print(&format!("# {text}\n"))
    }

    /// One result; `failed_checks` of its checks found something wrong.
    pub(crate) fn row(&mut self, row: &Row, failed_checks: u64) -> Result<(), Failure> {
        self.failed_checks += failed_checks;
        let measured = [&row.out_of_place, &row.in_place];
        self.bus.extend(measured.iter().filter_map(|measured| Some(measured.as_ref()?.bus_bandwidth)));
        let line = table::row(row, &self.extras);
        self.print(&format!("{line}\n"))?;

        let mut line = format!("{},{},{},{},{}", row.bytes, row.count, row.data_type, row.op, row.root);
        for measured in measured {
            let Some(measured) = measured else {
                line.push_str(&",".repeat(5 + self.extras.len()));
                continue;
            };
            let Measured { time_us, algorithm_bandwidth, bus_bandwidth, wrong, iterations, .. } = measured;
            let wrong = wrong.map_or(String::new(), |wrong| wrong.to_string());
            line.push_str(&format!(",{time_us},{algorithm_bandwidth},{bus_bandwidth},{wrong},{iterations}"));
            for extra in &self.extras {
                line.push_str(&extra.of(measured).map_or(",".into(), |value| format!(",{value}")));
            }
        }
        let (device, path) = self.place();
        line.push_str(&format!(",{device},{path}"));
        self.write_csv(&line)?;
        let result = self.json_row(row);
        self.results.push(result);
        Ok(())
    }

    fn json_row(&self, row: &Row) -> Value {
        let placement = |measured: &Option<Measured>| match measured {
            None => Value::Null,
            Some(measured) => json!({
                "time": measured.time_us,
                "alg_bw": measured.algorithm_bandwidth,
                "bus_bw": measured.bus_bandwidth,
                "nwrong": measured.wrong,
            }),
        };
        let iterations =
            row.out_of_place.as_ref().or(row.in_place.as_ref()).map(|measured| measured.iterations);
        let mut value = json!({
            "size": row.bytes,
            "count": row.count,
            "type": row.data_type,
            "redop": row.op,
            "root": row.root.to_string(),
            "out_of_place": placement(&row.out_of_place),
            "in_place": placement(&row.in_place),
            "actual_iterations": iterations,
            "algorithm": row.algorithm,
            "experiment_name": self.settings.collective.name(),
        });
        for (key, measured) in
            [("out_of_place_per_iter", &row.out_of_place), ("in_place_per_iter", &row.in_place)]
        {
            let Some(spread) = measured.as_ref().and_then(|measured| measured.spread.as_ref()) else {
                continue;
            };
            value[key] = json!({
                "min_us": spread.min * 1e6,
                "max_us": spread.max * 1e6,
                "avg_us": spread.avg * 1e6,
                "p50_us": spread.p50 * 1e6,
                "p95_us": spread.p95 * 1e6,
                "p99_us": spread.p99 * 1e6,
                "stdev_us": spread.stdev * 1e6,
                "cv_pct": spread.variation_percent(),
                "times_us": spread.times.iter().map(|time| time * 1e6).collect::<Vec<_>>(),
            });
        }
        value
    }

    fn average(&self) -> f64 {
        self.bus.iter().sum::<f64>() / self.bus.len().max(1) as f64
    }

    fn enough_bandwidth(&self) -> Option<bool> {
        self.settings.bandwidth_min.map(|least| self.average() >= 0.9 * least)
    }

    /// The lines below the results, and the files.
    pub(crate) fn finish(&mut self, library_bytes: u64) -> Result<Exit, Failure> {
        let verdict = |fine: bool| if fine { "OK" } else { "FAILED" };
        let mut text = format!(
            "# {:<20} : {} {}\n# {:<20} : {} {}\n",
            "Out of bounds values",
            self.failed_checks,
            verdict(self.failed_checks == 0),
            "Avg bus bandwidth",
            table::general(self.average()),
            self.enough_bandwidth().map_or("", verdict),
        );
        if self.settings.memory {
            text.push_str(&format!("# {:<20} : {} per rank\n", "Library memory", human(library_bytes)));
        }
        text.push_str(&format!("#\n# Collective test concluded: {}\n#\n", self.settings.collective));
        self.print(&text)?;
        self.write_json(&[])?;
        let fine = self.failed_checks == 0 && self.enough_bandwidth() != Some(false);
        Ok(if fine { Exit::Done } else { Exit::WrongData })
    }

    /// Writes what there is when the run ends early.
    pub(crate) fn abandon(&mut self, failure: &Failure) {
        drop(self.comment(&format!("error: {}", failure.message)));
        drop(self.write_json(&[&failure.message]));
    }

    fn write_json(&self, errors: &[&str]) -> Result<(), Failure> {
        let Some(path) = &self.settings.json else { return Ok(()) };
        let text = format!("{:#}\n", self.json(errors));
        fs::write(partial(path), text)
            .and_then(|()| fs::rename(partial(path), path))
            .map_err(|error| cannot("write", path, &error))
    }

    fn json(&self, errors: &[&str]) -> Value {
        let settings = self.settings;
        // nccl-tests writes truth as text.
        let truth = |value: bool| if value { "true" } else { "false" };
        let devices: Vec<Value> = (self.peers.iter().enumerate())
            .map(|(rank, peer)| {
                json!({
                    "rank": rank, "group": 0, "pid": peer.process, "hostname": peer.host,
                    "device": peer.device, "device_hex": peer.bus, "device_info": peer.name,
                })
            })
            .collect();
        let ((threads, per_thread), (place, path)) = (self.threads(), self.place());
        let mut config = json!({
            "nthreads": threads,
            "ngpus": per_thread,
            "nranks": self.peers.len(),
            "minimum_bytes": settings.sweep.smallest,
            "maximum_bytes": settings.sweep.largest,
            "warmup_iters": settings.warmups,
            "iterations": settings.iterations.unwrap_or(ITERATIONS_MOST),
            "iterations_adaptive": truth(settings.iterations.is_none()),
            "aggregated_iterations": settings.calls,
            "validation": settings.checks,
            "graph": 0,
            "blocking_collectives": truth(settings.blocking != 0),
            "per_iter_timing": truth(settings.times_each()),
            "parallel_init": "false",
            "unalign": settings.unalign,
            "seed": settings.seed,
            "ranks_because": settings.note,
            "device": place,
            "device_path": path,
            "driver_cuda_version": self.device.as_ref().map(|device| &device.driver),
            "times_mean_nothing": truth(self.pretends()),
            "devices": devices,
        });
        match settings.sweep.step {
            Step::Factor(factor) => config["step_factor"] = factor.into(),
            Step::Bytes(bytes) => config["step_bytes"] = bytes.into(),
        }
        json!({
            "version": JSON_VERSION,
            "start_time": self.begun,
            "end_time": clock::now(),
            "args": self.arguments,
            "env": environment(std::env::vars_os()),
            "nccl_version": null,
            "consort_version": env!("CARGO_PKG_VERSION"),
            "config": config,
            "results": self.results,
            "out_of_bounds": { "count": self.failed_checks, "okay": truth(self.failed_checks == 0) },
            "average_bus_bandwidth": {
                "bandwidth": self.average(),
                "okay": self.enough_bandwidth().map_or("unchecked", truth),
            },
            "errors": errors,
        })
    }
}

/// The variables that shape a run; secrets are named, not shown.
fn environment(all: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>) -> Vec<String> {
    let mut kept: Vec<String> = all
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(|(name, _)| name.starts_with("CONSORT_") || name.starts_with("NCCL_"))
        .map(|(name, value)| {
            let secret = ["SECRET", "KEY", "TOKEN", "PASSWORD", "_ID"].iter().any(|word| name.contains(word));
            format!("{name}={}", if secret { "(hidden)" } else { &value })
        })
        .collect();
    kept.sort();
    kept
}

#[cfg(test)]
mod tests;
