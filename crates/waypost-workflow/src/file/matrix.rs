//! `matrix`: items as all combinations of values.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::body;
use super::checker::Checker;
use super::fields::Fields;
use super::node::{Kind, Node};
use super::step;
use crate::expr::{ExprError, Scope, Template};
use crate::suggest::{listed, nearest};

/// Most combinations of one matrix: all of them are made in memory when the file is read.
const COMBINATIONS_MAX: usize = 10_000;

/// Combinations of values, each a map with a value for each axis.
#[derive(Debug, Clone)]
pub struct Matrix {
    axes: Vec<(String, ValueList)>,
    exclude: ValueList,
    include: ValueList,
    /// The combinations, if no list of values is an expression.
    known: Option<Arc<Vec<Value>>>,
}

/// List of values.
#[derive(Debug, Clone)]
enum ValueList {
    Listed(Vec<Value>),
    Expression(Template),
}

/// Why a matrix has no combinations.
#[derive(Debug)]
pub(crate) enum MatrixError {
    /// An expression cannot be evaluated.
    Expression(ExprError),
    /// A value is unfit, or there are too many combinations.
    Unfit(String),
}

impl Matrix {
    /// Returns the combinations, if no list of values is an expression.
    pub(super) fn known(&self) -> Option<&Arc<Vec<Value>>> {
        self.known.as_ref()
    }

    /// Returns the lists of values that are expressions.
    pub(super) fn templates(&self) -> impl Iterator<Item = &Template> {
        let lists = self.axes.iter().map(|(_, values)| values).chain([&self.exclude, &self.include]);
        lists.filter_map(|values| match values {
            ValueList::Listed(_) => None,
            ValueList::Expression(text) => Some(text),
        })
    }

    /// Returns the combinations: the product of the axes minus `exclude`, followed by the entries of `include`.
    ///
    /// # Errors
    /// [`MatrixError`].
    pub(crate) fn combinations(&self, scope: &Scope) -> Result<Arc<Vec<Value>>, MatrixError> {
        if let Some(known) = &self.known {
            return Ok(Arc::clone(known));
        }
        let axes = self.axes.iter().map(|(name, values)| Ok((name.clone(), values.list(name, scope)?)));
        let axes = axes.collect::<Result<Vec<_>, MatrixError>>()?;
        let exclude = self.exclude.list("exclude", scope)?;
        let include = self.include.list("include", scope)?;
        for (key, entries) in [("exclude", &exclude), ("include", &include)] {
            if let Some(why) = entries.iter().find_map(|entry| unfit(key, entry, &axes)) {
                return Err(MatrixError::Unfit(why));
            }
        }
        product(&axes, &exclude, include).map(Arc::new).map_err(MatrixError::Unfit)
    }

    /// Returns the key of a combination: its values, joined.
    pub(super) fn key(&self, item: &Value) -> Option<String> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let values: Vec<String> = item.as_object()?.values().map(text).collect();
        Some(values.join("-"))
    }

    /// Returns the matrix for a digest.
    pub(super) fn meaning(&self) -> Value {
        let values = |values: &ValueList| match values {
            ValueList::Listed(values) => Value::from(values.clone()),
            ValueList::Expression(text) => Value::from(text.as_str()),
        };
        let axes: Vec<Value> =
            self.axes.iter().map(|(name, list)| serde_json::json!([name, values(list)])).collect();
        serde_json::json!({ "matrix": axes, "exclude": values(&self.exclude), "include": values(&self.include) })
    }
}

impl ValueList {
    fn list(&self, name: &str, scope: &Scope) -> Result<Vec<Value>, MatrixError> {
        match self {
            Self::Listed(values) => Ok(values.clone()),
            Self::Expression(text) => match text.evaluate(scope).map_err(MatrixError::Expression)? {
                Value::Array(values) => Ok(values),
                other => {
                    let found = crate::expr::described(&other);
                    let text = text.as_str();
                    Err(MatrixError::Unfit(format!("`{name}` must be a list, and `{text}` is {found}")))
                }
            },
        }
    }

    fn listed(&self) -> Option<&Vec<Value>> {
        match self {
            Self::Listed(values) => Some(values),
            Self::Expression(_) => None,
        }
    }
}

/// Reads `matrix`, `exclude` and `include` of the items in `fields`.
pub(super) fn matrix(checker: &mut Checker<'_>, node: &Node, fields: &Fields<'_>) -> Option<Matrix> {
    const HELP: &str = "write `matrix: { os: [linux, mac], python: [\"3.11\", \"3.12\"] }`";
    for key in ["run", "file", "json"] {
        if let Some(node) = fields.get(key) {
            checker.wrong(node, format!("`{key}` has no effect beside `matrix`"), "remove one of them");
        }
    }
    let entries = match &node.kind {
        Kind::Map(entries) if !entries.is_empty() => entries,
        Kind::Map(_) => {
            checker.wrong(node, "`matrix` is empty", HELP);
            return None;
        }
        _ => {
            checker.mismatch(node, "matrix", "a map of lists", HELP);
            return None;
        }
    };
    let mut axes = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let name = key.key_text().to_owned();
        // GitHub has these keys among the axes.
        if matches!(name.as_str(), "include" | "exclude") {
            let help =
                format!("move `{name}` beside `matrix`: `items: {{ matrix: {{ ... }}, {name}: [...] }}`");
            checker.wrong(key, format!("`{name}` is not a list of values"), &help);
            continue;
        }
        if !step::is_step_id(&name) {
            let message = format!("`{}` is not a valid name of values", crate::expr::shown(&name));
            checker.wrong(
                key,
                message,
                "begin with a letter or `_`, followed by letters, digits, `_` or `-`",
            );
        }
        axes.extend(values(checker, value, &name, HELP).map(|values| (name, values)));
    }
    let mut others = ["exclude", "include"].map(|key| {
        let help = format!("write a list of maps: `{key}: [{{ os: mac, python: \"3.11\" }}]`");
        fields.get(key).map_or(Some(ValueList::Listed(Vec::new())), |node| values(checker, node, key, &help))
    });
    let (exclude, include) = (others[0].take()?, others[1].take()?);
    // A problem was reported.
    if axes.len() < entries.len() {
        return None;
    }
    let literal = axes.iter().map(|(name, values)| Some((name.clone(), values.listed()?.clone())));
    let literal: Option<Vec<(String, Vec<Value>)>> = literal.collect();
    let names =
        axes.iter().map(|(name, values)| (name.clone(), values.listed().cloned().unwrap_or_default()));
    let names: Vec<_> = names.collect();
    let mut is_fit = true;
    for (key, entries) in [("exclude", &exclude), ("include", &include)] {
        let nodes = fields.get(key).map(|node| &node.kind);
        let (Some(Kind::List(nodes)), Some(entries)) = (nodes, entries.listed()) else { continue };
        for (node, entry) in nodes.iter().zip(entries) {
            if let Some(why) = unfit(key, entry, &names) {
                is_fit = false;
                checker.wrong(node, why, "write a map with names of `matrix`");
            } else if let Some(axes) = literal.as_ref().filter(|_| key == "exclude")
                && !checker.warnings.is_full()
                && !matches_any(entry, axes)
            {
                let message = "this entry of `exclude` matches no combination";
                let help = "compare its values with those of `matrix`";
                checker.warnings.push(checker.source.problem(&node.span, message).help(help));
            }
        }
    }
    let known = match (&literal, exclude.listed(), include.listed()) {
        (Some(axes), Some(exclude), Some(include)) if is_fit => match product(axes, exclude, include.clone())
        {
            Ok(known) => Some(Arc::new(known)),
            Err(why) => {
                checker.wrong(node, why, "write fewer values, or several steps");
                return None;
            }
        },
        _ => None,
    };
    is_fit.then_some(Matrix { axes, exclude, include, known })
}

/// Reads a list of values, or an expression for one.
fn values(checker: &mut Checker<'_>, node: &Node, name: &str, help: &str) -> Option<ValueList> {
    match &node.kind {
        Kind::List(nodes) => {
            if nodes.is_empty() {
                checker.wrong(
                    node,
                    format!("`{name}` has no values"),
                    "write at least one value, or remove the key",
                );
                return None;
            }
            let values: Vec<Value> = nodes.iter().map(as_spelled).collect();
            if values.iter().any(body::holds_expression) {
                let help = "use a single expression for the whole list";
                checker.wrong(node, "a literal list of values cannot contain expressions", help);
                return None;
            }
            Some(ValueList::Listed(values))
        }
        Kind::Text(text) if text.contains("${{") => checker.template(node, name).map(ValueList::Expression),
        _ => {
            checker.mismatch(node, name, "a list", help);
            None
        }
    }
}

/// Returns the value of a node. A number that JSON would write in another way stays text: `3.10` is not `3.1`.
fn as_spelled(node: &Node) -> Value {
    match (&node.kind, &node.spelling) {
        (Kind::Number(number), Some(spelling)) if number.to_string() != *spelling => {
            Value::from(spelling.clone())
        }
        (Kind::Map(entries), _) => {
            let pairs = entries.iter().map(|(key, value)| (key.key_text().to_owned(), as_spelled(value)));
            Value::Object(pairs.collect())
        }
        (Kind::List(nodes), _) => nodes.iter().map(as_spelled).collect(),
        _ => node.to_json(),
    }
}

/// Returns why an entry of `exclude` or `include` does not fit the axes.
fn unfit(key: &str, entry: &Value, axes: &[(String, Vec<Value>)]) -> Option<String> {
    let Some(entry) = entry.as_object().filter(|entry| !entry.is_empty()) else {
        return Some(format!("an entry of `{key}` must be a map, not {}", crate::expr::described(entry)));
    };
    let names = || axes.iter().map(|(name, _)| name.as_str());
    if key == "include" {
        let missing = names().find(|name| !entry.contains_key(*name))?;
        return Some(format!(
            "an entry of `include` is a whole combination, and this one has no `{missing}`"
        ));
    }
    let unknown = entry.keys().find(|name| !names().any(|known| known == name.as_str()))?;
    let meant = nearest(unknown, names()).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    Some(format!("`matrix` has no `{unknown}`, only {}{meant}", listed(names())))
}

/// Returns whether a value of a combination is the wanted one: `3` and `"3"` are the same.
fn is_same(value: &Value, wanted: &Value) -> bool {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text(value) == text(wanted)
}

fn matches_any(entry: &Value, axes: &[(String, Vec<Value>)]) -> bool {
    axes.iter().all(|(name, values)| {
        entry.get(name).is_none_or(|wanted| values.iter().any(|value| is_same(value, wanted)))
    })
}

/// Returns the product of the axes, the last axis fastest, without the excluded and with the included entries.
fn product(
    axes: &[(String, Vec<Value>)],
    exclude: &[Value],
    include: Vec<Value>,
) -> Result<Vec<Value>, String> {
    let count = axes.iter().try_fold(1_usize, |count, (_, values)| count.checked_mul(values.len()));
    let count = count.and_then(|count| count.checked_add(include.len()));
    if count.is_none_or(|count| count > COMBINATIONS_MAX) {
        let sizes: Vec<String> = axes.iter().map(|(_, values)| values.len().to_string()).collect();
        return Err(format!(
            "the matrix has {} combinations, the maximum is {COMBINATIONS_MAX}",
            sizes.join(" × ")
        ));
    }
    let mut found = vec![Map::new()];
    for (name, values) in axes {
        let with = |before: &Map<String, Value>, value: &Value| {
            let mut combination = before.clone();
            combination.insert(name.clone(), value.clone());
            combination
        };
        found = found.iter().flat_map(|before| values.iter().map(move |value| with(before, value))).collect();
    }
    let is_excluded = |combination: &Map<String, Value>| {
        let fits = |(name, wanted): (&String, &Value)| is_same(&combination[name], wanted);
        exclude.iter().filter_map(Value::as_object).any(|entry| entry.iter().all(fits))
    };
    let kept = found.into_iter().filter(|combination| !is_excluded(combination)).map(Value::Object);
    let ordered = include.into_iter().map(|entry| {
        let Value::Object(mut entry) = entry else { return entry };
        // The key of a combination begins with the axes.
        let mut ordered: Map<String, Value> =
            axes.iter().filter_map(|(name, _)| Some((name.clone(), entry.shift_remove(name)?))).collect();
        ordered.extend(entry);
        Value::Object(ordered)
    });
    Ok(kept.chain(ordered).collect())
}
