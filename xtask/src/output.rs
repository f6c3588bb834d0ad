//! The only place of xtask that prints: answers on stdout, progress on stderr.

use std::io::Write as _;

/// Prints an answer and a line break on stdout.
///
/// A closed pipe is not an error: whoever reads has seen enough.
pub(crate) fn say(text: impl std::fmt::Display) {
    let mut stdout = std::io::stdout().lock();
    let _closed = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// Prints one line of progress on stderr.
pub(crate) fn note(text: impl std::fmt::Display) {
    let _closed = writeln!(std::io::stderr().lock(), "{text}");
}
