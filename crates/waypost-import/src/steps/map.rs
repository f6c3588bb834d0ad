//! The map phase of a map-reduce workflow: the source of the items, their steps, and the policy for failures.

use waypost_workflow::file::Node;
use waypost_workflow::output::JsonPath;

use crate::fields::Fields;
use crate::import::context::Import;
use crate::variables::names::ItemVariable;
use crate::yaml::document::{Item, Map, Value};

/// Prodigy's default of `max_parallel`.
pub(crate) const PARALLEL: &str = "10";
/// The largest `max_parallel` of a workflow file.
const PARALLEL_MAX: u64 = 1_000;
/// The `failure_rate` of items that may all fail: in Prodigy, failed items do not fail the run.
pub(crate) const TOLERATES_ALL: &str = "1";

/// The source of the items.
struct Source {
    map: Map,
    /// Variables of the command that prints the items.
    env: Vec<(String, String)>,
    kind: ItemVariable,
}

impl Import<'_> {
    /// Returns the step for the map phase.
    pub(crate) fn map_phase(&mut self, node: &Node, policy: &[(&Node, &str)]) -> Item {
        let fields = Fields::new(node);
        let (map, comments) = self.commented(|import| {
            let help = "have the first step of an item make a worktree: `git worktree add`";
            let message =
                "worktrees are not carried over: items share one folder; in Prodigy each item has a git worktree";
            import.note(node, "map", message, help);
            let id = import.ids.take("map", import.line(node));
            let template = fields.take("agent_template");
            let nodes = steps_of(template);
            let source = import.source(&fields, &nodes);
            let mut foreach = Map::default();
            foreach.put("items", Value::Map(source.map));
            import.selection(&fields, &mut foreach);
            let place = fields.take("max_parallel");
            let parallel = import.parallel(place, PARALLEL);
            import.timeouts(&fields);
            let retry = fields.take("retry_config").or_else(|| policy_of(policy, "retry_config"));
            import.item_retry = retry.and_then(|node| import.retry_of_items(node));
            let steps = import.of_item(source.kind, &nodes, template.unwrap_or(node), "agent_template");
            import.item_timeouts = [None, None];
            import.item_retry = None;
            import.put_parallel(place.unwrap_or(node), parallel, &steps, &mut foreach);
            import.policy(policy, &mut foreach);
            foreach.steps("steps", steps);
            import.lost_keys(&fields);
            import.scope.map = Some(id.clone());
            let mut map = Map::default();
            map.text("id", id);
            map.texts("env", &source.env);
            map.put("foreach", Value::Map(foreach));
            map
        });
        Item { comments, map }
    }

    /// Returns the steps of an item.
    pub(crate) fn of_item(
        &mut self,
        kind: ItemVariable,
        nodes: &[Node],
        place: &Node,
        key: &str,
    ) -> Vec<Item> {
        let before = self.scope.done.len();
        let outer = self.scope.item.replace(kind);
        self.scope.item_depth += 1;
        let mut steps = self.steps(nodes);
        if steps.iter().all(|item| item.map.is_empty()) {
            self.note(place, key, "cannot carry over a step of the items: none is known", "write a step");
            steps.push(self.nothing());
        }
        self.scope.item = outer;
        self.scope.item_depth -= 1;
        self.scope.done.truncate(before);
        steps
    }

    /// Returns a step without an effect, for a list that must not be empty.
    pub(crate) fn nothing(&mut self) -> Item {
        let mut map = Map::default();
        map.text("id", self.ids.take("nothing", 0));
        map.text("run", ":");
        Item { comments: Vec::new(), map }
    }

    fn source(&mut self, fields: &Fields<'_>, steps: &[Node]) -> Source {
        let mut source = Source { map: Map::default(), env: Vec::new(), kind: ItemVariable::Json };
        let input = fields.take("input").unwrap_or(fields.node);
        let text = input.spelled().unwrap_or_default().trim();
        let path_node = fields.take("json_path");
        let path = path_node.and_then(Node::spelled).unwrap_or_default().trim();
        if is_file(text) {
            let file = self.pasted(input, "input", text);
            source.map.text("file", file);
        } else {
            let command = self.command(input, "input", text, &[]);
            source.map.text("run", self.listing(input, "input", command.text));
            source.env = self.with_computed(command.env);
            if path.is_empty() && !reads_fields(steps) {
                source.kind = ItemVariable::Text;
                return source;
            }
        }
        let path = match path {
            "" => "$",
            path => path,
        };
        match JsonPath::parse(path) {
            Ok(_) => source.map.text("json", path),
            Err(error) => {
                let help = "make the list in a step before, with `jq`";
                let message = format!("the whole document is the list: cannot carry over `{path}`: {error}");
                self.note(path_node.unwrap_or(input), "json_path", message, help);
                source.map.text("json", "$");
            }
        }
        source
    }

    /// Returns the command that prints the items. Without a command, returns a failing command: an empty list
    /// would look like success.
    pub(crate) fn listing(&mut self, node: &Node, key: &str, command: String) -> String {
        if !command.trim().is_empty() {
            return command;
        }
        let help = "write the command for the list of items, or the list";
        self.note(node, key, "the step fails: the source of its items is unknown", help);
        "echo 'nothing lists the items' >&2; exit 1".to_owned()
    }

    /// Writes the selection and the order of the items.
    fn selection(&mut self, fields: &Fields<'_>, foreach: &mut Map) {
        if let Some(filter) = fields.take("filter").and_then(|node| self.filter(node)) {
            foreach.text("filter", filter);
        }
        if let Some(order) = fields.take("sort_by").and_then(|node| self.order(node)) {
            foreach.text("sort_by", order);
        }
        if let Some(distinct) = fields.take("distinct").and_then(|node| self.distinct(node)) {
            foreach.text("distinct", distinct);
        }
        for key in ["offset", "max_items"] {
            let Some(node) = fields.take(key) else { continue };
            let number = self.constant(node);
            match number.parse::<u64>() {
                Ok(count) if count > 0 => foreach.raw(key, number),
                Ok(_) if key == "offset" => {}
                _ => {
                    let message = format!("cannot carry over `{number}`: not a number from 1");
                    self.note(node, key, message, "write a number from 1");
                }
            }
        }
    }

    pub(crate) fn parallel(&mut self, node: Option<&Node>, usual: &str) -> String {
        let Some(node) = node else { return usual.to_owned() };
        let number = self.constant(node);
        match number.parse::<u64>() {
            Ok(count) if (1..=PARALLEL_MAX).contains(&count) => number,
            _ => {
                let message =
                    format!("{usual} items at a time: `{number}` is not a number from 1 to {PARALLEL_MAX}");
                self.note(node, "max_parallel", message, "write the number");
                usual.to_owned()
            }
        }
    }

    /// Writes `max_parallel`: 1 for agents and git commands, since these would change the same files.
    pub(crate) fn put_parallel(&mut self, place: &Node, parallel: String, steps: &[Item], foreach: &mut Map) {
        if parallel == "1" || !steps.iter().any(|item| item.map.changes_files_together()) {
            foreach.raw("max_parallel", parallel);
            return;
        }
        let message = "one item at a time: agents and git commands of several items would share one folder";
        self.note(
            place,
            "max_parallel",
            message,
            format!("`max_parallel: {parallel}`, if no two items change the same files"),
        );
        let comment = format!("In Prodigy: {parallel}.");
        foreach.commented(vec![comment], "max_parallel", Value::Raw("1".to_owned()));
    }

    /// Writes the policy for failed items; of two values for a key, the first counts.
    fn policy(&mut self, policy: &[(&Node, &str)], foreach: &mut Map) {
        let get = |key: &str| policy_of(policy, key);
        let action = get("on_item_failure");
        let word = action.and_then(Node::spelled).unwrap_or("dlq");
        let goes_on = get("continue_on_failure");
        if let Some(node) = goes_on.filter(|node| node.truth().is_none()) {
            let help = "`max_failures: 0` stops the others at the first failure";
            self.note(
                node,
                "continue_on_failure",
                "cannot carry over the value: neither `true` nor `false`",
                help,
            );
        }
        let is_contrary = word == "stop" && goes_on.and_then(Node::truth) == Some(true);
        if let Some(node) = goes_on.filter(|_| is_contrary) {
            let message = "cannot carry over the value: `on_item_failure: stop` contradicts it";
            self.note(
                node,
                "continue_on_failure",
                message,
                "`on_item_failure: dead_letter` goes on after a failure",
            );
        }
        let goes_on = goes_on.and_then(Node::truth).unwrap_or(true);
        let ours = match word {
            "dlq" => "dead_letter",
            "skip" | "stop" => word,
            "retry" if get("retry_config").is_some() => "dead_letter",
            other => {
                let help = match other {
                    "retry" => "give the steps of an item a `retry`, or run `waypost dead-letters retry RUN`",
                    _ => "`waypost dead-letters list RUN`",
                };
                let message = format!("failed items become dead letters, not `{other}`");
                self.note(action.unwrap_or(self.document.root()), "on_item_failure", message, help);
                "dead_letter"
            }
        };
        foreach.raw("on_item_failure", ours);
        let limits = ["max_failures", "failure_threshold", "circuit_breaker"]
            .map(|key| get(key).map(|node| (key, node)));
        if ours == "stop" {
            for (key, node) in limits.into_iter().flatten() {
                self.note(
                    node,
                    key,
                    "cannot carry over the limit: the first failure stops the step",
                    "`on_item_failure: dead_letter` goes on after a failure",
                );
            }
        } else {
            let limit = get("max_failures").map(|node| (node, self.constant(node).parse::<u64>()));
            match (goes_on, limit) {
                (false, _) => foreach.raw("max_failures", "0"),
                // Prodigy counts the failure that stops the step, Waypost the tolerated ones.
                (true, Some((_, Ok(count)))) => {
                    foreach.raw("max_failures", count.saturating_sub(1).to_string())
                }
                (true, Some((node, Err(_)))) => {
                    self.note(
                        node,
                        "max_failures",
                        "cannot carry over the limit: not a number",
                        "write a number",
                    );
                }
                (true, None) => {}
            }
            if let Some(node) = get("failure_threshold") {
                match node.spelled().and_then(|text| text.parse::<f64>().ok()) {
                    Some(rate) if (0.0..=1.0).contains(&rate) => {
                        foreach.raw("failure_rate", rate.to_string())
                    }
                    _ => self.note(
                        node,
                        "failure_threshold",
                        "cannot carry over the limit: not a number from 0 to 1",
                        "write `failure_rate: 0.2`",
                    ),
                }
            }
            if ours == "dead_letter" && !foreach.has("max_failures") && !foreach.has("failure_rate") {
                foreach.raw("failure_rate", TOLERATES_ALL);
            }
            if let Some(node) = get("circuit_breaker") {
                self.circuit_breaker(node, foreach);
            }
        }
        if let Some(node) = get("error_collection") {
            let help = "`waypost dead-letters list RUN`, `waypost events RUN -f`";
            self.note(node, "error_collection", "every failure is recorded at once", help);
        }
    }

    fn circuit_breaker(&mut self, node: &Node, foreach: &mut Map) {
        let fields = Fields::new(node);
        let count = fields.word("failure_threshold").unwrap_or("5");
        match count.parse::<u32>() {
            Ok(count) if count > 0 => foreach.raw("circuit_breaker", count.to_string()),
            _ => self.note(
                node,
                "circuit_breaker",
                "cannot carry over the limit: not a number",
                "write `circuit_breaker: 5`",
            ),
        }
        for key in ["timeout", "success_threshold", "half_open_requests"] {
            if let Some(node) = fields.take(key) {
                let help = "`waypost resume RUN --retry-failed`";
                self.note(
                    node,
                    key,
                    "a step stopped by the circuit breaker does not restart automatically",
                    help,
                );
            }
        }
        self.lost_keys(&fields);
    }

    /// Reads the timeouts of the steps of an item.
    fn timeouts(&mut self, fields: &Fields<'_>) {
        let config = fields.take("timeout_config").map(Fields::new);
        let whole = fields.take("agent_timeout_secs");
        let whole = whole.or_else(|| config.as_ref().and_then(|config| config.take("agent_timeout_secs")));
        if let Some(node) = whole {
            let time = self.seconds(node, "agent_timeout_secs");
            if time.is_some() {
                let message =
                    "the timeout applies to each step; in Prodigy, to all steps of an item together";
                self.note(node, "agent_timeout_secs", message, "give the steps shorter `timeout`s");
            }
            self.item_timeouts = [time.clone(), time];
        }
        let Some(config) = config else { return };
        for (name, node) in config.take("command_timeouts").and_then(Node::entries).unwrap_or_default() {
            let time = self.seconds(node, "command_timeouts");
            match name.key_text() {
                "claude" => self.item_timeouts[0] = time,
                "shell" => self.item_timeouts[1] = time,
                other => {
                    let message = format!(
                        "cannot carry over the timeout of `{other}`: a kind of step without an equivalent"
                    );
                    self.note(node, "command_timeouts", message, "give the steps a `timeout`");
                }
            }
        }
        if let Some(node) = config.take("cleanup_grace_period_secs") {
            let help = "give the steps a `grace`";
            self.note(
                node,
                "cleanup_grace_period_secs",
                "the time to end after a timeout is the same for each step",
                help,
            );
        }
        for key in ["timeout_policy", "timeout_action"] {
            if let Some(node) = config.take(key) {
                self.note(
                    node,
                    key,
                    "a timeout always fails the item",
                    "write `on_item_failure`, or `continue_on_error` of the step",
                );
            }
        }
        config.pass(&["enable_monitoring"]);
        self.lost_keys(&config);
    }
}

/// Returns the value of a key of the policy.
fn policy_of<'n>(policy: &[(&'n Node, &str)], key: &str) -> Option<&'n Node> {
    policy.iter().find(|(_, name)| *name == key).map(|(node, _)| *node)
}

/// Returns the steps of a list, or of the list under `commands`.
pub(crate) fn steps_of(node: Option<&Node>) -> Vec<Node> {
    let node = node.map(|node| node.get("commands").unwrap_or(node));
    node.and_then(Node::items).unwrap_or_default().to_vec()
}

/// Returns true if an input is a file name and not a command.
fn is_file(text: &str) -> bool {
    let is_script = [".sh", ".py", ".pl", ".rb", ".js"].iter().any(|end| text.ends_with(end));
    let name = text.rsplit('/').next().unwrap_or_default();
    !text.contains(char::is_whitespace) && !is_script && (name.contains('.') || text.contains('/'))
}

/// Returns true if steps read fields of an item, so that the item is not a line of text.
fn reads_fields(steps: &[Node]) -> bool {
    let text = steps.iter().map(|step| step.to_json().to_string()).collect::<String>();
    text.split("${item.").skip(1).any(|rest| {
        let name = rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap_or_default();
        !matches!(name, "item" | "value" | "path" | "name")
    })
}
