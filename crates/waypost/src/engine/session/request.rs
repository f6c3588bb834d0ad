//! Requests of running steps to their session: store a result, or wait.
//!
//! A step never appends records; the session loop commits all requests. A request to store is answered once the
//! result is durable. A request to wait ends the attempt; the step restarts from the top when the wait has ended.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::oneshot;

use crate::record::Wait;

use super::pending_wait::PendingWait;
use crate::engine::StepReport;
use crate::engine::scope::ScopeId;

/// Limit of queued requests: a step that sends faster than the store commits is slowed down.
pub(crate) const REQUESTS_MAX: usize = 64;

/// A request of a running step.
#[derive(Debug)]
pub(crate) struct Request {
    /// The scope of the step.
    pub(crate) scope: ScopeId,
    /// The start of the step; requests of an ended attempt are ignored.
    pub(crate) job: u64,
    /// The kind, with its content.
    pub(crate) kind: RequestKind,
}

#[derive(Debug)]
pub(crate) enum RequestKind {
    /// Commit a result under a key, for a restart of the step.
    Memo {
        key: String,
        value: Value,
        report: StepReport,
        /// Answered after the commit.
        stored: oneshot::Sender<()>,
    },
    /// Commit the progress of the step, for people; never read back.
    Progress { value: Value, report: StepReport },
    /// Deliver a message to this wait, while the step continues other work.
    Wait(Arc<PendingWait>),
    /// Suspend the step until one of these waits ends.
    Suspend(Vec<Wait>),
}
