//! "Did you mean": finds the known name nearest to an unknown name.

/// Largest distance of a suggestion, as a share of the letters of the longer name.
///
/// Two letters of five may differ; with more, suggestions were more often odd than right.
const DISTANCE_SHARE_MAX: f64 = 0.4;

/// Returns the name in `known` nearest to `name`, if near enough; of equally near names the first.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let folded = name.to_lowercase();
    let mut best: Option<(usize, &str)> = None;
    for candidate in known {
        let distance = strsim::damerau_levenshtein(&folded, &candidate.to_lowercase());
        let longer = folded.chars().count().max(candidate.chars().count());
        let near = distance as f64 <= longer as f64 * DISTANCE_SHARE_MAX;
        if near && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate.to_owned())
}

/// Returns `a`, `b` and `c`: names in backticks, as in a sentence; `none` for an empty list.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match quoted.as_slice() {
        [] => "none".to_owned(),
        [only] => only.clone(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}
