//! What a waiting person sees: a bar where standard error is a terminal, lines where it is none.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::train::Step;

/// A running mean's weight of the last step.
const WEIGHT: f64 = 0.1;
/// Lines of a run without a terminal.
const LINES: usize = 10;

/// The running mean after another loss.
fn mean(before: f64, loss: f64) -> f64 {
    before + WEIGHT * (loss - before)
}

/// The steps that were taken, and how the time was spent.
pub struct Progress {
    bar: ProgressBar,
    steps: usize,
    done: usize,
    begun: Instant,
    tokens: usize,
    exposed: Duration,
    idle: Duration,
    in_steps: Duration,
    /// How long each step took, and for how long it was exposed to communication.
    times: Vec<[Duration; 2]>,
    loss: Option<f64>,
}

impl Progress {
    /// Of a run of `steps` steps.
    pub fn new(steps: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("[{bar:24}] {pos}/{len}  {msg}  {eta} left");
        bar.set_style(style.expect("the template is right").progress_chars("##."));
        Progress {
            bar,
            steps,
            done: 0,
            begun: Instant::now(),
            tokens: 0,
            exposed: Duration::ZERO,
            idle: Duration::ZERO,
            in_steps: Duration::ZERO,
            times: Vec::new(),
            loss: None,
        }
    }

    /// It goes on after `done` steps. What is not shown draws nothing.
    pub fn go_on(&mut self, done: usize, shown: bool) {
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        self.bar.set_draw_target(target);
        self.bar.set_position(done as u64);
        self.done = done;
    }

    /// A step was taken. Returns a line for people, ten of them in a run, where there is no bar.
    pub fn step(&mut self, step: &Step) -> Option<String> {
        self.done += 1;
        self.tokens += step.tokens;
        self.exposed += step.exchange.exposed;
        self.idle += step.idle;
        self.in_steps += step.elapsed;
        self.times.push([step.elapsed, step.exchange.exposed]);
        self.loss = Some(self.loss.map_or(step.loss, |before| mean(before, step.loss)));
        let text = self.text();
        self.bar.set_message(text.clone());
        self.bar.inc(1);
        let is_due = self.done * LINES / self.steps > (self.done - 1) * LINES / self.steps;
        (self.bar.is_hidden() && is_due).then(|| format!("step {}/{}  {text}", self.done, self.steps))
    }

    /// The running mean of the losses; the tokens a second since the beginning, and the shares of the steps' time in which this
    /// rank waited for sums of gradients, and for other stages.
    fn text(&self) -> String {
        let rate = self.tokens as f64 / self.begun.elapsed().as_secs_f64().max(1e-9);
        let share = |part: Duration| 100.0 * part.as_secs_f64() / self.in_steps.as_secs_f64().max(1e-9);
        let (exposed, idle) = (share(self.exposed), share(self.idle));
        let loss = self.loss.unwrap_or(f64::NAN);
        format!(
            "loss {loss:.3}  {rate:.0} tokens/s  compute {:.1} %, exposed communication {exposed:.1} %, idle {idle:.1} %",
            100.0 - exposed - idle
        )
    }

    /// What the losses were since the beginning.
    pub fn learn(&mut self, losses: &[f64]) {
        self.loss = losses.iter().copied().reduce(mean);
    }

    /// The running mean of the losses.
    pub fn loss(&self) -> f64 {
        self.loss.unwrap_or(f64::NAN)
    }

    /// The medians of what a step took and of how long it was exposed to communication, on this rank. `None` before the first step.
    pub fn medians(&self) -> Option<[Duration; 2]> {
        let median = |which: usize| {
            let mut times: Vec<Duration> = self.times.iter().map(|times| times[which]).collect();
            times.sort_unstable();
            times.get(times.len() / 2).copied()
        };
        Some([median(0)?, median(1)?])
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::data::Exchange;
    use crate::timeline::{Activity, Span};

    #[test]
    fn ten_lines_are_written_where_there_is_no_bar() {
        let mut progress = Progress::new(35);
        let exchange = Exchange { exposed: Duration::from_millis(1), ..Exchange::default() };
        let now = Instant::now();
        let computed = [Span::new(Activity::Forward, now, now, now); 3];
        let elapsed = Duration::from_millis(4);
        let step = Step {
            loss: 2.0,
            norm: 1.0,
            rate: 0.1,
            tokens: 64,
            elapsed,
            exchange,
            idle: Duration::from_millis(1),
            sent: Vec::new(),
            computed: computed.into(),
        };
        let lines: Vec<String> = (0..35).filter_map(|_| progress.step(&step)).collect();
        assert_eq!(lines.len(), 10);
        assert_eq!(progress.medians(), Some([elapsed, Duration::from_millis(1)]));
        assert!(lines[9].starts_with("step 35/35  loss 2.000"), "{lines:?}");
        assert!(lines[9].ends_with("compute 50.0 %, exposed communication 25.0 %, idle 25.0 %"), "{lines:?}");
    }
}
