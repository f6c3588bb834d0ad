//! Checks before anything runs that expressions read only what can be there.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::checker::Checker;
use super::graph::Order;
use super::node::Node;
use super::params::Param;
use super::settings::Variable;
use super::step::Draft;
use crate::expr::{Call, Reference, Template};
use crate::suggest::listed;

/// Names that a message lists.
const LISTED_MAX: usize = 12;

/// Everything that names may refer to.
pub(super) struct Names<'a, 'n> {
    pub(super) params: &'a [Param],
    pub(super) secrets: &'a [String],
    pub(super) env: &'a [Variable<'n>],
    pub(super) defaults_env: &'a [Variable<'n>],
    pub(super) drafts: &'a [Draft<'n>],
    pub(super) index: &'a HashMap<String, usize>,
    /// `None` if the steps have no order; then nothing is said about it.
    pub(super) order: Option<&'a Order>,
}

/// Where an expression stands, which decides what it may read.
#[derive(Debug, Clone, Copy)]
struct Site<'a> {
    /// The key, for messages.
    what: &'a str,
    /// The step, unless it stands above the steps.
    step: Option<usize>,
    /// How many of the three layers of `env` it may read.
    layers: usize,
}

/// A place inside a text; where that is in the file is worked out only when something is said about it.
struct At<'a> {
    node: &'a Node,
    text: &'a str,
    range: &'a Range<usize>,
}

struct Pass<'a, 'c, 'n, 's> {
    names: &'a Names<'a, 'n>,
    checker: &'c mut Checker<'s>,
    /// Steps whose standard output is read.
    kept: HashSet<usize>,
}

/// Checks all expressions; returns the positions of the steps whose standard output one of them reads.
pub(super) fn check(
    checker: &mut Checker<'_>,
    names: &Names<'_, '_>,
    defaults_dir: Option<&(Template, &Node)>,
) -> HashSet<usize> {
    let mut pass = Pass { names, checker, kept: HashSet::new() };
    for (name, template, node) in names.env {
        pass.template(template, node, Site { what: name, step: None, layers: 0 });
    }
    for (name, template, node) in names.defaults_env {
        pass.template(template, node, Site { what: name, step: None, layers: 1 });
    }
    if let Some((dir, node)) = defaults_dir {
        pass.template(dir, node, Site { what: "dir", step: None, layers: 2 });
    }
    for (position, draft) in names.drafts.iter().enumerate() {
        pass.step(position, draft);
    }
    pass.kept
}

impl Pass<'_, '_, '_, '_> {
    fn step(&mut self, position: usize, draft: &Draft<'_>) {
        let site = |what, layers| Site { what, step: Some(position), layers };
        if let Some((condition, node)) = &draft.condition {
            let text = node.spelled().unwrap_or_default();
            for reference in condition.references() {
                self.reference(reference, node, text, site("if", 2));
            }
            for call in condition.calls() {
                self.call(call, node, text, site("if", 2));
            }
        }
        for (name, template, node) in &draft.env {
            self.no_secret(name, node);
            self.template(template, node, site(name, 2));
        }
        let others = [("stdin", &draft.stdin), ("report", &draft.report)];
        for (what, (template, node)) in
            others.into_iter().filter_map(|(what, found)| Some((what, found.as_ref()?)))
        {
            self.template(template, node, site(what, 3));
        }
        if let Some((template, Some(node))) = &draft.dir {
            self.template(template, node, site("dir", 3));
        }
        for (_, source, node) in &draft.outputs {
            self.template(&source.from, node, site("from", 3));
        }
        let Some((work, node)) = &draft.work else { return };
        if let Some(text) = work.template() {
            self.template(text, node, site(work.key(), 3));
        }
        if let Some(run) = work.command() {
            self.warn_pasted(run, node);
        }
    }

    fn no_secret(&mut self, name: &str, node: &Node) {
        if self.names.secrets.iter().any(|secret| secret == name) {
            let help = "a secret comes from the caller's environment: choose another name here";
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
        let Call::Skipped { step, range } = call else { return };
        self.earlier(step, &At { node, text, range }, site);
    }

    fn reference(&mut self, reference: &Reference, node: &Node, text: &str, site: Site<'_>) {
        let place = At { node, text, range: &reference.range };
        let part = |index: usize| reference.path.get(index).map(String::as_str);
        match (part(0), part(1)) {
            (Some("params"), Some(name)) => self.param(name, &place),
            (Some("env"), Some(name)) => self.variable(name, &place, site),
            (Some("steps"), Some(id)) => {
                if let Some(position) = self.earlier(id, &place, site) {
                    match (part(2), part(3)) {
                        (Some("stdout"), _) => drop(self.kept.insert(position)),
                        (Some("outputs"), Some(name)) => self.output(position, name, &place),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
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
            let help =
                format!("in a command write `\"${name}\"`: the shell reads it, and it is never stored");
            self.wrong(
                place,
                format!("`{name}` is a secret, which expressions cannot read"),
                None,
                Some(help),
            );
            return;
        }
        let own: &[Variable<'_>] = site.step.map_or(&[], |step| &names.drafts[step].env);
        let layers = [names.env, names.defaults_env, own];
        let readable = || layers[..site.layers].iter().copied().flatten().map(|(name, ..)| name.as_str());
        if readable().any(|known| known == name) {
            return;
        }
        if layers[site.layers..].iter().copied().flatten().any(|(known, ..)| known == name) {
            let help = "an expression reads the `env` of the levels above its own";
            let message = format!("`env.{name}` is not set yet where `{}` is worked out", site.what);
            self.wrong(place, message, None, Some(help.to_owned()));
            return;
        }
        let hint = self.checker.nearest(name, readable()).map(|near| format!("env.{near}"));
        let help = format!("`env` has only what the file declares; in a command write `\"${name}\"`");
        self.wrong(place, format!("`env` declares no `{name}`"), hint, Some(help));
    }

    /// The position of step `id`, if it has surely ended where the expression stands.
    fn earlier(&mut self, id: &str, place: &At<'_>, site: Site<'_>) -> Option<usize> {
        let names = self.names;
        let Some(step) = site.step else {
            let help = "it holds for all steps: move it into the steps that come after";
            let message = format!("`{}` cannot read `steps.{id}` here", site.what);
            self.wrong(place, message, None, Some(help.to_owned()));
            return None;
        };
        let current = &names.drafts[step].id;
        let Some(position) = names.index.get(id).copied() else {
            let known = names.drafts.iter().map(|draft| draft.id.as_str()).filter(|known| known != current);
            let hint = self.checker.nearest(id, known.clone());
            let help = match (&hint, names.drafts.len()) {
                (Some(_), _) => None,
                (None, 1) => Some("there is no other step".to_owned()),
                (None, _) => Some(format!("the steps are {}", listed(known.take(LISTED_MAX)))),
            };
            self.wrong(place, format!("there is no step `{id}`"), hint, help);
            return None;
        };
        if position == step {
            let message = format!("step `{id}` cannot read itself: it has not ended yet");
            self.wrong(place, message, None, None);
            return None;
        }
        let order = names.order?;
        if order.is_before(position, step) {
            return Some(position);
        }
        let (message, help) = match order.mode {
            super::workflow::Mode::Sequence => (
                format!("step `{id}` comes after `{current}`"),
                "move it before, or this step after it".to_owned(),
            ),
            super::workflow::Mode::Graph => (
                format!("step `{id}` may not have ended when `{current}` begins: it does not need it"),
                format!("add `needs: [{id}]`"),
            ),
        };
        self.wrong(place, message, None, Some(help));
        None
    }

    fn output(&mut self, position: usize, name: &str, place: &At<'_>) {
        let draft = &self.names.drafts[position];
        let Some(declared) = draft.declared_outputs() else { return };
        if declared.contains(&name) {
            return;
        }
        let message = format!("step `{}` declares no output `{name}`", draft.id);
        let has = format!("it declares {}", listed(declared.iter().copied().take(LISTED_MAX)));
        match self.checker.nearest(name, declared.iter().copied()) {
            Some(near) => self.wrong(place, message, Some(near), Some(has)),
            None => {
                let help = format!("{has}; anything else it must write to `$WAYPOST_OUTPUT`");
                self.warn(place, message, &help);
            }
        }
    }

    /// Warns of text that becomes part of a command: a quote or a `;` in it would be the shell's.
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
                (Some("steps"), _, Some("outputs" | "stdout")) => true,
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
                "pass it as a variable: `env: {{ {variable}: \"${{{{ {path} }}}}\" }}`, and use `\"${variable}\"`"
            );
            let message = format!("`{path}` is pasted into the command, where the shell reads it as code");
            self.warn(&place, message, &help);
        }
    }
}
