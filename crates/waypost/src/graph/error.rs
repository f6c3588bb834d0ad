//! Errors of steps, and errors of building a graph.

use std::error::Error;
use std::fmt;

use crate::id::{InvalidName, StepId};
use crate::plan::shape::ShapeError;

/// The error of a step: any error, with the information whether a retry may help.
///
/// Every type that implements [`Error`] converts with `?`, and is retried within the limits of
/// [`Retry`](crate::Retry). `StepError` itself does not implement [`Error`], because it converts from every
/// error.
///
/// Boxed errors, error-reporting crates and plain text do not implement [`Error`]. Convert these with
/// [`retryable`](ToStepError::retryable), or with [`fatal`](ToStepError::fatal) where a retry cannot help.
///
/// ```
/// use waypost::{StepError, ToStepError as _};
///
/// fn fetch() -> Result<u32, Box<dyn std::error::Error + Send + Sync>> {
///     Ok("7".parse()?)
/// }
///
/// # fn step() -> Result<u32, StepError> {
/// let found = fetch().retryable()?;
/// let known = "7".parse::<u32>()?;
/// # Ok(found + known)
/// # }
/// # assert_eq!(step().unwrap(), 14);
/// ```
pub struct StepError {
    source: Box<dyn Error + Send + Sync>,
    fatal: bool,
}

impl StepError {
    /// Wraps an error that a retry will not fix: the step fails at once.
    pub fn fatal(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: error.into(), fatal: true }
    }

    /// Wraps an error that a retry may fix.
    pub fn retryable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: error.into(), fatal: false }
    }

    /// Returns true if a retry cannot help.
    pub fn is_fatal(&self) -> bool {
        self.fatal
    }

    /// Returns the error if its type is `E`.
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.source.downcast_ref()
    }

    /// Returns the messages of the error and of its causes, outermost first.
    pub fn chain(&self) -> Vec<String> {
        let mut chain = vec![self.source.to_string()];
        let mut cause = self.source.source();
        while let Some(error) = cause {
            chain.push(error.to_string());
            cause = error.source();
        }
        chain
    }
}

impl fmt::Debug for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepError").field("fatal", &self.fatal).field("source", &self.source).finish()
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.source, f)
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for StepError {
    fn from(error: E) -> Self {
        Self::retryable(error)
    }
}

/// Converts the error of a result to a [`StepError`]: any error, boxed errors and plain text included.
pub trait ToStepError<T> {
    /// Converts an error that a retry may fix.
    ///
    /// # Errors
    /// The error of the result, as [`StepError::retryable`].
    fn retryable(self) -> Result<T, StepError>;

    /// Converts an error that a retry will not fix: the step fails at once.
    ///
    /// # Errors
    /// The error of the result, as [`StepError::fatal`].
    fn fatal(self) -> Result<T, StepError>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> ToStepError<T> for Result<T, E> {
    fn retryable(self) -> Result<T, StepError> {
        self.map_err(StepError::retryable)
    }

    fn fatal(self) -> Result<T, StepError> {
        self.map_err(StepError::fatal)
    }
}

/// The reason why steps and edges do not make a graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// The graph has no steps.
    #[error("the graph has no steps")]
    Empty,
    /// A step has an invalid name.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// An edge, a route or a fork names an invalid step id.
    #[error("{edge} is invalid: {why}")]
    BadName {
        /// The edge, route or fork.
        edge: String,
        /// The problem with the name.
        why: InvalidName,
    },
    /// A step has the reserved name of the end.
    #[error("`{END}` names the end of a graph and cannot be a step", END = super::END)]
    Reserved,
    /// Two steps have the same name.
    #[error("duplicate step `{0}`")]
    Twice(StepId),
    /// An edge names a step that the graph does not have.
    #[error("{edge} names `{missing}`, which the graph does not have")]
    Unknown {
        /// The edge, route or fork.
        edge: String,
        /// The missing step.
        missing: StepId,
    },
    /// A step has two outgoing ways.
    #[error("step `{step}` has two ways on, {one} and {other}: only one edge, route or fork is allowed")]
    TwoWays {
        /// The step.
        step: StepId,
        /// The first way.
        one: String,
        /// The second way.
        other: String,
    },
    /// A route or a fork names a step twice.
    #[error("{edge} names `{step}` twice")]
    NamedTwice {
        /// The route or the fork.
        edge: String,
        /// The step.
        step: StepId,
    },
    /// An edge leads to a join from outside the fork of the join.
    #[error(
        "{from} leads to `{join}`, which joins the fork after `{after}`: only that fork and its branches \
         lead to its join"
    )]
    IntoJoin {
        /// The source of the edge.
        from: String,
        /// The join.
        join: StepId,
        /// The step before the fork.
        after: StepId,
    },
    /// A step cannot be reached from the start.
    #[error("step `{0}` is unreachable")]
    Unreachable(StepId),
    /// No path leads from the step to the end.
    #[error("no path leads from step `{0}` to the end")]
    NoEnd(StepId),
    /// A step is reachable from two scopes.
    #[error("step `{step}` is reached from {one} and from {other}: a step belongs to one scope")]
    Shared {
        /// The step.
        step: StepId,
        /// The first scope.
        one: String,
        /// The second scope.
        other: String,
    },
    /// A fork or a route has no targets.
    #[error("{0} leads nowhere")]
    NoTargets(String),
    /// A setting precedes the first step.
    #[error("`{0}` follows no step, and needs a step before")]
    NoStep(&'static str),
    /// The shape is invalid.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}
