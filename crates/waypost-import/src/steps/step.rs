//! Converts a step: its work and its keys.

use waypost_workflow::file::{Node, parse_duration};

use crate::fields::Fields;
use crate::import::changes::{committed, reads_changes};
use crate::import::context::Import;
use crate::texts::command::Command;
use crate::variables::names::{Captured, Done, Format, is_variable};
use crate::yaml::document::{Item, Map, Value};

/// Keys of a step without an equivalent: the difference, and the fix.
const LOST: [(&str, &str, &str); 13] = [
    (
        "step_validate",
        "cannot carry over the validation: this spelling is unknown",
        "add a failing step after this one where the run must stop",
    ),
    ("validation_timeout", "the validation has no timeout", "set a `timeout` on the checking step"),
    (
        "ignore_validation_failure",
        "a failed validation is not tolerated",
        "set `continue_on_error: true` on the checking step",
    ),
    ("skip_validation", "the validation is not skipped", "delete the checking step"),
    (
        "auto_commit",
        "the changes of the step are not committed, and no commit is required",
        "add a step: `run: git commit -am MESSAGE`",
    ),
    (
        "commit_config",
        "the changes of the step are not committed",
        "add a step: `run: git commit -am MESSAGE`",
    ),
    ("analysis", "Prodigy's analysis of the project does not run", "add a step before with the analysis"),
    ("output_file", "the output is only in the log", "end the command with `> FILE`"),
    ("clear_env", "the step has the caller's variables", "begin the command with `env -i`"),
    (
        "retry_original",
        "the step is repeated wherever `max_attempts` is above 0",
        "`max_attempts: 0` repeats nothing",
    ),
    ("handler", "a handler of Prodigy does not run", "write its command as `run`"),
    ("output", "Prodigy ignores the key", "end the command with `> FILE`"),
    ("options", "the options are not part of the prompt", "write the options into the prompt"),
];

/// The work of a step.
pub(crate) enum Work {
    Run(Command),
    /// A command with its standard input.
    Write(Command, String),
    Agent(String),
}

/// A step of the converted file, before its hooks are known.
pub(crate) struct Draft {
    pub(crate) done: Done,
    pub(crate) name: Option<String>,
    pub(crate) condition: Option<String>,
    pub(crate) work: Work,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) dir: Option<String>,
    pub(crate) timeout: Option<String>,
    pub(crate) retry: Option<Map>,
    pub(crate) capture: Option<Format>,
    pub(crate) tolerates: bool,
    pub(crate) evidence: Option<Value>,
    pub(crate) comments: Vec<String>,
}

impl Import<'_> {
    /// Converts a list of steps, and inserts the steps that query git.
    pub(crate) fn steps(&mut self, nodes: &[Node]) -> Vec<Item> {
        let mut items = Vec::new();
        let outer = (std::mem::take(&mut self.changes.pending), self.changes.step.take());
        for (index, node) in nodes.iter().enumerate() {
            let head = nodes.get(index + 1).filter(|next| reads_changes(next, "step")).map(|_| {
                let (item, head) = self.head("step", None);
                items.push(item);
                head
            });
            self.changes.before.clone_from(&head);
            let (made, comments) = self.commented(|import| import.step(node, &[]));
            items.extend(self.changes.take_pending());
            items.extend(with_comments(made, comments));
            self.changes.step = head;
        }
        (self.changes.pending, self.changes.step) = outer;
        items
    }

    /// Converts a step. `others` are keys that the caller reads.
    pub(crate) fn step(&mut self, node: &Node, others: &[&str]) -> Vec<Item> {
        let fields = Fields::new(node);
        fields.pass(others);
        if node.spelled().is_none() && node.entries().is_none() {
            let message = format!("cannot carry over {}: not a step", node.described());
            self.note(node, "commands", message, "write a step: `run: COMMAND`");
            return Vec::new();
        }
        let items = if fields.has("foreach") {
            self.foreach_step(&fields)
        } else {
            match (self.work_of(&fields), fields.node.get("validate")) {
                (Some((key, text)), _) => self.one_step(&fields, key, &text),
                (None, Some(validate)) => {
                    fields.pass(&["validate"]);
                    self.validated(validate, &Done { id: "work".to_owned(), ..Done::default() })
                }
                (None, None) => self.lost_step(&fields),
            }
        };
        self.lost_keys(&fields);
        items
    }

    /// Returns the key for the work of a step, and its text.
    fn work_of(&mut self, fields: &Fields<'_>) -> Option<(&'static str, String)> {
        if let Some(text) = fields.node.spelled() {
            return Some(("claude", format!("/{}", text.trim_start_matches('/'))));
        }
        if let Some(test) = fields.node.get("test").filter(|test| test.get("command").is_some()) {
            return Some(("test", test.get("command")?.spelled()?.to_owned()));
        }
        for key in ["shell", "claude", "write_file"] {
            let Some(node) = fields.take(key) else { continue };
            let text = node.spelled().unwrap_or_default().to_owned();
            if key == "write_file" || !text.trim().is_empty() {
                return Some((key, text));
            }
        }
        let is_other = ["analyze", "goal_seek", "handler"].iter().any(|key| fields.has(key));
        let key = if fields.has("command") { "command" } else { "name" };
        if is_other || !fields.has(key) {
            return None;
        }
        // The oldest syntax: the name of a command of Claude, with arguments.
        let mut text = format!("/{}", fields.word(key)?.trim_start_matches('/'));
        for argument in fields.take("args").and_then(Node::items).unwrap_or_default() {
            text.push(' ');
            text.push_str(argument.spelled().unwrap_or_default());
        }
        Some(("claude", text))
    }

    fn lost_step(&mut self, fields: &Fields<'_>) -> Vec<Item> {
        let known = [
            (
                "analyze",
                "cannot carry over the step: Prodigy itself analyses the project",
                "write the command as `run`",
            ),
            (
                "goal_seek",
                "cannot carry over the step: Prodigy 0.4 has no such step",
                "write a group: `repeat: { until: …, max: N }` with `steps`",
            ),
            (
                "handler",
                "cannot carry over the step: the handler is part of Prodigy",
                "write its command as `run`",
            ),
        ];
        let found = known.iter().find(|(key, ..)| fields.has(key));
        match found {
            Some((key, message, help)) => {
                let node = fields.take(key).unwrap_or(fields.node);
                self.note(node, key, *message, *help);
                // The note covers the other keys of the step.
                fields.pass_all();
            }
            None => self.note(
                fields.node,
                "commands",
                "cannot carry over the step: its work is unknown",
                "write its command as `run`",
            ),
        }
        vec![Item { comments: Vec::new(), map: Map::default() }]
    }

    fn one_step(&mut self, fields: &Fields<'_>, key: &'static str, text: &str) -> Vec<Item> {
        let node = fields.node;
        let line = self.line(node);
        let own = fields.word("id").map(str::to_owned);
        let word = own.clone().unwrap_or_else(|| word_of(key, text));
        let id = self.ids.take(&word, line);
        if let Some(own) = own.as_ref().filter(|own| **own != id) {
            let message = format!("the id is `{id}`: `{own}` is taken, or not the name of a step");
            self.note(node, "id", message, format!("expressions read `steps.{id}`"));
        }
        let condition = fields.take("when").map(|when| self.when(when));
        let mut env = self.variables(fields.take("env"), "env");
        let metadata = fields.take("metadata").map(Fields::new);
        if let Some(metadata) = &metadata {
            env.extend(self.variables(metadata.take("env"), "env"));
        }
        let work = match key {
            "claude" => {
                self.report_agents(node);
                let place = fields.node.get(key).unwrap_or(node);
                Work::Agent(self.pasted(place, key, text))
            }
            "write_file" => self.write_file(fields, &env),
            _ => {
                let place = fields.node.get(key).unwrap_or(node);
                Work::Run(self.command(place, key, text, &env))
            }
        };
        let is_agent = matches!(work, Work::Agent(_));
        let (captured, capture) = self.capture(fields);
        let dir = fields.filled("working_dir").map(str::to_owned);
        let files = self.files(fields, own.as_deref().unwrap_or(&id), line);
        let mut draft = Draft {
            name: fields.filled("name").or_else(|| fields.filled("description")).map(str::to_owned),
            dir: dir.map(|dir| self.pasted(node, "working_dir", &dir)),
            timeout: self.timeout_of(fields, metadata.as_ref(), is_agent),
            retry: self.retry_of(fields, metadata.as_ref()),
            capture,
            tolerates: false,
            evidence: None,
            comments: Vec::new(),
            done: Done {
                id,
                own: own.clone(),
                is_agent,
                captured,
                files: files.iter().map(|(field, id, _)| (field.clone(), id.clone())).collect(),
                may_skip: condition.is_some(),
                may_lack: condition.is_some(),
                has_failed: false,
            },
            condition,
            work,
            env,
        };
        let tolerant = ["allow_failure", "continue_on_error", "ignore_errors"];
        draft.tolerates = tolerant.map(|key| fields.is_true(key)).contains(&true);
        if let Some(metadata) = &metadata {
            draft.tolerates |= metadata.is_true("continue_on_error");
        }
        // `temporary` is implied: every step has its own environment.
        fields.pass(&["temporary"]);
        let mut items = self.committing(fields, metadata.as_ref(), &mut draft);
        if let Some(metadata) = &metadata {
            self.lost_keys(metadata);
        }
        let validate = fields.take("validate");
        let done = Done { may_lack: draft.done.may_lack || draft.tolerates, ..draft.done.clone() };
        items.extend(self.with_what_follows(fields, draft));
        for (_, id, pattern) in files {
            let mut map = Map::default();
            map.text("id", id);
            map.text("run", FIND_FILE);
            map.texts("env", &[("PATTERN".to_owned(), crate::yaml::scalar::literal(&pattern))]);
            map.raw("capture", "text");
            items.push(Item { comments: Vec::new(), map });
        }
        items.extend(validate.map(|node| self.validated(node, &done)).unwrap_or_default());
        items
    }

    /// Adds the evidence of a required commit. Returns the step that prints the previous commit.
    fn committing(
        &mut self,
        fields: &Fields<'_>,
        metadata: Option<&Fields<'_>>,
        draft: &mut Draft,
    ) -> Vec<Item> {
        let is_required = fields.is_true("commit_required")
            | metadata.is_some_and(|metadata| metadata.is_true("commit_required"));
        if !is_required || fields.node.get("auto_commit").and_then(Node::truth) == Some(true) {
            return Vec::new();
        }
        let known = self.changes.before.take().filter(|_| draft.dir.is_none());
        let (items, head) = match known {
            Some(head) => (Vec::new(), head),
            None => {
                let (item, head) = self.head(&draft.done.id, draft.dir.as_deref());
                (vec![item], head)
            }
        };
        draft.evidence = Some(committed(&head, draft.dir.as_deref()));
        if let Some(dir) = &draft.dir {
            draft.env.push(("COMMIT_DIR".to_owned(), dir.clone()));
        }
        items
    }

    /// Adds the note about the permissions of agents, once.
    pub(crate) fn report_agents(&mut self, node: &Node) {
        if std::mem::replace(&mut self.has_agent, true) {
            return;
        }
        let message = "the agent `claude` has the permissions of the configuration, by default none; \
                       Prodigy grants all permissions";
        let help = "write the permissions into `.waypost/config.yaml`: `agents: { claude: [claude, -p, …] }`";
        self.note(node, "claude", message, help);
    }

    /// Returns the variables of a step.
    pub(crate) fn variables(&mut self, node: Option<&Node>, key: &str) -> Vec<(String, String)> {
        let mut variables = Vec::new();
        for (name, value) in node.and_then(Node::entries).unwrap_or_default() {
            let name = name.key_text();
            match value.spelled() {
                Some(text) if is_variable(name) => {
                    self.mask(name, self.line(value));
                    let text = self.pasted(value, key, text);
                    variables.push((name.to_owned(), text));
                }
                _ => {
                    let message = format!(
                        "cannot carry over the variable `{name}`: its value is {}",
                        value.described()
                    );
                    self.note(value, key, message, "set the variable in the command");
                }
            }
        }
        variables
    }

    fn write_file(&mut self, fields: &Fields<'_>, env: &[(String, String)]) -> Work {
        let whole = fields.node.get("write_file").unwrap_or(fields.node);
        let file = Fields::new(whole);
        let place = file.take("path").unwrap_or(whole);
        let path = self.pasted(place, "write_file", place.spelled().unwrap_or_default());
        let content = file.take("content").unwrap_or(whole);
        let text = self.pasted(content, "write_file", content.spelled().unwrap_or_default());
        if let Some(format) = file.word("format").filter(|format| *format != "text") {
            let message = format!("the content is not checked to be {format}, and not reformatted");
            self.note(whole, "format", message, "use `jq` in the command");
        }
        let name = if env.iter().any(|(name, _)| name == "FILE") { "WRITTEN_FILE" } else { "FILE" };
        let mut command = String::new();
        if file.is_true("create_dirs") {
            command.push_str(&format!("mkdir -p \"$(dirname \"${name}\")\" && "));
        }
        command.push_str(&format!("cat > \"${name}\""));
        let is_mode = |mode: &&str| !mode.is_empty() && mode.bytes().all(|byte| byte.is_ascii_digit());
        if let Some(mode) = file.word("mode").filter(|mode| !matches!(*mode, "0644" | "644")).filter(is_mode)
        {
            command.push_str(&format!(" && chmod {mode} \"${name}\""));
        }
        self.lost_keys(&file);
        Work::Write(Command { text: command, env: vec![(name.to_owned(), path)] }, text)
    }

    /// Returns the variables for the output of a step, and the capture format.
    fn capture(&mut self, fields: &Fields<'_>) -> (Vec<Captured>, Option<Format>) {
        let mut names: Vec<String> = Vec::new();
        for key in ["capture", "capture_output"] {
            let Some(node) = fields.take(key) else { continue };
            // `true` makes the output `${shell.output}`, which is readable without a capture.
            if let (None, Some(name)) = (node.truth(), node.spelled()) {
                names.push(name.to_owned());
            }
        }
        let format = match fields.word("capture_format") {
            None | Some("text" | "string") => Format::Text,
            Some("json") => Format::Json,
            Some("lines") => Format::Lines,
            Some("number") => Format::Number,
            Some("boolean") => Format::Truth,
            Some(other) => {
                let message = format!("the output is text: the format `{other}` is unknown");
                self.note(
                    fields.node,
                    "capture_format",
                    message,
                    "write `capture: text`, `json`, `lines` or `number`",
                );
                Format::Text
            }
        };
        if let Some(node) = fields.take("capture_streams") {
            let is_asked = node.get("stderr").and_then(Node::truth) == Some(true)
                || matches!(node.spelled(), Some("stderr" | "both" | "combined"));
            if is_asked {
                let help = "end the command with `2>&1`";
                self.note(node, "capture_streams", "only standard output is captured", help);
            }
        }
        for name in &names {
            self.mask(name, self.line(fields.node));
        }
        let captured: Vec<Captured> =
            names.into_iter().map(|name| Captured { name, format, below: String::new() }).collect();
        let capture = (!captured.is_empty()).then_some(format);
        (captured, capture)
    }

    /// Returns the `file_pattern` outputs of a step: name, id of the step that finds the file, pattern.
    fn files(&mut self, fields: &Fields<'_>, stem: &str, line: usize) -> Vec<(String, String, String)> {
        let mut files = Vec::new();
        let outputs = fields.take("outputs").and_then(Node::entries).unwrap_or_default();
        for (field, value) in outputs {
            let field = field.key_text();
            match value.get("file_pattern").and_then(Node::spelled) {
                Some(pattern) => {
                    let message = format!(
                        "`{field}` is the matching file of the newest commit; in Prodigy, of the commits of this step"
                    );
                    self.note(
                        value,
                        "outputs",
                        message,
                        "have the step print the path, with `capture: text`",
                    );
                    let id = self.ids.take(&format!("{stem}-{field}"), line);
                    files.push((field.to_owned(), id, pattern.to_owned()));
                }
                None => {
                    let help = "have the command write `name=value` to \"$WAYPOST_OUTPUT\"";
                    self.note(
                        value,
                        "outputs",
                        format!("cannot carry over the output `{field}`: `file_pattern` is missing"),
                        help,
                    );
                }
            }
        }
        files
    }

    fn timeout_of(
        &mut self,
        fields: &Fields<'_>,
        metadata: Option<&Fields<'_>>,
        is_agent: bool,
    ) -> Option<String> {
        let node = fields.take("timeout").or_else(|| metadata.and_then(|metadata| metadata.take("timeout")));
        match node {
            Some(node) => self.seconds(node, "timeout"),
            None => self.item_timeouts[usize::from(!is_agent)].clone(),
        }
    }

    /// Returns a duration; a plain number is in seconds.
    pub(crate) fn seconds(&mut self, node: &Node, key: &str) -> Option<String> {
        let text = self.constant(node);
        let duration = match text.parse::<u64>() {
            Ok(seconds) => format!("{seconds}s"),
            Err(_) => text.replace(' ', ""),
        };
        if parse_duration(&duration).is_ok_and(|time| !time.is_zero()) {
            return Some(duration);
        }
        self.note(
            node,
            key,
            format!("cannot carry over `{text}`: not a duration"),
            format!("write `{key}: 10m`"),
        );
        None
    }

    /// Returns a scalar, or the value of the file's variable if the scalar names a variable.
    pub(crate) fn constant(&self, node: &Node) -> String {
        let text = node.spelled().unwrap_or_default().trim();
        let name = text.strip_prefix('$').map(|name| name.trim_start_matches('{').trim_end_matches('}'));
        let value = name.and_then(|name| self.values.get(name));
        value.map_or(text, String::as_str).to_owned()
    }

    /// Adds a note for each unread key.
    pub(crate) fn lost_keys(&mut self, fields: &Fields<'_>) {
        for (key, value) in fields.rest() {
            let name = key.key_text();
            if value.is_null() || value.truth() == Some(false) && LOST.iter().any(|(lost, ..)| *lost == name)
            {
                continue;
            }
            match LOST.iter().find(|(lost, ..)| *lost == name) {
                Some((_, message, help)) => self.note(key, name, *message, *help),
                None => self.note(
                    key,
                    name,
                    "cannot carry over an unknown key",
                    "`waypost schema` lists the keys",
                ),
            }
        }
    }
}

/// Prints the file of the newest commit that matches `$PATTERN`.
const FIND_FILE: &str =
    "git log -1 --format= --name-only --diff-filter=AM -- \":(glob)**/$PATTERN\" | tail -n 1";

/// Puts comments before the first step.
pub(crate) fn with_comments(mut items: Vec<Item>, comments: Vec<String>) -> Vec<Item> {
    if items.is_empty() && !comments.is_empty() {
        items.push(Item { comments: Vec::new(), map: Map::default() });
    }
    if let Some(first) = items.first_mut() {
        first.comments.splice(0..0, comments);
    }
    items
}

/// Returns the word of a command best suited as an id.
fn word_of(key: &str, text: &str) -> String {
    if key == "write_file" {
        return "write-file".to_owned();
    }
    let keyword = |word: &&str| {
        let is_name = word.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '_'));
        let known = [
            "if", "for", "while", "until", "case", "set", "cd", "export", "then", "do", "sudo", "time", "env",
        ];
        is_name && !word.contains('=') && !known.contains(word)
    };
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    // A shell keyword does not name a command.
    let word = line.and_then(|line| line.split_whitespace().next()).filter(keyword).unwrap_or_default();
    let word = word.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    word.split(['.', ';', '|', '&']).next().unwrap_or_default().to_owned()
}
