//! `report.md`: a head, then a section for each step, without duplicates.
//!
//! A new section is appended. Replacing older sections costs a rewrite of the file, a single one per batch of
//! sections. An exception is the last section, as in the retry of a failed step. Sections of an earlier
//! writer are indexed once, before the first write. A run of a million items has a report of hundreds of
//! megabytes: it is read and written by pieces.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{Trouble, open_or_create, replace_with};
use crate::projection::report::{self, Section};
use crate::record::{Record, RunRecord, RunStatus};
use crate::system::disk::{Disk, DiskFile, write_whole};

/// Bytes read at the end of a report to find a record's section: usually, the newest is the last.
const TAIL_BYTES: u64 = 64 << 10;
/// Bytes of a report in memory during a read or rewrite.
const PIECE_BYTES: u64 = 256 << 10;
/// Largest report with replaced sections: far beyond human reading. In a larger one, new versions of sections
/// are appended.
const REPORT_BYTES_MAX: u64 = 256 << 20;
/// Bytes read at the end of a report to find sections before its tail.
const END_BYTES_MAX: u64 = 32 << 20;
/// Longest line that may be a marker.
const MARKER_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct ReportFile {
    path: PathBuf,
    run: RunRecord,
    /// Facts about the file since the first read or its creation.
    known: Option<Known>,
    given_up: bool,
}

#[derive(Debug)]
struct Known {
    file: Box<dyn DiskFile>,
    len: u64,
    status: RunStatus,
    /// The offset of the first section, or the end of the file.
    head: u64,
    /// The digests of all markers, as a run may have a hundred thousand sections. A collision costs a rewrite
    /// without a replacement.
    markers: HashSet<u64>,
    /// The last section: its marker and offset.
    last: Option<(String, u64)>,
}

impl ReportFile {
    pub(super) fn new(path: PathBuf, run: RunRecord) -> Self {
        Self { path, run, known: None, given_up: false }
    }

    pub(super) fn committed(&mut self, disk: &dyn Disk, records: &[&Record]) -> Result<(), Trouble> {
        if self.given_up {
            return Ok(());
        }
        let written = self.write(disk, records);
        written.map_err(|source| {
            self.given_up = true;
            self.known = None;
            Trouble { path: self.path.clone(), source }
        })
    }

    fn write(&mut self, disk: &dyn Disk, records: &[&Record]) -> io::Result<()> {
        let sections = sections_of(records);
        let mut status = None;
        for header in records.iter().map(|record| record.header()).filter(|header| header.scope.is_main()) {
            status = Some(header.status.unwrap_or(RunStatus::Running));
        }
        let begins = records.iter().any(|record| record.header().root.is_some());
        if sections.is_empty() && !begins && status.is_none_or(|status| status == RunStatus::Running) {
            // Until the first outcome of a step, the head may show the end of the last session.
            return Ok(());
        }
        if self.known.is_none() {
            self.known = Some(self.read(disk, status.unwrap_or(RunStatus::Running))?);
        }
        let (mut appended, mut replaced) = (String::new(), HashMap::new());
        for section in sections {
            self.put(section, &mut appended, &mut replaced)?;
        }
        self.append(&appended)?;
        if !replaced.is_empty() {
            self.replace(disk, replaced)?;
        }
        let known = self.known.as_ref().expect("the report was read before");
        match status {
            Some(status) if status != known.status => self.restate(disk, status),
            _ => Ok(()),
        }
    }

    /// Replaces the head of the report.
    fn restate(&mut self, disk: &dyn Disk, status: RunStatus) -> io::Result<()> {
        let head = report::head(&self.run, status);
        let known = self.known.as_mut().expect("the report was read before");
        let sections = known.head..known.len;
        let path = &self.path;
        replace_with(disk, path, |file| {
            write_whole(file, head.as_bytes())?;
            copy(disk, path, sections.start..sections.end, file)
        })?;
        let begin = head.len() as u64;
        let moved = |at: u64| at - known.head + begin;
        known.last = known.last.take().map(|(marker, at)| (marker, moved(at)));
        known.len = moved(known.len);
        (known.head, known.status) = (begin, status);
        known.file = disk.open_append(path)?;
        Ok(())
    }

    /// Replaces sections by their new versions, by marker. A section that is missing after all is appended.
    fn replace(&mut self, disk: &dyn Disk, mut texts: HashMap<String, String>) -> io::Result<()> {
        let known = self.known.as_mut().expect("the report was read before");
        let mut places: Vec<(Range<u64>, String)> = Vec::with_capacity(texts.len());
        let mut open: Option<(u64, String)> = None;
        each_marker(disk, &self.path, |begin, marker| {
            let ended = open.take().map(|(from, text)| (from..begin, text));
            places.extend(ended);
            open = texts.remove(marker).map(|text| (begin, text));
        })?;
        places.extend(open.map(|(from, text)| (from..known.len, text)));
        let (path, len) = (&self.path, known.len);
        replace_with(disk, path, |file| {
            let mut at = 0;
            for (place, text) in &places {
                copy(disk, path, at..place.start, file)?;
                write_whole(file, text.as_bytes())?;
                at = place.end;
            }
            copy(disk, path, at..len, file)
        })?;
        let moved = |at: u64| {
            let before = places.iter().take_while(|(place, _)| place.start < at);
            before.fold(at, |at, (place, text)| at + text.len() as u64 - (place.end - place.start))
        };
        known.last = known.last.take().map(|(marker, at)| (marker, moved(at)));
        known.len = moved(known.len);
        known.file = disk.open_append(path)?;
        let left: String = texts.into_values().collect();
        self.append(&left)
    }

    /// Adds a section to the appended text, or to the replacements.
    fn put(
        &mut self,
        section: Section,
        appended: &mut String,
        replaced: &mut HashMap<String, String>,
    ) -> io::Result<()> {
        let marker = section.key.marker();
        let known = self.known.as_mut().expect("the report was read before");
        let is_new = known.markers.insert(digest_of(&marker));
        let is_last = known.last.as_ref().is_some_and(|(last, _)| *last == marker);
        if is_new || (!is_last && known.len > REPORT_BYTES_MAX) {
            known.last = Some((marker, known.len + appended.len() as u64));
            appended.push_str(&section.text);
            return Ok(());
        }
        let Some(begin) = known.last.as_ref().filter(|_| is_last).map(|(_, begin)| *begin) else {
            replaced.insert(marker, section.text);
            return Ok(());
        };
        match begin.checked_sub(known.len) {
            Some(unwritten) => {
                appended.truncate(usize::try_from(unwritten).expect("the offset is in a text in memory"));
            }
            None => {
                known.file.truncate(begin)?;
                known.len = begin;
            }
        }
        appended.push_str(&section.text);
        Ok(())
    }

    fn append(&mut self, text: &str) -> io::Result<()> {
        let known = self.known.as_mut().expect("the report was read before");
        write_whole(known.file.as_mut(), text.as_bytes())?;
        known.len += text.len() as u64;
        Ok(())
    }

    /// Indexes the sections of an earlier writer, or creates the file, with `status` in its head.
    fn read(&self, disk: &dyn Disk, status: RunStatus) -> io::Result<Known> {
        let mut found = ReportIndex::default();
        // A torn last line may be half a marker, which would hide the next section.
        let end = each_marker(disk, &self.path, |begin, marker| found.note(begin, marker))?;
        let first = found.first.unwrap_or(end);
        let head = report::head(&self.run, status);
        let is_same = end > 0 && first == head.len() as u64 && {
            let written = disk.read_at(&self.path, 0, head.len())?;
            written == head.as_bytes() && disk.metadata(&self.path)?.len == end
        };
        if !is_same {
            replace_with(disk, &self.path, |file| {
                write_whole(file, head.as_bytes())?;
                copy(disk, &self.path, first..end, file)
            })?;
        }
        let moved = |at: u64| at - first + head.len() as u64;
        let (file, len) = open_or_create(disk, &self.path)?;
        let last = found.last.map(|(marker, at)| (marker, moved(at)));
        Ok(Known { file, len, status, head: head.len() as u64, markers: found.markers, last })
    }
}

/// The index of a report.
#[derive(Default)]
struct ReportIndex {
    markers: HashSet<u64>,
    first: Option<u64>,
    last: Option<(String, u64)>,
}

impl ReportIndex {
    fn note(&mut self, begin: u64, marker: &str) {
        self.markers.insert(digest_of(marker));
        self.first.get_or_insert(begin);
        self.last = Some((marker.to_owned(), begin));
    }
}

/// Calls `found` with the offset and marker of each section; returns the end of the last whole line, or 0
/// without a report.
fn each_marker(disk: &dyn Disk, path: &Path, mut found: impl FnMut(u64, &str)) -> io::Result<u64> {
    let len = match disk.metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        metadata => metadata?.len,
    };
    let (mut read, mut begin, mut end) = (0, 0, 0);
    let mut line = Vec::new();
    while read < len {
        let piece = disk.read_at(path, read, PIECE_BYTES as usize)?;
        if piece.is_empty() {
            break;
        }
        read += piece.len() as u64;
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            end += part.len() as u64;
            if line.len() + part.len() <= MARKER_BYTES_MAX {
                line.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                if line.starts_with(report::MARKER.as_bytes()) {
                    found(begin, String::from_utf8_lossy(&line).trim_end());
                }
                line.clear();
                begin = end;
            }
        }
    }
    Ok(begin)
}

/// Appends a part of a file to another file, piece by piece.
fn copy(disk: &dyn Disk, path: &Path, part: Range<u64>, to: &mut dyn DiskFile) -> io::Result<()> {
    let mut at = part.start;
    while at < part.end {
        let piece = (part.end - at).min(PIECE_BYTES) as usize;
        let bytes = disk.read_at(path, at, piece)?;
        if bytes.len() != piece {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        write_whole(to, &bytes)?;
        at += piece as u64;
    }
    Ok(())
}

/// Returns the sections of records, without those replaced by the next record.
fn sections_of(records: &[&Record]) -> Vec<Section> {
    let mut keyed =
        records.iter().filter_map(|record| Some((*record, report::section_key(record)?))).peekable();
    let mut sections = Vec::new();
    while let Some((record, key)) = keyed.next() {
        if keyed.peek().is_none_or(|(_, next)| *next != key) {
            sections.extend(report::section(record, None));
        }
    }
    sections
}

fn digest_of(marker: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    marker.hash(&mut hasher);
    hasher.finish()
}

/// The sections of a report, read as far as needed.
pub(super) struct ReportSections<'a> {
    disk: &'a dyn Disk,
    path: &'a Path,
    end: Option<ReportTail>,
}

/// The end of a report.
struct ReportTail {
    text: String,
    is_all: bool,
    /// The lines that name checkpoints: most lookups miss, and need no search.
    named: HashSet<String>,
}

impl<'a> ReportSections<'a> {
    pub(super) fn new(disk: &'a dyn Disk, path: &'a Path) -> Self {
        Self { disk, path, end: None }
    }

    /// Returns whether the report has the exact section of a record; false for a record without a section.
    /// Sections are written in order of records, so the sections of older records are then present, too.
    pub(super) fn has(&mut self, record: &Record) -> bool {
        if report::section_key(record).is_none() {
            return false;
        }
        let name = report::checkpoint_line(record.header());
        loop {
            let end = self.end.get_or_insert_with(|| ReportTail::read(self.disk, self.path, TAIL_BYTES));
            let is_written =
                || report::section(record, None).is_some_and(|section| end.text.contains(&section.text));
            if end.named.contains(&name) && is_written() {
                return true;
            }
            if end.is_all {
                return false;
            }
            self.end = Some(ReportTail::read(self.disk, self.path, END_BYTES_MAX));
        }
    }
}

impl ReportTail {
    /// Reads the last bytes of a report; an unreadable report counts as empty.
    fn read(disk: &dyn Disk, path: &Path, bytes: u64) -> Self {
        let len = disk.metadata(path).map_or(0, |file| file.len);
        let from = len.saturating_sub(bytes);
        let text = lossy(&disk.read_at(path, from, (len - from) as usize).unwrap_or_default());
        let named = checkpoint_lines(&text).map(str::to_owned).collect();
        Self { text, is_all: from == 0 || bytes >= END_BYTES_MAX, named }
    }
}

/// Returns the lines that name the checkpoints of sections.
fn checkpoint_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with(report::CHECKPOINT_LINE))
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
