//! The scopes of another run that a new run begins with: the main scope, and its open scopes.
//!
//! ```text
//!   r@5:  merge waits      r/plan:a@4: ended      r/plan:b@2: b2 is ready
//!   r2@1: merge waits      r2/plan:a@1: ended     r2/plan:b@1: b2 is ready      all in the batch that creates the run
//! ```
//!
//! A scope is copied with its finished steps: at the position of the checkpoint, or at the newest sound record. In the new run no
//! step is running: an interrupted or waiting step is ready, and an interrupted non-idempotent step is in doubt. A
//! scope without a sound record restarts at its first step. Joined scopes stay in the other run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::id::{Digest, ScopePath, StepId};
use crate::plan::shape::{Shape, Step, Unfinished};
use crate::record::{
    Definition, End, Fan, FrontierEntry, FrozenItems, Header, Ledger, Pack, Phase, Position, Reason, Record,
    RerunKind, RerunRequest, Reusable, Settled, Status, Try,
};
use crate::store::portable::Portable;
use crate::store::{BLOB_CHUNK_BYTES, FILES_BLOB, Lease, Store, StoreError};

use crate::engine::chain::{Chain, Draft};
use crate::engine::inspect::position_of;
use crate::engine::resume::begin::decode_state;
use crate::engine::resume::definition::{Forget, forget};
use crate::engine::resume::reruns::{Transition, opener_of};
use crate::engine::scope::fan_out::{Item, Items, parse_items};
use crate::engine::scope::open_scopes::{fan_of, is_fresh};
use crate::engine::scope::{Opener, Scope, ScopeId};
use crate::engine::session::Session;
use crate::engine::walk::failure::{failures_of, position_for_retry};
use crate::engine::walk::reuse::step_path;
use crate::engine::walk::scheduler::{children_of, wait_for_children, wait_for_hooks};
use crate::engine::{OriginEvidence, Program, RunError};

/// The blob prefix in the new run for items of the other run.
pub(crate) const CARRIED_ITEMS: &str = "items/carried.";

/// A scope of the other run.
pub(crate) struct SourceScope {
    pub(crate) record: Record,
    pub(crate) position: Position,
    /// The records of the finished steps in force, without states, with the last accepted evidence.
    pub(crate) settled: Vec<Record>,
    /// How the scope has ended, unless steps of the scope rerun.
    end: Option<End>,
    /// The results of the steps to rerun, to remove from the state.
    forgotten: Vec<Forget>,
    /// The signals taken by the finished steps: a rerun takes these again.
    taken: Vec<Draft>,
    /// The openers whose steps are asked about at their turn, instead of the opener.
    asked_within: BTreeSet<StepId>,
}

/// The finished step of a taken signal: the step itself, or the opener of the scope.
pub(crate) struct SignalTaker {
    scope: ScopePath,
    step: StepId,
    at: Try,
}

impl SourceScope {
    /// Finds the finished steps of a position in the history of the scope.
    pub(crate) fn of<'r>(
        record: &'r Record,
        position: Position,
        history: impl Iterator<Item = &'r Record>,
    ) -> Result<Self, StoreError> {
        let (mut settled, mut accepted): (Vec<&Record>, HashMap<u64, &Pack>) = Default::default();
        let seqs = position.end_seqs();
        let mut history: Vec<&Record> = history.chain([record]).collect();
        history.sort_by_key(|known| known.header().seq);
        for known in history {
            let header = known.header();
            if let (Reason::Accept, Some(about), Some(pack)) = (header.reason, header.about, &header.evidence)
            {
                // The newest acceptance counts.
                accepted.insert(about, pack);
            }
            if seqs.contains(&header.seq) {
                settled.push(known);
            }
        }
        let with_accepted = |known: &Record| match accepted.get(&known.header().seq) {
            None => Ok(known.without_body()),
            Some(pack) => {
                let header = Header { evidence: Some((*pack).clone()), ..known.header().clone() };
                Record::seal(header, None).map_err(|flaw| StoreError::Invalid(flaw.to_string()))
            }
        };
        let settled = settled.into_iter().map(with_accepted).collect::<Result<_, _>>()?;
        Ok(Self {
            record: record.clone(),
            position,
            settled,
            end: record.header().end,
            forgotten: Vec::new(),
            taken: Vec::new(),
            asked_within: BTreeSet::new(),
        })
    }

    pub(crate) fn path(&self) -> &ScopePath {
        &self.record.header().scope
    }

    /// Returns the interrupted steps that must not be repeated, in the graph `shape` or in the graph `before`.
    pub(crate) fn cut(&self, shape: &Shape, before: Option<&Shape>) -> Vec<StepId> {
        let graphs = [Some(shape), before];
        let must_ask =
            |step: &&StepId| graphs.iter().flatten().any(|graph| graph.must_ask(&self.position, step));
        let unsettled = self.position.frontier.iter().filter(|entry| entry.is_unsettled());
        unsettled.map(|entry| &entry.step).filter(must_ask).cloned().collect()
    }

    /// Returns the scope of the new run: copies of the records of finished steps, then the position with its steps
    /// `cut` in doubt.
    pub(crate) fn to_scope<'a, S>(
        &self,
        (chain, state): (Chain, S),
        shape: &'a Shape,
        cut: &[StepId],
        evidence: OriginEvidence,
    ) -> Scope<'a, S> {
        let header = self.record.header();
        // A scope held after its last step has ended; only its end was not recorded.
        let is_done = self.position.frontier.is_empty();
        let end = self.end.or(is_done.then_some(End::Completed)).filter(|_| !chain.scope.is_main());
        let mut records: Vec<&Record> = self.settled.iter().collect();
        if end.is_some() && !records.iter().any(|known| known.header().seq == header.seq) {
            records.push(&self.record);
        }
        let mut position = position_in_new_run(&self.position);
        if end == Some(End::Failed) {
            for entry in position.frontier.iter_mut().filter(|entry| entry.has_children()) {
                entry.status = Status::Failed;
                entry.waits.clear();
            }
        }
        let mut scope = Scope::new(chain, shape, position, state);
        // Results out of force stay in the other run: their steps run again, or a person is asked.
        let was_done = |result: &Reusable| matches!(result, Reusable::Ended { settled, .. } if settled.did());
        for (step, _) in self.position.reusable.iter().filter(|(_, results)| results.values().any(was_done)) {
            if let Some(step) = shape.step(step.as_str()) {
                step.note_effect(&mut scope.position, true, None);
            }
        }
        let (mut copies, mut taken) = (HashMap::new(), self.taken.clone());
        let last = records.len().saturating_sub(1);
        for (place, record) in records.into_iter().enumerate() {
            if end.is_some() && place == last {
                scope.drafts.append(&mut taken);
            }
            let (seq, old) = (scope.seq_of_next_draft(), record.header().seq);
            copies.insert(old, seq);
            let is_left = evidence == OriginEvidence::Left && record.header().evidence.is_some();
            let known = self.position.ledger.iter().find(|(_, settled)| settled.seq == old);
            if let Some((step, known)) = known.filter(|(_, known)| !is_left || known.failures > 0) {
                scope.position.ledger.insert(step.clone(), Settled { seq, fan: None, ..known.clone() });
                // The scopes of earlier passes stay in the other run: a person is asked before these run again.
                let is_amid = self.position.frontier.iter().any(|entry| entry.step == *step);
                if is_amid && shape.step(step.as_str()).is_some_and(Step::is_careful) {
                    scope.position.note_effect(step);
                }
            }
            let mut copy = copy_of(record);
            copy.report.evidence = copy.report.evidence.filter(|_| !is_left);
            scope.drafts.push(copy);
        }
        scope.drafts.append(&mut taken);
        // The scopes of earlier passes stay in the other run; the ends of the passes are copied.
        let fans = scope.position.frontier.iter_mut().filter_map(|entry| entry.fan.as_mut());
        for pass in fans.flat_map(|fan| &mut fan.passes) {
            pass.settled.seq = copies.get(&pass.settled.seq).copied().unwrap_or_default();
            pass.since = 0;
        }
        let asked_within = self.asked_within.iter().filter_map(|step| shape.step(step.as_str()));
        for step in asked_within.filter(|step| step.idempotent) {
            scope.position.ask_no_more(&step.id);
        }
        if let Some(end) = end {
            scope.end_with_last_draft(end);
        } else {
            scope.drafts.push(Draft::new(Phase::Restored, Reason::Fork, None, Try::default()));
            let by = format!("the step was cut in the parent run {}", header.run);
            cut.iter().for_each(|step| scope.doubt_cut(step, by.clone()));
        }
        (scope.end, scope.is_counted_out) = (end, end.is_some());
        scope
    }
}

/// Returns a draft with the content of another run's record.
fn copy_of(record: &Record) -> Draft {
    let header = record.header();
    let mut draft = Draft::new(header.phase.clone(), header.reason, header.step.clone(), header.at.clone());
    draft.report.evidence.clone_from(&header.evidence);
    draft.report.usage.clone_from(&header.usage);
    draft.report.notes.clone_from(&header.notes);
    draft.labels.clone_from(&header.labels);
    draft
}

/// Returns a position for a new run: nothing is running, waiting or memoized, and the ledger is empty. Openers wait
/// for their scopes.
fn position_in_new_run(position: &Position) -> Position {
    let (ledger, copies) = (Ledger::default(), Vec::new());
    let none = Position { definition: None, config: None, chain: None, ..position.clone() };
    let mut position = Position { ledger, copies, ..none };
    let results: Vec<StepId> = position.reusable.keys().cloned().collect();
    results.iter().for_each(|step| position.drop_results(step));
    for entry in &mut position.frontier {
        let carried = |fan: Fan| {
            let items = fan.items.map(|at| FrozenItems { blob: name_of(at.digest), ..at });
            Fan { items, since: 0, relisted: Vec::new(), ..fan }
        };
        let hooks = entry.hooks.take().filter(|_| entry.status != Status::Failed).map(carried);
        let fan = entry.fan.take().map(carried);
        let (status, waits) = match (&hooks, &fan) {
            (Some(_), _) => (Status::Waiting, vec![wait_for_hooks()]),
            (None, Some(_)) => (Status::Waiting, vec![wait_for_children()]),
            (None, None) => (Status::Ready, Vec::new()),
        };
        let (at, input) = (Try { attempt: 0, ..entry.at.clone() }, entry.input);
        let ready = FrontierEntry::ready(entry.step.clone());
        *entry = FrontierEntry { status, at, waits, fan, hooks, input, ..ready };
    }
    position
}

/// Returns whether a scope is an item of its opener.
fn is_item(root: &Shape, scope: &ScopePath) -> bool {
    let above = scope.parent().and_then(|above| root.of_scope(&above)).zip(scope.opened_by());
    above.is_some_and(|(above, (name, _))| {
        let children = above.children_named(&name);
        children
            .is_some_and(|(place, children)| children.are_items() && !above.steps()[place].are_hooks(&name))
    })
}

/// Returns the number of loops around a scope.
fn passes_around(root: &Shape, scope: &ScopePath) -> usize {
    let around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
    let passes = around.filter_map(|scope| {
        let shape = root.of_scope(&scope.parent()?)?;
        Some(shape.first_iteration(shape.opener(&scope.opened_by()?.0)?, &[]).len())
    });
    passes.sum()
}

/// Names items by their content, since several scopes may have the same items.
fn name_of(digest: Digest) -> String {
    format!("{CARRIED_ITEMS}{digest}.jsonl")
}

/// The scopes of the other run, with its definition in force.
pub(crate) struct SourceScopes {
    pub(crate) definition: Definition,
    pub(crate) main: SourceScope,
    scopes: BTreeMap<ScopePath, SourceScope>,
    /// The joined scopes with evidence, for the check only.
    pub(crate) joined: Vec<SourceScope>,
    /// Stored items, by the name of their blob in the new run.
    items: BTreeMap<String, Vec<u8>>,
}

impl SourceScopes {
    /// Takes the scopes of a checkpoint, with this position of its main scope. `reopened`: the scopes with steps to
    /// rerun. The failures of the other scopes are retried.
    pub(crate) fn of(
        shape: &Shape,
        from: &Portable,
        position: Position,
        mut reopened: BTreeMap<ScopePath, Transition>,
    ) -> Result<Self, StoreError> {
        let mut history: BTreeMap<&ScopePath, Vec<&Record>> = BTreeMap::new();
        for record in from.history() {
            history.entry(&record.header().scope).or_default().push(record);
        }
        let scope = |record: &Record, position: Position| {
            let history = history.get(&record.header().scope).into_iter().flatten().copied();
            SourceScope::of(record, position, history)
        };
        let main = scope(from.checkpoint(), position)?;
        let mut scopes = BTreeMap::new();
        for record in from.children() {
            let path = &record.header().scope;
            let taken = match reopened.remove(path) {
                None => {
                    let (position, forgotten) = match shape.of_scope(path) {
                        Some(shape) => position_for_retry(shape, record, false)?,
                        None => (position_of(record)?, Vec::new()),
                    };
                    SourceScope { forgotten, ..scope(record, position.back_at_work())? }
                }
                Some(Transition { position, forgotten, .. }) => {
                    SourceScope { end: None, forgotten, ..scope(record, position)? }
                }
            };
            scopes.insert(path.clone(), taken);
        }
        let name = |name: &str, text: &[u8]| match name {
            FILES_BLOB => FILES_BLOB.to_owned(),
            _ => name_of(Digest::of(text)),
        };
        let items = from.blobs().iter().map(|(old, text)| (name(old, text), text.clone())).collect();
        Ok(Self { definition: from.definition().clone(), main, scopes, joined: Vec::new(), items })
    }

    /// Returns the scopes that the new run copies, the main scope first.
    pub(crate) fn carried(&self) -> impl Iterator<Item = &SourceScope> {
        std::iter::once(&self.main).chain(self.scopes.values())
    }

    pub(crate) fn carries(&self, scope: &ScopePath) -> bool {
        scope.is_main() || self.scopes.contains_key(scope)
    }

    /// Returns the finished step that has taken the signal of a record: of the innermost scope that the new run copies.
    /// `None` if the step runs again.
    pub(crate) fn taker_of(&self, root: &Shape, record: &Record) -> Option<SignalTaker> {
        let header = record.header();
        let (mut scope, mut step, mut at) = (header.scope.clone(), header.step.clone()?, header.at.clone());
        while !self.carries(&scope) {
            let above = scope.parent()?;
            let shape = root.of_scope(&above)?;
            let place = shape.opener(&scope.opened_by()?.0)?;
            at.iteration.truncate(passes_around(root, &above) + shape.first_iteration(place, &[]).len());
            (scope, step) = (above, shape.steps()[place].id.clone());
        }
        let source = if scope.is_main() { &self.main } else { self.scopes.get(&scope)? };
        let shape = root.of_scope(&scope)?;
        let is_finished = !Unfinished::of(shape, &source.position).has(shape.place(step.as_str())?);
        // A rerun has a newer epoch.
        at.epoch = source.position.epoch.max(source.position.epoch_max).max(at.epoch);
        is_finished.then_some(SignalTaker { scope, step, at })
    }

    /// Asks about the non-idempotent steps that have begun in scopes of the other run and that the new run enters again: at
    /// their turn, in place of a question about their opener. Items are asked about as a whole. `begun`: the steps, by scope.
    pub(crate) fn ask_within(
        &mut self,
        (root, before): (&Shape, Option<&Shape>),
        begun: BTreeMap<ScopePath, BTreeSet<StepId>>,
    ) {
        let opener_of = |scope: &ScopePath| opener_of(root, scope).or_else(|| opener_of(before?, scope));
        for (scope, steps) in begun {
            let around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
            let path: Vec<ScopePath> = around.take_while(|scope| !self.carries(scope)).collect();
            let top = path.last().and_then(|top| Some((top, top.parent()?, opener_of(top)?)));
            let Some((top, above, opener)) = top else { continue };
            let Some((shape, source)) = root.of_scope(&above).zip(self.source_mut(&above)) else { continue };
            let place = shape.place(opener.as_str());
            let is_unfinished = place.is_some_and(|place| Unfinished::of(shape, &source.position).has(place));
            let mut open = source.position.frontier.iter();
            let is_open = open.any(|entry| entry.step == opener && entry.has_children());
            let items = |below: &&ScopePath| is_item(root, below) && !(is_open && *below == top);
            let whole = path.iter().rev().find(items);
            // An opener that was interrupted by a rerun upstream is asked about as a whole.
            let is_whole = whole == Some(top) || source.position.started_before(&opener).is_some();
            match is_unfinished {
                true if is_whole => source.position.ask_about(&opener, None),
                true => drop(source.asked_within.insert(opener)),
                false => {}
            }
            if is_whole {
                continue;
            }
            let asked = match whole.and_then(|item| Some((item.parent()?, opener_of(item)?))) {
                Some((scope, opener)) => vec![(scope, opener)],
                None => steps.into_iter().map(|step| (scope.clone(), step)).collect(),
            };
            let confirm =
                |(scope, step)| RerunRequest { kind: RerunKind::Confirm, ..RerunRequest::new(scope, step) };
            self.main.position.requests.extend(asked.into_iter().map(confirm));
        }
    }

    fn source_mut(&mut self, scope: &ScopePath) -> Option<&mut SourceScope> {
        if scope.is_main() { Some(&mut self.main) } else { self.scopes.get_mut(scope) }
    }

    /// Notes a signal taken by a finished step.
    pub(crate) fn note_taken(&mut self, taker: &SignalTaker, signal: Option<Draft>) {
        if let Some((source, mut draft)) = self.source_mut(&taker.scope).zip(signal) {
            (draft.reason, draft.step, draft.at) =
                (Reason::Answer, Some(taker.step.clone()), taker.at.clone());
            source.taken.push(draft);
        }
    }

    /// Returns the warning that evidence stays in the other run, if a join of these scopes has scopes with
    /// evidence.
    pub(crate) fn evidence_left(&self, root: &Shape) -> Option<String> {
        let mut joins = BTreeSet::new();
        for scope in self.carried() {
            let position = &scope.position;
            let steps = root.of_scope(scope.path()).map(Shape::steps).unwrap_or_default();
            let joined = steps.iter().filter(|step| step.opens_evidence());
            let joined =
                joined.filter(|step| position.ledger.contains_key(&step.id) && position.did(&step.id));
            joins.extend(joined.map(|step| format!("`{}`", step_path(scope.path(), &step.id))));
        }
        let joins = Vec::from_iter(joins).join(", ");
        (!joins.is_empty()).then(|| {
            format!(
                "the evidence of the joined scopes of {joins} stays in the parent run: the new run does not \
                 check it"
            )
        })
    }

    /// Adds the scopes of a scope's open fan-outs to the session of the new run, and their scopes.
    ///
    /// # Errors
    /// [`RunError::Changed`]: the graph does not have these scopes.
    pub(crate) fn add_scopes<P: Program>(
        &mut self,
        session: &mut Session<'_, P>,
        id: ScopeId,
        evidence: OriginEvidence,
    ) -> Result<(), RunError> {
        let scope = session.scopes.get(id);
        let (run, path) = (scope.chain.run.clone(), scope.path().clone());
        let open = scope.position.frontier.iter().filter(|entry| entry.has_children());
        let places: Vec<usize> = open.filter_map(|entry| scope.shape.place(entry.step.as_str())).collect();
        for place in places {
            let scope = session.scopes.get_mut(id);
            let (step, children) = (scope.step_id(place), children_of(scope, place));
            let mut fan = fan_of(scope, place)?;
            fan.opened = scope.entry(place).open_fan().map_or(0, |fan| fan.opened);
            let (items, opened) = (self.items_of(&fan.source)?, fan.opened as usize);
            scope.fans.push(fan);
            for item in items.iter().take(opened) {
                let name = children.path(&path, &item.key);
                let name = name.map_err(|error| StoreError::Invalid(error.to_string()))?;
                let opener = Opener { scope: id, place, index: item.index };
                match self.scopes.remove(&name) {
                    Some(source) => self.add_scope(session, opener, source, evidence)?,
                    None => {
                        // As after damage in a resume: the scope restarts once all others seem to have ended.
                        let fan = session.scopes.get_mut(id).fan_mut(place);
                        (fan.ended, fan.revisited) = (fan.ended + 1, true);
                    }
                }
            }
            let is_of_fan = |name: &&ScopePath| {
                name.parent().as_ref() == Some(&path)
                    && name.opened_by().is_some_and(|(opener, _)| opener == children.name)
            };
            if let Some(left) = self.scopes.keys().find(is_of_fan) {
                let why = format!("step `{step}` has an open scope `{left}`, which the graph does not have");
                return Err(RunError::Changed { run, why });
            }
        }
        Ok(())
    }

    /// Returns the items of a fan-out.
    fn items_of(&self, source: &Items) -> Result<Arc<[Item]>, StoreError> {
        match source {
            Items::Named(named) => Ok(Arc::clone(named)),
            Items::Stored { at, .. } => {
                let text = self.items.get(&at.blob).map_or(&[][..], Vec::as_slice);
                parse_items(text).map_err(|error| {
                    StoreError::Invalid(format!("the items in blob `{}` are incomplete: {error}", at.blob))
                })
            }
        }
    }

    /// Adds a scope to the session, and the scopes of its open fan-outs.
    fn add_scope<P: Program>(
        &mut self,
        session: &mut Session<'_, P>,
        opener: Opener,
        source: SourceScope,
        evidence: OriginEvidence,
    ) -> Result<(), RunError> {
        let above = session.scopes.get(opener.scope);
        let shape = &*children_of(above, opener.place).shape;
        let name = source.path().clone();
        let gone = source.position.frontier.iter().find(|entry| shape.place(entry.step.as_str()).is_none());
        if let Some(gone) = gone {
            let why = format!("scope `{name}` is at step `{}`, which the graph does not have", gone.step);
            return Err(RunError::Changed { run: source.record.header().run.clone(), why });
        }
        let mut state = decode_state(session.program, shape.level(), &source.record)?;
        let failures = failures_of(shape, &source.record)?;
        forget(session.program, &name, &[failures, source.forgotten.clone()].concat(), &mut state)?;
        session.program.attach(above.step_ref(opener.place), &above.state, &mut state);
        let before = session.shape_before.as_ref().and_then(|before| before.of_scope(&name));
        let (cut, begins) = (source.cut(shape, before), is_fresh(&source.position));
        let around = above.entry(opener.place).at.iteration.clone();
        let chain = Chain::child(&above.chain, name);
        let mut scope = source.to_scope((chain, state), shape, &cut, evidence);
        (scope.opener, scope.outer_iteration, scope.position.origin) = (Some(opener), around, Some(0));
        let is_open = scope.end.is_none();
        // A retry of a failed scope continues its scopes.
        let has_scopes = !begins && matches!(scope.end, None | Some(End::Failed));
        // The retry loads what is only written here.
        let unloads = is_open && (begins || session.scopes.get(opener.scope).end.is_some());
        scope.unloading = unloads;
        let id = session.scopes.add(scope);
        session.mark_dirty(id);
        let fan = session.scopes.get_mut(opener.scope).fan_mut(opener.place);
        if !is_open {
            fan.ended += 1;
        } else if unloads {
            fan.unloading.push_back(id);
        } else {
            session.touched.insert(id);
        }
        if has_scopes {
            self.add_scopes(session, id, evidence)?;
        }
        Ok(())
    }

    /// Stores the items of the scopes, and the files of the submission, with the new run.
    pub(crate) async fn keep_items(self, store: &dyn Store, lease: &Lease) -> Result<(), StoreError> {
        for (name, text) in self.items.iter().filter(|(_, text)| !text.is_empty()) {
            for chunk in text.chunks(BLOB_CHUNK_BYTES) {
                store.blobs().append(lease, name, chunk).await?;
            }
            store.blobs().sync(lease, name).await?;
        }
        Ok(())
    }
}
