//! What a run has on disk, as text: one line a record, in the notation of a trace on paper.
//!
//! ```text
//!   main@2 completed a(1) > b(1) | b started      what happened > what was started with it | what is unfinished then
//!   main@3 waiting merge(0) | merge waiting 0/2   amid a fan-out: how many of how many scopes are open
//!   main@4 completed b(2) i3 e1 ^2 = completed    third pass, first redo, goes on from 2; the run stands so after it
//! ```

use waypost::RunId;
use waypost::record::{FrontierEntry, Header, Phase, Status, Try, WaitKind};
use waypost::store::{Scan, Store};

/// Returns all records of a run, scope by scope in opening order.
pub(crate) async fn told(store: &dyn Store, run: &RunId) -> Vec<String> {
    let mut scan = Scan::of(run);
    let mut lines = Vec::new();
    loop {
        let page = store.scan(&scan).await.unwrap();
        for record in &page.records {
            let header = record.header();
            let mut line = told_of(header);
            let full = store.load(run, &header.scope, header.seq).await.unwrap();
            if full.body_bytes().is_some() {
                let frontier = full.position().unwrap().with_failures_open().frontier;
                let entries: Vec<_> = frontier.iter().map(entry_of).collect();
                line += " | ";
                line += &if entries.is_empty() { "-".to_owned() } else { entries.join(", ") };
            }
            if let Some(end) = header.end.filter(|_| !header.scope.is_main()) {
                line += &format!(" = {end:?}").to_lowercase();
            }
            if let Some(status) = header.status {
                line += &format!(" = {}", status.name());
            }
            lines.push(line);
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return lines,
        }
    }
}

fn told_of(header: &Header) -> String {
    let mut line = format!("{}@{} {}", header.scope, header.seq, header.phase.name());
    if let Phase::Progress { key, .. } = &header.phase {
        line += &format!(" {key} of");
    }
    if let Some(step) = &header.step {
        line += &format!(" {step}({}){}", header.at.attempt, place_of(&header.at));
    }
    if let Some(basis) = header.basis {
        line += &format!(" ^{basis}");
    }
    let started: Vec<_> =
        header.started.iter().map(|start| format!("{}({})", start.step, start.at.attempt)).collect();
    if !started.is_empty() {
        line += &format!(" > {}", started.join(" "));
    }
    line
}

/// Returns the iterations and epoch of a step, if any.
fn place_of(at: &Try) -> String {
    let passes: String = at.iteration.iter().map(|pass| format!(" i{pass}")).collect();
    if at.epoch > 0 { format!("{passes} e{}", at.epoch) } else { passes }
}

fn entry_of(entry: &FrontierEntry) -> String {
    let status = match entry.status {
        Status::Ready => "ready",
        Status::Started => "started",
        Status::Waiting => "waiting",
        Status::Failed => "failed",
    };
    let mut text = format!("{} {status}", entry.step);
    if let Some(fan) = &entry.fan {
        text += &format!(" {}/{}", fan.opened, fan.total);
    }
    for wait in &entry.waits {
        text += match wait.on {
            WaitKind::Answer => " for an answer",
            WaitKind::Signal(_) => " for a signal",
            WaitKind::Until(_) => " for a time",
            WaitKind::Resume => " for a resume",
            WaitKind::Children => "",
        };
    }
    text
}

/// Compares lines with an optionally indented text.
macro_rules! assert_told {
    ($actual:expr, $expect:expr) => {
        let expect: Vec<&str> = $expect.trim().lines().map(str::trim).collect();
        assert_eq!($actual.join("\n"), expect.join("\n"));
    };
}

pub(crate) use assert_told;
