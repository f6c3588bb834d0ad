//! The size of the terminal.

use std::io;

/// Returns the columns of the terminal; `COLUMNS` takes precedence.
pub(crate) fn columns() -> Option<usize> {
    let given =
        std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
    given.or_else(|| size_of(&io::stdout()).map(|(columns, _)| columns))
}

/// Returns the columns and rows of a stream, if it is a terminal of known size.
pub(crate) fn size_of(stream: &(impl std::os::fd::AsFd + io::IsTerminal)) -> Option<(usize, usize)> {
    let size = stream.is_terminal().then(|| rustix::termios::tcgetwinsize(stream).ok()).flatten()?;
    let (columns, rows) = (usize::from(size.ws_col), usize::from(size.ws_row));
    (columns > 0 && rows > 0).then_some((columns, rows))
}
