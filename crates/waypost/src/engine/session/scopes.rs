//! The in-memory branches of a session, by number.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::id::BranchPath;

use crate::engine::scope::{MAIN, Scope, ScopeId};

/// The branches in memory. The main branch always exists.
pub(crate) struct Scopes<'a, S> {
    slots: Vec<Option<Scope<'a, S>>>,
    /// Free numbers, the lowest first, so that branches opened in order are written in order.
    free: BinaryHeap<Reverse<ScopeId>>,
    by_branch: HashMap<BranchPath, ScopeId>,
}

impl<'a, S> Scopes<'a, S> {
    pub(crate) fn new(main: Scope<'a, S>) -> Self {
        let by_branch = HashMap::from([(main.branch().clone(), MAIN)]);
        Self { slots: vec![Some(main)], free: BinaryHeap::new(), by_branch }
    }

    pub(crate) fn get(&self, id: ScopeId) -> &Scope<'a, S> {
        self.slots[id].as_ref().expect("only branches in memory are named")
    }

    pub(crate) fn get_mut(&mut self, id: ScopeId) -> &mut Scope<'a, S> {
        self.slots[id].as_mut().expect("only branches in memory are named")
    }

    pub(crate) fn find_ref(&self, id: ScopeId) -> Option<&Scope<'a, S>> {
        self.slots.get(id)?.as_ref()
    }

    pub(crate) fn find(&mut self, id: ScopeId) -> Option<&mut Scope<'a, S>> {
        self.slots.get_mut(id)?.as_mut()
    }

    pub(crate) fn of_branch(&self, branch: &BranchPath) -> Option<&Scope<'a, S>> {
        self.by_branch.get(branch).map(|id| self.get(*id))
    }

    pub(crate) fn add(&mut self, scope: Scope<'a, S>) -> ScopeId {
        let branch = scope.branch().clone();
        let id = match self.free.pop() {
            Some(Reverse(id)) => {
                self.slots[id] = Some(scope);
                id
            }
            None => {
                self.slots.push(Some(scope));
                self.slots.len() - 1
            }
        };
        self.by_branch.insert(branch, id);
        id
    }

    pub(crate) fn remove(&mut self, id: ScopeId) -> Option<Scope<'a, S>> {
        let scope = self.slots.get_mut(id)?.take();
        if let Some(scope) = &scope {
            self.free.push(Reverse(id));
            self.by_branch.remove(scope.branch());
        }
        scope
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (ScopeId, &mut Scope<'a, S>)> {
        self.slots.iter_mut().enumerate().filter_map(|(id, scope)| scope.as_mut().map(|scope| (id, scope)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ScopeId, &Scope<'a, S>)> {
        self.slots.iter().enumerate().filter_map(|(id, scope)| scope.as_ref().map(|scope| (id, scope)))
    }
}
