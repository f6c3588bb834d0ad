//! Words about the objects of errors.

use std::io;
use std::path::Path;

use waypost::RunId;
use waypost_workflow::file::FileError;

use crate::cli::ResumeArgs;
use crate::format::text::quoted;
use crate::view::doubt::{Doubt, answer_lines};

/// Returns which logs of runs are next to a database.
pub(super) fn logs_beside(runs: &[RunId]) -> String {
    /// A few names suffice to recognise the runs.
    const NAMED_MAX: usize = 5;
    let names = runs.iter().take(NAMED_MAX).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match runs.len() {
        0 | 1 => format!("the event log of run {names} is beside it"),
        count if count > NAMED_MAX => format!("the event logs of runs {names} and others are beside it"),
        _ => format!("the event logs of runs {names} are beside it"),
    }
}

/// Returns the choices about finished results after a change of the file.
pub(super) fn choices_of_change(args: &ResumeArgs, run: &RunId, file: &Path) -> String {
    // A bare option takes the steps that the other option does not name.
    let all = || Some(vec![String::new()]);
    let keeps = ResumeArgs { keep_finished: all(), ..args.clone() }.command(run);
    let reruns = ResumeArgs { rerun_changed: all(), ..args.clone() }.command(run);
    format!(
        "`{keeps}` keeps those results; `{reruns}` reruns those steps and all steps downstream (`=STEP,...` selects \
         some); `--keep-definition` ignores {}",
        file.display()
    )
}

/// Returns the choices about steps in doubt. `command`: the resume without a choice.
pub(super) fn choices_of_doubt(command: &str, doubts: &[Doubt]) -> String {
    let step = if doubts.len() > 1 { "each step" } else { "the step" };
    format!("check the effects of {step}, then decide:{}", answer_lines(command, doubts))
}

pub(super) fn first_problem(error: &FileError) -> String {
    let Some(first) = error.problems().first() else { return "the file is empty".to_owned() };
    let more = match error.problems().len() - 1 {
        0 => String::new(),
        1 => " (and 1 more problem)".to_owned(),
        more => format!(" (and {more} more problems)"),
    };
    format!("line {}, column {}: {}{more}", first.line, first.column, first.message)
}

/// Returns how to find a checkpoint of the run with a state.
pub(super) fn other_states(at: &str) -> String {
    let run = at.strip_prefix("run ").or_else(|| at.split_once(['@', '/']).map(|(run, _)| run));
    let run = run.unwrap_or("RUN");
    format!("`waypost checkpoints {run}` lists the checkpoints; those without a state show `no state`")
}

/// Returns a hint for an unreadable file.
pub(super) fn unreadable(kind: io::ErrorKind) -> Option<String> {
    let text = match kind {
        io::ErrorKind::NotFound => "check the path; it is relative to the current folder",
        io::ErrorKind::PermissionDenied => "check the permissions with `ls -l`",
        io::ErrorKind::IsADirectory => "the path is a folder: name a file in it",
        _ => return None,
    };
    Some(text.to_owned())
}

/// Returns how to make a run stop.
pub(super) fn how_to_wake(halted: &[u32]) -> String {
    if halted.is_empty() {
        return "wait longer with `--wait`".to_owned();
    }
    let numbers: Vec<String> = halted.iter().map(ToString::to_string).collect();
    let (named, numbers) = (numbers.join(" and "), numbers.join(" "));
    format!(
        "process {named} of the run is suspended by a signal: `kill -CONT {numbers}` continues it, and the \
         run then stops"
    )
}

/// Returns which files may be removed by hand on a full disk: files without records.
pub(super) fn by_hand(place: &Path) -> String {
    let runs = quoted(&place.display().to_string());
    format!(
        "free disk space and repeat the command; logs can be removed by hand: `rm -r {runs}/*/logs`, no \
         record is in them"
    )
}

/// Returns the command that finishes a begun undo.
pub(crate) fn undo_command(run: &RunId, to: u64) -> String {
    match to {
        0 => format!("waypost cancel {run} --undo-steps"),
        to => format!("waypost rollback {run}@{to} --undo-steps"),
    }
}

/// Returns the options if a step cannot be undone.
pub(crate) fn undo_choices(run: &RunId, to: u64) -> String {
    let line = undo_command(run, to);
    let plain = line.strip_suffix(" --undo-steps").unwrap_or(&line);
    format!("fix the undo, then: `{line}`; `{plain}` leaves the remaining effects")
}
