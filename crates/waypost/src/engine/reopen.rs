//! Doing again steps of a graph by needs, whose state tells what each step gave: only what depends on something else than
//! before is done again with them.
//!
//! ```text
//!   a --> b --> d            a's evidence fails: a stands in the frontier again, and what comes after it waits
//!   c --------> d (open)     a gives what it gave: b is used again, d is open as before; c was never touched
//!                            a gives something else: b runs; then the question is asked about what comes after b
//! ```
//!
//! The branch does not go back: it goes on with its newest state, in which what a step gave is replaced when it ends anew.
//! Where a graph is a chain, each step of which is given the whole state, [`redo`](super::redo) goes back instead.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{BranchPath, StepId};
use crate::plan::{Action, Cause, Decision};
use crate::record::{Ahead, Fan, FrontierEntry, Header, Phase, Position, Reason, Record, Try};
use crate::shape::{Shape, Step, Unfinished};
use crate::store::{Scan, StoreError, StoreExt as _};

use super::alike::{opened_alike, was_last};
use super::anew::{after, joined_by};
use super::back::epochs;
use super::begin::decode_state;
use super::fit::Forget;
use super::passes::is_end;
use super::recheck::{Judged, Known};
use super::redo::{Move, Target, broken_by, done_before, is_wish, redo_draft, same_claims, with_state};
use super::snapshot::position_of;
use super::{Engine, Program, RunError, Spot};

/// Where a branch stands that does steps again.
#[derive(Debug)]
pub(super) struct Level {
    /// As it is gone on with: without what can be used again.
    pub(super) position: Position,
    /// Something of what was open is used again.
    pub(super) reuses: bool,
    /// All that was done again has come out as before.
    pub(super) is_same: bool,
    /// What is taken out of the state, as it is about to begin with its first pass again.
    pub(super) forgotten: Vec<Forget>,
}

/// Puts finished steps of a branch that do not come after each other into the frontier again, in a new epoch; none where all
/// of them have to wait for what comes before them.
pub(super) async fn open_all_again<P: Program>(
    engine: &Engine,
    program: &P,
    known: &Known,
    (targets, judged): (&[Target], &Judged),
    (is_joined, retries): (bool, bool),
) -> Result<Option<Move>, RunError> {
    let mut all: Option<Move> = None;
    for target in targets {
        let now = match &all {
            Some(moved) => &Known { position: moved.position.clone(), ..known.clone() },
            None => known,
        };
        let ahead = match (is_joined, &all) {
            (true, None) => None,
            (true, Some(moved)) => moved.position.ahead,
            (false, _) => still_ahead(engine, program, now, &target.step).await?,
        };
        let moved = open_again(engine, program.shape(), (now, ahead), (target, judged), retries).await?;
        all = match (all, moved) {
            (Some(mut all), Some(moved)) => {
                all.position = moved.position;
                all.drafts.extend(moved.drafts);
                all.forgotten.extend(moved.forgotten);
                Some(all)
            }
            (all, moved) => all.or(moved),
        };
    }
    Ok(all)
}

/// Puts a finished step into the frontier again, in a new epoch; none where that has to wait for what comes before it.
async fn open_again(
    engine: &Engine,
    shape: &Shape,
    (known, ahead): (&Known, Option<Ahead>),
    (target, judged): (&Target, &Judged),
    retries: bool,
) -> Result<Option<Move>, RunError> {
    let header = known.record.header();
    let (run, branch, store) = (&header.run, &header.branch, engine.store.as_ref());
    let in_pass = in_pass(shape, branch);
    let Some(shape) = shape.of_branch(branch) else { return Ok(None) };
    let Some(place) = shape.place(target.step.as_str()) else { return Ok(None) };
    let made = store.load(run, branch, target.seq).await?;
    let made = made.header();
    let stands = known.position.frontier.iter().find(|entry| entry.step == target.step);
    let is_passed = stands.is_some_and(|entry| entry.at.iteration > made.at.iteration);
    if !is_passed && (stands.is_some() || Unfinished::of(shape, &known.position).has(place)) {
        return Ok(None);
    }
    let loops = shape.share_loop(place, place);
    // Where what it was given in its last pass is not kept any more, it begins with the first.
    let (iteration, forgotten) = match loops {
        true => pass_again(engine, (shape, place), made).await?,
        false => (made.at.iteration.clone(), None),
    };
    // One of whose branches something is done again joins them; all else opens them anew.
    let joining = match target.claims {
        _ if iteration == made.at.iteration && (target.claims.is_none() || target.rejoins) => {
            joining(engine, &known.position, (&shape.steps()[place], made, loops)).await?
        }
        _ => None,
    };
    let is_careful = match &shape.steps()[place].after {
        Some(after) if target.rejoins => after.shape.is_careful(),
        _ => joining.is_none() && shape.steps()[place].opens_careful(),
    };
    if is_careful && !retries {
        let cause = Cause::EvidenceFailed(target.claims.clone().unwrap_or_default());
        let (branch, step) = (branch.clone(), target.step.clone());
        let questions = vec![Decision { branch, step, action: Action::Ask, cause }];
        return Err(RunError::InDoubt { run: run.clone(), questions });
    }
    let epoch = epochs(engine, run, branch).await? + 1;
    let mut position = known.position.clone();
    let ready = FrontierEntry::ready(target.step.clone());
    let entry = FrontierEntry { at: Try { attempt: 0, epoch, iteration }, fan: joining, ..ready };
    let after = Unfinished::from_places(shape, std::iter::once(place));
    let is_after =
        |entry: &FrontierEntry| shape.place(entry.step.as_str()).is_some_and(|place| after.has(place));
    let unfinished = Unfinished::of(shape, &known.position);
    for (place, step) in shape.steps().iter().enumerate().filter(|(at, _)| *at != place && after.has(*at)) {
        let known = known.position.frontier.iter().find(|entry| entry.step == step.id);
        if !retries && step.must_ask_again(!unfinished.has(place) && position.did(&step.id), known) {
            position.ask_about(&step.id, known.filter(|entry| step.has_begun(entry)).cloned());
        }
    }
    if entry.fan.is_none() {
        // How its branches ended is not counted twice.
        let left =
            position.joined.remove(&target.step).or_else(|| stands.and_then(|entry| entry.fan.clone()));
        position.dead = position.dead.saturating_sub(left.map_or(0, |fan| fan.dead_in_all()));
    }
    position.frontier.retain(|entry| !is_after(entry));
    position.frontier.push(entry);
    position.ledger.remove(&target.step);
    position.revisited = true;
    position.ahead = Some(ahead.unwrap_or(Ahead { seq: header.seq, since: 0, changed: false }));
    let mut forgotten: Vec<Forget> = forgotten.into_iter().collect();
    let is_changed = position.ahead.is_some_and(|ahead| ahead.changed);
    if in_pass || is_changed {
        // It reads what the pass before gave, and those that come after it have not come in this one; where nothing of what
        // they did is used again, they begin with their first pass.
        let begins_anew = |at: usize| after.has(at) && (in_pass || shape.share_loop(at, at));
        let behind = shape.steps().iter().enumerate().filter(|(at, _)| begins_anew(*at));
        let behind = behind
            .filter(|(_, step)| !position.undone.contains(&step.id) && (!loops || step.id != target.step));
        forgotten.extend(behind.map(|(_, step)| Forget::Step(step.id.clone())));
    }
    let draft = redo_draft(made, branch, (target, judged), epoch);
    Ok(Some(Move { record: known.record.clone(), position, drafts: vec![draft], basis: None, forgotten }))
}

/// Returns where a branch stood before it went back, if it did and has not come there again, for one that goes back to a
/// step once more. Where something that comes after that step came to something else meanwhile, that is what was made last:
/// nothing of what is ahead is used again.
pub(super) async fn still_ahead<P: Program>(
    engine: &Engine,
    program: &P,
    known: &Known,
    step: &StepId,
) -> Result<Option<Ahead>, RunError> {
    let header = known.record.header();
    let (Some(ahead), Some(shape)) = (known.position.ahead, program.shape().of_branch(&header.branch)) else {
        return Ok(None);
    };
    let Some(place) = shape.place(step.as_str()).filter(|_| !ahead.changed) else { return Ok(Some(ahead)) };
    let behind = after(shape, &[place]);
    let is_behind = |other: &StepId| match shape.is_routed() {
        true => other != step,
        false => shape.place(other.as_str()).is_some_and(|place| behind.contains(&place)),
    };
    let done = done_since(engine, program, shape, &known.record, ahead).await?;
    let came = |done: Done| done.came.into_iter().any(|(step, came)| is_behind(&step) && came != Came::Same);
    let changed = done.is_none_or(came);
    Ok(Some(Ahead { changed, ..ahead }))
}

/// Says whether a branch is that of a pass: of steps that may read what they gave in the pass before.
fn in_pass(shape: &Shape, branch: &BranchPath) -> bool {
    let opener = branch.parent().zip(branch.opened_by()).and_then(|(parent, (name, _))| {
        let shape = shape.of_branch(&parent)?;
        Some((shape, shape.opener(&name)?))
    });
    opener.is_some_and(|(shape, place)| shape.share_loop(place, place))
}

/// Returns the pass in which a step on a loop is done again, and what is taken out of the state for it: that of the record
/// with which it ended, or, where the state of the pass before is not kept any more, the first.
async fn pass_again(
    engine: &Engine,
    (shape, place): (&Shape, usize),
    made: &Header,
) -> Result<(Vec<u32>, Option<Forget>), RunError> {
    let step = &shape.steps()[place].id;
    let around = made.at.iteration.len().saturating_sub(1);
    let first = shape.first_iteration(place, &made.at.iteration[..around]);
    let anew = (first.clone(), Some(Forget::Step(step.clone())));
    let mut before = made.at.iteration.clone();
    match before.last_mut() {
        Some(pass) if made.at.iteration != first => *pass -= 1,
        _ => return Ok(anew),
    }
    let ends = |record: &Record| {
        let found = record.header();
        let ended = match &found.phase {
            Phase::Completed(_) => true,
            Phase::Failed(failure) => failure.tolerated,
            _ => false,
        };
        ended && found.step.as_ref() == Some(step) && found.at.iteration == before
    };
    let Some(ended) = engine.store.find_back(&made.run, &made.branch, made.seq, &ends).await? else {
        return Ok(anew);
    };
    let ended = match engine.store.load(&made.run, &made.branch, ended.header().seq).await {
        Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => return Ok(anew),
        ended => ended?,
    };
    Ok(match with_state(engine, ended).await? {
        Some(then) => (made.at.iteration.clone(), Some(Forget::Since(vec![step.clone()], Box::new(then)))),
        None => anew,
    })
}

/// Returns the branches that a step joins again; none where it is not kept any more which they are, so that it opens them
/// anew.
///
/// # Errors
/// [`RunError::NoState`]: it is not kept, within them are steps that must not be repeated blindly, and nobody is asked
/// about them, as about those of one that `loops`.
async fn joining(
    engine: &Engine,
    position: &Position,
    (step, made, loops): (&Step, &Header, bool),
) -> Result<Option<Fan>, RunError> {
    match joined_by(engine, position, (&step.id, made)).await {
        Err(RunError::NoState { .. }) if loops || !step.opens_careful() => Ok(None),
        joined => joined.map(Some),
    }
}

/// What a step that was done again came to, beside what it came to before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    /// It gave the same, and pinned the same.
    Same,
    /// It gave something else: that counts for those that need it, and those that read it.
    Otherwise,
    /// It may have left other files, which any step that comes after it may read.
    WithOtherFiles,
}

/// What became of steps that were done again.
#[derive(Debug, Default)]
struct Done {
    /// Steps that have ended since, by what they came to.
    came: BTreeMap<StepId, Came>,
    /// Steps that are to be done again, and have not ended since.
    wanted: BTreeSet<StepId>,
    /// Those of them that join their branches again, some of which do something again.
    joining: BTreeSet<StepId>,
    /// Steps that join branches which have all come out as before.
    rejoined: BTreeSet<StepId>,
    epoch: u32,
}

/// Finds out what of a branch that does steps again can be used again by now; none where that cannot be told any more.
///
/// `joins`: steps that join branches which have all come out as before.
pub(super) async fn level<P: Program>(
    engine: &Engine,
    program: &P,
    shape: &Shape,
    (record, position): (&Record, &Position),
    joins: &BTreeSet<StepId>,
) -> Result<Option<Level>, RunError> {
    let Some(ahead) = position.ahead.filter(|ahead| !ahead.changed) else { return Ok(None) };
    let header = record.header();
    let stood = match engine.store.load(&header.run, &header.branch, ahead.seq).await {
        Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => return Ok(None),
        stood => stood?,
    };
    if stood.state_bytes().is_none() {
        return Ok(None);
    }
    let then = position_of(&stood)?;
    let Some(mut done) = done_since(engine, program, shape, record, ahead).await? else { return Ok(None) };
    for step in joins {
        done.wanted.remove(step);
        done.came.insert(step.clone(), Came::Same);
        done.rejoined.insert(step.clone());
    }
    let reads = |place: usize, before: &StepId| {
        let step = &shape.steps()[place];
        program.reads(Spot { branch: &header.branch, level: shape.level(), place, step }, before)
    };
    let mut level = settle(shape, &then, position, (&done, &reads));
    // What is used again, or came out as before without an end of its own, leaves what it had left.
    let (in_pass, open) = (in_pass(program.shape(), &header.branch), Unfinished::of(shape, &level.position));
    let steps = shape.steps().iter().enumerate().filter(|(place, _)| !open.has(*place));
    let back = |place: usize, step: &StepId| match joins.contains(step) {
        true => shape.share_loop(place, place) || in_pass,
        false => in_pass && !done.came.contains_key(step),
    };
    let back = steps.filter(|(place, step)| back(*place, &step.id)).map(|(_, step)| step.id.clone());
    let back: Vec<StepId> = back.collect();
    if !back.is_empty() {
        level.forgotten.push(Forget::Since(back, Box::new(stood)));
    }
    for entry in position.frontier.iter().filter(|entry| joins.contains(&entry.step)) {
        // Whoever waited for them again has taken back how many had failed, and nobody counts them once more.
        let is_uncounted = entry.fan.as_ref().is_some_and(|fan| fan.dead == 0);
        let is_finished = level.position.frontier.iter().all(|open| open.step != entry.step);
        if let Some(fan) = position.joined.get(&entry.step).filter(|_| is_uncounted && is_finished) {
            level.position.dead += fan.dead;
        }
    }
    Ok(Some(level))
}

async fn done_since<P: Program>(
    engine: &Engine,
    program: &P,
    shape: &Shape,
    record: &Record,
    ahead: Ahead,
) -> Result<Option<Done>, RunError> {
    let header = record.header();
    // The one that went back may stand in a batch with others behind it, so that `since` is not the first.
    let seq_min = Some(ahead.seq + 1);
    let mut scan = Scan { branch: Some(header.branch.clone()), seq_min, ..Scan::of(&header.run) };
    let mut done = Done::default();
    // By step, its ends by the pass that they are of.
    let mut ended: BTreeMap<StepId, BTreeMap<Vec<u32>, Header>> = BTreeMap::new();
    loop {
        let page = engine.store.scan(&scan).await?;
        for found in page.records.iter().map(Record::header) {
            let Some(step) = &found.step else { continue };
            done.epoch = done.epoch.max(found.at.epoch);
            match &found.phase {
                Phase::Restored
                    if found.reason == Reason::Redo && found.about.is_some() && is_wish(found) =>
                {
                    if let Some(passes) = ended.get_mut(step) {
                        passes.retain(|pass, _| *pass < found.at.iteration);
                    }
                    done.wanted.insert(step.clone());
                    match broken_by(found) {
                        None => done.joining.insert(step.clone()),
                        Some(_) => done.joining.remove(step),
                    };
                }
                _ if is_end(found) => {
                    done.joining.remove(step);
                    done.wanted.remove(step);
                    ended.entry(step.clone()).or_default().insert(found.at.iteration.clone(), found.clone());
                }
                _ => {}
            }
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => break,
        }
    }
    ended.retain(|step, _| !done.wanted.contains(step));
    let open = position_of(record)?.frontier;
    for (step, mut passes) in ended {
        let Some((_, last)) = passes.pop_last() else { continue };
        let mut came = came_to(engine, program, shape, (record, &last), ahead).await?;
        let is_over = open.iter().all(|entry| entry.step != step);
        if is_over && !was_last(engine.store.as_ref(), &last, ahead).await? {
            came = Came::WithOtherFiles;
        }
        for earlier in passes.values() {
            if left_the_same(engine, program, shape, earlier, ahead).await?.is_none() {
                came = Came::WithOtherFiles;
            }
        }
        done.came.insert(step, came);
    }
    Ok(Some(done))
}

/// Says what a step that has ended again came to, beside what it came to before.
async fn came_to<P: Program>(
    engine: &Engine,
    program: &P,
    shape: &Shape,
    (record, ended): (&Record, &Header),
    ahead: Ahead,
) -> Result<Came, RunError> {
    let Some((place, then)) = left_the_same(engine, program, shape, ended, ahead).await? else {
        return Ok(Came::WithOtherFiles);
    };
    let spot = Spot { branch: &ended.branch, level: shape.level(), place, step: &shape.steps()[place] };
    let is_same = gave_the_same(engine, program, (spot, shape), (record, ended), (then, ahead)).await?;
    Ok(if is_same { Came::Same } else { Came::Otherwise })
}

/// Returns with what record a step ended in the same pass before, if it has left by now what it had left then, as far as
/// that can be told: as evidence pins it.
async fn left_the_same<P: Program>(
    engine: &Engine,
    program: &P,
    shape: &Shape,
    ended: &Header,
    ahead: Ahead,
) -> Result<Option<(usize, Record)>, RunError> {
    let place = ended.step.as_ref().and_then(|step| shape.place(step.as_str()));
    let (Some(step), Some(place), Phase::Completed(_)) = (&ended.step, place, &ended.phase) else {
        return Ok(None);
    };
    let store = engine.store.as_ref();
    let pass = (step, ended.at.iteration.as_slice());
    let then = done_before(store, ended, pass, ahead.seq).await?;
    let Some((then, _)) = then.filter(|(_, pack)| same_claims(ended.evidence.as_ref(), pack.as_ref())) else {
        return Ok(None);
    };
    let is_alike = opened_alike(store, program.shape(), (then.header(), ended)).await?;
    Ok(is_alike.then_some((place, then)))
}

/// Returns the record at which a branch stood before it went back, in place of one whose state is not kept any more: where a step
/// had ended last with that one, the state there has what it gave.
async fn as_it_stood(engine: &Engine, then: &Record, ahead: Ahead) -> Result<Option<Record>, RunError> {
    let header = then.header();
    let stood = match engine.store.load(&header.run, &header.branch, ahead.seq).await {
        Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => return Ok(None),
        stood => stood?,
    };
    let settled = stood.position().ok().and_then(|position| {
        let settled = position.ledger.get(header.step.as_ref()?).copied();
        settled.map(|settled| settled.seq())
    });
    Ok(Some(stood).filter(|stood| stood.state_bytes().is_some() && settled == Some(header.seq)))
}

/// Says whether a step that has ended again gave what it gave `then`.
async fn gave_the_same<P: Program>(
    engine: &Engine,
    program: &P,
    (spot, shape): (Spot<'_>, &Shape),
    (record, ended): (&Record, &Header),
    (then, ahead): (Record, Ahead),
) -> Result<bool, RunError> {
    if let (Phase::Completed(before), Phase::Completed(now)) = (&then.header().phase, &ended.phase)
        && program.is_told_by(spot, before)
        && program.is_told_by(spot, now)
    {
        return Ok(before.outputs == now.outputs && before.exit_code == now.exit_code);
    }
    let kept = match with_state(engine, then.clone()).await? {
        None if program.keeps_apart() => as_it_stood(engine, &then, ahead).await?,
        kept => kept,
    };
    let (Some(then), Some(now)) = (kept, with_state(engine, record.clone()).await?) else {
        return Ok(false);
    };
    let gave = |record: &Record| {
        decode_state(program, shape.level(), record).map(|state| program.gave(spot, &state))
    };
    let (then, now) = (gave(&then)?, gave(&now)?);
    Ok(then.is_some() && then == now)
}

/// Says of the step at a place whether it reads what another one gives.
type Reads<'r> = dyn Fn(usize, &StepId) -> bool + 'r;

/// Says where a branch stands, of which steps are done again. Pure.
///
/// `then` is where it stood before, `now` where it stands. What was finished then is used again where all that it needs is,
/// or has ended again as before, and nothing that it may read is another: `reads` says of a place whether it reads what a
/// step before it gives.
fn settle(shape: &Shape, then: &Position, now: &Position, (done, reads): (&Done, &Reads<'_>)) -> Level {
    let (open_then, open_now) = (Unfinished::of(shape, then), Unfinished::of(shape, now));
    let entry_of = |position: &Position, step: &StepId| {
        position.frontier.iter().find(|entry| entry.step == *step).cloned()
    };
    let count = shape.steps().len();
    let (mut finished, mut changed) = (vec![false; count], vec![false; count]);
    // Of each step, whether one that it comes after may have left other files, and those that gave something else.
    let mut files = vec![false; count];
    let mut otherwise: Vec<&StepId> = Vec::new();
    let (mut frontier, mut is_complete) = (Vec::new(), true);
    let (mut forgotten, mut asked) = (Vec::new(), BTreeSet::new());
    let (mut joined, mut dead) = (now.joined.clone(), now.dead);
    let around = shape.passes_around(now);
    for place in shape.order() {
        let step = &shape.steps()[place].id;
        let was_finished = !open_then.has(place);
        let here = entry_of(now, step);
        let is_ready = shape.needs(place).iter().all(|need| finished[*need]);
        files[place] = shape.needs(place).iter().any(|need| files[*need]);
        let is_tainted = files[place]
            || shape.needs(place).iter().any(|need| changed[*need])
            || otherwise.iter().any(|before| reads(place, before));
        // One that joins what came out as before was found to be finished without an end of its own.
        let is_wanted = done.wanted.contains(step) && open_now.has(place);
        finished[place] = match (done.came.get(step), &here) {
            (Some(came), None) if is_ready => {
                changed[place] = was_finished && *came != Came::Same;
                files[place] |= was_finished && *came == Came::WithOtherFiles;
                otherwise.extend(Some(step).filter(|_| was_finished && *came == Came::Otherwise));
                true
            }
            // It stands there again, as what it needs was done again after it; or for its next pass.
            (Some(Came::Same), Some(_)) => {
                is_ready && !is_tainted && (done.rejoined.contains(step) || !shape.share_loop(place, place))
            }
            (None, _) => was_finished && is_ready && !is_tainted && !is_wanted,
            _ => false,
        };
        if finished[place] {
            continue;
        }
        is_complete &= !was_finished;
        if is_ready {
            let there = entry_of(then, step);
            let had_begun = there.as_ref().is_some_and(|entry| shape.steps()[place].has_begun(entry));
            let there = there.filter(|_| !is_tainted);
            if here.is_none() && there.is_some() {
                // It stands where it stood: with what it was amid.
                frontier.extend(there);
                continue;
            }
            let mut anew = FrontierEntry::ready(step.clone());
            anew.at.epoch = done.epoch;
            anew.at.iteration = shape.first_iteration(place, around);
            if done.joining.contains(step) && !is_tainted && !shape.share_loop(place, place) {
                // What it needs was done again before it came to that.
                anew.fan = now.joined.get(step).cloned();
            }
            let entry = here.unwrap_or_else(|| anew.clone());
            let is_first = entry.at.attempt == 0
                && entry.fan.is_none()
                && entry.at.iteration == anew.at.iteration
                && !now.undone.contains(step);
            if had_begun && is_first && shape.share_loop(place, place) {
                forgotten.push(Forget::Step(step.clone()));
            }
            if was_finished && is_first {
                if shape.share_loop(place, place) {
                    forgotten.push(Forget::Step(step.clone()));
                }
                // How its branches ended is not counted twice.
                dead -= joined.remove(step).map_or(0, |fan| fan.dead_in_all()).min(dead);
            }
            frontier.push(entry);
        }
        asked.insert(step);
    }
    let names = |frontier: &[FrontierEntry]| -> BTreeSet<StepId> {
        frontier.iter().map(|entry| entry.step.clone()).collect()
    };
    let mut ledger = now.ledger.clone();
    for place in (0..count).filter(|place| finished[*place]) {
        // What joined branches that came out as before has no other end than that of then.
        let step = &shape.steps()[place].id;
        if let (None, Some(settled)) = (ledger.get(step), then.ledger.get(step)) {
            ledger.insert(step.clone(), *settled);
        }
    }
    let reuses = names(&frontier) != names(&now.frontier);
    let is_same = !changed.contains(&true);
    let ahead = now.ahead.filter(|_| !is_complete || !is_same);
    let mut position = Position { frontier, ledger, ahead, joined, dead, ..now.clone() };
    // Nobody is asked about what is used again.
    position.undone.retain(|step| asked.contains(step));
    position.aside.retain(|entry| asked.contains(&entry.step));
    Level { position, reuses, is_same, forgotten }
}
