//! First ids of renamed steps: records, scopes and logs name a step by the id that the step had first.
//!
//! Input: a changed file, and the workflow of the run. Output: the changed file with the first ids in `id`, `needs` and
//! expressions. For a renamed step, `name` has the id in the file, and `renamed_from` the first id. Results and readers of
//! the step stay unchanged. A new step whose id is already a first id gets an unused first id.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::child::{Family, separated};
use super::node::{self, Kind, Node};
use super::problem::{FileError, Problems, SourceText};
use super::workflow::{Step, Workflow};

/// Keys with an expression as the whole value.
const EXPRESSIONS: [&str; 5] = ["if", "until", "filter", "sort_by", "distinct"];

/// Keys with a list of steps.
const STEP_LISTS: [&str; 4] = ["steps", "on_success", "on_failure", "on_finish"];

/// The name of the main file among the files of a workflow.
const MAIN: &str = "";

/// First ids, by other ids in the file.
type FirstIds = BTreeMap<String, String>;

/// The renamed steps that a file can name.
struct Renames<'a> {
    own: &'a FirstIds,
    /// The renamed steps of included files, by the first id of the including step.
    included: BTreeMap<&'a str, &'a FirstIds>,
}

impl Workflow {
    /// Returns the workflow with the first ids of renamed steps, also in included files: the ids in the workflow of the
    /// run, `before`.
    ///
    /// A step with the id, or with `renamed_from` the id, of a step of `before` is this step.
    ///
    /// # Errors
    /// The file with the first ids is not valid.
    pub fn with_first_ids(self, before: &Self) -> Result<Self, FileError> {
        let (files, before) = (self.files(), before.files());
        let first_ids: BTreeMap<&str, FirstIds> = files
            .iter()
            .filter_map(|(name, file)| Some((name.as_str(), file.first_ids(before.get(name)?))))
            .filter(|(_, first_ids)| !first_ids.is_empty())
            .collect();
        if first_ids.is_empty() {
            return Ok(self);
        }
        let none = FirstIds::new();
        let of = |name: &str| first_ids.get(name).unwrap_or(&none);
        let edited = |name: &str, text: &str| {
            let own = of(name);
            let included = files.get(name).into_iter().flat_map(|file| file.of_file()).filter_map(|step| {
                let id = step.id.as_str();
                Some((own.get(id).map_or(id, String::as_str), of(&step.work.child()?.name())))
            });
            Renames { own, included: included.collect() }.edited(text, &self.path)
        };
        let (main, copies) = separated(&self.text);
        let mut family = Family::default();
        for (name, text) in copies {
            family.copy(&name, edited(&name, text)?);
        }
        let text = family.together(&edited(MAIN, main)?.into());
        Self::parse(&text, &self.path)
    }

    /// Returns the file and all included files, by name.
    fn files(&self) -> BTreeMap<String, &Self> {
        let mut files = BTreeMap::from([(MAIN.to_owned(), self)]);
        let mut open = vec![self];
        while let Some(file) = open.pop() {
            for child in file.of_file().filter_map(|step| step.work.child()) {
                if files.insert(child.name(), child.workflow()).is_none() {
                    open.push(child.workflow());
                }
            }
        }
        files
    }

    /// Returns the first ids that differ from the ids in this file, without included files.
    fn first_ids(&self, before: &Self) -> FirstIds {
        let known: BTreeMap<&str, &str> =
            before.body.of_file().map(|step| (id_in_file(step), step.id.as_str())).collect();
        let known_as = |step: &Step| {
            let same = known.get(step.id.as_str());
            same.or_else(|| known.get(step.renamed_from.as_deref()?)).map(|first| (*first).to_owned())
        };
        let mut first_ids: FirstIds =
            self.body.of_file().filter_map(|step| Some((step.id.clone(), known_as(step)?))).collect();
        let mut taken: BTreeSet<String> = first_ids.values().cloned().collect();
        let ids: Vec<&str> = self.body.of_file().map(|step| step.id.as_str()).collect();
        for id in &ids {
            if !first_ids.contains_key(*id) && taken.contains(*id) {
                let is_unused = |first: &String| !taken.contains(first) && !ids.contains(&first.as_str());
                let first = (2_u32..).map(|count| format!("{id}-{count}")).find(is_unused);
                let first = first.expect("fewer ids than numbers");
                taken.insert(first.clone());
                first_ids.insert((*id).to_owned(), first);
            }
        }
        first_ids.retain(|id, first| id != first);
        first_ids
    }
}

/// Returns the id of a step in the workflow file, from the workflow of a run.
fn id_in_file(step: &Step) -> &str {
    let is_renamed = step.renamed_from.as_ref() == Some(&step.id);
    step.name.as_deref().filter(|_| is_renamed).unwrap_or(&step.id)
}

impl Renames<'_> {
    /// Returns the text of a file with the first ids.
    fn edited(&self, text: &str, path: &Path) -> Result<String, FileError> {
        let source = SourceText::new(path.to_owned(), Arc::from(text));
        let (root, _) =
            node::read(&source).map_err(|problem| FileError::new(&source, Problems::from(*problem)))?;
        let mut edits = BTreeMap::new();
        collect(("", &root), text, self, &mut edits);
        for range in templates(text) {
            edits.entry(range.start).or_insert_with(|| (range.clone(), in_expression(&text[range], self)));
        }
        let mut edited = String::with_capacity(text.len());
        let mut at = 0;
        for (range, new) in edits.into_values().filter(|(range, _)| !range.is_empty()) {
            if range.start >= at {
                edited.push_str(&text[at..range.start]);
                edited.push_str(&new);
                at = range.end;
            }
        }
        Ok(edited + &text[at..])
    }

    /// Returns the first id of a word after some text of an expression: `steps.ID`, `steps['ID']`, `skipped(ID)`, and
    /// `steps.ID.outputs.WORD` of an included file.
    fn first_id(&self, before: &str, word: &str) -> Option<&str> {
        let before = before.trim_end_matches(['\'', '"']).trim_end();
        if ["steps.", "steps[", "skipped("].iter().any(|opening| before.ends_with(opening)) {
            return self.own.get(word).map(String::as_str);
        }
        let outputs = before.strip_suffix("outputs.").or_else(|| before.strip_suffix("outputs["))?;
        let of_step = |(step, _): &(&&str, _)| outputs.ends_with(&format!("steps.{step}."));
        self.included.iter().find(of_step)?.1.get(word).map(String::as_str)
    }
}

/// Collects the edits of ids, needs and whole expressions, by place. `list`: the key of the node, or of its list.
fn collect(
    (list, node): (&str, &Node),
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
            let first = |node: &Node| renames.own.get(node.key_text()).map(|first| (*first).to_owned());
            match key.key_text() {
                "id" if STEP_LISTS.contains(&list) => {
                    let Some(first) = first(value) else { continue };
                    let line = text[..key.span.start].rfind('\n').map_or(0, |end| end + 1);
                    let indent = " ".repeat(text[line..key.span.start].chars().count());
                    let between = if is_flow { ", ".to_owned() } else { format!("\n{indent}") };
                    let mut own = first.clone();
                    for (key, text) in [("name", value.key_text()), ("renamed_from", first.as_str())] {
                        match node.get(key) {
                            Some(node) => edit(node, text.to_owned()),
                            None => own.push_str(&format!("{between}{key}: {text}")),
                        }
                    }
                    edit(value, own);
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
    let entries = node.entries().into_iter().flatten().map(|(key, value)| (key.key_text(), value));
    let items = node.items().into_iter().flatten().map(|item| (list, item));
    for below in entries.chain(items) {
        collect(below, text, renames, edits);
    }
}

/// Returns the places of `${{ }}` in a text.
fn templates(text: &str) -> impl Iterator<Item = Range<usize>> {
    let starts = text.match_indices("${{").map(|(start, _)| start);
    starts.filter_map(|start| Some(start..start + text[start..].find("}}")? + 2))
}

/// Returns an expression with the first ids.
fn in_expression(text: &str, renames: &Renames<'_>) -> String {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    let mut new = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_part) {
        new.push_str(&rest[..start]);
        let word = rest[start..].split(|letter| !is_part(letter)).next().unwrap_or_default();
        let first = renames.first_id(&new, word).unwrap_or(word);
        new.push_str(first);
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
        assert_eq!(last.text(), "steps: [{ id: get, name: load, renamed_from: get, run: a, capture: text }]");
    }

    #[test]
    fn a_step_is_known_by_its_id_in_the_file_or_before_it() {
        let path = Path::new("w.yaml");
        let parse = |text: &str| Workflow::parse(text, path).unwrap();
        let renamed = |text: &str, before: &Workflow| parse(text).with_first_ids(before).unwrap();
        let first = parse("steps: [{ id: pay, run: a }]");
        let second = renamed("steps: [{ id: charge, name: Charge it, renamed_from: pay, run: a }]", &first);

        // The note of the rename is gone, and the old id is of a new step.
        let third = "steps: [{ id: charge, run: a }, { id: pay, needs: [charge], run: b }]";
        assert_eq!(
            renamed(third, &second).text(),
            "steps: [{ id: pay, name: charge, renamed_from: pay, run: a }, \
             { id: pay-2, name: pay, renamed_from: pay-2, needs: [pay], run: b }]"
        );
        assert_eq!(renamed(third, &renamed(third, &second)).text(), renamed(third, &second).text());
        let fourth = "steps: [{ id: settle, renamed_from: charge, run: a }, { id: pay, run: b }]";
        assert_eq!(
            renamed(fourth, &renamed(third, &second)).text(),
            "steps: [{ id: pay, name: settle, renamed_from: pay, run: a }, \
             { id: pay-2, name: pay, renamed_from: pay-2, run: b }]"
        );
        // The first file again.
        assert_eq!(renamed(first.text(), &second).text(), first.text());
    }

    #[test]
    fn an_old_id_that_the_file_still_uses_is_refused() {
        let text = "steps: [{ id: a, run: a }, { id: b, renamed_from: a, run: b }]";
        let error = Workflow::parse(text, Path::new("w.yaml")).unwrap_err();
        assert!(error.to_string().contains("names step `a` of this file"), "{error}");
    }
}
