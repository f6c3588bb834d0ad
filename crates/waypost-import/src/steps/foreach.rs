//! `foreach` of Prodigy, in all its spellings: steps over the items of a list, or over the lines of a command.

use waypost_workflow::file::Node;

use super::map::{PARALLEL, TOLERATES_ALL, steps_of};
use crate::fields::Fields;
use crate::import::context::Import;
use crate::variables::names::{ItemVariable, item_name};
use crate::yaml::document::{Item, Map, Value};

/// Possible keys of the list in a map.
const INPUTS: [&str; 5] = ["foreach", "input", "items", "list", "command"];

/// The source of the items.
enum Input<'n> {
    List(&'n Node),
    Command(&'n Node),
}

/// Returns the list or the command of a `foreach`, from a value or from nested maps.
fn input<'n>(node: &'n Node, fields: &Fields<'n>) -> Input<'n> {
    let inner = INPUTS.iter().find_map(|key| fields.take(key));
    match inner {
        Some(inner) if inner.entries().is_some() => input(inner, &Fields::new(inner)),
        Some(inner) if inner.items().is_some() => Input::List(inner),
        Some(inner) => Input::Command(inner),
        None if node.items().is_some() => Input::List(node),
        None => Input::Command(node),
    }
}

impl Import<'_> {
    /// Returns the step for a `foreach`. The keys are in the nested map or in the outer map.
    pub(crate) fn foreach_step(&mut self, outer: &Fields<'_>) -> Vec<Item> {
        let Some(node) = outer.take("foreach") else { return Vec::new() };
        let inner = Fields::new(node);
        let take = |key: &str| inner.take(key).or_else(|| outer.take(key));
        let input = input(node, &inner);
        let id = self.ids.take(outer.word("id").unwrap_or("foreach"), self.line(node));
        let condition = outer.take("when").map(|when| self.when(when));
        let mut map = Map::default();
        map.text("id", id);
        if let Some(name) = outer.word("name") {
            map.text("name", name);
        }
        if let Some(condition) = &condition {
            map.text("if", condition.clone());
        }
        let mut foreach = Map::default();
        let (kind, env) = self.put_items(&input, &mut foreach);
        map.texts("env", &env);
        let name = item_name(self.scope.item_depth + 1);
        if name != "item" {
            foreach.text("as", name);
        }
        let most = take("max_items").and_then(Node::spelled).and_then(|count| count.parse::<usize>().ok());
        if let Some(most) = most.filter(|most| *most > 0) {
            foreach.raw("max_items", most.to_string());
        }
        let place = take("parallel");
        let parallel = match place {
            Some(node) if node.truth() == Some(true) => PARALLEL.to_owned(),
            Some(node) if node.truth().is_none() => self.parallel(Some(node), PARALLEL),
            _ => "1".to_owned(),
        };
        let goes_on = take("continue_on_error").and_then(Node::truth) == Some(true);
        let nodes = ["do", "commands", "steps"].iter().find_map(|key| take(key));
        let nodes = steps_of(nodes);
        let total = match &input {
            Input::List(list) => list.items().map(|items| items.len().min(most.unwrap_or(usize::MAX))),
            Input::Command(_) => None,
        };
        let outer_total = std::mem::replace(&mut self.scope.item_total, total);
        let steps = self.of_item(kind, &nodes, node, "do");
        self.scope.item_total = outer_total;
        self.put_parallel(place.unwrap_or(node), parallel, &steps, &mut foreach);
        foreach.raw("on_item_failure", if goes_on { "dead_letter" } else { "stop" });
        if goes_on {
            foreach.raw("failure_rate", TOLERATES_ALL);
        }
        foreach.steps("steps", steps);
        map.put("foreach", Value::Map(foreach));
        self.lost_keys(&inner);
        vec![Item { comments: Vec::new(), map }]
    }

    /// Writes the source of the items. Returns the kind of an item, and the variables of the listing command.
    fn put_items(&mut self, input: &Input<'_>, foreach: &mut Map) -> (ItemVariable, Vec<(String, String)>) {
        match input {
            Input::List(list) => {
                let values = list.to_json().to_string();
                if values.contains("${") {
                    let help = "write an expression: `items: ${{ params.list }}`";
                    self.note(list, "foreach", "variables in the list are plain text", help);
                }
                // A JSON list is also a YAML list. Expressions in the list are escaped.
                foreach.raw("items", values.replace("${{", "$ {{"));
                let is_text = |item: &Node| item.spelled().is_some();
                let is_plain = list.items().unwrap_or_default().iter().all(is_text);
                (if is_plain { ItemVariable::Text } else { ItemVariable::Json }, Vec::new())
            }
            Input::Command(node) => {
                let text = node.spelled().filter(|text| !text.trim().is_empty());
                let command = self.command(node, "foreach", text.unwrap_or_default(), &[]);
                let mut items = Map::default();
                items.text("run", self.listing(node, "foreach", command.text));
                foreach.put("items", Value::Map(items));
                (ItemVariable::Text, self.with_computed(command.env))
            }
        }
    }
}
