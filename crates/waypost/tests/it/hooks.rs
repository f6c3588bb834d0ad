//! Hooks of a step with scopes: in one session, and with a crash at every commit.

use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;
use serde_json::{Value, json};
use waypost::engine::{
    Admission, Attempt, BeginError, Exited, Follow, Item, Joined, OnFailure, Outcome, Performed, Program,
    Recovered, ResumeOptions, RunError, SessionOptions, Settlement, StateError, StepRef, StepReport,
    Unjoined, Upstream,
};
use waypost::record::{Claim, End, Ending, Failure, FailureKind, Flaw, Phase, RunStatus, Try};
use waypost::shape::{Children, FailureLimits, OnChildFailure, Shape, Step};
use waypost::store::{Lease, Store as _, StoreExt as _};
use waypost::{Digest, ScopePath, StepId};

use crate::faulty::{Fault, World, run_id};
use crate::scripted_program::{Toy, failure};

const FAULTS: [Fault; 2] = [Fault::DieBefore, Fault::DieAfter];
const ITEMS: [&str; 3] = ["a", "b", "c"];

/// `each` runs items and has hooks; `end` follows.
struct Hooked {
    shape: Shape,
    /// Items that fail.
    fails: Mutex<Vec<&'static str>>,
    said: Mutex<Vec<String>>,
}

#[derive(Debug)]
enum Job {
    Work(String),
    List,
    Join(Joined),
    Hook,
}

fn children(name: &str, step: &str, on_failure: OnChildFailure) -> Children {
    let step = Step::new(StepId::new(step).unwrap(), Vec::new(), Digest::of(step.as_bytes()));
    Children {
        name: StepId::new(name).unwrap(),
        shape: Box::new(Shape::new(vec![step], 1).unwrap()),
        named: Vec::new(),
        parallel_max: 2,
        on_failure,
        by_work: true,
        limits: FailureLimits::default(),
        passes: false,
        whole: true,
    }
}

fn items(keys: &[&str]) -> Vec<Item> {
    let item = |(index, key): (usize, &&str)| Item {
        key: (*key).to_owned(),
        value: json!(key),
        index: index as u64,
        start: None,
    };
    keys.iter().enumerate().map(item).collect()
}

impl Hooked {
    fn new(on_failure: OnChildFailure, fails: &[&'static str]) -> Self {
        let step = |id: &str, needs| Step::new(StepId::new(id).unwrap(), needs, Digest::of(id.as_bytes()));
        let mut each = step("each", Vec::new());
        each.children = Some(children("each", "work", on_failure));
        each.hooks = Some(children("each-hooks", "hook", OnChildFailure::Collect));
        let end = step("end", vec![StepId::new("each").unwrap()]);
        let shape = Shape::new(vec![each, end], 2).unwrap();
        Self { shape, fails: Mutex::new(fails.to_vec()), said: Mutex::default() }
    }

    fn heal(&self) {
        self.fails.lock().unwrap().clear();
    }

    fn take_said(&self) -> Vec<String> {
        std::mem::take(&mut self.said.lock().unwrap())
    }

    fn say(&self, what: &str) {
        self.said.lock().unwrap().push(what.to_owned());
    }
}

fn completed(output: Value) -> Performed<Value> {
    Performed::Completed { output, ending: Ending::default(), report: StepReport::default() }
}

#[async_trait]
impl Program for Hooked {
    type State = BTreeMap<String, Value>;
    type Job = Job;
    type Output = Value;

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn schema(&self, _: usize) -> u32 {
        1
    }

    fn encode(&self, _: usize, state: &Self::State, bytes: &mut Vec<u8>) -> Result<(), Flaw> {
        serde_json::to_writer(bytes, state).map_err(|error| Flaw::Malformed(error.to_string()))
    }

    fn decode(&self, _: usize, bytes: &[u8], _: u32) -> Result<Self::State, StateError> {
        serde_json::from_slice(bytes).map_err(|error| StateError::Malformed(error.to_string()))
    }

    fn open(&self, _: StepRef<'_>, _: &Self::State) -> Result<Vec<Item>, Failure> {
        unreachable!("its scopes are found by work")
    }

    fn child(&self, _: StepRef<'_>, _: &Self::State, item: &Item) -> Result<Self::State, Failure> {
        Ok(BTreeMap::from([("item".to_owned(), item.value.clone())]))
    }

    fn attach(&self, _: StepRef<'_>, _: &Self::State, _: &mut Self::State) {}

    fn admit(&self, _: StepRef<'_>, _: &Self::State, upstream: Upstream<'_>) -> Result<Admission, Failure> {
        Ok(upstream.admission())
    }

    fn prepare(
        &self,
        step_ref: StepRef<'_>,
        state: &Self::State,
        joined: Option<Joined>,
    ) -> Result<Job, Failure> {
        Ok(match (step_ref.step.id.as_str(), joined) {
            ("each", Some(joined)) => Job::Join(joined),
            ("each", None) => Job::List,
            ("work", _) => Job::Work(state["item"].as_str().unwrap().to_owned()),
            ("hook", _) => Job::Hook,
            (step, _) => Job::Work(step.to_owned()),
        })
    }

    async fn perform(&self, job: Job, _: Attempt) -> Performed<Value> {
        match job {
            Job::List => Performed::Opened { items: items(&ITEMS), report: StepReport::default() },
            Job::Work(name) => {
                self.say(&name);
                if self.fails.lock().unwrap().iter().any(|fails| *fails == name) {
                    let failure = failure(FailureKind::Exit, &format!("{name} failed"));
                    return Performed::Failed { failure, report: StepReport::default() };
                }
                completed(json!(name))
            }
            Job::Hook => {
                self.say("hook");
                completed(Value::Null)
            }
            Job::Join(joined) if joined.is_after() => {
                let end = joined.outcomes().await.unwrap().next().await.unwrap().unwrap();
                match serde_json::from_value::<Failure>(end.item.value) {
                    Ok(failure) => Performed::Failed { failure, report: StepReport::default() },
                    Err(_) => completed(json!("each")),
                }
            }
            Job::Join(_) => {
                Performed::Opened { items: items(&["on_success"]), report: StepReport::default() }
            }
        }
    }

    fn subjects(&self, _: StepRef<'_>, _: &Self::State) -> Vec<String> {
        Vec::new()
    }

    /// A step that runs again overwrites its own value.
    fn forget(&self, _: StepRef<'_>, _: &mut Self::State) {}

    fn apply_unjoined(&self, _: StepRef<'_>, _: &mut Self::State, _: Unjoined<'_, Self::State>) {}

    fn forget_failure(&self, _: StepRef<'_>, _: &mut Self::State) {}

    fn forget_join(&self, _: StepRef<'_>, _: &mut Self::State) {}

    fn restore(&self, _: StepRef<'_>, _: &mut Self::State, _: &Self::State) {}

    fn redact(&self, _: &mut Claim) {}

    fn redact_answer(&self, _: &mut Value) {}

    fn keeps_apart(&self) -> bool {
        false
    }

    fn output_of(&self, _: StepRef<'_>, _: &Self::State) -> Option<Value> {
        None
    }

    fn reads_index(&self, _: StepRef<'_>) -> bool {
        false
    }

    fn is_of_item(&self, _: &BTreeMap<String, Value>, _: &Item) -> bool {
        true
    }

    fn set_index(&self, _: &mut BTreeMap<String, Value>, _: u64) -> bool {
        false
    }

    fn reads(&self, _: StepRef<'_>) -> Vec<StepId> {
        Vec::new()
    }

    fn undo(&self, _: StepRef<'_>, _: &Try, _: &Self::State) -> Result<Option<Job>, Failure> {
        Ok(None)
    }

    async fn recover(&self, _: StepRef<'_>, _: &Self::State, _: Option<&Exited>) -> Option<Recovered<Value>> {
        None
    }

    fn settle_as_done(
        &self,
        _: StepRef<'_>,
        _: &mut Self::State,
        _: waypost::engine::KnownOutputs<'_>,
    ) -> Result<(Follow, Phase), String> {
        Err("what it gave is for the caller to say".to_owned())
    }

    fn follow(&self, _: StepRef<'_>, _: &Self::State) -> Result<Follow, String> {
        Ok(Follow::Needs)
    }

    fn on_failure(&self, step_ref: StepRef<'_>, failure: &Failure) -> OnFailure {
        let value = serde_json::to_value(failure).unwrap();
        let opens = items(&["on_failure"]).into_iter().map(|item| Item { value: value.clone(), ..item });
        let opens = opens.filter(|_| step_ref.step.hooks.is_some()).collect();
        OnFailure { retry: false, tolerate: false, opens }
    }

    fn apply(
        &self,
        state: &mut Self::State,
        step_ref: StepRef<'_>,
        settled: Settlement<'_, Value>,
    ) -> Result<Follow, Failure> {
        if let Settlement::Completed(value, _) = settled {
            state.insert(step_ref.step.id.to_string(), value);
        }
        Ok(Follow::Needs)
    }

    async fn begin(&self, _: &Lease) -> Result<(), BeginError> {
        Ok(())
    }

    async fn end(&self) {}
}

type Ended = Result<Outcome<BTreeMap<String, Value>>, RunError>;

async fn run(world: &World, program: &Hooked) -> Ended {
    let mut record = Toy::new("a", 1).record("r");
    record.definition = program.shape.definition(None);
    world.engine.run_program(program, record, BTreeMap::new(), SessionOptions::default()).await
}

async fn resume(world: &World, program: &Hooked) -> Ended {
    world.engine.resume_program(program, &run_id(), ResumeOptions::default()).await
}

fn count(said: &[String], what: &str) -> usize {
    said.iter().filter(|name| *name == what).count()
}

#[tokio::test]
async fn parallel_failures_run_one_hook_and_resume_after_it() {
    for world in World::each() {
        let program = Hooked::new(OnChildFailure::Stop, &["a", "b"]);
        for _ in 0..2 {
            let outcome = match world.store.run(&run_id()).await {
                Err(_) => run(&world, &program).await.unwrap(),
                Ok(_) => resume(&world, &program).await.unwrap(),
            };

            assert_eq!(outcome.status, RunStatus::Failed);
            let (step, _) = outcome.failed.as_ref().unwrap();
            assert_eq!((step.as_str(), outcome.failed_on.as_ref().unwrap().as_str()), ("work", "each:a"));
            assert_eq!(count(&program.take_said(), "hook"), 1);
        }
        program.heal();
        let outcome = resume(&world, &program).await.unwrap();

        assert_eq!(outcome.status, RunStatus::Completed);
        assert_eq!(program.take_said(), ["a", "b", "c", "hook", "end"]);
    }
}

/// Runs a session that dies at its nth commit, before or after it, then the sessions after it.
async fn survives(fails: &[&'static str], nth: u64, fault: Fault) -> bool {
    let mut world = World::memory();
    let program = Hooked::new(OnChildFailure::Stop, fails);
    world.store.plan(nth, 1, fault);
    let ended = world.until_death(run(&world, &program)).await;
    let died = ended.as_ref().is_none_or(|ended| ended.is_err());
    let mut said = program.take_said();
    // A reopened store drops a planned fault that did not happen.
    world.reopen();
    if died {
        let again = match world.store.run(&run_id()).await {
            Err(_) => run(&world, &program).await,
            Ok(_) => resume(&world, &program).await,
        };
        let status = again.unwrap().status;
        let expect = if fails.is_empty() { RunStatus::Completed } else { RunStatus::Failed };
        assert_eq!(status, expect, "{nth} {fault:?}");
        said.extend(program.take_said());
    }
    let hooks = count(&said, "hook");
    assert!((1..=2).contains(&hooks), "{nth} {fault:?}: {said:?}");
    program.heal();
    let outcome = resume(&world, &program).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Completed, "{nth} {fault:?}");
    assert_eq!(outcome.state.keys().map(String::as_str).collect::<Vec<_>>(), ["each", "end"]);
    for item in ITEMS {
        let scope: ScopePath = format!("each:{item}").parse().unwrap();
        let newest = world.store.newest(&run_id(), &scope).await.unwrap();
        assert_eq!(newest.header().end, Some(End::Completed), "{nth} {fault:?}: {item}");
    }
    died
}

#[tokio::test]
async fn a_crash_at_any_commit_costs_at_most_the_cut_hook() {
    for fails in [&[][..], &["a"], &["a", "b", "c"]] {
        for fault in FAULTS {
            let mut nth = 1;
            while survives(fails, nth, fault).await {
                nth += 1;
            }
            assert!(nth > 5, "it died before each of {nth} commits");
        }
    }
}
