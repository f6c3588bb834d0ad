//! Recognises sessions and checkpoints of Prodigy, and refuses these with a hint.
//!
//! A checkpoint of Waypost holds the definition and the evidence of each finished step. The files of Prodigy do
//! not: a session lists the numbers of finished steps, and a map-reduce checkpoint lists items with their work in
//! git worktrees and branches. A made-up checkpoint would be trusted without a reason.
//!
//! # Source
//! Prodigy 0.4.4: `src/cook/workflow/checkpoint.rs`, `src/unified_session/state.rs`, `src/cook/session/state.rs`,
//! `src/cook/execution/state.rs`, `src/cook/execution/mapreduce/checkpoint/types.rs`; its specification 184.

use std::fmt;

use serde_json::Value;

/// A kind of file in the state folder of Prodigy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Session,
    Checkpoint,
    MapReduce,
}

/// The kinds, by their characteristic keys: outermost keys, or `outer.inner`.
const KINDS: [(Kind, &[&str]); 6] = [
    (Kind::Checkpoint, &["workflow_id", "execution_state", "completed_steps"]),
    (Kind::Checkpoint, &["session_id", "worktree_path", "completed_steps"]),
    (Kind::Session, &["id", "session_type", "timings"]),
    (Kind::Session, &["session_id", "iterations_completed", "working_directory"]),
    (Kind::MapReduce, &["metadata.job_id", "work_item_state"]),
    (Kind::MapReduce, &["job_id", "work_items", "agent_results"]),
];

/// A file of the state folder of Prodigy; cannot be imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    kind: Kind,
    id: String,
    workflow: Option<String>,
    folder: Option<String>,
    /// The number of finished steps or items and the total, if known.
    finished: Option<(usize, usize)>,
}

/// Returns the kind of a file of the state folder of Prodigy; `None` for any other text.
#[must_use]
pub fn prodigy_state(text: &[u8]) -> Option<State> {
    if !text.trim_ascii_start().starts_with(b"{") {
        return None;
    }
    let value: Value = serde_json::from_slice(text).ok()?;
    let (kind, _) = KINDS.iter().find(|(_, keys)| keys.iter().all(|key| at(&value, key).is_some()))?;
    let word = |keys: &[&str]| {
        keys.iter()
            .find_map(|key| Some(at(&value, key)?.as_str()?.to_owned()))
            .filter(|word| !word.is_empty())
    };
    let id = match kind {
        Kind::MapReduce => word(&["metadata.job_id", "job_id"]),
        Kind::Session | Kind::Checkpoint => word(&["workflow_id", "session_id", "id"]),
    };
    let count = |keys: &[&str]| {
        keys.iter().find_map(|key| match at(&value, key)? {
            Value::Array(list) => Some(list.len()),
            number => usize::try_from(number.as_u64()?).ok(),
        })
    };
    let done = ["completed_steps", "workflow_data.completed_steps", "workflow_state.completed_steps"];
    let done = [&done[..], &["successful_count", "metadata.completed_items"]].concat();
    let all = ["total_steps", "workflow_data.total_steps", "total_items", "metadata.total_work_items"];
    Some(State {
        kind: *kind,
        id: id.unwrap_or_else(|| "without a name".to_owned()),
        workflow: word(&["workflow_path", "workflow_state.workflow_path"]),
        folder: word(&["worktree_path", "working_directory"]),
        finished: count(&done).zip(count(&all)),
    })
}

/// Returns the value at `outer` or `outer.inner`, unless it is null.
fn at<'v>(value: &'v Value, key: &str) -> Option<&'v Value> {
    key.split('.').try_fold(value, |value, key| value.get(key)).filter(|value| !value.is_null())
}

impl State {
    /// Returns the commands to use instead of the import.
    #[must_use]
    pub fn hint(&self) -> String {
        let workflow = self.workflow.as_deref().unwrap_or("WORKFLOW.yml");
        let (what, action) = match self.kind {
            Kind::MapReduce => ("items", "exclude them with `filter`"),
            Kind::Session | Kind::Checkpoint => ("steps", "delete them from `waypost.yaml`"),
        };
        let finished = match self.finished {
            Some((done, all)) => format!("{done} of {all} {what} are finished: {action}"),
            None => format!("finished {what}: {action}"),
        };
        let folder = self.folder.as_deref().unwrap_or("WORKTREE");
        format!(
            "`waypost import workflow {workflow} -o waypost.yaml`; {finished}; `waypost run waypost.yaml --dir {folder}`"
        )
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, reason) = match self.kind {
            Kind::Session => ("session", STEPS),
            Kind::Checkpoint => ("checkpoint", STEPS),
            Kind::MapReduce => ("map-reduce checkpoint", ITEMS),
        };
        write!(f, "the {kind} `{}` of Prodigy: {reason}", self.id)
    }
}

/// The reason why finished steps cannot be imported.
const STEPS: &str = "the file has finished steps by number only, without definitions and file digests";
/// The reason why finished items cannot be imported.
const ITEMS: &str = "the work of finished items is in git worktrees, and the file has only their names";
