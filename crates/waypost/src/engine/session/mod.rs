//! A session of a run: from the acquisition of the lease to its release.
//!
//! Between two commits all changes happen in memory: [`completion`] applies ends, and the
//! [walk](crate::engine::walk) decides the next starts. A [`commit`] makes the changes durable, and only then the started
//! steps begin their work. A failed commit leaves the store unchanged; the running steps are dropped, which ends their
//! processes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};

use crate::evidence::Site;
use crate::id::{Digest, ScopePath};
use crate::plan::Broken;
use crate::plan::shape::Shape;
use crate::record::{Definition, Phase, RunStatus, SealedRun};
use crate::store::{self, Damage, Lease, Signal, StoreError};
use crate::system::clock::SteadyClock;
use crate::system::lock::Holder;

use self::attempt::Memos;
use self::pending_wait::{PendingWait, WaitEnd};
use self::request::{REQUESTS_MAX, Request};
use self::scopes::Scopes;
use self::signals::{StopHandle, StopLevel};
use crate::engine::resume::accepted_pins::AcceptedPacks;
use crate::engine::resume::trust::PendingClaims;
use crate::engine::scope::fan_out::{Joined, JoinedDigests, unread};
use crate::engine::scope::{MAIN, RunningStep, Scope, ScopeId};
use crate::engine::time_travel::undo::UndoneEnds;
use crate::engine::walk::early_cutoff::ReusableVerdicts;
use crate::engine::walk::in_place::{Declarers, Rewritten};
use crate::engine::walk::scheduler::children_of;
use crate::engine::{
    Answers, Attempt, BeginError, Engine, OnUnknown, Outcome, Performed, Program, RunError, SessionOptions,
    StepFailure, StepReport, TreatAs,
};

pub(super) mod attempt;
pub(super) mod cancel;
pub(super) mod capacity;
pub(super) mod commit;
pub(super) mod completion;
pub(super) mod escalation;
pub(super) mod event_loop;
pub(super) mod free_signals;
pub(super) mod isolation;
pub(super) mod panics;
pub(crate) mod pending_wait;
pub(super) mod request;
pub(super) mod scopes;
pub(super) mod signals;

type Job<'a, O> = Pin<Box<dyn Future<Output = EndedAttempt<O>> + Send + 'a>>;

/// The end of a running step.
pub(super) struct EndedAttempt<O> {
    pub(super) scope: ScopeId,
    /// The id of the start. The scope may be gone and its number reused, so only the id identifies the step.
    pub(super) job: u64,
    pub(super) place: usize,
    /// The end of the attempt; `None` for a suspended step.
    pub(super) performed: Option<Performed<O>>,
    /// The digests of the joined children, for a join.
    pub(super) root: Option<JoinedDigests>,
}

impl<O> EndedAttempt<O> {
    /// Returns whether the attempt has a result, or never began.
    fn is_decided(&self) -> bool {
        match self.performed {
            Some(Performed::Stopped { in_progress }) => !in_progress,
            Some(Performed::Cut { .. }) => false,
            Some(Performed::Completed { .. } | Performed::Failed { .. } | Performed::Opened { .. })
            | None => true,
        }
    }
}

/// A run under a lease, with its open scopes in memory.
pub(super) struct Session<'a, P: Program> {
    pub(super) engine: &'a Engine,
    pub(super) program: &'a P,
    pub(super) options: SessionOptions,
    pub(super) lease: Option<Lease>,
    pub(super) batches: u64,
    pub(super) scopes: Scopes<'a, P::State>,
    /// Scopes with changes, to be walked before the next commit.
    pub(super) touched: BTreeSet<ScopeId>,
    /// Scopes with drafts for the next commit, parents first.
    pub(super) dirty: BTreeSet<(usize, ScopeId)>,
    /// The newest known time of the run.
    pub(super) latest: Timestamp,
    /// The time for waits.
    pub(super) clock: Arc<SteadyClock>,
    /// The person who resumed the run.
    pub(super) by: Option<String>,
    /// True if the previous session was killed.
    pub(super) was_killed: bool,
    /// True if a worker claimed the run: failures are not retried.
    pub(super) keeps_failures: bool,
    /// True while a step with many interruptions runs alone.
    pub(super) is_isolated: bool,
    /// Scopes whose steps begin their work after the next commit.
    pub(super) launching: BTreeSet<ScopeId>,
    /// Scopes ready to run, waiting for the limit of running steps.
    pub(super) waiting_to_start: BTreeSet<ScopeId>,
    /// The due times of scopes.
    pub(super) timers: BTreeSet<(Timestamp, ScopeId)>,
    /// With [`SessionOptions::until`]: whether a step of the main scope may start, by place.
    pub(super) until_steps: Option<Vec<bool>>,
    pub(super) jobs: FuturesUnordered<Job<'a, P::Output>>,
    pub(super) jobs_started: u64,
    pub(super) request_sender: mpsc::Sender<Request>,
    pub(super) requests: mpsc::Receiver<Request>,
    /// Notified after the next acknowledged commit.
    pub(super) on_commit: Vec<oneshot::Sender<()>>,
    /// Waits of running steps that end after the next acknowledged commit.
    pub(super) delivered: Vec<(Arc<PendingWait>, WaitEnd)>,
    /// Free signals, consumed only by abandoned work; `None` before the first wait for a signal.
    pub(super) free_signals: Option<Vec<Signal>>,
    pub(super) consumed: Vec<String>,
    /// The undone effects of the run; read before the first question about a child.
    pub(super) undone_ends: Option<UndoneEnds>,
    /// Requested checkpoints: the id of the signal, and the label.
    pub(super) requested_checkpoints: Vec<(String, Option<String>)>,
    pub(super) adopt: Option<Definition>,
    /// The graph of the definition before an adoption; judges the steps that started under that definition.
    pub(super) shape_before: Option<Shape>,
    /// The existing and planned scopes of the run, if the store has a scope quota; read on first use.
    pub(super) known_paths: Option<HashSet<ScopePath>>,
    /// True if a new wait may already have its message in the store.
    pub(super) may_have_message: bool,
    /// The configuration for steps.
    pub(super) config: Arc<Map<String, Value>>,
    /// The site of evidence checks.
    pub(super) site: Arc<Site>,
    /// Scopes that end as failed, once no descendant is running.
    pub(super) failing: BTreeSet<ScopeId>,
    /// The number of scopes with a running non-idempotent step.
    pub(super) doubtful: usize,
    /// True after a final failure: nothing more starts.
    pub(super) halted: bool,
    /// The cause of the first interruption of a non-idempotent step.
    pub(super) cut_by: Option<String>,
    pub(super) failed: Option<StepFailure>,
    pub(super) repaired: Vec<Damage>,
    pub(super) lost: u64,
    /// True if the session continues an earlier session under the same lease.
    pub(super) is_again: bool,
    /// True if missing records are skipped, by decision of a person.
    pub(super) skips_missing: bool,
    /// The status of the run before the session; `None` for a new run.
    pub(super) status_before: Option<RunStatus>,
    /// True if a verification is due before the next start: the session ends, and another session of the resume continues.
    pub(super) is_pausing: bool,
    pub(super) pending_claims: PendingClaims,
    /// Accepted older fingerprints by step path: the results count as made by the definition in force.
    pub(super) accepted: BTreeMap<String, BTreeSet<Digest>>,
    /// The accepted packs of the run, if ends have traces.
    pub(super) accepted_packs: AcceptedPacks,
    /// True if ends have traces: the graph has `needs` and evidence.
    pub(super) keeps_traces: bool,
    /// True if ends have digests of the whole state: the graph has routes and evidence.
    pub(super) keeps_state_digests: bool,
    pub(super) on_unknown: OnUnknown,
    /// The decisions of a person about steps in doubt.
    pub(super) answers: Answers,
    pub(super) reusable_verdicts: ReusableVerdicts,
    /// Verifications in a row without a start, before this session.
    pub(super) idle_rounds: u32,
    /// The claims of ends about files, at the start of the session.
    pub(super) declarers: Declarers,
    /// The files of steps that run in this resume.
    pub(super) rewritten: BTreeSet<Rewritten>,
    /// Earlier steps whose edited files are broken: [`in_place`](crate::engine::walk::in_place).
    pub(super) broken_declarers: Vec<Broken>,
}

/// The end of a session's work.
pub(super) enum SessionEnd<S> {
    /// Nothing can progress; the lease is released.
    Done(Box<Outcome<S>>),
    /// Another session continues under the same lease, from the current records.
    Continues(SessionCarry),
}

/// The context for the next session under the same lease.
pub(super) struct SessionCarry {
    /// The number of sent batches; their ids are used.
    pub(super) batches: u64,
    /// The number of the resume.
    pub(super) resume: u64,
    pub(super) repaired: Vec<Damage>,
    pub(super) pending_claims: PendingClaims,
    /// Verifications in a row without a start.
    pub(super) idle_rounds: u32,
    /// The files of steps that run in this resume.
    pub(super) rewritten: BTreeSet<Rewritten>,
    /// Earlier steps whose edited files are broken: these steps rerun first.
    pub(super) broken_declarers: Vec<Broken>,
    /// The decisions about named steps, and about all others if broken declarers rerun.
    pub(super) answers: Answers,
}

impl<'a, P: Program> Session<'a, P> {
    pub(super) fn new(
        engine: &'a Engine,
        program: &'a P,
        mut main: Scope<'a, P::State>,
        options: SessionOptions,
    ) -> Result<Self, RunError> {
        options.check_steps(main.shape)?;
        let until_steps = match &options.until {
            Some(step) => {
                let place = main.shape.place(step.as_str());
                let place = place.ok_or_else(|| RunError::InvalidStep(step.clone()))?;
                Some(main.shape.with_needs(place))
            }
            None => None,
        };
        let has_evidence = main.shape.has_evidence();
        let (keeps_traces, keeps_state_digests) =
            (!main.shape.is_routed() && has_evidence, main.shape.is_routed() && has_evidence);
        // Each commit reports the progress.
        main.unfinished();
        let (request_sender, requests) = mpsc::channel(REQUESTS_MAX);
        Ok(Self {
            engine,
            program,
            options,
            lease: None,
            batches: 0,
            scopes: Scopes::new(main),
            touched: BTreeSet::from([MAIN]),
            dirty: BTreeSet::new(),
            latest: Timestamp::MIN,
            clock: Arc::new(SteadyClock::new(Arc::clone(&engine.clock))),
            by: None,
            was_killed: false,
            keeps_failures: false,
            is_isolated: false,
            launching: BTreeSet::new(),
            waiting_to_start: BTreeSet::new(),
            timers: BTreeSet::new(),
            until_steps,
            jobs: FuturesUnordered::new(),
            jobs_started: 0,
            request_sender,
            requests,
            on_commit: Vec::new(),
            delivered: Vec::new(),
            free_signals: None,
            consumed: Vec::new(),
            undone_ends: None,
            requested_checkpoints: Vec::new(),
            adopt: None,
            shape_before: None,
            known_paths: None,
            may_have_message: false,
            config: Arc::default(),
            site: Arc::default(),
            failing: BTreeSet::new(),
            doubtful: 0,
            halted: false,
            cut_by: None,
            failed: None,
            repaired: Vec::new(),
            lost: 0,
            is_again: false,
            skips_missing: false,
            status_before: None,
            is_pausing: false,
            pending_claims: PendingClaims::default(),
            accepted: BTreeMap::new(),
            accepted_packs: AcceptedPacks::default(),
            keeps_traces,
            keeps_state_digests,
            on_unknown: OnUnknown::default(),
            answers: Answers::default(),
            reusable_verdicts: ReusableVerdicts::default(),
            idle_rounds: 0,
            declarers: Declarers::default(),
            rewritten: BTreeSet::new(),
            broken_declarers: Vec::new(),
        })
    }

    pub(super) fn main(&self) -> &Scope<'a, P::State> {
        self.scopes.get(MAIN)
    }

    pub(super) fn main_mut(&mut self) -> &mut Scope<'a, P::State> {
        self.scopes.get_mut(MAIN)
    }

    pub(super) fn lease(&self) -> &Lease {
        self.lease.as_ref().expect("a session works under a lease")
    }

    /// Creates the run with its first batch.
    pub(super) async fn create(
        &mut self,
        run: &SealedRun,
        holder: &Holder,
    ) -> Result<Option<RunStatus>, RunError> {
        self.schedule_first();
        let status = self.idle_status();
        let batch = self.batch(status)?;
        let lease = self.engine.store.create(run, batch.clone(), holder).await;
        self.lease = Some(lease.map_err(|source| not_created(run, source))?);
        self.acknowledged(&batch);
        Ok(status)
    }

    /// Creates the run in the queue of the store.
    pub(super) async fn submit(&mut self, run: &SealedRun, job: &store::Job) -> Result<(), RunError> {
        let (batch, holder) = (self.batch(Some(RunStatus::Queued))?, self.engine.holder()?);
        let Some(queue) = self.engine.store.queue() else {
            let (store, why) = (self.engine.store.to_string(), "the store has no queue".to_owned());
            return Err(StoreError::Unsupported { store, why }.into());
        };
        queue.submit(run, batch, job, &holder).await.map_err(|source| not_created(run, source))
    }

    /// Runs until nothing can progress; `status` is set if this is the case at once. For sessions of new runs.
    pub(super) async fn work(self, status: Option<RunStatus>) -> Result<Outcome<P::State>, RunError> {
        match self.work_on(status).await? {
            SessionEnd::Done(outcome) => Ok(*outcome),
            SessionEnd::Continues(_) => unreachable!("only a run that is resumed does something again"),
        }
    }

    /// As [`work`](Self::work). Ends the program, unless another session continues.
    pub(super) async fn work_on(
        mut self,
        status: Option<RunStatus>,
    ) -> Result<SessionEnd<P::State>, RunError> {
        if let Some(status) = status {
            if self.is_again {
                self.program.end().await;
            }
            return Ok(SessionEnd::Done(Box::new(self.outcome(status))));
        }
        let lease = self.lease().clone();
        // Processes left by steps live until the release of the lease.
        let begun = if self.is_again { Ok(()) } else { self.program.begin(&lease).await };
        let result = match begun {
            Ok(()) => self.turns().await,
            Err(error) => self.give_up(error).await.map(Some),
        };
        // Dropping the running steps ends their processes; `end` waits for the rest.
        self.jobs.clear();
        if !matches!(result, Ok(None)) {
            self.program.end().await;
        }
        match result {
            Ok(Some(status)) => Ok(SessionEnd::Done(Box::new(self.outcome(status)))),
            Ok(None) => {
                let resume = self.main().chain.resume;
                let idle_rounds = if self.jobs_started == 0 { self.idle_rounds + 1 } else { 0 };
                let mut answers = std::mem::take(&mut self.answers);
                let is_kept = |rest: &TreatAs| *rest == TreatAs::Retry && !self.broken_declarers.is_empty();
                answers.rest = answers.rest.filter(is_kept);
                let Self { batches, repaired, pending_claims, rewritten, broken_declarers, .. } = self;
                Ok(SessionEnd::Continues(SessionCarry {
                    batches,
                    resume,
                    repaired,
                    pending_claims,
                    idle_rounds,
                    rewritten,
                    broken_declarers,
                    answers,
                }))
            }
            Err(error) => {
                // Best effort: the earlier error is returned.
                let _ = self.engine.store.release(lease, None).await;
                Err(error)
            }
        }
    }

    /// Reverts committed starts that cannot happen, and records the reason.
    async fn give_up(&mut self, error: BeginError) -> Result<RunStatus, RunError> {
        self.options.stop.stop(StopLevel::Graceful, "cannot prepare its steps");
        for id in std::mem::take(&mut self.launching) {
            self.scopes.get_mut(id).starting_alone.clear();
            for place in std::mem::take(&mut self.scopes.get_mut(id).starting) {
                self.take(id, place, Performed::Stopped { in_progress: false }, None);
            }
        }
        // Nothing more is scheduled: record the current positions.
        self.touched.clear();
        self.commit(self.idle_status()).await?;
        Err(error.into())
    }

    pub(super) fn mark_dirty(&mut self, id: ScopeId) {
        let depth = self.scopes.get(id).chain.scope.depth();
        self.dirty.insert((depth, id));
    }

    /// Starts the steps of the last commit, and then the steps with a separate commit, one by one.
    pub(super) async fn launch(&mut self) -> Result<(), RunError> {
        while let Some(id) = self.launching.pop_first() {
            for place in std::mem::take(&mut self.scopes.get_mut(id).starting) {
                if !self.dirty.is_empty() && self.scopes.get(id).entry(place).has_children() {
                    // A checkpoint was lost, and a join reads the ends of its scopes from the store.
                    self.commit_surely().await?;
                }
                self.start(id, place);
            }
            for place in std::mem::take(&mut self.scopes.get_mut(id).starting_alone) {
                let scope = self.scopes.get_mut(id);
                let start = scope.mark_started(place);
                let reason = scope.reason;
                let draft = scope.draft(Phase::Started, reason, start.step.clone(), start.at.clone());
                draft.started.push(start);
                self.mark_dirty(id);
                self.commit_surely().await?;
                self.start(id, place);
            }
        }
        Ok(())
    }

    fn start(&mut self, id: ScopeId, place: usize) {
        self.jobs_started += 1;
        let (job, lease, program) = (self.jobs_started, self.lease().clone(), self.program);
        let store = Arc::clone(&self.engine.store);
        let decided = self.decide(id, place);
        let scope = self.scopes.get_mut(id);
        let (abort, registration) = AbortHandle::new_pair();
        scope.running_steps.push(RunningStep::new(place, job, abort));
        let entry = scope.entry(place);
        let attempt = Attempt {
            run: scope.chain.run.clone(),
            scope: scope.chain.scope.clone(),
            step: entry.step.clone(),
            at: entry.at.clone(),
            lease,
            timeout: scope.shape.steps()[place].timeout,
            interval: self.options.interval,
            stop: self.options.stop.clone(),
            // A non-idempotent step runs to its end even after other failures: interrupted, its effect would be
            // unknown.
            cancel: if scope.shape.steps()[place].idempotent {
                scope.cancel.clone()
            } else {
                StopHandle::default()
            },
            scope_id: id,
            job,
            requests: self.request_sender.clone(),
            memos: Arc::new(Memos::new(Arc::clone(&store), entry.memos)),
            clock: Arc::clone(&self.clock),
            config: Arc::clone(&self.config),
            verifier: Arc::clone(&self.engine.verifier),
            site: Arc::clone(&self.site),
        };
        let joined = scope.fans.iter().find(|fan| fan.place == place).map(|fan| {
            let (run, path) = (scope.chain.run.clone(), scope.chain.scope.clone());
            let (source, total) = (fan.source.clone(), fan.total);
            let children = children_of(scope, place);
            let (name, ends, passes) = (children.name.clone(), Arc::clone(&fan.ends), children.passes);
            Joined {
                store,
                run,
                scope: path,
                name,
                source,
                total,
                ends,
                is_after: scope.runs_hooks(place),
                passes,
            }
        });
        let step_ref = scope.step_ref(place);
        let prepared = decided.and_then(|_| program.prepare(step_ref, &scope.state, joined.clone()));
        self.jobs.push(Box::pin(async move {
            let work = async {
                let root = match &joined {
                    Some(joined) => Some(joined.digests().await),
                    None => None,
                };
                match (prepared, root.transpose()) {
                    (Ok(prepared), Ok(root)) => (program.perform(prepared, attempt).await, root),
                    (Err(failure), _) => (Performed::Failed { failure, report: StepReport::default() }, None),
                    (_, Err(error)) => {
                        (Performed::Failed { failure: unread(&error), report: StepReport::default() }, None)
                    }
                }
            };
            let (performed, root) = match Abortable::new(work, registration).await {
                Ok((performed, root)) => (Some(performed), root),
                Err(_) => (None, None),
            };
            EndedAttempt { scope: id, job, place, performed, root }
        }));
    }
}

/// Returns the error of a creation without effect, or with an unknown one.
fn not_created(run: &SealedRun, source: StoreError) -> RunError {
    match source {
        StoreError::Full { .. } | StoreError::Io { .. } | StoreError::Poisoned { .. } => {
            RunError::Checkpoint { at: format!("{}@1", run.record().run), source }
        }
        source => RunError::Store(source),
    }
}
