//! The report: Markdown that grows with the run, readable at any time.
//!
//! A report is a [`head`] and a [`Section`] for each step with an outcome. Each section begins with an
//! invisible marker line. [`put`] finds the marker of a rerun step and replaces the section, so that no
//! section appears twice. The content is derived from records: a report may be deleted, and does not affect
//! decisions. This module generates the text; stores keep the file.

use std::fmt::Write as _;

use serde_json::Value;

use crate::id::{ScopePath, StepId};
use crate::record::{
    Ending, Failure, Header, Note, Pack, Phase, Reason, Record, RunRecord, RunStatus, SkipCause, Verdict,
    WaitKind,
};

use super::events::STEP_SETTLED;

/// The key of a section: scope, step and iteration. Attempts and reruns share a section.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectionKey {
    /// The scope.
    pub scope: ScopePath,
    /// The step.
    pub step: StepId,
    /// Passes of the loops around the step.
    pub iteration: Vec<u32>,
    /// The section is about evidence that a person accepted, and not about an outcome.
    pub accepted: bool,
}

/// The section of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The key of the section.
    pub key: SectionKey,
    /// Markdown: the marker, a heading, a table of facts, the step's own text. Ends with an empty line.
    pub text: String,
}

/// The beginning of every marker, at the start of a line. Escaped in text from steps.
pub(crate) const MARKER: &str = "<!-- section ";
/// Longest value in a table cell, for readability; the checkpoint has the full value.
const CELL_CHARS_MAX: usize = 300;

impl SectionKey {
    /// Returns the marker line of the section, without its line end.
    pub fn marker(&self) -> String {
        let iteration: String = self.iteration.iter().map(|count| format!(" {count}")).collect();
        let accepted = if self.accepted { " accepted" } else { "" };
        format!("{MARKER}{} {}{iteration}{accepted} -->", self.scope, self.step)
    }
}

/// Returns the head of a report: identity and status of the run. Ends with an empty line.
pub fn head(run: &RunRecord, status: RunStatus) -> String {
    let mut text = format!("# {}\n\n", inline(&run.workflow));
    let mut facts = vec![("run", code(run.run.as_str())), ("status", format!("**{}**", status.name()))];
    if let Some(path) = &run.path {
        // Both paths are relative to the store, not to the reader's folder.
        let below = |base: &String| path.strip_prefix(base.as_str())?.strip_prefix('/');
        facts.push(("workflow", code(run.base.as_ref().and_then(below).unwrap_or(path))));
    }
    if let Some(parent) = &run.parent {
        let reference = crate::id::CheckpointRef {
            run: parent.run.clone(),
            scope: parent.scope.clone(),
            seq: parent.seq,
        };
        facts.push(("forked from", code(&reference.to_string())));
    }
    facts.push(("created", format!("{:.0}", run.created_at)));
    table(&mut text, ["", ""], facts.into_iter().map(|(name, value)| [name.to_owned(), value]));
    let params = run.params.iter().map(|(name, value)| [code(name), cell(value)]);
    table(&mut text, ["param", "value"], params);
    text
}

/// Returns the key of the section added by a record; `None` if the record has no outcome of a step.
pub fn section_key(record: &Record) -> Option<SectionKey> {
    let header = record.header();
    let accepted = status_of(header)? == ACCEPTED;
    let (scope, step) = (header.scope.clone(), header.step.clone()?);
    Some(SectionKey { scope, step, iteration: header.at.iteration.clone(), accepted })
}

/// Returns the section added by a record, with the `name` of the step beside its id, by default the recorded name;
/// `None` if the record has no outcome of a step.
pub fn section(record: &Record, name: Option<&str>) -> Option<Section> {
    let header = record.header();
    let key = section_key(record)?;
    let status = status_of(header)?;
    let name = name.or(header.step_name.as_deref());
    let name = name.map(|name| format!(" ({})", inline(name))).unwrap_or_default();
    let mut text = format!("{}\n## {}{name}: {status}\n\n", key.marker(), title(&key));
    let facts = facts(header).into_iter().map(|(name, value)| [name.to_owned(), value]);
    table(&mut text, ["", ""], facts);
    match &header.phase {
        Phase::Completed(ending) => outputs(&mut text, ending),
        Phase::Failed(failure) => failed(&mut text, failure),
        Phase::Waiting(waits) => {
            let asked: Vec<_> = waits.iter().filter(|wait| wait.on != WaitKind::Children).collect();
            for wait in &asked {
                let question = wait.question.as_ref().map(|question| format!(": {}", cell(question)));
                let _ = writeln!(text, "- {}{}", code(&wait.key), question.unwrap_or_default());
            }
            if !asked.is_empty() {
                text.push('\n');
            }
        }
        _ => {}
    }
    if let Some(pack) = &header.evidence {
        evidence(&mut text, pack);
    }
    for note in &header.notes {
        match note {
            Note::Report(markdown) => text.push_str(&contained(markdown)),
            Note::Warning(warning) => {
                let _ = writeln!(text, "> **Warning:** {}\n", inline(warning));
            }
            Note::Event { .. } => {}
        }
    }
    Some(Section { key, text })
}

/// Puts a section into a report: replaces the section with the same key, else appends.
///
/// Without a replacement, the result is `report` followed by the section's text, so that a store may append
/// to a file instead; see [`contains`].
pub fn put(report: &str, section: &Section) -> String {
    let Some((from, to)) = place(report, &section.key) else {
        return format!("{report}{}", section.text);
    };
    format!("{}{}{}", &report[..from], section.text, &report[to..])
}

/// Returns whether a report has a section with this key.
pub fn contains(report: &str, key: &SectionKey) -> bool {
    place(report, key).is_some()
}

/// Replaces the head of a report, up to its first section.
pub fn put_head(report: &str, head: &str) -> String {
    let from = starts(report).next().unwrap_or(report.len());
    format!("{head}{}", &report[from..])
}

fn place(report: &str, key: &SectionKey) -> Option<(usize, usize)> {
    let marker = key.marker();
    let is_it = |start: &usize| report[*start..].lines().next() == Some(marker.as_str());
    let from = starts(report).find(is_it)?;
    let to = starts(report).find(|start| *start > from).unwrap_or(report.len());
    Some((from, to))
}

/// Returns the offsets of the sections.
fn starts(report: &str) -> impl Iterator<Item = usize> {
    report.match_indices(MARKER).map(|(at, _)| at).filter(|at| *at == 0 || report.as_bytes()[at - 1] == b'\n')
}

fn title(key: &SectionKey) -> String {
    let place: Vec<_> = key.iteration.iter().map(u32::to_string).collect();
    let place = if place.is_empty() { String::new() } else { format!(" [{}]", place.join(".")) };
    if key.scope.is_main() {
        return format!("{}{place}", code(key.step.as_str()));
    }
    // Outside of loops, the pass of a scope is always the first.
    let has_passes = !key.iteration.is_empty();
    let plain = |part: &str| match part.strip_suffix("~1").filter(|_| !has_passes && !part.contains(':')) {
        Some(opener) => opener.to_owned(),
        None => part.to_owned(),
    };
    let scope: Vec<String> = key.scope.readable().split('/').map(plain).collect();
    format!("{}{place}", code(&format!("{}/{}", scope.join("/"), key.step)))
}

/// The status in the section of an acceptance.
const ACCEPTED: &str = "evidence accepted";

fn status_of(header: &Header) -> Option<&'static str> {
    Some(match &header.phase {
        Phase::Completed(_) => "completed",
        Phase::Failed(failure) if failure.retried => "failed, will retry",
        Phase::Failed(failure) if failure.tolerated => "failed, tolerated",
        Phase::Failed(_) => "failed",
        Phase::Skipped(_) => "skipped",
        Phase::Waiting(_) => "waiting",
        Phase::Interrupted { in_progress: true, .. } => "interrupted",
        Phase::Progress { .. } if header.reason == Reason::Accept => ACCEPTED,
        Phase::Interrupted { in_progress: false, .. }
        | Phase::Started
        | Phase::Progress { .. }
        | Phase::Restored => return None,
    })
}

/// The beginning of the line with the checkpoint of a section.
pub(crate) const CHECKPOINT_LINE: &str = "| checkpoint |";

/// Returns the line with the checkpoint, for the section of a record.
pub(crate) fn checkpoint_line(header: &Header) -> String {
    format!("{CHECKPOINT_LINE} {} |", escaped(&checkpoint_value(header)))
}

fn checkpoint_value(header: &Header) -> String {
    code(&header.reference().to_string())
}

fn facts(header: &Header) -> Vec<(&'static str, String)> {
    let mut facts =
        vec![("checkpoint", checkpoint_value(header)), ("at", format!("{:.0}", header.created_at))];
    if header.at.attempt > 1 {
        facts.push(("attempt", header.at.attempt.to_string()));
    }
    if header.at.epoch > 0 {
        facts.push(("reruns", header.at.epoch.to_string()));
    }
    let ending = match &header.phase {
        Phase::Completed(ending) => Some(ending),
        Phase::Failed(failure) => Some(&failure.ending),
        _ => None,
    };
    if let Some(command) = ending.and_then(|ending| ending.command.as_ref()) {
        facts.push(("command", code(&clip(command))));
    }
    if let Some(exit_code) = ending.and_then(|ending| ending.exit_code) {
        facts.push(("exit code", exit_code.to_string()));
    }
    if let Some(log) = ending.and_then(|ending| ending.log.as_ref()) {
        facts.push(("log", format!("{} bytes", log.bytes)));
    }
    match &header.phase {
        Phase::Skipped(SkipCause::Condition(text)) => {
            facts.push(("because", format!("{} is false", code(&clip(text)))))
        }
        Phase::Skipped(SkipCause::Need(step)) => {
            facts.push(("because", format!("{} was skipped", code(step.as_str()))))
        }
        Phase::Skipped(SkipCause::ByHand(by)) => facts.push(("because", format!("{} chose it", code(by)))),
        Phase::Skipped(SkipCause::UpstreamFailed(step)) => {
            facts.push(("because", format!("{} failed", code(step.as_str()))))
        }
        Phase::Interrupted { by, .. } => facts.push(("by", inline(by))),
        _ => {}
    }
    facts.extend(settled(header).map(|(how, by)| ("settled", format!("{} by {}", inline(how), code(by)))));
    if let Some(usage) = &header.usage {
        let model = usage.model.as_ref().map(|model| format!(", {}", inline(model))).unwrap_or_default();
        let (read, wrote, cost) = (usage.tokens_in, usage.tokens_out, usage.cost);
        facts.push(("usage", format!("{read} tokens in, {wrote} out, cost {cost}{model}")));
    }
    facts
}

/// Returns how a person settled the step of a record without an execution, and the person.
fn settled(header: &Header) -> Option<(&str, &str)> {
    let step = header.step.as_ref()?;
    let data = header.notes.iter().find_map(|note| match note {
        Note::Event { name, data } if name == STEP_SETTLED && data["step"] == step.as_str() => Some(data),
        _ => None,
    })?;
    Some((data["how"].as_str()?, data["cause"]["by"].as_str().unwrap_or("a person")))
}

fn outputs(text: &mut String, ending: &Ending) {
    table(text, ["output", "value"], ending.outputs.iter().map(|(name, value)| [code(name), cell(value)]));
    if let Some(bytes) = ending.outputs_bytes {
        let _ = writeln!(text, "Outputs: {bytes} bytes, in the checkpoint.\n");
    }
}

fn failed(text: &mut String, failure: &Failure) {
    for (depth, error) in failure.error.iter().enumerate() {
        let _ = writeln!(text, "{}- {}", "  ".repeat(depth), inline(error));
    }
    text.push('\n');
    outputs(text, &failure.ending);
    if let Some(log) = failure.ending.log.as_ref().filter(|log| !log.tail.is_empty()) {
        text.push_str("End of the log:\n\n");
        fenced(text, &log.tail);
    }
}

fn evidence(text: &mut String, pack: &Pack) {
    let rule = pack.at_least.map_or_else(|| "all of".to_owned(), |count| format!("at least {count} of"));
    let ok = pack.claims.iter().filter(|claim| claim.verdict == Verdict::Ok).count();
    let _ = writeln!(text, "Evidence: {ok} ok, {rule} {} needed.\n", pack.claims.len());
    let rows = pack.claims.iter().map(|claim| {
        let name = claim.name.as_ref().map(|name| format!("{}: ", inline(name))).unwrap_or_default();
        let why = claim.error.as_ref().map(|error| inline(error)).unwrap_or_default();
        [
            claim.verdict.name().to_owned(),
            format!("{name}{} {}", inline(&claim.kind), code(&clip(&claim.subject))),
            cell(&claim.expect),
            if why.is_empty() { cell(&claim.found) } else { why },
        ]
    });
    table(text, ["verdict", "claim", "expected", "found"], rows);
}

/// Writes a table, unless it has no rows. Cells are Markdown on one line.
fn table<const N: usize>(text: &mut String, head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let mut rows = rows.into_iter().peekable();
    if rows.peek().is_none() {
        return;
    }
    let _ = writeln!(text, "| {} |\n|{}", head.join(" | "), " --- |".repeat(N));
    for row in rows {
        let cells = row.map(|cell| escaped(&cell));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text.push('\n');
}

/// Escapes bars everywhere, as a bar ends a cell even inside code.
fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|")
}

/// Formats a value on one line.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if !text.is_empty() && !text.contains(char::is_control) => code(&clip(text)),
        value => code(&clip(&value.to_string())),
    }
}

fn clip(text: &str) -> String {
    match text.char_indices().nth(CELL_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Returns the length of the longest run of `mark` in a text.
fn longest_run(text: &str, mark: char) -> usize {
    let mut longest = 0;
    let mut run = 0;
    for found in text.chars() {
        run = if found == mark { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

/// Formats any text as code on one line.
fn code(text: &str) -> String {
    let text = printable(text).replace(['\n', '\t'], " ");
    if text.contains("\\|") {
        return code_by_entities(&text);
    }
    let fence = "`".repeat(longest_run(&text, '`') + 1);
    // Markdown readers strip one space within each fence.
    let pad = if text.starts_with('`') || text.ends_with('`') || text.is_empty() { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

/// Formats text as code by entities, if a backslash before a bar would undo the escape and end the cell.
fn code_by_entities(text: &str) -> String {
    let mut escaped = String::from("<code>");
    for found in text.chars() {
        if found.is_ascii_punctuation() {
            let _ = write!(escaped, "&#{};", u32::from(found));
        } else {
            escaped.push(found);
        }
    }
    escaped + "</code>"
}

/// Formats text as a paragraph on one line, with all Markdown and HTML escaped.
fn inline(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for found in printable(text).replace(['\n', '\t'], " ").chars() {
        if matches!(found, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '#' | '&' | '~' | '!') {
            escaped.push('\\');
        }
        escaped.push(found);
    }
    escaped
}

/// Formats any text as a block of code.
fn fenced(text: &mut String, content: &str) {
    let content = printable(content);
    let fence = "`".repeat(longest_run(&content, '`').max(2) + 1);
    let _ = writeln!(text, "{fence}text\n{}\n{fence}\n", content.trim_end_matches('\n'));
}

/// Returns the text without terminal escape sequences and other control characters.
fn printable(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(found) = rest.next() {
        match found {
            '\u{1b}' if rest.peek() == Some(&'[') => {
                rest.next();
                // A sequence ends at its first letter or sign from `@` to `~`.
                while rest.next_if(|part| (' '..='?').contains(part)).is_some() {}
                rest.next_if(|end| ('@'..='~').contains(end));
            }
            '\r' if rest.peek() == Some(&'\n') => {}
            '\r' => clean.push('\n'),
            '\n' | '\t' => clean.push(found),
            found if found.is_control() || is_bidirectional(found) => clean.push('\u{fffd}'),
            found => clean.push(found),
        }
    }
    clean
}

/// Returns whether a mark changes the direction of text, so that a reader may see another text than the bytes say.
fn is_bidirectional(mark: char) -> bool {
    matches!(mark, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns a step's Markdown, self-contained: closes open code blocks and comments, and escapes marker lines.
fn contained(markdown: &str) -> String {
    let mut text = String::with_capacity(markdown.len() + 8);
    let mut fence: Option<(char, usize)> = None;
    let mut comment = false;
    for line in printable(markdown).lines() {
        if line.starts_with(MARKER.trim_end()) {
            text.push(' ');
        }
        text.push_str(line);
        text.push('\n');
        match fence {
            Some((mark, length)) => {
                let bare = line.trim();
                if bare.len() >= length && bare.chars().all(|found| found == mark) && indent(line) < 4 {
                    fence = None;
                }
            }
            None if comment => comment = !line.contains("-->"),
            None => {
                fence = fence_of(line);
                let open = line.rfind("<!--");
                comment = fence.is_none() && open.is_some_and(|open| !line[open..].contains("-->"));
            }
        }
    }
    if let Some((mark, length)) = fence {
        text.extend(std::iter::repeat_n(mark, length));
        text.push('\n');
    }
    if comment {
        text.push_str("-->\n");
    }
    text.push('\n');
    text
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// Returns the mark and length of the fence opened by a line, if any.
fn fence_of(line: &str) -> Option<(char, usize)> {
    let bare = line.trim_start_matches(' ');
    let mark = bare.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let length = bare.chars().take_while(|found| *found == mark).count();
    let rest = &bare[length..];
    (indent(line) < 4 && length >= 3 && !(mark == '`' && rest.contains('`'))).then_some((mark, length))
}
