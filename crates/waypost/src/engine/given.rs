//! What a step was given before its run began where another stood: the other run tells it, for as long as it is there.
//!
//! ```text
//!   r@1 started a      r@2 completed a      r@3 completed b
//!   f@1 completed a, as in r@2      f@2 restored, as in r@3      f@3 completed c      a's evidence fails
//!   f@4 restored: as in r@1, with what f knows
//! ```
//!
//! A run that begins where another stood has copies of the records that still matter, without the states of then. Reading
//! only, and of the other run without its lease: what was committed there does not change.

use std::collections::BTreeMap;

use crate::id::RunId;
use crate::record::{Fan, FrozenItems, Header, Phase, Position, Record, Try};
use crate::store::{Scan, ScanOrder, Store, StoreError, StoreExt as _};

use super::back::load_with_state;
use super::carry::carried_name;
use super::recheck::Known;
use super::snapshot::position_of;
use super::{Engine, RunError};

/// What another run is asked for.
pub(super) enum Recalled<T> {
    /// It knows this.
    As(T),
    /// Nobody knows any more, for this reason.
    Not(String),
}

/// Returns the state that a step was given whose end was copied from another run, and the position with it, as it is in
/// this one.
pub(super) async fn given(
    engine: &Engine,
    known: &Known,
    copy: &Header,
) -> Result<Recalled<(Record, Position)>, RunError> {
    let store = engine.store.as_ref();
    let mut made = copy.clone();
    loop {
        made = match original(store, &made).await? {
            Recalled::As(made) => made.header().clone(),
            Recalled::Not(why) => return Ok(Recalled::Not(why)),
        };
        let starts = |record: &Record| starts(record.header(), &made);
        let Some(start) = store.find_back(&made.run, &made.branch, made.seq, &starts).await? else {
            // That run began where another one stood, too.
            continue;
        };
        let record = match load_with_state(engine, &made.run, &made.branch, start.header().seq).await {
            Err(RunError::NoState { .. } | RunError::Store(StoreError::Damaged { .. })) => {
                let at = start.header().reference();
                return Ok(Recalled::Not(format!(
                    "the state that it was given, at {at}, is not kept any more"
                )));
            }
            record => record?,
        };
        let position = as_here(store, known, (copy, &made), position_of(&record)?).await?;
        return Ok(Recalled::As((record, position)));
    }
}

/// Returns the record with which a step ended in the run that a record was copied from, if it is a copy.
pub(super) async fn ended(engine: &Engine, copy: &Header) -> Result<Option<Record>, RunError> {
    match original(engine.store.as_ref(), copy).await? {
        Recalled::As(record) => Ok(Some(record)),
        Recalled::Not(_) => Ok(None),
    }
}

/// Says whether a record starts the try whose end another one tells.
pub(super) fn starts(header: &Header, made: &Header) -> bool {
    let (iteration, epoch) = (&made.at.iteration, made.at.epoch);
    let is_it = |at: &Try| (&at.iteration, at.epoch) == (iteration, epoch);
    header.seq <= made.seq
        && header.started.iter().any(|start| Some(&start.step) == made.step.as_ref() && is_it(&start.at))
}

/// Finds the record that another one is a copy of.
async fn original(store: &dyn Store, copy: &Header) -> Result<Recalled<Record>, StoreError> {
    let entry = store.run(&copy.run).await?;
    let Some(parent) = entry.record.record().parent.as_ref() else {
        return Ok(Recalled::Not("where it was started is not recorded".to_owned()));
    };
    if !is_copied(store, copy).await? {
        return Ok(Recalled::Not("where it was started is not recorded".to_owned()));
    }
    let gone = |run: &RunId| {
        Ok(Recalled::Not(format!(
            "it was started in run {run}, from which this one began and which is not here"
        )))
    };
    match store.load(&parent.run, &parent.branch, parent.seq).await {
        Ok(record) if record.digest() == parent.digest => {}
        Ok(_) | Err(StoreError::NotFound { .. } | StoreError::Damaged { .. }) => return gone(&parent.run),
        Err(error) => return Err(error),
    }
    let mut scan = Scan {
        branch: Some(copy.branch.clone()),
        step: copy.step.as_ref().map(ToString::to_string),
        phase: Some("completed"),
        order: ScanOrder::NewestFirst,
        ..Scan::of(&parent.run)
    };
    loop {
        let page = match store.scan(&scan).await {
            Err(StoreError::NotFound { .. }) => return gone(&parent.run),
            page => page?,
        };
        let is_it = |record: &Record| is_the_same(record.header(), copy);
        if let Some(found) = page.records.into_iter().find(is_it) {
            let header = found.header();
            return store.load(&header.run, &header.branch, header.seq).await.map(Recalled::As);
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return gone(&parent.run),
        }
    }
}

/// Says whether a record that ends a step was written down again as its run began: no step can have ended before there
/// was a first state.
pub(super) async fn is_copied(store: &dyn Store, header: &Header) -> Result<bool, StoreError> {
    let scan = Scan {
        branch: Some(header.branch.clone()),
        seq_max: Some(header.seq.saturating_sub(1)),
        ..Scan::of(&header.run)
    };
    let has_ended = matches!(header.phase, Phase::Completed(_));
    if header.seq == 1 || !has_ended {
        return Ok(has_ended);
    }
    // What is copied is written at once, and no more than there are steps.
    let before = store.scan(&scan).await?;
    let is_bare = |record: &Record| record.header().body.is_none();
    Ok(before.next.is_none() && before.damaged.is_empty() && before.records.iter().all(is_bare))
}

/// Says whether two records tell the end of the same try, in two runs.
fn is_the_same(one: &Header, other: &Header) -> bool {
    (&one.step, &one.at, &one.phase) == (&other.step, &other.at, &other.phase)
}

/// Makes of a position of another run what it is in this one: what is finished is known by its copies, and branches are
/// those that came along.
async fn as_here(
    store: &dyn Store,
    known: &Known,
    (copy, made): (&Header, &Header),
    mut position: Position,
) -> Result<Position, RunError> {
    let mut ledger = std::mem::take(&mut position.ledger);
    let mut kept = BTreeMap::new();
    while let Some((step, there)) = ledger.pop_first() {
        let Some(here) = known.position.ledger.get(&step).filter(|here| here.seq() < copy.seq) else {
            continue;
        };
        let one = store.load(&copy.run, &copy.branch, here.seq()).await?;
        let other = store.load(&made.run, &made.branch, there.seq()).await?;
        if is_the_same(one.header(), other.header()) {
            kept.insert(step, *here);
        }
    }
    position.ledger = kept;
    position.origin = known.position.origin;
    for entry in &mut position.frontier {
        entry.back_to_work();
        let Some(fan) = entry.fan.take() else { continue };
        let Some(since) = copy.about.filter(|_| Some(&entry.step) == copy.step.as_ref()) else { continue };
        let items = fan.items.map(|items| FrozenItems { blob: carried_name(&items), ..items });
        let came = match &items {
            Some(items) if items.bytes > 0 => {
                !store.blobs().read(&copy.run, &items.blob, 0).await?.is_empty()
            }
            _ => true,
        };
        entry.fan = came.then_some(Fan { items, since, ..fan });
    }
    Ok(position)
}
