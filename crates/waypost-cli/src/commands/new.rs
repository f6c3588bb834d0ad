//! `waypost new`: creates a first workflow file from a few answers.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use waypost_workflow::file::Workflow;

use super::Context;
use crate::cli::NewArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::format::text::quoted;
use crate::output::shown;
use crate::store_location::{self};
use crate::view::{NewView, VERSION};

/// Most commands in the dialogue; more can be added to the file.
const COMMANDS_MAX: usize = 20;

#[expect(clippy::unused_async, reason = "every command is asked in the same way")]
pub(crate) async fn new(context: &Context, args: NewArgs) -> Result<Exit, Error> {
    if args.file.symlink_metadata().is_ok() {
        return Err(is_there(&args.file));
    }
    let folder = || {
        let here = args.file.canonicalize().ok().or_else(|| std::path::absolute(&args.file).ok());
        here.and_then(|file| Some(file.parent()?.file_name()?.to_string_lossy().into_owned()))
    };
    let name = args.name.clone().or_else(folder).unwrap_or_else(|| "workflow".to_owned());
    let asks = context.output.can_ask() && !context.output.json && !context.output.quiet;
    let (name, commands) =
        if asks && args.name.is_none() { ask(context, &name)? } else { (name, Vec::new()) };
    let text = begun(&args.file, &name, &commands);
    // Run `check` before anything is written.
    let workflow = Workflow::parse(&text, &args.file).map_err(|error| Error::File(Box::new(error)))?;
    write_new(&args.file, &text)?;
    tell(context, &args, &workflow)?;
    Ok(Exit::Done)
}

fn tell(context: &Context, args: &NewArgs, workflow: &Workflow) -> Result<(), Error> {
    let file = args.file.display().to_string();
    if context.output.json {
        return Ok(context.output.document(&NewView {
            v: VERSION,
            file,
            workflow: workflow.name().to_owned(),
            steps: workflow.steps().iter().map(|step| step.id.clone()).collect(),
        })?);
    }
    let steps: Vec<&str> = workflow.steps().iter().map(|step| step.id.as_str()).collect();
    let count = if steps.len() == 1 { "1 step".to_owned() } else { format!("{} steps", steps.len()) };
    let text = format!(
        "Created {}, with {count}: {}.\nRun with: waypost run {}",
        shown(&file),
        steps.join(", "),
        quoted(&shown(&file))
    );
    Ok(context.output.done(&text)?)
}

fn is_there(file: &Path) -> Error {
    Error::usage(format!("{} already exists", file.display()), "name another file: `waypost new FILE`")
}

pub(super) fn write_new(file: &Path, text: &str) -> Result<(), Error> {
    store_location::refuse_no_folder(file)?;
    let made = fs::OpenOptions::new().write(true).create_new(true).open(file);
    let failed = |source: io::Error| Error::Create { path: file.to_owned(), source };
    match made {
        Ok(mut made) => made.write_all(text.as_bytes()).map_err(|source| {
            // Remove the partial file; a failed removal is harmless.
            let _ = fs::remove_file(file);
            failed(source)
        }),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(is_there(file)),
        Err(error) => Err(failed(error)),
    }
}

/// Asks for a name and for commands.
fn ask(context: &Context, name: &str) -> Result<(String, Vec<String>), Error> {
    let output = &context.output;
    let answer = output.ask(&format!("Name of the workflow [{}]: ", shown(name)))?;
    let name = answer.filter(|answer| !answer.is_empty()).unwrap_or_else(|| name.to_owned());
    output.aside("Commands, one per line; an empty line ends the list, no command creates an example.");
    let mut commands = Vec::new();
    while commands.len() < COMMANDS_MAX {
        match output.ask(&format!("{}: ", commands.len() + 1))? {
            Some(command) if !command.is_empty() => commands.push(command),
            _ => break,
        }
    }
    Ok((name, commands))
}

/// Returns the text of an initial workflow file.
fn begun(file: &Path, name: &str, commands: &[String]) -> String {
    let file: PathBuf = file.file_name().map_or_else(|| file.to_owned(), PathBuf::from);
    let file = quoted(&shown(&file.to_string_lossy()));
    let head = format!(
        "# A workflow: a list of steps, with a durable checkpoint after each.\n\
         #\n\
         #   waypost check {file}    checks this file, and runs nothing\n\
         #   waypost run {file}      runs the steps\n\
         #   waypost resume          continues after a failure, a kill or a power cut; finished steps do not rerun\n\
         #   waypost show            shows the progress\n\
         version: 1\n\
         name: {}\n",
        scalar(name)
    );
    if commands.is_empty() {
        return head + EXAMPLE;
    }
    let steps = commands.iter().enumerate().map(|(index, command)| {
        format!(
            "\n  - id: step-{}\n    run: {}\n",
            index + 1,
            scalar(&command.replace("${{", "${{ '${{' }}"))
        )
    });
    format!("{head}{STEPS}{}", steps.collect::<String>())
}

const STEPS: &str = r#"
# Steps run in sequence. A step may also have `timeout: 10m`, `retry: 3`, `env`, `dir`, `if`, `needs` and more.
steps:
"#;

const EXAMPLE: &str = r#"
# Parameters of a run: waypost run -p who=you
params:
  who: { type: string, default: world }

# Steps run in sequence, unless a step has `needs`.
steps:
  - id: prepare
    run: |
      mkdir -p out
      # An output, for later steps; part of the checkpoint.
      echo "greeting=Hello" >> "$WAYPOST_OUTPUT"

  - id: greet
    # Pass values as variables: pasted into the command, the shell would run their text as code.
    env:
      GREETING: "${{ steps.prepare.outputs.greeting }}"
      WHO: "${{ params.who }}"
    run: echo "$GREETING, $WHO" > out/greeting.txt
    # Two retries after a failure; each attempt is limited to one minute.
    retry: 2
    timeout: 1m

  - id: publish
    if: params.who != "-"
    run: cat out/greeting.txt
"#;

/// Writes a text as one value of YAML: a string of JSON is one of YAML, too.
fn scalar(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
