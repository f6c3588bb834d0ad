//! The commands, one file each, and their common context.

use crate::cli::{Command, ImportWhat};
pub(crate) use crate::context::Context;
use crate::error::Error;
use crate::exit::Exit;

mod answer;
mod archive;
mod attest;
mod cancel;
mod check;
mod checkpoint;
mod checkpoints;
mod completions;
mod config;
mod dead_letters;
mod delete;
mod deletion;
mod demo;
mod detach;
mod diff;
mod doctor;
mod event;
mod events;
mod evidence;
mod executions;
mod export;
mod from_checkpoint;
mod graph;
mod import;
mod import_workflow;
mod list;
mod logs;
mod new;
mod once;
mod plan;
mod prune;
mod report;
mod resume;
mod rollback_fork;
mod run;
mod show;
mod stats;
mod stop;
mod store;
mod submit;
mod undo;
mod verify;
mod watch;
mod worker;

/// Executes a command.
pub(crate) async fn dispatch(context: &Context, command: Command) -> Result<Exit, Error> {
    match command {
        Command::Check(args) => check::check(context, args).await,
        Command::Schema => check::print_schema(context),
        Command::List(args) => list::list(context, args).await,
        Command::Show(args) => show::show(context, args).await,
        Command::Checkpoints(args) => checkpoints::checkpoints(context, args).await,
        Command::Event(args) => event::event(context, args).await,
        Command::Events(args) => events::events(context, args).await,
        Command::Logs(args) => logs::logs(context, args).await,
        Command::Verify(args) => verify::verify(context, args).await,
        Command::Delete(args) => delete::delete(context, args).await,
        Command::Prune(args) => prune::prune(context, args).await,
        Command::DeadLetters(command) => dead_letters::dead_letters(context, command).await,
        Command::Evidence(command) => evidence::evidence(context, command).await,
        Command::Answer(args) => answer::answer(context, args).await,
        Command::Signal(args) => answer::signal(context, args).await,
        Command::Rollback(args) => rollback_fork::rollback(context, args).await,
        Command::Fork(args) => rollback_fork::fork(context, args).await,
        Command::Diff(args) => diff::diff(context, args).await,
        Command::Checkpoint(args) => checkpoint::checkpoint(context, args).await,
        Command::Watch(args) => watch::watch(context, args).await,
        Command::Submit(args) => submit::submit(context, args).await,
        Command::Worker(args) => worker::worker(context, args).await,
        Command::Stop(args) => stop::stop(context, args).await,
        Command::Run(args) => run::run(context, args).await,
        Command::Resume(args) => resume::resume(context, args).await,
        Command::Retry(_) | Command::Approve(_) => unreachable!("the parser of options expands short forms"),
        Command::Plan(args) => plan::plan(context, args).await,
        Command::Why(args) => plan::why(context, args).await,
        Command::Cancel(args) => cancel::cancel(context, args).await,
        Command::Completions(args) => completions::completions(context, args).await,
        Command::Man(args) => completions::man(context, args).await,
        Command::Stats(args) => stats::stats(context, args).await,
        Command::Doctor => doctor::doctor(context).await,
        Command::Store(command) => store::store(context, command).await,
        Command::Archive(args) => archive::archive(context, args).await,
        Command::Export(args) => export::export(context, args).await,
        Command::Import(args) => match args.what {
            Some(ImportWhat::Workflow(args)) => import_workflow::import_workflow(context, &args).await,
            None => import::import(context, args.checkpoint).await,
        },
        Command::Config => config::config(context).await,
        Command::Once(args) => once::once(context, args).await,
        Command::New(args) => new::new(context, args).await,
        Command::Demo(args) => demo::demo(context, args).await,
        Command::Graph(args) => graph::graph(context, args).await,
        Command::Report(args) => report::report(context, args).await,
    }
}
