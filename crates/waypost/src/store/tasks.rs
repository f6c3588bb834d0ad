//! Tasks: steps of a run that other workers execute for the holder of the run.
//!
//! ```text
//!   submit --> waiting --claim--> claimed --finish--> ended --remove-->
//!                 ^                  |
//!                 +-- lost worker ---+
//! ```
//!
//! The holder of the run is the only writer of records: the holder submits a task after the record of the start, and
//! records the end. A task belongs to the lease of the submission. A later lease adopts the task by the same submission,
//! or cancels the task.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use crate::id::RunId;
use crate::store::{Lease, StoreError};
use crate::system::lock::Holder;

/// A step for another worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Unique among the tasks of the run, and known before the submission.
    pub key: String,
    /// The step path, for display.
    pub step: String,
    /// A digest of the work: tasks with the same key and definition are the same.
    pub definition: String,
    /// Needs of the worker. The queue compares the texts only.
    pub needs: BTreeSet<String>,
    /// The number of lost workers after which no other worker claims the task: the step itself may end its workers. 0: the
    /// task is not repeatable.
    pub losses_max: u32,
    /// The step, as JSON for the executor.
    pub request: String,
}

/// A task claimed by this process.
#[derive(Debug, Clone)]
pub struct ClaimedTask {
    /// Unique in the store.
    pub id: u64,
    /// For the log of the step, with the end of this process's own lease.
    pub lease: Lease,
    /// [`Task::key`].
    pub key: String,
    /// [`Task::request`].
    pub request: String,
    /// The number of workers lost with this task; distinguishes this claim from earlier ones.
    pub losses: u32,
}

/// The runs whose tasks a worker claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TasksOf {
    /// Any run.
    AllRuns,
    /// The runs that the worker holds: a worker that drains ends these.
    OwnRuns,
}

/// How a claimed task must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskStop {
    /// With the grace period of the step.
    Graceful,
    /// At once.
    Kill,
}

/// The answer to a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// The task belongs to the lease: a new task, or one of an earlier lease with its result.
    Done,
    /// A task of an earlier lease has the same key and another definition. Nothing changed.
    Other,
}

/// The state of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskState {
    /// No worker executes the task; the missing needs of the last worker, if known.
    Waiting(Option<String>),
    /// This worker executes the task.
    Claimed(Holder),
    /// The task has ended with this result, as JSON of the executor.
    Ended(String),
    /// The worker is lost, and no other may claim the task.
    Lost,
}

/// A task with its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEntry {
    /// [`Task::key`].
    pub key: String,
    /// [`Task::step`].
    pub step: String,
    /// The state.
    pub state: TaskState,
}

/// The token of tasks without a lease: less than the token of any lease.
pub const UNLEASED: u64 = 0;

/// The tasks of a store that workers share.
///
/// # Contract
///
/// - `a_task_is_claimed_once`: concurrent claims return each task once, to workers with its needs.
/// - `a_task_needs_the_lease`: a task is submitted and claimed only under the present lease of its run.
/// - `a_lost_worker_leaves_its_tasks`: a repeatable task of a lost worker is claimed again, [`Task::losses_max`] times;
///   any other is lost. A result of the lost worker counts until the next claim.
/// - `a_new_lease_cancels_tasks`: [`clear`](Self::clear) removes all tasks of earlier leases, except those of living
///   workers, and cancels the repeatable ones of these. Any other ends by itself: a cut would leave its effect unknown.
/// - `a_new_lease_adopts_tasks`: the same submission under a later lease adopts a task of an earlier lease.
/// - `waiting_tasks_are_withdrawn`: all tasks of a withdrawal wait, or none is withdrawn.
/// - `a_verification_needs_no_lease`: a task that only reads is claimed with any holder of the run, or without a holder.
/// - `a_verification_ends_by_itself`: a task that only reads is gone after its time.
#[async_trait]
pub trait TaskQueue: Debug + Send + Sync {
    /// Adds a task, or adopts the same task.
    ///
    /// # Errors
    /// [`StoreError::Fenced`]: the lease has ended.
    async fn submit_task(&self, lease: &Lease, task: &Task) -> Result<Submitted, StoreError>;

    /// Adds tasks that write nothing, of no lease. After this time, or by a [`clear`](Self::clear) of the run, the tasks are
    /// gone: the process that waits for their results may have been killed.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]: the run does not exist.
    async fn submit_verification(
        &self,
        run: &RunId,
        tasks: &[Task],
        time: Duration,
    ) -> Result<(), StoreError>;

    /// Returns the tasks of a run, oldest first.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn task_states(&self, run: &RunId) -> Result<Vec<TaskEntry>, StoreError>;

    /// Removes tasks of a lease, or with the token [`UNLEASED`] verifications of a run. Tasks of a lease that is no longer in
    /// force stay for the next holder.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn remove_tasks(&self, run: &RunId, token: u64, keys: &[String]) -> Result<(), StoreError>;

    /// Removes a waiting task, and requests the end of a claimed one.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn cancel_task(&self, run: &RunId, key: &str, level: TaskStop) -> Result<(), StoreError>;

    /// Removes the tasks with these keys, and changes the needs of the run for its next claim, unless a worker has claimed
    /// one of the tasks. Returns whether the tasks are removed. The next claim removes the needs with the prefix
    /// [`STEP_NEED`](super::STEP_NEED). `missing` names the changed needs, for display.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn withdraw_tasks(
        &self,
        run: &RunId,
        keys: &[String],
        needs: &BTreeSet<String>,
        missing: &str,
    ) -> Result<bool, StoreError>;

    /// Cancels the tasks of earlier leases. Returns the number that living workers still execute.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn clear(&self, lease: &Lease) -> Result<u64, StoreError>;

    /// Returns the sets of needs of waiting tasks that are not in `known`.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn task_needs(
        &self,
        known: &BTreeSet<BTreeSet<String>>,
    ) -> Result<Vec<BTreeSet<String>>, StoreError>;

    /// Records the missing needs of a worker for tasks with these needs, for display.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn report_missing_for_tasks(
        &self,
        needs: &BTreeSet<String>,
        missing: &str,
    ) -> Result<(), StoreError>;

    /// Claims at most `count` waiting tasks whose needs are in `served`, of high priority first, then oldest first: of all
    /// runs, or only of the runs that `holder` holds.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn claim_tasks(
        &self,
        holder: &Holder,
        served: &BTreeSet<BTreeSet<String>>,
        of: TasksOf,
        count: usize,
    ) -> Result<Vec<ClaimedTask>, StoreError>;

    /// Returns the tasks of these that must end, and how. A task claimed by another worker in between must end at once.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn cancelled_tasks(&self, tasks: &[(u64, u32)]) -> Result<Vec<(u64, TaskStop)>, StoreError>;

    /// Records the result of a claimed task. Returns false if another worker has claimed the task, or the task is gone.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn finish_task(&self, task: &ClaimedTask, result: &str) -> Result<bool, StoreError>;
}
