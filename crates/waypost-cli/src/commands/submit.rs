//! `waypost submit`: creates a run for the workers of a shared store.

use serde_json::Value;
use waypost::RunId;
use waypost::engine::Engine;
use waypost::record::RunStatus;
use waypost::store::Job;
use waypost_workflow::file::{Work, Workflow};
use waypost_workflow::program::WorkflowProgram;

use super::Context;
use super::run::{Given, free_id, record, refuse_other, refuse_secrets};
use crate::cli::SubmitArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::run::environment::{self, Local};
use crate::run::needs;
use crate::run::reference;
use crate::store_location::Access;
use crate::view::{SubmittedView, VERSION};

pub(crate) async fn submit(context: &Context, args: SubmitArgs) -> Result<Exit, Error> {
    let run_args = args.run_args();
    let Given { workflow, params, base } = Given::of(&run_args)?;
    let id = args.id.as_deref().map(RunId::new).transpose().map_err(Error::from_name)?;
    let store = context.store(Some(&args.file), Access::Create)?;
    let Some(queue) = store.queue() else {
        return Err(Error::usage(
            format!("cannot submit a run to {store}: the store has no queue for workers"),
            "name a store in PostgreSQL with `--store`, or run the file here: `waypost run`",
        ));
    };
    refuse_unknown_agents(&workflow)?;
    let local = Local::look()?;
    let mut needs = needs::of_workflow(&workflow, (&base, args.base.as_deref()), &local);
    needs.extend(args.tags.iter().map(|tag| format!("tag:{tag}")));
    let not_before = args.delay.and_then(|delay| context.now().checked_add(delay).ok());
    let job = Job { priority: args.priority, not_before, needs };
    let existing = match &id {
        Some(id) => reference::is_there(store.as_ref(), id).await?,
        None => false,
    };
    let run = match id {
        Some(id) => id,
        None => free_id(store.as_ref(), workflow.name()).await?,
    };
    if existing {
        refuse_other(store.as_ref(), &run, &params, &run_args).await?;
    } else {
        let mut record =
            record(context, store.as_ref(), (&workflow, &params), &run, &base, &run_args, &local)?;
        record.settings.insert(needs::AGENTS.to_owned(), needs::agents_of(&workflow));
        if let Some(base) = &args.base {
            record.settings.insert(needs::BASE.to_owned(), Value::String(base.clone()));
        }
        let surroundings = local.of_run(run.clone(), base, store.clone());
        // A worker has the secrets.
        let program = WorkflowProgram::to_look(workflow, surroundings)?;
        let state = program.initial_state(params.clone())?;
        refuse_secrets(&program, &record)?;
        program.check_items(&params)?;
        program.equip(Engine::new(store.clone())).queue_program(&program, record, state).await?;
    }
    // Also after a submission that was cut in between.
    queue.submit(&run, &job).await?;
    let status = store.run(&run).await?.summary.status;
    store.close().await?;
    told(context, &run, status, !existing)
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

fn told(context: &Context, run: &RunId, status: RunStatus, created: bool) -> Result<Exit, Error> {
    if context.output.json {
        context.output.document(&SubmittedView { v: VERSION, run: run.to_string(), status, created })?;
        return Ok(Exit::Done);
    }
    let words = context.store_words();
    let first = match created {
        true => format!("Run {run} is queued."),
        false => format!("Nothing to submit, because run {run} exists: {}.", status.name()),
    };
    context.output.done(&format!("{first}\nWatch with: waypost watch {run}{words}"))?;
    Ok(Exit::Done)
}
