//! Failures of steps that come from here and not from what they run.

use waypost::engine::Spot;
use waypost::record::{Failure, FailureKind};

use crate::expr::ExprError;

/// Makes a failure of a message and its causes.
pub(super) fn failure(kind: FailureKind, error: impl std::error::Error) -> Failure {
    let mut chain = vec![error.to_string()];
    let mut source = error.source();
    while let Some(cause) = source {
        chain.push(cause.to_string());
        source = cause.source();
    }
    Failure { error: chain, ..Failure::new(kind, Vec::new()) }
}

/// The failure of a step that is asked for branches: those that have some find them by their own work.
pub(super) fn no_children(spot: Spot<'_>) -> Failure {
    let text = format!("step `{}` opens no branches", spot.step.id);
    Failure::new(FailureKind::Error, vec![text])
}

/// The failure of a step of which an expression cannot be worked out.
pub(super) fn expression(error: ExprError) -> Failure {
    let hint = error.hint.clone();
    let mut failure = failure(FailureKind::Expression, error);
    // A hint is a name, or a sentence.
    failure
        .error
        .extend(hint.map(|hint| if hint.contains(' ') { hint } else { format!("did you mean `{hint}`?") }));
    failure
}
