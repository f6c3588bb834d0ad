//! Steps of which nobody but a person knows whether they took effect: what is asked, and what is done as told.

use crate::id::BranchPath;
use crate::plan::{Action, Cause, Decision, steps_in_lost};
use crate::record::Position;
use crate::shape::Shape;

use super::line::Line;
use super::{Follow, OnDoubt, RunError};

/// Asks about steps of a branch that may have been started in records that are lost.
pub(super) fn questions_of_lost(
    shape: &Shape,
    branch: &BranchPath,
    position: &Position,
    lost: u64,
) -> Vec<Decision> {
    let ask = |place: usize| Decision {
        branch: branch.clone(),
        step: shape.steps()[place].id.clone(),
        action: Action::Ask,
        cause: Cause::InLost(lost),
    };
    steps_in_lost(shape, position, lost).into_iter().map(ask).collect()
}

/// Carries out what a person says about steps in doubt.
pub(super) fn decide_as_told<S>(
    main: &mut Line<'_, S>,
    questions: Vec<Decision>,
    on_doubt: &OnDoubt<S>,
) -> Result<(), RunError> {
    let run = main.chain.run.clone();
    let is_cut = |decision: &Decision| {
        decision.branch.is_main() && matches!(decision.cause, Cause::InDoubt(_) | Cause::InLost(_))
    };
    if matches!(on_doubt, OnDoubt::Ask) || !questions.iter().all(is_cut) {
        return if questions.is_empty() { Ok(()) } else { Err(RunError::InDoubt { run, questions }) };
    }
    for Decision { step, cause, .. } in questions {
        let standing = main.position.frontier.iter().any(|entry| entry.step == step);
        if matches!(cause, Cause::InLost(_)) && !standing {
            // It runs when its turn comes, as it would have.
            if !matches!(on_doubt, OnDoubt::Done(_)) {
                continue;
            }
            let why = "what comes before it is not finished".to_owned();
            return Err(RunError::NotSettled { run, step, why });
        }
        let Some(place) = main.shape.place(step.as_str()).filter(|_| standing) else {
            let why = format!("step `{step}` is in doubt, and does not come next any more");
            return Err(RunError::Changed { run, why });
        };
        match on_doubt {
            OnDoubt::Done(settle) => {
                let Some(follow) = next_of(main.shape, place) else {
                    let why = "only its own run decides which step comes next".to_owned();
                    return Err(RunError::NotSettled { run, step, why });
                };
                (settle.0)(&mut main.state, &step).map_err(|why| RunError::NotSettled {
                    run: run.clone(),
                    step,
                    why,
                })?;
                main.settle_as_told(place, follow);
            }
            OnDoubt::Retry | OnDoubt::Ask => main.redo_as_told(place),
        }
    }
    Ok(())
}

/// Returns what comes after a step, where there is no choice.
fn next_of(shape: &Shape, place: usize) -> Option<Follow> {
    match shape.routes(place) {
        [] => Some(Follow::Needs),
        [only] if !shape.steps()[place].may_end => Some(Follow::To(*only)),
        _ => None,
    }
}
