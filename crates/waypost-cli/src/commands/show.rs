//! `waypost show`: how a run stands, or stood at a checkpoint. Read from one position and the effective history.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use jiff::Timestamp;
use serde_json::{Map, Value};
use waypost::engine::Snapshot;
use waypost::record::{
    Ending, Failure, Flaw, FrontierEntry, Header, Phase, Position, Record, RunStatus, Start, Status, Usage,
};
use waypost::shape::{Shape, Unfinished};
use waypost::store::{Progress, Store, StoreExt as _};
use waypost::{BranchPath, CheckpointRef, RunId, StepId};
use waypost_workflow::file::Workflow;
use waypost_workflow::program::shape_of;

use super::{Context, checkpoints};
use crate::cli::ShowArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::{Output, shown, shown_lines};
use crate::place;
use crate::reference::{Default, Reference, find};
use crate::standing;
use crate::surroundings;
use crate::time;
use crate::view::{ClaimView, FailureView, ShowView, StepStatus, StepView, VERSION, WaitView};

/// Longest value of an output or param in a table; all of it is in the JSON and with `--step`.
const VALUE_CHARACTERS_MAX: usize = 40;

pub(crate) async fn show(context: &Context, args: ShowArgs) -> Result<Exit, Error> {
    let reference = args.run.as_deref().map(Reference::parse).transpose()?;
    let store = context.store(None, place::Access::Read)?;
    let name = reference.as_ref().and_then(|reference| reference.run.as_deref());
    let run = find(store.as_ref(), name, Default::Newest).await?;
    let at = reference.and_then(|reference| reference.checkpoint);
    let shown = Shown::read(store.as_ref(), &run, at).await?;
    let mut view = shown.view(store.as_ref()).await?;
    if let Some(step) = &args.step {
        view.steps.retain(|view| view.id == *step);
        if view.steps.is_empty() {
            return Err(Error::not_found(
                format!("step `{step}` in run {run}"),
                format!("see its steps: `waypost show {run}`"),
            ));
        }
    }
    if context.output.json {
        context.output.document(&view)?;
    } else if args.step.is_some() {
        context.output.answer(&steps_in_full(&context.output, &view.steps))?;
    } else {
        context.output.answer(&summary(context, &view, &shown))?;
    }
    for damage in shown.snapshot.damaged() {
        let at = checkpoints::reference_of(&run, damage);
        let what = if damage.flaw == Flaw::Missing { "missing" } else { "damaged" };
        let text = format!("checkpoint {at} is {what} and was passed over; `waypost verify {run}` says more");
        context.output.warn(&context.with_store(&text));
    }
    if let Some(told) = &shown.lost {
        let text = format!(
            "the log tells of checkpoint {told}, which the store does not have; `waypost verify {run}` says more"
        );
        context.output.warn(&context.with_store(&text));
    }
    Ok(Exit::Done)
}

/// What is shown: one position, and how it came about.
struct Shown {
    snapshot: Snapshot,
    branches: Vec<Branch>,
    /// The checkpoint asked for; none for how the run stands now.
    at: Option<Record>,
    /// The last checkpoint that the log tells of, if the store has lost it.
    lost: Option<CheckpointRef>,
}

struct Branch {
    name: BranchPath,
    /// The record shown, with its body unless retention dropped it.
    record: Record,
    /// Newest first, without bodies.
    history: Vec<Record>,
}

impl Shown {
    async fn read(store: &dyn Store, run: &RunId, at: Option<(BranchPath, u64)>) -> Result<Self, Error> {
        let mut snapshot = Snapshot::read(store, run).await?;
        standing::correct_snapshot(store, &mut snapshot);
        let mut records = Vec::new();
        let mut asked = None;
        match at {
            Some((branch, seq)) => {
                let record = store.load(run, &branch, seq).await?;
                records.push(record.clone());
                asked = Some(record);
            }
            None => records
                .extend(snapshot.heads.iter().map(|head| head.record.clone()).chain(snapshot.ended.clone())),
        }
        let mut branches = Vec::with_capacity(records.len());
        for record in records {
            let name = record.header().branch.clone();
            let history = store.history(run, &name, record.header().seq).await?;
            branches.push(Branch { name, record, history });
        }
        let lost = standing::told_and_lost(store, &snapshot).await;
        Ok(Self { snapshot, branches, at: asked, lost })
    }

    /// Says whether a resume would go on with the run.
    fn goes_on(&self) -> bool {
        let missing = self.snapshot.damaged().any(|damage| damage.flaw == Flaw::Missing);
        self.at.is_none() && !missing && self.lost.is_none() && self.snapshot.status().is_resumable()
    }

    /// Returns the shape of the run's copy of the workflow, where it has one.
    fn shape(&self) -> Option<Shape> {
        let text = self.snapshot.definition.text.as_deref()?;
        let workflow = Workflow::parse(text, Path::new("the run's copy")).ok()?;
        shape_of(&workflow, surroundings::cores()).ok()
    }

    /// Returns how the run stands, or stood at the checkpoint that was asked for, as if it had ended there.
    fn status(&self) -> RunStatus {
        match &self.at {
            Some(record) => record.header().status.unwrap_or(RunStatus::Interrupted),
            None => self.snapshot.status(),
        }
    }

    /// Returns how far the run is, or was at the checkpoint that was asked for.
    fn progress(&self) -> Progress {
        let position = self.at.as_ref().filter(|record| record.header().branch.is_main());
        let position = position.and_then(|record| record.position().ok());
        match self.shape().zip(position) {
            Some((shape, position)) => {
                let open = Unfinished::of(&shape, &position).count() as u64;
                let total = shape.steps().len() as u64;
                Progress { done: total - open, total }
            }
            None => self.snapshot.entry.summary.summary.progress,
        }
    }

    /// Returns the step whose failure keeps the run from going on, of several the one that `list` names. A failure that
    /// the workflow tolerates is none of them.
    fn failed<'a>(&self, steps: &'a [StepView]) -> Option<&'a StepView> {
        let listed = self.snapshot.entry.summary.summary.step.as_deref().filter(|_| self.at.is_none());
        let mut failed = steps.iter().filter(|step| step.holds_up);
        let first = failed.clone().next();
        failed.find(|step| Some(step.id.as_str()) == listed).or(first)
    }

    async fn view(&self, store: &dyn Store) -> Result<ShowView, Error> {
        let frozen = self.snapshot.entry.record.record();
        let live = self.at.is_none() && self.snapshot.status() == RunStatus::Running;
        let shape = self.shape();
        let mut steps = Vec::new();
        let mut waiting = Vec::new();
        for branch in &self.branches {
            let known: &[_] = if branch.name.is_main() { &self.snapshot.definition.steps } else { &[] };
            steps.extend(branch.steps(known.iter().map(|print| &print.id), live, shape.as_ref()));
            let position = branch.position().unwrap_or_default();
            let name = branch.name.to_string();
            waiting.extend(
                position
                    .frontier
                    .iter()
                    .flat_map(|entry| WaitView::of_entry(&name, entry).collect::<Vec<_>>()),
            );
        }
        let checkpoint = match &self.at {
            Some(record) => Some(checkpoints::checked(store, record).await?),
            None => None,
        };
        let failed = self.failed(&steps);
        let parent = frozen.parent.as_ref().map(|parent| {
            CheckpointRef { run: parent.run.clone(), branch: parent.branch.clone(), seq: parent.seq }
                .to_string()
        });
        Ok(ShowView {
            v: VERSION,
            run: frozen.run.to_string(),
            checkpoint,
            workflow: frozen.workflow.clone(),
            path: frozen.path.as_ref().map(|path| place::from_home(store.home(), path).display().to_string()),
            status: self.status(),
            params: frozen.params.clone(),
            usage: sum(steps.iter().filter_map(|step| step.usage.as_ref())),
            failed_step: failed.map(|step| step.id.clone()),
            error: failed.and_then(|step| step.error.clone()),
            steps,
            parent,
            waiting,
            damaged: self
                .snapshot
                .damaged()
                .map(|damage| checkpoints::reference_of(&damage.run, damage).to_string())
                .collect(),
        })
    }
}

impl Branch {
    /// Returns the position of the record shown; none if retention dropped it.
    fn position(&self) -> Option<Position> {
        self.record.position().ok()
    }

    /// Shows the steps of the branch: those of the definition in its order, then any others.
    fn steps<'a>(
        &'a self,
        known: impl Iterator<Item = &'a StepId>,
        live: bool,
        shape: Option<&Shape>,
    ) -> Vec<StepView> {
        let position = self.position();
        let shape = shape.filter(|_| self.name.is_main());
        let unfinished =
            shape.zip(position.as_ref()).map(|(shape, position)| Unfinished::of(shape, position));
        let is_open = |step: &str| {
            let place = shape.and_then(|shape| shape.place(step));
            unfinished.as_ref().zip(place).is_some_and(|(unfinished, place)| unfinished.has(place))
        };
        let is_doubtful =
            |step: &str| shape.and_then(|shape| shape.step(step)).is_some_and(|step| !step.idempotent);
        let frontier = position.iter().flat_map(|position| &position.frontier);
        let entries: HashMap<&str, &FrontierEntry> =
            frontier.map(|entry| (entry.step.as_str(), entry)).collect();
        let mut ends: HashMap<&str, &Header> = HashMap::new();
        let mut starts: HashMap<&str, (&Start, Timestamp)> = HashMap::new();
        let mut order: Vec<&StepId> = known.collect();
        for record in &self.history {
            let header = record.header();
            if let Some(step) = header.step.as_ref().filter(|_| !matches!(header.phase, Phase::Started)) {
                ends.entry(step.as_str()).or_insert(header);
            }
            for start in &header.started {
                starts.entry(start.step.as_str()).or_insert((start, header.created_at));
            }
        }
        for step in self.history.iter().rev().filter_map(|record| record.header().step.as_ref()) {
            if !order.contains(&step) {
                order.push(step);
            }
        }
        let state = self.record.state_bytes().and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
        let view = |step: &StepId| {
            let id = step.as_str();
            let entry = entries.get(id).copied();
            // What is to be done again stands as if it had not been done.
            let counts = |epoch: u32| match entry {
                Some(entry) => epoch >= entry.at.epoch,
                None => !is_open(id),
            };
            StepFacts {
                entry,
                end: ends.get(id).copied().filter(|header| counts(header.at.epoch)),
                start: starts.get(id).copied().filter(|(start, _)| counts(start.at.epoch)),
                state: state.as_ref().filter(|_| entry.is_some() || !is_open(id)),
                live,
                doubtful: is_doubtful(id),
            }
            .view(step, &self.name)
        };
        order.into_iter().map(view).collect()
    }
}

/// What is known of one step.
struct StepFacts<'a> {
    entry: Option<&'a FrontierEntry>,
    end: Option<&'a Header>,
    start: Option<(&'a Start, Timestamp)>,
    state: Option<&'a Value>,
    live: bool,
    /// It must not be repeated blindly.
    doubtful: bool,
}

impl StepFacts<'_> {
    fn status(&self) -> StepStatus {
        let ended = self.end.map(|header| &header.phase);
        match (self.entry.map(|entry| entry.status), ended) {
            (Some(Status::Started), _) if self.live => StepStatus::Running,
            (Some(Status::Started), _) if self.doubtful => StepStatus::InDoubt,
            (Some(Status::Started), _) => StepStatus::Cut,
            (Some(Status::Waiting), _) => StepStatus::Waiting,
            (Some(Status::Failed), _) => StepStatus::Failed,
            (Some(Status::Ready), _) | (None, None) => StepStatus::Pending,
            (None, Some(Phase::Completed(_))) => StepStatus::Completed,
            (None, Some(Phase::Skipped(_))) => StepStatus::Skipped,
            (None, Some(Phase::Failed(_))) => StepStatus::Failed,
            (None, Some(_)) => StepStatus::Pending,
        }
    }

    fn view(&self, step: &StepId, branch: &BranchPath) -> StepView {
        let status = self.status();
        let failure = match self.end.map(|header| &header.phase) {
            Some(Phase::Failed(failure)) => Some(failure),
            _ => None,
        };
        let ending = match self.end.map(|header| &header.phase) {
            Some(Phase::Completed(ending)) => Some(ending),
            _ => failure.map(|failure| &failure.ending),
        };
        let finished = matches!(status, StepStatus::Completed | StepStatus::Failed | StepStatus::Skipped);
        let tried = self.start.map_or(0, |(start, _)| start.at.attempt);
        let ended = self.end.map_or(0, |header| header.at.attempt);
        StepView {
            id: step.to_string(),
            branch: branch.to_string(),
            status,
            attempts: self.entry.map_or(0, |entry| entry.at.attempt).max(tried).max(ended),
            exit_code: ending.and_then(|ending| ending.exit_code),
            outputs: self.outputs(step, ending),
            evidence: ClaimView::of_pack(self.end.and_then(|header| header.evidence.as_ref())),
            usage: self.end.and_then(|header| header.usage.clone()),
            started_at: self.start.map(|(_, at)| at),
            ended_at: self.end.filter(|_| finished).map(|header| header.created_at),
            error: failure.map(FailureView::from),
            holds_up: self.entry.is_some_and(|entry| entry.status == Status::Failed),
            log: ending.and_then(|ending| ending.log.clone()),
            command: ending.and_then(|ending| ending.command.clone()),
        }
    }

    /// Returns the outputs: from the header where they are small, else from the state.
    fn outputs(&self, step: &StepId, ending: Option<&Ending>) -> Map<String, Value> {
        let Some(ending) = ending else { return Map::new() };
        if ending.outputs_bytes.is_none() {
            return ending.outputs.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        }
        let outputs =
            self.state.and_then(|state| state.get("steps")?.get(step.as_str())?.get("outputs")?.as_object());
        outputs.cloned().unwrap_or_default()
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

fn sum<'a>(usages: impl Iterator<Item = &'a Usage>) -> Option<Usage> {
    usages.fold(None, |sum: Option<Usage>, usage| {
        let mut sum = sum.unwrap_or_default();
        sum.tokens_in = sum.tokens_in.saturating_add(usage.tokens_in);
        sum.tokens_out = sum.tokens_out.saturating_add(usage.tokens_out);
        sum.cost += usage.cost;
        Some(sum)
    })
}

fn summary(context: &Context, view: &ShowView, facts: &Shown) -> String {
    let output = &context.output;
    let entry = &facts.snapshot.entry;
    let frozen = entry.record.record();
    let progress = facts.progress();
    let changed = facts.at.as_ref().map_or(entry.summary.updated_at, |record| record.header().created_at);
    let mut text = format!("{}  {}\n", output.paint.bold(&view.run), painted(output, view.status));
    let mut fact = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "  {name:<11} {}", shown(value));
        }
    };
    if let Some(checkpoint) = &view.checkpoint {
        fact("checkpoint", &checkpoint.reference);
    }
    fact("workflow", &view.workflow);
    fact("file", view.path.as_deref().unwrap_or_default());
    fact("steps", &format!("{} of {} done", progress.done, progress.total));
    fact("started", &time::utc(frozen.created_at));
    fact("changed", &time::utc(changed));
    fact("checkpoints", &format!("{} ({} bytes)", entry.summary.checkpoints, entry.summary.bytes));
    if let Some(holder) = &entry.summary.holder {
        fact("held by", &holder.to_string());
    }
    if entry.summary.summary.lost > 0 {
        fact(
            "lost",
            &format!("{} checkpoints could not be written, which was tolerated", entry.summary.summary.lost),
        );
    }
    if frozen.durability == waypost::record::Durability::Async {
        fact("durability", "async: a power cut may lose the last moments");
    }
    fact("params", &pairs(&frozen.params));
    let labels = frozen.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
    fact("labels", &labels.join(", "));
    fact("parent", view.parent.as_deref().unwrap_or_default());
    text.push('\n');
    text.push_str(&step_table(output, &view.steps));
    text.push('\n');
    for step in view.steps.iter().filter(|step| step.status == StepStatus::Failed) {
        let _ = write!(text, "\n{}", failure(output, step));
    }
    if view.status == RunStatus::InDoubt {
        let _ = write!(text, "\nA person must decide: waypost why {}{}\n", view.run, context.store_words());
    } else if facts.goes_on() {
        let _ = write!(text, "\nGo on with: waypost resume {}{}\n", view.run, context.store_words());
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

fn step_table(output: &Output, steps: &[StepView]) -> String {
    let branches = steps.iter().any(|step| step.branch != "main");
    let row = |step: &StepView| {
        let lasted = step.started_at.zip(step.ended_at).map(|(start, end)| time::between(start, end));
        vec![
            step.id.clone(),
            if branches { step.branch.clone() } else { String::new() },
            step.status.name().to_owned(),
            if step.attempts > 1 { step.attempts.to_string() } else { String::new() },
            step.exit_code.map(|code| code.to_string()).unwrap_or_default(),
            lasted.unwrap_or_default(),
            pairs(&step.outputs),
        ]
    };
    let rows: Vec<Vec<String>> = steps.iter().map(row).collect();
    output.table(&["STEP", "BRANCH", "STATUS", "ATTEMPTS", "EXIT", "TOOK", "OUTPUTS"], &rows)
}

fn pairs(values: &Map<String, Value>) -> String {
    let pair = |(name, value): (&String, &Value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        format!("{name}={}", clipped(&text))
    };
    values.iter().map(pair).collect::<Vec<_>>().join(", ")
}

fn clipped(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut clipped: String = line.chars().take(VALUE_CHARACTERS_MAX).collect();
    if clipped.len() < text.trim_end_matches('\n').len() {
        clipped.push_str("...");
    }
    clipped
}

/// Shows why a step failed: the error with its causes, and the end of its log.
fn failure(output: &Output, step: &StepView) -> String {
    let Some(error) = &step.error else { return String::new() };
    let headline = match step.holds_up {
        true => output.paint.red(&format!("step {} failed:", step.id)),
        false => output.paint.yellow(&format!("step {} failed, which the workflow tolerates:", step.id)),
    };
    let mut text = format!("{headline} {}\n", shown(&error.message));
    for cause in &error.causes {
        let _ = writeln!(text, "  cause: {}", shown(cause));
    }
    if let Some(log) = step.log.as_ref().filter(|log| !log.tail.is_empty()) {
        for line in shown_lines(&log.tail).lines() {
            let _ = writeln!(text, "  {} {line}", output.paint.dim("|"));
        }
    }
    text
}

fn steps_in_full(output: &Output, steps: &[StepView]) -> String {
    let mut text = String::new();
    for step in steps {
        let _ = writeln!(text, "{}  {}", output.paint.bold(&step.id), step.status.name());
        let mut fact = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                let _ = writeln!(text, "  {name:<8} {}", shown_lines(&value).replace('\n', "\n           "));
            }
        };
        fact("branch", (step.branch != "main").then(|| step.branch.clone()));
        fact("attempts", Some(step.attempts.to_string()));
        fact("exit", step.exit_code.map(|code| code.to_string()));
        fact("started", step.started_at.map(time::utc));
        fact("ended", step.ended_at.map(time::utc));
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
            fact(
                "evidence",
                Some(format!("{:?} {} {}", claim.verdict, claim.kind, claim.subject).to_lowercase()),
            );
        }
        fact("log", step.log.as_ref().map(|log| format!("{} bytes", log.bytes)));
        text.push_str(&failure(output, step));
    }
    text
}
