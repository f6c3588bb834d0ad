//! The counters of a worker, in the text format of Prometheus, over HTTP.
//!
//! # Source
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use waypost::clock::{Clock as _, SystemClock};
use waypost::engine::Observer;
use waypost::events::{self, EventKind};
use waypost::record::{Position, Record};
use waypost::store::{Progress, Store};

use crate::view::CauseView;

/// Longest request: a scrape has a few headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Longest time for a request and its answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// What a worker has done.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) claimed: AtomicU64,
    pub(super) running: AtomicU64,
    pub(super) tasks: AtomicU64,
    pub(super) at_rest: AtomicU64,
    pub(super) returned: AtomicU64,
    pub(super) leases_lost: AtomicU64,
    pub(super) errors: AtomicU64,
    commits: AtomicU64,
    commit_micros: AtomicU64,
    checkpoints: AtomicU64,
    checkpoint_bytes: AtomicU64,
    steps_completed: AtomicU64,
    steps_failed: AtomicU64,
    steps_retried: AtomicU64,
    dead_letters: AtomicU64,
    /// Verdicts of claims, by kind and verdict.
    verdicts: Mutex<BTreeMap<(String, &'static str), u64>>,
    /// Reruns, by the code of their cause.
    reruns: Mutex<BTreeMap<&'static str, u64>>,
}

impl Observer for Counters {
    fn committed(&self, records: &[Record], _: &Position, _: Progress) {
        let add = |counter: &AtomicU64, count: u64| {
            counter.fetch_add(count, Ordering::Relaxed);
        };
        // Records are made right before their commit.
        if let Some(made) = records.first().map(|record| record.header().created_at) {
            let micros = SystemClock.now().as_microsecond().saturating_sub(made.as_microsecond());
            add(&self.commits, 1);
            add(&self.commit_micros, u64::try_from(micros).unwrap_or_default());
        }
        for record in records {
            for claim in record.header().evidence.iter().flat_map(|pack| &pack.claims) {
                let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
                *verdicts.entry((claim.kind.to_string(), claim.verdict.name())).or_default() += 1;
            }
            for event in events::of(record) {
                match event.what {
                    EventKind::CheckpointWritten { bytes, .. } => {
                        add(&self.checkpoints, 1);
                        add(&self.checkpoint_bytes, bytes);
                    }
                    EventKind::StepCompleted(_) => add(&self.steps_completed, 1),
                    EventKind::StepFailed(_) => add(&self.steps_failed, 1),
                    EventKind::StepRetried(_) => add(&self.steps_retried, 1),
                    EventKind::ItemDead { .. } => add(&self.dead_letters, 1),
                    EventKind::StepInvalidated { cause } => {
                        let mut reruns = self.reruns.lock().unwrap_or_else(PoisonError::into_inner);
                        *reruns.entry(CauseView::from(&cause).code).or_default() += 1;
                    }
                    _ => {}
                }
            }
        }
    }

    fn warned(&self, _: &str) {}
}

impl Counters {
    /// Adds one to a counter.
    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn text(&self, ready: Option<u64>, oldest: Option<Duration>) -> String {
        let read = |counter: &AtomicU64| Some(counter.load(Ordering::Relaxed));
        let seconds = self.commit_micros.load(Ordering::Relaxed) as f64 / 1e6;
        let metrics = [
            ("waypost_worker_claimed_total", "counter", "Runs claimed.", read(&self.claimed)),
            ("waypost_worker_running", "gauge", "Runs under way.", read(&self.running)),
            (
                "waypost_worker_tasks_total",
                "counter",
                "Steps executed for runs of other workers.",
                read(&self.tasks),
            ),
            ("waypost_worker_at_rest_total", "counter", "Runs that ended or wait.", read(&self.at_rest)),
            ("waypost_worker_returned_total", "counter", "Runs returned to the queue.", read(&self.returned)),
            ("waypost_worker_leases_lost_total", "counter", "Leases expired.", read(&self.leases_lost)),
            ("waypost_commits_total", "counter", "Commits of runs.", read(&self.commits)),
            ("waypost_checkpoints_total", "counter", "Checkpoints written.", read(&self.checkpoints)),
            (
                "waypost_checkpoint_bytes_total",
                "counter",
                "Bytes of checkpoints written.",
                read(&self.checkpoint_bytes),
            ),
            ("waypost_steps_completed_total", "counter", "Steps completed.", read(&self.steps_completed)),
            (
                "waypost_steps_failed_total",
                "counter",
                "Steps failed after their last attempt.",
                read(&self.steps_failed),
            ),
            (
                "waypost_steps_retried_total",
                "counter",
                "Attempts failed and retried.",
                read(&self.steps_retried),
            ),
            (
                "waypost_dead_letters_total",
                "counter",
                "Items failed after their last attempt.",
                read(&self.dead_letters),
            ),
            ("waypost_worker_errors_total", "counter", "Errors of the store.", read(&self.errors)),
            ("waypost_queue_ready", "gauge", "Runs ready for a worker.", ready),
        ];
        let mut text = String::new();
        for (name, kind, help, value) in metrics {
            if let Some(value) = value {
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
            }
        }
        let head = |text: &mut String, name: &str, help: &str| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
        };
        head(&mut text, "waypost_commit_seconds_total", "Time from the creation of records to their commit.");
        let _ = writeln!(text, "waypost_commit_seconds_total {seconds}");
        if let Some(oldest) = oldest {
            let name = "waypost_queue_oldest_seconds";
            let help = "Time since the oldest ready run became ready.";
            let seconds = oldest.as_secs_f64();
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {seconds}");
        }
        head(&mut text, "waypost_evidence_verdicts_total", "Verdicts of claims.");
        for ((kind, verdict), count) in &*self.verdicts.lock().unwrap_or_else(PoisonError::into_inner) {
            let labels = format!("kind=\"{kind}\",verdict=\"{verdict}\"");
            let _ = writeln!(text, "waypost_evidence_verdicts_total{{{labels}}} {count}");
        }
        head(&mut text, "waypost_reruns_total", "Invalidated results, by cause.");
        for (cause, count) in &*self.reruns.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = writeln!(text, "waypost_reruns_total{{cause=\"{cause}\"}} {count}");
        }
        text
    }
}

/// Serves the counters at an address, until the process ends.
///
/// # Errors
/// The address is in use, or not of this machine.
pub(super) async fn serve(
    address: SocketAddr,
    counters: Arc<Counters>,
    store: Arc<dyn Store>,
) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tokio::spawn(async move {
        // A failed connection is that of its client.
        while let Ok((stream, _)) = listener.accept().await {
            let (counters, store) = (Arc::clone(&counters), Arc::clone(&store));
            tokio::spawn(async move {
                let _ = tokio::time::timeout(ANSWER_MAX, answer(stream, &counters, store.as_ref())).await;
            });
        }
    });
    Ok(())
}

async fn answer(mut stream: TcpStream, counters: &Counters, store: &dyn Store) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut part = [0; 1 << 10];
        let count = stream.read(&mut part).await?;
        if count == 0 || request.len() > REQUEST_BYTES_MAX {
            return Ok(());
        }
        request.extend_from_slice(&part[..count]);
    }
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => {
            let (ready, oldest) = match store.queue() {
                Some(queue) => (queue.depth().await.ok(), queue.oldest().await.ok()),
                None => (None, None),
            };
            ("200 OK", counters.text(ready, oldest))
        }
        false => ("404 Not Found", String::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
