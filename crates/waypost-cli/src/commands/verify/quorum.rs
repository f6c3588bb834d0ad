//! Evidence checked several times: by the workers of a submitted run, else by this process.
//!
//! ```text
//!   verify --- a task for each living worker ---> check ---> answer     the first N answers count
//!   claim: K of N answers have the same verdict, else unknown
//! ```
//!
//! A task names its worker as a need, so no worker answers twice. Checks write nothing and need no lease.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use waypost::engine::{Look, Snapshot};
use waypost::lock::Holder;
use waypost::record::{Claim, Occasion, Verdict};
use waypost::store::{Queue, Store, Task, TaskState, UNLEASED};
use waypost::{CheckpointRef, RunId};

use crate::cli::VerifyArgs;
use crate::context::Context;
use crate::error::Error;
use crate::format::time;
use crate::run::current_evidence;
use crate::run::definition::Chosen;
use crate::run::needs;
use crate::view::{QuorumView, VoteView};

/// The request of a verification: a task without a step.
pub(crate) const REQUEST: &str = "\"verify\"";
/// The name of a verification among the tasks of a run.
const STEP: &str = "(verify)";
/// How long an answer stays in the store after the wait: the removal is late on a slow server.
const MARGIN: Duration = Duration::from_secs(5);
/// Pause between two looks at the answers of workers.
const POLL: Duration = Duration::from_millis(200);

/// The number of votes about each claim.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quorum {
    votes: usize,
    agreeing: usize,
    wait: Duration,
}

impl Quorum {
    /// Reads the options; `None` without `--workers`.
    ///
    /// # Errors
    /// [`Error::Usage`]: the quorum is no majority, so that two verdicts could have one.
    pub(super) fn of(args: &VerifyArgs) -> Result<Option<Self>, Error> {
        let Some(votes) = args.workers.map(usize::from) else { return Ok(None) };
        let majority = votes / 2 + 1;
        let agreeing = args.quorum.map_or(majority, usize::from);
        match (majority..=votes).contains(&agreeing) {
            true => Ok(Some(Self { votes, agreeing, wait: args.wait })),
            false => Err(Error::usage(
                format!("cannot verify by a quorum of {agreeing} of {votes}"),
                format!("name a majority: `--quorum {majority}`, at most {votes}"),
            )),
        }
    }
}

/// The checks of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Votes {
    /// Host and process.
    by: String,
    /// The checked claims, by checkpoint.
    checked: BTreeMap<String, Vec<Claim>>,
    /// Why the evidence could not be checked.
    #[serde(default)]
    error: Option<String>,
}

impl Votes {
    /// Creates the answer of this process from a check.
    pub(crate) fn of<E: ToString>(checked: Result<BTreeMap<String, Vec<Claim>>, E>) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let by = format!("{host} (process {})", std::process::id());
        match checked {
            Ok(checked) => Self { by, checked, error: None },
            Err(error) => Self { by, checked: BTreeMap::new(), error: Some(error.to_string()) },
        }
    }
}

/// Returns the answers about the evidence of a run.
///
/// # Errors
/// [`Error::NoVerifier`]: no worker answered.
pub(super) async fn answers(
    context: &Context,
    store: &Arc<dyn Store>,
    run: &RunId,
    quorum: Quorum,
) -> Result<Vec<Votes>, Error> {
    let job = match store.queue() {
        Some(queue) => queue.job(run).await?.zip(Some(queue)),
        None => None,
    };
    let answers = match job {
        Some((queued, queue)) => of_workers(queue, run, &queued.job.needs, quorum).await?,
        None => {
            context.output.note("No worker serves the run: this process checks in turn.");
            in_turn(store, run, quorum.votes).await?
        }
    };
    for (answer, error) in answers.iter().filter_map(|answer| Some((answer, answer.error.as_ref()?))) {
        context.output.warn(&format!("{} cannot verify: {error}", answer.by));
    }
    let usable: Vec<Votes> = answers.into_iter().filter(|answer| answer.error.is_none()).collect();
    if usable.is_empty() {
        return Err(Error::NoVerifier(run.clone()));
    }
    if usable.len() < quorum.votes {
        let (found, wanted) = (usable.len(), quorum.votes);
        context.output.warn(&format!("{found} of {wanted} workers answered."));
    }
    Ok(usable)
}

/// Checks the evidence in this process, once for each vote.
async fn in_turn(store: &Arc<dyn Store>, run: &RunId, votes: usize) -> Result<Vec<Votes>, Error> {
    let snapshot = Snapshot::read(store.as_ref(), run).await?;
    let chosen = Chosen::in_force(store.as_ref(), &snapshot)?;
    let mut answers = Vec::new();
    for _ in 0..votes {
        let look = current_evidence::look(store, &snapshot, &chosen, Occasion::Verify).await?;
        answers.push(Votes::of::<Error>(Ok(by_reference(run, look))));
    }
    Ok(answers)
}

/// Asks the living workers with the needs of a run, and returns the first answers.
async fn of_workers(
    queue: &dyn Queue,
    run: &RunId,
    needs: &BTreeSet<String>,
    quorum: Quorum,
) -> Result<Vec<Votes>, Error> {
    let began = Instant::now();
    // Unique: each process verifies once.
    let here = Holder::here(time::now()).map_err(Error::Runtime)?;
    let prefix = format!("verify-{}-{}", needs::of_worker(&here), time::now().as_nanosecond());
    let task = |(index, worker): (usize, Holder)| Task {
        key: format!("{prefix}-{index}"),
        step: STEP.to_owned(),
        definition: String::new(),
        needs: needs.iter().cloned().chain([needs::of_worker(&worker)]).collect(),
        losses_max: 1,
        request: REQUEST.to_owned(),
    };
    let tasks: Vec<Task> = queue.workers().await?.into_iter().enumerate().map(task).collect();
    queue.tasks().submit_verification(run, &tasks, quorum.wait + MARGIN).await?;
    let answers = loop {
        let states = queue.tasks().task_states(run).await?;
        let own = || states.iter().filter(|task| task.key.starts_with(&prefix));
        let answer = |state: &TaskState| match state {
            TaskState::Ended(text) => serde_json::from_str(text).ok(),
            _ => None,
        };
        let answers: Vec<Votes> = own().filter_map(|task| answer(&task.state)).collect();
        let is_open = own().any(|task| matches!(task.state, TaskState::Waiting(_) | TaskState::Claimed(_)));
        if answers.len() >= quorum.votes || !is_open || began.elapsed() >= quorum.wait {
            break answers;
        }
        queue.wait(POLL).await;
    };
    // A worker stops a removed task.
    let keys: Vec<String> = tasks.into_iter().map(|task| task.key).collect();
    queue.tasks().remove_tasks(run, UNLEASED, &keys).await?;
    Ok(answers.into_iter().take(quorum.votes).collect())
}

/// Returns the claims of each checkpoint with the verdict of the quorum, and the votes.
pub(super) fn decide(answers: &[Votes], quorum: Quorum) -> BTreeMap<String, (Vec<Claim>, Vec<QuorumView>)> {
    let references: BTreeSet<&String> = answers.iter().flat_map(|answer| answer.checked.keys()).collect();
    let decided = references.into_iter().map(|reference| {
        let mut left: Vec<(&str, Vec<Claim>)> = answers
            .iter()
            .map(|answer| (answer.by.as_str(), answer.checked.get(reference).cloned().unwrap_or_default()))
            .collect();
        let claims = left.iter().map(|(_, claims)| claims).max_by_key(|claims| claims.len()).cloned();
        let votes = |claim: &Claim| {
            let votes: Vec<(&str, Claim)> = left
                .iter_mut()
                .filter_map(|(by, claims)| {
                    let place = claims.iter().position(|found| is_same(found, claim))?;
                    Some((*by, claims.remove(place)))
                })
                .collect();
            votes
        };
        let voted: Vec<Vec<(&str, Claim)>> = claims.iter().flatten().map(votes).collect();
        let claims = voted.iter().map(|votes| winner(votes, quorum)).collect();
        let views = voted.iter().map(|votes| view(votes, quorum)).collect();
        (reference.clone(), (claims, views))
    });
    decided.collect()
}

/// Returns the checked claims, by checkpoint.
pub(crate) fn by_reference(run: &RunId, look: Look) -> BTreeMap<String, Vec<Claim>> {
    let reference = |(scope, seq)| CheckpointRef { run: run.clone(), scope, seq }.to_string();
    look.claims.into_iter().map(|(at, claims)| (reference(at), claims)).collect()
}

fn is_same(one: &Claim, other: &Claim) -> bool {
    (&one.kind, &one.subject, &one.name, &one.expect)
        == (&other.kind, &other.subject, &other.name, &other.expect)
}

/// Returns a claim with the verdict of enough votes, else with the verdict unknown.
fn winner(votes: &[(&str, Claim)], quorum: Quorum) -> Claim {
    let agreeing = |verdict: Verdict| votes.iter().filter(|(_, claim)| claim.verdict == verdict).count();
    let (_, first) = &votes[0];
    let won = votes.iter().find(|(_, claim)| agreeing(claim.verdict) >= quorum.agreeing);
    won.map_or_else(
        || Claim {
            verdict: Verdict::Unknown,
            found: serde_json::Value::Null,
            error: Some(format!("fewer than {} of {} votes agree", quorum.agreeing, quorum.votes)),
            ..first.clone()
        },
        |(_, claim)| claim.clone(),
    )
}

fn view(votes: &[(&str, Claim)], quorum: Quorum) -> QuorumView {
    let vote = |(by, claim): &(&str, Claim)| VoteView {
        by: (*by).to_owned(),
        verdict: claim.verdict,
        found: claim.found.clone(),
        error: claim.error.clone(),
        checked_at: claim.checked_at,
    };
    QuorumView {
        claim: votes[0].1.title(),
        verdict: winner(votes, quorum).verdict,
        votes: votes.iter().map(vote).collect(),
    }
}
