//! The plan: what would be done next, and why. Pure: no clock, no disk, no randomness.
//!
//! Two functions decide everything. [`checks`] says which claims a resume must check before it trusts what is
//! finished; [`plan`] turns the graph, the newest sound record of each open branch, and the verdicts into one decision
//! for each step. The engine carries the decisions out; `waypost plan` and `waypost why` print the very same ones.
//!
//! ```text
//!   newest records --> checks --> claims --(probes, elsewhere)--> verdicts
//!         |                                                          |
//!         +------------------------> plan <--------------------------+
//! ```
//!
//! What is neither in the frontier nor after it is finished: that is read from one record a branch, whatever the
//! length of the history.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;
use serde::Serialize;

use crate::id::{BranchPath, StepId};
use crate::record::{Claim, FrontierEntry, Occasion, Pack, Position, Settled, SettledAs, Status, Verdict};
use crate::shape::{Shape, Step, Unfinished};

mod bound;
mod cause;
mod lost;
mod rank;
mod standing;

pub(crate) use bound::{Bound, Newest};
pub use cause::Cause;
pub(crate) use lost::steps_in_lost;
use rank::{Rank, Ranks};
use standing::Standing;

/// What the plan needs to know of a branch: its newest sound record, and the evidence of what is finished on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// The branch.
    pub branch: BranchPath,
    /// The seq of its newest sound record.
    pub seq: u64,
    /// Records that it had after that one, and that are lost: damaged, taken away, or moved aside for that.
    pub lost: u64,
    /// What is unfinished on it.
    pub position: Position,
    /// Evidence of finished steps and of cut ones, found through the ledger and `since`.
    pub evidence: BTreeMap<StepId, Pack>,
    /// Evidence of results out of force, with the seq of the record: a later claim of theirs shields an earlier one.
    pub reusable: BTreeMap<StepId, (u64, Pack)>,
    /// Evidence of steps of loops from passes before the newest, with the seq of its record; newest first.
    pub passes: BTreeMap<StepId, Vec<(u64, Pack)>>,
    /// What steps under way are about to write, beyond the subjects that the graph names.
    pub in_flux: BTreeSet<String>,
    /// How the record says that it came to a stop: `interrupted` by whom, if it was.
    pub stopped_by: Option<String>,
}

/// A claim to be checked, and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// The branch.
    pub branch: BranchPath,
    /// The step that made the claim.
    pub step: StepId,
    /// The record that finished the step; none if it was cut.
    pub seq: Option<u64>,
    /// Its place among the claims of the step: those of its newest pack, then those of earlier passes, newest first.
    pub index: usize,
    /// The claim.
    pub claim: Claim,
}

/// Verdicts of checks, by branch, step and place among the claims of the step.
pub type Verdicts = HashMap<(BranchPath, StepId, usize), Verdict>;

/// What would be done with a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Its result is used.
    Reuse,
    /// It is finished, but something before it runs again: its result is used if that changes nothing.
    Recheck,
    /// It runs, for the first time or again.
    Run,
    /// It failed, and is tried again.
    Retry,
    /// It is a service whose evidence failed: it is started again, and nothing after it is redone.
    Restart,
    /// It waits.
    Wait,
    /// A person must decide.
    Ask,
    /// It is passed over, as was decided.
    Skip,
}

impl Action {
    /// Returns the word used in JSON and on screens.
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

/// What would be done with one step, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The branch.
    pub branch: BranchPath,
    /// The step.
    pub step: StepId,
    /// What would be done.
    pub action: Action,
    /// Why.
    pub cause: Cause,
}

impl Decision {
    /// Returns the word for the action in JSON and on screens: a run of a finished step is a `rerun`.
    pub fn action_name(&self) -> &'static str {
        let is_rerun = self.action == Action::Run && self.cause.is_of_rerun();
        if is_rerun { "rerun" } else { self.action.name() }
    }

    /// Says whether the step stays as it is recorded: nothing runs, and nothing is written for it.
    pub fn changes_nothing(&self) -> bool {
        matches!(self.action, Action::Reuse | Action::Skip) && self.cause != Cause::EvidenceSettles
    }
}

/// One decision for each step of each open branch, in the order of the graph.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// The decisions.
    pub decisions: Vec<Decision>,
}

impl Plan {
    /// Returns what a person must decide before anything goes on.
    pub fn questions(&self) -> impl Iterator<Item = &Decision> {
        let asks =
            |decision: &&Decision| decision.action == Action::Ask && decision.cause != Cause::AskedInTurn;
        self.decisions.iter().filter(asks)
    }
}

/// Evidence that a step made in one pass.
struct Made<'a> {
    step: &'a StepId,
    /// The record that finished the step; none if it was cut.
    seq: Option<u64>,
    pack: &'a Pack,
    /// The index of its first claim among those of the step.
    first: usize,
}

impl Effective {
    /// Lists the packs of one of its steps, the newest first.
    fn made_by<'a>(&'a self, step: &'a StepId) -> impl Iterator<Item = Made<'a>> {
        let newest = self.position.ledger.get(step).map(|settled| settled.seq);
        let newest = self.evidence.get(step).map(|pack| (newest, pack));
        let passes = self.passes.get(step).into_iter().flatten().map(|(seq, pack)| (Some(*seq), pack));
        newest.into_iter().chain(passes).scan(0, move |next, (seq, pack)| {
            let first = *next;
            *next += pack.claims.len();
            Some(Made { step, seq, pack, first })
        })
    }

    /// Lists the packs of all its steps, for each step the newest first.
    fn made(&self) -> Vec<Made<'_>> {
        let steps =
            self.evidence.keys().chain(self.passes.keys().filter(|step| !self.evidence.contains_key(*step)));
        steps.flat_map(|step| self.made_by(step)).collect()
    }
}

/// Lists the claims that must be checked before the finished steps are trusted.
///
/// A claim binds to the newest effective step (what comes after another step is newer, whichever of the two was done last) that makes one about the same file ([`Claim::file`] where its subject is
/// another name of that), or the same subject: what a later step legitimately rewrote does not count against the older. A
/// subject that a step under way is about to rewrite, since it was started
/// and has not ended well, is not judged at all, unless it is that step's own, unpinned claim: this can settle what
/// became of a cut step.
pub fn checks(shape: &Shape, effective: &[Effective]) -> Vec<Check> {
    due(shape, effective, Occasion::Resume).checks
}

/// What is known of the claims of finished and cut steps before any is looked at.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// The claims that must be checked: see [`checks`].
    pub(crate) checks: Vec<Check>,
    /// Those of finished steps that are left out for now.
    pub(crate) left: LeftOut,
}

/// Steps under way that may be about to rewrite something, and the claims about that which are not judged on their account,
/// by what they are bound by: once those steps have ended and have not claimed the same, they are judged like all others.
pub(crate) type LeftOut = BTreeMap<(BranchPath, StepId), BTreeSet<Bound>>;

/// Sorts the claims into those that are checked on an occasion and those that are left out.
pub(crate) fn due(shape: &Shape, effective: &[Effective], occasion: Occasion) -> Due {
    let ranks = Ranks::of(shape, effective);
    let mut newest: Newest<Rank<'_>> = Newest::new();
    for branch in effective {
        for Made { step, seq, pack, .. } in branch.made().into_iter().filter(|_| is_known(shape, branch)) {
            let Some(seq) = seq else { continue };
            let rank = ranks.of_end(branch, step, seq);
            pack.claims.iter().for_each(|claim| newest.note(Bound::of(claim), rank.clone()));
        }
        for (step, (seq, pack)) in branch.reusable.iter().filter(|_| is_known(shape, branch)) {
            let rank = ranks.of_end(branch, step, *seq);
            pack.claims.iter().for_each(|claim| newest.note(Bound::of(claim), rank.clone()));
        }
    }
    let in_flux = in_flux(shape, effective);
    let (mut checks, mut left) = (Vec::new(), LeftOut::new());
    for branch in effective {
        for Made { step, seq, pack, first } in branch.made() {
            let rank = seq.map(|seq| ranks.of_end(branch, step, seq));
            for (index, claim) in pack.claims.iter().enumerate() {
                let bound = Bound::of(claim);
                let is_newest = |rank: &Rank<'_>| newest.of(&bound) == Some(rank);
                if !(claim.is_due(occasion) && rank.as_ref().map_or(!claim.pinned, is_newest)) {
                    continue;
                }
                let writers = if seq.is_some() { writers(&in_flux, &bound, claim) } else { Vec::new() };
                for writer in &writers {
                    left.entry((*writer).clone()).or_default().insert(bound.clone());
                }
                if !writers.is_empty() {
                    continue;
                }
                let (branch, step, claim) = (branch.branch.clone(), step.clone(), claim.clone());
                checks.push(Check { branch, step, seq, index: first + index, claim });
            }
        }
    }
    Due { checks, left }
}

/// Lists the steps under way that may be about to rewrite what a claim is about.
fn writers<'a>(in_flux: &'a InFlux, bound: &Bound, claim: &Claim) -> Vec<&'a (BranchPath, StepId)> {
    let named = in_flux.get(bound.name()).or_else(|| in_flux.get(&resolved(&claim.subject)));
    let beneath = bound.beneath().map(|(from, is_in)| {
        let names = in_flux.range::<str, _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded));
        names.take_while(move |(name, _)| name.starts_with(from)).filter(move |(name, _)| is_in(name))
    });
    let beneath = beneath.into_iter().flatten().map(|(_, writers)| writers);
    named.into_iter().chain(beneath).flatten().collect()
}

/// What steps under way are about to write, with the steps that may.
type InFlux = BTreeMap<String, BTreeSet<(BranchPath, StepId)>>;

fn is_known(shape: &Shape, branch: &Effective) -> bool {
    shape.of_branch(&branch.branch).is_some()
}

/// Lists what steps under way are about to write, with the steps that may.
fn in_flux(shape: &Shape, effective: &[Effective]) -> InFlux {
    let mut in_flux = InFlux::new();
    for branch in effective {
        let Some(shape) = shape.of_branch(&branch.branch) else { continue };
        for entry in branch.position.frontier.iter().filter(|entry| is_under_way(entry)) {
            let step = shape.step(entry.step.as_str());
            let named = step.into_iter().flat_map(|step| &step.subjects);
            // Which of several steps told the rest is not known here.
            for subject in named.chain(&branch.in_flux) {
                let writers = in_flux.entry(resolved(subject)).or_default();
                writers.insert((branch.branch.clone(), entry.step.clone()));
            }
        }
    }
    in_flux
}

/// Says whether a step was started and has not ended well: what it is about to write may be half written.
pub(crate) fn is_under_way(entry: &FrontierEntry) -> bool {
    matches!(entry.status, Status::Started | Status::Failed) || entry.at.attempt > 0
}

/// Says whether nobody has decided yet whether a step runs.
fn is_new(entry: &FrontierEntry) -> bool {
    entry.status == Status::Ready && entry.at.attempt == 0 && entry.fan.is_none()
}

/// Returns one spelling for all of a path: `./a//b` is `a/b`.
pub(crate) fn resolved(subject: &str) -> String {
    let parts: PathBuf = Path::new(subject).components().filter(|part| *part != Component::CurDir).collect();
    parts.to_string_lossy().into_owned()
}

/// Lists the finished steps whose evidence does not hold any more, by the seq of their records, oldest first, branch by
/// branch: what must be done again, as far as it may.
///
/// `verdicts` as for [`plan`].
pub fn broken(shape: &Shape, effective: &[Effective], verdicts: &Verdicts) -> Vec<Broken> {
    Weighed::of(shape, effective, verdicts, &checks(shape, effective)).broken()
}

/// A finished step whose evidence does not hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Broken {
    /// The branch.
    pub branch: BranchPath,
    /// The step.
    pub step: StepId,
    /// The record that finished it.
    pub seq: u64,
    /// The claims that do not hold, by name.
    pub claims: Vec<String>,
}

/// Decides what would be done with each step, and says why.
///
/// `verdicts` answers [`checks`]; a claim that was to be checked and has no verdict counts as unknown, never as held.
pub fn plan(shape: &Shape, effective: &[Effective], verdicts: &Verdicts, now: Timestamp) -> Plan {
    Weighed::of(shape, effective, verdicts, &checks(shape, effective)).plan(now)
}

/// What verdicts come to: the plan, and what of it is broken.
pub(crate) struct Weighed<'a> {
    shape: &'a Shape,
    effective: &'a [Effective],
    verdicts: &'a Verdicts,
    wanted: Wanted<'a>,
}

/// The claims to be checked, by branch and step.
type Wanted<'a> = HashMap<(&'a BranchPath, &'a StepId), BTreeSet<usize>>;

impl<'a> Weighed<'a> {
    /// `checks`: those that `verdicts` answers.
    pub(crate) fn of(
        shape: &'a Shape,
        effective: &'a [Effective],
        verdicts: &'a Verdicts,
        checks: &'a [Check],
    ) -> Self {
        let mut wanted = Wanted::new();
        for check in checks {
            wanted.entry((&check.branch, &check.step)).or_default().insert(check.index);
        }
        Self { shape, effective, verdicts, wanted }
    }

    /// See [`plan`].
    pub(crate) fn plan(&self, now: Timestamp) -> Plan {
        let mut decisions = Vec::new();
        for branch in self.effective {
            if let Some(view) = self.view(branch, now) {
                view.decide(&mut decisions);
            }
        }
        Plan { decisions }
    }

    /// See [`broken`].
    pub(crate) fn broken(&self) -> Vec<Broken> {
        let mut broken = Vec::new();
        for branch in self.effective {
            let Some(view) = self.view(branch, Timestamp::UNIX_EPOCH) else { continue };
            let before = broken.len();
            for made in branch.made() {
                if let (Some(seq), Some(Standing::Failed { claims, .. })) = (made.seq, view.weigh(&made)) {
                    let (branch, step) = (branch.branch.clone(), made.step.clone());
                    broken.push(Broken { branch, step, seq, claims });
                }
            }
            broken[before..].sort_by_key(|broken| broken.seq);
        }
        broken
    }

    fn view(&self, branch: &'a Effective, now: Timestamp) -> Option<BranchView<'_>> {
        let shape = self.shape.of_branch(&branch.branch)?;
        let has_careful_passes = self.shape.has_careful_passes(&branch.branch);
        let (verdicts, wanted) = (self.verdicts, &self.wanted);
        Some(BranchView { shape, branch, verdicts, wanted, now, has_careful_passes })
    }
}

/// What [`plan`] looks at for one branch.
struct BranchView<'a> {
    shape: &'a Shape,
    branch: &'a Effective,
    verdicts: &'a Verdicts,
    wanted: &'a Wanted<'a>,
    now: Timestamp,
    /// To do a pass around it again would repeat what must not be repeated blindly.
    has_careful_passes: bool,
}

impl BranchView<'_> {
    fn decide(&self, decisions: &mut Vec<Decision>) {
        let position = &self.branch.position;
        let unfinished = Unfinished::of(self.shape, position);
        let entries: HashMap<&str, &FrontierEntry> =
            position.frontier.iter().map(|e| (e.step.as_str(), e)).collect();
        let mut rerun: HashMap<usize, StepId> = self.routed_again(&unfinished);
        let mut skipped: HashSet<&StepId> = HashSet::new();
        let in_lost = steps_in_lost(self.shape, position, self.branch.lost);
        for place in self.shape.order() {
            let step = &self.shape.steps()[place];
            let before = self.shape.needs(place).iter().find_map(|need| rerun.get(need).cloned());
            let upstream = before.or_else(|| rerun.get(&place).cloned());
            let entry = entries.get(step.id.as_str()).copied();
            // A step of a loop may stand in the frontier, or come again after it, and be finished in earlier passes.
            let comes_again =
                self.shape.share_loop(place, place) || self.branch.passes.contains_key(&step.id);
            let is_asked = entry.is_some_and(|entry| self.is_in_doubt(step, entry));
            let earlier = match self.shape.is_routed() || (unfinished.has(place) && comes_again && !is_asked)
            {
                true => self.doubted(step),
                false => None,
            };
            // What was admitted before is not asked again.
            let is_open = unfinished.has(place) && entry.is_none_or(is_new);
            let need = step.skipped_with.iter().find(|need| is_open && skipped.contains(need));
            let (action, cause) = match entry {
                _ if in_lost.contains(&place) => (Action::Ask, Cause::InLost(self.branch.lost)),
                _ if earlier.is_some() => earlier.expect("it was just seen"),
                _ if need.is_some() => {
                    (Action::Skip, Cause::NeedSkipped(need.expect("it was just seen").clone()))
                }
                Some(entry) => self.unfinished(place, entry),
                None if unfinished.has(place) && self.may_be_reused(&step.id) => {
                    let before = self.before(place, &unfinished).into_iter().next();
                    (Action::Recheck, Cause::UpstreamChanged(before.unwrap_or_else(|| step.id.clone())))
                }
                None if self.branch.position.asks_about(&step.id) => (Action::Ask, Cause::AskedInTurn),
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
                branch: self.branch.branch.clone(),
                step: step.id.clone(),
                action,
                cause,
            });
        }
    }

    /// Finds what is finished and led to from steps whose evidence failed: by place, the step that runs again.
    fn routed_again(&self, unfinished: &Unfinished) -> HashMap<usize, StepId> {
        let mut found: HashMap<usize, StepId> = HashMap::new();
        if !self.shape.is_routed() {
            return found;
        }
        let again = |step: &&Step| matches!(self.doubted(step), Some((Action::Run | Action::Restart, _)));
        for step in self.shape.steps().iter().filter(again) {
            let mut walk = vec![self.shape.place(step.id.as_str()).expect("it is one of the shape's")];
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

    /// Decides about a finished step by its evidence alone: none if that holds.
    fn doubted(&self, step: &Step) -> Option<(Action, Cause)> {
        if !self.branch.position.ledger.contains_key(&step.id) && !self.branch.passes.contains_key(&step.id) {
            return None;
        }
        match self.standing_of_finished(&step.id)? {
            Standing::Failed { claims, only_live: true } if !self.shape.is_routed() => {
                Some((Action::Restart, Cause::EvidenceFailed(claims)))
            }
            Standing::Failed { claims, .. } => {
                let may_run =
                    step.idempotent && !(self.has_careful_passes && self.is_broken_before(&step.id));
                let action = if may_run { Action::Run } else { Action::Ask };
                Some((action, Cause::EvidenceFailed(claims)))
            }
            Standing::Unknown(claims) => Some((Action::Ask, Cause::EvidenceUnknown(claims))),
            Standing::Holds => None,
        }
    }

    /// Says whether what a step made in a pass before the newest does not hold.
    fn is_broken_before(&self, step: &StepId) -> bool {
        let newest = self.branch.position.ledger.get(step).map(|settled| settled.seq);
        let is_before = |made: &Made<'_>| made.seq.is_some() && made.seq != newest;
        let mut before = self.branch.made_by(step).filter(is_before);
        before.any(|made| matches!(self.weigh(&made), Some(Standing::Failed { .. })))
    }

    fn before(&self, place: usize, unfinished: &Unfinished) -> Vec<StepId> {
        let open = self.shape.needs(place).iter().filter(|need| unfinished.has(**need));
        let mut names: Vec<StepId> = open.map(|need| self.shape.steps()[*need].id.clone()).collect();
        if names.is_empty() {
            // Reached by a route: named are the steps that may lead here.
            let id = &self.shape.steps()[place].id;
            names =
                self.shape.steps().iter().filter(|s| s.routes.contains(id)).map(|s| s.id.clone()).collect();
        }
        names
    }

    fn unfinished(&self, place: usize, entry: &FrontierEntry) -> (Action, Cause) {
        let step = &self.shape.steps()[place];
        match entry.status {
            Status::Ready if self.branch.position.asks_about(&step.id) => (Action::Ask, Cause::AskedInTurn),
            Status::Ready => match entry.wake_at {
                Some(due) if due > self.now => (Action::Wait, Cause::Delayed(due)),
                _ if entry.failures > 0 => (Action::Retry, Cause::Failed(entry.at.clone())),
                _ => (Action::Run, Cause::Ready),
            },
            Status::Started if self.branch.position.asks_about(&step.id) => {
                (Action::Ask, Cause::of_doubt(&self.branch.position, entry))
            }
            Status::Started if step.idempotent => match &self.branch.stopped_by {
                Some(by) => (Action::Run, Cause::Stopped(by.clone())),
                None => (Action::Run, Cause::Cut(entry.at.clone())),
            },
            Status::Started => self.unsettled(step, entry),
            Status::Failed if entry.is_unsettled() && !step.idempotent => self.unsettled(step, entry),
            Status::Waiting if entry.wake_at.is_some_and(|due| due <= self.now) => {
                (Action::Run, Cause::Come(entry.waits.clone()))
            }
            Status::Waiting => (Action::Wait, Cause::Waits(entry.waits.clone())),
            // Its branches failed before the try that joins them.
            Status::Failed if step.children.is_some() && entry.fan.is_some() && entry.at.attempt == 0 => {
                (Action::Retry, Cause::BranchesFailed)
            }
            Status::Failed => (Action::Retry, Cause::Failed(entry.at.clone())),
        }
    }

    /// Says whether a step has a result that is reused if upstream steps give the same.
    fn may_be_reused(&self, step: &StepId) -> bool {
        let position = &self.branch.position;
        let has_chain = position.chain.as_ref().is_some_and(|chain| chain.head.is_some());
        position.has_result(step) || (has_chain && position.ledger.contains_key(step))
    }

    /// Says whether a step must not be repeated blindly and may have taken effect in the try that it stands at.
    fn is_in_doubt(&self, step: &Step, entry: &FrontierEntry) -> bool {
        let is_unsettled = entry.status == Status::Started || entry.is_unsettled();
        self.branch.position.asks_about(&step.id) || (is_unsettled && !step.idempotent)
    }

    /// Decides about a step that must not be repeated blindly and may have taken effect.
    fn unsettled(&self, step: &Step, entry: &FrontierEntry) -> (Action, Cause) {
        match self.standing(&step.id).filter(|_| !self.is_finished(&step.id)) {
            Some(Standing::Holds) => (Action::Reuse, Cause::EvidenceSettles),
            _ => (Action::Ask, Cause::of_doubt(&self.branch.position, entry)),
        }
    }

    fn finished(&self, place: usize, upstream: Option<&StepId>) -> (Action, Cause) {
        let step = &self.shape.steps()[place];
        let settled = self.branch.position.ledger.get(step.id.as_str());
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

    /// Says whether a step was finished, in this pass or an earlier one.
    fn is_finished(&self, step: &StepId) -> bool {
        self.branch.position.ledger.contains_key(step)
    }
}
