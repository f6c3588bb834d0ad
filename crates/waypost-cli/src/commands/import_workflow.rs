//! `waypost import workflow`: converts a Prodigy workflow, and reports the parts that could not be converted.

use std::fs;
use std::io;
use std::path::Path;

use waypost_workflow::file::{Document, FILE_BYTES_MAX, Workflow};

use super::Context;
use super::new::write_new;
use crate::cli::ImportWorkflowArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::shown;
use crate::place::{self, quoted};
use crate::prodigy::{self, Imported};
use crate::view::{ImportedView, NoteView, VERSION};

#[expect(clippy::unused_async, reason = "every command is asked in the same way")]
pub(crate) async fn import_workflow(context: &Context, args: &ImportWorkflowArgs) -> Result<Exit, Error> {
    if let Some(out) = &args.out
        && !args.force
        && out.symlink_metadata().is_ok()
    {
        return Err(is_there(out));
    }
    let bytes = place::read_regular(&args.file, FILE_BYTES_MAX as u64)?;
    let foreign = |error| Error::Foreign(Box::new(error));
    let document = Document::parse(&bytes, &args.file).map_err(foreign)?;
    let imported =
        prodigy::import(&document, &args.file.display().to_string(), &stem(&args.file)).map_err(foreign)?;
    // An invalid result is a bug of the import, and is discarded.
    let path = args.out.as_deref().unwrap_or(&args.file);
    let checked = Workflow::parse(&imported.text, path);
    let workflow =
        checked.map_err(|error| Error::Made { made_of: args.file.clone(), error: Box::new(error) })?;
    match &args.out {
        Some(out) if args.force => replace(out, &imported.text)?,
        Some(out) => write_new(out, &imported.text)?,
        None => {}
    }
    tell(context, args, &imported, &workflow)?;
    Ok(Exit::Done)
}

fn tell(
    context: &Context,
    args: &ImportWorkflowArgs,
    imported: &Imported,
    workflow: &Workflow,
) -> Result<(), Error> {
    let from = args.file.display().to_string();
    for note in &imported.notes {
        let (place, line, key) = (shown(&from), note.line, shown(&note.key));
        let (message, help) = (shown(&note.message), shown(&note.help));
        context.output.note(&format!("{place}:{line}: {key}: {message} ({help})"));
    }
    let out = args.out.as_ref().map(|out| out.display().to_string());
    let steps: Vec<String> = workflow.steps().iter().map(|step| step.id.clone()).collect();
    if context.output.json {
        let view = |note: &prodigy::Note| NoteView {
            line: note.line,
            key: note.key.clone(),
            message: note.message.clone(),
            help: note.help.clone(),
        };
        return Ok(context.output.document(&ImportedView {
            v: VERSION,
            text: out.is_none().then(|| imported.text.clone()),
            file: out,
            workflow: workflow.name().to_owned(),
            from,
            steps,
            notes: imported.notes.iter().map(view).collect(),
        })?);
    }
    let Some(out) = out else { return Ok(context.output.answer(&imported.text)?) };
    let count = if steps.len() == 1 { "1 step".to_owned() } else { format!("{} steps", steps.len()) };
    let text = format!(
        "Made {}, with {count}: {}.\nRun it with: waypost run {}",
        shown(&out),
        steps.join(", "),
        quoted(&shown(&out))
    );
    Ok(context.output.answer(&text)?)
}

fn is_there(file: &Path) -> Error {
    Error::usage(
        format!("{} is there already, and is not overwritten", file.display()),
        "name another file with `-o`, or say `--force`",
    )
}

/// Writes a file atomically, replacing an existing one.
fn replace(file: &Path, text: &str) -> Result<(), Error> {
    place::refuse_no_folder(file)?;
    let failed = |source: io::Error| Error::Create { path: file.to_owned(), source };
    let mut beside = file.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    let beside = Path::new(&beside);
    fs::write(beside, text).and_then(|()| fs::rename(beside, file)).map_err(|source| {
        // Remove the partial file; a failed removal is harmless.
        let _ = fs::remove_file(beside);
        failed(source)
    })
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "workflow".to_owned(), |stem| stem.to_string_lossy().into_owned())
}
