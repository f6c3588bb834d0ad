//! Rollback of the main scope: to an older checkpoint, to a step, or to the end.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{RunId, ScopePath, StepId};
use crate::plan::shape::{Children, Shape, Step, Unfinished};
use crate::record::{
    FrontierEntry, Header, Phase, Position, Reason, Record, Reusable, Status, Try, Wait, WaitKind,
};
use crate::store::portable::begun_since;
use crate::store::{Scan, Store, StoreError, StoreExt as _};

use super::undo::{refuse_undone, undone_steps};
use crate::engine::chain::Draft;
use crate::engine::resume::begin::Base;
use crate::engine::resume::definition::Forget;
use crate::engine::resume::in_doubt::cut_in;
use crate::engine::resume::reruns::opener_of;
use crate::engine::walk::failure::position_for_retry;
use crate::engine::walk::invalidate::{InvalidStep, ReusePolicy, invalidate};
use crate::engine::{Engine, Program, ResumeFrom, RunError};
pub(crate) use scopes::{Closed, Moves, PointInTime, ScopesThen};

mod scopes;

/// Rolls the main scope back to an older record, or to its end. Returns the draft of the rollback, and the transitions
/// of the scopes below.
///
/// In a graph by needs, the scopes below go back to their positions then. In other graphs, unjoined scopes of that record
/// restart, and their later work is abandoned. With `goes_on`, the scopes of a fan-out that is open in both records
/// continue from their newest positions, and other unjoined scopes restart.
pub(crate) async fn go_back<P: Program>(
    engine: &Engine,
    program: &P,
    base: &mut Base,
    from: &ResumeFrom,
    goes_on: bool,
) -> Result<(Draft, Moves), RunError> {
    let shape = program.shape();
    let run = base.record.header().run.clone();
    let Some((seq, step)) = aim(engine, shape, base, from).await? else {
        base.position.frontier.clear();
        base.position.chain = None;
        return Ok((Draft::new(Phase::Restored, Reason::Manual, None, Try::default()), Moves::default()));
    };
    let record = load_with_state(engine, &run, &ScopePath::main(), seq).await?;
    let (mut position, failures) = position_for_retry(shape, &record, false)?;
    base.redone.extend(failures);
    if step.is_none() {
        refuse_undone(engine, &run, seq).await?;
    }
    if let Some(step) = step.filter(|step| !position.frontier.iter().any(|entry| entry.step == **step)) {
        // The start of the step shares a record with a later step, because a checkpoint was lost.
        let why = format!("the input state of step `{step}` was not kept");
        return Err(RunError::NoState { at: format!("{run}@{seq}"), why });
    }
    let main = ScopePath::main();
    let epoch = epochs(engine, &run, &main).await? + 1;
    if step.is_none() && !goes_on && !shape.is_routed() {
        let position = position.back_at_work();
        let then = ScopesThen::read(engine, program, (&record, &position), Closed::Continue).await?;
        let mut moves = then.moves(engine, program).await?;
        let moved = moves.open.remove(&main).expect("the main scope always moves");
        base.redone.extend(moved.forgotten);
        let mut draft = rolled_back(engine, shape, base, (record, moved.position), (step, epoch)).await?;
        draft.report.notes.extend(moved.drafts.into_iter().flat_map(|draft| draft.report.notes));
        return Ok((draft, moves));
    }
    // A resume from a checkpoint decides about the next steps; after a mere rollback, the next resume asks.
    let mut cut = if step.is_some() || !goes_on { cut_in(&base.position, shape) } else { Vec::new() };
    // The old position predates the questions that a later invalidation raised.
    cut.retain(|cut| step.is_some() || !base.position.asks_about(cut));
    for entry in &mut position.frontier {
        entry.back_to_work();
        let is_named = step == Some(&entry.step);
        let now = base.position.frontier.iter().find(|now| now.step == entry.step && cut.contains(&now.step));
        if let Some(now) = now.filter(|now| !is_named && now.at.iteration == entry.at.iteration) {
            // An interrupted step next to the rollback target stays in doubt.
            *entry = now.clone();
            continue;
        }
        entry.at.epoch = epoch;
        (entry.memos, entry.failures, entry.passed, entry.continues) = (0, 0, false, false);
        // The answer to an old question may have been consumed since: ask again.
        let asks =
            |wait: &Wait| matches!(wait.on, WaitKind::Answer | WaitKind::Signal(_) | WaitKind::Until(_));
        let is_left = match is_named && opens_its_own(shape, &entry.step) {
            true => entry.has_children(),
            false => {
                let has_other_ends =
                    step.is_none() && has_continued(engine, shape, record.header(), entry).await?;
                has_other_ends || is_abandoned(engine, &run, (entry, step), &base.position, goes_on).await?
            }
        };
        if (is_left || !goes_on) && !is_named {
            check_left(shape, entry, &record)?;
        }
        if is_left {
            entry.drop_children();
        }
        if entry.status == Status::Started || is_named || is_left || entry.waits.iter().any(asks) {
            entry.status = Status::Ready;
            entry.at.attempt = 0;
            entry.waits.clear();
        }
        if entry.status == Status::Ready {
            entry.wake_at = None;
        }
    }
    // A step that had not begun at the target is asked about at its turn.
    let is_open = |step: &StepId| position.frontier.iter().any(|entry| entry.step == *step);
    let ahead = base.position.frontier.iter().filter(|now| cut.contains(&now.step) && !is_open(&now.step));
    let ahead: Vec<&FrontierEntry> = ahead.filter(|_| step.is_none()).collect();
    ahead.into_iter().for_each(|now| position.ask_about(&now.step, Some(now.clone())));
    if step.is_none() {
        let repeats =
            invalidate_begun(engine, shape, (&record, &mut position), (epoch, ReusePolicy::Keep)).await?;
        base.redone.extend(repeats);
    }
    // Without the positions of the scopes below, an opener without open children runs as a whole.
    let unfinished = Unfinished::of(shape, &position);
    let begins = |(place, step): &(usize, &Step)| {
        let entry = position.frontier.iter().find(|entry| entry.step == step.id);
        let goes_on = entry.is_some_and(FrontierEntry::has_children);
        !shape.is_routed() && step.opens() && unfinished.has(*place) && !goes_on
    };
    let openers: Vec<StepId> =
        shape.steps().iter().enumerate().filter(begins).map(|(_, step)| step.id.clone()).collect();
    position.rerun_whole.extend(openers);
    let draft = rolled_back(engine, shape, base, (record, position), (step, epoch)).await?;
    Ok((draft, Moves::default()))
}

/// Moves the main scope to a position at an older record. Returns the draft.
async fn rolled_back(
    engine: &Engine,
    shape: &Shape,
    base: &mut Base,
    (record, mut position): (Record, Position),
    (step, epoch): (Option<&StepId>, u32),
) -> Result<Draft, RunError> {
    position.chain = None;
    // A later start has overwritten the files of the old result, and open scopes have continued.
    let mut begun = begun_since(engine.store.as_ref(), &record.header().reference()).await?;
    // The scopes of the passes and items have positions of their own.
    begun.retain(|id| !shape.step(id.as_str()).is_some_and(Step::opens));
    let is_end = |result: &Reusable| !matches!(result, Reusable::Begun { .. });
    let is_kept = |(id, results): (&StepId, &BTreeMap<u32, Reusable>)| {
        step.is_none() && !shape.is_routed() && !begun.contains(id) && results.values().all(is_end)
    };
    let results =
        position.reusable.iter().filter(|result| position.has_result(result.0) && !is_kept(*result));
    let results: Vec<StepId> = results.map(|(step, _)| step.clone()).collect();
    results.iter().for_each(|step| position.drop_results(step));
    base.redone.extend(results.into_iter().map(Forget::Step));
    // Steps whose start was set aside and resumed later have other scopes now.
    let started = base.position.reusable.keys().filter_map(|step| base.position.started_before(step));
    let entries = started.chain(&base.position.frontier);
    let kept: Vec<u64> = entries.flat_map(FrontierEntry::fans).map(|fan| fan.since).collect();
    position.drop_children_of_started(|entry| entry.open_fan().is_some_and(|fan| kept.contains(&fan.since)));
    if let Some(step) = step {
        // The named step is decided.
        position.ask_no_more(step);
    }
    position.epoch_max = position.epoch_max.max(epoch);
    // The configuration in force stays; `base` has the definition of then.
    (position.definition, position.config) = (base.position.definition, base.position.config);
    let at = position.frontier.first().map(|entry| entry.at.clone()).unwrap_or_default();
    let at = Try { attempt: 0, ..at };
    let about = step.cloned().or_else(|| position.frontier.first().map(|entry| entry.step.clone()));
    let reason = if step.is_some() { Reason::Redo } else { Reason::Rollback };
    (base.record, base.position) = (record, position);
    Ok(Draft::new(Phase::Restored, reason, about, at))
}

/// Invalidates the steps that were finished at a record and have begun again since: later starts have overwritten the files
/// of the old results. Returns the results to remove from the state.
///
/// `policy`: of the other steps downstream.
pub(crate) async fn invalidate_begun(
    engine: &Engine,
    shape: &Shape,
    (record, position): (&Record, &mut Position),
    (epoch, policy): (u32, ReusePolicy),
) -> Result<Vec<Forget>, RunError> {
    if shape.is_routed() {
        return Ok(Vec::new());
    }
    let unfinished = Unfinished::of(shape, position);
    let begun = begun_since(engine.store.as_ref(), &record.header().reference()).await?;
    let begun = begun.iter().filter_map(|step| shape.place(step.as_str()));
    let begun: Vec<usize> = begun.filter(|place| !unfinished.has(*place)).collect();
    let downstream = shape.downstream(&begun);
    let first: Vec<usize> = begun.iter().filter(|place| !downstream.contains(place)).copied().collect();
    if first.is_empty() {
        return Ok(Vec::new());
    }
    let invalid_step = |place: &usize| {
        let at = Try { attempt: 0, epoch, iteration: shape.first_iteration(*place, &[]) };
        let entry = FrontierEntry { at, ..FrontierEntry::ready(shape.steps()[*place].id.clone()) };
        InvalidStep { place: *place, entry, is_named: false }
    };
    let mut after = invalidate(shape, position, first.iter().map(invalid_step).collect(), policy);
    for place in downstream.iter().chain(&first) {
        let step = &shape.steps()[*place];
        let entry = position.open_entries().find(|entry| entry.step == step.id);
        if begun.contains(place) || entry.is_some() {
            after.exclude_reuse(step);
            let was_done = begun.contains(place) && position.did(&step.id);
            if !step.note_effect(&mut after.position, was_done, entry.cloned()) {
                after.forgotten.push(Forget::Step(step.id.clone()));
            }
        }
    }
    *position = after.position;
    for step in undone_steps(engine, &record.header().run).await? {
        position.ask_no_more(&step);
    }
    Ok(after.forgotten)
}

/// Returns whether ended scopes of a step have continued after a record of the main scope: a later session retried or
/// reran these.
pub(crate) async fn has_continued(
    engine: &Engine,
    shape: &Shape,
    at: &Header,
    entry: &FrontierEntry,
) -> Result<bool, RunError> {
    if !joins(entry) {
        return Ok(false);
    }
    let store = engine.store.as_ref();
    for scope in store.scopes(&at.run).await? {
        let top = std::iter::successors(Some(scope.clone()), ScopePath::parent)
            .find(|top| top.parent().is_some_and(|parent| parent.is_main()));
        if top.and_then(|top| opener_of(shape, &top)).as_ref() != Some(&entry.step) {
            continue;
        }
        // The token orders the sessions of a run.
        let token = match store.newest(&at.run, &scope).await {
            // The scope is taken at its newest sound record.
            Err(StoreError::Damaged { .. }) => continue,
            newest => newest?.header().token,
        };
        if token > at.token {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Puts steps in doubt that must not be repeated and have ended, or begun, since the position: neither a rollback nor a fork
/// repeats an effect. `undone`: the effects that were compensated.
pub(crate) fn ask_about_done(
    shape: &Shape,
    position: &mut Position,
    newest: &Position,
    undone: &BTreeSet<StepId>,
) {
    let now = Unfinished::of(shape, newest);
    ask_about_effects(shape, position, |place, step| {
        let begun = newest.open_entries().find(|entry| entry.step == step.id && step.has_begun(entry));
        let has_ended = !now.has(place) && newest.did(&step.id) || newest.had_effect(&step.id);
        (!undone.contains(&step.id) && (has_ended || begun.is_some())).then(|| begun.cloned())
    });
}

/// Notes the effects of steps that have not begun at the position: steps that must not be repeated are in doubt. `effect`:
/// whether the step has ended or begun since; with the frontier entry of then, if the step has begun.
pub(crate) fn ask_about_effects(
    shape: &Shape,
    position: &mut Position,
    effect: impl Fn(usize, &Step) -> Option<Option<FrontierEntry>>,
) {
    if shape.is_routed() {
        return;
    }
    let then = Unfinished::of(shape, position);
    for (place, step) in shape.steps().iter().enumerate() {
        // An opener that has started has no effect before its children.
        let has_effect = |entry: &FrontierEntry| match step.children {
            Some(_) => entry.has_children() || step.is_later_pass(entry),
            None => step.has_begun(entry),
        };
        let is_open = position.frontier.iter().any(|entry| entry.step == step.id && has_effect(entry));
        if !then.has(place) || is_open {
            continue;
        }
        if let Some(begun) = effect(place, step) {
            step.note_effect(position, true, begun);
        }
    }
}

/// Checks that scopes about to restart have no non-idempotent steps: the older checkpoint does not show which
/// of these steps had ended.
///
/// # Errors
/// [`RunError::NoState`]: there is such a step.
pub(crate) fn check_left(shape: &Shape, entry: &FrontierEntry, at: &Record) -> Result<(), RunError> {
    let step = &entry.step;
    if !entry.has_children() || !shape.step(step.as_str()).is_some_and(Step::opens_careful) {
        return Ok(());
    }
    let why = format!(
        "step `{step}` was under way at the checkpoint, has continued since, and contains steps that are not \
         idempotent; `resume` or `fork` with `--from {step}` reruns the whole step"
    );
    Err(RunError::NoState { at: at.header().reference().to_string(), why })
}

/// Returns whether the scopes of an older frontier entry in the main scope are abandoned, and restart. `step`:
/// the target step of the rollback, if named. `newest`: the newest position.
pub(crate) async fn is_abandoned(
    engine: &Engine,
    run: &RunId,
    (entry, step): (&FrontierEntry, Option<&StepId>),
    newest: &Position,
    goes_on: bool,
) -> Result<bool, RunError> {
    if !entry.has_children() {
        return Ok(false);
    }
    // The named step is another step, or joins these scopes.
    if step.is_some() || joins(entry) || (goes_on && is_under_way(newest, entry)) {
        return fanned_out_since(engine, (run, &ScopePath::main()), entry).await;
    }
    Ok(true)
}

/// Finds the target record and the named step; `None` if the target is the end.
pub(crate) async fn aim<'a>(
    engine: &Engine,
    shape: &Shape,
    base: &Base,
    from: &'a ResumeFrom,
) -> Result<Option<(u64, Option<&'a StepId>)>, RunError> {
    let step = match from {
        ResumeFrom::Checkpoint(seq) => return Ok(Some((*seq, None))),
        // `resume_point` rolls the other scopes back.
        ResumeFrom::End | ResumeFrom::StepOn(..) | ResumeFrom::Scopes => return Ok(None),
        ResumeFrom::Unknown(name) => return Err(RunError::UnknownStep(name.clone())),
        ResumeFrom::Step(step) if shape.place(step.as_str()).is_none() => {
            return Err(RunError::InvalidStep(step.clone()));
        }
        ResumeFrom::Step(step) => step,
    };
    let run = &base.record.header().run;
    let newest = base.snapshot.newest().header().seq;
    let opens = opens_its_own(shape, step);
    let is_open = |record: &Record| is_start_of(record.header(), step, opens);
    let found = engine.store.find_back(run, &ScopePath::main(), newest, &is_open).await?;
    let not_finished =
        || RunError::NotFinished { run: run.clone(), scope: ScopePath::main(), step: step.clone() };
    let found = found.ok_or_else(not_finished)?;
    Ok(Some((found.header().seq, Some(step))))
}

/// Returns whether a record starts a step, puts the step in doubt right before its start, or opens its scopes
/// as the start.
fn is_start_of(header: &Header, step: &StepId, opens: bool) -> bool {
    let in_doubt = header.reason == Reason::Redo && matches!(header.phase, Phase::Interrupted { .. });
    let is_opening = opens && header.reason == Reason::Fork && matches!(header.phase, Phase::Waiting(_));
    header.started.iter().any(|start| start.step == *step)
        || ((in_doubt || is_opening) && header.step.as_ref() == Some(step))
}

/// Returns whether the scopes are the work of the step itself, for example over items: a rerun opens new
/// scopes. The join of a fork reruns alone.
fn opens_its_own(shape: &Shape, step: &StepId) -> bool {
    let is_fork = |step: &Step| step.children.as_ref().is_some_and(Children::is_fork);
    shape.step(step.as_str()).is_some_and(|step| step.opens() && !is_fork(step))
}

/// Returns whether all scopes of a fan-out have ended, so that the join is next.
pub(crate) fn joins(entry: &FrontierEntry) -> bool {
    let is_waiting = entry.waits.iter().any(|wait| wait.on == WaitKind::Children);
    !is_waiting && entry.open_fan().is_some_and(|fan| fan.opened == fan.total)
}

/// Returns whether a position waits for the same scopes as an entry of another position.
fn is_under_way(newest: &Position, entry: &FrontierEntry) -> bool {
    let since = |entry: &FrontierEntry| entry.fans().next().map(|fan| fan.since);
    let same = |found: &FrontierEntry| found.step == entry.step && since(found) == since(entry);
    newest.frontier.iter().any(|found| same(found) && !joins(found))
}

/// Returns the highest epoch ever used in a scope. The next epoch gives reruns new idempotency keys and memoized
/// results.
///
/// In the main scope, the newest record has the value, however long the history. Another scope may continue the
/// chain of an earlier opening, so its headers are read.
pub(crate) async fn epochs(engine: &Engine, run: &RunId, scope: &ScopePath) -> Result<u32, RunError> {
    if scope.is_main()
        && let Ok(newest) = engine.store.newest(run, scope).await
        && let Ok(position) = newest.position()
    {
        return Ok(position.epoch_max);
    }
    Ok(epoch_in_pass(engine, run, scope, &[]).await?.unwrap_or(0))
}

/// Returns the epoch of the next rerun in a scope.
pub(crate) async fn next_epoch(
    engine: &Engine,
    header: &Header,
    position: &Position,
) -> Result<u32, RunError> {
    let known =
        position.frontier.iter().map(|entry| entry.at.epoch).chain([position.epoch, position.epoch_max]);
    let known = known.max().unwrap_or_default();
    Ok(known.max(epochs(engine, &header.run, &header.scope).await?) + 1)
}

/// Returns the highest epoch of the attempts in a scope in a pass of the loops around the scope; `None` without
/// an attempt.
pub(crate) async fn epoch_in_pass(
    engine: &Engine,
    run: &RunId,
    scope: &ScopePath,
    around: &[u32],
) -> Result<Option<u32>, RunError> {
    let mut scan = Scan { scope: Some(scope.clone()), ..Scan::of(run) };
    let mut highest = None;
    loop {
        let page = engine.store.scan(&scan).await?;
        let headers = page.records.iter().map(Record::header);
        let tries = headers.flat_map(|header| {
            let own = header.step.as_ref().map(|_| &header.at);
            own.into_iter().chain(header.started.iter().map(|start| &start.at))
        });
        let ours = tries.filter(|at| at.iteration.starts_with(around));
        highest = ours.map(|at| at.epoch).max().max(highest);
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(highest),
        }
    }
}

/// Returns whether a step has reopened scopes of the same kind since a fan-out, so that the scopes of the
/// earlier fan-out have continued as others.
pub(crate) async fn fanned_out_since(
    engine: &Engine,
    (run, scope): (&RunId, &ScopePath),
    entry: &FrontierEntry,
) -> Result<bool, RunError> {
    let Some(fan) = entry.open_fan() else { return Ok(false) };
    let scan = Scan {
        scope: Some(scope.clone()),
        seq_min: Some(fan.since + 1),
        step: Some(entry.step.to_string()),
        phase: Some("waiting"),
        ..Scan::of(run)
    };
    let page = engine.store.scan(&scan).await?;
    let opens = |phase: &Phase| if entry.hooks.is_some() { phase.opens_hooks() } else { phase.opens_work() };
    let is_it = |header: &Header| header.reason == Reason::Fork && opens(&header.phase);
    Ok(page.records.iter().any(|record| is_it(record.header())))
}

/// Loads a record, or the record of the same batch with its state.
pub(crate) async fn load_with_state(
    engine: &Engine,
    run: &RunId,
    scope: &ScopePath,
    seq: u64,
) -> Result<Record, RunError> {
    let named = engine.store.load(run, scope, seq).await?;
    if named.state_bytes().is_some() {
        return Ok(named);
    }
    let at = named.header().reference().to_string();
    let trimmed = || RunError::NoState { at: at.clone(), why: "retention dropped its state".to_owned() };
    if named.header().body.is_some() {
        return Err(trimmed());
    }
    let scan = Scan { scope: Some(scope.clone()), seq_min: Some(seq), ..Scan::of(run) };
    let page = engine.store.scan(&scan).await?;
    let carrier = page.records.iter().find(|record| record.header().body.is_some()).ok_or_else(trimmed)?;
    let record = engine.store.load(run, scope, carrier.header().seq).await?;
    if record.state_bytes().is_none() { Err(trimmed()) } else { Ok(record) }
}

/// Returns the record with the state after the end of a step: the record of the end, or a later record of the
/// batch without another end in between.
pub(crate) async fn with_state(engine: &Engine, then: Record) -> Result<Option<Record>, RunError> {
    if then.state_bytes().is_some() {
        return Ok(Some(then));
    }
    let header = then.header();
    let (run, scope) = (&header.run, &header.scope);
    let carrier = match load_with_state(engine, run, scope, header.seq).await {
        Err(RunError::NoState { .. } | RunError::Store(StoreError::Damaged { .. })) => return Ok(None),
        carrier => carrier?,
    };
    let (from, to) = (Some(header.seq + 1), Some(carrier.header().seq));
    let between = Scan { scope: Some(scope.clone()), seq_min: from, seq_max: to, ..Scan::of(run) };
    let between = engine.store.scan(&between).await?;
    let changes = |phase: &Phase| matches!(phase, Phase::Completed(_) | Phase::Skipped(_) | Phase::Restored);
    let keeps = |record: &Record| !changes(&record.header().phase);
    if between.records.iter().all(keeps) {
        return Ok(Some(carrier));
    }
    Ok(None)
}

/// Returns whether the record of an end was copied from another run: in a run, no step ends before the first
/// state.
pub(crate) async fn is_copied(store: &dyn Store, header: &Header) -> Result<bool, StoreError> {
    let scan = Scan {
        scope: Some(header.scope.clone()),
        seq_max: Some(header.seq.saturating_sub(1)),
        ..Scan::of(&header.run)
    };
    let has_ended = matches!(header.phase, Phase::Completed(_));
    if header.seq == 1 || !has_ended {
        return Ok(has_ended);
    }
    // Copies are in the first batch, at most a copy for each step.
    let before = store.scan(&scan).await?;
    let is_bare = |record: &Record| record.header().body.is_none();
    Ok(before.next.is_none() && before.damaged.is_empty() && before.records.iter().all(is_bare))
}
