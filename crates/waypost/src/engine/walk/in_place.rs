//! Edits in place: several steps claim one file, and each step edits the file of the step before.
//!
//! ```text
//!   a: echo 1 > d     b: echo 2 >> d        file d is missing: at the turn of b, first a reruns, then b
//! ```
//!
//! A declarer is an end with claims about a file. Input: the declarers, and the files of a step at its turn. Output:
//! the broken declarers upstream of the step, from the nearest back to the first declarer whose claims hold.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::evidence::resolved;
use crate::id::{ScopePath, StepId};
use crate::plan::shape::Shape;
use crate::plan::{Action, Broken, Cause, Check, ClaimKey, Decision};
use crate::record::{FrontierEntry, Occasion, Status, Verdict};

use crate::engine::resume::reruns::opener_of;
use crate::engine::resume::trust::{say_why, verify};
use crate::engine::scope::ScopeId;
use crate::engine::session::Session;
use crate::engine::{Admission, Program, RunError, TreatAs};

/// An end with claims about files, or a step about to write files.
#[derive(Debug)]
struct Declarer {
    scope: ScopePath,
    step: StepId,
    claims: Vec<Check>,
    /// False for an end out of force, which may be reused.
    in_force: bool,
    /// The step runs in this resume: its result is sound.
    is_new: bool,
}

/// The ends with claims about files at the start of a session, and the steps that run in this resume.
#[derive(Debug, Default)]
pub(crate) struct Declarers {
    all: Vec<Declarer>,
    places: BTreeMap<(ScopePath, StepId), usize>,
    /// The declarers by the name of a file, folder or pattern.
    by_name: BTreeMap<String, BTreeSet<usize>>,
}

impl Declarers {
    /// Notes a claim of an end.
    pub(crate) fn note(&mut self, check: Check, in_force: bool) {
        let key = ClaimKey::of(&check.claim);
        if !key.is_of_file() {
            return;
        }
        let at = self.place_of(&check.scope, &check.step);
        for name in [key.name().to_owned(), resolved(&check.claim.subject)] {
            self.by_name.entry(name).or_default().insert(at);
        }
        self.all[at].in_force |= in_force;
        self.all[at].claims.push(check);
    }

    /// Notes a file of a step that runs in this resume.
    pub(crate) fn note_new(&mut self, Rewritten { scope, step, file }: Rewritten) {
        let at = self.place_of(&scope, &step);
        self.all[at].is_new = true;
        self.by_name.entry(file).or_default().insert(at);
    }

    fn place_of(&mut self, scope: &ScopePath, step: &StepId) -> usize {
        let all = &mut self.all;
        *self.places.entry((scope.clone(), step.clone())).or_insert_with(|| {
            let (scope, step) = (scope.clone(), step.clone());
            all.push(Declarer { scope, step, claims: Vec::new(), in_force: false, is_new: false });
            all.len() - 1
        })
    }

    /// Returns the declarers of a file, folder or pattern. A claim about a folder with the file does not count: a new file
    /// in the folder is no edit of its other files.
    fn of_file(&self, file: &str) -> impl Iterator<Item = usize> {
        self.by_name.get(file).into_iter().flatten().copied()
    }
}

impl Declarer {
    fn on(&self) -> StepOn<'_> {
        (&self.scope, &self.step)
    }

    /// Returns the claims about a file, folder or pattern.
    fn claims_about<'a>(&'a self, file: &'a str) -> impl Iterator<Item = &'a Check> {
        let is_about = move |check: &&Check| {
            ClaimKey::of(&check.claim).name() == file || resolved(&check.claim.subject) == file
        };
        self.claims.iter().filter(is_about)
    }
}

/// A file of a step that runs in this resume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rewritten {
    scope: ScopePath,
    step: StepId,
    file: String,
}

/// A step, with its scope.
type StepOn<'a> = (&'a ScopePath, &'a StepId);

impl<P: Program> Session<'_, P> {
    /// Verifies the earlier declarers of the files of ready steps. If a declarer is broken, nothing more starts, and the
    /// next session under the same lease reruns the declarer first. An attempt after a failure in this session
    /// continues with its own file.
    pub(crate) async fn check_earlier_declarers(
        &mut self,
        id: ScopeId,
        now: Timestamp,
    ) -> Result<(), RunError> {
        if self.declarers.all.is_empty() {
            return Ok(());
        }
        let scope = self.scopes.get(id);
        let is_next = |entry: &&FrontierEntry| {
            entry.status == Status::Ready
                && entry.failures == 0
                && !entry.has_children()
                && entry.wake_at.is_none_or(|due| due <= now)
                && scope.result_of(entry).is_none()
        };
        let next = scope.position.frontier.iter().filter(is_next);
        let places = next.filter_map(|entry| scope.shape.place(entry.step.as_str()));
        for place in places.collect::<Vec<_>>() {
            let files = self.files_of(id, place);
            if files.is_empty() {
                continue;
            }
            let broken = self.broken_declarers(id, place, &files).await?;
            if !broken.is_empty() {
                self.broken_declarers.extend(broken);
                self.is_pausing = true;
                return Ok(());
            }
            let scope = self.scopes.get(id);
            for file in files {
                let (path, step) = (scope.path().clone(), scope.step_id(place).clone());
                let rewritten = Rewritten { scope: path, step, file };
                self.declarers.note_new(rewritten.clone());
                self.rewritten.insert(rewritten);
            }
        }
        Ok(())
    }

    /// Returns the claimed files of a step that is about to run.
    fn files_of(&self, id: ScopeId, place: usize) -> BTreeSet<String> {
        let scope = self.scopes.get(id);
        let step = &scope.shape.steps()[place];
        let step_ref = scope.step_ref(place);
        if !step.has_evidence() || !matches!(self.decide(id, place), Ok(Admission::Run)) {
            return BTreeSet::new();
        }
        let named = if step.claims { self.program.subjects(step_ref, &scope.state) } else { Vec::new() };
        step.subjects.iter().chain(&named).map(|subject| resolved(subject)).collect()
    }

    /// Returns the declarers upstream of a step with a failed claim about one of these files, nearest first, up to the
    /// first declarer whose claims hold.
    ///
    /// # Errors
    /// [`RunError::InDoubt`]: the claims of a declarer cannot be checked.
    async fn broken_declarers(
        &mut self,
        id: ScopeId,
        place: usize,
        files: &BTreeSet<String>,
    ) -> Result<Vec<Broken>, RunError> {
        let scope = self.scopes.get(id);
        let (mut path, mut step) = (scope.path().clone(), scope.step_id(place).clone());
        let mut broken: Vec<Broken> = Vec::new();
        let run = self.engine.store.run(&scope.chain.run).await?;
        while let Some((mut earlier, mut checks)) = self.nearest_declarer((&path, &step), files) {
            let run = run.record.record();
            checks.retain(|check| check.claim.counts() && check.claim.is_due(Occasion::Resume));
            let (verdicts, found) = verify(self.engine, self.program, run, &checks, self.on_unknown).await?;
            let titles = |wanted: Verdict| {
                let key = |check: &Check| (check.scope.clone(), check.step.clone(), check.index);
                let found = checks.iter().filter(|check| verdicts.get(&key(check)) == Some(&wanted));
                found.map(|check| check.claim.title()).collect::<Vec<_>>()
            };
            earlier.claims = titles(Verdict::Failed);
            let unknown = titles(Verdict::Unknown);
            if earlier.claims.is_empty() && !unknown.is_empty() {
                let (path, step, cause) = (earlier.scope, earlier.step, Cause::EvidenceUnknown(unknown));
                let mut question = Decision { scope: path, step, action: Action::Ask, cause };
                say_why(&mut question, &found);
                return Err(RunError::InDoubt { run: run.run.clone(), questions: vec![question] });
            }
            let shape = self.program.shape().of_scope(&earlier.scope);
            let is_careful = shape
                .and_then(|shape| shape.step(earlier.step.as_str()))
                .is_some_and(|step| !step.idempotent);
            if earlier.claims.is_empty()
                || is_careful && self.answers.about(&earlier.scope, &earlier.step) == Some(TreatAs::Done)
            {
                break;
            }
            (path, step) = (earlier.scope.clone(), earlier.step.clone());
            broken.push(earlier);
        }
        Ok(broken)
    }

    /// Returns the nearest declarer in force upstream of a step for one of these files, and the claims; `None` if the
    /// nearest declarer runs in this resume.
    fn nearest_declarer(&self, step: StepOn<'_>, files: &BTreeSet<String>) -> Option<(Broken, Vec<Check>)> {
        let root = self.program.shape();
        let declarers: BTreeSet<usize> = files.iter().flat_map(|file| self.declarers.of_file(file)).collect();
        let declarers = declarers.into_iter().map(|at| &self.declarers.all[at]);
        let has_claim =
            |declarer: &Declarer| files.iter().any(|file| declarer.claims_about(file).next().is_some());
        let upstream: Vec<&Declarer> = declarers
            .filter(|end| is_upstream(root, end.on(), step))
            .filter(|end| end.is_new || (self.is_in_force(end) && has_claim(end)))
            .collect();
        let is_nearest =
            |end: &&&Declarer| !upstream.iter().any(|other| is_upstream(root, end.on(), other.on()));
        let nearest = upstream.iter().find(is_nearest).filter(|end| !end.is_new)?;
        let checks: Vec<Check> = files.iter().flat_map(|file| nearest.claims_about(file)).cloned().collect();
        let seq = checks.first()?.seq?;
        let (scope, step) = (nearest.scope.clone(), nearest.step.clone());
        Some((Broken { scope, step, seq, claims: Vec::new() }, checks))
    }

    /// Returns whether an end is in force now.
    fn is_in_force(&self, end: &Declarer) -> bool {
        self.scopes.of_scope(&end.scope).map_or(end.in_force, |scope| {
            let settled = scope.position.ledger.get(&end.step).map(|settled| settled.seq);
            settled.is_some() && end.claims.iter().all(|check| check.seq == settled)
        })
    }
}

/// Returns whether a step comes before another step, in the scope where their paths part.
fn is_upstream(root: &Shape, before: StepOn<'_>, after: StepOn<'_>) -> bool {
    let (before, after) = (path_to(root, before), path_to(root, after));
    for ((scope, step), (other_scope, other)) in before.iter().zip(&after) {
        if scope != other_scope {
            // Siblings, or passes of a loop.
            return false;
        }
        if step != other {
            let Some(shape) = root.of_scope(scope) else { return false };
            let places = shape.place(step.as_str()).zip(shape.place(other.as_str()));
            return places.is_some_and(|(step, other)| shape.with_needs(other)[step]);
        }
    }
    // The steps of its children come before the end of a step.
    before.len() > after.len()
}

/// Returns the openers around a step, outermost first, and the step, each with its scope.
fn path_to(root: &Shape, (scope, step): StepOn<'_>) -> Vec<(ScopePath, StepId)> {
    let around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
    let openers = around.filter_map(|below| Some((below.parent()?, opener_of(root, &below)?)));
    let mut path: Vec<(ScopePath, StepId)> =
        [(scope.clone(), step.clone())].into_iter().chain(openers).collect();
    path.reverse();
    path
}
