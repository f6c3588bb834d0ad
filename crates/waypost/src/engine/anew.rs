//! Doing steps again where what each gave stands apart in the state: they and what needs them are open again, and all else
//! is as it was.
//!
//! ```text
//!   a -- b -- b2          `c` again: c and c2 are open, and what they gave is taken out of the state;
//!    \-- c -- c2          a, b and b2 stay finished
//! ```
//!
//! The state of any other program is opaque: its branch goes back to the state that the step was given, and with it all that
//! came after, needed or not (`back`, `redo`).

use std::collections::BTreeSet;

use serde_json::json;

use crate::events::{RerunCause, STEP_INVALIDATED};
use crate::id::StepId;
use crate::record::{Fan, FrontierEntry, Header, Note, Phase, Position, Reason, Record, Try};
use crate::shape::{Shape, Unfinished};
use crate::store::StoreExt as _;

use super::back::{aim, epochs, load_with_state};
use super::begin::Base;
use super::chain::Draft;
use super::fit::Forget;
use super::recheck::Known;
use super::redo::{Move, Target};
use super::rewind::starts;
use super::snapshot::position_of;
use super::{Engine, ResumeFrom, RunError};

/// A position in which steps are open again.
#[derive(Debug)]
pub(super) struct Anew {
    pub(super) position: Position,
    /// What is to be taken out of the state.
    pub(super) forgotten: Vec<Forget>,
}

/// What is done with a step that is open again.
#[derive(Debug)]
pub(super) enum Again {
    /// It runs from its top, and opens what branches it has once more.
    Whole,
    /// It joins these branches again, some of which go on.
    Join(Fan),
}

/// Says which of some steps come after others of them, over however many steps between.
pub(super) fn after(shape: &Shape, steps: &[usize]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open: Vec<usize> = steps.to_vec();
    while let Some(place) = open.pop() {
        let next = shape.followers(place).iter().filter(|next| found.insert(**next));
        open.extend(next.copied().collect::<Vec<_>>());
    }
    found
}

/// Opens steps of a branch again, none of which comes after another, and all that comes after them.
///
/// `asks`: of those that come after them, a person is asked about the ones that must not be repeated blindly.
pub(super) fn anew(shape: &Shape, position: &Position, steps: Vec<(usize, Try, Again)>, asks: bool) -> Anew {
    let unfinished = Unfinished::of(shape, position);
    let named: Vec<usize> = steps.iter().map(|(place, _, _)| *place).collect();
    let behind = after(shape, &named);
    let epoch = steps.iter().map(|(_, at, _)| at.epoch).max().unwrap_or_default();
    let mut position = position.clone();
    let mut forgotten = Vec::new();
    for place in behind.iter().chain(&named).copied() {
        let step = &shape.steps()[place];
        let entry = position.frontier.iter().position(|entry| entry.step == step.id);
        let entry = entry.map(|at| position.frontier.remove(at));
        let was_done = position.did(&step.id) && !unfinished.has(place) || position.undone.contains(&step.id);
        position.ledger.remove(&step.id);
        position.reusable.remove(&step.id);
        let rejoins =
            steps.iter().any(|(named, _, again)| *named == place && matches!(again, Again::Join(_)));
        if step.children.is_some() && !shape.is_routed() && !rejoins {
            position.rerun_whole.insert(step.id.clone());
        }
        if asks && !named.contains(&place) && step.must_ask_again(was_done, entry.as_ref()) {
            // What it gave stays: a person may say that it still holds.
            let begun = entry.filter(|entry| step.has_begun(entry));
            position.ask_about(&step.id, begun);
            continue;
        }
        let entry = position.ask_no_more(&step.id).or(entry);
        let joined = position.joined.remove(&step.id);
        let fan = joined.or_else(|| entry.and_then(|entry| entry.fan));
        let goes_on =
            steps.iter().any(|(named, _, again)| *named == place && matches!(again, Again::Join(_)));
        if !goes_on {
            // How they ended is not counted twice.
            position.dead = position.dead.saturating_sub(fan.map_or(0, |fan| fan.dead_in_all()));
        }
        let id = step.id.clone();
        forgotten.push(if goes_on { Forget::Join(id) } else { Forget::Step(id) });
    }
    for (place, at, again) in steps {
        let fan = match again {
            Again::Whole => None,
            Again::Join(fan) => Some(fan),
        };
        let step = shape.steps()[place].id.clone();
        position.frontier.push(FrontierEntry { at, fan, ..FrontierEntry::ready(step) });
    }
    position.epoch = position.epoch.max(epoch);
    position.epoch_max = position.epoch_max.max(epoch);
    position.chain = None;
    position.revisited = true;
    Anew { position, forgotten }
}

/// Returns the position with a step to run again, and the parts of the state to remove.
///
/// # Errors
/// [`RunError::InvalidStep`]: there is no such step. [`RunError::NoState`]: it comes after one that is not finished; `at` is
/// where that is.
pub(super) fn opened(shape: &Shape, position: &Position, step: &StepId, at: &str) -> Result<Anew, RunError> {
    let place = place_of(shape, position, step, at)?;
    let iteration = shape.first_iteration(place, &[]);
    let again = vec![(place, Try { iteration, ..Try::default() }, Again::Whole)];
    Ok(anew(shape, position, again, true))
}

/// Finds a step that is to run again.
fn place_of(shape: &Shape, position: &Position, step: &StepId, at: &str) -> Result<usize, RunError> {
    let place = shape.place(step.as_str()).ok_or_else(|| RunError::InvalidStep(step.clone()))?;
    let unfinished = Unfinished::of(shape, position);
    match shape.needs(place).iter().find(|need| unfinished.has(**need)) {
        None => Ok(place),
        Some(need) => {
            let why =
                format!("step `{step}` comes after `{}`, which is not finished", shape.steps()[*need].id);
            Err(RunError::NoState { at: at.to_owned(), why })
        }
    }
}

/// Returns the epoch in which something is done again next on a branch.
pub(super) async fn next_epoch(
    engine: &Engine,
    header: &Header,
    position: &Position,
) -> Result<u32, RunError> {
    let known =
        position.frontier.iter().map(|entry| entry.at.epoch).chain([position.epoch, position.epoch_max]);
    let known = known.max().unwrap_or_default();
    Ok(known.max(epochs(engine, &header.run, &header.branch).await?) + 1)
}

/// Finds the branches that a step joined last, which ended with the record `made`.
///
/// # Errors
/// [`RunError::NoState`]: the position does not tell, as of a run that began from another, nor does a state that is kept.
pub(super) async fn joined_by(
    engine: &Engine,
    position: &Position,
    (step, made): (&StepId, &Header),
) -> Result<Fan, RunError> {
    if let Some(fan) = position.joined.get(step) {
        return Ok(fan.clone());
    }
    let (run, branch) = (&made.run, &made.branch);
    let starts = |record: &Record| starts(record.header(), made);
    if let Some(start) = engine.store.find_back(run, branch, made.seq, &starts).await? {
        let start = load_with_state(engine, run, branch, start.header().seq).await?;
        let position = position_of(&start)?;
        let entry = position.frontier.into_iter().find(|entry| entry.step == *step);
        if let Some(fan) = entry.as_ref().and_then(|entry| entry.fan.as_ref()?.of_work()) {
            return Ok(fan.clone());
        }
    }
    let why = format!("which branches step `{step}` joined is not kept any more");
    Err(RunError::NoState { at: made.reference().to_string(), why })
}

/// Takes the main branch to where a step is about to run again.
///
/// # Errors
/// [`RunError::NoState`]: it was never started, or something that it needs is not finished.
pub(super) async fn from_step(
    engine: &Engine,
    shape: &Shape,
    base: &mut Base,
    (step, asks, by): (&StepId, bool, Option<&str>),
) -> Result<Draft, RunError> {
    // Also one that ended in the run that this one began from.
    let ended =
        shape.place(step.as_str()).is_some_and(|place| !Unfinished::of(shape, &base.position).has(place));
    if !ended {
        aim(engine, shape, base, &ResumeFrom::Step(step.clone())).await?;
    }
    let place = place_of(shape, &base.position, step, &format!("run {}", base.record.header().run))?;
    let epoch = next_epoch(engine, base.record.header(), &base.position).await?;
    let at = Try { attempt: 0, epoch, iteration: shape.first_iteration(place, &[]) };
    let anew = anew(shape, &base.position, vec![(place, at.clone(), Again::Whole)], asks);
    base.position = anew.position;
    base.redone.extend(anew.forgotten);
    let mut draft = Draft::new(Phase::Restored, Reason::Redo, Some(step.clone()), at);
    draft.told.notes.push(invalidated(step, &RerunCause::Requested { by: by.map(ToOwned::to_owned) }));
    Ok(draft)
}

/// Returns the note of the cause of a rerun.
pub(super) fn invalidated(step: &StepId, cause: &RerunCause) -> Note {
    Note::Event { name: STEP_INVALIDATED.to_owned(), data: json!({ "step": step, "cause": cause }) }
}

/// Takes a branch to where steps are about to run again: those that are named, and joins of branches that go on.
///
/// # Errors
/// [`RunError::NoState`]: which branches were joined is not kept.
pub(super) async fn again(
    engine: &Engine,
    shape: &Shape,
    known: &Known,
    (targets, asks): (&[Target], bool),
) -> Result<Move, RunError> {
    let header = known.record.header();
    let epoch = next_epoch(engine, header, &known.position).await?;
    let mut steps = Vec::new();
    for target in targets {
        let Some(place) = shape.place(target.step.as_str()) else { continue };
        let made = engine.store.load(&header.run, &header.branch, target.seq).await?;
        let iteration = made.header().at.iteration.clone();
        let (iteration, again) = match target.claims {
            Some(_) => {
                let own = shape.first_iteration(place, &[]).len();
                let around = &iteration[..iteration.len().saturating_sub(own)];
                (shape.first_iteration(place, around), Again::Whole)
            }
            None => {
                let joined = joined_by(engine, &known.position, (&target.step, made.header())).await?;
                (iteration, Again::Join(joined))
            }
        };
        steps.push((place, Try { attempt: 0, epoch, iteration }, again));
    }
    let first = steps.first().map(|(_, at, _)| at.clone()).unwrap_or_default();
    let Anew { position, forgotten } = anew(shape, &known.position, steps, asks);
    let mut draft = Draft::new(Phase::Restored, Reason::Redo, targets.first().map(|t| t.step.clone()), first);
    draft.about = targets.first().map(|target| target.seq);
    Ok(Move { record: known.record.clone(), position, drafts: vec![draft], basis: None, forgotten })
}
