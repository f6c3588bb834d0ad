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
    /// The branch of the step.
    pub(crate) scope: ScopeId,
    /// The start of the step; requests of an ended attempt are ignored.
    pub(crate) job: u64,
    /// The content of the request.
    pub(crate) what: RequestKind,
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
    /// To commit how far the step is, for people: it is not read back.
    Progress { value: Value, report: StepReport },
    /// To give a message to this wait, beside other work of the step.
    Wait(Arc<PendingWait>),
    /// Suspend the step until a wait of these ends.
    Suspend(Vec<Wait>),
}
