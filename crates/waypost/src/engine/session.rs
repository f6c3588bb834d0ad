//! One session of a run: from the lease to its release.
//!
//! Everything between two commits happens in memory ([`advance`](super::completion), [`schedule`](super::scheduler)); a
//! commit makes it true ([`commit`](super::commit)); only then are the steps started that the commit says are started.
//! A failed commit leaves the store where it was, and the steps in flight are dropped, which ends their processes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};

use crate::clock::SteadyClock;
use crate::evidence::Site;
use crate::id::{BranchPath, Digest};
use crate::lock::Holder;
use crate::record::{Definition, Phase, RunStatus, SealedRun};
use crate::shape::Shape;
use crate::store::{Damage, Lease, Signal, StoreError};

use super::attempt::Memos;
use super::failure::{failed_upstream, upstream};
use super::fan_out::{Joined, JoinedDigests, unread};
use super::pending_wait::{PendingWait, WaitEnd};
use super::request::{REQUESTS_MAX, Request};
use super::reuse::ReusableVerdicts;
use super::scheduler::children_of;
use super::scope::{Flight, Line, LineId, MAIN};
use super::scopes::Lines;
use super::signals::{StopHandle, StopLevel};
use super::trust::PendingClaims;
use super::{
    Attempt, Engine, OnUnknown, Outcome, Performed, Program, RunError, SessionOptions, StepFailure, Told,
};

type Job<'a, O> = Pin<Box<dyn Future<Output = Landed<O>> + Send + 'a>>;

/// A step that is no longer in flight.
pub(super) struct Landed<O> {
    pub(super) line: LineId,
    /// The branch may be gone, and its number given to another: only this tells whose step it was.
    pub(super) job: u64,
    pub(super) place: usize,
    /// How it ended; none if it was let go, to wait.
    pub(super) performed: Option<Performed<O>>,
    /// Of a join: the digests of what it joined.
    pub(super) root: Option<JoinedDigests>,
}

/// A run under way.
pub(super) struct Session<'a, P: Program> {
    pub(super) engine: &'a Engine,
    pub(super) program: &'a P,
    pub(super) options: SessionOptions,
    pub(super) lease: Option<Lease>,
    pub(super) batches: u64,
    pub(super) lines: Lines<'a, P::State>,
    /// Branches that something happened to, to be looked at before the next commit.
    pub(super) touched: BTreeSet<LineId>,
    /// Branches that the next commit has something of, parents first.
    pub(super) dirty: BTreeSet<(usize, LineId)>,
    /// The time of the newest record that is known of the run.
    pub(super) latest: Timestamp,
    /// The time for waits.
    pub(super) clock: Arc<SteadyClock>,
    /// A person resumes.
    pub(super) by_person: bool,
    /// The session before was killed.
    pub(super) was_killed: bool,
    /// A step with many cuts is in flight: nothing starts beside it.
    pub(super) is_isolated: bool,
    /// Branches with steps to be started after the commit.
    pub(super) launching: BTreeSet<LineId>,
    /// Branches that could go on, and wait until fewer steps are at work.
    pub(super) crowded: BTreeSet<LineId>,
    /// When a branch is due.
    pub(super) timers: BTreeSet<(Timestamp, LineId)>,
    /// Under `--until`: whether a step of the main branch may be started, by place.
    pub(super) wanted: Option<Vec<bool>>,
    pub(super) jobs: FuturesUnordered<Job<'a, P::Output>>,
    pub(super) jobs_started: u64,
    pub(super) asks: mpsc::Sender<Request>,
    pub(super) requests: mpsc::Receiver<Request>,
    /// Steps that are told when the next commit is acknowledged.
    pub(super) kept: Vec<oneshot::Sender<()>>,
    /// Waits of steps in flight that end when the next commit is acknowledged.
    pub(super) given: Vec<(Arc<PendingWait>, WaitEnd)>,
    /// Signals that were taken by work that was undone since; none before the first wait for a signal.
    pub(super) free: Option<Vec<Signal>>,
    pub(super) consumed: Vec<String>,
    /// Checkpoints that were asked for: the id of the signal, and the label.
    pub(super) marks: Vec<(String, Option<String>)>,
    pub(super) adopt: Option<Definition>,
    /// The graph of the definition so far, where another is adopted: what was started by it is judged by it.
    pub(super) before: Option<Shape>,
    /// Names of the branches that the run has or is going to have, where its store keeps only so many; once asked for.
    pub(super) branches: Option<HashSet<BranchPath>>,
    /// A step has begun to wait for something that may be there already.
    pub(super) asks_anew: bool,
    /// What steps read as their configuration.
    pub(super) config: Arc<Map<String, Value>>,
    /// Where evidence is checked.
    pub(super) site: Arc<Site>,
    /// Branches that end as failed once nothing below them is in flight.
    pub(super) dying: BTreeSet<LineId>,
    /// Branches on which a step is under way that must not be repeated blindly.
    pub(super) doubtful: usize,
    /// Something failed for good: nothing more is started.
    pub(super) halted: bool,
    /// The cause of the first cut of a step that must not be repeated.
    pub(super) cut_by: Option<String>,
    pub(super) failed: Option<StepFailure>,
    pub(super) repaired: Vec<Damage>,
    pub(super) lost: u64,
    /// It goes on with what another one of the same lease left off.
    pub(super) is_again: bool,
    /// Records that somebody took away are passed over, as a person says.
    pub(super) passes_missing: bool,
    /// How the run stood before; none for a new one.
    pub(super) stood: Option<RunStatus>,
    /// A step that was done again has ended: nothing more is started until what comes of that is known.
    pub(super) is_pausing: bool,
    pub(super) pending_claims: PendingClaims,
    /// Accepted older fingerprints by step path: the results count as made by the definition in force.
    pub(super) accepted: BTreeMap<String, BTreeSet<Digest>>,
    /// Ends have traces: the graph goes by needs, and has evidence.
    pub(super) keeps_traces: bool,
    /// Ends have digests of the whole state: the graph has routes, and has evidence.
    pub(super) keeps_chain: bool,
    pub(super) on_unknown: OnUnknown,
    /// A person said that steps in doubt run again.
    pub(super) retries: bool,
    pub(super) reusable_verdicts: ReusableVerdicts,
    /// Verifications in a row before this session after which no step started.
    pub(super) idle_rounds: u32,
}

/// How the work of a session ended.
pub(super) enum Worked<S> {
    /// Nothing goes on by itself; the lease is given back.
    Done(Box<Outcome<S>>),
    /// Another session goes on under the same lease, from wherever it finds the run.
    Again(Carried),
}

/// What the next session under the same lease must know.
pub(super) struct Carried {
    /// Batches sent so far: their ids are used up.
    pub(super) batches: u64,
    /// The number of the resume.
    pub(super) resume: u64,
    pub(super) repaired: Vec<Damage>,
    pub(super) pending_claims: PendingClaims,
    /// Verifications in a row after which no step started.
    pub(super) idle_rounds: u32,
}

impl<'a, P: Program> Session<'a, P> {
    pub(super) fn new(
        engine: &'a Engine,
        program: &'a P,
        mut main: Line<'a, P::State>,
        options: SessionOptions,
    ) -> Result<Self, RunError> {
        options.check_steps(main.shape)?;
        let wanted = match &options.until {
            Some(step) => {
                let place = main.shape.place(step.as_str());
                let place = place.ok_or_else(|| RunError::InvalidStep(step.clone()))?;
                Some(main.shape.with_needs(place))
            }
            None => None,
        };
        let has_evidence = main.shape.has_evidence();
        let (keeps_traces, keeps_chain) =
            (!main.shape.is_routed() && has_evidence, main.shape.is_routed() && has_evidence);
        // Its progress is told with each commit.
        main.unfinished();
        let (asks, requests) = mpsc::channel(REQUESTS_MAX);
        Ok(Self {
            engine,
            program,
            options,
            lease: None,
            batches: 0,
            lines: Lines::new(main),
            touched: BTreeSet::from([MAIN]),
            dirty: BTreeSet::new(),
            latest: Timestamp::MIN,
            clock: Arc::new(SteadyClock::new(Arc::clone(&engine.clock))),
            by_person: false,
            was_killed: false,
            is_isolated: false,
            launching: BTreeSet::new(),
            crowded: BTreeSet::new(),
            timers: BTreeSet::new(),
            wanted,
            jobs: FuturesUnordered::new(),
            jobs_started: 0,
            asks,
            requests,
            kept: Vec::new(),
            given: Vec::new(),
            free: None,
            consumed: Vec::new(),
            marks: Vec::new(),
            adopt: None,
            before: None,
            branches: None,
            asks_anew: false,
            config: Arc::default(),
            site: Arc::default(),
            dying: BTreeSet::new(),
            doubtful: 0,
            halted: false,
            cut_by: None,
            failed: None,
            repaired: Vec::new(),
            lost: 0,
            is_again: false,
            passes_missing: false,
            stood: None,
            is_pausing: false,
            pending_claims: PendingClaims::default(),
            accepted: BTreeMap::new(),
            keeps_traces,
            keeps_chain,
            on_unknown: OnUnknown::default(),
            retries: false,
            reusable_verdicts: ReusableVerdicts::default(),
            idle_rounds: 0,
        })
    }

    pub(super) fn main(&self) -> &Line<'a, P::State> {
        self.lines.get(MAIN)
    }

    pub(super) fn main_mut(&mut self) -> &mut Line<'a, P::State> {
        self.lines.get_mut(MAIN)
    }

    pub(super) fn lease(&self) -> &Lease {
        self.lease.as_ref().expect("a session works under a lease")
    }

    /// Makes the run with its first batch.
    pub(super) async fn create(
        &mut self,
        run: &SealedRun,
        holder: &Holder,
    ) -> Result<Option<RunStatus>, RunError> {
        self.schedule_first();
        let status = self.standstill();
        let batch = self.batch(status)?;
        let lease =
            self.engine.store.create(run, batch.clone(), holder).await.map_err(|source| match source {
                StoreError::Full { .. } | StoreError::Io { .. } | StoreError::Poisoned { .. } => {
                    RunError::Checkpoint { at: format!("{}@1", run.record().run), source }
                }
                source => RunError::Store(source),
            })?;
        self.lease = Some(lease);
        self.acknowledged(&batch);
        Ok(status)
    }

    /// Works until nothing goes on by itself; `status` is set if that is so already. For sessions of new runs.
    pub(super) async fn work(self, status: Option<RunStatus>) -> Result<Outcome<P::State>, RunError> {
        match self.work_on(status).await? {
            Worked::Done(outcome) => Ok(*outcome),
            Worked::Again(_) => unreachable!("only a run that is resumed does something again"),
        }
    }

    /// Works likewise; the program is ended unless another session goes on.
    pub(super) async fn work_on(mut self, status: Option<RunStatus>) -> Result<Worked<P::State>, RunError> {
        if let Some(status) = status {
            if self.is_again {
                self.program.end().await;
            }
            return Ok(Worked::Done(Box::new(self.outcome(status))));
        }
        let lease = self.lease().clone();
        // What steps left running lives on until the lease is given back.
        let begun = if self.is_again { Ok(()) } else { self.program.begin(&lease).await };
        let result = match begun {
            Ok(()) => self.turns().await,
            Err(error) => self.give_up(error).await.map(Some),
        };
        // Dropping what is in flight ends its processes; `end` waits for all the rest.
        self.jobs.clear();
        if !matches!(result, Ok(None)) {
            self.program.end().await;
        }
        match result {
            Ok(Some(status)) => Ok(Worked::Done(Box::new(self.outcome(status)))),
            Ok(None) => {
                let resume = self.main().chain.resume;
                let Self { batches, repaired, pending_claims, jobs_started, idle_rounds, .. } = self;
                let idle_rounds = if jobs_started == 0 { idle_rounds + 1 } else { 0 };
                Ok(Worked::Again(Carried { batches, resume, repaired, pending_claims, idle_rounds }))
            }
            Err(error) => {
                // Given back as well as can be: the error that matters is the one above.
                let _ = self.engine.store.release(lease, None).await;
                Err(error)
            }
        }
    }

    /// Takes back starts that were committed but cannot happen, and says so in a record.
    async fn give_up(&mut self, error: super::BeginError) -> Result<RunStatus, RunError> {
        self.options.stop.stop(StopLevel::Graceful, "its steps could not be prepared");
        for id in std::mem::take(&mut self.launching) {
            self.lines.get_mut(id).alone.clear();
            for place in std::mem::take(&mut self.lines.get_mut(id).starting) {
                self.take(id, place, Performed::Stopped { in_progress: false }, None);
            }
        }
        // Nothing is scheduled any more: what is left is how it stands.
        self.touched.clear();
        self.commit(self.standstill()).await?;
        Err(error.into())
    }

    pub(super) fn mark_dirty(&mut self, id: LineId) {
        let depth = self.lines.get(id).chain.branch.depth();
        self.dirty.insert((depth, id));
    }

    /// Starts what the last commit says is started, and commits and starts one by one what needs its own commit.
    pub(super) async fn launch(&mut self) -> Result<(), RunError> {
        while let Some(id) = self.launching.pop_first() {
            for place in std::mem::take(&mut self.lines.get_mut(id).starting) {
                if !self.dirty.is_empty() && self.lines.get(id).entry(place).fan.is_some() {
                    // A checkpoint was lost, and a join reads from the store how its branches ended.
                    self.commit_surely().await?;
                }
                self.start(id, place);
            }
            for place in std::mem::take(&mut self.lines.get_mut(id).alone) {
                let line = self.lines.get_mut(id);
                let start = line.mark_started(place);
                let reason = line.reason;
                let draft = line.draft(Phase::Started, reason, start.step.clone(), start.at.clone());
                draft.started.push(start);
                self.mark_dirty(id);
                self.commit_surely().await?;
                self.start(id, place);
            }
        }
        Ok(())
    }

    fn start(&mut self, id: LineId, place: usize) {
        self.jobs_started += 1;
        let (job, lease, program) = (self.jobs_started, self.lease().clone(), self.program);
        let store = Arc::clone(&self.engine.store);
        let line = self.lines.get_mut(id);
        let (abort, registration) = AbortHandle::new_pair();
        line.flights.push(Flight::new(place, job, abort));
        let entry = line.entry(place);
        let attempt = Attempt {
            run: line.chain.run.clone(),
            branch: line.chain.branch.clone(),
            step: entry.step.clone(),
            at: entry.at.clone(),
            lease,
            timeout: line.shape.steps()[place].timeout,
            interval: self.options.interval,
            stop: self.options.stop.clone(),
            // What must not be repeated comes to its end, whoever else has failed: cut, nobody could say what became of it.
            cancel: if line.shape.steps()[place].idempotent {
                line.cancel.clone()
            } else {
                StopHandle::default()
            },
            line: id,
            job,
            requests: self.asks.clone(),
            memos: Arc::new(Memos::new(Arc::clone(&store), entry.memos)),
            clock: Arc::clone(&self.clock),
            config: Arc::clone(&self.config),
            verifier: Arc::clone(&self.engine.verifier),
            site: Arc::clone(&self.site),
        };
        let joined = line.fans.iter().find(|fan| fan.place == place).map(|fan| {
            let (run, branch) = (line.chain.run.clone(), line.chain.branch.clone());
            let (source, total) = (fan.source.clone(), fan.total);
            let children = children_of(line, place);
            let (name, ends, passes) = (children.name.clone(), Arc::clone(&fan.ends), children.passes);
            Joined {
                store,
                run,
                branch,
                name,
                source,
                total,
                ends,
                is_after: line.comes_after(place),
                passes,
            }
        });
        let spot = line.spot(place);
        let failed = failed_upstream(line.shape, &line.position, place);
        let admitted = program.admit(spot, &line.state, upstream(failed.as_ref())).map(|_| ());
        let prepared = admitted.and_then(|()| program.prepare(spot, &line.state, joined.clone()));
        self.jobs.push(Box::pin(async move {
            let work = async {
                let root = match &joined {
                    Some(joined) => Some(joined.digests().await),
                    None => None,
                };
                match (prepared, root.transpose()) {
                    (Ok(prepared), Ok(root)) => (program.perform(prepared, attempt).await, root),
                    (Err(failure), _) => (Performed::Failed { failure, told: StepReport::default() }, None),
                    (_, Err(error)) => {
                        (Performed::Failed { failure: unread(&error), told: StepReport::default() }, None)
                    }
                }
            };
            let (performed, root) = match Abortable::new(work, registration).await {
                Ok((performed, root)) => (Some(performed), root),
                Err(_) => (None, None),
            };
            Landed { line: id, job, place, performed, root }
        }));
    }
}
