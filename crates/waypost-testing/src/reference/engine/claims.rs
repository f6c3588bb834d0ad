//! Claims: the file of each step, and the precedence among claims about the same file.

use std::collections::{BTreeMap, BTreeSet};

use super::super::definition::{MAIN, Name, Step, StepPath, children};
use super::super::position::{Activity, Content, End, How, Progress, Reusable};
use super::super::rule::Rule;
use super::Engine;

/// The claim of a step about a file.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub path: StepPath,
    pub file: Name,
    /// The content; `None` for a step that may have written part of the file.
    pub content: Option<Content>,
    pub in_force: bool,
}

/// The passes of an opener with the items of each, and whether they are in force.
type Passes = BTreeMap<u32, (Vec<Name>, bool)>;

impl Engine {
    /// Returns the claims of all ends, in force and reusable, in the order of the graph.
    pub(super) fn claims(&self) -> Vec<Claim> {
        let mut found = Vec::new();
        self.claims_of(MAIN, true, &mut found);
        found
    }

    fn claims_of(&self, scope: &str, in_force: bool, found: &mut Vec<Claim>) {
        for step in self.steps_of(scope).iter() {
            if step.when.is_hook() {
                continue;
            }
            if step.is_leaf() {
                found.extend(self.claims_of_leaf(scope, step, in_force));
                continue;
            }
            for (pass, (items, now)) in self.declared_passes(scope, step) {
                for child in children(scope, step, pass, &items) {
                    if self.positions.contains_key(&child) {
                        self.claims_of(&child, in_force && now, found);
                    }
                }
            }
        }
    }

    fn claims_of_leaf(&self, scope: &str, step: &Step, in_force: bool) -> Vec<Claim> {
        let position = self.position(scope);
        let path = StepPath::new(scope, &step.id);
        let end = position.ledger.get(&step.id);
        let counted = end.filter(|end| end.how != How::PassedOver);
        let reusable = position.reusable.get(&(step.id.clone(), 1)).filter(|_| counted.is_none());
        if let Some(found) = counted.or_else(|| reusable.and_then(Reusable::end))
            && !found.pins.is_empty()
        {
            let claim = |pin: &super::super::position::Pin| Claim {
                path: path.clone(),
                file: pin.file.clone(),
                content: Some(pin.content),
                in_force: in_force && counted.is_some(),
            };
            return found.pins.iter().map(claim).collect();
        }
        let activity = position.frontier.get(&step.id);
        let is_declarer = matches!(reusable, Some(Reusable::Started))
            || end.is_some_and(|end| matches!(end.how, How::Failed | How::Tolerated))
            || activity.is_some_and(|activity| self.is_declarer(activity));
        let file = step.file_in(scope).filter(|_| is_declarer);
        file.map(|file| Claim { path, file, content: None, in_force: false }).into_iter().collect()
    }

    fn is_declarer(&self, activity: &Activity) -> bool {
        matches!(activity.progress, Progress::Started | Progress::Interrupted)
            || self.on(Rule::OpenStepDeclares)
    }

    /// Returns the passes of an opener whose children may have claims. For an open opener, all passes may
    /// have claims.
    fn declared_passes(&self, scope: &str, step: &Step) -> Passes {
        let position = self.position(scope);
        let end = position.ledger.get(&step.id);
        let mut passes = Passes::new();
        if end.is_none_or(|end: &std::sync::Arc<End>| end.is_dead()) {
            passes.extend((1..=step.passes).map(|pass| (pass, (step.items.clone(), false))));
        }
        passes.extend(position.passes(&step.id).iter().map(|end| (end.pass, (end.items.clone(), true))));
        if let Some(open) = position.frontier.get(&step.id)
            && open.progress == Progress::Children
        {
            passes.insert(open.pass, (open.items.clone(), true));
        }
        passes
    }

    /// Returns the steps in force with failed evidence, in graph order. The last of several claims about a
    /// file counts.
    pub(in super::super) fn broken(&self) -> Vec<StepPath> {
        let claims = self.claims();
        let newest: BTreeMap<&Name, usize> =
            claims.iter().enumerate().map(|(index, claim)| (&claim.file, index)).collect();
        let indexes: BTreeSet<usize> = newest.into_values().collect();
        let counted = indexes.into_iter().map(|index| &claims[index]).filter(|claim| claim.in_force);
        let broken = counted.filter(|claim| {
            let is_unknown = self.world.unknown.contains(&claim.file);
            let holds = self.world.files.get(&claim.file).copied() == claim.content;
            if is_unknown { !self.on(Rule::UnknownStops) } else { !holds }
        });
        broken.map(|claim| claim.path.clone()).collect()
    }

    /// Returns the steps in force with a counted claim that cannot be verified.
    pub(super) fn unknown(&self) -> Vec<StepPath> {
        let claims = self.claims();
        let newest: BTreeMap<&Name, &Claim> = claims.iter().map(|claim| (&claim.file, claim)).collect();
        let unknown = newest.into_values().filter(|claim| claim.in_force);
        let unknown = unknown.filter(|claim| self.world.unknown.contains(&claim.file));
        unknown.map(|claim| claim.path.clone()).collect()
    }

    /// Returns the files that later steps claim too.
    pub(super) fn claimed_later(&self, scope: &str, step: &str) -> BTreeSet<Name> {
        let claims = self.claims();
        let own = claims.iter().rposition(|claim| &*claim.path.scope == scope && &*claim.path.step == step);
        own.map(|own| claims[own + 1..].iter().map(|claim| claim.file.clone()).collect()).unwrap_or_default()
    }
}
