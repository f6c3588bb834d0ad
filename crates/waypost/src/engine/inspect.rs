//! Reads a run without a lease: the run record, the scope heads, the definition in force, and the current
//! verdicts of its evidence.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;

use crate::id::{CheckpointRef, RunId, ScopePath, StepId};
use crate::plan::shape::{Shape, Step, Unfinished};
use crate::plan::{Action, Cause, Decision, Effective, Plan, Verdicts, due, plan, steps_in_lost};
use crate::projection::events::RerunCause;
use crate::record::{
    ACCEPTED_LABEL, Claim, Definition, Flaw, FrontierEntry, Header, Occasion, Pack, Phase, Position, Reason,
    Record, Repeated, Reusable, RunStatus, Settled, SettledAs, Status,
};
use crate::store::recorded_evidence::RecordedEvidence;
use crate::store::{Damage, Head, Page, RunEntry, Scan, ScanOrder, Store, StoreError, StoreExt};

use crate::engine::resume::begin::decode_state;
use crate::engine::resume::in_doubt::{DoubtScope, questions_at, recoverable_in};
use crate::engine::resume::resume_point::scopes_in_force;
use crate::engine::resume::trust::{forget_other_names, in_flux, state_of, verify};
use crate::engine::scope::child_ends::{ends_in_force, has_state};
use crate::engine::time_travel::rollback::load_with_state;
use crate::engine::walk::failure::position_for_retry;
use crate::engine::{Engine, OnUnknown, Program, RunError};

/// A run, read from its newest sound records.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The run record and the summary.
    pub entry: RunEntry,
    /// The newest sound record of each open scope.
    pub heads: Vec<Head>,
    /// The newest record of the main scope, if the scope has ended.
    pub ended: Option<Record>,
    /// The definition in force.
    pub definition: Definition,
}

impl Snapshot {
    /// Reads a snapshot. Takes no lease and changes nothing.
    ///
    /// # Errors
    /// - [`StoreError::NotFound`]: the run does not exist.
    /// - [`StoreError::Damaged`]: the run record, or every record of a scope, is damaged; no plan is possible.
    pub async fn read(store: &dyn Store, run: &RunId) -> Result<Self, StoreError> {
        let entry = store.run(run).await?;
        let mut heads = Vec::new();
        let mut page = Page::default();
        loop {
            let found = store.heads(run, &page).await?;
            heads.extend(found.heads);
            match found.next {
                Some(cursor) => page.cursor = Some(cursor),
                None => break,
            }
        }
        Self::of_heads(store, entry, crate::engine::scope::open_scopes::live(heads)?, None).await
    }

    /// Reads the main scope only: the cost does not depend on the other scopes.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn main(store: &dyn Store, run: &RunId) -> Result<Self, StoreError> {
        let entry = store.run(run).await?;
        // The heads omit an ended scope, and reading a head reads the ends of all scopes.
        let ended = match has_ended(store, run).await? {
            true => match store.newest(run, &ScopePath::main()).await {
                Ok(newest) => Some(newest),
                // The header marks an end, but the record is damaged: the end is out of force.
                Err(StoreError::Damaged { .. }) => None,
                Err(error) => return Err(error),
            },
            false => None,
        };
        let heads = match ended {
            Some(_) => Vec::new(),
            None => store.heads(run, &Page { limit: 1, ..Page::default() }).await?.heads,
        };
        let heads = heads.into_iter().filter(|head| head.record.header().scope.is_main()).collect();
        Self::of_heads(store, entry, heads, ended).await
    }

    async fn of_heads(
        store: &dyn Store,
        entry: RunEntry,
        heads: Vec<Head>,
        ended: Option<Record>,
    ) -> Result<Self, StoreError> {
        let run = entry.record.record().run.clone();
        let main = ScopePath::main();
        let open = heads.iter().find(|head| head.record.header().scope == main).map(|head| &head.record);
        let ended = match (open, ended) {
            (None, None) => Some(store.newest(&run, &main).await?),
            (_, ended) => ended,
        };
        let newest = open.or(ended.as_ref()).expect("one of the two was just read");
        let definition = Self::definition(store, &entry, newest).await?;
        let mut snapshot = Self { entry, heads, ended, definition };
        if snapshot.is_overstated() {
            snapshot.entry.summary.status = RunStatus::Interrupted;
        }
        Ok(snapshot)
    }

    /// Returns whether the summary shows a finished run, but the newest record an unfinished run. The summary is
    /// a shortcut for readers; on a mismatch, records after the newest sound record are lost.
    pub fn is_overstated(&self) -> bool {
        let report = self.entry.summary.summary.status;
        let is_done = matches!(report, RunStatus::Completed | RunStatus::CompletedWithFailures);
        is_done && self.ended.is_none() && self.entry.summary.holder.is_none()
    }

    /// Returns the definition in force at a record of the main scope.
    ///
    /// # Errors
    /// [`StoreError::Damaged`]: the record of the definition, or the position, is damaged.
    pub async fn definition(
        store: &dyn Store,
        entry: &RunEntry,
        newest: &Record,
    ) -> Result<Definition, StoreError> {
        let frozen = entry.record.record();
        let changed = match newest.definition().map_err(|flaw| position_damaged(newest, flaw))? {
            Some(seq) => changed_at(store, &frozen.run, seq).await?.definition,
            None => None,
        };
        Ok(changed.unwrap_or_else(|| frozen.definition.clone()))
    }

    /// Returns the newest sound record of the main scope.
    pub fn newest(&self) -> &Record {
        let main = self.heads.iter().map(|head| &head.record).find(|record| record.header().scope.is_main());
        main.or(self.ended.as_ref()).expect("a run has a main scope, open or ended")
    }

    /// Returns the newest known time of the run.
    pub(super) fn latest(&self) -> Timestamp {
        let heads = self.heads.iter().map(|head| head.record.header().created_at);
        heads
            .chain([self.entry.summary.updated_at, self.newest().header().created_at])
            .max()
            .unwrap_or_default()
    }

    /// Returns the time of the newest record of a session: records by hand between sessions are no work.
    pub(super) fn worked_until(&self) -> Timestamp {
        let is_by_hand = |header: &Header| {
            let is_mark = header.reason == Reason::Manual && matches!(header.phase, Phase::Progress { .. });
            is_mark || header.reason == Reason::Accept
        };
        let heads = self.heads.iter().map(|head| &head.record).chain([self.newest()]).map(Record::header);
        let of_sessions = heads.filter(|header| !is_by_hand(header)).map(|header| header.created_at);
        of_sessions.chain([self.entry.summary.updated_at]).max().unwrap_or_default()
    }

    /// Returns the skipped damaged records.
    pub fn damaged(&self) -> impl Iterator<Item = &Damage> {
        self.heads.iter().flat_map(|head| &head.damaged)
    }

    /// Returns the non-idempotent steps of the main scope that damaged or missing records may have started.
    pub fn steps_in_lost(&self, shape: &Shape) -> Vec<StepId> {
        let main = self.heads.iter().find(|head| head.record.header().scope.is_main());
        let Some((head, position)) = main.and_then(|head| Some((head, head.record.position().ok()?))) else {
            return Vec::new();
        };
        let lost = head.next - 1 - head.record.header().seq;
        let places = steps_in_lost(shape, &position, lost).into_iter();
        places.map(|place| shape.steps()[place].id.clone()).collect()
    }

    /// Returns the input of the plan; reads the evidence of finished steps through the ledger.
    ///
    /// # Errors
    /// As [`Store::load`].
    pub async fn effective(&self, store: &dyn Store, shape: &Shape) -> Result<Vec<Effective>, StoreError> {
        let mut effective = Vec::new();
        let open = self.heads.iter().map(|head| (&head.record, head.next - 1 - head.record.header().seq));
        for (record, lost) in open.chain(self.ended.iter().map(|record| (record, 0))) {
            let position = position_in(record, shape)?;
            effective.push(Effective { lost, ..effective_of(store, shape, (record, &position)).await? });
        }
        Ok(effective)
    }

    /// Returns the plan of a resume.
    ///
    /// # Errors
    /// As [`Store::load`].
    pub async fn plan(
        &self,
        store: &dyn Store,
        shape: &Shape,
        verdicts: &Verdicts,
        now: Timestamp,
    ) -> Result<Plan, StoreError> {
        Ok(plan(shape, &self.effective(store, shape).await?, verdicts, now))
    }

    /// Returns the status of the run at the time of the read.
    pub fn status(&self) -> RunStatus {
        self.entry.summary.status
    }
}

/// Returns whether the newest record of the main scope is sound and an end, without damaged or missing records
/// after it.
async fn has_ended(store: &dyn Store, run: &RunId) -> Result<bool, StoreError> {
    let (scope, order) = (Some(ScopePath::main()), ScanOrder::NewestFirst);
    let found = store.scan(&Scan { scope, order, limit: 1, ..Scan::of(run) }).await?;
    let is_last = |record: &Record| record.header().end.is_some();
    Ok(found.damaged.is_empty() && found.records.first().is_some_and(is_last))
}

/// Reads the lasting changes of a record of the main scope. For a damaged record, reads the copy in the next
/// record.
///
/// # Errors
/// [`StoreError::Damaged`]: both records are damaged, or there is no next record.
pub(super) async fn changed_at(store: &dyn Store, run: &RunId, seq: u64) -> Result<Repeated, StoreError> {
    let main = ScopePath::main();
    let damaged = match store.load(run, &main, seq).await {
        Ok(record) => {
            let Header { definition, config, .. } = record.header();
            return Ok(Repeated { of: seq, definition: definition.clone(), config: config.clone() });
        }
        Err(error @ StoreError::Damaged { .. }) => error,
        Err(error) => return Err(error),
    };
    // The next sound record: damaged records in between have other seqs.
    let scan = Scan { scope: Some(main), seq_min: Some(seq + 1), limit: 1, ..Scan::of(run) };
    let next = store.scan(&scan).await?.records.into_iter().next();
    let repeated = next.and_then(|record| record.header().repeated.clone()).filter(|again| again.of == seq);
    repeated.map(|again| *again).ok_or(damaged)
}

/// Reads the position of a sound record for a resume: failed steps are unfinished.
pub(super) fn position_of(record: &Record) -> Result<Position, StoreError> {
    position_as_recorded(record).map(Position::with_failures_open)
}

/// Reads the position of a sound record.
pub(super) fn position_as_recorded(record: &Record) -> Result<Position, StoreError> {
    record.position().map_err(|flaw| position_damaged(record, flaw))
}

fn position_damaged(record: &Record, flaw: Flaw) -> StoreError {
    let Header { run, scope, seq, .. } = record.header();
    let (run, scope, place) = (run.clone(), scope.clone(), "its position".into());
    StoreError::of_damage(Damage { run, scope, seq: *seq, place, flaw }, None)
}

/// Returns the position of a record with its failures retried; the default position if the state was pruned.
fn position_in(record: &Record, root: &Shape) -> Result<Position, StoreError> {
    match root.of_scope(&record.header().scope) {
        _ if !has_state(record) => Ok(Position::default()),
        Some(own) => Ok(position_for_retry(own, record, false)?.0),
        None => position_of(record),
    }
}

/// Returns the input of the plan for a scope: a record, and the evidence of the steps finished at the position
/// `now`.
pub(super) async fn effective_of(
    store: &dyn Store,
    shape: &Shape,
    (record, now): (&Record, &Position),
) -> Result<Effective, StoreError> {
    let header = record.header();
    let position = now.clone();
    let own = shape.of_scope(&header.scope);
    let step_of = |step: &StepId| own?.step(step.as_str()).filter(|step| step.has_evidence());
    // A tolerated failure counts as finished, without evidence.
    let counts = |(_, settled): &(&StepId, &Settled)| settled.how != SettledAs::Tolerated;
    let ends = position.ledger.iter().filter(counts);
    let ends: Vec<(&Step, u64)> =
        ends.filter_map(|(step, settled)| Some((step_of(step)?, settled.seq))).collect();
    let seqs = ends.iter().map(|(_, seq)| *seq).collect();
    let RecordedEvidence { mut made, accepted } = match own.is_some_and(has_evidence) {
        true => RecordedEvidence::read(store, (header, &position), &seqs).await?,
        false => RecordedEvidence::default(),
    };
    let mut pack_of = |seq: u64| accepted.get(&seq).cloned().or_else(|| made.remove(&seq));
    let packs = ends.into_iter().filter_map(|(step, seq)| Some((step.id.clone(), pack_of(seq)?)));
    let mut evidence: BTreeMap<StepId, Pack> = packs.collect();
    for entry in position.frontier.iter().filter(|entry| !position.ledger.contains_key(&entry.step)) {
        if let Some(step) = step_of(&entry.step) {
            let pack = cut_pack_of(store, header, &position, step).await?;
            evidence.extend(pack.map(|pack| (step.id.clone(), pack)));
        }
    }
    let stopped_by = match &header.phase {
        Phase::Interrupted { in_progress: true, by } => Some(by.clone()),
        _ => None,
    };
    let (scope, seq) = (header.scope.clone(), header.seq);
    let passes = passes_of(store, shape, (header, &position), &accepted).await?;
    let reusable = reusable_packs(store, (header, &position), &accepted).await?;
    let rolled_back = (header.reason == Reason::Rollback).then(|| {
        let cause = |step: &Step| RerunCause::noted(&header.notes, &step.id);
        let is_begun =
            |step: &&Step| matches!(cause(step), Some(RerunCause::Requested { by_rollback: true, .. }));
        let steps = shape.of_scope(&header.scope).map(Shape::steps).unwrap_or_default();
        steps.iter().filter(is_begun).map(|step| step.id.clone()).collect()
    });
    let in_flux = BTreeSet::new();
    Ok(Effective {
        scope,
        seq,
        lost: 0,
        position,
        evidence,
        reusable,
        passes,
        in_flux,
        stopped_by,
        rolled_back,
    })
}

fn has_evidence(shape: &Shape) -> bool {
    shape.steps().iter().any(Step::has_evidence)
}

/// Reads the evidence of a scope's results out of force.
async fn reusable_packs(
    store: &dyn Store,
    (header, position): (&Header, &Position),
    accepted: &HashMap<u64, Pack>,
) -> Result<BTreeMap<StepId, (u64, Pack)>, StoreError> {
    let mut ends: BTreeMap<u64, StepId> = BTreeMap::new();
    for (step, results) in &position.reusable {
        if let Some(Reusable::Ended { settled, .. }) = results.values().next_back() {
            ends.insert(settled.seq, step.clone());
        }
    }
    let made = match ends.is_empty() {
        true => return Ok(BTreeMap::new()),
        false => store.records(&header.run, &header.scope, &ends.keys().copied().collect()).await?,
    };
    let pack = |(seq, step): (u64, StepId)| {
        let made = || made.get(&seq).and_then(|record| record.header().evidence.clone());
        Some((step, (seq, accepted.get(&seq).cloned().or_else(made)?)))
    };
    Ok(ends.into_iter().filter_map(pack).collect())
}

/// Reads the accepted evidence of a scope, by the seq of the original record. An acceptance concerns external
/// files, which a rollback does not restore: it stays in force together with the original record.
pub(super) async fn accepted_on(
    store: &dyn Store,
    header: &Header,
) -> Result<HashMap<u64, Pack>, StoreError> {
    let (key, value) = ACCEPTED_LABEL;
    let label = Some((key.to_owned(), value.to_owned()));
    let scan = Scan { scope: Some(header.scope.clone()), label, ..Scan::of(&header.run) };
    // Oldest first: the newest acceptance counts.
    let accepted = store.scan_where(scan, &|_| true).await?.into_iter();
    Ok(accepted
        .filter_map(|record| Some((record.header().about?, record.header().evidence.clone()?)))
        .collect())
}

/// Reads the evidence in the start record of an interrupted step. A start within the record of an end has none:
/// the evidence there belongs to the ended step.
async fn cut_pack_of(
    store: &dyn Store,
    header: &Header,
    position: &Position,
    step: &Step,
) -> Result<Option<Pack>, StoreError> {
    let cut = |entry: &&FrontierEntry| entry.step == step.id && entry.status == Status::Started;
    let Some(entry) = position.frontier.iter().find(cut) else { return Ok(None) };
    let record = store.load(&header.run, &header.scope, entry.since).await?;
    let start = record.header();
    let is_its_own = start.step.as_ref() == Some(&step.id) && start.phase == Phase::Started;
    Ok(start.evidence.clone().filter(|_| is_its_own))
}

/// Reads the evidence of earlier passes of the loops on and around the scope. If there can be any, the cost is a
/// scan of the scope's headers.
async fn passes_of(
    store: &dyn Store,
    root: &Shape,
    (header, position): (&Header, &Position),
    accepted: &HashMap<u64, Pack>,
) -> Result<BTreeMap<StepId, Vec<(u64, Pack)>>, StoreError> {
    let mut passes: BTreeMap<StepId, Vec<(u64, Pack)>> = BTreeMap::new();
    let Some(shape) = root.of_scope(&header.scope) else { return Ok(passes) };
    let comes_again = |step: &Step| {
        let place = shape.place(step.id.as_str());
        place.is_some_and(|place| shape.share_loop(place, place))
    };
    if !shape.steps().iter().any(|step| step.has_evidence() && comes_again(step)) {
        return Ok(passes);
    }
    let history = store.history(&header.run, &header.scope, header.seq).await?;
    for end in ends_in_force(shape, position, &history) {
        let Some(step) = end.step.as_ref().and_then(|step| shape.step(step.as_str())) else { continue };
        let is_newest = position.ledger.get(&step.id).map(|settled| settled.seq) == Some(end.seq);
        let pack = accepted.get(&end.seq).or(end.evidence.as_ref());
        if let (true, false, Some(pack)) = (comes_again(step), is_newest, pack) {
            passes.entry(step.id.clone()).or_default().push((end.seq, pack.clone()));
        }
    }
    Ok(passes)
}

/// The current verdicts of a run's evidence.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// The verdicts for a resume.
    pub verdicts: Verdicts,
    /// The checked claims, by record.
    pub claims: BTreeMap<(ScopePath, u64), Vec<Claim>>,
    /// Interrupted non-idempotent steps that their evidence proves to be done.
    pub settled: Vec<(ScopePath, StepId)>,
    /// The decisions of a resume about steps in ended scopes.
    pub ended: Vec<Decision>,
    /// Finished steps in any scope with evidence that does not hold or could not be checked.
    pub doubted: Vec<Decision>,
}

impl Look {
    /// Adds the findings to a plan: interrupted steps settled by evidence, and decisions about steps on ended
    /// scopes with their effect on joins and downstream steps.
    pub fn tell_in(self, plan: &mut Plan, shape: &Shape) {
        for (scope, step) in self.settled {
            if let Some(decision) = decision_about(plan, &scope, &step) {
                (decision.action, decision.cause) = (Action::Reuse, Cause::EvidenceSettles);
            }
        }
        let runs = |decision: &&Decision| matches!(decision.action, Action::Run | Action::Restart);
        for ended in self.ended.iter().filter(runs) {
            recheck_above(plan, shape, ended);
        }
        plan.decisions.extend(self.ended);
    }
}

fn decision_about<'p>(plan: &'p mut Plan, scope: &ScopePath, step: &StepId) -> Option<&'p mut Decision> {
    plan.decisions.iter_mut().find(|decision| decision.scope == *scope && decision.step == *step)
}

/// Marks the joins, and the steps downstream of the joins, as rechecks for a rerun in an ended scope.
fn recheck_above(plan: &mut Plan, shape: &Shape, ended: &Decision) {
    let mut below = (ended.scope.clone(), ended.step.clone());
    while let (Some(parent), Some((name, _))) = (below.0.parent(), below.0.opened_by()) {
        let Some(above) = shape.of_scope(&parent) else { return };
        let Some(opener) = above.opener(&name) else { return };
        let after = Unfinished::from_places(above, std::iter::once(opener));
        for (place, step) in above.steps().iter().enumerate().filter(|(place, _)| after.has(*place)) {
            let upstream = if place == opener { &below.1 } else { &above.steps()[opener].id };
            if let Some(decision) = decision_about(plan, &parent, &step.id)
                && decision.action == Action::Reuse
            {
                (decision.action, decision.cause) =
                    (Action::Recheck, Cause::UpstreamChanged(upstream.clone()));
            }
        }
        below = (parent, above.steps()[opener].id.clone());
    }
}

impl Engine {
    /// Checks the evidence of the finished steps of a run like a resume. With `occasion`
    /// [`Verify`](Occasion::Verify), checks the claims due at that occasion.
    ///
    /// Of several claims about a subject only the newest step's claim is checked: a legitimate rewrite by a later
    /// step does not count against an older step.
    ///
    /// # Errors
    /// Those of reading the run.
    pub async fn look<P: Program>(
        &self,
        program: &P,
        snapshot: &Snapshot,
        occasion: Occasion,
    ) -> Result<Look, RunError> {
        self.look_at(program, snapshot, (snapshot.newest(), occasion)).await
    }

    /// As `look`, for a checkpoint of the main scope with its state as the start point. Later work and later
    /// claims do not count.
    ///
    /// # Errors
    /// Those of reading the run.
    pub async fn look_at<P: Program>(
        &self,
        program: &P,
        snapshot: &Snapshot,
        (newest, occasion): (&Record, Occasion),
    ) -> Result<Look, RunError> {
        let (shape, run) = (program.shape(), snapshot.entry.record.record());
        let mut position = position_of(newest)?;
        if snapshot.newest().header().seq != newest.header().seq {
            stand_before(&mut position, shape, &position_of(snapshot.newest())?);
        }
        let scopes = scopes_in_force(self, program, (newest, &position)).await?;
        let mut effective: Vec<Effective> = Vec::new();
        for known in scopes.values() {
            let mut found =
                effective_of(self.store.as_ref(), shape, (&known.record, &known.position)).await?;
            found.in_flux.extend(in_flux(program, &scopes, known));
            effective.push(found);
        }
        forget_other_names(self, run, &mut effective).await;
        let checks = due(shape, &effective, occasion).checks;
        let (mut verdicts, found) = verify(self, program, run, &checks, OnUnknown::Stop).await?;
        let is_ended = |scope: &ScopePath| {
            let known = scopes.get(&(scope.depth(), scope.clone()));
            !scope.is_main() && known.is_some_and(|known| known.record.header().end.is_some())
        };
        let ended = decided(shape, &effective, &verdicts, is_ended);
        let is_doubted = |decision: &Decision| {
            matches!(decision.cause, Cause::EvidenceFailed(_) | Cause::EvidenceUnknown(_))
        };
        let planned = plan(shape, &effective, &verdicts, self.clock.now());
        let mut doubted: Vec<Decision> = planned.decisions.into_iter().filter(is_doubted).collect();
        doubted.extend(ended.iter().filter(|decision| is_doubted(decision)).cloned());
        let site = self.site(run);
        let mut settled = Vec::new();
        for known in scopes.values() {
            let header = known.record.header();
            let (scope, is_main) = (&header.scope, header.scope.is_main());
            let (record, position) =
                if is_main { (newest, &position) } else { (&known.record, &known.position) };
            let Some(shape) = shape.of_scope(scope).filter(|_| is_main || header.end.is_none()) else {
                continue;
            };
            let asked: Vec<Decision> = questions_at(position, shape, scope).collect();
            if asked.iter().any(|question| question.cause.is_of_one_try()) {
                let state = state_of(program, program.shape(), &scopes, record)?;
                let doubt = DoubtScope { run: &header.run, scope, shape, site: &site, state: &state };
                settled.extend(recoverable_in(self, program, doubt, asked, false).await);
            }
        }
        let settled = settled.into_iter().map(|found| (found.scope, found.step)).collect();
        if occasion == Occasion::Resume {
            stand_as_committed(&effective, &mut verdicts);
        }
        Ok(Look { verdicts, settled, claims: found.into_iter().collect(), ended, doubted })
    }

    /// Loads a checkpoint with its state: of a batch of records, the last has the state.
    ///
    /// # Errors
    /// [`RunError::NoState`]: retention dropped the state. Others of the store.
    pub async fn load_with_state(&self, at: &CheckpointRef) -> Result<Record, RunError> {
        load_with_state(self, &at.run, &at.scope, at.seq).await
    }

    /// Reads a checkpoint of any scope with its state. Runs nothing and changes nothing.
    ///
    /// # Errors
    /// [`RunError::NoState`]: retention dropped the state, or the program has no such scope. Others of the store, and of the program while
    /// decoding.
    pub async fn inspect_program<P: Program>(
        &self,
        program: &P,
        at: &CheckpointRef,
    ) -> Result<(Record, Position, P::State), RunError> {
        let Some(shape) = program.shape().of_scope(&at.scope) else {
            let why = format!("the definition has no scope `{}`", at.scope);
            return Err(RunError::NoState { at: at.to_string(), why });
        };
        let record = self.load_with_state(at).await?;
        let state = decode_state(program, shape.level(), &record)?;
        Ok((self.store.load(&at.run, &at.scope, at.seq).await?, position_of(&record)?, state))
    }
}

/// Moves a position to the start of its steps, as for a rollback: started steps are ready, and have written
/// nothing yet. Steps in doubt now stay in doubt.
fn stand_before(position: &mut Position, shape: &Shape, now: &Position) {
    for entry in &mut position.frontier {
        let is_asked = |step: &Step| !step.idempotent && now.frontier.iter().any(|now| now.step == step.id);
        if !entry.has_children() && !shape.step(entry.step.as_str()).is_some_and(is_asked) {
            (entry.status, entry.at.attempt) = (Status::Ready, 0);
        }
    }
}

/// Adds the committed verdicts of unchecked claims: superseded claims, and claims about files that a running step
/// may rewrite. So a caller that does not know the other scopes sees these claims too.
fn stand_as_committed(effective: &[Effective], verdicts: &mut Verdicts) {
    for scope in effective {
        let steps: BTreeSet<&StepId> = scope.evidence.keys().chain(scope.passes.keys()).collect();
        for step in steps {
            let newest =
                scope.evidence.get(step).map(|pack| (pack, scope.position.ledger.contains_key(step)));
            let passes = scope.passes.get(step).into_iter().flatten().map(|(_, pack)| (pack, true));
            let claims = newest.into_iter().chain(passes);
            let claims =
                claims.flat_map(|(pack, is_made)| pack.claims.iter().map(move |claim| (claim, is_made)));
            for (index, (claim, _)) in claims.enumerate().filter(|(_, (_, is_made))| *is_made) {
                let key = (scope.scope.clone(), step.clone(), index);
                verdicts.entry(key).or_insert(claim.verdict);
            }
        }
    }
}

/// Returns the decisions about steps in ended scopes, which a plan omits.
fn decided(
    shape: &Shape,
    effective: &[Effective],
    verdicts: &Verdicts,
    is_ended: impl Fn(&ScopePath) -> bool,
) -> Vec<Decision> {
    let planned = plan(shape, effective, verdicts, Timestamp::UNIX_EPOCH).decisions.into_iter();
    let of_evidence =
        |decision: &Decision| matches!(decision.cause, Cause::EvidenceFailed(_) | Cause::EvidenceUnknown(_));
    planned.filter(|decision| is_ended(&decision.scope) && of_evidence(decision)).collect()
}
