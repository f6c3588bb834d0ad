//! Whether branches that a step opened anew have made what those made that it had opened before: then what comes behind it
//! can be used again.
//!
//! What they gave is in the state of the step, and compared there; this is about what they left: which of them there are, how
//! each ended, and what the evidence of their steps expects, pinned values included.

use std::collections::BTreeMap;
use std::mem::discriminant;

use crate::id::{BranchPath, Digest, StepId};
use crate::record::{Ahead, End, Header, Pack, Record};
use crate::shape::{Children, Shape};
use crate::store::{Store, StoreError, StoreExt as _};

use super::passes::{is_end, life_left, life_of};
use super::recheck::Left;
use super::redo::{opener_of, same_claims};
use super::snapshot::accepted_on;

/// Says whether the pass that a step ended was its last before, too.
pub(super) async fn was_last(store: &dyn Store, ended: &Header, ahead: Ahead) -> Result<bool, StoreError> {
    let ends = |record: &Record| is_end(record.header()) && record.header().step == ended.step;
    let then = store.find_back(&ended.run, &ended.branch, ahead.seq, &ends).await?;
    Ok(then.is_some_and(|then| then.header().at.iteration == ended.at.iteration))
}

/// Says whether the branches with evidence that a step opened came out alike for two of its ends: those of its work, and those
/// that came after them.
pub(super) async fn opened_alike(
    store: &dyn Store,
    root: &Shape,
    ends: (&Header, &Header),
) -> Result<bool, StoreError> {
    let step = root.of_branch(&ends.1.branch).zip(ends.1.step.as_ref());
    let Some(step) = step.and_then(|(shape, step)| shape.step(step.as_str())) else { return Ok(true) };
    if step.opens_evidence() && !joined_alike(store, root, ends).await? {
        return Ok(false);
    }
    match step.after.as_ref().filter(|_| step.leaves_evidence()) {
        Some(after) => left_alike(store, root, after, ends).await,
        None => Ok(true),
    }
}

/// Says whether two ends of a step joined branches that came out alike: not the same ones, which are joined again only where
/// one of them has come out in another way, or for what came after them.
async fn joined_alike(
    store: &dyn Store,
    root: &Shape,
    (then, now): (&Header, &Header),
) -> Result<bool, StoreError> {
    // As of a pass after which no hooks came yet.
    let has_joined = |end: &Header| end.about.is_some() || end.children.is_some();
    if !has_joined(then) && !has_joined(now) {
        return Ok(true);
    }
    let (Some(before), Some(since), Some(step)) = (then.about, now.about, &now.step) else {
        return Ok(false);
    };
    if before == since {
        let (then, now) = (root_of_work(store, root, then).await?, root_of_work(store, root, now).await?);
        return Ok(then.is_some() && then == now);
    }
    let names = store.branches(&now.run).await?;
    let is_ours = |name: &&BranchPath| {
        name.parent().as_ref() == Some(&now.branch) && opener_of(root, name).as_ref() == Some(step)
    };
    let mut is_any = false;
    for name in names.iter().filter(is_ours) {
        let newest = store.newest(&now.run, name).await?;
        let lives =
            (life_of(store, &newest, (before, &[])).await?, life_of(store, &newest, (since, &[])).await?);
        match lives {
            (None, None) => {}
            (Some(then), Some(now)) if Box::pin(lived_alike(store, root, (&then, &now))).await? => {
                is_any = true
            }
            _ => return Ok(false),
        }
    }
    // Where none is found, there may have been none, or what tells of them is not kept.
    Ok(is_any || then.children == now.children)
}

/// Returns the root over the ends of the branches that were the work of a step: its end has it, or, where others came after
/// them, the record that opened those.
async fn root_of_work(store: &dyn Store, root: &Shape, end: &Header) -> Result<Option<Digest>, StoreError> {
    let step = root.of_branch(&end.branch).zip(end.step.as_ref());
    if step.and_then(|(shape, step)| shape.step(step.as_str())).is_none_or(|step| step.after.is_none()) {
        return Ok(end.children);
    }
    let opens = |record: &Record| {
        let header = record.header();
        header.step == end.step && header.children.is_some() && !is_end(header)
    };
    let opened = store.find_back(&end.run, &end.branch, end.seq, &opens).await?;
    Ok(opened.and_then(|opened| opened.header().children))
}

/// Says the same of branches that came after those of the step.
async fn left_alike(
    store: &dyn Store,
    root: &Shape,
    after: &Children,
    (then, now): (&Header, &Header),
) -> Result<bool, StoreError> {
    let left = |end: &Header| Left { behind: end.about.unwrap_or_default(), end: end.seq };
    let is_ours = |name: &&BranchPath| {
        name.parent().as_ref() == Some(&now.branch)
            && name.opened_by().is_some_and(|(opener, _)| opener == after.name)
    };
    for name in store.branches(&now.run).await?.iter().filter(is_ours) {
        let newest = store.newest(&now.run, name).await?;
        let head = newest.header();
        let lives = (life_left(store, head, left(then)).await?, life_left(store, head, left(now)).await?);
        let is_alike = match lives {
            (None, None) => true,
            (Some((then, _)), Some((now, _))) => Box::pin(lived_alike(store, root, (&then, &now))).await?,
            _ => false,
        };
        if !is_alike {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An end of a step that counts.
struct Made {
    header: Header,
    /// As it was accepted last.
    evidence: Option<Pack>,
}

/// Says whether two ends of one branch came after steps that ended alike.
async fn lived_alike(
    store: &dyn Store,
    root: &Shape,
    (then, now): (&Record, &Record),
) -> Result<bool, StoreError> {
    let is_well = matches!(now.header().end, Some(End::Completed | End::Skipped));
    let (before, since) = (ends_of(store, then.header()).await?, ends_of(store, now.header()).await?);
    if !is_well || then.header().end != now.header().end || !before.keys().eq(since.keys()) {
        return Ok(false);
    }
    for (then, now) in before.values().zip(since.values()) {
        let is_alike = discriminant(&then.header.phase) == discriminant(&now.header.phase)
            && same_claims(then.evidence.as_ref(), now.evidence.as_ref());
        if !is_alike || !opened_alike(store, root, (&then.header, &now.header)).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the last end of each step that a branch came to, by step and pass.
async fn ends_of(store: &dyn Store, end: &Header) -> Result<BTreeMap<(StepId, Vec<u32>), Made>, StoreError> {
    let mut accepted = accepted_on(store, end).await?;
    let mut made = BTreeMap::new();
    for record in store.history(&end.run, &end.branch, end.seq).await? {
        let header = record.header();
        let Some(step) = header.step.clone().filter(|_| is_end(header)) else { continue };
        let evidence = accepted.remove(&header.seq).or_else(|| header.evidence.clone());
        let pass = header.at.iteration.clone();
        made.entry((step, pass)).or_insert_with(|| Made { header: header.clone(), evidence });
    }
    Ok(made)
}
