//! The only file that prints.
//!
//! stdout has the answer, stderr everything else. Text from a step or a user is shown without control
//! characters, so that a name cannot move the cursor. A gone reader (broken pipe) ends a command quietly.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::Path;

use anstyle::{AnsiColor, Style};
use comfy_table::{Cell, ColumnConstraint, ContentArrangement, Table, Width, presets};
use serde::Serialize;
use unicode_width::UnicodeWidthStr as _;
use waypost::ScopePath;

use crate::cli::{Color, Global};
use crate::error::Diagnosis;
use crate::exit::Exit;
use crate::format::terminal;
use crate::format::wrap::fit;
use crate::view::ProblemView;
use crate::view::step_names::StepNames;

pub(crate) mod actions;
pub(crate) mod event_line;
pub(crate) mod progress;
mod region;
pub(crate) mod screen;
mod step_log;
mod step_progress;
pub(crate) mod waits;

pub(crate) use region::cut;

/// Below this width a table is not readable: each row is printed as separate lines.
const TABLE_COLUMNS_MIN: usize = 72;
/// Columns between the cells of a table.
const CELL_GAP: usize = 2;
/// Longest unbroken word in a table cell, except in the first column: longer than values to copy, such as a
/// time or an address.
const WORD_COLUMNS_MAX: usize = 30;

/// The output streams and their modes.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    /// The answer is JSON.
    pub(crate) json: bool,
    /// JSON objects take a line each, for commands that report progress.
    pub(crate) one_line: bool,
    /// Only errors and warnings on stderr.
    pub(crate) quiet: bool,
    /// More than usual on stderr.
    pub(crate) verbose: bool,
    /// Styles for stdout.
    pub(crate) paint: Paint,
    /// Styles for stderr.
    pub(crate) paint_err: Paint,
    /// stderr is a person's terminal: progress may move the cursor.
    pub(crate) live: bool,
    /// stderr is the log of a GitHub Actions job.
    pub(crate) actions: bool,
    /// Progress includes the printed text of steps: each line, or groups in a GitHub Actions job.
    pub(crate) logs: bool,
    /// Columns of the terminal, if stdout is a terminal.
    pub(crate) columns: Option<usize>,
    /// stdout is a terminal.
    pub(crate) terminal: bool,
}

/// Returns whether an output has no content, as that of a step of an included file without outputs.
pub(crate) fn is_empty(output: &serde_json::Value) -> bool {
    output.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Returns whether stderr is a person's screen. A CI log is not, although some services give jobs a terminal.
fn is_screen() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stderr().is_terminal() && !is_dumb && !is_ci()
}

/// Returns whether this is a CI job: CI services set `CI`.
fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false" && value != "0")
}

impl Output {
    /// Returns whether each line of a step is printed. In a job of GitHub Actions, groups have the lines.
    pub(crate) fn prints_lines(&self) -> bool {
        self.logs && !self.actions
    }

    /// Determines the modes from both streams and the options; `logs`: whether the printed text of steps is
    /// wanted, by default unless stderr is a screen.
    pub(crate) fn new(global: &Global, one_line: bool, logs: Option<bool>) -> Self {
        let color = global.color.unwrap_or(Color::Auto);
        Self {
            json: global.json,
            one_line,
            quiet: global.quiet,
            verbose: global.verbose,
            paint: Paint(colours(color, &io::stdout())),
            paint_err: Paint(colours(color, &io::stderr())),
            live: is_screen(),
            actions: !global.json && (is_ci() || !io::stderr().is_terminal()) && actions::is_job(),
            logs: !global.json && !global.quiet && logs.unwrap_or_else(|| !is_screen()),
            columns: terminal::columns(),
            terminal: io::stdout().is_terminal(),
        }
    }

    /// Writes the answer, with a final newline.
    pub(crate) fn answer(&self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        if !text.is_empty() && !text.ends_with('\n') {
            stdout.write_all(b"\n")?;
        }
        stdout.flush()
    }

    /// Writes sentences of an answer, on a terminal in lines that fit.
    pub(crate) fn sentences(&self, text: &str) -> io::Result<()> {
        match self.columns.filter(|_| self.terminal) {
            Some(columns) => self.answer(&fit(text, columns)),
            None => self.answer(text),
        }
    }

    /// Confirms a finished command on stdout, unless in quiet mode.
    pub(crate) fn done(&self, text: &str) -> io::Result<()> {
        if self.quiet { Ok(()) } else { self.sentences(text) }
    }

    /// Writes the result of a check; in quiet mode, only of a failed check.
    pub(crate) fn checked(&self, exit: Exit, text: &str) -> io::Result<()> {
        if exit == Exit::Done { self.done(text) } else { self.sentences(text) }
    }

    /// Writes bytes of an answer unchanged.
    #[expect(clippy::unused_self, reason = "what is printed goes through an output")]
    pub(crate) fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    }

    /// Writes the beginning of these log bytes, and returns how many were written: all, unchanged, unless
    /// stdout is a terminal. For a terminal, control characters are escaped, and an incomplete character or
    /// line end is left for the next call.
    pub(crate) fn log(&self, bytes: &[u8], is_last: bool) -> io::Result<usize> {
        if !self.terminal {
            self.bytes(bytes)?;
            return Ok(bytes.len());
        }
        let taken = if is_last { bytes.len() } else { whole(bytes) };
        self.bytes(on_terminal(&bytes[..taken]).as_bytes())?;
        Ok(taken)
    }

    /// Writes the answer as one JSON document.
    pub(crate) fn document(&self, view: &impl Serialize) -> io::Result<()> {
        if self.one_line {
            return self.line(view);
        }
        self.answer(&serde_json::to_string_pretty(view)?)
    }

    /// Writes a JSON object on its own line.
    pub(crate) fn line(&self, view: &impl Serialize) -> io::Result<()> {
        self.answer(&serde_json::to_string(view)?)
    }

    /// Prints a note on stderr, unless in quiet mode.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            self.err_sentences(text);
        }
    }

    /// Prints a note on stderr, also in quiet mode.
    pub(crate) fn aside(&self, text: &str) {
        self.err_sentences(text);
    }

    /// Prints a note on stderr in verbose mode.
    pub(crate) fn detail(&self, text: &str) {
        if self.verbose {
            self.err_sentences(text);
        }
    }

    /// Prints a warning on stderr.
    pub(crate) fn warn(&self, text: &str) {
        self.err_sentences(&self.warning(text));
    }

    /// Formats a warning.
    fn warning(&self, text: &str) -> String {
        format!("{} {text}", self.paint_err.yellow("warning:"))
    }

    /// Prints an error: on stderr, or as the JSON answer if possible.
    pub(crate) fn error(&self, diagnosis: &Diagnosis) {
        if self.json {
            match self.line(&ErrorDocument::of(diagnosis)) {
                // The other stream may still have a reader.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {}
                // Without a reader, nothing is left to do.
                _ => return,
            }
        }
        let paint = self.paint_err;
        if let Some(rendered) = &diagnosis.rendered {
            self.err(if paint.0 { &rendered.styled } else { &rendered.plain });
            for problem in rendered.problems.iter().filter(|_| self.actions) {
                let place = Some((Path::new(&problem.file), problem.line));
                self.err(&actions::annotation(
                    actions::Level::Error,
                    place,
                    "workflow file",
                    &problem.message,
                ));
            }
            if let Some(hint) = diagnosis.hint.as_ref().filter(|_| rendered.with_hint) {
                self.err(&format!("{} {}", paint.cyan("hint:"), shown_lines(hint)));
            }
            return;
        }
        let mut text = format!("{} {}", paint.red("error:"), shown_lines(&diagnosis.message));
        for cause in &diagnosis.causes {
            let _ = write!(text, "\n  {} {}", paint.dim("cause:"), shown_lines(cause));
        }
        if let Some(hint) = &diagnosis.hint {
            let _ = write!(text, "\n{} {}", paint.cyan("hint:"), shown_lines(hint));
        }
        self.err_sentences(&text);
        if self.actions {
            self.err(&actions::annotation(actions::Level::Error, None, "waypost", &diagnosis.message));
        }
    }

    /// Asks a yes-or-no question; anything but a clear yes is no.
    pub(crate) fn confirm(&self, question: &str) -> io::Result<bool> {
        let mut stderr = io::stderr().lock();
        write!(stderr, "{question} [y/N] ")?;
        stderr.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }

    /// Asks for a line; `None` at the end of input.
    #[expect(clippy::unused_self, reason = "what is asked goes through an output")]
    pub(crate) fn ask(&self, question: &str) -> io::Result<Option<String>> {
        let mut stderr = io::stderr().lock();
        write!(stderr, "{question}")?;
        stderr.flush()?;
        let mut answer = String::new();
        let count = io::stdin().lock().read_line(&mut answer)?;
        Ok((count > 0).then(|| answer.trim().to_owned()))
    }

    /// Returns whether a person can be asked: a process in the background would be stopped by a read.
    #[expect(clippy::unused_self, reason = "what is asked goes through an output")]
    pub(crate) fn can_ask(&self) -> bool {
        let stdin = io::stdin();
        // An error means that the terminal does not control this process.
        let is_in_front =
            || rustix::termios::tcgetpgrp(&stdin).map_or(true, |group| group == rustix::process::getpgrp());
        stdin.is_terminal() && io::stderr().is_terminal() && !is_ci() && is_in_front()
    }

    /// Prints the beginning of a line on stderr, which an answer ends.
    #[expect(clippy::unused_self, reason = "what is asked goes through an output")]
    fn prompt(&self, text: &str) {
        let mut stderr = io::stderr().lock();
        // stderr is gone, and so is the person.
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }

    /// Writes sentences on stderr, on a terminal in lines that fit.
    fn err_sentences(&self, text: &str) {
        match terminal::size_of(&io::stderr()) {
            Some((columns, _)) => self.err(&fit(text, columns)),
            None => self.err(text),
        }
    }

    fn err(&self, text: &str) {
        // stderr is gone, and so is the place to report this.
        // One write, so that lines of other processes do not come between.
        let _ = io::stderr().lock().write_all(format!("{text}\n").as_bytes());
    }

    /// Returns a value in lines that fit the terminal, the first after `used` columns, further ones indented. A word that is
    /// longer than a line stays whole, to be copied.
    pub(crate) fn wrapped(&self, value: &str, used: usize, indent: usize) -> String {
        let Some(columns) = self.columns else { return value.to_owned() };
        let (mut text, mut column) = (String::new(), used);
        for word in value.split(' ') {
            let width = word.width();
            if !text.is_empty() && column + 1 + width > columns {
                let _ = write!(text, "\n{:indent$}", "");
                column = indent;
            } else if !text.is_empty() {
                text.push(' ');
                column += 1;
            }
            text.push_str(word);
            column += width;
        }
        text
    }

    /// Formats rows as a table with a heading, or as separate lines if the terminal is too narrow for whole
    /// words: the first column is copied into other commands.
    ///
    /// Cells are shown without control characters; empty columns are omitted.
    pub(crate) fn table(&self, heading: &[&str], rows: &[Vec<String>]) -> String {
        let used: Vec<usize> =
            (0..heading.len()).filter(|column| rows.iter().any(|row| !row[*column].is_empty())).collect();
        let least: Vec<usize> = used
            .iter()
            .enumerate()
            .map(|(place, column)| {
                let cells = rows.iter().map(|row| row[*column].as_str()).chain([heading[*column]]);
                let longest = cells.map(longest_word).max().unwrap_or_default();
                if place == 0 { longest } else { longest.min(WORD_COLUMNS_MAX) }
            })
            .collect();
        let needed = least.iter().map(|word| word + CELL_GAP).sum::<usize>().max(TABLE_COLUMNS_MIN);
        if self.columns.is_some_and(|columns| columns < needed) {
            return self.stacked(heading, rows, &used);
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if let Some(columns) = self.columns {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(u16::try_from(columns).unwrap_or(u16::MAX));
        }
        table.set_header(used.iter().map(|column| Cell::new(heading[*column])));
        for row in rows {
            table.add_row(used.iter().map(|column| Cell::new(shown(&row[*column]))));
        }
        let cell = |width: usize| u16::try_from(width + CELL_GAP).unwrap_or(u16::MAX);
        for (column, least) in table.column_iter_mut().zip(least) {
            column.set_padding((0, cell(0)));
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(cell(least))));
        }
        table.trim_fmt()
    }

    /// Returns whether the terminal is too narrow for tables.
    pub(crate) fn is_narrow(&self) -> bool {
        self.columns.is_some_and(|columns| columns < TABLE_COLUMNS_MIN)
    }

    /// Formats rows as separate lines: the first cell, then the others indented.
    fn stacked(&self, heading: &[&str], rows: &[Vec<String>], used: &[usize]) -> String {
        let mut text = String::new();
        for row in rows {
            for (index, column) in used.iter().enumerate() {
                let cell = shown(&row[*column]);
                let head = heading[*column].to_lowercase();
                if index == 0 {
                    let _ = writeln!(text, "{}", self.wrapped(&cell, 0, 2));
                } else if !cell.is_empty() {
                    let _ = writeln!(text, "  {head} {}", self.wrapped(&cell, head.len() + 3, 4));
                }
            }
        }
        text.pop();
        text
    }
}

/// Prints a command line error of clap, or the requested help.
pub(crate) fn refused(error: &clap::Error) -> Exit {
    if !error.use_stderr() {
        // Help or version; the reader may be gone.
        let _ = error.print();
        return Exit::Done;
    }
    if std::env::args_os().any(|argument| argument == "--json") {
        let text = error.render().to_string();
        let text = text.trim().strip_prefix("error: ").unwrap_or(&text);
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let message = lines.next().unwrap_or_default().to_owned();
        let view = ErrorView {
            code: "usage",
            message: &message,
            hint: Some("see `waypost --help`"),
            causes: &lines
                .filter(|line| !line.starts_with("For more"))
                .map(ToOwned::to_owned)
                .collect::<Vec<_>>(),
            problems: &[],
        };
        let document = ErrorDocument { v: crate::view::VERSION, error: view };
        let _ = serde_json::to_string(&document).map(|text| writeln!(io::stdout(), "{text}"));
    } else {
        let _ = error.print();
    }
    Exit::Usage
}

/// Returns the width of the longest word of a cell.
fn longest_word(cell: &str) -> usize {
    shown(cell).split_whitespace().map(|word| word.width()).max().unwrap_or_default()
}

/// An error as JSON.
#[derive(Debug, Serialize)]
struct ErrorDocument<'a> {
    v: u32,
    error: ErrorView<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorView<'a> {
    code: &'static str,
    message: &'a str,
    hint: Option<&'a str>,
    causes: &'a [String],
    /// The problems of files.
    #[serde(skip_serializing_if = "<[ProblemView]>::is_empty")]
    problems: &'a [ProblemView],
}

impl<'a> ErrorDocument<'a> {
    fn of(diagnosis: &'a Diagnosis) -> Self {
        let Diagnosis { code, message, hint, causes, rendered, .. } = diagnosis;
        let problems = rendered.as_ref().map(|rendered| rendered.problems.as_slice()).unwrap_or_default();
        let error = ErrorView { code, message, hint: hint.as_deref(), causes, problems };
        Self { v: crate::view::VERSION, error }
    }
}

/// Styles text, or leaves it plain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint(bool);

impl Paint {
    fn with(self, style: Style, text: &str) -> String {
        if self.0 { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with(Style::new().bold(), text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with(Style::new().dimmed(), text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.with(AnsiColor::Red.on_default().bold(), text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.with(AnsiColor::Yellow.on_default().bold(), text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.with(AnsiColor::Green.on_default(), text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.with(AnsiColor::Cyan.on_default(), text)
    }
}

fn colours(choice: Color, stream: &impl anstream::stream::RawStream) -> bool {
    match choice {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => anstream::AutoStream::choice(stream) != anstream::ColorChoice::Never,
    }
}

/// Returns text on one line, without control characters and without bidirectional marks.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\t' => shown.push(' '),
            c if hidden(c) => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Returns how many of these bytes can be shown without the bytes after them.
pub(crate) fn whole(bytes: &[u8]) -> usize {
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    match bytes.utf8_chunks().last() {
        Some(last) if is_half(last.invalid()) => bytes.len() - last.invalid().len(),
        _ => bytes.len(),
    }
}

/// Returns whether these bytes are an incomplete character.
fn is_half(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Returns printed text in a form safe for a terminal, line by line; invalid UTF-8 is replaced.
fn on_terminal(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut safe = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        match line.strip_suffix('\n') {
            Some(line) => {
                safe.push_str(&shown(line.strip_suffix('\r').unwrap_or(line)));
                safe.push('\n');
            }
            None => safe.push_str(&shown(line)),
        }
    }
    safe
}

/// Returns the lines of a log as [`shown`]. Of a line that the step rewrote with carriage returns, only the last text
/// is returned.
pub(crate) fn log_lines(text: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let last = |line: &'_ str| line.trim_end_matches('\r').rfind('\r').map_or(0, |at| at + 1);
    text.lines().map(move |line| shown(line[last(line)..].trim_end_matches('\r')))
}

/// Returns text with each line as in [`shown`].
pub(crate) fn shown_lines(text: &str) -> String {
    text.lines().map(shown).collect::<Vec<_>>().join("\n")
}

impl StepNames {
    /// Appends the name of a step to a text, if the workflow file has a name.
    pub(crate) fn beside(&self, text: String, scope: &ScopePath, step: &str) -> String {
        match self.name(scope, step) {
            Some(name) => format!("{text} ({})", shown(name)),
            None => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{on_terminal, shown, whole};

    #[test]
    fn what_others_named_cannot_move_the_cursor() {
        assert_eq!(shown("a\u{1b}[2Jb\rc"), "a\\u{1b}[2Jb\\rc");
        assert_eq!(shown("grün"), "grün");
    }

    #[test]
    fn a_log_is_cut_only_where_a_terminal_can_show_both_parts() {
        let text = "grün\r\n\u{1b}[2Jé€".as_bytes();

        for cut in 0..=text.len() {
            let first = whole(&text[..cut]);
            let both = on_terminal(&text[..first]) + &on_terminal(&text[first..]);
            assert_eq!(both, "grün\n\\u{1b}[2Jé€", "{cut}");
            assert!(cut - first < 4, "{cut}");
        }
        assert_eq!(on_terminal(b"a\xffb\rc\n"), "a\u{fffd}b\\rc\n");
        assert_eq!(whole(b"a\xff"), 2, "it begins no character");
    }
}
