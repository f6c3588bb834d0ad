//! `workflow`: runs another file in a scope with separate params.

use serde_json::{Map, Value};
use waypost::engine::{Joined, Performed, StepRef, StepReport};
use waypost::record::{Ending, Failure, FailureKind};

use crate::file::ChildWorkflow;

use super::state::{StepOutput, WorkflowState};
use super::{WorkflowProgram, expression, repeat};

impl WorkflowProgram {
    /// Returns the initial state of the scope of another file: its params only, without the names of the caller.
    pub(super) fn state_of_file(
        &self,
        step_ref: StepRef<'_>,
        state: &WorkflowState,
        file: &ChildWorkflow,
    ) -> Result<WorkflowState, Failure> {
        let step = self.step(step_ref);
        let scope = self.scope_of(step, state);
        let env = step.resolve_shared_env(&scope).map_err(expression)?;
        let given = file.given(&scope.for_step(&step.id, &env)).map_err(expression)?;
        let refused = |text: String| Failure::new(FailureKind::Expression, vec![text]);
        let told = |error: &dyn std::fmt::Display| refused(format!("cannot run `{}`: {error}", file.file()));
        let params = file.workflow().resolve_params(&given).map_err(|error| told(&error))?;
        self.initial_state(params).map_err(|error| told(&error))
    }
}

/// Returns the outputs of the steps of another file, by step id.
pub(super) async fn gather(joined: Joined) -> Performed<StepOutput> {
    let steps = match repeat::gathered(joined).await {
        Ok(output) => output.steps,
        Err(failure) => return Performed::Failed { failure, report: StepReport::default() },
    };
    let outputs: Map<String, Value> =
        steps.iter().map(|(id, step)| (id.clone(), Value::Object(step.outputs().clone()))).collect();
    let output = StepOutput { outputs: outputs.clone(), ..StepOutput::default() };
    let ending = Ending { outputs: outputs.into_iter().collect(), ..Ending::default() };
    Performed::Completed { output, ending, report: StepReport::default() }
}
