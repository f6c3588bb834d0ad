//! Agents: builds the command for a prompt, and reads the answer, tokens and cost from the output of the
//! agent.
//!
//! The prompt is passed on standard input, or replaces `${{ prompt }}` in a word of the command. The prompt
//! is never part of a shell text: the shell would run it as code.

use std::collections::BTreeMap;

use serde_json::Value;
use waypost::record::Usage;

use crate::file::AgentCommand;

/// Longest failure text in a record, in characters; the log has all of it.
const FAILURE_CHARACTERS_MAX: usize = 1000;
/// Placeholder for the prompt in a word of a command.
const HOLE: &str = "${{ prompt }}";

/// Commands of agents by name.
#[derive(Debug, Clone)]
pub struct Agents(BTreeMap<String, AgentCommand>);

impl Agents {
    /// Makes the known agents and adds the `configured` ones; a configured agent replaces a known one of the
    /// same name.
    #[must_use]
    pub fn with(configured: impl IntoIterator<Item = (String, AgentCommand)>) -> Self {
        let words =
            |words: &[&str]| AgentCommand::Words(words.iter().map(|word| (*word).to_owned()).collect());
        // From each agent's own documentation: use without a terminal, output as JSON.
        let known = [
            ("claude", words(&["claude", "-p", "--output-format", "json"])),
            ("codex", words(&["codex", "exec", "--json", "-"])),
            ("gemini", words(&["gemini", "-p", HOLE, "--output-format", "json"])),
        ];
        let known = known.into_iter().map(|(name, command)| (name.to_owned(), command));
        Self(known.chain(configured).collect())
    }

    /// Returns the command of agent `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&AgentCommand> {
        self.0.get(name)
    }

    /// Returns the names of all agents.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl Default for Agents {
    fn default() -> Self {
        Self::with([])
    }
}

/// Returns the argument list for an agent's command and, unless a word has the prompt, the text for standard
/// input. A text command runs in `shell`.
pub(super) fn filled(
    command: &AgentCommand,
    prompt: String,
    shell: Vec<String>,
) -> (Vec<String>, Option<String>) {
    match command {
        AgentCommand::Shell(text) => (shell.into_iter().chain([text.clone()]).collect(), Some(prompt)),
        AgentCommand::Words(words) if words.iter().any(|word| word.contains(HOLE)) => {
            (words.iter().map(|word| word.replace(HOLE, &prompt)).collect(), None)
        }
        AgentCommand::Words(words) => (words.clone(), Some(prompt)),
    }
}

/// Parsed output of an agent.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Said {
    /// Answer.
    pub(super) text: String,
    /// Tokens and cost, if the output has them.
    pub(super) usage: Option<Usage>,
    /// Failure text, if the agent reports a failure; the exit code is not considered.
    pub(super) failed: Option<String>,
}

/// Parses the output of an agent: JSON in a known form, else plain text as the answer.
pub(super) fn said(printed: &str) -> Said {
    let plain = || Said { text: printed.trim().to_owned(), usage: None, failed: None };
    if let Ok(Value::Array(documents)) = serde_json::from_str(printed) {
        return of_lines(&documents).unwrap_or_else(plain);
    }
    if let Ok(document) = serde_json::from_str::<Value>(printed) {
        return of_document(&document).unwrap_or_else(plain);
    }
    let lines: Option<Vec<Value>> = printed
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| serde_json::from_str(line).ok())
        .collect();
    lines.and_then(|lines| of_lines(&lines)).unwrap_or_else(plain)
}

/// Parses one document, with the answer in `result` or `response`.
fn of_document(document: &Value) -> Option<Said> {
    let text = ["result", "response"].iter().find_map(|key| document.get(key)?.as_str());
    let failed = failure_of(document, text);
    if text.is_none() && failed.is_none() {
        return None;
    }
    let cost = document.get("total_cost_usd").and_then(Value::as_f64);
    let usage = document.get("usage").map(tokens);
    let models = document.get("stats").and_then(|stats| stats.get("models")?.as_object());
    let usage = match (usage, models) {
        (Some(usage), _) => {
            Some(Usage { cost: cost.unwrap_or_default(), model: model_of(document), ..usage })
        }
        (None, Some(models)) => Some(of_models(models)),
        (None, None) => cost.map(|cost| Usage { cost, ..Usage::default() }),
    };
    let text = text.unwrap_or_default().to_owned();
    Some(Said { text, usage: usage.filter(is_sound), failed })
}

/// Returns the failure text of a document. With `is_error` the answer is the failure text. An `error` also
/// counts as a failure if the document has no answer.
fn failure_of(document: &Value, text: Option<&str>) -> Option<String> {
    let is_error = document.get("is_error").and_then(Value::as_bool) == Some(true);
    let error = document.get("error").filter(|error| !error.is_null());
    if !is_error && (text.is_some() || error.is_none()) {
        return None;
    }
    let message = error.and_then(|error| error.get("message").unwrap_or(error).as_str());
    let kind = document.get("subtype").and_then(Value::as_str);
    let told = [text, message, kind].into_iter().flatten().map(str::trim).find(|told| !told.is_empty());
    let mut told: String =
        told.unwrap_or("no reason given").chars().take(FAILURE_CHARACTERS_MAX + 1).collect();
    if told.chars().count() > FAILURE_CHARACTERS_MAX {
        told.pop();
        told.push_str(" ...");
    }
    Some(told)
}

/// Returns the model of a document, if the document names exactly one.
fn model_of(document: &Value) -> Option<String> {
    if let Some(model) = document.get("model").and_then(Value::as_str) {
        return Some(model.to_owned());
    }
    let models = document.get("modelUsage")?.as_object()?;
    let mut names = models.keys();
    names.next().filter(|_| names.next().is_none()).cloned()
}

fn of_models(models: &serde_json::Map<String, Value>) -> Usage {
    let mut sum = Usage::default();
    for (name, model) in models {
        let count = |key: &str| model.get("tokens").and_then(|tokens| tokens.get(key)?.as_u64()).unwrap_or(0);
        sum.tokens_in = sum.tokens_in.saturating_add(count("prompt"));
        sum.tokens_out = sum.tokens_out.saturating_add(count("candidates")).saturating_add(count("thoughts"));
        sum.model = Some(name.clone()).filter(|_| models.len() == 1);
    }
    sum
}

/// Parses events, one per line or as one list.
///
/// A `result` event is parsed as one document. Without a `result` event, the last agent message is the
/// answer, and the tokens of all turns are added up.
fn of_lines(lines: &[Value]) -> Option<Said> {
    let kind = |line: &Value, name: &str| line.get("type").and_then(Value::as_str) == Some(name);
    if let Some(result) = lines.iter().rev().find(|line| kind(line, "result")) {
        let model = || lines.iter().find(|line| kind(line, "system")).and_then(model_of);
        let mut said = of_document(result)?;
        said.usage.iter_mut().for_each(|usage| usage.model = usage.model.take().or_else(model));
        return Some(said);
    }
    let message = |line: &Value| {
        let item = line.get("item").filter(|item| kind(item, "agent_message"))?;
        item.get("text")?.as_str().map(str::to_owned)
    };
    let ended = lines.iter().rev().find(|line| kind(line, "turn.completed") || kind(line, "turn.failed"));
    let failed = ended.filter(|line| kind(line, "turn.failed")).and_then(|line| failure_of(line, None));
    let text = lines.iter().rev().find_map(message);
    if text.is_none() && failed.is_none() {
        return None;
    }
    let mut sum: Option<Usage> = None;
    for usage in lines.iter().filter(|line| kind(line, "turn.completed")).filter_map(|line| line.get("usage"))
    {
        let turn = tokens(usage);
        let sum = sum.get_or_insert_with(Usage::default);
        sum.tokens_in = sum.tokens_in.saturating_add(turn.tokens_in);
        sum.tokens_out = sum.tokens_out.saturating_add(turn.tokens_out);
    }
    Some(Said { text: text.unwrap_or_default(), usage: sum, failed })
}

/// Reads the token counts under the known names. Cache reads count as input.
fn tokens(usage: &Value) -> Usage {
    let count = |key: &str| usage.get(key).and_then(Value::as_u64).unwrap_or(0);
    let read = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
    Usage {
        tokens_in: read.iter().fold(0_u64, |sum, key| sum.saturating_add(count(key))),
        tokens_out: count("output_tokens"),
        ..Usage::default()
    }
}

fn is_sound(usage: &Usage) -> bool {
    usage.cost.is_finite() && usage.cost >= 0.0
}

#[cfg(test)]
mod tests {
    use waypost::record::Usage;

    use super::{Agents, Said, filled, said};
    use crate::file::AgentCommand;

    #[test]
    fn the_result_among_events_is_what_was_said() {
        let events = [
            r#"{"type":"system","subtype":"init","model":"m-1"}"#,
            r#"{"type":"assistant","message":{"content":[{"type":"text","text":"not yet"}]}}"#,
            r#"{"type":"result","is_error":false,"result":"done","total_cost_usd":0.3,"usage":{"input_tokens":1,"output_tokens":2}}"#,
        ];
        for printed in [format!("[{}]", events.join(",")), events.join("\n")] {
            let Said { text, usage: found, failed } = said(&printed);
            assert_eq!((text.as_str(), found, failed), ("done", usage(1, 2, 0.3, Some("m-1")), None));
            let failing = printed.replace("\"is_error\":false", "\"is_error\":true");
            assert_eq!(said(&failing).failed.as_deref(), Some("done"));
        }
        // A list can be an answer.
        assert_eq!(said("[1, 2]").text, "[1, 2]");
    }

    fn usage(tokens_in: u64, tokens_out: u64, cost: f64, model: Option<&str>) -> Option<Usage> {
        Some(Usage { tokens_in, tokens_out, cost, model: model.map(str::to_owned) })
    }

    #[test]
    fn answers_and_usage_are_read_from_the_forms_that_are_known() {
        let cases = [
            (
                r#"{"type":"result","result":"Done.","total_cost_usd":0.25,"usage":{"input_tokens":10,"cache_read_input_tokens":5,"output_tokens":7},"modelUsage":{"m-1":{}}}"#,
                "Done.",
                usage(15, 7, 0.25, Some("m-1")),
            ),
            (
                "{\"type\":\"thread.started\"}\n{\"type\":\"item.completed\",\"item\":{\"type\":\"agent_message\",\"text\":\"first\"}}\n{\"type\":\"item.completed\",\"item\":{\"type\":\"agent_message\",\"text\":\"last\"}}\n{\"type\":\"turn.completed\",\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}\n{\"type\":\"turn.completed\",\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}\n",
                "last",
                usage(4, 5, 0.0, None),
            ),
            (
                r#"{"response":"Hi","stats":{"models":{"g-1":{"tokens":{"prompt":8,"candidates":2,"thoughts":1}}}}}"#,
                "Hi",
                usage(8, 3, 0.0, Some("g-1")),
            ),
            ("just a text\n", "just a text", None),
            ("{\"other\": 1}", "{\"other\": 1}", None),
            ("1\n2\n", "1\n2", None),
            (r#"{"result":"x","total_cost_usd":-1}"#, "x", None),
        ];
        for (printed, text, usage) in cases {
            assert_eq!(said(printed), Said { text: text.to_owned(), usage, failed: None }, "{printed}");
        }
    }

    #[test]
    fn an_agent_that_says_that_it_failed_has_failed() {
        let cases = [
            (r#"{"type":"result","is_error":true,"result":"API Error: 529"}"#, Some("API Error: 529")),
            (r#"{"type":"result","subtype":"error_max_turns","is_error":true}"#, Some("error_max_turns")),
            (r#"{"is_error":true,"result":" "}"#, Some("no reason given")),
            (r#"{"is_error":false,"result":"fine"}"#, None),
            (r#"{"error":{"type":"Error","message":"quota exceeded","code":1}}"#, Some("quota exceeded")),
            (r#"{"error":"no key"}"#, Some("no key")),
            (r#"{"response":"fine","error":null}"#, None),
            (
                "{\"type\":\"turn.started\"}\n{\"type\":\"turn.failed\",\"error\":{\"message\":\"no network\"}}\n",
                Some("no network"),
            ),
            (
                "{\"type\":\"turn.failed\",\"error\":{\"message\":\"first\"}}\n{\"item\":{\"type\":\"agent_message\",\"text\":\"ok\"}}\n{\"type\":\"turn.completed\"}\n",
                None,
            ),
        ];
        for (printed, failed) in cases {
            assert_eq!(said(printed).failed.as_deref(), failed, "{printed}");
        }
        let long = said(&format!(r#"{{"is_error":true,"result":"{}"}}"#, "x".repeat(5000))).failed.unwrap();
        assert_eq!(long.len(), 1004, "a record is no log");
    }

    #[test]
    fn a_prompt_is_a_word_or_input_and_never_code() {
        let prompt = || "say \"$(rm -rf x)\"".to_owned();
        let shell = || vec!["sh".to_owned(), "-c".to_owned()];
        let words = AgentCommand::Words(vec!["a".to_owned(), "--say=${{ prompt }}".to_owned()]);
        assert_eq!(
            filled(&words, prompt(), shell()),
            (vec!["a".to_owned(), format!("--say={}", prompt())], None)
        );
        let plain = AgentCommand::Words(vec!["a".to_owned()]);
        assert_eq!(filled(&plain, prompt(), shell()), (vec!["a".to_owned()], Some(prompt())));
        let text = AgentCommand::Shell("a | b".to_owned());
        assert_eq!(
            filled(&text, prompt(), shell()),
            (["sh", "-c", "a | b"].map(str::to_owned).to_vec(), Some(prompt()))
        );
        assert!(Agents::default().get("claude").is_some());
    }
}
