//! First ids of renamed steps: records, branches and logs name a step by the id that the step had first.
//!
//! Input: a changed file with `renamed_from`, and the workflow of the run. Output: the changed file with the
//! first ids in `id`, `needs` and expressions, and the new id as `name`. The result of the step and all
//! readers then stay as they are.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::child::separated;
use super::node::{self, Kind, Node};
use super::problem::{FileError, Problems, SourceText};
use super::workflow::Workflow;

/// Keys with an expression as the whole value.
const EXPRESSIONS: [&str; 5] = ["if", "until", "filter", "sort_by", "distinct"];

/// First ids by new ids.
type Renames<'a> = BTreeMap<&'a str, &'a str>;

impl Workflow {
    /// Returns the workflow with the first ids of renamed steps: the ids in the workflow of the run,
    /// `before`.
    ///
    /// A step without `renamed_from`, or with an old id that `before` does not have, keeps the id of the
    /// file.
    ///
    /// # Errors
    /// The file with the first ids is not valid.
    pub fn with_first_ids(self, before: &Self) -> Result<Self, FileError> {
        let known = |id: &str| before.body.of_file().find(|step| step.id == id);
        let shown = |id: &str| before.body.of_file().find(|step| step.name.as_deref() == Some(id));
        let renamed = self.body.of_file().filter(|step| known(&step.id).is_none());
        let first = |old: &String| known(old).or_else(|| shown(old)).map(|first| first.id.as_str());
        let renames: Renames<'_> = renamed
            .filter_map(|step| Some((step.id.as_str(), first(step.renamed_from.as_ref()?)?)))
            .collect();
        if renames.is_empty() {
            return Ok(self);
        }
        let (own, _) = separated(&self.text);
        let source = SourceText::new(self.path.clone(), Arc::from(own));
        let (root, _) =
            node::read(&source).map_err(|problem| FileError::new(&source, Problems::from(*problem)))?;
        let mut edits = BTreeMap::new();
        collect(&root, own, &renames, &mut edits);
        for range in templates(own) {
            edits.entry(range.start).or_insert_with(|| (range.clone(), in_expression(&own[range], &renames)));
        }
        let mut text = String::with_capacity(self.text.len());
        let mut at = 0;
        for (range, new) in edits.into_values().filter(|(range, _)| !range.is_empty()) {
            if range.start >= at {
                text.push_str(&self.text[at..range.start]);
                text.push_str(&new);
                at = range.end;
            }
        }
        text.push_str(&self.text[at..]);
        Self::parse(&text, &self.path)
    }
}

/// Collects the edits of ids, needs and whole expressions, by place.
fn collect(
    node: &Node,
    text: &str,
    renames: &Renames<'_>,
    edits: &mut BTreeMap<usize, (Range<usize>, String)>,
) {
    let mut edit = |node: &Node, new: String| {
        let place = node.own_text.clone().unwrap_or_default();
        edits.insert(place.start, (place, new));
    };
    if let Some(entries) = node.entries() {
        let is_flow = text[..node.span.end].get(node.span.start..).is_some_and(|text| text.starts_with('{'));
        for (key, value) in entries {
            let first = |node: &Node| renames.get(node.key_text()).map(|first| (*first).to_owned());
            match key.key_text() {
                "id" if node.get("renamed_from").is_some() => {
                    let Some(first) = first(value) else { continue };
                    let line = text[..key.span.start].rfind('\n').map_or(0, |end| end + 1);
                    let indent = " ".repeat(text[line..key.span.start].chars().count());
                    let between = if is_flow { ", ".to_owned() } else { format!("\n{indent}") };
                    let name = match node.get("name") {
                        Some(_) => String::new(),
                        None => format!("{between}name: {}", value.key_text()),
                    };
                    edit(value, first + &name);
                }
                "needs" => {
                    let needs = value.items().map_or_else(|| vec![value], |needs| needs.iter().collect());
                    needs.into_iter().for_each(|need| {
                        first(need).into_iter().for_each(|first| edit(need, first));
                    });
                }
                key if EXPRESSIONS.contains(&key) && matches!(value.kind, Kind::Text(_)) => {
                    let place = value.own_text.clone().unwrap_or_default();
                    edit(value, in_expression(&text[place], renames));
                }
                _ => {}
            }
        }
    }
    let below = node.entries().into_iter().flatten().map(|(_, value)| value);
    for node in below.chain(node.items().into_iter().flatten()) {
        collect(node, text, renames, edits);
    }
}

/// Returns the places of `${{ }}` in a text.
fn templates(text: &str) -> impl Iterator<Item = Range<usize>> {
    let starts = text.match_indices("${{").map(|(start, _)| start);
    starts.filter_map(|start| Some(start..start + text[start..].find("}}")? + 2))
}

/// Returns an expression with the first ids in `steps.ID`, `steps['ID']` and `skipped(ID)`.
fn in_expression(text: &str, renames: &Renames<'_>) -> String {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    let names_step = |before: &str| {
        let before = before.trim_end_matches(['\'', '"']).trim_end();
        ["steps.", "steps[", "skipped("].iter().any(|opening| before.ends_with(opening))
    };
    let mut new = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_part) {
        new.push_str(&rest[..start]);
        let word = rest[start..].split(|letter| !is_part(letter)).next().unwrap_or_default();
        let first = renames.get(word).filter(|_| names_step(&new));
        new.push_str(first.unwrap_or(&word));
        rest = &rest[start + word.len()..];
    }
    new + rest
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Workflow;

    #[test]
    fn a_renamed_step_keeps_the_first_id_in_needs_and_expressions() {
        let path = Path::new("w.yaml");
        let before = Workflow::parse(
            "steps:\n  - { id: get, run: a, capture: text }\n  - { id: use, needs: [get], run: 'echo ${{ steps.get.outputs.result }}' }\n",
            path,
        )
        .unwrap();
        let after = Workflow::parse(
            concat!(
                "steps:\n  - id: fetch\n    renamed_from: get\n    run: a\n    capture: text\n",
                "  - id: use\n    needs: [fetch]\n    if: steps.fetch.outputs.result != 'fetch'\n",
                "    run: echo ${{ steps.fetch.outputs.result }} steps.fetch\n",
            ),
            path,
        )
        .unwrap();

        let first = after.with_first_ids(&before).unwrap();

        assert_eq!(
            first.text(),
            concat!(
                "steps:\n  - id: get\n    name: fetch\n    renamed_from: get\n    run: a\n    capture: text\n",
                "  - id: use\n    needs: [get]\n    if: steps.get.outputs.result != 'fetch'\n",
                "    run: echo ${{ steps.get.outputs.result }} steps.fetch\n",
            )
        );
        // A later version of the file names the second id.
        let text = "steps: [{ id: load, renamed_from: fetch, run: a, capture: text }]";
        let last = Workflow::parse(text, path).unwrap().with_first_ids(&first).unwrap();
        assert_eq!(
            last.text(),
            "steps: [{ id: get, name: load, renamed_from: fetch, run: a, capture: text }]"
        );
    }

    #[test]
    fn an_old_id_that_the_file_still_uses_is_refused() {
        let text = "steps: [{ id: a, run: a }, { id: b, renamed_from: a, run: b }]";
        let error = Workflow::parse(text, Path::new("w.yaml")).unwrap_err();
        assert!(error.to_string().contains("names step `a` of this file"), "{error}");
    }
}
