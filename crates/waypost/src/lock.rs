//! The kernel lock of a run.

use serde::{Deserialize, Serialize};

/// Who holds a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// Boot id of the host.
    pub boot_id: String,
    /// Start time of the process in clock ticks since boot.
    pub started: u64,
    /// Since when it holds the run.
    pub since: jiff::Timestamp,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} on {} since {}", self.pid, self.host, self.since)
    }
}

/// A lock.
#[derive(Debug)]
pub struct RunLock;
