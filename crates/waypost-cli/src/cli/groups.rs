//! The help of the program, with its commands in groups.

use std::fmt::Write as _;

use clap::CommandFactory as _;

use super::Cli;

/// The groups of commands, in the order of the help.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Run", &["run", "resume", "retry", "stop", "cancel", "watch", "submit", "worker", "event"]),
    (
        "Look",
        &[
            "list",
            "show",
            "plan",
            "why",
            "logs",
            "events",
            "report",
            "graph",
            "diff",
            "checkpoints",
            "verify",
            "stats",
        ],
    ),
    ("Decide", &["answer", "approve", "signal", "dead-letters", "evidence", "rollback", "fork"]),
    ("Keep", &["checkpoint", "export", "import", "archive", "prune", "delete"]),
    (
        "Set up",
        &["new", "check", "schema", "config", "completions", "man", "doctor", "store", "once", "demo"],
    ),
];

/// Returns the command line, with a help in groups.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let grouped = grouped(&command, crate::format::terminal::columns().unwrap_or(usize::MAX));
    command
        .before_help(grouped)
        .help_template("{about}\n\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}{after-help}")
}

/// Lists the visible commands by group, wrapped at a width.
fn grouped(command: &clap::Command, columns: usize) -> String {
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for (group, names) in GROUPS {
        let _ = writeln!(text, "\n{group}:");
        for found in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = found.get_about().map(ToString::to_string).unwrap_or_default();
            let aliases: Vec<&str> = found.get_visible_aliases().collect();
            let aliases =
                if aliases.is_empty() { String::new() } else { format!(" [alias: {}]", aliases.join(", ")) };
            let mut line = format!("  {:<width$} ", found.get_name());
            for word in format!("{about}{aliases}").split_whitespace() {
                if line.len() + 1 + word.len() > columns {
                    let _ = writeln!(text, "{line}");
                    line = " ".repeat(width + 3);
                }
                let _ = write!(line, " {word}");
            }
            let _ = writeln!(text, "{line}");
        }
    }
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::{Cli, GROUPS};

    #[test]
    fn each_visible_command_is_in_one_group() {
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            assert_eq!(grouped.iter().filter(|one| **one == name).count(), 1, "{name}");
        }
    }
}
