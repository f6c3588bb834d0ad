//! The byte format of the file store: self-verifying text files.
//!
//! Every file except the journal begins with its own hash ([`crate::system::sealed`]). A commit file holds headers and
//! states byte for byte, so their digests match those of every other store. Bytes that are not exact JSON are
//! encoded in base64.

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::id::{Digest, RunId, ScopePath};
use crate::record::{FORMAT, Flaw, Record, SealedRun};
use crate::store::{BatchId, Signal, Summary};
use crate::system::sealed::{HASH_END, RecordText, begin, check, finish, member, parse, push_record_members};

/// The version of the file format.
pub(super) const FILE_FORMAT: u32 = 3;
/// Size limit of a file: fits a batch of several records with maximal states, in base64.
pub(super) const FILE_BYTES_MAX: u64 = 512 << 20;

/// A small file, always written as a whole; its members are the fields of a struct.
pub(super) trait Small: Serialize + DeserializeOwned {
    /// Returns the text of the file.
    fn seal(&self) -> Vec<u8> {
        let json = serde_json::to_vec(self).expect("plain values have JSON");
        let mut text = begin(json.len());
        member(&mut text, "format", &FILE_FORMAT);
        text.extend_from_slice(b",\n");
        text.extend_from_slice(json[1..].strip_suffix(b"}").expect("a struct is an object"));
        finish(text)
    }

    /// Verifies every byte of the text, and decodes the file.
    fn open(text: &[u8]) -> Result<Self, Flaw> {
        check(text, FILE_FORMAT)?;
        parse(text)
    }
}

/// `lease.json`: the token of the newest lease, until a commit file has this token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct LeaseFile {
    /// The token.
    pub(super) token: u64,
    /// The newest commit at the time of writing; `wake_at` is valid until a newer commit.
    pub(super) commit: u64,
    /// The due time of the run, set at the release of the lease.
    pub(super) wake_at: Option<Timestamp>,
}

impl Small for LeaseFile {}

/// A file in `signals/`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SignalFile {
    /// The position in the order of arrival.
    pub(super) ordinal: u64,
    /// The message.
    pub(super) signal: Signal,
}

impl Small for SignalFile {}

/// The counter for the order of runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct OrdinalFile {
    /// The ordinal of the newest run.
    pub(super) newest: u64,
}

impl Small for OrdinalFile {}

/// A quarantine note: the records lost with a file, and the reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct NoteFile {
    /// The original name of the file.
    pub(super) file: String,
    /// The flaw of the file.
    pub(super) flaw: String,
    /// The records of the file, as far as known.
    pub(super) records: Vec<(ScopePath, u64)>,
    /// True if later commits count the records. Notes of older versions lack this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) counted: Option<bool>,
}

impl Small for NoteFile {}

/// Returns the text of `run.json`.
pub(super) fn seal_run(run: &SealedRun, ordinal: u64) -> Vec<u8> {
    let mut text = begin(run.bytes().len());
    member(&mut text, "format", &FILE_FORMAT);
    member(&mut text, "ordinal", &ordinal);
    member(&mut text, "digest", &run.digest());
    text.extend_from_slice(b",\n\"record\":");
    text.extend_from_slice(run.bytes());
    finish(text)
}

/// Verifies and decodes `run.json` of a run.
pub(super) fn open_run(run: &RunId, text: &[u8]) -> Result<(u64, SealedRun), Flaw> {
    #[derive(Deserialize)]
    struct RunFile<'a> {
        ordinal: u64,
        digest: Digest,
        #[serde(borrow)]
        record: &'a RawValue,
    }
    check(text, FILE_FORMAT)?;
    let file: RunFile<'_> = parse(text)?;
    let sealed = SealedRun::open(file.digest, file.record.get().as_bytes().to_vec())?;
    is_of(run, &sealed.record().run)?;
    Ok((file.ordinal, sealed))
}

fn is_of(run: &RunId, found: &RunId) -> Result<(), Flaw> {
    if run == found { Ok(()) } else { Err(Flaw::Malformed(format!("the file belongs to run {found}"))) }
}

/// A commit file: a batch, and the summary of the run after the batch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CommitFile {
    /// The number of the commit in the run, from 1.
    pub(super) number: u64,
    /// The fencing token of the writer.
    pub(super) token: u64,
    /// The id of the batch.
    pub(super) batch: BatchId,
    /// True if the commit releases the lease.
    pub(super) release: bool,
    /// Signals consumed by this commit.
    pub(super) consumed: Vec<String>,
    /// The run's summary.
    pub(super) summary: Summary,
    /// The time of the last activity, if different from the time of the last record.
    pub(super) updated_at: Option<Timestamp>,
    /// The checkpoint count of the run, including this commit.
    pub(super) checkpoints: u64,
    /// The scope count of the run, including this commit.
    pub(super) scopes: u64,
    /// The records, each with the index of its scope in the order of opening, from 0.
    pub(super) records: Vec<(u64, Record)>,
}

impl CommitFile {
    /// Returns the text of the file.
    pub(super) fn seal(&self, run: &RunId) -> Vec<u8> {
        let size = |record: &Record| record.header_bytes().len() + record.body_bytes().map_or(0, |b| b.len());
        let mut text = begin(self.records.iter().map(|(_, record)| size(record) + 256).sum());
        member(&mut text, "format", &FILE_FORMAT);
        member(&mut text, "run", run);
        member(&mut text, "commit", &self.number);
        member(&mut text, "token", &self.token);
        member(&mut text, "batch", &self.batch);
        member(&mut text, "release", &self.release);
        member(&mut text, "consumed", &self.consumed);
        member(&mut text, "summary", &self.summary);
        if let Some(updated_at) = &self.updated_at {
            member(&mut text, "updated_at", updated_at);
        }
        member(&mut text, "checkpoints", &self.checkpoints);
        member(&mut text, "scopes", &self.scopes);
        text.extend_from_slice(b",\n\"records\":[");
        for (index, (opened, record)) in self.records.iter().enumerate() {
            text.extend_from_slice(if index == 0 { b"\n" } else { b",\n" });
            push_record(&mut text, *opened, record);
        }
        text.push(b']');
        finish(text)
    }

    /// Verifies every byte of a commit file of `run`, and decodes the commit.
    pub(super) fn open(run: &RunId, number: u64, text: &[u8]) -> Result<Self, Flaw> {
        #[derive(Deserialize)]
        struct CommitJson<'a> {
            run: RunId,
            commit: u64,
            token: u64,
            batch: BatchId,
            release: bool,
            consumed: Vec<String>,
            summary: Summary,
            #[serde(default)]
            updated_at: Option<Timestamp>,
            checkpoints: u64,
            scopes: u64,
            #[serde(borrow)]
            records: Vec<RecordText<'a>>,
        }
        check(text, FILE_FORMAT)?;
        let file: CommitJson<'_> = parse(text)?;
        is_of(run, &file.run)?;
        if file.commit != number {
            return Err(Flaw::Malformed(format!("the file is commit {}", file.commit)));
        }
        let open = |record: RecordText<'_>| {
            let opened = record
                .opened
                .ok_or_else(|| Flaw::Malformed("the commit has no record of the scope".to_owned()))?;
            Ok((opened, record.open()?))
        };
        let records = file.records.into_iter().map(open).collect::<Result<Vec<_>, Flaw>>()?;
        for (_, record) in &records {
            is_of(run, &record.header().run)?;
        }
        Ok(Self {
            number,
            token: file.token,
            batch: file.batch,
            release: file.release,
            consumed: file.consumed,
            summary: file.summary,
            updated_at: file.updated_at,
            checkpoints: file.checkpoints,
            scopes: file.scopes,
            records,
        })
    }
}

fn push_record(text: &mut Vec<u8>, opened: u64, record: &Record) {
    text.extend_from_slice(format!("{{\"opened\":{opened},").as_bytes());
    push_record_members(text, record);
    text.push(b'}');
}

/// Returns the scopes of the records in a damaged file, in order, as far as the text is readable.
///
/// For reports of lost records only: the result is unverified. A header begins with run, scope and seq. No JSON
/// string can contain this pattern, because quotes in a string are escaped.
pub(super) fn scopes_in(run: &RunId, text: &[u8]) -> Vec<ScopePath> {
    let begin = format!("\"header\":{{\"v\":{FORMAT},\"run\":\"{run}\",\"scope\":\"").into_bytes();
    let mut scopes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.windows(begin.len()).position(|part| part == begin) {
        rest = &rest[at + begin.len()..];
        let name =
            rest.iter().position(|byte| *byte == b'"').and_then(|end| std::str::from_utf8(&rest[..end]).ok());
        scopes.extend(name.and_then(|name| ScopePath::new(name).ok()));
    }
    scopes
}

/// Returns the commit number from the first bytes of a commit file of `run`, unverified.
pub(super) fn number_at_begin(run: &RunId, begin: &[u8]) -> Option<u64> {
    let rest = begin.get(HASH_END..)?.strip_prefix(b"\",\n\"format\":")?;
    let rest = &rest[rest.iter().position(|byte| !byte.is_ascii_digit())?..];
    let rest = rest.strip_prefix(b",\n\"run\":\"")?.strip_prefix(run.as_str().as_bytes())?;
    let rest = rest.strip_prefix(b"\",\n\"commit\":")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// Returns a journal line: the header of a record without a commit file, and its digest.
pub(super) fn journal_line(record: &Record) -> Vec<u8> {
    let header = record.header_bytes();
    let mut line = Vec::with_capacity(header.len() + 96);
    line.extend_from_slice(format!("{{\"digest\":\"{}\",\"header\":", record.digest()).as_bytes());
    line.extend_from_slice(header);
    line.extend_from_slice(b"}\n");
    line
}

/// Verifies every byte of a journal line of `run`, and decodes the record.
pub(super) fn open_journal_line(run: &RunId, line: &[u8]) -> Result<Record, Flaw> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct RecordLine<'a> {
        digest: Digest,
        #[serde(borrow)]
        header: &'a RawValue,
    }
    let parsed: RecordLine<'_> = parse(line)?;
    let record = Record::open(parsed.digest, parsed.header.get().as_bytes().to_vec(), None)?;
    is_of(run, &record.header().run)?;
    // No digest covers white space between the members, so only the original bytes are accepted.
    if journal_line(&record).strip_suffix(b"\n") != Some(line) {
        return Err(Flaw::Malformed("the text does not match its digest".to_owned()));
    }
    Ok(record)
}
