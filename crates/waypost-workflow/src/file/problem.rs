//! Errors in a workflow file, and their display.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Origin, Renderer, Snippet};

/// Most problems in one error; the first hundred are enough to see the cause.
pub const PROBLEMS_MAX: usize = 100;
/// Most problems collected before sorting; a hostile file could have half a million.
const COLLECTED_MAX: usize = 300;
/// Columns of a snippet; longer lines are clipped around the problem.
const SNIPPET_COLUMNS: usize = 120;
/// Bytes of a line for the renderer on each side of the problem; it reads the whole line many times.
const SNIPPET_BYTES_MAX: usize = 4 * 1024;

/// Error with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Column after the last character; for several lines, the end of the first line.
    pub end_column: usize,
    /// Line without its end; for a very long line, the part around the problem.
    pub snippet: String,
    /// Error text: lower case, no full stop.
    pub message: String,
    /// Known word similar to an unknown word.
    pub hint: Option<String>,
    /// Correction.
    pub help: Option<String>,
    /// Related place, with a label.
    pub related: Option<Related>,
    span: Range<usize>,
}

/// Related place of a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Related {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Label of the place.
    pub label: String,
    span: Range<usize>,
}

/// Invalid file: all errors, in the order of the file.
#[derive(Debug, Clone)]
pub struct FileError {
    path: PathBuf,
    problems: Vec<Problem>,
    /// Number of problems beyond [`PROBLEMS_MAX`].
    more: usize,
    text: Arc<str>,
    /// Errors in included files.
    below: Vec<Self>,
}

impl FileError {
    pub(crate) fn new(source: &SourceText, problems: Problems) -> Self {
        let (problems, more) = problems.finish(source);
        Self { path: source.path.clone(), problems, more, text: Arc::clone(&source.text), below: Vec::new() }
    }

    pub(crate) fn with_below(self, below: Vec<Self>) -> Self {
        Self { below, ..self }
    }

    /// Returns the path of the file, as given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the errors of the file without its included files, in order; at most [`PROBLEMS_MAX`].
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the errors of included files.
    #[must_use]
    pub fn below(&self) -> &[Self] {
        &self.below
    }

    /// Returns the errors of the file and its included files, each with the path.
    #[must_use]
    pub fn all_problems(&self) -> Vec<(&Path, &Problem)> {
        let own = self.problems.iter().map(|problem| (self.path.as_path(), problem));
        own.chain(self.below.iter().flat_map(Self::all_problems)).collect()
    }

    /// Returns all problems with snippets, without colour.
    #[must_use]
    pub fn render(&self) -> String {
        self.render_with(&Renderer::plain())
    }

    /// Returns all problems with snippets, with ANSI colours.
    #[must_use]
    pub fn render_styled(&self) -> String {
        self.render_with(&Renderer::styled())
    }

    fn render_with(&self, renderer: &Renderer) -> String {
        let mut out = String::new();
        for problem in &self.problems {
            out.push_str(&render(renderer, Level::ERROR, &self.path, &self.text, problem));
            out.push_str("\n\n");
        }
        if self.more > 0 {
            out.push_str(&format!("and {} more problems\n", self.more));
        }
        for below in &self.below {
            out.push_str(&below.render_with(renderer));
            out.push_str("\n\n");
        }
        out.truncate(out.trim_end().len());
        out
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render())
    }
}

impl std::error::Error for FileError {}

/// Warning of `check` about a valid file.
#[derive(Debug, Clone)]
pub struct Warning<'w> {
    pub(super) file: &'w Path,
    pub(super) text: &'w str,
    pub(super) problem: Cow<'w, Problem>,
}

impl Warning<'_> {
    /// Returns the path of the file, as given.
    #[must_use]
    pub fn file(&self) -> &Path {
        self.file
    }

    /// Returns the text and the place.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Returns the warning with its snippet, without colour.
    #[must_use]
    pub fn render(&self) -> String {
        render(&Renderer::plain(), Level::WARNING, self.file, self.text, &self.problem)
    }
}

/// Returns one problem with its snippet; `level` is error or warning.
fn render(renderer: &Renderer, level: Level<'_>, path: &Path, text: &str, problem: &Problem) -> String {
    let path = path.to_string_lossy();
    let renderer = renderer.clone().term_width(SNIPPET_COLUMNS);
    let message = single_line(&problem.message);
    let mut group = Group::with_title(level.primary_title(message));
    let at = Shown { path: path.as_ref(), text, line: problem.line, column: problem.column };
    group = at.show(group, &problem.span, AnnotationKind::Primary, None);
    if let Some(related) = &problem.related {
        let at = Shown { line: related.line, column: related.column, ..at };
        group = at.show(group, &related.span, AnnotationKind::Context, Some(&related.label));
    }
    if let Some(hint) = &problem.hint {
        group = group.element(Level::HELP.message(format!("did you mean `{}`?", single_line(hint))));
    }
    if let Some(help) = &problem.help {
        group = group.element(Level::HELP.message(single_line(help)));
    }
    renderer.render(&[group])
}

/// Replaces control characters: messages quote the file, and must not send control characters to a terminal.
fn single_line(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        true => text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect(),
        false => text.into(),
    }
}

/// Place with its line of the file.
struct Shown<'a> {
    path: &'a str,
    text: &'a str,
    line: usize,
    column: usize,
}

impl<'a> Shown<'a> {
    /// Adds the place to `group`, with the line of `span` only, so that the renderer does not read the whole
    /// file.
    fn show(
        &self,
        group: Group<'a>,
        span: &Range<usize>,
        kind: AnnotationKind,
        label: Option<&'a str>,
    ) -> Group<'a> {
        let origin = || Origin::path(self.path).line(self.line).char_column(self.column);
        if self.text.is_empty() {
            return group.element(origin());
        }
        let line = line_around(self.text, span.start);
        let end = span.end.min(line.end).max(span.start);
        let window = window(self.text, &line, span.start, end);
        let (start, end) = (span.start - window.start, end.min(window.end) - window.start);
        let is_whole = window.start == line.start;
        let annotation: Annotation<'a> = kind.span(start..end).label(label);
        let snippet = Snippet::source(&self.text[window]).line_start(self.line).annotation(annotation);
        match is_whole {
            true => group.element(snippet.path(self.path)),
            // The renderer counts columns in the snippet, and the start of the line is cut off here.
            false => group.element(origin()).element(snippet),
        }
    }
}

/// Returns the line of byte `at`, without its end.
fn line_around(text: &str, at: usize) -> Range<usize> {
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let end = text[at..].find('\n').map_or(text.len(), |newline| at + newline);
    let end = if text[start..end].ends_with('\r') { end - 1 } else { end };
    start..end.max(at)
}

/// Returns the part of a very long line around the problem.
fn window(text: &str, line: &Range<usize>, start: usize, end: usize) -> Range<usize> {
    let from = match start - line.start > SNIPPET_BYTES_MAX {
        true => floor_boundary(text, start - SNIPPET_BYTES_MAX),
        false => line.start,
    };
    let to = floor_boundary(text, (end + SNIPPET_BYTES_MAX).min(line.end)).max(start);
    from..to
}

/// Returns the character boundary at or before byte `at`.
fn floor_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Text of a file, with the starts of its lines.
#[derive(Debug)]
pub(crate) struct SourceText {
    pub(crate) path: PathBuf,
    pub(crate) text: Arc<str>,
    /// Byte offset of each line's start.
    lines: Vec<usize>,
}

impl SourceText {
    pub(crate) fn new(path: PathBuf, text: Arc<str>) -> Self {
        let starts = text.match_indices('\n').map(|(at, _)| at + 1);
        let lines = std::iter::once(0).chain(starts).collect();
        Self { path, text, lines }
    }

    /// Returns line and column of byte `at`, both from 1.
    pub(crate) fn position(&self, at: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|start| *start <= at);
        let start = self.lines[line - 1];
        (line, self.text[start..at].chars().count() + 1)
    }

    /// Returns a range moved onto character boundaries and into the text.
    fn sound(&self, span: &Range<usize>) -> Range<usize> {
        let start = floor_boundary(&self.text, span.start);
        let end = floor_boundary(&self.text, span.end);
        start..end.max(start)
    }

    /// Returns a problem at `span`; line and columns are computed later, for shown problems only.
    pub(crate) fn problem(&self, span: &Range<usize>, message: impl Into<String>) -> Problem {
        Problem {
            line: 0,
            column: 0,
            end_column: 0,
            snippet: String::new(),
            message: message.into(),
            hint: None,
            help: None,
            related: None,
            span: self.sound(span),
        }
    }

    fn locate(&self, problem: &mut Problem) {
        let span = &problem.span;
        (problem.line, problem.column) = self.position(span.start);
        let line = line_around(&self.text, span.start);
        let end = span.end.min(line.end).max(span.start);
        problem.end_column = problem.column + self.text[span.start..end].chars().count();
        problem.snippet = self.text[window(&self.text, &line, span.start, end)].to_owned();
        if let Some(related) = &mut problem.related {
            (related.line, related.column) = self.position(related.span.start);
        }
    }
}

/// Collected problems.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    list: Vec<Problem>,
    /// Number of problems beyond the limit.
    dropped: usize,
}

impl Problems {
    pub(crate) fn push(&mut self, problem: Problem) {
        match self.is_full() {
            true => self.dropped += 1,
            false => self.list.push(problem),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the number of problems, kept or not.
    pub(crate) fn count(&self) -> usize {
        self.list.len() + self.dropped
    }

    /// Returns whether further problems would not be shown.
    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= COLLECTED_MAX
    }

    /// Returns the first [`PROBLEMS_MAX`] problems in the order of the file, with places, and the number of
    /// the others.
    pub(crate) fn finish(mut self, source: &SourceText) -> (Vec<Problem>, usize) {
        self.list.sort_by_key(|problem| (problem.span.start, problem.span.end));
        self.list.dedup();
        let more = self.list.len().saturating_sub(PROBLEMS_MAX) + self.dropped;
        self.list.truncate(PROBLEMS_MAX);
        self.list.iter_mut().for_each(|problem| source.locate(problem));
        (self.list, more)
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self { list: vec![problem], dropped: 0 }
    }
}

impl Problem {
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }

    pub(crate) fn related(
        mut self,
        source: &SourceText,
        span: &Range<usize>,
        label: impl Into<String>,
    ) -> Self {
        let span = source.sound(span);
        self.related = Some(Related { line: 0, column: 0, label: label.into(), span });
        self
    }
}
