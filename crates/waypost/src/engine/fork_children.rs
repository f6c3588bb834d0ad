//! Branches of a forked run: the new run copies the open branches at the checkpoint, with their finished steps.
//!
//! ```text
//!   r@5:  merge waits      r/plan:a@4: ended      r/plan:b@2: b2 is ready
//!   r2@1: merge waits      r2/plan:a@1: ended     r2/plan:b@1: b2 is ready      all in the batch that creates the run
//! ```
//!
//! Each branch is copied at its newest sound record of that fan-out. In the new run no step is running: an
//! interrupted or waiting step is ready, and an interrupted non-idempotent step is in doubt. A branch without a
//! sound record restarts at its first step. Joined branches are copied for their evidence, with the join and its
//! opening record.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::id::{BranchPath, CheckpointRef, Digest, RunId, StepId};
use crate::plan::shape::{Children, Shape};
use crate::record::{
    End, Fan, FrontierEntry, FrozenItems, Header, Phase, Position, Reason, Record, Settled, Status, Try,
};
use crate::store::portable::{PORTABLE_BYTES_MAX, Portable};
use crate::store::{BLOB_CHUNK_BYTES, Lease, Store, StoreError, StoreExt as _};

use super::begin::decode_state;
use super::chain::{Chain, Draft};
use super::child_ends::record_in_fan_out;
use super::children::ChildStart;
use super::fan_out::{FanOut, Item, Items, named_items, not_as_frozen, thaw};
use super::fork::{copy_of, position_in_new_run};
use super::in_doubt::{cut_in, cut_there};
use super::inspect::{accepted_on, position_of};
use super::open_scopes::is_fresh;
use super::reruns::opener_of;
use super::resume::is_done_again;
use super::rollback::{is_left_behind, joins, load_with_state};
use super::scheduler::{children_of, for_children};
use super::scope::{Opener, Scope, ScopeId};
use super::session::Session;
use super::trust::{CopiedBranch, joined_on};
use super::{Engine, Program, RunError};

/// The blob prefix in the new run for items of the other run.
pub(super) const CARRIED_ITEMS: &str = "items/carried.";

/// A branch of the other run.
pub(super) struct SourceBranch {
    pub(super) record: Record,
    pub(super) position: Position,
    /// The records of the finished steps in force and of the joined fan-outs, without states.
    pub(super) settled: Vec<Record>,
    /// The finished joins with evidence below, each with the record of its fan-out.
    pub(super) joined: HashMap<StepId, u64>,
}

/// The branches to copy, besides the main branch.
#[derive(Default)]
pub(super) struct Along {
    pub(super) branches: BTreeMap<BranchPath, SourceBranch>,
    /// Joined branches with evidence.
    pub(super) joined: BTreeMap<BranchPath, SourceBranch>,
    /// The finished joins of the main branch, as for a branch.
    joins: HashMap<StepId, u64>,
    /// By branch: the seqs of the joined fan-outs, in the other run and in the new run.
    opened: HashMap<BranchPath, HashMap<u64, u64>>,
    /// Stored items, by the name of their blob.
    items: BTreeMap<String, Vec<u8>>,
}

impl Along {
    /// Reads the open branches of a checkpoint of the main branch. Fan-outs that restart in the new run are
    /// removed from `position`.
    ///
    /// As for a rollback: a fan-out restarts if its branches were joined or reopened since. With an edited state,
    /// every unjoined fan-out restarts. `shape`: given if the evidence of joined branches is to be copied.
    ///
    /// # Errors
    /// - [`RunError::NoState`]: the branches exceed the size limit of a new run.
    /// - Those of the store.
    /// - Those of the store.
    pub(super) async fn of_store(
        engine: &Engine,
        (header, position): (&Header, &mut Position),
        edited: bool,
        shape: Option<&Shape>,
    ) -> Result<Self, RunError> {
        let (run, main) = (&header.run, BranchPath::main());
        let mut along = Self::default();
        if let Some(shape) = shape {
            along.joins = joined_before(engine, shape, header, position).await?;
        }
        if !position.frontier.iter().any(FrontierEntry::has_children) && along.joins.is_empty() {
            return Ok(along);
        }
        let newest = position_of(&engine.store.newest(run, &main).await?)?;
        let mut left = Vec::new();
        for entry in position.frontier.iter().filter(|entry| entry.has_children()) {
            if is_left_behind(engine, run, (entry, None), &newest, !edited).await? {
                left.push(entry.step.clone());
            }
        }
        for entry in &mut position.frontier {
            if left.contains(&entry.step) {
                entry.drop_children();
            }
        }
        let mut names = engine.store.branches(run).await?;
        names.remove(&main);
        let mut fans = BTreeMap::from([(main.clone(), fans_of(position))]);
        let mut joins = BTreeMap::from([(main.clone(), along.joins.clone())]);
        let mut bytes = along.read_items(engine, run, position).await?;
        bytes += along.read_joined_items(engine, (run, &main), &joins[&main]).await?;
        let mut names: Vec<BranchPath> = names.into_iter().collect();
        names.sort_by_key(BranchPath::depth);
        for name in names {
            let (Some((opener, _)), Some(parent)) = (name.opened_by(), name.parent()) else { continue };
            let open = fans.get(&parent).map_or(&[][..], Vec::as_slice);
            let joined = shape.and_then(|shape| joins.get(&parent)?.get(&opener_of(shape, &name)?).copied());
            let origins: Vec<u64> = open.iter().copied().chain(joined).collect();
            if origins.is_empty() {
                continue;
            }
            let Some(mut taken) = newest_of(engine, run, &name, (&origins, joined)).await? else { continue };
            let was_joined = taken.position.origin == joined;
            if was_joined && taken.record.header().end.is_none() {
                // The branch is running again.
                continue;
            }
            if taken.record.header().end.is_none() {
                fans.insert(name.clone(), fans_of(&taken.position));
                bytes += along.read_items(engine, run, &taken.position).await?;
            }
            if let Some(shape) = shape {
                let header = taken.record.header();
                taken.joined = joined_before(engine, shape, header, &taken.position).await?;
                taken.settled.extend(openings(engine.store.as_ref(), header, &taken.joined).await?);
                bytes += along.read_joined_items(engine, (run, &name), &taken.joined).await?;
                joins.insert(name.clone(), taken.joined.clone());
            }
            bytes += taken.record.body_bytes().map_or(0, |body| body.len()) as u64;
            if bytes > PORTABLE_BYTES_MAX {
                let at = CheckpointRef { run: run.clone(), branch: name, seq: taken.record.header().seq };
                let why = format!(
                    "the branches of `{opener}` exceed {PORTABLE_BYTES_MAX} bytes, the maximum for a new run"
                );
                return Err(RunError::NoState { at: at.to_string(), why });
            }
            let there = if was_joined { &mut along.joined } else { &mut along.branches };
            there.insert(name, taken);
        }
        Ok(along)
    }

    /// Returns the branches with evidence to check, and their finished steps. Failed and cancelled branches are
    /// not checked.
    pub(super) fn trusted(&self) -> impl Iterator<Item = CopiedBranch<'_>> {
        let joined =
            self.joined.iter().filter(|(_, taken)| taken.record.header().end == Some(End::Completed));
        let all = self.branches.iter().chain(joined);
        all.map(|(name, taken)| CopiedBranch {
            name: name.clone(),
            position: &taken.position,
            settled: &taken.settled,
        })
    }

    /// Returns the finished joins of the main branch, with the records of their fan-outs.
    pub(super) fn joins(&self) -> &HashMap<StepId, u64> {
        &self.joins
    }

    /// Notes the new seqs of a branch's joined fan-outs.
    pub(super) fn note_opened(&mut self, branch: BranchPath, opened: HashMap<u64, u64>) {
        self.opened.insert(branch, opened);
    }

    /// Takes the branches of a portable checkpoint; with an edited state, only branches ready to be joined.
    pub(super) fn of_portable(
        from: &Portable,
        position: &mut Position,
        edited: bool,
    ) -> Result<Self, RunError> {
        for entry in &mut position.frontier {
            if edited && !joins(entry) {
                entry.drop_children();
            }
        }
        let mut along = Self { items: from.blobs().clone(), ..Self::default() };
        for record in from.children() {
            let position = position_of(record)?.back_at_work();
            let branch = record.header().branch.clone();
            let seqs: Vec<u64> = position.ledger.values().map(|settled| settled.seq).collect();
            let known = from.history().iter().filter(|known| known.header().branch == branch);
            let known = known.filter(|known| seqs.contains(&known.header().seq));
            let own = Some(record).filter(|record| seqs.contains(&record.header().seq));
            let settled = known.chain(own).cloned().collect();
            let taken = SourceBranch { record: record.clone(), position, settled, joined: HashMap::new() };
            along.branches.insert(branch, taken);
        }
        Ok(along)
    }

    /// Reads the items of joined fan-outs, if still available: the new run may have to join again.
    async fn read_joined_items(
        &mut self,
        engine: &Engine,
        (run, branch): (&RunId, &BranchPath),
        joined: &HashMap<StepId, u64>,
    ) -> Result<u64, RunError> {
        let mut read = 0;
        for since in joined.values() {
            match load_with_state(engine, run, branch, *since).await {
                Err(RunError::NoState { .. } | RunError::Store(StoreError::Damaged { .. })) => {}
                opening => read += self.read_items(engine, run, &position_of(&opening?)?).await?,
            }
        }
        Ok(read)
    }

    async fn read_items(
        &mut self,
        engine: &Engine,
        run: &RunId,
        position: &Position,
    ) -> Result<u64, RunError> {
        let mut read = 0;
        let fans = position.frontier.iter().filter_map(|entry| entry.open_fan()?.items.clone());
        for FrozenItems { blob, bytes, digest } in fans.collect::<Vec<_>>() {
            let mut text = Vec::new();
            while (text.len() as u64) < bytes {
                let chunk = engine.store.blobs().read(run, &blob, text.len() as u64).await?;
                if chunk.is_empty() {
                    break;
                }
                text.extend_from_slice(&chunk);
            }
            let actual = Digest::of(&text);
            if actual != digest {
                return Err(not_as_frozen(run, &blob, (text.len() as u64, actual), digest).into());
            }
            read += bytes;
            self.items.insert(blob, text);
        }
        Ok(read)
    }

    /// Adds the branches to the session of the new run.
    ///
    /// # Errors
    /// [`RunError::Changed`]: the graph does not have these branches.
    pub(super) fn add_open_branches<P: Program>(
        &mut self,
        session: &mut Session<'_, P>,
        id: ScopeId,
        (fans, leaves): (Vec<OpenFans>, bool),
    ) -> Result<(), RunError> {
        for OpenFans { step, fan, are_hooks, is_joining } in fans {
            let scope = session.scopes.get(id);
            let (run, branch) = (scope.chain.run.clone(), scope.branch().clone());
            let changed = |why: String| RunError::Changed { run: run.clone(), why };
            let unlike = || changed(format!("the branches of step `{step}` do not match the graph"));
            let place = scope.shape.place(step.as_str()).ok_or_else(unlike)?;
            let opener = &scope.shape.steps()[place];
            let children = if are_hooks { &opener.hooks } else { &opener.children };
            let children = children.as_ref().ok_or_else(unlike)?;
            let items = self.items_of(&fan, children)?.ok_or_else(unlike)?;
            let mut out = FanOut::new(place, Items::Named(Arc::clone(&items)), fan.total, false);
            out.opened = fan.opened;
            let scope = session.scopes.get_mut(id);
            scope.fans.push(out);
            let entry = scope.entry_mut(place);
            let frozen = fan.items.map(|items| FrozenItems { blob: carried_name(&items), ..items });
            let opened = fan.opened as usize;
            let fan = Fan { items: frozen, since: 0, relisted: Vec::new(), ..fan };
            *(if are_hooks { &mut entry.hooks } else { &mut entry.fan }) = Some(fan);
            let mut missing = Vec::new();
            for item in items.iter().take(opened) {
                let name = children.path(&branch, &item.key);
                let name = name.map_err(|error| StoreError::Invalid(error.to_string()))?;
                match self.branches.remove(&name) {
                    Some(taken) => {
                        let opener = Opener { scope: id, place, index: item.index };
                        self.add_branch(session, opener, (name, taken), leaves)?;
                    }
                    None => missing.push((item, name)),
                }
            }
            let is_of_fan = |name: &&BranchPath| {
                name.parent().as_ref() == Some(&branch)
                    && name.opened_by().is_some_and(|(opener, _)| opener == children.name)
            };
            if let Some(left) = self.branches.keys().find(is_of_fan) {
                let why = format!("step `{step}` has an open branch `{left}`, which the graph does not have");
                return Err(changed(why));
            }
            let scope = session.scopes.get_mut(id);
            let is_complete = scope.fan_mut(place).is_complete();
            if !is_joining || !is_complete || !missing.is_empty() {
                let entry = scope.entry_mut(place);
                (entry.status, entry.waits) = (Status::Waiting, vec![for_children()]);
            }
            for (item, name) in missing {
                restart_branch(session, (id, place), item, name)?;
            }
        }
        Ok(())
    }

    fn items_of(&self, fan: &Fan, children: &Children) -> Result<Option<Arc<[Item]>>, RunError> {
        match &fan.items {
            Some(at) => {
                let text = self.items.get(&at.blob).map_or(&[][..], Vec::as_slice);
                let items = thaw(text).map_err(|error| {
                    StoreError::Invalid(format!("the items in blob `{}` are incomplete: {error}", at.blob))
                })?;
                Ok(Some(items).filter(|items| items.len() as u64 == fan.total))
            }
            None => Ok(named_items(children, fan.pass).filter(|named| named.len() as u64 == fan.total)),
        }
    }

    /// Adds a branch to the session.
    fn add_branch<P: Program>(
        &mut self,
        session: &mut Session<'_, P>,
        opener: Opener,
        (name, taken): (BranchPath, SourceBranch),
        leaves: bool,
    ) -> Result<(), RunError> {
        let Opener { place, index, .. } = opener;
        let above = session.scopes.get(opener.scope);
        let (around, shape) = (above.entry(place).at.iteration.clone(), &*children_of(above, place).shape);
        let SourceBranch { record, position, settled, joined } = taken;
        let gone = position.frontier.iter().find(|entry| shape.place(entry.step.as_str()).is_none());
        if let Some(gone) = gone {
            let why = format!("branch `{name}` is at step `{}`, which the graph does not have", gone.step);
            return Err(RunError::Changed { run: record.header().run.clone(), why });
        }
        let mut state = decode_state(session.program, shape.level(), &record)?;
        session.program.attach(above.step_ref(place), &above.state, &mut state);
        // A branch held after its last step has ended; only its end was not recorded.
        let is_done = position.frontier.is_empty();
        let end = record.header().end.or(is_done.then_some(End::Completed));
        let begins = is_fresh(&position);
        let (fans, ledger) = (OpenFans::of(&position), position.ledger.clone());
        let mut cut = cut_in(&position, shape);
        if let Some(before) = session.before.as_ref().and_then(|before| before.of_branch(&name)) {
            let more = cut_in(&position, before).into_iter().filter(|step| !cut.contains(step));
            cut.extend(more.collect::<Vec<_>>());
        }
        let from = record.header().run.clone();
        let position = Position { origin: Some(0), ..position_in_new_run(position) };
        let mut scope = Scope::new(Chain::child(&above.chain, name), shape, position, state);
        scope.opener = Some(opener);
        scope.around = around;
        let newest = record.header().seq;
        let is_known = |record: &Record| record.header().seq == newest;
        let own = (end.is_some() && !settled.iter().any(is_known)).then_some(record);
        let opened = copy_settled(&mut scope, (&ledger, &joined), settled.iter().chain(&own), leaves);
        self.note_opened(scope.branch().clone(), opened);
        if end.is_none() {
            scope.drafts.push(Draft::new(Phase::Restored, Reason::Fork, None, Try::default()));
            cut.iter().for_each(|step| scope.doubt_cut(step, cut_there(&from)));
        }
        scope.end = end;
        scope.is_counted_out = end.is_some();
        scope.unloading = end.is_none() && begins;
        let dead = end.map_or(0, |end| scope.end_with_last_draft(end));
        let unloading = scope.unloading;
        let id = session.scopes.add(scope);
        session.mark_dirty(id);
        let fan = session.scopes.get_mut(opener.scope).fan_mut(place);
        match end {
            Some(_) => {
                fan.ended += 1;
                fan.mark_ended_here(index);
                fan.failed += dead;
                Ok(())
            }
            None if unloading => {
                fan.unloading.push_back(id);
                Ok(())
            }
            None => {
                session.touched.insert(id);
                self.add_open_branches(session, id, (fans, leaves))
            }
        }
    }

    /// Adds the joined branches to the session: these have ended, and no step waits for them.
    ///
    /// # Errors
    /// Those of the program while decoding states.
    pub(super) fn add_joined_branches<'a, P: Program>(
        &mut self,
        session: &mut Session<'a, P>,
        program: &'a P,
    ) -> Result<(), RunError> {
        let mut joined: Vec<_> = std::mem::take(&mut self.joined).into_iter().collect();
        joined.sort_by_key(|(name, _)| name.depth());
        for (name, SourceBranch { record, position, settled, joined }) in joined {
            let opened = name.parent().and_then(|parent| self.opened.get(&parent));
            let here = position.origin.and_then(|there| opened?.get(&there).copied());
            let (Some(here), Some(shape)) = (here, program.shape().of_branch(&name)) else { continue };
            let state = decode_state(program, shape.level(), &record)?;
            let ledger = position.ledger.clone();
            let position = Position { origin: Some(here), ..position_in_new_run(position) };
            let mut scope = Scope::new(Chain::child(&session.main().chain, name), shape, position, state);
            (scope.end, scope.is_counted_out) = (record.header().end, true);
            let is_known = settled.iter().any(|known| known.header().seq == record.header().seq);
            let own = (!is_known).then_some(&record);
            let opened = copy_settled(&mut scope, (&ledger, &joined), settled.iter().chain(own), false);
            self.note_opened(scope.branch().clone(), opened);
            if let Some(end) = scope.end {
                scope.end_with_last_draft(end);
            }
            let id = session.scopes.add(scope);
            session.mark_dirty(id);
        }
        Ok(())
    }

    /// Stores the items of the branches with the new run.
    pub(super) async fn keep_items(
        engine: &Engine,
        lease: &Lease,
        items: BTreeMap<String, Vec<u8>>,
    ) -> Result<(), StoreError> {
        for (name, text) in items.iter().filter(|(_, text)| !text.is_empty()) {
            for chunk in text.chunks(BLOB_CHUNK_BYTES) {
                engine.store.blobs().append(lease, name, chunk).await?;
            }
            engine.store.blobs().sync(lease, name).await?;
        }
        Ok(())
    }

    /// Returns the stored items by their names in the new run.
    pub(super) fn into_items(self) -> BTreeMap<String, Vec<u8>> {
        self.items.into_values().map(|text| (name_of(Digest::of(&text)), text)).collect()
    }
}

/// Copies the records of finished steps and points the ledger to the copies. Returns the new seqs of the joined
/// fan-outs.
pub(super) fn copy_settled<'r, S>(
    scope: &mut Scope<'_, S>,
    (ledger, joined): (&BTreeMap<StepId, Settled>, &HashMap<StepId, u64>),
    records: impl Iterator<Item = &'r Record>,
    leaves: bool,
) -> HashMap<u64, u64> {
    let mut opened = HashMap::new();
    let mut records: Vec<&Record> = records.collect();
    records.sort_by_key(|record| record.header().seq);
    for record in records {
        let (seq, old) = (scope.seq_of_next_draft(), record.header().seq);
        let known = ledger.iter().find(|(_, settled)| settled.seq == old);
        let is_left = leaves && record.header().evidence.is_some();
        if let Some((step, known)) = known.filter(|(_, known)| !is_left || known.failures > 0) {
            scope.position.ledger.insert(step.clone(), Settled { seq, fan: None, ..known.clone() });
        }
        let mut copy = copy_of(record);
        copy.report.evidence = copy.report.evidence.filter(|_| !is_left);
        if joined.values().any(|since| *since == old) {
            opened.insert(old, seq);
        }
        // A fan-out precedes its join.
        let since = known.and_then(|(step, _)| joined.get(step));
        copy.about = since.and_then(|since| opened.get(since).copied());
        scope.drafts.push(copy);
    }
    opened
}

/// Reads the records of a branch's finished steps, without states, with the last accepted evidence.
pub(super) async fn settled_on(
    store: &dyn Store,
    header: &Header,
    position: &Position,
) -> Result<Vec<Record>, StoreError> {
    let mut settled = Vec::with_capacity(position.ledger.len());
    for at in position.ledger.values() {
        settled.push(store.load(&header.run, &header.branch, at.seq).await?.without_body());
    }
    if settled.iter().all(|record| record.header().evidence.is_none()) {
        return Ok(settled);
    }
    let mut accepted = accepted_on(store, header).await?;
    for record in &mut settled {
        if let Some(pack) = accepted.remove(&record.header().seq) {
            let header = Header { evidence: Some(pack), ..record.header().clone() };
            *record = Record::seal(header, None).map_err(|flaw| StoreError::Invalid(flaw.to_string()))?;
        }
    }
    Ok(settled)
}

/// Returns the finished joins of a branch with evidence below, except for joins with a new open fan-out.
async fn joined_before(
    engine: &Engine,
    shape: &Shape,
    header: &Header,
    position: &Position,
) -> Result<HashMap<StepId, u64>, StoreError> {
    let mut joined = joined_on(engine.store.as_ref(), shape, (header, position), &BTreeSet::new()).await?;
    let opens =
        |step: &StepId| position.frontier.iter().any(|entry| entry.step == *step && entry.has_children());
    joined.retain(|step, _| !opens(step));
    Ok(joined)
}

/// Reads the records of a branch's joined fan-outs.
pub(super) async fn openings(
    store: &dyn Store,
    header: &Header,
    joined: &HashMap<StepId, u64>,
) -> Result<Vec<Record>, StoreError> {
    let mut opening = Vec::with_capacity(joined.len());
    for since in joined.values() {
        match store.load(&header.run, &header.branch, *since).await {
            // Without the record, its branches do not count as joined.
            Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => {}
            record => opening.push(record?.without_body()),
        }
    }
    Ok(opening)
}

/// Restarts a branch without a sound record.
fn restart_branch<P: Program>(
    session: &mut Session<'_, P>,
    (id, place): (ScopeId, usize),
    item: &Item,
    name: BranchPath,
) -> Result<(), RunError> {
    let scope = session.scopes.get(id);
    let state = session.program.child(scope.step_ref(place), &scope.state, item).map_err(|failure| {
        let at = format!("{}/{name}", scope.chain.run);
        RunError::NoState { at, why: format!("cannot reopen the branch: {}", failure.error.join(": ")) }
    })?;
    let (chain, epoch) = (Chain::child(&scope.chain, name), scope.entry(place).at.epoch);
    let begin = ChildStart { chain, epoch, before: None, replaced: None };
    session.scopes.get_mut(id).fan_mut(place).opened -= 1;
    session.open_child(id, place, item, state, begin);
    Ok(())
}

/// Returns the records of a position's open fan-outs.
fn fans_of(position: &Position) -> Vec<u64> {
    position.frontier.iter().filter_map(|entry| Some(entry.open_fan()?.since)).collect()
}

/// Reads the newest sound record of a branch, if the branch belongs to a fan-out in `origins`; else the
/// record for the joined fan-out.
async fn newest_of(
    engine: &Engine,
    run: &RunId,
    branch: &BranchPath,
    (origins, joined): (&[u64], Option<u64>),
) -> Result<Option<SourceBranch>, RunError> {
    let store = engine.store.as_ref();
    let mut found = store.newest(run, branch).await;
    while let Err(StoreError::Damaged { older: Some(seq), .. }) = found {
        found = store.load(run, branch, seq).await;
    }
    let record = match found {
        Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => return Ok(None),
        record => record?,
    };
    if record.state_bytes().is_none() {
        return Ok(None);
    }
    let origin = position_of(&record)?.origin;
    // A later, abandoned opening does not hide the joined branch.
    let record = match joined {
        _ if origin.is_some_and(|origin| origins.contains(&origin)) => Some(record),
        Some(since) => record_in_fan_out(store, &record, since, &[]).await?,
        None => None,
    };
    let Some(record) = record else { return Ok(None) };
    let position = position_of(&record)?.back_at_work();
    let settled = settled_on(store, record.header(), &position).await?;
    Ok(Some(SourceBranch { record, position, settled, joined: HashMap::new() }))
}

pub(super) fn carried_name(items: &FrozenItems) -> String {
    name_of(items.digest)
}

/// Names items by their content, since several branches may have the same items.
fn name_of(digest: Digest) -> String {
    format!("{CARRIED_ITEMS}{digest}.jsonl")
}

/// An open fan-out on a branch of the new run.
pub(super) struct OpenFans {
    pub(super) step: StepId,
    pub(super) fan: Fan,
    pub(super) are_hooks: bool,
    /// All branches have ended, and the join is next.
    pub(super) is_joining: bool,
}

impl OpenFans {
    pub(super) fn of(position: &Position) -> Vec<Self> {
        let staying = position.frontier.iter().filter(|entry| !is_done_again(entry));
        let entries = staying.filter_map(|entry| {
            let (step, fan) = (entry.step.clone(), entry.open_fan()?.clone());
            Some(Self { step, fan, are_hooks: entry.hooks.is_some(), is_joining: joins(entry) })
        });
        entries.collect()
    }
}
