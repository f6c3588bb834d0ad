//! What ends with a step that failed for good: its branch, or the run with all siblings.
//!
//! ```text
//!   main --fork, collects--> P --fork, stops--> a: fails
//!                                               b: in flight, is cancelled, and lands
//!   one commit, once all below P is quiet:  P ends as failed, a as failed, b as cancelled
//! ```
//!
//! A branch ends only when nothing below it is in flight any more: what was cancelled is recorded as that, and nothing
//! is left open behind it.

use std::collections::HashSet;

use crate::record::{End, Failure, Phase, Reason, Status, Try};

use super::chain::Draft;
use super::line::LineId;
use super::schedule::collects;
use super::session::Session;
use super::{Program, StopLevel};

/// A branch that is to end as failed.
#[derive(Debug)]
pub(super) struct Dying {
    /// The step of it that failed, or whose children did.
    place: usize,
    failure: Failure,
}

impl<P: Program> Session<'_, P> {
    /// Decides what ends with a step that failed for good: its branch, or the run with all siblings.
    pub(super) fn end_by_failure(&mut self, id: LineId, place: usize, failure: Failure) {
        let origin = self.lines.get(id);
        let (step, below) = (origin.step_id(place).clone(), origin.branch().clone());
        let mut failed = id;
        while let Some(opener) = self.lines.get(failed).opener {
            let parent = self.lines.get(opener.line);
            if collects(parent, opener.place) {
                let mut dying = Dying { place, failure };
                if failed != id {
                    dying.failure.error.insert(0, format!("branch `{below}` failed"));
                    let line = self.lines.get(failed);
                    dying.place = line.fans.first().expect("a branch above another has a fan-out").place;
                }
                self.lines.get_mut(failed).cancel.stop(StopLevel::Graceful, "a step of the branch failed");
                self.lines.get_mut(failed).dying.get_or_insert(dying);
                self.dying.insert(failed);
                return;
            }
            let by = format!("branch `{}` failed", self.lines.get(failed).branch());
            self.lines.get_mut(opener.line).fan_mut(opener.place).stopped = true;
            self.cancel_below(opener.line, Some(failed), &by);
            failed = opener.line;
        }
        self.halted = true;
        self.failed.get_or_insert((below, step, failure));
    }

    /// Ends the branches that are to end as failed and below which nothing is in flight; says whether there were any.
    pub(super) fn bury_the_quiet(&mut self) -> bool {
        let mut any = false;
        for id in self.dying.clone() {
            let below = self.below(id);
            let quiet = |id: &LineId| !self.lines.get(*id).is_active();
            if quiet(&id) && below.iter().all(quiet) {
                self.dying.remove(&id);
                self.bury(id, &below);
                any = true;
            }
        }
        any
    }

    fn bury(&mut self, id: LineId, below: &[LineId]) {
        for child in below {
            self.dying.remove(child);
            let line = self.lines.get_mut(*child);
            if line.end.is_some() {
                continue;
            }
            let end = if line.has(Status::Failed) { End::Failed } else { End::Cancelled };
            if line.drafts.is_empty() {
                let by = line.cancel.asked().map_or_else(|| "its branch failed".to_owned(), |stop| stop.by);
                let phase = Phase::Interrupted { in_progress: false, by };
                line.drafts.push(Draft::new(phase, Reason::Cancel, None, Try::default()));
            }
            (line.end, line.is_counted_out) = (Some(end), true);
            line.drafts.last_mut().expect("there is one by now").end = Some(end);
            self.mark_dirty(*child);
        }
        let line = self.lines.get_mut(id);
        let Dying { place, failure } = line.dying.take().expect("it was noted as dying");
        let said = line.drafts.last().is_some_and(|draft| matches!(draft.phase, Phase::Failed(_)));
        if !said {
            line.draft_of(place, Phase::Failed(failure), Reason::Step);
        }
        line.end = Some(End::Failed);
        self.mark_dirty(id);
        self.touched.insert(id);
    }

    /// Returns the branches in memory that a branch opened, and those that they opened.
    fn below(&self, id: LineId) -> Vec<LineId> {
        let mut found = vec![id];
        let mut next = 0;
        while let Some(above) = found.get(next).copied() {
            next += 1;
            if !self.lines.get(above).fans.is_empty() {
                let opened = |line: &super::line::Line<'_, P::State>| {
                    line.opener.is_some_and(|opener| opener.line == above)
                };
                found.extend(self.lines.iter().filter(|(_, line)| opened(line)).map(|(child, _)| child));
            }
        }
        found.remove(0);
        found
    }

    /// Cancels all that is under way on the branches that a branch opened, but for one of them and what is below it.
    pub(super) fn cancel_below(&mut self, id: LineId, except: Option<LineId>, by: &str) {
        let spared: HashSet<LineId> = except.into_iter().flat_map(|id| self.below(id)).collect();
        for child in self.below(id) {
            if Some(child) != except && !spared.contains(&child) {
                self.cancel(child, by);
            }
        }
    }

    fn cancel(&mut self, id: LineId, by: &str) {
        let line = self.lines.get_mut(id);
        if line.end.is_some() {
            return;
        }
        line.cancel.stop(StopLevel::Graceful, by);
        for fan in &mut line.fans {
            fan.stopped = true;
        }
        self.touched.insert(id);
        let line = self.lines.get_mut(id);
        line.alone.clear();
        let phase = || Phase::Interrupted { in_progress: false, by: by.to_owned() };
        let mut written = false;
        for place in std::mem::take(&mut line.starting) {
            line.draft_of(place, phase(), Reason::Cancel);
            line.unmark_started(place);
            written = true;
        }
        // A question that nobody needs an answer to any more is withdrawn.
        for place in line.asking_places() {
            line.draft_of(place, phase(), Reason::Cancel);
            let entry = line.entry_mut(place);
            (entry.status, entry.since, entry.wake_at) = (Status::Ready, 0, None);
            entry.waits.clear();
            written = true;
        }
        if written {
            self.mark_dirty(id);
        }
    }
}
