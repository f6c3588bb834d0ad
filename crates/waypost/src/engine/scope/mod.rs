//! An open scope in memory: the end of the record chain, the state, the position, and the drafts of the next commit.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures_util::future::AbortHandle;
use jiff::Timestamp;

use crate::id::{ScopePath, StepId};
use crate::plan::shape::{Shape, Unfinished};
use crate::record::{
    End, EndDigests, EvidenceCopies, Failure, FrontierEntry, Note, Phase, Position, Reason, RerunKind,
    RerunRequest, Reusable, RunStatus, STATE_BYTES_WARN, Settled, SettledAs, Start, Status, Try, Wait,
    WaitKind,
};
use crate::store::Progress;

use self::fan_out::{FanOut, Item, JoinedDigests};
use crate::engine::chain::{Chain, Draft};
use crate::engine::session::escalation::FailingScope;
use crate::engine::session::pending_wait::PendingWait;
use crate::engine::session::signals::StopHandle;
use crate::engine::walk::trace::pass_in;
use crate::engine::{Follow, StepFailure, StepRef, StepReport};

pub(super) mod child_ends;
pub(super) mod child_heads;
pub(super) mod children;
pub(super) mod fan_out;
mod in_doubt;
pub(super) mod open_scopes;

/// The number of a scope in the memory of a session.
pub(super) type ScopeId = usize;

/// The main scope.
pub(super) const MAIN: ScopeId = 0;

/// A running step.
#[derive(Debug)]
pub(super) struct RunningStep {
    pub(super) place: usize,
    /// Unique in the session.
    pub(super) job: u64,
    pub(super) abort: AbortHandle,
    /// The step is being suspended, until a wait of these ends.
    pub(super) waits: Vec<Wait>,
    /// Waits for messages, next to other work of the step.
    pub(super) pending: Vec<Arc<PendingWait>>,
    /// True if a wait has received its message.
    pub(super) was_delivered: bool,
}

impl RunningStep {
    pub(super) fn new(place: usize, job: u64, abort: AbortHandle) -> Self {
        Self { place, job, abort, waits: Vec::new(), pending: Vec::new(), was_delivered: false }
    }
}

/// The opener of a scope.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opener {
    pub(super) scope: ScopeId,
    /// The place of the opener.
    pub(super) place: usize,
    /// The index among the children.
    pub(super) index: u64,
}

/// The children found by a step, until these are opened.
#[derive(Debug)]
pub(super) struct ListedChildren {
    pub(super) place: usize,
    pub(super) items: Vec<Item>,
    pub(super) report: StepReport,
    /// True for hooks: the step's work has ended.
    pub(super) are_hooks: bool,
    /// The result of the step if the hooks cannot be opened: the earlier failure.
    pub(super) failure: Option<Failure>,
    /// The digests of the joined scopes of the step's work.
    pub(super) joined: Option<JoinedDigests>,
}

/// The deferred failure of an opener, until its scopes are at rest and its hooks are opened.
#[derive(Debug)]
pub(super) struct DeferredFailure {
    pub(super) place: usize,
    pub(super) failure: Failure,
    pub(super) items: Vec<Item>,
    pub(super) report: StepReport,
}

/// An open scope in memory.
pub(super) struct Scope<'a, S> {
    pub(super) chain: Chain,
    pub(super) shape: &'a Shape,
    pub(super) state: S,
    pub(super) position: Position,
    /// The unfinished steps, computed on first use. Never computed in a graph with routes.
    unfinished: Option<Unfinished>,
    pub(super) opener: Option<Opener>,
    /// The iteration of the whole scope, in the loops of its ancestors.
    pub(super) outer_iteration: Vec<u32>,
    pub(super) drafts: Vec<Draft>,
    /// Places started by the next commit.
    pub(super) starting: Vec<usize>,
    /// Places with a start that needs a separate commit.
    pub(super) starting_alone: Vec<usize>,
    pub(super) running_steps: Vec<RunningStep>,
    pub(super) fans: Vec<FanOut>,
    /// Children found by steps, until these are opened.
    pub(super) listed_children: Vec<ListedChildren>,
    /// Deferred failures of openers.
    pub(super) deferred_failures: Vec<DeferredFailure>,
    /// True on the first load after a person's resume: interrupted, failed and held steps continue.
    pub(super) reopens: bool,
    /// Steps that were running at the end of the previous session.
    pub(super) interrupted: Vec<StepId>,
    /// Failed openers with uncounted child ends.
    pub(super) uncounted: Vec<StepId>,
    /// Untolerated failures of the scope's steps, and of steps below that failed the scope.
    pub(super) failures: Vec<StepFailure>,
    /// Steps retried by a resume: their admission is decided again.
    pub(super) redecided: BTreeSet<StepId>,
    /// Stops only this scope.
    pub(super) cancel: StopHandle,
    /// Set if the scope ends as failed, once no descendant is running.
    pub(super) failing: Option<FailingScope>,
    /// Set if the scope ends with the next commit.
    pub(super) end: Option<End>,
    /// True if the scope waits for capacity in the queue of its opener.
    pub(super) is_waiting_for_capacity: bool,
    /// True if a non-idempotent step is running, by the newest records.
    pub(super) is_doubtful: bool,
    /// True if the opener has counted the end.
    pub(super) is_counted_out: bool,
    /// True if the scope was opened without capacity; it leaves memory after the commit.
    pub(super) unloading: bool,
    /// True if the scope counts towards the parallel limit of its siblings. A scope that only waits does not.
    pub(super) has_capacity: bool,
    /// True if all steps are done, but the run is held after the last step.
    pub(super) is_held_at_end: bool,
    /// The size of the state at the last warning.
    pub(super) warned_bytes: usize,
    /// The due time known to the session.
    pub(super) timer: Option<Timestamp>,
    /// The reason for records that begin something, until the next commit.
    pub(super) reason: Reason,
    /// Notes for the next record.
    pub(super) notes: Vec<Note>,
    /// Copies of the evidence of the records since the last copies.
    pub(super) copies: EvidenceCopies,
    /// The known digests of ends in force, if ends have traces.
    pub(super) digests: HashMap<StepId, EndDigests>,
}

impl<'a, S> Scope<'a, S> {
    pub(super) fn new(chain: Chain, shape: &'a Shape, position: Position, state: S) -> Self {
        Self {
            copies: EvidenceCopies::from(chain.next),
            chain,
            shape,
            state,
            position,
            unfinished: None,
            opener: None,
            outer_iteration: Vec::new(),
            // Usually there is a single draft at a time.
            drafts: Vec::with_capacity(1),
            starting: Vec::new(),
            starting_alone: Vec::new(),
            running_steps: Vec::new(),
            fans: Vec::new(),
            listed_children: Vec::new(),
            deferred_failures: Vec::new(),
            reopens: false,
            interrupted: Vec::new(),
            uncounted: Vec::new(),
            failures: Vec::new(),
            redecided: BTreeSet::new(),
            cancel: StopHandle::default(),
            failing: None,
            end: None,
            is_waiting_for_capacity: false,
            is_doubtful: false,
            is_counted_out: false,
            unloading: false,
            has_capacity: false,
            is_held_at_end: false,
            warned_bytes: 0,
            timer: None,
            reason: Reason::Step,
            notes: Vec::new(),
            digests: HashMap::new(),
        }
    }

    /// Adds the copies of evidence to the last draft, if there are enough copies. A batch that is written again keeps
    /// its copies.
    pub(super) fn write_copies(&mut self) {
        if self.copies.is_full() && self.drafts.iter().all(|draft| draft.copies.is_none()) {
            let seq = self.chain.next + self.drafts.len() as u64 - 1;
            let last = self.drafts.last_mut().expect("a scope in a batch has a draft");
            last.copies = Some(Box::new(self.copies.clone()));
            self.position.copies.push(seq);
        }
    }

    pub(super) fn path(&self) -> &ScopePath {
        &self.chain.scope
    }

    pub(super) fn step_ref(&self, place: usize) -> StepRef<'_> {
        let step = &self.shape.steps()[place];
        StepRef { scope: &self.chain.scope, level: self.shape.level(), place, step }
    }

    pub(super) fn step_id(&self, place: usize) -> &'a StepId {
        &self.shape.steps()[place].id
    }

    pub(super) fn entry(&self, place: usize) -> &FrontierEntry {
        let id = self.step_id(place);
        let found = self.position.frontier.iter().find(|entry| entry.step == *id);
        found.expect("a step under way is in the frontier")
    }

    pub(super) fn entry_mut(&mut self, place: usize) -> &mut FrontierEntry {
        let id = self.step_id(place);
        let found = self.position.frontier.iter_mut().find(|entry| entry.step == *id);
        found.expect("a step under way is in the frontier")
    }

    /// Returns the pass of a step; 1 for a step without a scope per pass.
    pub(super) fn pass_of(&self, place: usize) -> u32 {
        pass_in(self.shape, place, &self.entry(place).at.iteration)
    }

    pub(super) fn has(&self, status: Status) -> bool {
        self.position.frontier.iter().any(|entry| entry.status == status)
    }

    /// Returns whether a step of the scope is running or about to start.
    pub(super) fn is_active(&self) -> bool {
        !self.running_steps.is_empty() || !self.starting.is_empty() || !self.starting_alone.is_empty()
    }

    /// Returns the number of steps that are running or about to start.
    pub(super) fn active(&self) -> usize {
        self.running_steps.len() + self.starting.len() + self.starting_alone.len()
    }

    /// Returns the number of tolerated failures: of joined scopes, and of steps.
    pub(super) fn failures_passed(&self) -> u64 {
        self.position.failures_passed()
    }

    /// Returns whether a step of the scope ended as failed.
    pub(super) fn has_failed_end(&self) -> bool {
        !self.position.failed.is_empty()
    }

    /// Ends a step as failed with the newest draft. Keeps the entry for a retry, and makes its successors ready.
    pub(super) fn end_as_failed(&mut self, place: usize) {
        let entry = self.entry(place).clone();
        let settled = Settled::new(SettledAs::Failed, self.seq_of_next_draft() - 1);
        self.settle(place, Some(settled), Follow::Needs);
        self.position.failed.push(entry);
    }

    /// Returns the status of the run at the end of this main scope.
    pub(super) fn status_at_end(&self) -> RunStatus {
        if self.has_failed_end() {
            RunStatus::Failed
        } else if self.failures_passed() > 0 {
            RunStatus::CompletedWithFailures
        } else {
            RunStatus::Completed
        }
    }

    /// Marks the last draft as the end of the scope. Returns the number of failures that the parent tolerates.
    pub(super) fn end_with_last_draft(&mut self, end: End) -> u64 {
        let failures = if end == End::Completed { self.failures_passed() } else { 0 };
        let last = self.drafts.last_mut().expect("the end was written");
        (last.end, last.failures) = (Some(end), failures);
        failures + u64::from(end == End::Failed)
    }

    pub(super) fn seq_of_next_draft(&self) -> u64 {
        self.chain.next + self.drafts.len() as u64
    }

    /// Adds a draft about a step.
    pub(super) fn draft(&mut self, phase: Phase, reason: Reason, step: StepId, at: Try) -> &mut Draft {
        self.drafts.push(Draft::new(phase, reason, Some(step), at));
        self.drafts.last_mut().expect("a draft was just added")
    }

    /// Adds a draft about a step in the frontier.
    pub(super) fn draft_of(&mut self, place: usize, phase: Phase, reason: Reason) -> &mut Draft {
        let entry = self.entry(place);
        let (step, at) = (entry.step.clone(), entry.at.clone());
        self.draft(phase, reason, step, at)
    }

    /// Ensures that there is a draft, and puts the next starts on the last draft.
    ///
    /// `by`: the cause of the stop, if nothing else happened.
    pub(super) fn complete_drafts(&mut self, status: Option<RunStatus>, by: impl FnOnce() -> String) {
        // The record before may have the start of a step that is not launched yet.
        let is_new = |place: &&usize| self.entry(**place).since == 0;
        let starts: Vec<Start> =
            self.starting.iter().filter(is_new).map(|place| self.start_of(*place)).collect();
        if self.drafts.is_empty() {
            let draft = match (status, starts.first()) {
                (Some(_), None) if !self.position.frontier.is_empty() => {
                    let phase = Phase::Interrupted { in_progress: false, by: by() };
                    Draft::new(phase, Reason::Stopped, None, Try::default())
                }
                (_, first) => {
                    let (step, at) = first.map(|start| (start.step.clone(), start.at.clone())).unzip();
                    Draft::new(Phase::Started, self.reason, step, at.unwrap_or_default())
                }
            };
            self.drafts.push(draft);
        }
        let last = self.drafts.last_mut().expect("the parent has an entry");
        last.report.notes.append(&mut self.notes);
        last.started.extend(starts);
    }

    /// Removes a finished step from the frontier, and adds its successors.
    pub(super) fn settle(&mut self, place: usize, settled: Option<Settled>, follow: Follow) {
        let id = self.step_id(place).clone();
        let entry = self.entry(place);
        let at = entry.at.clone();
        let joined = entry.fan.clone().filter(|_| !self.shape.is_routed());
        if follow == Follow::Needs {
            self.unfinished();
        }
        self.position.frontier.retain(|entry| entry.step != id);
        self.position.failed.retain(|entry| entry.step != id);
        self.redecided.remove(&id);
        // A skipped or passed-over end keeps reusable results, questions and requests. After a failure, a retry continues
        // the requested rerun in later passes.
        let is = |ends: &[SettledAs]| settled.as_ref().is_some_and(|settled| ends.contains(&settled.how));
        let (has_failed, is_skipped) =
            (is(&[SettledAs::Failed]), is(&[SettledAs::Skipped, SettledAs::PassedOver]));
        let keeps_effect = is(&[SettledAs::SkippedByHand]) && self.position.had_effect(&id);
        if !is_skipped {
            self.position.ask_no_more(&id);
        }
        if follow != Follow::To(place) && !is_skipped {
            if !has_failed {
                self.position.rerun_whole.remove(&id);
            }
            if let Some(hooks) = self.shape.steps()[place].hooks.as_ref().filter(|_| !has_failed) {
                self.position.rerun_whole.remove(&hooks.name);
            }
            if self.shape.steps()[place].opens() && !self.position.requests.is_empty() {
                let root = self.shape;
                self.position.requests.retain(|request| {
                    !is_below(root, &request.scope, &id) || is_effect_of_removed(root, request)
                });
            }
            // No later pass follows: drop the results of later passes.
            self.position.reusable.remove(&id);
        }
        if keeps_effect {
            self.position.note_effect(&id);
        }
        self.fans.retain(|fan| fan.place != place);
        match settled {
            Some(mut settled) => {
                if settled.fan.is_none() && settled.has_result() {
                    settled.fan = joined.map(Box::new);
                }
                self.position.ledger.insert(id, settled);
            }
            None => {
                self.position.ledger.remove(&id);
            }
        }
        let freed = match follow {
            Follow::Needs => {
                let shape = self.shape;
                self.unfinished().settle(shape, place)
            }
            Follow::To(next) => {
                self.follow(place, Some(next));
                vec![next]
            }
            Follow::End => {
                self.follow(place, None);
                Vec::new()
            }
        };
        for next in freed {
            let mut entry = FrontierEntry::ready(self.step_id(next).clone());
            // Independent of the order of the needs: a rerun step never has the same epoch twice.
            entry.at.epoch = at.epoch.max(self.position.epoch);
            entry.at.iteration = self.shape.iteration(place, next, &at.iteration, self.outer_iteration.len());
            self.position.frontier.push(entry);
        }
    }

    /// Returns the number of failed children, in the ending pass and in earlier passes.
    pub(super) fn failures_joined(&self, place: usize) -> u64 {
        let fan = self.entry(place).fan.as_ref();
        fan.map_or(0, |fan| fan.failures) + self.failures_before(place)
    }

    /// Returns the number of failed children and tolerated failures in the passes before the current pass.
    pub(super) fn failures_before(&self, place: usize) -> u64 {
        let entry = self.entry(place);
        let is_later_pass = entry.at.iteration.last().is_some_and(|pass| *pass > 1);
        let fan = entry.fan.as_ref().filter(|fan| fan.pass > 0);
        let before = match fan {
            Some(fan) => fan.passes.last().map(|pass| &pass.settled),
            None => self.position.ledger.get(self.step_id(place)).filter(|_| is_later_pass),
        };
        before.map_or(0, Settled::failures_passed)
    }

    /// Returns the unfinished steps; computed on the first call, then kept up to date.
    pub(super) fn unfinished(&mut self) -> &mut Unfinished {
        self.unfinished.get_or_insert_with(|| Unfinished::of(self.shape, &self.position))
    }

    /// Returns the progress of the scope.
    pub(super) fn progress(&self) -> Progress {
        match &self.unfinished {
            Some(unfinished) => unfinished.progress(self.shape, &self.position),
            None => Unfinished::of(self.shape, &self.position).progress(self.shape, &self.position),
        }
    }

    fn follow(&mut self, from: usize, to: Option<usize>) {
        if let Some(unfinished) = &mut self.unfinished {
            unfinished.follow(self.shape, from, to, std::iter::empty());
        }
    }

    /// Returns the result out of force of a ready step, for its current pass.
    pub(super) fn result_of(&self, entry: &FrontierEntry) -> Option<&Reusable> {
        let results = self.position.reusable.get(&entry.step).filter(|_| !entry.has_children())?;
        results.get(&self.pass_of(self.shape.place(entry.step.as_str())?))
    }

    /// Removes and returns this result.
    pub(super) fn take_result(&mut self, place: usize) -> Option<Reusable> {
        let (step, pass) = (self.step_id(place).clone(), self.pass_of(place));
        let results = self.position.reusable.get_mut(&step)?;
        let result = results.remove(&pass);
        if results.is_empty() {
            self.position.reusable.remove(&step);
        }
        result
    }

    /// Returns the next step that may start.
    pub(super) fn next_ready(&self, now: Timestamp, free: impl Fn(&usize) -> bool) -> Option<usize> {
        let due = |entry: &&FrontierEntry| {
            entry.status == Status::Ready && entry.wake_at.is_none_or(|wake_at| wake_at <= now)
        };
        let place = |entry: &FrontierEntry| self.shape.place(entry.step.as_str());
        let free = |place: &usize| free(place) && !self.starting_alone.contains(place);
        // A step with a reusable result starts only after the decision about reuse.
        let due = |entry: &&FrontierEntry| due(entry) && self.result_of(entry).is_none();
        self.position.frontier.iter().filter(due).filter_map(place).find(free)
    }

    /// Returns the next due time of a delayed attempt or a sleep.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let timed = |entry: &&FrontierEntry| matches!(entry.status, Status::Ready | Status::Waiting);
        self.position.frontier.iter().filter(timed).filter_map(|entry| entry.wake_at).min()
    }

    pub(super) fn mark_started(&mut self, place: usize) -> Start {
        self.position.steps_started += 1;
        let step = self.step_id(place).clone();
        self.redecided.remove(&step);
        self.position.repeat_effect(&step);
        let tries = self.tries_at(place);
        let visit = (step, self.entry(place).at.iteration.clone());
        if let Some(chain) = self.position.chain.as_mut().filter(|chain| chain.head.is_some()) {
            chain.started.insert(visit);
        }
        let entry = self.entry_mut(place);
        entry.status = Status::Started;
        entry.at.attempt += tries;
        entry.exited = None;
        entry.since = 0;
        entry.wake_at = None;
        entry.waits.clear();
        self.start_of(place)
    }

    fn start_of(&self, place: usize) -> Start {
        let entry = self.entry(place);
        let joins = entry.has_children();
        let needs = match self.drafts.last() {
            _ if joins => Vec::new(),
            // The end of the previous step chose the route.
            Some(draft) if self.shape.is_routed() => draft.step.clone().into_iter().collect(),
            _ => self.shape.needs(place).iter().map(|need| self.step_id(*need).clone()).collect(),
        };
        Start { step: entry.step.clone(), at: entry.at.clone(), joins, needs }
    }

    /// Returns the number of attempts that a start counts: the join of hooks, and the start after a wait, belong to
    /// the previous attempt.
    fn tries_at(&self, place: usize) -> u32 {
        let entry = self.entry(place);
        u32::from(!(self.runs_hooks(place) || entry.continues && entry.at.attempt > 0))
    }

    /// Returns whether a step has open hooks, or is about to join the hooks.
    pub(super) fn runs_hooks(&self, place: usize) -> bool {
        self.entry(place).hooks.is_some()
    }

    /// Ends the hooks of a step: a retry begins with the step's work, and the hooks may then exist already.
    pub(super) fn end_hooks(&mut self, place: usize) {
        self.position.note_rerun();
        self.fans.retain(|fan| fan.place != place);
        self.entry_mut(place).hooks = None;
    }

    /// Reverts a start.
    pub(super) fn unmark_started(&mut self, place: usize) {
        let tries = self.tries_at(place);
        let entry = self.entry_mut(place);
        entry.status = Status::Ready;
        entry.at.attempt -= tries;
        entry.since = 0;
        self.position.steps_started -= 1;
    }

    /// Adds a warning to the next record if the state has become large, and again after each doubling.
    pub(super) fn warn_of_size(&mut self, bytes: usize) -> Option<String> {
        if bytes < STATE_BYTES_WARN.max(2 * self.warned_bytes) {
            return None;
        }
        self.warned_bytes = bytes;
        let draft = self.drafts.last_mut()?;
        let at = draft.step.as_ref().map_or(String::new(), |step| format!(" at step `{step}`"));
        let text = format!(
            "the state of scope `{}`{at} has {bytes} bytes, repeated in every checkpoint: keep large data \
             in files and their hashes in the state",
            self.chain.scope
        );
        draft.report.notes.push(Note::Warning(text.clone()));
        Some(text)
    }

    /// Returns whether the scope is held before or after a step.
    pub(super) fn is_held(&self) -> bool {
        let held = |entry: &FrontierEntry| entry.waits.iter().any(|wait| wait.on == WaitKind::Resume);
        self.position.frontier.iter().any(held)
    }

    /// Returns whether a step of the scope waits for a time.
    pub(super) fn sleeps(&self) -> bool {
        self.waiting_for(&|wait| wait.due().is_some()).is_some()
    }

    /// Returns the steps with external waits.
    pub(super) fn asking_places(&self) -> Vec<usize> {
        let outside =
            |wait: &Wait| matches!(wait.on, WaitKind::Answer | WaitKind::Signal(_) | WaitKind::Until(_));
        let asking =
            |entry: &&FrontierEntry| entry.status == Status::Waiting && entry.waits.iter().any(outside);
        let entries = self.position.frontier.iter().filter(asking);
        entries.filter_map(|entry| self.shape.place(entry.step.as_str())).collect()
    }

    /// Returns a step with a matching wait.
    pub(super) fn waiting_for(&self, matches: &dyn Fn(&Wait) -> bool) -> Option<usize> {
        let waits =
            |entry: &&FrontierEntry| entry.status == Status::Waiting && entry.waits.iter().any(matches);
        let entry = self.position.frontier.iter().find(waits)?;
        self.shape.place(entry.step.as_str())
    }

    /// Asks open questions again after damage: a lost record may have consumed the answer. Each opening of a
    /// question has a separate answer.
    pub(super) fn ask_again(&mut self) {
        for place in self.asking_places() {
            let entry = self.entry_mut(place);
            entry.since = 0;
            let waits = entry.waits.clone();
            self.draft_of(place, Phase::Waiting(waits), Reason::Repair);
        }
    }

    /// Makes due sleeping steps ready.
    pub(super) fn wake(&mut self, now: Timestamp) {
        for entry in &mut self.position.frontier {
            if entry.status == Status::Waiting && entry.wake_at.is_some_and(|due| due <= now) {
                entry.end_wait();
            }
        }
    }

    /// Returns whether the scope can progress only after an external event.
    pub(super) fn rests(&self) -> bool {
        let rests = |entry: &FrontierEntry| {
            let joins = entry.waits.iter().any(|wait| wait.on == WaitKind::Children);
            let place = self.shape.place(entry.step.as_str()).filter(|_| joins);
            let fan = self.fans.iter().find(|fan| Some(fan.place) == place);
            entry.status == Status::Waiting && (!joins || fan.is_some_and(FanOut::rests))
        };
        !self.is_active() && self.position.frontier.iter().all(rests)
    }

    pub(super) fn fan_mut(&mut self, place: usize) -> &mut FanOut {
        let found = self.fans.iter_mut().find(|fan| fan.place == place);
        found.expect("a step with open children has a fan-out")
    }
}

/// Returns whether a request notes the effect of a step that the current graph lacks.
fn is_effect_of_removed(root: &Shape, request: &RerunRequest) -> bool {
    let is_there = || root.of_scope(&request.scope)?.step(request.step.as_str());
    request.kind == RerunKind::Confirm && is_there().is_none()
}

/// Returns whether a scope is below a step of the main scope.
fn is_below(root: &Shape, scope: &ScopePath, step: &StepId) -> bool {
    let outermost = std::iter::successors(Some(scope.clone()), ScopePath::parent)
        .find(|around| around.parent().is_some_and(|parent| parent.is_main()));
    outermost.and_then(|outermost| crate::engine::resume::reruns::opener_of(root, &outermost)).as_ref()
        == Some(step)
}
