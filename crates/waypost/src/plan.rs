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

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use crate::id::{BranchPath, StepId};
use crate::record::{Claim, FrontierEntry, Pack, Position, Settled, Status, Try, Verdict, Wait, WaitKind};
use crate::shape::{Shape, Unfinished};

/// What the plan needs to know of a branch: its newest sound record, and the evidence of what is finished on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// The branch.
    pub branch: BranchPath,
    /// The seq of its newest sound record.
    pub seq: u64,
    /// What is unfinished on it.
    pub position: Position,
    /// Evidence of finished steps and of cut ones, found through the ledger and `since`.
    pub evidence: BTreeMap<StepId, Pack>,
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
    /// Its place in the step's pack.
    pub index: usize,
    /// The claim.
    pub claim: Claim,
}

/// Verdicts of checks, by branch, step and place in the pack.
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

/// Why.
#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    /// It completed, and what can be checked holds. With the seq of its record, where the ledger has it.
    Finished(Option<u64>),
    /// It was skipped at this seq.
    Skipped(u64),
    /// It failed at this seq, and that was tolerated.
    Tolerated(u64),
    /// Its needs are met and it was not started.
    Ready,
    /// It comes after these.
    After(Vec<StepId>),
    /// Its start is recorded and nothing after: its process was cut.
    Cut(Try),
    /// It was stopped before its end.
    Stopped(String),
    /// It failed.
    Failed(Try),
    /// The next try is due at this time.
    Delayed(Timestamp),
    /// It waits for these.
    Waits(Vec<Wait>),
    /// These claims do not hold.
    EvidenceFailed(Vec<String>),
    /// These claims could not be checked.
    EvidenceUnknown(Vec<String>),
    /// This step before it runs again.
    UpstreamChanged(StepId),
    /// It is finished, but does something else by now.
    Redefined,
    /// It was cut and must not be repeated blindly.
    InDoubt(Try),
    /// It was cut, and its evidence says that it is done.
    EvidenceSettles,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished(Some(seq)) => write!(f, "completed at @{seq}"),
            Self::Finished(None) => f.write_str("completed"),
            Self::Skipped(seq) => write!(f, "skipped at @{seq}"),
            Self::Tolerated(seq) => write!(f, "failed at @{seq}, which the workflow tolerates"),
            Self::Ready => f.write_str("all it needs is finished"),
            Self::After(steps) => write!(f, "after {}", join(steps)),
            Self::Cut(at) => {
                write!(f, "attempt {} was cut: it started and its end is not recorded", at.attempt)
            }
            Self::Stopped(by) => write!(f, "it was stopped before its end ({by})"),
            Self::Failed(at) => write!(f, "attempt {} failed", at.attempt),
            Self::Delayed(until) => write!(f, "the next attempt is due at {until}"),
            Self::Waits(waits) => {
                write!(f, "it waits for {}", waits.iter().map(wait_text).collect::<Vec<_>>().join(", "))
            }
            Self::EvidenceFailed(claims) => write!(f, "evidence no longer holds: {}", claims.join(", ")),
            Self::EvidenceUnknown(claims) => {
                write!(f, "evidence could not be checked: {}", claims.join(", "))
            }
            Self::UpstreamChanged(step) => write!(f, "upstream changed: `{step}` runs again"),
            Self::Redefined => f.write_str("it does something else than what was finished"),
            Self::InDoubt(at) => {
                write!(
                    f,
                    "attempt {} was cut and the step is not idempotent: whether it took effect is not known",
                    at.attempt
                )
            }
            Self::EvidenceSettles => f.write_str("it was cut, and its evidence shows that it is done"),
        }
    }
}

fn join(steps: &[StepId]) -> String {
    steps.iter().map(|step| format!("`{step}`")).collect::<Vec<_>>().join(", ")
}

fn wait_text(wait: &Wait) -> String {
    match &wait.on {
        WaitKind::Answer => format!("an answer to `{}`", wait.key),
        WaitKind::Signal(name) => format!("signal `{name}`"),
        WaitKind::Until(time) => format!("{time}"),
        WaitKind::Children => "its branches".to_owned(),
        WaitKind::Resume => format!("a resume (held {})", wait.key),
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

/// One decision for each step of each open branch, in the order of the graph.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// The decisions.
    pub decisions: Vec<Decision>,
}

impl Plan {
    /// Returns what a person must decide before anything goes on.
    pub fn questions(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.iter().filter(|decision| decision.action == Action::Ask)
    }
}

/// Lists the claims that must be checked before the finished steps are trusted.
///
/// A claim binds by subject to the newest effective step that makes one about it: what a later step legitimately
/// rewrote does not count against the older. A subject that a started or failed step is about to rewrite is not judged
/// at all, unless it is that step's own, unpinned claim: this can settle what became of a cut step.
pub fn checks(shape: &Shape, effective: &[Effective]) -> Vec<Check> {
    let mut newest: HashMap<(&str, &str), u64> = HashMap::new();
    let mut in_flux: BTreeSet<String> = BTreeSet::new();
    for branch in effective {
        let Some(shape) = shape.of_branch(&branch.branch) else { continue };
        for (step, pack) in &branch.evidence {
            let Some(settled) = branch.position.ledger.get(step) else { continue };
            for claim in &pack.claims {
                let bound = newest.entry((&claim.kind, &claim.subject)).or_default();
                *bound = (*bound).max(settled.seq());
            }
        }
        for entry in &branch.position.frontier {
            if matches!(entry.status, Status::Started | Status::Failed) {
                let subjects = shape
                    .step(entry.step.as_str())
                    .into_iter()
                    .flat_map(|step| step.subjects.iter().cloned());
                in_flux.extend(subjects);
            }
        }
    }
    let mut checks = Vec::new();
    for branch in effective {
        for (step, pack) in &branch.evidence {
            let settled = branch.position.ledger.get(step).map(|settled| settled.seq());
            for (index, claim) in pack.claims.iter().enumerate() {
                let wanted = match settled {
                    Some(seq) => {
                        newest.get(&(claim.kind.as_str(), claim.subject.as_str())) == Some(&seq)
                            && !in_flux.contains(&claim.subject)
                    }
                    None => !claim.pinned,
                };
                if wanted {
                    checks.push(Check {
                        branch: branch.branch.clone(),
                        step: step.clone(),
                        index,
                        claim: claim.clone(),
                    });
                }
            }
        }
    }
    checks
}

/// Decides what would be done with each step, and says why.
///
/// `verdicts` answers [`checks`]; a claim that was to be checked and has no verdict counts as unknown, never as held.
pub fn plan(shape: &Shape, effective: &[Effective], verdicts: &Verdicts, now: Timestamp) -> Plan {
    let mut wanted = Wanted::new();
    for check in checks(shape, effective) {
        wanted.entry((check.branch, check.step)).or_default().insert(check.index);
    }
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

/// What [`plan`] looks at for one branch.
struct BranchView<'a> {
    shape: &'a Shape,
    branch: &'a Effective,
    verdicts: &'a Verdicts,
    wanted: &'a Wanted,
    now: Timestamp,
}

/// What the evidence of a step comes to.
enum Standing {
    Holds,
    Failed { claims: Vec<String>, only_live: bool },
    Unknown(Vec<String>),
}

impl BranchView<'_> {
    fn decide(&self, decisions: &mut Vec<Decision>) {
        let position = &self.branch.position;
        let unfinished = Unfinished::of(self.shape, position);
        let entries: HashMap<&str, &FrontierEntry> =
            position.frontier.iter().map(|e| (e.step.as_str(), e)).collect();
        let mut rerun: HashMap<usize, StepId> = HashMap::new();
        for place in self.shape.order() {
            let step = &self.shape.steps()[place];
            let upstream = self.shape.needs(place).iter().find_map(|need| rerun.get(need).cloned());
            let (action, cause) = match entries.get(step.id.as_str()) {
                Some(entry) => self.unfinished(place, entry),
                None if unfinished.has(place) => (Action::Run, Cause::After(self.before(place, &unfinished))),
                None => self.finished(place, upstream.as_ref()),
            };
            match action {
                Action::Run if !unfinished.has(place) => drop(rerun.insert(place, step.id.clone())),
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
            Status::Ready => match entry.wake_at {
                Some(due) if due > self.now => (Action::Wait, Cause::Delayed(due)),
                _ if entry.failures > 0 => (Action::Retry, Cause::Failed(entry.at.clone())),
                _ => (Action::Run, Cause::Ready),
            },
            Status::Started if step.idempotent => match &self.branch.stopped_by {
                Some(by) => (Action::Run, Cause::Stopped(by.clone())),
                None => (Action::Run, Cause::Cut(entry.at.clone())),
            },
            Status::Started => match self.standing(&step.id) {
                Some(Standing::Holds) => (Action::Reuse, Cause::EvidenceSettles),
                _ => (Action::Ask, Cause::InDoubt(entry.at.clone())),
            },
            Status::Waiting => (Action::Wait, Cause::Waits(entry.waits.clone())),
            Status::Failed => (Action::Retry, Cause::Failed(entry.at.clone())),
        }
    }

    fn finished(&self, place: usize, upstream: Option<&StepId>) -> (Action, Cause) {
        let step = &self.shape.steps()[place];
        let settled = self.branch.position.ledger.get(step.id.as_str());
        if let Some(Settled::Skipped(seq)) = settled {
            return (Action::Skip, Cause::Skipped(*seq));
        }
        match self.standing(&step.id) {
            Some(Standing::Failed { claims, only_live: true }) => {
                return (Action::Restart, Cause::EvidenceFailed(claims));
            }
            Some(Standing::Failed { claims, .. }) => {
                let action = if step.idempotent { Action::Run } else { Action::Ask };
                return (action, Cause::EvidenceFailed(claims));
            }
            Some(Standing::Unknown(claims)) => return (Action::Ask, Cause::EvidenceUnknown(claims)),
            Some(Standing::Holds) | None => {}
        }
        match (upstream, settled) {
            (Some(before), _) => (Action::Recheck, Cause::UpstreamChanged(before.clone())),
            (None, Some(Settled::Tolerated(seq))) => (Action::Reuse, Cause::Tolerated(*seq)),
            (None, settled) => (Action::Reuse, Cause::Finished(settled.map(|settled| settled.seq()))),
        }
    }

    /// Weighs the verdicts of a step; `None` if nothing of it was to be checked.
    ///
    /// Of a finished step, a claim that is not checked now (a newer step has the subject) stands as it was committed.
    /// Of a cut one, only what is checked now counts.
    fn standing(&self, step: &StepId) -> Option<Standing> {
        let pack = self.branch.evidence.get(step)?;
        let wanted = self.wanted.get(&(self.branch.branch.clone(), step.clone()))?;
        let finished = self.branch.position.ledger.contains_key(step);
        let verdict = |(index, claim): (usize, &Claim)| {
            if wanted.contains(&index) {
                let key = (self.branch.branch.clone(), step.clone(), index);
                self.verdicts.get(&key).copied().unwrap_or(Verdict::Unknown)
            } else if finished {
                claim.verdict
            } else {
                Verdict::Skipped
            }
        };
        let verdicts: Vec<Verdict> = pack.claims.iter().enumerate().map(verdict).collect();
        let count = |wanted: Verdict| verdicts.iter().filter(|verdict| **verdict == wanted).count();
        let needed = pack.at_least.map_or(pack.claims.len(), |least| least as usize).max(1);
        if count(Verdict::Ok) >= needed {
            return Some(Standing::Holds);
        }
        let with = |wanted: Verdict| {
            pack.claims.iter().zip(&verdicts).filter(move |(_, verdict)| **verdict == wanted)
        };
        let names = |wanted: Verdict| with(wanted).map(|(claim, _)| claim_name(claim)).collect::<Vec<_>>();
        if count(Verdict::Ok) + count(Verdict::Unknown) >= needed {
            return Some(Standing::Unknown(names(Verdict::Unknown)));
        }
        let only_live = with(Verdict::Failed).all(|(claim, _)| claim.live);
        Some(Standing::Failed { claims: names(Verdict::Failed), only_live })
    }
}

fn claim_name(claim: &Claim) -> String {
    claim.name.clone().unwrap_or_else(|| format!("{} {}", claim.kind, claim.subject))
}
