//! What keeps a workflow from being run.

use waypost::InvalidName;
use waypost::shape::ShapeError;

use crate::mask::MaskError;

/// Why a workflow cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// A step id or its graph is refused by the engine; the file was checked for this, so it is a bug.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// An id.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A secret is not set.
    #[error("secret `{}` is not set in the environment", .0.join("`, `"))]
    MissingSecrets(Vec<String>),
    /// A step names an agent that nobody has configured.
    #[error("step `{step}` wants agent `{agent}`, which is not known; known are {known}")]
    UnknownAgent {
        /// The step.
        step: String,
        /// The agent.
        agent: String,
        /// Those that are known.
        known: String,
    },
    /// Two items of a step that are made of params have one key.
    #[error("items {} and {} of step `{step}` have the key `{key}`", items[0], items[1])]
    SameKey {
        /// The step.
        step: String,
        /// The key.
        key: String,
        /// Their places among the items that are worked on, from 1.
        items: [usize; 2],
    },
    /// A secret cannot be masked.
    #[error(transparent)]
    Mask(#[from] MaskError),
    /// A parameter would put a secret into the records.
    #[error("param `{param}` contains a secret; read it from the environment of the step instead")]
    SecretParam {
        /// The param.
        param: String,
    },
}
