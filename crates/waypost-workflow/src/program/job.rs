//! Work of a step, prepared while the state is available.

use std::sync::Arc;

use waypost::engine::{Joined, Performed, StepRef};
use waypost::record::{Failure, Note, Try};

use crate::file::Work;

use super::command::{Command, RunsOn};
use super::evidence::Vouching;
use super::items::{Joining, Listing};
use super::repeat::{Passing, in_pass};
use super::service::Service;
use super::state::{StepOutput, WorkflowState};
use super::waiting::Waiting;
use super::{WorkflowProgram, expression, hooks};

/// Step with all expressions evaluated; runs without the state.
#[derive(Debug)]
pub struct Job {
    pub(super) doing: Doing,
    /// Hooks of the step.
    pub(super) hooks: Arc<[hooks::Plan]>,
    /// Current pass of a step with both `repeat` and hooks: the hooks run after the last pass.
    pub(super) passing: Option<Passing>,
    /// Services that must be running.
    pub(super) services: Arc<[Service]>,
    /// Evidence of the step.
    pub(super) vouching: Option<Box<Vouching>>,
}

#[derive(Debug)]
pub(super) enum Doing {
    Command(Box<Command>),
    Waiting(Waiting),
    Listing(Box<Listing>),
    Joining(Joining),
    Gathering(Joined),
    /// A scope of another file has ended.
    Returning(Joined),
    /// The hooks of the step have ended.
    Hooked(Joined),
    Service(Box<Service>),
}

impl Job {
    /// Makes a job without hooks, services and evidence.
    fn of(doing: Doing) -> Self {
        Self { doing, hooks: Arc::from([]), passing: None, services: Arc::from([]), vouching: None }
    }
}

impl WorkflowProgram {
    /// Makes the job of a step, without its evidence.
    pub(super) fn job(
        &self,
        step_ref: StepRef<'_>,
        state: &WorkflowState,
        joined: Option<Joined>,
    ) -> Result<Job, Failure> {
        let step = self.step(step_ref);
        let scope = self.scope_of(step, state);
        let hooks = Arc::clone(&self.levels[step_ref.level].hooks[step_ref.place]);
        let passing = step.repeat.as_ref().filter(|_| !hooks.is_empty());
        let passing = passing.map(|_| Passing::new(step_ref, state.passes(&step.id) + 1, self.scope(state)));
        let job = |doing| Job { hooks: Arc::clone(&hooks), passing: passing.clone(), ..Job::of(doing) };
        if let Some(joined) = joined {
            return Ok(match (&step.work, self.foreach(step_ref)) {
                _ if joined.is_after() => Job::of(Doing::Hooked(joined)),
                (_, Some(foreach)) => {
                    job(Doing::Joining(Joining::new(joined, foreach, self.outcomes_file(step_ref))))
                }
                (Work::Group(_), _) => job(Doing::Gathering(joined)),
                _ => job(Doing::Returning(joined)),
            });
        }
        if let Some(foreach) = self.foreach(step_ref) {
            let listing = Listing::render(step, foreach, &scope, self.around(step_ref))?;
            return Ok(Job::of(Doing::Listing(Box::new(listing))));
        }
        self.check_passes(step, state)?;
        if let Some(waiting) = Waiting::render(step, &scope, &self.mask).map_err(expression)? {
            return Ok(job(Doing::Waiting(waiting)));
        }
        let services = self.services_of(step_ref, state)?;
        if matches!(step.work, Work::Service(_)) {
            let service = Box::new(self.service(step, state)?);
            return Ok(Job { services, ..job(Doing::Service(service)) });
        }
        let command = step.work.command().expect("every other kind of work is a command");
        let command = Command::render(step, command, &scope, self.around(step_ref)).map_err(expression)?;
        // A service is known to the session of the run only, and so are the steps that use the service.
        let tags = self.workflow.runs_on(step).filter(|_| services.is_empty());
        let losses_max = step_ref.step.cuts_max;
        let runs_on = tags.map(|tags| RunsOn { tags: tags.to_vec(), losses_max });
        let command = Box::new(Command { runs_on, ..command.after(state.bytes()) });
        Ok(Job { services, ..job(Doing::Command(command)) })
    }

    /// Makes the job that undoes a step, if the step has `undo`.
    pub(super) fn undo_job(
        &self,
        step_ref: StepRef<'_>,
        at: &Try,
        state: &WorkflowState,
    ) -> Result<Option<Job>, Failure> {
        let step = self.step(step_ref);
        let Some(undo) = &step.undo else { return Ok(None) };
        // The state of a finished step may already have the number of the next pass.
        let scope = self.scope(state);
        let scope = at.iteration.last().map_or(scope.clone(), |pass| in_pass(&scope, *pass));
        let command = Command::undoing(step, undo, &scope, self.around(step_ref)).map_err(expression)?;
        Ok(Some(Job::of(Doing::Command(Box::new(command)))))
    }
}

/// Puts `notes` before the notes of a result.
pub(super) fn with_notes(mut performed: Performed<StepOutput>, notes: Vec<Note>) -> Performed<StepOutput> {
    if let Performed::Completed { report, .. }
    | Performed::Failed { report, .. }
    | Performed::Opened { report, .. } = &mut performed
    {
        report.notes.splice(0..0, notes);
    }
    performed
}
