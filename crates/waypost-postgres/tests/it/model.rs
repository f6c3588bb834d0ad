//! Twenty workers beside a model of the queue: claims, appends, lost answers, frozen workers, late results, expiry,
//! drains and crashes in a random order that a seed determines.
//!
//! ```text
//!   ready --claim--> held --append (last)--> ended        held, worker expired --expire--> ready too
//!     ^---- release, requeue ----'                        a late append counts until the next claim
//! ```
//!
//! The model predicts the answer of each call. At the end, all runs have exactly the records that were acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio_postgres::Client;
use waypost::record::RunStatus;
use waypost::store::{Batch, FIRST_TOKEN, Job, Lease, Queue as _, Scan, Store as _, StoreError, Summary};
use waypost::{Digest, RunId};
use waypost_postgres::PostgresStore;
use waypost_testing::contract::block_on;
use waypost_testing::random::seed::Seeded;
use waypost_testing::records::{Links, holder, run_id, run_record, sealed};

use crate::support::Site;

const WORKERS: usize = 20;
const RUNS: usize = 30;
/// The records of a run: the submission, and its steps.
const RECORDS: usize = 5;

/// A run, as the model has it.
struct ModelRun {
    id: RunId,
    priority: i32,
    token: u64,
    /// The worker whose lease is neither released nor replaced.
    holder: Option<usize>,
    is_ready: bool,
    records: Vec<Digest>,
    links: Links,
}

impl ModelRun {
    fn has_ended(&self) -> bool {
        self.records.len() == RECORDS
    }
}

/// A worker process: a store of its own, and the leases that it believes to have.
struct ModelWorker {
    store: Arc<PostgresStore>,
    /// Its row in `workers`.
    row: i64,
    /// Renewals arrive.
    is_live: bool,
    leases: BTreeMap<usize, (Lease, Links)>,
}

struct Play {
    site: Site,
    tables: Client,
    random: Seeded,
    runs: Vec<ModelRun>,
    workers: Vec<ModelWorker>,
    /// How often each kind of answer came.
    seen: BTreeMap<&'static str, u32>,
}

fn job(priority: i32) -> Job {
    Job { priority, ..Job::default() }
}

impl Play {
    async fn new(seed: u64) -> Self {
        let site = Site::new().await;
        let (submitter, tables) = (site.open(), site.tables().await);
        let (mut runs, mut workers, mut random) = (Vec::new(), Vec::new(), Seeded::new(seed));
        for _ in 0..WORKERS {
            workers.push(Self::worker(&site, &tables).await);
        }
        for number in 0..RUNS {
            let (id, priority) = (run_id(&format!("r-{number}")), random.below(3) as i32);
            let mut links = Links::of(&id);
            let first =
                Batch { summary: Some(Summary::of_status(RunStatus::Queued)), release: true, ..links.step() };
            let records = first.records.iter().map(waypost::record::Record::digest).collect();
            let run = sealed(run_record(&id));
            submitter.submit(&run, first, &job(priority), &holder("submit")).await.unwrap();
            let token = FIRST_TOKEN;
            runs.push(ModelRun { id, priority, token, holder: None, is_ready: true, records, links });
        }
        Self { site, tables, random, runs, workers, seen: BTreeMap::new() }
    }

    /// Starts a process: its first claim adds its row.
    async fn worker(site: &Site, tables: &Client) -> ModelWorker {
        let store = site.open();
        let nothing = BTreeSet::from([BTreeSet::from(["tag:nothing".to_owned()])]);
        assert!(store.claim(&holder("worker"), &nothing, 1).await.unwrap().is_empty());
        let row = tables.query_one("SELECT max(id) FROM waypost.workers", &[]).await.unwrap().get(0);
        ModelWorker { store, row, is_live: true, leases: BTreeMap::new() }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit as u64) as usize
    }

    fn note(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn is_held(&self, run: usize) -> bool {
        self.runs[run].holder.is_some_and(|worker| self.workers[worker].is_live)
    }

    /// Returns the ready runs in the order of claims; the set is that of the model.
    async fn ready(&self) -> Vec<usize> {
        const READY: &str = "SELECT r.name FROM waypost.ready q JOIN waypost.runs r ON r.id = q.run
            ORDER BY q.priority DESC, q.rank";
        let rows = self.tables.query(READY, &[]).await.unwrap();
        let place = |name: &str| self.runs.iter().position(|run| run.id.as_str() == name).unwrap();
        let order: Vec<usize> = rows.iter().map(|row| place(row.get(0))).collect();
        let priorities: Vec<i32> = order.iter().map(|run| self.runs[*run].priority).collect();
        assert!(priorities.is_sorted_by(|a, b| a >= b), "{priorities:?}");
        let of_model = (0..RUNS).filter(|run| self.runs[*run].is_ready);
        assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), of_model.collect());
        order
    }

    async fn claim(&mut self, worker: usize, count: usize) {
        if !self.workers[worker].is_live {
            return;
        }
        let order = self.ready().await;
        let picked: Vec<usize> = order.into_iter().filter(|run| !self.is_held(*run)).take(count).collect();
        let served = BTreeSet::from([BTreeSet::new()]);
        let leases = self.workers[worker].store.claim(&holder("worker"), &served, count).await.unwrap();

        let mut expected = BTreeMap::new();
        for run in picked {
            self.runs[run].is_ready = false;
            if self.runs[run].has_ended() {
                self.note("a ready run had ended");
                continue;
            }
            let lost = self.runs[run].holder.replace(worker).is_some();
            self.note(if lost { "took over" } else { "claimed" });
            self.runs[run].token += 1;
            expected.insert(self.runs[run].id.clone(), (run, self.runs[run].token));
        }
        let tokens: BTreeMap<_, _> =
            leases.iter().map(|lease| (lease.run().clone(), lease.token())).collect();
        let of_model: BTreeMap<_, _> = expected.iter().map(|(id, (_, token))| (id.clone(), *token)).collect();
        assert_eq!(tokens, of_model);
        for lease in leases {
            let (run, _) = expected[lease.run()];
            let mut links = self.runs[run].links.clone();
            links.under(&lease);
            self.workers[worker].leases.insert(run, (lease, links));
        }
    }

    /// Appends the next record under a lease, which may have been lost. Sends some batches twice, as after a lost answer.
    async fn append(&mut self, worker: usize, run: usize) {
        let again = self.below(4) == 0;
        let is_current = {
            let (lease, _) = &self.workers[worker].leases[&run];
            self.runs[run].holder == Some(worker) && lease.token() == self.runs[run].token
        };
        let store = Arc::clone(&self.workers[worker].store);
        let (lease, links) = self.workers[worker].leases.get_mut(&run).unwrap();
        let lease = lease.clone();
        let mut batch = links.step();
        let links = links.clone();
        let is_last = is_current && self.runs[run].records.len() + 1 == RECORDS;
        if is_last {
            (batch.summary, batch.release) = (Some(Summary::of_status(RunStatus::Completed)), true);
        }
        let answer = store.append(&[&lease], batch.clone()).await;
        match (answer, is_current) {
            (Ok(_), true) => {
                self.runs[run].records.push(batch.records[0].digest());
                self.runs[run].links = links;
                self.note(if self.workers[worker].is_live { "appended" } else { "appended late" });
            }
            (Err(StoreError::Fenced { .. }), false) => {
                self.note("fenced");
                self.workers[worker].leases.remove(&run);
            }
            (answer, _) => panic!("the lease is current: {is_current}, but the answer is {answer:?}"),
        }
        if again && is_current {
            store.append(&[&lease], batch).await.unwrap();
            self.note("sent again");
        }
        if is_last {
            self.runs[run].holder = None;
            self.workers[worker].leases.remove(&run);
        }
    }

    /// Gives a run back, as a drained worker does.
    async fn drain(&mut self, worker: usize, run: usize) {
        let (lease, _) = self.workers[worker].leases.remove(&run).unwrap();
        let is_current = self.runs[run].holder == Some(worker) && lease.token() == self.runs[run].token;
        let store = Arc::clone(&self.workers[worker].store);
        let answer = store.release(lease, None).await;
        assert_eq!(answer.is_ok(), is_current, "{answer:?}");
        store.requeue(&self.runs[run].id, None).await.unwrap();
        if is_current {
            self.runs[run].holder = None;
            self.note("drained");
        }
        // A run that its next holder has released too is ready by then.
        if self.runs[run].holder.is_none() && !self.runs[run].has_ended() {
            self.runs[run].is_ready = true;
        }
    }

    async fn expire(&mut self, worker: usize) {
        self.workers[worker].store.expire().await.unwrap();
        for run in 0..RUNS {
            let is_lost = self.runs[run].holder.is_some_and(|worker| !self.workers[worker].is_live);
            if is_lost && !self.runs[run].is_ready {
                self.runs[run].is_ready = true;
                self.note("expired");
            }
        }
    }

    /// Ends the lease of a worker without renewals, or renews the lease, however late.
    async fn set_live(&mut self, worker: usize, is_live: bool) {
        let (sign, length) = if is_live { ('+', 60_000) } else { ('-', 0) };
        let row = self.workers[worker].row;
        // The row of a worker without leases may be gone.
        let text = format!(
            "INSERT INTO waypost.workers (id, holder, lease_ms, until) OVERRIDING SYSTEM VALUE
             VALUES ({row}, '{{}}', {length}, clock_timestamp() {sign} interval '1 min')
             ON CONFLICT (id) DO UPDATE SET until = excluded.until, lease_ms = excluded.lease_ms"
        );
        self.tables.batch_execute(&text).await.unwrap();
        self.workers[worker].is_live = is_live;
    }

    /// Ends a process without a word, and starts another.
    async fn crash(&mut self, worker: usize) {
        self.set_live(worker, false).await;
        let next = Self::worker(&self.site, &self.tables).await;
        let dead = std::mem::replace(&mut self.workers[worker], next);
        // Runs of the dead process have no live holder; the place of the worker is taken by the next process.
        for run in &mut self.runs {
            if run.holder == Some(worker) {
                run.holder = Some(self.workers.len());
            }
        }
        // Its leases are kept: a drop would release them.
        self.workers.push(dead);
        self.note("crashed");
    }

    async fn act(&mut self) {
        let worker = self.below(WORKERS);
        let held: Vec<usize> = self.workers[worker].leases.keys().copied().collect();
        let run = (!held.is_empty()).then(|| held[self.random.below(held.len() as u64) as usize]);
        match (self.below(100), run) {
            (0..20, _) | (_, None) => {
                let count = 1 + self.below(3);
                self.claim(worker, count).await;
            }
            (20..60, Some(run)) => self.append(worker, run).await,
            (60..65, Some(run)) => self.drain(worker, run).await,
            (65..80, _) => {
                let is_live = self.workers[worker].is_live;
                self.set_live(worker, !is_live).await;
            }
            (80..97, _) => self.expire(worker).await,
            (_, _) => self.crash(worker).await,
        }
    }

    /// Lets one worker finish all runs. The others are gone.
    async fn finish(&mut self) {
        for worker in 0..self.workers.len() {
            self.set_live(worker, worker == 0).await;
        }
        for _ in 0..RUNS {
            self.expire(0).await;
            self.claim(0, RUNS).await;
            for run in self.workers[0].leases.keys().copied().collect::<Vec<_>>() {
                while self.workers[0].leases.contains_key(&run) {
                    self.append(0, run).await;
                }
            }
            if self.runs.iter().all(ModelRun::has_ended) {
                return;
            }
        }
        panic!("not all runs ended");
    }

    async fn check_records(&self) {
        for run in &self.runs {
            let found = self.workers[0].store.scan(&Scan::of(&run.id)).await.unwrap();
            let digests: Vec<Digest> = found.records.iter().map(waypost::record::Record::digest).collect();
            assert_eq!(digests, run.records, "{}", run.id);
            let summary = self.workers[0].store.run(&run.id).await.unwrap().summary;
            assert_eq!(summary.status, RunStatus::Completed);
        }
    }
}

#[test]
fn twenty_workers_follow_the_model() {
    let mut seen: BTreeMap<&'static str, u32> = BTreeMap::new();
    for seed in 0..2 {
        block_on(async {
            let mut play = Play::new(seed).await;
            for _ in 0..400 {
                play.act().await;
            }
            play.finish().await;
            play.check_records().await;
            for (what, count) in &play.seen {
                *seen.entry(what).or_default() += count;
            }
        });
    }
    let all = [
        "appended",
        "appended late",
        "claimed",
        "crashed",
        "drained",
        "expired",
        "fenced",
        "sent again",
        "took over",
    ];
    let rare: Vec<_> = all.iter().filter(|what| seen.get(**what).is_none_or(|count| *count < 5)).collect();
    assert!(rare.is_empty(), "too rare: {rare:?} in {seen:?}");
}
