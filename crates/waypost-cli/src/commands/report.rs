//! `waypost report`: the results of a run, as Markdown or an HTML page. Derived from records; writes only the
//! requested file.

use std::collections::HashMap;
use std::fs;

use jiff::Timestamp;
use waypost::engine::Snapshot;
use waypost::record::{Ending, Note, Phase, Record, Try, Usage};
use waypost::report::{SectionKey, head, section};
use waypost::store::{Scan, Store, StoreError};
use waypost::{BranchPath, RunId, StepId};

use super::{Context, graph, show};
use crate::cli::ReportArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::run::run_status;
use crate::store_location;
use crate::view::{ReportView, VERSION};

mod page;
mod picture;

pub(super) use page::escaped;

pub(crate) async fn report(context: &Context, args: ReportArgs) -> Result<Exit, Error> {
    let (store, run) = context.find(args.run.as_deref()).await?;
    args.out.as_deref().map(store_location::refuse_no_folder).transpose()?;
    let mut snapshot = Snapshot::read(store.as_ref(), &run).await?;
    run_status::correct_snapshot(store.as_ref(), &mut snapshot);
    let told = read(store.as_ref(), &run).await?;
    for reference in &told.damaged {
        let text =
            format!("checkpoint {reference} is damaged and omitted; `waypost verify {run}` shows details");
        context.output.warn(&context.with_store(&text));
    }
    let (format, text) = if args.html {
        let show = show::view_of(store.as_ref(), &run).await?;
        let workflow = show::workflow_in_force(&snapshot);
        let nodes = workflow.map(|workflow| graph::nodes_of_run(&workflow, &show, &told)).unwrap_or_default();
        let page = page::Page { snapshot: &snapshot, show: &show, told: &told, nodes, now: context.now() };
        ("html", page.text())
    } else {
        ("markdown", markdown(&snapshot, &told))
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
        context.output.answer(&format!("Wrote the report of run {run} to {}", file.display()))?;
    } else {
        context.output.answer(&text)?;
    }
    Ok(Exit::Done)
}

/// An attempt of a step, in order of records.
struct Bar {
    branch: BranchPath,
    step: StepId,
    at: Try,
    begin: Timestamp,
    /// `None` if the end is not recorded.
    end: Option<Timestamp>,
    outcome: &'static str,
}

/// The last outcome of a step, on a branch and in a pass.
struct StepEnd {
    key: SectionKey,
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
    places: HashMap<SectionKey, usize>,
    open: HashMap<(BranchPath, StepId, Try), usize>,
}

/// Reads all records of a run, oldest first, branch by branch.
pub(super) async fn read(store: &dyn Store, run: &RunId) -> Result<RunHistory, StoreError> {
    let mut told = RunHistory::default();
    let mut scan = Scan::of(run);
    loop {
        let page = store.scan(&scan).await?;
        for record in &page.records {
            told.take(record);
        }
        for damage in &page.damaged {
            told.damaged.push(crate::run::reference::damaged_reference(run, damage).to_string());
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(told),
        }
    }
}

impl RunHistory {
    /// Returns the last outcome of each step on each branch, oldest first.
    pub(super) fn ends(&self) -> impl Iterator<Item = (&BranchPath, &StepId, &'static str)> {
        let ended = self.ends.iter().filter(|ended| !ended.key.accepted);
        ended.map(|ended| (&ended.key.branch, &ended.key.step, ended.outcome))
    }

    fn take(&mut self, record: &Record) {
        let header = record.header();
        let outcome = match &header.phase {
            Phase::Completed(_) => Some("completed"),
            Phase::Failed(failure) if failure.tolerated => Some("tolerated"),
            Phase::Failed(_) => Some("failed"),
            Phase::Interrupted { .. } => Some("interrupted"),
            Phase::Skipped(_) => Some("skipped"),
            _ => None,
        };
        if let (Some(step), Some(outcome)) = (&header.step, outcome) {
            let key = (header.branch.clone(), step.clone(), header.at.clone());
            if let Some(bar) = self.open.remove(&key) {
                (self.bars[bar].end, self.bars[bar].outcome) = (Some(header.created_at), outcome);
            }
        }
        for start in &header.started {
            let key = (header.branch.clone(), start.step.clone(), start.at.clone());
            // An attempt continues after a wait for an answer or for items.
            if self.open.contains_key(&key) {
                continue;
            }
            self.open.insert(key, self.bars.len());
            self.bars.push(Bar {
                branch: header.branch.clone(),
                step: start.step.clone(),
                at: start.at.clone(),
                begin: header.created_at,
                end: None,
                outcome: "unfinished",
            });
        }
        if let Some(usage) = &header.usage {
            *self.usage.get_or_insert_default() += usage;
        }
        let Some(section) = section(record) else { return };
        let ending: Option<&Ending> = match &header.phase {
            Phase::Completed(ending) => Some(ending),
            Phase::Failed(failure) => Some(&failure.ending),
            _ => None,
        };
        let ended = StepEnd {
            key: section.key.clone(),
            text: section.text,
            outcome: outcome.unwrap_or(if section.key.accepted { "accepted" } else { "waiting" }),
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

fn markdown(snapshot: &Snapshot, told: &RunHistory) -> String {
    let mut text = head(snapshot.entry.record.record(), snapshot.status());
    told.ends.iter().for_each(|ended| text.push_str(&ended.text));
    text
}
