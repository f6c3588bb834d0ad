//! Ends of child scopes in force: the record with which a scope ended for a given fan-out or pass.
//!
//! ```text
//!   g1 g2 g3            the passes of a group
//!   g1 g2 g3 | g2 g3    the second pass was rerun, and the third followed: the older g2 and g3 are out of force
//!   g1 g2 g3 | g2       the rerun second pass was the last: g3 is out of force
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::id::{ScopePath, StepId};
use crate::plan::Broken;
use crate::plan::shape::Shape;
use crate::record::{Header, Phase, Position, Record};
use crate::store::{Scan, ScanOrder, Store, StoreError, StoreExt as _};

use crate::engine::RunError;
use crate::engine::inspect::position_of;
use crate::engine::resume::reruns::opener_of;
use crate::engine::resume::trust::{ChildInForce, ScopesInForce};

/// Returns the newest record of a scope for the fan-out `since`; a later fan-out may have reopened the scope.
/// If the state was pruned, matches by `pass`, if given.
pub(crate) async fn record_in_fan_out(
    store: &dyn Store,
    newest: &Record,
    since: u64,
    pass: &[u32],
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

/// Finds the newest end of a scope that satisfies `is_it`, rewinds ignored. `is_it` gets the header, and the
/// origin of the scope if its state is kept.
async fn find_end(
    store: &dyn Store,
    head: &Header,
    is_it: &(dyn Fn(&Header, Option<Option<u64>>) -> bool + Sync),
) -> Result<Option<Record>, StoreError> {
    let order = ScanOrder::NewestFirst;
    let mut scan = Scan { scope: Some(head.scope.clone()), order, ..Scan::of(&head.run) };
    loop {
        let page = store.scan(&scan).await?;
        for ended in page.records.iter().map(Record::header).filter(|header| header.end.is_some()) {
            let record = store.load(&head.run, &head.scope, ended.seq).await?;
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

/// The join ends of steps in all passes in force, newest first, by scope and step.
pub(crate) type Joins = HashMap<(ScopePath, StepId), Vec<Header>>;

/// Returns the record of a scope in the awaited or joined pass, and the record of its fan-out. If the scope has
/// not begun that pass, or does not belong to the pass, returns its end in the newest earlier pass in force.
/// After a rollback, later ends are out of force. The record has no state if its state was pruned.
pub(crate) async fn in_pass(
    store: &dyn Store,
    root: &Shape,
    (scopes, joins): (&ScopesInForce, &mut Joins),
    (newest, child): (Record, ChildInForce),
) -> Result<Option<(Record, u64)>, RunError> {
    if let Some(in_force) = record_in_fan_out(store, &newest, child.origin, &[]).await? {
        return Ok(Some((in_force, child.origin)));
    }
    let scope = &newest.header().scope;
    let above = scope.parent().and_then(|above| scopes.get(&(above.depth(), above)));
    let Some((above, step)) = above.zip(opener_of(root, scope)) else { return Ok(None) };
    let Some(since) = above.joined.get(&step).copied() else { return Ok(None) };
    if since != child.origin
        && let Some(in_force) = record_in_fan_out(store, &newest, since, &[]).await?
    {
        return Ok(Some((in_force, since)));
    }
    let header = above.record.header();
    let key = (header.scope.clone(), step);
    if !joins.contains_key(&key) {
        let found = joins_of(store, root, (header, &above.position), &key.1).await?;
        joins.insert(key.clone(), found);
    }
    Ok(end_among(store, &newest, &joins[&key]).await?)
}

/// Lists the join ends of a step in all passes in force.
async fn joins_of(
    store: &dyn Store,
    root: &Shape,
    (header, position): (&Header, &Position),
    step: &StepId,
) -> Result<Vec<Header>, StoreError> {
    let Some(shape) = root.of_scope(&header.scope) else { return Ok(Vec::new()) };
    let history = store.history(&header.run, &header.scope, header.seq).await?;
    let ends = ends_in_force(shape, position, &history).into_iter();
    Ok(ends.filter(|end| end.step.as_ref() == Some(step) && end.about.is_some()).cloned().collect())
}

/// Returns the newest end of a scope that a join of `joins` joined. If the state was pruned, matches an end of
/// the same pass from the same or an earlier lease.
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

/// Returns whether the state and the position of a record are kept.
pub(crate) fn has_state(record: &Record) -> bool {
    record.state_bytes().is_some()
}

/// Lists the current completed ends of a scope, newest first: the newest of each pass, without passes after a rerun pass.
///
/// `history`: the effective records of the scope, the newest first.
pub(crate) fn ends_in_force<'r>(
    shape: &Shape,
    position: &Position,
    history: &'r [Record],
) -> Vec<&'r Header> {
    // The current or last seen pass of each step.
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

/// Replaces a broken step in an older pass with the end of its opener in that pass: the rerun begins there. Of
/// several broken passes of an opener, keeps only the first.
pub(crate) async fn openers_of_lost_passes(
    store: &dyn Store,
    root: &Shape,
    scopes: &ScopesInForce,
    broken: Vec<Broken>,
) -> Result<Vec<Broken>, RunError> {
    let pruned = openers_of_pruned(root, scopes);
    let mut whole: BTreeMap<(ScopePath, StepId), Broken> = BTreeMap::new();
    let mut found = Vec::new();
    for broken in broken {
        let Some(opener) = opener_to_rerun(store, root, (scopes, &pruned), &broken).await? else {
            found.push(broken);
            continue;
        };
        match whole.get_mut(&(opener.scope.clone(), opener.step.clone())) {
            Some(known) if known.seq == opener.seq => known.claims.extend(opener.claims),
            Some(known) if known.seq < opener.seq => {}
            _ => drop(whole.insert((opener.scope.clone(), opener.step.clone()), opener)),
        }
    }
    found.extend(whole.into_values());
    Ok(found)
}

/// Returns whether a record ends a step and lets its downstream steps continue.
pub(crate) fn is_end(header: &Header) -> bool {
    match &header.phase {
        Phase::Completed(_) | Phase::Skipped(_) => true,
        Phase::Failed(failure) => failure.tolerated,
        _ => false,
    }
}

/// Returns the openers of scopes with pruned states.
fn openers_of_pruned(root: &Shape, scopes: &ScopesInForce) -> BTreeSet<(ScopePath, StepId)> {
    let pruned = scopes.values().filter(|known| !has_state(&known.record));
    let pruned = pruned.map(|known| &known.record.header().scope);
    pruned.filter_map(|scope| Some((scope.parent()?, opener_of(root, scope)?))).collect()
}

/// Finds the end of the opener to rerun instead of a broken step, if the state of the broken step's scope, or of
/// a scope with the same opener, was pruned. Returns the end of the same pass.
async fn opener_to_rerun(
    store: &dyn Store,
    root: &Shape,
    (scopes, pruned): (&ScopesInForce, &BTreeSet<(ScopePath, StepId)>),
    broken: &Broken,
) -> Result<Option<Broken>, RunError> {
    let Some(known) = scopes.get(&(broken.scope.depth(), broken.scope.clone())) else { return Ok(None) };
    if pruned.is_empty() {
        return Ok(None);
    }
    let made = store.load(&known.record.header().run, &broken.scope, broken.seq).await?;
    let of = &made.header().at.iteration;
    let mut openers = Vec::new();
    let mut below = broken.scope.clone();
    while let Some((above, step)) = below.parent().zip(opener_of(root, &below)) {
        let passes = root.loops_around(&below);
        openers.push((above.clone(), step, passes));
        below = above;
    }
    // Of these openers, the outermost.
    let is_pruned =
        |(above, step, _): &(ScopePath, StepId, usize)| pruned.contains(&(above.clone(), step.clone()));
    let Some(place) = openers.iter().rposition(is_pruned) else { return Ok(None) };
    let (above, step, passes) = openers.swap_remove(place);
    let Some(known) = scopes.get(&(above.depth(), above.clone())) else { return Ok(None) };
    let ends = |record: &Record| {
        let header = record.header();
        let is_its = is_end(header) && header.step.as_ref() == Some(&step);
        is_its && of.get(..passes) == Some(header.at.iteration.as_slice())
    };
    let head = known.record.header();
    let found = store.find_back(&head.run, &above, head.seq, &ends).await?;
    let claims = broken.claims.clone();
    Ok(found.map(|end| Broken { scope: above, step, seq: end.header().seq, claims }))
}
