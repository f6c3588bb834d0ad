//! Going back: to an older checkpoint, to a step, to the end.

use crate::id::{BranchPath, RunId, StepId};
use crate::record::{FrontierEntry, Header, Phase, Reason, Record, Status, Try, WaitKind};
use crate::shape::Shape;
use crate::store::{Scan, StoreExt as _};

use super::begin::Base;
use super::chain::Draft;
use super::snapshot::position_of;
use super::{Engine, ResumeFrom, RunError};

/// Goes back to an older record of the main branch, or to its end; returns what is written about it.
///
/// Branches that were open then go on, or are joined, as they are now. They are opened anew where the record is from
/// before they were, or the step that opens them is to be done again, or a person changes the state that they began with.
pub(super) async fn go_back(
    engine: &Engine,
    shape: &Shape,
    base: &mut Base,
    (from, is_edited): (&ResumeFrom, bool),
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
            let opened = |record: &&Record| opens_own(shape, record.header(), step);
            let found = history.iter().find(opened);
            let found = found.or_else(|| history.iter().find(|record| stands_at(record.header(), step)));
            let why = || format!("step `{step}` has not been started in this run");
            let at = || format!("run {run}");
            let found = found.ok_or_else(|| RunError::NoState { at: at(), why: why() })?;
            (found.header().seq, Some(step))
        }
        ResumeFrom::Unknown(name) => return Err(RunError::UnknownStep(name.clone())),
        ResumeFrom::End => {
            base.position.frontier.clear();
            base.position.ahead = None;
            return Ok(Draft::new(Phase::Restored, Reason::Manual, None, Try::default()));
        }
    };
    let record = load_with_state(engine, &run, &BranchPath::main(), seq).await?;
    let mut position = position_of(&record)?;
    if let Some(step) = step.filter(|step| !position.frontier.iter().any(|entry| entry.step == **step)) {
        // Its start shared a record with what came after it, as a checkpoint was lost.
        let why = format!("the state that step `{step}` began with was not kept");
        return Err(RunError::NoState { at: format!("{run}@{seq}"), why });
    }
    let epoch = epochs(engine, &run, &BranchPath::main()).await? + 1;
    for entry in &mut position.frontier {
        let is_named = step == Some(&entry.step);
        begin_again(engine, &run, entry, Again { seq, epoch, is_named, is_edited }).await?;
    }
    position.ahead = None;
    let at = position.frontier.first().map(|entry| entry.at.clone()).unwrap_or_default();
    let at = Try { attempt: 0, ..at };
    let about = step.cloned().or_else(|| position.frontier.first().map(|entry| entry.step.clone()));
    let reason = if step.is_some() { Reason::Redo } else { Reason::Rollback };
    (base.record, base.position) = (record, position);
    Ok(Draft::new(Phase::Restored, reason, about, at))
}

/// How a step of a position that holds again begins.
#[derive(Debug, Clone, Copy)]
struct Again {
    /// The record that was gone back to.
    seq: u64,
    epoch: u32,
    /// It is the step that a person wants to run again.
    is_named: bool,
    /// A person changes the state.
    is_edited: bool,
}

/// Takes a step of the main branch back to where it may start, or goes on waiting for branches that are as they were.
async fn begin_again(
    engine: &Engine,
    run: &RunId,
    entry: &mut FrontierEntry,
    again: Again,
) -> Result<(), RunError> {
    entry.at.epoch = again.epoch;
    (entry.memos, entry.failures, entry.passed) = (0, 0, false);
    let waits = |on: fn(&WaitKind) -> bool| entry.waits.iter().any(|wait| on(&wait.on));
    // A question of then was perhaps answered since, and its answer taken: it is asked anew.
    let asks = waits(|on| matches!(on, WaitKind::Answer | WaitKind::Signal(_) | WaitKind::Until(_)));
    let begins_anew = waits(|on| *on == WaitKind::Children) && (again.is_edited || again.is_named);
    let is_left = match entry.fan.as_ref().map(|fan| fan.since) {
        Some(since) if since > again.seq || begins_anew => true,
        Some(since) => fanned_out_since(engine, (run, &BranchPath::main()), &entry.step, since).await?,
        None => false,
    };
    if is_left {
        entry.fan = None;
    }
    if entry.status == Status::Started || again.is_named || is_left || asks {
        entry.status = Status::Ready;
        entry.at.attempt = 0;
        entry.waits.clear();
    }
    if entry.status == Status::Ready {
        entry.wake_at = None;
    }
    Ok(())
}

/// Says whether with a record a step opens branches of its own, which belong to it as its work does.
fn opens_own(shape: &Shape, header: &Header, step: &StepId) -> bool {
    let children = shape.step(step.as_str()).and_then(|step| step.children.as_ref());
    let waits = match &header.phase {
        Phase::Waiting(waits) => waits.iter().any(|wait| wait.on == WaitKind::Children),
        _ => false,
    };
    waits && header.step.as_ref() == Some(step) && children.is_some_and(|children| children.name == *step)
}

/// Says whether a record starts a step, or holds it in doubt right before it would have been started.
fn stands_at(header: &Header, step: &StepId) -> bool {
    let in_doubt = header.reason == Reason::Redo && matches!(header.phase, Phase::Interrupted { .. });
    header.started.iter().any(|start| start.step == *step) || (in_doubt && header.step.as_ref() == Some(step))
}

/// Returns the highest epoch that was ever on a branch, so that one more is new: what is done again has keys and
/// memos of its own. Reads the branch's headers.
pub(super) async fn epochs(engine: &Engine, run: &RunId, branch: &BranchPath) -> Result<u32, RunError> {
    let mut scan = Scan { branch: Some(branch.clone()), ..Scan::of(run) };
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

/// Says whether a step of a branch has opened branches again since that record: then those of the earlier
/// fan-out have gone on as others.
pub(super) async fn fanned_out_since(
    engine: &Engine,
    (run, branch): (&RunId, &BranchPath),
    step: &StepId,
    since: u64,
) -> Result<bool, RunError> {
    let scan = Scan {
        branch: Some(branch.clone()),
        seq_min: Some(since + 1),
        step: Some(step.to_string()),
        phase: Some("waiting"),
        ..Scan::of(run)
    };
    let page = engine.store.scan(&scan).await?;
    Ok(page.records.iter().any(|record| record.header().reason == Reason::Fork))
}

/// Loads a record, or the one of the same batch that carries its state.
pub(super) async fn load_with_state(
    engine: &Engine,
    run: &RunId,
    branch: &BranchPath,
    seq: u64,
) -> Result<Record, RunError> {
    let named = engine.store.load(run, branch, seq).await?;
    if named.state_bytes().is_some() {
        return Ok(named);
    }
    let at = named.header().reference().to_string();
    let trimmed = || RunError::NoState { at: at.clone(), why: "retention dropped its state".to_owned() };
    if named.header().body.is_some() {
        return Err(trimmed());
    }
    let scan = Scan { branch: Some(branch.clone()), seq_min: Some(seq), ..Scan::of(run) };
    let page = engine.store.scan(&scan).await?;
    let carrier = page.records.iter().find(|record| record.header().body.is_some()).ok_or_else(trimmed)?;
    let record = engine.store.load(run, branch, carrier.header().seq).await?;
    if record.state_bytes().is_none() { Err(trimmed()) } else { Ok(record) }
}
