//! Workflow file: reading, checking, and the checked form for all other modules. Configuration files use the
//! same reader.
//!
//! ```text
//! text -- node --> tree with places -- read, step, settings --> drafts -- graph, names --> Workflow
//!                                \________________ problems, all at once ________________/
//! ```
//!
//! Owns the keys of the language, with types, limits and error messages. Does not know how steps are run or
//! stored.

mod about;
mod align;
mod body;
mod budget;
mod checker;
mod child;
mod config;
mod document;
mod evidence;
mod expectation;
mod fields;
mod fingerprint;
mod foreach;
mod graph;
mod hooks;
mod matrix;
mod names;
mod node;
mod parallel;
mod params;
mod problem;
mod read;
mod reads;
mod remote;
mod renamed;
mod repeat;
mod schema;
mod secrets;
mod settings;
mod step;
mod store;
mod syntax;
mod units;
mod work;
mod workflow;

use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};
use waypost::disk::check_regular;

pub use self::about::About;
pub use self::body::STEPS_MAX;
pub use self::budget::Budget;
pub use self::child::{ChildWorkflow, separated};
pub use self::config::{AgentCommand, ColorChoice, ConfigFile, Setting};
pub use self::document::Document;
pub(crate) use self::evidence::variables_in;
pub use self::evidence::{ClaimTemplate, Evidence, Expected, KindOfEvidence, Language};
pub(crate) use self::foreach::ITEM_INDEX;
pub use self::foreach::{Distinct, Foreach, ITEMS_MAX, ItemSource, OnItemFailure};
pub use self::hooks::{FAILED, Hook, HookOn, SUCCEEDED};
pub use self::matrix::Matrix;
pub(crate) use self::matrix::MatrixError;
pub use self::node::Node;
pub use self::parallel::{PARALLEL_MAX, Parallel};
pub use self::params::{GivenParams, PARAM_BYTES_MAX, Param, ParamKind, ParamProblem, ParamsError, Pattern};
pub use self::problem::{FileError, PROBLEMS_MAX, Problem, Related, Warning};
pub(crate) use self::repeat::ITERATION;
pub use self::repeat::Repeat;
pub use self::schema::schema;
pub use self::secrets::read_secret;
pub use self::settings::{Checkpoints, Durability, OnCheckpointFailure};
pub use self::step::{STEP_ID_BYTES_MAX, is_step_id};
pub use self::store::NamedStore;
pub use self::units::{DURATION_MAX, UnitError, parse_duration};
pub use self::work::{Agent, AnswerKind, Approval, Work};
pub use self::workflow::{
    Backoff, Body, Mode, OutputSource, Retry, RetryCause, Shell, Step, Tolerance, Workflow,
};

use self::checker::Checker;
use self::child::Family;
use self::node::Kind;
use self::problem::{Problems, SourceText};

/// Largest workflow or params file.
///
/// Ten thousand steps of 400 bytes, the most allowed, fit; a larger file is not a workflow.
pub const FILE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Why a file cannot be read as a workflow.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be read; its content is unknown.
    #[error("cannot read `{path}`")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The file has errors.
    #[error("{0}")]
    File(FileError),
}

impl Workflow {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// - [`ReadError::Io`]: the file cannot be read.
    /// - [`ReadError::File`]: all errors in the file.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        parse(&read_regular(path)?, path, Family::on_disk(path)).map_err(ReadError::File)
    }

    /// Checks the bytes of a file as [`read`](Self::read) does; included files are read from the folder of `path`.
    ///
    /// # Errors
    /// All errors in the file and its included files.
    pub fn read_bytes(bytes: &[u8], path: &Path) -> Result<Self, FileError> {
        parse(bytes, path, Family::on_disk(path))
    }

    /// Checks the bytes of a file; `path` is used in messages and for the workflow's name only.
    ///
    /// Included files must be part of the [`text`](Self::text): nothing is read from the disk.
    ///
    /// # Errors
    /// All errors in the file.
    pub fn parse_bytes(bytes: &[u8], path: &Path) -> Result<Self, FileError> {
        parse(bytes, path, Family::default())
    }

    /// Checks the text of a file, as [`parse_bytes`](Self::parse_bytes) does.
    ///
    /// # Errors
    /// All errors in the file.
    pub fn parse(text: &str, path: &Path) -> Result<Self, FileError> {
        Self::parse_bytes(text.as_bytes(), path)
    }
}

fn parse(bytes: &[u8], path: &Path, mut family: Family) -> Result<Workflow, FileError> {
    let whole = source(bytes, path)?;
    let own = family.separate(&whole.text);
    family.first = own.len();
    let source = match own.len() == whole.text.len() {
        true => whole,
        false => SourceText::new(path.to_owned(), Arc::from(own)),
    };
    let (workflow, family) = checked(&source, family);
    let mut workflow = workflow?;
    workflow.text = family.together(&workflow.text);
    Ok(workflow)
}

/// Reads one file, and its included files.
fn checked(source: &SourceText, mut family: Family) -> (Result<Workflow, FileError>, Family) {
    let (root, problems) = match node::read(source) {
        Ok(read) => read,
        Err(problem) => return (Err(FileError::new(source, Problems::from(*problem))), family),
    };
    let mut checker = Checker::new(source, problems);
    let outer = std::mem::take(&mut family.wrong);
    checker.family = family;
    let workflow = read::workflow(&mut checker, &root);
    let Checker { problems, warnings, mut family, .. } = checker;
    let result = match workflow {
        Some(mut workflow) if problems.is_empty() => {
            (workflow.warnings, _) = warnings.finish(source);
            Ok(workflow)
        }
        _ => Err(child::error(source, problems, &mut family)),
    };
    family.wrong = outer;
    (result, family)
}

/// Reads a params file: a map in YAML or JSON.
///
/// # Errors
/// As [`Workflow::read`].
pub fn read_params_file(path: &Path) -> Result<Map<String, Value>, ReadError> {
    parse_params(&read_bytes(path)?, path).map_err(ReadError::File)
}

/// As [`read_params_file`], from bytes.
///
/// # Errors
/// All errors in the file.
pub fn parse_params(bytes: &[u8], path: &Path) -> Result<Map<String, Value>, FileError> {
    let source = source(bytes, path)?;
    let (root, mut problems) =
        node::read(&source).map_err(|problem| FileError::new(&source, Problems::from(*problem)))?;
    match (&root.kind, problems.is_empty(), root.to_json()) {
        (Kind::Map(_), true, Value::Object(params)) => Ok(params),
        (Kind::Null, true, _) => Ok(Map::new()),
        (Kind::Map(_) | Kind::Null, ..) => Err(FileError::new(&source, problems)),
        _ => {
            let message = format!("a params file is a map, not {}", root.described());
            problems.push(source.problem(&root.span, message).help("write `name: value`"));
            Err(FileError::new(&source, problems))
        }
    }
}

/// Reads the bytes of a file, at most one more than [`FILE_BYTES_MAX`].
fn read_bytes(path: &Path) -> Result<Vec<u8>, ReadError> {
    let open = std::fs::File::open(path);
    bytes_of(path, open.map_err(|source| ReadError::Io { path: path.to_owned(), source })?)
}

/// Reads a workflow, which must be a regular file. Opening a pipe would wait for its other end, and a resume
/// cannot read a pipe again.
fn read_regular(path: &Path) -> Result<Vec<u8>, ReadError> {
    let failed = |source| ReadError::Io { path: path.to_owned(), source };
    let check = |metadata: &std::fs::Metadata| match metadata.is_dir() {
        true => Ok(()),
        false => check_regular(metadata),
    };
    std::fs::metadata(path).and_then(|metadata| check(&metadata)).map_err(failed)?;
    // The file may have been replaced since.
    let mut options = std::fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path).map_err(failed)?;
    file.metadata().and_then(|metadata| check(&metadata)).map_err(failed)?;
    bytes_of(path, file)
}

fn bytes_of(path: &Path, file: std::fs::File) -> Result<Vec<u8>, ReadError> {
    let read = || {
        if file.metadata()?.is_dir() {
            return Err(std::io::Error::from(std::io::ErrorKind::IsADirectory));
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|source| ReadError::Io { path: path.to_owned(), source })
}

fn source(bytes: &[u8], path: &Path) -> Result<SourceText, FileError> {
    let refused = |text: &str, at: usize, message: String, help: &str| {
        let source = SourceText::new(path.to_owned(), Arc::from(text));
        let problem = source.problem(&(at..at), message).help(help);
        FileError::new(&source, Problems::from(problem))
    };
    if bytes.len() > FILE_BYTES_MAX {
        let message = format!("the file is larger than {} MiB", FILE_BYTES_MAX / (1024 * 1024));
        return Err(refused("", 0, message, "move data into separate files, and reference their paths"));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let is_binary = bytes.contains(&0);
    match std::str::from_utf8(bytes) {
        Ok(text) if !is_binary => Ok(SourceText::new(path.to_owned(), Arc::from(text))),
        _ if is_binary => {
            Err(refused("", 0, "the file is not UTF-8 text".to_owned(), "save the workflow as UTF-8"))
        }
        Ok(_) => unreachable!("text without NUL was handled above"),
        Err(error) => {
            let valid = error.valid_up_to();
            let text = String::from_utf8_lossy(bytes);
            Err(refused(
                &text,
                valid,
                "the file is not valid UTF-8 from here on".to_owned(),
                "save the file as UTF-8",
            ))
        }
    }
}
