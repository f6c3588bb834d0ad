//! The folder of a run: every event once and every section once, after any crash.

use std::convert::Infallible;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use waypost::ScopePath;
use waypost::disk::RealDisk;
use waypost::events::{self, Event};
use waypost::folder::{RunFolder, append_blob, read_blob};
use waypost::record::{Ending, Failure, FailureKind, Phase, Record, RunStatus, Start, Try};
use waypost::report::{Section, put, put_head, section};
use waypost::store::{BLOB_CHUNK_BYTES, StoreError};

use waypost_testing::records::{Links, run_id, run_record, step_id};

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("runs/r-1")
    }

    fn folder(&self) -> RunFolder {
        RunFolder::new(Arc::new(RealDisk), self.path(), &run_record(&run_id("r-1")))
    }

    /// Heals the folder from the store's records, as the next writer does.
    fn healed(&self, stored: &[Record]) -> RunFolder {
        let folder = self.folder();
        folder.heal(newest_first(stored)).unwrap();
        assert!(folder.take_trouble().is_none());
        folder
    }

    fn events(&self) -> String {
        fs::read_to_string(self.path().join("events.jsonl")).unwrap()
    }

    fn report(&self) -> String {
        fs::read_to_string(self.path().join("report.md")).unwrap()
    }
}

/// Records of one run, one step each.
struct Chain {
    links: Links,
}

impl Chain {
    fn new() -> Self {
        Self { links: Links::of(&run_id("r-1")) }
    }

    fn record(&mut self, step: &str, attempt: u32, phase: Phase) -> Record {
        let mut header = self.links.header(&ScopePath::main());
        header.step = Some(step_id(step));
        header.at = Try { attempt, ..Try::default() };
        if phase == Phase::Started {
            header.started.push(Start {
                step: step_id(step),
                at: header.at.clone(),
                joins: false,
                needs: Vec::new(),
            });
        }
        header.phase = phase;
        self.links.seal(header, &serde_json::json!({}))
    }

    fn started(&mut self, step: &str) -> Record {
        self.record(step, 1, Phase::Started)
    }

    fn completed(&mut self, step: &str) -> Record {
        self.record(step, 1, Phase::Completed(Ending { exit_code: Some(0), ..Ending::default() }))
    }

    fn failed(&mut self, step: &str, attempt: u32) -> Record {
        let ending = Ending { exit_code: Some(7), ..Ending::default() };
        let error = vec!["exit code 7".to_owned()];
        let (kind, retried, tolerated) = (FailureKind::Exit, true, false);
        self.record(
            step,
            attempt,
            Phase::Failed(Failure { kind, error, retried, tolerated, ending, below: None }),
        )
    }

    fn ended(&mut self, step: &str, status: RunStatus) -> Record {
        let mut header = self.links.header(&ScopePath::main());
        header.step = Some(step_id(step));
        header.status = Some(status);
        self.links.seal(header, &serde_json::json!({}))
    }
}

fn newest_first(records: &[Record]) -> impl Iterator<Item = Result<Record, Infallible>> {
    records.iter().rev().cloned().map(Ok)
}

fn lines_of(records: &[Record]) -> String {
    let events = records.iter().flat_map(events::of);
    events.map(|event| format!("{}\n", serde_json::to_string(&event).unwrap())).collect()
}

fn four(chain: &mut Chain) -> Vec<Record> {
    vec![chain.started("fetch"), chain.completed("fetch"), chain.failed("load", 1), chain.completed("load")]
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn events_and_sections_follow_each_commit() {
    let place = Place::new();
    let mut chain = Chain::new();
    let folder = place.folder();

    let mut records = four(&mut chain);
    records.push(chain.ended("publish", RunStatus::Completed));
    for record in &records {
        folder.committed(std::slice::from_ref(record));
    }

    assert!(folder.take_trouble().is_none());
    assert_eq!(place.events(), lines_of(&records));
    for line in place.events().lines() {
        serde_json::from_str::<Event>(line).unwrap();
    }
    let report = place.report();
    assert!(report.starts_with("# nightly\n"), "{report}");
    assert!(report.contains("**completed**"), "{report}");
    for step in ["fetch", "load", "publish"] {
        assert_eq!(report.matches(&format!("<!-- section main {step} -->")).count(), 1, "{report}");
    }
}

#[test]
fn files_are_for_their_owner_only() {
    let place = Place::new();
    let folder = place.folder();

    folder.committed(&four(&mut Chain::new()));
    append_blob(&RealDisk, &place.path(), "logs/fetch.1.log", b"x").unwrap();

    for (name, expect) in [
        ("", 0o700),
        ("events.jsonl", 0o600),
        ("report.md", 0o600),
        ("logs", 0o700),
        ("logs/fetch.1.log", 0o600),
    ] {
        assert_eq!(mode(&place.path().join(name)), expect, "{name}");
    }
}

#[test]
fn a_section_is_replaced_by_the_next_attempt_wherever_it_stands() {
    let place = Place::new();
    let mut chain = Chain::new();
    let folder = place.folder();

    folder.committed(&[chain.failed("early", 1)]);
    folder.committed(&[chain.completed("other")]);
    folder.committed(&[chain.failed("early", 2), chain.failed("last", 1), chain.failed("last", 2)]);
    folder.committed(&[chain.failed("last", 3)]);
    // A new writer finds the sections of the previous one.
    let folder = place.folder();
    folder.committed(&[chain.completed("last"), chain.completed("early")]);

    let report = place.report();
    assert_eq!(report.matches("<!-- section ").count(), 3, "{report}");
    assert!(!report.contains("failed"), "{report}");
    let order: Vec<usize> =
        ["early", "other", "last"].map(|s| report.find(&format!("main {s} -->")).unwrap()).into();
    assert!(order.is_sorted(), "{report}");
}

// Bug: replacing a section, or healing a folder, held a whole report in memory more than once. Fix: the report is
// read and written in pieces, several of them here, with the same result.
#[test]
fn a_report_of_many_pieces_is_what_the_whole_text_would_be() {
    let place = Place::new();
    let mut chain = Chain::new();
    let folder = place.folder();
    let begun: Vec<Record> = (0..4_000).map(|count| chain.failed(&format!("s{count}"), 1)).collect();
    begun.chunks(1_000).for_each(|records| folder.committed(records));
    let whole = place.report();
    assert!(whole.len() > 1 << 19, "{}", whole.len());
    let sections = |records: &[Record]| -> Vec<Section> {
        records.iter().filter_map(|record| section(record, None)).collect()
    };

    // In one commit and in several, by the same writer and another, with a torn line at the end.
    let again: Vec<Record> =
        [3_999, 7, 2_000, 0, 3_999, 2_001].map(|count| chain.completed(&format!("s{count}"))).into();
    folder.committed(&again[..4]);
    // The last section has moved by now.
    folder.committed(&again[4..5]);
    let torn = fs::OpenOptions::new().append(true).open(place.path().join("report.md"));
    torn.unwrap().write_all(b"<!-- section main s9").unwrap();
    let folder = place.folder();
    folder.committed(&again[5..]);
    folder.committed(&[chain.ended("last", RunStatus::Completed)]);

    let mut expected = sections(&again).iter().fold(whole, |text, section| put(&text, section));
    let report = place.report();
    let (head, last) = (report.find("<!-- section ").unwrap(), report.rfind("<!-- section ").unwrap());
    assert!(report[..head].contains("**completed**"), "{}", &report[..head]);
    expected = put_head(&expected, &report[..head]);
    assert!(report[..last] == expected, "the texts differ");
    assert!(report[last..].starts_with("<!-- section main last -->"), "{}", &report[last..]);
}

#[test]
fn a_torn_last_line_is_cut_off_and_what_is_missing_is_added() {
    let mut chain = Chain::new();
    let records = four(&mut chain);
    let whole = lines_of(&records);
    let report = {
        let place = Place::new();
        place.folder().committed(&records);
        place.report()
    };

    // A crash may leave any part of the file, with any part of the last line.
    let ends = whole.match_indices('\n').flat_map(|(end, _)| [end, end + 1]);
    for len in (0..=whole.len()).step_by(37).chain(ends) {
        let place = Place::new();
        place.folder().committed(&records);
        let file = fs::OpenOptions::new().write(true).open(place.path().join("events.jsonl")).unwrap();
        file.set_len(len as u64).unwrap();

        place.healed(&records);

        assert_eq!(place.events(), whole, "cut at {len}");
        assert_eq!(place.report(), report, "cut at {len}");
    }
}

#[test]
fn the_next_event_after_a_torn_line_is_not_swallowed() {
    let place = Place::new();
    let mut chain = Chain::new();
    let mut records = four(&mut chain);
    place.folder().committed(&records);
    let torn = place.events().len() - 5;
    let file = fs::OpenOptions::new().write(true).open(place.path().join("events.jsonl")).unwrap();
    file.set_len(torn as u64).unwrap();

    let folder = place.healed(&records);
    records.push(chain.completed("publish"));
    folder.committed(&records[4..]);

    assert_eq!(place.events(), lines_of(&records));
}

#[test]
fn healing_asks_for_no_more_than_is_missing() {
    let place = Place::new();
    let mut chain = Chain::new();
    let records: Vec<Record> = (0..50).map(|count| chain.completed(&format!("s{count}"))).collect();
    place.folder().committed(&records[..48]);

    let mut asked = 0;
    let counted = newest_first(&records).inspect(|_| asked += 1);
    place.folder().heal(counted).unwrap();

    assert_eq!(asked, 3, "two that are missing, and the one that was last");
    assert_eq!(place.events(), lines_of(&records));
}

#[test]
fn nothing_is_written_when_nothing_is_missing() {
    let place = Place::new();
    let mut chain = Chain::new();
    let records = four(&mut chain);
    place.folder().committed(&records);
    let before = fs::metadata(place.path().join("report.md")).unwrap().modified().unwrap();

    place.healed(&records);

    assert_eq!(fs::metadata(place.path().join("report.md")).unwrap().modified().unwrap(), before);
    assert_eq!(place.events(), lines_of(&records));
}

#[test]
fn deleted_files_come_back() {
    let place = Place::new();
    let records = four(&mut Chain::new());
    place.folder().committed(&records);
    let report = place.report();
    fs::remove_file(place.path().join("events.jsonl")).unwrap();
    fs::remove_file(place.path().join("report.md")).unwrap();

    place.healed(&records);

    assert_eq!(place.events(), lines_of(&records));
    assert_eq!(place.report(), report);
}

#[test]
fn a_torn_section_is_written_again() {
    let records = four(&mut Chain::new());
    let place = Place::new();
    place.folder().committed(&records);
    let (report, events) = (place.report(), lines_of(&records[..3]));
    let from = report.find("<!-- section main load").unwrap();

    for len in (from..report.len()).step_by(5) {
        fs::write(place.path().join("report.md"), &report[..len]).unwrap();
        fs::write(place.path().join("events.jsonl"), &events).unwrap();

        place.healed(&records);

        assert_eq!(place.report(), report, "cut at {len}");
    }
}

#[test]
fn leftovers_of_a_crash_are_removed() {
    let place = Place::new();
    let records = four(&mut Chain::new());
    place.folder().committed(&records);
    fs::write(place.path().join(".tmp-99-0"), "half").unwrap();

    place.healed(&records);

    assert!(!place.path().join(".tmp-99-0").exists());
}

#[test]
fn a_file_that_cannot_be_written_is_told_and_filled_in_later() {
    let place = Place::new();
    let mut chain = Chain::new();
    let records = four(&mut chain);
    let folder = place.folder();
    folder.committed(&records[..1]);
    // A folder with the name of the file cannot be opened as a file, not even by root.
    fs::remove_file(place.path().join("events.jsonl")).unwrap();
    fs::create_dir(place.path().join("events.jsonl")).unwrap();
    let folder = place.folder();

    folder.committed(&records[1..2]);
    let trouble = folder.take_trouble().unwrap();
    folder.committed(&records[2..]);

    assert!(trouble.path.ends_with("events.jsonl"), "{trouble}");
    assert!(folder.take_trouble().is_none());
    fs::remove_dir(place.path().join("events.jsonl")).unwrap();
    place.healed(&records);
    assert_eq!(place.events(), lines_of(&records));
}

#[test]
fn blobs_are_read_back_at_their_place() {
    let place = Place::new();
    let path = place.path();

    append_blob(&RealDisk, &path, "logs/a/b.log", b"one ").unwrap();
    append_blob(&RealDisk, &path, "logs/a/b.log", b"two").unwrap();
    append_blob(&RealDisk, &path, "items", b"[]").unwrap();

    assert_eq!(read_blob(&RealDisk, &path, "logs/a/b.log", 0).unwrap(), b"one two");
    assert_eq!(read_blob(&RealDisk, &path, "logs/a/b.log", 4).unwrap(), b"two");
    assert_eq!(read_blob(&RealDisk, &path, "logs/a/b.log", 7).unwrap(), b"");
    assert_eq!(read_blob(&RealDisk, &path, "logs/none", 0).unwrap(), b"");
    assert_eq!(read_blob(&RealDisk, &path, "items", 0).unwrap(), b"[]");
}

#[test]
fn blobs_come_in_chunks_and_stay_in_their_folder() {
    let place = Place::new();
    let path = place.path();
    let large = vec![b'x'; BLOB_CHUNK_BYTES];

    append_blob(&RealDisk, &path, "logs/l", &large).unwrap();
    append_blob(&RealDisk, &path, "logs/l", &large).unwrap();

    assert_eq!(read_blob(&RealDisk, &path, "logs/l", 1).unwrap().len(), BLOB_CHUNK_BYTES);
    assert!(matches!(
        append_blob(&RealDisk, &path, "l", &[0; BLOB_CHUNK_BYTES + 1]),
        Err(StoreError::Invalid(_))
    ));
    assert!(matches!(append_blob(&RealDisk, &path, "../../x", b"x"), Err(StoreError::Invalid(_))));
    assert!(matches!(read_blob(&RealDisk, &path, "../run.json", 0), Err(StoreError::Invalid(_))));
    assert!(!place.dir.path().join("x").exists());
}

#[test]
fn a_blob_is_not_written_through_a_symbolic_link() {
    let place = Place::new();
    append_blob(&RealDisk, &place.path(), "logs/a", b"x").unwrap();
    let outside = place.dir.path().join("outside");
    fs::write(&outside, "mine").unwrap();
    std::os::unix::fs::symlink(&outside, place.path().join("logs/link")).unwrap();

    assert!(append_blob(&RealDisk, &place.path(), "logs/link", b"x").is_err());

    assert_eq!(fs::read_to_string(&outside).unwrap(), "mine");
}

#[test]
fn a_report_that_is_behind_its_log_catches_up() {
    let records = four(&mut Chain::new());
    let whole = {
        let place = Place::new();
        place.folder().committed(&records);
        place.report()
    };

    // A store may write sections later than lines; a kill may come after any of them.
    for reported in 0..=records.len() {
        let place = Place::new();
        let folder = place.folder();
        folder.log(&records);
        folder.report(&records[..reported]);

        place.healed(&records);

        assert_eq!(place.report(), whole, "after {reported}");
        assert_eq!(place.events(), lines_of(&records));
    }
}

#[test]
fn a_report_head_is_replaced_before_sections_fill_memory() {
    let place = Place::new();
    let mut chain = Chain::new();
    let folder = place.folder();
    let records: Vec<Record> = (0..3_000).map(|count| chain.completed(&format!("s{count}"))).collect();
    folder.committed(&records);
    let sections = |report: String| report[report.find("<!-- section").unwrap()..].to_owned();
    let before = sections(place.report());
    assert!(before.len() > 300_000, "one piece is enough for {}", before.len());

    folder.committed(&[chain.ended("s", RunStatus::Interrupted)]);
    let stopped = place.report();
    // The next event follows a head of another length, and the last section keeps its place.
    folder.committed(&[chain.failed("last", 1), chain.completed("last")]);

    assert!(stopped.contains("interrupted") && !stopped.contains("running"), "{}", &stopped[..300]);
    assert!(sections(stopped).starts_with(&before), "the sections stay as they are");
    let after = place.report();
    assert_eq!(after.matches("<!-- section main last -->").count(), 1);
    assert!(sections(after.clone()).starts_with(&before) && after.contains("## `last`: completed"));
}
