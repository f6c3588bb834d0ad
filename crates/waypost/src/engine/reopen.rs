//! Steps of a chain that ran since a resume went back, compared with the earlier executions.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::StepId;
use crate::record::{Ahead, Header, Phase, Reason, Record};
use crate::shape::Shape;
use crate::store::{Scan, StoreError};

use super::alike::{opened_alike, was_last};
use super::begin::decode_state;
use super::passes::is_end;
use super::recheck::Known;
use super::redo::{done_before, is_wish, same_claims, with_state};
use super::snapshot::position_of;
use super::{Engine, Program, RunError, Spot};

/// Returns where a branch stood before it went back, if it did and has not come there again, for one that goes back to a
/// step once more. Where something that comes after that step came to something else meanwhile, that is what was made last:
/// nothing of what is ahead is used again.
pub(super) async fn still_ahead<P: Program>(
    engine: &Engine,
    program: &P,
    known: &Known,
    step: &StepId,
) -> Result<Option<Ahead>, RunError> {
    let header = known.record.header();
    let (Some(ahead), Some(shape)) = (known.position.ahead, program.shape().of_branch(&header.branch)) else {
        return Ok(None);
    };
    if ahead.changed || shape.place(step.as_str()).is_none() {
        return Ok(Some(ahead));
    }
    let done = done_since(engine, program, shape, &known.record, ahead).await?;
    let came = |done: BTreeMap<StepId, Came>| {
        done.into_iter().any(|(other, came)| other != *step && came != Came::Same)
    };
    let changed = done.is_none_or(came);
    Ok(Some(Ahead { changed, ..ahead }))
}

/// What a step that was done again came to, beside what it came to before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    /// It gave the same, and pinned the same.
    Same,
    /// It gave something else: that counts for those that need it, and those that read it.
    Otherwise,
    /// It may have left other files, which any step that comes after it may read.
    WithOtherFiles,
}

async fn done_since<P: Program>(
    engine: &Engine,
    program: &P,
    shape: &Shape,
    record: &Record,
    ahead: Ahead,
) -> Result<Option<BTreeMap<StepId, Came>>, RunError> {
    let header = record.header();
    // The one that went back may stand in a batch with others behind it, so that `since` is not the first.
    let seq_min = Some(ahead.seq + 1);
    let mut scan = Scan { branch: Some(header.branch.clone()), seq_min, ..Scan::of(&header.run) };
    let mut wanted: BTreeSet<StepId> = BTreeSet::new();
    // By step, its ends by the pass that they are of.
    let mut ended: BTreeMap<StepId, BTreeMap<Vec<u32>, Header>> = BTreeMap::new();
    loop {
        let page = engine.store.scan(&scan).await?;
        for found in page.records.iter().map(Record::header) {
            let Some(step) = &found.step else { continue };
            match &found.phase {
                Phase::Restored
                    if found.reason == Reason::Redo && found.about.is_some() && is_wish(found) =>
                {
                    if let Some(passes) = ended.get_mut(step) {
                        passes.retain(|pass, _| *pass < found.at.iteration);
                    }
                    wanted.insert(step.clone());
                }
                _ if is_end(found) => {
                    wanted.remove(step);
                    ended.entry(step.clone()).or_default().insert(found.at.iteration.clone(), found.clone());
                }
                _ => {}
            }
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => break,
        }
    }
    ended.retain(|step, _| !wanted.contains(step));
    let open = position_of(record)?.frontier;
    let mut done = BTreeMap::new();
    for (step, mut passes) in ended {
        let Some((_, last)) = passes.pop_last() else { continue };
        let mut came = came_to(engine, program, shape, (record, &last), ahead).await?;
        let is_over = open.iter().all(|entry| entry.step != step);
        if is_over && !was_last(engine.store.as_ref(), &last, ahead).await? {
            came = Came::WithOtherFiles;
        }
        for earlier in passes.values() {
            if left_the_same(engine, program, shape, earlier, ahead).await?.is_none() {
                came = Came::WithOtherFiles;
            }
        }
        done.insert(step, came);
    }
    Ok(Some(done))
}

/// Says what a step that has ended again came to, beside what it came to before.
async fn came_to<P: Program>(
    engine: &Engine,
    program: &P,
    shape: &Shape,
    (record, ended): (&Record, &Header),
    ahead: Ahead,
) -> Result<Came, RunError> {
    let Some((place, then)) = left_the_same(engine, program, shape, ended, ahead).await? else {
        return Ok(Came::WithOtherFiles);
    };
    let spot = Spot { branch: &ended.branch, level: shape.level(), place, step: &shape.steps()[place] };
    let is_same = gave_the_same(engine, program, (spot, shape), (record, ended), (then, ahead)).await?;
    Ok(if is_same { Came::Same } else { Came::Otherwise })
}

/// Returns with what record a step ended in the same pass before, if it has left by now what it had left then, as far as
/// that can be told: as evidence pins it.
async fn left_the_same<P: Program>(
    engine: &Engine,
    program: &P,
    shape: &Shape,
    ended: &Header,
    ahead: Ahead,
) -> Result<Option<(usize, Record)>, RunError> {
    let place = ended.step.as_ref().and_then(|step| shape.place(step.as_str()));
    let (Some(step), Some(place), Phase::Completed(_)) = (&ended.step, place, &ended.phase) else {
        return Ok(None);
    };
    let store = engine.store.as_ref();
    let pass = (step, ended.at.iteration.as_slice());
    let then = done_before(store, ended, pass, ahead.seq).await?;
    let Some((then, _)) = then.filter(|(_, pack)| same_claims(ended.evidence.as_ref(), pack.as_ref())) else {
        return Ok(None);
    };
    let is_alike = opened_alike(store, program.shape(), (then.header(), ended)).await?;
    Ok(is_alike.then_some((place, then)))
}

/// Returns the record at which a branch stood before it went back, in place of one whose state is not kept any more: where a step
/// had ended last with that one, the state there has what it gave.
async fn as_it_stood(engine: &Engine, then: &Record, ahead: Ahead) -> Result<Option<Record>, RunError> {
    let header = then.header();
    let stood = match engine.store.load(&header.run, &header.branch, ahead.seq).await {
        Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => return Ok(None),
        stood => stood?,
    };
    let settled = stood.position().ok().and_then(|position| {
        let settled = position.ledger.get(header.step.as_ref()?).copied();
        settled.map(|settled| settled.seq())
    });
    Ok(Some(stood).filter(|stood| stood.state_bytes().is_some() && settled == Some(header.seq)))
}

/// Says whether a step that has ended again gave what it gave `then`.
async fn gave_the_same<P: Program>(
    engine: &Engine,
    program: &P,
    (spot, shape): (Spot<'_>, &Shape),
    (record, ended): (&Record, &Header),
    (then, ahead): (Record, Ahead),
) -> Result<bool, RunError> {
    if let (Phase::Completed(before), Phase::Completed(now)) = (&then.header().phase, &ended.phase)
        && program.is_told_by(spot, before)
        && program.is_told_by(spot, now)
    {
        return Ok(before.outputs == now.outputs && before.exit_code == now.exit_code);
    }
    let kept = match with_state(engine, then.clone()).await? {
        None if program.keeps_apart() => as_it_stood(engine, &then, ahead).await?,
        kept => kept,
    };
    let (Some(then), Some(now)) = (kept, with_state(engine, record.clone()).await?) else {
        return Ok(false);
    };
    let gave = |record: &Record| {
        decode_state(program, shape.level(), record).map(|state| program.gave(spot, &state))
    };
    let (then, now) = (gave(&then)?, gave(&now)?);
    Ok(then.is_some() && then == now)
}
