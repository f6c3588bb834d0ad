//! Checks before a run that expressions read existing names only.

use std::collections::HashSet;
use std::ops::Range;

use super::body::BodyDraft;
use super::checker::Checker;
use super::child::{ChildWorkflow, Given};
use super::evidence::variables_in;
use super::foreach::{Distinct, EachDraft, ITEM_INDEX};
use super::graph::EdgeOrder;
use super::node::Node;
use super::params::Param;
use super::settings::Variable;
use super::step::Draft;
use super::work::Work;
use crate::expr::{Call, Reference, Template, is_taken};
use crate::suggest::listed;

/// Most names listed in a message.
const LISTED_MAX: usize = 12;

/// Names in scope.
pub(super) struct Names<'a, 'n> {
    pub(super) params: &'a [Param],
    pub(super) secrets: &'a [String],
    pub(super) env: &'a [Variable<'n>],
    pub(super) defaults_env: &'a [Variable<'n>],
    pub(super) body: &'a BodyDraft<'n>,
    /// Names of the parent list, and the position of the parent step.
    pub(super) above: Option<(&'a Names<'a, 'n>, usize)>,
    /// Whether the steps run after the parent step has ended.
    pub(super) is_after: bool,
}

/// Context of an expression, which decides the names in scope.
#[derive(Debug, Clone, Copy)]
struct Site<'a> {
    /// Key, for messages.
    what: &'a str,
    /// Position of the step; `None` outside of steps.
    step: Option<usize>,
    /// How many of the three layers of `env` are in scope.
    layers: usize,
    /// Whether the expression is evaluated after the step has ended.
    is_after: bool,
}

/// Place inside a text; mapped to a place in the file only for a message.
struct At<'a> {
    node: &'a Node,
    text: &'a str,
    range: &'a Range<usize>,
}

struct Pass<'a, 'c, 'n, 's> {
    names: &'a Names<'a, 'n>,
    checker: &'c mut Checker<'s>,
    /// Steps whose standard output is read.
    kept: HashSet<String>,
}

/// Checks all expressions; returns the ids of the steps whose standard output is read.
pub(super) fn check(
    checker: &mut Checker<'_>,
    names: &Names<'_, '_>,
    defaults_dir: Option<&(Template, &Node)>,
) -> HashSet<String> {
    let mut pass = Pass { names, checker, kept: HashSet::new() };
    for (name, template, node) in names.env {
        pass.template(template, node, Site { what: name, step: None, layers: 0, is_after: false });
    }
    for (name, template, node) in names.defaults_env {
        pass.template(template, node, Site { what: name, step: None, layers: 1, is_after: false });
    }
    if let Some((dir, node)) = defaults_dir {
        pass.template(dir, node, Site { what: "dir", step: None, layers: 2, is_after: false });
    }
    pass.steps();
    pass.kept
}

impl<'a> Pass<'a, '_, '_, '_> {
    fn steps(&mut self) {
        for (position, draft) in self.names.body.drafts.iter().enumerate() {
            let site = |what| Site { what, step: Some(position), layers: 2, is_after: false };
            self.step(position, draft);
            if let Some(each) = &draft.each {
                self.each(position, each);
            }
            if let Some((repeat, node)) = &draft.repeat {
                let site = Site { is_after: true, ..site("until") };
                let until = &repeat.until;
                self.uses(until.references(), until.calls(), node, site);
            }
            if let Some(body) = draft.within() {
                self.within(position, body, false);
            }
            for (_, body) in &draft.hooks {
                self.within(position, body, true);
            }
        }
    }

    /// Checks the expressions of a `foreach`.
    fn each(&mut self, position: usize, each: &EachDraft<'_>) {
        let site = |what, layers| Site { what, step: Some(position), layers, is_after: false };
        let foreach = &each.foreach;
        for template in foreach.items.templates() {
            self.template(template, each.items_node, site("items", 3));
        }
        if let Some((key, node)) = foreach.key.as_ref().zip(each.key_node) {
            self.template(key, node, site("key", 2));
        }
        if let Some((filter, node)) = foreach.filter.as_ref().zip(each.filter_node) {
            self.uses(filter.references(), filter.calls(), node, site("filter", 2));
        }
        if let Some((by, node)) = foreach.sort_by.as_ref().zip(each.sort_node) {
            self.uses(by.references(), by.calls(), node, site("sort_by", 2));
        }
        if let (Some(Distinct::By(by)), Some(node)) = (&foreach.distinct, each.distinct_node) {
            self.uses(by.references(), by.calls(), node, site("distinct", 2));
        }
    }

    /// Checks the steps of a body, or of a hook.
    fn within(&mut self, position: usize, body: &BodyDraft<'_>, is_after: bool) {
        let outer = self.names;
        let inner = Names { body, above: Some((outer, position)), is_after, ..*outer };
        let mut pass = Pass { names: &inner, checker: self.checker, kept: HashSet::new() };
        pass.steps();
        let kept = pass.kept;
        self.kept.extend(kept);
    }

    /// Checks the references and calls of one expression.
    fn uses<'r>(
        &mut self,
        references: impl Iterator<Item = &'r Reference>,
        calls: impl Iterator<Item = &'r Call>,
        node: &Node,
        site: Site<'_>,
    ) {
        let text = node.spelled().unwrap_or_default();
        for reference in references {
            self.reference(reference, node, text, site);
        }
        for call in calls {
            self.call(call, node, text, site);
        }
    }

    fn step(&mut self, position: usize, draft: &Draft<'_>) {
        let site = |what, layers| Site { what, step: Some(position), layers, is_after: false };
        if let Some((condition, node)) = &draft.condition {
            self.uses(condition.references(), condition.calls(), node, site("if", 2));
        }
        for (name, template, node) in &draft.env {
            self.no_secret(name, node);
            self.template(template, node, site(name, 2));
        }
        for (name, given, node) in &draft.params {
            if let Given::Filled(template) = given {
                self.template(template, node, site(name, 2));
            }
        }
        let others = [("stdin", &draft.stdin), ("undo", &draft.undo), ("report", &draft.report)];
        for (what, (template, node)) in
            others.into_iter().filter_map(|(what, found)| Some((what, found.as_ref()?)))
        {
            // `report` and `undo` are evaluated after the step has ended.
            self.template(template, node, Site { is_after: what != "stdin", ..site(what, 3) });
        }
        if let Some((template, Some(node))) = &draft.dir {
            self.template(template, node, site("dir", 3));
        }
        for (_, source, node) in &draft.outputs {
            self.template(&source.from, node, site("from", 3));
        }
        for (template, node) in draft.evidence.iter().flat_map(|draft| &draft.texts) {
            // Evidence is checked after the step has ended.
            self.template(template, node, Site { is_after: true, ..site("evidence", 3) });
        }
        for (command, node, given) in draft.evidence.iter().flat_map(|draft| &draft.commands) {
            self.warn_pasted(command, node);
            self.no_withheld(command, node, given);
        }
        let Some((work, node)) = &draft.work else { return };
        for text in work.templates() {
            self.template(text, node, site(work.key(), 3));
        }
        if let Work::Run(run) | Work::Service(run) = work {
            self.warn_pasted(run, node);
        }
    }

    /// Reports a secret read by a command of evidence without being passed by name.
    fn no_withheld(&mut self, command: &Template, node: &Node, given: &[String]) {
        let secrets = self.names.secrets;
        let read = || variables_in(command.as_str());
        let withheld =
            secrets.iter().find(|secret| read().any(|name| name == *secret) && !given.contains(*secret));
        if let Some(secret) = withheld {
            let help = format!("pass the secret by name: `env: [{secret}]`");
            let message = format!("evidence has no access to secret `{secret}`");
            self.checker.wrong(node, message, &help);
        }
    }

    fn no_secret(&mut self, name: &str, node: &Node) {
        if self.names.secrets.iter().any(|secret| secret == name) {
            let help = "secrets come from the caller's environment: choose another name here";
            self.checker.wrong(node, format!("`{name}` is a secret, but `env` sets it too"), help);
        }
    }

    fn template(&mut self, template: &Template, node: &Node, site: Site<'_>) {
        for reference in template.references() {
            self.reference(reference, node, template.as_str(), site);
        }
        for (_, call) in template.calls() {
            self.call(call, node, template.as_str(), site);
        }
    }

    fn call(&mut self, call: &Call, node: &Node, text: &str, site: Site<'_>) {
        let (name, range) = match call {
            Call::Always => return,
            Call::Skipped { step, range } => {
                self.earlier(step, &At { node, text, range }, site);
                return;
            }
            Call::Failure { range } => ("failure", range),
            Call::Success { range } => ("success", range),
        };
        if site.what != "if" {
            let help = "read the `.status` of a step".to_owned();
            let message = format!("`{name}()` is supported only in `if`");
            self.wrong(&At { node, text, range }, message, None, Some(help));
        }
    }

    fn reference(&mut self, reference: &Reference, node: &Node, text: &str, site: Site<'_>) {
        let place = At { node, text, range: &reference.range };
        let part = |index: usize| reference.path.get(index).map(String::as_str);
        match (part(0), part(1)) {
            (Some("params"), Some(name)) => self.param(name, &place),
            (Some("env"), Some(name)) => self.variable(name, &place, site),
            (Some("steps"), Some(id)) => {
                if let Some(draft) = self.earlier(id, &place, site) {
                    self.part_of(draft, (part(2), part(3)), &place);
                }
            }
            _ => {}
        }
    }

    /// Checks a reference to a part of a step.
    fn part_of(&mut self, draft: &'a Draft<'_>, (what, name): (Option<&str>, Option<&str>), place: &At<'_>) {
        let id = &draft.id;
        if draft.group.is_some() && matches!(what, Some("outputs" | "stdout" | "exit_code")) {
            let help = "read the outputs of its steps by their ids".to_owned();
            return self.wrong(
                place,
                format!("step `{id}` is a group, and has no outputs"),
                None,
                Some(help),
            );
        }
        if let Some((Work::Workflow(child), _)) = &draft.work {
            return self.part_of_file(draft, child, (what, name), place);
        }
        match (what, name, draft.each.is_some()) {
            (Some("outputs" | "stdout" | "exit_code"), _, true) => {
                let help = format!("read `steps.{id}.items`, `.total`, `.succeeded` or `.failed`");
                self.wrong(
                    place,
                    format!("step `{id}` is a `foreach`, and has no outputs of its own"),
                    None,
                    Some(help),
                );
            }
            (Some(what @ ("items" | "items_file" | "total" | "succeeded" | "failed")), _, false) => {
                let message = format!("step `{id}` has no `{what}`: it is not a `foreach`");
                self.wrong(place, message, None, None);
            }
            (Some("stdout"), ..) => drop(self.kept.insert(id.clone())),
            (Some("outputs"), Some(name), _) => self.output(draft, name, place),
            _ => {}
        }
    }

    /// Checks a reference to a step with an included file: only outputs, by the ids of the included steps.
    fn part_of_file(
        &mut self,
        draft: &Draft<'_>,
        child: &ChildWorkflow,
        (what, name): (Option<&str>, Option<&str>),
        place: &At<'_>,
    ) {
        let id = &draft.id;
        if let Some(what) = what.filter(|what| !matches!(*what, "outputs" | "status")) {
            let message = format!("step `{id}` includes another file, and has no `{what}`");
            let help = format!("read the outputs of the included steps: `steps.{id}.outputs.STEP.NAME`");
            return self.wrong(place, message, None, Some(help));
        }
        let steps = || child.workflow().steps().iter().map(|step| step.id.as_str());
        let Some(name) = name.filter(|name| !steps().any(|step| step == *name)) else { return };
        let hint = self.checker.nearest(name, steps());
        let help = format!("its steps are {}", listed(steps().take(LISTED_MAX)));
        self.wrong(place, format!("`{}` has no step `{name}`", child.file()), hint, Some(help));
    }

    fn wrong(&mut self, place: &At<'_>, message: String, hint: Option<String>, help: Option<String>) {
        if self.checker.problems.is_full() {
            return;
        }
        let span = self.checker.inside(place.node, place.text, place.range);
        let mut problem = self.checker.source.problem(&span, message).hint(hint);
        problem.help = help;
        self.checker.problems.push(problem);
    }

    fn warn(&mut self, place: &At<'_>, message: String, help: &str) {
        if !self.checker.warnings.is_full() {
            let span = self.checker.inside(place.node, place.text, place.range);
            self.checker.warnings.push(self.checker.source.problem(&span, message).help(help));
        }
    }

    fn param(&mut self, name: &str, place: &At<'_>) {
        let declared = || self.names.params.iter().map(|param| param.name.as_str());
        if declared().any(|param| param == name) {
            return;
        }
        let hint = self.checker.nearest(name, declared()).map(|near| format!("params.{near}"));
        let help = match hint {
            Some(_) => None,
            None => Some(format!("declare it: `params: {{ {name}: {{ type: string }} }}`")),
        };
        self.wrong(place, format!("there is no param `{name}`"), hint, help);
    }

    fn variable(&mut self, name: &str, place: &At<'_>, site: Site<'_>) {
        let names = self.names;
        if names.secrets.iter().any(|secret| secret == name) {
            let help = format!(
                "write `\"${name}\"` in a command: the shell expands it, and the value is never recorded"
            );
            self.wrong(place, format!("expressions cannot read secret `{name}`"), None, Some(help));
            return;
        }
        let own: &[Variable<'_>] = site.step.map_or(&[], |step| &names.body.drafts[step].env);
        let layers = [names.env, names.defaults_env, own];
        let readable = || layers[..site.layers].iter().copied().flatten().map(|(name, ..)| name.as_str());
        if readable().any(|known| known == name) {
            return;
        }
        if layers[site.layers..].iter().copied().flatten().any(|(known, ..)| known == name) {
            let help = "an expression reads only `env` of outer levels";
            let message = format!("`env.{name}` is not set when `{}` is evaluated", site.what);
            self.wrong(place, message, None, Some(help.to_owned()));
            return;
        }
        let hint = self.checker.nearest(name, readable()).map(|near| format!("env.{near}"));
        let help = format!("`env` contains only the variables of the file; in a command write `\"${name}\"`");
        self.wrong(place, format!("`env` has no `{name}`"), hint, Some(help));
    }

    /// Returns the step `id`, if it has certainly ended before the expression is evaluated.
    fn earlier(&mut self, id: &str, place: &At<'_>, site: Site<'_>) -> Option<&'a Draft<'a>> {
        let Some(step) = site.step else {
            let help = "the value is shared by all steps: set it in the steps downstream";
            let message = format!("`{}` cannot read `steps.{id}` here", site.what);
            self.wrong(place, message, None, Some(help.to_owned()));
            return None;
        };
        let (names, step, is_after) = self.home_of(id, step);
        let BodyDraft { drafts, index, order } = names.body;
        let current = &drafts[step].id;
        let in_group =
            |draft: &&Draft<'_>| draft.group.as_ref().is_some_and(|group| group.index.contains_key(id));
        let group = drafts.iter().position(|draft| in_group(&draft));
        let Some(position) = index.get(id).copied().or(group) else {
            self.unknown(id, current, place);
            return None;
        };
        // From the previous pass, if there was a pass.
        let is_repeated = |draft: &Draft<'_>| draft.group.is_some() && draft.repeat.is_some();
        let passes = names.above.is_some_and(|(above, at)| is_repeated(&above.body.drafts[at]));
        let is_unordered = |order: &EdgeOrder| {
            position != step && !order.is_before(position, step) && !order.is_before(step, position)
        };
        if passes && order.as_ref().is_some_and(is_unordered) {
            let message = format!("step `{id}` may end before or after the start of `{current}` in a pass");
            let help = format!(
                "add `needs: [{id}]` to read this pass, or `needs: [{current}]` to `{id}` to read the pass before"
            );
            self.wrong(place, message, None, Some(help));
            return None;
        }
        if passes || (position == step && (site.is_after || is_after)) {
            return Some(named(&drafts[position], id));
        }
        if position == step {
            let message = format!("step `{id}` cannot read its own results");
            self.wrong(place, message, None, None);
            return None;
        }
        let order = order.as_ref()?;
        if order.is_before(position, step) {
            return Some(named(&drafts[position], id));
        }
        let (message, help) = match order.mode {
            super::workflow::Mode::Sequence => (
                format!("step `{id}` runs after `{current}`"),
                "move that step up, or this step down".to_owned(),
            ),
            super::workflow::Mode::Graph => {
                (format!("step `{id}` is not upstream of `{current}`"), format!("add `needs: [{id}]`"))
            }
        };
        self.wrong(place, message, None, Some(help));
        None
    }

    /// Returns the innermost list with step `id`, the position there of the step around `step`, and whether
    /// that step has ended. Without a match, returns the current list.
    fn home_of(&self, id: &str, step: usize) -> (&'a Names<'a, 'a>, usize, bool) {
        let mut at = (self.names, step, false);
        let has = |names: &Names<'_, '_>| {
            let in_group =
                |draft: &Draft<'_>| draft.group.as_ref().is_some_and(|group| group.index.contains_key(id));
            names.body.index.contains_key(id) || names.body.drafts.iter().any(in_group)
        };
        while !has(at.0) {
            let Some((above, place)) = at.0.above else { return (self.names, step, false) };
            at = (above, place, at.0.is_after);
        }
        at
    }

    fn unknown(&mut self, id: &str, current: &str, place: &At<'_>) {
        let mut top = self.names;
        while let Some((above, _)) = top.above {
            top = above;
        }
        let all = top.body.all();
        let within =
            |draft: &Draft<'_>| draft.each.as_ref().is_some_and(|each| each.body.index.contains_key(id));
        if let Some((_, around)) = all.iter().find(|(_, draft)| within(draft)) {
            let message = format!("step `{id}` runs once per item of `{}`", around.id);
            let help = format!("read the results of the items: `steps.{}.items`", around.id);
            return self.wrong(place, message, None, Some(help));
        }
        let around = std::iter::successors(Some(self.names), |names| names.above.map(|(above, _)| above));
        let known: Vec<&str> = around
            .flat_map(|names| names.body.drafts.iter().map(|draft| draft.id.as_str()))
            .filter(|known| *known != current)
            .collect();
        let hint = self.checker.nearest(id, known.iter().copied());
        let help = match (&hint, known.is_empty()) {
            (Some(_), _) => None,
            (None, true) => Some("there is no other step".to_owned()),
            (None, false) => Some(format!("the steps are {}", listed(known.into_iter().take(LISTED_MAX)))),
        };
        self.wrong(place, format!("there is no step `{id}`"), hint, help);
    }

    fn output(&mut self, draft: &Draft<'_>, name: &str, place: &At<'_>) {
        let Some(declared) = draft.declared_outputs() else { return };
        if declared.contains(&name) {
            return;
        }
        let message = format!("step `{}` declares no output `{name}`", draft.id);
        let has = format!("it declares {}", listed(declared.iter().copied().take(LISTED_MAX)));
        match self.checker.nearest(name, declared.iter().copied()) {
            Some(near) => self.wrong(place, message, Some(near), Some(has)),
            None => {
                let help = format!("{has}; write any other output to `$WAYPOST_OUTPUT`");
                self.warn(place, message, &help);
            }
        }
    }

    /// Warns about values pasted into a command: the shell would interpret a quote or a `;` in the value.
    fn warn_pasted(&mut self, run: &Template, node: &Node) {
        for reference in run.references() {
            let part = |index: usize| reference.path.get(index).map(String::as_str);
            let kind =
                |name| self.names.params.iter().find(|param| param.name == name).map(|param| param.kind);
            let pasted = match (part(0), part(1), part(2)) {
                (Some("params"), Some(name), _) => {
                    kind(name).is_some_and(super::params::ParamKind::can_hold_code)
                }
                (Some("params"), None, _) => true,
                (Some("steps"), _, Some("outputs" | "stdout" | "items")) => true,
                // Name of an item.
                (Some(name), ..) => !is_taken(name) && name != ITEM_INDEX,
                _ => false,
            };
            if !pasted {
                continue;
            }
            let place = At { node, text: run.as_str(), range: &reference.range };
            let path = reference.path.join(".");
            let variable: String = reference.path.last().map_or("VALUE", String::as_str).to_uppercase();
            let variable = variable.replace('-', "_");
            let help = format!(
                "pass the value as a variable: `env: {{ {variable}: \"${{{{ {path} }}}}\" }}`, and use \
                 `\"${variable}\"`"
            );
            let message = format!("`{path}` is pasted into the command, and the shell runs its text as code");
            self.warn(&place, message, &help);
        }
    }
}

/// Returns the step with this id: `draft`, or a step of its group.
fn named<'a, 'n>(draft: &'a Draft<'n>, id: &str) -> &'a Draft<'n> {
    let of_group = draft.group.as_ref().and_then(|group| Some(&group.drafts[*group.index.get(id)?]));
    of_group.filter(|_| draft.id != id).unwrap_or(draft)
}
