//! Converts a whole file: its kind, its keys next to the steps, and the head of the converted file.

use waypost_workflow::file::{Document, FILE_BYTES_MAX, FileError, Node, STEPS_MAX};

use crate::Note;
use crate::fields::Fields;
use crate::import::changes::reads_changes;
use crate::import::context::Import;
use crate::steps::map::steps_of;
use crate::variables::names::{Captured, Done, Format, is_variable};
use crate::yaml::document::{Item, Map, Value};
use crate::yaml::scalar::plain;

/// Keys of the file that belong to the policy for failed items.
const POLICY: [&str; 5] =
    ["on_item_failure", "continue_on_failure", "max_failures", "failure_threshold", "error_collection"];
/// Keys of Waypost steps unknown to Prodigy.
const OURS: [&str; 7] = ["run", "agent", "service", "approve", "sleep", "wait", "needs"];
/// Keys for the work of a step of Prodigy.
const THEIRS: [&str; 9] =
    ["shell", "claude", "test", "analyze", "goal_seek", "foreach", "write_file", "handler", "validate"];
/// Further keys for the work of a step in `commands`. In `steps` they are those of other tools, such as dagu.
const THEIRS_IN_COMMANDS: [&str; 2] = ["command", "name"];

/// Returns the text of the converted file, and the notes.
pub(crate) fn import(document: &Document, from: &str, stem: &str) -> Result<(String, Vec<Note>), FileError> {
    let root = document.root();
    let nodes = check(document)?;
    let fields = Fields::new(root);
    let name = fields.word("name").filter(|name| !name.trim().is_empty()).unwrap_or(stem).to_owned();
    let mut import = Import::new(document, &name);
    import.is_map_reduce = root.get("map").is_some();
    fields.pass(&["mode"]);
    let env = import.env(fields.take("env"));
    let secrets = import.secrets(fields.take("secrets"), &env);
    let mut steps = import.computed(&env);
    if reads_changes(root, "workflow") {
        let (item, head) = import.head("workflow", None);
        import.changes.workflow = Some(head);
        steps.push(item);
    }
    let env: Vec<(String, String)> =
        env.into_iter().filter_map(|variable| Some((variable.name, variable.value?))).collect();
    match root.get("map") {
        Some(_) => steps.extend(import.map_reduce(&fields)),
        None => {
            fields.pass(&["commands", "steps"]);
            steps.extend(import.steps(nodes));
        }
    }
    let (retry, more) = import.commented(|import| {
        let retry = import.retry_of_all(&fields);
        import.beside(&fields);
        retry
    });
    steps.splice(0..0, import.printed());
    if steps.iter().all(|item| item.map.is_empty()) {
        import.note(
            root,
            "commands",
            "cannot carry over a step: the file has only keys without an equivalent",
            "write the steps",
        );
        steps.push(import.nothing());
    }
    let mut map = Map::default();
    map.raw("version", "1");
    map.text("name", name);
    if let Some(description) = fields.word("description") {
        map.text("description", description);
    }
    let params = std::mem::take(&mut import.params);
    let mut declared = Map::default();
    for (name, why) in params {
        let mut param = Map::default();
        param.raw("type", "string");
        param.text("description", why);
        declared.put(&name, Value::Map(param));
    }
    if !declared.is_empty() {
        map.put("params", Value::Map(declared));
    }
    map.texts("env", &env);
    if !secrets.is_empty() {
        map.raw("secrets", format!("[{}]", secrets.join(", ")));
    }
    let mut defaults = Map::default();
    defaults.raw("shell", "[sh, -c]");
    if let Some(retry) = retry {
        defaults.put("retry", Value::Map(retry));
    }
    map.put("defaults", Value::Map(defaults));
    let mut comments = import.comments.pop().unwrap_or_default();
    comments.extend(more);
    map.steps("steps", steps);
    let mut notes = import.notes;
    notes.sort_by_key(|note| note.line);
    let text = head(from, &comments) + &map.written();
    check_size(document, map.steps_max(), text.len())?;
    Ok((text, notes))
}

/// Refuses a file that exceeds a limit of workflow files.
fn check_size(document: &Document, steps: usize, bytes: usize) -> Result<(), FileError> {
    let help = "split the file into several workflows, or process a list with `foreach`";
    let message = match () {
        () if steps > STEPS_MAX => {
            format!("the made file would have a list of {steps} steps, more than {STEPS_MAX}")
        }
        () if bytes > FILE_BYTES_MAX => {
            format!("the made file would have {bytes} bytes, more than {} MiB", FILE_BYTES_MAX >> 20)
        }
        () => return Ok(()),
    };
    Err(document.wrong(document.root(), message, help))
}

/// Returns the comments at the head of the converted file.
fn head(from: &str, comments: &[String]) -> String {
    let mut text = format!(
        "# Converted from {}, a Prodigy workflow, by `waypost import workflow`.\n\
         #\n\
         # Steps run in the folder of this file, or in `--dir`, not in a git worktree. Commands read \
         values\n\
         # from variables, each value as one word.\n",
        plain(from)
    );
    if !comments.is_empty() {
        text.push_str(
            "#\n\
             # Differences, by line of the source, each with the action to take. Others are comments of \
             their steps.\n",
        );
    }
    for comment in comments {
        text.push_str(&format!("#   {}\n", plain(comment)));
    }
    text
}

/// Returns the steps of a workflow of Prodigy; an error for any other file.
fn check(document: &Document) -> Result<&[Node], FileError> {
    let root = document.root();
    let help = "a Prodigy workflow is a list of steps, or a map with `commands` or `map`";
    if root.is_null() {
        return Err(document.wrong(root, "the file is empty", help));
    }
    if let Some(map) = root.get("map") {
        for key in ["input", "agent_template"] {
            let is_empty =
                |node: &Node| node.is_null() || node.spelled().is_some_and(|text| text.trim().is_empty());
            if map.get(key).is_none_or(is_empty) {
                let help = "`map` has an `input` and an `agent_template`";
                return Err(document.wrong(map, format!("`map` has no `{key}`"), help));
            }
        }
        return Ok(&[]);
    }
    if root.get("mode").and_then(Node::spelled) == Some("mapreduce") {
        return Err(document.wrong(root, "a map-reduce workflow has no `map`", help));
    }
    let list = root.get("commands").or_else(|| root.get("steps")).unwrap_or(root);
    let Some(nodes) = list.items() else {
        let message = match root.entries() {
            Some(_) => "not a workflow of Prodigy: neither `commands` nor `map`".to_owned(),
            None => format!("not a workflow of Prodigy, but {}", root.described()),
        };
        return Err(document.wrong(list, message, help));
    };
    if nodes.is_empty() {
        return Err(document.wrong(list, "the workflow has no steps", help));
    }
    let is_ours = |node: &&Node| OURS.iter().any(|key| node.get(key).is_some()) || is_our_foreach(node);
    if let Some(node) = nodes.iter().find(is_ours) {
        let message = "already a workflow of Waypost";
        return Err(document.wrong(node, message, "`waypost check FILE`"));
    }
    let has_work = |node: &Node| THEIRS.iter().any(|key| node.get(key).is_some());
    let is_foreign = |node: &&Node| !has_work(node) || node.get("command").is_some();
    if root.get("commands").is_none()
        && root.get("steps").is_some()
        && let Some(node) = nodes.iter().find(is_foreign)
    {
        let message = "not a workflow of Prodigy: its `steps` have `shell` or `claude`, and no `command`";
        let help = "`waypost check FILE` names the keys to change in a file of another tool, such as dagu";
        return Err(document.wrong(node, message, help));
    }
    let is_theirs = |node: &Node| {
        let has = |key: &&str| node.get(key).is_some();
        node.spelled().is_some() || has_work(node) || THEIRS_IN_COMMANDS.iter().any(has)
    };
    if !nodes.iter().any(is_theirs) {
        return Err(document.wrong(&nodes[0], "not a Prodigy workflow: its steps have no work", help));
    }
    Ok(nodes)
}

fn is_our_foreach(node: &Node) -> bool {
    node.get("foreach")
        .is_some_and(|foreach| foreach.get("items").is_some() && foreach.get("steps").is_some())
}

/// A variable of the file.
struct Variable<'n> {
    name: String,
    /// The value, if it is a constant.
    value: Option<String>,
    /// The command that computes the value.
    command: Option<&'n Node>,
    is_secret: bool,
}

/// Returns the variable that a value refers to. Any other value of a secret is the secret itself and must not be
/// shown.
fn reference(value: &str) -> Option<&str> {
    let name = value.trim().strip_prefix('$')?;
    let name = name.strip_prefix('{').map_or(Some(name), |name| name.strip_suffix('}'))?;
    let name = name.strip_prefix("env:").or_else(|| name.strip_prefix("env.")).unwrap_or(name);
    is_variable(name).then_some(name)
}

impl Import<'_> {
    fn env<'n>(&mut self, node: Option<&'n Node>) -> Vec<Variable<'n>> {
        let mut variables = Vec::new();
        if let Some(node) = node.filter(|node| node.entries().is_none() && !node.is_null()) {
            let message = "cannot carry over `env`: not a map of variables";
            self.note(node, "env", message, "write `env: { NAME: VALUE }`");
        }
        for (key, node) in node.and_then(Node::entries).unwrap_or_default() {
            let name = key.key_text().to_owned();
            if !is_variable(&name) {
                self.note(
                    key,
                    "env",
                    format!("cannot carry over `{name}`: not the name of a variable"),
                    "rename it",
                );
                continue;
            }
            let mut variable = Variable { name: name.clone(), value: None, command: None, is_secret: false };
            if node.get("secret").is_none() {
                self.mask(&name, self.line(key));
            }
            if let Some(text) = node.spelled() {
                // Variables of the same level do not read each other.
                if text.contains('$') && !crate::variables::shell::in_text(text).is_empty() {
                    let help = "set the variable for the command: `NAME=… waypost run FILE`";
                    self.note(node, "env", format!("`{name}` has the text `{text}` as its value: variables of one level do not read each other"), help);
                }
                variable.value = Some(crate::yaml::scalar::literal(text));
                self.values.insert(name.clone(), text.to_owned());
                self.scope.env.insert(name);
            } else if node.get("secret").is_some() {
                variable.is_secret = true;
                let value = node.get("value").and_then(Node::spelled).unwrap_or_default();
                self.secret_from(node, &name, reference(value));
                self.scope.secrets.insert(name);
            } else if let Some(command) = node.get("command") {
                variable.command = Some(command);
            } else {
                let help = "set the variable for the command: `NAME=… waypost run FILE`";
                self.note(
                    node,
                    "env",
                    format!("cannot carry over `{name}`: its value depends on a condition"),
                    help,
                );
            }
            variables.push(variable);
        }
        variables
    }

    /// Returns a step for each computed variable.
    fn computed(&mut self, env: &[Variable<'_>]) -> Vec<Item> {
        let mut items = Vec::new();
        for (name, node) in env.iter().filter_map(|variable| Some((&variable.name, variable.command?))) {
            let id = self.ids.take(&format!("env-{}", name.to_ascii_lowercase()), self.line(node));
            let command = self.command(node, "env", node.spelled().unwrap_or_default(), &[]);
            let mut map = Map::default();
            map.text("id", id.clone());
            map.text("run", command.text);
            map.texts("env", &command.env);
            map.raw("capture", "text");
            items.push(Item { comments: Vec::new(), map });
            self.computed.push((name.clone(), id.clone()));
            let captured = Captured { name: name.clone(), format: Format::Text, below: String::new() };
            // First in the list, so that `${last.output}` never means this step.
            self.scope
                .done
                .insert(0, Done { id, is_agent: false, captured: vec![captured], ..Done::default() });
        }
        items
    }

    /// Returns a step for each variable of the caller used in a text.
    fn printed(&self) -> Vec<Item> {
        let item = |(name, id): &(String, String)| {
            let mut map = Map::default();
            map.text("id", id.clone());
            let unset = if name.contains(":-") { "" } else { "?" };
            map.text("run", format!("printf %s \"${{{name}{unset}}}\""));
            map.raw("capture", "text");
            Item { comments: Vec::new(), map }
        };
        self.printed.iter().map(item).collect()
    }

    fn secrets(&mut self, node: Option<&Node>, env: &[Variable<'_>]) -> Vec<String> {
        let mut names: Vec<String> =
            env.iter().filter(|variable| variable.is_secret).map(|variable| variable.name.clone()).collect();
        if let Some(node) = node {
            self.listed_secrets(node, &mut names);
        }
        for (key, node) in node.and_then(Node::entries).unwrap_or_default() {
            let name = key.key_text();
            if !is_variable(name) || self.scope.env.contains(name) || names.iter().any(|known| known == name)
            {
                let message = format!(
                    "cannot carry over the secret `{name}`: the name is in use, or not a variable name"
                );
                self.note(key, "secrets", message, "rename it");
                continue;
            }
            match (node.spelled(), node.get("provider").and_then(Node::spelled)) {
                (Some(value), _) => self.secret_from(node, name, reference(value)),
                (None, Some("env")) => {
                    let key = node.get("key").and_then(Node::spelled);
                    self.secret_from(node, name, key.filter(|key| is_variable(key)));
                }
                (None, provider) => {
                    let provider = provider.unwrap_or("another place");
                    let message = format!(
                        "the secret `{name}` is read from the caller's environment, not from {provider}"
                    );
                    self.note(
                        node,
                        "secrets",
                        message,
                        format!("set the variable for the command: `{name}=$(…) waypost run FILE`"),
                    );
                }
            }
            self.scope.secrets.insert(name.to_owned());
            names.push(name.to_owned());
        }
        names
    }

    /// Adds the secrets of a list of names, or of a single name.
    fn listed_secrets(&mut self, node: &Node, names: &mut Vec<String>) {
        let listed = match node.items() {
            Some(items) => items.iter().collect(),
            None if node.entries().is_some() || node.is_null() => Vec::new(),
            None => vec![node],
        };
        for item in listed {
            let name = item.spelled().and_then(|text| reference(text).or(Some(text.trim())));
            match name.filter(|name| is_variable(name) && !self.scope.env.contains(*name)) {
                Some(name) if names.iter().any(|known| known == name) => {}
                Some(name) => {
                    self.scope.secrets.insert(name.to_owned());
                    names.push(name.to_owned());
                }
                // The text may be the secret itself, so the note omits the text.
                None => {
                    let message = "cannot carry over a secret: its name is in use, or not a variable name";
                    self.note(item, "secrets", message, "write names of variables: `secrets: [NAME]`");
                }
            }
        }
    }

    /// Adds a note on the source of a secret, unless the source is the caller's variable of the same name.
    fn secret_from(&mut self, node: &Node, name: &str, source: Option<&str>) {
        let (message, source) = match source {
            Some(source) if source == name => return,
            Some(source) => (format!("the secret `{name}` is read"), format!("\"${source}\"")),
            None => (
                format!("the value of the secret `{name}` is not carried over: a run reads the secret"),
                "…".to_owned(),
            ),
        };
        let message = format!("{message} from the caller's variable of the same name");
        self.note(node, "secrets", message, format!("`{name}={source} waypost run FILE`"));
    }

    fn map_reduce(&mut self, fields: &Fields<'_>) -> Vec<Item> {
        let mut steps = Vec::new();
        if let Some(setup) = fields.take("setup") {
            steps.extend(self.setup(setup));
        }
        let error_policy = fields.take("error_policy");
        // A key next to `map` precedes the same key of `error_policy`.
        let mut policy: Vec<(&Node, &str)> =
            POLICY.iter().filter_map(|key| Some((fields.take(key)?, *key))).collect();
        let below = error_policy.and_then(Node::entries).unwrap_or_default();
        for (key, node) in below {
            match key.key_text() {
                known if POLICY.contains(&known) || matches!(known, "circuit_breaker" | "retry_config") => {
                    policy.push((node, known));
                }
                other => self.note(
                    key,
                    other,
                    "cannot carry over an unknown key",
                    "`waypost schema` lists the keys",
                ),
            }
        }
        if let Some(map) = fields.take("map") {
            steps.push(self.map_phase(map, &policy));
        }
        let reduce = steps_of(fields.take("reduce"));
        steps.extend(self.steps(&reduce));
        steps
    }

    fn setup(&mut self, node: &Node) -> Vec<Item> {
        let nodes = steps_of(Some(node));
        let mut steps = Vec::new();
        let outputs = node.get("capture_outputs").and_then(Node::entries).unwrap_or_default();
        for (index, step) in nodes.iter().enumerate() {
            let before = self.scope.done.len();
            let mut items = self.steps(std::slice::from_ref(step));
            for (name, value) in outputs {
                let at = value
                    .get("command_index")
                    .unwrap_or(value)
                    .spelled()
                    .and_then(|at| at.parse::<usize>().ok());
                if at == Some(index) {
                    self.capture_output(name.key_text(), value, before, &mut items);
                }
            }
            steps.extend(items);
        }
        let fields = Fields::new(node);
        fields.pass(&["commands", "capture_outputs"]);
        if let Some(timeout) = fields.take("timeout") {
            let message = "all steps of `setup` together have no timeout";
            self.note(timeout, "timeout", message, "give each step a `timeout`");
        }
        self.lost_keys(&fields);
        steps
    }

    /// Registers the output of a step under a name of `capture_outputs`.
    fn capture_output(&mut self, name: &str, value: &Node, before: usize, items: &mut [Item]) {
        let path = value.get("json_path").and_then(Node::spelled);
        let below = path.and_then(|path| path.strip_prefix('$')).unwrap_or_default();
        let is_path = below.is_empty() || crate::variables::names::is_path(below);
        for key in ["pattern", "default", "max_size", "multiline", "source"] {
            let Some(node) = value.get(key) else { continue };
            if !matches!((key, node.spelled()), ("source", Some("stdout")) | ("multiline", Some("preserve")))
            {
                let message = format!("the output `{name}` is the whole stdout of the command");
                self.note(node, key, message, "have the command print only the value");
            }
        }
        let format = if path.is_some() { Format::Json } else { Format::Text };
        let done = self.scope.done.get_mut(before..).and_then(|done| done.last_mut());
        let (Some(done), Some(item)) = (done.filter(|_| is_path), items.last_mut()) else {
            let help = "give the step a `capture`, and read `steps.ID.outputs.result`";
            self.note(
                value,
                "capture_outputs",
                format!("cannot carry over the output `{name}`: no step prints the value"),
                help,
            );
            return;
        };
        done.captured.push(Captured { name: name.to_owned(), format, below: below.to_owned() });
        item.map.capture(if format == Format::Json { "json" } else { "text" });
    }

    /// Adds the notes on keys of the file without an equivalent.
    fn beside(&mut self, fields: &Fields<'_>) {
        if let Some(line) = self.masked.values().min().copied() {
            let names: Vec<String> = self.masked.keys().map(|name| format!("`{name}`")).collect();
            let message = format!(
                "values are masked only under `secrets`, not by the name of a variable: {}",
                names.join(", ")
            );
            let help = "list the names under `secrets`, and set the variables for the command: `NAME=… waypost run FILE`";
            self.note_at(line, "env", message, help);
        }
        let lost = [
            (
                "merge",
                "cannot carry over the merge: a run has no worktree",
                "write the commands as steps at the end",
            ),
            (
                "profiles",
                "cannot carry over profiles: a workflow file has one set of variables",
                "make the variables params: `waypost run FILE --params-file PROFILE.yaml`",
            ),
            (
                "env_files",
                "a run does not read files of variables",
                "read the file before: `set -a; . ./.env; set +a; waypost run FILE`",
            ),
            (
                "config",
                "cannot carry over the settings: those of Prodigy itself",
                "write `defaults`, or `timeout` and `retry` of steps",
            ),
        ];
        for (key, message, help) in lost {
            if let Some(node) = fields.take(key) {
                self.note(node, key, message, help);
            }
        }
        for key in POLICY.iter().chain(&["error_policy", "setup", "reduce"]).filter(|key| fields.has(key)) {
            if !self.is_map_reduce {
                let node = fields.take(key).unwrap_or(fields.node);
                let keys = node.entries().unwrap_or_default();
                if *key == "error_policy" && keys.iter().all(|(key, _)| key.key_text() == "retry_config") {
                    continue;
                }
                self.note(
                    node,
                    key,
                    format!("cannot carry over `{key}`: the file has no `map`"),
                    "add `map`, or delete the key",
                );
            }
        }
        fields.pass(&["description"]);
        if fields.node.entries().is_some() {
            self.lost_keys(fields);
        }
    }
}
