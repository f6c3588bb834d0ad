//! `cargo xtask tidy --report`: the figures beside their limits, and the worst places.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::Finding;
use super::figures::Figures;
use super::limits::{self, Kind};
use super::tree::Tree;

/// Returns the report, with `worst` places of each kind.
pub(super) fn of(tree: &Tree, worst: usize) -> String {
    let figures = Figures::of(tree);
    let mut text = String::new();
    prose(&mut text, &figures);
    shape(&mut text, &figures);
    let sentences = figures.sentences.iter().map(|(_, finding)| finding);
    places(&mut text, "sentences", sentences, worst);
    for kind in [Kind::LongLine, Kind::Tuple, Kind::FlagPair, Kind::SharedName] {
        let of_kind = figures.places.iter().filter(|((_, of), _)| *of == kind);
        places(&mut text, &kind.to_string(), of_kind.flat_map(|(_, places)| places), worst);
    }
    for (area, cycles) in figures.cycles.iter().filter(|(_, cycles)| !cycles.is_empty()) {
        _ = writeln!(text, "\ncycles of {area}");
        for cycle in cycles {
            _ = writeln!(text, "  {}", cycle.rooms.join(", "));
            for edge in cycle.edges.iter().take(worst) {
                _ = writeln!(text, "    {edge}");
            }
        }
    }
    text
}

/// Writes a line per area of prose: words and rates, each rate with its limit.
fn prose(text: &mut String, figures: &Figures) {
    _ = writeln!(text, "{:32} {:>7} {:>16} {:>16}", "per 1,000 words", "words", "pronouns", "banned");
    for (area, count) in &figures.prose {
        _ = writeln!(
            text,
            "{area:32} {:7} {:7.1} (of {:3}) {:7.1} (of {:3})",
            count.words,
            count.pronouns_rate(),
            limits::PROSE.pronouns,
            count.banned_rate(),
            limits::PROSE.banned
        );
    }
}

/// Writes a line per crate or folder: each count with its limit.
fn shape(text: &mut String, figures: &Figures) {
    _ = write!(text, "\n{:24}", "places");
    for kind in Kind::ALL {
        _ = write!(text, " {kind:>20}");
    }
    let areas: BTreeSet<&String> = figures.places.keys().map(|(area, _)| area).collect();
    for area in areas {
        _ = write!(text, "\n{area:24}");
        for kind in Kind::ALL {
            let cell = format!("{} (of {})", figures.count(area, kind), limits::shape(kind));
            _ = write!(text, " {cell:>20}");
        }
    }
    text.push('\n');
}

fn places<'a>(text: &mut String, title: &str, findings: impl Iterator<Item = &'a Finding>, worst: usize) {
    let findings: Vec<&Finding> = findings.collect();
    if !findings.is_empty() {
        _ = writeln!(text, "\n{title}: {} of {}", worst.min(findings.len()), findings.len());
    }
    for finding in findings.iter().take(worst) {
        _ = writeln!(text, "  {finding}");
    }
}
