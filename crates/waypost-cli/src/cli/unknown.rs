//! Errors about unknown commands and options, with the closest command or option.

use clap::error::{ContextKind, ContextValue};

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
    ("logs", "-n", "--last"),
    ("fork", "--set", "-p"),
    ("logs", "--tail", "--last"),
    ("list", "-n", "--limit"),
    ("list", "--all", "--everywhere"),
    ("delete", "--force", "--yes"),
    ("delete", "-f", "--yes"),
    ("prune", "--force", "--yes"),
    ("prune", "-f", "--yes"),
];

/// Adds the closest public command or option to an error about an unknown word.
pub(crate) fn explained(mut error: clap::Error) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let (subcommand, argument) = (text(ContextKind::InvalidSubcommand), text(ContextKind::InvalidArg));
    let similar = text(ContextKind::SuggestedArg);
    // Advice to pass the option as a value.
    error.remove(ContextKind::Suggested);
    let mut root = command();
    root.build();
    if let Some(name) = subcommand {
        let meant = COMMANDS.iter().find(|(other, _)| *other == name).map(|(_, own)| (*own).to_owned());
        let is_shown = |name: &String| root.find_subcommand(name).is_some_and(|found| !found.is_hide_set());
        let similar = match error.remove(ContextKind::SuggestedSubcommand) {
            Some(ContextValue::Strings(names)) => names.into_iter().filter(is_shown).collect(),
            _ => Vec::new(),
        };
        let names = meant.map_or(similar, |meant| vec![meant]);
        if !names.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
        }
    } else if let Some(option) = argument {
        let Some(found) = std::env::args().skip(1).find_map(|word| root.find_subcommand(&word).cloned())
        else {
            return error;
        };
        let is_option = |(command, other, _): &&(&str, &str, &str)| {
            let name = if found.get_name() == "retry" { "resume" } else { found.get_name() };
            *command == name && option.split('=').next() == Some(other)
        };
        let hidden =
            |long: &str| found.get_arguments().any(|arg| arg.is_hide_set() && arg.get_long() == Some(long));
        if let Some((_, _, own)) = OPTIONS.iter().find(is_option) {
            error.insert(ContextKind::SuggestedArg, ContextValue::String((*own).to_owned()));
        } else if similar.is_some_and(|similar| hidden(similar.trim_start_matches('-'))) {
            error.remove(ContextKind::SuggestedArg);
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::{COMMANDS, OPTIONS, command};

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
    }
}
