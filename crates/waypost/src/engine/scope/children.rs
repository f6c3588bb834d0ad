//! Opens children page by page, and starts these as capacity permits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::Value;

use crate::id::{Digest, ScopePath, StepId};
use crate::plan::shape::{Children, Shape};
use crate::projection::events::RerunCause;
use crate::record::{
    Failure, FailureKind, Fan, FrontierEntry, Header, Note, Phase, Position, Reason, Record, RerunKind,
    RerunRequest, Status, Trace, Wait,
};
use crate::store::{Head, Page, Store, StoreError, StoreExt as _};

use crate::engine::time_travel::rollback::epoch_in_pass;

use super::child_heads::NewestOf;
use super::fan_out::{
    CHILD_PAGE, FanOut, Item, ItemReader, Items, JoinedDigests, Queued, named_items, store_items,
};
use super::open_scopes;
use super::{ListedChildren, Opener, Scope, ScopeId};
use crate::engine::chain::Chain;
use crate::engine::inspect::position_of;
use crate::engine::manual::Edits;
use crate::engine::resume::begin::decode_state;
use crate::engine::resume::in_doubt::questions_at;
use crate::engine::resume::requested;
use crate::engine::resume::reruns::{Transition, to_rerun};
use crate::engine::session::Session;
use crate::engine::walk::failure::position_for_retry;
use crate::engine::walk::invalidate::{Invalidated, ReusePolicy, invalidated, reenter, upstream_of};
use crate::engine::walk::scheduler::{children_of, wait_for_children, wait_for_hooks};
use crate::engine::walk::trace::{EndResult, child_input, pins_of, trace_of, work_digests};
use crate::engine::{Answers, Performed, Program, RunError, StepReport};

mod earlier;

impl<'a, P: Program> Session<'a, P> {
    /// Begins a fan-out: stores the items, and lets the step wait for its children.
    pub(crate) async fn open(&mut self, id: ScopeId, place: usize) -> Result<(), RunError> {
        self.record_input(id, place);
        let scope = self.scopes.get(id);
        let children = children_of(scope, place);
        let opened = match named_items(children, scope.pass_of(place)) {
            Some(items) => Ok(Source::Named(items)),
            None => self.program.open(scope.step_ref(place), &scope.state).map(Source::Items),
        };
        match opened {
            Ok(items) => {
                self.open_as(
                    id,
                    FanOutStart {
                        place,
                        items,
                        report: StepReport::default(),
                        are_hooks: false,
                        joined: None,
                    },
                )
                .await
            }
            Err(failure) => Ok(Err(failure)),
        }
        .map(|opened| opened.unwrap_or_else(|failure| self.refuse_to_open(id, place, failure)))
    }

    /// Begins a fan-out over the items found by the work of a step, or over the hooks of the step.
    pub(crate) async fn open_listed(&mut self, id: ScopeId, listed: ListedChildren) -> Result<(), RunError> {
        let ListedChildren { place, items, report, are_hooks, failure, joined } = listed;
        let scope = self.scopes.get(id);
        if scope.cancel.is_asked() || scope.end.is_some() {
            self.take(id, place, Performed::Stopped { in_progress: true }, None);
            return Ok(());
        }
        let opening = FanOutStart { place, items: Source::Items(items), report, are_hooks, joined };
        // Each failure of the run has hooks of its own.
        let is_of_run = self.scopes.get(id).shape.steps()[place].is_for_hooks;
        let after_failure = failure.is_some()
            || is_of_run && self.failed_upstream(id, place).is_some()
            || are_hooks && self.has_failed_before(id, place).await?;
        match self.open_as(id, opening).await? {
            Ok(()) => self.scopes.get_mut(id).fan_mut(place).after_failure = after_failure,
            Err(refused) if are_hooks => {
                // The earlier result of the step counts.
                let text = format!("cannot run its steps downstream: {}", refused.error.join(": "));
                let report = StepReport { notes: vec![Note::Warning(text)], ..StepReport::default() };
                self.fail_now(id, place, failure.unwrap_or(refused), report);
            }
            Err(refused) => self.refuse_to_open(id, place, refused),
        }
        Ok(())
    }

    /// Returns whether the end of a step before this one is a failure: the hooks of an earlier success run again.
    async fn has_failed_before(&mut self, id: ScopeId, place: usize) -> Result<bool, RunError> {
        let scope = self.scopes.get(id);
        if !scope.position.may_have_children() {
            return Ok(false);
        }
        let (run, path, step) = (scope.chain.run.clone(), scope.path().clone(), scope.step_id(place).clone());
        let (store, newest) = (Arc::clone(&self.engine.store), scope.chain.next - 1);
        let ends = move |record: &Record| {
            let Header { step: of, phase, .. } = record.header();
            of.as_ref() == Some(&step) && matches!(phase, Phase::Completed(_) | Phase::Failed(_))
        };
        let before = store.find_back(&run, &path, newest, &ends).await?;
        Ok(before.is_some_and(|end| matches!(end.header().phase, Phase::Failed(_))))
    }

    /// Begins a fan-out. Returns a failure, and changes nothing, if the fan-out cannot begin.
    async fn open_as(&mut self, id: ScopeId, opening: FanOutStart) -> Result<Result<(), Failure>, RunError> {
        let FanOutStart { place, items, report, are_hooks, joined } = opening;
        let items = match items {
            Source::Items(list) => check_items(list).map(Source::Items),
            named @ Source::Named(_) => Ok(named),
        };
        let step = &self.scopes.get(id).shape.steps()[place];
        let children = if are_hooks { step.hooks.as_ref() } else { step.children.as_ref() };
        let children = children.expect("only a step with children fans out");
        let capacity = match &items {
            Ok(Source::Items(list)) => self.check_capacity(id, &children.name, list).await?,
            Ok(Source::Named(list)) => self.check_capacity(id, &children.name, list).await?,
            Err(_) => Ok(()),
        };
        let items = match items.and_then(|items| capacity.map(|()| items)) {
            Ok(items) => items,
            Err(failure) => return Ok(Err(failure)),
        };
        let (source, total, items) = match items {
            Source::Items(list) => {
                let (name, lease) = (self.blob_name(id, place), self.lease().clone());
                let frozen = store_items(self.engine.store.as_ref(), &lease, name, &list).await?;
                let run = self.scopes.get(id).chain.run.clone();
                let source = Items::Stored { run, at: Arc::new(frozen.clone()) };
                (source, list.len() as u64, Some(frozen))
            }
            Source::Named(list) => {
                let total = list.len() as u64;
                (Items::Named(list), total, None)
            }
        };
        let scope = self.scopes.get_mut(id);
        let entry = scope.entry_mut(place);
        let at = entry.at.clone();
        if !are_hooks {
            // The attempts to find the items are over; the attempts to join start again from the first.
            (entry.at.attempt, entry.failures) = (0, 0);
        }
        let is_again = at.epoch > 0 || at.iteration.iter().any(|pass| *pass > 1);
        let question = items.as_ref().map(|_| serde_json::json!({ "items": total }));
        let wait = if are_hooks { wait_for_hooks() } else { Wait { question, ..wait_for_children() } };
        entry.status = Status::Waiting;
        entry.since = 0;
        entry.waits = vec![wait.clone()];
        let step = entry.step.clone();
        let (pass, passes) = match children.passes {
            true => (scope.pass_of(place), scope.position.passes_before(&step)),
            false => (0, Vec::new()),
        };
        let passes = if pass > 1 { passes } else { Vec::new() };
        let relisted = std::mem::take(&mut scope.entry_mut(place).relisted);
        let keeps_digests = self.keeps_traces && are_hooks;
        let work_digests = keeps_digests.then(|| work_digests(report.evidence.as_ref(), joined));
        let is_relisted = !relisted.is_empty();
        let fan = Fan { work_digests, pass, passes, relisted, ..Fan::new(items, total) };
        let entry = scope.entry_mut(place);
        *(if are_hooks { &mut entry.hooks } else { &mut entry.fan }) = Some(fan);
        let draft = scope.draft(Phase::Waiting(vec![wait]), Reason::Fork, step, at);
        (draft.report, draft.children) = (report, joined.map(|joined| joined.root));
        let revisited = is_again || are_hooks || is_relisted || scope.position.may_have_children();
        scope.fans.retain(|fan| fan.place != place);
        scope.fans.push(FanOut::new(place, source, total, revisited));
        self.mark_dirty(id);
        Ok(Ok(()))
    }

    /// Fails a step that cannot open its scopes; no scope is open yet.
    fn refuse_to_open(&mut self, id: ScopeId, place: usize, failure: Failure) {
        let scope = self.scopes.get_mut(id);
        if scope.entry(place).status != Status::Started {
            scope.mark_started(place);
        }
        self.fail(id, place, failure, StepReport::default());
    }

    /// Returns the name of the blob for the items, new for each opening.
    fn blob_name(&self, id: ScopeId, place: usize) -> String {
        let scope = self.scopes.get(id);
        let (path, seq) = (scope.path().file_name(), scope.seq_of_next_draft());
        format!("items/{path}.{}.{}.{seq}.jsonl", scope.step_id(place), self.lease().token())
    }

    /// Looks up the ends of children that ended before this session. Returns whether all children have ended.
    ///
    /// If the scopes existed before this fan-out, damage may leave a child with records of an earlier fan-out
    /// only. The child is then opened again.
    pub(crate) async fn gather(&mut self, id: ScopeId, place: usize) -> Result<bool, RunError> {
        let scope = self.scopes.get(id);
        let fan = scope.fans.iter().find(|fan| fan.place == place).expect("the fan-out is under way");
        let unknown: u64 = fan.ended - fan.ended_here;
        if unknown == 0 {
            return Ok(true);
        }
        let revisited = fan.revisited;
        let (path, run) = (scope.path().clone(), scope.chain.run.clone());
        let children = children_of(scope, place).clone();
        let name = children.name.clone();
        let here: Vec<bool> = (0..fan.total).map(|index| fan.is_ended_here(index)).collect();
        let mut reader = fan.source.reader(self.engine.store.clone(), 0).await?;
        let store = self.engine.store.clone();
        let mut newest = NewestOf::new(store.as_ref(), run, (path.clone(), name.clone()), unknown);
        let (mut failed, mut ends, mut missing) = (0, Vec::new(), Vec::new());
        while let Some(item) = reader.next().await? {
            if here[item.index as usize] {
                continue;
            }
            if revisited {
                let earlier = self.earlier(id, place, &item).await?;
                if let Earlier::None(begin) = earlier {
                    missing.push((item, begin));
                    continue;
                }
            }
            let child = children.path(&path, &item.key).map_err(|e| StoreError::Invalid(e.to_string()))?;
            if let Some(last) = newest.of(&child).await? {
                failed += last.header().failures_with_it();
                ends.push((item.index, last));
            }
        }
        if !missing.is_empty() {
            for (item, begin) in missing {
                match self.state_of_child(id, place, &begin.in_place_of(&item)) {
                    Ok(state) => {
                        let fan = self.scopes.get_mut(id).fan_mut(place);
                        (fan.opened, fan.ended) = (fan.opened - 1, fan.ended - 1);
                        self.open_child(id, place, &item, state, *begin);
                    }
                    Err(failure) => {
                        self.not_opened(id, place, failure);
                        return Ok(false);
                    }
                }
            }
            return Ok(false);
        }
        let fan = self.scopes.get_mut(id).fan_mut(place);
        fan.failed += failed;
        ends.into_iter().for_each(|(index, last)| fan.keep_end(index, &last));
        Ok(true)
    }

    /// Opens the next page of children. Children start within the capacity; the others are only recorded.
    pub(crate) async fn open_page(&mut self, id: ScopeId, place: usize) -> Result<(), RunError> {
        let fan = self.scopes.get_mut(id).fan_mut(place);
        let page = (fan.total - fan.opened).min(CHILD_PAGE);
        let (source, opened) = (fan.source.clone(), fan.opened);
        let mut reader = match fan.reader.take() {
            Some(reader) => reader,
            None => source.reader(self.engine.store.clone(), opened).await?,
        };
        // A page is opened as a whole or not at all, even if the program refuses an item.
        let mut children = Vec::new();
        for _ in 0..page {
            let missing = || StoreError::Invalid("an item list is shorter than its count".to_owned());
            let item = reader.next().await?.ok_or_else(missing)?;
            match self.state_of_child(id, place, &item) {
                Ok(state) => children.push((item, state)),
                Err(failure) => {
                    self.not_opened(id, place, failure);
                    return Ok(());
                }
            }
        }
        let fan = self.scopes.get_mut(id).fan_mut(place);
        if fan.revisited && fan.cause.is_none() {
            let cause = self.cause_of_opener(id, place).await?;
            self.scopes.get_mut(id).fan_mut(place).cause = Some(cause);
        }
        for (item, state) in children {
            match self.earlier(id, place, &item).await? {
                Earlier::Ended => {
                    let fan = self.scopes.get_mut(id).fan_mut(place);
                    (fan.opened, fan.ended) = (fan.opened + 1, fan.ended + 1);
                }
                Earlier::Open(head) => {
                    self.scopes.get_mut(id).fan_mut(place).opened += 1;
                    if has_open_work(children_of(self.scopes.get(id), place), &head, &self.answers)? {
                        self.is_pausing = true;
                        continue;
                    }
                    let lease = self.lease().clone();
                    let opener = Opener { scope: id, place, index: item.index };
                    open_scopes::resume_child(self, &lease, opener, *head, (None, Edits::none())).await?;
                }
                Earlier::Relisted(head, after) => {
                    self.scopes.get_mut(id).fan_mut(place).opened += 1;
                    let lease = self.lease().clone();
                    let opener = Opener { scope: id, place, index: item.index };
                    let mut moved = Transition::in_next_fan_out(&head.record, *after);
                    self.note_reruns(id, place, &head.record, &mut moved)?;
                    open_scopes::resume_child(self, &lease, opener, *head, (Some(moved), Edits::none()))
                        .await?;
                }
                Earlier::None(begin) if begin.replaced.is_some() => {
                    match self.state_of_child(id, place, &begin.in_place_of(&item)) {
                        Ok(state) => self.open_child(id, place, &item, state, *begin),
                        Err(failure) => {
                            self.not_opened(id, place, failure);
                            return Ok(());
                        }
                    }
                }
                Earlier::None(begin) => self.open_child(id, place, &item, state, *begin),
            }
        }
        self.record_page(id, place, reader);
        Ok(())
    }

    /// Returns the first state of a child.
    fn state_of_child(&self, id: ScopeId, place: usize, item: &Item) -> Result<P::State, Failure> {
        let scope = self.scopes.get(id);
        self.program.child(scope.step_ref(place), &scope.state, item)
    }

    /// Fails a step with children that cannot be opened.
    fn not_opened(&mut self, id: ScopeId, place: usize, failure: Failure) {
        let scope = self.scopes.get_mut(id);
        if scope.runs_hooks(place) {
            return self.fail_now(id, place, failure, StepReport::default());
        }
        if scope.fan_mut(place).opened == 0 {
            scope.entry_mut(place).drop_children();
            scope.fans.retain(|fan| fan.place != place);
        } else {
            scope.fan_mut(place).stopped = true;
            self.cancel_children(id, place, None, "no more scopes can be opened");
        }
        self.fail(id, place, failure, StepReport::default());
    }

    pub(crate) fn open_child(
        &mut self,
        id: ScopeId,
        place: usize,
        item: &Item,
        state: P::State,
        begin: ChildStart,
    ) {
        let ChildStart { chain, epoch, before, finished, replaced, undone, done_before } = begin;
        let scope = self.scopes.get(id);
        let around = scope.entry(place).at.iteration.clone();
        let parallel_max = children_of(scope, place).parallel_max;
        let shape: &'a Shape = &children_of(scope, place).shape;
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
        let epoch_max = if chain.next > 1 { epoch.max(1) } else { 0 };
        let input = self.input_of_child(id, place, item);
        let is_reentered = before.is_some();
        let mut entered = self.reentered(id, place, &chain.scope, before);
        undone.iter().for_each(|step| drop(entered.ask_no_more(step)));
        done_before.iter().for_each(|step| entered.note_effect(step));
        let origin = Some(0);
        let position = Position {
            frontier,
            origin,
            epoch_max,
            input,
            item: replaced,
            entered_again: is_reentered,
            ..entered
        };
        let again = finished.iter().filter(|step| !position.has_result(step));
        let notes = self.invalidated_in((id, place), &chain.scope, again);
        let mut child = Scope::new(chain, shape, position, state);
        child.notes = notes;
        child.opener = Some(Opener { scope: id, place, index: item.index });
        child.outer_iteration = around;
        child.draft(Phase::Started, Reason::Fork, step, at);
        let fan = self.scopes.get_mut(id).fan_mut(place);
        fan.opened += 1;
        child.unloading = fan.active >= parallel_max;
        child.has_capacity = !child.unloading;
        fan.active += usize::from(child.has_capacity);
        let unloading = child.unloading;
        let child = self.scopes.add(child);
        self.mark_dirty(child);
        if unloading {
            self.scopes.get_mut(id).fan_mut(place).unloading.push_back(child);
        } else {
            self.touched.insert(child);
        }
    }

    /// Returns the position of a child that is entered again; an empty one for a new child.
    fn reentered(&self, id: ScopeId, place: usize, scope: &ScopePath, before: Option<Position>) -> Position {
        let shape = &children_of(self.scopes.get(id), place).shape;
        let asks = ReusePolicy::excluded(!self.answers.retries_all());
        let reruns_whole = self.reruns_whole(id, place, scope);
        let policy = if self.keeps_traces && !reruns_whole { ReusePolicy::Keep } else { asks };
        let mut entered = before.map_or_else(Position::default, |before| reenter(shape, before, policy));
        requested::apply(self.program.shape(), &self.main().position.requests, scope, &mut entered, asks);
        if reruns_whole {
            let openers = shape.steps().iter().filter(|step| step.opens());
            entered.rerun_whole.extend(openers.map(|step| step.id.clone()));
        }
        entered
    }

    /// Notes the finished steps of a continued child that run again.
    fn note_reruns(
        &self,
        id: ScopeId,
        place: usize,
        record: &Record,
        moved: &mut Transition,
    ) -> Result<(), RunError> {
        let scope = self.scopes.get(id);
        let (shape, before) = (&children_of(scope, place).shape, position_of(record)?);
        let again = to_rerun(shape, &before, &moved.position);
        let notes = self.invalidated_in((id, place), &record.header().scope, again);
        if let Some(draft) = moved.drafts.first_mut() {
            draft.report.notes.extend(notes);
        }
        Ok(())
    }

    /// Returns the notes about finished steps of a child that run again: the step or an upstream step is requested, or
    /// the opener runs again.
    fn invalidated_in<'s>(
        &self,
        (id, place): (ScopeId, usize),
        path: &ScopePath,
        steps: impl IntoIterator<Item = &'s StepId>,
    ) -> Vec<Note> {
        let scope = self.scopes.get(id);
        let (opener, shape) = (scope.step_id(place), &children_of(scope, place).shape);
        let fan = scope.fans.iter().find(|fan| fan.place == place);
        let of_opener = fan.and_then(|fan| fan.cause.as_ref());
        let requests = &self.main().position.requests;
        let is_rerun = |request: &&RerunRequest| request.scope == *path && request.kind != RerunKind::Confirm;
        let requests: Vec<_> = requests.iter().filter(is_rerun).collect();
        let cause = |step: &StepId| {
            let is_own =
                |request: &&&RerunRequest| request.step == *step && request.kind != RerunKind::Relist;
            if let Some(own) = requests.iter().find(is_own) {
                // A new step runs for the first time.
                return (!matches!(own.kind, RerunKind::Add | RerunKind::Insert))
                    .then(|| own.cause.clone().into());
            }
            let upstream = upstream_of(shape, step, requests.iter().map(|request| &request.step));
            Some(match (upstream, of_opener) {
                (None, Some(cause)) => cause.clone(),
                _ => RerunCause::UpstreamChanged { step: Some(upstream.unwrap_or(opener).clone()) },
            })
        };
        steps.into_iter().filter_map(|step| Some(invalidated(step, &cause(step)?))).collect()
    }

    /// Returns the cause of the rerun of an opener, since its fan-out before: of its invalidation, or a rollback.
    /// Without a recorded cause, an upstream step ran again. Hooks of a step follow its work.
    async fn cause_of_opener(&mut self, id: ScopeId, place: usize) -> Result<RerunCause, RunError> {
        let scope = self.scopes.get(id);
        let step = scope.step_id(place).clone();
        let drafts = scope.drafts.iter().rev().map(|draft| &draft.report.notes);
        let noted = drafts.chain([&scope.notes]).find_map(|notes| RerunCause::noted(notes, &step));
        if let Some(cause) = noted {
            return Ok(cause);
        }
        if scope.pass_of(place) > 1 {
            // The input of a later pass is the pass before.
            return Ok(RerunCause::UpstreamChanged { step: Some(step) });
        }
        let is_after_work = scope.runs_hooks(place) && !scope.shape.steps()[place].is_for_hooks;
        let need = scope.shape.needs(place).first().filter(|_| !is_after_work);
        let upstream = need.map_or(&step, |need| scope.step_id(*need)).clone();
        let since = scope.entry(place).open_fan().map_or(0, |fan| fan.since);
        let before = if since > 0 { since } else { scope.chain.next } - 1;
        let (run, path) = (scope.chain.run.clone(), scope.path().clone());
        let is_wanted = |record: &Record| {
            let header = record.header();
            let is_wait = header.reason == Reason::Fork && matches!(header.phase, Phase::Waiting(_));
            let is_opening = is_wait && header.step.as_ref() == Some(&step);
            let is_noted = || RerunCause::noted(&header.notes, &step).is_some();
            is_opening || header.reason == Reason::Rollback || is_restart(header) || is_noted()
        };
        let found = self.engine.store.find_back(&run, &path, before, &is_wanted).await?;
        let noted = found.as_ref().and_then(|found| RerunCause::noted(&found.header().notes, &step));
        let found = found.as_ref().map(Record::header);
        let by_rollback = found.is_some_and(|found| found.reason == Reason::Rollback);
        Ok(match noted {
            Some(cause) => cause,
            None if by_rollback || found.is_some_and(is_restart) => {
                RerunCause::Requested { by: None, by_rollback }
            }
            None => RerunCause::UpstreamChanged { step: Some(upstream) },
        })
    }

    /// Returns the digest of the input of a child, if ends have traces. The input of a hook is the result of the step's
    /// work and the pins upstream, without the input of the work.
    pub(crate) fn input_of_child(&self, id: ScopeId, place: usize, item: &Item) -> Option<Digest> {
        let scope = self.scopes.get(id);
        let trace = self.keeps_traces.then(|| trace_of(self.program, scope, place)).flatten()?;
        let Some(work) = scope.entry(place).hooks.as_ref().and_then(|fan| fan.work_digests) else {
            return Some(child_input(&trace, item));
        };
        let after_work = child_input(&Trace { needs: BTreeMap::new(), ..trace }, item);
        let above = pins_of(scope, place, &EndResult::default());
        Some(Digest::merkle(&[after_work, above, work.both()]))
    }

    fn record_page(&mut self, id: ScopeId, place: usize, reader: ItemReader) {
        let scope = self.scopes.get_mut(id);
        let fan = scope.fan_mut(place);
        let opened = fan.opened;
        fan.reader = (opened < fan.total).then_some(reader);
        let entry = scope.entry_mut(place);
        let (step, at) = (entry.step.clone(), entry.at.clone());
        if let Some(fan) = entry.open_fan_mut() {
            fan.opened = opened;
        }
        // Hooks and later passes are children too.
        let is_last = scope.shape.steps()[place].hooks.is_none() && !scope.shape.share_loop(place, place);
        if is_last && opened == scope.fan_mut(place).total {
            // All children run without earlier results: a later entry may reuse their new results.
            scope.position.rerun_whole.remove(&step);
        }
        // The record of the wait already covers the first page.
        if scope.drafts.is_empty() {
            let value = serde_json::json!({ "opened": opened });
            scope.draft(Phase::Progress { key: "children".to_owned(), value }, Reason::Fork, step, at);
        }
        self.mark_dirty(id);
    }

    /// Returns the epoch of a child that may have existed before: the epoch of its opener, or a new epoch if the
    /// child had reruns in this pass.
    async fn next_child_epoch(
        &mut self,
        id: ScopeId,
        place: usize,
        path: &ScopePath,
    ) -> Result<u32, RunError> {
        let scope = self.scopes.get(id);
        let (run, at) = (scope.chain.run.clone(), scope.entry(place).at.clone());
        let highest = epoch_in_pass(self.engine, &run, path, &at.iteration).await?;
        Ok(highest.map_or(at.epoch, |highest| at.epoch.max(highest + 1)))
    }

    /// Returns the next seq of an open scope, as known to the store; 1 if the scope is not open.
    async fn next_seq(&mut self, id: ScopeId, place: usize, scope: &ScopePath) -> Result<u64, RunError> {
        if self.scopes.get_mut(id).fan_mut(place).next_seqs.is_none() {
            let (store, run) = (&self.engine.store, self.main().chain.run.clone());
            let (mut next_seqs, mut page) = (HashMap::new(), Page::default());
            loop {
                let heads = match store.heads(&run, &page).await {
                    // A scope without a sound record; its damage is found when the scope is read.
                    Err(StoreError::Damaged { .. }) => break,
                    heads => heads?,
                };
                let next = heads.heads.into_iter();
                next_seqs.extend(next.map(|head| (head.record.header().scope.clone(), head.next)));
                match heads.next {
                    Some(cursor) => page.cursor = Some(cursor),
                    None => break,
                }
            }
            self.scopes.get_mut(id).fan_mut(place).next_seqs = Some(next_seqs);
        }
        let next_seqs = self.scopes.get_mut(id).fan_mut(place).next_seqs.as_ref();
        Ok(next_seqs.and_then(|seqs| seqs.get(scope)).copied().unwrap_or(1))
    }

    /// Starts a child that is open and has not begun.
    pub(crate) async fn begin_child(
        &mut self,
        id: ScopeId,
        place: usize,
        queued: Queued,
    ) -> Result<(), RunError> {
        let Queued { scope, index, seq } = queued;
        let parent = self.scopes.get(id);
        let shape: &'a Shape = &children_of(parent, place).shape;
        let run = parent.chain.run.clone();
        let around = parent.entry(place).at.iteration.clone();
        let record = self.engine.store.load(&run, &scope, seq).await?;
        let mut position = position_of(&record)?;
        if !self.scopes.get(id).runs_hooks(place) {
            open_scopes::start_at_roots(shape, &record, &mut position, &around);
        }
        let mut state = decode_state(self.program, shape.level(), &record)?;
        let parent = self.scopes.get(id);
        self.program.attach(parent.step_ref(place), &parent.state, &mut state);
        let mut chain = Chain::child(&parent.chain, scope);
        chain.next = seq + 1;
        chain.prev = Some(record.digest());
        let mut child = Scope::new(chain, shape, position, state);
        child.opener = Some(Opener { scope: id, place, index });
        child.outer_iteration = around;
        child.has_capacity = true;
        let child = self.scopes.add(child);
        self.scopes.get_mut(id).fan_mut(place).active += 1;
        self.touched.insert(child);
        Ok(())
    }
}

/// A fan-out about to begin.
struct FanOutStart {
    place: usize,
    items: Source,
    report: StepReport,
    /// True for hooks: the scopes of the step's work are already joined.
    are_hooks: bool,
    /// The digests of these scopes.
    joined: Option<JoinedDigests>,
}

/// The children to open.
enum Source {
    /// A scope per item; the items are stored.
    Items(Vec<Item>),
    /// The children named by the shape.
    Named(Arc<[Item]>),
}

/// The records of a child before its opening.
enum Earlier {
    /// The child belongs to this fan-out and has ended.
    Ended,
    /// The child belongs to this fan-out and is open.
    Open(Box<Head>),
    /// The child belongs to a fan-out with another list and the same input; with its position. Only without traces.
    Relisted(Box<Head>, Box<Invalidated>),
    /// No record in force.
    None(Box<ChildStart>),
}

impl Earlier {
    fn none(chain: Chain, epoch: u32) -> Self {
        Self::None(Box::new(ChildStart::new(chain, epoch)))
    }
}

/// The start of a child.
pub(crate) struct ChildStart {
    /// The chain to continue.
    pub(crate) chain: Chain,
    /// The epoch of the child's steps.
    pub(crate) epoch: u32,
    /// The position in an earlier opening: its results are reusable.
    pub(crate) before: Option<Position>,
    /// The steps that had finished in this pass, in an earlier opening.
    pub(crate) finished: Vec<StepId>,
    /// The value that a person gave instead of the item.
    pub(crate) replaced: Option<Value>,
    /// The steps without an effect after an undo.
    pub(crate) undone: BTreeSet<StepId>,
    /// The new steps begun in an earlier definition.
    pub(crate) done_before: BTreeSet<StepId>,
}

impl ChildStart {
    /// Creates the start of a child without earlier results.
    fn new(chain: Chain, epoch: u32) -> Self {
        let (before, finished, replaced) = (None, Vec::new(), None);
        let (undone, done_before) = (BTreeSet::new(), BTreeSet::new());
        Self { chain, epoch, before, finished, replaced, undone, done_before }
    }

    /// Returns the item, with the value that a person gave.
    fn in_place_of(&self, item: &Item) -> Item {
        Item { value: self.replaced.clone().unwrap_or_else(|| item.value.clone()), ..item.clone() }
    }
}

/// Returns whether an open child has children of its own or a step in doubt: only the start of a session loads the children
/// and asks. `answers`: the decisions about steps in doubt.
fn has_open_work(children: &Children, head: &Head, answers: &Answers) -> Result<bool, RunError> {
    let (header, position) = (head.record.header(), position_of(&head.record)?);
    let has_children = position.frontier.iter().any(FrontierEntry::has_children);
    let mut questions = questions_at(&position, &children.shape, &header.scope);
    let is_in_doubt = questions.any(|asked| !answers.retries(&asked.scope, &asked.step));
    Ok(header.end.is_none() && (has_children || is_in_doubt))
}

/// Reads the position of a child at a seq, of any fan-out, with its failures retried; `None` if the position was pruned.
async fn position_before(
    store: &dyn Store,
    shape: &Shape,
    chain: &Chain,
    seq: u64,
) -> Result<Option<Position>, RunError> {
    let record = match store.load(&chain.run, &chain.scope, seq).await {
        Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => return Ok(None),
        record => record?,
    };
    if record.body_bytes().is_none() {
        return Ok(None);
    }
    Ok(Some(position_for_retry(shape, &record, false)?.0))
}

/// Refuses items with duplicate keys, before anything is opened.
fn check_items(items: Vec<Item>) -> Result<Vec<Item>, Failure> {
    // Sorted indexes take less memory than a table of keys, for up to a million items.
    let mut order: Vec<u32> = (0..items.len()).filter_map(|place| u32::try_from(place).ok()).collect();
    if order.len() < items.len() {
        let text = format!("the step has {} items, the maximum is {}", items.len(), u32::MAX);
        return Err(Failure::new(FailureKind::Limit, vec![text]));
    }
    let key = |place: &u32| items[*place as usize].key.as_str();
    order.sort_unstable_by(|one, other| key(one).cmp(key(other)));
    match order.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
        None => Ok(items),
        Some(pair) => {
            let (first, second) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
            let text = format!("items {first} and {second} have the same key `{}`", key(&pair[0]));
            Err(Failure::new(FailureKind::Error, vec![text]))
        }
    }
}

/// Returns whether a record restarts the run: it is based on no record.
fn is_restart(header: &Header) -> bool {
    header.reason == Reason::Redo && header.basis == Some(0)
}
