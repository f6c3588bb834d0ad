//! The history of a run for reports and pictures: the attempts, and the last outcome of each step. Derived from records.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use waypost::record::{Ending, Note, Phase, Record, RunStatus, Try, Usage, WaitKind};
use waypost::report::{SectionKey, section};
use waypost::store::{Scan, Store, StoreError};
use waypost::{RunId, ScopePath, StepId};

use crate::run::idle_times::IdleTimes;
use crate::view::doubt::Doubt;
use crate::view::step_names::StepNames;

/// The last session of a run, and its end: the last record, or now.
#[derive(Clone, Copy)]
pub(super) struct LastSession {
    pub(super) is_live: bool,
    pub(super) end: Timestamp,
}

/// An attempt of a step, in order of records.
pub(super) struct Bar {
    /// The path of the step.
    pub(super) called: String,
    /// The `name` in the workflow file.
    pub(super) name: Option<String>,
    pub(super) at: Try,
    pub(super) begin: Timestamp,
    /// `None` if the end is not recorded.
    pub(super) end: Option<Timestamp>,
    pub(super) outcome: &'static str,
    /// The attempt waits for its children or for a time, also over several sessions.
    pub(super) is_waiting: bool,
}

/// The last outcome of a step, in a scope and in a pass.
pub(super) struct StepEnd {
    pub(super) key: SectionKey,
    /// The path of the scope.
    pub(super) scope: String,
    pub(super) text: String,
    pub(super) outcome: &'static str,
    pub(super) at: Timestamp,
    pub(super) exit_code: Option<i32>,
    pub(super) error: Option<String>,
    pub(super) notes: Vec<Note>,
}

/// The content of a run's records.
#[derive(Default)]
pub(in crate::commands) struct RunHistory {
    pub(super) bars: Vec<Bar>,
    pub(super) ends: Vec<StepEnd>,
    pub(super) usage: Option<Usage>,
    pub(super) damaged: Vec<String>,
    pub(super) idle: IdleTimes,
    places: HashMap<SectionKey, usize>,
    open: HashMap<(ScopePath, StepId, Try), usize>,
}

/// Reads all records of a run, oldest first, scope by scope.
pub(in crate::commands) async fn read(
    store: &dyn Store,
    run: &RunId,
    names: &StepNames,
) -> Result<RunHistory, StoreError> {
    let mut history = RunHistory::default();
    let mut scan = Scan::of(run);
    loop {
        let page = store.scan(&scan).await?;
        for record in &page.records {
            history.take(record, names);
        }
        for damage in &page.damaged {
            history.damaged.push(crate::run::reference::damaged_reference(run, damage).to_string());
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(history),
        }
    }
}

impl RunHistory {
    /// Returns outcome and end of an attempt. Without a recorded end, the end of the session cut the attempt, except for
    /// running attempts and attempts with running children.
    pub(super) fn end_of(&self, bar: &Bar, last: LastSession) -> (&'static str, Timestamp) {
        let session_end = self.idle.within(bar.begin, last.end).next().filter(|_| !bar.is_waiting);
        match (bar.end, session_end) {
            (Some(end), _) => (bar.outcome, end.max(bar.begin)),
            (None, Some((end, _))) => ("cut", end),
            (None, None) if last.is_live || bar.is_waiting => (bar.outcome, last.end.max(bar.begin)),
            (None, None) => ("cut", last.end.max(bar.begin)),
        }
    }

    /// Returns the time with an attempt under way, without waits.
    pub(super) fn work(&self, last: LastSession) -> Duration {
        let attempts = self.bars.iter().filter(|bar| !bar.is_waiting);
        let mut spans: Vec<_> = attempts.map(|bar| (bar.begin, self.end_of(bar, last).1)).collect();
        spans.sort_unstable();
        let (mut work, mut counted) = (Duration::ZERO, Timestamp::MIN);
        for (begin, end) in spans {
            work += self.idle.work(begin.max(counted), end);
            counted = counted.max(end);
        }
        work
    }

    /// Marks the interrupted steps in doubt.
    pub(super) fn mark(&mut self, doubts: &[Doubt], names: &StepNames) {
        for ended in self.ends.iter_mut().filter(|ended| ended.outcome == "interrupted") {
            let called = names.called(&ended.key.scope, ended.key.step.as_str());
            if doubts.iter().any(|doubt| doubt.step == called) {
                ended.outcome = RunStatus::InDoubt.name();
                ended.text = ended.text.replacen(": interrupted\n", ": in doubt\n", 1);
            }
        }
    }

    /// Returns the last outcome of each step in each scope, oldest first.
    pub(in crate::commands) fn ends(&self) -> impl Iterator<Item = (&ScopePath, &StepId, &'static str)> {
        let ended = self.ends.iter().filter(|ended| !ended.key.accepted);
        ended.map(|ended| (&ended.key.scope, &ended.key.step, ended.outcome))
    }

    fn take(&mut self, record: &Record, names: &StepNames) {
        let header = record.header();
        let outcome = match &header.phase {
            Phase::Completed(_) => Some("completed"),
            Phase::Failed(failure) if failure.tolerated => Some("tolerated"),
            Phase::Failed(_) => Some("failed"),
            Phase::Interrupted { .. } => Some("interrupted"),
            Phase::Skipped(_) => Some("skipped"),
            Phase::Waiting(waits) if waits.iter().any(|wait| wait.on != WaitKind::Children) => {
                Some("waiting")
            }
            _ => None,
        };
        if header.scope.is_main() {
            self.idle.take(header);
        }
        if let (Some(step), Some(outcome)) = (&header.step, outcome) {
            let key = (header.scope.clone(), step.clone(), header.at.clone());
            if let Some(bar) = self.open.remove(&key) {
                (self.bars[bar].end, self.bars[bar].outcome) = (Some(header.created_at), outcome);
            }
        }
        let waits = match &header.phase {
            Phase::Waiting(_) => outcome.is_none(),
            Phase::Progress { key, .. } => key == "until",
            _ => false,
        };
        if let Some(step) = header.step.as_ref().filter(|_| waits) {
            let key = (header.scope.clone(), step.clone(), header.at.clone());
            self.open.get(&key).into_iter().for_each(|bar| self.bars[*bar].is_waiting = true);
        }
        for start in &header.started {
            let key = (header.scope.clone(), start.step.clone(), start.at.clone());
            // An attempt continues after a wait for items.
            if self.open.contains_key(&key) {
                continue;
            }
            self.open.insert(key, self.bars.len());
            self.bars.push(Bar {
                called: names.called(&header.scope, start.step.as_str()),
                name: names.name(&header.scope, start.step.as_str()).map(ToOwned::to_owned),
                at: start.at.clone(),
                begin: header.created_at,
                end: None,
                outcome: "unfinished",
                is_waiting: false,
            });
        }
        if let Some(usage) = &header.usage {
            *self.usage.get_or_insert_default() += usage;
        }
        let name = header.step.as_ref().and_then(|step| names.name(&header.scope, step.as_str()));
        let Some(section) = section(record, name) else { return };
        let ending: Option<&Ending> = match &header.phase {
            Phase::Completed(ending) => Some(ending),
            Phase::Failed(failure) => Some(&failure.ending),
            _ => None,
        };
        let ended = StepEnd {
            key: section.key.clone(),
            scope: names.path(&header.scope),
            text: plain(names, &section.text),
            outcome: outcome.unwrap_or(if section.key.accepted { "accepted" } else { "open" }),
            at: header.created_at,
            exit_code: ending.and_then(|ending| ending.exit_code),
            error: header.phase.failure().and_then(|failure| failure.error.first().cloned()),
            notes: header.notes.clone(),
        };
        match self.places.get(&section.key) {
            Some(place) => self.ends[*place] = ended,
            None => {
                self.places.insert(section.key, self.ends.len());
                self.ends.push(ended);
            }
        }
    }
}

/// Returns a section with readable names of scopes, and an unchanged marker.
fn plain(names: &StepNames, section: &str) -> String {
    let (marker, rest) = section.split_at(section.find('\n').unwrap_or(0));
    format!("{marker}{}", names.plain(rest))
}
