//! `journal.jsonl`: the headers of rotated records, a line per record, append-only.
//!
//! Lines are synced before the commit files of their records are removed. So a torn line belongs to a record with
//! an existing file. A torn line stays, and later lines begin after it. A record may exist both here and in a
//! file, or twice here; all copies are equal.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::id::{RunId, ScopePath};
use crate::record::{Flaw, HEADER_BYTES_MAX, Record};
use crate::system::disk::{Disk, write_whole};

use super::format;

/// Bytes per read while the index is built.
const CHUNK_BYTES: usize = 1 << 20;
/// Upper limit of a line: a header, its digest, and the member names.
const LINE_BYTES_MAX: usize = HEADER_BYTES_MAX + 128;

/// The positions of the records in a journal. A read verifies the record; the index does not.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    /// Bytes indexed so far; always ends at a line end.
    bytes: u64,
    /// The first bytes of the file, to detect a replaced file.
    begin: Vec<u8>,
    scopes: BTreeMap<ScopePath, BTreeMap<u64, JournalLine>>,
}

/// A line: offset, and length without the line break.
#[derive(Debug, Clone, Copy)]
pub(super) struct JournalLine {
    offset: u64,
    len: usize,
}

impl Index {
    /// Updates the index from the file. Reads only the new part, unless the file was replaced.
    pub(super) fn update(
        self: Arc<Self>,
        disk: &dyn Disk,
        path: &Path,
        run: &RunId,
    ) -> io::Result<Arc<Self>> {
        let len = match disk.metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Arc::default()),
            metadata => metadata?.len,
        };
        let begin = disk.read_at(path, 0, 256)?;
        let same = self.bytes > 0 && self.bytes <= len && begin.starts_with(&self.begin);
        if same && self.bytes == len {
            return Ok(self);
        }
        let mut index = if same { Self::clone(&self) } else { Self { begin, ..Self::default() } };
        index.extend(disk, path, run)?;
        Ok(Arc::new(index))
    }

    fn extend(&mut self, disk: &dyn Disk, path: &Path, run: &RunId) -> io::Result<()> {
        let mut window = CHUNK_BYTES;
        loop {
            let chunk = disk.read_at(path, self.bytes, window)?;
            let Some(end) = chunk.iter().rposition(|byte| *byte == b'\n') else {
                // The line is longer than the window, or the last line is torn.
                if chunk.len() < window || window > 2 * LINE_BYTES_MAX {
                    return Ok(());
                }
                window *= 2;
                continue;
            };
            let mut offset = self.bytes;
            for line in chunk[..=end].split_inclusive(|byte| *byte == b'\n') {
                let text = &line[..line.len() - 1];
                if let Some((scope, seq)) = name_of(run, text) {
                    self.scopes
                        .entry(scope)
                        .or_default()
                        .insert(seq, JournalLine { offset, len: text.len() });
                }
                offset += line.len() as u64;
            }
            self.bytes = offset;
        }
    }

    /// Returns the scopes with lines.
    pub(super) fn scopes(&self) -> impl Iterator<Item = (&ScopePath, &BTreeMap<u64, JournalLine>)> {
        self.scopes.iter()
    }

    /// Returns all lines in reverse order.
    pub(super) fn last_first(&self) -> Vec<(ScopePath, u64, JournalLine)> {
        let all = self
            .scopes
            .iter()
            .flat_map(|(scope, lines)| lines.iter().map(move |(seq, line)| (scope.clone(), *seq, *line)));
        let mut all: Vec<_> = all.collect();
        all.sort_unstable_by_key(|(_, _, line)| std::cmp::Reverse(line.offset));
        all
    }

    /// Returns true if the scope has a line with a seq in `seqs`.
    pub(super) fn has_any(&self, scope: &ScopePath, seqs: Range<u64>) -> bool {
        !seqs.is_empty() && self.scopes.get(scope).is_some_and(|lines| lines.range(seqs).next().is_some())
    }

    /// Returns the position of a record.
    pub(super) fn line(&self, scope: &ScopePath, seq: u64) -> Option<JournalLine> {
        self.scopes.get(scope)?.get(&seq).copied()
    }
}

/// Reads the record of a line, without its body; returns the flaw and the text if the line is damaged.
pub(super) fn read(
    disk: &dyn Disk,
    path: &Path,
    run: &RunId,
    line: JournalLine,
) -> io::Result<Result<Record, (Flaw, Vec<u8>)>> {
    let text = disk.read_at(path, line.offset, line.len)?;
    Ok(format::open_journal_line(run, &text).map_err(|flaw| (flaw, text)))
}

/// Returns the scope and seq of a line, unverified; `None` if the prefix is not that of a journal line.
fn name_of(run: &RunId, line: &[u8]) -> Option<(ScopePath, u64)> {
    let rest = line.strip_prefix(b"{\"digest\":\"")?.get(64..)?;
    let rest = rest.strip_prefix(b"\",\"header\":{\"v\":")?;
    let rest = &rest[rest.iter().position(|byte| !byte.is_ascii_digit())?..];
    let rest = rest.strip_prefix(b",\"run\":\"")?.strip_prefix(run.as_str().as_bytes())?;
    let rest = rest.strip_prefix(b"\",\"scope\":\"")?;
    let end = rest.iter().position(|byte| *byte == b'"')?;
    let scope = ScopePath::new(std::str::from_utf8(&rest[..end]).ok()?).ok()?;
    let rest = rest[end..].strip_prefix(b"\",\"seq\":")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let seq = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    Some((scope, seq))
}

/// Appends lines and syncs the file. Does not sync the folder entry of a new file.
pub(super) fn append(disk: &dyn Disk, path: &Path, lines: &[u8]) -> io::Result<()> {
    let (mut file, torn) = match disk.open_append(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => (disk.create_new(path)?, false),
        file => {
            let len = disk.metadata(path)?.len;
            let last = disk.read_at(path, len.saturating_sub(1), 1)?;
            (file?, last.first().is_some_and(|byte| *byte != b'\n'))
        }
    };
    if torn {
        write_whole(file.as_mut(), b"\n")?;
    }
    write_whole(file.as_mut(), lines)?;
    file.sync()
}
