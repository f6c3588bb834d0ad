//! The HTML page: one file without network access or scripts. All text from a run is escaped.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use waypost::engine::Snapshot;
use waypost::record::{Note, Usage};

use super::history::{LastSession, RunHistory, StepEnd};
use super::timeline::timeline;
use crate::cli::DeadLetter;
use crate::commands::graph::{Node, embedded, sign};
use crate::format::html::{escaped, folded};
use crate::format::{size, time};
use crate::run::dead_letters::place;
use crate::run::progress::in_words;
use crate::view::doubt::{Answer, Doubt, answers};
use crate::view::step_names::StepNames;
use crate::view::{ClaimView, ShowView, StepStatus, StepView};

/// Most dead letters in a report; `waypost dead-letters list` has all.
pub(super) const LETTERS_MAX: usize = 50;
/// Most rows of ended scopes; `waypost show` and `events` have the rest.
const SCOPE_ROWS_MAX: usize = 2_000;
/// Longest text of an output or note, so that browsers can open the page.
const TEXT_CHARACTERS_MAX: usize = 20_000;

/// The input of a page.
pub(super) struct Page<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) show: &'a ShowView,
    pub(super) names: &'a StepNames,
    pub(super) history: &'a RunHistory,
    pub(super) letters: &'a [DeadLetter],
    pub(super) doubts: &'a [Doubt],
    pub(super) nodes: Vec<Node>,
    pub(super) now: Timestamp,
}

impl Page<'_> {
    /// Returns the page.
    pub(super) fn text(&self) -> String {
        let title = escaped(&format!("{}: {}", self.show.workflow, self.show.run));
        let mut text = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>{STYLE}</style>\n</head>\n<body>\n"
        );
        self.head(&mut text);
        let picture = embedded(&self.nodes);
        if !picture.is_empty() {
            let _ = write!(text, "<h2>Graph</h2>\n<div class=\"wide\">{picture}</div>\n");
        }
        let times = timeline(self.history, self.last_session());
        if !times.is_empty() {
            let _ = write!(text, "<h2>Attempts</h2>\n{times}");
        }
        text.push_str("<h2>Steps</h2>\n");
        self.show.steps.iter().for_each(|step| self.step(&mut text, step));
        self.dead_letters(&mut text);
        self.scopes(&mut text);
        text.push_str("</body>\n</html>\n");
        text
    }

    fn last_session(&self) -> LastSession {
        let summary = &self.snapshot.entry.summary;
        let is_live = summary.holder.is_some();
        LastSession { is_live, end: if is_live { self.now } else { summary.updated_at } }
    }

    fn head(&self, text: &mut String) {
        let (show, summary) = (self.show, &self.snapshot.entry.summary);
        let status = show.status.name();
        let _ = writeln!(text, "<h1>{}</h1>", escaped(&show.workflow));
        let progress = summary.summary.progress;
        let labels: Vec<String> =
            summary.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut facts = vec![
            ("run", show.run.clone()),
            ("steps", in_words(progress, show.skipped(), "done")),
            ("file", show.path.clone().unwrap_or_default()),
            ("started", time::utc(summary.created_at)),
            ("changed", time::utc(summary.updated_at)),
            ("time of work", time::lasted(self.history.work(self.last_session()))),
            ("checkpoints", summary.checkpoints.to_string()),
            ("labels", labels.join(", ")),
            ("parent", show.parent.clone().unwrap_or_default()),
            ("usage of all attempts", self.history.usage.as_ref().map(usage).unwrap_or_default()),
        ];
        let params = show.params.iter().map(|(name, value)| (name.as_str(), shown(value)));
        let params: Vec<(&str, String)> = params.collect();
        facts.retain(|(_, value)| !value.is_empty());
        let _ = writeln!(text, "<p class=\"{status}\"><b>{} {status}</b></p>", sign(status));
        table(text, &facts);
        for step in show.steps.iter().filter(|step| step.status == StepStatus::Failed) {
            let Some(error) = &step.error else { continue };
            let (class, failed) =
                if step.holds_up { ("failed", "failed") } else { ("tolerated", "failed, tolerated") };
            let _ = writeln!(
                text,
                "<p class=\"{class}\"><b>{} step {} {failed}:</b> {}</p>",
                sign(class),
                escaped(&step.called),
                escaped(&self.names.plain(&error.message))
            );
        }
        if !self.letters.is_empty() {
            let count = self.letters.len();
            let items = if count == 1 { "item" } else { "items" };
            let _ = writeln!(
                text,
                "<p class=\"failed\"><b>✗ {count} failed {items}</b> (dead letters): <a href=\"#dead-letters\">errors and \
                 logs</a></p>"
            );
        }
        for wait in &show.waiting {
            let question = wait.question.as_ref().map(shown).unwrap_or_default();
            let _ = writeln!(text, "<p>‖ step {} waits: {}</p>", escaped(&wait.called), escaped(&question));
        }
        self.questions(text);
        if !self.history.damaged.is_empty() {
            let _ = writeln!(
                text,
                "<p class=\"failed\">Damaged: {}</p>",
                escaped(&self.history.damaged.join(", "))
            );
        }
        if !params.is_empty() {
            text.push_str("<h2>Params</h2>\n");
            table(text, &params);
        }
    }

    fn questions(&self, text: &mut String) {
        if self.doubts.is_empty() {
            return;
        }
        text.push_str("<h2>Questions</h2>\n");
        for Doubt { step, cause, .. } in self.doubts {
            let (step, cause) = (escaped(step), escaped(cause));
            let _ = writeln!(text, "<p class=\"failed\"><b>Step {step} needs a decision:</b> {cause}</p>");
        }
        text.push_str("<p>Check the effects, then decide:</p>\n<ul>\n");
        for Answer { command, does, .. } in answers(&resume_of(self.snapshot), self.doubts) {
            let (command, does) = (escaped(&command), escaped(&does));
            let _ = writeln!(text, "<li><code>{command}</code> {does}</li>");
        }
        text.push_str("</ul>\n");
    }

    fn step(&self, text: &mut String, step: &StepView) {
        let status = step.outcome();
        let open = if matches!(status, "completed" | "pending" | "skipped") { "" } else { " open" };
        let took =
            step.duration_ms.map(|millis| time::lasted(Duration::from_millis(millis))).unwrap_or_default();
        let _ = writeln!(
            text,
            "<details{open}><summary class=\"{status}\"><b>{} {}</b>{} {status} <span class=\"dim\">{took}</span></summary>",
            sign(status),
            escaped(&step.called),
            step.name.as_ref().map(|name| format!(" {}", escaped(name))).unwrap_or_default(),
        );
        let mut facts = vec![
            ("attempts", if step.attempts > 1 { step.attempts.to_string() } else { String::new() }),
            ("exit code", step.exit_code.map(|code| code.to_string()).unwrap_or_default()),
            ("started", step.started_at.map(time::utc).unwrap_or_default()),
            ("ended", step.ended_at.map(time::utc).unwrap_or_default()),
            ("command", step.command.clone().unwrap_or_default()),
            ("settled", step.settled.clone().unwrap_or_default()),
            ("items", step.items.map(|items| items.told()).unwrap_or_default()),
            ("usage", step.usage.as_ref().map(usage).unwrap_or_default()),
        ];
        facts.retain(|(_, value)| !value.is_empty());
        table(text, &facts);
        if let Some(error) = &step.error {
            let causes =
                error.causes.iter().map(|cause| format!("<br>cause: {}", escaped(&self.names.plain(cause))));
            let _ = writeln!(
                text,
                "<p class=\"failed\">{}{}</p>",
                escaped(&self.names.plain(&error.message)),
                causes.collect::<String>()
            );
        }
        if !step.outputs.is_empty() {
            text.push_str("<h4>Outputs</h4>\n");
            let outputs: Vec<(&str, String)> =
                step.outputs.iter().map(|(name, value)| (name.as_str(), shown(value))).collect();
            table(text, &outputs);
        }
        evidence(text, &step.evidence);
        let is_it =
            |ended: &&StepEnd| ended.key.step.as_str() == step.id && ended.key.scope.as_str() == step.scope;
        for note in self.history.ends.iter().filter(is_it).flat_map(|ended| &ended.notes) {
            match note {
                Note::Report(markdown) => block(text, "Summary", markdown),
                Note::Warning(warning) => {
                    let _ = writeln!(
                        text,
                        "<p class=\"tolerated\">! {}</p>",
                        escaped(&self.names.plain(warning))
                    );
                }
                Note::Event { .. } => {}
            }
        }
        if let Some(log) = step.log.as_ref().filter(|log| !log.tail.is_empty()) {
            block(text, &format!("End of the log ({})", size::shown(log.bytes)), &log.tail);
        }
        text.push_str("</details>\n");
    }

    /// Lists the dead letters with their errors and the ends of their logs.
    fn dead_letters(&self, text: &mut String) {
        if self.letters.is_empty() {
            return;
        }
        text.push_str("<h2 id=\"dead-letters\">Dead letters</h2>\n");
        for letter in self.letters.iter().take(LETTERS_MAX) {
            let step = place(letter, self.names);
            let mut errors = letter.failure.error.iter();
            let _ = writeln!(
                text,
                "<details open><summary class=\"failed\"><b>✗ {}</b> {}</summary>",
                escaped(&step),
                escaped(&self.names.plain(errors.next().map_or("failed", String::as_str))),
            );
            for cause in errors {
                let _ =
                    writeln!(text, "<p class=\"failed\">cause: {}</p>", escaped(&self.names.plain(cause)));
            }
            table(text, &[("item", shown(&letter.item)), ("attempts", letter.attempts.to_string())]);
            if let Some(log) = letter.failure.ending.log.as_ref().filter(|log| !log.tail.is_empty()) {
                block(text, &format!("End of the log ({})", size::shown(log.bytes)), &log.tail);
            }
            text.push_str("</details>\n");
        }
        if self.letters.len() > LETTERS_MAX {
            let more = self.letters.len() - LETTERS_MAX;
            let _ =
                writeln!(text, "<p>{more} more: waypost dead-letters list {}</p>", escaped(&self.show.run));
        }
    }

    /// Lists the ends in scopes, such as items.
    fn scopes(&self, text: &mut String) {
        let ended: Vec<&StepEnd> =
            self.history.ends.iter().filter(|ended| !ended.key.scope.is_main()).collect();
        if ended.is_empty() {
            return;
        }
        text.push_str("<h2>Items and other scopes</h2>\n");
        folded(text, ended.len(), "steps");
        text.push_str("<div class=\"wide\"><table class=\"rows ends\"><tr><th>scope</th><th>step</th><th>outcome</th><th>exit</th><th>at</th><th></th></tr>\n");
        for end in ended.iter().take(SCOPE_ROWS_MAX) {
            let pass: String = end.key.iteration.iter().map(|count| format!(" [{count}]")).collect();
            let _ = writeln!(
                text,
                "<tr><td>{0}</td><td>{1}{pass}</td><td class=\"{2}\">{3} {2}</td><td>{4}</td><td>{5}</td><td>{6}</td></tr>",
                escaped(&end.scope),
                escaped(end.key.step.as_str()),
                end.outcome,
                sign(end.outcome),
                end.exit_code.map(|code| code.to_string()).unwrap_or_default(),
                time::utc(end.at),
                escaped(&self.names.plain(end.error.as_deref().unwrap_or_default())),
            );
        }
        text.push_str("</table></div>\n</details>\n");
        if ended.len() > SCOPE_ROWS_MAX {
            let _ = writeln!(text, "<p>{} more steps are not listed.</p>", ended.len() - SCOPE_ROWS_MAX);
        }
    }
}

fn evidence(text: &mut String, claims: &[ClaimView]) {
    if claims.is_empty() {
        return;
    }
    text.push_str("<h4>Evidence</h4>\n<div class=\"wide\"><table class=\"rows\"><tr><th>verdict</th><th>claim</th><th>expected</th><th>found</th></tr>\n");
    for claim in claims {
        let verdict = serde_json::to_value(claim.verdict).map(|verdict| shown(&verdict)).unwrap_or_default();
        let name = claim.name.as_deref().unwrap_or(&claim.kind);
        let found = claim.error.clone().unwrap_or_else(|| shown(&claim.found));
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td>{} {}</td><td>{}</td><td>{}</td></tr>",
            escaped(&verdict),
            escaped(name),
            escaped(&claim.subject),
            escaped(&shown(&claim.expected)),
            escaped(&found),
        );
    }
    text.push_str("</table></div>\n");
}

fn block(text: &mut String, title: &str, content: &str) {
    let _ = writeln!(text, "<h4>{}</h4>\n<pre>{}</pre>", escaped(title), escaped(&clip(content)));
}

fn table(text: &mut String, rows: &[(&str, String)]) {
    if rows.is_empty() {
        return;
    }
    text.push_str("<div class=\"wide\"><table>\n");
    for (name, value) in rows {
        let _ = writeln!(text, "<tr><th>{}</th><td>{}</td></tr>", escaped(name), escaped(&clip(value)));
    }
    text.push_str("</table></div>\n");
}

fn usage(usage: &Usage) -> String {
    let model = usage.model.as_ref().map(|model| format!(", {model}")).unwrap_or_default();
    format!("{} tokens in, {} out, cost {}{model}", usage.tokens_in, usage.tokens_out, usage.cost)
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

fn clip(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARACTERS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Returns the command that resumes a run.
pub(super) fn resume_of(snapshot: &Snapshot) -> String {
    format!("waypost resume {}", snapshot.entry.summary.run)
}

const STYLE: &str = "
:root{color-scheme:light dark;--ok:#1a7f37;--bad:#cf222e;--warn:#9a6700;--dim:#6e7781;--line:#8886}
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em}
h4{margin:.8em 0 .2em}
table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;padding:.1em 1em .1em 0}
th{font-weight:normal;color:var(--dim);white-space:nowrap}td{white-space:pre-wrap;overflow-wrap:anywhere}
pre{border:1px solid var(--line);border-radius:6px;padding:.6em;overflow-x:auto;white-space:pre-wrap}
details{border-bottom:1px solid var(--line);padding:.3em 0}summary{cursor:pointer}
.wide{overflow-x:auto}.rows{min-width:34em}.rows td{overflow-wrap:break-word}.ends td:nth-child(n+3):nth-child(-n+5){white-space:nowrap}.dim{color:var(--dim)}
.completed{color:var(--ok)}.failed,.cut,.in_doubt,.interrupted{color:var(--bad)}.tolerated,.waiting{color:var(--warn)}
.completed_with_failures{color:var(--warn)}
.skipped,.pending,.running,.unfinished{color:var(--dim)}
svg{display:block;font:13px system-ui,sans-serif}svg text{fill:CanvasText}
svg rect{fill:currentColor;fill-opacity:.25;stroke:currentColor}
svg .edge{fill:none;stroke:var(--dim)}
.timeline{font-size:13px}.row{display:grid;grid-template-columns:minmax(0,16em) minmax(0,1fr) 5em;gap:0 .6em;padding:.1em 0}
.name{overflow-wrap:anywhere}.scale{display:flex;justify-content:space-between;font-size:11px}.took{text-align:right}
.track{position:relative;min-height:1em;background:linear-gradient(var(--line),var(--line)) center/100% 1px no-repeat}
.bar{position:absolute;top:calc(50% - .35em);height:.7em;min-width:2px;max-width:100%;background:currentColor;border-radius:2px}
@media(max-width:600px){body{margin:1em auto}.row{grid-template-columns:minmax(0,1fr) 5em}
.track,.scale{grid-column:1/-1;grid-row:2}.scale{grid-row:1}th{white-space:normal}th,td{padding-right:.5em}}
";
