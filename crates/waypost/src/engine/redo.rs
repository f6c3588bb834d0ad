//! Doing again what evidence no longer shows: back to the state that a step was given, and forward again to where the
//! run stood, if the step gives what it gave before.
//!
//! ```text
//!   @1 started a   @2 completed a   @3 completed b | c started      a's evidence fails
//!   @4 restored (basis 1), ahead: 3
//!   @5 completed a: same state, same pins  -->  @6 restored (basis 3): b is used again, c goes on
//!   @5 completed a: another state          -->  b runs; once a state is that of before, what is left is used again
//!   @5 completed a: pinned something else  -->  nothing of what is ahead is used again
//! ```
//!
//! The state of a Rust graph is opaque: what a step took from it cannot be told, so all that comes after a step depends
//! on all that it gave. docs/decisions/0007-evidence-in-a-chain.md has the reasons.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::events::EVIDENCE_FAILED;
use crate::id::{BranchPath, CheckpointRef, StepId};
use crate::plan::Broken;
use crate::record::{
    Ahead, FrontierEntry, Header, Note, Pack, Phase, Position, Reason, Record, Settled, Status, Try,
};
use crate::shape::Shape;
use crate::store::{Scan, Store, StoreError, StoreExt as _};

use super::alike::opened_alike;
use super::anew::after;
use super::back::{epochs, fanned_out_since, load_with_state};
use super::begin::decode_state;
use super::chain::Draft;
use super::fit::Forget;
use super::given::{self, Recalled};
use super::recheck::{Branches, Judged, Known};
use super::same::same_json;
use super::snapshot::{accepted_on, position_of};
use super::{Engine, Program, RunError};

/// Where a branch is gone on with, if not where it stands.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) record: Record,
    pub(super) position: Position,
    /// What is written about it; nothing if only the position is another.
    pub(super) drafts: Vec<Draft>,
    /// The record that the branch continues, where the one above is of another run; 0 for none.
    pub(super) basis: Option<u64>,
    /// What is taken out of the state.
    pub(super) forgotten: Vec<Forget>,
}

/// How far a branch is that does again what was done before.
#[derive(Debug)]
pub(super) enum Pace {
    /// It is not where anything of before could be used again.
    Behind,
    /// It is where it was before: what is ahead may be used again.
    Level(Box<(Record, Position)>),
    /// It has pinned something else: nothing of what is ahead is used again.
    Changed,
}

/// Finds out whether a branch that went back has come to where it was before.
pub(super) async fn pace<P: Program>(
    engine: &Engine,
    program: &P,
    shape: &Shape,
    (record, position): (&Record, &Position),
) -> Result<Pace, RunError> {
    let Some(ahead) = position.ahead.filter(|ahead| !ahead.changed) else { return Ok(Pace::Behind) };
    let store = engine.store.as_ref();
    let ended = before_acceptance(store, record).await?;
    let header = ended.header();
    let (Phase::Completed(_), Some(step)) = (&header.phase, &header.step) else { return Ok(Pace::Behind) };
    let pass = (step, header.at.iteration.as_slice());
    let Some((then, pack)) = done_before(store, header, pass, ahead.seq).await? else {
        return Ok(Pace::Behind);
    };
    if !same_claims(header.evidence.as_ref(), pack.as_ref())
        || !opened_alike(store, program.shape(), (then.header(), header)).await?
    {
        return Ok(Pace::Changed);
    }
    let Some(then) = with_state(engine, then).await? else { return Ok(Pace::Behind) };
    let Some(then_state) = then.state_bytes() else { return Ok(Pace::Behind) };
    let next = |position: &Position| -> BTreeSet<StepId> {
        position.frontier.iter().map(|entry| entry.step.clone()).collect()
    };
    let is_same = next(&position_of(&then)?) == next(position)
        && same_state(program, shape, (record, then_state), &then)?;
    if !is_same {
        return Ok(Pace::Behind);
    }
    match standing_at(store, shape, header, ahead).await? {
        Some(stood) => Ok(Pace::Level(Box::new(stood))),
        None => Ok(Pace::Behind),
    }
}

/// Returns the newest record that is not about evidence that a person has accepted: that changes nothing else.
async fn before_acceptance(store: &dyn Store, newest: &Record) -> Result<Record, RunError> {
    let mut record = newest.clone();
    while let (Reason::Accept, Some(before)) = (record.header().reason, record.header().basis()) {
        record = store.load(&record.header().run, &record.header().branch, before).await?;
    }
    Ok(record)
}

/// Returns the record that carries the state with which a step ended: its own, or one of the same batch, if no other
/// step ended between the two.
pub(super) async fn with_state(engine: &Engine, then: Record) -> Result<Option<Record>, RunError> {
    if then.state_bytes().is_some() {
        return Ok(Some(then));
    }
    let header = then.header();
    let (run, branch) = (&header.run, &header.branch);
    let carrier = match load_with_state(engine, run, branch, header.seq).await {
        Err(RunError::NoState { .. } | RunError::Store(StoreError::Damaged { .. })) => return Ok(None),
        carrier => carrier?,
    };
    let (from, to) = (Some(header.seq + 1), Some(carrier.header().seq));
    let between = Scan { branch: Some(branch.clone()), seq_min: from, seq_max: to, ..Scan::of(run) };
    let between = engine.store.scan(&between).await?;
    let changes = |phase: &Phase| matches!(phase, Phase::Completed(_) | Phase::Skipped(_) | Phase::Restored);
    let keeps = |record: &Record| !changes(&record.header().phase);
    if between.records.iter().all(keeps) {
        return Ok(Some(carrier));
    }
    // Where the run began with that step done, only the one that it began from knows what it gave.
    match given::ended(engine, header).await? {
        Some(there) => Box::pin(with_state(engine, there)).await,
        None => Ok(None),
    }
}

/// Reads where a branch stood before it went back; nothing if that is gone, or the graph has no such step any more.
pub(super) async fn standing_at(
    store: &dyn Store,
    shape: &Shape,
    header: &Header,
    ahead: Ahead,
) -> Result<Option<(Record, Position)>, RunError> {
    let record = match store.load(&header.run, &header.branch, ahead.seq).await {
        Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => return Ok(None),
        record => record?,
    };
    if record.state_bytes().is_none() {
        return Ok(None);
    }
    let position = position_of(&record)?;
    let fits = position.frontier.iter().all(|entry| shape.place(entry.step.as_str()).is_some());
    Ok(fits.then_some((record, position)))
}

/// Finds the record of before that finished a step in the same pass, with its evidence as it was last accepted.
pub(super) async fn done_before(
    store: &dyn Store,
    header: &Header,
    (step, iteration): (&StepId, &[u32]),
    newest: u64,
) -> Result<Option<(Record, Option<Pack>)>, RunError> {
    let is_it = |record: &Record| {
        let found = record.header();
        found.step.as_ref() == Some(step)
            && found.at.iteration == iteration
            && matches!(found.phase, Phase::Completed(_))
    };
    let found = store.find_back(&header.run, &header.branch, newest, &is_it).await?;
    let Some(found) = found.as_ref().map(Record::header) else { return Ok(None) };
    let accepted = accepted_on(store, header).await?.remove(&found.seq);
    let pack = accepted.or_else(|| found.evidence.clone());
    match store.load(&header.run, &header.branch, found.seq).await {
        Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => Ok(None),
        record => Ok(Some((record?, pack))),
    }
}

/// Says whether two packs expect the same of the same things, of one machine where they are of any.
pub(super) fn same_claims(one: Option<&Pack>, other: Option<&Pack>) -> bool {
    fn expected(pack: Option<&Pack>) -> Vec<(&String, &String, &Value, &Option<String>)> {
        let claims = pack.into_iter().flat_map(|pack| &pack.claims);
        claims.map(|claim| (&claim.kind, &claim.subject, &claim.expect, &claim.host)).collect()
    }
    expected(one) == expected(other)
}

/// Says whether a record has the state of another one, as this program writes both.
pub(super) fn same_state<P: Program>(
    program: &P,
    shape: &Shape,
    (record, then_state): (&Record, &[u8]),
    then: &Record,
) -> Result<bool, RunError> {
    let schema =
        |record: &Record| record.header().body.as_ref().map(|body| (body.schema, body.codec.clone()));
    let Some(state) = record.state_bytes() else { return Ok(false) };
    if schema(record) == schema(then) {
        return Ok(state == then_state || same_json(state, then_state));
    }
    let mut written = [Vec::new(), Vec::new()];
    for (record, bytes) in [record, then].into_iter().zip(&mut written) {
        let state = decode_state(program, shape.level(), record)?;
        if program.encode(shape.level(), &state, bytes).is_err() {
            return Ok(false);
        }
    }
    Ok(same_json(&written[0], &written[1]))
}

/// What a branch is to do again, and why.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// The record that finished the step.
    pub(super) seq: u64,
    pub(super) step: StepId,
    /// Its own evidence; none for a join whose branches do something again.
    pub(super) claims: Option<Vec<String>>,
    /// It is such a join, of branches that came after the work of the step.
    pub(super) joins_after: bool,
    /// It joins its branches again, as they are, to do anew what came after them: these claims do not hold.
    pub(super) rejoins: bool,
}

impl Target {
    /// Says whether the branches that the step opens are opened anew: where it is named, or its own work comes before them.
    /// One whose evidence does not hold joins them again.
    fn is_opened_anew(&self, shape: &Shape, branch: &BranchPath) -> bool {
        let is_named = self.claims.as_ref().is_some_and(Vec::is_empty);
        let children = shape.of_branch(branch).and_then(|shape| shape.step(self.step.as_str()));
        let children = children.and_then(|step| step.children.as_ref());
        children.is_some_and(|children| {
            !children.is_fork() && (is_named || (children.afterwards && self.claims.is_some()))
        })
    }

    /// Stands where the step is to begin: one that joins what its work opened does again what came after that.
    fn begin(&self, entry: &mut FrontierEntry) {
        if entry.step == self.step && !self.joins_after {
            entry.back_to_work();
        }
    }
}

/// What all branches are to do again.
#[derive(Debug, Default)]
pub(super) struct Targets {
    pub(super) targets: BTreeMap<BranchPath, Vec<Target>>,
    /// Branches that were to be worked on again, and are left behind as one above them goes further back.
    pub(super) unreached: BTreeSet<BranchPath>,
}

/// Chooses for each branch the steps to be done again: those that are broken, or that join what is. What comes after
/// them waits for what they give: only then is it looked at. Of a chain this is the earliest; of a graph by needs, all that
/// do not come after each other. `wanted`: branches that go on where they stand, and are joined again. `apart`: a person
/// wants it, and what each step gave is kept apart.
pub(super) fn targets(
    shape: &Shape,
    branches: &Branches,
    broken: &[Broken],
    (wanted, apart): (&BTreeSet<BranchPath>, bool),
) -> Targets {
    let mut chooser = Chooser { shape, branches, broken, below: BTreeMap::new() };
    for branch in broken.iter().map(|broken| &broken.branch).chain(wanted) {
        let way = std::iter::successors(Some(branch.clone()), BranchPath::parent);
        for (below, above) in way.filter_map(|below| below.parent().map(|above| (below, above))) {
            chooser.below.entry(above).or_default().insert(below);
        }
    }
    let mut targets = BTreeMap::new();
    if let Some((_, main)) = branches.keys().next() {
        chooser.choose(main, &mut targets);
    }
    let is_left = |below: BranchPath| {
        let Some((above, targets)) = below.parent().and_then(|above| targets.get_key_value(&above)) else {
            return false;
        };
        let opener = opener_of(shape, &below);
        let joins = |target: &Target| target.claims.is_none() && opener.as_ref() == Some(&target.step);
        let behind = || chooser.behind(above, targets.iter().map(|target| &target.step));
        let is_redone = || {
            let place = shape.of_branch(above).zip(opener.as_ref());
            let place = place.and_then(|(shape, step)| shape.place(step.as_str()));
            let is_named = targets.iter().any(|target| opener.as_ref() == Some(&target.step));
            is_named || place.is_none_or(|place| behind().contains(&place))
        };
        !targets.iter().any(joins) && (!apart || is_redone())
    };
    let is_unreached =
        |branch: &BranchPath| std::iter::successors(Some(branch.clone()), BranchPath::parent).any(is_left);
    let unreached = wanted.iter().filter(|branch| is_unreached(branch)).cloned().collect();
    Targets { targets, unreached }
}

struct Chooser<'a> {
    shape: &'a Shape,
    branches: &'a Branches,
    broken: &'a [Broken],
    /// By branch, those that it opened and that have something to do again, or have some below them that do.
    below: BTreeMap<BranchPath, BTreeSet<BranchPath>>,
}

impl Chooser<'_> {
    /// Returns the places of the steps that come after these.
    fn behind<'s>(&self, branch: &BranchPath, steps: impl Iterator<Item = &'s StepId>) -> BTreeSet<usize> {
        let Some(shape) = self.shape.of_branch(branch) else { return BTreeSet::new() };
        let places: Vec<usize> = steps.filter_map(|step| shape.place(step.as_str())).collect();
        after(shape, &places)
    }

    /// Says whether a branch came after other branches of its step.
    fn came_after(&self, branch: &BranchPath) -> bool {
        let found = branch.parent().zip(branch.opened_by()).and_then(|(parent, (name, _))| {
            let shape = self.shape.of_branch(&parent)?;
            shape.steps()[shape.opener(&name)?].after.as_ref().map(|after| after.name == name)
        });
        found.unwrap_or_default()
    }

    fn choose(&self, branch: &BranchPath, targets: &mut BTreeMap<BranchPath, Vec<Target>>) {
        // One that is not known ended with one below it, and goes on with that.
        let Some(known) = self.branches.get(&(branch.depth(), branch.clone())) else { return };
        let own = self.broken.iter().filter(|broken| broken.branch == *branch).map(|broken| {
            let claims = Some(broken.claims.clone());
            let step = broken.step.clone();
            Target { seq: broken.seq, step, claims, joins_after: false, rejoins: false }
        });
        let is_routed = self.shape.of_branch(branch).is_none_or(Shape::is_routed);
        let (mut waiting, mut joined, mut again) = (Vec::new(), Vec::new(), Vec::new());
        for child in self.below.get(branch).into_iter().flatten() {
            let Some(step) = opener_of(self.shape, child) else { continue };
            let waits = known.position.frontier.iter().any(|entry| entry.step == step && entry.fan.is_some());
            let came_after = self.came_after(child);
            let is_passed = pass_end(&known.position, &step, child).is_some();
            match known.position.ledger.get(&step) {
                _ if waits && !is_passed => waiting.push(child.clone()),
                _ if came_after => {
                    let ours = |broken: &&Broken| {
                        std::iter::successors(Some(broken.branch.clone()), BranchPath::parent)
                            .any(|up| up == *child)
                    };
                    let claims = self.broken.iter().filter(ours).flat_map(|broken| broken.claims.clone());
                    let (claims, left) = (Some(claims.collect()), known.left.get(&step));
                    again.extend(left.map(|left| {
                        let seq = left.end;
                        Target { seq, step, claims, joins_after: false, rejoins: true }
                    }));
                }
                Some(settled) => {
                    let joins_after = opened_after(self.shape, child);
                    let seq = pass_end(&known.position, &step, child).unwrap_or(*settled).seq();
                    let target = Target { seq, step, claims: None, joins_after, rejoins: false };
                    joined.push((target, child.clone()));
                }
                None => {}
            }
        }
        // The first pass of a step: a reused pass may have an older record than an earlier pass.
        let mut first_passes: BTreeMap<StepId, usize> = BTreeMap::new();
        for (target, child) in &joined {
            let pass = pass_of(&known.position, &target.step, child);
            first_passes
                .entry(target.step.clone())
                .and_modify(|first| *first = pass.min(*first))
                .or_insert(pass);
        }
        let is_first = |target: &Target, child: &BranchPath| {
            first_passes[&target.step] == pass_of(&known.position, &target.step, child)
        };
        joined.retain(|(target, child)| is_routed || is_first(target, child));
        // Of one step, its branches come first; what came after its work is done once more if that is.
        let mut chosen: BTreeMap<u64, Target> = BTreeMap::new();
        let (after, work): (Vec<_>, Vec<_>) =
            joined.iter().map(|(target, _)| target.clone()).partition(|target| target.joins_after);
        for target in work.into_iter().chain(own).chain(again).chain(after) {
            chosen.entry(target.seq).or_insert(target);
        }
        let behind = self.behind(branch, chosen.values().map(|target| &target.step));
        let is_behind = |step: &StepId| {
            let place = self.shape.of_branch(branch).and_then(|shape| shape.place(step.as_str()));
            place.is_some_and(|place| behind.contains(&place))
        };
        if !is_routed {
            // Of passes of one step, the first.
            let mut steps = BTreeSet::new();
            chosen.retain(|_, target| !is_behind(&target.step) && steps.insert(target.step.clone()));
        } else if let Some(first) = chosen.first_key_value().map(|(first, _)| *first) {
            chosen.retain(|seq, _| *seq == first);
        }
        for (target, child) in joined {
            let is_joined =
                |chosen: &Target| chosen.claims.is_none() && chosen.joins_after == target.joins_after;
            if chosen.get(&target.seq).is_some_and(is_joined) {
                self.choose(&child, targets);
            }
        }
        for child in waiting {
            let opener = opener_of(self.shape, &child);
            let is_chosen = |step: &StepId| chosen.values().any(|target| target.step == *step);
            let goes_on =
                || opener.as_ref().is_some_and(|step| !is_routed && !is_behind(step) && !is_chosen(step));
            if chosen.is_empty() || goes_on() {
                self.choose(&child, targets);
            }
        }
        if !chosen.is_empty() {
            targets.insert(branch.clone(), chosen.into_values().collect());
        }
    }
}

/// Returns the number of the pass of a branch; 0 for the branch of an item.
fn pass_of(position: &Position, step: &StepId, branch: &BranchPath) -> usize {
    let amid =
        position.frontier.iter().find(|entry| entry.step == *step).and_then(|entry| entry.fan.as_ref());
    let fan = amid.or_else(|| position.joined.get(step)).filter(|fan| fan.pass > 0);
    fan.and(branch.opened_by()).and_then(|(_, key)| key.parse().ok()).unwrap_or(0)
}

/// Returns the end of an earlier pass of a step, which a branch is.
fn pass_end(position: &Position, step: &StepId, branch: &BranchPath) -> Option<Settled> {
    let amid =
        position.frontier.iter().find(|entry| entry.step == *step).and_then(|entry| entry.fan.as_ref());
    let fan = amid.or_else(|| position.joined.get(step))?;
    let pass = pass_of(position, step, branch);
    fan.passes.get(pass.checked_sub(1)?).map(|pass| pass.settled)
}

/// Says whether a branch has ended and was joined since.
pub(super) fn is_joined(shape: &Shape, branches: &Branches, known: &Known) -> bool {
    let header = known.record.header();
    let above = header.branch.parent().and_then(|parent| branches.get(&(parent.depth(), parent)));
    let Some((above, opener)) = above.zip(opener_of(shape, &header.branch)) else { return false };
    header.end.is_some() && above.position.frontier.iter().all(|entry| entry.step != opener)
}

/// Returns the step that opened a branch.
pub(super) fn opener_of(shape: &Shape, branch: &BranchPath) -> Option<StepId> {
    let parent = shape.of_branch(&branch.parent()?)?;
    let place = parent.opener(&branch.opened_by()?.0)?;
    Some(parent.steps()[place].id.clone())
}

/// Says whether a branch was opened after the work of its step.
fn opened_after(shape: &Shape, branch: &BranchPath) -> bool {
    let found = branch.parent().zip(branch.opened_by());
    let found = found.and_then(|(parent, (name, _))| shape.of_branch(&parent)?.children_named(&name));
    found.is_some_and(|(_, children)| children.afterwards)
}

/// Takes a branch back to where a step was about to run, in a new epoch.
///
/// # Errors
/// [`RunError::NoState`]: the state that it was given is not kept any more.
pub(super) async fn back_to(
    engine: &Engine,
    shape: &Shape,
    (known, ahead): (&Known, Option<Ahead>),
    (target, judged): (&Target, &Judged),
) -> Result<Move, RunError> {
    let header = known.record.header();
    let (run, branch, store) = (&header.run, &header.branch, engine.store.as_ref());
    let made = store.load(run, branch, target.seq).await?;
    let made = made.header();
    let starts = |record: &Record| given::starts(record.header(), made);
    let gone = |why: &str| {
        let step = &target.step;
        let is_broken = target.claims.as_ref().is_some_and(|claims| !claims.is_empty());
        let why = match is_broken {
            true => format!(
                "step `{step}` must run again, and {why}; put right what its evidence is about and accept that, or start the run over"
            ),
            false => format!(
                "step `{step}` is to be done again, and {why}; start the run over, and let it keep more states if it is long"
            ),
        };
        RunError::NoState { at: made.reference().to_string(), why }
    };
    let (record, mut position, basis) = match store.find_back(run, branch, header.seq, &starts).await? {
        Some(start) => match load_with_state(engine, run, branch, start.header().seq).await {
            Err(RunError::NoState { .. }) => {
                return Err(gone("the state that it was given is not kept any more"));
            }
            record => {
                let record = record?;
                let position = position_of(&record)?;
                (record, position, None)
            }
        },
        None => match given::given(engine, known, made).await? {
            // What was written down of it before the step counts on.
            Recalled::As((record, position)) => (record, position, Some(made.seq - 1)),
            Recalled::Not(why) => return Err(gone(&why)),
        },
    };
    if !position.frontier.iter().any(|entry| entry.step == target.step) {
        return Err(gone("the state that it was given was not kept"));
    }
    let epoch = epochs(engine, run, branch).await? + 1;
    for entry in &mut position.frontier {
        target.begin(entry);
        let is_left = match &entry.fan {
            Some(_) if entry.step == target.step && target.is_opened_anew(shape, branch) => true,
            Some(fan) => fanned_out_since(engine, (run, branch), &entry.step, fan).await?,
            None => false,
        };
        if let Some(fan) = entry.fan.take_if(|_| is_left) {
            // How they ended is not counted twice.
            position.dead = position.dead.saturating_sub(fan.dead);
        }
        (entry.status, entry.failures, entry.memos, entry.wake_at) = (Status::Ready, 0, 0, None);
        entry.passed = false;
        entry.at = Try { attempt: 0, epoch, iteration: entry.at.iteration.clone() };
        entry.waits.clear();
    }
    carry(&mut position, &known.position);
    let ahead = ahead.unwrap_or(Ahead { seq: header.seq, since: 0, changed: false });
    position.ahead = Some(Ahead { since: 0, ..ahead });
    let draft = redo_draft(made, branch, (target, judged), epoch);
    Ok(Move { record, position, drafts: vec![draft], basis, forgotten: Vec::new() })
}

/// What is written where a step is to be done again.
pub(super) fn redo_draft(
    made: &Header,
    branch: &BranchPath,
    (target, judged): (&Target, &Judged),
    epoch: u32,
) -> Draft {
    let at = Try { attempt: 0, epoch, iteration: made.at.iteration.clone() };
    let mut draft = Draft::new(Phase::Restored, Reason::Redo, Some(target.step.clone()), at);
    draft.about = Some(target.seq);
    draft.told.evidence = judged.pack_of(branch, target.seq).filter(|_| target.claims.is_some());
    if let Some(claims) = target.claims.as_ref().filter(|claims| !claims.is_empty()) {
        let data =
            json!({ "step": target.step, "finished_at": made.reference().to_string(), "claims": claims });
        draft.told.notes.push(Note::Event { name: EVIDENCE_FAILED.to_owned(), data });
    }
    draft
}

/// Returns the claims for which a record takes its branch back to a step, if it does.
pub(super) fn broken_by(header: &Header) -> Option<Vec<String>> {
    let data = header.notes.iter().find_map(|note| match note {
        Note::Event { name, data } if name == EVIDENCE_FAILED => Some(data),
        _ => None,
    })?;
    let claims = data["claims"].as_array()?.iter();
    Some(claims.filter_map(|claim| Some(claim.as_str()?.to_owned())).collect())
}

/// Says whether a record takes its branch back to a step, and not forward again.
pub(super) fn is_wish(header: &Header) -> bool {
    broken_by(header).is_some() || header.notes.is_empty()
}

/// Takes a branch forward to where it stood before it went back.
pub(super) fn forward(newest: &Position, at: Try, step: Option<StepId>, stood: (Record, Position)) -> Move {
    let (record, mut position) = stood;
    carry(&mut position, newest);
    position.ahead = None;
    let draft = forward_draft(record.header().reference(), at, step);
    Move { record, position, drafts: vec![draft], basis: None, forgotten: Vec::new() }
}

/// What is written where results are used again, up to a checkpoint of before.
pub(super) fn forward_draft(up_to: CheckpointRef, at: Try, step: Option<StepId>) -> Draft {
    let mut draft = Draft::new(Phase::Restored, Reason::Redo, step, at);
    draft.about = Some(up_to.seq);
    let data = json!({ "up_to": up_to.to_string() });
    draft.told.notes.push(Note::Event { name: "results_reused".to_owned(), data });
    draft
}

/// Takes over what does not go back with a position.
fn carry(position: &mut Position, newest: &Position) {
    position.definition = newest.definition;
    position.config = newest.config;
    position.steps_started = position.steps_started.max(newest.steps_started);
    position.epoch = position.epoch.max(newest.epoch);
    position.revisited = true;
}
