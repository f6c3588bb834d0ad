//! The start of a session: a new run, a resume, a restart, or a rollback.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::id::{RunId, ScopePath, StepId};
use crate::plan::Decision;
use crate::plan::change;
use crate::plan::shape::Shape;
use crate::record::{
    Definition, End, Flaw, FrontierEntry, Note, Phase, Position, Reason, Record, RunStatus, SealedRun,
    Status, Try, Wait, WaitKind,
};
use crate::store::{Damage, Head, Job, Lease, Progress, RunSummary, SignalKind, Store, StoreError};
use crate::system::lock::Holder;

use super::accepted_pins::AcceptedPacks;
use super::definition::{self, Adopting, Forget, check_fit, check_frontier, forget};
use super::first_record::{Reopening, reopen, was_killed};
use super::in_doubt::{
    AbandonRequest, DoubtScope, apply_decisions, check_abandoned, questions_of_lost, recovered,
    settle_recovered,
};
use super::invalidation::{RequestedRerun, from_step};
use super::requested::{self, Requested};
use super::reruns::Transition;
use super::resume_point::{self, ResumePoint, ResumeQuery};
use super::trust::PendingClaims;
use super::trust::Trust;
use crate::engine::chain::{Chain, Draft, unchanged_body};
use crate::engine::inspect::{Snapshot, position_as_recorded, position_of};
use crate::engine::manual;
use crate::engine::options::merge;
use crate::engine::scope::child_heads::skip_missing;
use crate::engine::scope::open_scopes;
use crate::engine::scope::{MAIN, Scope};
use crate::engine::session::{Session, SessionCarry};
use crate::engine::time_travel::restart::{refuse_from, restarted};
use crate::engine::time_travel::rollback::go_back;
use crate::engine::time_travel::rollback::load_with_state;
use crate::engine::time_travel::undo::refuse_unfinished_undo;
use crate::engine::walk::choice::{self, ChoiceScope};
use crate::engine::walk::early_cutoff::read_digests;
use crate::engine::walk::failure::{decide_begun, retry_failures, tolerated};
use crate::engine::walk::invalidate::ReusePolicy;
use crate::engine::{
    Answers, EditScope, Engine, OnChange, OnDamage, OnDoubt, Outcome, Program, ResumeFrom, ResumeOptions,
    RunError, SessionOptions, StateError, Then, TreatAs, Waiting,
};

/// Creates a run and executes the run.
pub(crate) async fn first<P: Program>(
    engine: &Engine,
    program: &P,
    run: &SealedRun,
    state: P::State,
    options: SessionOptions,
    holder: &Holder,
) -> Result<Outcome<P::State>, RunError> {
    let chain = Chain::first(run);
    let mut main = Scope::new(chain, program.shape(), first_position(program.shape(), 0), state);
    main.reason = Reason::Start;
    let mut session = Session::new(engine, program, main, options)?;
    session.config = Arc::new(run.record().config.clone());
    session.site = Arc::new(engine.site(run.record()));
    let status = session.create(run, holder).await?;
    session.work(status).await
}

/// Creates a run without starting it, for the queue of the store.
pub(crate) async fn queued<P: Program>(
    engine: &Engine,
    program: &P,
    run: &SealedRun,
    state: P::State,
    job: &Job,
) -> Result<(), RunError> {
    let chain = Chain::first(run);
    let mut main = Scope::new(chain, program.shape(), first_position(program.shape(), 0), state);
    let phase = Phase::Interrupted { in_progress: false, by: "the queue".to_owned() };
    main.drafts.push(Draft::new(phase, Reason::Start, None, Try::default()));
    let mut session = Session::new(engine, program, main, SessionOptions::default())?;
    session.submit(run, job).await
}

/// Returns the position of a run before its first step.
pub(crate) fn first_position(shape: &Shape, epoch: u32) -> Position {
    let entry = |place: usize| {
        let mut entry = FrontierEntry::ready(shape.steps()[place].id.clone());
        entry.at.iteration = shape.first_iteration(place, &[]);
        entry.at.epoch = epoch;
        entry
    };
    Position { frontier: shape.roots().into_iter().map(entry).collect(), ..Position::default() }
}

/// Edits of scopes.
pub(crate) type Edits<S> = Vec<(ScopePath, EditScope<S>)>;

/// The work of a resume.
pub(crate) enum Prepared<'a, P: Program> {
    Session(Box<Session<'a, P>>),
    Idle(Box<Outcome<P::State>>),
    /// The answers to the open questions and these edits are recorded before the options apply.
    AnswersFirst {
        edits: Edits<P::State>,
        options: Box<ResumeOptions<P::State>>,
    },
}

/// The base of a resume.
pub(crate) struct Base {
    pub(crate) snapshot: Snapshot,
    /// The record with the state and position to continue from.
    pub(crate) record: Record,
    pub(crate) position: Position,
    /// The basis of the first new record, if different from `record`.
    basis: Option<u64>,
    /// The seq of the next record.
    next: u64,
    /// Newer damaged records.
    damaged: Vec<Damage>,
    /// Parts to remove from the state for steps that rerun.
    pub(crate) redone: Vec<Forget>,
    /// The causes of a person's choices, for the first record.
    notes: Vec<Note>,
}

/// Finds the point from which a resume continues.
pub(crate) async fn prepare_resume<'a, P: Program>(
    engine: &'a Engine,
    program: &'a P,
    lease: &Lease,
    mut options: ResumeOptions<P::State>,
    carried: Option<SessionCarry>,
) -> Result<Prepared<'a, P>, RunError> {
    if let Some(state) = options.restart.take() {
        refuse_from(lease.run(), program.shape(), options.from.as_ref())?;
        let session = restarted(engine, program, lease, state, options).await?;
        return Ok(Prepared::Session(Box::new(session)));
    }
    let stops_at_damage = matches!(options.on_damage, OnDamage::Stop);
    let snapshot = match Snapshot::main(engine.store.as_ref(), lease.run()).await {
        Err(error @ StoreError::Damaged { older: None, .. }) => {
            let OnDamage::Restart(state) = std::mem::take(&mut options.on_damage) else {
                return Err(error.into());
            };
            let session = restarted(engine, program, lease, state, options).await?;
            return Ok(Prepared::Session(Box::new(session)));
        }
        snapshot => snapshot?,
    };
    // A missing record may come back: its finished steps are not rerun unasked.
    let stops =
        |damage: &&Damage| stops_at_damage || (damage.flaw == Flaw::Missing && options.from.is_none());
    if let Some(damage) = snapshot.damaged().find(stops) {
        let older = Some(snapshot.newest().header().seq);
        return Err(StoreError::of_damage(damage.clone(), older).into());
    }
    if snapshot.newest().header().end == Some(End::Cancelled) {
        return Err(RunError::Cancelled(lease.run().clone()));
    }
    let base = find_base(snapshot)?;
    make_session(engine, program, lease, base, options, carried).await
}

/// Makes the session of a resume, from the current position or from the rollback target. Returns the outcome if
/// all steps are done and their evidence holds.
async fn make_session<'a, P: Program>(
    engine: &'a Engine,
    program: &'a P,
    lease: &Lease,
    mut base: Base,
    mut options: ResumeOptions<P::State>,
    carried: Option<SessionCarry>,
) -> Result<Prepared<'a, P>, RunError> {
    let newest_seq = base.record.header().seq;
    let (skips_missing, carries) = (options.from.is_some() || carried.is_some(), carried.as_ref());
    let is_claimed = is_claimed(&options, &base);
    let begin = Box::pin(find_begin(engine, program, lease, &mut base, &mut options, carries)).await?;
    let mut begin = match begin {
        BeginPoint::Session(begin) => *begin,
        BeginPoint::Idle => {
            let outcome = idle(&base, program)?;
            validated(&base, &outcome.state, &mut options)?;
            return Ok(Prepared::Idle(Box::new(outcome)));
        }
        BeginPoint::AnswersFirst(edits) => {
            return Ok(Prepared::AnswersFirst { edits, options: Box::new(options) });
        }
    };
    let chain = chain_after(&base, lease, newest_seq, is_claimed);
    let (main, config) = main_scope(engine, program, chain, &mut base, &mut begin, &mut options).await?;
    if options.from.is_some() {
        skip_missing(engine, lease).await?;
    }
    for damage in &base.damaged {
        engine.store.quarantine(lease, damage).await?;
    }
    let is_written = !main.drafts.is_empty();
    let is_adopted = adopts(&options, &base.snapshot.definition, program.shape());
    let mut session = Session::new(engine, program, main, options.session)?;
    session.config = Arc::new(config);
    session.site = Arc::new(engine.site(base.snapshot.entry.record.record()));
    session.accepted_packs = std::mem::take(&mut begin.accepted_packs);
    session.on_unknown = options.on_unknown;
    session.by.clone_from(&options.by);
    session.keeps_failures = options.claimed.is_some();
    session.was_killed = was_killed(engine, &base.snapshot.entry.summary, base.snapshot.latest()).await?;
    session.answers = options.on_doubt.answers();
    session.latest = base.snapshot.latest();
    (session.repaired, session.skips_missing) = (base.damaged, skips_missing);
    session.declarers = std::mem::take(&mut begin.resume_point.declarers);
    if let Some(SessionCarry { batches, resume, repaired, pending_claims, idle_rounds, rewritten, .. }) =
        carried
    {
        rewritten.iter().for_each(|file| session.declarers.note_new(file.clone()));
        (session.batches, session.is_again, session.rewritten) = (batches, true, rewritten);
        (session.pending_claims, session.idle_rounds) = (pending_claims, idle_rounds);
        session.repaired.extend(repaired);
        let chain = &mut session.main_mut().chain;
        (chain.idle_since, chain.resume) = (None, resume);
    }
    if begin.resume_point.is_verified {
        let mut deferred = std::mem::take(&mut begin.resume_point.deferred);
        // At the end of the run, no scope can end any more.
        deferred.retain(|_, _| !session.main().position.frontier.is_empty());
        session.pending_claims =
            PendingClaims { deferred, is_due: begin.resume_point.rewinds, ..PendingClaims::default() };
    }
    if session.keeps_traces {
        let has_moves = !begin.resume_point.moves.is_empty() || session.main().position.has_results();
        session.pending_claims.is_redone = has_moves || is_written;
    }
    session.lost = base.snapshot.entry.summary.summary.lost;
    session.status_before = Some(RunSummary::true_status(&base.snapshot.entry.summary.summary, None));
    session.shape_before = options.adopt.as_ref().map(|adoption| adoption.before.clone());
    let own = || is_adopted.then(|| program.shape().definition(None));
    session.adopt = options.adopt.map(|adoption| adoption.definition).or_else(own);
    let in_force = session.adopt.as_ref().unwrap_or(&base.snapshot.definition);
    session.accepted = in_force.accepted.clone();
    if is_written {
        session.mark_dirty(MAIN);
    }
    let edits = manual::Edits::of(options.edit_scopes);
    let decision = (&options.on_doubt, options.by.as_deref());
    let questions =
        open_scopes::load_open_scopes(&mut session, lease, begin.resume_point, decision, edits).await?;
    // The choice of a checkpoint already decides the questions.
    let is_decided = options.from.as_ref().is_some_and(|from| !matches!(from, ResumeFrom::Step(_)));
    if !is_decided && !questions.is_empty() {
        return Err(RunError::InDoubt { run: lease.run().clone(), questions });
    }
    Ok(Prepared::Session(Box::new(session)))
}

/// Returns whether a worker continues a run at rest: no resume, unlike the claim of a run whose worker died.
fn is_claimed<S>(options: &ResumeOptions<S>, base: &Base) -> bool {
    options.claimed.is_some() && base.snapshot.entry.summary.summary.status != RunStatus::Running
}

impl Base {
    /// Returns the base with failed steps unfinished.
    pub(crate) fn with_failures_open(self) -> Self {
        Self { position: self.position.with_failures_open(), ..self }
    }

    /// Returns the number of newer lost records, quarantined records included.
    fn lost(&self) -> u64 {
        self.next - 1 - self.record.header().seq
    }
}

/// The start of a resume.
enum BeginPoint<S> {
    Session(Box<SessionStart>),
    /// All steps are done, and their evidence holds.
    Idle,
    /// The answers to the open questions are recorded first, with these edits.
    AnswersFirst(Edits<S>),
}

/// The start of the session of a resume.
struct SessionStart {
    /// The positions of the other scopes, and the steps in doubt.
    resume_point: ResumePoint,
    /// The first drafts to write.
    drafts: Vec<Draft>,
    /// True if this session is the first of the resume to take up the open steps of the main scope.
    reopens: bool,
    /// The accepted packs of the run, if ends have traces.
    accepted_packs: AcceptedPacks,
}

/// Returns whether a resume adopts another definition than the definition in force.
fn adopts<S>(options: &ResumeOptions<S>, in_force: &Definition, shape: &Shape) -> bool {
    let is_wanted = options.adopt.is_some() || options.on_change == OnChange::Adopt;
    is_wanted && !change::is_of(in_force, shape)
}

/// Refuses a state of a newer schema version, before any other check.
fn refuse_newer<P: Program>(program: &P, record: &Record) -> Result<(), RunError> {
    let supported = program.schema(0);
    match record.header().body.as_ref().map_or(0, |body| body.schema) {
        found if found > supported => {
            Err(RunError::Version { at: record.header().reference().to_string(), found, supported })
        }
        _ => Ok(()),
    }
}

/// Checks that a run fits a shape, as far as possible before the start point is known.
fn fits<S>(shape: &Shape, base: &Base, options: &ResumeOptions<S>) -> Result<(), String> {
    if options.adopt.is_some() {
        return Ok(());
    }
    // A rollback does not continue from the current position.
    let nowhere = Position::default();
    let position = if options.from.is_some() { &nowhere } else { &base.position };
    check_fit(shape, position, &base.snapshot.definition, options.on_change)
}

/// Puts the definition of an older checkpoint in force again, if the program has it: edits adopted since are rolled back, too.
/// Returns the definition of then for a program with another one.
async fn restore_definition(
    engine: &Engine,
    shape: &Shape,
    base: &mut Base,
    seq: u64,
) -> Result<Option<Definition>, RunError> {
    let store = engine.store.as_ref();
    let run = &base.snapshot.entry.record.record().run;
    let record = load_with_state(engine, run, &ScopePath::main(), seq).await?;
    let then = Snapshot::definition(store, &base.snapshot.entry, &record).await?;
    if !change::is_of(&then, shape) {
        return Ok(Some(then));
    }
    base.position.definition = position_of(&record)?.definition;
    base.snapshot.definition = then;
    Ok(None)
}

/// Moves `base` to the start point.
async fn find_begin<P: Program>(
    engine: &Engine,
    program: &P,
    lease: &Lease,
    base: &mut Base,
    options: &mut ResumeOptions<P::State>,
    carried: Option<&SessionCarry>,
) -> Result<BeginPoint<P::State>, RunError> {
    refuse_newer(program, &base.record)?;
    // By the definition at their start, not by an adopted definition.
    let began_with = options.adopt.as_ref().map_or(program.shape(), |adoption| &adoption.before);
    let (is_claimed, keeps_failures) = (is_claimed(options, base), options.claimed.is_some());
    if !keeps_failures {
        base.redone.extend(retry_failures(began_with, &mut base.position));
    }
    let mut before_edits = None;
    if let Some(ResumeFrom::Checkpoint(seq)) = options.from {
        before_edits = restore_definition(engine, program.shape(), base, seq).await?;
    }
    refuse_unfinished_undo(lease.run(), &base.position, options.from.as_ref())?;
    let misfit = |why| RunError::Changed { run: lease.run().clone(), why };
    // Before questions about steps of another graph.
    fits(program.shape(), base, options).map_err(misfit)?;
    options.session.check_steps(program.shape())?;
    let is_again = carried.is_some();
    let edited = options.edit_scopes.iter().map(|(path, _)| path);
    let from = options.from.clone();
    let mut requested = Requested::take(&mut options.from, edited, program.shape());
    let changed = options.adopt.iter().flat_map(|adoption| &adoption.rerun);
    requested.rerun_changed(changed, program.shape());
    if options.retry_tolerated {
        requested.retry(tolerated(engine.store.as_ref(), lease.run()).await?, program.shape());
    }
    requested.by = options.by.clone();
    let resume = base.snapshot.newest().header().resume + u64::from(!is_again);
    let chosen = options.chosen_steps();
    let answers = options.on_doubt.answers();
    let query = resume_query(options, (&requested, &chosen), &answers, resume, program.keeps_apart());
    let trust = if is_claimed { Trust::Unchecked } else { query.trust };
    let query = ResumeQuery { again: is_again, trust, keeps_failures, ..query };
    let ends = base.snapshot.ended.is_none() && base.position.frontier.is_empty();
    let verifies_all = carried.is_some_and(|carried| ends || carried.pending_claims.is_due);
    let broken_declarers = carried.map_or(&[][..], |carried| &carried.broken_declarers);
    let (mut query, rest) =
        (ResumeQuery { verifies_all, broken_declarers, ..query }, requested.without_named());
    let adopts = adopts(options, &base.snapshot.definition, program.shape());
    // With another definition, the evidence of the old steps says nothing: only the interrupted steps are in doubt.
    // With the same steps, lost evidence decides whether an ended run has work.
    let is_changed = options.adopt.is_some() && (adopts || base.snapshot.ended.is_none());
    let before = ResumeQuery { lists_only: query.lists_only || is_changed, ..query };
    let mut resume_point = match options.from {
        None => resume_point::find(engine, program, began_with, base, before).await?,
        Some(_) => ResumePoint::default(),
    };
    let first = manual::defer_retries(&mut options.edit_scopes, &resume_point.unreached);
    if !first.is_empty() {
        options.from = from;
        return Ok(BeginPoint::AnswersFirst(first));
    }
    if options.from.is_none() && !is_again {
        let lost = questions_of_lost(began_with, &ScopePath::main(), &base.position, base.lost());
        resume_point.questions.extend(lost);
    }
    let is_edited = options.edit.is_some() || !options.edit_scopes.is_empty() || !options.choices.is_empty();
    let is_done = base.snapshot.ended.is_some() && options.from.is_none() && !is_edited && !adopts;
    if is_done && resume_point.is_unmoved() && config_over(engine, base, &options.config).await?.is_none() {
        return Ok(BeginPoint::Idle);
    }
    let in_doubt = |questions| RunError::InDoubt { run: lease.run().clone(), questions };
    let open = options.on_doubt.unanswered(&resume_point.questions);
    if !open.is_empty() {
        return Err(in_doubt(open));
    }
    // The reruns of a request start from the answered positions. A function answers only once.
    let is_done = |question: &Decision| answers.about(&question.scope, &question.step) == Some(TreatAs::Done);
    let records = !answers.recorded && !requested.is_empty() && options.adopt.is_none();
    if records && resume_point.questions.iter().any(is_done) {
        options.from = from;
        return Ok(BeginPoint::AnswersFirst(Vec::new()));
    }
    let (mut drafts, before) = (Vec::new(), base.position.clone());
    let policy = ReusePolicy::excluded(!answers.retries_all());
    if let Some(from) = &options.from {
        let goes_on = options.edit.is_none() && options.then == Then::GoOn;
        drafts.push(match from {
            ResumeFrom::Step(step) if program.keeps_apart() => {
                let requested = RequestedRerun { step, policy, by: options.by.as_deref() };
                from_step(engine, began_with, base, requested).await?
            }
            from => {
                let (draft, moves) = go_back(engine, program, base, from, goes_on).await?;
                (resume_point.moves, resume_point.closed) = (moves.open, moves.closed);
                draft
            }
        });
    }
    // At the end of the run, a new definition has no steps left.
    if let Some(adoption) = options.adopt.as_ref().filter(|_| options.from != Some(ResumeFrom::End)) {
        let ends = definition::ends_to_adopt(engine, base, program.shape(), adoption).await?;
        let adopting = Adopting { adoption, ends: &ends, asks: policy == ReusePolicy::Drop };
        let before = (&base.position, &base.snapshot.definition);
        let carried = definition::carried(before.0, before.1, program.shape(), &adopting).map_err(misfit)?;
        base.notes = definition::causes_of(adoption, &carried, options.by.as_deref());
        base.position = carried.position;
        base.position.note_rerun();
        base.redone.extend(carried.redone.into_iter().map(|(step, _)| Forget::Step(step)));
        requested::defer_below(&carried.entered, &adoption.rerun, program.shape(), &mut base.position);
        // A repeated step begins with the first pass.
        let loops = |step: &StepId| {
            let shape = program.shape();
            shape.place(step.as_str()).is_some_and(|place| shape.share_loop(place, place))
        };
        let entered = carried.entered.into_iter();
        base.redone
            .extend(entered.map(|step| if loops(&step) { Forget::Step(step) } else { Forget::Join(step) }));
        if let Some(forgotten) = requested.defer_named(program.shape(), &mut base.position, policy) {
            base.redone.extend(forgotten);
            query.requested = &rest;
        }
    }
    if adopts && options.adopt.is_none() && options.from.is_none() {
        before_edits = Some(base.snapshot.definition.clone());
    }
    if let Some(before) = before_edits {
        definition::add_steps(engine, base, program.shape(), &before).await?.map_err(misfit)?;
        base.position.note_rerun();
    }
    if policy == ReusePolicy::Drop {
        let asks = !matches!(options.on_doubt, OnDoubt::Settle(_));
        let (from, adopts) = (options.from.as_ref(), options.adopt.is_some());
        let request = AbandonRequest { from, adopts, asks, answers: &answers };
        check_abandoned(engine, lease.run(), began_with, (&before, &base.position), request).await?;
    }
    // An adopted definition has another position: invalid steps are found from there, or the change would be
    // lost.
    if options.from.is_some() || is_changed {
        check_frontier(program.shape(), &base.position).map_err(misfit)?;
        if !query.lists_only {
            resume_point = resume_point::find(engine, program, program.shape(), base, query).await?;
            let first = manual::defer_retries(&mut options.edit_scopes, &resume_point.unreached);
            manual::refuse_all(lease.run(), &first, "an earlier step or pass must rerun first")?;
        }
        // A decision about a step in doubt is applied together with a changed definition.
        let open = match options.from {
            None => options.on_doubt.unanswered(&resume_point.questions),
            Some(_) => resume_point.questions.clone(),
        };
        if !open.is_empty() {
            return Err(in_doubt(open));
        }
    }
    let moved = resume_point.moves.remove(&ScopePath::main());
    // A session of this resume that wrote no record has not taken up these steps.
    let is_new = !is_again || base.snapshot.newest().header().token != lease.token();
    let reopens = is_new || moved.as_ref().is_some_and(|moved| !moved.drafts.is_empty());
    if let Some(moved) = moved {
        move_on(base, moved, &mut drafts)?;
    }
    if !options.choices.is_empty() {
        let scope = ChoiceScope { run: lease.run(), scope: &ScopePath::main(), shape: program.shape() };
        choice::choose(scope, &options.choices, &mut base.position)?;
        last_or_manual(&mut drafts);
    }
    let keeps_traces = !program.shape().is_routed() && program.shape().has_evidence();
    let accepted_packs = match keeps_traces {
        true => AcceptedPacks::read(engine.store.as_ref(), lease.run()).await?,
        false => AcceptedPacks::default(),
    };
    let reopens = reopens && options.then == Then::GoOn;
    let begin = SessionStart { resume_point, drafts, reopens, accepted_packs };
    Ok(BeginPoint::Session(Box::new(begin)))
}

/// Moves the main scope to the target of a transition.
///
/// After a rollback by name, failed evidence may move the scope back further. The record of the rollback then
/// keeps its own position, with the pending steps in a new epoch. A fast-forward leads to that position, not to
/// the original record.
fn move_on(base: &mut Base, moved: Transition, drafts: &mut Vec<Draft>) -> Result<(), RunError> {
    let Transition { record, mut position, drafts: mut more, mut basis, forgotten } = moved;
    base.redone.extend(forgotten);
    if let (Some(by_name), Some(further)) = (drafts.last_mut(), more.first_mut()) {
        by_name.body = Some(unchanged_body(&base.record, &base.position)?);
        let continues = basis.unwrap_or(record.header().seq);
        further.basis = Some(continues);
        basis = Some(base.basis.unwrap_or(base.record.header().seq));
        if let Some(chain) = &mut position.chain {
            chain.head = chain.head.map(|_| base.next);
        }
    }
    (base.record, base.position, base.basis) = (record, position, basis);
    drafts.extend(more);
    Ok(())
}

/// Makes the main scope at the start point, and the configuration in force.
async fn main_scope<'a, P: Program>(
    engine: &Engine,
    program: &'a P,
    chain: Chain,
    base: &mut Base,
    begin: &mut SessionStart,
    options: &mut ResumeOptions<P::State>,
) -> Result<(Scope<'a, P::State>, Map<String, Value>), RunError> {
    let SessionStart { resume_point, drafts, reopens, accepted_packs } = begin;
    let mut state = decode_state(program, program.shape().level(), &base.record)?;
    forget(program, &ScopePath::main(), &base.redone, &mut state)?;
    if let Some(edit) = options.edit.take() {
        edit.apply(&mut state, || base.record.header().reference().to_string())?;
        last_or_manual(drafts);
        ask_about_edited_state(engine.store.as_ref(), &chain.run, &mut base.position).await?;
    }
    validated(base, &state, options)?;
    let config_over = config_over(engine, base, &options.config).await?;
    let config_so_far = engine.config_of(&base.snapshot.entry, &base.position).await?;
    let is_repeated = chain.basis.is_some();
    let mut main = Scope::new(chain, program.shape(), std::mem::take(&mut base.position), state);
    let site = engine.site(base.snapshot.entry.record.record());
    if !program.shape().is_routed() && program.shape().has_evidence() {
        read_digests(engine.store.as_ref(), program, &mut main, accepted_packs).await?;
    }
    let (scope, settled) = (main.path().clone(), &mut resume_point.settled);
    let shape = program.shape();
    let doubt = DoubtScope { run: &main.chain.run, scope: &scope, shape, site: &site, state: &main.state };
    let done = recovered(engine, program, doubt, settled, true).await;
    settle_recovered(program, &mut main, done)?;
    // Evidence that no longer holds becomes a question.
    resume_point.questions.append(settled);
    let decision = (&options.on_doubt, options.by.as_deref());
    apply_decisions(program, &mut main, std::mem::take(&mut resume_point.questions), decision)?;
    if is_repeated {
        main.position.note_rerun();
    }
    let newest = base.snapshot.newest().position().map_or(0, |position| position.epoch_max);
    main.position.epoch_max = main.position.epoch_max.max(newest);
    if main.chain.repair {
        main.ask_again();
    }
    main.reopens = *reopens;
    if main.reopens {
        let was_killed = was_killed(engine, &base.snapshot.entry.summary, base.snapshot.latest()).await?;
        let by_person = options.by.is_some();
        let keeps_failures = options.claimed.is_some();
        let (now, answers) = (engine.clock.now(), &options.on_doubt.answers());
        reopen(&mut main, Reopening { now, by_person, was_killed, keeps_failures, answers });
        decide_begun(program, &mut main);
    }
    if let Some(config) = &config_over {
        last_or_manual(drafts).config = Some(config.clone());
        main.position.config = Some(main.seq_of_next_draft() + drafts.len() as u64 - 1);
    }
    main.drafts.append(drafts);
    main.notes.append(&mut base.notes);
    Ok((main, config_over.unwrap_or(config_so_far)))
}

/// Lets steps that wait for an answer or a signal start again: with an edited state, the question or the name may be another.
/// A question with an answer on its way stays.
async fn ask_about_edited_state(
    store: &dyn Store,
    run: &RunId,
    position: &mut Position,
) -> Result<(), StoreError> {
    let pending = store.signals(run).await?;
    let is_answered = |wait: &Wait| {
        let answers =
            |kind: &SignalKind| matches!(kind, SignalKind::Answer { wait: id, .. } if *id == wait.id);
        pending.iter().any(|signal| answers(&signal.kind))
    };
    for entry in &mut position.frontier {
        let asks = |wait: &Wait| matches!(wait.on, WaitKind::Answer | WaitKind::Signal(_));
        if entry.waits.iter().any(asks) && !entry.waits.iter().any(is_answered) {
            (entry.status, entry.since, entry.wake_at) = (Status::Ready, 0, None);
            entry.waits.clear();
        }
    }
    Ok(())
}

/// Returns the new configuration, if the resume changes the configuration.
async fn config_over(
    engine: &Engine,
    base: &Base,
    over: &Map<String, Value>,
) -> Result<Option<Map<String, Value>>, RunError> {
    if over.is_empty() {
        return Ok(None);
    }
    let so_far = engine.config_of(&base.snapshot.entry, &base.position).await?;
    let mut config = so_far.clone();
    merge(&mut config, over.clone());
    Ok((config != so_far).then_some(config))
}

/// Runs the caller's validation on the state at the start point, if there is any.
fn validated<S>(base: &Base, state: &S, options: &mut ResumeOptions<S>) -> Result<(), RunError> {
    let Some(validate) = options.validate.take() else { return Ok(()) };
    validate.check(state, || base.record.header().reference().to_string())
}

/// Returns the query for the resume point.
fn resume_query<'a, S>(
    options: &ResumeOptions<S>,
    (requested, chosen): (&'a Requested, &'a BTreeSet<(ScopePath, StepId)>),
    answers: &'a Answers,
    resume: u64,
    keeps_apart: bool,
) -> ResumeQuery<'a> {
    let lists_only = options.then == Then::Stop || options.from == Some(ResumeFrom::End);
    let trust = Trust::Checked(options.on_unknown);
    // An edit of a state with separate outputs applies for every rerun step.
    let edits_state = !keeps_apart && (options.edit.is_some() || !options.edit_scopes.is_empty());
    let recovers = !matches!(options.on_doubt, OnDoubt::Settle(_));
    ResumeQuery {
        trust,
        keeps_failures: false,
        again: false,
        verifies_all: false,
        edits_state,
        lists_only,
        resume,
        recovers,
        answers,
        keeps_done: options.from.is_some(),
        requested,
        broken_declarers: &[],
        chosen,
    }
}

/// Returns the last draft; adds a manual draft if there is none.
fn last_or_manual(drafts: &mut Vec<Draft>) -> &mut Draft {
    if drafts.is_empty() {
        drafts.push(manual_draft());
    }
    drafts.last_mut().expect("there is one by now")
}

/// Makes the draft of a manual change.
pub(crate) fn manual_draft() -> Draft {
    Draft::new(Phase::Restored, Reason::Manual, None, Try::default())
}

/// Returns the end of the main scope's chain for the records of a base.
fn chain_after(base: &Base, lease: &Lease, newest_seq: u64, is_claimed: bool) -> Chain {
    let continued = base.basis.unwrap_or(base.record.header().seq);
    Chain {
        run: lease.run().clone(),
        scope: ScopePath::main(),
        token: lease.token(),
        next: base.next,
        prev: Some(base.snapshot.newest().digest()),
        basis: (base.next != continued + 1).then_some(continued),
        // Also if an earlier session quarantined the damage and died before its first commit.
        repair: base.next != newest_seq + 1,
        root: None,
        idle_since: (!is_claimed).then(|| base.snapshot.worked_until()),
        resume: base.snapshot.newest().header().resume + u64::from(!is_claimed),
        repeated: base.snapshot.newest().header().to_repeat(),
    }
}

/// Reads the current base of a run, with the position as recorded.
pub(crate) fn find_base(snapshot: Snapshot) -> Result<Base, RunError> {
    let newest = snapshot.newest().clone();
    let position = position_as_recorded(&newest)?;
    let head = snapshot.heads.iter().find(|head| head.record.header().scope.is_main());
    let (next, damaged) = match head {
        Some(Head { next, damaged, .. }) => (*next, damaged.clone()),
        None => (newest.header().seq + 1, Vec::new()),
    };
    Ok(Base {
        snapshot,
        record: newest,
        position,
        basis: None,
        next,
        damaged,
        redone: Vec::new(),
        notes: Vec::new(),
    })
}

/// Returns the outcome of an ended run without work.
fn idle<P: Program>(base: &Base, program: &P) -> Result<Outcome<P::State>, RunError> {
    let snapshot = &base.snapshot;
    let newest = snapshot.newest();
    if newest.header().end == Some(End::Cancelled) {
        return Err(RunError::Cancelled(newest.header().run.clone()));
    }
    let total = program.shape().counted();
    let waiting = Waiting::of_position(&ScopePath::main(), &base.position);
    Ok(Outcome {
        run: newest.header().run.clone(),
        // The summary may have been damaged; the record is sound.
        status: newest.header().status.unwrap_or(snapshot.entry.summary.summary.status),
        state: decode_state(program, program.shape().level(), newest)?,
        at: newest.header().seq,
        waiting,
        failed: None,
        failed_on: None,
        failures: Vec::new(),
        stopped_by: None,
        idle: true,
        progress: Progress { done: total, total },
        repaired: Vec::new(),
        lost: 0,
    })
}

/// Decodes the state of a record.
pub(crate) fn decode_state<P: Program>(
    program: &P,
    level: usize,
    record: &Record,
) -> Result<P::State, RunError> {
    let at = || record.header().reference().to_string();
    let bytes = record
        .state_bytes()
        .ok_or_else(|| RunError::NoState { at: at(), why: "retention dropped its state".to_owned() })?;
    let schema = record.header().body.as_ref().map_or(0, |body| body.schema);
    program.decode(level, bytes, schema).map_err(|error| match error {
        StateError::Newer { found, supported } => RunError::Version { at: at(), found, supported },
        StateError::Malformed(why) => RunError::Deserialize { at: at(), why },
    })
}
