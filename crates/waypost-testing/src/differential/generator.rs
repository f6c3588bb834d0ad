//! Chooses the next call: at random, but biased to reach deep states.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use waypost::record::{Reason, RunStatus};
use waypost::store::{Batch, RunQuery, Scan, ScanOrder, SignalKind, TrimMode};
use waypost::{Digest, RunId, ScopePath};

use super::call::{Answer, Operation, Who};
use crate::random::{Random, SCOPES, STEPS};
use crate::records::{Links, run_id, run_record, scope, sealed, signal, time};

/// Few runs, so that calls collide.
const RUNS: [&str; 3] = ["r-1", "r-2", "a"];
/// Few signal ids, so that ids repeat.
const SIGNALS: [&str; 5] = ["s", "b", "a/../x", "\u{e9}", "10"];
const BLOBS: [&str; 3] = ["logs/a.log", "b", "../out"];

/// The script's model of a run.
struct Known {
    links: Links,
    /// Token of the current lease.
    held: Option<u64>,
    /// Token of the newest lease, after the death of its holder.
    orphaned: Option<u64>,
    /// Tokens of lost leases.
    lost: Vec<u64>,
    /// Batches applied since the last damage.
    applied: Vec<Batch>,
    /// Scope and seq of records with a body that were alone in their batch.
    alone: BTreeSet<(ScopePath, u64)>,
    /// Damaged records outside quarantine.
    damaged: BTreeSet<(ScopePath, u64)>,
    /// Whether a record of the run was ever damaged.
    was_damaged: bool,
    /// Digests of the sound records, by scope and seq.
    sound: BTreeMap<ScopePath, BTreeMap<u64, Digest>>,
}

pub(super) struct Generator {
    random: Random,
    runs: BTreeMap<RunId, Known>,
}

impl Known {
    fn new(run: &RunId) -> Self {
        Self {
            links: Links::of(run),
            held: None,
            orphaned: None,
            lost: Vec::new(),
            applied: Vec::new(),
            alone: BTreeSet::new(),
            damaged: BTreeSet::new(),
            was_damaged: false,
            sound: BTreeMap::new(),
        }
    }

    fn applied(&mut self, batch: &Batch) {
        for record in &batch.records {
            let header = record.header();
            let place = (header.scope.clone(), header.seq);
            self.sound.entry(place.0.clone()).or_default().insert(place.1, record.digest());
            if batch.records.len() == 1 {
                self.alone.insert(place);
            }
        }
        self.links.continue_after_batch(batch);
        self.applied.push(batch.clone());
        if batch.release {
            self.lose();
        }
    }

    fn lose(&mut self) {
        self.lost.extend(self.held.take());
    }

    /// Returns the record that a repair of the scope continues, if the newest record is damaged.
    fn to_repair(&self, scope: &ScopePath) -> Option<(u64, Digest)> {
        let next = self.links.next(scope);
        let (seq, digest) = self.sound.get(scope)?.last_key_value()?;
        (seq + 1 != next).then_some((*seq, *digest))
    }
}

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), runs: BTreeMap::new() }
    }

    /// Returns a run, preferably an existing run.
    fn run(&mut self) -> RunId {
        let known: Vec<_> = self.runs.keys().cloned().collect();
        if known.is_empty() || self.random.chance(5) {
            run_id(self.random.one_of(&RUNS))
        } else {
            self.random.one_of(&known)
        }
    }

    /// Returns the lease to present, nearly always the holder's.
    fn who(&mut self, run: &RunId) -> Option<Who> {
        let stale = self.random.chance(8);
        let known = self.runs.get(run)?;
        let lost = known.lost.clone();
        match known.held {
            Some(_) if !stale || lost.is_empty() => Some(Who::Holder),
            _ if !lost.is_empty() => Some(Who::Stale(self.random.one_of(&lost))),
            _ => None,
        }
    }

    pub(super) fn next(&mut self) -> Operation {
        loop {
            let run = self.run();
            if let Some(call) = self.propose(run) {
                return call;
            }
        }
    }

    fn propose(&mut self, run: RunId) -> Option<Operation> {
        Some(match self.random.below(100) {
            0..5 => self.create(),
            5..10 => Operation::Acquire(run),
            10..50 => return self.append(run),
            50..54 => return self.wrong_append(run),
            54..57 => return self.repeated(&run),
            57..60 => {
                let wake_at = self.random.chance(50).then(|| time(self.random.below(100) as i64));
                Operation::Release(run.clone(), self.who(&run)?, wake_at)
            }
            60..63 => {
                let runs: Vec<_> = self.runs.keys().cloned().collect();
                let shown = runs.into_iter().filter_map(|run| Some((run.clone(), self.who(&run)?)));
                Operation::Renew(shown.collect())
            }
            63..65 => Operation::Heads(run, 1 + self.random.below(4) as usize),
            65..68 => self.load(run),
            68..73 => self.scan(run),
            73..76 => self.listing(),
            76..80 => self.send(run),
            80..84 => return self.quarantine(run),
            84..87 => return self.trim(run),
            87 => Operation::Delete(run),
            88..91 => return self.blob(run),
            91..93 => {
                Operation::BlobRead(run, self.random.one_of(&BLOBS[..2]).to_owned(), self.random.below(5_000))
            }
            93..97 => return self.damage(run),
            97..99 => Operation::Crash,
            _ => Operation::Close,
        })
    }

    fn load(&mut self, run: RunId) -> Operation {
        let path = scope(self.random.one_of(&SCOPES));
        let known = self.runs.get(&run).and_then(|known| known.sound.get(&path));
        let newest = known.and_then(|sound| sound.last_key_value()).map_or(1, |(seq, _)| *seq);
        Operation::Load(run, path, self.random.below(newest + 2))
    }

    fn blob(&mut self, run: RunId) -> Option<Operation> {
        let who = self.who(&run)?;
        // Only a single error per call: with two, the reported error is the store's choice.
        let names = if who == Who::Holder { &BLOBS[..] } else { &BLOBS[..2] };
        let (name, length) = (self.random.one_of(names).to_owned(), self.random.below(3_000));
        Some(Operation::BlobAppend(run, who, name, vec![length as u8; length as usize]))
    }

    fn create(&mut self) -> Operation {
        let run = run_id(self.random.one_of(&RUNS));
        let mut record = run_record(&run);
        record.workflow = self.random.one_of(&["nightly", "hourly"]).to_owned();
        record.created_at = time(self.random.below(50) as i64);
        let mut links = Links::of(&run);
        let mut batch = self.random.batch(&mut links, &[scope("main")]);
        if self.random.chance(15) {
            self.random.spoil(&mut batch);
        }
        Operation::Create(Box::new(sealed(record)), batch)
    }

    fn append(&mut self, run: RunId) -> Option<Operation> {
        let who = self.who(&run)?;
        if who != Who::Holder && self.random.chance(80) {
            return Some(Operation::Acquire(run));
        }
        let known = self.runs.get(&run)?;
        let mut links = known.links.clone();
        if let Who::Stale(token) = who {
            links.set_token(token);
            let mut late = self.random.batch(&mut links, &[scope("main")]);
            // An unused batch id.
            late.id.count = u64::from(u32::MAX);
            return Some(Operation::Append(run, who, late));
        }
        let broken: Vec<_> = SCOPES
            .map(scope)
            .into_iter()
            .filter_map(|path| Some((path.clone(), known.to_repair(&path)?)))
            .collect();
        let unmoved: BTreeSet<_> = known.damaged.iter().map(|(path, _)| path.clone()).collect();
        if let Some((path, (basis, digest))) = broken.first().cloned() {
            // As in the engine, damaged records are quarantined before the repair.
            if unmoved.contains(&path) {
                return self.quarantine(run);
            }
            let repair = self.repair(&mut links, &path, basis, digest);
            return Some(Operation::Append(run, who, repair));
        }
        let mut scopes: Vec<_> = SCOPES.map(scope).into_iter().collect();
        let first = self.random.below(scopes.len() as u64) as usize;
        scopes.swap(0, first);
        let mut batch = self.random.batch(&mut links, &scopes);
        if self.random.chance(20) {
            batch.consumed = vec![self.random.one_of(&SIGNALS).to_owned()];
        }
        Some(Operation::Append(run, who, batch))
    }

    fn repair(&mut self, links: &mut Links, path: &ScopePath, basis: u64, digest: Digest) -> Batch {
        let mut header = self.random.header(links, path);
        (header.reason, header.basis, header.prev) = (Reason::Repair, Some(basis), Some(digest));
        if self.random.chance(10) {
            header.seq += 1;
        }
        let record = links.seal(header, &json!("repaired"));
        links.batch(vec![record])
    }

    fn wrong_append(&mut self, run: RunId) -> Option<Operation> {
        let Some(Operation::Append(run, who @ Who::Holder, mut batch)) = self.append(run) else {
            return None;
        };
        if self.runs.get(&run).is_some_and(|known| known.was_damaged) {
            return None;
        }
        self.random.spoil(&mut batch);
        Some(Operation::Append(run, who, batch))
    }

    /// Repeats an applied batch under the lease of its first application.
    fn repeated(&mut self, run: &RunId) -> Option<Operation> {
        let known = self.runs.get(run)?;
        let (applied, held) = (known.applied.clone(), known.held);
        let newest = &applied[applied.len().saturating_sub(3)..];
        if newest.is_empty() {
            return None;
        }
        let batch = self.random.one_of(newest);
        let who = if held == Some(batch.id.token) { Who::Holder } else { Who::Stale(batch.id.token) };
        Some(Operation::Append(run.clone(), who, batch))
    }

    fn scan(&mut self, run: RunId) -> Operation {
        let mut scan = Scan { limit: 1 + self.random.below(5) as usize, ..Scan::of(&run) };
        if self.random.chance(50) {
            scan.scope = Some(scope(self.random.one_of(&SCOPES)));
        }
        if self.random.chance(40) {
            scan.order = ScanOrder::NewestFirst;
        }
        if self.random.chance(30) {
            scan.seq_min = Some(self.random.below(8));
        }
        if self.random.chance(30) {
            scan.seq_max = Some(self.random.below(12));
        }
        match self.random.below(8) {
            0 => scan.step = Some(self.random.one_of(&STEPS).to_owned()),
            1 => scan.phase = Some(self.random.one_of(&["completed", "skipped", "failed"])),
            2 => {
                scan.label =
                    Some(("color".to_owned(), self.random.one_of(&["red", "blue", "green"]).to_owned()))
            }
            3 => scan.external = Some(format!("client-{}", self.random.below(4))),
            4 => scan.about = Some(self.random.below(4)),
            _ => {}
        }
        Operation::Scan(scan)
    }

    fn listing(&mut self) -> Operation {
        let damaged: BTreeSet<_> =
            self.runs.iter().filter(|(_, known)| known.was_damaged).map(|(run, _)| run.clone()).collect();
        let mut query = RunQuery { limit: 1 + self.random.below(3) as usize, ..RunQuery::default() };
        match self.random.below(5) {
            0 => query.prefix = Some("r".to_owned()),
            1 => query.workflow = Some("hourly".to_owned()),
            // A store may list a damaged run with another status or time.
            2 if damaged.is_empty() => {
                query.statuses = BTreeSet::from([RunStatus::Running, RunStatus::Interrupted])
            }
            3 if damaged.is_empty() => query.since = Some(time(self.random.below(1_000) as i64)),
            _ => {}
        }
        Operation::Runs(query, damaged)
    }

    fn send(&mut self, run: RunId) -> Operation {
        let kind = match self.random.below(3) {
            0 => SignalKind::Stop,
            1 => SignalKind::Cancel,
            _ => SignalKind::Named { name: "go".to_owned(), value: json!(self.random.below(9)) },
        };
        Operation::Signal(run, signal(self.random.one_of(&SIGNALS), kind))
    }

    fn quarantine(&mut self, run: RunId) -> Option<Operation> {
        let who = self.who(&run)?;
        let known = self.runs.get(&run)?;
        let (path, seq) = match known.damaged.first() {
            Some(place) => place.clone(),
            None if who == Who::Holder => known.alone.first()?.clone(),
            None => return None,
        };
        Some(Operation::Quarantine(run, who, path, seq))
    }

    fn trim(&mut self, run: RunId) -> Option<Operation> {
        let who = self.who(&run)?;
        // Damaged records are quarantined before states are pruned.
        if !self.runs.get(&run)?.damaged.is_empty() {
            return None;
        }
        let mode = self.random.one_of(&[TrimMode::Apply, TrimMode::Apply, TrimMode::DryRun]);
        Some(Operation::Trim(run, who, self.random.below(5) as u32, mode))
    }

    /// Damages one of the newest records of a scope, because older records may be pruned.
    fn damage(&mut self, run: RunId) -> Option<Operation> {
        let path = scope(self.random.one_of(&SCOPES));
        let known = self.runs.get(&run)?;
        let newest: Vec<_> = known.sound.get(&path)?.keys().rev().take(2).copied().collect();
        // Every scope keeps a sound record.
        if newest.len() < 2 || !known.damaged.is_empty() {
            return None;
        }
        let seq = self.random.one_of(&newest);
        let alone = self.runs.get(&run)?.alone.contains(&(path.clone(), seq));
        alone.then_some(Operation::Damage(run, path, seq))
    }

    /// Updates the script with the answer of the model.
    pub(super) fn learn(&mut self, call: &Operation, answer: &Answer) {
        if let Operation::Crash | Operation::Close | Operation::Damage(..) = call {
            self.runs.values_mut().for_each(|known| {
                // Leases end with their process; the token becomes stale with the next lease.
                known.orphaned = known.held.take().or(known.orphaned);
            });
        }
        if !answer.done {
            return;
        }
        match call {
            Operation::Create(run, batch) => {
                let run = &run.record().run;
                let mut known = Known::new(run);
                known.held = answer.token;
                known.applied(batch);
                self.runs.insert(run.clone(), known);
            }
            Operation::Acquire(run) => {
                let known = self.runs.get_mut(run).expect("only what was made can be acquired");
                known.lost.extend(known.orphaned.take());
                known.held = answer.token;
                known.links.set_token(answer.token.expect("a lease has a token"));
            }
            Operation::Append(run, _, batch) => self.known(run).applied(batch),
            Operation::Release(run, ..) => self.known(run).lose(),
            Operation::Delete(run) => drop(self.runs.remove(run)),
            Operation::Damage(run, path, seq) => {
                let known = self.known(run);
                known.damaged.insert((path.clone(), *seq));
                known.sound.get_mut(path).map(|sound| sound.remove(seq));
                known.was_damaged = true;
                known.applied.clear();
            }
            Operation::Quarantine(run, _, path, seq) => {
                let known = self.known(run);
                known.damaged.remove(&(path.clone(), *seq));
                known.alone.remove(&(path.clone(), *seq));
            }
            _ => {}
        }
    }

    fn known(&mut self, run: &RunId) -> &mut Known {
        self.runs.get_mut(run).expect("the model knows no run that the script does not")
    }

    /// Returns the runs that a call may have changed, each with whether it was ever damaged.
    pub(super) fn touched(&self, call: &Operation) -> Vec<(RunId, bool)> {
        let touched = |run: &RunId| {
            let damaged = self.runs.get(run).is_some_and(|known| known.was_damaged);
            vec![(run.clone(), damaged)]
        };
        match call {
            Operation::Create(run, _) => touched(&run.record().run),
            Operation::Acquire(run)
            | Operation::Append(run, ..)
            | Operation::Release(run, ..)
            | Operation::Signal(run, _)
            | Operation::Quarantine(run, ..)
            | Operation::Trim(run, ..)
            | Operation::Delete(run) => touched(run),
            Operation::Crash | Operation::Close | Operation::Damage(..) => {
                self.runs.keys().flat_map(touched).collect()
            }
            _ => Vec::new(),
        }
    }
}
