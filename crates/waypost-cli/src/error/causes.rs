//! Root causes of errors, found along the source chain.

use std::error::Error as StdError;
use std::io;

use waypost::plan::{Cause, Decision};
use waypost_workflow::program::{NO_RESOURCES, ScratchError, lacking};
use waypost_workflow::supervisor::SupervisorError;

/// Returns whether the cause is a full disk.
pub(super) fn is_full(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Returns whether an error means that the process or the system has no free file descriptor.
pub(super) fn is_without_descriptors(error: &(dyn StdError + 'static)) -> bool {
    let number = |error: &(dyn StdError + 'static)| error.downcast_ref::<io::Error>()?.raw_os_error();
    let mut chain = std::iter::successors(Some(error), |error| (*error).source());
    chain.any(|error| matches!(number(error), Some(libc::EMFILE | libc::ENFILE)))
}

/// Returns the resource of the system that was exhausted, other than space on a disk.
pub(super) fn lacking_resource(error: &(dyn StdError + 'static)) -> Option<String> {
    lacking(error).filter(|lack| lack.starts_with(NO_RESOURCES))
}

/// Returns whether the supervisor of a run was killed during its start.
pub(super) fn is_supervisor_lost(error: &(dyn StdError + 'static)) -> bool {
    let mut chain = std::iter::successors(Some(error), |error| (*error).source());
    chain.any(|error| matches!(error.downcast_ref::<SupervisorError>(), Some(SupervisorError::Ended)))
}

/// Returns whether the scratch folder could not be created on the disk.
pub(super) fn is_without_scratch(error: &(dyn StdError + 'static)) -> bool {
    std::iter::successors(Some(error), |error| (*error).source()).any(|error| error.is::<ScratchError>())
}

/// Returns whether all questions are about evidence that cannot be checked or was undone by another step, not
/// about effects of a step.
pub(crate) fn are_of_evidence(questions: &[Decision]) -> bool {
    let is_it = |cause: &Cause| matches!(cause, Cause::EvidenceUnknown(_) | Cause::EvidenceUndone { .. });
    questions.iter().all(|question| is_it(&question.cause))
}
