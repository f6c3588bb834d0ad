//! `events.jsonl`: one line an event, appended after each commit.

use std::io;
use std::path::PathBuf;

use serde::Deserialize;

use super::{Trouble, open_or_create};
use crate::disk::{Disk, DiskFile, write_whole};
use crate::events::{self, Cursor};
use crate::record::{HEADER_BYTES_MAX, Header, Record};

/// How much of the end of the file is read to find its last line: most lines are below 1 KB.
const TAIL_BYTES: usize = 64 << 10;
/// How far the search goes: no line is longer than a header, whatever escapes JSON needs.
const TAIL_BYTES_MAX: usize = 8 * HEADER_BYTES_MAX;

/// The event last written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark(Cursor);

impl Mark {
    /// Says whether a record was written down, at least in part, when this was the last line.
    pub(super) fn covers(&self, header: &Header) -> bool {
        header.branch == self.0.branch && header.seq <= self.0.seq
    }

    /// Says whether the event is of this record, and not the last of it.
    pub(super) fn is_amid(&self, record: &Record) -> bool {
        self.names(record.header())
            && events::of(record).last().is_some_and(|last| last.cursor.index > self.0.index)
    }

    fn names(&self, header: &Header) -> bool {
        header.branch == self.0.branch && header.seq == self.0.seq
    }
}

/// The file, open for appending once something was written.
#[derive(Debug)]
pub(super) struct EventFile {
    path: PathBuf,
    file: Option<Box<dyn DiskFile>>,
    /// The last event of an earlier writer: it and those before it in its record are not written again.
    after: Option<Mark>,
    /// A write failed: a line behind a missing one would hide the gap.
    given_up: bool,
}

/// What every line has, of whatever version.
#[derive(Deserialize)]
struct Line {
    cursor: Cursor,
}

impl EventFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None, after: None, given_up: false }
    }

    /// Cuts off what is behind the last whole line, and returns which event that line is.
    pub(super) fn mend(&mut self, disk: &dyn Disk) -> Result<Option<Mark>, Trouble> {
        let mended = self.cut_tail(disk);
        mended.map_err(|source| self.give_up(source))
    }

    /// From now on, leaves out what was written down up to `mark`.
    pub(super) fn skip_to(&mut self, mark: Mark) {
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

    fn cut_tail(&mut self, disk: &dyn Disk) -> io::Result<Option<Mark>> {
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

/// Returns where the last event of the lines that can be read ends, and which it is.
///
/// What a power cut left is not trusted behind the first line that is none: what was written in order may have
/// arrived in another. Only the last line is read for what it says; of the others it is enough that they are whole.
fn last_line(tail: &[u8], from_start: bool) -> Option<(usize, Mark)> {
    let begin = if from_start { 0 } else { tail.iter().position(|byte| *byte == b'\n')? + 1 };
    let lines = tail[begin..].split_inclusive(|byte| *byte == b'\n');
    let whole: Vec<&[u8]> = lines.map_while(|line| line.strip_suffix(b"\n").filter(is_whole)).collect();
    let mut end = begin + whole.iter().map(|line| line.len() + 1).sum::<usize>();
    for line in whole.into_iter().rev() {
        if let Ok(Line { cursor }) = serde_json::from_slice(line) {
            return Some((end, Mark(cursor)));
        }
        end -= line.len() + 1;
    }
    None
}

/// Says whether a line begins and ends as one of ours does, and has no hole, which reads as zeros.
fn is_whole(line: &&[u8]) -> bool {
    line.starts_with(b"{") && line.ends_with(b"}") && !line.contains(&0)
}
