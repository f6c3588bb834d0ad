//! What every store asks of a batch before it takes it. Pure, so that all stores refuse the same things.

use std::collections::BTreeMap;

use crate::id::{BranchPath, Digest, RunId};
use crate::record::Reason;

use super::{Batch, StoreError};

/// Checks that a batch continues its branches.
///
/// `end_of` tells of a branch the seq and digest of its newest sound record, if it has one, and the seq that comes
/// next, damaged and quarantined records counted.
///
/// # Errors
/// [`StoreError::Conflict`] or [`StoreError::Invalid`]; both sides of the mismatch are in the text.
pub fn check_batch(
    run: &RunId,
    token: u64,
    batch: &Batch,
    mut end_of: impl FnMut(&BranchPath) -> (Option<(u64, Digest)>, u64),
) -> Result<(), StoreError> {
    let mut ends: BTreeMap<BranchPath, (Option<(u64, Digest)>, u64)> = BTreeMap::new();
    let mut carries: BTreeMap<BranchPath, bool> = BTreeMap::new();
    for record in &batch.records {
        let header = record.header();
        if header.run != *run || header.token != token {
            return Err(StoreError::Invalid(format!(
                "a record of run {} under token {} is appended to run {run} under token {token}",
                header.run, header.token
            )));
        }
        let (newest, next) = *ends.entry(header.branch.clone()).or_insert_with(|| end_of(&header.branch));
        let conflict = |why: String| {
            Err(StoreError::Conflict {
                run: run.clone(),
                branch: header.branch.clone(),
                seq: header.seq,
                why,
            })
        };
        let follows = newest.map_or(1, |(seq, _)| seq + 1);
        let repairs = header.reason == Reason::Repair && (follows..=next).contains(&header.seq);
        if header.seq != next || (next != follows && !repairs) {
            return conflict(format!("its log ends at {}", next - 1));
        }
        let expect = newest.map(|(_, digest)| digest);
        if header.prev != expect {
            let text = |digest: Option<Digest>| {
                digest.map_or_else(|| "none".to_owned(), |digest| digest.to_string())
            };
            return conflict(format!(
                "its prev is {}, the newest record has {}",
                text(header.prev),
                text(expect)
            ));
        }
        ends.insert(header.branch.clone(), (Some((header.seq, record.digest())), header.seq + 1));
        carries.insert(header.branch.clone(), record.body_bytes().is_some());
    }
    match carries.into_iter().find(|(_, carries)| !carries) {
        Some((branch, _)) => {
            Err(StoreError::Invalid(format!("the last record of branch {branch} in a batch has no body")))
        }
        None => Ok(()),
    }
}

/// Checks the name of a blob.
///
/// # Errors
/// [`StoreError::Invalid`] says what would be right.
pub fn check_blob_name(name: &str) -> Result<(), StoreError> {
    let sound = |segment: &str| {
        !segment.is_empty()
            && !segment.starts_with('.')
            && segment.len() <= 200
            && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
    };
    if name.len() <= 1_000 && name.split('/').all(sound) {
        return Ok(());
    }
    Err(StoreError::Invalid(format!(
        "`{name}` is not the name of a blob: segments of letters, digits, `.`, `_`, `-`, none beginning with `.`, joined by `/`"
    )))
}
