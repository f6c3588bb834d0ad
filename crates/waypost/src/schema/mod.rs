//! Migrations: reads states of older programs, version by version.
//!
//! The header of a checkpoint has the schema version ([`BodyRef::schema`](crate::record::BodyRef)); a state
//! without a schema has version 0. After a change of its state type, a program adds a migration from each
//! version to the next. Migrations run only when a state is read: stored states do not change, and the next
//! checkpoint has the current version.
//!
//! ```text
//!   checkpoint, schema 1 --read--> Value --1 to 2--> Value --2 to 3--> Value --> your type
//!   checkpoint, schema 3 (current) ---------------------------------------------> your type
//!   checkpoint, schema 4 --> refused: a newer program wrote it
//! ```
//!
//! This module knows JSON values and their versions. It reads no store and writes nothing.
//!
//! # Examples
//!
//! ```
//! use serde::Deserialize;
//! use serde_json::json;
//! use waypost::schema::{Migrations, SchemaError};
//!
//! #[derive(Debug, PartialEq, Deserialize)]
//! struct State {
//!     first: String,
//!     last: String,
//!     retries: u32,
//! }
//!
//! let migrations = Migrations::builder()
//!     .add(0, |state| {
//!         state["retries"] = json!(3);
//!         Ok(())
//!     })
//!     .lossy(1, "`name` becomes `first` and `last`", |state| {
//!         let name = state["name"].as_str().ok_or("there is no name")?.to_owned();
//!         let (first, last) = name.split_once(' ').ok_or("a name has two parts")?;
//!         *state = json!({ "first": first, "last": last, "retries": state["retries"] });
//!         Ok(())
//!     })
//!     .build()?;
//!
//! let state: State = migrations.read(0, br#"{"name":"Ada Lovelace"}"#)?;
//! assert_eq!(state, State { first: "Ada".into(), last: "Lovelace".into(), retries: 3 });
//!
//! let newer = migrations.read::<State>(7, b"{}").unwrap_err();
//! assert!(matches!(newer, SchemaError::Newer { found: 7, supported: 2 }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::json::path::{FieldPath, Segment};
use crate::record::{Record, encode};

mod round_trip;

pub use round_trip::check_state;
pub(crate) use round_trip::check_written;

/// The codec of JSON states; all other codecs belong to foreign clients.
const JSON: &str = "json";

/// The error of a migration; any text or error converts with `?` or `into`.
pub type Obstacle = Box<dyn std::error::Error + Send + Sync>;

/// The migrations from each version of a state to the next.
///
/// The default has none: the current version is 0.
#[derive(Debug, Clone, Default)]
pub struct Migrations {
    /// At each index: the migration from this version to the next.
    steps: Vec<Migration>,
}

/// The migration from a version to the next.
#[derive(Clone)]
struct Migration {
    lossy: Option<String>,
    change: Arc<Work>,
}

type Work = dyn Fn(&mut Value) -> Result<(), Obstacle> + Send + Sync;

impl fmt::Debug for Migration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Migration").field("lossy", &self.lossy).finish_non_exhaustive()
    }
}

/// Collects migrations, in any order.
#[derive(Debug, Default)]
pub struct MigrationsBuilder {
    steps: Vec<(u32, Migration)>,
}

/// Why migrations do not form a chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// A version in between has no migration to the next.
    #[error("there is a migration from schema version {newest}, but none from {missing}")]
    Missing {
        /// The version without a migration.
        missing: u32,
        /// The newest version with a migration.
        newest: u32,
    },
    /// Two migrations begin at the same version.
    #[error("there are two migrations from schema version {from}")]
    Twice {
        /// The version.
        from: u32,
    },
}

/// Why a stored state cannot be read. The record did not change.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// A newer program wrote the state. Use this newer program.
    #[error("the state has schema version {found}, this program reads up to {supported}")]
    Newer {
        /// The version found.
        found: u32,
        /// The newest readable version.
        supported: u32,
    },
    /// A migration failed on this state.
    #[error("cannot migrate the state from schema version {from} to {}", from.saturating_add(1))]
    Step {
        /// The version before the migration.
        from: u32,
        /// The error of the migration.
        source: Obstacle,
    },
    /// A migration without a lossy mark removed or changed a value. Mark the migration as lossy, or fix it.
    #[error("the migration from schema version {from} {loss} {path}, and is not marked as lossy")]
    NotAdditive {
        /// The version before the migration.
        from: u32,
        /// The path of the value.
        path: FieldPath,
        /// The kind of loss.
        loss: Loss,
    },
    /// The state has the current version, and does not decode as the program's type.
    #[error(transparent)]
    Deserialize(#[from] DecodeError),
    /// The state has a codec of a foreign client.
    #[error("the state has codec `{codec}`, readable only by the client that wrote it")]
    Foreign {
        /// The codec.
        codec: String,
    },
    /// The record has no state: retention dropped it, or the record was read without its body.
    #[error("retention dropped the state of checkpoint {reference}")]
    Absent {
        /// The checkpoint.
        reference: String,
    },
}

/// The effect of a migration on an existing value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The value was removed.
    Removed,
    /// The value was changed.
    Changed,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Removed => "removes",
            Self::Changed => "changes",
        })
    }
}

/// Why JSON does not decode as a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    /// The faulty field, as precisely as known: inside `flatten` and untagged enums, the enclosing field.
    pub path: FieldPath,
    /// The reason.
    pub why: String,
}

impl std::error::Error for DecodeError {}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.segments() {
            // The caller's message names the state.
            [] => f.write_str(&self.why),
            _ => write!(f, "{}: {}", self.path, self.why),
        }
    }
}

impl MigrationsBuilder {
    /// Adds the migration from version `from` to the next: additions are allowed, removals and changes are
    /// not.
    ///
    /// The migration works on its own copy: an error or panic changes nothing else. A panic propagates to the
    /// reader of the state.
    #[must_use]
    pub fn add(
        self,
        from: u32,
        change: impl Fn(&mut Value) -> Result<(), Obstacle> + Send + Sync + 'static,
    ) -> Self {
        self.with(from, Migration { lossy: None, change: Arc::new(change) })
    }

    /// Adds a lossy migration from version `from` to the next; `what` describes the loss.
    ///
    /// The old state stays in its own checkpoint, as long as retention keeps it.
    #[must_use]
    pub fn lossy(
        self,
        from: u32,
        what: impl Into<String>,
        change: impl Fn(&mut Value) -> Result<(), Obstacle> + Send + Sync + 'static,
    ) -> Self {
        self.with(from, Migration { lossy: Some(what.into()), change: Arc::new(change) })
    }

    fn with(mut self, from: u32, migration: Migration) -> Self {
        self.steps.push((from, migration));
        self
    }

    /// Checks that the migrations form a chain from version 0 to the newest.
    ///
    /// # Errors
    /// [`ChainError`] names the version without a migration, or with two.
    pub fn build(mut self) -> Result<Migrations, ChainError> {
        self.steps.sort_by_key(|(from, _)| *from);
        let newest = self.steps.last().map_or(0, |(from, _)| *from);
        for ((from, _), expect) in self.steps.iter().zip(0..) {
            if *from > expect {
                return Err(ChainError::Missing { missing: expect, newest });
            }
            if *from < expect {
                return Err(ChainError::Twice { from: *from });
            }
        }
        Ok(Migrations { steps: self.steps.into_iter().map(|(_, migration)| migration).collect() })
    }
}

impl Migrations {
    /// Begins a chain.
    pub fn builder() -> MigrationsBuilder {
        MigrationsBuilder::default()
    }

    /// Returns the version of newly written states: the version after the last migration.
    pub fn current(&self) -> u32 {
        u32::try_from(self.steps.len())
            .expect("versions are numbers of 32 bits, and there is one migration for each")
    }

    /// Returns the losses of the lossy migrations between version `found` and the current version.
    pub fn losses(&self, found: u32) -> impl Iterator<Item = (u32, &str)> {
        let steps = (0..).zip(&self.steps).skip(found as usize);
        steps.filter_map(|(from, step)| step.lossy.as_deref().map(|what| (from, what)))
    }

    /// Reads a state of version `found`.
    ///
    /// A state of the current version is decoded directly.
    ///
    /// # Errors
    /// All but [`SchemaError::Foreign`] and [`SchemaError::Absent`].
    pub fn read<S: DeserializeOwned>(&self, found: u32, bytes: &[u8]) -> Result<S, SchemaError> {
        self.check(found)?;
        if found == self.current() {
            return Ok(decode(bytes)?);
        }
        let value = self.migrate(found, decode(bytes)?)?;
        // Decode from text, so that migrated and current states decode equally: a `Value` passes other number
        // types to a type than text does.
        let mut bytes = Vec::new();
        encode(&value, &mut bytes)
            .map_err(|flaw| SchemaError::Step { from: self.current() - 1, source: flaw.into() })?;
        Ok(decode(&bytes)?)
    }

    /// Reads the state of a record, as [`Migrations::read`] does.
    ///
    /// # Errors
    /// Every [`SchemaError`].
    pub fn state<S: DeserializeOwned>(&self, record: &Record) -> Result<S, SchemaError> {
        let (Some(body), Some(bytes)) = (&record.header().body, record.state_bytes()) else {
            return Err(SchemaError::Absent { reference: record.header().reference().to_string() });
        };
        if body.codec != JSON {
            return Err(SchemaError::Foreign { codec: body.codec.clone() });
        }
        self.read(body.schema, bytes)
    }

    /// Migrates a value of version `found` to the current version, for tools without the state's type.
    ///
    /// # Errors
    /// [`SchemaError::Newer`], [`SchemaError::Step`], [`SchemaError::NotAdditive`].
    pub fn migrate(&self, found: u32, mut value: Value) -> Result<Value, SchemaError> {
        self.check(found)?;
        for (from, step) in (0..).zip(&self.steps).skip(found as usize) {
            let before = step.lossy.is_none().then(|| value.clone());
            (step.change)(&mut value).map_err(|source| SchemaError::Step { from, source })?;
            if let Some((path, loss)) = before.and_then(|before| loss(&before, &value)) {
                return Err(SchemaError::NotAdditive { from, path, loss });
            }
        }
        Ok(value)
    }

    fn check(&self, found: u32) -> Result<(), SchemaError> {
        let supported = self.current();
        if found > supported { Err(SchemaError::Newer { found, supported }) } else { Ok(()) }
    }
}

/// Finds the first value of `before` missing from its place in `after`. Allowed additions: members of an
/// object, and elements at the end of an array.
fn loss(before: &Value, after: &Value) -> Option<(FieldPath, Loss)> {
    let mut path = FieldPath::default();
    lost(before, after, &mut path).map(|loss| (path, loss))
}

/// Leaves `path` at the place of the loss.
fn lost(before: &Value, after: &Value, path: &mut FieldPath) -> Option<Loss> {
    let within = |segment: Segment, value: &Value, place: Option<&Value>, path: &mut FieldPath| {
        path.push(segment);
        let found = place.map_or(Some(Loss::Removed), |place| lost(value, place, path));
        if found.is_none() {
            path.pop();
        }
        found
    };
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => before
            .iter()
            .find_map(|(key, value)| within(Segment::Key(key.clone()), value, after.get(key), path)),
        (Value::Array(before), Value::Array(after)) => {
            let mut elements = before.iter().enumerate();
            elements.find_map(|(index, value)| within(Segment::Index(index), value, after.get(index), path))
        }
        _ if same_scalar(before, after) => None,
        _ => Some(Loss::Changed),
    }
}

/// Compares numbers by their text: 1 and 1.0 differ, and so do the two zeros.
fn same_scalar(before: &Value, after: &Value) -> bool {
    match (before, after) {
        (Value::Number(before), Value::Number(after)) => before.to_string() == after.to_string(),
        _ => before == after,
    }
}

/// Decodes a JSON value; an error names the faulty field.
///
/// # Errors
/// [`DecodeError`]: a field does not match the type, or the bytes are not JSON.
pub fn decode<S: DeserializeOwned>(bytes: &[u8]) -> Result<S, DecodeError> {
    serde_json::from_slice(bytes).map_err(|error| {
        // Decode again with path tracking, which is too slow for every read.
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        match serde_path_to_error::deserialize::<_, S>(&mut reader) {
            Err(error) => DecodeError { path: path_of(error.path()), why: error.inner().to_string() },
            Ok(_) => DecodeError { path: FieldPath::default(), why: error.to_string() },
        }
    })
}

fn path_of(path: &serde_path_to_error::Path) -> FieldPath {
    use serde_path_to_error::Segment as Found;
    let segments = path.iter().filter_map(|segment| match segment {
        Found::Seq { index } => Some(Segment::Index(*index)),
        Found::Map { key } | Found::Enum { variant: key } => Some(Segment::Key(key.clone())),
        Found::Unknown => None,
    });
    FieldPath::from(segments.collect::<Vec<_>>())
}
