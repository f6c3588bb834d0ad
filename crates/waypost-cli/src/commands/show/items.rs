//! The items of a step, or its passes, a page at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use waypost::id::readable;
use waypost::record::{End, FrontierEntry, Header, Phase, Record, Status, WaitKind};
use waypost::shape::Shape;
use waypost::store::{Scan, Store, StoreExt as _};
use waypost::{RunId, ScopePath, StepId};

use super::super::executions::further_executions;
use super::Context;
use crate::cli::{ItemStatusName, ItemsArgs};
use crate::error::Error;
use crate::format::text::quoted;
use crate::format::time;
use crate::output::shown;
use crate::run::dead_letters::{self, Fans};
use crate::run::idle_times::IdleTimes;
use crate::view::{ItemView, ShowView, StepStatus, StepView};

/// The default size of a page.
const LIMIT: u64 = 50;

/// The items of a page.
pub(super) struct ItemPage {
    pub(super) items: Vec<ItemView>,
    pub(super) next: Option<String>,
}

/// The step of a page.
pub(super) struct Opener<'a> {
    pub(super) step: &'a StepView,
    /// A process works on the run.
    pub(super) live: bool,
    pub(super) idle: IdleTimes,
    pub(super) shape: Option<Shape>,
}

impl ItemPage {
    /// Reads a page of the items of a step.
    pub(super) async fn read(
        store: &dyn Store,
        run: &RunId,
        opener: &Opener<'_>,
        args: &ItemsArgs,
    ) -> Result<Self, Error> {
        let step = opener.step;
        let mut opened = opened(store, run, step).await?;
        if opened.is_empty() && (args.status.is_some() || args.limit.is_some() || args.after.is_some()) {
            let message = format!("step `{}` of run {run} has no items", step.id);
            return Err(Error::usage(
                message,
                "`--status`, `--limit` and `--after` select items of a `foreach`",
            ));
        }
        if let Some(after) = &args.after {
            let place = opened.iter().position(|(scope, _)| scope.as_str() == after).ok_or_else(|| {
                Error::not_found(format!("item `{after}` of step `{}`", step.id), "use the `next` of a page")
            })?;
            opened.drain(..=place);
        }
        let (wanted, limit) = (args.status.map(StepStatus::from), args.limit.unwrap_or(LIMIT) as usize);
        let mut page = Self { items: Vec::new(), next: None };
        let mut fans = Fans::default();
        for (scope, started_at) in opened {
            let newest = store.newest(run, &scope).await?;
            if !fans.has(store, run, &newest).await? {
                continue;
            }
            let status = status(&newest, opener);
            if wanted.is_some_and(|wanted| wanted != status) {
                continue;
            }
            if page.items.len() == limit {
                page.next = page.items.last().map(|item| item.scope.clone());
                break;
            }
            page.items.push(item((store, run), opener, &newest, (status, started_at)).await?);
        }
        Ok(page)
    }
}

/// Returns the scopes of the items that started, in order, with their starts.
async fn opened(
    store: &dyn Store,
    run: &RunId,
    step: &StepView,
) -> Result<Vec<(ScopePath, Timestamp)>, Error> {
    let mut opened = Vec::new();
    let is_item = |scope: &ScopePath| {
        let is_below = scope.parent().is_some_and(|above| above.as_str() == step.scope);
        let by_step = scope.opened_by().is_some_and(|(opener, _)| opener.as_str() == step.id);
        is_below && by_step && (scope.pass_number().is_none() || step.repeats)
    };
    let mut scan = Scan { seq_max: Some(1), ..Scan::of(run) };
    loop {
        let page = store.scan(&scan).await?;
        let headers = page.records.iter().map(Record::header).filter(|header| is_item(&header.scope));
        opened.extend(headers.map(|header| (header.scope.clone(), header.created_at)));
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(opened),
        }
    }
}

/// Returns the status of an item by its newest record.
fn status(newest: &Record, opener: &Opener<'_>) -> StepStatus {
    let live = opener.live;
    match newest.header().end {
        Some(End::Completed) => StepStatus::Completed,
        Some(End::Skipped) => StepStatus::Skipped,
        Some(End::Failed) => StepStatus::Failed,
        Some(End::Cancelled) => StepStatus::Cut,
        None => {
            let position = newest.position().unwrap_or_default();
            let own = opener.shape.as_ref().and_then(|shape| shape.of_scope(&newest.header().scope));
            let is_asked = |entry: &FrontierEntry| {
                entry.is_unsettled() && own.is_some_and(|own| own.must_ask(&position, &entry.step))
            };
            let frontier = &position.frontier;
            let has = |status: Status| frontier.iter().any(|entry| entry.status == status);
            let waits =
                frontier.iter().flat_map(|entry| &entry.waits).any(|wait| wait.on != WaitKind::Children);
            match () {
                () if waits => StepStatus::Waiting,
                () if has(Status::Started) && live => StepStatus::Running,
                () if frontier.iter().any(is_asked) => StepStatus::InDoubt,
                () if has(Status::Started) => StepStatus::Cut,
                () if has(Status::Failed) => StepStatus::Failed,
                () if live && frontier.iter().any(|entry| entry.at.attempt > 0) => StepStatus::Running,
                () => StepStatus::Pending,
            }
        }
    }
}

async fn item(
    (store, run): (&dyn Store, &RunId),
    opener: &Opener<'_>,
    newest: &Record,
    (status, opened_at): (StepStatus, Timestamp),
) -> Result<ItemView, Error> {
    let scope = &newest.header().scope;
    let (mut attempts, mut started_at) = (0, None);
    let mut work = WorkTime::default();
    let mut scan = Scan { scope: Some(scope.clone()), ..Scan::of(run) };
    loop {
        let page = store.scan(&scan).await?;
        for header in page.records.iter().map(Record::header) {
            work.take(header);
            if !header.started.is_empty() || header.phase.opens_work() {
                started_at.get_or_insert(header.created_at);
            }
            let starts = header.started.iter().map(|start| start.at.attempt);
            attempts = starts
                .chain([header.at.attempt + further_executions(header), attempts])
                .max()
                .unwrap_or_default();
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => break,
        }
    }
    let error = match status {
        StepStatus::Failed => match &dead_letters::cause(store, run, newest).await?.header().phase {
            Phase::Failed(failure) => failure.error.clone(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    Ok(ItemView {
        key: scope.opened_by().map(|(_, key)| key).unwrap_or_default(),
        scope: scope.to_string(),
        status,
        attempts,
        started_at: started_at.unwrap_or(opened_at),
        ended_at: newest.header().end.map(|_| newest.header().created_at),
        duration_ms: work.of(&opener.idle, (status == StepStatus::Running).then(time::now)),
        error,
    })
}

/// The time in which a step of a scope is at work. Steps at work at the same time count once.
#[derive(Default)]
struct WorkTime {
    at_work: BTreeMap<StepId, Timestamp>,
    /// The spans without overlap, in order.
    spans: Vec<(Timestamp, Timestamp)>,
}

impl WorkTime {
    /// Takes a record of the scope, in order.
    fn take(&mut self, header: &Header) {
        let is_open = header.phase.opens_work() || header.phase.opens_hooks();
        if let Some(step) = &header.step {
            if is_open {
                self.at_work.entry(step.clone()).or_insert(header.created_at);
            } else if !matches!(header.phase, Phase::Progress { .. })
                && let Some(since) = self.at_work.remove(step)
            {
                self.add(since, header.created_at);
            }
        }
        for start in &header.started {
            self.at_work.entry(start.step.clone()).or_insert(header.created_at);
        }
    }

    fn add(&mut self, mut since: Timestamp, mut until: Timestamp) {
        while let Some((begun, ended)) = self.spans.pop_if(|(_, ended)| *ended >= since) {
            (since, until) = (since.min(begun), until.max(ended));
        }
        self.spans.push((since, until));
    }

    /// Returns the time in milliseconds, without idle times; `now`: a step may be at work.
    fn of(mut self, idle: &IdleTimes, now: Option<Timestamp>) -> Option<u64> {
        for (_, since) in std::mem::take(&mut self.at_work) {
            self.add(since, now.unwrap_or(since));
        }
        (!self.spans.is_empty()).then_some(())?;
        self.spans.iter().map(|(since, until)| idle.work_ms(*since, *until)).sum()
    }
}

/// Formats a page of items as a table, with the command for the next page.
pub(super) fn table(context: &Context, view: &ShowView, args: &ItemsArgs) -> String {
    let has_retries = view.items.iter().any(|item| item.attempts > 1);
    let row = |item: &ItemView| {
        let took = item.duration_ms.map(|millis| time::lasted(Duration::from_millis(millis)));
        vec![
            if item.key.is_empty() { "\"\"".to_owned() } else { item.key.clone() },
            item.status.name().to_owned(),
            if has_retries && item.attempts > 0 { item.attempts.to_string() } else { String::new() },
            took.unwrap_or_default(),
            item.error.first().cloned().unwrap_or_default(),
        ]
    };
    let rows: Vec<Vec<String>> = view.items.iter().map(row).collect();
    let is_pass = |item: &ItemView| ScopePath::new(&item.scope).is_ok_and(|at| at.pass_number().is_some());
    let item = if view.items.iter().all(is_pass) { "ITERATION" } else { "ITEM" };
    let mut text = context.output.table(&[item, "STATUS", "ATTEMPTS", "TOOK", "ERROR"], &rows);
    if let Some((next, step)) = view.next.as_ref().zip(view.steps.first()) {
        let status = args.status.map(|status| format!(" --status {}", StepStatus::from(status).name()));
        let limit = args.limit.map(|limit| format!(" --limit {limit}"));
        let step = if step.scope == "main" {
            step.id.clone()
        } else {
            format!("{}/{}", readable(&step.scope), step.id)
        };
        text.push_str(&format!(
            "\nMore items: waypost show {} --step {}{}{} --after {}{}",
            view.run,
            quoted(&step),
            status.unwrap_or_default(),
            limit.unwrap_or_default(),
            quoted(&shown(next)),
            context.store_words()
        ));
    }
    text.push('\n');
    text
}

impl From<ItemStatusName> for StepStatus {
    fn from(name: ItemStatusName) -> Self {
        match name {
            ItemStatusName::Pending => Self::Pending,
            ItemStatusName::Running => Self::Running,
            ItemStatusName::Waiting => Self::Waiting,
            ItemStatusName::Completed => Self::Completed,
            ItemStatusName::Failed => Self::Failed,
            ItemStatusName::Skipped => Self::Skipped,
            ItemStatusName::Cut => Self::Cut,
            ItemStatusName::InDoubt => Self::InDoubt,
        }
    }
}
