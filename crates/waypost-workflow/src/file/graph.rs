//! The order of steps: duplicate ids, unknown needs, cycles, and reachability.

use std::collections::HashMap;

use super::body::BodyDraft;
use super::checker::Checker;
use super::step::Draft;
use super::workflow::Mode;
use crate::suggest::listed;

/// Most steps listed in a help text.
const LISTED_MAX: usize = 12;

/// The order of the steps of one list.
#[derive(Debug)]
pub(super) struct EdgeOrder {
    pub(super) mode: Mode,
    /// For each step in a graph: positions of all steps that end before it starts, as bits.
    before: Vec<Vec<u64>>,
}

impl EdgeOrder {
    /// Returns whether `earlier` has certainly ended when `later` begins.
    pub(super) fn is_before(&self, earlier: usize, later: usize) -> bool {
        match self.mode {
            Mode::Sequence => earlier < later,
            Mode::Graph => self.before[later][earlier / 64] & (1 << (earlier % 64)) != 0,
        }
    }
}

/// Returns the positions of the steps by id; reports duplicates with both places.
pub(super) fn index(checker: &mut Checker<'_>, drafts: &[Draft<'_>]) -> HashMap<String, usize> {
    let mut index: HashMap<String, usize> = HashMap::new();
    // Written ids come first: a generated id must not take a written one.
    let written = drafts.iter().enumerate().filter(|(_, draft)| draft.has_own_id);
    let made = drafts.iter().enumerate().filter(|(_, draft)| !draft.has_own_id);
    for (position, draft) in written.chain(made) {
        let Some(first) = index.get(&draft.id).map(|first| &drafts[*first]) else {
            index.insert(draft.id.clone(), position);
            continue;
        };
        let (message, label, help) = match draft.has_own_id {
            true => (format!("two steps have the id `{}`", draft.id), "first here", "rename one of them"),
            false => (
                format!(
                    "the default id `{}` of this step, from its position, is the id of another step",
                    draft.id
                ),
                "other step of this id",
                "give this step an `id`",
            ),
        };
        let problem = checker.source.problem(&draft.id_node.span, message);
        checker.problems.push(problem.related(checker.source, &first.id_node.span, label).help(help));
    }
    index
}

/// Checks `needs` and returns the order.
///
/// Returns `None` after a cycle: the cycle was reported, and no order exists.
pub(super) fn order(
    checker: &mut Checker<'_>,
    drafts: &[Draft<'_>],
    index: &HashMap<String, usize>,
) -> Option<EdgeOrder> {
    let is_graph = drafts.iter().any(|draft| draft.needs.is_some());
    let needs: Vec<Vec<usize>> = drafts
        .iter()
        .enumerate()
        .map(|(position, draft)| needs_of(checker, position, draft, index))
        .collect();
    if !is_graph {
        return Some(EdgeOrder { mode: Mode::Sequence, before: Vec::new() });
    }
    match sorted(&needs) {
        Ok(sorted) => Some(EdgeOrder { mode: Mode::Graph, before: before(&needs, &sorted) }),
        Err(circle) => {
            report_circle(checker, drafts, &circle);
            None
        }
    }
}

fn needs_of(
    checker: &mut Checker<'_>,
    position: usize,
    draft: &Draft<'_>,
    index: &HashMap<String, usize>,
) -> Vec<usize> {
    let mut needs = Vec::new();
    for (id, node) in draft.needs.iter().flatten() {
        match index.get(id) {
            Some(need) if *need == position => {
                checker.wrong(node, format!("step `{id}` needs itself"), "remove it");
            }
            Some(need) if needs.contains(need) => {
                checker.wrong(node, format!("duplicate `{id}` in `needs`"), "remove one");
            }
            Some(need) => needs.push(*need),
            // Reported once all lists are known: the step may be in another list.
            None => {}
        }
    }
    needs.sort_unstable();
    needs
}

/// Lists of steps, each with its path: the steps around the list, outermost first.
type Lists<'d, 'n> = Vec<(Vec<&'d Draft<'n>>, &'d BodyDraft<'n>)>;

/// Reports needs that are not steps of the same list.
pub(super) fn refuse_foreign_needs(checker: &mut Checker<'_>, body: &BodyDraft<'_>) {
    let mut lists = Vec::new();
    collect(body, &mut Vec::new(), &mut lists);
    let mut homes: HashMap<&str, usize> = HashMap::new();
    for (at, (_, list)) in lists.iter().enumerate() {
        for draft in &list.drafts {
            homes.entry(&draft.id).or_insert(at);
        }
    }
    for (way, list) in &lists {
        let needs =
            list.drafts.iter().flat_map(|draft| draft.needs.iter().flatten().map(move |need| (draft, need)));
        for (draft, (id, node)) in needs {
            if list.index.contains_key(id) || checker.problems.is_full() {
                continue;
            }
            let step = &draft.id;
            let Some(home) = homes.get(id.as_str()).copied() else {
                let message =
                    format!("step `{step}` needs `{}`, which does not exist", crate::expr::shown(id));
                let known = || list.index.keys().map(String::as_str).filter(|known| known != step);
                let hint = checker.nearest(id, known());
                let mut problem = checker.source.problem(&node.span, message);
                if hint.is_none() {
                    let others = list.drafts.iter().map(|draft| draft.id.as_str()).filter(|id| id != step);
                    let others: Vec<&str> = others.take(LISTED_MAX).collect();
                    problem = problem.help(match others.as_slice() {
                        [] => "the list has no other step: remove the need".to_owned(),
                        others => {
                            format!("the other steps of the list are {}", listed(others.iter().copied()))
                        }
                    });
                }
                checker.problems.push(problem.hint(hint));
                continue;
            };
            let (place, help) = across(draft, way, &lists[home], id);
            checker.wrong(node, format!("step `{step}` needs `{id}`, which is {place}"), &help);
        }
    }
}

fn collect<'d, 'n>(list: &'d BodyDraft<'n>, way: &mut Vec<&'d Draft<'n>>, lists: &mut Lists<'d, 'n>) {
    lists.push((way.clone(), list));
    for draft in &list.drafts {
        way.push(draft);
        draft.bodies().for_each(|body| collect(body, way, lists));
        way.pop();
    }
}

/// Returns where the step `id` is, outside the list of `draft` at the end of `way`, and the correction.
fn across(
    draft: &Draft<'_>,
    way: &[&Draft<'_>],
    (there, list): &(Vec<&Draft<'_>>, &BodyDraft<'_>),
    id: &str,
) -> (String, String) {
    let shared = way.iter().zip(there).take_while(|(one, other)| std::ptr::eq(**one, **other)).count();
    match (way.get(shared), there.get(shared)) {
        (Some(own), None) if own.id == id => {
            ("around it".to_owned(), format!("remove the need: `{id}` ends only after this step"))
        }
        (Some(own), None) => {
            let is_sequence = list.order.as_ref().is_some_and(|order| order.mode == Mode::Sequence);
            let help = match is_sequence && list.index.get(id) < list.index.get(&own.id) {
                true => format!("remove the need: `{id}` ends before `{}` starts", own.id),
                false => format!("move the need to `{}`", own.id),
            };
            (format!("outside of `{}`", own.id), help)
        }
        (None, Some(other)) if other.id == draft.id => {
            (format!("within `{}`", other.id), format!("remove the need: `{}` implies it", other.id))
        }
        (None, Some(other)) => {
            let help = format!("write `{}`, which ends when all its steps have ended", other.id);
            (format!("within `{}`", other.id), help)
        }
        (Some(own), Some(other)) => {
            (format!("within `{}`", other.id), format!("let `{}` need `{}`", own.id, other.id))
        }
        (None, None) => elsewhere(),
    }
}

fn elsewhere() -> (String, String) {
    ("in another list".to_owned(), "remove the need: steps can only need steps of the same list".to_owned())
}

/// Returns the steps in topological order; or a cycle, in which each step needs the next.
fn sorted(needs: &[Vec<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    let mut waits: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut needed_by = vec![Vec::new(); needs.len()];
    for (position, needs) in needs.iter().enumerate() {
        needs.iter().for_each(|need| needed_by[*need].push(position));
    }
    let mut sorted: Vec<usize> = (0..needs.len()).filter(|position| waits[*position] == 0).collect();
    let mut at = 0;
    while let Some(position) = sorted.get(at).copied() {
        for next in &needed_by[position] {
            waits[*next] -= 1;
            if waits[*next] == 0 {
                sorted.push(*next);
            }
        }
        at += 1;
    }
    let Some(start) = (0..needs.len()).find(|position| waits[*position] > 0) else { return Ok(sorted) };
    // Every remaining step waits for another remaining step: following these leads into a cycle.
    let mut seen = vec![None; needs.len()];
    let mut path = Vec::new();
    let mut position = start;
    while seen[position].is_none() {
        seen[position] = Some(path.len());
        path.push(position);
        let stuck = needs[position].iter().find(|need| waits[**need] > 0);
        position = *stuck.expect("a waiting step needs another waiting step");
    }
    Err(path.split_off(seen[position].expect("the walk ends at a step seen before")))
}

fn report_circle(checker: &mut Checker<'_>, drafts: &[Draft<'_>], circle: &[usize]) {
    let first = circle.iter().copied().min().expect("a cycle is not empty");
    let turn = circle.iter().position(|position| *position == first).expect("the step is in the cycle");
    let mut names: Vec<&str> = Vec::with_capacity(circle.len() + 1);
    names.extend(circle[turn..].iter().chain(&circle[..turn]).map(|position| drafts[*position].id.as_str()));
    names.push(&drafts[first].id);
    let message = format!("dependency cycle: `{}`", names.join("` needs `"));
    let next = names[1];
    let node = drafts[first].needs.iter().flatten().find(|(id, _)| id == next).map(|(_, node)| *node);
    let node = node.unwrap_or(drafts[first].node);
    checker.wrong(node, message, "remove one of these needs");
}

fn before(needs: &[Vec<usize>], sorted: &[usize]) -> Vec<Vec<u64>> {
    let words = needs.len().div_ceil(64);
    let mut before = vec![vec![0u64; words]; needs.len()];
    for position in sorted {
        let mut bits = vec![0u64; words];
        for need in &needs[*position] {
            bits[need / 64] |= 1 << (need % 64);
            bits.iter_mut().zip(&before[*need]).for_each(|(bits, more)| *bits |= more);
        }
        before[*position] = bits;
    }
    before
}
