//! The promises after any number of kills, checked only on observations.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// A step of the workflow, and its line in the trace file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) id: String,
    pub(crate) line: String,
}

/// A checkpoint in the output of `waypost checkpoints --json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) scope: String,
    pub(crate) seq: u64,
    pub(crate) digest: String,
    pub(crate) phase: String,
    pub(crate) step: Option<String>,
    pub(crate) sound: bool,
}

/// The observations after a start of the program, killed or not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    /// Checkpoints printed as written: scope and seq.
    pub(crate) acknowledged: BTreeSet<(String, u64)>,
    /// Steps printed as completed.
    pub(crate) completed: BTreeSet<String>,
    /// Lines of the trace file.
    pub(crate) trace: Vec<String>,
    /// Checkpoints in the store; `None` if the run does not exist.
    pub(crate) checkpoints: Option<Vec<Checkpoint>>,
    /// Left-over processes.
    pub(crate) left: Vec<String>,
}

impl Observed {
    /// Parses the printed events, a JSON object per line. The kill may truncate the last line, which a reader
    /// could not use either.
    pub(crate) fn read_events(&mut self, stdout: &str) -> Result<(), String> {
        let whole = stdout.rfind('\n').map_or("", |end| &stdout[..end]);
        for line in whole.lines() {
            let event: Value =
                serde_json::from_str(line).map_err(|error| format!("printed `{line}`: {error}"))?;
            match event["event"].as_str() {
                Some("checkpoint_written") => {
                    let scope = event["scope"].as_str().unwrap_or("main").to_owned();
                    let seq =
                        event["seq"].as_u64().ok_or_else(|| format!("an event without a seq: {line}"))?;
                    self.acknowledged.insert((scope, seq));
                }
                Some("step_completed") => {
                    let step =
                        event["step"].as_str().ok_or_else(|| format!("an event without a step: {line}"))?;
                    self.completed.insert(step.to_owned());
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    /// Parses the output of `checkpoints --json`.
    pub(crate) fn read_checkpoints(&mut self, document: &Value) -> Result<(), String> {
        let list =
            document["checkpoints"].as_array().ok_or_else(|| format!("no checkpoints in {document}"))?;
        let read = |value: &Value| {
            Some(Checkpoint {
                scope: value["scope"].as_str()?.to_owned(),
                seq: value["seq"].as_u64()?,
                digest: value["digest"].as_str()?.to_owned(),
                phase: value["phase"].as_str()?.to_owned(),
                step: value["step"].as_str().map(ToOwned::to_owned),
                sound: value["sound"] != json!(false),
            })
        };
        let all: Option<_> = list.iter().map(read).collect();
        self.checkpoints =
            Some(all.ok_or_else(|| format!("a checkpoint without its members in {document}"))?);
        Ok(())
    }

    /// Returns the finished steps, by printed events and by records.
    fn finished(&self) -> BTreeSet<&str> {
        let recorded = self.checkpoints.iter().flatten().filter(|checkpoint| checkpoint.phase == "completed");
        let recorded = recorded.filter_map(|checkpoint| checkpoint.step.as_deref());
        self.completed.iter().map(String::as_str).chain(recorded).collect()
    }
}

/// Returns every broken promise over all starts of the program; the last start was not killed.
pub(crate) fn broken(steps: &[Step], starts: &[Observed]) -> Vec<String> {
    let mut broken = Vec::new();
    for (index, start) in starts.iter().enumerate() {
        if !start.left.is_empty() {
            broken.push(format!("processes outlived start {index}: {:?}", start.left));
        }
        broken.extend(records_of_nothing(index, start));
        for later in &starts[index + 1..] {
            broken.extend(lost(index, start, later));
            broken.extend(repeated(steps, index, start, later));
        }
        broken.extend(unearned(steps, index, start));
    }
    if let Some(last) = starts.last() {
        broken.extend(illegal(steps, &last.trace, starts.len() - 1));
    }
    broken.dedup();
    broken
}

/// acknowledged_is_durable: a checkpoint that was printed as written, or listed once, stays listed, sound and
/// unchanged.
fn lost(index: usize, start: &Observed, later: &Observed) -> Vec<String> {
    let mut broken = Vec::new();
    let after = later.checkpoints.as_deref().unwrap_or_default();
    for (scope, seq) in &start.acknowledged {
        match after.iter().find(|checkpoint| checkpoint.scope == *scope && checkpoint.seq == *seq) {
            None => broken.push(format!("start {index} acknowledged {scope}@{seq}, and it is gone")),
            Some(checkpoint) if !checkpoint.sound => {
                broken.push(format!("start {index} acknowledged {scope}@{seq}, and it is damaged"));
            }
            Some(_) => {}
        }
    }
    for before in start.checkpoints.iter().flatten() {
        if !after.iter().any(|after| after.digest == before.digest && after.seq == before.seq) {
            broken
                .push(format!("{}@{} was listed after start {index} and changed", before.scope, before.seq));
        }
    }
    broken
}

/// acknowledged_is_durable within a start: its acknowledged checkpoints are listed right after its death.
fn records_of_nothing(index: usize, start: &Observed) -> Vec<String> {
    let mut broken = lost(index, &Observed { checkpoints: None, ..start.clone() }, start);
    if start.checkpoints.is_none() && !start.trace.is_empty() {
        broken.push(format!("steps ran in start {index}, and there is no run"));
    }
    broken
}

/// finished_is_not_repeated.
fn repeated(steps: &[Step], index: usize, start: &Observed, later: &Observed) -> Vec<String> {
    let Some(added) = later.trace.strip_prefix(start.trace.as_slice()) else {
        return vec![format!("the trace of start {index} is no prefix of a later one: {:?}", later.trace)];
    };
    let finished = start.finished();
    let again = steps.iter().filter(|step| finished.contains(step.id.as_str()) && added.contains(&step.line));
    again.map(|step| format!("`{}` was finished after start {index} and ran again", step.id)).collect()
}

/// unfinished_is_not_skipped: every step recorded as finished ran.
fn unearned(steps: &[Step], index: usize, start: &Observed) -> Vec<String> {
    let finished = start.finished();
    let skipped =
        steps.iter().filter(|step| finished.contains(step.id.as_str()) && !start.trace.contains(&step.line));
    skipped
        .map(|step| format!("`{}` is recorded as finished after start {index} and never ran", step.id))
        .collect()
}

/// The trace contains the steps in order. Each kill may interrupt a step, whose line then appears twice in a
/// row.
fn illegal(steps: &[Step], trace: &[String], kills: usize) -> Vec<String> {
    let mut once = trace.to_vec();
    once.dedup();
    let expect: Vec<&str> = steps.iter().map(|step| step.line.as_str()).collect();
    let mut broken = Vec::new();
    if once != expect {
        broken.push(format!("the trace is {trace:?}"));
    }
    if trace.len() - once.len() > kills {
        broken.push(format!("{kills} kills cannot have cut so many steps: {trace:?}"));
    }
    broken
}

/// Returns the part of `show --json` that kills must not change: without times, attempts and derived values.
pub(crate) fn final_state(show: &Value) -> Value {
    let steps = show["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    let steps: Vec<Value> = steps
        .iter()
        .map(|step| {
            json!({ "id": step["id"], "status": step["status"], "exit_code": step["exit_code"], "outputs": step["outputs"] })
        })
        .collect();
    json!({
        "status": show["status"], "params": show["params"], "failed_step": show["failed_step"],
        "error": show["error"], "steps": steps,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Vec<Step> {
        ["a", "b", "c"].map(|id| Step { id: id.to_owned(), line: id.to_uppercase() }).to_vec()
    }

    fn observed(trace: &str, finished: &str) -> Observed {
        let steps: Vec<&str> = finished.split_whitespace().collect();
        let checkpoints = (1..).zip(&steps).map(|(seq, step)| Checkpoint {
            scope: "main".to_owned(),
            seq,
            digest: format!("digest of {step}"),
            phase: "completed".to_owned(),
            step: Some((*step).to_owned()),
            sound: true,
        });
        Observed {
            acknowledged: (1..=steps.len() as u64).map(|seq| ("main".to_owned(), seq)).collect(),
            trace: trace.split_whitespace().map(ToOwned::to_owned).collect(),
            checkpoints: Some(checkpoints.collect()),
            ..Observed::default()
        }
    }

    #[test]
    fn a_cut_step_may_run_again() {
        let starts = [observed("A B", "a"), observed("A B B C", "a b c")];

        assert_eq!(broken(&steps(), &starts), Vec::<String>::new());
    }

    #[test]
    fn a_finished_step_may_not() {
        let starts = [observed("A B", "a b"), observed("A B B C", "a b c")];

        assert_eq!(broken(&steps(), &starts), ["`b` was finished after start 0 and ran again"]);
    }

    #[test]
    fn no_step_may_be_passed_over() {
        let starts = [observed("A", "a"), observed("A C", "a c")];

        assert_eq!(broken(&steps(), &starts), ["the trace is [\"A\", \"C\"]"]);
    }

    #[test]
    fn a_record_of_a_step_that_never_ran_is_seen() {
        let starts = [observed("A", "a b"), observed("A B C", "a b c")];

        assert!(
            broken(&steps(), &starts)
                .contains(&"`b` is recorded as finished after start 0 and never ran".to_owned())
        );
    }

    #[test]
    fn more_repeats_than_kills_are_seen() {
        let starts = [observed("A", ""), observed("A A A B C", "a b c")];

        assert_eq!(broken(&steps(), &starts).len(), 1);
    }

    #[test]
    fn a_lost_damaged_or_changed_acknowledged_checkpoint_is_seen() {
        let mut gone = observed("A B", "a b");
        gone.acknowledged.insert(("main".to_owned(), 3));
        let mut damaged = observed("A B C", "a b c");
        damaged.checkpoints.iter_mut().flatten().for_each(|checkpoint| checkpoint.sound = false);
        let mut changed = observed("A B C", "a b c");
        changed.checkpoints.iter_mut().flatten().for_each(|checkpoint| checkpoint.digest.push('x'));

        assert!(broken(&steps(), &[gone, observed("A B C", "a b")])[0].ends_with("main@3, and it is gone"));
        assert!(
            broken(&steps(), &[observed("A B", "a b"), damaged])[0].ends_with("main@1, and it is damaged")
        );
        assert!(broken(&steps(), &[observed("A B", "a b"), changed])[0].ends_with("start 0 and changed"));
    }

    #[test]
    fn a_step_without_a_run_is_seen() {
        let start = Observed { trace: vec!["A".to_owned()], ..Observed::default() };

        assert!(broken(&steps(), &[start, observed("A A B C", "a b c")])[0].contains("there is no run"));
    }

    #[test]
    fn a_line_cut_by_the_kill_acknowledges_nothing() {
        let mut observed = Observed::default();

        observed
            .read_events("{\"event\":\"checkpoint_written\",\"scope\":\"main\",\"seq\":1}\n{\"event\":\"checkpoint_wri")
            .unwrap();

        assert_eq!(observed.acknowledged, BTreeSet::from([("main".to_owned(), 1)]));
    }

    #[test]
    fn the_final_state_leaves_out_times_and_attempts() {
        let show = |attempts: u32| json!({ "status": "completed", "steps": [{ "id": "a", "attempts": attempts, "status": "completed" }] });

        assert_eq!(final_state(&show(1)), final_state(&show(2)));
    }
}
