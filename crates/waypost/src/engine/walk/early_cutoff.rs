//! Early cutoff: reuses the results of ready steps whose inputs are unchanged.
//!
//! Input: ready steps with reusable results. Output: each step is settled with its result, or the result is dropped and
//! the step starts. This module reads digests and ended records, and verifies the evidence of the results.
//! [`trace`](super::trace) computes the inputs, [`reuse`](super::reuse) compares them and settles the step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;

use crate::id::{Digest, RunId, ScopePath, StepId};
use crate::plan::shape::{Shape, Step};
use crate::plan::{Action, Cause, Check, Decision, Effective, Weighed, due};
use crate::projection::events::{RerunCause, STEP_INVALIDATED};
use crate::record::{
    Fan, FrontierEntry, Note, Occasion, Position, Record, Reusable, Settled, SettledAs, SkipCause, Trace,
    Verdict, WaitKind,
};
use crate::store::{Store, StoreError, StoreExt as _};

use super::reuse::{Candidate, has_same_input};
use super::trace::{reads_of, sinks_and_openers};
use crate::engine::inspect::{effective_of, position_of};
use crate::engine::resume::accepted_pins::AcceptedPacks;
use crate::engine::resume::begin::decode_state;
use crate::engine::resume::trust::verify;
use crate::engine::scope::child_ends::has_state;
use crate::engine::scope::{Opener, Scope, ScopeId};
use crate::engine::session::Session;
use crate::engine::time_travel::rollback::load_with_state;
use crate::engine::{Admission, Program, RunError, StepRef};

/// Mark in the note about an invalid step: its recorded result was compared at its turn.
pub(crate) const COMPARED: &str = "compared";

/// Verdicts on the evidence of reusable results, valid until the next step ends: a step may rewrite claimed files.
#[derive(Debug, Default)]
pub(crate) struct ReusableVerdicts {
    /// The verified scopes.
    pub(crate) verified: BTreeSet<ScopePath>,
    pub(crate) broken: BTreeMap<ResultKey, Vec<String>>,
    pub(crate) unknown: BTreeMap<ResultKey, Vec<String>>,
}

/// The key of a result: a step of a scope, in a pass.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResultKey {
    pub(crate) scope: ScopePath,
    pub(crate) step: StepId,
    /// From 1; 1 for a step without a scope per pass.
    pub(crate) pass: u32,
}

impl<P: Program> Session<'_, P> {
    /// Reads the digests of ends required by ready steps, in graphs with traces.
    pub(crate) async fn read_digests(&mut self, id: ScopeId) -> Result<(), RunError> {
        if !self.keeps_traces {
            return Ok(());
        }
        let (store, program) = (Arc::clone(&self.engine.store), self.program);
        read_digests(store.as_ref(), program, self.scopes.get_mut(id), &self.accepted_packs).await
    }

    /// Settles ready steps with their reusable results, and drops results that cannot be reused. In graphs with `needs`,
    /// no other place decides about reuse.
    pub(crate) async fn reuse_ready(&mut self, id: ScopeId) -> Result<(), RunError> {
        self.keep_state_of_ended_pass(id)?;
        loop {
            self.read_digests(id).await?;
            let Some(candidate) = self.next_candidate(id) else { return Ok(()) };
            let is_kept = matches!(candidate.result, Reusable::Ended { kept: true, .. });
            match self.decide(id, candidate.place) {
                _ if is_kept => {}
                // The result stays reusable: the retry of the failed step may give an equal result.
                Ok(Admission::Skip(cause @ SkipCause::UpstreamFailed(_))) => {
                    self.skip(id, candidate.place, cause);
                    continue;
                }
                Ok(Admission::Skip(_)) | Err(_) => {
                    self.drop_result(id, &candidate)?;
                    continue;
                }
                Ok(Admission::Run) => {}
            }
            let cause = match candidate.result.clone() {
                Reusable::Begun { entry, before }
                    if has_same_input(&entry, candidate.trace.as_ref()) && self.has_state_of(id, &entry) =>
                {
                    self.continue_step(id, candidate.place, *entry, before)?;
                    None
                }
                Reusable::Begun { entry, .. } => {
                    self.note_lost_answer(id, &entry).await?;
                    Some(RerunCause::UpstreamChanged { step: None })
                }
                Reusable::Confirm | Reusable::Started(_) | Reusable::Effect => {
                    Some(RerunCause::UpstreamChanged { step: None })
                }
                Reusable::Ended { settled, .. } => self.reuse(id, &candidate, settled).await?,
            };
            if let Some(cause) = cause {
                self.drop_result(id, &candidate)?;
                let is_unnamed = cause == RerunCause::UpstreamChanged { step: None };
                let named = self.upstream_cause(id, candidate.place).filter(|_| is_unnamed);
                let cause = named.unwrap_or(cause);
                let data = json!({ "step": candidate.step, "cause": cause, (COMPARED): true });
                let note = Note::Event { name: STEP_INVALIDATED.to_owned(), data };
                self.scopes.get_mut(id).notes.push(note);
            }
        }
    }

    /// Notes an answer without effect: the input of the step changed, and the step asks again.
    async fn note_lost_answer(&mut self, id: ScopeId, entry: &FrontierEntry) -> Result<(), RunError> {
        let scope = self.scopes.get_mut(id);
        for wait in entry.waits.iter().filter(|wait| wait.on == WaitKind::Answer) {
            if self.engine.has_answer(&scope.chain.run, &wait.id).await? {
                let step = &entry.step;
                let text = format!("the answer for step `{step}` does not count: an upstream result changed");
                scope.notes.push(Note::Warning(text));
            }
        }
        Ok(())
    }

    /// Returns the cause of a rerun whose trace names no changed step: without traces, the need that ended last, else the
    /// change upstream of the opener.
    fn upstream_cause(&self, id: ScopeId, place: usize) -> Option<RerunCause> {
        let scope = self.scopes.get(id);
        let needs = scope.shape.needs(place).iter().map(|need| scope.step_id(*need));
        let ended = |need: &&StepId| scope.position.ledger.get(*need).map(|end| end.seq);
        if let Some(need) = needs.filter(|_| !self.keeps_traces).max_by_key(ended) {
            return Some(RerunCause::UpstreamChanged { step: Some(need.clone()) });
        }
        let Opener { scope, place, .. } = scope.opener?;
        let fan = self.scopes.get(scope).fans.iter().find(|fan| fan.place == place)?;
        fan.cause.clone().filter(|cause| matches!(cause, RerunCause::UpstreamChanged { .. }))
    }

    /// Puts an end in force again if the recorded trace equals the current trace and the evidence holds. Returns the
    /// cause of a rerun if not.
    async fn reuse(
        &mut self,
        id: ScopeId,
        candidate: &Candidate,
        settled: Settled,
    ) -> Result<Option<RerunCause>, RunError> {
        let scope = self.scopes.get(id);
        let (run, path) = (scope.chain.run.clone(), scope.path().clone());
        let ended = match self.engine.store.load(&run, &path, settled.seq).await {
            Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => {
                return Ok(Some(RerunCause::UpstreamChanged { step: None }));
            }
            ended => ended?,
        };
        let header = ended.header();
        if let Some(difference) = self.difference(id, candidate, header.trace.as_ref()) {
            return Ok(Some(difference));
        }
        self.verify_reusable(id).await?;
        let pass = self.scopes.get(id).pass_of(candidate.place);
        let key = ResultKey { scope: path, step: candidate.step.clone(), pass };
        if let Some(claims) = self.reusable_verdicts.unknown.get(&key) {
            let cause = Cause::EvidenceUnknown(claims.clone());
            let ResultKey { scope: path, step, .. } = key;
            let questions = vec![Decision { scope: path, step, action: Action::Ask, cause }];
            return Err(RunError::InDoubt { run, questions });
        }
        if let Some(claims) = self.reusable_verdicts.broken.get(&key) {
            return Ok(Some(RerunCause::EvidenceFailed { claims: claims.clone() }));
        }
        // A kept result never left the state of its scope, and a skip has no result.
        let has_no_part = settled.how == SettledAs::SkippedByHand;
        let is_kept = matches!(candidate.result, Reusable::Ended { kept: true, .. });
        let never_left = is_kept && !self.scopes.get(id).position.entered_again;
        if !never_left
            && !has_no_part
            && self.restores_state(id, candidate.place)
            && !self.restore_state(id, candidate, &ended).await?
        {
            return Ok(Some(RerunCause::UpstreamChanged { step: None }));
        }
        let digests = self.accepted_packs.digests_of(self.scopes.get(id), candidate.place, header);
        self.settle_with_result(id, candidate, digests);
        Ok(None)
    }

    /// Returns the first recorded need of a kept result with another result now. The result of an opener may differ by an added
    /// step within, and is not compared.
    pub(crate) fn changed_need(&self, id: ScopeId, then: &Trace) -> Option<RerunCause> {
        let scope = self.scopes.get(id);
        let differs = |(step, digest): &(&StepId, &Digest)| {
            let is_leaf = scope.shape.step(step.as_str()).is_some_and(|step| !step.opens());
            let now = scope.digests.get(*step).filter(|_| is_leaf);
            now.is_some_and(|now| **digest != now.both() && **digest != now.output)
        };
        let (step, _) = then.needs.iter().find(differs)?;
        Some(RerunCause::UpstreamChanged { step: Some(step.clone()) })
    }

    /// Restores the output of an end into the state. Returns false if retention dropped the recorded state.
    async fn restore_state(
        &mut self,
        id: ScopeId,
        candidate: &Candidate,
        ended: &Record,
    ) -> Result<bool, RunError> {
        let header = ended.header();
        let then = match load_with_state(self.engine, &header.run, &header.scope, header.seq).await {
            Err(RunError::NoState { .. }) => return Ok(false),
            then => then?,
        };
        let program = self.program;
        let scope = self.scopes.get_mut(id);
        let then = decode_state(program, scope.shape.level(), &then)?;
        let Scope { chain, shape, state, .. } = scope;
        let step = &shape.steps()[candidate.place];
        let step_ref = StepRef { scope: &chain.scope, level: shape.level(), place: candidate.place, step };
        program.restore(step_ref, state, &then);
        Ok(true)
    }

    /// Verifies the evidence of all reusable results of a scope, unless verified since the last end of a step.
    async fn verify_reusable(&mut self, id: ScopeId) -> Result<(), RunError> {
        let path = self.scopes.get(id).path().clone();
        if !self.reusable_verdicts.verified.insert(path) {
            return Ok(());
        }
        let (root, store) = (self.program.shape(), Arc::clone(&self.engine.store));
        let scope = self.scopes.get(id);
        let (run, path, mut position) =
            (scope.chain.run.clone(), scope.path().clone(), scope.position.clone());
        // Uncommitted ends are upstream of all reuse candidates.
        position.ledger.retain(|_, settled| settled.seq < scope.chain.next);
        let AsIfInForce { effective, incomplete } =
            as_if_in_force(store.as_ref(), root, &run, &path, position).await?;
        let run = store.run(&run).await?;
        let run = run.record.record();
        let checks: Vec<Check> = due(root, &effective, Occasion::Resume).checks;
        let (verdicts, _) = verify(self.engine, self.program, run, &checks, self.on_unknown).await?;
        let broken = Weighed::of(root, &effective, &verdicts, &checks).broken();
        let mut reusable_verdicts = std::mem::take(&mut self.reusable_verdicts);
        let own = |path: &ScopePath, step: &StepId| {
            self.result_of(id, ResultKey { scope: path.clone(), step: step.clone(), pass: 1 })
        };
        for check in &checks {
            let verdict = verdicts.get(&(check.scope.clone(), check.step.clone(), check.index));
            if verdict == Some(&Verdict::Unknown)
                && let Some(key) = own(&check.scope, &check.step)
            {
                reusable_verdicts.unknown.entry(key).or_default().push(check.claim.title());
            }
        }
        for broken in broken {
            if let Some(key) = own(&broken.scope, &broken.step) {
                reusable_verdicts.broken.entry(key).or_default().extend(broken.claims);
            }
        }
        for key in incomplete.into_iter().filter_map(|result| self.result_of(id, result)) {
            reusable_verdicts.broken.entry(key).or_default();
        }
        reusable_verdicts.unknown.retain(|key, _| !reusable_verdicts.broken.contains_key(key));
        self.reusable_verdicts = reusable_verdicts;
        Ok(())
    }

    /// Returns the result of a scope that contains a result: the result itself, or the result of the opener of its scope.
    fn result_of(&self, id: ScopeId, mut result: ResultKey) -> Option<ResultKey> {
        let scope = self.scopes.get(id);
        while result.scope != *scope.path() {
            let (name, _) = result.scope.opened_by()?;
            let pass = result.scope.pass_number().unwrap_or(1);
            let path = result.scope.parent()?;
            let shape = self.program.shape().of_scope(&path)?;
            let step = shape.steps()[shape.opener(&name)?].id.clone();
            result = ResultKey { scope: path, step, pass };
        }
        Some(result)
    }
}

/// Reads the missing digests of ends required by unfinished steps of a scope.
pub(crate) async fn read_digests<P: Program>(
    store: &dyn Store,
    program: &P,
    scope: &mut Scope<'_, P::State>,
    accepted: &AcceptedPacks,
) -> Result<(), RunError> {
    let mut wanted: BTreeSet<StepId> = BTreeSet::new();
    for entry in &scope.position.frontier {
        let Some(place) = scope.shape.place(entry.step.as_str()) else { continue };
        let needs = scope.shape.needs(place).iter().map(|need| scope.step_id(*need).clone());
        wanted.extend(needs.chain(reads_of(program, scope, place)));
        // The end of the pass before.
        wanted.extend(Some(entry.step.clone()).filter(|_| scope.pass_of(place) > 1));
    }
    if scope.position.frontier.is_empty() {
        wanted.extend(sinks_and_openers(scope.shape).map(|step| step.id.clone()));
    }
    let has_kept = |results: &BTreeMap<u32, Reusable>| {
        results.values().any(|result| matches!(result, Reusable::Ended { kept: true, .. }))
    };
    if !accepted.is_empty() || scope.position.reusable.values().any(has_kept) {
        // An accepted pin counts for all downstream ends. A kept result is compared with needs of another definition.
        wanted.extend(scope.position.ledger.keys().cloned());
    }
    wanted.retain(|step| !scope.digests.contains_key(step));
    let settled = wanted.into_iter().filter_map(|step| {
        let seq = scope.position.ledger.get(&step)?.seq;
        (seq < scope.chain.next).then_some((step, seq))
    });
    let settled: BTreeMap<StepId, u64> = settled.collect();
    if settled.is_empty() {
        return Ok(());
    }
    let seqs = settled.values().copied().collect();
    let ends = store.records(&scope.chain.run, scope.path(), &seqs).await?;
    for place in scope.shape.order() {
        let step = scope.step_id(place);
        let end = settled.get(step).and_then(|seq| ends.get(seq));
        let digests = end.and_then(|end| accepted.digests_of(scope, place, end.header()));
        scope.digests.extend(digests.map(|digests| (step.clone(), digests)));
    }
    Ok(())
}

/// A scope and the children of its openers, as if the reusable results were in force.
struct AsIfInForce {
    effective: Vec<Effective>,
    /// Results of openers with children that differ from the joined children.
    incomplete: Vec<ResultKey>,
}

/// Reads a scope and the children of its openers for a verification, as if the reusable results were in force.
async fn as_if_in_force(
    store: &dyn Store,
    root: &Shape,
    run: &RunId,
    scope: &ScopePath,
    mut position: Position,
) -> Result<AsIfInForce, RunError> {
    let newest = match store.newest(run, scope).await {
        // A child that is entered again after damage to its newest record.
        Err(StoreError::Damaged { older: Some(older), .. }) => store.load(run, scope, older).await?,
        newest => newest?,
    };
    for (step, results) in std::mem::take(&mut position.reusable) {
        for result in results.into_values() {
            let Reusable::Ended { mut settled, .. } = result else { continue };
            position.renew_passes_before(&step, &mut settled);
            position.ledger.insert(step.clone(), settled);
        }
    }
    let names = store.scopes(run).await?;
    let (mut unread, mut effective, mut incomplete) = (vec![(newest, position)], Vec::new(), Vec::new());
    while let Some((record, position)) = unread.pop() {
        let scope = record.header().scope.clone();
        let mut joined: BTreeMap<ResultKey, u64> = BTreeMap::new();
        let key = |step: &StepId, pass: u32| ResultKey { scope: scope.clone(), step: step.clone(), pass };
        let Some(shape) = root.of_scope(&scope) else { continue };
        for name in names.iter().filter(|name| name.parent().as_ref() == Some(&scope)) {
            let Some(opener) = name.opened_by().and_then(|(opener, _)| shape.opener(&opener)) else {
                continue;
            };
            let child = match store.newest(run, name).await {
                // Counts as missing, so that the opener opens the child again.
                Err(StoreError::Damaged { .. }) => continue,
                child => child?,
            };
            if !has_state(&child) || child.header().end.is_none() {
                continue;
            }
            let at = position_of(&child)?;
            let step = &shape.steps()[opener];
            if is_child_of((&position, step), name, at.origin) {
                let pass = name.pass_number().unwrap_or(1);
                *joined.entry(key(&step.id, pass)).or_insert(0) += u64::from(!is_hook(step, name));
                unread.push((child, at));
            }
        }
        let incomplete_of = |(step, fan): (&StepId, &Fan)| {
            // Each pass has one scope.
            let (passes, expected) = if fan.pass > 0 { (fan.pass, 1) } else { (1, fan.total) };
            let results = (1..=passes).map(|pass| key(step, pass));
            let is_incomplete = |result: &ResultKey| joined.get(result).copied().unwrap_or(0) != expected;
            results.filter(is_incomplete).collect::<Vec<_>>()
        };
        let opens_evidence = |step: &StepId| shape.step(step.as_str()).is_some_and(Step::opens_evidence);
        let ends = position.ledger.iter().filter(|(step, _)| opens_evidence(step));
        incomplete
            .extend(ends.filter_map(|(step, end)| Some((step, end.fan.as_deref()?))).flat_map(incomplete_of));
        effective.push(effective_of(store, root, (&record, &position)).await?);
    }
    Ok(AsIfInForce { effective, incomplete })
}

/// Returns whether a scope belongs to a hook of a step.
fn is_hook(step: &Step, name: &ScopePath) -> bool {
    name.opened_by().is_some_and(|(opener, _)| step.are_hooks(&opener))
}

/// Returns whether a child with this origin belongs to the current end of its opener.
fn is_child_of((position, step): (&Position, &Step), name: &ScopePath, origin: Option<u64>) -> bool {
    let Some((_, key)) = name.opened_by() else { return false };
    if is_hook(step, name) {
        // Hooks open before the end; later hooks do not belong to the end.
        let ended = position.ledger.get(&step.id).map(|settled| settled.seq);
        return origin.zip(ended).is_some_and(|(origin, ended)| origin <= ended);
    }
    let Some(fan) = position.joined(&step.id) else { return false };
    let pass = key.parse().ok().filter(|_| fan.pass > 0);
    let fan = pass.map_or_else(|| Some(fan.clone()), |pass| fan.of_pass(pass));
    fan.is_some_and(|fan| origin == Some(fan.since))
}
