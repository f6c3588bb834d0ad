//! `waypost check`: the problems of a workflow file, and the order of its steps.

use std::path::Path;

use waypost_workflow::file::{Body, Mode, Step, Warning, Work, Workflow};

use super::Context;
use crate::cli::CheckArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::shown;
use crate::run::{environment, preflight, workflow_file};
use crate::view::{CheckView, CheckedStepView, OnWorkersView, ProblemView, VERSION};

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
        on_workers: on_workers(workflow, step),
    }
}

/// Returns the steps that other workers may execute: the step, or steps within. A service, and all steps that use it, stay
/// with the worker of the run.
fn on_workers(workflow: &Workflow, step: &Step) -> Vec<OnWorkersView> {
    let mut upstream: Vec<&Step> = workflow.upstream(step).collect();
    let mut place = 0;
    while let Some(need) = upstream.get(place) {
        if matches!(need.work, Work::Service(_)) {
            return Vec::new();
        }
        let is_new = |step: &&Step| upstream.iter().all(|known| known.id != step.id);
        let more: Vec<&Step> = workflow.upstream(need).filter(is_new).collect();
        upstream.extend(more);
        place += 1;
    }
    let within = step.work.body().into_iter().flat_map(Body::all);
    let place = |step: &Step| {
        let tags = workflow.runs_on(step)?.to_vec();
        Some(OnWorkersView { step: step.id.clone(), tags })
    };
    std::iter::once(step).chain(within).filter_map(place).collect()
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
        text.push_str(&format!("  {}{kind}{needs}", step.id));
        for OnWorkersView { step: within, tags } in &step.on_workers {
            let name = if *within == step.id { String::new() } else { format!(" {within}") };
            match tags.as_slice() {
                [] => text.push_str(&format!(",{name} on any worker")),
                tags => text.push_str(&format!(",{name} on a worker with {}", tags.join(", "))),
            }
        }
        text.push('\n');
    }
    if steps.iter().any(|step| !step.on_workers.is_empty()) {
        text.push_str(
            "  Workers share the files of a `--base`. With `submit --include`, each keeps its own.\n",
        );
    }
    text
}
