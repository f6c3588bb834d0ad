//! The steps of graphs by needs that a resume invalidates, and where their scopes stand then.
//!
//! Input: steps whose evidence failed or whose children are open again. Output: the position of each scope after the
//! invalidation. The state of a scope keeps the results of invalidated steps until the steps end again.

use crate::id::BranchPath;
use crate::record::{Fan, FrontierEntry, Header, Phase, Position, Record, Try};
use crate::shape::{Shape, Step};
use crate::store::{StoreError, StoreExt as _};

use super::anew::joined_by;
use super::back::{epochs, with_state};
use super::fit::Forget;
use super::invalidate::{Cut, downstream, invalidate};
use super::recheck::{Judged, Known};
use super::redo::{Move, Target, redo_draft};
use super::trace::pass_in;
use super::{Engine, RunError};

/// How a scope is asked to open steps again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opening<'a> {
    pub(super) engine: &'a Engine,
    /// The graph of the run.
    pub(super) root: &'a Shape,
    /// Verdicts, for the records.
    pub(super) judged: &'a Judged,
}

/// Invalidates steps of a scope, none of which is downstream of another; `None` if all of them are open already.
///
/// # Errors
/// [`RunError::InDoubt`]: what a step opens must not be repeated. Errors of reading the scope.
pub(super) async fn open_again(
    opening: Opening<'_>,
    known: &Known,
    targets: &[Target],
) -> Result<Option<Move>, RunError> {
    let header = known.record.header();
    let branch = &header.branch;
    let Some(shape) = opening.root.of_branch(branch) else { return Ok(None) };
    let (mut cuts, mut drafts, mut forgotten) = (Vec::new(), Vec::new(), Vec::new());
    let epoch = epochs(opening.engine, &header.run, branch).await? + 1;
    for target in targets {
        let Some((cut, forget)) = cut_of(opening, (known, shape), target, epoch).await? else { continue };
        let made = opening.engine.store.load(&header.run, branch, target.seq).await?;
        drafts.push(redo_draft(made.header(), branch, (target, opening.judged), epoch));
        forgotten.extend(forget);
        cuts.push(cut);
    }
    if cuts.is_empty() {
        return Ok(None);
    }
    // In a pass, a step that has not run yet reads what it gave in the pass before.
    let in_pass = in_pass(opening.root, branch);
    let is_repeated =
        |step: &crate::id::StepId| shape.place(step.as_str()).is_some_and(|at| shape.share_loop(at, at));
    let below = downstream(shape, &cuts);
    let named = cuts.iter().filter(|cut| in_pass && !shape.share_loop(cut.place, cut.place));
    forgotten.extend(named.map(|cut| Forget::Step(cut.entry.step.clone())));
    let mut position = invalidate(shape, &known.position, cuts);
    let has_result = |step: &crate::id::StepId| position.reusable.contains_key(step);
    let below = below.into_iter().filter(|step| in_pass || (is_repeated(step) && !has_result(step)));
    forgotten.extend(below.map(Forget::Step));
    // What its children made is what the opener's own evidence is about.
    let own = targets.iter().filter(|target| target.claims.is_some());
    let openers = own.filter(|target| {
        shape
            .step(target.step.as_str())
            .is_some_and(|step| step.children.as_ref().is_some_and(|c| !c.afterwards))
    });
    position.rerun_whole.extend(openers.map(|target| target.step.clone()));
    Ok(Some(Move { record: known.record.clone(), position, drafts, basis: None, forgotten }))
}

/// Returns the entry with which an invalid step stands in the frontier, and what is taken out of the state for it.
async fn cut_of(
    opening: Opening<'_>,
    (known, shape): (&Known, &Shape),
    target: &Target,
    epoch: u32,
) -> Result<Option<(Cut, Option<Forget>)>, RunError> {
    let engine = opening.engine;
    let header = known.record.header();
    let (run, branch) = (&header.run, &header.branch);
    let Some(place) = shape.place(target.step.as_str()) else { return Ok(None) };
    let made = engine.store.load(run, branch, target.seq).await?;
    let made = made.header();
    let stands = known.position.frontier.iter().find(|entry| entry.step == target.step);
    let is_passed = stands.is_some_and(|entry| entry.at.iteration > made.at.iteration);
    let is_open = crate::shape::Unfinished::of(shape, &known.position).has(place);
    if !is_passed && (stands.is_some() || is_open) {
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
        _ if iteration == made.at.iteration && target.claims.is_none() => {
            match fan_of_pass(&known.position, (shape, place), made) {
                Some(fan) => Some(fan),
                None => joining(engine, &known.position, (&shape.steps()[place], made, loops)).await?,
            }
        }
        _ => None,
    };
    let ready = FrontierEntry::ready(target.step.clone());
    let entry = FrontierEntry { at: Try { attempt: 0, epoch, iteration }, fan: joining, ..ready };
    Ok(Some((Cut { place, entry }, forgotten)))
}

/// Returns the fan-out of the pass that an end is of, where each pass has a branch of its own.
fn fan_of_pass(position: &Position, (shape, place): (&Shape, usize), made: &Header) -> Option<Fan> {
    let step = &shape.steps()[place].id;
    let amid =
        position.frontier.iter().find(|entry| entry.step == *step).and_then(|entry| entry.fan.as_ref());
    let fan = amid.or_else(|| position.joined.get(step)).filter(|fan| fan.pass > 0)?;
    fan.of_pass(pass_in(shape, place, &made.at.iteration))
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

/// Returns the branches to join once more; `None` if retention dropped the record of them, so that new branches are opened.
///
/// # Errors
/// [`RunError::NoState`]: the record was dropped, and the branches have steps with `idempotent: false` that no person is
/// asked about, as in a step that `loops`.
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
