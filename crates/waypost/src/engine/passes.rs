//! Passes before the newest: which ends of steps in them still count, and where a branch goes back to for one of them.
//!
//! ```text
//!   g1 g2 g3            the passes of a group, in one chain
//!   g1 g2 g3 | g2 g3    the second was done again, and the third came after it: what they had made before counts no more
//!   g1 g2 g3 | g2       and here it was the last: there is no third any more
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::id::{BranchPath, StepId};
use crate::plan::Broken;
use crate::record::{Header, Phase, Position, Record};
use crate::shape::Shape;
use crate::store::{Scan, ScanOrder, Store, StoreError, StoreExt as _};

use super::RunError;
use super::recheck::{Branches, Known, Left, Wanted};
use super::redo::opener_of;
use super::snapshot::position_of;

/// Says how many loops around a branch have passes whose ends are known apart: those of graphs by needs. A graph that
/// is routed goes back to a state, and only its own loops are walked.
pub(super) fn loops_around(root: &Shape, branch: &BranchPath) -> usize {
    let mut up = std::iter::successors(branch.parent(), BranchPath::parent);
    match up.any(|above| root.of_branch(&above).is_none_or(Shape::is_routed)) {
        true => 0,
        false => root.loops_around(branch),
    }
}

/// Returns the effective records of a branch, the newest first; with passes around it, also those before the pass that it is in
/// or was in last: each begins anew, behind the end of the one before.
pub(super) async fn history(
    store: &dyn Store,
    head: &Header,
    around: usize,
) -> Result<Vec<Record>, StoreError> {
    if around == 0 {
        return store.history(&head.run, &head.branch, head.seq).await;
    }
    let (branch, order) = (Some(head.branch.clone()), ScanOrder::NewestFirst);
    let mut scan = Scan { branch, order, seq_max: Some(head.seq), ..Scan::of(&head.run) };
    let (mut history, mut next) = (Vec::new(), head.seq);
    loop {
        let page = store.scan(&scan).await?;
        for record in page.records {
            let seq = record.header().seq;
            if seq <= next {
                next = record.header().basis().unwrap_or(seq.saturating_sub(1));
                history.push(record);
            }
        }
        match page.next {
            Some(cursor) if next > 0 => scan.cursor = Some(cursor),
            _ => return Ok(history),
        }
    }
}

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

/// Returns the newest end of a branch that came after other branches of a step.
pub(super) async fn life_left(
    store: &dyn Store,
    head: &Header,
    left: Left,
) -> Result<Option<(Record, u64)>, StoreError> {
    let is_between = |origin: u64| left.behind < origin && origin <= left.end;
    let found = find_end(store, head, &|_, origin| origin.flatten().is_some_and(is_between)).await?;
    match found {
        Some(record) => Ok(position_of(&record)?.origin.map(|origin| (record, origin))),
        None => Ok(None),
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
    let around = loops_around(root, &header.branch);
    let history = history(store, header, around).await?;
    let ends = counting_ends(shape, (position, around), &history).into_iter();
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
            None => ended.token <= join.token && ended.at.iteration.starts_with(&join.at.iteration),
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

/// Lists the completed ends of steps of a branch that still count, the newest first: of each pass of the loops on it and
/// around it those made last, and none of passes that came after one that was done again.
///
/// `history`: the effective records of the branch, the newest first. `around`: how many loops are around it.
pub(super) fn counting_ends<'r>(
    shape: &Shape,
    (position, around): (&Position, usize),
    history: &'r [Record],
) -> Vec<&'r Header> {
    let mut pass: Option<&[u32]> = None;
    let mut is_older = false;
    // Of each step, the pass that it is in, or was taken of last.
    let mut taken: HashMap<&StepId, &[u32]> = HashMap::new();
    for entry in &position.frontier {
        pass = pass.or(entry.at.iteration.get(..around));
        taken.insert(&entry.step, &entry.at.iteration);
    }
    let mut ends = Vec::new();
    for header in history.iter().map(Record::header) {
        let is_known = |step: &&StepId| is_end(header) && shape.place(step.as_str()).is_some();
        let Some(step) = header.step.as_ref().filter(is_known) else { continue };
        let Some(of) = header.at.iteration.get(..around) else { continue };
        match pass {
            Some(pass) if of > pass => {
                is_older = true;
                continue;
            }
            Some(pass) if of == pass && is_older => continue,
            Some(pass) if of == pass => {}
            _ => (pass, is_older) = (Some(of), false),
        }
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

/// Returns the passes that a branch is in, or was in last; where those above it are in others by now, these.
async fn newest_pass(
    store: &dyn Store,
    root: &Shape,
    (branches, known): (&Branches, &Known),
) -> Result<Vec<u32>, RunError> {
    let head = known.record.header();
    let mut passes = match known.position.frontier.first() {
        Some(entry) => entry.at.iteration.clone(),
        None => last_pass(store, head).await?,
    };
    let mut below = head.branch.clone();
    while let Some(above) = below.parent() {
        let around = root.loops_around(&above);
        let known = branches.get(&(above.depth(), above.clone()));
        let frontier = known.map(|known| known.position.frontier.as_slice()).unwrap_or_default();
        let opener = opener_of(root, &below);
        let waits = frontier.iter().find(|entry| Some(&entry.step) == opener.as_ref());
        let now = match (waits, frontier.first(), known) {
            (Some(entry), ..) => entry.at.iteration.clone(),
            (None, Some(entry), _) => entry.at.iteration.iter().take(around).copied().collect(),
            (None, None, Some(known)) if around > 0 => {
                let ended = last_pass(store, known.record.header()).await?;
                ended.into_iter().take(around).collect()
            }
            _ => Vec::new(),
        };
        let count = now.len().min(passes.len());
        passes[..count].copy_from_slice(&now[..count]);
        below = above;
    }
    Ok(passes)
}

/// Returns the pass in which a step of a branch ended last.
async fn last_pass(store: &dyn Store, head: &Header) -> Result<Vec<u32>, StoreError> {
    let ends = |record: &Record| is_end(record.header());
    let found = store.find_back(&head.run, &head.branch, head.seq, &ends).await?;
    Ok(found.map(|end| end.header().at.iteration.clone()).unwrap_or_default())
}

/// Finds the record with which the branches of a step were opened that it joined last, in a pass before that which its branch is
/// in and has not come to it yet.
pub(super) async fn joined_before(
    store: &dyn Store,
    root: &Shape,
    (header, step): (&Header, &StepId),
) -> Result<Option<u64>, StoreError> {
    let around = loops_around(root, &header.branch);
    if around == 0 {
        return Ok(None);
    }
    let history = history(store, header, around).await?;
    let joined = history
        .iter()
        .map(Record::header)
        .find(|header| matches!(header.phase, Phase::Completed(_)) && header.step.as_ref() == Some(step));
    Ok(joined.and_then(|joined| joined.about))
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
    let around = loops_around(root, &broken.branch);
    if around == 0 && gone.is_empty() {
        return Ok(None);
    }
    let made = store.load(&known.record.header().run, &broken.branch, broken.seq).await?;
    let of = &made.header().at.iteration;
    let differs = match around {
        0 => None,
        _ => {
            let now = newest_pass(store, root, (branches, known)).await?;
            (0..around).find(|place| of.get(*place) != now.get(*place))
        }
    };
    let mut makers = Vec::new();
    let mut below = broken.branch.clone();
    while let Some((above, step)) = below.parent().zip(opener_of(root, &below)) {
        let passes = root.loops_around(&below);
        let is_passed = differs.is_some_and(|differs| passes > differs);
        makers.push((above.clone(), step, passes, is_passed));
        below = above;
    }
    // Of the passes that others have followed, the one below the branch that is in the pass all the same; of what is
    // gone, the one highest up.
    let passed = makers.iter().rposition(|(.., is_passed)| *is_passed);
    let is_gone =
        |(above, step, ..): &(BranchPath, StepId, usize, bool)| gone.contains(&(above.clone(), step.clone()));
    let Some(place) = passed.max(makers.iter().rposition(is_gone)) else { return Ok(None) };
    let (above, step, passes, _) = makers.swap_remove(place);
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
