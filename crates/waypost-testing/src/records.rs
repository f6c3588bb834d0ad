//! Short constructors for valid, sealed, chained records.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};
use waypost::lock::Holder;
use waypost::record::{
    Body, Claim, Ending, FORMAT, Failure, FailureKind, Header, Pack, Phase, Position, Reason, Record,
    RunRecord, RunStatus, SealedRun, Try, Verdict,
};
use waypost::store::{Batch, BatchId, FIRST_TOKEN, Lease, Progress, Signal, SignalKind, Summary};
use waypost::{Digest, RunId, ScopePath, StepId};

/// Returns the time `seconds` after a fixed start.
///
/// # Panics
/// If the result is outside the range of [`Timestamp`].
pub fn time(seconds: i64) -> Timestamp {
    const BEGIN: i64 = 1_790_000_000;
    Timestamp::from_second(BEGIN + seconds).expect("tests stay within the range of time")
}

/// Returns a run id.
///
/// # Panics
/// If `text` is not a valid run id.
pub fn run_id(text: &str) -> RunId {
    RunId::new(text).expect("a test names runs rightly")
}

/// Returns a step id.
///
/// # Panics
/// If `text` is not a valid step id.
pub fn step_id(text: &str) -> StepId {
    StepId::new(text).expect("a test names steps rightly")
}

/// Returns a scope from its display form: `main`, `each:eu`.
///
/// # Panics
/// If `text` is not a valid scope.
pub fn scope(text: &str) -> ScopePath {
    ScopePath::new(text).expect("a test names scopes rightly")
}

/// Returns this process as the holder of a lease, with the name `what`.
///
/// # Panics
/// If the system does not report the identity of this process.
pub fn holder(what: &str) -> Holder {
    let here = Holder::here(time(0)).expect("the system describes this process");
    Holder { what: what.to_owned(), ..here }
}

/// Returns the record of a small run.
pub fn run_record(run: &RunId) -> RunRecord {
    RunRecord {
        path: Some("waypost.yaml".to_owned()),
        labels: BTreeMap::from([("team".to_owned(), "sales".to_owned())]),
        tool: "test".to_owned(),
        ..RunRecord::new(run.clone(), "nightly", time(0))
    }
}

/// Returns the record, sealed.
///
/// # Panics
/// If the record cannot be sealed.
pub fn sealed(record: RunRecord) -> SealedRun {
    SealedRun::seal(record).expect("a run record of a test can be sealed")
}

/// Returns the summary in a batch, to change it.
///
/// # Panics
/// The batch has none.
pub fn summary_mut(batch: &mut Batch) -> &mut Summary {
    batch.summary.as_mut().expect("a batch of a test has a summary")
}

/// Returns the summary of a run with this status.
pub fn summary(status: RunStatus) -> Summary {
    let progress = Progress { done: 0, total: 3 };
    Summary { status, doubtful: false, step: None, progress, wake_at: None, lost: 0 }
}

/// Returns a signal with this id and kind.
pub fn signal(id: &str, kind: SignalKind) -> Signal {
    Signal { id: id.to_owned(), kind, scope: None, sender: "test".to_owned(), created_at: time(0) }
}

/// Returns the phase of a completed step with a single output.
pub fn completed(output: impl Into<Value>) -> Phase {
    Phase::Completed(Ending {
        exit_code: Some(0),
        outputs: BTreeMap::from([("result".to_owned(), output.into())]),
        ..Ending::default()
    })
}

/// Creates the records of a run, each chained to the record before in its scope.
///
/// [`header`](Self::header) returns a valid header. Change it for the test, [`seal`](Self::seal) it, and put
/// the record into a [`batch`](Self::batch). [`step`](Self::step) does all of this for the usual case.
#[derive(Debug, Clone)]
pub struct Links {
    run: RunId,
    token: u64,
    batches: u64,
    made: i64,
    tips: BTreeMap<ScopePath, (u64, Option<Digest>)>,
}

impl Links {
    /// Starts the records of a run, under the token of its creator.
    pub fn of(run: &RunId) -> Self {
        Self { run: run.clone(), token: FIRST_TOKEN, batches: 0, made: 0, tips: BTreeMap::new() }
    }

    /// Continues under another lease.
    pub fn under(&mut self, lease: &Lease) {
        self.set_token(lease.token());
    }

    /// Continues under the lease with this token.
    pub fn set_token(&mut self, token: u64) {
        (self.token, self.batches) = (token, 0);
    }

    /// Returns the run.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// Returns the seq of the next record of a scope.
    pub fn next(&self, scope: &ScopePath) -> u64 {
        self.tips.get(scope).map_or(1, |(seq, _)| seq + 1)
    }

    /// Returns the digest of the last record of a scope.
    pub fn tip(&self, scope: &ScopePath) -> Option<Digest> {
        self.tips.get(scope).and_then(|(_, digest)| *digest)
    }

    /// Continues a scope after record `seq` with this digest, as after damage.
    pub fn continue_after(&mut self, scope: &ScopePath, seq: u64, digest: Option<Digest>) {
        self.tips.insert(scope.clone(), (seq, digest));
    }

    /// Continues after a batch that was created elsewhere.
    pub fn continue_after_batch(&mut self, batch: &Batch) {
        (self.token, self.batches) = (batch.id.token, batch.id.count);
        for record in &batch.records {
            let header = record.header();
            self.continue_after(&header.scope, header.seq, Some(record.digest()));
        }
    }

    /// Returns a header that continues its scope.
    pub fn header(&self, scope: &ScopePath) -> Header {
        let seq = self.next(scope);
        Header {
            v: FORMAT,
            run: self.run.clone(),
            scope: scope.clone(),
            seq,
            prev: self.tip(scope),
            basis: None,
            reason: if seq == 1 { Reason::Start } else { Reason::Step },
            copies: None,
            step: Some(step_id("work")),
            at: Try { attempt: 1, ..Try::default() },
            phase: completed(seq),
            started: Vec::new(),
            body: None,
            end: None,
            idle_since: None,
            resume: 0,
            status: None,
            failed: None,
            evidence: None,
            usage: None,
            notes: Vec::new(),
            labels: BTreeMap::new(),
            external: None,
            trace: None,
            step_name: None,
            digests: None,
            scope_digests: None,
            about: None,
            taken: None,
            definition: None,
            config: None,
            repeated: None,
            failures: 0,
            root: None,
            children: None,
            token: self.token,
            created_at: time(self.made),
        }
    }

    /// Seals a header with a state, and continues the scope from the record.
    ///
    /// # Panics
    /// If the header cannot be sealed.
    pub fn seal(&mut self, header: Header, state: &Value) -> Record {
        let body = Body::json(&Position::default(), state, 0).expect("a state of a test can be encoded");
        self.put(header, Some(body))
    }

    /// Seals a header without a body, as for every record of a batch except the last, and continues the
    /// scope.
    ///
    /// # Panics
    /// If the header cannot be sealed.
    pub fn seal_bare(&mut self, header: Header) -> Record {
        self.put(header, None)
    }

    /// Seals a header with a state that is not JSON, and continues the scope.
    ///
    /// # Panics
    /// If the header cannot be sealed.
    pub fn seal_opaque(&mut self, header: Header, state: &[u8]) -> Record {
        let body = Body::opaque(&Position::default(), state, "test", 0).expect("a state of a test is small");
        self.put(header, Some(body))
    }

    fn put(&mut self, header: Header, body: Option<Body>) -> Record {
        let record = Record::seal(header, body).expect("a header of a test can be sealed");
        let header = record.header();
        self.tips.insert(header.scope.clone(), (header.seq, Some(record.digest())));
        self.made += 1;
        record
    }

    /// Returns a record that completes a step in a scope; its state contains scope and seq.
    pub fn record(&mut self, scope: &ScopePath) -> Record {
        let header = self.header(scope);
        let state = json!({ "scope": scope.as_str(), "seq": header.seq });
        self.seal(header, &state)
    }

    /// Puts records into the next batch of a running run.
    pub fn batch(&mut self, records: Vec<Record>) -> Batch {
        self.batches += 1;
        let id = BatchId { token: self.token, count: self.batches };
        let summary = Some(summary(RunStatus::Running));
        Batch { id, records, consumed: Vec::new(), summary, updated_at: None, release: false }
    }

    /// Returns a batch with a record that completes a step in the main scope.
    pub fn step(&mut self) -> Batch {
        let record = self.record(&ScopePath::main());
        self.batch(vec![record])
    }
}

/// Returns the phase of a failed attempt, with its own error or failed evidence.
pub fn failed(kind: FailureKind) -> Phase {
    Phase::Failed(Failure::new(kind, vec!["it did not work".to_owned()]))
}

/// Returns evidence with a single claim and this verdict.
pub fn evidence(verdict: Verdict) -> Pack {
    let claim = Claim { verdict, ..Claim::new("artifact_exists", "result.txt") };
    Pack { at_least: None, claims: vec![claim] }
}
