//! Decides what starts with the next commit: steps, children, joins. Skips and holds are decided here, once.

use jiff::Timestamp;

use crate::record::{
    End, Failure, FailureKind, Fan, FrontierEntry, Phase, Position, Reason, RunStatus, Settled, Status, Try,
    Wait, WaitKind,
};
use crate::shape::{Children, OnChildFailure};
use crate::store::{Progress, Scan, ScanOrder, SignalKind, StoreError};

use super::begin::decode_state;
use super::chain::Chain;
use super::fan::{CHILD_PAGE, FanOut, Item, Items, Queued, freeze};
use super::line::{Line, LineId, MAIN, Opener};
use super::session::Session;
use super::{Admission, Program, RunError, Settlement};

/// The key of a hold before a step; the one after step `a` is `after a`.
const BEFORE: &str = "before";

impl<'a, P: Program> Session<'a, P> {
    /// Decides the starts of the very first batch, under no lease yet: nothing is opened.
    pub(super) fn schedule_first(&mut self) {
        let now = self.engine.clock.now();
        let _ = self.start_ready(MAIN, now);
    }

    /// Decides what starts with the next commit: as much as may run at once.
    pub(super) async fn schedule(&mut self) -> Result<(), RunError> {
        let now = self.engine.clock.now();
        while let Some(id) = self.touched.pop_first() {
            if self.lines.find(id).is_none() {
                continue;
            }
            if !self.is_stopping() {
                for place in self.start_ready(id, now) {
                    self.open(id, place).await?;
                }
                self.fill_fans(id).await?;
            }
            self.close_if_done(id);
            self.set_timer(id);
        }
        Ok(())
    }

    fn is_stopping(&self) -> bool {
        self.halted || self.options.stop.asked().is_some()
    }

    /// Marks what starts on one branch, and returns the steps that must open children first.
    fn start_ready(&mut self, id: LineId, now: Timestamp) -> Vec<usize> {
        let mut openings = Vec::new();
        loop {
            let line = self.lines.get(id);
            if self.is_stopping() || line.end.is_some() || line.cancel.asked().is_some() {
                return openings;
            }
            if line.active() + openings.len() >= line.shape.parallel_max() {
                return openings;
            }
            let wanted = self.wanted.as_deref().filter(|_| id == MAIN);
            let free = |place: &usize| !openings.contains(place);
            let Some(place) = line.next_ready(now, wanted, free) else { return openings };
            if self.hold_before(id, place) || self.is_over_limit(id, place) {
                continue;
            }
            self.decide(id, place, &mut openings);
        }
    }

    fn decide(&mut self, id: LineId, place: usize, openings: &mut Vec<usize>) {
        let program = self.program;
        let line = self.lines.get(id);
        let step = &line.shape.steps()[place];
        let opens = step.children.is_some() && line.entry(place).fan.is_none();
        // What was admitted before is not asked again: it has waited, or was tried.
        let asked = line.entry(place).at.attempt > 0 || line.entry(place).fan.is_some();
        let admitted = if asked { Ok(Admission::Run) } else { program.admit(line.spot(place), &line.state) };
        match admitted {
            Ok(Admission::Skip(cause)) => self.skip(id, place, cause),
            // A condition that cannot be evaluated fails the step when it starts.
            Ok(Admission::Run) | Err(_) if opens => openings.push(place),
            Ok(Admission::Run) | Err(_) if step.idempotent => {
                let joins = line.entry(place).fan.is_some();
                let line = self.lines.get_mut(id);
                line.mark_started(place);
                line.starting.push(place);
                if joins {
                    line.reason = Reason::Join;
                }
                self.launching.insert(id);
                self.mark_dirty(id);
            }
            Ok(Admission::Run) | Err(_) => {
                self.lines.get_mut(id).alone.push(place);
                self.launching.insert(id);
            }
        }
    }

    fn skip(&mut self, id: LineId, place: usize, cause: crate::record::SkipCause) {
        let program = self.program;
        let line = self.lines.get_mut(id);
        let follow = {
            let Line { chain, shape, state, .. } = &mut *line;
            let step = &shape.steps()[place];
            let spot = super::Spot { branch: &chain.branch, level: shape.level(), place, step };
            program.apply(state, spot, Settlement::Skipped)
        };
        let at = Try { attempt: 0, ..line.entry(place).at.clone() };
        let step = line.step_id(place).clone();
        let reason = line.reason;
        match follow {
            Ok(follow) => {
                let settled = Some(Settled::Skipped(line.seq_of_next_draft()));
                line.settle(place, settled, follow);
                line.draft(Phase::Skipped(cause), reason, step, at);
                self.mark_dirty(id);
            }
            Err(failure) => self.fail(id, place, failure, super::Told::default()),
        }
    }

    /// Holds a step back if that was asked for; a resume lets it pass.
    fn hold_before(&mut self, id: LineId, place: usize) -> bool {
        let line = self.lines.get_mut(id);
        let entry = line.entry(place);
        let new = entry.at.attempt == 0 && entry.memos == 0 && entry.fan.is_none();
        let asked = self.options.interrupts.before.contains(&entry.step);
        if !new || !asked || line.passed.contains(&place) {
            return false;
        }
        let (step, at) = (entry.step.clone(), entry.at.clone());
        let wait = hold(BEFORE.to_owned());
        let entry = line.entry_mut(place);
        entry.status = Status::Waiting;
        entry.since = 0;
        entry.waits = vec![wait];
        let by = format!("held before `{step}`");
        line.draft(Phase::Interrupted { in_progress: false, by }, Reason::Interrupt, step, at);
        self.mark_dirty(id);
        true
    }

    /// Fails a step that the step limit does not allow.
    fn is_over_limit(&mut self, id: LineId, place: usize) -> bool {
        let Some(limit) = self.options.step_limit else { return false };
        if self.lines.get(id).position.steps_started < limit {
            return false;
        }
        let text = format!("the step limit of {limit} is reached; it counts all steps since the run began");
        self.fail(id, place, Failure::new(FailureKind::Limit, vec![text]), super::Told::default());
        true
    }

    /// Begins a fan-out: items are frozen, and the step waits for its children.
    async fn open(&mut self, id: LineId, place: usize) -> Result<(), RunError> {
        let line = self.lines.get(id);
        let children = children_of(line, place);
        let mut items = None;
        let source = if children.named.is_empty() {
            let opened = self.program.open(line.spot(place), &line.state).and_then(check_items);
            let list = match opened {
                Ok(list) => list,
                Err(failure) => {
                    self.lines.get_mut(id).mark_started(place);
                    self.fail(id, place, failure, super::Told::default());
                    return Ok(());
                }
            };
            let (name, lease) = (self.blob_name(id, place), self.lease().clone());
            let frozen = freeze(self.engine.store.as_ref(), &lease, name, &list).await?;
            items = Some(frozen.clone());
            let total = list.len() as u64;
            (Items::Frozen { run: line.chain.run.clone(), at: frozen }, total)
        } else {
            (Items::named(&children.named), children.named.len() as u64)
        };
        let (source, total) = source;
        let line = self.lines.get_mut(id);
        let entry = line.entry_mut(place);
        let at = entry.at.clone();
        let revisited = at.epoch > 0 || at.iteration.iter().any(|pass| *pass > 1);
        let wait =
            Wait { id: String::new(), key: "children".to_owned(), on: WaitKind::Children, question: None };
        entry.status = Status::Waiting;
        entry.since = 0;
        entry.waits = vec![wait.clone()];
        entry.fan = Some(Fan { items, total, opened: 0, since: 0 });
        let step = entry.step.clone();
        line.draft(Phase::Waiting(vec![wait]), Reason::Fork, step, at);
        line.fans.push(FanOut::new(place, source, total, revisited));
        self.mark_dirty(id);
        Ok(())
    }

    /// Names the blob of frozen items, a new one for each opening.
    fn blob_name(&self, id: LineId, place: usize) -> String {
        let line = self.lines.get(id);
        let (branch, seq) = (line.branch().file_name(), line.seq_of_next_draft());
        format!("items/{branch}.{}.{}.{seq}.jsonl", line.step_id(place), self.lease().token())
    }

    /// Starts as many children of a branch's fan-outs as may be at work; joins those that have all ended.
    async fn fill_fans(&mut self, id: LineId) -> Result<(), RunError> {
        let places: Vec<usize> = self.lines.get(id).fans.iter().map(|fan| fan.place).collect();
        for place in places {
            if self.lines.get(id).entry(place).status != Status::Waiting {
                continue;
            }
            loop {
                let line = self.lines.get_mut(id);
                let parallel_max = children_of(line, place).parallel_max;
                let fan = line.fan_mut(place);
                if fan.stopped || fan.active >= parallel_max {
                    break;
                }
                if let Some(queued) = fan.queue.pop_front() {
                    self.begin_child(id, place, queued).await?;
                } else if fan.opened < fan.total {
                    self.open_page(id, place).await?;
                } else {
                    break;
                }
            }
            if self.lines.get_mut(id).fan_mut(place).is_complete() {
                self.join(id, place).await?;
            }
        }
        Ok(())
    }

    /// Readies the step that joins children which have all ended.
    async fn join(&mut self, id: LineId, place: usize) -> Result<(), RunError> {
        self.gather(id, place).await?;
        let line = self.lines.get_mut(id);
        let dead = line.fan_mut(place).failed;
        line.position.dead += dead;
        let entry = line.entry_mut(place);
        entry.status = Status::Ready;
        entry.waits.clear();
        self.touched.insert(id);
        Ok(())
    }

    /// Looks up the ends of children that ended before this session.
    async fn gather(&mut self, id: LineId, place: usize) -> Result<(), RunError> {
        let line = self.lines.get(id);
        let fan = line.fans.iter().find(|fan| fan.place == place).expect("the fan-out is under way");
        let unknown: u64 = fan.ended - fan.ended_here;
        if unknown == 0 {
            return Ok(());
        }
        let (branch, run, step) =
            (line.branch().clone(), line.chain.run.clone(), line.step_id(place).clone());
        let here: Vec<bool> = (0..fan.total).map(|index| fan.is_ended_here(index)).collect();
        let mut reader = fan.source.reader(self.engine.store.clone(), 0).await?;
        let (mut failed, mut digests) = (0, Vec::new());
        while let Some(item) = reader.next().await? {
            if here[item.index as usize] {
                continue;
            }
            let child = branch.child(&step, &item.key).map_err(|e| StoreError::Invalid(e.to_string()))?;
            let scan =
                Scan { branch: Some(child), order: ScanOrder::NewestFirst, limit: 1, ..Scan::of(&run) };
            let found = self.engine.store.scan(&scan).await?;
            if let Some(record) = found.records.first() {
                failed += u64::from(record.header().end == Some(End::Failed));
                digests.push((item.index, record.digest()));
            }
        }
        let fan = self.lines.get_mut(id).fan_mut(place);
        fan.failed += failed;
        digests.into_iter().for_each(|(index, digest)| fan.keep_digest(index, digest));
        Ok(())
    }

    /// Opens the next page of children. Those for which there is room begin at once, the others are only recorded.
    async fn open_page(&mut self, id: LineId, place: usize) -> Result<(), RunError> {
        let line = self.lines.get_mut(id);
        let around = line.entry(place).at.iteration.clone();
        let epoch = line.entry(place).at.epoch;
        let parallel_max = children_of(line, place).parallel_max;
        let shape = &*children_of(line, place).shape;
        let fan = line.fan_mut(place);
        let (page, revisited) = ((fan.total - fan.opened).min(CHILD_PAGE), fan.revisited);
        let (source, opened) = (fan.source.clone(), fan.opened);
        let mut reader = match fan.reader.take() {
            Some(reader) => reader,
            None => source.reader(self.engine.store.clone(), opened).await?,
        };
        for _ in 0..page {
            let missing = || StoreError::Invalid("there are fewer frozen items than were counted".to_owned());
            let item = reader.next().await?.ok_or_else(missing)?;
            let line = self.lines.get(id);
            let spot = line.spot(place);
            let state = match self.program.child(spot, &line.state, &item) {
                Ok(state) => state,
                Err(failure) => {
                    self.lines.get_mut(id).entry_mut(place).fan = None;
                    self.lines.get_mut(id).fans.retain(|fan| fan.place != place);
                    self.fail(id, place, failure, super::Told::default());
                    return Ok(());
                }
            };
            let chain = self.child_chain(id, place, &item, revisited).await?;
            let start = match &item.start {
                Some(step) => shape.place(step.as_str()).into_iter().collect(),
                None => shape.roots(),
            };
            let entry = |place: usize| {
                let mut entry = FrontierEntry::ready(shape.steps()[place].id.clone());
                entry.at.iteration = shape.first_iteration(place, &around);
                entry.at.epoch = epoch;
                entry
            };
            let frontier: Vec<_> = start.into_iter().map(entry).collect();
            let (step, at) = (frontier[0].step.clone(), frontier[0].at.clone());
            let position = Position { frontier, origin: Some(0), ..Position::default() };
            let mut child = Line::new(chain, shape, position, state);
            child.opener = Some(Opener { line: id, place, index: item.index });
            child.around.clone_from(&around);
            child.draft(Phase::Started, Reason::Fork, step, at);
            let fan = self.lines.get_mut(id).fan_mut(place);
            fan.opened += 1;
            child.parked = fan.active >= parallel_max;
            fan.active += usize::from(!child.parked);
            let parked = child.parked;
            let child = self.lines.add(child);
            self.mark_dirty(child);
            if !parked {
                self.touched.insert(child);
            }
        }
        self.record_page(id, place, reader);
        Ok(())
    }

    fn record_page(&mut self, id: LineId, place: usize, reader: super::fan::ItemReader) {
        let line = self.lines.get_mut(id);
        let fan = line.fan_mut(place);
        let opened = fan.opened;
        fan.reader = (opened < fan.total).then_some(reader);
        let entry = line.entry_mut(place);
        let (step, at) = (entry.step.clone(), entry.at.clone());
        if let Some(fan) = &mut entry.fan {
            fan.opened = opened;
        }
        // The first page goes with the record of the wait itself.
        if line.drafts.is_empty() {
            let value = serde_json::json!({ "opened": opened });
            line.draft(Phase::Progress { key: "children".to_owned(), value }, Reason::Fork, step, at);
        }
        self.mark_dirty(id);
    }

    /// Returns where the chain of a child goes on: at its begin, or behind what an earlier pass left.
    async fn child_chain(
        &mut self,
        id: LineId,
        place: usize,
        item: &Item,
        revisited: bool,
    ) -> Result<Chain, RunError> {
        let line = self.lines.get(id);
        let branch = line.branch().child(line.step_id(place), &item.key);
        let branch = branch.map_err(|error| StoreError::Invalid(error.to_string()))?;
        let mut chain = Chain::child(&line.chain, branch);
        if revisited {
            let scan = Scan {
                branch: Some(chain.branch.clone()),
                order: ScanOrder::NewestFirst,
                limit: 1,
                ..Scan::of(&chain.run)
            };
            let found = self.engine.store.scan(&scan).await?;
            let newest = found.records.first();
            let seq = newest.map_or(0, |record| record.header().seq);
            let damaged = found.damaged.iter().map(|damage| damage.seq).max().unwrap_or(0);
            if seq.max(damaged) > 0 {
                chain.next = seq.max(damaged) + 1;
                chain.prev = newest.map(crate::record::Record::digest);
                chain.basis = Some(0);
                chain.repair = damaged > seq;
            }
        }
        Ok(chain)
    }

    /// Takes a child up that was opened and has not begun.
    async fn begin_child(&mut self, id: LineId, place: usize, queued: Queued) -> Result<(), RunError> {
        let Queued { branch, index, seq } = queued;
        let parent = self.lines.get(id);
        let shape: &'a crate::shape::Shape = &children_of(parent, place).shape;
        let run = parent.chain.run.clone();
        let around = parent.entry(place).at.iteration.clone();
        let record = self.engine.store.load(&run, &branch, seq).await?;
        let position = super::snapshot::position_of(&record)?;
        let state = decode_state(self.program, shape.level(), &record)?;
        let mut chain = Chain::child(&self.lines.get(id).chain, branch);
        chain.next = seq + 1;
        chain.prev = Some(record.digest());
        let mut child = Line::new(chain, shape, position, state);
        child.opener = Some(Opener { line: id, place, index });
        child.around = around;
        let child = self.lines.add(child);
        self.lines.get_mut(id).fan_mut(place).active += 1;
        self.touched.insert(child);
        Ok(())
    }

    /// Ends a child branch on which nothing is left, and lets its opener know.
    fn close_if_done(&mut self, id: LineId) {
        let line = self.lines.get_mut(id);
        if id == MAIN || line.drafts.is_empty() || line.is_counted_out {
            return;
        }
        if line.end.is_none() && line.position.frontier.is_empty() {
            line.end = Some(End::Completed);
        }
        let Some(end) = line.end else {
            self.rest_if_waiting(id);
            return;
        };
        line.is_counted_out = true;
        let resting = line.is_resting;
        line.drafts.last_mut().expect("what ended was written").end = Some(end);
        let opener = line.opener.expect("a child has an opener");
        let fan = self.lines.get_mut(opener.line).fan_mut(opener.place);
        fan.active -= usize::from(!resting);
        fan.ended += 1;
        fan.mark_ended_here(opener.index);
        fan.failed += u64::from(end == End::Failed);
        self.touched.insert(opener.line);
    }

    /// A child that only waits makes room for its siblings; one that goes on takes it again.
    fn rest_if_waiting(&mut self, id: LineId) {
        let line = self.lines.get_mut(id);
        let rests = line.rests();
        if line.is_resting == rests {
            return;
        }
        line.is_resting = rests;
        let opener = line.opener.expect("a child has an opener");
        let fan = self.lines.get_mut(opener.line).fan_mut(opener.place);
        if rests {
            fan.active -= 1;
            self.touched.insert(opener.line);
        } else {
            fan.active += 1;
        }
    }

    fn set_timer(&mut self, id: LineId) {
        let Some(line) = self.lines.find(id) else { return };
        let due = line.next_due();
        let before = std::mem::replace(&mut line.timer, due);
        if before != due {
            if let Some(before) = before {
                self.timers.remove(&(before, id));
            }
            if let Some(due) = due {
                self.timers.insert((due, id));
            }
        }
    }

    /// Readies what is due.
    pub(super) fn wake(&mut self) {
        let now = self.engine.clock.now();
        while let Some((due, id)) = self.timers.first().copied() {
            if due > now {
                return;
            }
            self.timers.pop_first();
            let Some(line) = self.lines.find(id) else { continue };
            line.timer = None;
            line.wake(now);
            self.touched.insert(id);
        }
    }

    /// Hands out answers and signals that steps wait for.
    pub(super) async fn deliver_all(&mut self) -> Result<(), RunError> {
        if !self.lines.iter().any(|(_, line)| line.asks()) {
            return Ok(());
        }
        let run = self.main().chain.run.clone();
        for signal in self.engine.store.signals(&run).await? {
            if self.consumed.contains(&signal.id) {
                continue;
            }
            let (matches, value): (Box<dyn Fn(&Wait) -> bool>, _) = match signal.kind {
                SignalKind::Answer { wait, value } => (Box::new(move |w: &Wait| w.id == wait), value),
                SignalKind::Named { name, value } => {
                    (Box::new(move |w: &Wait| w.on == WaitKind::Signal(name.clone())), value)
                }
                SignalKind::Stop | SignalKind::Cancel => continue,
            };
            let meant = |line: &Line<'_, P::State>| {
                signal.branch.as_ref().is_none_or(|branch| branch == line.branch())
            };
            let found = self.lines.iter().filter(|(_, line)| meant(line));
            let found = found.filter_map(|(id, line)| Some((id, line.waiting_for(&matches)?))).next();
            if let Some((id, place)) = found {
                self.lines.get_mut(id).answer(place, &matches, value);
                self.consumed.push(signal.id);
                self.mark_dirty(id);
                self.touched.insert(id);
            }
        }
        Ok(())
    }

    /// Returns how the run stands if nothing goes on by itself any more.
    pub(super) fn standstill(&self) -> Option<RunStatus> {
        if !self.jobs.is_empty() || !self.launching.is_empty() || !self.touched.is_empty() {
            return None;
        }
        let main = self.main();
        if main.position.frontier.is_empty() && !main.is_held_at_end {
            let tolerated =
                main.position.ledger.values().any(|settled| matches!(settled, Settled::Tolerated(_)));
            let failures = tolerated || main.position.dead > 0;
            return Some(if failures { RunStatus::CompletedWithFailures } else { RunStatus::Completed });
        }
        let any = |test: &dyn Fn(&Line<'_, P::State>) -> bool| self.lines.iter().any(|(_, line)| test(line));
        if any(&|line| line.is_doubtful()) {
            return Some(RunStatus::InDoubt);
        }
        if self.halted || any(&|line| line.end.is_none() && line.has(Status::Failed)) {
            return Some(RunStatus::Failed);
        }
        if self.options.stop.asked().is_some() || any(&|line| line.has(Status::Started)) {
            return Some(RunStatus::Interrupted);
        }
        if self.lines.iter().any(|(id, line)| self.is_runnable(id, line)) {
            return None;
        }
        let held = any(&|line| line.is_held() || line.is_held_at_end);
        let waits = any(&|line| line.asks() || line.sleeps());
        Some(if waits && !held { RunStatus::Waiting } else { RunStatus::Interrupted })
    }

    fn is_runnable(&self, id: LineId, line: &Line<'_, P::State>) -> bool {
        let runnable = |entry: &FrontierEntry| {
            let place = line.shape.place(entry.step.as_str());
            let wanted = self.wanted.as_ref().filter(|_| id == MAIN);
            entry.status == Status::Ready
                && wanted.is_none_or(|wanted| place.is_some_and(|place| wanted[place]))
        };
        line.position.frontier.iter().any(runnable)
    }

    pub(super) fn progress(&self) -> Progress {
        let main = self.main();
        let total = main.shape.steps().len();
        Progress { done: (total - main.unfinished.count()) as u64, total: total as u64 }
    }
}

pub(super) fn children_of<'a, S>(line: &Line<'a, S>, place: usize) -> &'a Children {
    line.shape.steps()[place].children.as_ref().expect("only a step with children fans out")
}

/// A wait for a resume.
pub(super) fn hold(key: String) -> Wait {
    Wait { id: String::new(), key, on: WaitKind::Resume, question: None }
}

/// Refuses items of which two have one key, before anything is opened.
fn check_items(items: Vec<Item>) -> Result<Vec<Item>, Failure> {
    let mut keys = std::collections::HashSet::with_capacity(items.len());
    for item in &items {
        if !keys.insert(item.key.as_str()) {
            let text = format!("two items have the key `{}`; each branch needs its own", item.key);
            return Err(Failure::new(FailureKind::Error, vec![text]));
        }
    }
    Ok(items)
}

/// Says whether the failure of a branch ends only that branch.
pub(super) fn collects<S>(line: &Line<'_, S>, place: usize) -> bool {
    children_of(line, place).on_failure == OnChildFailure::Collect
}
