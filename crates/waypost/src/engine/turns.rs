//! Steps that undo for each other what they are believed by: done again for their evidence, they would take turns for ever.

use std::collections::BTreeMap;

use crate::id::{BranchPath, RunId, StepId};
use crate::plan::{Action, Cause, Decision};
use crate::record::Record;
use crate::store::{Scan, Store};

use super::RunError;
use super::redo::{Target, broken_by};

/// Asks about steps that were done again for their evidence under this lease, and would be once more: what others did again
/// since has undone it.
pub(super) async fn undone(
    store: &dyn Store,
    run: &RunId,
    targets: &BTreeMap<BranchPath, Vec<Target>>,
    token: u64,
) -> Result<Vec<Decision>, RunError> {
    let done = done_again(store, run, token).await?;
    let mut questions = Vec::new();
    for (branch, targets) in targets {
        for Target { seq, step, claims, .. } in targets {
            let Some(claims) = claims else { continue };
            let made = store.load(run, branch, *seq).await?;
            let pass = (branch.clone(), step.clone(), made.header().at.iteration.clone());
            if done.contains_key(&pass) {
                let others = done.iter().filter(|(other, _)| **other != pass);
                let others = others.map(|((_, step, _), claims)| (step.clone(), claims.clone())).collect();
                let cause = Cause::EvidenceUndone { claims: claims.clone(), others };
                let (branch, step) = (branch.clone(), step.clone());
                questions.push(Decision { branch, step, action: Action::Ask, cause });
            }
        }
    }
    Ok(questions)
}

/// Finds what was done again under a lease for its evidence: branch, step and pass, and the claims that did not hold.
async fn done_again(
    store: &dyn Store,
    run: &RunId,
    token: u64,
) -> Result<BTreeMap<(BranchPath, StepId, Vec<u32>), Vec<String>>, RunError> {
    let mut scan = Scan { phase: Some("restored"), ..Scan::of(run) };
    let mut done = BTreeMap::new();
    loop {
        let page = store.scan(&scan).await?;
        for header in page.records.iter().map(Record::header).filter(|header| header.token == token) {
            if let (Some(step), Some(claims)) = (&header.step, broken_by(header)) {
                done.insert((header.branch.clone(), step.clone(), header.at.iteration.clone()), claims);
            }
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(done),
        }
    }
}
