//! The tables of a benchmark run, as text, Markdown and JSON.

use serde_json::{Value, json};

use super::measure::{Demand, Measured, Topic, Unit, median};

/// A table with a text column followed by figures.
#[derive(Debug)]
pub(super) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Formats the table with columns padded to the widest cell and separated by two spaces.
    pub(super) fn to_text(&self) -> String {
        let widths = self.widths();
        let mut text = String::new();
        for row in self.all_rows() {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                let padded =
                    if column == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
                line.push_str(&padded);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Formats the table as Markdown.
    pub(super) fn to_markdown(&self) -> String {
        let mut text = String::new();
        for (index, row) in self.all_rows().enumerate() {
            text.push_str(&format!("| {} |\n", row.join(" | ")));
            if index == 0 {
                text.push_str(&format!("|---|{}\n", "---:|".repeat(self.head.len() - 1)));
            }
        }
        text
    }

    fn all_rows(&self) -> impl Iterator<Item = Vec<String>> {
        let head: Vec<String> = self.head.iter().map(ToString::to_string).collect();
        std::iter::once(head).chain(self.rows.iter().cloned())
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths = vec![0; self.head.len()];
        for row in self.all_rows() {
            for (width, cell) in widths.iter_mut().zip(&row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

/// Returns the table of figures and the table of demands.
pub(super) fn tables(topics: &[Topic]) -> [Table; 2] {
    let mut measured =
        Table { head: vec!["measured", "median", "lowest", "highest", "unit"], rows: Vec::new() };
    let mut demanded =
        Table { head: vec!["demanded", "ours", "limit", "ratio", "target", "met"], rows: Vec::new() };
    for topic in topics {
        for subject in &topic.subjects {
            let cell = |pick: fn(&[f64]) -> Option<f64>| shown(pick(subject.figures()), subject.unit);
            let figures = [cell(median), cell(lowest), cell(highest)];
            measured
                .rows
                .push([&[subject.name.to_owned()], &figures[..], &[unit_name(subject.unit)]].concat());
        }
        let rows = topic.demands.iter().filter_map(|demand| judged(topics, demand));
        demanded.rows.extend(rows.map(|judged| judged.row()));
    }
    [measured, demanded]
}

/// A demand with its measured subjects.
struct Judged<'a> {
    demand: &'a Demand,
    ours: &'a Measured,
    limit: Option<&'a Measured>,
    actual: f64,
}

/// Looks up the subjects of a demand; returns `None` if a subject was not measured.
fn judged<'a>(topics: &'a [Topic], demand: &'a Demand) -> Option<Judged<'a>> {
    let ours = find(topics, demand.ours)?;
    let limit = demand.limit.map(|name| find(topics, name).ok_or(())).transpose().ok()?;
    let actual = demand.actual(ours.figures(), limit.map(Measured::figures))?;
    Some(Judged { demand, ours, limit, actual })
}

impl Judged<'_> {
    fn met(&self) -> bool {
        self.demand.bound.holds(self.actual)
    }

    fn row(&self) -> Vec<String> {
        let figure = |subject: &Measured| shown(median(subject.figures()), subject.unit);
        let bound = self.demand.bound;
        let (limit, ratio, target) = match self.limit {
            Some(limit) => (figure(limit), format!("{:.2}", self.actual), bound.to_string()),
            None => ("-".to_owned(), "-".to_owned(), format!("{bound} {}", self.ours.unit)),
        };
        let met = if self.met() { "yes" } else { "no" }.to_owned();
        vec![self.demand.claim.to_owned(), figure(self.ours), limit, ratio, target, met]
    }
}

/// Returns the whole run as JSON, with every figure of every round.
pub(super) fn to_json(topics: &[Topic]) -> Value {
    let subjects = topics.iter().flat_map(|topic| &topic.subjects);
    let demands = topics.iter().flat_map(|topic| &topic.demands);
    let demanded = demands.filter_map(|demand| judged(topics, demand)).map(|judged| {
        let Demand { claim, ours, limit, bound } = judged.demand;
        json!({
            "claim": claim, "ours": ours, "limit": limit, "actual": judged.actual,
            "target": bound.to_string(), "met": judged.met(),
        })
    });
    json!({
        "v": 1,
        "optimised": !cfg!(debug_assertions),
        "cpus": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "system": format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
        "measured": subjects.map(|subject| json!({
            "name": subject.name, "unit": subject.unit.to_string(), "median": median(subject.figures()),
            "rounds": subject.figures(),
        })).collect::<Vec<_>>(),
        "demanded": demanded.collect::<Vec<_>>(),
    })
}

/// Returns the subject with this name in any topic; `None` if its topic was not measured.
fn find<'a>(topics: &'a [Topic], name: &str) -> Option<&'a Measured> {
    topics.iter().flat_map(|topic| &topic.subjects).find(|subject| subject.name == name)
}

fn lowest(figures: &[f64]) -> Option<f64> {
    figures.iter().copied().min_by(f64::total_cmp)
}

fn highest(figures: &[f64]) -> Option<f64> {
    figures.iter().copied().max_by(f64::total_cmp)
}

fn unit_name(unit: Unit) -> String {
    match unit {
        Unit::BytesPerSecond => "MB/s".to_owned(),
        unit => unit.to_string(),
    }
}

fn shown(figure: Option<f64>, unit: Unit) -> String {
    match (figure, unit) {
        (None, _) => "-".to_owned(),
        (Some(figure), Unit::BytesPerSecond) => format!("{:.0}", figure / 1e6),
        (Some(figure), Unit::PerSecond | Unit::Bytes) => format!("{figure:.0}"),
        (Some(figure), Unit::Milliseconds | Unit::CpuMicroseconds) => format!("{figure:.2}"),
        (Some(figure), Unit::Count) => format!("{figure:.3}"),
    }
}
