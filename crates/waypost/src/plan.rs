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
use crate::record::{Claim, FrontierEntry, Occasion, Pack, Position, Settled, Status, Verdict};
use crate::shape::{Shape, Step, Unfinished};

mod bound;
mod cause;
mod lost;
mod standing;

pub(crate) use bound::{Bound, Newest};
pub use cause::Cause;
pub(crate) use lost::steps_in_lost;
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
    /// Lists the packs of all its steps, for each step the newest first.
    fn made(&self) -> Vec<Made<'_>> {
        let mut made = Vec::new();
        let mut firsts: HashMap<&StepId, usize> = HashMap::new();
        let ledger = |step| self.position.ledger.get(step).map(|settled| settled.seq());
        let newest = self.evidence.iter().map(|(step, pack)| (step, ledger(step), pack));
        let passes = self
            .passes
            .iter()
            .flat_map(|(step, passes)| passes.iter().map(move |(seq, pack)| (step, Some(*seq), pack)));
        for (step, seq, pack) in newest.chain(passes) {
            let first = firsts.entry(step).or_default();
            made.push(Made { step, seq, pack, first: *first });
            *first += pack.claims.len();
        }
        made
    }
}

/// Where a record stands in time among those of all branches: a child's come after the record of its parent with which
/// it was opened, and before the next one.
type Rank<'a> = (Vec<u64>, &'a BranchPath);

/// Lists the claims that must be checked before the finished steps are trusted.
///
/// A claim binds to the newest effective step that makes one about the same file ([`Claim::file`] where its subject is
/// another name of that), or the same subject: what a later step legitimately rewrote does not count against the older. A
/// subject that a step under way is about to rewrite, since it was started
/// and has not ended well, is not judged at all, unless it is that step's own, unpinned claim: this can settle what
/// became of a cut step.
pub fn checks(shape: &Shape, effective: &[Effective]) -> Vec<Check> {
    checks_on(shape, effective, Occasion::Resume)
}

/// Lists those that are due on an occasion, by the same rule.
pub(crate) fn checks_on(shape: &Shape, effective: &[Effective], occasion: Occasion) -> Vec<Check> {
    sorted(shape, effective, occasion).0
}

/// Steps under way, and the claims that are not judged on their account, by what they are bound by.
pub(crate) type LeftOut = BTreeMap<(BranchPath, StepId), BTreeSet<Bound>>;

/// Lists the claims of finished steps that [`checks`] leaves out for now, by the steps under way that may be about to
/// rewrite what they are about: once those have ended and have not claimed the same, they are judged like all others.
pub(crate) fn left_out(shape: &Shape, effective: &[Effective]) -> LeftOut {
    sorted(shape, effective, Occasion::Resume).1
}

/// Sorts the claims into those that are checked and those that are left out.
fn sorted(shape: &Shape, effective: &[Effective], occasion: Occasion) -> (Vec<Check>, LeftOut) {
    let origins = origins(effective);
    let rank = |branch: &'_ Effective, seq: u64| -> Vec<u64> {
        let above = origins.get(&branch.branch).map(Vec::as_slice).unwrap_or_default();
        above.iter().copied().chain([seq]).collect()
    };
    let mut newest: Newest<Rank<'_>> = Newest::new();
    for branch in effective {
        for Made { seq, pack, .. } in branch.made().into_iter().filter(|_| is_known(shape, branch)) {
            let Some(seq) = seq else { continue };
            let rank = (rank(branch, seq), &branch.branch);
            pack.claims.iter().for_each(|claim| newest.note(Bound::of(claim), rank.clone()));
        }
    }
    let in_flux = in_flux(shape, effective);
    let (mut checks, mut left) = (Vec::new(), LeftOut::new());
    for branch in effective {
        for Made { step, seq, pack, first } in branch.made() {
            for (index, claim) in pack.claims.iter().enumerate() {
                let bound = Bound::of(claim);
                let is_newest = |seq: u64| newest.of(&bound) == Some(&(rank(branch, seq), &branch.branch));
                if !(claim.is_due(occasion) && seq.map_or(!claim.pinned, is_newest)) {
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
    (checks, left)
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

/// Returns for each branch the records of the branches above with which it and they were opened.
fn origins(effective: &[Effective]) -> HashMap<BranchPath, Vec<u64>> {
    let own: HashMap<&BranchPath, u64> =
        effective.iter().filter_map(|branch| Some((&branch.branch, branch.position.origin?))).collect();
    let mut origins = HashMap::new();
    for branch in effective {
        let mut walk = Vec::new();
        let mut path = Some(branch.branch.clone());
        while let Some(branch) = path {
            walk.extend(own.get(&branch));
            path = branch.parent();
        }
        walk.reverse();
        origins.insert(branch.branch.clone(), walk);
    }
    origins
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
    let wanted = wanted(shape, effective);
    let mut broken = Vec::new();
    for branch in effective {
        let Some(shape) = shape.of_branch(&branch.branch) else { continue };
        let view = BranchView { shape, branch, verdicts, wanted: &wanted, now: Timestamp::UNIX_EPOCH };
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
    let wanted = wanted(shape, effective);
    let mut decisions = Vec::new();
    for branch in effective {
        if let Some(shape) = shape.of_branch(&branch.branch) {
            let view = BranchView { shape, branch, verdicts, wanted: &wanted, now };
            view.decide(&mut decisions);
        }
    }
    Plan { decisions }
}

/// The claims to be checked, by branch and step.
type Wanted = HashMap<(BranchPath, StepId), BTreeSet<usize>>;

fn wanted(shape: &Shape, effective: &[Effective]) -> Wanted {
    let mut wanted = Wanted::new();
    for check in checks(shape, effective) {
        wanted.entry((check.branch, check.step)).or_default().insert(check.index);
    }
    wanted
}

/// What [`plan`] looks at for one branch.
struct BranchView<'a> {
    shape: &'a Shape,
    branch: &'a Effective,
    verdicts: &'a Verdicts,
    wanted: &'a Wanted,
    now: Timestamp,
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
                None if self.branch.position.undone.contains(&step.id) => (Action::Ask, Cause::AskedInTurn),
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
                let action = if step.idempotent { Action::Run } else { Action::Ask };
                Some((action, Cause::EvidenceFailed(claims)))
            }
            Standing::Unknown(claims) => Some((Action::Ask, Cause::EvidenceUnknown(claims))),
            Standing::Holds => None,
        }
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
            Status::Ready if self.branch.position.undone.contains(&step.id) => {
                (Action::Ask, Cause::AskedInTurn)
            }
            Status::Ready => match entry.wake_at {
                Some(due) if due > self.now => (Action::Wait, Cause::Delayed(due)),
                _ if entry.failures > 0 => (Action::Retry, Cause::Failed(entry.at.clone())),
                _ => (Action::Run, Cause::Ready),
            },
            Status::Started if self.branch.position.undone.contains(&step.id) => {
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

    /// Says whether a step must not be repeated blindly and may have taken effect in the try that it stands at.
    fn is_in_doubt(&self, step: &Step, entry: &FrontierEntry) -> bool {
        let is_unsettled = entry.status == Status::Started || entry.is_unsettled();
        self.branch.position.undone.contains(&step.id) || (is_unsettled && !step.idempotent)
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
        if let Some(Settled::Skipped(seq)) = settled {
            return (Action::Skip, Cause::Skipped(*seq));
        }
        if let Some(decision) = self.doubted(step) {
            return decision;
        }
        match (upstream, settled) {
            (Some(before), _) => (Action::Recheck, Cause::UpstreamChanged(before.clone())),
            (None, Some(Settled::Tolerated(seq))) => (Action::Reuse, Cause::Tolerated(*seq)),
            (None, settled) => (Action::Reuse, Cause::Finished(settled.map(|settled| settled.seq()))),
        }
    }

    /// Says whether a step was finished, in this pass or an earlier one.
    fn is_finished(&self, step: &StepId) -> bool {
        self.branch.position.ledger.contains_key(step)
    }
}
