//! Hooks of a step, and the group that repairs and repeats a failed step.

use waypost_workflow::file::Node;

use super::step::{Draft, Work, with_comments};
use crate::fields::Fields;
use crate::import::context::Import;
use crate::variables::names::{Done, Format};
use crate::yaml::document::{Item, Map, Value};

/// The delimiter of a value in the file of outputs.
const END: &str = "WAYPOST_END_OF_VALUE";

/// The largest number of repetitions of a group.
pub(crate) const AGAIN_MAX: u64 = 999;

/// The answer to the failure of a step.
struct Failure {
    items: Vec<Item>,
    /// How often the step is repeated after the repair.
    again: u64,
    /// A failure after the last repetition fails the run.
    fails: bool,
}

/// The hooks of a step, by key.
#[derive(Default)]
struct Hooks(Vec<(&'static str, Value)>);

impl Import<'_> {
    /// Returns a step with its hooks and repairs.
    pub(crate) fn with_what_follows(&mut self, fields: &Fields<'_>, mut draft: Draft) -> Vec<Item> {
        let mut hooks = Hooks::default();
        let success = fields.take("on_success");
        if let Some(items) =
            success.map(|node| self.hook(node, &draft.done, false)).filter(|items| !items.is_empty())
        {
            hooks.0.push(("on_success", Value::List(items)));
        }
        let mut by_code = Map::default();
        for (code, node) in fields.take("on_exit_code").and_then(Node::entries).unwrap_or_default() {
            let number = code.key_text().parse::<u8>();
            let items = self.hook(node, &draft.done, number != Ok(0));
            match number {
                Ok(number) if !items.is_empty() => by_code.put(&number.to_string(), Value::List(items)),
                Ok(_) => {}
                Err(_) => {
                    let message = format!(
                        "cannot carry over the hook of exit code {}: not a number from 0 to 255",
                        code.key_text()
                    );
                    self.note(code, "on_exit_code", message, "write the exit code");
                }
            }
        }
        if !by_code.is_empty() {
            hooks.0.push(("on_exit_code", Value::Map(by_code)));
        }
        let failure = fields.take("on_failure");
        let failure = failure.or_else(|| fields.node.get("test")?.get("on_failure"));
        if let Some(fails) = fields.take("fail_workflow").and_then(Node::truth) {
            draft.tolerates |= !fails;
        }
        fields.pass(&["test"]);
        let failure = failure.and_then(|node| self.failure(node, &draft.done));
        let Some(failure) = failure else { return vec![self.finish(draft, hooks)] };
        if failure.again > 0 && !failure.items.is_empty() {
            return vec![self.mended(draft, hooks, failure)];
        }
        draft.tolerates |= !failure.fails;
        if !failure.items.is_empty() {
            hooks.0.push(("on_failure", Value::List(failure.items)));
        }
        vec![self.finish(draft, hooks)]
    }

    /// Returns the steps of a hook of the step `done`.
    fn hook(&mut self, node: &Node, done: &Done, has_failed: bool) -> Vec<Item> {
        self.following(done, has_failed, |import| match node.items() {
            Some(nodes) => nodes.iter().flat_map(|node| import.commented_step(node, &[])).collect(),
            None => import.commented_step(node, &[]),
        })
    }

    fn following(
        &mut self,
        done: &Done,
        has_failed: bool,
        make: impl FnOnce(&mut Self) -> Vec<Item>,
    ) -> Vec<Item> {
        let before = self.scope.done.len();
        let timeouts = std::mem::take(&mut self.item_timeouts);
        let retry = self.item_retry.take();
        // Changes are listed before a step, never before a hook of the step.
        let changes = std::mem::take(&mut self.changes);
        self.scope.done.push(Done { has_failed, ..done.clone() });
        let items = make(self);
        self.scope.done.truncate(before);
        self.item_timeouts = timeouts;
        self.item_retry = retry;
        self.changes = changes;
        if items.iter().all(|item| item.map.is_empty()) {
            // A list of comments without steps is no list: put the comments before the step.
            let comments = items.into_iter().flat_map(|item| item.comments);
            self.comments.last_mut().expect("there is one for the file").extend(comments);
            return Vec::new();
        }
        items
    }

    fn commented_step(&mut self, node: &Node, others: &[&str]) -> Vec<Item> {
        if let Some(text) = node.spelled() {
            return self.worded_step(node, text);
        }
        let (items, comments) = self.commented(|import| import.step(node, others));
        with_comments(items, comments)
    }

    /// Returns the step of a plain text: a command of Claude with a slash, else of the shell.
    fn worded_step(&mut self, node: &Node, text: &str) -> Vec<Item> {
        let line = self.line(node);
        let is_agent = text.starts_with('/');
        let (work, comments) = self.commented(|import| match is_agent {
            true => {
                import.report_agents(node);
                Work::Agent(import.pasted(node, "on_failure", text))
            }
            false => Work::Run(import.command(node, "on_failure", text, &[])),
        });
        let word = text.trim_start_matches('/').split_whitespace().next().unwrap_or_default();
        let done = Done { id: self.ids.take(word, line), is_agent, ..Done::default() };
        let draft = Draft {
            done,
            name: None,
            condition: None,
            work,
            env: Vec::new(),
            dir: None,
            timeout: None,
            retry: None,
            capture: None,
            tolerates: false,
            evidence: None,
            comments,
        };
        vec![self.finish(draft, Hooks::default())]
    }

    fn failure(&mut self, node: &Node, done: &Done) -> Option<Failure> {
        if let Some(ignores) = node.truth() {
            return ignores.then_some(Failure { items: Vec::new(), again: 0, fails: false });
        }
        if node.entries().is_none() {
            let items = self.hook(node, done, true);
            return Some(Failure { items, again: 0, fails: false });
        }
        let fields = Fields::new(node);
        let fails = fields.is_true("fail_workflow");
        let number = |key: &str| fields.word(key).and_then(|text| text.parse::<u64>().ok());
        let given = number("max_attempts").or(number("max_retries"));
        if let Some(commands) = fields.take("commands") {
            for key in ["strategy", "timeout", "capture", "handler_failure_fatal"] {
                if fields.has(key) && fields.word(key) != Some("false") {
                    let help = "give the steps of the hook keys of their own";
                    self.note(node, key, "cannot carry over a key of all steps of the hook", help);
                }
                fields.pass(&[key]);
            }
            let items = self.hook(commands, done, true);
            self.lost_keys(&fields);
            return Some(Failure { items, again: given.unwrap_or(0).min(AGAIN_MAX), fails });
        }
        if !["shell", "claude", "write_file", "foreach", "test"].iter().any(|key| fields.has(key)) {
            self.lost_keys(&fields);
            return Some(Failure { items: Vec::new(), again: 0, fails });
        }
        // Prodigy's default is one repair in a map-reduce workflow.
        let usual = if self.is_map_reduce { 1 } else { 3 };
        let others = ["fail_workflow", "max_attempts", "max_retries", "retry_original"];
        let items = self.following(done, true, |import| import.commented_step(node, &others));
        Some(Failure { items, again: given.unwrap_or(usual).min(AGAIN_MAX), fails })
    }

    /// Returns a group that repeats a step and its repair until the step succeeds.
    fn mended(&mut self, mut draft: Draft, hooks: Hooks, failure: Failure) -> Item {
        let id = draft.done.id.clone();
        let group = self.ids.take(&format!("{id}-until-done"), 0);
        let Failure { items, again, fails } = failure;
        let condition = draft.condition.take();
        let comments = std::mem::take(&mut draft.comments);
        draft.tolerates = true;
        let done = format!("steps.{id}.status == 'completed'");
        let until = if fails { done } else { format!("{done} || iteration > {again}") };
        let mut steps = vec![self.finish(draft, hooks)];
        if let Some(last) = self.scope.done.last_mut() {
            last.may_lack = true;
        }
        for mut item in items {
            if !item.map.is_empty() {
                item.map.guard(&format!("steps.{id}.status != 'completed' && iteration <= {again}"));
                item.map.tolerate();
            }
            steps.push(item);
        }
        let mut map = Map::default();
        map.text("id", group);
        if let Some(condition) = condition {
            map.text("if", condition);
        }
        let mut repeat = Map::default();
        repeat.text("until", until);
        repeat.raw("max", (again + 1).to_string());
        map.put("repeat", Value::Map(repeat));
        map.steps("steps", steps);
        Item { comments, map }
    }

    /// Returns a step, and registers its outputs for later steps.
    fn finish(&mut self, draft: Draft, hooks: Hooks) -> Item {
        let Draft {
            mut done,
            name,
            condition,
            work,
            mut env,
            dir,
            timeout,
            retry,
            capture,
            tolerates,
            evidence,
            comments,
        } = draft;
        let mut map = Map::default();
        map.text("id", done.id.clone());
        if let Some(name) = name {
            map.text("name", name);
        }
        if let Some(condition) = condition {
            map.text("if", condition);
        }
        match work {
            Work::Agent(prompt) => {
                map.text("agent", "claude");
                map.text("prompt", prompt);
            }
            Work::Run(command) => {
                env.extend(command.env);
                let is_read = self.scope.read_after_failure.contains(&done.id);
                map.text("run", if is_read { keeping(&command.text) } else { command.text });
            }
            Work::Write(command, content) => {
                env.extend(command.env);
                map.text("run", command.text);
                map.text("stdin", content);
            }
        }
        map.texts("env", &self.with_computed(env));
        if let Some(dir) = dir {
            map.text("dir", dir);
        }
        if let Some(timeout) = timeout {
            map.raw("timeout", timeout);
        }
        if let Some(retry) = retry {
            map.put("retry", Value::Map(retry));
        }
        let capture = match capture {
            Some(Format::Json) => Some("json"),
            Some(Format::Lines) => Some("lines"),
            Some(Format::Number) => Some("number"),
            // An agent's output is text without `capture`.
            Some(Format::Text | Format::Truth) => (!done.is_agent).then_some("text"),
            None => None,
        };
        if let Some(capture) = capture {
            map.raw("capture", capture);
        }
        if tolerates {
            map.raw("continue_on_error", "true");
        }
        if let Some(evidence) = evidence {
            map.put("evidence", evidence);
        }
        hooks.0.into_iter().for_each(|(key, value)| map.put(key, value));
        done.may_lack |= tolerates;
        self.scope.done.push(done);
        Item { comments, map }
    }
}

/// Returns a command that also writes its output to a file, for a repair after a failure.
fn keeping(command: &str) -> String {
    format!(
        "kept=\"$WAYPOST_OUTPUT.kept\" code=0\n\
         (\n\
         {}\n\
         ) > \"$kept\" || code=$?\n\
         cat \"$kept\"\n\
         printf 'printed<<{END}\\n%s\\n{END}\\n' \"$(tail -c 100000 \"$kept\")\" >> \"$WAYPOST_OUTPUT\"\n\
         exit \"$code\"\n",
        command.trim_end_matches('\n')
    )
}
