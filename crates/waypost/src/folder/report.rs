//! `report.md`: a head, then a section a step, none of them twice.
//!
//! A new section is appended. One that takes the place of an older section costs a rewrite of the file, except where
//! the older one is the last, as it is when a failed step is tried again. The sections that an earlier writer left are
//! looked up once, when the first section is to be written.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use super::{Trouble, open_or_create, replace, replace_with};
use crate::disk::{Disk, DiskFile, write_whole};
use crate::record::{Record, RunRecord, RunStatus};
use crate::report::{self, Section};

/// How much of the end of a report is read to find the section of a record: that of the newest is the last, most often.
const TAIL_BYTES: u64 = 64 << 10;
/// So much of the sections is in memory while another head is put before them.
const PIECE_BYTES: u64 = 256 << 10;
/// Largest report that sections are replaced in: far beyond what a person reads. A larger one is left as it is.
const REPORT_BYTES_MAX: u64 = 256 << 20;

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
        let mut appended = String::new();
        for section in sections {
            self.put(disk, section, &mut appended)?;
        }
        self.append(&appended)?;
        let known = self.known.as_ref().expect("it was read above");
        match status {
            Some(status) if status != known.status => self.restate(disk, status),
            _ => Ok(()),
        }
    }

    /// Puts another head before the sections, piece by piece: the file may be much larger than any of them.
    fn restate(&mut self, disk: &dyn Disk, status: RunStatus) -> io::Result<()> {
        let head = report::head(&self.run, status);
        let known = self.known.as_mut().expect("it was read before");
        let sections = known.head..known.len;
        let path = &self.path;
        replace_with(disk, path, |file| {
            write_whole(file, head.as_bytes())?;
            let mut at = sections.start;
            while at < sections.end {
                let piece = (sections.end - at).min(PIECE_BYTES) as usize;
                let bytes = disk.read_at(path, at, piece)?;
                if bytes.len() != piece {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                write_whole(file, &bytes)?;
                at += piece as u64;
            }
            Ok(())
        })?;
        let begin = head.len() as u64;
        let moved = |at: u64| at - known.head + begin;
        known.last = known.last.take().map(|(marker, at)| (marker, moved(at)));
        known.len = moved(known.len);
        (known.head, known.status) = (begin, status);
        known.file = disk.open_append(path)?;
        Ok(())
    }

    /// Adds a section to what is to be appended, or puts it in the place of its older self.
    fn put(&mut self, disk: &dyn Disk, section: Section, appended: &mut String) -> io::Result<()> {
        let marker = section.key.marker();
        let known = self.known.as_mut().expect("it was read before");
        if known.markers.insert(digest_of(&marker)) {
            known.last = Some((marker, known.len + appended.len() as u64));
            appended.push_str(&section.text);
            return Ok(());
        }
        let begin = known.last.as_ref().filter(|(last, _)| *last == marker).map(|(_, begin)| *begin);
        if let Some(unwritten) = begin.and_then(|begin| begin.checked_sub(known.len)) {
            appended.truncate(usize::try_from(unwritten).expect("it is an offset into a text in memory"));
            appended.push_str(&section.text);
            return Ok(());
        }
        self.append(&std::mem::take(appended))?;
        let known = self.known.as_mut().expect("it was read before");
        if let Some(begin) = begin {
            known.file.truncate(begin)?;
            known.len = begin;
            appended.push_str(&section.text);
            return Ok(());
        }
        let status = known.status;
        self.rewrite(disk, status, |text| report::put(&text, &section))
    }

    fn append(&mut self, text: &str) -> io::Result<()> {
        let known = self.known.as_mut().expect("it was read before");
        write_whole(known.file.as_mut(), text.as_bytes())?;
        known.len += text.len() as u64;
        Ok(())
    }

    fn rewrite(
        &mut self,
        disk: &dyn Disk,
        status: RunStatus,
        change: impl FnOnce(String) -> String,
    ) -> io::Result<()> {
        let bytes = disk.read(&self.path, REPORT_BYTES_MAX)?;
        let text = change(String::from_utf8_lossy(&bytes).into_owned());
        let text = report::put_head(&text, &report::head(&self.run, status));
        replace(disk, &self.path, text.as_bytes())?;
        self.known = Some(self.knowledge(disk, &text, status)?);
        Ok(())
    }

    /// Finds out which sections an earlier writer left, or makes the file; its head says `status` then.
    fn read(&self, disk: &dyn Disk, status: RunStatus) -> io::Result<Known> {
        let bytes = match disk.read(&self.path, REPORT_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            bytes => bytes?,
        };
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        // A torn last line may be half a marker, which would hide what follows.
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        let text = report::put_head(&text, &report::head(&self.run, status));
        if text.as_bytes() != bytes {
            replace(disk, &self.path, text.as_bytes())?;
        }
        self.knowledge(disk, &text, status)
    }

    fn knowledge(&self, disk: &dyn Disk, text: &str, status: RunStatus) -> io::Result<Known> {
        let (file, len) = open_or_create(disk, &self.path)?;
        let markers = report::markers(text).map(|(_, marker)| digest_of(marker)).collect();
        let head = report::markers(text).next().map_or(len, |(begin, _)| begin as u64);
        let last = report::markers(text).last().map(|(begin, marker)| (marker.to_owned(), begin as u64));
        Ok(Known { file, len, status, head, markers, last })
    }
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
            self.end = Some(End::read(self.disk, self.path, REPORT_BYTES_MAX));
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
        Self { text, is_all: from == 0 || bytes >= REPORT_BYTES_MAX, named }
    }
}

/// Returns the lines that say of which checkpoint a section is.
fn checkpoint_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with(report::CHECKPOINT_LINE))
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
