//! Which checkpoints keep their state where a run keeps only so many: one rule, for every store.
//!
//! ```text
//!   @1 done a   @2 done b   @3 b fails   @4 b fails   ...   @90 b fails            keep 2
//!   ^ counted   ^ counted        (goes)       (goes)        ^ the newest 2 of these stay too
//! ```
//!
//! What counts is a step boundary: a checkpoint after which more is finished than before. Tries that failed, starts,
//! waits, checks and what a rollback undid finish nothing; were they counted, a step that fails again and again would
//! push out the very state that it is to be done from. They are counted for themselves, since without a limit they would
//! be kept without end, and only as far back as step boundaries are.
//!
//! Stores give what they have, newest first, and do what comes out. Nothing here reads a state, a clock or a disk.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{FailureKind, Fan, Header, MARK, Phase, RETENTION_MIN, Record, Verdict};

/// What retention looks at of one sound checkpoint that has its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    seq: u64,
    /// More is finished than before.
    finishes: bool,
    /// The record it continues, where that is not the one before.
    basis: Option<u64>,
    /// A step ended and its claims were judged: whether they held.
    held: Option<bool>,
    /// The record whose claims it judges again, and whether they held.
    judges: Option<(u64, bool)>,
    /// Records that the position of the newest one refers to.
    needs: Vec<u64>,
    /// A person has given it a label, to come back to it.
    is_labelled: bool,
}

impl Mark {
    /// Takes what counts from a header.
    pub fn of(header: &Header) -> Self {
        let held = header.evidence.as_ref().map(|pack| pack.verdict_at(header.occasion()) == Verdict::Ok);
        let (finishes, commits) = match &header.phase {
            Phase::Completed(_) => (true, true),
            Phase::Skipped(_) => (true, false),
            Phase::Failed(failure) => (failure.tolerated, failure.kind == FailureKind::Evidence),
            // The state that a branch begins with, or begins anew with, and that its first step is done from.
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
        }
    }

    /// Takes what counts from the newest checkpoint of a branch: its position says what else is needed.
    pub fn of_newest(record: &Record) -> Self {
        let mut mark = Self::of(record.header());
        mark.needs.extend(mark.basis);
        if let Ok(position) = record.position() {
            // The head of the reusable chain, and the record of the rewind: the head is not undone.
            let chain = position.chain.iter().filter_map(|chain| Some([chain.head?, chain.since]));
            mark.needs.extend(chain.flatten());
            let fans = position.open_entries().flat_map(|entry| entry.fan.iter().flat_map(Fan::each));
            mark.needs.extend(fans.map(|fan| fan.since));
            mark.needs.extend(position.undoing);
        }
        mark
    }
}

/// Returns the checkpoints of a branch that keep their states, by seq; `marks` are all that have one and are sound,
/// newest first, the first made by [`Mark::of_newest`].
///
/// These stay:
///
/// - the newest `keep` step boundaries ([`RETENTION_MIN`] at least) that no rollback undid;
/// - of the others that are newer than the oldest of those, the newest `keep`;
/// - those that a person has given a label;
/// - the newest state whose evidence held when it was last looked at, however long ago that was;
/// - what the newest checkpoint goes on from or refers to: its basis, what it may use again, the fan-out it is amid, where
///   it goes back to once its steps are undone;
/// - of what stays, the newest check of its evidence, if that came out otherwise than when it was committed.
pub fn kept(marks: &[Mark], keep: u32) -> BTreeSet<u64> {
    let keep = keep.max(RETENTION_MIN) as usize;
    let mut kept = BTreeSet::new();
    let (mut boundaries, mut others) = (0, 0);
    // What is above was undone, seen from what is newer.
    let mut reach = u64::MAX;
    let mut judged: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
    let mut verified = None;
    for mark in marks {
        let is_effective = mark.seq <= reach;
        if let Some(basis) = mark.basis.filter(|_| is_effective) {
            reach = basis;
        }
        let count = if is_effective && mark.finishes { &mut boundaries } else { &mut others };
        *count += 1;
        if *count <= keep && (boundaries < keep || mark.finishes && is_effective) {
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
    kept.extend(marks.iter().filter(|mark| mark.is_labelled).map(|mark| mark.seq));
    let needs = marks.first().map_or(&[][..], |newest| &newest.needs);
    kept.extend(marks.iter().map(|mark| mark.seq).filter(|seq| needs.contains(seq)));
    // Without the check that says otherwise, its own commit would be believed again.
    let checked = marks.iter().filter(|mark| mark.held.is_some() && kept.contains(&mark.seq));
    let checks: Vec<u64> = checked
        .filter_map(|mark| judged.get(&mark.seq).filter(|(_, held)| Some(*held) != mark.held))
        .map(|(check, _)| *check)
        .collect();
    kept.extend(checks);
    kept
}
