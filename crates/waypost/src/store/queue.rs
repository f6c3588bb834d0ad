//! The queue of submitted runs in a store that workers share.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::id::RunId;
use crate::record::SealedRun;
use crate::store::{Batch, Lease, StoreError, TaskQueue};
use crate::system::lock::Holder;

/// The place of a run in the queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Job {
    /// Runs of a higher priority are claimed first.
    pub priority: i32,
    /// No worker claims the run before this time.
    pub not_before: Option<Timestamp>,
    /// What a worker must have: a folder, a secret, a program, a tag. The queue compares the texts only.
    pub needs: BTreeSet<String>,
    /// Files for the workers, kept as the blob [`FILES_BLOB`] of the run. Empty in answers of the queue.
    pub files: Vec<u8>,
}

/// The blob with the files of a submission.
pub const FILES_BLOB: &str = "blobs/submitted-files";

/// The prefix of a need of a step, for the next claim alone.
pub const STEP_NEED: &str = "step:";

/// The state of a submitted run in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedJob {
    /// The place in the queue.
    pub job: Job,
    /// Whether the run waits for a worker.
    pub is_ready: bool,
    /// What a worker lacked for the run, and since when no other worker has claimed the run.
    pub missing: Option<(String, Timestamp)>,
}

/// The queue of a store that workers share.
///
/// A run is *ready* after its submission, at the end of a wait, after a signal, and after the loss of its worker. A claim
/// is a lease; it is no resume.
///
/// # Contract
///
/// - `a_claim_excludes`: concurrent claims return each ready run once.
/// - `a_claim_obeys_needs`: a run is claimed only with its set of needs.
/// - `a_lost_worker_leaves_its_runs`: after the end of a lease, and not before, its run is ready again.
/// - `the_first_submit_counts`: a second submission of a run changes nothing.
/// - `a_submission_is_whole`: a run exists together with its place in the queue.
/// - `a_deferred_run_keeps_its_lack`: a run that no worker could begin is claimed after a pause, and names the first lack
///   since its last record.
/// - `an_interrupted_run_is_not_claimed`: a run with status interrupted is claimed no more until a requeue.
#[async_trait]
pub trait Queue: Debug + Send + Sync {
    /// Creates a run with its first batch and its place in the queue, all or nothing. The batch releases the lease.
    ///
    /// # Errors
    /// [`StoreError::Exists`]: the run exists; nothing changed.
    async fn submit(
        &self,
        run: &SealedRun,
        first: Batch,
        job: &Job,
        holder: &Holder,
    ) -> Result<(), StoreError>;

    /// Makes an interrupted run ready again, unless a worker holds the run. A run that was not submitted gets the place of
    /// `job`, without its files; without a job, the call does nothing.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn requeue(&self, run: &RunId, job: Option<&Job>) -> Result<(), StoreError>;

    /// Makes a run ready again that a worker has claimed and released without a record, for claims after a pause. Records
    /// what the worker lacked, since the last record of the run.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn defer(&self, run: &RunId, missing: &str, pause: Duration) -> Result<(), StoreError>;

    /// Returns the state of a run in the queue; `None` if the run was not submitted.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn job(&self, run: &RunId) -> Result<Option<QueuedJob>, StoreError>;

    /// Returns the sets of needs of ready runs that are not in `known`.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn needs(&self, known: &BTreeSet<BTreeSet<String>>) -> Result<Vec<BTreeSet<String>>, StoreError>;

    /// Records what a worker lacks for runs with these needs, for display.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn report_missing(&self, needs: &BTreeSet<String>, missing: &str) -> Result<(), StoreError>;

    /// Makes the runs of lost workers ready: of ended leases, and of dead processes of this machine.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn expire(&self) -> Result<(), StoreError>;

    /// Claims at most `count` ready runs whose needs are in `served`, in the order of priority and rank.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn claim(
        &self,
        holder: &Holder,
        served: &BTreeSet<BTreeSet<String>>,
        count: usize,
    ) -> Result<Vec<Lease>, StoreError>;

    /// Waits for a ready run, at most this long. A hint: the run may be for another worker, or the hint may be lost.
    async fn wait(&self, longest: Duration);

    /// Starts to listen for hints; returns why hints do not arrive, if so.
    async fn listen(&self) -> Option<String>;

    /// Adds this process to the workers of the store; a repetition changes nothing.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn register(&self, holder: &Holder) -> Result<(), StoreError>;

    /// Returns the living processes with leases, or that wait for runs.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn workers(&self) -> Result<Vec<Holder>, StoreError>;

    /// Returns the tasks of the runs: steps for other workers.
    fn tasks(&self) -> &dyn TaskQueue;

    /// Returns how long the oldest ready run has been ready; zero without a ready run.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn oldest(&self) -> Result<Duration, StoreError>;

    /// Returns the number of ready runs.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn depth(&self) -> Result<u64, StoreError>;
}
