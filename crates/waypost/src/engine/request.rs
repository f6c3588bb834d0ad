//! What steps under way ask of their session: to keep a result, to wait.
//!
//! A step never appends: it asks, and the one loop of the session commits. Whoever asks to keep something is answered
//! once it is on disk; whoever asks to wait is dropped, and starts again from its top when what it waits for is there.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::oneshot;

use crate::record::Wait;

use super::StepReport;
use super::pending_wait::PendingWait;
use super::scope::LineId;

/// How many requests may be on their way: a step that asks faster than the store commits is slowed down.
pub(super) const REQUESTS_MAX: usize = 64;

/// Asked by a step under way.
#[derive(Debug)]
pub(super) struct Request {
    /// The branch it runs on.
    pub(super) line: LineId,
    /// Which start of a step it comes from; one that has ended meanwhile asks for nothing any more.
    pub(super) job: u64,
    /// What is asked.
    pub(super) what: Asked,
}

#[derive(Debug)]
pub(super) enum Asked {
    /// To commit a result under a key, so that the step has it when it starts again.
    Keep {
        key: String,
        value: Value,
        told: StepReport,
        /// Answered after the commit.
        kept: oneshot::Sender<()>,
    },
    /// To commit how far the step is, for people: it is not read back.
    Tell { value: Value, told: StepReport },
    /// To give a message to this wait, beside other work of the step.
    Listen(Arc<PendingWait>),
    /// To suspend the step until one of these waits has an end.
    Suspend(Vec<Wait>),
}
