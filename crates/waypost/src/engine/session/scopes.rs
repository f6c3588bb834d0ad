//! The in-memory scopes of a session, by number.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::id::ScopePath;

use crate::engine::scope::{MAIN, Scope, ScopeId};

/// The scopes in memory. The main scope always exists.
pub(crate) struct Scopes<'a, S> {
    slots: Vec<Option<Scope<'a, S>>>,
    /// Free numbers, the lowest first, so that scopes opened in order are written in order.
    free: BinaryHeap<Reverse<ScopeId>>,
    by_scope: HashMap<ScopePath, ScopeId>,
}

impl<'a, S> Scopes<'a, S> {
    pub(crate) fn new(main: Scope<'a, S>) -> Self {
        let by_scope = HashMap::from([(main.path().clone(), MAIN)]);
        Self { slots: vec![Some(main)], free: BinaryHeap::new(), by_scope }
    }

    pub(crate) fn get(&self, id: ScopeId) -> &Scope<'a, S> {
        self.slots[id].as_ref().expect("only scopes in memory are named")
    }

    pub(crate) fn get_mut(&mut self, id: ScopeId) -> &mut Scope<'a, S> {
        self.slots[id].as_mut().expect("only scopes in memory are named")
    }

    pub(crate) fn find_ref(&self, id: ScopeId) -> Option<&Scope<'a, S>> {
        self.slots.get(id)?.as_ref()
    }

    pub(crate) fn find(&mut self, id: ScopeId) -> Option<&mut Scope<'a, S>> {
        self.slots.get_mut(id)?.as_mut()
    }

    pub(crate) fn of_scope(&self, scope: &ScopePath) -> Option<&Scope<'a, S>> {
        self.by_scope.get(scope).map(|id| self.get(*id))
    }

    pub(crate) fn add(&mut self, scope: Scope<'a, S>) -> ScopeId {
        let path = scope.path().clone();
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
        self.by_scope.insert(path, id);
        id
    }

    pub(crate) fn remove(&mut self, id: ScopeId) -> Option<Scope<'a, S>> {
        let scope = self.slots.get_mut(id)?.take();
        if let Some(scope) = &scope {
            self.free.push(Reverse(id));
            self.by_scope.remove(scope.path());
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
