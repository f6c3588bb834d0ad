//! Configuration file: defaults for every run of a project or of a user.
//!
//! Read as strictly as a workflow file, with the same tree and the same checks. Unknown keys, duplicate keys
//! and values of the wrong type are reported with the place in the file. Deliberately does not know the
//! precedence of several files.

use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use super::checker::Checker;
use super::fields::{Fields, KeySet};
use super::node::{self, Kind, Node};
use super::parallel::PARALLEL_MAX;
use super::problem::{FileError, Problems, SourceText};
use super::step::is_step_id;
use super::units::parse_duration;
use super::{ReadError, read_bytes, source};

/// Most words of a command: far more than a program with options needs.
const COMMAND_WORDS_MAX: usize = 256;

static CONFIG: KeySet = KeySet {
    what: "the configuration",
    keys: &["store", "color", "wait", "max_parallel", "agents"],
    later: &[],
    elsewhere: &[
        ("steps", "a workflow file"),
        ("run", "a step of a workflow file"),
        ("env", "a workflow file"),
        ("secrets", "a workflow file"),
        ("params", "a workflow file"),
        ("labels", "a workflow file"),
        ("defaults", "a workflow file"),
        ("timeout", "a workflow file"),
        ("retry", "a workflow file"),
        ("checkpoints", "a workflow file"),
    ],
};

/// Valid configuration file.
#[derive(Debug)]
pub struct ConfigFile {
    source: SourceText,
    store: Option<Setting<String>>,
    color: Option<Setting<ColorChoice>>,
    wait: Option<Setting<Duration>>,
    max_parallel: Option<Setting<NonZeroUsize>>,
    agents: Vec<(String, Setting<AgentCommand>)>,
}

/// Value of a configuration file, with its place.
#[derive(Debug, Clone)]
pub struct Setting<T> {
    /// Value.
    pub value: T,
    /// Line, from 1.
    pub line: usize,
    span: Range<usize>,
}

impl<T> Setting<T> {
    pub(super) fn of(checker: &Checker<'_>, node: &Node, value: T) -> Self {
        Self { value, line: checker.source.position(node.span.start).0, span: node.span.clone() }
    }

    pub(super) fn span(&self) -> &Range<usize> {
        &self.span
    }
}

/// When output is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColorChoice {
    /// On a terminal with colours.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl ColorChoice {
    const ALL: [Self; 3] = [Self::Auto, Self::Always, Self::Never];

    /// Returns the word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

/// Command template of an agent. The program fills in `${{ }}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentCommand {
    /// Text for the shell.
    Shell(String),
    /// Program with arguments; never empty.
    Words(Vec<String>),
}

impl AgentCommand {
    /// Returns the command for display, as written.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Shell(text) => text.clone(),
            Self::Words(words) => {
                let words = words.iter().map(|word| format!("{word:?}"));
                format!("[{}]", words.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

impl ConfigFile {
    /// Reads and checks the file at `path`; `None` if the file does not exist.
    ///
    /// # Errors
    /// - [`ReadError::Io`]: the file exists but cannot be read.
    /// - [`ReadError::File`]: all errors in the file.
    pub fn read(path: &Path) -> Result<Option<Self>, ReadError> {
        match read_bytes(path) {
            Ok(bytes) => Self::parse(&bytes, path).map(Some).map_err(ReadError::File),
            Err(ReadError::Io { source, .. })
                if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks the bytes of a file; `path` is used in messages only.
    ///
    /// # Errors
    /// All errors in the file.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, FileError> {
        let source = source(bytes, path)?;
        let (root, problems) =
            node::read(&source).map_err(|problem| FileError::new(&source, Problems::from(*problem)))?;
        let mut checker = Checker::new(&source, problems);
        let fields = match root.kind {
            // Comments only.
            Kind::Null => None,
            _ => Fields::of(&mut checker, &root, &CONFIG),
        };
        let read = fields.map(|fields| values(&mut checker, &fields)).unwrap_or_default();
        let problems = checker.problems;
        if !problems.is_empty() {
            return Err(FileError::new(&source, problems));
        }
        let Values { store, color, wait, max_parallel, agents } = read;
        Ok(Self { source, store, color, wait, max_parallel, agents })
    }

    /// Returns the path of the file, as given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.source.path
    }

    /// Returns the address of the store, as written.
    #[must_use]
    pub fn store(&self) -> Option<&Setting<String>> {
        self.store.as_ref()
    }

    /// Returns when output is coloured.
    #[must_use]
    pub fn color(&self) -> Option<&Setting<ColorChoice>> {
        self.color.as_ref()
    }

    /// Returns how long a command waits while a run has only waiting steps.
    #[must_use]
    pub fn wait(&self) -> Option<&Setting<Duration>> {
        self.wait.as_ref()
    }

    /// Returns the default parallel limit of graphs.
    #[must_use]
    pub fn max_parallel(&self) -> Option<&Setting<NonZeroUsize>> {
        self.max_parallel.as_ref()
    }

    /// Returns the command templates of agents, by name, in the order of the file.
    #[must_use]
    pub fn agents(&self) -> &[(String, Setting<AgentCommand>)] {
        &self.agents
    }

    /// Returns the error of a value that is invalid for a reason outside the file.
    #[must_use]
    pub fn wrong<T>(&self, setting: &Setting<T>, message: impl Into<String>, help: &str) -> FileError {
        let problem = self.source.problem(&setting.span, message).help(help);
        FileError::new(&self.source, Problems::from(problem))
    }
}

#[derive(Default)]
struct Values {
    store: Option<Setting<String>>,
    color: Option<Setting<ColorChoice>>,
    wait: Option<Setting<Duration>>,
    max_parallel: Option<Setting<NonZeroUsize>>,
    agents: Vec<(String, Setting<AgentCommand>)>,
}

fn values(checker: &mut Checker<'_>, fields: &Fields<'_>) -> Values {
    Values {
        store: fields
            .get("store")
            .and_then(|node| checker.filled_text(node, "store").map(|value| set(checker, node, value))),
        color: fields
            .get("color")
            .and_then(|node| color(checker, node).map(|value| set(checker, node, value))),
        wait: fields.get("wait").and_then(|node| wait(checker, node).map(|value| set(checker, node, value))),
        max_parallel: fields.get("max_parallel").and_then(|node| {
            let count = checker.integer(node, "max_parallel", 1..=PARALLEL_MAX)?;
            let count = usize::try_from(count).ok().and_then(NonZeroUsize::new)?;
            Some(set(checker, node, count))
        }),
        agents: fields.get("agents").map(|node| agents(checker, node)).unwrap_or_default(),
    }
}

fn set<T>(checker: &Checker<'_>, node: &Node, value: T) -> Setting<T> {
    Setting::of(checker, node, value)
}

fn color(checker: &mut Checker<'_>, node: &Node) -> Option<ColorChoice> {
    let word = checker.word(node, "color", &ColorChoice::ALL.map(ColorChoice::as_str))?;
    ColorChoice::ALL.into_iter().find(|choice| choice.as_str() == word)
}

/// Reads a duration; zero is allowed.
fn wait(checker: &mut Checker<'_>, node: &Node) -> Option<Duration> {
    let Some(text) = node.spelled() else {
        checker.mismatch(node, "wait", "a duration", "write a number and a unit: `0s`, `10m`, `1h30m`");
        return None;
    };
    match parse_duration(text) {
        Ok(duration) => Some(duration),
        Err(error) => {
            checker.wrong(node, format!("`wait`: {}", error.message), &error.help);
            None
        }
    }
}

fn agents(checker: &mut Checker<'_>, node: &Node) -> Vec<(String, Setting<AgentCommand>)> {
    let Kind::Map(entries) = &node.kind else {
        checker.mismatch(node, "agents", "a map", "write `agents: { NAME: a command }`");
        return Vec::new();
    };
    let mut agents: Vec<(String, Setting<AgentCommand>)> = Vec::new();
    for (key, value) in entries.iter().filter(|(key, _)| !matches!(key.kind, Kind::List(_) | Kind::Map(_))) {
        let name = key.key_text();
        if !is_step_id(name) {
            let message = format!("`{}` is not a valid agent name", crate::expr::shown(name));
            checker.wrong(
                key,
                message,
                "begin with a letter or `_`, followed by letters, digits, `_` or `-`",
            );
            continue;
        }
        if let Some(command) = command(checker, name, value) {
            agents.push((name.to_owned(), set(checker, value, command)));
        }
    }
    agents
}

fn command(checker: &mut Checker<'_>, name: &str, node: &Node) -> Option<AgentCommand> {
    let what = format!("agents.{name}");
    match &node.kind {
        Kind::Text(text) if text.trim().is_empty() => {
            checker.wrong(node, format!("`{what}` is empty"), "write a command, or remove the key");
            None
        }
        Kind::Text(text) if text.contains("${{") => {
            let message =
                format!("`{what}` cannot contain an expression: the shell would run the prompt as code");
            let help = "a command gets the prompt on stdin; to pass it as an argument, write a list: \
                        `[NAME, -p, \"${{ prompt }}\"]`";
            checker.wrong(node, message, help);
            None
        }
        Kind::Text(_) => word(checker, node, &what).map(AgentCommand::Shell),
        Kind::List(words) if words.is_empty() || words.len() > COMMAND_WORDS_MAX => {
            let message = format!("`{what}` has {} words", words.len());
            checker.wrong(node, message, &format!("write a program and at most {COMMAND_WORDS_MAX} words"));
            None
        }
        Kind::List(words) => {
            let words: Vec<_> = words.iter().map(|node| word(checker, node, &what)).collect();
            words.into_iter().collect::<Option<Vec<_>>>().map(AgentCommand::Words)
        }
        _ => {
            let help = "write a command as text, or as a list of program and arguments";
            checker.mismatch(node, &what, "a command", help);
            None
        }
    }
}

fn word(checker: &mut Checker<'_>, node: &Node, what: &str) -> Option<String> {
    match node.spelled() {
        Some(text) if text.contains('\0') => {
            checker.wrong(node, format!("`{what}` contains a NUL, which commands cannot hold"), "remove it");
            None
        }
        Some(text) => Some(text.to_owned()),
        None => {
            checker.mismatch(node, what, "text", "write text; quote a value that begins with `[` or `{`");
            None
        }
    }
}
