//! A shell script as a workflow: where its commands end, which of them may be steps of their own, and what those need.
//!
//! Steps are shells of their own, so what one command leaves to the next in the shell itself (folder, variables, functions,
//! options) must be carried, or the two must stay together. Everything here errs towards staying together: what is not
//! understood is one step, as it stood.

mod arguments;
mod folder;
mod itself;
mod names;
mod scan;
mod split;
mod write;

pub(crate) use itself::Itself;
pub(crate) use write::make;

use crate::draft::Remark;

/// Says whether `name` stands in a text as a word of its own.
fn mentions(text: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + name.len()..].starts_with(is_part))
}

/// Says whether a text is the name of a variable.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns a command from the word on that says what it does.
fn verb(command: &[String]) -> &[String] {
    let is_before = |word: &&String| {
        word.split_once('=').is_some_and(|(name, _)| is_name(name))
            || matches!(word.as_str(), "command" | "builtin")
    };
    let before = command.iter().take_while(is_before).count();
    &command[before.min(command.len())..]
}
