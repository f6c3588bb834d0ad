//! What the evidence of a run comes to now, for commands that only look.

use std::sync::Arc;

use serde_json::Value;
use waypost::engine::{Engine, Look, Snapshot};
use waypost::plan::{Action, Cause, Decision, Plan};
use waypost::record::Occasion;
use waypost::store::Store;
use waypost_workflow::program::WorkflowProgram;

use crate::definition::Chosen;
use crate::error::Error;
use crate::place;
use crate::surroundings::{BASH, Local};

/// Checks the evidence of a run; where its workflow has none, nothing is looked at.
pub(crate) async fn look(
    store: &Arc<dyn Store>,
    snapshot: &Snapshot,
    chosen: &Chosen,
    occasion: Occasion,
) -> Result<Look, Error> {
    if !chosen.shape.has_evidence() {
        return Ok(Look::default());
    }
    let frozen = snapshot.entry.record.record();
    let base = place::from_home(store.home(), frozen.base.as_deref().unwrap_or("."));
    let mut local = Local::look()?;
    local.has_bash = frozen.settings.get(BASH).and_then(Value::as_bool).unwrap_or(local.has_bash);
    let surroundings = local.of_run(frozen.run.clone(), base, Arc::clone(store));
    let program = WorkflowProgram::to_look(chosen.workflow.clone(), surroundings)?;
    let engine = program.equip(Engine::new(Arc::clone(store)));
    Ok(engine.look(&program, snapshot, occasion).await?)
}

/// Puts into a plan what was found beside the verdicts.
pub(crate) fn tell_in(plan: &mut Plan, look: Look) {
    for (branch, step) in look.settled {
        let is_it = |decision: &&mut Decision| decision.branch == branch && decision.step == step;
        if let Some(decision) = plan.decisions.iter_mut().find(is_it) {
            (decision.action, decision.cause) = (Action::Reuse, Cause::EvidenceSettles);
        }
    }
    plan.decisions.extend(look.ended);
}
