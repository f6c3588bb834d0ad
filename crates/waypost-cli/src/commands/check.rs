//! `waypost check`: the problems of a workflow file, and the order of its steps.

use std::path::Path;

use waypost_workflow::file::{Mode, Step, Warning, Workflow};

use super::Context;
use crate::cli::CheckArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::shown;
use crate::run::{environment, preflight, workflow_file};
use crate::view::{CheckView, CheckedStepView, ProblemView, VERSION};

#[expect(clippy::unused_async, reason = "every command is asked in the same way")]
pub(crate) async fn check(context: &Context, args: CheckArgs) -> Result<Exit, Error> {
    let workflow = workflow_file::read(&args.file)?;
    let agents = environment::agents();
    let known: Vec<&str> = agents.names().collect();
    let params =
        workflow.params().iter().map(|param| (param.name.clone(), param.default.clone().unwrap_or_default()));
    let base = args.file.parent().unwrap_or(Path::new(""));
    let base = if base.as_os_str().is_empty() { Path::new(".") } else { base };
    let lacks = preflight::lacks_of(&workflow, &params.collect(), base, |_| true);
    let places = lacks.into_iter().map(|lack| (lack.line, format!("step {}: {}", lack.step, lack.message)));
    let missing = workflow.warn_at(places, "create it, unless an earlier step makes it");
    let warnings = [workflow.all_warnings(), workflow.unknown_agents(&known), missing].concat();
    let steps: Vec<CheckedStepView> = workflow.steps().iter().map(|step| view(&workflow, step)).collect();
    if context.output.json {
        context.output.document(&CheckView {
            v: VERSION,
            file: workflow.path().display().to_string(),
            workflow: workflow.name().to_owned(),
            mode: mode(&workflow),
            steps,
            warnings: warnings.iter().map(|one| ProblemView::of(one.file(), one.problem())).collect(),
        })?;
        return Ok(Exit::Done);
    }
    if !warnings.is_empty() {
        context.output.aside(&rendered(&warnings));
    }
    context.output.done(&told(&workflow.path().display().to_string(), &workflow, &steps))?;
    Ok(Exit::Done)
}

/// Formats warnings with their snippets.
pub(super) fn rendered(warnings: &[Warning<'_>]) -> String {
    warnings.iter().map(Warning::render).collect::<Vec<_>>().join("\n\n")
}

fn mode(workflow: &Workflow) -> &'static str {
    match workflow.mode() {
        Mode::Sequence => "sequence",
        Mode::Graph => "graph",
    }
}

/// Prints the schema of workflow files, for editors; the same document with and without `--json`.
pub(crate) fn print_schema(context: &Context) -> Result<Exit, Error> {
    context.output.document(&waypost_workflow::file::schema())?;
    Ok(Exit::Done)
}

fn view(workflow: &Workflow, step: &Step) -> CheckedStepView {
    CheckedStepView {
        id: step.id.clone(),
        line: step.line,
        needs: workflow.upstream(step).map(|need| need.id.clone()).collect(),
    }
}

fn told(file: &str, workflow: &Workflow, steps: &[CheckedStepView]) -> String {
    let hooks: Vec<&str> =
        workflow.steps().iter().filter(|step| step.is_for_hooks()).map(|step| step.id.as_str()).collect();
    let count = match steps.len() - hooks.len() {
        1 => "1 step".to_owned(),
        count => format!("{count} steps"),
    };
    let order = match workflow.mode() {
        Mode::Sequence => "in sequence",
        Mode::Graph => "each started when its needs are finished",
    };
    let mut text = format!("{}: workflow {} has {count}, {order}\n", shown(file), shown(workflow.name()));
    for step in steps {
        let needs = match workflow.mode() {
            Mode::Graph if !step.needs.is_empty() => format!(" after {}", step.needs.join(", ")),
            Mode::Graph | Mode::Sequence => String::new(),
        };
        let kind = if hooks.contains(&step.id.as_str()) { " (hooks)" } else { "" };
        text.push_str(&format!("  {}{kind}{needs}\n", step.id));
    }
    text
}
