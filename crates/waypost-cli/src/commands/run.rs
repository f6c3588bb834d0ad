//! `waypost run`: creates a run of a workflow file and executes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use waypost::engine::{Engine, RunError, SessionOptions, Snapshot, StopLevel};
use waypost::folder::REPORT;
use waypost::record::{RunRecord, RunStatus};
use waypost::store::{RunQuery, RunSummary, Store, StoreError};
use waypost::{MemoryStore, RunId};
use waypost_workflow::file::{Document, GivenParams, ParamsError, ReadError, Workflow, read_params_file};
use waypost_workflow::program::{WorkflowProgram, declared_env, shape_of};

use self::or_resume::CreationLock;
use super::Context;
use super::resume::Prepared;
use super::{check, detach, resume};
use crate::cli::{ResumeArgs, RunArgs, is_stdin};
use crate::error::Error;
use crate::exit::Exit;
use crate::format::text::relative_to_here;
use crate::run::definition::path_in_force;
use crate::run::environment::{self, Local};
use crate::run::params::current;
use crate::run::preflight;
use crate::run::reference::{self, resumable_statuses};
use crate::run::workflow_file;
use crate::session::{Session, SessionReport};
use crate::store_location::{self, Access, recorded_path, relative};
use crate::view::DecisionView;
use crate::view::step_names::StepNames;

mod or_resume;

/// Most attempts at a free id: each collides once in a million runs of one name.
const IDS_MAX: usize = 8;
/// Most runs of the same file considered for the hint to resume.
const BESIDE_MAX: usize = 20;

pub(crate) async fn run(context: &Context, args: RunArgs) -> Result<Exit, Error> {
    if args.detached {
        detach::leave_terminal();
    }
    if is_stdin(&args.file) {
        refuse_without_file(&args)?;
    }
    let workflow = workflow_file::read(&args.file)?;
    let given = given_params(&args)?;
    let given = over_those_of_run(context, &workflow, given, &args).await;
    let params = workflow.resolve_params(&given).map_err(|error| wrong_params(error, &given, &args));
    let id = args.id.as_deref().map(RunId::new).transpose().map_err(Error::from_name)?;
    let base = base_folder(&args)?;
    environment::refuse_unknown_step(&workflow, args.until.as_deref())?;
    let known = params.as_ref().cloned().unwrap_or_default();
    let runs = |step: &str| args.until.as_deref().is_none_or(|until| workflow.leads_to(step, until));
    let lacks = preflight::lacks_of(&workflow, &known, &base, runs);
    let secrets = environment::refuse_missing_secrets(&workflow);
    let (params, missing) = match params {
        Ok(params) => (params, None),
        Err(error) => (Map::new(), Some(error)),
    };
    // An existing run may have finished the first steps.
    let certain = if args.or_resume { &[] } else { lacks.as_slice() };
    let file = (!is_stdin(&args.file)).then_some(args.file.as_path());
    preflight::refused(missing.into_iter().chain(secrets.err()).collect(), certain, file)?;
    if args.dry_run {
        return dry_run(context, Beginning { workflow, params, id, base, args, creation: None }).await;
    }
    let store = context.store(Some(&args.file), Access::Create).map_err(not_made)?;
    if let Some(id) = &id {
        if reference::is_there(store.as_ref(), id).await? {
            return beside_existing(context, store, id, &params, &args).await;
        }
        // After a loss, a new run of this name would repeat finished work.
        if let Some(lost) = reference::lost(store.as_ref(), id.as_str()).await {
            return Err(lost);
        }
    }
    let creation = match &id {
        None if args.or_resume => {
            let creation = CreationLock::take(context, store.as_ref()).await?;
            if let Some(run) = or_resume::unfinished(store.as_ref(), &args.file, &params).await? {
                drop(creation);
                return Box::pin(beside_existing(context, store, &run, &params, &args)).await;
            }
            Some(creation)
        }
        _ => None,
    };
    let file = (!is_stdin(&args.file)).then_some(args.file.as_path());
    preflight::refused(Vec::new(), &lacks, file)?;
    for lack in &lacks {
        context.output.warn(&format!("{}, unless an earlier step makes it", preflight::shown(lack)));
    }
    let warnings = workflow.all_warnings();
    if !warnings.is_empty() {
        context.output.detail(&check::rendered(&warnings));
    }
    Box::pin(begin(context, store, Beginning { workflow, params, id, base, args, creation })).await
}

/// The checked input of a new run.
pub(super) struct Given {
    pub(super) workflow: Workflow,
    pub(super) params: Map<String, Value>,
    pub(super) base: PathBuf,
}

impl Given {
    /// Reads and checks the input of a run that starts elsewhere.
    pub(super) fn of(args: &RunArgs) -> Result<Self, Error> {
        let workflow = workflow_file::read(&args.file)?;
        let given = given_params(args)?;
        let params = workflow.resolve_params(&given).map_err(|error| wrong_params(error, &given, args))?;
        Ok(Self { workflow, params, base: base_folder(args)? })
    }
}

fn given_params(args: &RunArgs) -> Result<GivenParams, Error> {
    Ok(GivenParams {
        file: args.params_file.as_deref().map(params_of).transpose()?.unwrap_or_default(),
        text: args.params.clone(),
    })
}

/// Refuses options that need the path of the workflow file.
fn refuse_without_file(args: &RunArgs) -> Result<(), Error> {
    if args.detach {
        let hint = "write the workflow to a file";
        return Err(Error::usage("cannot detach a run of a workflow from stdin", hint));
    }
    if args.or_resume && args.id.is_none() {
        let hint = "name the run with `--id`, or write the workflow to a file";
        return Err(Error::usage("cannot find earlier runs of a workflow from stdin", hint));
    }
    Ok(())
}

/// Merges the given params over the params of an existing run to resume, if any; others stay.
async fn over_those_of_run(
    context: &Context,
    workflow: &Workflow,
    mut given: GivenParams,
    args: &RunArgs,
) -> GivenParams {
    let Some(id) = args.id.as_deref().filter(|_| args.or_resume).and_then(|id| RunId::new(id).ok()) else {
        return given;
    };
    // Without a readable run, a new one is created, or the resume reports the error.
    let Ok(store) = context.store(Some(&args.file), Access::Read) else { return given };
    let Ok(snapshot) = Snapshot::read(store.as_ref(), &id).await else { return given };
    let declared = |name: &str| workflow.params().iter().any(|param| param.name == name);
    let mut params = current(&snapshot);
    params.retain(|name, value| !value.is_null() && declared(name));
    params.extend(given.file);
    given.file = params;
    given
}

/// Reads a params file; its problems are reported as params errors.
fn params_of(file: &Path) -> Result<Map<String, Value>, Error> {
    read_params_file(file).map_err(|error| match error {
        ReadError::File(error) => Error::ParamsFile(Box::new(error)),
        error => error.into(),
    })
}

/// Shows params problems in the params file, if all of them are from there.
fn wrong_params(error: ParamsError, given: &GivenParams, args: &RunArgs) -> Error {
    let is_of_file = |name: &String| {
        given.file.contains_key(name) && given.text.iter().all(|(on_line, _)| on_line != name)
    };
    let Some(file) = &args.params_file else { return Error::Params(error) };
    if !error.problems().iter().all(|problem| is_of_file(&problem.name)) {
        return Error::Params(error);
    }
    // The file was read just before.
    let document = std::fs::read(file).ok().and_then(|bytes| Document::parse(&bytes, file).ok());
    match document.and_then(|document| document.wrong_params(error.problems())) {
        Some(shown) => Error::ParamsFile(Box::new(shown)),
        None => Error::Params(error),
    }
}

/// The input of a new run.
struct Beginning {
    workflow: Workflow,
    params: Map<String, Value>,
    id: Option<RunId>,
    base: PathBuf,
    args: RunArgs,
    /// The lock held until the run exists.
    creation: Option<CreationLock>,
}

async fn begin(context: &Context, store: Arc<dyn Store>, beginning: Beginning) -> Result<Exit, Error> {
    let Beginning { workflow, params, id, base, args, creation } = beginning;
    report_others(context, store.as_ref(), &args.file, &params).await?;
    let local = Local::detect()?;
    let run = match &id {
        Some(id) => id.clone(),
        None => free_id(store.as_ref(), workflow.name()).await?,
    };
    let record = record(context, store.as_ref(), (&workflow, &params), &run, &base, &args, &local)?;
    let options = SessionOptions {
        until: environment::until(args.until.as_deref())?,
        fail_fast: args.fail_fast,
        ..environment::session_options(&workflow)
    };
    let timeout = workflow.timeout();
    let told = SessionReport {
        run: run.clone(),
        file: Some(args.file.clone()).filter(|file| !is_stdin(file)),
        store_words: context.lasting_store_words(),
        until: args.until.clone(),
        report: store.folder(&run).map(|folder| folder.join(REPORT)),
    };
    let program = WorkflowProgram::new(workflow, local.of_run(run, base, Arc::clone(&store)))?;
    let state = program.initial_state(params.clone())?;
    refuse_secrets(&program, &record)?;
    program.check_items(&params)?;
    if args.detach {
        return detach::begin(
            context,
            store.as_ref(),
            &told.run,
            &words_of(&told.run, &args),
            args.or_resume,
        )
        .await;
    }
    let session = Session::begin(context, timeout)?;
    let options = SessionOptions { stop: session.stop.clone(), ..options };
    let first = format!("Run {} of workflow {}", told.run, crate::output::shown(&record.workflow));
    context.output.note(&match elsewhere(context, store.as_ref(), &args.file) {
        Some(store) => format!("{first}, in store {store}"),
        None => first,
    });
    let engine = session.engine(Arc::clone(&store), &program);
    session.ask_questions(&engine, &told.run, program.workflow());
    let kept = options.clone();
    let work = session.watch(engine.run_program(&program, record, state, options));
    let outcome = match creation {
        Some(creation) => creation.until_created(store.as_ref(), &told.run, work).await,
        None => work.await,
    };
    match outcome {
        Ok(outcome) => {
            let outcome = session.wait_out(&engine, &program, outcome, &kept, args.wait).await?;
            session.conclude(&engine, &program, &outcome, &told).await
        }
        // Another process has created the run since the check.
        Err(error) if args.or_resume && is_taken(&error) => {
            refuse_other(store.as_ref(), &told.run, &params, &args).await?;
            let args = resume_args(&told.run, &args);
            Box::pin(resume::resume_within(context, store, &told.run, &args, &session)).await
        }
        Err(error) => Err(match store.run(&told.run).await {
            Err(StoreError::NotFound { .. }) => run_not_made(&told.run, error),
            _ => error,
        }),
    }
}

/// Refuses to record a secret written in a place that is neither masked nor needed.
pub(super) fn refuse_secrets(program: &WorkflowProgram, record: &RunRecord) -> Result<(), Error> {
    const FILE: &str = "the workflow file";
    let holds = |text: &str| program.mask().contains(text.as_bytes());
    let mut told = record.labels.iter().filter(|(name, value)| holds(name) || holds(value));
    if let Some((name, _)) = told.next() {
        let name = program.mask().mask_str(name);
        let message = format!("label `{name}` contains a secret");
        return Err(Error::usage(message, "labels are recorded; choose another value"));
    }
    let text = record.definition.text.as_deref().unwrap_or_default();
    let places = [
        (FILE, Some(text)),
        ("the name of the run", Some(record.run.as_str())),
        ("the path of the workflow file", record.path.as_deref()),
        ("the folder of the steps", record.base.as_deref()),
    ];
    match places.iter().find(|(_, text)| text.is_some_and(holds)) {
        Some((what, text)) => Err(Error::usage(
            match text.and_then(|text| program.secret_in(text)) {
                Some((name, line)) if *what == FILE => {
                    format!("{what} contains secret `{name}` in line {line}")
                }
                Some((name, _)) => format!("{what} contains secret `{name}`"),
                None => format!("{what} contains a secret"),
            },
            "the value is recorded unmasked; pass the secret through the environment of the step",
        )),
        None => Ok(()),
    }
}

/// Returns whether a run was not created because its name exists.
fn is_taken(error: &Error) -> bool {
    matches!(
        error,
        Error::Run(
            RunError::Store(StoreError::Exists { .. })
                | RunError::Checkpoint { source: StoreError::Exists { .. }, .. }
        )
    )
}

/// Converts an error to "not created", if the run has no data.
fn run_not_made(run: &RunId, error: Error) -> Error {
    let what = || format!("run {run}");
    match error {
        Error::Run(RunError::Store(source)) if is_of_medium(&source) => {
            Error::NotMade { what: what(), source }
        }
        // At a later checkpoint, the run was deleted meanwhile.
        Error::Run(RunError::Checkpoint { at, source })
            if at == format!("{run}@1") && is_of_medium(&source) =>
        {
            Error::NotMade { what: what(), source }
        }
        error => error,
    }
}

/// Converts an error to "not created", if the store could not be created.
fn not_made(error: Error) -> Error {
    match error {
        Error::Store(source) if is_of_medium(&source) => {
            Error::NotMade { what: "a store".to_owned(), source }
        }
        error => error,
    }
}

/// Returns whether a write failed because of the disk.
fn is_of_medium(error: &StoreError) -> bool {
    match error {
        StoreError::Full { .. } | StoreError::Poisoned { .. } => true,
        StoreError::Io { action, .. } => !matches!(*action, "read" | "open"),
        _ => false,
    }
}

/// Prints the decisions about the steps of a new run: a run in memory, stopped before its first step.
async fn dry_run(context: &Context, beginning: Beginning) -> Result<Exit, Error> {
    let Beginning { workflow, params, id, base, args, .. } = beginning;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let run = id.clone().unwrap_or_else(|| RunId::random(workflow.name()));
    let local = Local::detect()?;
    let record = record(context, store.as_ref(), (&workflow, &params), &run, &base, &args, &local)?;
    let shape = shape_of(&workflow, environment::parallel())?;
    let options = environment::session_options(&workflow);
    options.stop.stop(StopLevel::Graceful, "a dry run starts no step");
    let program = WorkflowProgram::new(workflow, local.of_run(run.clone(), base, Arc::clone(&store)))?;
    let state = program.initial_state(params)?;
    program.equip(Engine::new(Arc::clone(&store))).run_program(&program, record, state, options).await?;
    let snapshot = Snapshot::read(store.as_ref(), &run).await?;
    let (mut plan, _) = super::plan::planned(context, &store, &snapshot).await?;
    let stops =
        args.until.as_deref().map(|until| resume::stop_after(&mut plan, &shape, until)).transpose()?;
    let names = StepNames::of(program.workflow());
    let decisions = plan.decisions.iter().map(DecisionView::from).collect();
    super::plan::show(context, id.as_ref().map(RunId::as_str), (decisions, Vec::new()), &names)?;
    stops.iter().for_each(|note| context.output.note(note));
    context.output.note("Nothing was run, as requested.");
    Ok(Exit::Done)
}

async fn beside_existing(
    context: &Context,
    store: Arc<dyn Store>,
    id: &RunId,
    params: &Map<String, Value>,
    args: &RunArgs,
) -> Result<Exit, Error> {
    if !args.or_resume {
        return Err(StoreError::Exists { run: id.clone() }.into());
    }
    refuse_other(store.as_ref(), id, params, args).await?;
    let resume = resume_args(id, args);
    if !args.detach {
        return resume::resume_in(context, store, resume).await;
    }
    // Errors that prevent the resume are reported here, with their exit code.
    Prepared::of(context, &store, id, &resume).await?;
    detach::begin(context, store.as_ref(), id, &words_of(id, args), true).await
}

/// Returns the arguments with the run id for the detached process.
fn words_of<'a>(id: &'a RunId, args: &RunArgs) -> Vec<&'a str> {
    if args.id.is_some() { Vec::new() } else { vec!["--id", id.as_str()] }
}

fn resume_args(id: &RunId, args: &RunArgs) -> ResumeArgs {
    ResumeArgs {
        run: Some(id.to_string()),
        until: args.until.clone(),
        wait_default: Some(args.wait),
        ..ResumeArgs::default()
    }
}

/// Refuses an existing run that was created with other settings than requested.
async fn refuse_other(
    store: &dyn Store,
    id: &RunId,
    params: &Map<String, Value>,
    args: &RunArgs,
) -> Result<(), Error> {
    let entry = store.run(id).await?;
    let mut made = entry.record.record().clone();
    // If the run is not readable, the resume reports the error.
    if let Ok(snapshot) = Snapshot::read(store, id).await {
        made.path = path_in_force(&made, &snapshot.definition).map(ToOwned::to_owned);
        made.params = current(&snapshot);
    }
    let differs = differences(store, &made, params, args)?;
    if differs.is_empty() {
        return Ok(());
    }
    Err(Error::usage(
        format!("cannot resume run {id}: its settings differ: {}", differs.join("; ")),
        format!("`waypost resume {id}` keeps the settings of the run; another `--id` creates a new run"),
    ))
}

/// Returns the differences between a run and the requested settings; settings not given match.
fn differences(
    store: &dyn Store,
    made: &RunRecord,
    params: &Map<String, Value>,
    args: &RunArgs,
) -> Result<Vec<String>, Error> {
    let mut differs = Vec::new();
    let here = |path: &Path| relative(store, path);
    let there = |path: &Option<String>| match path {
        Some(path) => match relative_to_here(&store_location::from_home(store.home(), path)) {
            here if here.as_os_str().is_empty() => "this folder".to_owned(),
            path => path.display().to_string(),
        },
        None => "an unknown place".to_owned(),
    };
    let file = Some(&args.file).filter(|file| !is_stdin(file));
    if file.and_then(|file| here(file)) != made.path {
        differs.push(format!("from {}, not {}", there(&made.path), args.file.display()));
    }
    if let Some(dir) = &args.dir
        && here(&base_folder(args)?) != made.base
    {
        differs.push(format!("its steps run in {}, not {}", there(&made.base), dir.display()));
    }
    for (name, value) in params {
        match made.params.get(name) {
            Some(before) if before != value => {
                differs.push(format!("param `{name}` is {before}, not {value}"));
            }
            None if args.params.iter().any(|(given, _)| given == name) => {
                differs.push(format!("param `{name}` is not set in the run"));
            }
            _ => {}
        }
    }
    for (name, value) in &args.labels {
        if made.labels.get(name) != Some(value) {
            let before = made.labels.get(name).map_or("not there".to_owned(), |label| format!("`{label}`"));
            differs.push(format!("label `{name}` is {before}, not `{value}`"));
        }
    }
    Ok(differs)
}

fn base_folder(args: &RunArgs) -> Result<PathBuf, Error> {
    let beside = || args.file.parent().filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_owned);
    let folder = args.dir.clone().or_else(beside).unwrap_or_else(|| PathBuf::from("."));
    let base = folder.canonicalize().map_err(|source| Error::Unreadable { path: folder.clone(), source })?;
    if base.is_dir() {
        return Ok(base);
    }
    Err(Error::usage(
        format!("{} is not a folder", folder.display()),
        "name the folder of the steps with `--dir`",
    ))
}

/// Creates the record of a new run.
pub(super) fn record(
    context: &Context,
    store: &dyn Store,
    (workflow, params): (&Workflow, &Map<String, Value>),
    run: &RunId,
    base: &Path,
    args: &RunArgs,
    local: &Local,
) -> Result<RunRecord, Error> {
    let shape = shape_of(workflow, local.parallel)?;
    let mut labels = workflow.labels().clone();
    labels.extend(args.labels.iter().cloned());
    Ok(RunRecord {
        definition: shape.definition(Some(workflow.text().to_owned())),
        path: match is_stdin(&args.file) {
            true => None,
            false => recorded_path(store, &args.file)?,
        },
        base: recorded_path(store, base)?,
        params: params.clone(),
        env: declared_env(workflow, &local.environment),
        labels,
        settings: environment::settings(json!({ environment::BASH: local.has_bash })),
        durability: environment::durability(workflow),
        retention: workflow.checkpoints().retention,
        actor: local.actor(),
        ..RunRecord::new(run.clone(), workflow.name(), context.now())
    })
}

/// Generates a free id: the workflow's name and a random suffix.
pub(super) async fn free_id(store: &dyn Store, workflow: &str) -> Result<RunId, Error> {
    for _ in 0..IDS_MAX {
        let id = RunId::random(workflow);
        if !reference::is_there(store, &id).await? {
            return Ok(id);
        }
    }
    Err(Error::usage(
        format!("cannot find an unused name for a run of `{workflow}`"),
        "choose a name with `--id`",
    ))
}

/// Returns the name of a store found by search and not next to the workflow file.
fn elsewhere(context: &Context, store: &dyn Store, file: &Path) -> Option<String> {
    let folder = store_location::start_of_search(Some(file)).ok()?;
    let home = store.home()?.canonicalize().ok()?;
    let is_elsewhere = context.store_given().0.is_none() && home != folder.join(store_location::FOLDER);
    is_elsewhere.then(|| crate::output::shown(&store.to_string()).into_owned())
}

/// Warns of live runs of the same file, with shared files; names a run with the same params, for a resume.
async fn report_others(
    context: &Context,
    store: &dyn Store,
    file: &Path,
    params: &Map<String, Value>,
) -> Result<(), Error> {
    let path = store.home().and_then(|home| store_location::relative_to(home, file));
    let Some(path) = path.filter(|_| !is_stdin(file)) else { return Ok(()) };
    let query = RunQuery {
        statuses: resumable_statuses().into_iter().chain([RunStatus::Running]).collect(),
        path: Some(path),
        limit: BESIDE_MAX,
        ..RunQuery::default()
    };
    let (mut is_resumable_known, words) = (false, context.store_words());
    for RunSummary { run, status, .. } in store.runs(&query).await?.runs {
        if status == RunStatus::Running {
            context.output.warn(&format!(
                "Run {run} of the same file is running, and shares its files. To see its output: waypost \
                 logs {run} -f{words}"
            ));
            continue;
        }
        let Ok(entry) = store.run(&run).await else { continue };
        if !is_resumable_known && entry.record.record().params == *params {
            is_resumable_known = true;
            let status = status.name();
            context.output.note(&format!(
                "Run {run} of the same file and params is {status}; to resume it instead: waypost resume {run}{words}"
            ));
        }
    }
    Ok(())
}
