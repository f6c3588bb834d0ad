//! A call as data, and its execution on a store.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use waypost::record::{Record, SealedRun};
use waypost::store::{
    Appended, Batch, Damage, Lease, Renewal, RunQuery, Scan, Signal, Store, StoreError, TrimMode,
};
use waypost::{RunId, ScopePath};

use crate::contract::{DamageTarget, StoreFixture};
use crate::picture::{heads, kind, list, of_scan, of_summary, picture, scan_all};
use crate::records::holder;

/// The lease that a call presents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// The current lease.
    Holder,
    /// A lost lease with this token.
    Stale(u64),
}

/// A call to a store, or an external event.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    Create(Box<SealedRun>, Batch),
    Acquire(RunId),
    Append(RunId, Who, Batch),
    Release(RunId, Who, Option<Timestamp>),
    Renew(Vec<(RunId, Who)>),
    Heads(RunId, usize),
    Load(RunId, ScopePath, u64),
    Scan(Scan),
    /// The set contains the damaged runs, for which only the id is compared.
    Runs(RunQuery, BTreeSet<RunId>),
    Signal(RunId, Signal),
    Quarantine(RunId, Who, ScopePath, u64),
    Trim(RunId, Who, u32, TrimMode),
    Delete(RunId),
    BlobAppend(RunId, Who, String, Vec<u8>),
    BlobRead(RunId, String, u64),
    /// A crash that loses all leases, then damage to this header.
    Damage(RunId, ScopePath, u64),
    /// A crash that loses all leases.
    Crash,
    /// The store is closed and opened again.
    Close,
}

/// The result of a call, as far as the script needs it.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) done: bool,
    pub(super) token: Option<u64>,
}

/// One of the two stores with its leases.
pub(super) struct Side {
    fixture: Box<dyn StoreFixture>,
    leases: BTreeMap<RunId, Lease>,
}

impl Side {
    pub(super) fn new(fixture: Box<dyn StoreFixture>) -> Self {
        Self { fixture, leases: BTreeMap::new() }
    }

    /// Returns the picture of a run. For a damaged run, summary and signals are left out.
    pub(super) async fn picture(&self, run: &RunId, damaged: bool) -> String {
        let picture = picture(&*self.fixture.store(), run).await;
        let compared = |line: &&str| !damaged || !(line.starts_with("run ") || line.starts_with("signal "));
        picture.lines().filter(compared).collect::<Vec<_>>().join("\n")
    }

    fn lease(&self, run: &RunId, who: Who) -> Lease {
        match who {
            Who::Holder => self.leases.get(run).expect("the script knows who holds a run").clone(),
            Who::Stale(token) => Lease::new(run.clone(), token, None),
        }
    }

    async fn crash(&mut self) {
        self.leases.clear();
        self.fixture.reopen().await;
    }

    pub(super) async fn perform(&mut self, call: &Operation) -> Answer {
        match call {
            Operation::Crash => self.crash().await,
            Operation::Close => {
                let closed = self.fixture.store().close().await;
                self.crash().await;
                return told(closed, |()| "closed".to_owned());
            }
            Operation::Damage(run, scope, seq) => {
                self.crash().await;
                self.fixture.damage(run, &DamageTarget::Header(scope.clone(), *seq)).await;
            }
            call => {
                let store = self.fixture.store();
                return self.ask(store, call).await;
            }
        }
        Answer { text: "done".to_owned(), done: true, token: None }
    }

    async fn ask(&mut self, store: Arc<dyn Store>, call: &Operation) -> Answer {
        match call {
            Operation::Create(run, batch) => {
                let answer = store.create(run, batch.clone(), &holder("the first")).await;
                self.took(answer, batch.release)
            }
            Operation::Acquire(run) => {
                let answer = store.acquire(run, &ScopePath::main(), &holder("another")).await;
                self.took(answer, false)
            }
            Operation::Append(run, who, batch) => {
                let answer = store.append(&[&self.lease(run, *who)], batch.clone()).await;
                if batch.release && answer.as_ref().is_ok_and(|answer| *answer == Appended::Now) {
                    self.leases.remove(run);
                }
                let done = matches!(answer, Ok(Appended::Now));
                Answer { done, ..told(answer, |answer| format!("{answer:?}")) }
            }
            Operation::Release(run, who, wake_at) => {
                let lease = self.lease(run, *who);
                if *who == Who::Holder {
                    self.leases.remove(run);
                }
                told(store.release(lease, *wake_at).await, |()| "released".to_owned())
            }
            Operation::Renew(shown) => {
                let leases: Vec<_> = shown.iter().map(|(run, who)| self.lease(run, *who)).collect();
                let leases: Vec<_> = leases.iter().collect();
                told(store.renew(&leases).await, |answers| {
                    format!("{:?}", answers.iter().map(asked).collect::<Vec<_>>())
                })
            }
            Operation::Signal(run, signal) => {
                told(store.signal(run, signal).await, |answer| format!("{answer:?}"))
            }
            Operation::Quarantine(run, who, scope, seq) => {
                let lease = self.lease(run, *who);
                let damage = damage_at(&*store, run, scope, *seq).await;
                told(store.quarantine(&lease, &damage).await, |()| "moved aside".to_owned())
            }
            Operation::Trim(run, who, keep, mode) => {
                let answer = store.trim(&self.lease(run, *who), *keep, *mode).await;
                told(answer, |trimmed| format!("{} checkpoints", trimmed.checkpoints))
            }
            Operation::Delete(run) => told(store.delete(run).await, |()| "deleted".to_owned()),
            Operation::BlobAppend(run, who, name, bytes) => {
                let answer = store.blobs().append(&self.lease(run, *who), name, bytes).await;
                told(answer, |()| "kept".to_owned())
            }
            reading => read(&*store, reading).await,
        }
    }

    fn took(&mut self, answer: Result<Lease, StoreError>, released: bool) -> Answer {
        let token = answer.as_ref().ok().map(Lease::token);
        if let Ok(lease) = &answer
            && !released
        {
            self.leases.insert(lease.run().clone(), lease.clone());
        }
        Answer { token, ..told(answer, |lease| format!("token {}", lease.token())) }
    }
}

async fn read(store: &dyn Store, call: &Operation) -> Answer {
    match call {
        Operation::Heads(run, limit) => told(heads(store, run, *limit).await, |heads| {
            let head = |head: &waypost::store::Head| {
                format!("{} next {}", head.record.header().reference(), head.next)
            };
            format!("{:?}", heads.iter().map(head).collect::<Vec<_>>())
        }),
        Operation::Load(run, scope, seq) => {
            told(store.load(run, scope, *seq).await, |record| of_bytes(&record))
        }
        Operation::Scan(scan) => told(scan_all(store, scan.clone()).await, |mut found| {
            // An index may bypass damage.
            if scan.external.is_some() || scan.about.is_some() {
                found.damaged.clear();
            }
            of_scan(&found)
        }),
        Operation::Runs(query, damaged) => told(list(store, query).await, |runs| {
            let drawn = runs.iter().map(|run| match damaged.contains(&run.run) {
                true => format!("damaged run {}", run.run),
                false => of_summary(run),
            });
            drawn.collect::<Vec<_>>().join("\n")
        }),
        Operation::BlobRead(run, name, offset) => {
            told(store.blobs().read(run, name, *offset).await, |bytes| {
                format!("{} bytes {}", bytes.len(), waypost::Digest::of(&bytes))
            })
        }
        other => unreachable!("{other} is not a read"),
    }
}

fn told<T>(answer: Result<T, StoreError>, draw: impl FnOnce(T) -> String) -> Answer {
    let done = answer.is_ok();
    let text = answer.map_or_else(|error| format!("refused: {}", kind(&error)), draw);
    Answer { text, done, token: None }
}

fn asked(answer: &Renewal) -> Vec<String> {
    match answer {
        Renewal::Lost => vec!["lost".to_owned()],
        Renewal::Expired => vec!["expired".to_owned()],
        Renewal::Held(signals) => {
            let asks = signals.iter().filter(|signal| signal.kind.is_for_the_run());
            asks.map(|signal| signal.id.clone()).collect()
        }
    }
}

fn of_bytes(record: &Record) -> String {
    let body = record.body_bytes().map(|body| waypost::Digest::of(body).to_string());
    format!("{} {body:?}", waypost::Digest::of(record.header_bytes()))
}

/// Returns the damage as reported by the store, or an invented damage for a sound or missing record.
async fn damage_at(store: &dyn Store, run: &RunId, scope: &ScopePath, seq: u64) -> Damage {
    if let Err(StoreError::Damaged { damage, .. }) = store.load(run, scope, seq).await {
        return *damage;
    }
    let flaw = waypost::record::Flaw::Malformed("as the caller says".to_owned());
    Damage { run: run.clone(), scope: scope.clone(), seq, place: "nowhere".to_owned(), flaw }
}

impl Operation {
    /// Returns the name of the kind of call.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Create(..) => "create",
            Self::Acquire(_) => "acquire",
            Self::Append(..) => "append",
            Self::Release(..) => "release",
            Self::Renew(_) => "renew",
            Self::Heads(..) => "heads",
            Self::Load(..) => "load",
            Self::Scan(_) => "scan",
            Self::Runs(..) => "runs",
            Self::Signal(..) => "signal",
            Self::Quarantine(..) => "quarantine",
            Self::Trim(..) => "trim",
            Self::Delete(_) => "delete",
            Self::BlobAppend(..) => "append a blob",
            Self::BlobRead(..) => "read a blob",
            Self::Damage(..) => "damage",
            Self::Crash => "crash",
            Self::Close => "close",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(run, batch) => write!(f, "create {} with {}", run.record().run, of_batch(batch)),
            Self::Append(run, who, batch) => write!(f, "append to {run} as {who:?} {}", of_batch(batch)),
            Self::BlobAppend(run, who, name, bytes) => {
                write!(f, "append {} bytes to blob {name} of {run} as {who:?}", bytes.len())
            }
            other => write!(f, "{other:?}"),
        }
    }
}

fn of_batch(batch: &Batch) -> String {
    let records: Vec<_> = batch
        .records
        .iter()
        .map(|record| {
            let header = record.header();
            let body = if record.body_bytes().is_some() { "" } else { " bare" };
            let end = header.end.map_or_else(String::new, |end| format!(" end {end:?}"));
            format!("{}@{} {:?}{body}{end}", header.scope, header.seq, header.reason)
        })
        .collect();
    let (id, consumed, release) = (batch.id, &batch.consumed, batch.release);
    format!("{}.{} {records:?} consumed {consumed:?} release {release}", id.token, id.count)
}
