//! Going back: to an older checkpoint, to a step, to the end.

use crate::id::{BranchPath, RunId, StepId};
use crate::record::{Header, Phase, Reason, Record, Status, Try, Wait, WaitKind};
use crate::shape::Shape;
use crate::store::{Scan, StoreExt as _};

use super::begin::Base;
use super::chain::Draft;
use super::snapshot::position_of;
use super::{Engine, ResumeFrom, RunError};

/// Goes back to an older record of the main branch, or to its end; returns what is written about it.
pub(super) async fn go_back(
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
            let stands = |record: &Record| stands_at(record.header(), step);
            let found = engine.store.find_back(&run, &BranchPath::main(), newest, &stands).await?;
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
    let main = BranchPath::main();
    let epoch = epochs(engine, &run, &main).await? + 1;
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
            Some(since) => fanned_out_since(engine, (&run, &main), &entry.step, since).await?,
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
    position.ahead = None;
    let at = position.frontier.first().map(|entry| entry.at.clone()).unwrap_or_default();
    let at = Try { attempt: 0, ..at };
    let about = step.cloned().or_else(|| position.frontier.first().map(|entry| entry.step.clone()));
    let reason = if step.is_some() { Reason::Redo } else { Reason::Rollback };
    (base.record, base.position) = (record, position);
    Ok(Draft::new(Phase::Restored, reason, about, at))
}

/// Says whether a record starts a step, or holds it in doubt right before it would have been started.
fn stands_at(header: &Header, step: &StepId) -> bool {
    let in_doubt = header.reason == Reason::Redo && matches!(header.phase, Phase::Interrupted { .. });
    header.started.iter().any(|start| start.step == *step) || (in_doubt && header.step.as_ref() == Some(step))
}

/// Returns the highest epoch that was ever on a branch, so that one more is new: what is done again has keys and
/// memos of its own.
///
/// The main branch may have a long history, and its newest record tells it. Of any other branch, which may have gone on
/// with the chain of an earlier one, the headers are read.
pub(super) async fn epochs(engine: &Engine, run: &RunId, branch: &BranchPath) -> Result<u32, RunError> {
    if branch.is_main()
        && let Ok(newest) = engine.store.newest(run, branch).await
        && let Ok(position) = newest.position()
    {
        return Ok(position.epoch_max);
    }
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
