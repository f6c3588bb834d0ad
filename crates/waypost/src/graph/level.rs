//! The functions of a shape of a graph, through an interface without the type of the state.
//!
//! A graph has a level for the main scope and a level for each kind of child scope, each with a separate state
//! type. The engine holds states as [`Held`] and passes each state only to its own level.

use std::any::Any;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::context::Context;
use super::error::StepError;
use crate::engine::{Follow, Item, Joined, StateError};
use crate::id::StepId;
use crate::record::{Failure, FailureKind, Flaw, Pack};

/// The bounds of a state: stored as JSON, cloned for each scope, sent between threads.
pub trait State: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {}

impl<S: Serialize + DeserializeOwned + Clone + Send + Sync + 'static> State for S {}

/// A state whose type only its level knows.
pub(super) type Held = Box<dyn Any + Send + Sync>;

/// The function of a step.
pub(super) type StepFn<S> = Arc<dyn Fn(S, Context) -> BoxFuture<'static, Result<S, StepError>> + Send + Sync>;
/// The function of a step that joins scopes.
pub(super) type JoinFn<S> =
    Arc<dyn Fn(S, Joined, Context) -> BoxFuture<'static, Result<S, StepError>> + Send + Sync>;
/// Chooses the next step from the state.
pub(super) type RouteFn<S> = Arc<dyn Fn(&S) -> String + Send + Sync>;
/// Lists the items of a fan-out from the state.
pub(super) type OpenFn<S> = Arc<dyn Fn(&S) -> Result<Vec<Item>, Failure> + Send + Sync>;
/// Makes the initial state of a child.
pub(super) type ChildFn<S> = Arc<dyn Fn(&S, &Item) -> Result<Held, Failure> + Send + Sync>;
/// Makes the claims of a step from its output state.
pub(super) type EvidenceFn<S> = Arc<dyn Fn(&S) -> Pack + Send + Sync>;
/// Returns true if a retry may fix an error.
pub(super) type RetryFn = Arc<dyn Fn(&StepError) -> bool + Send + Sync>;

/// The action of a step: a plain function, or a join of its children.
pub(super) enum StepAction<S> {
    Step(StepFn<S>),
    Join(JoinFn<S>),
}

/// The outgoing way of a step.
pub(super) enum Next<S> {
    End,
    To(usize),
    Route { targets: Vec<(StepId, Option<usize>)>, choose: RouteFn<S> },
}

/// How a step opens children.
pub(super) struct Opens<S> {
    pub(super) items: Option<OpenFn<S>>,
    pub(super) child: ChildFn<S>,
}

/// One step with its functions.
pub(super) struct Node<S> {
    pub(super) id: StepId,
    pub(super) action: StepAction<S>,
    pub(super) next: Next<S>,
    pub(super) opens: Option<Opens<S>>,
    pub(super) retry_when: Option<RetryFn>,
    pub(super) evidence: Option<EvidenceFn<S>>,
}

/// A level with its state type erased.
pub(super) trait Level: Send + Sync {
    fn schema(&self) -> u32;
    fn encode(&self, state: &Held, bytes: &mut Vec<u8>) -> Result<(), Flaw>;
    fn decode(&self, bytes: &[u8], schema: u32) -> Result<Held, StateError>;
    /// Checks that an encoded state round-trips.
    fn check(&self, bytes: &[u8]) -> Result<(), Flaw>;
    fn copy(&self, state: &Held) -> Held;
    fn open(&self, place: usize, state: &Held) -> Result<Vec<Item>, Failure>;
    fn child(&self, place: usize, state: &Held, item: &Item) -> Result<Held, Failure>;
    fn follow(&self, place: usize, state: &Held) -> Result<Follow, Failure>;
    fn perform(
        &self,
        place: usize,
        state: Held,
        joined: Option<Joined>,
        context: Context,
    ) -> BoxFuture<'static, Result<Held, StepError>>;
    fn is_retryable(&self, place: usize, error: &StepError) -> bool;
    fn evidence(&self, place: usize, state: &Held) -> Option<Pack>;
}

/// Decodes a state of a schema version.
pub(super) type DecodeFn<S> = Arc<dyn Fn(&[u8], u32) -> Result<S, StateError> + Send + Sync>;

/// The schema version and the decoder of the states of a level.
pub(super) struct Keeping<S> {
    pub(super) schema: u32,
    pub(super) decode: DecodeFn<S>,
}

/// A level with a known state type.
pub(super) struct Typed<S> {
    pub(super) nodes: Vec<Node<S>>,
    pub(super) keeping: Keeping<S>,
}

impl<S: State> Typed<S> {
    fn known<'a>(&self, state: &'a Held) -> &'a S {
        state.downcast_ref().expect("a state goes back only to the level that made it")
    }
}

impl<S: State> Level for Typed<S> {
    fn schema(&self) -> u32 {
        self.keeping.schema
    }

    fn encode(&self, state: &Held, bytes: &mut Vec<u8>) -> Result<(), Flaw> {
        crate::record::encode(self.known(state), bytes)
    }

    fn decode(&self, bytes: &[u8], schema: u32) -> Result<Held, StateError> {
        (self.keeping.decode)(bytes, schema).map(|state| Box::new(state) as Held)
    }

    fn check(&self, bytes: &[u8]) -> Result<(), Flaw> {
        crate::schema::check_written::<S>(bytes)
    }

    fn copy(&self, state: &Held) -> Held {
        Box::new(self.known(state).clone())
    }

    fn open(&self, place: usize, state: &Held) -> Result<Vec<Item>, Failure> {
        let opens = self.nodes[place].opens.as_ref();
        match opens.and_then(|opens| opens.items.as_ref()) {
            Some(items) => items(self.known(state)),
            None => Ok(Vec::new()),
        }
    }

    fn child(&self, place: usize, state: &Held, item: &Item) -> Result<Held, Failure> {
        let opens = self.nodes[place].opens.as_ref().expect("only steps with children are asked for one");
        (opens.child)(self.known(state), item)
    }

    fn follow(&self, place: usize, state: &Held) -> Result<Follow, Failure> {
        let node = &self.nodes[place];
        match &node.next {
            Next::End => Ok(Follow::End),
            Next::To(next) => Ok(Follow::To(*next)),
            Next::Route { targets, choose } => {
                let chosen = choose(self.known(state));
                match targets.iter().find(|(id, _)| id.as_str() == chosen) {
                    Some((_, Some(place))) => Ok(Follow::To(*place)),
                    Some((_, None)) => Ok(Follow::End),
                    None => {
                        let names: Vec<_> = targets.iter().map(|(id, _)| format!("`{id}`")).collect();
                        let text = format!(
                            "the route after step `{}` chose `{chosen}`, declared are {}",
                            node.id,
                            names.join(", ")
                        );
                        Err(Failure::new(FailureKind::Fatal, vec![text]))
                    }
                }
            }
        }
    }

    fn perform(
        &self,
        place: usize,
        state: Held,
        joined: Option<Joined>,
        context: Context,
    ) -> BoxFuture<'static, Result<Held, StepError>> {
        let state = *state.downcast::<S>().expect("a state goes back only to the level that made it");
        let work = match (&self.nodes[place].action, joined) {
            (StepAction::Step(step), _) => step(state, context),
            (StepAction::Join(join), Some(joined)) => join(state, joined, context),
            (StepAction::Join(_), None) => unreachable!("a step with children starts when they have ended"),
        };
        Box::pin(async move { work.await.map(|state| Box::new(state) as Held) })
    }

    fn is_retryable(&self, place: usize, error: &StepError) -> bool {
        !error.is_fatal() && self.nodes[place].retry_when.as_ref().is_none_or(|when| when(error))
    }

    fn evidence(&self, place: usize, state: &Held) -> Option<Pack> {
        self.nodes[place].evidence.as_ref().map(|evidence| evidence(self.known(state)))
    }
}

/// Decodes the value of an item.
pub(super) fn item_value<T: DeserializeOwned>(item: &Item) -> Result<T, Failure> {
    T::deserialize(&item.value).map_err(|error| {
        let text = format!("cannot decode the recorded item `{}`: {error}", item.key);
        Failure::new(FailureKind::Fatal, vec![text])
    })
}

/// Encodes the value of an item.
pub(super) fn to_value<T: Serialize>(key: &str, item: &T) -> Result<Value, Failure> {
    crate::record::to_value(item).map_err(|flaw| {
        Failure::new(FailureKind::Fatal, vec![format!("cannot record item `{key}`"), flaw.to_string()])
    })
}
