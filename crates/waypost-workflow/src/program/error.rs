//! Errors that keep a workflow from running.

use waypost::InvalidName;
use waypost::shape::ShapeError;

use crate::mask::MaskError;

/// Why a workflow cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The engine rejects a step id or the graph. The file was checked for this, so the cause is a bug.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// An id is not valid.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A secret is not set.
    #[error("secret `{}` is not set in the environment", .0.join("`, `"))]
    MissingSecrets(Vec<String>),
    /// A step names an agent that is not configured.
    #[error("step `{step}` needs agent `{agent}`, which is not configured; configured: {known}")]
    UnknownAgent {
        /// Step id.
        step: String,
        /// Name of the agent.
        agent: String,
        /// Names of the known agents.
        known: String,
    },
    /// Two items that are made of params have the same key.
    #[error("items {} and {} of step `{step}` have the same key `{key}`", items[0], items[1])]
    SameKey {
        /// Step id.
        step: String,
        /// Key.
        key: String,
        /// Positions among the selected items, from 1.
        items: [usize; 2],
    },
    /// A secret cannot be masked.
    #[error(transparent)]
    Mask(#[from] MaskError),
    /// A param would put a secret into the records.
    #[error("param `{param}` contains a secret; read the secret from the environment of the step")]
    SecretParam {
        /// Name of the param.
        param: String,
    },
}
