//! The log of one attempt, line by line, while it grows.
//!
//! The live region, printed logs and `watch` read logs through [`StepLog`]: a position in the stored log, and
//! the line that begins there. The log is masked before it is stored. A slow reader of the lines delays only
//! the lines, not the step.

use waypost::record::Try;
use waypost::store::{Store, StoreError};
use waypost::{RunId, ScopePath, StepId};
use waypost_workflow::program::log_name;

use super::shown;

/// Most bytes of a printed line: longer than lines for people, and short enough for a log viewer.
pub(super) const LINE_BYTES_MAX: usize = 4 * 1024;
/// Most chunks of a log per read, so that endless output of a step does not hold up the lines of other steps.
const CHUNKS_MAX: usize = 4;

/// How far a log is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadTo {
    /// A few chunks; the attempt is running.
    NextChunks,
    /// The present end.
    End,
}

/// A position in the log of an attempt.
#[derive(Debug)]
pub(super) struct StepLog {
    run: RunId,
    blob: String,
    offset: u64,
    /// The beginning of the incomplete line, up to the limit.
    line: Vec<u8>,
    /// Bytes of the incomplete line beyond the limit.
    dropped_bytes: usize,
    /// The last complete line that is not blank.
    last: Vec<u8>,
}

impl StepLog {
    /// Returns the beginning of the log of an attempt.
    pub(super) fn new(run: &RunId, scope: &ScopePath, step: &StepId, at: &Try) -> Self {
        let blob = log_name(scope, step, at);
        let (line, last) = (Vec::new(), Vec::new());
        Self { run: run.clone(), blob, offset: 0, line, dropped_bytes: 0, last }
    }

    /// Returns whether the log has text, read so far.
    pub(super) fn is_begun(&self) -> bool {
        self.offset > 0
    }

    /// Returns the run of the log.
    pub(super) fn run(&self) -> &RunId {
        &self.run
    }

    /// Reads the log on, and passes each complete line to `each`.
    ///
    /// # Errors
    /// Those of the store; the next call continues at the same place.
    pub(super) async fn read(
        &mut self,
        store: &dyn Store,
        to: ReadTo,
        mut each: impl FnMut(String),
    ) -> Result<(), StoreError> {
        let mut chunks = 0;
        while to == ReadTo::End || chunks < CHUNKS_MAX {
            let chunk = store.blobs().read(&self.run, &self.blob, self.offset).await?;
            if chunk.is_empty() {
                break;
            }
            self.offset += chunk.len() as u64;
            for part in chunk.split_inclusive(|byte| *byte == b'\n') {
                let mut text = part.strip_suffix(b"\n").unwrap_or(part);
                let printed = text.strip_suffix(b"\r").unwrap_or(text);
                if let Some(at) = printed.iter().rposition(|byte| *byte == b'\r') {
                    // A progress bar rewrites its line: only the last text counts.
                    text = &text[at + 1..];
                    (self.line, self.dropped_bytes) = (Vec::new(), 0);
                } else if self.line.ends_with(b"\r") && !text.is_empty() {
                    (self.line, self.dropped_bytes) = (Vec::new(), 0);
                }
                let room = LINE_BYTES_MAX - self.line.len();
                self.line.extend_from_slice(&text[..text.len().min(room)]);
                self.dropped_bytes += text.len().saturating_sub(room);
                if text.len() < part.len() {
                    each(self.take_line());
                }
            }
            chunks += 1;
        }
        Ok(())
    }

    /// Returns the incomplete last line of a finished log, if any.
    pub(super) fn finish(&mut self) -> Option<String> {
        (!self.line.is_empty()).then(|| self.take_line())
    }

    /// Returns the last line with text, also if incomplete, as shown on a terminal.
    pub(super) fn last_line(&self) -> String {
        visible(&self.line).or_else(|| visible(&self.last)).unwrap_or_default()
    }

    fn take_line(&mut self) -> String {
        let (line, dropped) = (std::mem::take(&mut self.line), std::mem::take(&mut self.dropped_bytes));
        if !line.trim_ascii().is_empty() {
            self.last.clone_from(&line);
        }
        if dropped == 0 {
            return text_of(&line);
        }
        // The limit may have split a character.
        let whole = super::whole(&line);
        let dropped = dropped + line.len() - whole;
        format!("{} [waypost: {dropped} bytes of this line omitted]", text_of(&line[..whole]))
    }
}

/// Returns printed bytes as text for a screen: without styles and control characters.
fn text_of(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = String::from_utf8_lossy(line);
    if line.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        return text.into_owned();
    }
    shown(&anstream::adapter::strip_str(&text).to_string()).into_owned()
}

/// Returns the part of a line that a terminal shows at the end: a progress bar rewrites its line after `\r`.
/// `None` for a blank line.
fn visible(line: &[u8]) -> Option<String> {
    let mut parts = line.rsplit(|byte| *byte == b'\r').map(text_of);
    parts.find(|part| !part.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::{text_of, visible};

    #[test]
    fn a_line_has_neither_styles_nor_control_characters() {
        assert_eq!(text_of(b"\x1b[1;31mred\x1b[0m\tend\r"), "red end");
        assert_eq!(text_of("gr\u{fc}n\u{7}\u{85}a\rb".as_bytes()), "gr\u{fc}n\\u{85}a\\rb");
        assert_eq!(visible(b"10%\r20%\r").as_deref(), Some("20%"));
        assert_eq!(visible(b" \x1b[0m\r"), None);
    }
}
