//! Input of a join: the ends of its branches.

use std::marker::PhantomData;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::StepError;
use super::level::{Held, Level, State};
use crate::engine::{ChildEnd, Outcomes, StateError};
use crate::record::{End, Failure, Record};

/// The end of a branch of a fork.
#[derive(Debug, Clone)]
pub struct BranchEnd<S> {
    /// The branch's first step, which is its key.
    pub key: String,
    /// The last state of the branch, or the failure.
    pub result: Result<S, Failure>,
}

impl<S> BranchEnd<S> {
    pub(super) fn of(
        end: &ChildEnd,
        decode: impl FnOnce(&[u8], u32) -> Result<S, StateError>,
    ) -> Result<Self, StepError> {
        let result = match failure_of(end) {
            Some(failure) => Err(failure),
            None => Ok(decode(bytes_of(&end.record)?, schema_of(&end.record))
                .map_err(|error| unread(&end.record, &error))?),
        };
        Ok(Self { key: end.item.key.clone(), result })
    }
}

/// The ends of all branches of a fork, in the order of their declaration.
#[derive(Debug, Clone)]
pub struct Branches<S>(pub Vec<BranchEnd<S>>);

impl<S> Branches<S> {
    /// Returns the final state of the branch with `key`, if the branch succeeded.
    pub fn state(&self, key: &str) -> Option<&S> {
        self.0.iter().find(|branch| branch.key == key)?.result.as_ref().ok()
    }

    /// Iterates over the ends.
    pub fn iter(&self) -> std::slice::Iter<'_, BranchEnd<S>> {
        self.0.iter()
    }
}

impl<S> IntoIterator for Branches<S> {
    type Item = BranchEnd<S>;
    type IntoIter = std::vec::IntoIter<BranchEnd<S>>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// The state of a scope over an item.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Child<T, R> {
    /// The index of the item, from 0.
    pub index: u64,
    /// The item.
    pub item: T,
    /// The result of the work. The JSON field exists only once there is a result; a result may be null.
    #[serde(
        default = "Option::default",
        skip_serializing_if = "Option::is_none",
        serialize_with = "write_result",
        deserialize_with = "read_result",
        bound(serialize = "R: Serialize", deserialize = "R: Deserialize<'de>")
    )]
    pub result: Option<R>,
}

/// Writes the result of an item, without the `Some` wrapper.
fn write_result<R: Serialize, S: Serializer>(result: &Option<R>, serializer: S) -> Result<S::Ok, S::Error> {
    match result {
        Some(result) => result.serialize(serializer),
        None => serializer.serialize_none(),
    }
}

/// Reads the result of an item from an existing field, null included.
fn read_result<'de, R: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<R>, D::Error> {
    R::deserialize(deserializer).map(Some)
}

/// The end of the work on an item.
#[derive(Debug, Clone)]
pub struct ItemEnd<T, R> {
    /// The key of the item.
    pub key: String,
    /// The item.
    pub item: T,
    /// The result of the work, or the failure.
    pub result: Result<R, Failure>,
}

/// The ends of the items in order, read one at a time: memory use does not grow with the number of items.
#[derive(Debug)]
pub struct ItemEnds<T, R> {
    total: u64,
    outcomes: Outcomes,
    kind: PhantomData<fn() -> (T, R)>,
}

impl<T: State, R: State> ItemEnds<T, R> {
    pub(super) fn new(total: u64, outcomes: Outcomes) -> Self {
        Self { total, outcomes, kind: PhantomData }
    }

    /// Returns the number of items.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the next end, or `None` after the last item.
    ///
    /// # Errors
    /// The record of its scope is damaged or cannot be read.
    pub async fn next(&mut self) -> Result<Option<ItemEnd<T, R>>, StepError> {
        let Some(end) = self.outcomes.next().await? else { return Ok(None) };
        let child: Child<T, R> =
            crate::schema::decode(bytes_of(&end.record)?).map_err(|error| unread(&end.record, &error))?;
        let result = match (failure_of(&end), child.result) {
            (Some(failure), _) => Err(failure),
            (None, Some(result)) => Ok(result),
            (None, None) => {
                let text = format!("scope {} ended without a result", end.record.header().reference());
                return Err(StepError::fatal(text));
            }
        };
        Ok(Some(ItemEnd { key: end.item.key, item: child.item, result }))
    }
}

/// Returns the failure of a scope that did not succeed.
fn failure_of(end: &ChildEnd) -> Option<Failure> {
    match (end.failure(), end.end) {
        (Some(failure), End::Failed) => Some(failure.clone()),
        (_, End::Completed | End::Skipped) => None,
        (_, End::Failed | End::Cancelled) => {
            let text = format!("the scope ended as {:?}", end.end).to_lowercase();
            Some(Failure::new(crate::record::FailureKind::Error, vec![text]))
        }
    }
}

fn bytes_of(record: &Record) -> Result<&[u8], StepError> {
    let gone = || StepError::fatal(format!("the state of {} is gone", record.header().reference()));
    record.state_bytes().ok_or_else(gone)
}

fn unread(record: &Record, why: &dyn std::error::Error) -> StepError {
    StepError::fatal(format!("cannot read the state of {}: {why}", record.header().reference()))
}

fn schema_of(record: &Record) -> u32 {
    record.header().body.as_ref().map_or(0, |body| body.schema)
}

/// Decodes the state of a scope with its level.
pub(super) fn state_of(level: &dyn Level, record: &Record) -> Result<Held, StepError> {
    level.decode(bytes_of(record)?, schema_of(record)).map_err(|error| unread(record, &error))
}
