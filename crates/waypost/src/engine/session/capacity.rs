//! The scope quota, for stores with a limit of scopes per run.

use std::collections::HashSet;
use std::sync::Arc;

use crate::id::{ScopePath, StepId};
use crate::record::{Failure, FailureKind};
use crate::store::{StoreError, StoreExt as _};

use super::Session;
use crate::engine::scope::ScopeId;
use crate::engine::scope::fan_out::{Item, Items};
use crate::engine::walk::scheduler::children_of;
use crate::engine::{Program, RunError};

impl<P: Program> Session<'_, P> {
    /// Reserves quota for all scopes of a fan-out before the first scope opens. Returns a failure if the quota
    /// is too small. A scope that continues an existing chain needs no quota.
    pub(crate) async fn check_capacity(
        &mut self,
        id: ScopeId,
        name: &StepId,
        items: &[Item],
    ) -> Result<Result<(), Failure>, RunError> {
        let Some(max) = self.engine.store.scopes_max() else { return Ok(Ok(())) };
        let mut known = match self.known_paths.take() {
            Some(known) => known,
            None => self.scopes_known().await?,
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
        self.known_paths = Some(known);
        if fits {
            return Ok(Ok(()));
        }
        let text = format!(
            "cannot open {} scopes: the run would have {count}, the maximum of the store is {max}: use a \
             store `sqlite:PATH`",
            items.len()
        );
        Ok(Err(Failure::new(FailureKind::Limit, vec![text])))
    }

    /// Returns the scopes of the run, and the scopes that open fan-outs will still open.
    async fn scopes_known(&mut self) -> Result<HashSet<ScopePath>, RunError> {
        let (store, run) = (Arc::clone(&self.engine.store), self.main().chain.run.clone());
        let named = store.scopes(&run).await?;
        let mut known: HashSet<_> = named.into_iter().filter(|name| !name.is_main()).collect();
        let open: Vec<(ScopeId, usize, Items)> = self
            .scopes
            .iter()
            .flat_map(|(id, scope)| scope.fans.iter().map(move |fan| (id, fan.place, fan.source.clone())))
            .collect();
        for (id, place, source) in open {
            let mut reader = source.reader(Arc::clone(&store), 0).await?;
            while let Some(item) = reader.next().await? {
                let name = &children_of(self.scopes.get(id), place).name;
                known.insert(self.child_of(id, name, &item)?);
            }
        }
        Ok(known)
    }

    fn child_of(&self, id: ScopeId, name: &StepId, item: &Item) -> Result<ScopePath, StoreError> {
        let child = self.scopes.get(id).path().child(name, &item.key);
        child.map_err(|error| StoreError::Invalid(error.to_string()))
    }
}
