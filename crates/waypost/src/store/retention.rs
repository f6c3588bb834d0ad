//! Retention: selects the checkpoints that keep their state, by one rule for every store.
//!
//! ```text
//!   @1 done a   @2 done b   @3 b fails   @4 b fails   ...   @90 b fails            keep 2
//!   ^ counted   ^ counted        (goes)       (goes)        ^ the newest 2 of these stay too
//! ```
//!
//! Only step boundaries count: checkpoints after which more steps are finished than before. Failed attempts,
//! starts, waits, checks and records undone by a rollback finish nothing. If they counted, a repeatedly
//! failing step would displace the state needed for its retry. A separate limit bounds these checkpoints, and
//! none is kept beyond the oldest kept step boundary.
//!
//! Stores pass their checkpoints, newest first, and apply the result. This module reads no state, clock or
//! disk.

use std::collections::{BTreeMap, BTreeSet};

use crate::projection::events::PRUNED;
use crate::record::{FailureKind, FrontierEntry, Header, MARK, Phase, RETENTION_MIN, Record, Verdict};

/// The facts about a sound checkpoint with a state, as retention needs them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    seq: u64,
    /// More steps are finished than before.
    finishes: bool,
    /// The continued record, if not the previous one.
    basis: Option<u64>,
    /// For an ended step with checked claims: whether they held.
    held: Option<bool>,
    /// The record checked again by this one, and whether the claims held.
    judges: Option<(u64, bool)>,
    /// Records that the newest position refers to.
    needs: Vec<u64>,
    /// A person gave the checkpoint a label.
    is_labelled: bool,
    /// The checkpoint has only the note about dropped states.
    is_of_prune: bool,
}

impl Mark {
    /// Extracts the facts from a header.
    pub fn of(header: &Header) -> Self {
        let held = header.evidence.as_ref().map(|pack| pack.verdict_at(header.occasion()) == Verdict::Ok);
        let (finishes, commits) = match &header.phase {
            Phase::Completed(_) => (true, true),
            Phase::Skipped(_) => (true, false),
            Phase::Failed(failure) => (failure.tolerated, failure.kind == FailureKind::Evidence),
            // The first state of a scope, also after a restart: the input of its first step.
            _ => (header.seq == 1 || header.basis == Some(0), false),
        };
        Self {
            seq: header.seq,
            finishes,
            basis: header.basis,
            held: held.filter(|_| commits && header.step.is_some()),
            judges: header.about.zip(held).filter(|_| !commits),
            needs: Vec::new(),
            is_labelled: header.labels.contains_key(MARK),
            is_of_prune: matches!(&header.phase, Phase::Progress { key, .. } if key == PRUNED),
        }
    }

    /// Extracts the facts from the newest checkpoint of a scope, with the records that its position
    /// requires.
    pub fn of_newest(record: &Record) -> Self {
        let mut mark = Self::of(record.header());
        mark.needs.extend(mark.basis);
        if let Ok(position) = record.position() {
            // The head of the reusable chain, and the record of the rewind: the head is not undone.
            let chain = position.chain.iter().filter_map(|chain| Some([chain.head?, chain.since]));
            mark.needs.extend(chain.flatten());
            let fans = position.open_entries().flat_map(FrontierEntry::fans);
            mark.needs.extend(fans.map(|fan| fan.since));
            mark.needs.extend(position.undoing);
        }
        mark
    }
}

/// Returns the seqs of a scope's checkpoints that keep their states. `marks` are all sound checkpoints with
/// a state, newest first, the first created by [`Mark::of_newest`].
///
/// Kept are:
///
/// - the newest checkpoint;
/// - the newest `keep` step boundaries ([`RETENTION_MIN`] at least), without those undone by a rollback;
/// - among other checkpoints newer than the oldest of these boundaries, the newest `keep`;
/// - checkpoints with a label from a person;
/// - the newest state with a passed last check, at any age;
/// - records required by the newest checkpoint: basis, reuse candidates, open fan-out, and the rollback
///   target of running undo commands;
/// - for each kept checkpoint, the newest check of its evidence, if the verdict differs from the commit.
pub fn kept(marks: &[Mark], keep: u32) -> BTreeSet<u64> {
    let keep = keep.max(RETENTION_MIN) as usize;
    let mut kept = BTreeSet::new();
    let (mut boundaries, mut others) = (0, 0);
    // Records above were undone, as seen from newer ones.
    let mut reach = u64::MAX;
    let mut judged: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
    let mut verified = None;
    for mark in marks {
        let is_effective = mark.seq <= reach;
        if let Some(basis) = mark.basis.filter(|_| is_effective) {
            reach = basis;
        }
        let count = if is_effective && mark.finishes { &mut boundaries } else { &mut others };
        // A prune that counted here would be a reason for the next prune.
        *count += usize::from(!mark.is_of_prune);
        if *count <= keep && !mark.is_of_prune && (boundaries < keep || mark.finishes && is_effective) {
            kept.insert(mark.seq);
        }
        if let Some((about, held)) = mark.judges {
            judged.entry(about).or_insert((mark.seq, held));
        }
        if let (Some(held), true, None) = (mark.held, is_effective, verified) {
            let held = judged.get(&mark.seq).map_or(held, |(_, held)| *held);
            verified = held.then_some(mark.seq);
        }
    }
    kept.extend(verified);
    kept.extend(marks.first().map(|newest| newest.seq));
    kept.extend(marks.iter().filter(|mark| mark.is_labelled).map(|mark| mark.seq));
    let needs = marks.first().map_or(&[][..], |newest| &newest.needs);
    kept.extend(marks.iter().map(|mark| mark.seq).filter(|seq| needs.contains(seq)));
    // Without the contrary check, the verdict of the commit would count again.
    let checked = marks.iter().filter(|mark| mark.held.is_some() && kept.contains(&mark.seq));
    let checks: Vec<u64> = checked
        .filter_map(|mark| judged.get(&mark.seq).filter(|(_, held)| Some(*held) != mark.held))
        .map(|(check, _)| *check)
        .collect();
    kept.extend(checks);
    kept
}
