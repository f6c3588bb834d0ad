//! Reads the workflow of a command: a file, or stdin.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use waypost_workflow::file::{ReadError, Workflow};

use crate::cli::is_stdin;
use crate::error::Error;

/// Name of a workflow on stdin, in messages and as the name of the workflow.
const STDIN: &str = "stdin";
/// Most bytes read from stdin: above the limit of a workflow file.
const STDIN_BYTES_MAX: u64 = 16 << 20;

/// Reads a workflow file, or the workflow on stdin with the current folder as its folder.
pub(crate) fn read(file: &Path) -> Result<Workflow, Error> {
    if !is_stdin(file) {
        return Ok(Workflow::read(file)?);
    }
    let (path, mut bytes) = (PathBuf::from(STDIN), Vec::new());
    let read = std::io::stdin().lock().take(STDIN_BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(|source| Error::Unreadable { path: path.clone(), source })?;
    Ok(Workflow::read_bytes(&bytes, &path).map_err(ReadError::File)?)
}
