//! What is to be done for a step, made while the state is at hand.

use std::sync::Arc;

use waypost::engine::{Joined, Spot};
use waypost::record::Failure;

use crate::file::Work;

use super::command::Command;
use super::evidence::Vouching;
use super::items::{Joining, Listing};
use super::service::Service;
use super::state::WorkflowState;
use super::waiting::Waiting;
use super::{WorkflowProgram, expression, hooks, repeat};

/// A step with everything filled in, ready to be done without the state.
#[derive(Debug)]
pub struct Job {
    pub(super) doing: Doing,
    /// What is done after it.
    pub(super) hooks: Arc<[hooks::Plan]>,
    /// What must run beside it.
    pub(super) services: Arc<[Service]>,
    /// By what it is believed.
    pub(super) vouching: Option<Box<Vouching>>,
}

#[derive(Debug)]
pub(super) enum Doing {
    Command(Box<Command>),
    Waiting(Waiting),
    Listing(Box<Listing>),
    Joining(Joining),
    Gathering(Joined),
    /// Another file has ended.
    Returning(Joined),
    /// Its hooks have ended.
    Hooked(Joined),
    Service(Box<Service>),
}

impl Job {
    /// A job after which nothing else is done.
    fn of(doing: Doing) -> Self {
        Self { doing, hooks: Arc::from([]), services: Arc::from([]), vouching: None }
    }
}

impl WorkflowProgram {
    /// Makes the job of a step, but for its evidence.
    pub(super) fn job(
        &self,
        spot: Spot<'_>,
        state: &WorkflowState,
        joined: Option<Joined>,
    ) -> Result<Job, Failure> {
        let step = self.step(spot);
        let scope = self.scope_of(step, state);
        if let Some(joined) = joined.clone().filter(|_| repeat::is_group(step)) {
            return Ok(Job::of(Doing::Gathering(joined)));
        }
        if let Some(joined) = joined.clone().filter(|_| step.work.child().is_some()) {
            return Ok(Job::of(Doing::Returning(joined)));
        }
        if let Some(foreach) = self.foreach(spot) {
            if let Some(joined) = joined {
                let joining = Joining::new(joined, foreach, self.outcomes_file(spot));
                return Ok(Job::of(Doing::Joining(joining)));
            }
            let listing = Listing::render(step, foreach, &scope, self.around(spot))?;
            return Ok(Job::of(Doing::Listing(Box::new(listing))));
        }
        if let Some(joined) = joined {
            return Ok(Job::of(Doing::Hooked(joined)));
        }
        let hooks = Arc::clone(&self.levels[spot.level].hooks[spot.place]);
        if let Some(waiting) = Waiting::render(step, &scope, &self.mask).map_err(expression)? {
            return Ok(Job { hooks, ..Job::of(Doing::Waiting(waiting)) });
        }
        let services = self.services_of(state)?;
        if matches!(step.work, Work::Service(_)) {
            let service = Box::new(self.service(step, state)?);
            return Ok(Job { hooks, services, ..Job::of(Doing::Service(service)) });
        }
        let command = step.work.command().expect("what does not wait is a command");
        let command = Command::render(step, command, &scope, self.around(spot)).map_err(expression)?;
        let command = Box::new(command.after(state.bytes()));
        Ok(Job { hooks, services, ..Job::of(Doing::Command(command)) })
    }
}
