//! Spans of time in which no process worked on a run: from the end of a session to the next resume. Durations of
//! steps and of the run leave them out.

use std::time::Duration;

use jiff::Timestamp;
use waypost::record::Header;

/// The idle times of a run, in order.
#[derive(Debug, Default)]
pub(crate) struct IdleTimes(Vec<(Timestamp, Timestamp)>);

impl IdleTimes {
    /// Returns the idle times by the headers of the main scope, in any order.
    pub(crate) fn of<'a>(headers: impl Iterator<Item = &'a Header>) -> Self {
        let mut idle = Self::default();
        headers.for_each(|header| idle.take(header));
        idle.0.sort_unstable();
        idle
    }

    /// Adds the idle time before a record, if the record is the first of a resume.
    pub(crate) fn take(&mut self, header: &Header) {
        if let Some(since) = header.idle_since.filter(|since| *since < header.created_at) {
            self.0.push((since, header.created_at));
        }
    }

    /// Returns the idle times that begin in a span.
    pub(crate) fn within(
        &self,
        start: Timestamp,
        end: Timestamp,
    ) -> impl Iterator<Item = (Timestamp, Timestamp)> {
        self.0.iter().copied().filter(move |(since, _)| start <= *since && *since < end)
    }

    /// Returns the time of work from `start` to `end`.
    pub(crate) fn work(&self, start: Timestamp, end: Timestamp) -> Duration {
        let length =
            |from: Timestamp, to: Timestamp| Duration::try_from(to.duration_since(from)).unwrap_or_default();
        let idle = self.0.iter().map(|(since, until)| length((*since).max(start), (*until).min(end)));
        length(start, end).saturating_sub(idle.sum())
    }

    /// Returns the milliseconds of work from `start` to `end`.
    pub(crate) fn work_ms(&self, start: Timestamp, end: Timestamp) -> Option<u64> {
        u64::try_from(self.work(start, end).as_millis()).ok()
    }
}
