//! Errors about unknown commands and options, with the closest command or option.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use waypost_workflow::nearest;

use super::command;

/// Names of commands in other tools, and the command of this program.
const COMMANDS: &[(&str, &str)] = &[
    ("undo", "rollback"),
    ("revert", "rollback"),
    ("reset", "rollback"),
    ("start", "run"),
    ("exec", "run"),
    ("execute", "run"),
    ("continue", "resume"),
    ("restart", "resume"),
    ("rerun", "resume"),
    ("redo", "resume"),
    ("kill", "stop"),
    ("pause", "stop"),
    ("abort", "cancel"),
    ("terminate", "cancel"),
    ("ls", "list"),
    ("runs", "list"),
    ("jobs", "list"),
    ("log", "logs"),
    ("tail", "logs"),
    ("info", "show"),
    ("describe", "show"),
    ("inspect", "show"),
    ("get", "show"),
    ("history", "checkpoints"),
    ("explain", "why"),
    ("remove", "delete"),
    ("clean", "prune"),
    ("cleanup", "prune"),
    ("gc", "prune"),
    ("lint", "check"),
    ("init", "new"),
    ("create", "new"),
    ("reject", "answer"),
    ("branch", "fork"),
    ("save", "checkpoint"),
    ("backup", "archive"),
    ("dlq", "dead-letters"),
    ("apply", "run"),
    ("launch", "run"),
    ("trigger", "run"),
    ("recover", "resume"),
    ("replay", "resume"),
    ("steps", "show"),
    ("top", "list"),
    ("dag", "graph"),
    ("draw", "graph"),
    ("tree", "graph"),
    ("viz", "graph"),
    ("visualize", "graph"),
    ("compare", "diff"),
    ("test", "check"),
    ("purge", "prune"),
    ("destroy", "delete"),
    ("confirm", "answer"),
    ("reply", "answer"),
    ("repair", "doctor"),
    ("unlock", "doctor"),
    ("df", "stats"),
    ("disk", "stats"),
    ("du", "stats"),
    ("usage", "stats"),
    ("output", "show"),
    ("outputs", "show"),
    ("cat", "logs"),
    ("follow", "watch"),
    ("attach", "watch"),
    ("monitor", "watch"),
    ("wait", "watch"),
    ("snapshot", "checkpoint"),
    ("restore", "rollback"),
    ("back", "rollback"),
];

/// Options of other commands and tools, and the option of the command.
const OPTIONS: &[(&str, &str, &str)] = &[
    ("run", "--set", "-p"),
    ("run", "--params", "-p"),
    ("run", "--var", "-p"),
    ("run", "--arg", "-p"),
    ("run", "--args", "-p"),
    ("run", "--name", "--id"),
    ("run", "--run-id", "--id"),
    ("run", "--resume", "--or-resume"),
    ("run", "--background", "--detach"),
    ("run", "-d", "--detach"),
    ("run", "--tag", "--label"),
    ("run", "--jobs", "--max-parallel"),
    ("run", "--parallel", "--max-parallel"),
    ("run", "--concurrency", "--max-parallel"),
    ("run", "--bg", "--detach"),
    ("run", "-n", "--dry-run"),
    ("run", "-P", "--max-parallel"),
    ("run", "--continue", "--or-resume"),
    ("resume", "-n", "--dry-run"),
    ("resume", "-p", "--set"),
    ("resume", "--param", "--set"),
    ("resume", "--params", "--set"),
    ("resume", "--jobs", "--max-parallel"),
    ("resume", "--parallel", "--max-parallel"),
    ("resume", "--file", "--with"),
    ("resume", "-f", "--with"),
    ("resume", "--step", "--from"),
    ("resume", "--retry", "--retry-failed"),
    ("resume", "--failed", "--retry-failed"),
    ("resume", "--var", "--set"),
    ("resume", "--reset", "--restart"),
    ("resume", "--fresh", "--restart"),
    ("resume", "--start-from", "--from"),
    ("resume", "--rerun", "--from"),
    ("fork", "--step", "--from"),
    ("fork", "--file", "--with"),
    ("stop", "--timeout", "--wait"),
    ("stop", "-t", "--wait"),
    ("cancel", "--timeout", "--wait"),
    ("cancel", "--undo", "--undo-steps"),
    ("rollback", "--undo", "--undo-steps"),
    ("report", "-o", "--out"),
    ("report", "--output", "--out"),
    ("list", "-s", "--status"),
    ("list", "--state", "--status"),
    ("prune", "--state", "--status"),
    ("prune", "--before", "--older-than"),
    ("prune", "--age", "--older-than"),
    ("fork", "--set", "-p"),
    ("list", "-n", "--limit"),
    ("list", "--all", "--everywhere"),
    ("list", "-a", "--everywhere"),
    ("checkpoint", "--name", "--label"),
    ("prune", "--days", "--older-than"),
    ("prune", "--all", "--status"),
    ("fork", "--params", "-p"),
    ("delete", "--force", "--yes"),
    ("delete", "-f", "--yes"),
    ("prune", "--force", "--yes"),
    ("prune", "-f", "--yes"),
];

/// Unknown words whose answer is not a single command or option of the same command: the command or `""` for any, the
/// word, and the answer.
const ADVICE: &[(&str, &str, &str)] = &[
    ("", "skip", "`waypost resume RUN --skip STEP` settles a step as skipped"),
    ("", "set", "`waypost resume RUN --set NAME=VALUE` changes a param"),
    ("", "rename", "`renamed_from: OLD` in a step keeps its result; `waypost run --id RUN` names a run"),
    ("", "edit", "edit the workflow file, then `waypost resume RUN`"),
    ("", "dry-run", "`waypost run --dry-run`, or `waypost plan RUN`"),
    ("", "cron", "call `waypost run FILE --or-resume` from cron"),
    ("", "schedule", "call `waypost run FILE --or-resume` from cron"),
    ("", "scheduler", "call `waypost run FILE --or-resume` from cron"),
    ("", "serve", "`waypost watch RUN` shows a run, `waypost report RUN --html --out FILE` writes a page"),
    ("", "ui", "`waypost watch RUN` shows a run, `waypost report RUN --html --out FILE` writes a page"),
    (
        "",
        "dashboard",
        "`waypost watch RUN` shows a run, `waypost report RUN --html --out FILE` writes a page",
    ),
    ("", "version", "`waypost --version`"),
    ("", "upgrade", "`waypost store upgrade` upgrades a store"),
    ("", "retry-failed", "`waypost resume RUN --retry-failed`"),
    ("", "--format", "`--json` prints JSON"),
    ("", "-f", "name the file or the run without an option"),
    ("", "--file", "name the file or the run without an option"),
    ("", "--run", "name the run without an option"),
    ("", "--step", "name the step after the run"),
    ("run", "-o", "`--json` prints JSON"),
    ("run", "--output", "`--json` prints JSON"),
    (
        "run",
        "-e",
        "set the variable before the command, `NAME=VALUE waypost run`, or write `env` in the file",
    ),
    (
        "run",
        "--env",
        "set the variable before the command, `NAME=VALUE waypost run`, or write `env` in the file",
    ),
    ("run", "--timeout", "write `timeout` in the file"),
    ("run", "--retry", RETRY),
    ("run", "--retries", RETRY),
    ("resume", "--retries", RETRY),
    ("run", "--keep-going", TOLERATE),
    ("run", "--ignore-errors", TOLERATE),
    ("run", "-k", TOLERATE),
    ("resume", "--keep-going", TOLERATE),
    ("resume", "--ignore-errors", TOLERATE),
    ("resume", "-k", TOLERATE),
    ("stop", "--all", "`waypost list --status running` lists the runs; stop each by its name"),
    ("stop", "--force", "`waypost cancel RUN` ends a run for good"),
    ("cancel", "--all", "`waypost list --resumable` lists the runs; cancel each by its name"),
    ("cancel", "--yes", UNASKED),
    ("cancel", "-y", UNASKED),
    ("cancel", "--force", UNASKED),
    ("cancel", "-f", UNASKED),
    ("resume", "--id", "name the run without an option: `waypost resume RUN`"),
    ("resume", "--last", "without RUN, the newest resumable run is resumed"),
    ("resume", "--latest", "without RUN, the newest resumable run is resumed"),
    ("resume", "--done", "`waypost resume RUN --treat-as done`"),
    ("resume", "--mark-done", "`waypost resume RUN --treat-as done`"),
    ("logs", "-n", "`waypost logs RUN STEP | tail -n 20`"),
    ("logs", "--tail", "`waypost logs RUN STEP | tail -n 20`"),
    ("list", "--failed", "`waypost list --status failed`"),
    ("show", "--failed", "`waypost show RUN --step STEP --status failed` lists failed items"),
    ("show", "--logs", "`waypost logs RUN` prints the logs"),
    ("plan", "--from", "`waypost resume RUN --from STEP --dry-run`"),
    (
        "rollback",
        "--step",
        "`waypost checkpoints RUN` lists the checkpoints; `waypost resume RUN --from STEP` reruns a step",
    ),
    ("report", "--markdown", "Markdown is the default"),
    ("report", "--md", "Markdown is the default"),
    ("graph", "--svg", "SVG is the default"),
    ("graph", "--dot", "`--mermaid` prints Mermaid text"),
    ("delete", "--all", "`waypost prune --status STATUS` deletes the runs of a status"),
    ("export", "--out", "name the file after the checkpoint: `waypost export RUN FILE`"),
    ("export", "-o", "name the file after the checkpoint: `waypost export RUN FILE`"),
];

const RETRY: &str = "write `retry` in a step of the file";
const TOLERATE: &str = "steps that do not need a failed step still run; `continue_on_error: true` in a step tolerates its failure";
const UNASKED: &str = "`waypost cancel RUN` cancels without a question";

/// Adds the meant command or option to an error about an unknown word, or the closest one. The usage is that of the
/// command, without the guess.
pub(crate) fn explained(mut error: clap::Error) -> clap::Error {
    if !matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand) {
        return error;
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let subcommand = text(ContextKind::InvalidSubcommand);
    let Some(word) = subcommand.clone().or_else(|| text(ContextKind::InvalidArg)) else { return error };
    let word = word.split(['=', ' ']).next().unwrap_or_default().to_owned();
    // Advice to pass the word as a value, and distant words.
    for kind in [ContextKind::Suggested, ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg] {
        error.remove(kind);
    }
    let mut root = command();
    root.build();
    let mut found = &root;
    for word in std::env::args().skip(1).filter(|word| !word.starts_with('-')) {
        found = found.find_subcommand(&word).unwrap_or(found);
    }
    error.insert(ContextKind::Usage, ContextValue::StyledStr(found.clone().render_usage()));
    let name = match found.get_name() {
        "retry" => "resume",
        _ if found.get_name() == root.get_name() => "",
        name => name,
    };
    let advised = |(of, other, _): &&(&str, &str, &str)| *other == word && (*of == name || of.is_empty());
    let own = own_word(found, name, &word, subcommand.is_some());
    let advice = ADVICE.iter().find(advised).map(|(_, _, advice)| (*advice).to_owned());
    let mut suggest = |advice: String| {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    };
    match (own, advice) {
        (Own::Meant(own), _) | (Own::Near(own), None) => {
            match subcommand {
                Some(_) => error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![own])),
                None => error.insert(ContextKind::SuggestedArg, ContextValue::String(own)),
            };
        }
        (_, Some(advice)) => suggest(advice),
        (Own::Unknown, None) if !word.starts_with('-') => {
            let has_from = found.get_arguments().any(|own| own.get_long() == Some("from"));
            if name == "rollback" {
                suggest("name a checkpoint as `RUN@SEQ`; `waypost checkpoints RUN` lists them".to_owned());
            } else if has_from {
                suggest(format!("`--from {word}` names a step"));
            }
        }
        (Own::Unknown, None) => {
            let other = other_command(&root, name, &word);
            other.into_iter().for_each(|other| suggest(format!("`waypost {other}` has the option `{word}`")));
        }
    }
    error
}

/// Creates the error for an internal command on the command line.
pub(crate) fn internal(name: &str) -> clap::Error {
    let text = format!("`waypost {name}` is internal: `waypost run` and `waypost resume` start it\n");
    clap::Error::raw(ErrorKind::InvalidSubcommand, text)
}

/// A command or option of this program for an unknown word.
enum Own {
    /// The word of another tool.
    Meant(String),
    /// A similar spelling.
    Near(String),
    Unknown,
}

/// Returns the command or option for `word` in `found`.
fn own_word(found: &Command, name: &str, word: &str, is_command: bool) -> Own {
    if is_command {
        let has = |own: &str| found.find_subcommand(own).is_some();
        let meant = COMMANDS.iter().find(|(other, own)| *other == word && has(own));
        let names = found.get_subcommands().filter(|found| !found.is_hide_set()).map(Command::get_name);
        return match meant {
            Some((_, own)) => Own::Meant((*own).to_owned()),
            None => nearest(word, names).map_or(Own::Unknown, Own::Near),
        };
    }
    let is_meant = |(of, other, _): &&(&str, &str, &str)| *of == name && *other == word;
    if let Some((_, _, own)) = OPTIONS.iter().find(is_meant) {
        return Own::Meant((*own).to_owned());
    }
    let Some(word) = word.strip_prefix("--") else { return Own::Unknown };
    let shown: Vec<&str> =
        found.get_arguments().filter(|own| !own.is_hide_set()).filter_map(clap::Arg::get_long).collect();
    let begins = |own: &&&str| own.starts_with(word) || word.starts_with(**own);
    let near = shown.iter().find(begins).map(|own| (*own).to_owned());
    let near = near.or_else(|| nearest(word, shown.iter().copied()));
    near.map_or(Own::Unknown, |own| Own::Near(format!("--{own}")))
}

/// Returns the command with this option, for commands that begin or continue a run.
fn other_command(root: &Command, name: &str, word: &str) -> Option<&'static str> {
    let long = word.strip_prefix("--")?;
    let has = |other: &&&str| {
        let arguments = root.find_subcommand(other).into_iter().flat_map(Command::get_arguments);
        **other != name && arguments.filter(|own| !own.is_hide_set()).any(|own| own.get_long() == Some(long))
    };
    let work = ["run", "resume", "fork"];
    work.iter().find(|_| work.contains(&name))?;
    work.iter().find(has).copied()
}

#[cfg(test)]
mod tests {
    use super::{ADVICE, COMMANDS, OPTIONS, command};

    #[test]
    fn only_known_commands_and_options_are_suggested() {
        let mut root = command();
        root.build();
        for (other, own) in COMMANDS {
            assert!(root.find_subcommand(other).is_none(), "{other} is a command");
            assert!(root.find_subcommand(own).is_some_and(|found| !found.is_hide_set()), "{own}");
        }
        for (name, other, own) in OPTIONS {
            let found = root.find_subcommand(name).unwrap();
            let has = |option: &str| {
                let long = |arg: &clap::Arg| arg.get_long().is_some_and(|long| option == format!("--{long}"));
                let short =
                    |arg: &clap::Arg| arg.get_short().is_some_and(|short| option == format!("-{short}"));
                found.get_arguments().any(|arg| long(arg) || short(arg))
            };
            assert!(has(own) && !has(other), "{name} {other} {own}");
        }
        for (name, other, advice) in ADVICE {
            let taken = root.find_subcommand(other).is_some() || OPTIONS.contains(&(name, other, advice));
            assert!(!taken, "{name} {other}");
        }
    }
}
