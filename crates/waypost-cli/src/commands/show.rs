//! `waypost show`: the state of a run, now or at a checkpoint. Derived from one position and the effective
//! history.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use waypost::engine::Snapshot;
use waypost::evidence::shown_value;
use waypost::record::{Failure, Flaw, Phase, Record, RunStatus, Usage, Verdict, WaitKind};
use waypost::shape::{Shape, Unfinished};
use waypost::store::{Damage, Progress, QueuedJob, Signal, Store, StoreExt as _, TaskState};
use waypost::{CheckpointRef, RunId, ScopePath, StepId};
use waypost_workflow::file::{Work, Workflow};
use waypost_workflow::program::log_name;

use super::{Context, checkpoints};
use crate::cli::ShowArgs;
use crate::error::Error;
use crate::exit::{Exit, exit_of};
use crate::format::{exit_code, size, text, time};
use crate::output::{Output, is_empty, log_lines, shown};
use crate::run::current_evidence::undecided_steps;
use crate::run::dead_letters;
use crate::run::definition::{path_in_force, resume_line, shape_in_force, workflow_in_force};
use crate::run::doubt::doubts_of;
use crate::run::failed_item::FailedStep;
use crate::run::hooks;
use crate::run::idle_times::IdleTimes;
use crate::run::params;
use crate::run::progress::in_words;
use crate::run::reference::{Default, Reference, StepRef, encode, find, no_step};
use crate::run::run_status;
use crate::run::unfinished_undo;
use crate::session::failed_items;
use crate::store_location;
use crate::view::FailedItem;
use crate::view::doubt::{Doubt, questions};
use crate::view::step_names::{self, StepNames};
use crate::view::step_of;
use crate::view::{
    CauseView, ClaimView, FailureView, ItemsView, QueueView, ShowView, StepStatus, StepView, TaskView,
    VERSION, WaitView,
};

use items::{ItemPage, Opener};
use steps::Scope;
use totals::Totals;

mod items;
mod steps;
mod totals;
pub(crate) mod waits;

/// Longest value of an output or param in a table; JSON and `--step` show the full value.
const VALUE_CHARACTERS_MAX: usize = 40;

/// Most decisions about steps of ended groups and items on a screen: the steps of the table stay in view.
const SETTLED_MAX: usize = 10;

pub(crate) async fn show(context: &Context, mut args: ShowArgs) -> Result<Exit, Error> {
    let reference = args.run.as_deref().map(Reference::parse).transpose()?;
    let store = context.store(None, store_location::Access::Read)?;
    let (run, at) = match reference {
        Some(reference) => reference.locate(store.as_ref(), Default::Newest).await?,
        None => (find(store.as_ref(), None, Default::Newest).await?, None),
    };
    encode(store.as_ref(), &run, &mut args.step).await?;
    let named = args.step.as_deref().map(StepRef::parse);
    let also = named.as_ref().and_then(|named| named.scope.as_ref());
    let shown = Shown::read(store.as_ref(), &run, at, also).await?;
    let mut view = shown.view(store.as_ref()).await?;
    if view.status == RunStatus::InDoubt && shown.at.is_none() {
        recheck(&store, &shown.snapshot, &mut view).await?;
    }
    if let Some(named) = &named {
        view.steps.retain(|view| ScopePath::new(&view.scope).is_ok_and(|scope| named.is(&scope, &view.id)));
        if view.steps.is_empty() {
            return Err(no_step(store.as_ref(), &run, named).await?);
        }
        let live = view.status == RunStatus::Running;
        let of_now = shown.at.is_none().then_some(view.steps.as_slice());
        if let Some([step]) = of_now {
            let opener = Opener { step, live, idle: shown.idle_times(), shape: shown.shape() };
            let ItemPage { items, next } = ItemPage::read(store.as_ref(), &run, &opener, &args.items).await?;
            (view.items, view.next) = (items, next);
        }
    }
    if context.output.json {
        // Screens mark answered questions.
        view.waiting
            .retain(|wait| shown.at.is_some() || wait.on != WaitKind::Answer || !shown.is_given(wait));
        context.output.document(&view)?;
    } else if args.step.is_some() {
        let mut text = steps_in_full(context, &view);
        let within = match (view.steps.as_slice(), &shown.at) {
            ([step], None) => steps_within(store.as_ref(), &run, step).await?,
            _ => Vec::new(),
        };
        if !within.is_empty() {
            text.push_str(&format!("\n{}\n", step_table(context, &within)));
        } else if !view.items.is_empty() {
            text.push_str(&format!("\n{}", items::table(context, &view, &args.items)));
        }
        if view.status == RunStatus::InDoubt && shown.at.is_none() {
            let mut doubts = doubts_of(store.as_ref(), &shown.snapshot, context.now()).await?;
            doubts.retain(|doubt| view.steps.iter().any(|step| doubt.is_within(&step.called)));
            let line = format!("waypost resume {run}{}", context.store_words());
            if !doubts.is_empty() {
                text.push_str(&format!("\n{}\n", questions(&line, &doubts)));
            }
        }
        context.output.sentences(&text)?;
        if let Some(status) = args.items.status.filter(|_| view.items.is_empty()) {
            let name = StepStatus::from(status).name();
            context.output.note(&format!("Nothing to list, because no further item is {name}."));
        }
    } else {
        let doubts = match view.status {
            RunStatus::InDoubt => doubts_of(store.as_ref(), &shown.snapshot, context.now()).await?,
            _ => Vec::new(),
        };
        let mut text = summary(context, &view, &shown, &doubts);
        let workflow = workflow_in_force(&shown.snapshot).filter(|_| shown.at.is_none());
        if let Some(workflow) = workflow.filter(|_| view.status == RunStatus::CompletedWithFailures) {
            let items =
                failed_items(store.as_ref(), &workflow, &run, (&context.store_words(), |at| !at.is_main()))
                    .await?;
            text.push_str(&items);
            text.push_str(if items.is_empty() { "" } else { "\n" });
        }
        context.output.sentences(&text)?;
    }
    if let Some(text) = unfinished_undo::warning(&shown.snapshot).filter(|_| shown.at.is_none()) {
        context.output.warn(&context.with_store(&text));
    }
    for damage in shown.snapshot.damaged() {
        let at = crate::run::reference::damaged_reference(&run, damage);
        let what = if damage.flaw == Flaw::Missing { "missing" } else { "damaged" };
        let text =
            format!("checkpoint {at} is {what}, an older one is used; `waypost verify {run}` shows details");
        context.output.warn(&context.with_store(&text));
    }
    for damage in shown.damaged_before() {
        context.warn_of_damage(damage);
    }
    if shown.at.is_some() && shown.scopes.iter().any(Scope::is_without_state) {
        context.output.note(
            "The state of this checkpoint was dropped by retention: the steps are shown from record \
             headers only.",
        );
    }
    if let Some(logged) = &shown.lost {
        let text = format!(
            "checkpoint {logged} is in the event log, but not in the store; `waypost verify {run}` shows \
             details"
        );
        context.output.warn(&context.with_store(&text));
    }
    Ok(Exit::Done)
}

/// Returns the steps of a group, an included file or a hook of the run; none of other steps.
async fn steps_within(store: &dyn Store, run: &RunId, step: &StepView) -> Result<Vec<StepView>, Error> {
    for scope in store.scopes(run).await? {
        let is_below = scope.parent().is_some_and(|above| above.as_str() == step.scope);
        if is_below && scope.opened_by().is_some_and(|(opener, _)| opener.as_str() == step.id) {
            let shown = Shown::read(store, run, None, Some(&scope)).await?;
            let mut steps = shown.view(store).await?.steps;
            let within = format!("{}/", step.called);
            steps.retain(|inner| {
                inner.scope == scope.as_str() && inner.called == format!("{within}{}", inner.id)
            });
            return Ok(steps);
        }
    }
    Ok(Vec::new())
}

/// Returns the present state of a run.
pub(super) async fn view_of(store: &dyn Store, run: &RunId) -> Result<ShowView, Error> {
    Shown::read(store, run, None, None).await?.view(store).await
}

/// The shown position, and its history.
struct Shown {
    snapshot: Snapshot,
    scopes: Vec<Scope>,
    /// The requested checkpoint; `None` for the present state.
    at: Option<Record>,
    /// Damaged records of child scopes that are not among `snapshot`.
    damaged_items: Vec<Damage>,
    /// The last checkpoint in the log, if the store lacks this checkpoint.
    lost: Option<CheckpointRef>,
    /// Pending signals of the run.
    given: Vec<Signal>,
}

/// Returns the size of the log of a running step.
fn running_log(store: &dyn Store, run: &RunId, step: &StepView) -> Option<u64> {
    let at = step.running.as_ref().filter(|_| step.status == StepStatus::Running)?;
    let (scope, id) = (ScopePath::new(&step.scope).ok()?, StepId::new(&step.id).ok()?);
    let path = store.folder(run)?.join(log_name(&scope, &id, at));
    std::fs::symlink_metadata(path).ok().map(|file| file.len())
}

/// Returns the first failed item of a step beyond its failure limits.
async fn failed_item(
    store: &dyn Store,
    run: &RunId,
    workflow: Option<&Workflow>,
    step: &StepView,
) -> Result<Option<FailedItem>, Error> {
    let Some(error) = step.error.as_ref().filter(|_| step.status == StepStatus::Failed) else {
        return Ok(None);
    };
    match (ScopePath::new(&step.scope), StepId::new(&step.id)) {
        (Ok(scope), Ok(step)) => {
            let kind = error.kind;
            FailedStep { store, run, workflow, scope: &scope, step: &step, kind }.first_item().await
        }
        _ => Ok(None),
    }
}

/// Returns the newest records of ended hooks after the last attempt of a shown step.
async fn hooks_of(
    store: &dyn Store,
    run: &RunId,
    shape: &Shape,
    shown: &[Scope],
) -> Result<Vec<Record>, Error> {
    let with_hooks = |scope: &Scope| {
        let own = shape.of_scope(&scope.name).map(Shape::steps).unwrap_or_default();
        own.iter().any(|step| step.hooks.is_some())
    };
    if !shown.iter().any(with_hooks) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for name in store.scopes(run).await? {
        let above = name.parent().and_then(|above| shown.iter().find(|scope| scope.name == above));
        let Some((above, opener)) = above.zip(hooks::opener(shape, &name)) else { continue };
        let opened = above.opened_after(opener);
        if opened.is_none() || shown.iter().any(|scope| scope.name == name) {
            continue;
        }
        let newest = store.newest(run, &name).await?;
        if newest.position().is_ok_and(|position| position.origin == opened) {
            found.push(newest);
        }
    }
    Ok(found)
}

/// Shows a run in doubt as interrupted if a resume asks nothing: the evidence of the cut steps holds.
async fn recheck(store: &Arc<dyn Store>, snapshot: &Snapshot, view: &mut ShowView) -> Result<(), Error> {
    if !shape_in_force(snapshot).is_some_and(|shape| shape.has_evidence()) {
        return Ok(());
    }
    let Some(undecided) = undecided_steps(store, snapshot).await? else { return Ok(()) };
    let is_asked = |step: &StepView| {
        undecided.iter().any(|(scope, id)| scope.as_str() == step.scope && id.as_str() == step.id)
    };
    let mut in_doubt = view.steps.iter_mut().filter(|step| step.status == StepStatus::InDoubt).peekable();
    if in_doubt.peek().is_some() && undecided.is_empty() {
        view.status = RunStatus::Interrupted;
    }
    in_doubt.filter(|step| !is_asked(step)).for_each(|step| step.status = StepStatus::Cut);
    Ok(())
}

impl Shown {
    /// Reads the data; `also` names an ended scope to show.
    async fn read(
        store: &dyn Store,
        run: &RunId,
        at: Option<(ScopePath, u64)>,
        also: Option<&ScopePath>,
    ) -> Result<Self, Error> {
        let mut snapshot = Snapshot::read(store, run).await?;
        run_status::correct_snapshot(store, &mut snapshot);
        let mut records = Vec::new();
        let mut asked = None;
        match at {
            Some((scope, seq)) => {
                let record = store.load(run, &scope, seq).await?;
                records.push(record.clone());
                asked = Some(record);
            }
            None => records
                .extend(snapshot.heads.iter().map(|head| head.record.clone()).chain(snapshot.ended.clone())),
        }
        if let Some(scope) = also.filter(|scope| records.iter().all(|at| at.header().scope != **scope))
            && store.scopes(run).await?.contains(scope)
        {
            records.push(store.newest(run, scope).await?);
        }
        let mut scopes = Vec::with_capacity(records.len());
        for record in records {
            scopes.push(Scope::read(store, record, also).await?);
        }
        if asked.is_none()
            && let Some(shape) = shape_in_force(&snapshot)
        {
            let ended = hooks_of(store, run, &shape, &scopes).await?;
            for record in ended {
                scopes.push(Scope { is_hook: true, ..Scope::read(store, record, also).await? });
            }
            // The main scope comes first: its steps show why a run stopped.
            scopes.sort_by_key(|scope| !scope.name.is_main());
        }
        let damaged_items = match asked {
            None => run_status::damaged_items(store, &snapshot).await?,
            Some(_) => Vec::new(),
        };
        let lost = run_status::logged_and_lost(store, &snapshot).await;
        let given = store.signals(run).await?;
        Ok(Self { snapshot, scopes, at: asked, damaged_items, lost, given })
    }

    /// Returns the params at the shown position.
    fn params(&self) -> Map<String, Value> {
        let at =
            self.at.as_ref().filter(|record| record.header().scope.is_main()).and_then(params::of_record);
        at.unwrap_or_else(|| params::current(&self.snapshot))
    }

    /// Returns the idle times of the run, by the shown records of the main scope.
    fn idle_times(&self) -> IdleTimes {
        let main = self.scopes.iter().filter(|scope| scope.name.is_main());
        IdleTimes::of(main.flat_map(|scope| &scope.history.records).map(Record::header))
    }

    /// Returns the damage in the shown history, without newer records.
    fn damaged_before(&self) -> impl Iterator<Item = &Damage> {
        let of_scopes = self.scopes.iter().flat_map(|scope| &scope.history.damaged);
        let is_other = |damage: &&Damage| self.at.is_some() || damage.scope.is_main();
        of_scopes.filter(is_other).chain(&self.damaged_items)
    }

    /// Returns whether a resume would continue the run.
    fn goes_on(&self) -> bool {
        let missing = self.snapshot.damaged().any(|damage| damage.flaw == Flaw::Missing);
        self.at.is_none() && !missing && self.lost.is_none() && self.snapshot.status().is_resumable()
    }

    /// Returns the shape of the run's copy of the workflow, if any.
    fn shape(&self) -> Option<Shape> {
        shape_in_force(&self.snapshot)
    }

    /// Returns the status of the run, or its status at the requested checkpoint as if the run had ended
    /// there.
    fn status(&self) -> RunStatus {
        match &self.at {
            Some(record) => record.header().status.unwrap_or(RunStatus::Interrupted),
            None => self.snapshot.status(),
        }
    }

    /// Returns the progress of the run, or its progress at the requested checkpoint; `steps` are shown as of
    /// then.
    fn progress(&self, steps: &[StepView]) -> Progress {
        let at = self.at.as_ref().filter(|record| record.header().scope.is_main());
        let Some((shape, record)) = self.shape().zip(at) else {
            return self.snapshot.entry.summary.summary.progress;
        };
        if let Ok(position) = record.position() {
            return Unfinished::of(&shape, &position).progress(&shape, &position);
        }
        // Retention dropped the state.
        let is_counted = |step: &&StepView| shape.step(&step.id).is_some_and(|step| !step.is_for_hooks);
        let done = steps.iter().filter(is_counted).filter(|step| step.is_finished()).count() as u64;
        Progress { done, total: shape.counted() }
    }

    /// Returns the step whose failure stops the run; of several, the one shown by `list`. Tolerated failures
    /// are excluded.
    fn failed<'a>(&self, steps: &'a [StepView]) -> Option<&'a StepView> {
        let listed = self.snapshot.entry.summary.summary.step.as_deref().filter(|_| self.at.is_none());
        let mut failed = steps.iter().filter(|step| step.holds_up);
        let first = failed.clone().next();
        let is_listed = |step: &&StepView| match listed.and_then(|listed| listed.rsplit_once('/')) {
            Some((scope, id)) => step.scope == scope && step.id == id,
            None => Some(step.id.as_str()) == listed,
        };
        failed.find(is_listed).or(first)
    }

    async fn view(&self, store: &dyn Store) -> Result<ShowView, Error> {
        let frozen = self.snapshot.entry.record.record();
        let live = self.at.is_none() && self.snapshot.status() == RunStatus::Running;
        let shape = self.shape();
        let mut steps = Vec::new();
        let mut waiting = Vec::new();
        let workflow = workflow_in_force(&self.snapshot);
        for scope in &self.scopes {
            let known: &[_] = if scope.name.is_main() { &self.snapshot.definition.steps } else { &[] };
            steps.extend(scope.steps(known.iter().map(|print| &print.id), live, shape.as_ref()));
            let position = scope.position().unwrap_or_default();
            for entry in &position.frontier {
                let since = scope.time_of(entry.since);
                let waits = WaitView::of_entry(&scope.name, entry, workflow.as_ref());
                waiting.extend(waits.map(|wait| WaitView { since, ..wait }));
            }
        }
        let idle = self.idle_times();
        for step in &mut steps {
            let scope = ScopePath::new(&step.scope).ok();
            step.called = scope.as_ref().map_or_else(
                || step.id.clone(),
                |scope| step_names::called(workflow.as_ref(), scope, &step.id),
            );
            let found = workflow.as_ref().zip(scope);
            let found = found.and_then(|(workflow, scope)| step_of(workflow, &scope, &step.id));
            step.name = found.and_then(|step| step.name.clone());
            step.repeats = found.is_some_and(|step| step.repeat.is_some());
            if found
                .is_some_and(|step| matches!(step.work, Work::Approve(_) | Work::Sleep(_) | Work::Wait(_)))
            {
                // The start after the wait is not a second attempt.
                step.attempts = step.attempts.min(1);
            }
            let end = step.ended_at.or_else(|| (step.status == StepStatus::Running).then(time::now));
            // A step skipped after a failed attempt has no duration.
            let end = end.filter(|_| step.status != StepStatus::Skipped);
            step.duration_ms = step.started_at.zip(end).and_then(|(start, end)| idle.work_ms(start, end));
            step.log_bytes =
                step.log.as_ref().map(|log| log.bytes).or_else(|| running_log(store, &frozen.run, step));
            if let Some(items) =
                step.items.as_mut().filter(|items| self.at.is_none() && items.failed > Some(0))
            {
                let of_step = |above: &ScopePath, each: &StepId| {
                    above.as_str() == step.scope && each.as_str() == step.id
                };
                items.dropped = dead_letters::dropped(store, &frozen.run, &of_step).await? as u64;
            }
            step.failed_item = failed_item(store, &frozen.run, workflow.as_ref(), step).await?;
        }
        let checkpoint = match &self.at {
            Some(record) => Some(checkpoints::checked(store, record).await?),
            None => None,
        };
        let totals = match self.at {
            None => Totals::read(store, &frozen.run, &self.scopes).await?,
            Some(_) => Totals::default(),
        };
        let usage = match self.at {
            None => Some(totals.usage).filter(|usage| *usage != Usage::default()),
            Some(_) => sum(steps.iter().filter_map(|step| step.usage.as_ref())),
        };
        let failed = self.failed(&steps);
        let parent = frozen.parent.as_ref().map(|parent| {
            CheckpointRef { run: parent.run.clone(), scope: parent.scope.clone(), seq: parent.seq }
                .to_string()
        });
        let called = |((scope, step), settled): ((ScopePath, String), String)| {
            (step_names::called(workflow.as_ref(), &scope, &step), settled)
        };
        Ok(ShowView {
            settled_within: totals.settled.into_iter().map(called).collect(),
            v: VERSION,
            names: workflow.as_ref().map(StepNames::of).unwrap_or_default(),
            run: frozen.run.to_string(),
            checkpoint,
            workflow: frozen.workflow.clone(),
            path: path_in_force(frozen, &self.snapshot.definition)
                .map(|path| store_location::from_home(store.home(), path).display().to_string()),
            status: self.status(),
            params: self.params(),
            usage,
            failed_step: failed.map(|step| step.id.clone()),
            error: failed.and_then(|step| step.error.clone()),
            steps,
            parent,
            waiting,
            queue: queue_of(store, &frozen.run).await?,
            items: Vec::new(),
            next: None,
            damaged: self
                .snapshot
                .damaged()
                .chain(self.damaged_before())
                .map(|damage| crate::run::reference::damaged_reference(&damage.run, damage).to_string())
                .collect(),
        })
    }
}

impl From<&Failure> for FailureView {
    fn from(failure: &Failure) -> Self {
        let mut chain = failure.error.iter().cloned();
        Self {
            kind: failure.kind,
            message: chain.next().unwrap_or_default(),
            causes: chain.collect(),
            exit_code: failure.ending.exit_code,
        }
    }
}

/// Sums the usage of the shown steps.
fn sum<'a>(usages: impl Iterator<Item = &'a Usage>) -> Option<Usage> {
    usages.fold(None, |sum: Option<Usage>, usage| {
        let mut sum = sum.unwrap_or_default();
        sum += usage;
        Some(sum)
    })
}

/// Returns the place of a run in the queue.
async fn queue_of(store: &dyn Store, run: &RunId) -> Result<Option<QueueView>, Error> {
    let Some(queue) = store.queue() else { return Ok(None) };
    let Some(QueuedJob { job, is_ready: ready, missing }) = queue.job(run).await? else { return Ok(None) };
    let (priority, not_before) = (job.priority, job.not_before);
    let (missing, since) = missing.filter(|_| ready).unzip();
    let states = queue.tasks().task_states(run).await?;
    let tasks = states.into_iter().filter_map(|task| {
        let (worker, missing) = match task.state {
            TaskState::Waiting(missing) => (None, missing),
            TaskState::Claimed(holder) => (Some(holder.to_string()), None),
            TaskState::Ended(_) | TaskState::Lost => return None,
        };
        Some(TaskView { step: task.step, worker, missing })
    });
    Ok(Some(QueueView { ready, priority, not_before, missing, since, tasks: tasks.collect() }))
}

fn place_in_queue(queue: &QueueView) -> String {
    match (&queue.missing, queue.since, queue.not_before) {
        (Some(missing), Some(since), _) => {
            format!("no worker has {missing}, since {}", time::utc(since))
        }
        (_, _, Some(not_before)) if queue.ready => format!("not before {}", time::utc(not_before)),
        _ if queue.ready => "waits for a worker".to_owned(),
        _ => String::new(),
    }
}

/// Most steps of other workers in the text; `--json` has all of them.
const TASKS_MAX: usize = 10;

/// Formats the steps of other workers: those that run first.
fn tasks_text(tasks: &[TaskView]) -> String {
    let mut text = String::new();
    let (running, waiting): (Vec<_>, Vec<_>) = tasks.iter().partition(|task| task.worker.is_some());
    for task in running.iter().chain(&waiting).take(TASKS_MAX) {
        let place = match (&task.worker, &task.missing) {
            (Some(worker), _) => format!("runs in {worker}"),
            (None, Some(missing)) => format!("waits for a worker; the last one lacked {missing}"),
            (None, None) => "waits for a worker".to_owned(),
        };
        let _ = writeln!(text, "Step {}: {place}", shown(&task.step));
    }
    if tasks.len() > TASKS_MAX {
        let more = tasks.len() - TASKS_MAX;
        let _ = writeln!(text, "{more} more steps of other workers: `show --json` lists all");
    }
    text
}

fn summary(context: &Context, view: &ShowView, facts: &Shown, doubts: &[Doubt]) -> String {
    let output = &context.output;
    let entry = &facts.snapshot.entry;
    let frozen = entry.record.record();
    let progress = facts.progress(&view.steps);
    let changed = facts.at.as_ref().map_or(entry.summary.updated_at, |record| record.header().created_at);
    let mut text = format!("{}  {}\n", output.paint.bold(&view.run), painted(output, view.status));
    let mut fact = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "  {name:<11} {}", output.wrapped(&shown(value), 14, 14));
        }
    };
    if let Some(checkpoint) = &view.checkpoint {
        fact("checkpoint", &view.names.plain(&checkpoint.reference));
    }
    fact("workflow", &view.workflow);
    fact("file", view.path.as_deref().unwrap_or_default());
    fact("steps", &in_words(progress, view.skipped(), "done"));
    let since = |at| format!("{} ({})", time::utc(at), time::ago(at, context.now()));
    fact("started", &since(frozen.created_at));
    fact("changed", &since(changed));
    if let Some(until) = run_status::waits_until(&entry.summary).filter(|_| facts.at.is_none()) {
        fact("waits until", &time::utc(until));
    }
    fact("checkpoints", &format!("{} ({} bytes)", entry.summary.checkpoints, entry.summary.bytes));
    // A worker reports the limit in its own log alone.
    if let (RunStatus::Interrupted, Phase::Interrupted { by, .. }) =
        (view.status, &facts.snapshot.newest().header().phase)
        && exit_of(by) == Exit::Timeout
    {
        fact("stopped by", by);
    }
    if let Some(holder) = &entry.summary.holder {
        fact("held by", &holder.to_string());
    }
    if entry.summary.summary.lost > 0 {
        fact(
            "lost",
            &format!(
                "{} checkpoints could not be written, within the tolerated failures",
                entry.summary.summary.lost
            ),
        );
    }
    if frozen.durability == waypost::record::Durability::Async {
        fact("durability", "async: a power cut may lose the last seconds");
    }
    if let Some(queue) = &view.queue {
        fact("queue", &place_in_queue(queue));
    }
    fact("params", &pairs(&view.params));
    fact("usage", &view.usage.as_ref().map(text::tokens_and_cost).unwrap_or_default());
    let labels = frozen.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
    fact("labels", &labels.join(", "));
    fact("parent", view.parent.as_deref().unwrap_or_default());
    text.push('\n');
    text.push_str(&step_table(context, &view.steps));
    text.push('\n');
    if let Some(queue) =
        view.queue.as_ref().filter(|_| matches!(view.status, RunStatus::Running | RunStatus::InDoubt))
    {
        text.push_str(&tasks_text(&queue.tasks));
    }
    for (step, settled) in view.steps.iter().filter_map(|step| Some((step, step.settled.as_ref()?))) {
        let _ = writeln!(text, "Step {}: {}", step.called, shown(settled));
    }
    for (step, settled) in view.settled_within.iter().take(SETTLED_MAX) {
        let _ = writeln!(text, "Step {step}: {}", shown(settled));
    }
    if view.settled_within.len() > SETTLED_MAX {
        let more = view.settled_within.len() - SETTLED_MAX;
        let _ = writeln!(
            text,
            "{more} more decisions about steps: `waypost why RUN STEP` shows the decision about a step"
        );
    }
    for (step, at) in view.steps.iter().filter_map(|step| Some((step, step.next_try?))) {
        let _ = writeln!(text, "Step {}: next try at {}", step.called, time::utc(at));
    }
    for step in view.steps.iter().filter(|step| step.status == StepStatus::Failed) {
        let _ = write!(text, "\n{}", failure(context, view, step));
    }
    if !view.waiting.is_empty() {
        text.push('\n');
        let words = context.store_words();
        for wait in &view.waiting {
            let _ = writeln!(
                text,
                "{}",
                crate::output::waits::wait_text(&view.run, wait, facts.is_given(wait), &words)
            );
        }
    }
    let undoing = unfinished_undo::command(&facts.snapshot).filter(|_| facts.at.is_none());
    if let Some(line) = undoing.filter(|_| view.status != RunStatus::Running) {
        let words = context.store_words();
        let _ = write!(text, "\nThe undo of its steps is not finished. Continue with: {line}{words}\n");
    } else if view.status == RunStatus::InDoubt {
        let line = format!("waypost resume {}{}", view.run, context.store_words());
        let _ = write!(text, "\n{}\n", questions(&line, doubts));
    } else if facts.goes_on() && facts.has_something_to_do(&view.waiting, context.now()) {
        let _ = write!(text, "\n{}\n", resume_line(frozen, &context.store_words()));
    }
    text
}

/// Formats a claim with its verdict; a failed one with expectation and finding.
fn claim_text(claim: &ClaimView) -> String {
    let title = claim.name.clone().unwrap_or_else(|| format!("{} {}", claim.kind, claim.subject));
    let mut text = format!("{} {title}", claim.verdict.name());
    if claim.verdict == Verdict::Ok || claim.verdict == Verdict::Skipped {
        return text;
    }
    let expected = Some(&claim.expected).filter(|value| !value.is_null()).map(shown_value);
    if let Some(expected) = expected.filter(|text| !text.is_empty() && claim.verdict == Verdict::Failed) {
        text.push_str(&format!(": expected {expected}"));
    }
    if !claim.found.is_null() {
        text.push_str(&format!(", found {}", shown_value(&claim.found)));
    }
    if let Some(error) = &claim.error {
        text.push_str(&format!(": {error}"));
    }
    text
}

fn painted(output: &Output, status: RunStatus) -> String {
    let paint = output.paint;
    match status {
        RunStatus::Completed => paint.green(status.name()),
        RunStatus::Failed | RunStatus::InDoubt => paint.red(status.name()),
        RunStatus::Interrupted | RunStatus::Waiting | RunStatus::CompletedWithFailures => {
            paint.yellow(status.name())
        }
        RunStatus::Running | RunStatus::Queued | RunStatus::Cancelled => paint.cyan(status.name()),
    }
}

fn step_table(context: &Context, steps: &[StepView]) -> String {
    let row = |step: &StepView| {
        vec![
            match &step.name {
                Some(name) => format!("{} ({})", step.called, shown(name)),
                None => step.called.clone(),
            },
            step.status.name().to_owned(),
            if step.attempts > 1 { step.attempts.to_string() } else { String::new() },
            step.exit_code.map(|code| code.to_string()).unwrap_or_default(),
            took(step).unwrap_or_default(),
            step.log_bytes.map(size::shown).unwrap_or_default(),
            step.items.map_or_else(|| pairs(&step.outputs), ItemsView::told),
        ]
    };
    let rows: Vec<Vec<String>> = steps.iter().map(row).collect();
    let heads = ["STEP", "STATUS", "ATTEMPTS", "EXIT", "TOOK", "LOG", "OUTPUTS"];
    context.output.table(&heads, &rows)
}

/// Returns the time of work on a step, without idle times; of a running step, since its start.
fn took(step: &StepView) -> Option<String> {
    step.duration_ms.map(|millis| time::lasted(Duration::from_millis(millis)))
}

fn pairs(values: &Map<String, Value>) -> String {
    let pair = |(name, value): (&String, &Value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        format!("{name}={}", clipped(&text))
    };
    values.iter().filter(|(_, value)| !is_empty(value)).map(pair).collect::<Vec<_>>().join(", ")
}

fn clipped(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut clipped: String = line.chars().take(VALUE_CHARACTERS_MAX).collect();
    if clipped.len() < text.trim_end_matches('\n').len() {
        clipped.push_str("...");
    }
    clipped
}

/// Formats why a step failed: the error with causes, and the end of the log.
pub(super) fn failure(context: &Context, view: &ShowView, step: &StepView) -> String {
    let output = &context.output;
    let Some(error) = &step.error else { return String::new() };
    let headline = match step.holds_up {
        true => output.paint.red(&format!("step {} failed:", step.called)),
        false => output.paint.yellow(&format!("step {} failed, tolerated by the workflow:", step.called)),
    };
    let mut text = format!("{headline} {}\n", shown(&view.names.plain(&error.message)));
    for cause in &error.causes {
        let _ = writeln!(text, "  cause: {}", shown(&view.names.plain(cause)));
    }
    if let Some(log) = step.log.as_ref().filter(|log| !log.tail.is_empty()) {
        for line in log_lines(&log.tail) {
            let _ = writeln!(text, "  {} {line}", output.paint.dim("|"));
        }
    }
    if let Some(meaning) = error.exit_code.and_then(exit_code::meaning) {
        let _ = writeln!(text, "  {} {}", output.paint.cyan("hint:"), shown(&meaning));
    }
    if let Some(item) = &step.failed_item {
        text.push_str(&item.told(output.paint, &view.run, &context.store_words()));
    }
    text
}

fn steps_in_full(context: &Context, view: &ShowView) -> String {
    let output = &context.output;
    let mut text = String::new();
    for step in &view.steps {
        let name = step.name.as_ref().map(|name| format!(" ({})", shown(name))).unwrap_or_default();
        let _ = writeln!(text, "{}{name}  {}", output.paint.bold(&step.called), step.status.name());
        let mut fact = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                let lines = value.lines().map(|line| output.wrapped(&shown(line), 11, 11));
                let _ = writeln!(text, "  {name:<8} {}", lines.collect::<Vec<_>>().join("\n           "));
            }
        };
        let skipped = step.skipped.as_ref().filter(|_| step.status == StepStatus::Skipped);
        fact("because", skipped.map(|cause| CauseView::from(cause).text));
        fact("attempts", Some(step.attempts.to_string()));
        fact("exit", step.exit_code.map(|code| code.to_string()));
        fact("started", step.started_at.map(time::utc));
        fact("ended", step.ended_at.map(time::utc));
        fact("took", took(step));
        fact("next try", step.next_try.map(time::utc));
        fact("settled", step.settled.clone());
        fact("command", step.command.clone());
        for (name, value) in &step.outputs {
            fact(
                "output",
                Some(format!(
                    "{name}={}",
                    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
                )),
            );
        }
        for claim in &step.evidence {
            fact("evidence", Some(claim_text(claim)));
        }
        fact("log", step.log_bytes.map(size::shown));
        text.push_str(&failure(context, view, step));
    }
    text
}
