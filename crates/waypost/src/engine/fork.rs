//! Operations on a run from outside its sessions: answers, signals, forks and imports.

use serde_json::{Map, Value};

use crate::id::{BranchPath, CheckpointRef, Digest, RunId, StepId};
use crate::plan::shape::Shape;
use crate::projection::events::SIGNAL_KEY;
use crate::record::{
    Definition, FORMAT, FrontierEntry, Header, Parent, Phase, Position, Reason, Record, RunRecord, RunStatus,
    SealedRun, Status, Taken, TakenSignal, Try, Wait,
};
use crate::store::portable::Portable;
use crate::store::{Scan, Signal, SignalKind, Signalled, StoreError, StoreExt as _};

use super::begin::decode_state;
use super::chain::{Chain, Draft};
use super::definition::{Forget, forget};
use super::fork_children::{Along, OpenFans, copy_settled, openings, settled_on};
use super::in_doubt::{cut_in, cut_there};
use super::inspect::{Snapshot, changed_at, position_of};
use super::invalidate::Results;
use super::reentry::{RequestedRerun, invalidate_named};
use super::rollback::{
    ask_about_done, ask_about_effects, check_left, has_continued, invalidate_begun, load_with_state,
};
use super::scope::{MAIN, Scope};
use super::session::Session;
use super::taken::free_signals_at;
use super::trust::CopiedBranch;
use super::undo::{refuse_undone, undone_steps};
use super::{Adoption, Engine, OnChange, Outcome, Program, RunError, SessionOptions, Waiting, trust};

impl Engine {
    /// Answers the wait `id` of a run. The running session, or the next resume, continues with the answer.
    ///
    /// # Errors
    /// - [`RunError::NoSuchWait`]: the run has no such open wait; nothing changed.
    /// - [`RunError::Answered`]: the wait already has an answer, and the answer stays.
    pub async fn answer(&self, run: &str, id: &str, value: Value) -> Result<(), RunError> {
        let run = RunId::new(run)?;
        let (mut since, now) = (None, self.clock.now());
        let mut waiting = Vec::new();
        for head in &Snapshot::read(self.store.as_ref(), &run).await?.heads {
            let position = position_of(&head.record)?;
            let is_open = |wait: &Wait| wait.until.is_none_or(|until| now <= until);
            let asks = |entry: &&FrontierEntry| {
                entry.waits.iter().any(|wait| wait.id == id && !id.is_empty() && is_open(wait))
            };
            since = since.or(position.frontier.iter().find(asks).map(|entry| entry.since));
            waiting.extend(Waiting::of_position(&head.record.header().branch, &position));
        }
        let Some(since) = since else {
            // The wait may have been answered since it was shown, or its deadline has passed.
            return match self.was_answered(&run, id).await? {
                true => Err(RunError::Answered { run, id: id.to_owned() }),
                false => Err(RunError::NoSuchWait { run, id: id.to_owned(), waiting }),
            };
        };
        if self.has_answer(&run, id).await? {
            return Err(RunError::Answered { run, id: id.to_owned() });
        }
        // An answer per opening of the wait: if damage removed the record of an answer, the question is open
        // again.
        let known = format!("answer-{id}-{since}");
        let kind = SignalKind::Answer { wait: id.to_owned(), value };
        match self.store.signal(&run, &Signal { id: known, ..self.message(kind) }).await? {
            Signalled::Now => Ok(()),
            Signalled::Before => Err(RunError::Answered { run, id: id.to_owned() }),
        }
    }

    /// Sends a named signal to a run. The first step that waits for the name consumes the signal, now or later.
    ///
    /// A signal that was taken after a checkpoint can be taken again after a rollback to that checkpoint, in a fork from
    /// it, and by a rerun of the step.
    ///
    /// # Errors
    /// - [`StoreError::NotFound`]: the run does not exist.
    /// - [`RunError::Ended`]: the run has ended, so no step can consume the signal.
    pub async fn signal(&self, run: &str, name: &str, value: Value) -> Result<(), RunError> {
        let run = RunId::new(run)?;
        let status = self.store.run(&run).await?.summary.status;
        if !status.is_resumable() && status != RunStatus::Running {
            return Err(RunError::Ended { run, signal: name.to_owned(), status });
        }
        let kind = SignalKind::Named { name: name.to_owned(), value };
        let count = self.store.signals(&run).await?.len();
        let now = self.clock.now().as_nanosecond().to_le_bytes();
        let parts = [name.as_bytes(), &now, &count.to_le_bytes()[..], &std::process::id().to_le_bytes()];
        let id = format!("signal-{}", &Digest::of_parts(parts).to_string()[..24]);
        self.store.signal(&run, &Signal { id, ..self.message(kind) }).await?;
        Ok(())
    }

    /// Lists the external waits of a run, branch by branch.
    ///
    /// # Errors
    /// Those of [`Snapshot::read`].
    pub async fn waiting(&self, run: &RunId) -> Result<Vec<Waiting>, RunError> {
        let snapshot = Snapshot::read(self.store.as_ref(), run).await?;
        let mut waiting = Vec::new();
        for head in &snapshot.heads {
            let position = position_of(&head.record)?;
            waiting.extend(Waiting::of_position(&head.record.header().branch, &position));
        }
        Ok(waiting)
    }

    fn message(&self, kind: SignalKind) -> Signal {
        Signal { id: String::new(), kind, branch: None, sender: String::new(), created_at: self.clock.now() }
    }

    /// Returns whether the wait `id` has an unconsumed answer.
    async fn has_answer(&self, run: &RunId, id: &str) -> Result<bool, RunError> {
        let answers = |kind: &SignalKind| matches!(kind, SignalKind::Answer { wait, .. } if wait == id);
        Ok(self.store.signals(run).await?.iter().any(|pending| answers(&pending.kind)))
    }

    /// Returns whether the wait `id` was answered, consumed or not. A wait withdrawn by the cancel of its branch
    /// was not.
    async fn was_answered(&self, run: &RunId, id: &str) -> Result<bool, RunError> {
        let answer = |record: Record| {
            let is_it =
                record.header().taken.as_ref().is_some_and(|taken| taken.wait == id && !id.is_empty());
            is_it.then_some(())
        };
        let answers = Scan { phase: Some("progress"), ..Scan::of(run) };
        Ok(self.has_answer(run, id).await? || self.find(answers, answer).await?.is_some())
    }

    /// Returns the first match of `wanted` among the scanned records.
    async fn find<T>(
        &self,
        mut scan: Scan,
        wanted: impl Fn(Record) -> Option<T>,
    ) -> Result<Option<T>, RunError> {
        loop {
            let page = self.store.scan(&scan).await?;
            if let Some(found) = page.records.into_iter().find_map(&wanted) {
                return Ok(Some(found));
            }
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => return Ok(None),
            }
        }
    }

    /// Forks a run: creates a new run from a checkpoint, and executes the new run. The new run has its own copy
    /// of the state and of the records in force, so the other run may be deleted.
    ///
    /// Branches that were open at the checkpoint and still are open or ready to be joined are copied at their
    /// newest sound record, with their records in force. Their interrupted or waiting steps restart from the top.
    /// An interrupted non-idempotent step without a later end is in doubt. Branches joined since the checkpoint
    /// restart. With an edited state all unjoined branches restart, unless the program [keeps outputs
    /// apart](Program::keeps_apart): these branches see the edit.
    ///
    /// The items of branches are copied right after the new run is created. A crash in between leaves a run that
    /// a resume refuses; delete that run.
    ///
    /// # Errors
    /// - [`RunError::NoState`]: the checkpoint has no state, or its branches exceed the size limit of a new run.
    /// - [`RunError::InDoubt`]: evidence of a finished step does not hold, or could not be checked.
    /// - [`RunError::Changed`]: the checkpoint has another program, and `start` does not adopt the change.
    /// - Others as for [`run_program`](Self::run_program) and [`resume_program`](Self::resume_program).
    pub async fn fork_program<P: Program>(
        &self,
        program: &P,
        from: &CheckpointRef,
        run: RunRecord,
        start: StartOptions<P::State>,
    ) -> Result<Outcome<P::State>, RunError> {
        check_forkable(from)?;
        refuse_undone(self, &from.run, from.seq).await?;
        let checkpoint = load_with_state(self, &from.run, &from.branch, from.seq).await?;
        let mut position = position_of(&checkpoint)?.back_at_work();
        let definition = self.definition_at(&from.run, &position).await?;
        let before = position.frontier.clone();
        let redone = restart_begun(self, program.shape(), (&checkpoint, &mut position)).await?;
        let mut settled = settled_on(self.store.as_ref(), checkpoint.header(), &position).await?;
        let shape = Some(program.shape()).filter(|_| start.evidence == OriginEvidence::Checked);
        let at = (checkpoint.header(), &mut position);
        let edited = blinds(program, &start);
        let along = Along::of_store(self, at, edited, shape).await?;
        for entry in before.iter().filter(|_| !edited) {
            let now = position.frontier.iter().find(|now| now.step == entry.step);
            if now.is_some_and(|now| !now.has_children()) {
                check_left(program.shape(), entry, &checkpoint)?;
            }
        }
        settled.extend(openings(self.store.as_ref(), checkpoint.header(), along.joins()).await?);
        let before = start.adoption.as_ref().map_or(program.shape(), |adoption| &adoption.before);
        let cut = self.still_cut(checkpoint.header(), &position, before).await?;
        let newest = position_of(&self.store.newest(&from.run, &from.branch).await?)?;
        ask_about_done(before, &mut position, &newest, &undone_steps(self, &from.run).await?);
        let signals = free_signals_at(self.store.as_ref(), &from.run, from.seq, &position).await?;
        let origin = ForkSource { checkpoint, position, definition, settled, along, cut, signals, redone };
        self.start_from(program, origin, run, start).await
    }

    /// Returns the non-idempotent steps that were running at a checkpoint and have not ended since.
    async fn still_cut(
        &self,
        header: &Header,
        position: &Position,
        shape: &Shape,
    ) -> Result<Vec<StepId>, RunError> {
        let mut cut = cut_in(position, shape);
        if !cut.is_empty() {
            let newest = position_of(&self.store.newest(&header.run, &header.branch).await?)?;
            let is_open = |step: &StepId| {
                let of = |position: &Position| {
                    let entry = position.frontier.iter().find(|entry| entry.step == *step);
                    entry.map(|entry| (entry.is_unsettled(), entry.at.clone()))
                };
                of(&newest) == of(position)
            };
            cut.retain(is_open);
        }
        Ok(cut)
    }

    /// Returns the configuration in force at a checkpoint: the default for a fork.
    pub(crate) async fn config_at(&self, at: &CheckpointRef) -> Result<Map<String, Value>, RunError> {
        check_forkable(at)?;
        let entry = self.store.run(&at.run).await?;
        let position = position_of(&load_with_state(self, &at.run, &at.branch, at.seq).await?)?;
        Ok(self.config_of(&entry, &position).await?)
    }

    /// Returns the signals that no step finished at a checkpoint of the main branch has taken. A fork begins with these
    /// signals, and a portable checkpoint has none.
    ///
    /// # Errors
    /// [`RunError::NoState`]: the state of the checkpoint is gone. Others of the store.
    pub async fn signals_at(&self, at: &CheckpointRef) -> Result<Vec<Signal>, RunError> {
        let record = load_with_state(self, &at.run, &at.branch, at.seq).await?;
        let position = position_of(&record)?.back_at_work();
        Ok(free_signals_at(self.store.as_ref(), &at.run, at.seq, &position).await?)
    }

    /// Makes a new run that begins with a portable checkpoint, and works on it.
    ///
    /// Open branches are copied at their exported positions; with an edited state, only branches about to be joined.
    /// A non-idempotent step that started between the checkpoint and the export is in doubt. Everything else as for [`fork_program`](Self::fork_program).
    ///
    /// # Errors
    /// [`RunError::NoState`]: the checkpoint is not on the main branch. Others as for
    /// [`fork_program`](Self::fork_program).
    pub async fn import_program<P: Program>(
        &self,
        program: &P,
        from: &Portable,
        run: RunRecord,
        start: StartOptions<P::State>,
    ) -> Result<Outcome<P::State>, RunError> {
        check_forkable(&from.reference())?;
        let mut position = from.position().clone().back_at_work();
        let along = Along::of_portable(from, &mut position, blinds(program, &start))?;
        let seqs: Vec<u64> = position.ledger.values().map(|settled| settled.seq).collect();
        let known = from.history().iter().chain([from.checkpoint()]);
        let settled = known.filter(|record| seqs.contains(&record.header().seq)).cloned().collect();
        let (checkpoint, definition) = (from.checkpoint().clone(), from.definition().clone());
        let before = start.adoption.as_ref().map_or(program.shape(), |adoption| &adoption.before);
        let cut = cut_in(&position, before);
        ask_about_effects(before, &mut position, |_, step| {
            from.begun_since().contains(&step.id).then_some(None)
        });
        let (signals, redone) = (Vec::new(), Vec::new());
        let origin = ForkSource { checkpoint, position, definition, settled, along, cut, signals, redone };
        self.start_from(program, origin, run, start).await
    }

    async fn start_from<P: Program>(
        &self,
        program: &P,
        origin: ForkSource,
        run: RunRecord,
        start: StartOptions<P::State>,
    ) -> Result<Outcome<P::State>, RunError> {
        let ForkSource { checkpoint, mut position, definition, settled, mut along, cut, signals, mut redone } =
            origin;
        let header = checkpoint.header();
        let refused = |why| RunError::Changed { run: header.run.clone(), why };
        if let Some(adoption) = &start.adoption {
            let ends = std::collections::BTreeMap::new();
            let adopting = super::definition::Adopting { adoption, ends: &ends, asks: true };
            let carried = super::definition::carried(&position, &definition, program.shape(), &adopting)
                .map_err(refused)?;
            let known = |step: &&StepId| program.shape().place(step.as_str()).is_none();
            if let Some(gone) = cut.iter().find(known) {
                let why = format!(
                    "step `{gone}` is in doubt, and the current definition lacks it: decide in run {} first",
                    header.run
                );
                return Err(refused(why));
            }
            position = carried.position;
            redone.extend(carried.redone.into_iter().map(|(step, _)| Forget::Step(step)));
        }
        if let Some(step) = &start.from {
            let at = header.reference().to_string();
            let requested = RequestedRerun { step, results: Results::Drop, by: None };
            let after = invalidate_named(program.shape(), &position, requested, position.epoch, &at)?;
            position = after.position;
            redone.extend(after.forgotten);
        }
        // The branches were joined in the parent run, and stay there.
        position.ledger.values_mut().for_each(|settled| settled.fan = None);
        position.drop_children_of_started(|_| false);
        super::definition::check_fit(program.shape(), &position, &definition, start.on_change)
            .map_err(refused)?;
        let mut state = decode_state(program, program.shape().level(), &checkpoint)?;
        forget(program, &BranchPath::main(), &redone, &mut state)?;
        if start.evidence == OriginEvidence::Checked {
            let mut branches =
                vec![CopiedBranch { name: BranchPath::main(), position: &position, settled: &settled }];
            branches.extend(along.trusted());
            let questions = trust::doubted(self, program.shape(), &run, &branches).await;
            if !questions.is_empty() {
                return Err(RunError::InDoubt { run: header.run.clone(), questions });
            }
        }
        if let Some(edit) = start.edit {
            edit.apply(&mut state, || header.reference().to_string())?;
        }
        let parent = Parent {
            run: header.run.clone(),
            branch: header.branch.clone(),
            seq: header.seq,
            digest: checkpoint.digest(),
        };
        let record = RunRecord { v: FORMAT, parent: Some(parent), ..run };
        let sealed = SealedRun::seal(record).map_err(|source| StoreError::Invalid(source.to_string()))?;
        let holder = self.holder()?;
        let chain = Chain::first(&sealed);
        let (ledger, fans) = (position.ledger.clone(), OpenFans::of(&position));
        let mut main = Scope::new(chain, program.shape(), position_in_new_run(position), state);
        let leaves = start.evidence == OriginEvidence::Left;
        let opened = copy_settled(&mut main, (&ledger, along.joins()), settled.iter(), leaves);
        along.note_opened(BranchPath::main(), opened);
        main.drafts.push(Draft::new(Phase::Restored, Reason::Fork, None, Try::default()));
        main.drafts.extend(signals.into_iter().filter_map(|signal| copy_of_signal(program, signal)));
        let is_open = |step: &&StepId| main.position.frontier.iter().any(|entry| entry.step == **step);
        let cut: Vec<&StepId> = cut.iter().filter(is_open).collect();
        cut.into_iter().for_each(|step| main.doubt_cut(step, cut_there(&header.run)));
        let mut session = Session::new(self, program, main, start.session)?;
        session.config = std::sync::Arc::new(sealed.record().config.clone());
        session.site = std::sync::Arc::new(self.site(sealed.record()));
        session.before = start.adoption.map(|adoption| adoption.before);
        session.mark_dirty(MAIN);
        along.add_open_branches(&mut session, MAIN, (fans, leaves))?;
        along.add_joined_branches(&mut session, program)?;
        let status = session.create(&sealed, &holder).await?;
        let lease = session.lease().clone();
        if let Err(error) = Along::keep_items(self, &lease, along.into_items()).await {
            let _ = self.store.release(lease, None).await;
            return Err(error.into());
        }
        session.work(status).await
    }

    /// Returns the definition in force at a position.
    async fn definition_at(&self, run: &RunId, position: &Position) -> Result<Definition, RunError> {
        if let Some(seq) = position.definition
            && let Some(definition) = changed_at(self.store.as_ref(), run, seq).await?.definition
        {
            return Ok(definition);
        }
        Ok(self.store.run(run).await?.record.record().definition.clone())
    }

    /// Reads a checkpoint of the main branch with its state. Runs nothing and changes nothing.
    ///
    /// # Errors
    /// [`RunError::NoState`]: retention dropped the state. Others of the store, and of the program while
    /// decoding.
    pub async fn inspect_program<P: Program>(
        &self,
        program: &P,
        at: &CheckpointRef,
    ) -> Result<(Record, Position, P::State), RunError> {
        if !at.branch.is_main() {
            let why = "only states of the main branch can be read here".to_owned();
            return Err(RunError::NoState { at: at.to_string(), why });
        }
        let record = load_with_state(self, &at.run, &at.branch, at.seq).await?;
        let state = decode_state(program, program.shape().level(), &record)?;
        Ok((self.store.load(&at.run, &at.branch, at.seq).await?, position_of(&record)?, state))
    }
}

/// Returns whether open branches would miss the state edit, because each has a separate state.
fn blinds<P: Program>(program: &P, start: &StartOptions<P::State>) -> bool {
    start.edit.is_some() && !program.keeps_apart()
}

fn check_forkable(at: &CheckpointRef) -> Result<(), RunError> {
    if at.branch.is_main() {
        return Ok(());
    }
    let why = "a run can be forked from its main branch only".to_owned();
    Err(RunError::NoState { at: at.to_string(), why })
}

/// Restarts the work of a checkpoint that has begun again since: finished steps, and openers whose ended branches have
/// continued. Returns the results to remove from the state.
async fn restart_begun(
    engine: &Engine,
    shape: &Shape,
    (checkpoint, position): (&Record, &mut Position),
) -> Result<Vec<Forget>, RunError> {
    for entry in &mut position.frontier {
        if has_continued(engine, shape, checkpoint.header(), entry).await? {
            entry.drop_children();
        }
    }
    let epoch = position.epoch + 1;
    invalidate_begun(engine, shape, (checkpoint, position), epoch).await
}

/// The parts of the other run for a new run.
struct ForkSource {
    checkpoint: Record,
    position: Position,
    definition: Definition,
    /// The records of the finished steps in force.
    settled: Vec<Record>,
    /// The open branches.
    along: Along,
    /// The non-idempotent steps that were, or may have been, interrupted.
    cut: Vec<StepId>,
    /// The signals that no finished step has consumed.
    signals: Vec<Signal>,
    /// The results to remove from the state.
    redone: Vec<Forget>,
}

/// The options of a fork or an import.
#[derive(Debug)]
pub struct StartOptions<S> {
    /// The options of the first session.
    pub session: SessionOptions,
    /// Edits the state before anything runs.
    pub edit: Option<super::Edit<S>>,
    /// The reaction to a program that differs from the program of the checkpoint.
    pub on_change: OnChange,
    /// Adopts the program's definition: changed steps rerun, with all downstream steps. Without it, the new run
    /// keeps the unfinished steps of the checkpoint.
    pub adoption: Option<Adoption>,
    /// Whether the evidence of finished steps is checked.
    pub evidence: OriginEvidence,
    /// The step of the main branch to rerun, with all downstream steps.
    pub from: Option<StepId>,
}

/// Whether a fork or an import checks the evidence of finished steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OriginEvidence {
    /// Checks the evidence, and refuses to begin unless all of it holds.
    #[default]
    Checked,
    /// Drops the evidence, by decision of a person: never checked.
    Left,
}

impl<S> Default for StartOptions<S> {
    fn default() -> Self {
        Self {
            session: SessionOptions::default(),
            edit: None,
            on_change: OnChange::Stop,
            adoption: None,
            evidence: OriginEvidence::Checked,
            from: None,
        }
    }
}

/// Makes the record that passes a signal of another run to this run.
fn copy_of_signal<P: Program>(program: &P, signal: Signal) -> Option<Draft> {
    let SignalKind::Named { name, mut value } = signal.kind else { return None };
    program.redact_answer(&mut value);
    let phase = Phase::Progress { key: SIGNAL_KEY.to_owned(), value };
    let mut draft = Draft::new(phase, Reason::Fork, None, Try::default());
    let signal = TakenSignal { id: signal.id, name, sent_at: signal.created_at };
    draft.taken = Some(Box::new(Taken { wait: String::new(), signal: Some(signal) }));
    Some(draft)
}

/// Returns a draft with the content of another run's record.
pub(super) fn copy_of(record: &Record) -> Draft {
    let header = record.header();
    let mut draft = Draft::new(header.phase.clone(), header.reason, header.step.clone(), header.at.clone());
    draft.report.evidence.clone_from(&header.evidence);
    draft.report.usage.clone_from(&header.usage);
    draft.report.notes.clone_from(&header.notes);
    draft.labels.clone_from(&header.labels);
    draft
}

/// Returns a position for a new run: nothing is running, waiting or memoized.
pub(super) fn position_in_new_run(mut position: Position) -> Position {
    position.definition = None;
    position.config = None;
    position.ledger.clear();
    position.chain = None;
    let results: Vec<StepId> = position.reusable.keys().cloned().collect();
    results.iter().for_each(|step| position.drop_results(step));
    for entry in &mut position.frontier {
        entry.status = Status::Ready;
        entry.at.attempt = 0;
        entry.failures = 0;
        entry.since = 0;
        entry.wake_at = None;
        entry.memos = 0;
        entry.passed = false;
        entry.waits.clear();
        entry.drop_children();
        entry.exited = None;
    }
    position
}
