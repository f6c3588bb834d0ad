//! `report.md`: a head, then a section a step, none of them twice.
//!
//! A new section is appended. Those that take the place of older ones cost a rewrite of the file, one for all that are
//! written together, except where the older one is the last, as it is when a failed step is tried again. The sections
//! that an earlier writer left are looked up once, when the first section is to be written. A run of a million items has a
//! report of hundreds of megabytes: it is read and written piece by piece.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{Trouble, open_or_create, replace_with};
use crate::disk::{Disk, DiskFile, write_whole};
use crate::record::{Record, RunRecord, RunStatus};
use crate::report::{self, Section};

/// How much of the end of a report is read to find the section of a record: that of the newest is the last, most often.
const TAIL_BYTES: u64 = 64 << 10;
/// So much of a report is in memory while it is read, or written anew.
const PIECE_BYTES: u64 = 256 << 10;
/// Largest report that sections are replaced in: far beyond what a person reads. In a larger one they come behind the others.
const REPORT_BYTES_MAX: u64 = 256 << 20;
/// So much of the end of a report is read to find older sections than its tail has.
const END_BYTES_MAX: u64 = 32 << 20;
/// Longest line that may be a marker.
const MARKER_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct ReportFile {
    path: PathBuf,
    run: RunRecord,
    /// What is known of the file since it was read or made.
    known: Option<Known>,
    given_up: bool,
}

#[derive(Debug)]
struct Known {
    file: Box<dyn DiskFile>,
    len: u64,
    status: RunStatus,
    /// Where the first section begins, or the end of the file.
    head: u64,
    /// The digests of all markers: a run may have a hundred thousand sections. Two markers of one digest would cost a
    /// rewrite that finds nothing to replace.
    markers: HashSet<u64>,
    /// The last section: its marker, and where it begins.
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
        for header in records.iter().map(|record| record.header()).filter(|header| header.branch.is_main()) {
            status = Some(header.status.unwrap_or(RunStatus::Running));
        }
        let begins = records.iter().any(|record| record.header().root.is_some());
        if sections.is_empty() && !begins && status.is_none_or(|status| status == RunStatus::Running) {
            // The head may say how the last session ended until the first step of this one came to something.
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
        let known = self.known.as_ref().expect("it was read above");
        match status {
            Some(status) if status != known.status => self.restate(disk, status),
            _ => Ok(()),
        }
    }

    /// Puts another head before the sections.
    fn restate(&mut self, disk: &dyn Disk, status: RunStatus) -> io::Result<()> {
        let head = report::head(&self.run, status);
        let known = self.known.as_mut().expect("it was read before");
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

    /// Puts sections in the place of their older selves, by their markers. One that is not there after all is added.
    fn replace(&mut self, disk: &dyn Disk, mut texts: HashMap<String, String>) -> io::Result<()> {
        let known = self.known.as_mut().expect("it was read before");
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

    /// Adds a section to what is to be appended, or to what takes the place of its older self.
    fn put(
        &mut self,
        section: Section,
        appended: &mut String,
        replaced: &mut HashMap<String, String>,
    ) -> io::Result<()> {
        let marker = section.key.marker();
        let known = self.known.as_mut().expect("it was read before");
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
                appended.truncate(usize::try_from(unwritten).expect("it is an offset into a text in memory"));
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
        let known = self.known.as_mut().expect("it was read before");
        write_whole(known.file.as_mut(), text.as_bytes())?;
        known.len += text.len() as u64;
        Ok(())
    }

    /// Finds out which sections an earlier writer left, or makes the file; its head says `status` then.
    fn read(&self, disk: &dyn Disk, status: RunStatus) -> io::Result<Known> {
        let mut found = Found::default();
        // A torn last line may be half a marker, which would hide what follows.
        let end = each_marker(disk, &self.path, |begin, marker| found.note(begin, marker))?;
        let first = found.first.unwrap_or(end);
        let head = report::head(&self.run, status);
        let is_same = end > 0 && first == head.len() as u64 && {
            let stands = disk.read_at(&self.path, 0, head.len())?;
            stands == head.as_bytes() && disk.metadata(&self.path)?.len == end
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

/// What is found in a report.
#[derive(Default)]
struct Found {
    markers: HashSet<u64>,
    first: Option<u64>,
    last: Option<(String, u64)>,
}

impl Found {
    fn note(&mut self, begin: u64, marker: &str) {
        self.markers.insert(digest_of(marker));
        self.first.get_or_insert(begin);
        self.last = Some((marker.to_owned(), begin));
    }
}

/// Tells where each section of a report begins, with its marker, and returns where its last whole line ends; 0 if there is
/// no report.
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

/// Copies a part of a file behind what is in another one, piece by piece.
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

/// Returns the sections of records, without those that the next one takes the place of.
fn sections_of(records: &[&Record]) -> Vec<Section> {
    let mut keyed =
        records.iter().filter_map(|record| Some((*record, report::section_key(record)?))).peekable();
    let mut sections = Vec::new();
    while let Some((record, key)) = keyed.next() {
        if keyed.peek().is_none_or(|(_, next)| *next != key) {
            sections.extend(report::section(record));
        }
    }
    sections
}

fn digest_of(marker: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    marker.hash(&mut hasher);
    hasher.finish()
}

/// What a report has, read as far as that is asked.
pub(super) struct Written<'a> {
    disk: &'a dyn Disk,
    path: &'a Path,
    end: Option<End>,
}

/// The end of a report.
struct End {
    text: String,
    is_all: bool,
    /// The lines in it that name checkpoints: most answers are no, and need no search.
    named: HashSet<String>,
}

impl<'a> Written<'a> {
    pub(super) fn new(disk: &'a dyn Disk, path: &'a Path) -> Self {
        Self { disk, path, end: None }
    }

    /// Says whether the section of a record stands in the report, word for word; a record that has none is passed over.
    /// Sections are written in the order of their records, so that those of older records do then, too.
    pub(super) fn has(&mut self, record: &Record) -> bool {
        if report::section_key(record).is_none() {
            return false;
        }
        let name = report::checkpoint_line(record.header());
        loop {
            let end = self.end.get_or_insert_with(|| End::read(self.disk, self.path, TAIL_BYTES));
            let stands = || report::section(record).is_some_and(|section| end.text.contains(&section.text));
            if end.named.contains(&name) && stands() {
                return true;
            }
            if end.is_all {
                return false;
            }
            self.end = Some(End::read(self.disk, self.path, END_BYTES_MAX));
        }
    }
}

impl End {
    /// Reads so many bytes of the end of a report; of one that cannot be read, nothing.
    fn read(disk: &dyn Disk, path: &Path, bytes: u64) -> Self {
        let len = disk.metadata(path).map_or(0, |file| file.len);
        let from = len.saturating_sub(bytes);
        let text = lossy(&disk.read_at(path, from, (len - from) as usize).unwrap_or_default());
        let named = checkpoint_lines(&text).map(str::to_owned).collect();
        Self { text, is_all: from == 0 || bytes >= END_BYTES_MAX, named }
    }
}

/// Returns the lines that say of which checkpoint a section is.
fn checkpoint_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with(report::CHECKPOINT_LINE))
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
