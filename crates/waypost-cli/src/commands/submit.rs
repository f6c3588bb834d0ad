//! `waypost submit`: creates a run for the workers of a shared store.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use waypost::RunId;
use waypost::engine::{Engine, RunError, Snapshot};
use waypost::record::{RunRecord, RunStatus};
use waypost::store::{Job, Store, StoreError};
use waypost_workflow::file::{Work, Workflow};
use waypost_workflow::program::WorkflowProgram;

use super::Context;
use super::run::{Given, free_id, record, refuse_secrets};
use crate::cli::SubmitArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::format::text::counted;
use crate::format::time;
use crate::run::environment::{self, Local};
use crate::run::included_files::{self, IncludedFiles};
use crate::run::needs::{self, SUBMISSION};
use crate::run::reference;
use crate::run::refusals::failed_step;
use crate::store_location::{self, Access};
use crate::view::{SubmittedView, VERSION};

pub(crate) async fn submit(context: &Context, args: SubmitArgs) -> Result<Exit, Error> {
    let run_args = args.run_args();
    let Given { workflow, params, base } = Given::of(&run_args)?;
    let id = args.id.as_deref().map(RunId::new).transpose().map_err(Error::from_name)?;
    let store = context.store(Some(&args.file), Access::Create)?;
    if store.queue().is_none() {
        return Err(needs::no_queue("submit a run to", store.as_ref()));
    }
    refuse_unknown_agents(&workflow)?;
    let local = Local::detect()?;
    let run = match id {
        Some(id) => id,
        None => free_id(store.as_ref(), workflow.name()).await?,
    };
    let mut record = record(context, store.as_ref(), (&workflow, &params), &run, &base, &run_args, &local)?;
    record.settings.insert(needs::AGENTS.to_owned(), needs::agents_of(&workflow));
    if let Some(base) = &args.base {
        record.settings.insert(needs::BASE.to_owned(), Value::String(base.clone()));
    }
    record.settings.insert(SUBMISSION.to_owned(), submission(&args));
    // A worker has the secrets.
    let surroundings = local.of_run(run.clone(), base.clone(), store.clone());
    let program = WorkflowProgram::for_inspection(workflow, surroundings)?;
    let mut files = Vec::new();
    if !args.include.is_empty() {
        let place = (&*base, &*args.file);
        let included = IncludedFiles::pack(place, &args.include, program.workflow(), program.mask())?;
        record.settings.insert(included_files::FILES.to_owned(), included.setting());
        context.output.note(&format!(
            "{} included. Files written by steps stay on their worker: pass results as outputs.",
            counted(included.count as u64, "file")
        ));
        files = included.archive;
    }
    let not_before = args.delay.and_then(|delay| record.created_at.checked_add(delay).ok());
    let job = needs::job_of(store.as_ref(), &record, program.workflow()).unwrap_or_default();
    let job = Job { not_before, files, ..job };
    let is_new = !reference::is_there(store.as_ref(), &run).await? && {
        let state = program.initial_state(params.clone())?;
        refuse_secrets(&program, &record)?;
        program.check_items(&params)?;
        let engine = program.equip(Engine::new(store.clone()));
        match engine.queue_program(&program, record.clone(), state, &job).await {
            Ok(()) => true,
            // Another process has submitted the run in the meantime.
            Err(RunError::Store(StoreError::Exists { .. })) => false,
            Err(error) => return Err(error.into()),
        }
    };
    let submitted = match is_new {
        true => Submitted::New,
        false => again(store.as_ref(), &record).await?,
    };
    let status = store.run(&run).await?.summary.status;
    store.close().await?;
    told(context, &run, status, submitted)
}

/// The effect of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Submitted {
    New,
    /// The run was stopped, and is in the queue again.
    Again,
    /// The run was in the queue, or has left it.
    Before,
}

/// Returns the options of a submission that the workers obey.
fn submission(args: &SubmitArgs) -> Value {
    let tags: BTreeSet<&String> = args.tags.iter().collect();
    let delay = args.delay.unwrap_or_default();
    json!({ "tags": tags, "delay_ms": delay.as_millis() as u64, "priority": args.priority })
}

/// Submits an existing run: a stopped one is in the queue again.
///
/// # Errors
/// [`Error::Usage`]: the existing run is another one.
async fn again(store: &dyn Store, wanted: &RunRecord) -> Result<Submitted, Error> {
    let run = &wanted.run;
    let entry = store.run(run).await?;
    let differs = differences(store, entry.record.record(), wanted);
    if !differs.is_empty() {
        return Err(Error::usage(
            format!("cannot submit run {run}: it exists {}", differs.join("; ")),
            "the same command with `--id OTHER` submits another run",
        ));
    }
    match (entry.summary.status, store.queue()) {
        (RunStatus::Interrupted, Some(queue)) => {
            if let Some(step) = failed_step(&Snapshot::read(store, run).await?) {
                return Err(Error::usage(
                    format!("cannot submit run {run} again: its step {step} has failed"),
                    format!("`waypost resume {run}` retries the step here"),
                ));
            }
            queue.requeue(run, None).await?;
            Ok(Submitted::Again)
        }
        _ => Ok(Submitted::Before),
    }
}

/// Returns the differences between the submission of a run and another one, as clauses after "the run exists".
fn differences(store: &dyn Store, made: &RunRecord, wanted: &RunRecord) -> Vec<String> {
    let Some(submitted) = made.settings.get(SUBMISSION) else {
        return vec!["without a submission".to_owned()];
    };
    let mut differs = Vec::new();
    let mut compare = |what: &str, made: String, wanted: String| {
        if made != wanted {
            differs.push(format!("with {what} {made}, not {wanted}"));
        }
    };
    let place = |path: &Option<String>| {
        path.as_deref().map_or("unknown".to_owned(), |path| {
            format!("`{}`", store_location::from_home(store.home(), path).display())
        })
    };
    compare("file", place(&made.path), place(&wanted.path));
    let base = |record: &RunRecord| match record.settings.get(needs::BASE).and_then(Value::as_str) {
        Some(name) => format!("`{name}`"),
        None => format!("folder {}", place(&record.base)),
    };
    compare("base", base(made), base(wanted));
    let digest = |record: &RunRecord| match record.settings.get(included_files::FILES) {
        Some(digest) => digest.as_str().unwrap_or_default().chars().take(12).collect(),
        None => "none".to_owned(),
    };
    compare("included files", digest(made), digest(wanted));
    let option = |options: &Value, name: &str| options.get(name).cloned().unwrap_or_default();
    let asked = &wanted.settings[SUBMISSION];
    let tags = |options: &Value| match option(options, "tags").as_array().map(Vec::as_slice) {
        None | Some([]) => "none".to_owned(),
        Some(tags) => tags
            .iter()
            .map(|tag| format!("`{}`", tag.as_str().unwrap_or_default()))
            .collect::<Vec<_>>()
            .join(" "),
    };
    compare("tags", tags(submitted), tags(asked));
    let delay = |options: &Value| {
        time::written(Duration::from_millis(option(options, "delay_ms").as_u64().unwrap_or_default()))
    };
    compare("delay", delay(submitted), delay(asked));
    compare("priority", option(submitted, "priority").to_string(), option(asked, "priority").to_string());
    let names: BTreeSet<&String> = made.params.keys().chain(wanted.params.keys()).collect();
    let param = |record: &RunRecord, name: &str| {
        record.params.get(name).map_or("unset".to_owned(), ToString::to_string)
    };
    for name in names {
        compare(&format!("param `{name}`"), param(made, name), param(wanted, name));
    }
    let names: BTreeSet<&String> = made.labels.keys().chain(wanted.labels.keys()).collect();
    let label = |record: &RunRecord, name: &str| {
        record.labels.get(name).map_or("unset".to_owned(), |label| format!("`{label}`"))
    };
    for name in names {
        compare(&format!("label `{name}`"), label(made, name), label(wanted, name));
    }
    if made.definition.text != wanted.definition.text {
        differs.push("with another text of the file".to_owned());
    }
    differs
}

/// Refuses agents without a command here: the run keeps the commands of its submission.
fn refuse_unknown_agents(workflow: &Workflow) -> Result<(), Error> {
    let agents = environment::agents();
    let is_unknown = |name: &&String| agents.get(name).is_none();
    let mut names = workflow.all_steps().filter_map(|step| match &step.work {
        Work::Agent(agent) => Some(&agent.name),
        _ => None,
    });
    match names.find(is_unknown) {
        Some(name) => Err(Error::usage(
            format!("cannot submit the run: agent `{name}` is not configured"),
            "`waypost config` lists the agents",
        )),
        None => Ok(()),
    }
}

fn told(context: &Context, run: &RunId, status: RunStatus, submitted: Submitted) -> Result<Exit, Error> {
    if context.output.json {
        let created = submitted == Submitted::New;
        context.output.document(&SubmittedView { v: VERSION, run: run.to_string(), status, created })?;
        return Ok(Exit::Done);
    }
    let words = context.store_words();
    let first = match submitted {
        Submitted::New => format!("Run {run} is queued."),
        Submitted::Again => format!("Run {run} is {} again.", status.name()),
        Submitted::Before => format!("Nothing to submit, because run {run} exists: {}.", status.name()),
    };
    let has_ended = matches!(
        status,
        RunStatus::Completed | RunStatus::CompletedWithFailures | RunStatus::Failed | RunStatus::Cancelled
    );
    let next = if has_ended { "Look at it with: waypost show" } else { "Watch with: waypost watch" };
    context.output.done(&format!("{first}\n{next} {run}{words}"))?;
    Ok(Exit::Done)
}
