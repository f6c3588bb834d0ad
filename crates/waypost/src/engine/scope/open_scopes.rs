//! Loads the open child scopes of a run for a resume. Finished scopes stay on disk, and unstarted scopes
//! are queued by name.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::id::{RunId, ScopePath, StepId};
use crate::plan::Decision;
use crate::plan::shape::{Shape, Step, Unfinished};
use crate::record::{End, Flaw, FrontierEntry, Phase, Position, Reason, Record, Status, Try, WaitKind};
use crate::store::{Head, Lease, Page, Scan, ScanOrder, Store, StoreError, StoreExt as _};

use super::fan_out::{FanOut, Items, Queued, named_items};
use super::{MAIN, Opener, Scope, ScopeId};
use crate::engine::chain::{Chain, Draft};
use crate::engine::inspect::position_of;
use crate::engine::manual::{Edits, refuse_left};
use crate::engine::resume::begin::{decode_state, manual_draft};
use crate::engine::resume::definition::{begun_before, forget, transfer_scope};
use crate::engine::resume::first_record::{Reopening, reopen};
use crate::engine::resume::in_doubt::{
    DoubtScope, apply_decisions, questions_of_cut, questions_of_lost, recovered, settle_recovered,
};
use crate::engine::resume::requested::begun_before_fork;
use crate::engine::resume::reruns::Transition;
use crate::engine::resume::resume_point::ResumePoint;
use crate::engine::session::Session;
use crate::engine::time_travel::rollback::epochs;
use crate::engine::walk::choice::ChoiceScope;
use crate::engine::walk::failure::{decide_begun, position_for_retry};
use crate::engine::walk::invalidate::{InvalidStep, ReusePolicy, invalidate};
use crate::engine::walk::scheduler::{children_of, collects, wait_for_children};
use crate::engine::{Engine, OnDoubt, Program, RunError};

/// Reads the newest record of each open scope, page by page. An abandoned scope is ignored, an unstarted scope
/// is queued, and the other scopes resume.
///
/// Returns the questions for a person: interrupted non-idempotent steps, unless `on_doubt` decides.
///
/// # Errors
/// - [`RunError::NotSettled`]: `on_doubt` refuses a step.
/// - [`RunError::NotEdited`]: a scope cannot be edited as requested in `edits`.
pub(crate) async fn load_open_scopes<P: Program>(
    session: &mut Session<'_, P>,
    lease: &Lease,
    resume_point: ResumePoint,
    (on_doubt, by): (&OnDoubt<P::State>, Option<&str>),
    edits: Edits<P::State>,
) -> Result<Vec<Decision>, RunError> {
    let scopes = HashMap::from([(ScopePath::main(), MAIN)]);
    let (indexes, questions, reopened) = (HashMap::new(), Vec::new(), BTreeSet::new());
    let (retried, named) = (Vec::new(), edits.retried());
    let mut found = LoadedScopes {
        scopes,
        indexes,
        questions,
        on_doubt,
        by,
        resume_point,
        edits,
        named,
        reopened,
        retried,
    };
    open_fans(session, &mut found, MAIN).await?;
    if session.scopes.get(MAIN).fans.is_empty() && found.resume_point.closed.is_empty() {
        let left = found.edits.scopes().next().cloned();
        refuse_left(session.engine, lease.run(), left).await?;
        return Ok(found.questions);
    }
    let mut page = Page::default();
    loop {
        let heads = session.engine.store.heads(lease.run(), &page).await?;
        for head in heads.heads {
            let path = &head.record.header().scope;
            if let Some(moved) = found.resume_point.closed.remove(path) {
                move_closed(session, lease, &head, moved).await?;
            } else if !path.is_main() {
                load_open_scope(session, lease, &mut found, head).await?;
            }
        }
        match heads.next {
            Some(cursor) => page.cursor = Some(cursor),
            None => break,
        }
    }
    reopen_ended(session, lease, &mut found).await?;
    let left = found.edits.scopes().next().cloned();
    refuse_left(session.engine, lease.run(), left).await?;
    let scopes: Vec<ScopeId> = session.scopes.iter().map(|(id, _)| id).collect();
    for id in scopes {
        let scope = session.scopes.get_mut(id);
        let mut waiting = Vec::new();
        for fan in &mut scope.fans {
            fan.ended = fan.opened - fan.ended;
            fan.queue.make_contiguous().sort_by_key(|queued| queued.index);
            let step = &scope.shape.steps()[fan.place].id;
            let entry = scope.position.frontier.iter().find(|entry| entry.step == *step);
            // Without a retry, a failed opener stays failed.
            if entry.is_some_and(|entry| entry.status == Status::Failed) {
                continue;
            }
            // A failed child may have succeeded in a session without a record in this scope.
            let is_counted = entry.and_then(FrontierEntry::open_fan).is_some_and(|fan| fan.failures > 0);
            if !fan.is_complete() || is_counted || scope.uncounted.contains(step) {
                waiting.push(fan.place);
            }
        }
        // Also if the step was about to join, had failed to open more children, or lost the end of a child to
        // damage.
        for place in waiting {
            let scope = session.scopes.get_mut(id);
            let entry = scope.entry_mut(place);
            if let Some(fan) = entry.open_fan_mut() {
                fan.failures = 0;
            }
            if !entry.waits.iter().any(|wait| wait.on == WaitKind::Children) {
                entry.waits = vec![wait_for_children()];
            }
            if entry.status != Status::Waiting {
                entry.status = Status::Waiting;
                entry.since = 0;
            }
        }
        session.touched.insert(id);
    }
    Ok(found.questions)
}

/// The scopes loaded so far, and their questions.
struct LoadedScopes<'a, S> {
    scopes: HashMap<ScopePath, ScopeId>,
    /// By scope and place of the opener: the index of each key of the fan-out.
    indexes: HashMap<(ScopeId, usize), HashMap<String, u64>>,
    questions: Vec<Decision>,
    /// The decisions of a person about steps in doubt.
    on_doubt: &'a OnDoubt<S>,
    /// The person.
    by: Option<&'a str>,
    /// Transitions of scopes to other positions.
    resume_point: ResumePoint,
    /// Edits of scopes not loaded yet.
    edits: Edits<S>,
    /// The scopes of a retry; empty if all failed scopes are retried.
    named: BTreeSet<ScopePath>,
    /// Ended scopes that resume together with an edited ancestor or descendant.
    reopened: BTreeSet<ScopePath>,
    /// Failed scopes of failed and of open openers, to be retried.
    retried: Vec<ScopePath>,
}

/// Loads the open fan-outs of a scope. Until all heads are read, `ended` counts the open children.
async fn open_fans<P: Program>(
    session: &mut Session<'_, P>,
    found: &mut LoadedScopes<'_, P::State>,
    id: ScopeId,
) -> Result<(), RunError> {
    for out in fans_of(session.scopes.get(id))? {
        if session.adopt.is_some() {
            check_names(session, id, &out).await?;
        }
        let mut index = HashMap::new();
        let mut reader = out.source.reader(session.engine.store.clone(), 0).await?;
        while let Some(item) = reader.next().await? {
            index.insert(item.key, item.index);
        }
        found.indexes.insert((id, out.place), index);
        let retries_open = !session.keeps_failures && !session.is_again;
        if let Some(fan) = FailedFan::of(session.scopes.get(id), out.place, retries_open) {
            let mut failed = fan.failed(session.engine.store.as_ref()).await?;
            // A person who names scopes leaves the others failed.
            let has_named = |scope: &ScopePath| {
                let around =
                    |named: &ScopePath| std::iter::successors(Some(named.clone()), ScopePath::parent);
                found.named.iter().any(|named| around(named).any(|above| above == *scope))
            };
            failed.retain(|scope| found.named.is_empty() || has_named(scope));
            found.retried.extend(failed);
        }
        session.scopes.get_mut(id).fans.push(out);
    }
    Ok(())
}

/// The failed scopes of a failed or open opener, if these are retried.
struct FailedFan {
    run: RunId,
    scope: ScopePath,
    /// The step that names the scopes.
    name: StepId,
    /// The record that began the fan-out.
    since: u64,
}

impl FailedFan {
    /// Returns the fan-out of a step whose failed scopes are retried: of a step that failed with its scopes, and with
    /// `retries_open` of a step with open scopes; else `None`.
    fn of<S>(scope: &Scope<'_, S>, place: usize, retries_open: bool) -> Option<Self> {
        let (children, entry) = (children_of(scope, place), scope.entry(place));
        // In a graph with routes, the join receives the failures.
        let is_waiting = entry.status == Status::Waiting;
        let is_open = retries_open && is_waiting && !scope.shape.is_routed();
        let is_retried = is_open || !is_waiting && scope.redecided.contains(scope.step_id(place));
        let fan = entry.fan.as_ref()?;
        let fails = is_retried && collects(scope, place) && !scope.runs_hooks(place);
        let (run, path) = (scope.chain.run.clone(), scope.path().clone());
        fails.then(|| Self { run, scope: path, name: children.name.clone(), since: fan.since })
    }

    /// Finds the failed scopes of the fan-out.
    async fn failed(self, store: &dyn Store) -> Result<Vec<ScopePath>, StoreError> {
        let mut failed = Vec::new();
        for scope in store.scopes(&self.run).await? {
            let is_named = scope.opened_by().is_some_and(|(name, _)| name == self.name);
            if !is_named || scope.parent().as_ref() != Some(&self.scope) {
                continue;
            }
            let newest = store.newest(&self.run, &scope).await?;
            if newest.header().end == Some(End::Failed) && position_of(&newest)?.origin == Some(self.since) {
                failed.push(scope);
            }
        }
        Ok(failed)
    }
}

/// Checks that an adopted graph has the same names for the scopes of an open fork; the count alone is not
/// sufficient.
async fn check_names<P: Program>(
    session: &mut Session<'_, P>,
    id: ScopeId,
    out: &FanOut,
) -> Result<(), RunError> {
    let scope = session.scopes.get(id);
    let (run, above, step) =
        (scope.chain.run.clone(), scope.path().clone(), scope.step_id(out.place).clone());
    let children = children_of(scope, out.place);
    let there = session.engine.store.scopes(&run).await?;
    for (key, _) in children.named.iter().take(out.opened as usize) {
        let path = children.path(&above, key).map_err(|e| StoreError::Invalid(e.to_string()))?;
        if !there.contains(&path) {
            let why = format!("step `{step}` has open scopes, without `{path}`");
            return Err(RunError::Changed { run, why });
        }
    }
    Ok(())
}

/// Returns the open fan-outs of a scope.
fn fans_of<S>(scope: &Scope<'_, S>) -> Result<Vec<FanOut>, RunError> {
    let mut fans = Vec::new();
    for entry in &scope.position.frontier {
        let (Some(fan), Some(place)) = (entry.open_fan(), scope.shape.place(entry.step.as_str())) else {
            continue;
        };
        let mut out = fan_of(scope, place)?;
        out.opened = fan.opened;
        fans.push(out);
    }
    Ok(fans)
}

/// Returns the open fan-out of a step, with no child opened yet.
pub(crate) fn fan_of<S>(scope: &Scope<'_, S>, place: usize) -> Result<FanOut, RunError> {
    let entry = scope.entry(place);
    let fan = entry.open_fan();
    let children = scope.shape.steps()[place].opened(entry).filter(|_| fan.is_some());
    let unlike = || {
        let step = &entry.step;
        let why = match entry.hooks {
            Some(_) => {
                format!("the hooks of step `{step}` have begun, and the changed definition lacks them")
            }
            None => format!("the open scopes of step `{step}` do not match the graph"),
        };
        RunError::Changed { run: scope.chain.run.clone(), why }
    };
    let source = match (fan.and_then(|fan| fan.items.as_ref()), children) {
        (Some(at), Some(_)) => Items::Stored { run: scope.chain.run.clone(), at: Arc::new(at.clone()) },
        (None, Some(children)) => {
            let named = named_items(children, scope.pass_of(place));
            let named = named.filter(|named| fan.is_some_and(|fan| named.len() as u64 == fan.total));
            Items::Named(named.ok_or_else(unlike)?)
        }
        (_, None) => return Err(unlike()),
    };
    let is_relisted = fan.is_some_and(|fan| !fan.relisted.is_empty());
    let is_again = is_relisted || entry.at.epoch > 0 || entry.at.iteration.iter().any(|pass| *pass > 1);
    let total = fan.map_or(0, |fan| fan.total);
    Ok(FanOut::new(place, source, total, is_again || scope.position.may_have_children()))
}

/// Adds a scope out of force, to write the new position: the next opening continues from the position.
async fn move_closed<P: Program>(
    session: &mut Session<'_, P>,
    lease: &Lease,
    head: &Head,
    moved: Transition,
) -> Result<(), RunError> {
    quarantine_damaged(session, lease, head).await?;
    let (header, seq) = (head.record.header(), moved.record.header().seq);
    let Some(shape) = session.program.shape().of_scope(&header.scope) else { return Ok(()) };
    session.latest = session.latest.max(header.created_at);
    let mut state = decode_state(session.program, shape.level(), &moved.record)?;
    forget(session.program, &header.scope, &moved.forgotten, &mut state)?;
    let mut chain = Chain::child(&session.main().chain, header.scope.clone());
    chain.next = head.next;
    chain.prev = Some(head.record.digest());
    chain.basis = (head.next != seq + 1).then_some(seq);
    chain.repair = head.next != header.seq + 1;
    let mut scope = Scope::new(chain, shape, moved.position, state);
    scope.drafts = moved.drafts;
    // Not needed in memory after the write.
    scope.unloading = true;
    let id = session.scopes.add(scope);
    session.mark_dirty(id);
    Ok(())
}

async fn load_open_scope<P: Program>(
    session: &mut Session<'_, P>,
    lease: &Lease,
    found: &mut LoadedScopes<'_, P::State>,
    head: Head,
) -> Result<(), RunError> {
    let path = head.record.header().scope.clone();
    let Some((name, key)) = path.opened_by() else { return Ok(()) };
    let Some(parent) = path.parent().and_then(|parent| found.scopes.get(&parent).copied()) else {
        return Ok(());
    };
    let above = session.scopes.get(parent);
    let Some((place, children)) = above.shape.children_named(&name) else { return Ok(()) };
    let step = above.step_id(place);
    let position = position_of(&head.record)?;
    let Some(entry) = above.position.frontier.iter().find(|entry| entry.step == *step) else {
        return Ok(());
    };
    let Some(fan) = entry.open_fan() else { return Ok(()) };
    let index = found.indexes.get(&(parent, place)).and_then(|indexes| indexes.get(&key)).copied();
    // Children opened after the base record are found when they would be opened again. Children that lost their
    // records of this fan-out to damage are found once all children seem to have ended.
    let current = above.shape.steps()[place].opened(entry);
    let is_current = current.is_some_and(|current| current.name == children.name);
    // A moved scope counts by the origin of its new position.
    let moved = found.resume_point.moves.get(&path);
    let origin = moved.map_or(position.origin, |moved| moved.position.origin);
    let counts = |index: &u64| is_current && origin == Some(fan.since) && *index < fan.opened;
    let Some(index) = index.filter(counts) else { return Ok(()) };
    // The previous session of this resume has already decided these questions.
    let lost = if session.is_again { 0 } else { head.next - 1 - head.record.header().seq };
    let mut questions = questions_of_lost(&children.shape, &path, &position, lost);
    session.scopes.get_mut(parent).fan_mut(place).ended += 1;
    let opener = Opener { scope: parent, place, index };
    let changed = (found.resume_point.moves.remove(&path), found.edits.take(&path));
    let Some(id) = resume_child(session, lease, opener, head, changed).await? else { return Ok(()) };
    session.read_digests(id).await?;
    let (engine, program, site) = (session.engine, session.program, Arc::clone(&session.site));
    let scope = session.scopes.get_mut(id);
    if found.reopened.contains(&path) && scope.drafts.is_empty() {
        // The end is out of force, also after another crash.
        scope.drafts.push(manual_draft());
    }
    questions.extend(questions_of_cut(scope, session.shape_before.as_ref()));
    found.on_doubt.answers().remove_continuing(&mut questions);
    let mut open = found.on_doubt.unanswered(&questions);
    questions.retain(|asked| !open.contains(asked));
    if !open.is_empty() {
        let (run, shape) = (&scope.chain.run, scope.shape);
        let doubt = DoubtScope { run, scope: &path, shape, site: &site, state: &scope.state };
        let done = recovered(engine, program, doubt, &mut open, true).await;
        settle_recovered(program, scope, done)?;
        found.questions.extend(open);
    }
    apply_decisions(program, scope, questions, (found.on_doubt, found.by))?;
    if !scope.drafts.is_empty() {
        session.mark_dirty(id);
    }
    found.scopes.insert(path, id);
    open_fans(session, found, id).await
}

/// Reopens ended children with reruns or edits, parents first, and moves closed scopes.
async fn reopen_ended<P: Program>(
    session: &mut Session<'_, P>,
    lease: &Lease,
    found: &mut LoadedScopes<'_, P::State>,
) -> Result<(), RunError> {
    let mut scopes: BTreeSet<(usize, ScopePath)> = BTreeSet::new();
    let ResumePoint { moves, closed, .. } = &found.resume_point;
    for scope in moves.keys().chain(closed.keys()).chain(found.edits.scopes()) {
        scopes.insert((scope.depth(), scope.clone()));
    }
    for scope in found.edits.scopes() {
        // The ancestors that ended together with the edited scope resume with it.
        let above = std::iter::successors(scope.parent(), ScopePath::parent);
        let ended = above.take_while(|above| !found.scopes.contains_key(above));
        let ended: Vec<ScopePath> = ended.collect();
        found.reopened.extend(ended.iter().cloned());
        scopes.extend(ended.into_iter().map(|above| (above.depth(), above)));
    }
    loop {
        for retried in std::mem::take(&mut found.retried) {
            scopes.insert((retried.depth(), retried.clone()));
            found.reopened.insert(retried);
        }
        let Some((_, scope)) = scopes.pop_first() else { break };
        let Some(head) = newest_of(session.engine.store.as_ref(), lease.run(), &scope).await? else {
            continue;
        };
        if let Some(moved) = found.resume_point.closed.remove(&scope) {
            move_closed(session, lease, &head, moved).await?;
            continue;
        }
        let end = head.record.header().end;
        let is_moved = found.resume_point.moves.contains_key(&scope);
        if found.reopened.contains(&scope)
            && !is_moved
            && !matches!(end, None | Some(End::Failed | End::Cancelled))
        {
            // Its children were joined, or the scope resumes anyway.
            found.reopened.remove(&scope);
            continue;
        }
        load_open_scope(session, lease, found, head).await?;
        if found.reopened.contains(&scope)
            && let Some(id) = found.scopes.get(&scope).copied()
        {
            let children = EndedWithParent::of(session.scopes.get(id));
            for below in children.find(session.engine.store.as_ref()).await? {
                found.reopened.insert(below.clone());
                scopes.insert((below.depth(), below));
            }
        }
    }
    Ok(())
}

/// Returns the newest record of a scope, also of an ended scope; `None` if the scope was never opened.
async fn newest_of(store: &dyn Store, run: &RunId, scope: &ScopePath) -> Result<Option<Head>, RunError> {
    let scan = Scan { scope: Some(scope.clone()), order: ScanOrder::NewestFirst, limit: 1, ..Scan::of(run) };
    let newest = match store.scan(&scan).await {
        Err(StoreError::NotFound { .. }) => return Ok(None),
        newest => newest?,
    };
    let Some(seq) = newest.records.first().map(|record| record.header().seq) else { return Ok(None) };
    let next = newest.damaged.iter().map(|damage| damage.seq).max().unwrap_or(0).max(seq) + 1;
    let record = store.load(run, scope, seq).await?;
    Ok(Some(Head { record, next, damaged: newest.damaged }))
}

/// The children that ended together with their parent.
struct EndedWithParent {
    run: RunId,
    scope: ScopePath,
    /// By name of the open fan-outs: true if failures are collected, so that failed children ended separately.
    collects: HashMap<StepId, bool>,
}

impl EndedWithParent {
    fn of<S>(scope: &Scope<'_, S>) -> Self {
        let named = |fan: &FanOut| (children_of(scope, fan.place).name.clone(), collects(scope, fan.place));
        let (run, path) = (scope.chain.run.clone(), scope.path().clone());
        Self { run, scope: path, collects: scope.fans.iter().map(named).collect() }
    }

    /// Finds the cancelled and the open children; also the failed children, if the first failure ends all
    /// siblings.
    async fn find(&self, store: &dyn Store) -> Result<Vec<ScopePath>, StoreError> {
        let mut children = Vec::new();
        for child in store.scopes(&self.run).await? {
            let opener = child.opened_by().filter(|_| child.parent().as_ref() == Some(&self.scope));
            let Some(collects) = opener.and_then(|(name, _)| self.collects.get(&name)) else { continue };
            match store.newest(&self.run, &child).await?.header().end {
                Some(End::Cancelled) | None => children.push(child),
                Some(End::Failed) if !collects => children.push(child),
                _ => {}
            }
        }
        Ok(children)
    }
}

/// Invalidates finished steps of a scope that read an edited value, with all downstream steps.
async fn invalidate_readers<P: Program>(
    (engine, program): (&Engine, &P),
    scope: &mut Scope<'_, P::State>,
    steps: &[StepId],
) -> Result<(), RunError> {
    let unfinished = Unfinished::of(scope.shape, &scope.position);
    let places = steps.iter().filter_map(|step| scope.shape.place(step.as_str()));
    let places: Vec<usize> = places.filter(|place| !unfinished.has(*place)).collect();
    let downstream = scope.shape.downstream(&places);
    let first: Vec<usize> = places.into_iter().filter(|place| !downstream.contains(place)).collect();
    if first.is_empty() {
        return Ok(());
    }
    let (run, path) = (&scope.chain.run, &scope.chain.scope);
    let epoch = scope.position.epoch_max.max(epochs(engine, run, path).await?) + 1;
    let invalid_step = |place: usize| {
        let at =
            Try { attempt: 0, epoch, iteration: scope.shape.first_iteration(place, &scope.outer_iteration) };
        let entry = FrontierEntry { at, ..FrontierEntry::ready(scope.step_id(place).clone()) };
        InvalidStep { place, entry, is_named: false }
    };
    let invalid = first.into_iter().map(invalid_step).collect();
    let after = invalidate(scope.shape, &scope.position, invalid, ReusePolicy::Drop);
    scope.position = after.position;
    let path = scope.path().clone();
    forget(program, &path, &after.forgotten, &mut scope.state)
}

/// Moves the damaged records of a scope to quarantine.
///
/// # Errors
/// [`StoreError::Damaged`]: a record is missing, and the resume does not pass over missing records.
async fn quarantine_damaged<P: Program>(
    session: &mut Session<'_, P>,
    lease: &Lease,
    head: &Head,
) -> Result<(), RunError> {
    // As in the main scope: the finished steps of a missing record are not rerun unasked.
    let missing = head.damaged.iter().find(|damage| damage.flaw == Flaw::Missing);
    if let Some(missing) = missing.filter(|_| !session.skips_missing) {
        return Err(StoreError::of_damage(missing.clone(), Some(head.record.header().seq)).into());
    }
    for damage in &head.damaged {
        session.engine.store.quarantine(lease, damage).await?;
        session.repaired.push(damage.clone());
    }
    Ok(())
}

/// Loads a child of a fan-out at its position, or at its transition. An unstarted child is only queued, and is not
/// loaded.
///
/// The caller loads the fan-outs of the child.
pub(crate) async fn resume_child<P: Program>(
    session: &mut Session<'_, P>,
    lease: &Lease,
    opener: Opener,
    head: Head,
    (moved, edits): (Option<Transition>, Edits<P::State>),
) -> Result<Option<ScopeId>, RunError> {
    quarantine_damaged(session, lease, &head).await?;
    let header = head.record.header();
    session.latest = session.latest.max(header.created_at);
    let path = header.scope.clone();
    let is_moved = moved.as_ref().is_some_and(|moved| !moved.drafts.is_empty());
    let shape = &*children_of(session.scopes.get(opener.scope), opener.place).shape;
    let (base, mut position, drafts, basis, forgotten) = match moved {
        Some(Transition { record, position, drafts, basis, mut forgotten }) => {
            forgotten.extend(position_for_retry(shape, &record, session.keeps_failures)?.1);
            (record, position, drafts, basis, forgotten)
        }
        None => {
            let (position, steps) = position_for_retry(shape, &head.record, session.keeps_failures)?;
            (head.record.clone(), position, Vec::new(), None, steps)
        }
    };
    let seq = basis.unwrap_or(base.header().seq);
    if !session.accepted_packs.is_empty() {
        // An accepted pin upstream of the opener is the input of later starts.
        let above = session.scopes.get(opener.scope);
        let fan = above.fans.iter().find(|fan| fan.place == opener.place);
        let source = &fan.expect("an opener with a child has a fan-out").source;
        let mut reader = source.reader(session.engine.store.clone(), opener.index).await?;
        let item = reader.next().await?;
        let input = item.and_then(|item| session.input_of_child(opener.scope, opener.place, &item));
        position.input = input.or(position.input);
    }
    let above = session.scopes.get(opener.scope);
    let children = children_of(above, opener.place);
    let shape = &*children.shape;
    if !above.runs_hooks(opener.place) {
        let around = &above.entry(opener.place).at.iteration;
        start_at_roots(shape, &base, &mut position, around);
    }
    let mut is_transferred = false;
    if let Some(old) = session.shape_before.as_ref().and_then(|before| before.of_scope(&path)) {
        let is_new = |step: &&Step| !step.idempotent && old.step(step.id.as_str()).is_none();
        let new: BTreeSet<StepId> = shape.steps().iter().filter(is_new).map(|step| step.id.clone()).collect();
        let begun = begun_before(session.engine.store.as_ref(), (&header.run, &path), &new).await?;
        let before_fork = begun_before_fork(&session.main().position.requests, &path);
        begun.union(&before_fork).for_each(|step| position.note_effect(step));
        let frontier = position.frontier.clone();
        let around = above.entry(opener.place).at.iteration.clone();
        transfer_scope(old, shape, &mut position, &around).map_err(|why| RunError::Changed {
            run: header.run.clone(),
            why: format!("{why}; scope `{}`", path.readable()),
        })?;
        is_transferred = position.frontier != frontier;
    }
    if let Some(gone) = position.frontier.iter().find(|entry| shape.place(entry.step.as_str()).is_none()) {
        let why = format!("scope `{path}` is at step `{}`, which the graph does not have", gone.step);
        return Err(RunError::Changed { run: header.run.clone(), why });
    }
    let is_open = header.end.is_none();
    if is_open && is_fresh(&position) && head.next == seq + 1 && !is_moved && edits.is_empty() {
        let out = session.scopes.get_mut(opener.scope).fan_mut(opener.place);
        out.queue.push_back(Queued { scope: path, index: opener.index, seq });
        return Ok(None);
    }
    let mut state = decode_state(session.program, shape.level(), &base)?;
    session.program.set_index(&mut state, opener.index);
    session.program.attach(above.step_ref(opener.place), &above.state, &mut state);
    forget(session.program, &path, &forgotten, &mut state)?;
    let mut chain = Chain::child(&above.chain, path);
    chain.next = head.next;
    chain.prev = Some(head.record.digest());
    chain.basis = (head.next != seq + 1).then_some(seq);
    chain.repair = head.next != head.record.header().seq + 1;
    if chain.basis.is_some() {
        position.note_rerun();
    }
    let parallel_max = children.parallel_max;
    let is_opener_in = above.opener.is_none() || above.has_capacity;
    let around = above.entry(opener.place).at.iteration.clone();
    let scope = ChoiceScope { run: &chain.run, scope: &chain.scope, shape };
    edits.choose(scope, &mut position)?;
    let mut scope = Scope::new(chain, shape, position, state);
    scope.opener = Some(opener);
    scope.outer_iteration = around;
    if scope.chain.repair {
        scope.ask_again();
    }
    // A session of this resume that wrote no record has not taken up these steps.
    let is_new = !session.is_again || head.record.header().token != lease.token();
    scope.reopens = is_moved || is_new || session.scopes.get(opener.scope).reopens;
    if scope.reopens {
        let (by_person, was_killed, keeps_failures) =
            (session.by.is_some(), session.was_killed, session.keeps_failures);
        let (now, answers) = (session.now(), &session.answers);
        reopen(&mut scope, Reopening { now, by_person, was_killed, keeps_failures, answers });
        decide_begun(session.program, &mut scope);
    }
    scope.drafts.extend(drafts);
    let read_by = edits.read_by();
    edits.apply(&mut scope, &head.record)?;
    let engine = session.engine;
    if session.program.keeps_apart() {
        invalidate_readers((engine, session.program), &mut scope, &read_by).await?;
    }
    if is_transferred && scope.drafts.is_empty() {
        // A later resume compares with the definition that this resume adopts.
        let about =
            scope.position.frontier.first().map(|entry| (entry.step.clone(), entry.at.clone())).unzip();
        let at = about.1.unwrap_or_default();
        scope.drafts.push(Draft::new(Phase::Restored, Reason::Redo, about.0, at));
    }
    let is_done = scope.position.frontier.is_empty();
    if is_done && scope.drafts.is_empty() {
        // The scope was held after its last step; only its end is missing.
        scope.drafts.push(Draft::new(Phase::Started, Reason::Step, None, Try::default()));
    }
    let fan = session.scopes.get_mut(opener.scope).fan_mut(opener.place);
    let was_cut = scope.position.frontier.iter().any(|entry| entry.cuts > 0);
    scope.has_capacity = is_opener_in && !was_cut && !scope.rests() && fan.active < parallel_max;
    scope.is_waiting_for_capacity = was_cut;
    fan.active += usize::from(scope.has_capacity);
    let is_written = !scope.drafts.is_empty();
    let id = session.scopes.add(scope);
    if was_cut {
        session.scopes.get_mut(opener.scope).fan_mut(opener.place).interrupted.push_back(id);
    }
    session.touched.insert(id);
    if is_written {
        session.mark_dirty(id);
    }
    Ok(Some(id))
}

/// Lets a child that has not begun start with the first steps of the graph in force: an edit may have added or removed some.
pub(crate) fn start_at_roots(shape: &Shape, opening: &Record, position: &mut Position, around: &[u32]) {
    let roots: BTreeSet<&StepId> = shape.roots().into_iter().map(|place| &shape.steps()[place].id).collect();
    let is_same = position.frontier.iter().map(|entry| &entry.step).collect::<BTreeSet<_>>() == roots;
    let is_opening = matches!(opening.header().reason, Reason::Fork | Reason::Rollback);
    if is_same || shape.is_routed() || !is_opening || !is_fresh(position) {
        return;
    }
    let epoch = position.frontier.iter().map(|entry| entry.at.epoch).max().unwrap_or_default();
    let entry = |place: usize| {
        let mut entry = FrontierEntry::ready(shape.steps()[place].id.clone());
        (entry.at.iteration, entry.at.epoch) = (shape.first_iteration(place, around), epoch);
        entry
    };
    position.frontier = shape.roots().into_iter().map(entry).collect();
}

/// Returns whether a child was opened and has not begun.
pub(crate) fn is_fresh(position: &Position) -> bool {
    let untouched = |entry: &FrontierEntry| {
        entry.status == Status::Ready
            && entry.at.attempt == 0
            && entry.memos == 0
            && !entry.has_children()
            && !entry.waits.iter().any(|wait| wait.on == WaitKind::Resume)
    };
    position.steps_started == 0 && position.frontier.iter().all(untouched)
}

/// Returns the newest records in force: of the main scope, and of children that their opener waits for.
///
/// `heads`: parents before children.
pub(crate) fn live(heads: Vec<Head>) -> Result<Vec<Head>, StoreError> {
    let mut fans: HashMap<ScopePath, Vec<u64>> = HashMap::new();
    let mut kept = Vec::with_capacity(heads.len());
    for head in heads {
        let scope = head.record.header().scope.clone();
        let position = position_of(&head.record)?;
        let counts = match (scope.parent(), position.origin) {
            (Some(parent), Some(origin)) => fans.get(&parent).is_some_and(|open| open.contains(&origin)),
            // A child without an origin belongs to a foreign program, and is in force.
            _ => true,
        };
        if counts {
            let open = position.frontier.iter().filter_map(|entry| Some(entry.open_fan()?.since));
            fans.insert(scope, open.collect());
            kept.push(head);
        }
    }
    Ok(kept)
}
