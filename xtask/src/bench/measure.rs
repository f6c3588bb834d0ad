//! The elements of a benchmark: subjects, topics, demands, and the figures of rounds.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

/// Settings of a benchmark run: its folder and its form.
#[derive(Debug)]
pub(super) struct Bench {
    scratch: tempfile::TempDir,
    form: Form,
}

/// The extent of a benchmark run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Just enough to check the results.
    Short,
    /// Everything that takes minutes.
    Usual,
    /// Also topics that take many minutes.
    Long,
}

impl Bench {
    /// Creates a bench with a scratch folder below `dir`, which is removed with the bench.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub(super) fn new(dir: &Path, form: Form) -> anyhow::Result<Self> {
        let scratch = tempfile::Builder::new()
            .prefix("scratch-")
            .tempdir_in(dir)
            .with_context(|| format!("cannot make a folder in {}", dir.display()))?;
        Ok(Self { scratch, form })
    }

    /// Creates and returns the folder of the topic `name`.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub(super) fn folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.scratch.path().join(name);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }

    /// Returns the repetitions per round: `full`, or in the short form just enough to check the result.
    pub(super) fn count(&self, full: u32) -> u32 {
        self.count_or(full, COUNT_SHORT)
    }

    /// Returns the repetitions per round, with a specific number for the short form.
    pub(super) fn count_or(&self, full: u32, short: u32) -> u32 {
        if self.form == Form::Short { full.min(short) } else { full }
    }

    /// Returns whether long topics are measured too.
    pub(super) fn is_long(&self) -> bool {
        self.form == Form::Long
    }
}

/// More than 1, so that a second repetition is checked too.
const COUNT_SHORT: u32 = 10;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Operations per second; more is better.
    PerSecond,
    /// Bytes per second; more is better.
    BytesPerSecond,
    /// Milliseconds of wall time per operation; less is better.
    Milliseconds,
    /// Microseconds of processor time per operation; less is better.
    CpuMicroseconds,
    /// A count per operation; less is better.
    Count,
    /// Bytes on disk or in memory; less is better.
    Bytes,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PerSecond => "/s",
            Self::BytesPerSecond => "B/s",
            Self::Milliseconds => "ms",
            Self::CpuMicroseconds => "us CPU",
            Self::Count => "each",
            Self::Bytes => "bytes",
        })
    }
}

/// A measured operation, with a figure per finished round.
pub(super) struct Measured {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    round: Box<dyn FnMut() -> anyhow::Result<f64>>,
    figures: Vec<f64>,
}

impl Measured {
    /// Creates a subject. `round` does the work once, checks the result, and returns the figure in `unit`.
    pub(super) fn new(
        name: &'static str,
        unit: Unit,
        round: impl FnMut() -> anyhow::Result<f64> + 'static,
    ) -> Self {
        Self { name, unit, round: Box::new(round), figures: Vec::new() }
    }

    /// Returns the figures of all rounds so far, in order.
    pub(super) fn figures(&self) -> &[f64] {
        &self.figures
    }
}

impl fmt::Debug for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("name", &self.name)
            .field("figures", &self.figures)
            .finish_non_exhaustive()
    }
}

/// A bound on a ratio or figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    /// Returns whether `ratio` is within the bound.
    pub(super) fn holds(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, ">= {least}"),
            Self::AtMost(most) => write!(f, "<= {most}"),
        }
    }
}

/// A demand on a subject, relative to another subject of the same run.
#[derive(Debug)]
pub(super) struct Demand {
    /// The claim, for the table.
    pub(super) claim: &'static str,
    /// Name of the demanded subject.
    pub(super) ours: &'static str,
    /// Name of the subject for comparison; `None` for a bound on the figure itself.
    pub(super) limit: Option<&'static str>,
    /// Bound on the ratio `ours / limit`, or on the figure in its unit.
    pub(super) bound: Bound,
}

impl Demand {
    /// Returns the median of the per-round ratios, because a slow phase affects both sides of a round.
    /// Without a limit, returns the median figure.
    pub(super) fn actual(&self, ours: &[f64], limit: Option<&[f64]>) -> Option<f64> {
        match limit {
            Some(limit) => ratio(ours, limit),
            None => median(ours),
        }
    }
}

/// Related subjects. A demand may name subjects of any topic.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: &'static str,
    pub(super) subjects: Vec<Measured>,
    pub(super) demands: Vec<Demand>,
}

impl Topic {
    /// Runs a round of each subject.
    ///
    /// # Errors
    /// If the work fails, its result is wrong, or its figure is not a positive number.
    pub(super) fn measure(&mut self) -> anyhow::Result<()> {
        for subject in &mut self.subjects {
            let figure = (subject.round)().with_context(|| subject.name)?;
            ensure!(figure.is_finite() && figure > 0.0, "`{}` gave the figure {figure}", subject.name);
            subject.figures.push(figure);
        }
        Ok(())
    }
}

/// Returns milliseconds per operation for `count` operations since `start`.
pub(super) fn milliseconds(count: u32, start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3 / f64::from(count)
}

/// Returns the processor time of this thread.
pub(super) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a thread has not used less than no time")
}

/// Returns operations per second for `count` operations since `start`.
pub(super) fn per_second(count: u32, start: Instant) -> f64 {
    rate(f64::from(count), start.elapsed())
}

fn rate(amount: f64, elapsed: Duration) -> f64 {
    amount / elapsed.max(Duration::from_nanos(1)).as_secs_f64()
}

/// Returns the median of `figures`, or `None` if empty. For an even count, this is the mean of the middle
/// two.
pub(super) fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Returns the median of the per-round ratios.
fn ratio(ours: &[f64], limit: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = ours.iter().zip(limit).map(|(ours, limit)| ours / limit).collect();
    median(&ratios)
}

/// Returns `count` incompressible bytes, equal in every run.
pub(super) fn noise(count: usize) -> Vec<u8> {
    noise_from(1, count)
}

/// Returns [`noise`] from another initial state.
pub(super) fn noise_from(mut state: u64, count: usize) -> Vec<u8> {
    // A multiplicative congruential generator with Knuth's constants for MMIX; the high byte is random
    // enough.
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    })
    .take(count)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_one_disturbed_round() {
        assert_eq!(median(&[5.0, 1.0, 900.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 900.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_ratio_is_taken_round_by_round() {
        // The machine was ten times slower in the second round, for both subjects.
        assert_eq!(ratio(&[80.0, 8.0, 90.0], &[100.0, 10.0, 100.0]), Some(0.8));
    }

    #[test]
    fn a_bound_includes_its_edge() {
        assert!(Bound::AtLeast(0.8).holds(0.8) && !Bound::AtLeast(0.8).holds(0.79));
        assert!(Bound::AtMost(2.0).holds(2.0) && !Bound::AtMost(2.0).holds(2.01));
    }

    #[test]
    fn a_figure_that_is_none_stops_the_run() {
        let mut topic = Topic {
            name: "t",
            subjects: vec![Measured::new("s", Unit::PerSecond, || Ok(0.0))],
            demands: Vec::new(),
        };

        assert!(topic.measure().is_err());
    }

    #[test]
    fn noise_is_the_same_each_time_and_does_not_repeat() {
        let noise = noise(1024);

        assert_eq!(noise, super::noise(1024));
        assert_ne!(noise[..512], noise[512..]);
    }
}
