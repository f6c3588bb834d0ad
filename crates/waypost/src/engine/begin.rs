//! How a session begins: a new run, a resume, a restart.

use crate::change::{self, ready};
use crate::id::{BranchPath, RunId};
use crate::lock::Holder;
use crate::plan::{Verdicts, plan};
use crate::record::{End, Flaw, FrontierEntry, Position, Reason, Record, SealedRun, Status, Try};
use crate::shape::Shape;
use crate::store::{
    Damage, FIRST_TOKEN, Lease, Page, Progress, Scan, ScanOrder, SignalKind, StoreError, StoreExt as _,
};

use super::chain::Chain;
use super::session::Session;
use super::snapshot::{Snapshot, position_of};
use super::{Adoption, Engine, Outcome, Program, ResumeOptions, RunError, SessionOptions};

/// Makes a run and works on it.
pub(super) async fn first<P: Program>(
    engine: &Engine,
    program: &P,
    run: &SealedRun,
    state: P::State,
    options: SessionOptions,
    holder: &Holder,
) -> Result<Outcome, RunError> {
    let shape = program.shape();
    let frontier = shape.roots().into_iter().map(|place| ready(shape.steps()[place].id.clone())).collect();
    let position = Position { frontier, ..Position::default() };
    let chain = Chain {
        run: run.record().run.clone(),
        branch: BranchPath::main(),
        token: FIRST_TOKEN,
        next: 1,
        prev: None,
        basis: None,
        repair: false,
        root: Some(run.digest()),
        resumed: false,
    };
    let mut session = Session::new(engine, program, chain, position, state, options)?;
    session.reason = Reason::Start;
    let status = session.create(run, holder).await?;
    session.work(status).await
}

/// Takes a run up where it stood.
pub(super) async fn resumed<P: Program>(
    engine: &Engine,
    program: &P,
    run: &RunId,
    options: ResumeOptions<P::State>,
    holder: &Holder,
) -> Result<Outcome, RunError> {
    engine.store.wait_while_dying(run).await?;
    // Read before the lease is held: a stop that is asked for from then on is meant for this session.
    let overtaken = stop_requests(engine, run).await?;
    let lease = engine.store.acquire(run, &BranchPath::main(), holder).await?;
    match prepare_resume(engine, program, &lease, options).await {
        Ok(Prepared::Session(mut session)) => {
            session.consumed = overtaken;
            session.continue_with(lease).await
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
    Idle(Box<Outcome>),
}

async fn prepare_resume<'a, P: Program>(
    engine: &'a Engine,
    program: &'a P,
    lease: &Lease,
    options: ResumeOptions<P::State>,
) -> Result<Prepared<'a, P>, RunError> {
    if let Some(state) = options.restart {
        let mut session = restart(engine, program, lease, state, options.session).await?;
        session.adopt = options.adopt.map(|adoption| adoption.definition);
        return Ok(Prepared::Session(Box::new(session)));
    }
    let snapshot = Snapshot::read(engine.store.as_ref(), lease.run()).await?;
    if snapshot.ended.is_some() {
        return idle(&snapshot, program.shape()).map(|outcome| Prepared::Idle(Box::new(outcome)));
    }
    let damaged: Vec<Damage> = snapshot.damaged().cloned().collect();
    if let Some(missing) = damaged.iter().find(|damage| damage.flaw == Flaw::Missing) {
        // Taken away, and perhaps only for now: what it held as finished is not done again unasked.
        let older = snapshot.newest().header().seq;
        return Err(StoreError::of_damage(missing.clone(), Some(older)).into());
    }
    for damage in &damaged {
        engine.store.quarantine(lease, damage).await?;
    }
    let newest = snapshot.newest();
    let head =
        snapshot.heads.iter().find(|head| head.record.header().branch.is_main()).expect("main is open");
    let shape = program.shape();
    let mut position = position_of(newest)?;
    let mut effective = snapshot.effective(engine.store.as_ref(), shape).await?;
    let adopted = adopt(&snapshot, shape, &position, options.adopt.as_ref())
        .map_err(|why| RunError::Changed { run: lease.run().clone(), why })?;
    if let Some(adopted) = adopted {
        let main = effective.iter_mut().find(|branch| branch.branch.is_main()).expect("main is open");
        main.position = adopted.clone();
        position = adopted;
    }
    let planned = plan(shape, &effective, &Verdicts::new(), engine.clock.now());
    let questions: Vec<_> = planned.questions().cloned().collect();
    if !questions.is_empty() {
        return Err(RunError::InDoubt { run: lease.run().clone(), questions });
    }
    let state = decode_state::<P>(newest)?;
    let header = newest.header();
    let chain = Chain {
        run: header.run.clone(),
        branch: BranchPath::main(),
        token: lease.token(),
        next: head.next,
        prev: Some(newest.digest()),
        basis: (head.next != header.seq + 1).then_some(header.seq),
        // Also where an earlier session moved the damage aside and died before its first commit.
        repair: head.next != header.seq + 1,
        root: None,
        resumed: true,
    };
    reopen(&mut position);
    let mut session = Session::new(engine, program, chain, position, state, options.session)?;
    session.repaired = damaged;
    session.lost = snapshot.entry.summary.summary.lost;
    session.adopt = options.adopt.map(|adoption| adoption.definition);
    Ok(Prepared::Session(Box::new(session)))
}

/// Carries the position over to the graph in hand, where that is not the one of the run.
fn adopt(
    snapshot: &Snapshot,
    shape: &Shape,
    position: &Position,
    adoption: Option<&Adoption>,
) -> Result<Option<Position>, String> {
    if let Some(adoption) = adoption {
        let carried = change::carry_over(&adoption.before, position, &snapshot.definition, shape);
        return carried.map(Some).map_err(|changes| {
            let steps: Vec<_> = changes.iter().map(|change| format!("`{}`", change.step)).collect();
            format!("it touches finished steps: {}", steps.join(", "))
        });
    }
    if shape.definition(None).steps == snapshot.definition.steps {
        return Ok(None);
    }
    Err("the steps differ from those it was made with, and nobody said to go on with them".to_owned())
}

/// Says that a branch that has ended needs nothing.
fn idle(snapshot: &Snapshot, shape: &Shape) -> Result<Outcome, RunError> {
    let newest = snapshot.newest();
    if newest.header().end == Some(End::Cancelled) {
        return Err(RunError::Cancelled(newest.header().run.clone()));
    }
    let total = shape.steps().len() as u64;
    Ok(Outcome {
        status: snapshot.entry.summary.summary.status,
        failed: None,
        stopped_by: None,
        idle: true,
        progress: Progress { done: total, total },
        repaired: Vec::new(),
        lost: 0,
    })
}

/// What a user's resume changes before it plans: cut steps may start again, and retry budgets begin anew.
fn reopen(position: &mut Position) {
    for entry in &mut position.frontier {
        match entry.status {
            Status::Started => entry.status = Status::Ready,
            Status::Failed => {
                entry.status = Status::Ready;
                entry.failures = 0;
                entry.wake_at = None;
            }
            Status::Ready | Status::Waiting => {}
        }
    }
}

fn decode_state<P: Program>(record: &Record) -> Result<P::State, RunError> {
    let at = || record.header().reference().to_string();
    let bytes = record
        .state_bytes()
        .ok_or_else(|| RunError::Deserialize { at: at(), why: "retention dropped it".to_owned() })?;
    serde_json::from_slice(bytes).map_err(|error| RunError::Deserialize { at: at(), why: error.to_string() })
}

/// Starts over on the same chain: nothing before counts, and nothing of it is removed.
async fn restart<'a, P: Program>(
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
    let shape = program.shape();
    let epoch = newest.map_or(0, |record| record.header().at.epoch) + 1;
    let root = |place: usize| {
        let at = Try { epoch, ..Try::default() };
        FrontierEntry { at, ..ready(shape.steps()[place].id.clone()) }
    };
    let position =
        Position { frontier: shape.roots().into_iter().map(root).collect(), ..Position::default() };
    let mut session = Session::new(engine, program, chain, position, state, options)?;
    session.reason = Reason::Redo;
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
