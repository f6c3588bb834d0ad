//! `waypost rollback`, `waypost fork` and `waypost diff`: rolls back a run, forks a new run, and compares
//! checkpoints.

use std::sync::Arc;

use serde_json::Value;
use waypost::engine::{ResumeFrom, RunError, Snapshot, StopLevel};
use waypost::folder::REPORT;
use waypost::plan::{Cause, Decision};
use waypost::record::{Reason, Record, RunRecord, RunStatus};
use waypost::store::{Store, StoreExt as _};
use waypost::{CheckpointRef, Clock as _, RunId, ScopePath, SystemClock};
use waypost_workflow::program::{WorkflowProgram, declared_env};

use super::Context;
use super::checkpoints::has_lost_state;
use super::from_checkpoint::{Params, id_of, report_pending};
use super::resume::{Prepared, from_step, is_over, refuse_unknown_scope, requeue};
use super::stop::not_claimed;
use crate::cli::{ForkArgs, ResumeArgs, RollbackArgs, RollbackTo};
use crate::error::Error;
use crate::exit::Exit;
use crate::format::text::quoted;
use crate::output::shown;
use crate::run::bases;
use crate::run::current_evidence;
use crate::run::definition::{Chosen, definition_at, names, names_of, of_fork, opener_on_main};
use crate::run::environment::{self, Local};
use crate::run::needs;
use crate::run::params::{Begin, BegunWork, ReadParam, current};
use crate::run::progress::steps_are_done;
use crate::run::reference::{Default as Meant, Reference, encode, step_on};
use crate::session::{Session, SessionReport};
use crate::store_location::{self, Access, recorded_path};
use crate::view::step_names::StepNames;
use crate::view::{RolledBackView, VERSION};

pub(crate) async fn rollback(context: &Context, args: RollbackArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Write)?;
    let (run, checkpoint) = Reference::parse(&args.checkpoint)?.locate(store.as_ref(), Meant::Only).await?;
    let (scope, seq) = match (args.to, checkpoint) {
        (Some(RollbackTo::Verified), None) => match verified(&store, &run).await? {
            Some(seq) => (ScopePath::main(), seq),
            None => return nothing_to_undo(context, store.as_ref(), &run).await,
        },
        (Some(_), Some(_)) => {
            return Err(Error::usage(
                format!("cannot use `--to` with checkpoint `{}`", args.checkpoint),
                format!("`waypost rollback {run} --to verified`, or omit `--to`"),
            ));
        }
        (None, Some(checkpoint)) => checkpoint,
        (None, None) => {
            return Err(Error::usage(
                format!("`{}` does not name a checkpoint", args.checkpoint),
                format!("name {run}@SEQ; `waypost checkpoints {run}` lists the checkpoints"),
            ));
        }
    };
    // Check that the checkpoint exists before anything is locked.
    let target = store.load(&run, &scope, seq).await?;
    let names = names(store.as_ref(), &run).await;
    on_main(&names, &target.header().reference(), "cannot roll back to", || to_scope(&target, &names))?;
    refuse_without_state(&target)?;
    refuse_unverified(&store, &target, args.redo).await?;
    let undone = match args.undo_steps {
        true => Some(super::undo::undo_after(context, &store, &run, seq).await?),
        false => None,
    };
    let resume = ResumeArgs { run: Some(run.to_string()), keep_definition: true, ..ResumeArgs::default() };
    let before = Snapshot::read(store.as_ref(), &run).await?;
    let mut prepared = Prepared::to_write(context, &store, &run).await?;
    prepared.chosen = Chosen::at(&store, &before, &target).await?;
    let newest = store.newest(&run, &scope).await?;
    if newest.header().reason == Reason::Rollback && newest.header().basis == Some(seq) {
        return stands_there(context, &store, &newest, seq).await;
    }
    let outcome = prepared.only_write(Arc::clone(&store), &resume, Some(ResumeFrom::Checkpoint(seq))).await?;
    let to = CheckpointRef { run: run.clone(), scope, seq }.to_string();
    let at = CheckpointRef { run: run.clone(), scope: ScopePath::main(), seq: outcome.at }.to_string();
    let snapshot = Snapshot::read(store.as_ref(), &run).await?;
    let (plan, _) = super::plan::planned(context, &store, &snapshot).await?;
    if context.output.json {
        let decisions = super::plan::views(store.as_ref(), &run, &plan).await?;
        let (v, run, status) = (VERSION, run.to_string(), outcome.status);
        context.output.document(&RolledBackView { v, run, to, at, status, undone, decisions })?;
        return Ok(Exit::Done);
    }
    if context.output.quiet {
        return Ok(Exit::Done);
    }
    let decisions = super::plan::views(store.as_ref(), &run, &plan).await?;
    super::plan::show(context, Some(run.as_str()), (decisions, Vec::new()), &names_of(&snapshot))?;
    let done = steps_are_done(store.as_ref(), &run, outcome.progress).await;
    let kept: String = since(&before, &snapshot, &to).into_iter().map(|line| line + "\n").collect();
    let words = context.store_words();
    let next = match before.entry.summary.summary.status {
        RunStatus::Queued => format!("The run left the queue: {}", not_claimed(&run, &words)),
        _ => format!("Resume with: waypost resume {run}{words}"),
    };
    context.output.sentences(&format!("Rolled back run {run} to {to}: {done}.\n{kept}{next}"))?;
    Ok(Exit::Done)
}

/// Describes the effect of a rollback on edits and params adopted since the target checkpoint.
fn since(before: &Snapshot, after: &Snapshot, to: &str) -> Vec<String> {
    let mut lines = Vec::new();
    if before.definition != after.definition {
        lines.push(format!(
            "The workflow is that of {to} again: a resume compares the file with it, and adopts changes again."
        ));
    }
    let (set, params) = (current(before), current(after));
    let named = |(name, value): (&String, &Value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{name}={}", shown(&text))
    };
    let changed = params.iter().filter(|(name, value)| set.get(*name) != Some(*value));
    let changed: Vec<String> = changed.map(named).collect();
    if !changed.is_empty() {
        lines.push(format!("Params are those of {to} again: {}.", changed.join(", ")));
    }
    lines
}

/// Prints that a run is at a checkpoint with valid evidence.
async fn nothing_to_undo(context: &Context, store: &dyn Store, run: &RunId) -> Result<Exit, Error> {
    let newest = store.newest(run, &ScopePath::main()).await?;
    let (at, status) = (newest.header().reference().to_string(), store.run(run).await?.summary.status);
    if context.output.json {
        let (v, run, to, decisions) = (VERSION, run.to_string(), at.clone(), Vec::new());
        context.output.document(&RolledBackView { v, run, to, at, status, undone: None, decisions })?;
        return Ok(Exit::Done);
    }
    context.output.done(&format!("Nothing to do for run {run}, because the evidence at {at} holds."))?;
    Ok(Exit::Done)
}

/// Returns the newest checkpoint of the main scope with valid evidence and a kept state; `None` if it is the
/// run's present position.
///
/// # Errors
/// Evidence could not be checked, or no such checkpoint exists.
async fn verified(store: &Arc<dyn Store>, run: &RunId) -> Result<Option<u64>, Error> {
    let snapshot = Snapshot::read(store.as_ref(), run).await?;
    let newest = store.newest(run, &ScopePath::main()).await?.header().seq;
    let history = store.effective_history(run, &ScopePath::main(), newest).await?;
    for record in &history.records {
        let seq = record.header().seq;
        let record = store.load(run, &ScopePath::main(), seq).await?;
        if record.body_bytes().is_none() {
            continue;
        }
        let chosen = Chosen::at(store, &snapshot, &record).await?;
        let look = current_evidence::look_at(store, &snapshot, &chosen, &record).await?;
        if let Some(unknown) = current_evidence::doubted(&look, true) {
            return Err(not_verified(
                &record,
                &unknown,
                "could not be checked",
                "restore access to the files or services of the evidence, and try again",
            ));
        }
        if current_evidence::doubted(&look, false).is_none() {
            return Ok((seq != newest).then_some(seq));
        }
    }
    Err(Error::not_found(
        format!("checkpoint of run {run} with valid evidence"),
        format!(
            "`waypost resume {run} --restart` starts over; `waypost rollback {run}@SEQ --redo` reruns the \
             steps with failed evidence"
        ),
    ))
}

/// Refuses a rollback to a checkpoint whose finished steps have failed evidence, unless these steps are to
/// rerun.
async fn refuse_unverified(store: &Arc<dyn Store>, target: &Record, redo: bool) -> Result<(), Error> {
    let snapshot = Snapshot::read(store.as_ref(), &target.header().run).await?;
    if target.body_bytes().is_none() {
        return Ok(());
    }
    let chosen = Chosen::at(store, &snapshot, target).await?;
    let look = current_evidence::look_at(store, &snapshot, &chosen, target).await?;
    if let Some(unknown) = current_evidence::doubted(&look, true) {
        return Err(not_verified(
            target,
            &unknown,
            "could not be checked",
            "restore access to the files or services of the evidence, and try again",
        ));
    }
    match current_evidence::doubted(&look, false).filter(|_| !redo) {
        None => Ok(()),
        Some(failed) => Err(not_verified(
            target,
            &failed,
            "no longer holds",
            "`--redo` rolls back and reruns those steps; `--to verified` finds a checkpoint with valid \
             evidence",
        )),
    }
}

fn not_verified(at: &Record, claims: &[String], how: &str, hint: &str) -> Error {
    Error::Unverified {
        at: at.header().reference().to_string(),
        why: format!("{how}: {}", claims.join(", ")),
        hint: hint.to_owned(),
    }
}

/// Converts a question about failed evidence at the fork point to an error: the parent run cannot answer it.
pub(super) fn of_evidence_there(error: Error, from: &CheckpointRef, what: &str, hint: String) -> Error {
    let Error::Run(RunError::InDoubt { questions, .. }) = &error else { return error };
    let is_of_evidence =
        |question: &Decision| matches!(question.cause, Cause::EvidenceFailed(_) | Cause::EvidenceUnknown(_));
    if !questions.iter().all(is_of_evidence) {
        return error;
    }
    let named = questions.iter().map(|question| {
        let step = step_on(&question.scope, question.step.as_str());
        format!("step `{step}`: {}", question.cause)
    });
    let why = format!("does not allow {what}: {}", named.collect::<Vec<_>>().join("; "));
    Error::Unverified { at: from.to_string(), why, hint }
}

/// Prints that a run was already rolled back to this checkpoint, without progress since.
async fn stands_there(
    context: &Context,
    store: &Arc<dyn Store>,
    newest: &Record,
    seq: u64,
) -> Result<Exit, Error> {
    let at = newest.header().reference();
    let to = CheckpointRef { seq, ..at.clone() }.to_string();
    if context.output.json {
        let (v, run, status) = (VERSION, at.run.to_string(), store.run(&at.run).await?.summary.status);
        let snapshot = Snapshot::read(store.as_ref(), &at.run).await?;
        let (plan, _) = super::plan::planned(context, store, &snapshot).await?;
        let decisions = super::plan::views(store.as_ref(), &at.run, &plan).await?;
        context.output.document(&RolledBackView {
            v,
            run,
            to,
            at: at.to_string(),
            status,
            undone: None,
            decisions,
        })?;
        return Ok(Exit::Done);
    }
    let run = &at.run;
    context.output.done(&format!("Nothing to do for run {run}, because it is already at {to}."))?;
    context.output.note(&format!("Resume with: waypost resume {run}{}", context.store_words()));
    Ok(Exit::Done)
}

/// Refuses a checkpoint without a state, before any other message.
fn refuse_without_state(record: &Record) -> Result<(), RunError> {
    if !has_lost_state(record) {
        return Ok(());
    }
    let at = record.header().reference().to_string();
    Err(RunError::NoState { at, why: "retention dropped its state".to_owned() })
}

pub(crate) async fn fork(context: &Context, mut args: ForkArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Write)?;
    if args.queue && store.queue().is_none() {
        return Err(needs::no_queue("queue a run in", store.as_ref()));
    }
    let from = checkpoint(store.as_ref(), &args.checkpoint).await?;
    let names = names(store.as_ref(), &from.run).await;
    on_main(&names, &from, "cannot fork from", || {
        let opener = opener_on_main(&from.scope).map(|opener| format!(" --from {}", quoted(opener.as_str())));
        format!("`waypost fork {}{}` reruns the steps within", from.run, opener.unwrap_or_default())
    })?;
    // Check that the checkpoint exists before any message.
    let begin = store.load(&from.run, &from.scope, from.seq).await?;
    refuse_without_state(&begin)?;
    let id = args.id.as_deref().map(RunId::new).transpose().map_err(Error::from_name)?;
    encode(store.as_ref(), &from.run, &mut args.from).await?;
    refuse_unknown_scope(store.as_ref(), &from.run, args.from.as_deref()).await?;
    let frozen = store.run(&from.run).await?.record.record().clone();
    if !args.queue {
        bases::refuse_unknown(&frozen)?;
    }
    let mut snapshot = Snapshot::read(store.as_ref(), &from.run).await?;
    snapshot.definition = definition_at(&store, &snapshot, &begin).await?;
    let mut chosen = Chosen::in_force(store.as_ref(), &snapshot)?;
    if let Some(file) = &args.with {
        let position = begin.position().unwrap_or_default().with_failures_open();
        chosen = of_fork(store.as_ref(), chosen, &snapshot, &position, (file, args.from.as_deref())).await?;
        chosen.tell(context);
    }
    let Chosen { workflow, shape, adoption, .. } = chosen;
    let params = Params::resolve(&workflow, &begin, &frozen, &args.params)?;
    report_pending(context, store.as_ref(), &from.run).await?;
    let step = args.from.as_deref().map(|step| from_step(&workflow, step)).transpose()?;
    let work = BegunWork::of(store.as_ref(), (&workflow, &shape), &snapshot).await?;
    let work = work.rerunning(step.clone());
    let read = params.read_before(&Begin { workflow: &workflow, at: &begin, work: Some(&work) });
    if let Some(read) = read.filter(|_| adoption.is_none()) {
        return Err(param_was_read(&from, &read));
    }
    let run = id_of(store.as_ref(), id, &workflow).await?;
    let mut local = Local::detect()?;
    local.has_bash =
        frozen.settings.get(environment::BASH).and_then(Value::as_bool).unwrap_or(local.has_bash);
    let mut labels = frozen.labels.clone();
    labels.extend(args.labels.iter().cloned());
    let mut settings = frozen.settings.clone();
    if args.queue {
        needs::prepare(&mut settings, &workflow);
    }
    let record = RunRecord {
        settings,
        run: run.clone(),
        workflow: workflow.name().to_owned(),
        path: match &args.with {
            Some(file) => recorded_path(store.as_ref(), file)?,
            None => frozen.path.clone(),
        },
        definition: shape.definition(Some(workflow.text().to_owned())),
        params: params.now().clone(),
        env: declared_env(&workflow, &local.environment),
        labels,
        parent: None,
        tool: concat!("waypost ", env!("CARGO_PKG_VERSION")).to_owned(),
        actor: local.actor(),
        created_at: SystemClock.now(),
        ..frozen.clone()
    };
    let file = record.path.as_deref().map(|path| store_location::from_home(store.home(), path));
    let told = SessionReport {
        run: run.clone(),
        file: file.as_deref().map(crate::format::text::relative_to_here),
        store_words: context.lasting_store_words(),
        until: None,
        report: store.folder(&run).map(|folder| folder.join(REPORT)),
    };
    let base = bases::folder_of(store.as_ref(), &frozen);
    let session = Session::begin(context, workflow.timeout())?;
    let mut options = environment::session_options(&workflow);
    options.stop = session.stop.clone();
    if args.queue {
        // The run is created, and stops before its first step.
        options.stop.stop(StopLevel::Graceful, "fork");
    }
    let program = WorkflowProgram::new(workflow, local.of_run(run.clone(), base, Arc::clone(&store)))?;
    let start = params.start(&program, &record, (options.clone(), adoption), step)?;
    let name = shown(&record.workflow);
    session.progress.head(format!("Run {run} of workflow {name}, forked at {from}"));
    let engine = session.engine(Arc::clone(&store), &program);
    let outcome = session.watch(engine.fork_program(&program, &from, record, start)).await;
    let hint = match &outcome {
        // A rollback cannot check the evidence either.
        Err(Error::Run(RunError::InDoubt { questions, .. }))
            if questions.iter().any(|question| matches!(question.cause, Cause::EvidenceUnknown(_))) =>
        {
            format!(
                "restore the evidence, or rerun the step in the fork: `waypost fork {} --from STEP`",
                from.run
            )
        }
        _ => format!(
            "restore the evidence, or rerun those steps in the run itself: `waypost rollback {from} --redo`"
        ),
    };
    let outcome = outcome.map_err(|error| of_evidence_there(error, &from, "a fork", hint))?;
    if args.queue && !is_over(outcome.status) {
        return requeue(context, engine.store().as_ref(), &run).await;
    }
    let outcome = session.wait_out(&engine, &program, outcome, &options, args.wait).await?;
    session.conclude(&engine, &program, &outcome, &told).await
}

/// Returns the error for a param of a finished step.
fn param_was_read(from: &CheckpointRef, read: &ReadParam) -> Error {
    let ReadParam { step, top, param } = read;
    Error::usage(
        format!("cannot change param `{param}`: step {step} has read it, and does not rerun"),
        format!("`waypost fork {from} --from {top} -p {param}=…` reruns the step and all steps downstream"),
    )
}

/// Finds a checkpoint; for a run alone, the newest one of its main scope.
pub(super) async fn checkpoint(store: &dyn Store, text: &str) -> Result<CheckpointRef, Error> {
    let (run, checkpoint) = Reference::parse(text)?.locate(store, Meant::Newest).await?;
    let (scope, seq) = match checkpoint {
        Some(checkpoint) => checkpoint,
        None => {
            let newest = store.newest(&run, &ScopePath::main()).await?;
            (ScopePath::main(), newest.header().seq)
        }
    };
    Ok(CheckpointRef { run, scope, seq })
}

/// Refuses a checkpoint outside the main scope. `hint`: what to do instead.
pub(super) fn on_main(
    names: &StepNames,
    at: &CheckpointRef,
    does: &str,
    hint: impl FnOnce() -> String,
) -> Result<(), Error> {
    if at.scope.is_main() {
        return Ok(());
    }
    let scope = names.path(&at.scope);
    let why = "only checkpoints of the main scope are supported";
    Err(Error::usage(format!("{does} a checkpoint of scope `{scope}`: {why}"), hint()))
}

/// Returns the hint to name a checkpoint of the main scope.
pub(super) fn of_main(at: &CheckpointRef) -> String {
    let run = &at.run;
    format!(
        "name a checkpoint such as {run}@3; `waypost checkpoints {run} --scope main` lists the checkpoints"
    )
}

/// Returns the command that continues the scope of a checkpoint: a rerun of the next step.
fn to_scope(target: &Record, names: &StepNames) -> String {
    let at = target.header().reference();
    let frontier = target.position().map(|position| position.frontier).unwrap_or_default();
    match frontier.first() {
        Some(next) => format!(
            "`waypost resume {} --from {}` continues the scope from this checkpoint, and reruns all steps \
             downstream",
            at.run,
            quoted(&names.called(&at.scope, next.step.as_str()))
        ),
        None => of_main(&at),
    }
}
