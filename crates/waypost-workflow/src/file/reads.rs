//! Names read by the expressions of a step.

use super::ChildWorkflow;
use super::foreach::Distinct;
use super::workflow::{Body, Step};
use crate::expr::{Condition, Formula, Reference, Template};

impl Step {
    /// Returns every name read by the step's expressions.
    pub(super) fn references(&self) -> impl Iterator<Item = &Reference> {
        let texts = [&self.dir, &self.stdin, &self.report, &self.undo];
        let own = texts.into_iter().flatten().chain(self.work.templates());
        let env = self.env.iter().flatten().map(|(_, template)| template);
        let sources = self.outputs.iter().map(|(_, source)| &source.from);
        let templates = own.chain(env).chain(sources);
        let each = self.work.foreach();
        let sorts = each.and_then(|each| each.sort_by.as_ref()).into_iter().flat_map(Formula::references);
        let keeps = each.and_then(|each| each.filter.as_ref()).into_iter().flat_map(Condition::references);
        let names = each.and_then(|each| each.key.as_ref()).into_iter().flat_map(Template::references);
        let distinct = each.and_then(|each| match &each.distinct {
            Some(Distinct::By(by)) => Some(by),
            _ => None,
        });
        let sorts = sorts.chain(distinct.into_iter().flat_map(Formula::references));
        let own = self.condition.iter().flat_map(Condition::references);
        let ends = self.repeat.iter().flat_map(|repeat| repeat.until.references());
        let given = self.work.child().into_iter().flat_map(ChildWorkflow::templates);
        let claimed = self.evidence.iter().flat_map(|evidence| evidence.templates());
        let templates = templates.chain(given).chain(claimed);
        templates.flat_map(Template::references).chain(own).chain(ends).chain(sorts).chain(keeps).chain(names)
    }

    /// Returns whether the step's expressions read this param, without nested steps.
    #[must_use]
    pub fn reads_param(&self, name: &str) -> bool {
        self.references().any(|reference| match reference.path.as_slice() {
            [root] => root == "params",
            [root, param, ..] => root == "params" && param == name,
            [] => false,
        })
    }

    /// Returns the ids of the steps read by the step's expressions.
    pub(crate) fn steps_read(&self) -> impl Iterator<Item = &str> {
        self.references().filter_map(|reference| match reference.path.as_slice() {
            [root, step, ..] if root == "steps" => Some(step.as_str()),
            _ => None,
        })
    }

    /// Returns whether the step, a nested step or a hook reads this param. Steps of an included file read the
    /// params of that file, so only the given values count.
    #[must_use]
    pub fn uses_param(&self, name: &str) -> bool {
        let within = self.work.body().filter(|_| self.work.child().is_none());
        let hooks = self.hooks.iter().map(|hook| &hook.body);
        let mut steps = within.into_iter().chain(hooks).flat_map(Body::steps);
        self.reads_param(name) || steps.any(|step| step.uses_param(name))
    }

    /// Returns whether the step's expressions read this local name, such as an item, without nested steps.
    pub(crate) fn reads_local(&self, name: &str) -> bool {
        self.references().any(|reference| reference.path.first().is_some_and(|root| root == name))
    }
}
