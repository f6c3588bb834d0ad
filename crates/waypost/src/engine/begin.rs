//! How a session begins: a new run, a resume, a restart, a step back.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::change::{self, Change};
use crate::id::{BranchPath, RunId, StepId};
use crate::lock::Holder;
use crate::plan::{Verdicts, plan};
use crate::record::{
    Definition, End, Flaw, FrontierEntry, Phase, Position, Reason, Record, SealedRun, Status, Try, Wait,
    WaitKind,
};
use crate::shape::Shape;
use crate::store::{
    Damage, Head, Lease, Page, Progress, Scan, ScanOrder, SignalKind, StoreError, StoreExt as _,
};

use super::branches;
use super::chain::{Chain, Draft};
use super::line::{Line, MAIN};
use super::schedule::BEFORE;
use super::session::Session;
use super::snapshot::{Snapshot, position_of};
use super::{
    Adoption, Engine, OnChange, OnDamage, Outcome, Program, ResumeFrom, ResumeOptions, RunError,
    SessionOptions, StateError, Then, Waiting,
};

/// Makes a run and works on it.
pub(super) async fn first<P: Program>(
    engine: &Engine,
    program: &P,
    run: &SealedRun,
    state: P::State,
    options: SessionOptions,
    holder: &Holder,
) -> Result<Outcome<P::State>, RunError> {
    let chain = Chain::first(run);
    let mut main = Line::new(chain, program.shape(), first_position(program.shape(), 0), state);
    main.reason = Reason::Start;
    let mut session = Session::new(engine, program, main, options)?;
    session.config = Arc::new(run.record().config.clone());
    let status = session.create(run, holder).await?;
    session.work(status).await
}

/// The position of a run that has not begun.
pub(super) fn first_position(shape: &Shape, epoch: u32) -> Position {
    let entry = |place: usize| {
        let mut entry = FrontierEntry::ready(shape.steps()[place].id.clone());
        entry.at.iteration = shape.first_iteration(place, &[]);
        entry.at.epoch = epoch;
        entry
    };
    Position { frontier: shape.roots().into_iter().map(entry).collect(), ..Position::default() }
}

/// Takes a run up where it stood.
pub(super) async fn resumed<P: Program>(
    engine: &Engine,
    program: &P,
    run: &RunId,
    options: ResumeOptions<P::State>,
    holder: &Holder,
) -> Result<Outcome<P::State>, RunError> {
    engine.store.wait_while_dying(run).await?;
    // Read before the lease is held: a stop that is asked for from then on is meant for this session.
    let overtaken = stop_requests(engine, run).await?;
    let lease = engine.store.acquire(run, &BranchPath::main(), holder).await?;
    let then = options.then;
    match prepare_resume(engine, program, &lease, options).await {
        Ok(Prepared::Session(mut session)) => {
            session.consumed = overtaken;
            match then {
                Then::GoOn => session.continue_with(lease).await,
                Then::Stop => session.write_and_stop(lease).await,
            }
        }
        Ok(Prepared::Idle(outcome)) => {
            engine.store.release(lease, None).await?;
            Ok(*outcome)
        }
        Err(error) => {
            // The lease is given back as well as can be; the error that matters is the one above.
            let _ = engine.store.release(lease, None).await;
            Err(error)
        }
    }
}

/// Returns the ids of requests to stop that no session took in: the resume takes them back.
async fn stop_requests(engine: &Engine, run: &RunId) -> Result<Vec<String>, RunError> {
    let signals = engine.store.signals(run).await?;
    Ok(signals.into_iter().filter(|signal| signal.kind == SignalKind::Stop).map(|signal| signal.id).collect())
}

enum Prepared<'a, P: Program> {
    Session(Box<Session<'a, P>>),
    Idle(Box<Outcome<P::State>>),
}

/// What a resume begins with.
struct Base {
    snapshot: Snapshot,
    /// The record whose state and position are gone on with.
    record: Record,
    position: Position,
    /// The seq of the next record.
    next: u64,
    /// Newer records that were damaged.
    damaged: Vec<Damage>,
}

async fn prepare_resume<'a, P: Program>(
    engine: &'a Engine,
    program: &'a P,
    lease: &Lease,
    options: ResumeOptions<P::State>,
) -> Result<Prepared<'a, P>, RunError> {
    let ResumeOptions { session: session_options, adopt, restart, from, edit, validate, config, .. } =
        options;
    let adoption = adopt.as_ref().map(|adoption| adoption.definition.clone());
    if let Some(state) = restart {
        let mut session = restarted(engine, program, lease, state, session_options).await?;
        session.adopt = adoption;
        return Ok(Prepared::Session(Box::new(session)));
    }
    let snapshot = match Snapshot::main(engine.store.as_ref(), lease.run()).await {
        Err(StoreError::Damaged { older: None, .. }) if matches!(options.on_damage, OnDamage::Restart(_)) => {
            let OnDamage::Restart(state) = options.on_damage else { unreachable!("it was just matched") };
            let session = restarted(engine, program, lease, state, session_options).await?;
            return Ok(Prepared::Session(Box::new(session)));
        }
        snapshot => snapshot?,
    };
    let stops_at_damage = matches!(options.on_damage, OnDamage::Stop);
    // What somebody took away is missing perhaps only for now: what it held as finished is not done again unasked.
    let stops = |damage: &&Damage| stops_at_damage || (damage.flaw == Flaw::Missing && from.is_none());
    if let Some(damage) = snapshot.damaged().find(stops) {
        let older = Some(snapshot.newest().header().seq);
        return Err(StoreError::of_damage(damage.clone(), older).into());
    }
    let changes_nothing = from.is_none() && edit.is_none();
    if snapshot.ended.is_some() && changes_nothing {
        return idle(&snapshot, program).map(|outcome| Prepared::Idle(Box::new(outcome)));
    }
    if snapshot.newest().header().end == Some(End::Cancelled) {
        return Err(RunError::Cancelled(lease.run().clone()));
    }
    let mut base = find_base(engine, lease, snapshot).await?;
    let newest_seq = base.record.header().seq;
    let known = adopt_change(&base, program.shape(), adopt.as_ref(), options.on_change)
        .map_err(|why| RunError::Changed { run: lease.run().clone(), why })?;
    if let Some(known) = known {
        base.position = known;
    }
    let mut draft = None;
    if let Some(from) = &from {
        draft = Some(go_back(engine, program.shape(), &mut base, from).await?);
    } else {
        let questions = questions(engine, program, &base).await?;
        if !questions.is_empty() {
            return Err(RunError::InDoubt { run: lease.run().clone(), questions });
        }
    }
    let at = base.record.header().reference().to_string();
    let mut state = decode_state(program, program.shape().level(), &base.record)?;
    if let Some(edit) = edit {
        (edit.0)(&mut state);
        draft.get_or_insert_with(|| Draft::new(Phase::Restored, Reason::Manual, None, Try::default()));
    }
    if let Some(validate) = validate {
        (validate.0)(&state).map_err(|why| RunError::Rejected { at, why })?;
    }
    let header = base.record.header();
    let chain = Chain {
        run: header.run.clone(),
        branch: BranchPath::main(),
        token: lease.token(),
        next: base.next,
        prev: Some(base.snapshot.newest().digest()),
        basis: (base.next != header.seq + 1).then_some(header.seq),
        // Also where an earlier session moved the damage aside and died before its first commit.
        repair: base.next != newest_seq + 1,
        root: None,
        resumed: true,
    };
    let mut in_force = engine.config_of(&base.snapshot.entry, &base.position).await?;
    let is_laid_over = !config.is_empty();
    merge(&mut in_force, config);
    let is_repeated = base.next != header.seq + 1;
    let mut main = Line::new(chain, program.shape(), base.position, state);
    main.position.revisited |= is_repeated;
    if options.then == Then::GoOn {
        reopen(&mut main);
    }
    if is_laid_over {
        let draft =
            draft.get_or_insert_with(|| Draft::new(Phase::Restored, Reason::Manual, None, Try::default()));
        draft.config = Some(in_force.clone());
        main.position.config = Some(main.chain.next);
    }
    let written = draft.is_some();
    main.drafts.extend(draft);
    for damage in &base.damaged {
        engine.store.quarantine(lease, damage).await?;
    }
    let mut session = Session::new(engine, program, main, session_options)?;
    session.config = Arc::new(in_force);
    session.repaired = base.damaged;
    session.lost = base.snapshot.entry.summary.summary.lost;
    session.adopt = adoption.or_else(|| {
        (options.on_change == OnChange::Adopt && is_changed(&base.snapshot, program.shape()))
            .then(|| program.shape().definition(None))
    });
    if written {
        session.mark_dirty(MAIN);
    }
    let questions = branches::take_up(&mut session, lease).await?;
    if from.is_none() && !questions.is_empty() {
        return Err(RunError::InDoubt { run: lease.run().clone(), questions });
    }
    Ok(Prepared::Session(Box::new(session)))
}

/// Reads what the run stands at.
async fn find_base(engine: &Engine, lease: &Lease, snapshot: Snapshot) -> Result<Base, RunError> {
    let newest = snapshot.newest().clone();
    let position = position_of(&newest)?;
    let head = snapshot.heads.iter().find(|head| head.record.header().branch.is_main());
    let (next, damaged) = match head {
        Some(Head { next, damaged, .. }) => (*next, damaged.clone()),
        None => (newest_given(engine, lease.run()).await.max(newest.header().seq) + 1, Vec::new()),
    };
    Ok(Base { snapshot, record: newest, position, next, damaged })
}

/// Asks what a person must decide.
async fn questions<P: Program>(
    engine: &Engine,
    program: &P,
    base: &Base,
) -> Result<Vec<crate::plan::Decision>, RunError> {
    let shape = program.shape();
    let mut effective = base.snapshot.effective(engine.store.as_ref(), shape).await?;
    if let Some(main) = effective.iter_mut().find(|branch| branch.branch.is_main()) {
        main.position = base.position.clone();
    }
    let planned = plan(shape, &effective, &Verdicts::new(), engine.clock.now());
    Ok(planned.questions().cloned().collect())
}

/// Says whether the run was made with other steps, or steps that do something else.
fn is_changed(snapshot: &Snapshot, shape: &Shape) -> bool {
    shape.definition(None).steps != snapshot.definition.steps
}

/// Carries the position over to the shape in hand, where that is not the one of the run.
fn adopt_change(
    base: &Base,
    shape: &Shape,
    adoption: Option<&Adoption>,
    on_change: OnChange,
) -> Result<Option<Position>, String> {
    if let Some(adoption) = adoption {
        let carried = change::carry_over(&adoption.before, &base.position, &base.snapshot.definition, shape);
        return carried.map(Some).map_err(|changes| {
            let steps: Vec<_> = changes.iter().map(|change| format!("`{}`", change.step)).collect();
            format!("it touches finished steps: {}", steps.join(", "))
        });
    }
    check_fit(shape, &base.position, &base.snapshot.definition, on_change).map(|()| None)
}

/// Makes sure that a position of one definition can be gone on with in a shape: they are the same, or that is wanted and
/// the shape has the steps that the position stands at.
pub(super) fn check_fit(
    shape: &Shape,
    position: &Position,
    definition: &Definition,
    on_change: OnChange,
) -> Result<(), String> {
    if shape.definition(None).steps == definition.steps {
        return Ok(());
    }
    if on_change == OnChange::Adopt {
        let gone = position.frontier.iter().find(|entry| shape.place(entry.step.as_str()).is_none());
        return match gone {
            None => Ok(()),
            Some(entry) => Err(format!("it stands at step `{}`, which the graph does not have", entry.step)),
        };
    }
    let changes = change::changes(shape, position, definition, shape);
    let listed: Vec<_> = changes.iter().map(Change::to_string).collect();
    Err(format!("{}, and nobody said to go on with that", listed.join(", ")))
}

/// Goes back to an older record of the main branch, or to its end; returns what is written about it.
async fn go_back(
    engine: &Engine,
    shape: &Shape,
    base: &mut Base,
    from: &ResumeFrom,
) -> Result<Draft, RunError> {
    let run = base.record.header().run.clone();
    let (seq, step) = match from {
        ResumeFrom::Checkpoint(seq) => (*seq, None),
        ResumeFrom::Step(step) if shape.place(step.as_str()).is_none() => {
            return Err(RunError::InvalidStep(step.clone()));
        }
        ResumeFrom::Step(step) => {
            let newest = base.snapshot.newest().header().seq;
            let history = engine.store.history(&run, &BranchPath::main(), newest).await?;
            let starts = |record: &&Record| record.header().started.iter().any(|start| start.step == *step);
            let found = history.iter().find(starts);
            let why = || format!("step `{step}` has not been started in this run");
            let at = || format!("run {run}");
            let found = found.ok_or_else(|| RunError::NoState { at: at(), why: why() })?;
            (found.header().seq, Some(step))
        }
        ResumeFrom::Unknown(name) => return Err(RunError::UnknownStep(name.clone())),
        ResumeFrom::End => {
            base.position.frontier.clear();
            return Ok(Draft::new(Phase::Restored, Reason::Manual, None, Try::default()));
        }
    };
    let record = load_with_state(engine, &run, seq).await?;
    let mut position = position_of(&record)?;
    if let Some(step) = step.filter(|step| !position.frontier.iter().any(|entry| entry.step == **step)) {
        // Its start shared a record with what came after it, as a checkpoint was lost.
        let why = format!("the state that step `{step}` began with was not kept");
        return Err(RunError::NoState { at: format!("{run}@{seq}"), why });
    }
    let epoch = epochs(engine, &run).await? + 1;
    for entry in &mut position.frontier {
        entry.at.epoch = epoch;
        entry.memos = 0;
        entry.failures = 0;
        let is_named = step == Some(&entry.step);
        // A question of then was perhaps answered since, and its answer taken: it is asked anew.
        let asks =
            |wait: &Wait| matches!(wait.on, WaitKind::Answer | WaitKind::Signal(_) | WaitKind::Until(_));
        let since = entry.fan.as_ref().map(|fan| fan.since);
        let is_left = match since {
            Some(since) => fanned_out_since(engine, &run, &entry.step, since).await?,
            None => false,
        };
        if is_left {
            entry.fan = None;
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
    let at = position.frontier.first().map(|entry| entry.at.clone()).unwrap_or_default();
    let at = Try { attempt: 0, ..at };
    let about = step.cloned().or_else(|| position.frontier.first().map(|entry| entry.step.clone()));
    let reason = if step.is_some() { Reason::Redo } else { Reason::Rollback };
    (base.record, base.position) = (record, position);
    Ok(Draft::new(Phase::Restored, reason, about, at))
}

/// Returns the highest epoch that was ever on the main branch, so that one more is new: what is done again has keys and
/// memos of its own. Reads the branch's headers.
async fn epochs(engine: &Engine, run: &RunId) -> Result<u32, RunError> {
    let mut scan = Scan { branch: Some(BranchPath::main()), ..Scan::of(run) };
    let mut highest = 0;
    loop {
        let page = engine.store.scan(&scan).await?;
        let started = |record: &Record| record.header().started.iter().map(|start| start.at.epoch).max();
        let epochs =
            page.records.iter().map(|record| record.header().at.epoch.max(started(record).unwrap_or(0)));
        highest = epochs.max().unwrap_or(0).max(highest);
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(highest),
        }
    }
}

/// Says whether a step of the main branch has opened branches again since that record: then those of the earlier
/// fan-out have gone on as others.
async fn fanned_out_since(engine: &Engine, run: &RunId, step: &StepId, since: u64) -> Result<bool, RunError> {
    let scan = Scan {
        branch: Some(BranchPath::main()),
        seq_min: Some(since + 1),
        step: Some(step.to_string()),
        phase: Some("waiting"),
        ..Scan::of(run)
    };
    let page = engine.store.scan(&scan).await?;
    Ok(page.records.iter().any(|record| record.header().reason == Reason::Fork))
}

/// Loads a record of the main branch, or the one of the same batch that carries its state.
pub(super) async fn load_with_state(engine: &Engine, run: &RunId, seq: u64) -> Result<Record, RunError> {
    let main = BranchPath::main();
    let named = engine.store.load(run, &main, seq).await?;
    if named.state_bytes().is_some() {
        return Ok(named);
    }
    let at = named.header().reference().to_string();
    let trimmed = || RunError::NoState { at: at.clone(), why: "retention dropped its state".to_owned() };
    if named.header().body.is_some() {
        return Err(trimmed());
    }
    let scan = Scan { branch: Some(main.clone()), seq_min: Some(seq), ..Scan::of(run) };
    let page = engine.store.scan(&scan).await?;
    let carrier = page.records.iter().find(|record| record.header().body.is_some()).ok_or_else(trimmed)?;
    let record = engine.store.load(run, &main, carrier.header().seq).await?;
    if record.state_bytes().is_none() { Err(trimmed()) } else { Ok(record) }
}

/// Lays one map over another, maps in them likewise; anything else replaces what was there.
fn merge(config: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match (config.get_mut(&key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => merge(below, above),
            (_, value) => drop(config.insert(key, value)),
        }
    }
}

/// Says that a run that has ended needs nothing.
fn idle<P: Program>(snapshot: &Snapshot, program: &P) -> Result<Outcome<P::State>, RunError> {
    let newest = snapshot.newest();
    if newest.header().end == Some(End::Cancelled) {
        return Err(RunError::Cancelled(newest.header().run.clone()));
    }
    let total = program.shape().steps().len() as u64;
    let waiting = Waiting::of_position(&BranchPath::main(), &position_of(newest)?);
    Ok(Outcome {
        run: newest.header().run.clone(),
        status: snapshot.entry.summary.summary.status,
        state: decode_state(program, program.shape().level(), newest)?,
        at: newest.header().seq,
        waiting,
        failed: None,
        stopped_by: None,
        idle: true,
        progress: Progress { done: total, total },
        repaired: Vec::new(),
        lost: 0,
    })
}

/// What a user's resume changes before it plans: cut steps may start again, retry budgets begin anew, and what was held
/// goes on.
pub(super) fn reopen<S>(line: &mut Line<'_, S>) {
    let shape = line.shape;
    for entry in &mut line.position.frontier {
        match entry.status {
            Status::Started => {
                entry.status = Status::Ready;
                line.cut.push(entry.step.clone());
            }
            Status::Failed => {
                entry.status = Status::Ready;
                entry.failures = 0;
                entry.wake_at = None;
            }
            Status::Waiting if entry.waits.iter().any(|wait| wait.on == WaitKind::Resume) => {
                entry.status = Status::Ready;
                // A hold after the step before does not let it pass a hold before itself.
                if entry.waits.iter().any(|wait| wait.key == BEFORE) {
                    line.passed.extend(shape.place(entry.step.as_str()));
                }
                entry.waits.clear();
            }
            Status::Ready | Status::Waiting => {}
        }
    }
}

/// Reads the state of a record as the program of its shape understands it.
pub(super) fn decode_state<P: Program>(
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

/// Starts over on the same chain: nothing before counts, and nothing of it is removed.
async fn restarted<'a, P: Program>(
    engine: &'a Engine,
    program: &'a P,
    lease: &Lease,
    state: P::State,
    options: SessionOptions,
) -> Result<Session<'a, P>, RunError> {
    let scan = Scan {
        branch: Some(BranchPath::main()),
        order: ScanOrder::NewestFirst,
        limit: 1,
        ..Scan::of(lease.run())
    };
    let found = engine.store.scan(&scan).await?;
    let given = newest_given(engine, lease.run()).await;
    for damage in &found.damaged {
        engine.store.quarantine(lease, damage).await?;
    }
    let newest = found.records.first();
    let seq = newest.map_or(0, |record| record.header().seq);
    let seqs = found.damaged.iter().map(|damage| damage.seq).chain([seq]);
    let next = seqs.max().unwrap_or(0).max(given) + 1;
    let chain = Chain {
        run: lease.run().clone(),
        branch: BranchPath::main(),
        token: lease.token(),
        next,
        prev: newest.map(Record::digest),
        basis: Some(0),
        repair: next != seq + 1 || newest.is_none(),
        root: None,
        resumed: true,
    };
    let epoch = epochs(engine, lease.run()).await? + 1;
    let mut main = Line::new(chain, program.shape(), first_position(program.shape(), epoch), state);
    main.reason = Reason::Redo;
    main.position.revisited = true;
    let mut session = Session::new(engine, program, main, options)?;
    session.repaired = found.damaged;
    Ok(session)
}

/// Returns the highest seq that the main branch ever gave, quarantine included, as far as a head tells; else 0.
async fn newest_given(engine: &Engine, run: &RunId) -> u64 {
    let heads = engine.store.heads(run, &Page { limit: 1, ..Page::default() }).await;
    let heads = heads.map(|found| found.heads).unwrap_or_default();
    let main = heads.iter().find(|head| head.record.header().branch.is_main());
    main.map_or(0, |head| head.next - 1)
}
