//! Services: processes that run next to later steps until the session ends.
//!
//! A service step completes once its process has run for [`SETTLE`]. A resume restarts the service before the
//! first downstream command. After an exit, the service is restarted before the next downstream command.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;
use waypost::engine::Program as _;
use waypost::engine::{Attempt, Performed, StepReport};
use waypost::events::SERVICE_STARTED;
use waypost::record::{Ending, Failure, FailureKind, Note, Try};
use waypost::shape::Unfinished;
use waypost::{ScopePath, StepId};

use crate::file::{Step, Work};
use crate::log::{Log, Streams, record};
use crate::supervisor::{Exit, SupervisorError};

use super::attempt::{BlobSink, not_started};
use super::command::Command;
use super::evidence::Vouching;
use super::log_name;
use super::state::{StepOutput, WorkflowState};
use super::{StepRef, WorkflowProgram, expression};

/// How long a process must run to count as started; a service that cannot serve usually exits at once.
const SETTLE: Duration = Duration::from_millis(300);

/// Service with all expressions evaluated, ready to be started or restarted.
#[derive(Debug, Clone)]
pub(super) struct Service {
    step: StepId,
    command: Command,
    /// Evidence of a working service.
    vouching: Option<Vouching>,
}

/// Running service.
#[derive(Debug)]
pub(super) struct Running {
    stop: oneshot::Sender<()>,
    life: JoinHandle<Result<Exit, SupervisorError>>,
}

/// Running services of a session, by step.
pub(super) type Services = Arc<Mutex<HashMap<StepId, Running>>>;

impl Service {
    /// Returns the evidence of a working service.
    pub(super) fn vouching(&self) -> Option<&Vouching> {
        self.vouching.as_ref()
    }
}

impl WorkflowProgram {
    /// Makes the service of a step.
    pub(super) fn service(&self, step: &Step, state: &WorkflowState) -> Result<Service, Failure> {
        let Work::Service(command) = &step.work else { unreachable!("only services are restarted") };
        let scope = self.scope_of(step, state);
        let command = Command::render(step, command, &scope, (&self.surroundings, &self.surroundings.base))
            .map_err(expression)?;
        let name = StepId::new(&step.id).map_err(|error| super::failure(FailureKind::Error, error))?;
        let vouching = self.vouching_of(step, state, Path::new("")).map_err(expression)?;
        Ok(Service { step: name, command, vouching })
    }

    /// Returns the services needed by a step: the completed service steps upstream, and the step's own.
    pub(super) fn services_of(
        &self,
        step_ref: StepRef<'_>,
        state: &WorkflowState,
    ) -> Result<Arc<[Service]>, Failure> {
        if let Some(services) = state.services() {
            return Ok(services);
        }
        let shape = self.shape();
        let is_downstream = |step: &Step| {
            let place = shape.place(&step.id);
            place.is_some_and(|place| {
                Unfinished::from_places(shape, std::iter::once(place)).has(step_ref.place)
            })
        };
        let services = self.workflow.steps().iter().filter(|step| matches!(step.work, Work::Service(_)));
        let started = services.filter(|step| state.is_completed(&step.id) && is_downstream(step));
        started.map(|step| self.service(step, state)).collect()
    }

    /// Returns the attempt whose log a restarted service continues.
    pub fn restarted_at() -> Try {
        Try { attempt: 1, ..Try::default() }
    }

    /// Starts the services not yet running; returns an event for each.
    pub(super) async fn ensure(
        &self,
        services: &[Service],
        attempt: &Attempt,
    ) -> Result<Vec<Note>, Box<Performed<StepOutput>>> {
        let mut notes = Vec::new();
        for service in services {
            let running = self.running();
            let mut running = running.lock().await;
            if running.get(&service.step).is_some_and(|running| !running.life.is_finished()) {
                continue;
            }
            let had_ended = running.remove(&service.step).is_some();
            let mut own = attempt.clone();
            (own.scope, own.step, own.at) = (ScopePath::main(), service.step.clone(), Self::restarted_at());
            let started = self.start_service(service, &own).await;
            let started = started.map_err(|performed| Box::new(not_restarted(service, *performed)))?;
            if let Some(failure) = self.unserving(service, attempt).await {
                end(started).await;
                return Err(Box::new(Performed::Failed { failure, report: StepReport::default() }));
            }
            running.insert(service.step.clone(), started);
            let data = json!({ "step": service.step, "had_ended": had_ended });
            notes.push(Note::Event { name: SERVICE_STARTED.to_owned(), data });
        }
        Ok(notes)
    }

    /// Returns the failure of a restarted service whose evidence does not hold.
    async fn unserving(&self, service: &Service, attempt: &Attempt) -> Option<Failure> {
        let performed = Performed::Completed {
            output: StepOutput::default(),
            ending: Ending::default(),
            report: StepReport::default(),
        };
        match service.vouching.as_ref()?.vouched(performed, attempt, self.mask()).await {
            Performed::Failed { mut failure, .. } => {
                let text = format!("service `{}` restarted, but does not serve", service.step);
                failure.error.insert(0, text);
                Some(failure)
            }
            _ => None,
        }
    }

    /// Ends a service whose step did not complete.
    pub(super) async fn end_service(&self, step: &StepId) {
        let started = self.running().lock().await.remove(step);
        if let Some(started) = started {
            end(started).await;
        }
    }

    /// Runs a service step; completes when the process has run for [`SETTLE`].
    pub(super) async fn serve(&self, service: Service, attempt: &Attempt) -> Performed<StepOutput> {
        // On a rerun the old process must first release resources such as a port.
        self.end_service(&attempt.step).await;
        let running = match self.start_service(&service, attempt).await {
            Ok(running) => running,
            Err(performed) => return *performed,
        };
        let services = self.running();
        if let Some(before) = services.lock().await.insert(service.step.clone(), running) {
            end(before).await;
        }
        let data = json!({ "step": service.step, "had_ended": false });
        let notes = vec![Note::Event { name: SERVICE_STARTED.to_owned(), data }];
        let report = StepReport { notes, ..StepReport::default() };
        Performed::Completed { output: StepOutput::default(), ending: Ending::default(), report }
    }

    fn running(&self) -> Services {
        let session = self.session.lock().expect("no code panics while the session is locked");
        let session = session.as_ref().expect("the engine performs steps between `begin` and `end`");
        Arc::clone(&session.services)
    }

    /// Starts a service. Returns after the process has run for [`SETTLE`].
    async fn start_service(
        &self,
        service: &Service,
        attempt: &Attempt,
    ) -> Result<Running, Box<Performed<StepOutput>>> {
        let mut running = self.spawn_service(service, attempt).await?;
        tokio::select! {
            ended = &mut running.life => Err(Box::new(ended_at_once(ended))),
            _ = attempt.stopped() => {
                end(running).await;
                Err(Box::new(Performed::Stopped { in_progress: true }))
            }
            () = tokio::time::sleep(SETTLE) => Ok(running),
        }
    }

    async fn spawn_service(
        &self,
        service: &Service,
        attempt: &Attempt,
    ) -> Result<Running, Box<Performed<StepOutput>>> {
        let (supervisor, scratch, mark) = self.tools();
        let process = self.process(&service.command, attempt, &scratch, &mark);
        let process = process
            .map_err(|failure| Box::new(Performed::Failed { failure, report: StepReport::default() }))?;
        let spawned = supervisor.spawn(process).await;
        drop(supervisor);
        let mut child = spawned.map_err(|error| Box::new(not_started(error, self.mask())))?;
        let sink = BlobSink {
            store: Arc::clone(&self.surroundings.store),
            name: log_name(&attempt.scope, &attempt.step, &attempt.at),
            attempt: attempt.clone(),
            echo: self.surroundings.echo.clone(),
            bytes: Arc::default(),
        };
        let (stop, stopped) = oneshot::channel();
        let (mask, grace) = (self.mask().clone(), service.command.grace());
        let limits = self.log_limits();
        let life = tokio::spawn(async move {
            let mut log = Log::new(sink, limits);
            let streams = Streams { stdout: child.stdout.take(), stderr: child.stderr.take() };
            let life = async {
                tokio::select! {
                    exit = child.wait() => return exit,
                    // Also resolves when the sender is dropped.
                    _ = stopped => {}
                }
                child.cancel(grace).await
            };
            let recorded = record(streams, &mask, &mut log, None, life).await;
            log.finish().await;
            recorded.life
        });
        Ok(Running { stop, life })
    }
}

/// Ends a service, and waits until its processes are dead.
pub(super) async fn end(running: Running) {
    let Running { stop, life } = running;
    // The service may have exited.
    let _ = stop.send(());
    let _ = life.await;
}

/// Ends all services of a session.
pub(super) async fn end_all(services: &Services) {
    let all: Vec<Running> = services.lock().await.drain().map(|(_, running)| running).collect();
    for running in all {
        end(running).await;
    }
}

/// Returns the result of a step whose service did not restart. The step has not started.
fn not_restarted(service: &Service, performed: Performed<StepOutput>) -> Performed<StepOutput> {
    match performed {
        Performed::Failed { mut failure, report } => {
            failure.error.insert(0, format!("cannot restart service `{}`", service.step));
            // The exit code is that of the service.
            (failure.kind, failure.ending.exit_code) = (FailureKind::Error, None);
            Performed::Failed { failure, report }
        }
        Performed::Stopped { .. } => Performed::Stopped { in_progress: false },
        performed => performed,
    }
}

fn ended_at_once(
    ended: Result<Result<Exit, SupervisorError>, tokio::task::JoinError>,
) -> Performed<StepOutput> {
    let (code, how) = match ended {
        Ok(Ok(Exit::Code(code))) => (Some(code), format!("exit code {code}")),
        Ok(Ok(exit)) => (None, exit.to_string()),
        Ok(Err(error)) => (None, error.to_string()),
        Err(error) => (None, error.to_string()),
    };
    let text = format!("the service exited at its start: {how}");
    let mut failure = Failure::new(FailureKind::Exit, vec![text]);
    failure.ending.exit_code = code;
    Performed::Failed { failure, report: StepReport::default() }
}
