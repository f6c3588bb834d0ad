//! What a benchmark is made of: subjects, topics, demands, and the figures of their rounds.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

/// Where benchmarks write, and how much they do.
#[derive(Debug)]
pub(super) struct Bench {
    scratch: tempfile::TempDir,
    form: Form,
}

/// How much is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Just enough to check the results.
    Short,
    /// What can be measured in minutes.
    Usual,
    /// Also what takes many of them.
    Long,
}

impl Bench {
    /// A bench with a scratch folder beneath `dir`, removed when the bench is dropped.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub(super) fn new(dir: &Path, form: Form) -> anyhow::Result<Self> {
        let scratch = tempfile::Builder::new()
            .prefix("scratch-")
            .tempdir_in(dir)
            .with_context(|| format!("cannot make a folder in {}", dir.display()))?;
        Ok(Self { scratch, form })
    }

    /// The folder for the files of the topic `name`.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.scratch.path().join(name);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }

    /// How often a round repeats its work: `full`, or in the short form just enough to check the result.
    pub(super) fn count(&self, full: u32) -> u32 {
        self.count_or(full, COUNT_SHORT)
    }

    /// As [`count`](Self::count), where the result needs another number to be checked.
    pub(super) fn count_or(&self, full: u32, short: u32) -> u32 {
        if self.form == Form::Short { full.min(short) } else { full }
    }

    /// Whether what takes many minutes is measured, too.
    pub(super) fn is_long(&self) -> bool {
        self.form == Form::Long
    }
}

/// More than one, so that the second time is checked as well.
const COUNT_SHORT: u32 = 10;

/// What the figures of a subject are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// So many in a second; more is better.
    PerSecond,
    /// Bytes in a second; more is better.
    BytesPerSecond,
    /// Milliseconds by the clock for one; less is better.
    Milliseconds,
    /// Microseconds of a processor for one; less is better.
    CpuMicroseconds,
    /// So many for one; less is better.
    Count,
    /// Bytes on the disk or in memory; less is better.
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

/// One thing that is measured, and the figures so far, one a round.
pub(super) struct Subject {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    round: Box<dyn FnMut() -> anyhow::Result<f64>>,
    figures: Vec<f64>,
}

impl Subject {
    /// A subject whose `round` does the work once, checks its result, and returns the figure in `unit`.
    pub(super) fn new(
        name: &'static str,
        unit: Unit,
        round: impl FnMut() -> anyhow::Result<f64> + 'static,
    ) -> Self {
        Self { name, unit, round: Box::new(round), figures: Vec::new() }
    }

    /// The figures of the rounds so far, in order.
    pub(super) fn figures(&self) -> &[f64] {
        &self.figures
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("name", &self.name)
            .field("figures", &self.figures)
            .finish_non_exhaustive()
    }
}

/// What a ratio must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    /// Whether `ratio` is within it.
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

/// What is demanded of one subject, measured against another of the same run.
#[derive(Debug)]
pub(super) struct Demand {
    /// What is claimed, for the table.
    pub(super) claim: &'static str,
    /// The name of the subject it is about.
    pub(super) ours: &'static str,
    /// The name of the subject it is measured against; none if the bound is on the figure itself.
    pub(super) limit: Option<&'static str>,
    /// Of the ratio `ours / limit`, or of the figure in its unit.
    pub(super) bound: Bound,
}

impl Demand {
    /// What the bound is on: the median of the ratios round by round, since a slow moment of the machine hits both
    /// sides of its round, or the median figure.
    pub(super) fn actual(&self, ours: &[f64], limit: Option<&[f64]>) -> Option<f64> {
        match limit {
            Some(limit) => ratio(ours, limit),
            None => median(ours),
        }
    }
}

/// Subjects that belong together. A demand may name subjects of any topic.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: &'static str,
    pub(super) subjects: Vec<Subject>,
    pub(super) demands: Vec<Demand>,
}

impl Topic {
    /// Runs one round of each subject.
    ///
    /// # Errors
    /// When the work fails, its result is wrong, or its figure is not a positive number.
    pub(super) fn measure(&mut self) -> anyhow::Result<()> {
        for subject in &mut self.subjects {
            let figure = (subject.round)().with_context(|| subject.name)?;
            ensure!(figure.is_finite() && figure > 0.0, "`{}` gave the figure {figure}", subject.name);
            subject.figures.push(figure);
        }
        Ok(())
    }
}

/// Milliseconds for each, when `count` took what passed since `start`.
pub(super) fn milliseconds(count: u32, start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3 / f64::from(count)
}

/// How much processor time this thread has used.
pub(super) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a thread has not used less than no time")
}

/// How many in a second, when `count` took what passed since `start`.
pub(super) fn per_second(count: u32, start: Instant) -> f64 {
    rate(f64::from(count), start.elapsed())
}

fn rate(amount: f64, elapsed: Duration) -> f64 {
    amount / elapsed.max(Duration::from_nanos(1)).as_secs_f64()
}

/// The middle one of `figures`, or the mean of the middle two; nothing of none.
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

/// The median of the ratios round by round.
fn ratio(ours: &[f64], limit: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = ours.iter().zip(limit).map(|(ours, limit)| ours / limit).collect();
    median(&ratios)
}

/// `count` different bytes that do not compress, the same in every run.
pub(super) fn noise(count: usize) -> Vec<u8> {
    noise_from(1, count)
}

/// As [`noise`], and others for each `state` that it begins with.
pub(super) fn noise_from(mut state: u64, count: usize) -> Vec<u8> {
    // A multiplicative congruential generator with Knuth's constants for MMIX; the high byte is good enough.
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
        // The machine was ten times slower in the second round, for both.
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
            subjects: vec![Subject::new("s", Unit::PerSecond, || Ok(0.0))],
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
