//! The file store on a disk that loses power, refuses calls, or decays.
//!
//! A program makes a run and notes the acknowledged commits. After any fault, a store opened on the remaining
//! bytes must have all acknowledged commits, to the byte. It must have no bytes that were never written, and must
//! accept new commits.

use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt as _;
use serde_json::json;
use waypost::ScopePath;
use waypost::file::FileStore;
use waypost::record::{Reason, Record};
use waypost::store::{Damage, Lease, Page, Scan, Store, StoreError, StoreExt as _, TrimMode};
use waypost_testing::damage::{OneIn, Outcome, damage_disk};
use waypost_testing::disk::{DiskFault, Refusal, Sampling, SimDisk, first_loss};
use waypost_testing::picture::scan_all;
use waypost_testing::records::{Links, holder, run_id, run_record, sealed};

const DIR: &str = "store";

/// The commits that a program tried, and the number that the store acknowledged.
#[derive(Debug, Clone)]
struct Story {
    links: Links,
    tried: Vec<Record>,
    acknowledged: usize,
    token: u64,
    failed: bool,
}

/// Completes a call of the file store, which waits only for the disk.
fn now<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never().expect("the file store does not wait")
}

fn open(disk: &SimDisk) -> FileStore {
    FileStore::on(Arc::new(disk.clone()), DIR).with_retention(Some(2))
}

impl Story {
    fn new() -> Self {
        Self { links: Links::of(&run_id("r-1")), tried: Vec::new(), acknowledged: 0, token: 0, failed: false }
    }

    /// Notes the result of a call. Returns its value on success.
    fn took<T>(&mut self, answer: Result<T, StoreError>) -> Option<T> {
        self.failed |= answer.is_err();
        answer.ok()
    }

    fn create(&mut self, store: &FileStore) -> Option<Lease> {
        let batch = self.links.step();
        self.tried.extend(batch.records.clone());
        let run = sealed(run_record(&run_id("r-1")));
        let answer = now(store.create(&run, batch, &holder("first")));
        let lease = self.took(answer)?;
        self.acknowledged = self.tried.len();
        self.token = lease.token();
        Some(lease)
    }

    fn append(&mut self, store: &FileStore, lease: &Lease) -> Option<()> {
        let batch = self.links.step();
        self.tried.extend(batch.records.clone());
        let mut answer = now(store.append(&[lease], batch.clone()));
        if answer.is_err() {
            // Once more, as an engine does that tolerates a lost checkpoint.
            answer = now(store.append(&[lease], batch));
        }
        self.took(answer)?;
        self.acknowledged = self.tried.len();
        Some(())
    }

    fn acquire(&mut self, store: &FileStore) -> Option<Lease> {
        let answer = now(store.acquire(&run_id("r-1"), &ScopePath::main(), &holder("next")));
        let lease = self.took(answer)?;
        self.links.under(&lease);
        self.token = lease.token();
        Some(lease)
    }

    fn newest(&self) -> Option<&Record> {
        self.tried[..self.acknowledged].last()
    }
}

/// Makes a run of `steps` checkpoints and rotates some of them away.
fn save(disk: &SimDisk, steps: usize) -> Story {
    let mut story = Story::new();
    let store = open(disk);
    let Some(lease) = story.create(&store) else { return story };
    for _ in 1..steps {
        if story.append(&store, &lease).is_none() {
            break;
        }
    }
    story
}

/// Opens a store on the remaining bytes and reports the first violation.
fn check(story: &Story, disk: &SimDisk) -> Result<(), String> {
    let store = open(disk);
    let (run, main) = (run_id("r-1"), ScopePath::main());
    let fail = |what: &str, error: StoreError| format!("{what}: {error:?}");
    let heads = match now(store.heads(&run, &Page::default())) {
        Err(StoreError::NotFound { .. }) if story.acknowledged == 0 => return begin_anew(disk),
        heads => heads.map_err(|error| fail("heads", error))?,
    };
    now(store.run(&run)).map_err(|error| fail("run", error))?;
    let head = heads.heads.first().ok_or("no head")?;
    if !head.damaged.is_empty() {
        return Err(format!("a crash is taken for damage: {:?}", head.damaged));
    }
    if !story.tried.contains(&head.record) {
        return Err("the head was never written".to_owned());
    }
    if head.record.header().seq < story.newest().map_or(0, |record| record.header().seq) {
        return Err(format!("the head is {}, more was acknowledged", head.record.header().seq));
    }
    let found = now(scan_all(&store, Scan::of(&run))).map_err(|error| fail("scan", error))?;
    if !found.damaged.is_empty() {
        return Err(format!("a crash is taken for damage: {:?}", found.damaged));
    }
    for (index, tried) in story.tried.iter().enumerate() {
        let seq = tried.header().seq;
        let loaded = match now(store.load(&run, &main, seq)) {
            Err(_) if index >= story.acknowledged => continue,
            loaded => loaded.map_err(|error| fail("load", error))?,
        };
        if loaded != *tried && loaded != tried.without_body() {
            return Err(format!("checkpoint {seq} is not what was written"));
        }
        if !found.records.contains(&tried.without_body()) {
            return Err(format!("checkpoint {seq} is loaded but not listed"));
        }
    }
    go_on(&store, disk, story)
}

/// Acquires the run, appends to it, and checks everything again.
fn go_on(store: &FileStore, disk: &SimDisk, story: &Story) -> Result<(), String> {
    let run = run_id("r-1");
    let lease = now(store.acquire(&run, &ScopePath::main(), &holder("check")))
        .map_err(|error| format!("acquire: {error:?}"))?;
    if lease.token() <= story.token {
        return Err(format!("token {} after {}", lease.token(), story.token));
    }
    let left = disk.files().into_iter().find(|(path, _)| path.to_string_lossy().contains(".tmp-"));
    if let Some((path, _)) = left {
        return Err(format!("{} is left", path.display()));
    }
    let newest = now(store.newest(&run, &ScopePath::main())).map_err(|error| format!("newest: {error:?}"))?;
    let mut links = Links::of(&run);
    links.under(&lease);
    links.continue_after(&ScopePath::main(), newest.header().seq, Some(newest.digest()));
    let batch = links.step();
    let record = batch.records[0].clone();
    now(store.append(&[&lease], batch)).map_err(|error| format!("append: {error:?}"))?;
    let reopened = open(disk);
    let head = now(reopened.heads(&run, &Page::default())).map_err(|error| format!("heads: {error:?}"))?;
    if head.heads.first().is_none_or(|head| head.record != record) {
        return Err("what was appended then is not the head".to_owned());
    }
    let events = disk.files().into_iter().find(|(path, _)| path.ends_with("events.jsonl"));
    let text = events.map(|(_, bytes)| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    match text.lines().find(|line| serde_json::from_str::<serde_json::Value>(line).is_err()) {
        Some(line) => Err(format!("a line of events.jsonl is torn: {line}")),
        None => Ok(()),
    }
}

/// Makes a run in a folder without one.
fn begin_anew(disk: &SimDisk) -> Result<(), String> {
    let mut story = Story::new();
    let store = open(disk);
    if story.create(&store).is_none() {
        return Err("the run is not there and cannot be made".to_owned());
    }
    drop(store);
    check(&story, disk)
}

fn few() -> Sampling {
    Sampling { seed: 1, draws: 4 }
}

fn survive(start: &SimDisk, program: impl Fn(&SimDisk) -> Story) {
    let survey = first_loss(start, few(), program, check).unwrap_or_else(|loss| panic!("{loss}"));
    assert!(survey.states > survey.calls, "{survey:?} shows nothing");
}

#[test]
fn acknowledged_is_durable_after_power_cuts_at_create_save() {
    survive(&SimDisk::with_folder(DIR), |disk| save(disk, 2));
}

#[test]
fn acknowledged_is_durable_whenever_the_power_fails_at_rotation() {
    // Retention 2 allows six files; the seventh commit rotates.
    let disk = SimDisk::with_folder(DIR);
    let before = save(&disk, 5);
    assert_eq!(before.acknowledged, 5);
    disk.settle();

    survive(&disk, |disk| {
        let mut story = before.clone();
        let store = open(disk);
        let Some(lease) = story.acquire(&store) else { return story };
        for _ in 0..2 {
            if story.append(&store, &lease).is_none() {
                return story;
            }
        }
        let answer = now(store.trim(&lease, 2, TrimMode::Apply));
        story.took(answer);
        story
    });
}

#[test]
fn acknowledged_is_durable_whenever_the_power_fails_at_acquire() {
    let disk = SimDisk::with_folder(DIR);
    let before = save(&disk, 3);
    disk.settle();

    survive(&disk, |disk| {
        let mut story = before.clone();
        story.acquire(&open(disk));
        story.acquire(&open(disk));
        story
    });
}

#[test]
fn a_crash_during_recovery_from_a_crash_loses_nothing() {
    let disk = SimDisk::with_folder(DIR);
    let mut before = save(&disk, 2);
    // The writer dies after the next commit has its name, and before the name is durable.
    let calls = {
        let probe = disk.fork();
        let mut story = before.clone();
        let lease = story.acquire(&open(&probe)).unwrap();
        drop(lease);
        probe.call_count()
    };
    let dying = disk.fork();
    dying.die_at(calls + 6);
    let store = open(&dying);
    if let Some(lease) = before.acquire(&store) {
        before.append(&store, &lease);
    }

    for state in dying.crash_states_with(few()).take(40) {
        let story = before.clone();
        state.settle();
        survive(&state, |disk| {
            let mut story = story.clone();
            story.acquire(&open(disk));
            story
        });
    }
}

#[test]
fn acknowledged_is_durable_after_power_cuts_at_quarantine() {
    let (disk, story, _) = damaged();
    let survey = first_loss(
        &disk,
        few(),
        |disk| {
            let mut story = story.clone();
            let store = open(disk);
            if let Some(lease) = story.acquire(&store) {
                let heads = now(store.heads(&run_id("r-1"), &Page::default()));
                for damage in heads.map(|heads| heads.heads[0].damaged.clone()).unwrap_or_default() {
                    let moved = now(store.quarantine(&lease, &damage));
                    story.took(moved);
                }
            }
            story
        },
        |story, disk| {
            let store = open(disk);
            let heads = now(store.heads(&run_id("r-1"), &Page::default())).map_err(|e| format!("{e:?}"))?;
            let head = &heads.heads[0];
            if head.record != story.tried[1] || head.next != 4 {
                return Err(format!("the head is {} with next {}", head.record.header().seq, head.next));
            }
            let damaged_bytes = |(path, bytes): &(std::path::PathBuf, Vec<u8>)| {
                !path.ends_with("checkpoint.json") && String::from_utf8_lossy(bytes).contains("\"seq\":3!")
            };
            if disk.files().iter().filter(|file| damaged_bytes(file)).count() == 0 {
                return Err("the damaged bytes are gone".to_owned());
            }
            // Whether the damage was moved or not, the run resumes behind it.
            let mut story = story.clone();
            let lease = story.acquire(&store).ok_or("it cannot be acquired")?;
            for damage in &head.damaged {
                now(store.quarantine(&lease, damage)).map_err(|error| format!("{error:?}"))?;
            }
            repair(&store, &lease, &story.tried[1], head.next)
        },
    );
    let survey = survey.unwrap_or_else(|loss| panic!("{loss}"));
    assert!(survey.states > survey.calls);
}

/// Returns a run of three checkpoints, the newest one damaged.
fn damaged() -> (SimDisk, Story, Damage) {
    let disk = SimDisk::with_folder(DIR);
    let story = save(&disk, 3);
    disk.settle();
    let path = Path::new(DIR).join("runs/r-1/history/checkpoint_0000000003.json");
    disk.spoil(&path, |bytes| {
        let at = String::from_utf8_lossy(bytes).find("\"seq\":3,").unwrap();
        bytes[at + 7] = b'!';
    })
    .unwrap();
    let heads = now(open(&disk).heads(&run_id("r-1"), &Page::default())).unwrap();
    let damage = heads.heads[0].damaged[0].clone();
    (disk, story, damage)
}

/// Continues behind damage, as the engine does.
fn repair(store: &FileStore, lease: &Lease, basis: &Record, next: u64) -> Result<(), String> {
    let main = ScopePath::main();
    let mut links = Links::of(&run_id("r-1"));
    links.under(lease);
    links.continue_after(&main, next - 1, Some(basis.digest()));
    let mut header = links.header(&main);
    (header.reason, header.basis) = (Reason::Repair, Some(basis.header().seq));
    let record = links.seal(header, &json!("repaired"));
    let batch = links.batch(vec![record.clone()]);
    now(store.append(&[lease], batch)).map_err(|error| format!("repair: {error:?}"))?;
    let heads = now(store.heads(&run_id("r-1"), &Page::default())).map_err(|error| format!("{error:?}"))?;
    let head = &heads.heads[0];
    if head.record == record && head.damaged.is_empty() {
        Ok(())
    } else {
        Err("it does not go on".to_owned())
    }
}

#[test]
fn a_failed_call_loses_nothing_and_acknowledges_nothing() {
    let whole = SimDisk::with_folder(DIR);
    let program = |disk: &SimDisk| {
        let mut story = save(disk, 3);
        if story.failed {
            return story;
        }
        let store = open(disk);
        let Some(lease) = story.acquire(&store) else { return story };
        for _ in 0..5 {
            if story.append(&store, &lease).is_none() {
                break;
            }
        }
        story
    };
    program(&whole);
    let faults = Refusal::ALL.map(DiskFault::Refuse).into_iter().chain([DiskFault::ShortWrite(1)]);
    let mut failures = 0;
    for fault in faults {
        for call in 0..whole.call_count() {
            let disk = SimDisk::with_folder(DIR);
            disk.fail(call, fault);
            let story = program(&disk);
            failures += u64::from(story.failed);
            disk.heal();
            for (left, state) in
                [("before", Some(disk.fork())), ("after", disk.crash_states_with(few()).next())]
            {
                let state = state.unwrap();
                check(&story, &state).unwrap_or_else(|found| {
                    panic!(
                        "call {call} ({:?}) met {fault:?}, {left} a power cut: {found}",
                        whole.calls()[call as usize]
                    )
                });
            }
        }
    }
    assert!(failures > 50, "{failures} failures show little");
}

#[test]
fn damage_is_seen_whatever_byte_of_whatever_file_is_changed() {
    let disk = SimDisk::with_folder(DIR);
    let story = save(&disk, 8);
    assert_eq!(story.acknowledged, 8);
    disk.settle();
    let is_record = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        !matches!(name, "events.jsonl" | "report.md" | "checkpoint.json")
    };

    let tally = damage_disk(&disk, OneIn(37), is_record, |disk| outcome(&story, disk));

    let tally = tally.unwrap_or_else(|wrong| panic!("{wrong}"));
    // Every record has an older one before it, and the run record has a copy: after one damage, a resume is
    // possible.
    assert!(tally.older > 0 && tally.right > 0, "{tally:?}");
}

/// Reads all of a damaged store: every value is right, or its damage is reported.
fn outcome(story: &Story, disk: &SimDisk) -> Outcome {
    let store = open(disk);
    let (run, main) = (run_id("r-1"), ScopePath::main());
    let mut worst = Outcome::Right;
    match now(store.run(&run)) {
        Ok(entry) if entry.record == sealed(run_record(&run)) => {}
        Ok(_) => return Outcome::Wrong("another run record".to_owned()),
        Err(_) => worst = Outcome::Refused,
    }
    let told = match now(scan_all(&store, Scan::of(&run))) {
        Err(_) => return Outcome::Refused,
        Ok(found) => {
            if let Some(wrong) =
                found.records.iter().find(|r| !story.tried.iter().any(|t| t.without_body() == **r))
            {
                return Outcome::Wrong(format!("scan gave {wrong:?}"));
            }
            if found.records.len() < story.tried.len() && found.damaged.is_empty() {
                return Outcome::Wrong(format!("scan gave {} records without a word", found.records.len()));
            }
            !found.damaged.is_empty()
        }
    };
    for tried in &story.tried {
        match now(store.load(&run, &main, tried.header().seq)) {
            Ok(loaded) if loaded == *tried || loaded == tried.without_body() => {}
            Ok(loaded) => return Outcome::Wrong(format!("loaded {loaded:?}")),
            Err(_) if told => {}
            Err(error) => return Outcome::Wrong(format!("{error:?} without damage in the scan")),
        }
    }
    match now(store.heads(&run, &Page::default())) {
        Err(_) => return Outcome::Refused,
        Ok(heads) => {
            let head = &heads.heads[0];
            let newest = story.newest().unwrap();
            if head.record != *newest {
                if head.damaged.is_empty() || !story.tried.contains(&head.record) {
                    return Outcome::Wrong(format!("the head is {:?}", head.record.header().seq));
                }
                worst = Outcome::Older;
            }
            for damage in head.damaged.clone() {
                let mut story = story.clone();
                let Some(lease) = story.acquire(&store) else {
                    return Outcome::Wrong("it cannot be acquired".to_owned());
                };
                if lease.token() <= 1 {
                    return Outcome::Wrong("a token is given twice".to_owned());
                }
                let moved = now(store.quarantine(&lease, &damage));
                if let Err(error) = moved {
                    return Outcome::Wrong(format!("quarantine: {error:?}"));
                }
                if let Err(wrong) = repair(&store, &lease, &head.record, head.next) {
                    return Outcome::Wrong(wrong);
                }
            }
        }
    }
    worst
}
