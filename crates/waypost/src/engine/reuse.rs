//! Reuse: a reusable result becomes current if the input of the step is equal.
//!
//! Input: ready steps with a reusable result. Each step is settled with the result, or the result is dropped and
//! the step starts. This module reads the digests for traces from headers, and verifies the evidence of the
//! results. [`trace`](super::trace) does the comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;

use crate::events::{RerunCause, STEP_INVALIDATED, STEP_REUSED};
use crate::id::{BranchPath, RunId, StepId};
use crate::plan::{Action, Cause, Check, Decision, Effective, Weighed, due};
use crate::record::{
    Fan, FrontierEntry, Note, Occasion, Phase, Position, Reason, Record, Reusable, Settled, SettledAs,
    SkipCause, Status, Trace, Verdict, WaitKind,
};
use crate::shape::{Shape, Step};
use crate::store::{Store, StoreError, StoreExt as _};

use super::begin::decode_state;
use super::child_ends::has_state;
use super::definition::{Forget, forget};
use super::failure::upstream;
use super::inspect::{effective_of, position_of};
use super::open_scopes::fan_of;
use super::rollback::load_with_state;
use super::scheduler::for_children;
use super::scope::{Line, LineId};
use super::session::Session;
use super::trace::{reads_of, sinks, trace_of};
use super::trust::verify;
use super::{Admission, Follow, Program, RunError};

/// Verdicts on the evidence of reusable results, valid until the next step ends: a step may rewrite claimed files.
#[derive(Debug, Default)]
pub(super) struct ReusableVerdicts {
    /// The verified scopes.
    looked: BTreeSet<BranchPath>,
    broken: BTreeMap<(BranchPath, StepId), Vec<String>>,
    unknown: BTreeMap<(BranchPath, StepId), Vec<String>>,
}

/// A ready step with a reusable result.
struct Candidate {
    place: usize,
    step: StepId,
    trace: Option<Trace>,
    result: Reusable,
}

impl<P: Program> Session<'_, P> {
    /// Reads the digests of ends required by ready steps, in graphs with traces.
    pub(super) async fn read_digests(&mut self, id: LineId) -> Result<(), RunError> {
        if !self.keeps_traces {
            return Ok(());
        }
        let (store, program) = (Arc::clone(&self.engine.store), self.program);
        read_digests(store.as_ref(), program, self.lines.get_mut(id)).await
    }

    /// Settles ready steps with their reusable results, and drops results that cannot be reused.
    pub(super) async fn reuse_ready(&mut self, id: LineId) -> Result<(), RunError> {
        loop {
            self.read_digests(id).await?;
            let Some(candidate) = self.next_candidate(id) else { return Ok(()) };
            let program = self.program;
            let line = self.lines.get(id);
            let is_repeated = line.shape.share_loop(candidate.place, candidate.place);
            let failed = self.failed_upstream(id, candidate.place);
            let is_kept = matches!(candidate.result, Reusable::Ended { kept: true, .. });
            match program.admit(line.spot(candidate.place), &line.state, upstream(failed.as_ref())) {
                _ if is_kept => {}
                // The result stays reusable: the retry of the failed step may give an equal result.
                Ok(Admission::Skip(cause @ SkipCause::UpstreamFailed(_))) => {
                    self.skip(id, candidate.place, cause);
                    continue;
                }
                Ok(Admission::Skip(_)) | Err(_) if !is_repeated => {
                    self.give_up_result(id, &candidate)?;
                    continue;
                }
                _ => {}
            }
            let cause = match candidate.result.clone() {
                Reusable::Begun { entry, before }
                    if is_given_the_same(&entry, candidate.trace.as_ref())
                        && self.has_state_of(id, &entry) =>
                {
                    self.go_on_with(id, candidate.place, *entry, before)?;
                    None
                }
                Reusable::Begun { .. } | Reusable::Confirm | Reusable::Started(_) => {
                    Some(RerunCause::UpstreamChanged { step: None })
                }
                Reusable::Ended { settled, .. } => self.reuse(id, &candidate, settled).await?,
            };
            if let Some(cause) = cause {
                self.give_up_result(id, &candidate)?;
                let data = json!({ "step": candidate.step, "cause": cause });
                let note = Note::Event { name: STEP_INVALIDATED.to_owned(), data };
                self.lines.get_mut(id).notes.push(note);
            }
        }
    }

    /// Returns whether a step belongs to the requested part of the run.
    fn is_wanted(&self, id: LineId, place: usize) -> bool {
        let wanted = self.wanted.as_deref().filter(|_| id == super::scope::MAIN);
        wanted.is_none_or(|wanted| wanted[place])
    }

    /// Returns whether the reuse of a ready step is still undecided.
    pub(super) fn has_result_to_judge(&self, id: LineId) -> bool {
        let Some(line) = self.lines.find_ref(id) else { return false };
        let has_result = |entry: &FrontierEntry| {
            entry.status == Status::Ready
                && line.result_of(entry).is_some()
                && line.shape.place(entry.step.as_str()).is_some_and(|place| self.is_wanted(id, place))
        };
        line.end.is_none() && !self.is_stopping() && line.position.frontier.iter().any(has_result)
    }

    /// Records the input of a starting step.
    pub(super) fn note_input(&mut self, id: LineId, place: usize) {
        if !self.keeps_traces || self.lines.get(id).entry(place).fan.is_some() {
            return;
        }
        let trace = trace_of(self.program, self.lines.get(id), place);
        self.lines.get_mut(id).entry_mut(place).input = trace.map(|trace| trace.digest());
    }

    fn next_candidate(&self, id: LineId) -> Option<Candidate> {
        let line = self.lines.get(id);
        if line.position.reusable.is_empty() || line.end.is_some() || self.is_stopping() {
            return None;
        }
        line.position.frontier.iter().filter(|entry| entry.status == Status::Ready).find_map(|entry| {
            let result = line.result_of(entry)?.clone();
            let place = line.shape.place(entry.step.as_str())?;
            if !self.is_wanted(id, place) {
                return None;
            }
            let trace = trace_of(self.program, line, place);
            Some(Candidate { place, step: entry.step.clone(), trace, result })
        })
    }

    /// Makes an end current again if the recorded trace equals the current trace and the evidence holds. Returns
    /// the mismatch otherwise.
    async fn reuse(
        &mut self,
        id: LineId,
        candidate: &Candidate,
        settled: Settled,
    ) -> Result<Option<RerunCause>, RunError> {
        let line = self.lines.get(id);
        let (run, branch) = (line.chain.run.clone(), line.branch().clone());
        let ended = match self.engine.store.load(&run, &branch, settled.seq).await {
            Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => {
                return Ok(Some(RerunCause::UpstreamChanged { step: None }));
            }
            ended => ended?,
        };
        let header = ended.header();
        if let Some(difference) = self.difference(id, candidate, header.trace.as_ref()) {
            return Ok(Some(difference));
        }
        self.look_at_reusable(id).await?;
        let key = (branch, candidate.step.clone());
        if let Some(claims) = self.reusable_verdicts.unknown.get(&key) {
            let cause = Cause::EvidenceUnknown(claims.clone());
            let (branch, step) = key;
            let questions = vec![Decision { branch, step, action: Action::Ask, cause }];
            return Err(RunError::InDoubt { run, questions });
        }
        if let Some(claims) = self.reusable_verdicts.broken.get(&key) {
            return Ok(Some(RerunCause::EvidenceFailed { claims: claims.clone() }));
        }
        // A kept result never left the state.
        let is_kept = matches!(candidate.result, Reusable::Ended { kept: true, .. });
        if !is_kept
            && self.restores_state(id, candidate.place)
            && !self.restore_state(id, candidate, &ended).await?
        {
            return Ok(Some(RerunCause::UpstreamChanged { step: None }));
        }
        let line = self.lines.get_mut(id);
        let Some(Reusable::Ended { settled, fan, follows, .. }) = line.take_result(candidate.place) else {
            return Ok(None);
        };
        let failures = fan.as_ref().map_or(settled.failures, |fan| {
            let before = fan.passes.last().map_or(0, |pass| pass.settled.failures);
            settled.failures.saturating_sub(before) + line.failures_before(candidate.place)
        });
        let settled = Settled { failures, ..settled };
        let fan = fan.map(|fan| line.position.after_current_passes(&candidate.step, fan));
        let follow = if follows { Follow::To(candidate.place) } else { Follow::Needs };
        line.settle(candidate.place, Some(settled), follow);
        if let Some(fan) = fan {
            line.position.joined.insert(candidate.step.clone(), fan);
        }
        line.digests.extend(header.digests.map(|digests| (candidate.step.clone(), digests)));
        note_reuse(line, &candidate.step, settled.seq);
        self.mark_dirty(id);
        self.touched.insert(id);
        Ok(None)
    }

    /// Returns the first difference between the trace of a reusable end and the current trace; `None` for a kept
    /// result.
    fn difference(&self, id: LineId, candidate: &Candidate, then: Option<&Trace>) -> Option<RerunCause> {
        if matches!(candidate.result, Reusable::Ended { kept: true, .. }) {
            return None;
        }
        let (Some(then), Some(now)) = (then, candidate.trace.as_ref()) else {
            return Some(RerunCause::UpstreamChanged { step: None });
        };
        let path = step_path(self.lines.get(id).branch(), &candidate.step);
        let is_accepted = || self.accepted.get(&path).is_some_and(|known| known.contains(&then.definition));
        if then.definition != now.definition && !is_accepted() {
            return Some(RerunCause::DefinitionChanged);
        }
        let is_same =
            (then.input, &then.needs, then.previous_pass) == (now.input, &now.needs, now.previous_pass);
        let changed = || now.needs.iter().find(|(step, given)| then.needs.get(*step) != Some(given));
        (!is_same).then(|| RerunCause::UpstreamChanged { step: changed().map(|(step, _)| step.clone()) })
    }

    /// Returns whether the state of a line lacks the outputs of ends out of force. In passes, steps read outputs
    /// of other steps from the pass before.
    fn lost_state(&self, id: LineId) -> bool {
        let line = self.lines.get(id);
        line.position.entered_again || !line.around.is_empty()
    }

    /// Returns whether the output of an end must be restored from the record of the end.
    fn restores_state(&self, id: LineId, place: usize) -> bool {
        let line = self.lines.get(id);
        let children = line.shape.steps()[place].children.as_ref();
        let has_passes = children.is_some_and(|c| c.passes) && line.shape.share_loop(place, place);
        // A skip removed the output of the step from the state.
        let is_lost = || self.program.gave(line.spot(place), &line.state).is_none();
        self.lost_state(id) || has_passes || is_lost()
    }

    /// Returns whether the state has the outputs of earlier passes of an unfinished step.
    fn has_state_of(&self, id: LineId, entry: &FrontierEntry) -> bool {
        let line = self.lines.get(id);
        let step = line.shape.step(entry.step.as_str());
        !self.lost_state(id) || step.is_none_or(|step| !step.is_later_pass(entry))
    }

    /// Restores the output of an end into the state. Returns false if retention dropped the recorded state.
    async fn restore_state(
        &mut self,
        id: LineId,
        candidate: &Candidate,
        ended: &Record,
    ) -> Result<bool, RunError> {
        let header = ended.header();
        let then = match load_with_state(self.engine, &header.run, &header.branch, header.seq).await {
            Err(RunError::NoState { .. }) => return Ok(false),
            then => then?,
        };
        let program = self.program;
        let line = self.lines.get_mut(id);
        let then = decode_state(program, line.shape.level(), &then)?;
        let Line { chain, shape, state, .. } = line;
        let step = &shape.steps()[candidate.place];
        let spot = super::Spot { branch: &chain.branch, level: shape.level(), place: candidate.place, step };
        program.restore(spot, state, &then);
        Ok(true)
    }

    /// Continues an unfinished step with open children or a wait, if the input equals the input at the start.
    fn go_on_with(
        &mut self,
        id: LineId,
        place: usize,
        begun: FrontierEntry,
        before: Option<Settled>,
    ) -> Result<(), RunError> {
        let line = self.lines.get_mut(id);
        let step = line.step_id(place).clone();
        line.take_result(place);
        line.position.ledger.extend(before.map(|settled| (step.clone(), settled)));
        let has_fan = begun.fan.is_some();
        let entry = line.entry_mut(place);
        *entry = begun;
        // A message for the wait may have come.
        self.asks_anew |= entry.status == Status::Waiting;
        if entry.status == Status::Started {
            (entry.status, entry.failures, entry.wake_at, entry.since) = (Status::Ready, 0, None, 0);
        }
        if has_fan {
            if !entry.waits.iter().any(|wait| wait.on == WaitKind::Children) {
                entry.waits = vec![for_children()];
            }
            entry.status = Status::Waiting;
            let fan = fan_of(line, place)?;
            line.fans.retain(|fan| fan.place != place);
            line.fans.push(fan);
        }
        note_reuse(line, &step, line.chain.next.saturating_sub(1));
        self.mark_dirty(id);
        self.touched.insert(id);
        Ok(())
    }

    /// Drops the result of a step: the step runs, or is in doubt.
    fn give_up_result(&mut self, id: LineId, candidate: &Candidate) -> Result<(), RunError> {
        let (program, retries) = (self.program, self.retries);
        let line = self.lines.get_mut(id);
        let result = line.take_result(candidate.place);
        let step = &line.shape.steps()[candidate.place];
        let (was_done, begun) = match &result {
            Some(Reusable::Ended { settled, fan, .. }) => {
                let is_done = settled.how != SettledAs::Skipped;
                (is_done && fan.as_ref().is_none_or(|fan| fan.total > 0), None)
            }
            Some(Reusable::Begun { entry, .. }) => (false, Some(&**entry)),
            Some(Reusable::Confirm | Reusable::Started(_)) | None => (false, None),
        };
        let begun = begun.filter(|entry| step.has_begun(entry));
        if !retries && !step.idempotent && (was_done || begun.is_some()) {
            line.position.ask_about(&candidate.step, begun.cloned());
        } else if line.pass_of(candidate.place) == 1 {
            let branch = line.branch().clone();
            forget(program, &branch, &[Forget::Step(candidate.step.clone())], &mut line.state)?;
        }
        Ok(())
    }

    /// Verifies the evidence of all reusable results of a line, unless verified since the last end of a step.
    async fn look_at_reusable(&mut self, id: LineId) -> Result<(), RunError> {
        let branch = self.lines.get(id).branch().clone();
        if !self.reusable_verdicts.looked.insert(branch) {
            return Ok(());
        }
        let (root, store) = (self.program.shape(), Arc::clone(&self.engine.store));
        let line = self.lines.get(id);
        let (run, branch, mut position) =
            (line.chain.run.clone(), line.branch().clone(), line.position.clone());
        // Uncommitted ends are upstream of all reuse candidates.
        position.ledger.retain(|_, settled| settled.seq < line.chain.next);
        let AsIfInForce { effective, incomplete } =
            as_if_in_force(store.as_ref(), root, (&run, &branch, position)).await?;
        let run = store.run(&run).await?;
        let run = run.record.record();
        let checks: Vec<Check> = due(root, &effective, Occasion::Resume).checks;
        let (verdicts, _) = verify(self.engine, self.program, run, &checks, self.on_unknown).await?;
        let mut looked = std::mem::take(&mut self.reusable_verdicts);
        let own = |branch: &BranchPath, step: &StepId| self.result_of(id, branch, step);
        for check in &checks {
            let verdict = verdicts.get(&(check.branch.clone(), check.step.clone(), check.index));
            if verdict == Some(&Verdict::Unknown)
                && let Some(key) = own(&check.branch, &check.step)
            {
                looked.unknown.entry(key).or_default().push(check.claim.title());
            }
        }
        for broken in Weighed::of(root, &effective, &verdicts, &checks).broken() {
            if let Some(key) = own(&broken.branch, &broken.step) {
                looked.broken.entry(key).or_default().extend(broken.claims);
            }
        }
        for key in incomplete.iter().filter_map(|(branch, step)| own(branch, step)) {
            looked.broken.entry(key).or_default();
        }
        looked.unknown.retain(|key, _| !looked.broken.contains_key(key));
        self.reusable_verdicts = looked;
        Ok(())
    }

    /// Returns the step of a line for an end: the step itself, or the opener of its scope.
    fn result_of(&self, id: LineId, branch: &BranchPath, step: &StepId) -> Option<(BranchPath, StepId)> {
        let line = self.lines.get(id);
        let (mut branch, mut step) = (branch.clone(), step.clone());
        while branch != *line.branch() {
            let (name, _) = branch.opened_by()?;
            branch = branch.parent()?;
            let shape = self.program.shape().of_branch(&branch)?;
            step = shape.steps()[shape.opener(&name)?].id.clone();
        }
        Some((branch, step))
    }
}

/// Reads the missing digests of ends required by unfinished steps of a scope.
pub(super) async fn read_digests<P: Program>(
    store: &dyn Store,
    program: &P,
    line: &mut Line<'_, P::State>,
) -> Result<(), RunError> {
    let mut wanted: BTreeSet<StepId> = BTreeSet::new();
    for entry in &line.position.frontier {
        let Some(place) = line.shape.place(entry.step.as_str()) else { continue };
        let needs = line.shape.needs(place).iter().map(|need| line.step_id(*need).clone());
        wanted.extend(needs.chain(reads_of(program, line, place)));
        // The end of the pass before.
        wanted.extend(Some(entry.step.clone()).filter(|_| line.pass_of(place) > 1));
    }
    if line.position.frontier.is_empty() {
        wanted.extend(sinks(line.shape).map(|step| step.id.clone()));
    }
    wanted.retain(|step| !line.digests.contains_key(step));
    let settled = wanted.into_iter().filter_map(|step| {
        let seq = line.position.ledger.get(&step)?.seq;
        (seq < line.chain.next).then_some((seq, step))
    });
    let settled: BTreeMap<u64, StepId> = settled.collect();
    if settled.is_empty() {
        return Ok(());
    }
    let seqs = settled.keys().copied().collect();
    let ends = store.records(&line.chain.run, line.branch(), &seqs).await?;
    for (seq, step) in settled {
        let digests = ends.get(&seq).and_then(|end| end.header().digests);
        line.digests.extend(digests.map(|digests| (step, digests)));
    }
    Ok(())
}

/// A scope and the children of its openers, as if reusable results were current.
struct AsIfInForce {
    effective: Vec<Effective>,
    /// Openers with children that differ from the joined children.
    incomplete: Vec<(BranchPath, StepId)>,
}

/// Returns a scope and the children of its openers for the plan, as if reusable results were current.
async fn as_if_in_force(
    store: &dyn Store,
    root: &Shape,
    (run, branch, mut position): (&RunId, &BranchPath, Position),
) -> Result<AsIfInForce, RunError> {
    let newest = store.newest(run, branch).await?;
    for (step, results) in std::mem::take(&mut position.reusable) {
        for result in results.into_values() {
            let Reusable::Ended { settled, fan, .. } = result else { continue };
            let fan = fan.map(|fan| position.after_current_passes(&step, fan));
            position.ledger.insert(step.clone(), settled);
            position.joined.extend(fan.map(|fan| (step.clone(), fan)));
        }
    }
    let names = store.branches(run).await?;
    let (mut found, mut effective, mut incomplete) = (vec![(newest, position)], Vec::new(), Vec::new());
    while let Some((record, position)) = found.pop() {
        let branch = record.header().branch.clone();
        let mut joined: BTreeMap<StepId, u64> = BTreeMap::new();
        let Some(shape) = root.of_branch(&branch) else { continue };
        for name in names.iter().filter(|name| name.parent().as_ref() == Some(&branch)) {
            let Some(opener) = name.opened_by().and_then(|(opener, _)| shape.opener(&opener)) else {
                continue;
            };
            let child = store.newest(run, name).await?;
            if !has_state(&child) || child.header().end.is_none() {
                continue;
            }
            let at = position_of(&child)?;
            let step = &shape.steps()[opener];
            if is_child_of((&position, step), name, at.origin) {
                *joined.entry(step.id.clone()).or_insert(0) += u64::from(!is_hook(step, name));
                found.push((child, at));
            }
        }
        let lacks = |(step, fan): (&StepId, &Fan)| {
            let expected = if fan.pass > 0 { u64::from(fan.pass) } else { fan.total };
            (joined.get(step).copied().unwrap_or(0) != expected).then(|| (branch.clone(), step.clone()))
        };
        let opens_evidence = |step: &StepId| shape.step(step.as_str()).is_some_and(Step::opens_evidence);
        let fans = position.joined.iter().filter(|(step, _)| opens_evidence(step));
        incomplete.extend(fans.filter_map(lacks));
        effective.push(effective_of(store, root, (&record, &position)).await?);
    }
    Ok(AsIfInForce { effective, incomplete })
}

/// Returns the path of a step in the definition: the openers of its branch without keys, and the step.
pub fn step_path(branch: &BranchPath, step: &StepId) -> String {
    let around = std::iter::successors(Some(branch.clone()), BranchPath::parent);
    let openers = around.filter_map(|branch| branch.opened_by().map(|(opener, _)| opener.to_string()));
    let mut path: Vec<String> = std::iter::once(step.to_string()).chain(openers).collect();
    path.reverse();
    path.join("/")
}

/// Returns whether a branch belongs to a hook of a step.
fn is_hook(step: &Step, name: &BranchPath) -> bool {
    let opener = name.opened_by().map(|(opener, _)| opener);
    step.afterwards().is_some_and(|hooks| Some(&hooks.name) == opener.as_ref())
}

/// Returns whether a child with this origin belongs to the current end of its opener.
fn is_child_of((position, step): (&Position, &Step), name: &BranchPath, origin: Option<u64>) -> bool {
    let Some((_, key)) = name.opened_by() else { return false };
    if is_hook(step, name) {
        // Hooks open before the end; later hooks do not belong to the end.
        let ended = position.ledger.get(&step.id).map(|settled| settled.seq);
        return origin.zip(ended).is_some_and(|(origin, ended)| origin <= ended);
    }
    let Some(fan) = position.joined.get(&step.id) else { return false };
    let pass = key.parse().ok().filter(|_| fan.pass > 0);
    let fan = pass.map_or_else(|| Some(fan.clone()), |pass| fan.of_pass(pass));
    fan.is_some_and(|fan| origin == Some(fan.since))
}

fn is_given_the_same(entry: &FrontierEntry, trace: Option<&Trace>) -> bool {
    entry.input.is_some() && entry.input == trace.map(Trace::digest)
}

/// Writes a single record for all results reused in a turn.
fn note_reuse<S>(line: &mut Line<'_, S>, step: &StepId, seq: u64) {
    let at = line.chain.branch.clone();
    let reused = json!({ "step": step, "of": format!("{}/{at}@{seq}", line.chain.run) });
    if let Some(draft) = line.drafts.last_mut()
        && let Some(Note::Event { name, data }) = draft.told.notes.last_mut()
        && name == STEP_REUSED
        && let Some(steps) = data["steps"].as_array_mut()
    {
        steps.push(reused);
        return;
    }
    let mut draft = super::chain::Draft::new(
        Phase::Restored,
        Reason::Redo,
        Some(step.clone()),
        crate::record::Try::default(),
    );
    draft.about = Some(seq);
    draft.told.notes.push(Note::Event { name: STEP_REUSED.to_owned(), data: json!({ "steps": [reused] }) });
    line.drafts.push(draft);
}
