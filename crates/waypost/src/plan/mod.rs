//! The plan from records: the next action for each step, with a cause. Pure: no clock, no disk, no randomness.
//!
//! [`checks`] lists the claims to check before a resume trusts finished steps. [`plan`] turns the graph, the
//! newest sound record of each open scope and the verdicts into one decision per step.
//!
//! ```text
//!   newest records --> checks --> claims --(probes, elsewhere)--> verdicts
//!         |                                                          |
//!         +------------------------> plan <--------------------------+
//! ```
//!
//! A resume takes the broken steps and the questions from this plan; the walk of the engine decides the starts.
//! `waypost plan` and `waypost why` show a dry run of the engine, with the causes of this plan:
//! docs/decisions/0010-plan-by-dry-run.md.
//!
//! All steps neither in nor downstream of the frontier are finished. A record per scope is therefore enough
//! input, for any length of history.

#[doc(hidden)]
pub mod change;
pub mod shape;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use jiff::Timestamp;
use serde::Serialize;

use crate::id::{ScopePath, StepId};
use crate::plan::shape::{Shape, Step, Unfinished};
use crate::record::{Claim, FrontierEntry, Occasion, Pack, Position, Settled, SettledAs, Status, Verdict};

mod cause;
mod lost;
mod rank;
mod step_verdict;

use crate::evidence::resolved;
pub(crate) use crate::evidence::{ClaimKey, Newest};
pub use cause::Cause;
pub(crate) use lost::steps_in_lost;
use rank::{Rank, Ranks};
use step_verdict::StepVerdict;

/// The plan's input for one scope: the newest sound record, and the evidence of finished steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// The scope.
    pub scope: ScopePath,
    /// The seq of the scope's newest sound record.
    pub seq: u64,
    /// The number of later records that are lost: damaged, removed, or quarantined.
    pub lost: u64,
    /// The position: unfinished steps and the ledger.
    pub position: Position,
    /// Evidence of finished and interrupted steps, found through the ledger and `since`.
    pub evidence: BTreeMap<StepId, Pack>,
    /// Evidence of results out of force, with the seq of the record. Their claims can supersede claims of
    /// earlier steps.
    pub reusable: BTreeMap<StepId, (u64, Pack)>,
    /// Evidence from earlier passes of steps on loops, with the seq of the record; newest first.
    pub passes: BTreeMap<StepId, Vec<(u64, Pack)>>,
    /// Subjects that running steps may be writing, beyond the subjects named by the graph.
    pub in_flux: BTreeSet<String>,
    /// The requester of the stop, if the newest record says that the scope was interrupted.
    pub stopped_by: Option<String>,
    /// If the newest record is a rollback: the unfinished steps that had begun before.
    pub rolled_back: Option<BTreeSet<StepId>>,
}

/// A claim to check, with its scope, step and record.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// The scope.
    pub scope: ScopePath,
    /// The step that made the claim.
    pub step: StepId,
    /// The record that finished the step; `None` if the step was interrupted.
    pub seq: Option<u64>,
    /// The index among the step's claims: the newest pack first, then earlier passes, newest first.
    pub index: usize,
    /// The claim.
    pub claim: Claim,
}

/// Verdicts of checks, by scope, step and index among the claims of the step.
pub type Verdicts = HashMap<(ScopePath, StepId, usize), Verdict>;

/// The action that a plan chooses for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Reuse the recorded result.
    Reuse,
    /// An upstream step reruns: reuse the result if the upstream outputs stay the same.
    Recheck,
    /// Run the step, for the first time or again.
    Run,
    /// Retry the failed step.
    Retry,
    /// Restart a service whose evidence failed; downstream steps keep their results.
    Restart,
    /// Wait for a time, an answer, a signal or children.
    Wait,
    /// Ask a person.
    Ask,
    /// Keep the recorded decision to skip the step.
    Skip,
}

impl Action {
    /// Returns the word for the action in JSON and on screens.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reuse => "reuse",
            Self::Recheck => "recheck",
            Self::Run => "run",
            Self::Retry => "retry",
            Self::Restart => "restart",
            Self::Wait => "wait",
            Self::Ask => "ask",
            Self::Skip => "skip",
        }
    }
}

/// The action for a step, with its cause.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The scope.
    pub scope: ScopePath,
    /// The step.
    pub step: StepId,
    /// The action.
    pub action: Action,
    /// The cause of the action.
    pub cause: Cause,
}

impl Decision {
    /// Returns the word for the action in JSON and on screens; a run of a finished step is a `rerun`.
    pub fn action_name(&self) -> &'static str {
        let is_rerun = self.action == Action::Run && self.cause.is_of_rerun();
        if is_rerun { "rerun" } else { self.action.name() }
    }

    /// Returns whether the step stays as recorded: nothing runs, and no record is written for the step.
    pub fn changes_nothing(&self) -> bool {
        matches!(self.action, Action::Reuse | Action::Skip) && self.cause != Cause::EvidenceSettles
    }
}

/// One decision for each step of each open scope, in the order of the graph.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// The decisions.
    pub decisions: Vec<Decision>,
}

impl Plan {
    /// Returns the decisions that a person must make before the run continues.
    pub fn questions(&self) -> impl Iterator<Item = &Decision> {
        let asks =
            |decision: &&Decision| decision.action == Action::Ask && decision.cause != Cause::AskedInTurn;
        self.decisions.iter().filter(asks)
    }
}

/// Evidence from one pass of a step.
struct PassEvidence<'a> {
    step: &'a StepId,
    /// The record that finished the step; `None` if the step was interrupted.
    seq: Option<u64>,
    pack: &'a Pack,
    /// The index of the pack's first claim among all claims of the step.
    first: usize,
}

impl Effective {
    /// Lists the packs of a step of this scope, newest first.
    fn made_by<'a>(&'a self, step: &'a StepId) -> impl Iterator<Item = PassEvidence<'a>> {
        let newest = self.position.ledger.get(step).map(|settled| settled.seq);
        let newest = self.evidence.get(step).map(|pack| (newest, pack));
        let passes = self.passes.get(step).into_iter().flatten().map(|(seq, pack)| (Some(*seq), pack));
        newest.into_iter().chain(passes).scan(0, move |next, (seq, pack)| {
            let first = *next;
            *next += pack.claims.len();
            Some(PassEvidence { step, seq, pack, first })
        })
    }

    /// Lists the packs of all steps of this scope, newest first within each step.
    fn made(&self) -> Vec<PassEvidence<'_>> {
        let steps =
            self.evidence.keys().chain(self.passes.keys().filter(|step| !self.evidence.contains_key(*step)));
        steps.flat_map(|step| self.made_by(step)).collect()
    }
}

/// Lists the claims to check before the finished steps are trusted.
///
/// Of several claims about the same file ([`Claim::file`]) or subject, only the newest effective step's claim
/// is checked. A step is newer than the steps upstream, in any order of execution. A legitimate rewrite by a
/// later step therefore does not fail the earlier step. A subject is not checked while a running or failed
/// step may be rewriting it. Exception: the step's own unpinned claims, which can resolve an interrupted
/// step.
pub fn checks(shape: &Shape, effective: &[Effective]) -> Vec<Check> {
    due(shape, effective, Occasion::Resume).checks
}

/// The claims of finished and interrupted steps, divided before a verification.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// The claims to check: see [`checks`].
    pub(crate) checks: Vec<Check>,
    /// Claims of finished steps that are checked after the end of a running step.
    pub(crate) deferred: DeferredClaims,
}

/// The steps under way that may rewrite claimed files, each with the claims deferred to its end. If the step ends
/// without the same claim, these claims are checked like all others.
pub(crate) type DeferredClaims = BTreeMap<(ScopePath, StepId), BTreeSet<ClaimKey>>;

/// Divides the claims into claims to check on this occasion and claims to defer.
pub(crate) fn due(shape: &Shape, effective: &[Effective], occasion: Occasion) -> Due {
    let ranks = Ranks::of(shape, effective);
    let mut newest: Newest<Rank<'_>> = Newest::new();
    for scope in effective {
        for PassEvidence { step, seq, pack, .. } in
            scope.made().into_iter().filter(|_| is_known(shape, scope))
        {
            let Some(seq) = seq else { continue };
            let rank = ranks.of_end(scope, step, seq);
            pack.claims.iter().for_each(|claim| newest.note(ClaimKey::of(claim), rank.clone()));
        }
        for (step, (seq, pack)) in scope.reusable.iter().filter(|_| is_known(shape, scope)) {
            let rank = ranks.of_end(scope, step, *seq);
            pack.claims.iter().for_each(|claim| newest.note(ClaimKey::of(claim), rank.clone()));
        }
    }
    let in_flux = in_flux(shape, effective);
    let (mut checks, mut deferred) = (Vec::new(), DeferredClaims::new());
    for scope in effective {
        for PassEvidence { step, seq, pack, first } in scope.made() {
            let rank = seq.map(|seq| ranks.of_end(scope, step, seq));
            for (index, claim) in pack.claims.iter().enumerate() {
                let bound = ClaimKey::of(claim);
                let is_newest = |rank: &Rank<'_>| newest.of(&bound) == Some(rank);
                if !(claim.is_due(occasion) && rank.as_ref().map_or(!claim.pinned, is_newest)) {
                    continue;
                }
                let writers = if seq.is_some() { writers(&in_flux, &bound, claim) } else { Vec::new() };
                for writer in &writers {
                    deferred.entry((*writer).clone()).or_default().insert(bound.clone());
                }
                if !writers.is_empty() {
                    continue;
                }
                let (scope, step, claim) = (scope.scope.clone(), step.clone(), claim.clone());
                checks.push(Check { scope, step, seq, index: first + index, claim });
            }
        }
    }
    Due { checks, deferred }
}

/// A claim of an end, and whether the end is in force.
pub(crate) struct ClaimOfEnd {
    pub(crate) check: Check,
    pub(crate) in_force: bool,
}

/// Lists the claims of the newest ends.
pub(crate) fn claims_of_ends(shape: &Shape, effective: &[Effective]) -> Vec<ClaimOfEnd> {
    let mut claims = Vec::new();
    for scope in effective.iter().filter(|scope| is_known(shape, scope)) {
        let current = scope
            .evidence
            .iter()
            .filter_map(|(step, pack)| Some((step, scope.position.ledger.get(step)?.seq, pack, true)));
        let reusable = scope.reusable.iter().map(|(step, (seq, pack))| (step, *seq, pack, false));
        for (step, seq, pack, in_force) in current.chain(reusable) {
            let claim = |(index, claim): (usize, &Claim)| {
                let (scope, step, claim) = (scope.scope.clone(), step.clone(), claim.clone());
                ClaimOfEnd { check: Check { scope, step, seq: Some(seq), index, claim }, in_force }
            };
            claims.extend(pack.claims.iter().enumerate().map(claim));
        }
    }
    claims
}

/// Lists the steps under way that may be rewriting the subject of a claim.
fn writers<'a>(in_flux: &'a InFlux, bound: &ClaimKey, claim: &Claim) -> Vec<&'a (ScopePath, StepId)> {
    let named = in_flux.get(bound.name()).or_else(|| in_flux.get(&resolved(&claim.subject)));
    let beneath = bound.beneath().map(|(from, is_in)| {
        let names = in_flux.range::<str, _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded));
        names.take_while(move |(name, _)| name.starts_with(from)).filter(move |(name, _)| is_in(name))
    });
    let beneath = beneath.into_iter().flatten().map(|(_, writers)| writers);
    named.into_iter().chain(beneath).flatten().collect()
}

/// Subjects that steps under way may be writing, with these steps.
type InFlux = BTreeMap<String, BTreeSet<(ScopePath, StepId)>>;

fn is_known(shape: &Shape, scope: &Effective) -> bool {
    shape.of_scope(&scope.scope).is_some()
}

/// Returns whether steps under way may be writing subjects of claims.
pub(crate) fn has_writers(shape: &Shape, effective: &[Effective]) -> bool {
    !in_flux(shape, effective).is_empty()
}

/// Lists the subjects that steps under way may be writing, with these steps.
fn in_flux(shape: &Shape, effective: &[Effective]) -> InFlux {
    let mut in_flux = InFlux::new();
    for scope in effective {
        let Some(shape) = shape.of_scope(&scope.scope) else { continue };
        for entry in scope.position.frontier.iter().filter(|entry| is_under_way(entry)) {
            let step = shape.step(entry.step.as_str());
            let named = step.into_iter().flat_map(|step| &step.subjects);
            // The record does not name the reporting step.
            for subject in named.chain(&scope.in_flux) {
                let writers = in_flux.entry(resolved(subject)).or_default();
                writers.insert((scope.scope.clone(), entry.step.clone()));
            }
        }
    }
    in_flux
}

/// Returns whether a step was started and has not ended well: files may be half written.
pub(crate) fn is_under_way(entry: &FrontierEntry) -> bool {
    matches!(entry.status, Status::Started | Status::Failed) || entry.at.attempt > 0
}

/// Returns whether the decision to run or skip the step is still open.
fn is_new(entry: &FrontierEntry) -> bool {
    entry.status == Status::Ready && entry.at.attempt == 0 && !entry.has_children()
}

/// Lists the finished steps with failed evidence, scope by scope, oldest record first: candidates for a
/// rerun.
///
/// `verdicts` as for [`plan`].
pub fn broken(shape: &Shape, effective: &[Effective], verdicts: &Verdicts) -> Vec<Broken> {
    Weighed::of(shape, effective, verdicts, &checks(shape, effective)).broken()
}

/// A finished step with failed evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct Broken {
    /// The scope.
    pub scope: ScopePath,
    /// The step.
    pub step: StepId,
    /// The record that finished the step.
    pub seq: u64,
    /// The names of the failed claims.
    pub claims: Vec<String>,
}

/// Decides the action for each step, and its cause.
///
/// `verdicts` answers [`checks`]. A claim of [`checks`] without a verdict counts as unknown, never as held.
pub fn plan(shape: &Shape, effective: &[Effective], verdicts: &Verdicts, now: Timestamp) -> Plan {
    Weighed::of(shape, effective, verdicts, &checks(shape, effective)).plan(now)
}

/// Evaluates verdicts: returns the plan and the broken steps.
pub(crate) struct Weighed<'a> {
    shape: &'a Shape,
    effective: &'a [Effective],
    verdicts: &'a Verdicts,
    wanted: Wanted<'a>,
}

/// The indexes of the claims to check, by scope and step.
type Wanted<'a> = HashMap<(&'a ScopePath, &'a StepId), BTreeSet<usize>>;

impl<'a> Weighed<'a> {
    /// `checks`: the claims that `verdicts` answers.
    pub(crate) fn of(
        shape: &'a Shape,
        effective: &'a [Effective],
        verdicts: &'a Verdicts,
        checks: &'a [Check],
    ) -> Self {
        let mut wanted = Wanted::new();
        for check in checks {
            wanted.entry((&check.scope, &check.step)).or_default().insert(check.index);
        }
        Self { shape, effective, verdicts, wanted }
    }

    /// See [`plan`].
    pub(crate) fn plan(&self, now: Timestamp) -> Plan {
        let mut decisions = Vec::new();
        for scope in self.effective {
            if let Some(view) = self.view(scope, now) {
                view.decide(&mut decisions);
            }
        }
        Plan { decisions }
    }

    /// Returns the questions of the [plan](Self::plan). A scope without unfinished steps and evidence has none.
    pub(crate) fn questions(&self, now: Timestamp) -> Vec<Decision> {
        let is_done = |scope: &Effective| {
            scope.position.frontier.is_empty() && scope.evidence.is_empty() && scope.passes.is_empty()
        };
        let mut decisions = Vec::new();
        for view in
            self.effective.iter().filter(|scope| !is_done(scope)).filter_map(|scope| self.view(scope, now))
        {
            view.decide(&mut decisions);
        }
        Plan { decisions }.questions().cloned().collect()
    }

    /// See [`broken`].
    pub(crate) fn broken(&self) -> Vec<Broken> {
        let mut broken = Vec::new();
        for scope in self.effective {
            let Some(view) = self.view(scope, Timestamp::UNIX_EPOCH) else { continue };
            let before = broken.len();
            for made in scope.made() {
                if let (Some(seq), Some(StepVerdict::Failed { claims, .. })) = (made.seq, view.weigh(&made)) {
                    let (scope, step) = (scope.scope.clone(), made.step.clone());
                    broken.push(Broken { scope, step, seq, claims });
                }
            }
            broken[before..].sort_by_key(|broken| broken.seq);
        }
        broken
    }

    fn view(&self, scope: &'a Effective, now: Timestamp) -> Option<ScopeView<'_>> {
        let shape = self.shape.of_scope(&scope.scope)?;
        let has_careful_passes = self.shape.has_careful_passes(&scope.scope);
        let (verdicts, wanted) = (self.verdicts, &self.wanted);
        Some(ScopeView { shape, scope, verdicts, wanted, now, has_careful_passes })
    }
}

/// The input of [`plan`] for one scope.
struct ScopeView<'a> {
    shape: &'a Shape,
    scope: &'a Effective,
    verdicts: &'a Verdicts,
    wanted: &'a Wanted<'a>,
    now: Timestamp,
    /// A new pass around this scope would repeat steps that are not idempotent.
    has_careful_passes: bool,
}

impl ScopeView<'_> {
    fn decide(&self, decisions: &mut Vec<Decision>) {
        let position = &self.scope.position;
        let unfinished = Unfinished::of(self.shape, position);
        let entries: HashMap<&str, &FrontierEntry> =
            position.frontier.iter().map(|e| (e.step.as_str(), e)).collect();
        let mut rerun: HashMap<usize, StepId> = self.routed_again(&unfinished);
        let mut skipped: HashSet<&StepId> = HashSet::new();
        let in_lost = steps_in_lost(self.shape, position, self.scope.lost);
        for place in self.shape.order() {
            let step = &self.shape.steps()[place];
            let before = self.shape.needs(place).iter().find_map(|need| rerun.get(need).cloned());
            let upstream = before.or_else(|| rerun.get(&place).cloned());
            let entry = entries.get(step.id.as_str()).copied();
            // A step on a loop can be unfinished in this pass and finished in earlier passes.
            let comes_again = self.shape.share_loop(place, place) || self.scope.passes.contains_key(&step.id);
            let is_asked = entry.is_some_and(|entry| self.is_in_doubt(step, entry));
            let earlier = match self.shape.is_routed() || (unfinished.has(place) && comes_again && !is_asked)
            {
                true => self.doubted(step),
                false => None,
            };
            // A step admitted before is not checked again for skipping.
            let is_open = unfinished.has(place) && entry.is_none_or(is_new);
            let need = step.skipped_with.iter().find(|need| is_open && skipped.contains(need));
            let (action, cause) = match entry {
                _ if in_lost.contains(&place) => (Action::Ask, Cause::InLost(self.scope.lost)),
                _ if earlier.is_some() => earlier.expect("it was just seen"),
                _ if need.is_some() => {
                    (Action::Skip, Cause::NeedSkipped(need.expect("it was just seen").clone()))
                }
                Some(entry) => self.unfinished(place, entry),
                None if unfinished.has(place) && self.may_be_reused(&step.id) => {
                    let before = self.before(place, &unfinished).into_iter().next();
                    (Action::Recheck, Cause::UpstreamChanged(before.unwrap_or_else(|| step.id.clone())))
                }
                None if unfinished.has(place) && step.is_asked(&self.scope.position, None) => {
                    (Action::Ask, Cause::AskedInTurn)
                }
                None if unfinished.has(place) => (Action::Run, Cause::After(self.before(place, &unfinished))),
                None => self.finished(place, upstream.as_ref()),
            };
            match action {
                Action::Run if !unfinished.has(place) => drop(rerun.insert(place, step.id.clone())),
                Action::Skip => drop(skipped.insert(&step.id)),
                Action::Recheck => drop(upstream.and_then(|before| rerun.insert(place, before))),
                _ => {}
            }
            decisions.push(Decision {
                scope: self.scope.scope.clone(),
                step: step.id.clone(),
                action,
                cause,
            });
        }
    }

    /// Finds the finished steps reachable by routes from steps with failed evidence: by place, the step that
    /// reruns.
    fn routed_again(&self, unfinished: &Unfinished) -> HashMap<usize, StepId> {
        let mut found: HashMap<usize, StepId> = HashMap::new();
        if !self.shape.is_routed() {
            return found;
        }
        let again = |step: &&Step| matches!(self.doubted(step), Some((Action::Run | Action::Restart, _)));
        for step in self.shape.steps().iter().filter(again) {
            let mut walk = vec![self.shape.place(step.id.as_str()).expect("the step belongs to the shape")];
            while let Some(place) = walk.pop() {
                for next in self.shape.routes(place) {
                    if !unfinished.has(*next) && !found.contains_key(next) {
                        found.insert(*next, step.id.clone());
                        walk.push(*next);
                    }
                }
            }
        }
        found
    }

    /// Decides about a finished step by its evidence alone; returns `None` if the evidence holds.
    fn doubted(&self, step: &Step) -> Option<(Action, Cause)> {
        let has_passes = self.scope.passes.contains_key(&step.id);
        let has_evidence = has_passes || self.scope.evidence.contains_key(&step.id);
        if !has_evidence || !(has_passes || self.scope.position.ledger.contains_key(&step.id)) {
            return None;
        }
        match self.verdict_of_finished(&step.id)? {
            StepVerdict::Failed { claims, only_live: true } if !self.shape.is_routed() => {
                Some((Action::Restart, Cause::EvidenceFailed(claims)))
            }
            StepVerdict::Failed { claims, .. } => {
                let may_run =
                    step.idempotent && !(self.has_careful_passes && self.is_broken_before(&step.id));
                let action = if may_run { Action::Run } else { Action::Ask };
                Some((action, Cause::EvidenceFailed(claims)))
            }
            StepVerdict::Unknown(claims) => Some((Action::Ask, Cause::EvidenceUnknown(claims))),
            StepVerdict::Holds => None,
        }
    }

    /// Returns whether evidence from a pass before the newest failed.
    fn is_broken_before(&self, step: &StepId) -> bool {
        let newest = self.scope.position.ledger.get(step).map(|settled| settled.seq);
        let is_before = |made: &PassEvidence<'_>| made.seq.is_some() && made.seq != newest;
        let mut before = self.scope.made_by(step).filter(is_before);
        before.any(|made| matches!(self.weigh(&made), Some(StepVerdict::Failed { .. })))
    }

    fn before(&self, place: usize, unfinished: &Unfinished) -> Vec<StepId> {
        let open = self.shape.needs(place).iter().filter(|need| unfinished.has(**need));
        let mut names: Vec<StepId> = open.map(|need| self.shape.steps()[*need].id.clone()).collect();
        if names.is_empty() {
            // Reached by a route: name the steps that may lead here.
            let id = &self.shape.steps()[place].id;
            names =
                self.shape.steps().iter().filter(|s| s.routes.contains(id)).map(|s| s.id.clone()).collect();
        }
        names
    }

    fn unfinished(&self, place: usize, entry: &FrontierEntry) -> (Action, Cause) {
        let step = &self.shape.steps()[place];
        match entry.status {
            Status::Ready if step.is_asked(&self.scope.position, Some(entry)) => {
                (Action::Ask, Cause::AskedInTurn)
            }
            Status::Ready => match entry.wake_at {
                Some(due) if due > self.now => (Action::Wait, Cause::Delayed(due)),
                _ if entry.failures > 0 => (Action::Retry, Cause::Failed(entry.at.clone())),
                _ if self.scope.rolled_back.as_ref().is_some_and(|begun| begun.contains(&step.id)) => {
                    (Action::Run, Cause::RolledBack)
                }
                _ => (Action::Run, Cause::Ready),
            },
            Status::Started if self.scope.position.asks_about(&step.id) => {
                (Action::Ask, Cause::of_doubt(&self.scope.position, entry))
            }
            Status::Started if step.idempotent => match &self.scope.stopped_by {
                Some(by) => (Action::Run, Cause::Stopped(by.clone())),
                None if self.scope.rolled_back.is_some() => (Action::Run, Cause::RolledBack),
                None => (Action::Run, Cause::Cut(entry.at.clone())),
            },
            Status::Started => self.unsettled(step, entry),
            Status::Failed if entry.is_unsettled() && !step.idempotent => self.unsettled(step, entry),
            Status::Waiting if entry.wake_at.is_some_and(|due| due <= self.now) => {
                (Action::Run, Cause::Come(entry.waits.clone()))
            }
            Status::Waiting => (Action::Wait, Cause::Waits(entry.waits.clone())),
            // The step's scopes failed before the attempt of the join.
            Status::Failed if step.children.is_some() && entry.fan.is_some() && entry.at.attempt == 0 => {
                (Action::Retry, Cause::ScopesFailed)
            }
            Status::Failed => (Action::Retry, Cause::Failed(entry.at.clone())),
        }
    }

    /// Returns whether a step has a result to reuse if the upstream outputs stay the same.
    fn may_be_reused(&self, step: &StepId) -> bool {
        let position = &self.scope.position;
        let has_chain = position.chain.as_ref().is_some_and(|chain| chain.head.is_some());
        position.has_result(step) || (has_chain && position.ledger.contains_key(step))
    }

    /// Returns whether a non-idempotent step may have taken effect in its current attempt.
    fn is_in_doubt(&self, step: &Step, entry: &FrontierEntry) -> bool {
        let is_unsettled = entry.status == Status::Started || entry.is_unsettled();
        self.scope.position.asks_about(&step.id) || (is_unsettled && !step.idempotent)
    }

    /// Decides about a non-idempotent step that may have taken effect.
    fn unsettled(&self, step: &Step, entry: &FrontierEntry) -> (Action, Cause) {
        match self.step_verdict(&step.id).filter(|_| !self.is_finished(&step.id)) {
            Some(StepVerdict::Holds) => (Action::Reuse, Cause::EvidenceSettles),
            _ => (Action::Ask, Cause::of_doubt(&self.scope.position, entry)),
        }
    }

    fn finished(&self, place: usize, upstream: Option<&StepId>) -> (Action, Cause) {
        let step = &self.shape.steps()[place];
        let settled = self.scope.position.ledger.get(step.id.as_str());
        if let Some(Settled { how: SettledAs::Skipped, seq, .. }) = settled {
            return (Action::Skip, Cause::Skipped(*seq));
        }
        if let Some(decision) = self.doubted(step) {
            return decision;
        }
        match (upstream, settled) {
            (Some(before), _) => (Action::Recheck, Cause::UpstreamChanged(before.clone())),
            (None, Some(Settled { how: SettledAs::Tolerated, seq, .. })) => {
                (Action::Reuse, Cause::Tolerated(*seq))
            }
            (None, settled) => (Action::Reuse, Cause::Finished(settled.map(|settled| settled.seq))),
        }
    }

    /// Returns whether a step was finished, in this pass or an earlier one.
    fn is_finished(&self, step: &StepId) -> bool {
        self.scope.position.ledger.contains_key(step)
    }
}
