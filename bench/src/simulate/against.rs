//! `collbench simulate --against nccl`: the planner's choices beside NCCL's schedules, on the same wires at the same
//! costs.
//!
//! Invariant: both sides are virtual time by the library's simulator, but where a row says that the planner's own price
//! is continued or a formula. Both may send eagerly (LL) or not; NCCL has LL128 besides. What goes through aggregating switches is
//! priced beside the planner's choice and never counts as one. NCCL's model of itself is a third column and decides
//! nothing. Absent: measuring.

use std::fmt::Write;

use consort::planning::comparison::{Call, Price, Prices, under};
use consort::planning::hardware::Rates;
use consort::planning::simulate::nccl_model::Protocol;
use consort::planning::{Collective, Planning};

use super::fleet::{Bound, Kind, PER_BOX, with_fleet};
use crate::failure::Failure;
use crate::planned::{self, refused};
use crate::sizes::human;

/// What NCCL has an algorithm for, besides single messages.
pub(super) const COLLECTIVES: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

/// Sizes from which the distance from the bound counts.
const LONG_BYTES: u64 = 256 << 20;
/// Above it the planner continues prices from fewer boxes, or prices by formulas.
const SIMULATED_RANKS_MAX: u32 = 64;

/// What is compared.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Asked {
    pub(super) machines: Vec<Kind>,
    pub(super) rates: Rates,
    pub(super) boxes: Vec<u32>,
    pub(super) collectives: Vec<Collective>,
    pub(super) sizes: Vec<u64>,
}

/// One call.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Row {
    machine: Kind,
    boxes: u32,
    collective: Collective,
    bytes: u64,
    bound_s: f64,
    ours: String,
    ours_s: f64,
    /// Our schedule through the switches, where they fold.
    switched_s: Option<f64>,
    /// NCCL's fastest schedule in the simulator.
    nccl: Price,
    /// The least time by NCCL's own model, and what takes it.
    closed: Price,
}

impl Row {
    fn to_nccl(&self) -> f64 {
        self.ours_s / self.nccl.seconds
    }

    /// The same with what goes through switches.
    fn switched_to_nccl(&self) -> f64 {
        self.switched_s.unwrap_or(f64::INFINITY).min(self.ours_s) / self.nccl.seconds
    }

    fn to_bound(&self) -> f64 {
        self.ours_s / self.bound_s
    }

    /// The simulator's time of NCCL's schedule by the time that NCCL's model gives it.
    fn to_model(&self) -> f64 {
        self.closed.seconds / self.closed.closed
    }

    /// The planner's choice; `~` before it where its price is continued from fewer boxes or a formula.
    fn choice(&self) -> String {
        let by_formula = self.boxes * PER_BOX > SIMULATED_RANKS_MAX;
        format!("{}{}", if by_formula { "~" } else { "" }, self.ours)
    }

    fn place(&self) -> String {
        format!("{} on {}:{}, {}", self.collective, self.machine.name(), self.boxes, human(self.bytes))
    }
}

/// NCCL's candidate in its own words.
pub(super) fn words(price: &Price) -> String {
    format!("{:?}/{}", price.candidate.algorithm, protocol(price)).to_lowercase()
}

fn protocol(price: &Price) -> &'static str {
    match price.candidate.protocol {
        Protocol::LowLatency => "LL",
        Protocol::LowLatency128 => "LL128",
        Protocol::Simple => "simple",
    }
}

/// Works out all rows.
pub(super) fn rows(asked: &Asked) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for &machine in &asked.machines {
        with_fleet(machine, asked.rates, |fleet| {
            let mut prices = Prices::new(fleet);
            for &boxes in &asked.boxes {
                let topology = (fleet.wires)(boxes);
                let planned = |protocol: Protocol| {
                    let wires = under(&topology, protocol);
                    Planning::for_topology(&wires, &consort::Options::default()).map_err(refused)
                };
                let plannings =
                    Plannings { simple: planned(Protocol::Simple)?, eager: planned(Protocol::LowLatency)? };
                for &collective in &asked.collectives {
                    let bound = Bound::of(&topology, collective)
                        .ok_or_else(|| Failure::usage(format!("{collective} has no bound")))?;
                    for &bytes in &asked.sizes {
                        let call = Call { collective, bytes, per_box: PER_BOX, boxes };
                        rows.extend(row(&mut prices, &plannings, machine, bound, &call)?);
                    }
                }
            }
            Ok::<(), Failure>(())
        })?;
    }
    Ok(rows)
}

/// The planner on the wires as they are, and as eager messages have them.
struct Plannings {
    simple: Planning,
    eager: Planning,
}

impl Plannings {
    /// The cheaper of both choices, with its seconds.
    fn choice(&self, collective: Collective, block_bytes: u64) -> Result<(String, f64), Failure> {
        let of = |planning: &Planning| {
            let algorithm = planning.algorithm(collective, block_bytes).map_err(refused)?;
            Ok((algorithm.to_string(), planning.price(algorithm, collective, block_bytes)))
        };
        let (simple, eager) = (of(&self.simple)?, of(&self.eager)?);
        Ok(if eager.1 < simple.1 { (format!("{}, eager", eager.0), eager.1) } else { simple })
    }
}

fn row(
    prices: &mut Prices<'_>,
    plannings: &Plannings,
    machine: Kind,
    bound: Bound,
    call: &Call,
) -> Result<Option<Row>, Failure> {
    let Call { collective, bytes, boxes, .. } = *call;
    let block_bytes = planned::block_bytes(collective, bytes, plannings.simple.ranks());
    if block_bytes == 0 {
        return Ok(None);
    }
    let all = prices.all(call);
    let least =
        |of: fn(&Price) -> f64| all.iter().copied().min_by(|one, other| of(one).total_cmp(&of(other)));
    let (Some(nccl), Some(closed)) = (least(|price| price.seconds), least(|price| price.closed)) else {
        return Ok(None);
    };
    let (ours, ours_s) = plannings.choice(collective, block_bytes)?;
    let switched_s = prices.switched(call);
    let bound_s = bound.seconds(bytes);
    Ok(Some(Row { machine, boxes, collective, bytes, bound_s, ours, ours_s, switched_s, nccl, closed }))
}

/// The report: the headline, then a line for each machine, number of boxes and collective with its worst sizes.
pub(super) fn markdown(rows: &[Row]) -> String {
    let mut text = String::new();
    let worst = |of: &dyn Fn(&Row) -> f64, among: &dyn Fn(&Row) -> bool| -> Option<Row> {
        let among = rows.iter().filter(|row| among(row));
        among.max_by(|one, other| of(one).total_cmp(&of(other))).cloned()
    };
    // Writing to a String cannot fail.
    if let Some(row) = worst(&Row::to_nccl, &|_| true) {
        let (ratio, place) = (row.to_nccl(), row.place());
        let nccl = words(&row.nccl);
        let _ = writeln!(
            text,
            "Worst ratio of the planner's choice to the best of NCCL's schedules: **{ratio:.2}** ({place}: {} {} us, {nccl} {} us)",
            row.choice(),
            us(row.ours_s),
            us(row.nccl.seconds)
        );
        if let Some(row) = worst(&Row::switched_to_nccl, &|_| true) {
            let _ = writeln!(
                text,
                "With what goes through switches that fold: **{:.2}** ({})",
                row.switched_to_nccl(),
                row.place()
            );
        }
        let slower = rows.iter().filter(|row| row.to_nccl() > 1.0).count();
        let _ = writeln!(text, "Slower than NCCL's best in {slower} of {} calls", rows.len());
    }
    if let Some(row) = worst(&Row::to_bound, &|row| row.bytes >= LONG_BYTES) {
        let _ = writeln!(
            text,
            "Worst ratio to bandwidth bound and 2 log2(boxes) hops from {} on: **{:.2}** ({})",
            human(LONG_BYTES),
            row.to_bound(),
            row.place()
        );
    }
    text += "\n| machine | collective | worst to NCCL | at | planner's choice | NCCL's best | \
             worst to bound | at | NCCL's schedule to its model |\n|---|---|---:|---:|---|---|---:|---:|---|\n";
    for group in rows.chunk_by(|one, other| {
        (one.machine, one.boxes, one.collective) == (other.machine, other.boxes, other.collective)
    }) {
        text += &line(group);
    }
    text += "\nTimes are predicted. Worst to bound counts from 256 MiB on. ~ the planner's price is continued from fewer boxes, or a formula.\n";
    text
}

fn line(group: &[Row]) -> String {
    let by = |of: fn(&Row) -> f64| group.iter().max_by(move |one, other| of(one).total_cmp(&of(other)));
    let Some(worst) = by(Row::to_nccl) else { return String::new() };
    let long = group.iter().filter(|row| row.bytes >= LONG_BYTES);
    let long = long.max_by(|one, other| one.to_bound().total_cmp(&other.to_bound()));
    let long = long.map_or("- | -".into(), |row| format!("{:.2} | {}", row.to_bound(), human(row.bytes)));
    let model = group.iter().map(Row::to_model);
    let (least, most) =
        model.fold((f64::INFINITY, 0.0f64), |(least, most), ratio| (least.min(ratio), most.max(ratio)));
    format!(
        "| {}:{} | {} | {:.2} | {} | {} | {} | {long} | {least:.2} to {most:.2} |\n",
        worst.machine.name(),
        worst.boxes,
        worst.collective,
        worst.to_nccl(),
        human(worst.bytes),
        worst.choice(),
        words(&worst.nccl)
    )
}

fn us(seconds: f64) -> String {
    format!("{:.1}", seconds * 1e6)
}

/// Every row as comma-separated values.
pub(super) fn csv(rows: &[Row]) -> String {
    let mut text = String::from(
        "machine,boxes,collective,size,bound_us,choice,choice_us,switched_us,nccl,nccl_us,model,model_us,model_simulated_us\n",
    );
    for row in rows {
        let Row { machine, boxes, collective, bytes, .. } = row;
        let _ = writeln!(
            text,
            "{},{boxes},{collective},{bytes},{},\"{}\",{},{},{},{},{},{},{}",
            machine.name(),
            us(row.bound_s),
            row.choice(),
            us(row.ours_s),
            row.switched_s.map_or_else(String::new, us),
            words(&row.nccl),
            us(row.nccl.seconds),
            words(&row.closed),
            us(row.closed.closed),
            us(row.closed.seconds)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(sizes: &[u64]) -> Asked {
        Asked {
            machines: vec![Kind::H100],
            rates: Rates::DataSheet,
            boxes: vec![1],
            collectives: vec![Collective::AllReduce],
            sizes: sizes.to_vec(),
        }
    }

    #[test]
    fn the_headline_is_the_worst_row() {
        let rows = rows(&asked(&[64 << 10, 1 << 20])).expect("rows");
        assert_eq!(rows.len(), 2);
        let worst = rows.iter().map(Row::to_nccl).fold(0.0, f64::max);
        let text = markdown(&rows);
        assert!(text.starts_with("Worst ratio of the planner's choice"), "{text}");
        assert!(text.contains(&format!("**{worst:.2}**")), "{text}");
        // A head, its rule and one line for the machine.
        assert_eq!(text.lines().filter(|line| line.starts_with('|')).count(), 3, "{text}");
        assert!(!text.contains("from 256 MiB on: **"), "no long call: {text}");
        assert_eq!(csv(&rows).lines().count(), 3);
    }

    #[test]
    fn every_row_has_times_of_both_sides_and_the_bound_is_below() {
        for row in rows(&asked(&[64 << 10])).expect("rows") {
            assert!(
                row.bound_s > 0.0 && row.bound_s <= row.ours_s && row.bound_s <= row.nccl.seconds,
                "{row:?}"
            );
            assert!(row.to_model() > 0.0 && row.to_model().is_finite(), "{row:?}");
        }
    }

    #[test]
    fn the_report_is_empty_where_nothing_is_compared() {
        let rows = rows(&Asked { collectives: Vec::new(), ..asked(&[8]) }).expect("rows");
        assert!(rows.is_empty() && csv(&rows).lines().count() == 1);
        assert!(markdown(&rows).contains("| machine | collective |"));
    }
}
