//! `waypost import`: a new run from an exported checkpoint.
//!
//! The file may come from anyone: its hash detects damage, not malice. Without a person's approval (`--trust`), no run is
//! created and no command of the file runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use waypost::RunId;
use waypost::engine::StopLevel;
use waypost::folder::REPORT;
use waypost::portable::{LoadError, Portable};
use waypost::record::{Flaw, RunRecord};
use waypost::store::{FILES_BLOB, Signal};
use waypost_workflow::file::Workflow;
use waypost_workflow::program::{WorkflowProgram, declared_env, shape_of};

use super::Context;
use super::archive::{Archived, checkpoint_in};
use super::from_checkpoint::{Params, id_of, report_given};
use super::resume::{is_over, requeue};
use super::rollback_fork::{of_evidence_there, of_main, on_main};
use crate::cli::ImportCheckpointArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::run::environment::{self, Local};
use crate::run::included_files::FILES;
use crate::run::needs::{self, SUBMISSION};
use crate::run::params::{Begin, ReadParam};
use crate::session::{Session, SessionReport};
use crate::store_location::{self, Access, recorded_path};
use crate::view::step_names::StepNames;
use crate::view::{ImportShownView, VERSION};

/// The largest file that is checked for the format of another program: a checkpoint with all items of a large job.
const FOREIGN_BYTES_MAX: u64 = 64 << 20;

/// Loads an exported checkpoint, or the newest checkpoint of an archived run with the signals sent after it.
fn load(file: &Path) -> Result<(Portable, Vec<Signal>), LoadError> {
    let Some(archived) = checkpoint_in(file) else { return Ok((Portable::load(file)?, Vec::new())) };
    let Archived { checkpoint, signals } = archived?;
    let path = file.to_owned();
    let corrupt = |flaw| LoadError::Corrupt { path: path.clone(), flaw };
    let portable = Portable::from_text(&checkpoint).map_err(|flaw| match flaw {
        Flaw::Format { found, supported } => LoadError::Incompatible { path: path.clone(), found, supported },
        flaw => corrupt(flaw),
    });
    Ok((portable?, signals))
}

/// Returns the error for a session or checkpoint of Prodigy; `None` for any other file.
fn foreign(file: &Path) -> Option<Error> {
    let bytes = store_location::read_regular(file, FOREIGN_BYTES_MAX).ok()?;
    waypost_import::prodigy_state(&bytes).map(Error::ForeignState)
}

pub(crate) async fn import(context: &Context, args: ImportCheckpointArgs) -> Result<Exit, Error> {
    let file = args.file.clone().expect("clap requires FILE without a subcommand");
    let (portable, given) = load(&file).map_err(|error| foreign(&file).unwrap_or(Error::Import(error)))?;
    let workflow = workflow_of(&portable, &file)?;
    if args.show {
        return show(context, &portable, &workflow);
    }
    let reference = portable.reference();
    on_main(&StepNames::default(), &reference, "cannot start from", || of_main(&reference))?;
    if !args.trust {
        let steps = match workflow.body().steps().len() {
            1 => "1 step".to_owned(),
            count => format!("{count} steps"),
        };
        return Err(Error::NotTrusted { file, steps });
    }
    let frozen = portable.run().record().clone();
    let newest = portable.children().iter().chain([portable.checkpoint()]);
    report_given(context, &frozen.run, &given, newest);
    let params = Params::resolve(&workflow, portable.checkpoint(), &frozen, &args.params)?;
    let begin = Begin { workflow: &workflow, at: portable.checkpoint(), work: None };
    if let Some(ReadParam { step, param, .. }) = params.read_before(&begin) {
        context
            .output
            .warn(&format!("step {step} read another value of param `{param}`, and does not rerun"));
    }
    let id = args.id.as_deref().map(RunId::new).transpose().map_err(Error::from_name)?;
    let base = base_folder(&args)?;
    let store = context.store(None, Access::Create)?;
    if args.queue && store.queue().is_none() {
        return Err(needs::no_queue("queue a run in", store.as_ref()));
    }
    let run = id_of(store.as_ref(), id, &workflow).await?;
    // The bash setting is determined again, on this machine.
    let local = Local::detect()?;
    let mut labels = frozen.labels.clone();
    labels.extend(args.labels.iter().cloned());
    let shape = shape_of(&workflow, local.parallel)?;
    let mut settings = environment::settings(serde_json::json!({ environment::BASH: local.has_bash }));
    if args.queue || frozen.settings.contains_key(SUBMISSION) {
        let kept = [SUBMISSION, FILES, needs::BASE].into_iter();
        settings.extend(kept.filter_map(|name| Some((name.to_owned(), frozen.settings.get(name)?.clone()))));
        needs::prepare(&mut settings, &workflow);
    }
    let record = RunRecord {
        run: run.clone(),
        definition: shape.definition(Some(workflow.text().to_owned())),
        // The path of the workflow file belongs to the other machine.
        path: None,
        base: recorded_path(store.as_ref(), &base)?,
        params: params.now().clone(),
        env: declared_env(&workflow, &local.environment),
        labels,
        settings,
        parent: None,
        tool: concat!("waypost ", env!("CARGO_PKG_VERSION")).to_owned(),
        actor: local.actor(),
        created_at: context.now(),
        ..frozen
    };
    let told = SessionReport {
        run: run.clone(),
        file: None,
        store_words: context.lasting_store_words(),
        until: None,
        report: store.folder(&run).map(|folder| folder.join(REPORT)),
    };
    let timeout = workflow.timeout();
    let mut options = environment::session_options(&workflow);
    let program = WorkflowProgram::new(workflow, local.of_run(run.clone(), base, Arc::clone(&store)))?;
    let session = Session::begin(context, timeout)?;
    options.stop = session.stop.clone();
    if args.queue {
        // The run is created, and stops before its first step.
        options.stop.stop(StopLevel::Graceful, "import");
    } else if portable.blobs().contains_key(FILES_BLOB) {
        context.output.warn(
            "the steps run in this folder, and not with the included files; `--queue` leaves the run to workers",
        );
    }
    let start = params.start(&program, &record, (options.clone(), None), None)?;
    let from = portable.reference();
    let name = crate::output::shown(&record.workflow);
    session.progress.head(format!("Run {run} of workflow {name}, from the exported checkpoint {from}"));
    let engine = session.engine(store, &program);
    let outcome = session.watch(engine.import_program(&program, &portable, record, start)).await;
    let hint = "restore the evidence in this folder, or name the right one with `--dir`, and import again"
        .to_owned();
    let outcome = outcome.map_err(|error| of_evidence_there(error, &from, "an import", hint))?;
    if args.queue && !is_over(outcome.status) {
        return requeue(context, engine.store().as_ref(), &run).await;
    }
    let outcome = session.wait_out(&engine, &program, outcome, &options, args.wait).await?;
    session.conclude(&engine, &program, &outcome, &told).await
}

fn workflow_of(portable: &Portable, file: &Path) -> Result<Workflow, Error> {
    let record = portable.run().record();
    let Some(text) = &portable.definition().text else {
        return Err(Error::usage(
            format!(
                "cannot use run {} in {}: it was not created from a workflow file",
                record.run,
                file.display()
            ),
            "resume the run with the program that created it",
        ));
    };
    let path = PathBuf::from(format!("{}.yaml", record.workflow));
    Workflow::parse(text, &path).map_err(|error| Error::File(Box::new(error)))
}

fn show(context: &Context, portable: &Portable, workflow: &Workflow) -> Result<Exit, Error> {
    if context.output.json {
        context.output.document(&ImportShownView {
            v: VERSION,
            checkpoint: portable.reference().to_string(),
            workflow: workflow.name().to_owned(),
            steps: workflow.steps().iter().map(|step| step.id.clone()).collect(),
            text: workflow.text().to_owned(),
        })?;
        return Ok(Exit::Done);
    }
    // Unchanged, except for terminal control characters.
    context.output.answer(&crate::output::shown_lines(workflow.text()))?;
    context.output.note(&format!("Workflow at checkpoint {}.", portable.reference()));
    Ok(Exit::Done)
}

fn base_folder(args: &ImportCheckpointArgs) -> Result<PathBuf, Error> {
    let folder = args.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let base = folder.canonicalize().map_err(|source| Error::Unreadable { path: folder.clone(), source })?;
    match base.is_dir() {
        true => Ok(base),
        false => {
            Err(Error::usage(format!("{} is not a folder", folder.display()), "name a folder with `--dir`"))
        }
    }
}
