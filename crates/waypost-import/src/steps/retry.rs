//! Retries: `retry` and `retry_config` of steps, of all items, and of the whole file.

use std::time::Duration;

use waypost_workflow::file::{Node, parse_duration};

use crate::fields::Fields;
use crate::import::context::Import;
use crate::yaml::document::Map;

/// Default number of attempts, the first attempt included.
const ATTEMPTS: u64 = 3;
/// Maximum number of retries in a workflow file.
const RETRIES_MAX: u64 = 1_000;
/// Keys for a retry of a step, of the items or of the file.
pub(crate) const KEYS: [&str; 4] = ["retry", "retries", "retry_config", "retry_defaults"];
/// Keys for the number of attempts.
const COUNTS: [&str; 3] = ["attempts", "max_attempts", "max_retries"];

impl Import<'_> {
    /// Returns the `retry` of a step, or of the surrounding items if the step has none.
    pub(crate) fn retry_of(&mut self, fields: &Fields<'_>, metadata: Option<&Fields<'_>>) -> Option<Map> {
        if let Some(count) = metadata.and_then(|metadata| metadata.word("retries")) {
            let count = count.parse::<u64>().ok().filter(|count| (1..=RETRIES_MAX).contains(count))?;
            let mut map = Map::default();
            map.raw("max", count.to_string());
            return Some(map);
        }
        match KEYS.iter().find_map(|key| Some((*key, fields.take(key)?))) {
            Some((key, node)) => self.retry(key, node),
            None => self.item_retry.clone(),
        }
    }

    /// Returns the `retry` for a value; `None`, with a note, if the number of attempts is unknown.
    pub(crate) fn retry(&mut self, key: &str, node: &Node) -> Option<Map> {
        let fields = Fields::new(node);
        let is_map = node.entries().is_some();
        let attempts = match is_map {
            true => COUNTS.iter().find_map(|key| fields.word(key)).map_or(Ok(ATTEMPTS), str::parse),
            false => node.spelled().unwrap_or_default().parse::<u64>().map(|count| count + 1),
        };
        // In Prodigy the number includes the first attempt.
        let count =
            attempts.ok().map(|attempts| attempts.saturating_sub(1)).filter(|count| *count <= RETRIES_MAX);
        let Some(count) = count else {
            self.note(
                node,
                key,
                "cannot carry over the retry: its number of attempts is unknown",
                "write `retry: 3`",
            );
            return None;
        };
        if count == 0 {
            return None;
        }
        let mut map = Map::default();
        map.raw("max", count.to_string());
        if !is_map {
            return Some(map);
        }
        let backoff = self.backoff(&fields);
        self.delays(&fields, backoff.delay, &mut map);
        map.raw("backoff", backoff.name);
        map.raw("jitter", if fields.is_true("jitter") { "true" } else { "false" });
        fields.pass(&["jitter_factor"]);
        fields.pass(&COUNTS);
        self.causes(&fields, &mut map);
        if let Some(budget) = fields.take("retry_budget") {
            let help = "lower `max` or `max_delay`";
            self.note(budget, "retry_budget", "the total time of all attempts has no limit", help);
        }
        if let Some(action) = fields.take("on_failure").filter(|node| node.spelled() != Some("stop")) {
            let message = "the action after the last attempt is not carried over: the step fails";
            self.note(
                action,
                "on_failure",
                message,
                "write `continue_on_error: true`, or a hook: `on_failure: [{ run: … }]`",
            );
        }
        self.lost_keys(&fields);
        Some(map)
    }

    /// Writes the first and the maximum delay. `initial` is the first delay for a retry without its own.
    fn delays(&mut self, fields: &Fields<'_>, initial: Option<String>, map: &mut Map) {
        let mut first = Duration::ZERO;
        for (theirs, ours, default) in [("initial_delay", "delay", "1s"), ("max_delay", "max_delay", "30s")] {
            let in_ms = fields.word(&format!("{theirs}_ms")).map(|count| format!("{count}ms"));
            let named = in_ms.or_else(|| fields.take(theirs).map(duration_text));
            let backoff = if ours == "delay" { initial.clone() } else { None };
            let text = named.or(backoff).unwrap_or_else(|| default.to_owned());
            match parse_duration(&text) {
                // A maximum delay below the first delay has no meaning.
                Ok(time) if time < first => {}
                Ok(time) => {
                    first = time;
                    map.raw(ours, text);
                }
                Err(_) => {
                    let message = format!("cannot carry over the delay `{text}`: it is not a duration");
                    self.note(fields.node, theirs, message, format!("write `{ours}: 10s`"));
                }
            }
        }
    }

    fn backoff(&mut self, fields: &Fields<'_>) -> Backoff {
        let Some(node) = fields.take("backoff") else { return Backoff { name: "exponential", delay: None } };
        let (name, details) = match node.get("type").and_then(Node::spelled) {
            Some(name) => (name, Some(node)),
            None => match node.entries().and_then(|entries| entries.first()) {
                Some((name, details)) => (name.key_text(), Some(details)),
                None => (node.spelled().unwrap_or_default(), None),
            },
        };
        let get = |key: &str| details.and_then(|details| details.get(key));
        let delay =
            get("delay").or_else(|| get("initial")).or_else(|| get("initial_delay")).map(duration_text);
        let factor = get("base").or_else(|| get("multiplier")).and_then(Node::spelled);
        let (ours, is_same) = match name.to_ascii_lowercase().as_str() {
            "fixed" => ("fixed", true),
            "linear" => ("linear", get("increment").is_none_or(|step| Some(duration_text(step)) == delay)),
            "exponential" => (
                "exponential",
                factor.is_none_or(|factor| factor.parse::<f64>().is_ok_and(|factor| factor == 2.0)),
            ),
            _ => ("exponential", false),
        };
        if !is_same {
            let rule = if ours == "linear" { "grows by the first delay" } else { "doubles" };
            let message = format!("the delay {rule} after each attempt: the backoff is `{ours}`");
            self.note(node, "backoff", message, "a backoff is `fixed`, `linear` or `exponential`");
        }
        Backoff { name: ours, delay }
    }

    fn causes(&mut self, fields: &Fields<'_>, map: &mut Map) {
        let Some(node) = fields.take("retry_on") else { return };
        let causes = node.items().unwrap_or_default();
        if causes.is_empty() {
            return;
        }
        if causes.iter().all(|cause| cause.spelled() == Some("timeout")) {
            map.raw("when", "[timeout]");
            return;
        }
        let help = "name exit codes, or `timeout`: `when: [timeout, exit 75]`";
        self.note(
            node,
            "retry_on",
            "every failure is retried: causes are not recognised by their text",
            help,
        );
    }

    /// Returns the `retry` for the steps of the file without their own.
    pub(crate) fn retry_of_all(&mut self, fields: &Fields<'_>) -> Option<Map> {
        let policy = fields.node.get("error_policy").filter(|_| !self.is_map_reduce);
        let below = policy.and_then(|policy| policy.get("retry_config"));
        let own = KEYS.iter().find_map(|key| Some((*key, fields.take(key)?)));
        let (key, node) = own.or_else(|| Some(("retry_config", below?)))?;
        self.retry(key, node)
    }

    /// Returns the `retry` for all steps of the items, from the policy of a map-reduce workflow.
    pub(crate) fn retry_of_items(&mut self, node: &Node) -> Option<Map> {
        let retry = self.retry("retry_config", node)?;
        let message = "a failed step of an item is retried; in Prodigy the whole item is";
        self.note(node, "retry_config", message, "add a `retry` to steps with other values");
        Some(retry)
    }
}

/// The growth of delays, and the first delay if given.
struct Backoff {
    name: &'static str,
    delay: Option<String>,
}

/// Returns a duration in the syntax of a workflow file, from `1s` or `{ secs: 1, nanos: 0 }`.
fn duration_text(node: &Node) -> String {
    match node.get("secs").and_then(Node::spelled) {
        Some(seconds) => format!("{seconds}s"),
        None => node.spelled().unwrap_or_default().replace(' ', ""),
    }
}
