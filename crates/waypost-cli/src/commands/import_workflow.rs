//! `waypost import workflow`: converts a Prodigy workflow, and reports the parts that could not be converted.

use std::fs;
use std::io;
use std::path::Path;

use waypost_import::{Imported, Note};
use waypost_workflow::file::FILE_BYTES_MAX;

use super::Context;
use super::new::write_new;
use crate::cli::ImportWorkflowArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::format::text::quoted;
use crate::output::shown;
use crate::store_location::{self};
use crate::view::{ImportedView, NoteView, VERSION};

#[expect(clippy::unused_async, reason = "every command is asked in the same way")]
pub(crate) async fn import_workflow(context: &Context, args: &ImportWorkflowArgs) -> Result<Exit, Error> {
    if let Some(out) = &args.out
        && !args.force
        && out.symlink_metadata().is_ok()
    {
        return Err(is_there(out));
    }
    let bytes = store_location::read_regular(&args.file, FILE_BYTES_MAX as u64)?;
    let imported = waypost_import::prodigy(&bytes, &args.file).map_err(Error::from_import)?;
    match &args.out {
        Some(out) if args.force => replace(out, &imported.text)?,
        Some(out) => write_new(out, &imported.text)?,
        None => {}
    }
    tell(context, args, &imported)?;
    Ok(Exit::Done)
}

fn tell(context: &Context, args: &ImportWorkflowArgs, imported: &Imported) -> Result<(), Error> {
    let from = args.file.display().to_string();
    for note in &imported.notes {
        let (place, line, key) = (shown(&from), note.line, shown(&note.key));
        let (message, help) = (shown(&note.message), shown(&note.help));
        let also = match note.also.as_slice() {
            [] => String::new(),
            [line] => format!("; also line {line}"),
            lines => {
                format!("; also lines {}", lines.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
            }
        };
        context.output.note(&format!("{place}:{line}: {key}: {message} ({help}){also}"));
    }
    let out = args.out.as_ref().map(|out| out.display().to_string());
    let steps: Vec<String> = imported.workflow.steps().iter().map(|step| step.id.clone()).collect();
    if context.output.json {
        let view = |note: &Note| NoteView {
            line: note.line,
            also: note.also.clone(),
            key: note.key.clone(),
            message: note.message.clone(),
            help: note.help.clone(),
        };
        return Ok(context.output.document(&ImportedView {
            v: VERSION,
            text: out.is_none().then(|| imported.text.clone()),
            file: out,
            workflow: imported.workflow.name().to_owned(),
            from,
            steps,
            notes: imported.notes.iter().map(view).collect(),
        })?);
    }
    let Some(out) = out else { return Ok(context.output.answer(&imported.text)?) };
    let count = if steps.len() == 1 { "1 step".to_owned() } else { format!("{} steps", steps.len()) };
    let text = format!(
        "Created {}, with {count}: {}.\nRun with: waypost run {}",
        shown(&out),
        steps.join(", "),
        quoted(&shown(&out))
    );
    Ok(context.output.done(&text)?)
}

fn is_there(file: &Path) -> Error {
    Error::usage(
        format!("{} already exists", file.display()),
        "name another file with `-o`, or replace the file with `--force`",
    )
}

/// Writes a file atomically, replacing an existing one.
fn replace(file: &Path, text: &str) -> Result<(), Error> {
    store_location::refuse_no_folder(file)?;
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
