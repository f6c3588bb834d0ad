//! The only module of xtask that prints: answers to stdout, progress to stderr.

use std::io::Write as _;

/// Prints an answer and a line break to stdout.
///
/// A closed pipe is not an error: the reader needs no more output.
pub(crate) fn say(text: impl std::fmt::Display) {
    let mut stdout = std::io::stdout().lock();
    let _closed = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// Prints a line of progress to stderr.
pub(crate) fn note(text: impl std::fmt::Display) {
    let _closed = writeln!(std::io::stderr().lock(), "{text}");
}
