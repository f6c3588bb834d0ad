//! Sessions and checkpoints of Prodigy, which are refused.

use std::path::Path;

use waypost_import::{Error, prodigy, prodigy_state};

/// Files of each kind, with the beginning of the refusal and the numbers in its hint.
const STATES: [(&str, &str, &str); 6] = [
    (
        r#"{"workflow_id": "wf-1", "execution_state": {"current_step_index": 2}, "completed_steps": [{}, {}], "total_steps": 5,
            "workflow_path": "flows/a.yml", "variable_state": {}, "version": 1}"#,
        "the checkpoint `wf-1` of Prodigy: the file has finished steps by number only",
        "`waypost import workflow flows/a.yml -o waypost.yaml`; 2 of 5 steps are finished: delete them from \
         `waypost.yaml`; `waypost run waypost.yaml --dir WORKTREE`",
    ),
    (
        r#"{"version": 1, "session_id": "session-2", "workflow_path": "b.yml", "worktree_path": "/w/b", "completed_steps": []}"#,
        "the checkpoint `session-2` of Prodigy",
        "finished steps: delete them from `waypost.yaml`; `waypost run waypost.yaml --dir /w/b`",
    ),
    (
        r#"{"id": "session-3", "session_type": "Workflow", "timings": {}, "workflow_data": {"completed_steps": [0], "total_steps": 3}}"#,
        "the session `session-3` of Prodigy",
        "1 of 3 steps are finished",
    ),
    (
        r#"{"session_id": "cook-4", "iterations_completed": 0, "working_directory": "/w/c", "workflow_state": null}"#,
        "the session `cook-4` of Prodigy",
        "--dir /w/c",
    ),
    (
        r#"{"metadata": {"job_id": "mapreduce-5", "completed_items": 4, "total_work_items": 9}, "work_item_state": {}}"#,
        "the map-reduce checkpoint `mapreduce-5` of Prodigy: the work of finished items is in git worktrees",
        "4 of 9 items are finished: exclude them with `filter`",
    ),
    (
        r#"{"job_id": "mapreduce-6", "work_items": [1, 2], "agent_results": {}, "successful_count": 1, "total_items": 2}"#,
        "the map-reduce checkpoint `mapreduce-6` of Prodigy",
        "1 of 2 items are finished",
    ),
];

#[test]
fn a_session_or_checkpoint_is_refused_with_what_to_do() {
    for (text, message, hint) in STATES {
        let Err(Error::State(state)) = prodigy(text.as_bytes(), Path::new("checkpoint.json")) else {
            panic!("{text}");
        };
        assert!(state.to_string().starts_with(message), "{state}");
        assert!(state.hint().contains(hint), "{}", state.hint());
        assert_eq!(prodigy_state(text.as_bytes()), Some(state));
    }
}

#[test]
fn another_file_is_not_a_state_of_prodigy() {
    for text in [
        "",
        "- shell: a",
        "{}",
        r#"{"job_id": "a"}"#,
        r#"{"id": 1, "session_type": null, "timings": {}}"#,
        "{\"id\": ",
    ] {
        assert_eq!(prodigy_state(text.as_bytes()), None, "{text}");
    }
}
