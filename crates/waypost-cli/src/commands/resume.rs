//! `waypost resume`: continues a run from its newest checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};
use waypost::engine::{
    Answers, Edit, EditScope, Engine, OnDoubt, Outcome, ResumeFrom, ResumeOptions, RunError, SessionOptions,
    Snapshot, StopHandle, Then, TreatAs,
};
use waypost::folder::REPORT;
use waypost::plan::{Action, Decision, Plan};
use waypost::record::{Choice as SettlementChoice, RunRecord, RunStatus};
use waypost::store::{RunEntry, Store, StoreError, StoreExt as _, TaskState};
use waypost::{RunId, ScopePath, StepId};
use waypost_workflow::file::Workflow;
use waypost_workflow::program::{EndedStep, StepEnd, WorkflowProgram, WorkflowState, declared_env};

use super::{Context, detach};
use crate::cli::{ResumeArgs, Treatment};
use crate::error::{Error, are_of_evidence};
use crate::exit::Exit;
use crate::format::text::{quoted, relative_to_here};
use crate::run::bases;
use crate::run::definition::{Choice, Chosen, choose_to_resume, opener_on_main, path_in_force};
use crate::run::doubt::{doubts, started_tasks};
use crate::run::environment::{self, Local};
use crate::run::hooks;
use crate::run::needs;
use crate::run::params::{BegunWork, Setting, current, with_added};
use crate::run::preflight;
use crate::run::progress::steps_are_done;
use crate::run::reference::{Default as Meant, LISTS_RUNS, StepRef, encode, encoded, find, no_scope};
use crate::run::refusals::{self, failed_step};
use crate::session::{Session, SessionReport};
use crate::store_location::{self, Access};
use crate::view::doubt::Doubt;
use crate::view::step_names::{StepNames, called};
use crate::view::{SubmittedView, VERSION};

use choice::{Asked, decide, nothing_to_decide};
use dry::{dry_run, rehearse};

mod all;
mod choice;
mod dry;

pub(super) use self::dry::stop_after;

pub(crate) async fn resume(context: &Context, args: ResumeArgs) -> Result<Exit, Error> {
    if args.detached {
        detach::leave_terminal();
    }
    let access = if args.dry_run { Access::Read } else { Access::Write };
    if args.everywhere {
        return all::resume_everywhere(context, access, &args).await;
    }
    let store = match context.store(None, access) {
        Err(error @ Error::NoStore { .. }) if args.all => {
            let hint = "name a store with `--store`; `waypost resume --all --everywhere` uses all stores of this user";
            return Err(Error::usage(error.to_string(), hint));
        }
        store => store.map_err(|error| not_begun(error, args.run.as_deref()))?,
    };
    resume_in(context, store, args).await
}

/// Adds to the error about a missing run how to start it: a crash in the first milliseconds leaves no record of a run.
fn not_begun(error: Error, run: Option<&str>) -> Error {
    let Some(run) = run.filter(|run| RunId::new(run).is_ok()) else { return error };
    let start = format!("`waypost run FILE --id {run} --or-resume` starts a run without a record");
    match error {
        Error::NoStore { .. } | Error::NoRuns { .. } => {
            Error::not_found(format!("run `{run}`: {error}"), format!("{start}; `--store` names a store"))
        }
        Error::NotFound { what, hint } if hint.as_deref() == Some(LISTS_RUNS) => {
            Error::not_found(what, format!("{LISTS_RUNS}; {start}"))
        }
        error => error,
    }
}

/// Resumes a run in an open store.
pub(crate) async fn resume_in(
    context: &Context,
    store: Arc<dyn Store>,
    args: ResumeArgs,
) -> Result<Exit, Error> {
    if args.all {
        return all::resume_all(context, store, &args).await;
    }
    let run = meant(store.as_ref(), args.run.as_deref()).await?;
    if args.queue {
        return requeue(context, store.as_ref(), &run).await;
    }
    let mut args = args;
    encode(store.as_ref(), &run, args.from.iter_mut().chain(&mut args.skip)).await?;
    if let Some(until) = &mut args.until {
        let step = encoded(store.as_ref(), &run, until).await?;
        // A step of another scope is refused by the name that was given.
        *until = if StepId::new(&step).is_ok() { step } else { until.clone() };
    }
    refuse_unknown_scope(store.as_ref(), &run, args.from.as_deref()).await?;
    if args.only {
        let from = args.from.as_deref().map(StepRef::parse);
        if from.is_some_and(|from| from.scope.is_some_and(|scope| !scope.is_main())) {
            return Err(Error::usage(
                "`--only` reruns a step of the main scope",
                "without `--only`, steps downstream rerun too",
            ));
        }
        args.until = args.from.clone();
    }
    let mut letters = Vec::new();
    if args.retry_failed {
        letters = crate::run::dead_letters::letters_of(store.as_ref(), &run).await?;
        // An opener that reruns opens its failed items again.
        let main = store.newest(&run, &ScopePath::main()).await?.position().unwrap_or_default();
        let is_in_force = |opener: &StepId| {
            main.open_entries().any(|entry| entry.step == *opener) || main.ledger.contains_key(opener)
        };
        letters.retain(|letter| opener_on_main(&letter.scope).is_none_or(|opener| is_in_force(&opener)));
        args.retry = letters.iter().cloned().map(|letter| (letter, None)).collect();
    }
    if args.dry_run {
        return dry_run(context, &store, &run, (&args, &letters)).await;
    }
    if args.treat_as.iter().any(|given| given.treat_as == TreatAs::Retry) {
        refuse_retry_on_workers(store.as_ref(), &run, &args).await?;
    }
    if args.requests() && !args.treat_as.is_empty() {
        // A refusal comes before the answers are recorded.
        refuse_held(store.as_ref(), &run).await?;
        Box::pin(rehearse(context, &store, &run, &args)).await?;
    }
    let (prepared, args) = Prepared::decided(context, &store, &run, args).await?;
    prepared.tell(context);
    if args.detach {
        // Errors that prevent the resume are reported above, with their exit code.
        let word: Vec<&str> = args.run.is_none().then_some(run.as_str()).into_iter().collect();
        return detach::begin(context, store.as_ref(), &run, &word, true).await;
    }
    let session = Session::begin(context, prepared.timeout)?;
    Box::pin(prepared.go_on(context, store, &session, &args)).await
}

/// Returns whether a new run has no step left for the workers.
pub(super) fn is_over(status: RunStatus) -> bool {
    matches!(status, RunStatus::Completed | RunStatus::CompletedWithFailures)
}

/// Adds a stopped run to the queue of its store.
///
/// # Errors
/// [`Error::Usage`]: the run is not for workers, or needs a decision that a claim cannot make.
pub(super) async fn requeue(context: &Context, store: &dyn Store, run: &RunId) -> Result<Exit, Error> {
    let entry = refuse_held(store, run).await?;
    let status = entry.summary.status;
    let refused = |why: &str| {
        let here = match status {
            RunStatus::Cancelled => format!("`waypost resume {run} --restart` starts over here"),
            _ => format!("`waypost resume {run}` resumes the run here"),
        };
        Error::usage(format!("cannot queue run {run}: {why}"), here)
    };
    let queue = store.queue().ok_or_else(|| refused("its store has no queue for workers"))?;
    let queued = queue.job(run).await?;
    let job = match &queued {
        Some(_) => None,
        None => {
            let workflow = Chosen::in_force(store, &Snapshot::read(store, run).await?)?.workflow;
            let job = needs::job_of(store, entry.record.record(), &workflow);
            Some(job.ok_or_else(|| refused("the run was not submitted"))?)
        }
    };
    match status {
        RunStatus::Queued | RunStatus::Waiting if queued.as_ref().is_some_and(|queued| queued.is_ready) => {
            let note = format!("Nothing to queue, because run {run} is in the queue ({}).", status.name());
            context.output.note(&note);
        }
        RunStatus::Interrupted | RunStatus::Queued => {
            let snapshot = Snapshot::read(store, run).await?;
            // A claim retries no failed step.
            if let Some(step) = failed_step(&snapshot) {
                return Err(refused(&format!("its step {step} has failed")));
            }
            let workflow = Chosen::in_force(store, &snapshot)?.workflow;
            if let Some(passed) = refusals::passed_budget(store, &snapshot, &workflow).await? {
                return Err(Error::Budget { run: run.clone(), passed });
            }
            tell_of_edit(context, store, &snapshot).await;
            queue.requeue(run, job.as_ref()).await?;
            if !context.output.json {
                context.output.done(&format!("Run {run} is queued."))?;
            }
        }
        _ => return Err(refused(&format!("it is {}", status.name()))),
    }
    if context.output.json {
        let status = store.run(run).await?.summary.status;
        context.output.document(&SubmittedView {
            v: VERSION,
            run: run.to_string(),
            status,
            created: false,
        })?;
    }
    Ok(Exit::Done)
}

/// Warns of an edited workflow file: workers execute the run's own copy.
async fn tell_of_edit(context: &Context, store: &dyn Store, snapshot: &Snapshot) {
    let record = snapshot.entry.record.record();
    let Some(path) = path_in_force(record, &snapshot.definition) else { return };
    let file = store_location::from_home(store.home(), path);
    // A missing file is that of another machine.
    let Ok(text) = std::fs::read_to_string(&file) else { return };
    if snapshot.definition.text.as_ref().is_some_and(|own| *own != text) {
        let (run, words) = (&record.run, context.store_words());
        context.output.warn(&format!(
            "{} has changed, and workers continue with the run's own copy; `waypost resume {run}{words}` adopts the \
             change, and executes the run here",
            relative_to_here(&file).display()
        ));
    }
}

/// Names the steps of an earlier session that workers still execute: the resume waits for their end.
async fn tell_steps_on_workers(context: &Context, store: &dyn Store, run: &RunId) -> Result<(), Error> {
    let Some(queue) = store.queue() else { return Ok(()) };
    let tasks = queue.tasks().task_states(run).await?.into_iter();
    let running: Vec<String> = tasks
        .filter_map(|task| match task.state {
            TaskState::Claimed(holder) => Some(format!("{} in {holder}", task.step)),
            _ => None,
        })
        .collect();
    if !running.is_empty() {
        context.output.note(&format!("Waiting for the end of steps on workers: {}.", running.join(", ")));
    }
    Ok(())
}

/// Refuses to repeat a step that a worker still executes, or has completed: the next holder of the run records its result.
async fn refuse_retry_on_workers(store: &dyn Store, run: &RunId, args: &ResumeArgs) -> Result<(), Error> {
    let counts = |state: &TaskState| match state {
        TaskState::Claimed(_) => true,
        TaskState::Ended(text) => matches!(
            serde_json::from_str(text),
            Ok(EndedStep { end: StepEnd::Completed { .. } | StepEnd::Failed { .. }, .. })
        ),
        TaskState::Waiting(_) | TaskState::Lost => false,
    };
    let snapshot = Snapshot::read(store, run).await?;
    for (scope, step) in started_tasks(store, &snapshot, counts).await? {
        let path = if scope.is_main() { step.to_string() } else { format!("{}/{step}", scope.readable()) };
        let is_within = |name: &String| {
            path.strip_prefix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', ':', '~']))
        };
        let is_meant = |given: &Treatment| {
            given.treat_as == TreatAs::Retry && (given.steps.is_empty() || given.steps.iter().any(is_within))
        };
        if args.treat_as.iter().any(is_meant) {
            return Err(Error::usage(
                format!(
                    "cannot repeat step `{path}` of run {run}: a worker executes the step, or has its result"
                ),
                "a worker of the run records the result: `waypost worker` starts one",
            ));
        }
    }
    Ok(())
}

/// Refuses a running run.
async fn refuse_held(store: &dyn Store, run: &RunId) -> Result<RunEntry, Error> {
    store.wait_for_release(run).await?;
    let entry = store.run(run).await?;
    refusals::held(&entry).map_or(Ok(entry), Err)
}

/// Refuses `--from` with an unknown scope.
pub(super) async fn refuse_unknown_scope(
    store: &dyn Store,
    run: &RunId,
    from: Option<&str>,
) -> Result<(), Error> {
    let named = from.and_then(|from| StepRef::parse(from).scope).filter(|scope| !scope.is_main());
    match named {
        Some(scope) if !store.scopes(run).await?.contains(&scope) => Err(no_scope(run, scope.as_str())),
        _ => Ok(()),
    }
}

/// Refuses `--from` with a step of other scopes, named without its scope, and with a step of a hook.
async fn refuse_inner_step(
    store: &dyn Store,
    run: &RunId,
    chosen: &Chosen,
    from: Option<&str>,
) -> Result<(), Error> {
    let Some(StepRef { scope, step: Some(step) }) = from.map(StepRef::parse) else { return Ok(()) };
    if let Some(scope) = scope {
        let mut around = std::iter::successors(Some(scope), ScopePath::parent);
        let opener = |scope: ScopePath| scope.parent().zip(hooks::opener(&chosen.shape, &scope));
        let Some((above, own)) = around.find_map(opener) else { return Ok(()) };
        let step = quoted(&called(Some(&chosen.workflow), &above, own.id.as_str()));
        let hint = format!("`waypost resume {run} --from {step}` reruns the step, with its hooks");
        return Err(Error::usage("cannot rerun a step of a hook: a hook runs with its step", hint));
    }
    let has = |scope: &ScopePath| chosen.shape.of_scope(scope).is_some_and(|own| own.place(&step).is_some());
    match store.scopes(run).await?.into_iter().find(has) {
        Some(scope) if chosen.shape.place(&step).is_none() => {
            let named = quoted(&called(Some(&chosen.workflow), &scope, &step));
            let hint = format!("`waypost resume {run} --from {named}` reruns the step in one scope");
            Err(Error::not_found(format!("step `{step}` in the main scope"), hint))
        }
        _ => Ok(()),
    }
}

/// Resumes a run in an existing session.
pub(crate) async fn resume_within(
    context: &Context,
    store: Arc<dyn Store>,
    run: &RunId,
    args: &ResumeArgs,
    session: &Session<'_>,
) -> Result<Exit, Error> {
    let prepared = Box::pin(Prepared::of(context, &store, run, args)).await?;
    Box::pin(prepared.go_on(context, store, session, args)).await
}

/// Selects the run: by name, else the newest resumable run; without any, the newest of all, for its message.
async fn meant(store: &dyn Store, name: Option<&str>) -> Result<RunId, Error> {
    if name.is_some() {
        return find(store, name, Meant::Newest).await.map_err(|error| not_begun(error, name));
    }
    match find(store, None, Meant::NewestResumable).await {
        Err(Error::NotFound { .. }) => find(store, None, Meant::Newest).await,
        found => found,
    }
}

/// The start of a resume, if not the newest position, and whether steps run.
#[derive(Debug, Clone, Default)]
struct Going {
    from: Option<ResumeFrom>,
    then: Then,
    /// Failed scopes to retry, with a replacement item if given.
    again: Vec<(ScopePath, Option<Value>)>,
}

impl Going {
    fn of(workflow: &Workflow, args: &ResumeArgs) -> Result<Self, Error> {
        let named = args.from.as_deref().map(|from| from_step(workflow, from)).transpose()?;
        let named = named.map(|(scope, step)| match scope.is_main() {
            true => ResumeFrom::Step(step),
            false => ResumeFrom::StepOn(scope, step),
        });
        let again: Vec<_> =
            args.retry.iter().map(|(letter, item)| (letter.failed_on.clone(), item.clone())).collect();
        let from = named.or((!again.is_empty()).then_some(ResumeFrom::Scopes));
        Ok(Self { from, then: Then::GoOn, again })
    }
}

/// A run, prepared for a resume.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    run: RunId,
    frozen: RunRecord,
    pub(super) chosen: Chosen,
    local: Local,
    timeout: Option<std::time::Duration>,
    /// The new params, if a person changed any.
    params: Option<Map<String, Value>>,
    /// Choices of a person about unfinished steps.
    choices: BTreeMap<(ScopePath, StepId), SettlementChoice>,
    /// The person's decision is written before finished steps are checked, as some must rerun.
    decides_first: bool,
    /// The usage over the budget, if the resume would start a step.
    passed_budget: Option<String>,
}

impl Prepared {
    /// Prepares a resume, and prints the adoption of a changed file.
    pub(super) async fn of(
        context: &Context,
        store: &Arc<dyn Store>,
        run: &RunId,
        args: &ResumeArgs,
    ) -> Result<Self, Error> {
        let prepared = Self::untold(context, store, run, args).await?;
        prepared.refuse_steps()?;
        prepared.tell(context);
        Ok(prepared)
    }

    /// Prepares a record without steps, such as a rollback: the budget does not matter.
    pub(super) async fn to_write(
        context: &Context,
        store: &Arc<dyn Store>,
        run: &RunId,
    ) -> Result<Self, Error> {
        let args = ResumeArgs { run: Some(run.to_string()), keep_definition: true, ..ResumeArgs::default() };
        let prepared = Self::untold(context, store, run, &args).await?;
        prepared.tell(context);
        Ok(prepared)
    }

    /// Refuses to run steps over the budget, or in an unknown folder.
    fn refuse_steps(&self) -> Result<(), Error> {
        bases::refuse_unknown(&self.frozen)?;
        match self.passed_budget.clone() {
            Some(passed) => Err(Error::Budget { run: self.run.clone(), passed }),
            None => Ok(()),
        }
    }

    fn tell(&self, context: &Context) {
        self.chosen.tell(context);
        report_environment(context, &self.frozen, &self.chosen.workflow, &self.local);
    }

    /// Prepares a resume, and records the decisions of a person that come before the request.
    async fn decided(
        context: &Context,
        store: &Arc<dyn Store>,
        run: &RunId,
        mut args: ResumeArgs,
    ) -> Result<(Self, ResumeArgs), Error> {
        args.answers = choice::answers(context, store, run, &args).await?;
        let prepared = Self::untold(context, store, run, &args).await?;
        prepared.refuse_steps()?;
        if !prepared.decides_first {
            return Ok((prepared, args));
        }
        let reruns_changed = prepared.chosen.reruns_finished();
        let requests = args.from.is_some() || reruns_changed || !args.retry.is_empty();
        let mut first = prepared;
        if requests {
            let mut answered = ResumeArgs { from: None, set: Vec::new(), retry: Vec::new(), ..args.clone() };
            if reruns_changed {
                (answered.keep_definition, answered.with) = (true, None);
                (answered.keep_finished, answered.rerun_changed) = (None, None);
            }
            first = Self::untold(context, store, run, &answered).await?;
        }
        let later = first.choices_about_ended(store.as_ref()).await?;
        first.only_write(Arc::clone(store), &args, None).await?;
        // The answers also hold for the steps downstream of a requested rerun.
        let answers = if requests { args.answers.clone() } else { Answers::default() };
        let args = ResumeArgs { answers, ..args.undecided() };
        let mut prepared = Self::untold(context, store, run, &args).await?;
        prepared.choices.extend(later);
        Ok((prepared, args))
    }

    async fn untold(
        context: &Context,
        store: &Arc<dyn Store>,
        run: &RunId,
        args: &ResumeArgs,
    ) -> Result<Self, Error> {
        let entry = refuse_held(store.as_ref(), run).await?;
        let frozen = entry.record.record().clone();
        let setting = Setting { set: &args.set };
        let (mut params, mut decides_first, mut choices) = (None, false, BTreeMap::new());
        let mut passed_budget = None;
        let chosen = match Snapshot::read(store.as_ref(), run).await {
            Ok(snapshot) => {
                if !args.restart
                    && let Some(refusal) = refusals::behind(store.as_ref(), &snapshot).await
                {
                    return Err(refusal);
                }
                let choice = Choice::of(args);
                let chosen = choose_to_resume(store, &snapshot, choice, context.now()).await?;
                let reruns =
                    args.from.is_some() || args.retry_failed || args.restart || !args.retry.is_empty();
                if snapshot.ended.is_none() || reruns || chosen.reruns_finished() {
                    passed_budget =
                        refusals::passed_budget(store.as_ref(), &snapshot, &chosen.workflow).await?;
                }
                // Retried items find their questions during the resume.
                let mut asked = Asked::Nothing;
                if !args.treat_as.is_empty() {
                    let now = decide(context, store, (&snapshot, &chosen), &args.answers).await?;
                    // A rerun from a step, or of changed steps, follows the answers to the open questions.
                    let reruns = args.from.is_some() || chosen.reruns_finished();
                    decides_first = now == Asked::BeforeEvidence || now == Asked::Now && reruns;
                    asked = if args.retry.is_empty() { now } else { asked };
                }
                let at = (&snapshot, &chosen);
                choices = choice::of(args, store.as_ref(), at, asked, context.now()).await?;
                let is_told = !args.treat_as.is_empty() && args.retry.is_empty();
                if is_told && asked == Asked::Nothing && choices.is_empty() {
                    return Err(nothing_to_decide(store.as_ref(), run, &chosen.workflow).await?);
                }
                if !args.set.is_empty() && !args.restart {
                    let plan = chosen.plan(store.as_ref(), &snapshot, None, context.now()).await?;
                    let definition = (&chosen.workflow, &chosen.shape);
                    let work = BegunWork::of(store.as_ref(), definition, &snapshot).await?;
                    let from =
                        args.from.as_deref().map(|from| from_step(&chosen.workflow, from)).transpose()?;
                    params = setting.apply(&work.retrying(args.retry_failed).rerunning(from), &plan)?;
                } else if !args.restart && chosen.adoption.is_some() {
                    params = with_added(&chosen.workflow, current(&snapshot))?;
                }
                chosen
            }
            // All checkpoints are damaged; a restart needs only the run record.
            Err(StoreError::Damaged { .. }) if args.restart => Chosen::frozen(store.as_ref(), &frozen)?,
            Err(error) => return Err(error.into()),
        };
        environment::refuse_unknown_step(&chosen.workflow, args.until.as_deref())?;
        refuse_inner_step(store.as_ref(), run, &chosen, args.from.as_deref()).await?;
        refuse_lacks(context, store, run, (&frozen, &chosen), args).await?;
        let mut local = Local::detect()?;
        local.has_bash =
            frozen.settings.get(environment::BASH).and_then(Value::as_bool).unwrap_or(local.has_bash);
        let timeout = chosen.workflow.timeout();
        if args.restart {
            params = match args.set.is_empty() {
                true => with_added(&chosen.workflow, frozen.params.clone())?,
                false => setting.over(&chosen.workflow, frozen.params.clone())?,
            };
        }
        if params.is_none() && !args.set.is_empty() {
            context.output.note("The params already have these values.");
        }
        let run = run.clone();
        Ok(Self { run, frozen, chosen, local, timeout, params, choices, decides_first, passed_budget })
    }

    async fn go_on(
        self,
        context: &Context,
        store: Arc<dyn Store>,
        session: &Session<'_>,
        args: &ResumeArgs,
    ) -> Result<Exit, Error> {
        let going = Going::of(&self.chosen.workflow, args)?;
        let told = self.told(context, store.as_ref(), args);
        if context.output.live
            && let Some(line) = self.head(context, store.as_ref(), args).await
        {
            session.progress.head(line);
        }
        tell_steps_on_workers(context, store.as_ref(), &self.run).await?;
        let is_changed = self.chosen.adoption.is_some();
        let (program, options) = self.make(&store, session.stop.clone(), args, going)?;
        let engine = session.engine(Arc::clone(&store), &program);
        if !args.all {
            session.ask_questions(&engine, &told.run, program.workflow());
        }
        let kept = options.session.clone();
        let resumed = session.watch_resume(&engine, &program, &told.run, options).await;
        let mut resumed = resumed;
        let asked = match &mut resumed {
            Err(Error::Run(RunError::InDoubt { run, questions })) => {
                // The hints repeat the options: these must be valid.
                if args.from.is_some() || !args.skip.is_empty() {
                    Box::pin(rehearse(context, &store, run, args)).await?;
                }
                let more = open_questions(store.as_ref(), run, args, context.now()).await?;
                let is_new = |more: &Decision| {
                    !questions.iter().any(|asked| asked.scope == more.scope && asked.step == more.step)
                };
                let more: Vec<Decision> = more.into_iter().filter(is_new).collect();
                // Questions about evidence have answers of their own.
                if args.from.is_none() && !are_of_evidence(questions) {
                    questions.extend(more);
                }
                doubts(store.as_ref(), run, program.workflow(), &*questions).await?
            }
            _ => Vec::new(),
        };
        let outcome = resumed.map_err(|error| refused(error, args, &asked, is_changed))?;
        let wait = if args.all { std::time::Duration::ZERO } else { args.wait() };
        let outcome = session.wait_out(&engine, &program, outcome, &kept, wait).await?;
        session.conclude(&engine, &program, &outcome, &told).await
    }

    /// Takes the choices about scopes that have ended: a request opens these scopes again.
    async fn choices_about_ended(
        &mut self,
        store: &dyn Store,
    ) -> Result<BTreeMap<(ScopePath, StepId), SettlementChoice>, Error> {
        let snapshot = Snapshot::read(store, &self.run).await?;
        let is_open = |scope: &ScopePath| {
            scope.is_main() || snapshot.heads.iter().any(|head| head.record.header().scope == *scope)
        };
        let (open, ended) =
            std::mem::take(&mut self.choices).into_iter().partition(|((scope, _), _)| is_open(scope));
        self.choices = open;
        Ok(ended)
    }

    /// Writes the start of the resume, and runs nothing.
    pub(super) async fn only_write(
        self,
        store: Arc<dyn Store>,
        args: &ResumeArgs,
        from: Option<ResumeFrom>,
    ) -> Result<Outcome<WorkflowState>, Error> {
        let run = self.run.clone();
        let going = Going { from, then: Then::Stop, again: Vec::new() };
        let (program, options) = self.make(&store, StopHandle::default(), args, going)?;
        let engine = program.equip(Engine::new(store));
        Ok(engine.resume_program(&program, &run, options).await?)
    }

    /// Creates the program alone.
    pub(super) fn program(self, store: &Arc<dyn Store>, args: &ResumeArgs) -> Result<WorkflowProgram, Error> {
        let going = Going { from: None, then: Then::Stop, again: Vec::new() };
        self.make(store, StopHandle::default(), args, going).map(|(program, _)| program)
    }

    /// Returns the line about where the resume continues; `None` if no step is open.
    async fn head(&self, context: &Context, store: &dyn Store, args: &ResumeArgs) -> Option<String> {
        let run = &self.run;
        if args.restart {
            return Some(format!("Run {run} starts over."));
        }
        let snapshot = Snapshot::read(store, run).await.ok()?;
        let names = StepNames::of(&self.chosen.workflow);
        let step = match (&args.from, args.retry.len()) {
            (Some(from), _) => names.plain(from),
            (None, 0) => {
                let plan = self.chosen.plan(store, &snapshot, None, context.now()).await.ok()?;
                let Decision { scope, step, .. } = next_step(&plan)?;
                names.called(scope, step.as_str())
            }
            (None, 1) => return Some(format!("Run {run} retries 1 failed item.")),
            (None, count) => return Some(format!("Run {run} retries {count} failed items.")),
        };
        let done = steps_are_done(store, run, snapshot.entry.summary.summary.progress).await;
        Some(format!("Run {run} continues at step {step}: {done}."))
    }

    fn told(&self, context: &Context, store: &dyn Store, args: &ResumeArgs) -> SessionReport {
        let file = self.chosen.path.as_deref().map(|path| store_location::from_home(store.home(), path));
        SessionReport {
            run: self.run.clone(),
            file: file.as_deref().map(relative_to_here),
            store_words: context.lasting_store_words(),
            until: args.until.clone(),
            report: store.folder(&self.run).map(|folder| folder.join(REPORT)),
        }
    }

    fn make(
        self,
        store: &Arc<dyn Store>,
        stop: StopHandle,
        args: &ResumeArgs,
        going: Going,
    ) -> Result<(WorkflowProgram, ResumeOptions<WorkflowState>), Error> {
        let Self { run, frozen, chosen, local, params, choices, .. } = self;
        let base = bases::folder_of(store.as_ref(), &frozen);
        let on_doubt = OnDoubt::Each(args.answers.clone());
        let options = SessionOptions {
            stop,
            until: environment::until(args.until.as_deref())?,
            retention: frozen.retention,
            ..environment::session_options(&chosen.workflow)
        };
        let program = WorkflowProgram::new(chosen.workflow, local.of_run(run, base, Arc::clone(store)))?;
        if let Some(params) = &params {
            // Refuses secrets in params, as for a new run.
            program.initial_state(params.clone())?;
        }
        let (mut restart, mut edit) = (None, None);
        if args.restart {
            restart = Some(program.initial_state(params.unwrap_or(frozen.params))?);
        } else if let Some(params) = params {
            edit = Some(Edit(Box::new(move |state: &mut WorkflowState| state.set_params(params)) as _));
        }
        let retried = |(scope, item): (ScopePath, Option<Value>)| {
            let again = if item.is_some() { program.item_readers(&scope) } else { Vec::new() };
            (scope, with_item(item, again))
        };
        let mut edit_scopes: Vec<_> = going.again.into_iter().map(retried).collect();
        let (mut on_main, mut below) = (BTreeMap::new(), BTreeMap::<_, BTreeMap<_, _>>::new());
        for ((scope, step), choice) in choices {
            let of_scope = if scope.is_main() { &mut on_main } else { below.entry(scope).or_default() };
            of_scope.insert(step, choice);
        }
        let from = going.from.or((!below.is_empty()).then_some(ResumeFrom::Scopes));
        let with_choices = |(scope, choices)| (scope, EditScope { choices, ..with_item(None, Vec::new()) });
        edit_scopes.extend(below.into_iter().map(with_choices));
        let options = ResumeOptions {
            session: options,
            adopt: chosen.adoption,
            restart,
            edit,
            on_doubt,
            choices: on_main,
            by: (!args.all).then(environment::person),
            edit_scopes,
            from,
            then: going.then,
            retry_tolerated: args.retry_failed,
            ..ResumeOptions::default()
        };
        Ok((program, options))
    }
}

/// Returns the unanswered questions about interrupted steps of all scopes.
async fn open_questions(
    store: &dyn Store,
    run: &RunId,
    args: &ResumeArgs,
    now: Timestamp,
) -> Result<Vec<Decision>, Error> {
    let snapshot = Snapshot::read(store, run).await?;
    let plan = Chosen::in_force(store, &snapshot)?.plan(store, &snapshot, None, now).await?;
    let is_open = |asked: &&Decision| args.answers.about(&asked.scope, &asked.step).is_none();
    Ok(plan.questions().filter(is_open).cloned().collect())
}

/// Returns the edit of a scope with a replacement item, if given; readers of the old item rerun.
fn with_item(item: Option<Value>, again: Vec<StepId>) -> EditScope<WorkflowState> {
    let value = item.clone();
    let edit = move |state: &mut WorkflowState| {
        if let Some(value) = value {
            state.set_item(value);
        }
        Ok(())
    };
    EditScope { edit: Box::new(edit), item, again, choices: BTreeMap::new() }
}

/// Returns the error of a resume with these options and questions. `is_changed`: the resume adopts a changed file.
fn refused(error: Error, args: &ResumeArgs, doubts: &[Doubt], is_changed: bool) -> Error {
    match error {
        Error::Run(RunError::NotEdited { scope, .. }) if args.retry_failed && is_changed => {
            begun_anew(&scope)
        }
        error => error.of_resume(args, doubts),
    }
}

/// Returns why an item cannot be retried: its step restarts after a change.
fn begun_anew(scope: &ScopePath) -> Error {
    let opener = scope.opened_by().map_or_else(|| scope.to_string(), |(step, _)| step.to_string());
    let message =
        format!("cannot combine `--retry-failed` with this change: `{opener}` restarts with all its items");
    Error::usage(message, "omit `--retry-failed`: failed items rerun with all others")
}

/// Returns the first open step of a plan, within a group or an included file the inner step.
fn next_step(plan: &Plan) -> Option<&Decision> {
    let is_open = |decision: &&Decision| !matches!(decision.action, Action::Reuse | Action::Skip);
    let open: Vec<&Decision> = plan.decisions.iter().filter(is_open).collect();
    let mut next = open.iter().find(|decision| decision.scope.is_main())?;
    loop {
        let is_within = |inner: &&&Decision| {
            let opener = inner.scope.opened_by().is_some_and(|(opener, _)| opener == next.step);
            opener && inner.scope.parent().as_ref() == Some(&next.scope)
        };
        let within: Vec<_> = open.iter().filter(is_within).collect();
        match within.as_slice() {
            // Several items are open: the step with the items is named.
            [first, rest @ ..] if rest.iter().all(|other| other.scope == first.scope) => next = first,
            _ => return Some(next),
        }
    }
}

/// Refuses to resume while a secret is missing, or a folder, file or program of a step that will run.
async fn refuse_lacks(
    context: &Context,
    store: &Arc<dyn Store>,
    run: &RunId,
    (frozen, chosen): (&RunRecord, &Chosen),
    args: &ResumeArgs,
) -> Result<(), Error> {
    let secrets = environment::refuse_missing_secrets(&chosen.workflow);
    let base = bases::folder_of(store.as_ref(), frozen);
    let look = |params: &Map<String, Value>, reused: &BTreeSet<StepId>| {
        let runs = |step: &str| !reused.iter().any(|known| known.as_str() == step);
        preflight::lacks_of(&chosen.workflow, params, &base, runs)
    };
    let mut found = look(&frozen.params, &BTreeSet::new());
    if !found.is_empty()
        && !args.restart
        && let Ok(snapshot) = Snapshot::read(store.as_ref(), run).await
    {
        let plan = chosen.plan(store.as_ref(), &snapshot, None, context.now()).await?;
        let rests = |action| matches!(action, Action::Reuse | Action::Recheck | Action::Skip);
        let on_main = plan.decisions.into_iter().filter(|decision| decision.scope.is_main());
        let from = args.from.as_deref().map(|from| from_step(&chosen.workflow, from)).transpose()?;
        let from = from.map(|(scope, step)| opener_on_main(&scope).unwrap_or(step));
        let reruns = |step: &StepId| {
            from.as_ref().is_some_and(|from| chosen.workflow.leads_to(from.as_str(), step.as_str()))
        };
        let reused = on_main
            .filter(|decision| rests(decision.action) && !reruns(&decision.step))
            .map(|decision| decision.step);
        found = look(&current(&snapshot), &reused.collect());
    }
    preflight::refused(secrets.err().into_iter().collect(), &found, None)
}

/// Warns of declared variables with other values than at the creation of the run.
fn report_environment(context: &Context, frozen: &RunRecord, workflow: &Workflow, local: &Local) {
    let now = declared_env(workflow, &local.environment);
    let differs = |(name, digest): (&String, &Option<_>)| {
        let before = frozen.env.get(name)?;
        (before != digest).then(|| format!("`{name}`"))
    };
    let names: Vec<String> = now.iter().filter_map(differs).collect();
    if !names.is_empty() {
        context
            .output
            .warn(&format!("environment variables changed since the run was created: {}", names.join(", ")));
    }
}

/// Parses the step of `--from`: `STEP` of the main scope, or `SCOPE/STEP`.
pub(super) fn from_step(workflow: &Workflow, text: &str) -> Result<(ScopePath, StepId), Error> {
    let StepRef { scope, step } = StepRef::parse(text);
    let Some(step) = step else {
        let hint = format!("name a step in the scope: {text}/STEP");
        return Err(Error::usage(format!("`{text}` is a scope, not a step"), hint));
    };
    match scope.filter(|scope| !scope.is_main()) {
        // Only the run knows the steps of included files.
        Some(scope) => Ok((scope, StepId::new(&step).map_err(Error::from_name)?)),
        None if is_within(workflow, &step) => {
            let around = step.split('/').next().unwrap_or_default();
            let help = "`waypost resume` runs the step when its needs are finished";
            Err(Error::not_found(format!("started scope of step `{around}`"), help))
        }
        None => {
            environment::refuse_unknown_step(workflow, Some(&step))?;
            Ok((ScopePath::main(), StepId::new(&step).map_err(Error::from_name)?))
        }
    }
}

/// Returns whether a path names a step inside another step of the workflow.
fn is_within(workflow: &Workflow, path: &str) -> bool {
    let mut parts = path.split('/').map(|part| part.split([':', '~']).next().unwrap_or_default());
    let mut body = Some(workflow.body());
    let is_path = parts.all(|part| {
        let step = body.and_then(|body| body.steps().iter().find(|step| step.id == part));
        body = step.and_then(|step| step.work.body());
        step.is_some()
    });
    is_path && path.contains('/')
}
