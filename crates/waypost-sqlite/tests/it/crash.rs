//! A process that is killed loses nothing that it acknowledged.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use waypost::ScopePath;
use waypost::record::{Durability, RunStatus};
use waypost::store::{Page, Store};
use waypost_testing::records::{holder, run_id};

use crate::support::{Site, Writing, open};

/// Names the database to the child; without it, the child's test does nothing.
const CHILD: &str = "WAYPOST_TEST_CHILD";

/// Appends until it is killed, and says on stdout what was acknowledged. Does nothing outside of the tests below.
#[tokio::test]
async fn a_child_appends_until_it_is_killed() {
    let Some(file) = std::env::var_os(CHILD) else { return };
    let store = open(Path::new(&file));
    let mut writing = Writing::begin(&store, "r-1", Durability::Sync).await;
    loop {
        writing.step().await.unwrap();
        let seq = writing.links.next(&ScopePath::main()) - 1;
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "acknowledged {seq}").unwrap();
        stdout.flush().unwrap();
    }
}

/// Runs the child until it has acknowledged `count` records, kills it, and returns the last seq that it acknowledged.
fn killed_after(site: &Site, count: usize) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::a_child_appends_until_it_is_killed", "--nocapture"])
        .env(CHILD, site.file())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seq_of = || lines.next().map(|line| line.unwrap());
    let mut seqs = Vec::new();
    while seqs.len() < count {
        let line = seq_of().expect("the child goes on until it is killed");
        seqs.extend(line.strip_prefix("acknowledged ").map(|seq| seq.parse::<u64>().unwrap()));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // What it wrote before it died counts too.
    while let Some(line) = seq_of() {
        seqs.extend(line.strip_prefix("acknowledged ").and_then(|seq| seq.parse::<u64>().ok()));
    }
    *seqs.last().unwrap()
}

#[tokio::test]
async fn acknowledged_is_there_after_a_kill() {
    for count in [1, 7, 50] {
        let site = Site::new();

        let acknowledged = killed_after(&site, count);

        let store = site.open();
        let run = run_id("r-1");
        let head = store.heads(&run, &Page::default()).await.unwrap().heads.remove(0);
        assert!(head.record.header().seq >= acknowledged && head.damaged.is_empty());
        for seq in 1..=acknowledged {
            assert_eq!(store.load(&run, &ScopePath::main(), seq).await.unwrap().header().seq, seq);
        }
        let summary = store.run(&run).await.unwrap().summary;
        assert_eq!((summary.status, summary.holder), (RunStatus::Interrupted, None));
        assert_eq!(summary.checkpoints, head.record.header().seq, "counters are kept with the records");
    }
}

#[tokio::test]
async fn a_killed_run_resumes_under_a_new_lease_with_all_events() {
    let site = Site::new();
    killed_after(&site, 5);
    let store = site.open();
    let run = run_id("r-1");
    let events = store.folder(&run).unwrap().join("events.jsonl");
    // The kill came in the middle of a line, as far as a reader can tell.
    let text = std::fs::read_to_string(&events).unwrap();
    std::fs::write(&events, &text[..text.len() - 20]).unwrap();

    let lease = store.acquire(&run, &ScopePath::main(), &holder("next")).await.unwrap();

    assert_eq!(lease.token(), 2);
    let head = store.heads(&run, &Page::default()).await.unwrap().heads.remove(0);
    let healed = std::fs::read_to_string(&events).unwrap();
    let last: serde_json::Value = serde_json::from_str(healed.lines().last().unwrap()).unwrap();
    assert_eq!(last["seq"], head.record.header().seq, "the newest record has its event again");
    let cursors: Vec<_> = healed
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["cursor"].to_string())
        .collect();
    let mut unique = cursors.clone();
    unique.dedup();
    assert_eq!(cursors, unique, "no event is told twice");
}
