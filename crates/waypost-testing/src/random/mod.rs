//! Random valid records with a variety of all indexed fields, determined by a seed.

pub mod seed;

use serde_json::json;
use waypost::record::{End, FailureKind, Header, Phase, RunStatus, SkipCause, Verdict};
use waypost::store::Batch;
use waypost::{Digest, RunId, ScopePath};

use crate::random::seed::Seeded;
use crate::records::{Links, evidence, failed, scope, step_id, summary_mut, time};

/// Scopes of random records: few, so that scopes grow long, and not sorted by name.
pub const SCOPES: [&str; 4] = ["main", "each:z", "each:a", "each:a/in:%2F"];
/// Steps of random records.
pub const STEPS: [&str; 3] = ["work", "rest", "work-2"];

/// A generator of random records.
#[derive(Debug, Clone)]
pub struct Random {
    seeded: Seeded,
    /// Random numbers for retention, separate so that the other values of a seed do not change.
    fates: Seeded,
    made: u64,
}

/// Returns a random history of a run: valid consecutive batches, of which the first suits `create`. The
/// batches do not release the lease.
pub fn history(seed: u64, run: &RunId, batches: usize) -> Vec<Batch> {
    let mut random = Random::new(seed);
    let mut links = Links::of(run);
    let all = SCOPES.map(scope);
    let batch = |place: usize| {
        let mut scopes = if place == 0 { vec![scope("main")] } else { all.to_vec() };
        let first = random.below(scopes.len() as u64) as usize;
        scopes.swap(0, first);
        let mut batch = random.batch(&mut links, &scopes);
        batch.release = false;
        batch
    };
    (0..batches).map(batch).collect()
}

impl Random {
    /// Returns a generator for a seed.
    pub fn new(seed: u64) -> Self {
        Self { seeded: Seeded::new(seed), fates: Seeded::new(!seed), made: 0 }
    }

    /// Returns a number in `0..limit`.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.seeded.below(limit)
    }

    /// Returns a random entry.
    ///
    /// # Panics
    /// If the list is empty.
    pub fn one_of<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    /// Returns `true` with this probability in percent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns a valid batch of one to four records in these scopes. The first record is on the first
    /// scope.
    ///
    /// # Panics
    /// If the list of scopes is empty.
    pub fn batch(&mut self, links: &mut Links, scopes: &[ScopePath]) -> Batch {
        // Most batches have a single record: only a record alone in its batch can be damaged alone.
        self.made += 1;
        let count = if self.chance(70) { 1 } else { 2 + self.below(3) };
        let mut records = Vec::new();
        for place in 0..count {
            let path = if place == 0 { scopes[0].clone() } else { self.one_of(scopes) };
            let header = self.header(links, &path);
            records.push(header);
        }
        let last_of = |path: &ScopePath| records.iter().rposition(|header| header.scope == *path);
        let bare: Vec<_> =
            records.iter().enumerate().map(|(at, header)| last_of(&header.scope) != Some(at)).collect();
        let mut sealed = Vec::new();
        for (mut header, bare) in records.into_iter().zip(bare) {
            (header.seq, header.prev) = (links.next(&header.scope), links.tip(&header.scope));
            let bare = bare && self.chance(70);
            let state =
                json!({ "made": self.made, "seq": header.seq, "fill": "x".repeat(self.below(400) as usize) });
            sealed.push(if bare { links.seal_bare(header) } else { links.seal(header, &state) });
        }
        let mut batch = links.batch(sealed);
        summary_mut(&mut batch).status =
            self.one_of(&[RunStatus::Running, RunStatus::Running, RunStatus::Failed, RunStatus::Completed]);
        summary_mut(&mut batch).doubtful = self.chance(10);
        batch.updated_at = self.made.is_multiple_of(7).then(|| time(self.made as i64));
        summary_mut(&mut batch).progress.done = self.below(4);
        summary_mut(&mut batch).wake_at = self.chance(10).then(|| time(7));
        batch.release = self.chance(8);
        batch
    }

    /// Returns a header that continues its scope, with random values in the indexed fields.
    pub fn header(&mut self, links: &Links, path: &ScopePath) -> Header {
        let mut header = links.header(path);
        header.step = self.chance(90).then(|| step_id(self.one_of(&STEPS)));
        header.created_at = time(self.below(1_000) as i64);
        if self.chance(20) {
            header.phase = Phase::Skipped(SkipCause::Condition("false".to_owned()));
        }
        match self.fates.below(10) {
            0 | 1 => header.phase = failed(FailureKind::Error),
            2 => header.phase = failed(FailureKind::Evidence),
            3 if header.seq > 1 => {
                (header.phase, header.basis) = (Phase::Restored, Some(self.fates.below(header.seq)));
            }
            _ => {}
        }
        match self.fates.below(10) {
            0 => header.evidence = Some(evidence(Verdict::Ok)),
            1 => header.evidence = Some(evidence(Verdict::Failed)),
            _ => {}
        }
        if self.chance(20) {
            header.labels.insert("color".to_owned(), self.one_of(&["red", "blue"]).to_owned());
        }
        if self.chance(15) {
            header.external = Some(format!("client-{}", self.below(3)));
        }
        if self.chance(15) {
            header.about = Some(self.below(4));
        }
        if self.chance(8) {
            header.end = Some(self.one_of(&[End::Completed, End::Failed]));
        }
        header
    }

    /// Makes a valid batch invalid with a wrong `seq` or `prev`.
    ///
    /// # Panics
    /// If the batch is empty.
    pub fn spoil(&mut self, batch: &mut Batch) {
        let place = self.below(batch.records.len() as u64) as usize;
        let mut header = batch.records[place].header().clone();
        match self.below(4) {
            0 => header.seq += 1,
            1 => header.seq = header.seq.saturating_sub(1).max(1),
            2 => header.prev = Some(Digest::of(b"something else")),
            _ => header.prev = if header.prev.is_some() { None } else { Some(Digest::of(b"nothing")) },
        }
        let state = json!("spoilt");
        let mut links = Links::of(&header.run);
        let bare = batch.records[place].body_bytes().is_none();
        batch.records[place] = if bare { links.seal_bare(header) } else { links.seal(header, &state) };
    }
}
