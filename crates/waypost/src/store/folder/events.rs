//! `events.jsonl`: a line for each event, appended after each commit.

use std::io;
use std::path::PathBuf;

use serde::Deserialize;

use super::{Trouble, open_or_create};
use crate::projection::events::{self, Cursor};
use crate::record::{HEADER_BYTES_MAX, Header, Record};
use crate::system::disk::{Disk, DiskFile, write_whole};

/// Bytes read at the end of the file to find its last line: most lines are below 1 KB.
const TAIL_BYTES: usize = 64 << 10;
/// Limit of the search: a line is not longer than a header, with any JSON escapes.
const TAIL_BYTES_MAX: usize = 8 * HEADER_BYTES_MAX;

/// The last written event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LastEvent(Cursor);

impl LastEvent {
    /// Returns whether a record was written, at least in part, when this was the last line.
    pub(super) fn covers(&self, header: &Header) -> bool {
        header.scope == self.0.scope && header.seq <= self.0.seq
    }

    /// Returns whether the record has this event, and further events after it.
    pub(super) fn is_partly_written(&self, record: &Record) -> bool {
        self.names(record.header())
            && events::of(record).last().is_some_and(|last| last.cursor.index > self.0.index)
    }

    fn names(&self, header: &Header) -> bool {
        header.scope == self.0.scope && header.seq == self.0.seq
    }
}

/// The file, open for appending after the first write.
#[derive(Debug)]
pub(super) struct EventFile {
    path: PathBuf,
    file: Option<Box<dyn DiskFile>>,
    /// The last event of an earlier writer: this event and the record's earlier events are not written again.
    after: Option<LastEvent>,
    /// A write failed: a line after a missing one would hide the gap.
    given_up: bool,
}

/// The members of a line in every version.
#[derive(Deserialize)]
struct EventLine {
    cursor: Cursor,
}

impl EventFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None, after: None, given_up: false }
    }

    /// Truncates the file after the last whole line, and returns the event of this line.
    pub(super) fn mend(&mut self, disk: &dyn Disk) -> Result<Option<LastEvent>, Trouble> {
        let mended = self.cut_tail(disk);
        mended.map_err(|source| self.give_up(source))
    }

    /// Skips events up to `mark` from now on.
    pub(super) fn skip_to(&mut self, mark: LastEvent) {
        self.after = Some(mark);
    }

    pub(super) fn committed<'a>(
        &mut self,
        disk: &dyn Disk,
        records: impl IntoIterator<Item = &'a Record>,
    ) -> Result<(), Trouble> {
        if self.given_up {
            return Ok(());
        }
        let mut lines = Vec::with_capacity(1024);
        for record in records {
            self.push_lines(&mut lines, record);
        }
        self.append(disk, &lines).map_err(|source| self.give_up(source))
    }

    fn push_lines(&self, lines: &mut Vec<u8>, record: &Record) {
        let header = record.header();
        let last = self.after.as_ref().filter(|mark| mark.names(header)).map(|mark| mark.0.index);
        for event in events::of(record) {
            if last.is_none_or(|last| event.cursor.index > last) {
                serde_json::to_writer(&mut *lines, &event).expect("an event is plain JSON");
                lines.push(b'\n');
            }
        }
    }

    fn append(&mut self, disk: &dyn Disk, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(open_or_create(disk, &self.path)?.0),
        };
        write_whole(file.as_mut(), lines)
    }

    fn cut_tail(&mut self, disk: &dyn Disk) -> io::Result<Option<LastEvent>> {
        let len = match disk.metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata?.len,
        };
        let mut window = TAIL_BYTES;
        loop {
            let from = len.saturating_sub(window as u64);
            let tail = disk.read_at(&self.path, from, window)?;
            let found = last_line(&tail, from == 0);
            if found.is_none() && from > 0 && window < TAIL_BYTES_MAX {
                window *= 4;
                continue;
            }
            let (end, mark) = found.map_or((0, None), |(end, mark)| (from + end as u64, Some(mark)));
            if end < len {
                let mut file = disk.open_append(&self.path)?;
                file.truncate(end)?;
            }
            return Ok(mark);
        }
    }

    fn give_up(&mut self, source: io::Error) -> Trouble {
        self.given_up = true;
        self.file = None;
        Trouble { path: self.path.clone(), source }
    }
}

/// Returns the end offset of the last readable event, and its mark.
///
/// After a power failure, lines after the first invalid one are not trusted: the disk may have reordered
/// writes. Only the last line is parsed; the others only have to be whole.
fn last_line(tail: &[u8], from_start: bool) -> Option<(usize, LastEvent)> {
    let begin = if from_start { 0 } else { tail.iter().position(|byte| *byte == b'\n')? + 1 };
    let lines = tail[begin..].split_inclusive(|byte| *byte == b'\n');
    let whole: Vec<&[u8]> = lines.map_while(|line| line.strip_suffix(b"\n").filter(is_whole)).collect();
    let mut end = begin + whole.iter().map(|line| line.len() + 1).sum::<usize>();
    for line in whole.into_iter().rev() {
        if let Ok(EventLine { cursor }) = serde_json::from_slice(line) {
            return Some((end, LastEvent(cursor)));
        }
        end -= line.len() + 1;
    }
    None
}

/// Returns whether a line begins and ends as an event does, and has no hole, which reads as zeros.
fn is_whole(line: &&[u8]) -> bool {
    line.starts_with(b"{") && line.ends_with(b"}") && !line.contains(&0)
}
