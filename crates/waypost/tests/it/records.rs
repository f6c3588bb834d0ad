//! Records for tests: a chain that grows by one step at a time.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};
use waypost::record::{
    Body, Durability, End, Ending, FORMAT, Failure, FailureKind, Header, Phase, Position, Reason, Record,
    RunRecord, RunStatus, SealedRun, Start, Try,
};
use waypost::{BranchPath, Digest, RunId, StepId};

pub(crate) fn run_id(name: &str) -> RunId {
    RunId::new(name).unwrap()
}

pub(crate) fn sealed(run: &str) -> SealedRun {
    SealedRun::seal(run_record(run)).unwrap()
}

pub(crate) fn run_record(run: &str) -> RunRecord {
    RunRecord {
        v: FORMAT,
        run: run_id(run),
        workflow: "nightly".into(),
        definition: waypost::record::Definition { text: Some("steps: []".into()), steps: Vec::new() },
        path: Some("nightly.yaml".into()),
        base: None,
        params: serde_json::Map::new(),
        env: BTreeMap::new(),
        labels: BTreeMap::from([("team".to_owned(), "sales".to_owned())]),
        settings: serde_json::Map::new(),
        durability: Durability::Sync,
        retention: None,
        parent: None,
        tool: "waypost test".into(),
        actor: String::new(),
        created_at: at(0),
    }
}

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).unwrap()
}

/// The end of a branch, from which records are made.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    pub(crate) run: RunId,
    pub(crate) branch: BranchPath,
    pub(crate) next: u64,
    pub(crate) prev: Option<Digest>,
    pub(crate) token: u64,
}

impl Chain {
    pub(crate) fn new(run: &str) -> Self {
        let run = run_id(run);
        Self { run, branch: BranchPath::main(), next: 1, prev: None, token: 1 }
    }

    pub(crate) fn header(&self, phase: Phase) -> Header {
        Header {
            v: FORMAT,
            run: self.run.clone(),
            branch: self.branch.clone(),
            seq: self.next,
            prev: self.prev,
            basis: None,
            reason: if self.next == 1 { Reason::Start } else { Reason::Step },
            step: None,
            at: Try::default(),
            phase,
            started: Vec::new(),
            body: None,
            end: None,
            resumed: false,
            status: None,
            evidence: None,
            usage: None,
            notes: Vec::new(),
            labels: BTreeMap::new(),
            external: None,
            about: None,
            definition: None,
            root: (self.next == 1 && self.branch.is_main()).then(|| sealed(self.run.as_str()).digest()),
            children: None,
            token: self.token,
            created_at: at(self.next as i64),
        }
    }

    /// Seals a header as the next record, with a state.
    pub(crate) fn seal(&mut self, header: Header, state: &Value) -> Record {
        let record = Record::seal(header, Some(Body::json(&Position::default(), state, 0).unwrap())).unwrap();
        self.pushed(&record);
        record
    }

    pub(crate) fn pushed(&mut self, record: &Record) {
        self.next = record.header().seq + 1;
        self.prev = Some(record.digest());
    }

    pub(crate) fn started(&mut self, name: &str) -> Record {
        let mut header = self.header(Phase::Started);
        header.step = Some(step(name));
        header.at.attempt = 1;
        header.started.push(Start { step: step(name), at: header.at.clone() });
        self.seal(header, &json!({}))
    }

    pub(crate) fn completed(&mut self, name: &str) -> Record {
        self.tried(name, 1, Phase::Completed(Ending { exit_code: Some(0), ..Ending::default() }))
    }

    pub(crate) fn failed(&mut self, name: &str, attempt: u32) -> Record {
        let failure = Failure {
            kind: FailureKind::Exit,
            error: vec!["exit code 7".into()],
            retried: true,
            tolerated: false,
            ending: Ending { exit_code: Some(7), ..Ending::default() },
        };
        self.tried(name, attempt, Phase::Failed(failure))
    }

    pub(crate) fn tried(&mut self, name: &str, attempt: u32, phase: Phase) -> Record {
        let mut header = self.header(phase);
        header.step = Some(step(name));
        header.at.attempt = attempt;
        let state = json!({ "steps": { name: { "seq": header.seq } } });
        self.seal(header, &state)
    }

    pub(crate) fn ended(&mut self, name: &str, status: RunStatus) -> Record {
        let mut header = self.header(Phase::Completed(Ending::default()));
        header.step = Some(step(name));
        header.at.attempt = 1;
        header.status = Some(status);
        header.end = Some(End::Completed);
        self.seal(header, &json!({ "done": true }))
    }
}

pub(crate) fn step(name: &str) -> StepId {
    StepId::new(name).unwrap()
}
