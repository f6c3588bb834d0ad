//! Joins of branches that do something again: where all have come out as before, what comes behind is used again.

use std::collections::BTreeMap;

use crate::id::BranchPath;
use crate::record::{FrontierEntry, Header, Phase, Position, Reason, Record};
use crate::store::StoreExt as _;

use super::super::recheck::Branches;
use super::super::redo::{Move, Pace, broken_by, done_before, is_wish, opener_of, pace, standing_at};
use super::super::{Program, RunError};
use super::Scout;

/// How branches came out that do something again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Joint {
    /// As before.
    Same,
    /// In another way.
    Other,
    /// One of them has not ended.
    Open,
}

impl<P: Program> Scout<'_, P> {
    /// Finds a branch that went back to a join, all of whose branches have come out as before: it need not join again.
    pub(super) async fn joins_the_same(
        &self,
        branches: &Branches,
        moves: &BTreeMap<BranchPath, Move>,
    ) -> Result<Option<(BranchPath, (Record, Position))>, RunError> {
        let store = self.engine.store.as_ref();
        for ((_, branch), known) in branches.iter().rev() {
            let Some(ahead) = known.position.ahead.filter(|ahead| !ahead.changed) else { continue };
            let Some(shape) = self.shape.of_branch(branch) else { continue };
            let header = known.record.header();
            for entry in known.position.frontier.iter().filter(|entry| entry.at.attempt == 0) {
                let Some(fan) = &entry.fan else { continue };
                // For the sake of what came after those, it is joined again, whatever they came to.
                let wish = self.wish_of(header, entry).await?;
                if wish.is_some_and(|wish| broken_by(wish.header()).is_some()) {
                    continue;
                }
                let about = Some(fan.since);
                let then = done_before(store, header, (&entry.step, &entry.at.iteration), ahead.seq).await?;
                if then.is_none_or(|(then, _)| then.header().about != about)
                    || self.outcome_of((branches, moves), branch, entry).await? != Joint::Same
                {
                    continue;
                }
                if let Some(stood) = standing_at(store, shape, header, ahead).await? {
                    return Ok(Some((branch.clone(), stood)));
                }
            }
        }
        Ok(None)
    }

    /// Finds the record with which a branch went back to a step.
    async fn wish_of(&self, head: &Header, entry: &FrontierEntry) -> Result<Option<Record>, RunError> {
        let wishes = |record: &Record| {
            let header = record.header();
            let is_redo = header.phase == Phase::Restored && header.reason == Reason::Redo;
            is_redo && header.step.as_ref() == Some(&entry.step) && is_wish(header)
        };
        Ok(self.engine.store.find_back(&head.run, &head.branch, head.seq, &wishes).await?)
    }

    /// Says how the branches that a step waits for stand to what they were before.
    pub(super) async fn outcome_of(
        &self,
        (branches, moves): (&Branches, &BTreeMap<BranchPath, Move>),
        branch: &BranchPath,
        entry: &FrontierEntry,
    ) -> Result<Joint, RunError> {
        let ours = |child: &BranchPath| {
            child.parent().as_ref() == Some(branch)
                && opener_of(self.shape, child).as_ref() == Some(&entry.step)
        };
        let above = branches.get(&(branch.depth(), branch.clone())).map(|known| known.record.header());
        let went_back = match above {
            Some(head) => self.wish_of(head, entry).await?.map(|record| record.header().token),
            None => None,
        };
        // It had come out well when it was joined.
        let mut joint = if self.fallen.iter().any(ours) { Joint::Other } else { Joint::Same };
        for (_, known) in branches.iter().filter(|((_, child), _)| ours(child)) {
            // One that is to be taken forward to its end has not ended yet.
            if known.record.header().end.is_none() || moves.contains_key(&known.record.header().branch) {
                return Ok(Joint::Open);
            }
            // One that has done nothing since its opener went back to it was joined as it is.
            if went_back.is_some_and(|token| known.record.header().token < token) {
                continue;
            }
            let Some(ahead) = known.position.ahead else { continue };
            let Some(shape) = self.shape.of_branch(&known.record.header().branch) else { continue };
            let stands = (&known.record, &known.position);
            let pace = pace(self.engine, self.program, shape, stands).await?;
            let is_same = matches!(pace, Pace::Level(_));
            if ahead.changed || !is_same {
                joint = Joint::Other;
            }
        }
        Ok(joint)
    }
}
