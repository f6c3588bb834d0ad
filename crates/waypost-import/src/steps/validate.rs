//! `validate` of a step: a group that repeats until the check of the work holds.
//!
//! ```text
//!   step, then group:  check -- complete? --> done
//!                        ^         | no, and passes are left
//!                        `-- on_incomplete
//! ```

use waypost_workflow::file::Node;

use super::hooks::AGAIN_MAX;
use crate::fields::Fields;
use crate::import::context::Import;
use crate::variables::names::Done;
use crate::yaml::document::{Item, Map, Value};

/// Default number of repairs.
const ATTEMPTS: u64 = 2;

/// The check of a validation.
struct Validation {
    /// The steps of the check, in order.
    check: Vec<Item>,
    /// The condition under which the work is complete.
    complete: String,
    /// The report of the check as an expression, if there is a report.
    report: Option<String>,
}

/// The reaction to incomplete work.
struct Repair {
    items: Vec<Item>,
    passes: u64,
    fails: bool,
}

impl Import<'_> {
    /// Returns the steps that validate the work of the step `done`; empty if the check has no consequence.
    pub(crate) fn validated(&mut self, node: &Node, done: &Done) -> Vec<Item> {
        let list = node.items().is_some();
        let fields = Fields::new(node);
        let before = self.scope.done.len();
        let changes = std::mem::take(&mut self.changes);
        let timeouts = std::mem::take(&mut self.item_timeouts);
        let made = self.check(node, &fields, done);
        let items = match made {
            Some(validation) => self.repeated(&fields, done, validation),
            None => {
                let message = "the validation has no command";
                self.note(node, "validate", message, "write a step that fails on incomplete work");
                Vec::new()
            }
        };
        self.scope.validation = None;
        self.scope.done.truncate(before);
        self.changes = changes;
        self.item_timeouts = timeouts;
        if !list {
            self.lost_keys(&fields);
        }
        items
    }

    /// Returns the steps of the check, and the condition for complete work.
    fn check(&mut self, node: &Node, fields: &Fields<'_>, done: &Done) -> Option<Validation> {
        let commands = if node.items().is_some() { Some(node) } else { fields.take("commands") };
        let file = fields.take("result_file");
        let timeout = fields.take("timeout").and_then(|node| self.seconds(node, "timeout"));
        let mut check = match commands {
            Some(list) => self.steps(list.items().unwrap_or_default()),
            None => self.single_check(fields, done, file.is_none()).into_iter().collect(),
        };
        check.retain(|item| !item.map.is_empty());
        let is_reported = file.is_some();
        check.extend(file.map(|file| self.report(file, done)));
        let last = check.last()?.map.id()?.to_owned();
        let mut earlier: Option<String> = None;
        for item in &mut check {
            if let Some(id) = earlier.replace(item.map.id().unwrap_or_default().to_owned()) {
                item.map.guard(&format!("steps.{id}.status == 'completed'"));
            }
            item.map.tolerate();
            if let Some(timeout) = &timeout {
                item.map.limit(timeout);
            }
        }
        let passed = format!("steps.{last}.status == 'completed'");
        let report = match (is_reported, commands) {
            (true, _) => Some(format!("steps.{last}.outputs.validation")),
            (false, Some(_)) => None,
            (false, None) => Some(format!("steps.{last}.outputs.result")),
        };
        let threshold = self.threshold(fields);
        let complete = match &report {
            Some(report) => {
                format!("{passed} && ({report}.completion_percentage | default(0)) >= {threshold}")
            }
            None => passed,
        };
        Some(Validation { check, complete, report })
    }

    fn threshold(&mut self, fields: &Fields<'_>) -> String {
        let Some(node) = fields.take("threshold") else { return "100".to_owned() };
        let number = self.constant(node);
        if number.parse::<f64>().is_ok_and(|number| (0.0..=100.0).contains(&number)) {
            return number;
        }
        self.note(
            node,
            "threshold",
            format!("the threshold `{number}` was raised to 100: only whole numbers up to 100 are valid"),
            "write the number",
        );
        "100".to_owned()
    }

    /// Returns the step that reads the report of a check from its file.
    fn report(&mut self, file: &Node, done: &Done) -> Item {
        let mut source = Map::default();
        source.text("from", self.pasted(file, "result_file", file.spelled().unwrap_or_default()));
        source.text("json", "$");
        let mut outputs = Map::default();
        outputs.put("validation", Value::Map(source));
        let mut map = Map::default();
        map.text("id", self.ids.take(&format!("{}-report", done.id), 0));
        map.text("run", ":");
        map.put("outputs", Value::Map(outputs));
        Item { comments: Vec::new(), map }
    }

    /// Returns the step of a check with a single command. The command prints its report unless the report is in a
    /// file.
    fn single_check(&mut self, fields: &Fields<'_>, done: &Done, prints: bool) -> Option<Item> {
        let (key, node) =
            ["shell", "command", "claude"].iter().find_map(|key| Some((*key, fields.take(key)?)))?;
        let text = node.spelled()?;
        let mut map = Map::default();
        map.text("id", self.ids.take(&format!("{}-check", done.id), 0));
        if key == "claude" {
            self.report_agents(node);
            map.text("agent", "claude");
            map.text("prompt", self.pasted(node, key, text));
        } else {
            let command = self.command(node, key, text, &[]);
            map.text("run", if prints { reporting(&command.text) } else { command.text });
            let env = self.with_computed(command.env);
            map.texts("env", &env);
        }
        if prints {
            map.raw("capture", "json");
        }
        Some(Item { comments: Vec::new(), map })
    }

    /// Returns the group of a check and its repair.
    fn repeated(&mut self, fields: &Fields<'_>, done: &Done, validation: Validation) -> Vec<Item> {
        let Validation { check, complete, report } = validation;
        self.scope.validation = report;
        let repair = fields.take("on_incomplete").map(|node| self.repair(node));
        // Without a repair the run continues in any case.
        let Some(Repair { items, passes, fails }) = repair else { return check };
        let condition = format!("!({complete}) && iteration <= {passes}");
        let mut steps = check;
        steps.extend(self.guarded(done, items, &condition, fails));
        let mut map = Map::default();
        map.text("id", self.ids.take(&format!("{}-validate", done.id), 0));
        if done.may_lack {
            map.text("if", format!("steps.{}.status == 'completed'", done.id));
        }
        let mut repeat = Map::default();
        repeat.text("until", if fails { complete } else { format!("{complete} || iteration > {passes}") });
        repeat.raw("max", (passes + 1).to_string());
        map.put("repeat", Value::Map(repeat));
        map.steps("steps", steps);
        vec![Item { comments: Vec::new(), map }]
    }

    /// Guards a repair, so that it runs only for incomplete work: a single step by its `if`, several steps as a
    /// group.
    fn guarded(&mut self, done: &Done, mut items: Vec<Item>, condition: &str, fails: bool) -> Vec<Item> {
        if !fails {
            items.iter_mut().for_each(|item| item.map.tolerate());
        }
        if items.iter().all(|item| item.map.is_empty()) {
            return items;
        }
        match items.as_mut_slice() {
            [item] => {
                item.map.guard(condition);
                items
            }
            _ => {
                let mut map = Map::default();
                map.text("id", self.ids.take(&format!("{}-repair", done.id), 0));
                map.text("if", condition);
                map.steps("steps", items);
                vec![Item { comments: Vec::new(), map }]
            }
        }
    }

    fn repair(&mut self, node: &Node) -> Repair {
        let fields = Fields::new(node);
        let list = if node.items().is_some() { Some(node) } else { fields.take("commands") };
        let others = ["max_attempts", "fail_workflow", "commands", "prompt"];
        let items = match list {
            Some(list) => {
                fields.pass(&others);
                self.lost_keys(&fields);
                self.steps(list.items().unwrap_or_default())
            }
            None if fields.has("claude") || fields.has("shell") => self.step(node, &others),
            None => Vec::new(),
        };
        if let Some(prompt) = fields.take("prompt") {
            let help = "write a step `approve: QUESTION` after the group";
            self.note(prompt, "prompt", "no question for incomplete work", help);
        }
        let passes = fields.word("max_attempts").and_then(|count| count.parse().ok()).unwrap_or(ATTEMPTS);
        let fails = fields.take("fail_workflow").and_then(Node::truth) != Some(false);
        Repair { items, passes: passes.min(AGAIN_MAX), fails }
    }
}

/// Returns a command that prints a report: its own JSON, or else complete, if the exit code is 0.
fn reporting(command: &str) -> String {
    format!(
        "printed=\"$WAYPOST_OUTPUT.printed\"\n\
         (\n\
         {}\n\
         ) > \"$printed\" || exit\n\
         if grep -q '\"completion_percentage\"' \"$printed\"; then cat \"$printed\"; exit; fi\n\
         cat \"$printed\" >&2\n\
         echo '{{\"completion_percentage\": 100}}'\n",
        command.trim_end_matches('\n')
    )
}
