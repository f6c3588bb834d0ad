//! The order of steps: duplicate ids, needs that do not exist, circles, and who comes before whom.

use std::collections::HashMap;

use super::checker::Checker;
use super::step::Draft;
use super::workflow::Mode;

/// Who comes before whom.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) mode: Mode,
    /// For each step in a graph the positions of all steps that have ended when it begins, as bits.
    before: Vec<Vec<u64>>,
}

impl Order {
    /// Whether `earlier` has surely ended when `later` begins.
    pub(super) fn is_before(&self, earlier: usize, later: usize) -> bool {
        match self.mode {
            Mode::Sequence => earlier < later,
            Mode::Graph => self.before[later][earlier / 64] & (1 << (earlier % 64)) != 0,
        }
    }
}

/// Positions of the steps by id; duplicates become problems that name both places.
pub(super) fn index(checker: &mut Checker<'_>, drafts: &[Draft<'_>]) -> HashMap<String, usize> {
    let mut index: HashMap<String, usize> = HashMap::new();
    // Ids that were written come first: a made one must give way to them.
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
                format!("this step would be called `{}` by its position, which another step is", draft.id),
                "called so here",
                "give this step an `id`",
            ),
        };
        let problem = checker.source.problem(&draft.id_node.span, message);
        checker.problems.push(problem.related(checker.source, &first.id_node.span, label).help(help));
    }
    index
}

/// Checks `needs` and works out the order.
///
/// Returns `None` if there is a circle; it was reported, and no order exists.
pub(super) fn order(
    checker: &mut Checker<'_>,
    drafts: &[Draft<'_>],
    index: &HashMap<String, usize>,
) -> Option<Order> {
    let is_graph = drafts.iter().any(|draft| draft.needs.is_some());
    let needs: Vec<Vec<usize>> = drafts
        .iter()
        .enumerate()
        .map(|(position, draft)| needs_of(checker, position, draft, index))
        .collect();
    if !is_graph {
        return Some(Order { mode: Mode::Sequence, before: Vec::new() });
    }
    match sorted(&needs) {
        Ok(sorted) => Some(Order { mode: Mode::Graph, before: before(&needs, &sorted) }),
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
                checker.wrong(node, format!("`{id}` stands twice in `needs`"), "remove one");
            }
            Some(need) => needs.push(*need),
            None => {
                let message =
                    format!("step `{}` needs `{}`, which does not exist", draft.id, crate::expr::shown(id));
                let hint =
                    checker.nearest(id, index.keys().map(String::as_str).filter(|known| *known != draft.id));
                checker.problems.push(checker.source.problem(&node.span, message).hint(hint));
            }
        }
    }
    needs.sort_unstable();
    needs
}

/// The steps so that each comes after what it needs; or a circle, each needing the next.
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
    // Every step left waits for one that is left: following those leads into a circle.
    let mut seen = vec![None; needs.len()];
    let mut path = Vec::new();
    let mut position = start;
    while seen[position].is_none() {
        seen[position] = Some(path.len());
        path.push(position);
        let stuck = needs[position].iter().find(|need| waits[**need] > 0);
        position = *stuck.expect("a step that waits needs one that waits");
    }
    Err(path.split_off(seen[position].expect("the walk ended at a step it had seen")))
}

fn report_circle(checker: &mut Checker<'_>, drafts: &[Draft<'_>], circle: &[usize]) {
    let first = circle.iter().copied().min().expect("a circle is not empty");
    let turn = circle.iter().position(|position| *position == first).expect("it is in the circle");
    let mut names: Vec<&str> = Vec::with_capacity(circle.len() + 1);
    names.extend(circle[turn..].iter().chain(&circle[..turn]).map(|position| drafts[*position].id.as_str()));
    names.push(&drafts[first].id);
    let message = format!("the steps need each other in a circle: `{}`", names.join("` needs `"));
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
