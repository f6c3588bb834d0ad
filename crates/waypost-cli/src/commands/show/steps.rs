//! How the steps of a branch stand: by the position of the record shown, and by the headers of its effective history.
//!
//! Either may lack something. Where retention dropped the state, the headers alone tell what was under way. Where a header
//! is damaged, the state says of the step that ended there what became of it, with which exit code and outputs.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use serde_json::{Map, Value};
use waypost::record::{
    Ending, FrontierEntry, Header, Phase, Position, Reason, Record, SettledAs, SkipCause, Start, Status,
    Usage,
};
use waypost::shape::{Shape, Step, Unfinished};
use waypost::store::{History, Store, StoreExt as _};
use waypost::{BranchPath, StepId};

use crate::error::Error;
use crate::hooks;
use crate::view::{ClaimView, FailureView, ItemsView, StepStatus, StepView};

/// A branch that is shown.
pub(super) struct Branch {
    pub(super) name: BranchPath,
    /// The record shown, with its body unless retention dropped it.
    pub(super) record: Record,
    pub(super) history: History,
    /// All its steps are shown, also those that are not begun.
    pub(super) whole: bool,
    /// It is that of a hook: whatever became of it, the run goes on.
    pub(super) is_hook: bool,
}

impl Branch {
    /// Reads what the record of a branch that is shown continues; `whole`: the branch that was asked for.
    pub(super) async fn read(
        store: &dyn Store,
        record: Record,
        whole: Option<&BranchPath>,
    ) -> Result<Self, Error> {
        let name = record.header().branch.clone();
        let history = store.effective_history(&record.header().run, &name, record.header().seq).await?;
        Ok(Self { whole: whole == Some(&name), name, record, history, is_hook: false })
    }

    /// Returns the seq of the record with which hooks were opened after the last try of a step; none if it has none.
    pub(super) fn opened_after(&self, step: &Step) -> Option<u64> {
        for header in self.history.records.iter().map(Record::header) {
            let is_tried = header.started.iter().any(|start| start.step == step.id);
            if is_tried && header.reason != Reason::Join {
                return None;
            }
            if header.step.as_ref() != Some(&step.id) {
                continue;
            }
            if header.phase.opens_after() || (step.after.is_none() && header.phase.opens_work()) {
                return Some(header.seq);
            }
            if header.phase.opens_work() {
                return None;
            }
        }
        None
    }

    /// Returns the position of the record shown; none if retention dropped it.
    pub(super) fn position(&self) -> Option<Position> {
        self.record.position().ok()
    }

    /// Says whether the record had a state, which is not kept any more.
    pub(super) fn is_without_state(&self) -> bool {
        self.record.header().body.is_some() && self.record.body_bytes().is_none()
    }

    /// Shows the steps of the branch: those of the definition in its order, then any others.
    pub(super) fn steps<'a>(
        &'a self,
        known: impl Iterator<Item = &'a StepId>,
        live: bool,
        shape: Option<&Shape>,
    ) -> Vec<StepView> {
        let position = self.position();
        let own = shape.and_then(|shape| shape.of_branch(&self.name));
        let unfinished = own.zip(position.as_ref()).map(|(shape, position)| Unfinished::of(shape, position));
        let is_open = |step: &str| {
            let place = own.and_then(|shape| shape.place(step));
            unfinished.as_ref().zip(place).map(|(unfinished, place)| unfinished.has(place))
        };
        let is_doubtful = |step: &StepId| match (own, &position) {
            (Some(shape), Some(position)) => shape.must_ask(position, step),
            (Some(shape), None) => shape.step(step.as_str()).is_some_and(|step| !step.idempotent),
            (None, _) => false,
        };
        let frontier = position.iter().flat_map(Position::open_entries);
        let entries: HashMap<&str, &FrontierEntry> =
            frontier.map(|entry| (entry.step.as_str(), entry)).collect();
        let told = Told::by(&self.history.records);
        let mut order: Vec<&StepId> = known.collect();
        if let Some(shape) = shape.filter(|_| self.whole) {
            let nowhere = Position::default();
            let own = hooks::steps_of(shape, &self.name, position.as_ref().unwrap_or(&nowhere));
            order.extend(own.into_iter().map(|step| &step.id));
        }
        let mut listed: HashSet<&StepId> = order.iter().copied().collect();
        let headers = self.history.records.iter().rev().map(Record::header);
        let ended_or_begun = headers
            .flat_map(|header| header.step.iter().chain(header.started.iter().map(|start| &start.step)));
        let open = position.iter().flat_map(Position::open_entries).map(|entry| &entry.step);
        order.extend(ended_or_begun.chain(open).filter(|step| listed.insert(step)));
        let state = self.record.state_bytes().and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
        let view = |step: &StepId| {
            let id = step.as_str();
            let entry = entries.get(id).copied();
            let is_open = is_open(id);
            let standing = match position {
                Some(_) => entry.map(|entry| entry.status),
                None => told.standing.get(id).copied().flatten(),
            };
            // What is to be done again stands as if it had not been done.
            let counts = |epoch: u32| match entry {
                Some(entry) => epoch >= entry.at.epoch,
                None => !is_open.unwrap_or(false),
            };
            let state = state.as_ref().filter(|_| entry.is_some() || !is_open.unwrap_or(false));
            let state = state.and_then(|state| state.get("steps")?.get(id));
            let settled = position.as_ref().and_then(|position| position.ledger.get(step)).copied();
            let is_finished = entry.is_none() && is_open.map_or(settled.is_some(), |open| !open);
            // Of one whose results were used again, the newest word is that, and its end is before.
            let ends_told = if is_finished { &told.finished } else { &told.ends };
            let end = ends_told.get(id).copied().filter(|header| counts(header.at.epoch));
            let is_its_end = |header: &&Header| settled.is_none_or(|settled| settled.seq <= header.seq);
            let facts = StepFacts {
                entry,
                standing,
                end: if is_finished { end.filter(is_its_end) } else { end },
                kept: is_finished.then(|| Kept::of(settled.map(|settled| settled.how), state)),
                usage: told.usage.get(id).cloned(),
                start: told.starts.get(id).copied().filter(|(start, _)| counts(start.at.epoch)),
                state,
                live,
                is_hook: self.is_hook,
                doubtful: is_doubtful(step),
                has_items: own.and_then(|shape| shape.step(id)).is_some_and(|step| {
                    step.children.as_ref().is_some_and(|children| children.by_work && !children.afterwards)
                }),
            };
            facts.view(step, &self.name)
        };
        order.into_iter().map(view).collect()
    }
}

/// Says whether a step is finished by a record of this phase.
fn ends(phase: &Phase) -> bool {
    match phase {
        Phase::Completed(_) | Phase::Skipped(_) => true,
        Phase::Failed(failure) => failure.tolerated,
        _ => false,
    }
}

/// What headers tell of each step.
#[derive(Default)]
struct Told<'a> {
    /// What it came to last.
    ends: HashMap<&'a str, &'a Header>,
    /// With what it finished last.
    finished: HashMap<&'a str, &'a Header>,
    /// Its last start.
    starts: HashMap<&'a str, (&'a Start, Timestamp)>,
    /// Steps whose last start was to count what became of their items.
    joins: HashSet<&'a str>,
    /// How it stood after the last word about it; none where it was finished.
    standing: HashMap<&'a str, Option<Status>>,
    /// What all its tries used together.
    usage: HashMap<&'a str, Usage>,
}

impl<'a> Told<'a> {
    /// Takes headers, newest first.
    fn by(history: &'a [Record]) -> Self {
        let mut told = Self::default();
        for header in history.iter().map(Record::header) {
            // What a record starts comes after what ends in it.
            for start in &header.started {
                if header.reason == Reason::Join && !told.starts.contains_key(start.step.as_str()) {
                    told.joins.insert(start.step.as_str());
                }
                told.starts.entry(start.step.as_str()).or_insert((start, header.created_at));
                told.standing.entry(start.step.as_str()).or_insert(Some(Status::Started));
            }
            let Some(step) = &header.step else { continue };
            if let Phase::Skipped(SkipCause::UpstreamFailed(failed)) = &header.phase
                && told.starts.contains_key(failed.as_str())
            {
                // A retry of the failed step took this end out of force.
                told.standing.entry(step.as_str()).or_insert(Some(Status::Ready));
                continue;
            }
            if let Some(usage) = &header.usage {
                // The last try is met first: its model is the one shown.
                let model = || Usage { model: usage.model.clone(), ..Usage::default() };
                *told.usage.entry(step.as_str()).or_insert_with(model) += usage;
            }
            if header.phase.opens_after() {
                // What it did stands before.
                told.starts.remove(step.as_str());
                told.joins.remove(step.as_str());
            }
            if header.phase.opens_work()
                && let Some((_, since)) = told.starts.get_mut(step.as_str())
                && told.joins.remove(step.as_str())
            {
                // Its items were what it did.
                *since = header.created_at;
            }
            if !matches!(header.phase, Phase::Started) {
                told.ends.entry(step.as_str()).or_insert(header);
            }
            if ends(&header.phase) {
                told.finished.entry(step.as_str()).or_insert(header);
            }
            told.standing.entry(step.as_str()).or_insert(match &header.phase {
                Phase::Started | Phase::Progress { .. } => Some(Status::Started),
                Phase::Waiting(_) => Some(Status::Waiting),
                Phase::Failed(failure) if failure.retried => Some(Status::Ready),
                phase if ends(phase) => None,
                Phase::Failed(_) => Some(Status::Failed),
                _ => Some(Status::Ready),
            });
        }
        told
    }
}

/// What the position and the state keep of a step that is finished, whatever became of its record.
struct Kept {
    status: StepStatus,
    exit_code: Option<i32>,
}

impl Kept {
    fn of(settled: Option<SettledAs>, state: Option<&Value>) -> Self {
        let told = |name: &str| state.and_then(|state| state.get(name));
        let status = match (settled, told("status").and_then(Value::as_str)) {
            (Some(SettledAs::Skipped | SettledAs::PassedOver), _) | (None, Some("skipped")) => {
                StepStatus::Skipped
            }
            (Some(SettledAs::Tolerated | SettledAs::Failed), _) | (None, Some("failed")) => {
                StepStatus::Failed
            }
            _ => StepStatus::Completed,
        };
        let code = told("exit_code").and_then(Value::as_i64).and_then(|code| i32::try_from(code).ok());
        // What is usual is left out of a state.
        let usual = (status == StepStatus::Completed && state.is_some()).then_some(0);
        Self { status, exit_code: code.or(usual) }
    }
}

/// What is known of one step.
struct StepFacts<'a> {
    entry: Option<&'a FrontierEntry>,
    /// How far it is, if it is not finished.
    standing: Option<Status>,
    end: Option<&'a Header>,
    /// What is kept of it, if it is finished by the position.
    kept: Option<Kept>,
    /// What its tries used together.
    usage: Option<Usage>,
    start: Option<(&'a Start, Timestamp)>,
    /// What the state has of it.
    state: Option<&'a Value>,
    live: bool,
    /// It is a step of a hook.
    is_hook: bool,
    /// It must not be repeated blindly.
    doubtful: bool,
    /// It may be over items.
    has_items: bool,
}

impl StepFacts<'_> {
    fn status(&self) -> StepStatus {
        let ended = self.end.map(|header| &header.phase);
        match (self.standing, ended) {
            (Some(Status::Started), _) if self.live => StepStatus::Running,
            (Some(Status::Started), _) if self.doubtful => StepStatus::InDoubt,
            (Some(Status::Started), _) => StepStatus::Cut,
            (Some(Status::Waiting), _) => StepStatus::Waiting,
            (Some(Status::Failed), _) => StepStatus::Failed,
            (Some(Status::Ready), _) => StepStatus::Pending,
            (None, Some(Phase::Completed(_))) => StepStatus::Completed,
            (None, Some(Phase::Skipped(_))) => StepStatus::Skipped,
            (None, Some(Phase::Failed(_))) => StepStatus::Failed,
            (None, _) => self.kept.as_ref().map_or(StepStatus::Pending, |kept| kept.status),
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
        let kept = self.kept.as_ref().filter(|_| self.end.is_none());
        let finished = matches!(status, StepStatus::Completed | StepStatus::Failed | StepStatus::Skipped);
        let tried = self.start.map_or(0, |(start, _)| start.at.attempt);
        let ended = self.end.map_or(0, |header| header.at.attempt);
        StepView {
            id: step.to_string(),
            name: None,
            branch: branch.to_string(),
            status,
            attempts: self.entry.map_or(0, |entry| entry.at.attempt).max(tried).max(ended),
            exit_code: match kept {
                Some(kept) => kept.exit_code,
                None => ending.and_then(|ending| ending.exit_code),
            },
            items: self.items(),
            outputs: if kept.is_some() { self.outputs_kept() } else { self.outputs(ending) },
            evidence: ClaimView::of_pack(self.end.and_then(|header| header.evidence.as_ref())),
            usage: self.usage.clone(),
            started_at: self.start.map(|(_, at)| at),
            ended_at: self.end.filter(|_| finished).map(|header| header.created_at),
            error: failure.map(FailureView::from),
            failed_item: None,
            holds_up: self.standing == Some(Status::Failed) && !self.is_hook,
            passed_over: matches!(
                self.end.map(|header| &header.phase),
                Some(Phase::Skipped(SkipCause::UpstreamFailed(_)))
            ),
            log: ending.and_then(|ending| ending.log.clone()),
            command: ending.and_then(|ending| ending.command.clone()),
        }
    }

    /// Returns what became of its items, or how many there are, if it works on some.
    fn items(&self) -> Option<ItemsView> {
        let count = |of: &Value, name: &str| of.get(name).and_then(Value::as_u64);
        if let Some(items) = self.state.and_then(|state| state.get("items")) {
            let (succeeded, failed) = (count(items, "succeeded"), count(items, "failed"));
            return Some(ItemsView { total: count(items, "total")?, succeeded, failed });
        }
        let fan = self.entry.filter(|_| self.has_items).and_then(|entry| entry.fan.as_ref()?.of_work())?;
        Some(ItemsView { total: fan.total, succeeded: None, failed: None })
    }

    /// Returns the outputs: from the header where they are small, else from the state.
    fn outputs(&self, ending: Option<&Ending>) -> Map<String, Value> {
        let Some(ending) = ending else { return Map::new() };
        if ending.outputs_bytes.is_none() {
            return ending.outputs.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        }
        self.outputs_kept()
    }

    /// Returns the outputs that the state has.
    fn outputs_kept(&self) -> Map<String, Value> {
        let outputs = self.state.and_then(|state| state.get("outputs")?.as_object());
        outputs.cloned().unwrap_or_default()
    }
}
