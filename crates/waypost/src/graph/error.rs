//! Errors of steps, and what is wrong with a graph.

use std::error::Error;
use std::fmt;

use crate::id::{InvalidName, StepId};
use crate::shape::ShapeError;

/// The error of a step: any error, and whether another try could mend it.
///
/// Every type that implements [`Error`] becomes one with `?`, and is tried again as far as the step's
/// [`Retry`](crate::Retry) goes. As it takes in any error, it is none itself.
///
/// Boxed errors, those of error-reporting crates and plain text do not implement [`Error`]: they become one by
/// `.map_err(StepError::retryable)?`, or by [`StepError::fatal`] where no try can mend them.
///
/// ```
/// use waypost::StepError;
///
/// fn fetch() -> Result<u32, Box<dyn std::error::Error + Send + Sync>> {
///     Ok("7".parse()?)
/// }
///
/// # fn step() -> Result<u32, StepError> {
/// let found = fetch().map_err(StepError::retryable)?;
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
    /// Takes an error that another try will not mend: the step fails at once.
    pub fn fatal(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: error.into(), fatal: true }
    }

    /// Takes an error that another try may mend.
    pub fn retryable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: error.into(), fatal: false }
    }

    /// Says whether another try is of no use.
    pub fn is_fatal(&self) -> bool {
        self.fatal
    }

    /// Returns the error if it is of that type.
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.source.downcast_ref()
    }

    /// Returns the messages of the error and all its causes, outermost first.
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

/// Why steps and edges are no graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// There is no step.
    #[error("the graph has no steps")]
    Empty,
    /// A name that no step can have.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// An edge, a route or a fork with a name that no step can have.
    #[error("{edge} cannot be: {why}")]
    BadName {
        /// The edge, as it was written.
        edge: String,
        /// What is wrong with the name.
        why: InvalidName,
    },
    /// A step named like the end.
    #[error("`{END}` names the end of a graph and cannot be a step", END = super::END)]
    Reserved,
    /// Two steps of one name.
    #[error("step `{0}` is there twice")]
    Twice(StepId),
    /// An edge to or from a step that there is not.
    #[error("{edge} names `{missing}`, which the graph does not have")]
    Unknown {
        /// The edge, as it was written.
        edge: String,
        /// The step that there is not.
        missing: StepId,
    },
    /// Two ways on from one step.
    #[error("step `{step}` has two ways on, {one} and {other}: a step has one edge, one route or one fork")]
    TwoWays {
        /// The step.
        step: StepId,
        /// One of them.
        one: String,
        /// The other.
        other: String,
    },
    /// A route or a fork that names a step more than once.
    #[error("{edge} names `{step}` twice")]
    NamedTwice {
        /// The route or the fork.
        edge: String,
        /// The step.
        step: StepId,
    },
    /// A way to a join that does not come from what it joins.
    #[error(
        "{from} leads to `{join}`, which joins the fork after `{after}`: only that fork and its branches lead there"
    )]
    IntoJoin {
        /// Where the way comes from.
        from: String,
        /// The join.
        join: StepId,
        /// The step before the fork.
        after: StepId,
    },
    /// No way leads there.
    #[error("step `{0}` cannot be reached")]
    Unreachable(StepId),
    /// There is no way out.
    #[error("no way leads from step `{0}` to the end")]
    NoEnd(StepId),
    /// A step that two lines of work would run.
    #[error("step `{step}` is reached from {one} and from {other}: a step belongs to one branch")]
    Shared {
        /// The step.
        step: StepId,
        /// Where it belongs to.
        one: String,
        /// Where it is reached from too.
        other: String,
    },
    /// A fork or a route without targets.
    #[error("{0} leads nowhere")]
    NoTargets(String),
    /// A setting before the first step.
    #[error("`{0}` speaks of the step before it, and there is none")]
    NoStep(&'static str),
    /// The shape that results is none.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}
