//! Failures of steps with their cause in this crate, not in the process of the step.

use waypost::engine::StepRef;
use waypost::record::{Failure, FailureKind};

use crate::expr::ExprError;

/// Makes a failure from an error and its causes.
pub(super) fn failure(kind: FailureKind, error: impl std::error::Error) -> Failure {
    let mut chain = vec![error.to_string()];
    let mut source = error.source();
    while let Some(cause) = source {
        chain.push(cause.to_string());
        source = cause.source();
    }
    Failure { error: chain, ..Failure::new(kind, Vec::new()) }
}

/// Returns the failure of a step whose items are unknown before its work.
pub(super) fn no_known_children(step_ref: StepRef<'_>) -> Failure {
    let text = format!("step `{}` has no items known before its work", step_ref.step.id);
    Failure::new(FailureKind::Error, vec![text])
}

/// Returns the failure of a step from an expression error.
pub(super) fn expression(error: ExprError) -> Failure {
    let hint = error.hint.clone();
    // The failure belongs to the step.
    let mut failure = failure(FailureKind::Expression, ExprError { step: None, ..error });
    // A hint is a name, or a sentence with spaces.
    failure
        .error
        .extend(hint.map(|hint| if hint.contains(' ') { hint } else { format!("did you mean `{hint}`?") }));
    failure
}
