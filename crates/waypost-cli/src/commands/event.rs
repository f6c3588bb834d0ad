//! `waypost event`: adds an event to the run, from inside one of its steps.

use std::collections::BTreeMap;
use std::path::PathBuf;

use waypost::store::StoreError;
use waypost_workflow::program::{EVENTS, EventError, add_event};

use super::Context;
use crate::cli::EventArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::view::{EventAddedView, VERSION};

#[expect(clippy::unused_async, reason = "every command is asked in the same way")]
pub(crate) async fn event(context: &Context, args: EventArgs) -> Result<Exit, Error> {
    let Some(file) = std::env::var_os(EVENTS).filter(|file| !file.is_empty()).map(PathBuf::from) else {
        return Err(Error::usage(
            format!("cannot add an event outside a step: `{EVENTS}` is not set"),
            "`waypost event` works only inside steps; `waypost signal RUN NAME` sends a signal from outside",
        ));
    };
    let mut data = BTreeMap::new();
    for (key, value) in args.data {
        if data.insert(key.clone(), value).is_some() {
            return Err(Error::usage(format!("`{key}` is given twice"), "give each key once"));
        }
    }
    add_event(&file, &args.name, data.clone()).map_err(|error| not_added(error, file))?;
    // No other output: the printed text of a step may be its output.
    if context.output.json {
        context.output.document(&EventAddedView { v: VERSION, event: args.name, data })?;
    }
    Ok(Exit::Done)
}

fn not_added(error: EventError, file: PathBuf) -> Error {
    match error {
        EventError::Io(source) => {
            StoreError::Io { action: "write", place: file.display().to_string(), source }.into()
        }
        EventError::Full => Error::usage(error.to_string(), "write long or frequent text to the log"),
        error => Error::Usage { message: error.to_string(), hint: None },
    }
}
