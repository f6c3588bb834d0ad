//! Room for branches, in stores that keep only so many of a run.

use std::collections::HashSet;
use std::sync::Arc;

use crate::id::{BranchPath, StepId};
use crate::record::{Failure, FailureKind};
use crate::store::{StoreError, StoreExt as _};

use super::fan_out::{Item, Items};
use super::scheduler::children_of;
use super::scope::LineId;
use super::session::Session;
use super::{Program, RunError};

impl<P: Program> Session<'_, P> {
    /// Takes room for all branches that a step is about to open; says why not, if there is too little, before any of
    /// them is opened. A branch that goes on with the chain of an earlier one needs none.
    pub(super) async fn take_room(
        &mut self,
        id: LineId,
        name: &StepId,
        items: &[Item],
    ) -> Result<Result<(), Failure>, RunError> {
        let Some(max) = self.engine.store.branches_max() else { return Ok(Ok(())) };
        let mut known = match self.branches.take() {
            Some(known) => known,
            None => self.branches_known().await?,
        };
        let mut new = Vec::new();
        for item in items {
            new.extend(Some(self.child_of(id, name, item)?).filter(|child| !known.contains(child)));
        }
        let count = (known.len() + new.len()) as u64;
        let fits = count <= max;
        if fits {
            known.extend(new);
        }
        self.branches = Some(known);
        if fits {
            return Ok(Ok(()));
        }
        let text = format!(
            "{} branches are to be opened, and the run would have {count} then; its store keeps {max}: use one named `sqlite:PATH` for it",
            items.len()
        );
        Ok(Err(Failure::new(FailureKind::Limit, vec![text])))
    }

    /// Returns the branches that the run has, and those that its fan-outs under way are going to open.
    async fn branches_known(&mut self) -> Result<HashSet<BranchPath>, RunError> {
        let (store, run) = (Arc::clone(&self.engine.store), self.main().chain.run.clone());
        let named = store.branches(&run).await?;
        let mut known: HashSet<_> = named.into_iter().filter(|name| !name.is_main()).collect();
        let open: Vec<(LineId, usize, Items)> = self
            .lines
            .iter()
            .flat_map(|(id, line)| line.fans.iter().map(move |fan| (id, fan.place, fan.source.clone())))
            .collect();
        for (id, place, source) in open {
            let mut reader = source.reader(Arc::clone(&store), 0).await?;
            while let Some(item) = reader.next().await? {
                let name = &children_of(self.lines.get(id), place).name;
                known.insert(self.child_of(id, name, &item)?);
            }
        }
        Ok(known)
    }

    fn child_of(&self, id: LineId, name: &StepId, item: &Item) -> Result<BranchPath, StoreError> {
        let child = self.lines.get(id).branch().child(name, &item.key);
        child.map_err(|error| StoreError::Invalid(error.to_string()))
    }
}
