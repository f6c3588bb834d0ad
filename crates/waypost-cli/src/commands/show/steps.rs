//! The steps of a scope: by the position of the shown record, and by the headers of its effective history.
//!
//! Each source may be incomplete. If retention dropped the state, only the headers name running steps. If a
//! header is damaged, the state has the outcome, exit code and outputs of the step that ended there.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use serde_json::{Map, Value};
use waypost::record::{
    Ending, FrontierEntry, Header, Phase, Position, Reason, Record, SettledAs, SkipCause, Start, Status,
    Usage, WaitKind,
};
use waypost::shape::{Shape, Step, Unfinished};
use waypost::store::{History, Store, StoreExt as _};
use waypost::{ScopePath, StepId};

use super::super::executions::{events, further_executions, settled};
use crate::error::Error;
use crate::run::hooks;
use crate::view::{ClaimView, FailureView, ItemsView, StepStatus, StepView};

/// A shown scope.
pub(super) struct Scope {
    pub(super) name: ScopePath,
    /// The shown record, with its body unless retention dropped it.
    pub(super) record: Record,
    pub(super) history: History,
    /// All steps are shown, including those not begun.
    pub(super) whole: bool,
    /// A hook's scope: its outcome does not stop the run.
    pub(super) is_hook: bool,
}

impl Scope {
    /// Reads the history of a shown scope's record; `whole`: the requested scope.
    pub(super) async fn read(
        store: &dyn Store,
        record: Record,
        whole: Option<&ScopePath>,
    ) -> Result<Self, Error> {
        let name = record.header().scope.clone();
        let history = store.effective_history(&record.header().run, &name, record.header().seq).await?;
        Ok(Self { whole: whole == Some(&name), name, record, history, is_hook: false })
    }

    /// Returns the time of an effective record.
    pub(super) fn time_of(&self, seq: u64) -> Option<Timestamp> {
        self.history
            .records
            .iter()
            .map(Record::header)
            .find(|header| header.seq == seq)
            .map(|header| header.created_at)
    }

    /// Returns the seq of the record that opened hooks after the last attempt of a step; `None` without
    /// hooks, or after a skip.
    pub(super) fn opened_after(&self, step: &Step) -> Option<u64> {
        for header in self.history.records.iter().map(Record::header) {
            let is_tried = header.started.iter().any(|start| start.step == step.id);
            if is_tried && header.reason != Reason::Join {
                return None;
            }
            if header.step.as_ref() != Some(&step.id) {
                continue;
            }
            if header.phase.opens_hooks() {
                return Some(header.seq);
            }
            if header.phase.opens_work() || matches!(header.phase, Phase::Skipped(_)) {
                return None;
            }
        }
        None
    }

    /// Returns the position of the shown record; `None` if retention dropped it.
    pub(super) fn position(&self) -> Option<Position> {
        self.record.position().ok()
    }

    /// Returns whether the state of the record was dropped.
    pub(super) fn is_without_state(&self) -> bool {
        self.record.header().body.is_some() && self.record.body_bytes().is_none()
    }

    /// Returns the steps of the scope: those of the definition in order, then others.
    pub(super) fn steps<'a>(
        &'a self,
        known: impl Iterator<Item = &'a StepId>,
        live: bool,
        shape: Option<&Shape>,
    ) -> Vec<StepView> {
        let position = self.position();
        let own = shape.and_then(|shape| shape.of_scope(&self.name));
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
        let told = StepRecords::by(&self.history.records);
        let mut order: Vec<&StepId> = known.collect();
        if let Some(shape) = shape.filter(|_| self.whole) {
            let nowhere = Position::default();
            let own = hooks::steps_of(shape, &self.name, position.as_ref().unwrap_or(&nowhere));
            order.extend(own.into_iter().map(|step| &step.id));
        }
        let defined = order.len();
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
            // A step to rerun is shown as not done.
            let counts = |epoch: u32| match entry {
                Some(entry) => epoch >= entry.at.epoch,
                None => !is_open.unwrap_or(false),
            };
            let state = state.as_ref().filter(|_| entry.is_some() || !is_open.unwrap_or(false));
            let state = state.and_then(|state| state.get("steps")?.get(id));
            let settled = position.as_ref().and_then(|position| position.ledger.get(step));
            let is_finished = entry.is_none() && is_open.map_or(settled.is_some(), |open| !open);
            // For a step with reused results, the newest record is the reuse; its end is older.
            let ends_told = if is_finished { &told.finished } else { &told.ends };
            let end = ends_told.get(id).copied().filter(|header| counts(header.at.epoch));
            let fan = entry.and_then(|entry| entry.fan.as_ref());
            let fan = fan.or_else(|| position.as_ref().and_then(|position| position.joined(step)));
            let first_pass = fan.and_then(|fan| fan.passes.first());
            let is_its_end = |header: &&Header| settled.is_none_or(|settled| settled.seq <= header.seq);
            let facts = StepFacts {
                entry,
                standing,
                end: if is_finished { end.filter(is_its_end) } else { end },
                kept: is_finished.then(|| KeptOutputs::of(settled.map(|settled| settled.how), state)),
                usage: told.usage.get(id).cloned(),
                settled: told.settled.get(id).cloned(),
                opened: told.opened.get(id).filter(|(epoch, _)| counts(*epoch)).map(|(_, at)| *at),
                first_pass: first_pass.and_then(|pass| self.time_of(pass.since)),
                start: told.starts.get(id).copied().filter(|(start, _)| counts(start.at.epoch)),
                state,
                live,
                is_hook: self.is_hook,
                doubtful: is_doubtful(step),
                has_items: own
                    .and_then(|shape| shape.step(id))
                    .is_some_and(|step| step.children.as_ref().is_some_and(|children| children.by_work)),
            };
            facts.view(step, &self.name)
        };
        // A step that the definition no longer has is shown with its end only.
        let matters = |(at, view): &(usize, StepView)| {
            own.is_none() || *at < defined || view.status != StepStatus::Pending
        };
        order.into_iter().map(view).enumerate().filter(matters).map(|(_, view)| view).collect()
    }
}

/// Returns whether a record of this phase finishes a step.
fn ends(phase: &Phase) -> bool {
    match phase {
        Phase::Completed(_) | Phase::Skipped(_) => true,
        Phase::Failed(failure) => failure.tolerated,
        _ => false,
    }
}

/// Facts about each step from headers.
#[derive(Default)]
struct StepRecords<'a> {
    /// The last outcome.
    ends: HashMap<&'a str, &'a Header>,
    /// The last end that finished the step.
    finished: HashMap<&'a str, &'a Header>,
    /// The last start.
    starts: HashMap<&'a str, (&'a Start, Timestamp)>,
    /// The last opening of scopes without a later join, with its epoch.
    opened: HashMap<&'a str, (u32, Timestamp)>,
    /// Steps whose last start was a join.
    joins: HashSet<&'a str>,
    /// The status after the newest record; `None` if finished.
    standing: HashMap<&'a str, Option<Status>>,
    /// The usage of all attempts.
    usage: HashMap<&'a str, Usage>,
    /// The last decision of a person since the last start, with the person.
    settled: HashMap<&'a str, String>,
}

impl<'a> StepRecords<'a> {
    /// Processes headers, newest first.
    fn by(history: &'a [Record]) -> Self {
        let mut told = Self::default();
        for header in history.iter().map(Record::header) {
            for (name, data) in events(header) {
                let step = data["step"].as_str().filter(|step| !told.starts.contains_key(step));
                if let Some(step) = step.filter(|_| name == "step_settled") {
                    told.settled.entry(step).or_insert_with(|| settled(data));
                }
            }
            // Starts in a record come after its end.
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
                // The last attempt comes first: its model is shown.
                let model = || Usage { model: usage.model.clone(), ..Usage::default() };
                *told.usage.entry(step.as_str()).or_insert_with(model) += usage;
            }
            if header.phase.opens_hooks() {
                // The work of the step is in older records.
                told.starts.remove(step.as_str());
                told.joins.remove(step.as_str());
            }
            if header.phase.opens_work() && !told.starts.contains_key(step.as_str()) {
                told.opened.entry(step.as_str()).or_insert((header.at.epoch, header.created_at));
            }
            if header.phase.opens_work()
                && let Some((_, since)) = told.starts.get_mut(step.as_str())
                && told.joins.remove(step.as_str())
            {
                // The items were the step's work.
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

/// Facts about a finished step from position and state, whether or not its record is readable.
struct KeptOutputs {
    status: StepStatus,
    exit_code: Option<i32>,
}

impl KeptOutputs {
    fn of(settled: Option<SettledAs>, state: Option<&Value>) -> Self {
        let told = |name: &str| state.and_then(|state| state.get(name));
        let status = match (settled, told("status").and_then(Value::as_str)) {
            (Some(SettledAs::Skipped | SettledAs::SkippedByHand | SettledAs::PassedOver), _)
            | (None, Some("skipped")) => StepStatus::Skipped,
            (Some(SettledAs::Tolerated | SettledAs::Failed), _) | (None, Some("failed")) => {
                StepStatus::Failed
            }
            _ => StepStatus::Completed,
        };
        let code = told("exit_code").and_then(Value::as_i64).and_then(|code| i32::try_from(code).ok());
        // A state omits default values.
        let usual = (status == StepStatus::Completed && state.is_some()).then_some(0);
        Self { status, exit_code: code.or(usual) }
    }
}

/// All facts about a step.
struct StepFacts<'a> {
    entry: Option<&'a FrontierEntry>,
    /// The status, if not finished.
    standing: Option<Status>,
    end: Option<&'a Header>,
    /// Facts from position and state, if finished by the position.
    kept: Option<KeptOutputs>,
    /// The usage of all attempts.
    usage: Option<Usage>,
    /// How a person settled the step, and the person.
    settled: Option<String>,
    start: Option<(&'a Start, Timestamp)>,
    /// When the last execution opened its scopes, unless these were joined.
    opened: Option<Timestamp>,
    /// When the first of several passes began.
    first_pass: Option<Timestamp>,
    /// The step's entry in the state.
    state: Option<&'a Value>,
    live: bool,
    /// A step of a hook.
    is_hook: bool,
    /// The step is not idempotent.
    doubtful: bool,
    /// The step may have items.
    has_items: bool,
}

impl StepFacts<'_> {
    fn status(&self) -> StepStatus {
        let ended = self.end.map(|header| &header.phase);
        match (self.standing, ended) {
            (Some(Status::Started), _) if self.live => StepStatus::Running,
            (Some(Status::Started), _) if self.doubtful => StepStatus::InDoubt,
            (Some(Status::Started), _) => StepStatus::Cut,
            (Some(Status::Waiting), _) if self.live && self.waits_for_children() => StepStatus::Running,
            (Some(Status::Waiting), _) => StepStatus::Waiting,
            (Some(Status::Failed), _) => StepStatus::Failed,
            (Some(Status::Ready), _) => StepStatus::Pending,
            (None, Some(Phase::Completed(_))) => StepStatus::Completed,
            (None, Some(Phase::Skipped(_))) => StepStatus::Skipped,
            (None, Some(Phase::Failed(_))) => StepStatus::Failed,
            (None, _) => self.kept.as_ref().map_or(StepStatus::Pending, |kept| kept.status),
        }
    }

    fn waits_for_children(&self) -> bool {
        let only_children =
            |entry: &FrontierEntry| entry.waits.iter().all(|wait| wait.on == WaitKind::Children);
        self.entry.is_some_and(|entry| entry.has_children() && only_children(entry))
    }

    fn view(&self, step: &StepId, scope: &ScopePath) -> StepView {
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
        let ended = self.end.map_or(0, |header| header.at.attempt + further_executions(header));
        // Steps with scopes begin with the opening.
        let opened = u32::from(self.opened.is_some());
        StepView {
            id: step.to_string(),
            name: None,
            called: step.to_string(),
            repeats: false,
            scope: scope.to_string(),
            status,
            attempts: self.entry.map_or(0, |entry| entry.at.attempt).max(tried).max(ended).max(opened),
            exit_code: match kept {
                Some(kept) => kept.exit_code,
                None => ending.and_then(|ending| ending.exit_code),
            },
            items: self.items(),
            outputs: if kept.is_some() { self.outputs_kept() } else { self.outputs(ending) },
            evidence: ClaimView::of_pack(self.end.and_then(|header| header.evidence.as_ref())),
            settled: self.settled.clone(),
            usage: self.usage.clone(),
            started_at: self.first_pass.or(self.opened).or(self.start.map(|(_, at)| at)),
            ended_at: self.end.filter(|_| finished).map(|header| header.created_at),
            duration_ms: None,
            error: failure.map(FailureView::from),
            failed_item: None,
            holds_up: self.standing == Some(Status::Failed) && !self.is_hook,
            skipped: match self.end.map(|header| &header.phase) {
                Some(Phase::Skipped(cause)) => Some(cause.clone()),
                _ => None,
            },
            log: ending.and_then(|ending| ending.log.clone()).filter(|_| status != StepStatus::Running),
            log_bytes: None,
            next_try: self.entry.filter(|entry| entry.failures > 0).and_then(|entry| entry.wake_at),
            running: self.start.map(|(start, _)| start.at.clone()),
            command: ending.and_then(|ending| ending.command.clone()),
        }
    }

    /// Returns the item counts, if the step has items.
    fn items(&self) -> Option<ItemsView> {
        let count = |of: &Value, name: &str| of.get(name).and_then(Value::as_u64);
        if let Some(items) = self.state.and_then(|state| state.get("items")) {
            let (succeeded, failed) = (count(items, "succeeded"), count(items, "failed"));
            return Some(ItemsView { total: count(items, "total")?, succeeded, failed, dropped: 0 });
        }
        let fan = self.entry.filter(|_| self.has_items).and_then(|entry| entry.fan.as_ref())?;
        let failed = Some(fan.failures).filter(|failed| *failed > 0 && fan.opened == fan.total);
        let succeeded = failed.map(|failed| fan.total - failed);
        Some(ItemsView { total: fan.total, succeeded, failed, dropped: 0 })
    }

    /// Returns the outputs: from the header if small, else from the state.
    fn outputs(&self, ending: Option<&Ending>) -> Map<String, Value> {
        let Some(ending) = ending else { return Map::new() };
        if ending.outputs_bytes.is_none() {
            return ending.outputs.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        }
        self.outputs_kept()
    }

    /// Returns the outputs in the state.
    fn outputs_kept(&self) -> Map<String, Value> {
        let outputs = self.state.and_then(|state| state.get("outputs")?.as_object());
        outputs.cloned().unwrap_or_default()
    }
}
