//! Ends of child branches in force: the record with which a branch ended for a given fan-out or pass.
//!
//! ```text
//!   g1 g2 g3            the passes of a group
//!   g1 g2 g3 | g2 g3    the second pass was rerun, and the third followed: the older g2 and g3 are out of force
//!   g1 g2 g3 | g2       the rerun second pass was the last: g3 is out of force
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::id::{BranchPath, StepId};
use crate::plan::Broken;
use crate::record::{Header, Phase, Position, Record};
use crate::shape::Shape;
use crate::store::{Scan, ScanOrder, Store, StoreError, StoreExt as _};

use super::RunError;
use super::inspect::position_of;
use super::reruns::opener_of;
use super::trust::{Branches, Wanted};

/// Returns the newest record of a branch that is of a fan-out: it may have been opened again since by a later one. Where the
/// state is gone that tells of which it was, its pass does, if that is given.
pub(super) async fn life_of(
    store: &dyn Store,
    newest: &Record,
    (since, pass): (u64, &[u32]),
) -> Result<Option<Record>, StoreError> {
    if has_state(newest) && position_of(newest)?.origin == Some(since) {
        return Ok(Some(newest.clone()));
    }
    let is_of = |ended: &Header, origin: Option<Option<u64>>| match origin {
        Some(origin) => origin == Some(since),
        None => !pass.is_empty() && ended.at.iteration.starts_with(pass),
    };
    find_end(store, newest.header(), &is_of).await
}

/// Finds the newest record with which a branch ended that `is_it`, whatever it went back behind since: by its header, and by
/// what it says that opened the branch, if its state is kept.
async fn find_end(
    store: &dyn Store,
    head: &Header,
    is_it: &(dyn Fn(&Header, Option<Option<u64>>) -> bool + Sync),
) -> Result<Option<Record>, StoreError> {
    let order = ScanOrder::NewestFirst;
    let mut scan = Scan { branch: Some(head.branch.clone()), order, ..Scan::of(&head.run) };
    loop {
        let page = store.scan(&scan).await?;
        for ended in page.records.iter().map(Record::header).filter(|header| header.end.is_some()) {
            let record = store.load(&head.run, &head.branch, ended.seq).await?;
            let origin = if has_state(&record) { Some(position_of(&record)?.origin) } else { None };
            if is_it(ended, origin) {
                return Ok(Some(record));
            }
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(None),
        }
    }
}

/// The ends of steps that joined branches, in all passes that count, the newest first; by branch and step.
pub(super) type Joins = HashMap<(BranchPath, StepId), Vec<Header>>;

/// Returns where a branch stands in the pass in which it is waited for, or was joined; if it has not begun that, or is not
/// among those of it, at its end in the newest before that counts. A run that went back has left behind what came since.
/// Where the state of that end is not kept any more, the record has none. With it comes the record of the fan-out that it is
/// of.
pub(super) async fn in_pass(
    store: &dyn Store,
    root: &Shape,
    (branches, joins): (&Branches, &mut Joins),
    (newest, wanted): (Record, Wanted),
) -> Result<Option<(Record, u64)>, RunError> {
    if let Some(stands) = life_of(store, &newest, (wanted.origin, &[])).await? {
        return Ok(Some((stands, wanted.origin)));
    }
    let branch = &newest.header().branch;
    let above = branch.parent().and_then(|above| branches.get(&(above.depth(), above)));
    let Some((above, step)) = above.zip(opener_of(root, branch)) else { return Ok(None) };
    let Some(since) = above.joined.get(&step).copied() else { return Ok(None) };
    if since != wanted.origin
        && let Some(stands) = life_of(store, &newest, (since, &[])).await?
    {
        return Ok(Some((stands, since)));
    }
    let header = above.record.header();
    let key = (header.branch.clone(), step);
    if !joins.contains_key(&key) {
        let found = joins_of(store, root, (header, &above.position), &key.1).await?;
        joins.insert(key.clone(), found);
    }
    Ok(end_among(store, &newest, &joins[&key]).await?)
}

/// Lists the ends of a step that joined branches, in all passes that count.
async fn joins_of(
    store: &dyn Store,
    root: &Shape,
    (header, position): (&Header, &Position),
    step: &StepId,
) -> Result<Vec<Header>, StoreError> {
    let Some(shape) = root.of_branch(&header.branch) else { return Ok(Vec::new()) };
    let history = store.history(&header.run, &header.branch, header.seq).await?;
    let ends = counting_ends(shape, position, &history).into_iter();
    Ok(ends.filter(|end| end.step.as_ref() == Some(step) && end.about.is_some()).cloned().collect())
}

/// Returns the newest record with which a branch ended that one of these joined. Where the state is gone that tells of which
/// fan-out it was, it is one of the same pass that was there by then.
async fn end_among(
    store: &dyn Store,
    newest: &Record,
    joins: &[Header],
) -> Result<Option<(Record, u64)>, StoreError> {
    let join_of = |ended: &Header, origin: Option<Option<u64>>| {
        let is_joined = |join: &&Header| match origin {
            Some(origin) => join.about == origin,
            None => ended.resume <= join.resume && ended.at.iteration.starts_with(&join.at.iteration),
        };
        joins.iter().find(is_joined).and_then(|join| join.about)
    };
    let is_joined = |ended: &Header, origin: Option<Option<u64>>| join_of(ended, origin).is_some();
    let Some(record) = find_end(store, newest.header(), &is_joined).await? else { return Ok(None) };
    let origin = if has_state(&record) { Some(position_of(&record)?.origin) } else { None };
    Ok(join_of(record.header(), origin).map(|since| (record, since)))
}

/// Says whether the state of a record is kept, and with it where its branch stood.
pub(super) fn has_state(record: &Record) -> bool {
    record.state_bytes().is_some()
}

/// Lists the current completed ends of a branch, newest first: the newest of each pass, without passes after a rerun pass.
///
/// `history`: the effective records of the branch, the newest first.
pub(super) fn counting_ends<'r>(
    shape: &Shape,
    position: &Position,
    history: &'r [Record],
) -> Vec<&'r Header> {
    // Of each step, the pass that it is in, or was taken of last.
    let mut taken: HashMap<&StepId, &[u32]> = HashMap::new();
    for entry in &position.frontier {
        taken.insert(&entry.step, &entry.at.iteration);
    }
    let mut ends = Vec::new();
    for header in history.iter().map(Record::header) {
        let is_known = |step: &&StepId| is_end(header) && shape.place(step.as_str()).is_some();
        let Some(step) = header.step.as_ref().filter(is_known) else { continue };
        if taken.get(step).is_some_and(|taken| header.at.iteration.as_slice() >= *taken) {
            continue;
        }
        taken.insert(step, &header.at.iteration);
        if matches!(header.phase, Phase::Completed(_)) {
            ends.push(header);
        }
    }
    ends
}

/// Puts in the place of a step that is broken in a pass which others have followed the step that makes the passes, as it
/// ended that one: all of it is done again from there. Of several passes of a step, only the first is.
pub(super) async fn of_whole_passes(
    store: &dyn Store,
    root: &Shape,
    branches: &Branches,
    broken: Vec<Broken>,
) -> Result<Vec<Broken>, RunError> {
    let gone = openers_of_gone(root, branches);
    let mut whole: BTreeMap<(BranchPath, StepId), Broken> = BTreeMap::new();
    let mut found = Vec::new();
    for broken in broken {
        let Some(maker) = maker_of(store, root, (branches, &gone), &broken).await? else {
            found.push(broken);
            continue;
        };
        match whole.get_mut(&(maker.branch.clone(), maker.step.clone())) {
            Some(known) if known.seq == maker.seq => known.claims.extend(maker.claims),
            Some(known) if known.seq < maker.seq => {}
            _ => drop(whole.insert((maker.branch.clone(), maker.step.clone()), maker)),
        }
    }
    found.extend(whole.into_values());
    Ok(found)
}

/// Says whether a step has ended with a record, and what comes after it has gone on.
pub(super) fn is_end(header: &Header) -> bool {
    match &header.phase {
        Phase::Completed(_) | Phase::Skipped(_) => true,
        Phase::Failed(failure) => failure.tolerated,
        _ => false,
    }
}

/// Returns the steps that opened branches whose states are not kept any more.
fn openers_of_gone(root: &Shape, branches: &Branches) -> BTreeSet<(BranchPath, StepId)> {
    let gone = branches.values().filter(|known| !has_state(&known.record));
    let gone = gone.map(|known| &known.record.header().branch);
    gone.filter_map(|branch| Some((branch.parent()?, opener_of(root, branch)?))).collect()
}

/// Finds the end of the pass that a broken step is of, if others have followed it; or that of the step which opened its
/// branch, where the state of that is not kept any more, or of another one which it opened with it.
async fn maker_of(
    store: &dyn Store,
    root: &Shape,
    (branches, gone): (&Branches, &BTreeSet<(BranchPath, StepId)>),
    broken: &Broken,
) -> Result<Option<Broken>, RunError> {
    let Some(known) = branches.get(&(broken.branch.depth(), broken.branch.clone())) else { return Ok(None) };
    if gone.is_empty() {
        return Ok(None);
    }
    let made = store.load(&known.record.header().run, &broken.branch, broken.seq).await?;
    let of = &made.header().at.iteration;
    let mut makers = Vec::new();
    let mut below = broken.branch.clone();
    while let Some((above, step)) = below.parent().zip(opener_of(root, &below)) {
        let passes = root.loops_around(&below);
        makers.push((above.clone(), step, passes));
        below = above;
    }
    // Of what is gone, the one highest up.
    let is_gone =
        |(above, step, _): &(BranchPath, StepId, usize)| gone.contains(&(above.clone(), step.clone()));
    let Some(place) = makers.iter().rposition(is_gone) else { return Ok(None) };
    let (above, step, passes) = makers.swap_remove(place);
    let Some(known) = branches.get(&(above.depth(), above.clone())) else { return Ok(None) };
    let ends = |record: &Record| {
        let header = record.header();
        let is_its = is_end(header) && header.step.as_ref() == Some(&step);
        is_its && of.get(..passes) == Some(header.at.iteration.as_slice())
    };
    let head = known.record.header();
    let found = store.find_back(&head.run, &above, head.seq, &ends).await?;
    let claims = broken.claims.clone();
    Ok(found.map(|end| Broken { branch: above, step, seq: end.header().seq, claims }))
}
