//! Words about the objects of errors.

use std::io;
use std::path::Path;

use waypost::RunId;
use waypost_workflow::file::FileError;

use crate::format::text::quoted;

/// Returns which runs left their logs.
pub(super) fn left_by(runs: &[RunId]) -> String {
    /// A few names suffice to recognise the runs.
    const NAMED_MAX: usize = 5;
    let names = runs.iter().take(NAMED_MAX).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match runs.len() {
        0 | 1 => format!("run {names} has left its log beside it"),
        count if count > NAMED_MAX => format!("runs {names} and others have left their logs beside it"),
        _ => format!("runs {names} have left their logs beside it"),
    }
}

/// Returns the choices about finished results after a change of the file.
pub(super) fn choices_of_change(run: &RunId, file: &Path) -> String {
    format!(
        "`waypost resume {run} --keep-finished` keeps those results; `waypost resume {run} --rerun-changed` runs those \
         steps again, and what needs them (or `=STEP,...` for some); `--keep-definition` ignores {}",
        file.display()
    )
}

pub(super) fn first_problem(error: &FileError) -> String {
    let Some(first) = error.problems().first() else { return "it is empty".to_owned() };
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
    format!(
        "`waypost checkpoints {run}` lists what there is, and says `no state` of those whose state was let go"
    )
}

/// Returns a hint for an unreadable file.
pub(super) fn unreadable(kind: io::ErrorKind) -> Option<String> {
    let text = match kind {
        io::ErrorKind::NotFound => "see whether its name is right; it is looked for from the current folder",
        io::ErrorKind::PermissionDenied => "see who may read it: `ls -l`",
        io::ErrorKind::IsADirectory => "name a file in it",
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
        "process {named} of it was itself stopped by a signal: `kill -CONT {numbers}` lets it go on, and it then stops the run"
    )
}

/// Returns which files may be removed by hand on a full disk: files without records.
pub(super) fn by_hand(place: &Path) -> String {
    let runs = quoted(&place.display().to_string());
    format!(
        "make room and try again: what steps printed can be removed by hand, `rm -r {runs}/*/logs`; no record is in it"
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
    format!("mend that, then: `{line}`; `{plain}` leaves the rest as it is")
}
