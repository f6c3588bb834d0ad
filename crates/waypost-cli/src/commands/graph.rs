//! `waypost graph`: the steps of a workflow file or a run, and their dependencies, as a picture.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use waypost::engine::Snapshot;
use waypost::{RunId, ScopePath};
use waypost_workflow::file::{Body, Step, Work, Workflow};

use super::report::history::{self, RunHistory};
use super::{Context, show};
use crate::cli::{GraphArgs, default_file, is_stdin};
use crate::error::Error;
use crate::exit::Exit;
use crate::run::definition::workflow_in_force;
use crate::run::{run_status, workflow_file};
use crate::view::step_names::StepNames;
use crate::view::{GraphView, VERSION};

mod mermaid;
mod node;
mod svg;

pub(super) use self::node::Node;
use self::node::NodeStatus;
pub(super) use self::svg::{embedded, sign};

pub(crate) async fn graph(context: &Context, args: GraphArgs) -> Result<Exit, Error> {
    let (title, nodes, run, file) = match subject(args.what.as_deref()) {
        Subject::File(file) => {
            let workflow = workflow_file::read(&file)?;
            let nodes = nodes(workflow.body(), &mut Vec::new(), &|_| None);
            (workflow.name().to_owned(), nodes, None, Some(workflow.path().display().to_string()))
        }
        Subject::Run(name) => {
            let (store, run) = context.find(name.as_deref()).await?;
            let mut snapshot = Snapshot::read(store.as_ref(), &run).await?;
            run_status::correct_snapshot(store.as_ref(), &mut snapshot);
            let workflow = workflow_in_force(&snapshot).ok_or_else(|| no_workflow(&run))?;
            let view = show::view_of(store.as_ref(), &run).await?;
            let history = history::read(store.as_ref(), &run, &StepNames::default()).await?;
            let title = format!("{}: {run} is {}", view.workflow, snapshot.status().name());
            (title, nodes_of_run(&workflow, &view, &history), Some(run.to_string()), None)
        }
    };
    let (format, text) = match args.mermaid {
        true => ("mermaid", mermaid::text(&nodes)),
        false => ("svg", svg::standalone(&title, &nodes)),
    };
    if context.output.json {
        context.output.document(&GraphView { v: VERSION, run, file, format, text })?;
    } else {
        context.output.answer(&text)?;
    }
    Ok(Exit::Done)
}

/// Object of a picture.
enum Subject {
    File(PathBuf),
    /// A run; `None` for the newest.
    Run(Option<String>),
}

/// Decides between a file and a run: a file is a path of a file, or looks like one.
fn subject(what: Option<&str>) -> Subject {
    let Some(what) = what else {
        let file = default_file();
        return if file.exists() { Subject::File(file) } else { Subject::Run(None) };
    };
    let path = Path::new(what);
    let is_named_so = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    match is_stdin(path) || path.is_file() || is_named_so {
        true => Subject::File(path.to_owned()),
        false => Subject::Run(Some(what.to_owned())),
    }
}

fn no_workflow(run: &RunId) -> Error {
    let message = format!("run {run} has no graph: it was not created from a workflow file");
    Error::usage(message, format!("`waypost show {run}` lists its steps"))
}

/// Returns the steps of a run, each with its status.
pub(super) fn nodes_of_run(
    workflow: &Workflow,
    show: &crate::view::ShowView,
    history: &RunHistory,
) -> Vec<Node> {
    let ended = history.ends().map(|(scope, step, outcome)| (scope.clone(), step.to_string(), outcome));
    let now = show
        .steps
        .iter()
        .filter_map(|step| Some((ScopePath::new(&step.scope).ok()?, step.id.clone(), step.outcome())));
    // The current status of a step replaces the recorded outcome.
    let statuses: HashMap<(ScopePath, String), &'static str> =
        ended.chain(now).map(|(scope, step, status)| ((scope, step), status)).collect();
    let mut by_path: HashMap<Vec<String>, (u32, Vec<&'static str>)> = HashMap::new();
    for ((scope, step), status) in statuses {
        let pass = scope.pass_number().unwrap_or_default();
        let around = std::iter::successors(Some(scope), ScopePath::parent);
        let openers = around.filter_map(|scope| Some(scope.opened_by()?.0.to_string()));
        let mut path: Vec<String> = openers.collect();
        path.reverse();
        path.push(step);
        let (newest, found) = by_path.entry(path).or_default();
        if pass > *newest {
            (*newest, *found) = (pass, Vec::new());
        }
        if pass == *newest {
            found.push(status);
        }
    }
    let status = |path: &[String]| Some(by_path.get(path).map_or_else(pending, |(_, found)| summed(found)));
    nodes(workflow.body(), &mut Vec::new(), &status)
}

/// Statuses from the worst to the best.
const STATUSES: [&str; 13] = [
    "failed",
    "in_doubt",
    "cut",
    "interrupted",
    "tolerated",
    "waiting",
    "running",
    "unfinished",
    "pending",
    "accepted",
    "ready",
    "completed",
    "skipped",
];

fn pending() -> NodeStatus {
    NodeStatus { worst: "pending", text: "pending".to_owned() }
}

/// Sums the statuses of a step over items.
fn summed(found: &[&'static str]) -> NodeStatus {
    let count = |status: &&str| found.iter().filter(|one| *one == status).count();
    let counts: Vec<(&'static str, usize)> =
        STATUSES.iter().map(|status| (*status, count(status))).filter(|(_, count)| *count > 0).collect();
    let text = match counts.as_slice() {
        [(status, 1)] => (*status).to_owned(),
        counts => {
            counts.iter().map(|(status, count)| format!("{count} {status}")).collect::<Vec<_>>().join(", ")
        }
    };
    NodeStatus { worst: counts.first().map_or("pending", |(status, _)| status), text }
}

/// Creates the nodes of a list of steps. `path`: the ids of the steps around the list.
fn nodes(body: &Body, path: &mut Vec<String>, status: &dyn Fn(&[String]) -> Option<NodeStatus>) -> Vec<Node> {
    let needs: Vec<Vec<usize>> =
        body.steps().iter().map(|step| body.upstream(step).map(|need| need.index).collect()).collect();
    let needs = reduced(&needs);
    let node = |(step, needs): (&Step, Vec<usize>)| {
        path.push(step.id.clone());
        let within = step.work.body().map(|body| nodes(body, path, status)).unwrap_or_default();
        let found = status(path);
        path.pop();
        Node { id: step.id.clone(), name: step.name.clone(), kind: kind(step), needs, within, status: found }
    };
    body.steps().iter().zip(needs).map(node).collect()
}

fn kind(step: &Step) -> Option<&'static str> {
    match step.work {
        Work::Sleep(time) if time.is_zero() => Some("hooks"),
        Work::Run(_) => None,
        Work::Group(_) if step.repeat.is_none() => Some("group"),
        Work::Group(_) => Some("repeat"),
        Work::Agent(_) => Some("agent"),
        _ => Some(step.work.key()),
    }
}

/// Drops each need that is upstream of another need of the same step.
fn reduced(needs: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let words = needs.len().div_ceil(64);
    let mut upstream: Vec<Option<Vec<u64>>> = vec![None; needs.len()];
    let mut kept = vec![Vec::new(); needs.len()];
    let has = |bits: &[u64], place: usize| bits[place / 64] & (1 << (place % 64)) != 0;
    for place in sorted(needs) {
        let mut bits = vec![0_u64; words];
        for need in &needs[place] {
            let more = upstream[*need].as_ref().expect("a need is sorted before its step");
            bits.iter_mut().zip(more).for_each(|(bits, more)| *bits |= more);
        }
        kept[place] = needs[place].iter().copied().filter(|need| !has(&bits, *need)).collect();
        needs[place].iter().for_each(|need| bits[need / 64] |= 1 << (need % 64));
        upstream[place] = Some(bits);
    }
    kept
}

/// Returns the places in topological order: needs first. The reader has refused cycles.
fn sorted(needs: &[Vec<usize>]) -> Vec<usize> {
    let mut waits: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut followers = vec![Vec::new(); needs.len()];
    for (place, needs) in needs.iter().enumerate() {
        needs.iter().for_each(|need| followers[*need].push(place));
    }
    let mut order: Vec<usize> = (0..needs.len()).filter(|place| waits[*place] == 0).collect();
    let mut at = 0;
    while let Some(place) = order.get(at).copied() {
        for next in &followers[place] {
            waits[*next] -= 1;
            if waits[*next] == 0 {
                order.push(*next);
            }
        }
        at += 1;
    }
    order
}
