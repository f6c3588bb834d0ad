//! `waypost report`: the results of a run, as Markdown or an HTML page. Derived from records; writes only the
//! requested file.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use jiff::Timestamp;
use waypost::engine::Snapshot;
use waypost::record::{Ending, Note, Phase, Record, RunStatus, Try, Usage, WaitKind};
use waypost::report::{SectionKey, head, section};
use waypost::store::{Scan, Store, StoreError};
use waypost::{BranchPath, RunId, StepId};

use super::{Context, graph, show};
use crate::cli::{DeadLetter, ReportArgs};
use crate::error::Error;
use crate::exit::Exit;
use crate::output::shown;
use crate::run::dead_letters;
use crate::run::definition::{names_of, workflow_in_force};
use crate::run::doubt::doubts_of;
use crate::run::idle_times::IdleTimes;
use crate::run::run_status;
use crate::store_location;
use crate::view::doubt::{Answer, Doubt, answers};
use crate::view::step_names::StepNames;
use crate::view::{ReportView, VERSION};

/// Most dead letters in a report; `waypost dead-letters list` has all.
const LETTERS_MAX: usize = 50;

mod page;
mod timeline;

pub(super) use page::escaped;

pub(crate) async fn report(context: &Context, args: ReportArgs) -> Result<Exit, Error> {
    let (store, run) = context.find(args.run.as_deref()).await?;
    args.out.as_deref().map(store_location::refuse_no_folder).transpose()?;
    let mut snapshot = Snapshot::read(store.as_ref(), &run).await?;
    run_status::correct_snapshot(store.as_ref(), &mut snapshot);
    let names = names_of(&snapshot);
    let mut history = read(store.as_ref(), &run, &names).await?;
    for reference in &history.damaged {
        let text =
            format!("checkpoint {reference} is damaged and omitted; `waypost verify {run}` shows details");
        context.output.warn(&context.with_store(&text));
    }
    let doubts = match snapshot.status() {
        RunStatus::InDoubt => doubts_of(store.as_ref(), &snapshot, context.now()).await?,
        _ => Vec::new(),
    };
    history.mark(&doubts, &names);
    let workflow = workflow_in_force(&snapshot);
    let letters = dead_letters::letters(store.as_ref(), &run, workflow.as_ref()).await?;
    let (format, text) = if args.html {
        let show = show::view_of(store.as_ref(), &run).await?;
        let nodes = workflow.map(|workflow| graph::nodes_of_run(&workflow, &show, &history));
        let page = page::Page {
            snapshot: &snapshot,
            show: &show,
            names: &names,
            history: &history,
            letters: &letters,
            doubts: &doubts,
            nodes: nodes.unwrap_or_default(),
            now: context.now(),
        };
        ("html", page.text())
    } else {
        ("markdown", markdown(&snapshot, &history, (&doubts, &letters), &names))
    };
    if let Some(file) = &args.out {
        fs::write(file, &text).map_err(|source| Error::Create { path: file.clone(), source })?;
    }
    let status = snapshot.status();
    if context.output.json {
        let file = args.out.as_ref().map(|file| file.display().to_string());
        let text = args.out.is_none().then_some(text);
        context.output.document(&ReportView {
            v: VERSION,
            run: run.to_string(),
            status,
            format,
            file,
            text,
        })?;
    } else if let Some(file) = &args.out {
        context.output.done(&format!("Wrote the report of run {run} to {}", file.display()))?;
    } else {
        context.output.answer(&text)?;
    }
    Ok(Exit::Done)
}

/// The last session of a run, and its end: the last record, or now.
#[derive(Clone, Copy)]
struct LastSession {
    is_live: bool,
    end: Timestamp,
}

/// An attempt of a step, in order of records.
struct Bar {
    /// The path of the step.
    called: String,
    /// The `name` in the workflow file.
    name: Option<String>,
    at: Try,
    begin: Timestamp,
    /// `None` if the end is not recorded.
    end: Option<Timestamp>,
    outcome: &'static str,
    /// The attempt waits for its children or for a time, also over several sessions.
    is_waiting: bool,
}

/// The last outcome of a step, on a branch and in a pass.
struct StepEnd {
    key: SectionKey,
    /// The path of the scope.
    scope: String,
    text: String,
    outcome: &'static str,
    at: Timestamp,
    exit_code: Option<i32>,
    error: Option<String>,
    notes: Vec<Note>,
}

/// The content of a run's records.
#[derive(Default)]
pub(super) struct RunHistory {
    bars: Vec<Bar>,
    ends: Vec<StepEnd>,
    usage: Option<Usage>,
    damaged: Vec<String>,
    idle: IdleTimes,
    places: HashMap<SectionKey, usize>,
    open: HashMap<(BranchPath, StepId, Try), usize>,
}

/// Reads all records of a run, oldest first, branch by branch.
pub(super) async fn read(
    store: &dyn Store,
    run: &RunId,
    names: &StepNames,
) -> Result<RunHistory, StoreError> {
    let mut history = RunHistory::default();
    let mut scan = Scan::of(run);
    loop {
        let page = store.scan(&scan).await?;
        for record in &page.records {
            history.take(record, names);
        }
        for damage in &page.damaged {
            history.damaged.push(crate::run::reference::damaged_reference(run, damage).to_string());
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(history),
        }
    }
}

impl RunHistory {
    /// Returns outcome and end of an attempt. An attempt without a recorded end was cut at the end of its session,
    /// unless the attempt is under way, or its children are.
    fn end_of(&self, bar: &Bar, last: LastSession) -> (&'static str, Timestamp) {
        let session_end = self.idle.within(bar.begin, last.end).next().filter(|_| !bar.is_waiting);
        match (bar.end, session_end) {
            (Some(end), _) => (bar.outcome, end.max(bar.begin)),
            (None, Some((end, _))) => ("cut", end),
            (None, None) if last.is_live || bar.is_waiting => (bar.outcome, last.end.max(bar.begin)),
            (None, None) => ("cut", last.end.max(bar.begin)),
        }
    }

    /// Returns the time with an attempt under way, without waits.
    fn work(&self, last: LastSession) -> Duration {
        let attempts = self.bars.iter().filter(|bar| !bar.is_waiting);
        let mut spans: Vec<_> = attempts.map(|bar| (bar.begin, self.end_of(bar, last).1)).collect();
        spans.sort_unstable();
        let (mut work, mut counted) = (Duration::ZERO, Timestamp::MIN);
        for (begin, end) in spans {
            work += self.idle.work(begin.max(counted), end);
            counted = counted.max(end);
        }
        work
    }

    /// Marks the interrupted steps in doubt.
    fn mark(&mut self, doubts: &[Doubt], names: &StepNames) {
        for ended in self.ends.iter_mut().filter(|ended| ended.outcome == "interrupted") {
            let called = names.called(&ended.key.branch, ended.key.step.as_str());
            if doubts.iter().any(|doubt| doubt.step == called) {
                ended.outcome = RunStatus::InDoubt.name();
                ended.text = ended.text.replacen(": interrupted\n", ": in doubt\n", 1);
            }
        }
    }

    /// Returns the last outcome of each step on each branch, oldest first.
    pub(super) fn ends(&self) -> impl Iterator<Item = (&BranchPath, &StepId, &'static str)> {
        let ended = self.ends.iter().filter(|ended| !ended.key.accepted);
        ended.map(|ended| (&ended.key.branch, &ended.key.step, ended.outcome))
    }

    fn take(&mut self, record: &Record, names: &StepNames) {
        let header = record.header();
        let outcome = match &header.phase {
            Phase::Completed(_) => Some("completed"),
            Phase::Failed(failure) if failure.tolerated => Some("tolerated"),
            Phase::Failed(_) => Some("failed"),
            Phase::Interrupted { .. } => Some("interrupted"),
            Phase::Skipped(_) => Some("skipped"),
            Phase::Waiting(waits) if waits.iter().any(|wait| wait.on != WaitKind::Children) => {
                Some("waiting")
            }
            _ => None,
        };
        if header.branch.is_main() {
            self.idle.take(header);
        }
        if let (Some(step), Some(outcome)) = (&header.step, outcome) {
            let key = (header.branch.clone(), step.clone(), header.at.clone());
            if let Some(bar) = self.open.remove(&key) {
                (self.bars[bar].end, self.bars[bar].outcome) = (Some(header.created_at), outcome);
            }
        }
        let waits = match &header.phase {
            Phase::Waiting(_) => outcome.is_none(),
            Phase::Progress { key, .. } => key == "until",
            _ => false,
        };
        if let Some(step) = header.step.as_ref().filter(|_| waits) {
            let key = (header.branch.clone(), step.clone(), header.at.clone());
            self.open.get(&key).into_iter().for_each(|bar| self.bars[*bar].is_waiting = true);
        }
        for start in &header.started {
            let key = (header.branch.clone(), start.step.clone(), start.at.clone());
            // An attempt continues after a wait for items.
            if self.open.contains_key(&key) {
                continue;
            }
            self.open.insert(key, self.bars.len());
            self.bars.push(Bar {
                called: names.called(&header.branch, start.step.as_str()),
                name: names.name(&header.branch, start.step.as_str()).map(ToOwned::to_owned),
                at: start.at.clone(),
                begin: header.created_at,
                end: None,
                outcome: "unfinished",
                is_waiting: false,
            });
        }
        if let Some(usage) = &header.usage {
            *self.usage.get_or_insert_default() += usage;
        }
        let name = header.step.as_ref().and_then(|step| names.name(&header.branch, step.as_str()));
        let Some(section) = section(record, name) else { return };
        let ending: Option<&Ending> = match &header.phase {
            Phase::Completed(ending) => Some(ending),
            Phase::Failed(failure) => Some(&failure.ending),
            _ => None,
        };
        let ended = StepEnd {
            key: section.key.clone(),
            scope: names.path(&header.branch),
            text: plain(names, &section.text),
            outcome: outcome.unwrap_or(if section.key.accepted { "accepted" } else { "open" }),
            at: header.created_at,
            exit_code: ending.and_then(|ending| ending.exit_code),
            error: header.phase.failure().and_then(|failure| failure.error.first().cloned()),
            notes: header.notes.clone(),
        };
        match self.places.get(&section.key) {
            Some(place) => self.ends[*place] = ended,
            None => {
                self.places.insert(section.key, self.ends.len());
                self.ends.push(ended);
            }
        }
    }
}

/// Returns the command that resumes a run.
fn resume_of(snapshot: &Snapshot) -> String {
    format!("waypost resume {}", snapshot.entry.summary.run)
}

/// Returns a section with readable names of scopes; its marker stays.
fn plain(names: &StepNames, section: &str) -> String {
    let (marker, rest) = section.split_at(section.find('\n').unwrap_or(0));
    format!("{marker}{}", names.plain(rest))
}

fn markdown(
    snapshot: &Snapshot,
    history: &RunHistory,
    (doubts, letters): (&[Doubt], &[DeadLetter]),
    names: &StepNames,
) -> String {
    let mut text = head(snapshot.entry.record.record(), snapshot.status());
    if !doubts.is_empty() {
        text.push_str("## Questions\n\n");
        for Doubt { step, cause, .. } in doubts {
            text.push_str(&format!("- Step `{step}` needs a decision: {cause}\n"));
        }
        text.push_str("\nCheck the effects, then decide:\n\n");
        for Answer { command, does, .. } in answers(&resume_of(snapshot), doubts) {
            text.push_str(&format!("- `{command}` {does}\n"));
        }
        text.push('\n');
    }
    if !letters.is_empty() {
        text.push_str(&format!("## Dead letters: {}\n\n", letters.len()));
        for letter in letters.iter().take(LETTERS_MAX) {
            let place = dead_letters::place(letter, names);
            let error = names.plain(letter.failure.error.first().map_or("failed", String::as_str));
            text.push_str(&format!("- `{place}`: `{}`\n", shown(&error).replace('`', "'")));
        }
        let run = &snapshot.entry.summary.run;
        text.push_str(&format!(
            "\n`waypost dead-letters list {run}` lists all, `waypost dead-letters retry {run}` retries them\n\n"
        ));
    }
    // Without the marker of the section.
    let sections = history.ends.iter().filter_map(|ended| ended.text.split_once('\n'));
    sections.for_each(|(_, section)| text.push_str(section));
    text
}
